/* Logs missing, lost and returned hosts: each once, in the order in which it happens, because the loop thread says all
 * of it. */
#include "main-node/cluster/members_internal.h"

#include "common/base/log.h"

#include <stdio.h>
#include <string.h>

#define MISSING_AFTER_NS (10 * OD_NS_PER_S) /* a new host in the hosts file is missing after this time */

/* "2 of 3 workers"; of a shadow: "" */
static const char *count(const struct member *of, const char *before, char *buf, size_t size)
{
	const struct odm_members *ms = of->ms;
	uint32_t n = 0, all = 0;

	buf[0] = '\0';
	if (of->host.role != OD_NODE_WORKER)
		return buf;
	for (uint32_t i = 0; i < ms->n_listed; i++) {
		all += ms->listed[i]->host.role == OD_NODE_WORKER;
		n += ms->listed[i]->host.role == OD_NODE_WORKER && ms->listed[i]->pub.session != 0;
	}
	snprintf(buf, size, "%s%u of %u worker%s", before, n, all, all == 1 ? "" : "s");
	return buf;
}

void odm_member_tell_lost(struct member *m, bool was_used, const char *why)
{
	char name[300], left[60];

	odm_member_name(m, name, sizeof(name));
	if (was_used && m->said == SAID_NOTHING) {
		od_log(OD_LOG_WARN, "%s is lost: %s%s", name, why, count(m, "; now ", left, sizeof(left)));
		m->said = SAID_LOST;
	} else if (was_used) { /* its return has not been said: it was used on trial */
		od_log(OD_LOG_WARN, "%s: %s", name, why);
	} else if (m->said == SAID_NOTHING && !m->told) {
		od_log(OD_LOG_WARN, "%s cannot be used: %s", name, why);
		m->told = true;
	}
}

/* One whose data port was dead has to show that it works. */
static bool is_back(struct member *m)
{
	bool back;

	pthread_mutex_lock(&m->ms->lock);
	back = m->pub.session != 0 && !m->distrusted && (!m->on_trial || m->pub.attached);
	pthread_mutex_unlock(&m->ms->lock);
	return back;
}

void odm_member_tell_back(struct member *m)
{
	char name[300], now[60];

	if ((m->seen && m->said == SAID_NOTHING) || !is_back(m))
		return;
	if (m->said != SAID_NOTHING || m->ms->started)
		od_log(OD_LOG_INFO, "%s %s%s", odm_member_name(m, name, sizeof(name)),
		       m->said == SAID_LOST ? "is back" : "has joined", count(m, ": ", now, sizeof(now)));
	m->said = SAID_NOTHING;
	m->seen = true;
	m->on_trial = false;
}

static void tell_missing(struct member *m, const char *and)
{
	char name[300];

	if (m->pub.session != 0 || m->said != SAID_NOTHING || m->retired)
		return;
	od_log(OD_LOG_WARN, "%s is missing: %s; %s", odm_member_name(m, name, sizeof(name)),
	       m->why[0] != '\0' ? m->why : ODM_NO_CONNECTION, and);
	m->said = SAID_MISSING;
}

/* The start ends: it is said who is not there before anything else happens. */
static void end_start(struct odm_members *ms)
{
	bool ends;

	pthread_mutex_lock(&ms->lock);
	ends = ms->starts && !ms->started;
	pthread_mutex_unlock(&ms->lock);
	if (!ends)
		return;
	for (uint32_t i = 0; i < ms->n_listed; i++)
		tell_missing(ms->listed[i], "starting without it; it is used when it comes");
	pthread_mutex_lock(&ms->lock);
	ms->started = true;
	pthread_cond_broadcast(&ms->changed);
	pthread_mutex_unlock(&ms->lock);
}

void odm_members_tell(struct odm_members *ms, uint64_t now)
{
	for (uint32_t i = 0; i < ms->n; i++)
		odm_member_tell_back(ms->member[i]);
	end_start(ms);
	if (ms->started)
		for (uint32_t i = 0; i < ms->n_listed; i++)
			if (now - ms->listed[i]->added_ns > MISSING_AFTER_NS && !ms->listed[i]->seen)
				tell_missing(ms->listed[i], "it is used when it comes");
}
