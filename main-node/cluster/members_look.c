#include "main-node/cluster/members_internal.h"

#include "common/base/timed_cond.h"
#include "main-node/cluster/members_look.h"

#include <stdio.h>
#include <string.h>

/* Questions of other threads to the table. */

uint32_t odm_members_count(struct odm_members *ms)
{
	uint32_t n;

	pthread_mutex_lock(&ms->lock);
	n = ms->n;
	pthread_mutex_unlock(&ms->lock);
	return n;
}

uint64_t odm_members_epoch(struct odm_members *ms)
{
	return ms->epoch;
}

/* 0: gets experts of all kinds, 1: of decode steps, 2: none. */
static uint32_t order_of(const struct odm_member *m)
{
	return m->passed[ODM_DEAL_FEW] ? 2 : m->passed[ODM_DEAL_MANY] ? 1 : 0;
}

static void add_workers(const struct odm_members *ms, uint32_t order, struct odm_view *v)
{
	for (uint32_t i = 0; i < ms->n_listed; i++) {
		const struct odm_member *m = &ms->listed[i]->pub;

		if (m->session != 0 && m->role == OD_NODE_WORKER && order_of(m) == order)
			v->worker[v->n_workers++] = *m;
	}
}

void odm_view_count(struct odm_view *v)
{
	v->n_few = v->n_many = 0;
	for (uint32_t i = 0; i < v->n_workers; i++) {
		v->n_few += order_of(&v->worker[i]) < 2;
		v->n_many += order_of(&v->worker[i]) < 1;
	}
	if (v->n_few == 0)
		v->n_few = v->n_workers;
	if (v->n_many == 0)
		v->n_many = v->n_few;
}

void odm_members_view(struct odm_members *ms, struct odm_view *v)
{
	pthread_mutex_lock(&ms->lock);
	v->epoch = ms->epoch;
	v->n_workers = 0;
	for (uint32_t order = 0; order < 3; order++)
		add_workers(ms, order, v);
	odm_view_count(v);
	odm_members_find_shadow(ms, v);
	pthread_mutex_unlock(&ms->lock);
}

uint32_t odm_view_find(const struct odm_view *v, uint32_t id)
{
	for (uint32_t i = 0; i < v->n_workers; i++) {
		if (v->worker[i].id == id)
			return i;
	}
	return UINT32_MAX;
}

bool odm_view_has_spool(const struct odm_view *v)
{
	for (uint32_t i = 0; i < v->n_workers; i++) {
		if (v->worker[i].spool)
			return true;
	}
	return false;
}

bool odm_view_has_cache(const struct odm_view *v)
{
	for (uint32_t i = 0; i < v->n_workers; i++) {
		if (v->worker[i].cache)
			return true;
	}
	return false;
}

bool odm_view_has_costs(const struct odm_view *v)
{
	for (uint32_t i = 0; i < v->n_workers; i++) {
		if (v->worker[i].spool || v->worker[i].cache || v->worker[i].n_damaged > 0)
			return true;
	}
	return false;
}

bool odm_members_alive(struct odm_members *ms, uint32_t id, uint64_t session)
{
	bool alive;

	pthread_mutex_lock(&ms->lock);
	alive = id < ms->n && ms->member[id]->pub.session == session && session != 0;
	pthread_mutex_unlock(&ms->lock);
	return alive;
}

/* Looks among the damages that were known when `as` was copied from m. */
static bool is_damaged(const struct member *m, const struct odm_member *as, size_t expert)
{
	for (uint32_t i = 0; i < as->n_damaged; i++) {
		if (m->damaged[i] == expert)
			return true;
	}
	return false;
}

void odm_members_damaged(struct odm_members *ms, uint32_t id, uint64_t session, uint32_t m, uint32_t expert)
{
	const size_t at = (size_t)m * ms->o.cluster->config->n_experts + expert;
	struct member *of;

	pthread_mutex_lock(&ms->lock);
	of = id < ms->n && ms->member[id]->pub.session == session ? ms->member[id] : NULL;
	if (of != NULL && !of->pub.spool && of->pub.n_damaged < MAX_DAMAGED && !is_damaged(of, &of->pub, at)) {
		of->damaged[of->pub.n_damaged++] = (uint32_t)at;
		ms->epoch++;
	}
	pthread_mutex_unlock(&ms->lock);
}

void odm_members_cost(struct odm_members *ms, const struct odm_member *worker, uint32_t m, const uint16_t *expert,
		      size_t n, uint8_t *cost)
{
	const size_t first = (size_t)m * ms->o.cluster->config->n_experts;
	const struct member *of;

	if (!worker->spool && !worker->cache && worker->n_damaged == 0) {
		memset(cost, ODM_COST_LOAD, n);
		return;
	}
	pthread_mutex_lock(&ms->lock);
	of = ms->member[worker->id];
	for (size_t i = 0; i < n; i++) {
		const size_t at = first + expert[i];
		const bool holds = worker->spool ? (of->holds[at / 8] >> at % 8 & 1) != 0 : !is_damaged(of, worker, at);

		cost[i] = !holds ? ODM_COST_LACKS : of->cached[at] == 1 ? 0 : ODM_COST_LOAD;
	}
	pthread_mutex_unlock(&ms->lock);
}

