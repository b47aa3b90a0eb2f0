#include "main-node/cluster/members_internal.h"

#include "common/base/log.h"
#include "common/model/config.h"
#include "main-node/cluster/deal_homes.h"
#include "main-node/cluster/members_links.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Measures the workers' links, and passes over those without which layers are quicker. */

#define FAST_BYTE_NS 60.0 /* 133 Mbit/s: what fits into RUNs is quickly through */
#define WINDOW_NS (500.0 * OD_NS_PER_MS) /* time of row bytes in flight: heartbeats wait behind them */

uint64_t odm_link_window(double byte_ns)
{
	return byte_ns > FAST_BYTE_NS ? (uint64_t)(WINDOW_NS / byte_ns) : OD_MAX_HELD_BYTES;
}

int odm_members_links_init(struct odm_members *ms, struct od_err *err)
{
	const struct odm_cluster_opts *o = ms->o.cluster;
	const struct od_config *cfg = o->config;

	ms->shape = (struct odm_layer_shape){
		.row_bytes = (double)cfg->hidden * (o->profile == OD_PROFILE_BF16 ? 2 : 4),
		.expert = odm_expert_times_guess(3.0 * cfg->hidden * cfg->intermediate),
		.top_k = cfg->top_k,
		.n_experts = cfg->n_experts,
		.group_size = o->group_size,
	};
	ms->expert_weights = 3.0 * cfg->hidden * cfg->intermediate;
	ms->load_bytes = 2 * ms->expert_weights;
	ms->home = calloc(OD_MAX_HOSTS, sizeof(*ms->home));
	ms->weighed = calloc(OD_MAX_HOSTS, sizeof(*ms->weighed));
	ms->excess = calloc(OD_MAX_HOSTS, sizeof(*ms->excess));
	return ms->home != NULL && ms->weighed != NULL && ms->excess != NULL ? OD_OK :
									       od_fail(err, OD_ERR_NOMEM, "members");
}

void odm_members_links_fini(struct odm_members *ms)
{
	free(ms->home);
	free(ms->weighed);
	free(ms->excess);
}

void odm_member_echo(struct member *m, const Od__Pong *p)
{
	odm_link_cost_echo(&m->cost, p->sequence, p->padding.len, od_now_ns());
}

static bool probe(struct member *m, bool measured)
{
	uint32_t bytes = 0;

	if (m->state != M_READY || m->host.role != OD_NODE_WORKER)
		return false;
	pthread_mutex_lock(&m->ms->lock);
	if (m->cost.measured == measured)
		bytes = odm_link_cost_due(&m->cost, od_now_ns());
	pthread_mutex_unlock(&m->ms->lock);
	if (bytes == 0)
		return false;
	odm_member_ping(m, 0); /* its round trip is the probe's, but for the bytes */
	odm_member_ping(m, bytes);
	return true;
}

void odm_member_probe(struct member *m)
{
	probe(m, false);
}

void odm_members_probe(struct odm_members *ms)
{
	for (uint32_t i = 0; i < ms->n; i++) {
		const uint32_t at = (ms->next_probe + i) % ms->n;

		if (probe(ms->member[at], true)) {
			ms->next_probe = at + 1;
			return;
		}
	}
}

bool odm_member_measured(struct member *m)
{
	bool measured;

	if (m->host.role != OD_NODE_WORKER)
		return true;
	pthread_mutex_lock(&m->ms->lock);
	odm_link_cost_check(&m->cost, od_now_ns());
	measured = m->cost.measured;
	pthread_mutex_unlock(&m->ms->lock);
	return measured;
}

/* The fields of the view. True: they have changed. */
static bool copy_decision(struct member *m)
{
	const bool changed = memcmp(m->pub.passed, m->cost.passed, sizeof(m->pub.passed)) != 0;

	memcpy(m->pub.passed, m->cost.passed, sizeof(m->pub.passed));
	m->stats.passed = m->pub.passed[ODM_DEAL_FEW];
	return changed;
}

static void tell_changed(struct odm_members *ms)
{
	const uint64_t one = 1;

	if (write(ms->o.changed_fd, &one, sizeof(one)) < 0)
		return; /* the counter is full: the engine will wake anyway */
}

/* Once for each change. for_what: "", or what alone it is not used for. */
static void say_change(struct member *m, const struct odm_link_cost *c, bool passed, bool *told, const char *for_what)
{
	char name[300];

	if (*told == passed)
		return;
	*told = passed;
	odm_member_name(m, name, sizeof(name));
	if (passed)
		od_log(OD_LOG_WARN,
		       "%s is connected but not used%s: layers end sooner without it (its link: round trip %.1f ms, %.1f ms for "
		       "64 KiB; it is measured all the time)",
		       name, for_what, odm_link_cost_latency(c) / OD_NS_PER_MS,
		       odm_link_cost_byte(c) * 65536 / OD_NS_PER_MS);
	else
		od_log(OD_LOG_INFO, "%s is used again%s (round trip %.1f ms, %.1f ms for 64 KiB)", name, for_what,
		       odm_link_cost_latency(c) / OD_NS_PER_MS, odm_link_cost_byte(c) * 65536 / OD_NS_PER_MS);
}

static void say(struct member *m, const struct odm_link_cost *c)
{
	const bool few = c->passed[ODM_DEAL_FEW], many = c->passed[ODM_DEAL_MANY];

	say_change(m, c, few, &m->told_passed[ODM_DEAL_FEW], "");
	if (few || m->told_passed[ODM_DEAL_FEW])
		m->told_passed[ODM_DEAL_MANY] = many; /* one message says both */
	else
		say_change(m, c, many, &m->told_passed[ODM_DEAL_MANY], " for prompts");
}

