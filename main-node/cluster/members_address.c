/* Where a member is: the addresses of its name are tried in turn, and the one that works is kept until it fails. */
#include "main-node/cluster/members_internal.h"

#include <stdio.h>
#include <string.h>

#define LOOK_UP_AGAIN_NS (5 * OD_NS_PER_S) /* the name of a host that is not connected */
#define PATIENCE_NS (1 * OD_NS_PER_S) /* for each of several addresses; of a LAN, one answers in milliseconds */

const char *odm_member_address(const struct member *m)
{
	return m->addresses.n > 0 ? m->addresses.at[m->at] : "";
}

bool odm_member_tries_another(const struct member *m, uint64_t now)
{
	return m->addresses.n > 1 && now - m->since_ns > PATIENCE_NS;
}

/* An error at one address may say more than an error at another one: nothing listens there; a connection that leads to
 * nothing; a refusal. */
static int weight(bool reached, int code)
{
	return !reached ? 1 : code == OD_OK ? 2 : 3;
}

void odm_member_attempt_failed(struct member *m, bool reached, uint64_t retry_ns, int code, const char *why)
{
	const bool several = m->addresses.n > 1, another = several && m->round.n_failed + 1 < m->addresses.n;
	char text[sizeof(m->why)];

	if (weight(reached, code) >= m->round.weight) {
		snprintf(text, sizeof(text), several ? "at %s: %s" : "%s%s", several ? odm_member_address(m) : "", why);
		m->round.weight = weight(reached, code);
		m->round.code = code;
	} else {
		snprintf(text, sizeof(text), "%s", m->why);
	}
	odm_member_drop(m, another ? 0 : retry_ns, text);
	if (several)
		m->at = (m->at + 1) % m->addresses.n;
	if (another) {
		m->round.n_failed++;
		return;
	}
	code = m->round.code;
	m->round = (struct round){ 0 };
	if (code != OD_OK)
		odm_member_set_refused(m, code);
}

void odm_member_attempt_succeeded(struct member *m)
{
	m->round = (struct round){ 0 };
}

/* Connects anew if the name no longer has the address in use. */
static void set_addresses(struct member *m, const struct odm_addresses *found)
{
	const char *now = odm_member_address(m);
	uint32_t at = 0;

	while (at < found->n && strcmp(found->at[at], now) != 0)
		at++;
	if (at == found->n && m->state != M_CLOSED) {
		odm_member_drop(m, 0, "its name has another address now");
		m->told = false;
	}
	if (found->n != m->addresses.n || at == found->n)
		m->round = (struct round){ 0 };
	m->addresses = *found;
	m->at = at < found->n ? at : 0;
}

static void look_up(struct member *m)
{
	m->looked_up_ns = od_now_ns();
	m->lookup = odm_name_lookup_begin(m->host.host);
	if (m->lookup == NULL)
		m->retry_ns = od_now_ns() + ODM_RETRY_REFUSED_NS;
}

static void take_addresses(struct member *m)
{
	struct odm_addresses found;
	const char *failed;
	char why[160];

	if (m->lookup == NULL || !odm_name_lookup_done(m->lookup, &found, &failed))
		return;
	odm_name_lookup_end(m->lookup);
	m->lookup = NULL;
	if (m->state == M_READY)
		return; /* it has come back in the meantime */
	if (failed == NULL) {
		set_addresses(m, &found);
	} else if (m->addresses.n == 0) { /* else: without its name server, too, a host is mostly where it was */
		m->retry_ns = od_now_ns() + ODM_RETRY_REFUSED_NS;
		snprintf(why, sizeof(why), "cannot resolve its name (%s)", failed);
		odm_member_set_why(m, why);
	}
}

void odm_member_follow_name(struct member *m, uint64_t now)
{
	const bool known = m->addresses.n > 0,
		   is_name = !known || m->addresses.n > 1 || strcmp(m->addresses.at[0], m->host.host) != 0;

	take_addresses(m);
	if (m->state == M_READY || m->lookup != NULL || m->retired || m->gone || !is_name)
		return;
	/* A host that is away may come back with another address. */
	if (known ? now - m->looked_up_ns > LOOK_UP_AGAIN_NS : now >= m->retry_ns)
		look_up(m);
}

bool odm_member_is_twin(const struct member *m, char *why, size_t size)
{
	const struct odm_members *ms = m->ms;
	char other[300];

	for (uint32_t i = 0; i < ms->n; i++) {
		const struct member *o = ms->member[i];

		if (o == m || o->state == M_CLOSED || o->host.port != m->host.port ||
		    strcmp(odm_member_address(o), odm_member_address(m)) != 0)
			continue;
		snprintf(why, size, "it is the same daemon as %s: both have address %s",
			 odm_member_name(o, other, sizeof(other)), odm_member_address(m));
		return true;
	}
	return false;
}