bool odm_members_stats(struct odm_members *ms, uint32_t id, struct odm_member_stats *s, char *name, size_t size)
{
	bool known;

	pthread_mutex_lock(&ms->lock);
	known = id < ms->n && !ms->member[id]->retired;
	if (known) {
		*s = ms->member[id]->stats;
		odm_member_name(ms->member[id], name, size);
	}
	pthread_mutex_unlock(&ms->lock);
	return known;
}

void odm_members_attached(struct odm_members *ms, uint32_t id, uint64_t session)
{
	pthread_mutex_lock(&ms->lock);
	if (id < ms->n && ms->member[id]->pub.session == session) {
		ms->member[id]->pub.attached = true;
		ms->epoch++;
	}
	pthread_mutex_unlock(&ms->lock);
}

void odm_members_served(struct odm_members *ms, uint32_t id, uint64_t session)
{
	pthread_mutex_lock(&ms->lock);
	if (id < ms->n && ms->member[id]->pub.session == session)
		ms->member[id]->strikes = 0;
	pthread_mutex_unlock(&ms->lock);
}

void odm_members_distrust(struct odm_members *ms, uint32_t id, uint64_t session, const char *why)
{
	pthread_mutex_lock(&ms->lock);
	if (id < ms->n && ms->member[id]->pub.session == session) {
		ms->member[id]->distrusted = true;
		snprintf(ms->member[id]->why, sizeof(ms->member[id]->why), "%s", why);
	}
	pthread_mutex_unlock(&ms->lock);
}

/* As many hosts as fit, and how many there are besides. The first one is cut if it does not fit. */
static void explain_locked(struct odm_members *ms, bool refused_only, char *buf, size_t size)
{
	static const size_t more_bytes = sizeof("; and 4294967295 more");
	const size_t room = size > more_bytes ? size - more_bytes : size;
	size_t used = 0;
	uint32_t more = 0;

	buf[0] = '\0';
	for (uint32_t i = 0; i < ms->n_listed; i++) {
		const struct member *m = ms->listed[i];
		char name[300];
		int n;

		if ((m->pub.session != 0 && !m->distrusted))
			continue;
		if (refused_only && (m->refused_code == 0 || m->refused_code == OD_ERR_BUSY))
			continue;
		n = snprintf(buf + used, room - used, "%s%s: %s", used > 0 ? "; " : "",
			     odm_member_name(m, name, sizeof(name)), m->why[0] != '\0' ? m->why : ODM_NO_CONNECTION);
		if (n > 0 && (size_t)n < room - used) {
			used += (size_t)n;
		} else if (used == 0) {
			used = strlen(buf);
		} else {
			buf[used] = '\0';
			more++;
		}
	}
	if (more > 0)
		snprintf(buf + used, size - used, "; and %u more", more);
}

void odm_members_explain(struct odm_members *ms, char *buf, size_t size)
{
	pthread_mutex_lock(&ms->lock);
	explain_locked(ms, false, buf, size);
	pthread_mutex_unlock(&ms->lock);
}

bool odm_members_awaited(struct odm_members *ms)
{
	bool any = false;

	pthread_mutex_lock(&ms->lock);
	for (uint32_t i = 0; i < ms->n_listed && !any; i++) {
		const struct member *m = ms->listed[i];

		any = m->host.role == OD_NODE_WORKER && !m->gone && (m->pub.session == 0 || m->distrusted);
	}
	pthread_mutex_unlock(&ms->lock);
	return any;
}

bool odm_members_all_gone(struct odm_members *ms)
{
	uint32_t gone = 0, left = 0;

	pthread_mutex_lock(&ms->lock);
	for (uint32_t i = 0; i < ms->n_listed; i++) {
		const struct member *m = ms->listed[i];

		gone += m->host.role == OD_NODE_WORKER && m->gone;
		left += m->host.role == OD_NODE_WORKER && !m->gone;
	}
	pthread_mutex_unlock(&ms->lock);
	return gone > 0 && left == 0;
}

/* Under the lock: until something changes, or for a tenth of a second at most (to look at *cancel). */
static void wait_a_little(struct odm_members *ms)
{
	(void)od_timed_cond_wait(&ms->changed, &ms->lock, od_now_ns() + 100 * OD_NS_PER_MS);
}

