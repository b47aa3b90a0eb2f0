#include "main-node/cluster/members_machine.h"

#include "common/base/mem.h"
#include "main-node/cluster/members_internal.h"

#include <stdio.h>
#include <string.h>

#define BY_ITSELF "; main connects again by itself"

/* The first row that the reason has counts. */
static const struct trouble {
	const char *has; /* a piece of the reason */
	const char *step; /* odm_member_step */
	const char *problem; /* NULL: the reason itself, which main has written alone */
	const char *remedy;
} troubles[] = {
	{ "refuses this node's key", "key", "it refuses main's key",
	  "pair it again, or add main's public key to the peers file there and restart it" },
	{ "it ended the handshake; check that its key", "key", "its key is not the one that main expects",
	  "pair it again, or correct its key in main's hosts file" },
	{ "it ends the handshake", "key", "it ends the handshake",
	  "check that it is an od-moe daemon, and that it runs without keys, as main does" },
	{ "it runs without keys", "key", "it runs without keys, and main with them",
	  "pair it, or start it with --key" },
	{ "it runs with keys", "key", "it runs with keys, and main does not use them for it",
	  "pair it, or give main its key in the hosts file" },
	{ "says nothing", "daemon", "it takes the connection and says nothing",
	  "check that it is not stopped, and that it is an od-moe daemon" },
	{ "its WELCOME is malformed", "protocol", "it says things that make no sense",
	  "install the version of main there" },
	{ "protocol version", "protocol", "it speaks another version of the protocol",
	  "install the same version on all machines" },
	{ "fingerprint: expected", "model", "its pack is of another model than main's",
	  "give main and this machine packs of one checkpoint" },
	{ "another one, with the same fingerprint", "model", "its copy of the model differs from main's",
	  "compare the files with sha256sum, copy the right one there (or empty its spool), and restart it" },
	{ "role: expected", "role", "it is a daemon of another role than the hosts file says",
	  "correct its line in the hosts file" },
	{ "kernel_class", "kernels", "its kernels would give other last bits than main's",
	  "choose kernels of one class with --cpu here or there, or allow them with od-main's --mixed" },
	{ "profile", "profile", "it cannot compute with main's profile", "start od-main with another --profile" },
	{ "in use by main", "session", "another main uses it",
	  "stop that one, or take this machine out of one of the hosts files" },
	{ "two lines of its hosts", "hosts file", "two lines of the hosts file are this one daemon",
	  "remove one of them" },
	{ "it is the same daemon as", "hosts file", "two lines of the hosts file are this one daemon",
	  "remove one of them" },
	{ "refused", "session", "it refuses to work for main", "main's log and its own say why" },
	{ "it sent BYE", "session", "it was stopped", "start it there again" BY_ITSELF },
	{ "cannot resolve its name", "name", "its name cannot be resolved",
	  "correct the name in the hosts file, or write its address there" },
	{ "HELLO", "daemon", "what listens there does not answer as an od-moe daemon does",
	  "check its address and port in the hosts file" },
	{ "cannot connect", "port", "no connection", "check that it runs there, and its address and port" },
	{ "no connection", "port", "no connection", "check that it runs there, and its address and port" },
	{ "its process", "process", NULL, "restart od-main, which starts its workers anew" },
	{ "its connection has ended", "session", NULL, "start it there again, if it does not come back" BY_ITSELF },
	{ "no answer for", "session", NULL, "check that the machine is up, and its network" BY_ITSELF },
	{ "made no progress", "work", NULL, "look at its log and its disk; restart it if it stays so" },
	{ "it sent a malformed RESULT", "work", NULL, "install the version of main there, and restart it" },
	{ "data port", "data port", NULL, "check that a firewall lets its data port through" },
	{ "RUNs", "work", NULL, "look at its log; restart it if it happens again" },
	{ "no longer in the hosts file", "hosts file", NULL, "" },
	{ "", "session", "it cannot be used", "main's log says why" },
};

static const struct trouble *find_trouble(const char *why)
{
	const struct trouble *t = troubles;

	while (strstr(why, t->has) == NULL)
		t++;
	return t;
}

