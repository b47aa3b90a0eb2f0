/* Keeps the members equal to the hosts of the hosts file. */
#include "main-node/cluster/members_internal.h"

#include "common/base/clock.h"

#include <stdlib.h>
#include <string.h>

/* A host whose role has changed is a new member. */
static struct member *find_host(struct odm_members *ms, const struct od_host *h)
{
	for (uint32_t i = 0; i < ms->n; i++) {
		struct member *m = ms->member[i];

		if (strcmp(m->host.host, h->host) == 0 && m->host.port == h->port && m->host.role == h->role)
			return m;
	}
	return NULL;
}

void odm_member_free(struct member *m)
{
	if (m == NULL)
		return;
	odm_name_lookup_end(m->lookup);
	free(m->holds);
	free(m->cached);
	free(m);
}

/* A slot that is free, or that of one that is no longer in the file; OD_MAX_HOSTS: there is none. */
static uint32_t free_id(const struct odm_members *ms)
{
	uint32_t id = 0;

	while (id < ms->n &&
	       !(ms->member[id]->retired && ms->member[id]->state == M_CLOSED && ms->member[id]->lookup == NULL))
		id++;
	return id;
}

static void set_key(struct member *m, const struct od_host *host)
{
	pthread_mutex_lock(&m->ms->lock);
	m->host.has_key = host->has_key;
	memcpy(m->host.key, host->key, OD_KEY_BYTES);
	m->pub.own = host->has_key ? m->ms->o.cluster->own_keys : NULL;
	memcpy(m->pub.key, host->key, OD_KEY_BYTES);
	pthread_mutex_unlock(&m->ms->lock);
}

static int add_host(struct odm_members *ms, const struct od_host *host, struct od_err *err)
{
	const uint32_t id = free_id(ms);
	struct member *m, *before;

	if (id == OD_MAX_HOSTS)
		return od_fail(err, OD_ERR_BUSY,
			       "cannot add host %s: names of removed hosts are being resolved; try again", host->host);
	m = calloc(1, sizeof(*m));
	if (m != NULL) {
		m->holds = calloc(1, ms->holds_bytes);
		m->cached = calloc(1, ms->cached_bytes);
	}
	if (m == NULL || m->holds == NULL || m->cached == NULL) {
		odm_member_free(m);
		return od_fail(err, OD_ERR_NOMEM, "cannot add host %s: no memory", host->host);
	}
	m->ms = ms;
	m->host = *host;
	m->id = id;
	m->added_ns = od_now_ns();
	m->pub = (struct odm_member){ .id = m->id, .role = m->host.role, .port = m->host.port };
	set_key(m, host);
	pthread_mutex_lock(&ms->lock);
	before = id < ms->n ? ms->member[id] : NULL;
	if (before != NULL)
		od_counters_add(ms->left, before->counted);
	ms->member[id] = m;
	ms->n += id == ms->n;
	pthread_mutex_unlock(&ms->lock);
	odm_member_free(before);
	return OD_OK;
}

static bool is_listed(const struct member *m, const struct od_hosts *hosts)
{
	for (size_t i = 0; i < hosts->n; i++) {
		if (find_host(m->ms, &hosts->host[i]) == m)
			return true;
	}
	return false;
}

static void retire(struct member *m)
{
	if (m->state != M_CLOSED) {
		odm_member_say_bye(m, "no longer in main's hosts file");
		odm_member_drop(m, 0, "it is no longer in the hosts file");
	}
	pthread_mutex_lock(&m->ms->lock);
	m->retired = true;
	pthread_mutex_unlock(&m->ms->lock);
}

/* Lists the file's hosts, in its order. */
static void list(struct odm_members *ms, const struct od_hosts *hosts)
{
	pthread_mutex_lock(&ms->lock);
	ms->n_listed = 0;
	for (size_t i = 0; i < hosts->n; i++) {
		struct member *m = find_host(ms, &hosts->host[i]);

		if (m == NULL)
			continue; /* it could not be added */
		if (m->retired) { /* it was removed and is back: nothing is known of it */
			m->pub.first_layer = m->pub.end_layer = 0;
			m->why[0] = '\0';
			m->told = false;
		}
		m->retired = false;
		ms->listed[ms->n_listed++] = m;
	}
	ms->epoch++;
	pthread_mutex_unlock(&ms->lock);
}

/* A host whose key has changed is connected anew. */
static void follow_keys(struct odm_members *ms, const struct od_hosts *hosts)
{
	for (size_t i = 0; i < hosts->n; i++) {
		const struct od_host *h = &hosts->host[i];
		struct member *m = find_host(ms, h);

		if (m == NULL || (m->host.has_key == h->has_key && memcmp(m->host.key, h->key, OD_KEY_BYTES) == 0))
			continue;
		if (m->state != M_CLOSED) {
			odm_member_say_bye(m, "main expects another key");
			odm_member_drop(m, 0, "its key in the hosts file has changed");
		}
		m->retry_ns = 0;
		m->told = false;
		set_key(m, h);
	}
}

int odm_members_take_hosts(struct odm_members *ms, const struct od_hosts *hosts, struct od_err *err)
{
	int rc = OD_OK;

	follow_keys(ms, hosts);
	for (uint32_t i = 0; i < ms->n; i++) {
		if (!ms->member[i]->retired && !is_listed(ms->member[i], hosts))
			retire(ms->member[i]);
	}
	list(ms, hosts); /* so that no slot is taken of one that has come back */
	for (size_t i = 0; i < hosts->n && rc == OD_OK; i++) {
		if (find_host(ms, &hosts->host[i]) == NULL)
			rc = add_host(ms, &hosts->host[i], err);
	}
	list(ms, hosts);
	return rc;
}