static bool have_answered(const struct odm_members *ms)
{
	for (uint32_t i = 0; i < ms->n; i++) {
		if (ms->member[i]->stats.alive && ms->member[i]->answered < ms->member[i]->asked)
			return false;
	}
	return ms->asked;
}

void odm_members_counters(struct odm_members *ms, uint64_t timeout_ns, uint64_t *c)
{
	uint64_t end = od_now_ns() + timeout_ns;

	pthread_mutex_lock(&ms->lock);
	while (!have_answered(ms) && od_now_ns() < end)
		wait_a_little(ms);
	ms->asked = false;
	od_counters_add(c, ms->left);
	for (uint32_t i = 0; i < ms->n; i++)
		od_counters_add(c, ms->member[i]->at_ask);
	pthread_mutex_unlock(&ms->lock);
}

/* How many are missing, and whether one of them never will come: it refused for a reason that waiting does not
 * change. */
static uint32_t missing_locked(const struct odm_members *ms, int *refused)
{
	uint32_t missing = 0;

	*refused = 0;
	for (uint32_t i = 0; i < ms->n_listed; i++) {
		const struct member *m = ms->listed[i];

		if (m->pub.session != 0)
			continue;
		missing++;
		if (m->refused_code != 0 && m->refused_code != OD_ERR_BUSY)
			*refused = m->refused_code;
	}
	return missing;
}

static bool all_shadows_here(const struct odm_members *ms)
{
	for (uint32_t i = 0; i < ms->n_listed; i++)
		if (ms->listed[i]->host.role == OD_NODE_SHADOW && ms->listed[i]->pub.session == 0)
			return false;
	return true;
}

/* Experts that no connected worker has or pulls. *any: a worker is connected. */
static size_t lacking_locked(struct odm_members *ms, bool *any)
{
	size_t lacking = 0;

	*any = false;
	memset(ms->held, 0, ms->holds_bytes);
	for (uint32_t i = 0; i < ms->n_listed; i++) {
		const struct member *m = ms->listed[i];

		if (m->host.role != OD_NODE_WORKER || m->pub.session == 0)
			continue;
		*any = true;
		if (!m->pub.sealed)
			return 0;
		for (size_t j = 0; j < ms->holds_bytes; j++)
			ms->held[j] |= m->holds[j];
	}
	for (size_t i = 0; i < ms->cached_bytes; i++)
		lacking += (ms->held[i / 8] >> i % 8 & 1) == 0;
	return lacking;
}

/* Under the lock. */
static int ready_locked(struct odm_members *ms, struct od_err *err)
{
	bool any;
	const size_t lacking = lacking_locked(ms, &any);
	char why[500];

	if (lacking == 0)
		return OD_OK;
	explain_locked(ms, false, why, sizeof(why));
	if (!any)
		return od_fail(err, OD_ERR_UNREACHABLE, "no worker is connected: %s", why);
	return od_fail(err, OD_ERR_UNREACHABLE,
		       "%zu of %zu experts are in the share of no worker that is connected (od-pack --share)%s%s",
		       lacking, ms->cached_bytes, why[0] != '\0' ? "; missing: " : "", why);
}

int odm_members_ready(struct odm_members *ms, struct od_err *err)
{
	int rc;

	pthread_mutex_lock(&ms->lock);
	rc = ready_locked(ms, err);
	pthread_mutex_unlock(&ms->lock);
	return rc;
}

/* Under the lock: the wait is over. missing: hosts. */
static int end_wait(struct odm_members *ms, uint32_t missing, int refused, struct od_err *err)
{
	char why[600];
	bool any;

	explain_locked(ms, refused != 0, why, sizeof(why)); /* the others have not had their time */
	if (refused != 0)
		return od_fail(err, refused, "cannot use %s", why);
	lacking_locked(ms, &any);
	if (!any)
		return od_fail(err, OD_ERR_UNREACHABLE, "%u of %u hosts cannot be used: %s", missing, ms->n_listed,
			       why);
	if (all_shadows_here(ms) && odm_members_check_shadows(ms, err) != OD_OK)
		return err->code;
	return ready_locked(ms, err);
}

int odm_members_wait(struct odm_members *ms, uint64_t timeout_ns, struct od_err *err)
{
	const uint64_t end = od_now_ns() + timeout_ns;
	int refused = 0, rc;
	uint32_t missing;

	pthread_mutex_lock(&ms->lock);
	while ((missing = missing_locked(ms, &refused)) > 0 && refused == 0 && od_now_ns() < end)
		wait_a_little(ms);
	rc = end_wait(ms, missing, refused, err);
	pthread_mutex_unlock(&ms->lock);
	return rc;
}

void odm_members_started(struct odm_members *ms)
{
	pthread_mutex_lock(&ms->lock);
	ms->starts = true;
	while (!ms->started)
		wait_a_little(ms);
	pthread_mutex_unlock(&ms->lock);
}