const char *odm_member_remedy(const char *why, char *problem, size_t size)
{
	const struct trouble *t = find_trouble(why);

	snprintf(problem, size, "%s", t->problem != NULL ? t->problem : why);
	return t->remedy;
}

const char *odm_member_step(const char *why)
{
	return find_trouble(why)->step;
}

/* Under the lock. */
static enum odm_machine_state state_of(const struct member *m)
{
	if (m->distrusted || (m->pub.session == 0 && m->exile_ns != 0))
		return ODM_MACHINE_DISTRUSTED;
	if (m->pub.session != 0)
		return m->pub.passed[ODM_DEAL_FEW] ? ODM_MACHINE_IDLE : ODM_MACHINE_SERVING;
	if (m->refused_code != 0 && m->refused_code != OD_ERR_BUSY && !m->gone)
		return ODM_MACHINE_REFUSED;
	return m->used ? ODM_MACHINE_LOST : ODM_MACHINE_CONNECTING;
}

static void explain(const struct member *m, struct odm_machine *x)
{
	const size_t size = sizeof(x->problem);

	x->remedy = "";
	if (x->state == ODM_MACHINE_IDLE) {
		snprintf(x->problem, size, "it is connected and gets no experts, because layers end sooner without it");
		x->remedy = "a faster network or processor there would bring it back";
	} else if (x->state == ODM_MACHINE_SERVING && m->pub.n_damaged > 0) {
		snprintf(x->problem, size, "%u experts of its pack could not be loaded; others compute them",
			 m->pub.n_damaged);
		x->remedy = "check its disk, copy the pack there again, and restart it";
	} else if (x->state != ODM_MACHINE_SERVING && (m->why[0] != '\0' || x->state != ODM_MACHINE_CONNECTING)) {
		x->remedy = odm_member_remedy(m->why[0] != '\0' ? m->why : ODM_NO_CONNECTION, x->problem, size);
	}
}

static void count_experts(const struct member *m, struct odm_machine *x)
{
	const struct odm_members *ms = m->ms;
	const bool known = m->pub.session != 0;

	x->experts = known ? (int64_t)ms->cached_bytes - m->pub.n_damaged : -1;
	for (size_t i = 0; known && m->pub.spool && i < ms->cached_bytes; i++)
		x->experts -= (m->holds[i / 8] >> i % 8 & 1) == 0;
	x->cached = known && m->pub.cache ? 0 : -1;
	for (size_t i = 0; x->cached >= 0 && i < ms->cached_bytes; i++)
		x->cached += m->cached[i] == 1;
}

/* Under the lock. */
static void describe(const struct member *m, struct odm_machine *x)
{
	char name[300];
	const char *space;

	*x = (struct odm_machine){ .id = m->id,
				   .is_shadow = m->host.role == OD_NODE_SHADOW,
				   .state = state_of(m),
				   .experts = -1,
				   .cached = -1,
				   .slots = m->stats.slots };
	space = strchr(odm_member_name(m, name, sizeof(name)), ' ');
	snprintf(x->name, sizeof(x->name), "%s", space != NULL ? space + 1 : name);
	snprintf(x->host, sizeof(x->host), "%s", m->host_name);
	memcpy(x->c, m->stats.c, sizeof(x->c));
	explain(m, x);
	if (!x->is_shadow) {
		count_experts(m, x);
		return;
	}
	x->first_layer = m->pub.first_layer;
	x->end_layer = m->pub.end_layer;
	snprintf(x->precision, sizeof(x->precision), "%s", m->precision);
}

void odm_members_machines(struct odm_members *ms, struct odm_machines *list)
{
	pthread_mutex_lock(&ms->lock);
	for (uint32_t i = 0; i < ms->n; i++) {
		if (ms->member[i]->retired)
			continue;
		if (!od_grow((void **)&list->v, list->n, 1, &list->cap, sizeof(*list->v)))
			break;
		describe(ms->member[i], &list->v[list->n++]);
	}
	pthread_mutex_unlock(&ms->lock);
}