/* Workers that main can use, or will in a moment. */
static bool is_candidate(const struct member *m)
{
	return m->host.role == OD_NODE_WORKER && m->state == M_READY && m->exile_ns == 0 && m->cost.measured &&
	       !m->distrusted;
}

/* Adds the experts that it has or gets to ms->held. True: there were some that were not in it. A worker with a share of
 * the pack for good (od-pack --share) gets no others. */
static bool add_held(struct odm_members *ms, const struct member *m)
{
	bool more = false;

	for (size_t j = 0; j < ms->holds_bytes; j++) {
		const uint8_t bits = m->pub.sealed ? m->holds[j] : 0xff;

		more = more || (bits & ~ms->held[j]) != 0;
		ms->held[j] |= bits;
	}
	return more;
}

/* No worker is passed over that has experts which no used one has or gets; nor is any if else none is used. */
static void keep_needed(struct odm_members *ms, enum odm_deal_kind kind)
{
	bool any = false;

	memset(ms->held, 0, ms->holds_bytes);
	for (uint32_t i = 0; i < ms->n_listed; i++)
		if (is_candidate(ms->listed[i]) && !ms->listed[i]->cost.passed[kind]) {
			add_held(ms, ms->listed[i]);
			any = true;
		}
	for (uint32_t i = 0; i < ms->n_listed; i++) {
		struct odm_link_cost *c = &ms->listed[i]->cost;

		if (!is_candidate(ms->listed[i]) || !c->passed[kind] ||
		    (kind == ODM_DEAL_MANY && c->passed[ODM_DEAL_FEW]))
			continue;
		if (!any || add_held(ms, ms->listed[i]))
			c->passed[kind] = false;
	}
}

/* For decode steps first: a worker that is passed over in these is in prompts, too. */
static void keep_all_needed(struct odm_members *ms)
{
	keep_needed(ms, ODM_DEAL_FEW);
	keep_needed(ms, ODM_DEAL_MANY);
}

static void choose(struct odm_members *ms)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < ms->n_listed; i++)
		if (is_candidate(ms->listed[i]))
			ms->weighed[n++] = &ms->listed[i]->cost;
	odm_link_cost_choose(&ms->shape, ms->weighed, n, ms->excess, od_now_ns());
	keep_all_needed(ms);
}

/* For the view. */
static bool copy_decisions(struct odm_members *ms)
{
	bool changed = false;

	for (uint32_t i = 0; i < ms->n_listed; i++)
		changed |= copy_decision(ms->listed[i]);
	ms->epoch += changed;
	return changed;
}

void odm_members_weigh(struct odm_members *ms)
{
	struct odm_link_cost after;
	bool changed;

	pthread_mutex_lock(&ms->lock);
	choose(ms);
	odm_members_compare(ms);
	changed = copy_decisions(ms);
	pthread_mutex_unlock(&ms->lock);
	if (changed)
		tell_changed(ms);
	odm_members_tell_times(ms);
	for (uint32_t i = 0; i < ms->n_listed; i++) {
		struct member *m = ms->listed[i];

		pthread_mutex_lock(&ms->lock);
		after = m->cost;
		pthread_mutex_unlock(&ms->lock);
		if (m->state == M_READY)
			say(m, &after);
	}
}

/* ---- Engine thread ---- */

void odm_members_in_flight(struct odm_members *ms, uint64_t bytes)
{
	pthread_mutex_lock(&ms->lock);
	for (uint32_t i = 0; i < ms->n_listed; i++)
		odm_link_cost_in_flight(&ms->listed[i]->cost, bytes);
	pthread_mutex_unlock(&ms->lock);
}

void odm_members_give_up(struct odm_members *ms)
{
	pthread_mutex_lock(&ms->lock);
	for (uint32_t i = 0; i < ms->n_listed; i++)
		odm_link_cost_give_up(&ms->listed[i]->cost, od_now_ns());
	pthread_mutex_unlock(&ms->lock);
}

bool odm_members_late(struct odm_members *ms, uint32_t id, uint64_t session, uint32_t n, double took_ns, double times)
{
	bool late = false;
	struct member *m;

	pthread_mutex_lock(&ms->lock);
	m = id < ms->n && ms->member[id]->pub.session == session ? ms->member[id] : NULL;
	if (m != NULL && took_ns > 0) {
		late = true;
		odm_times_late(&m->times, times, took_ns / n, ms->load_bytes, od_now_ns());
	} else if (m != NULL && odm_link_cost_lag(&m->cost, od_now_ns()) > 0) {
		late = true;
		odm_link_cost_late(&m->cost);
		keep_all_needed(ms);
		copy_decisions(ms);
	}
	pthread_mutex_unlock(&ms->lock);
	return late;
}

bool odm_members_have_all(struct odm_members *ms, const uint32_t *id, uint32_t n)
{
	bool all = true;

	pthread_mutex_lock(&ms->lock);
	memset(ms->held, 0, ms->holds_bytes);
	for (uint32_t i = 0; i < n; i++)
		add_held(ms, ms->member[id[i]]);
	for (size_t i = 0; i < ms->cached_bytes; i++) /* a bit for each expert */
		all = all && (ms->held[i / 8] >> i % 8 & 1) != 0;
	pthread_mutex_unlock(&ms->lock);
	return all;
}

uint64_t odm_members_window(struct odm_members *ms, uint32_t id)
{
	double byte_ns;

	pthread_mutex_lock(&ms->lock);
	byte_ns = odm_link_cost_byte(&ms->member[id]->cost);
	pthread_mutex_unlock(&ms->lock);
	return odm_link_window(byte_ns);
}
