#include "main-node/cluster/cluster_view.h"

#include <stdlib.h>
#include <string.h>

#define ATTACH_TIMEOUT_MS 2000

int odm_links_init(struct odm_links *l, struct odm_cluster *c, const struct od_forward_opts *o, struct od_err *err)
{
	const struct odm_cluster_opts *co = odm_cluster_opts(c);

	*l = (struct odm_links){ .cluster = c };
	l->view.worker = calloc(OD_MAX_HOSTS, sizeof(*l->view.worker));
	l->now.worker = calloc(OD_MAX_HOSTS, sizeof(*l->now.worker));
	l->link = calloc(OD_MAX_HOSTS, sizeof(*l->link));
	if (l->view.worker == NULL || l->now.worker == NULL || l->link == NULL)
		return od_fail(err, OD_ERR_NOMEM, "links to the workers");
	return odm_shadow_link_init(&l->shadow, o, co->ctx_tokens, &co->align, err);
}

void odm_links_fini(struct odm_links *l)
{
	for (uint32_t i = 0; i < l->view.n_workers; i++)
		odm_link_close(&l->link[i]);
	odm_shadow_link_fini(&l->shadow);
	free(l->view.worker);
	free(l->now.worker);
	free(l->link);
}

static void cost_of(void *arg, uint32_t worker, uint32_t m, const uint16_t *expert, size_t n, uint8_t *cost)
{
	const struct odm_links *l = arg;

	odm_members_cost(odm_cluster_members(l->cluster), &l->view.worker[worker], m, expert, n, cost);
}

static void make_groups(struct odm_links *l)
{
	l->groups = odm_cluster_groups(l->cluster, &l->view);
	if (odm_view_has_spool(&l->view) || odm_view_has_cache(&l->view))
		l->groups.cost = cost_of;
	l->groups.cost_arg = l;
}

/* Links follow the members: an index in the new view takes over the socket of the same session. */
static void take_view(struct odm_links *l)
{
	struct odm_link old[OD_MAX_HOSTS];
	uint32_t n_old = l->view.n_workers;

	memcpy(old, l->link, n_old * sizeof(*old));
	odm_members_view(odm_cluster_members(l->cluster), &l->view);
	for (uint32_t i = 0; i < l->view.n_workers; i++) {
		l->link[i] = (struct odm_link){ .member = l->view.worker[i].id };
		for (uint32_t j = 0; j < n_old; j++) {
			if (old[j].session != 0 && old[j].member == l->view.worker[i].id &&
			    old[j].session == l->view.worker[i].session) {
				l->link[i] = old[j];
				old[j].socket = NULL;
			}
		}
	}
	for (uint32_t j = 0; j < n_old; j++)
		odm_link_close(&old[j]);
}

static bool open_link(struct odm_links *l, uint32_t i, const struct odm_member *m)
{
	struct od_err why;

	if (odm_link_open(&l->link[i], odm_cluster_zmq(l->cluster), m, ATTACH_TIMEOUT_MS, &why) == OD_OK)
		return true;
	odm_members_distrust(odm_cluster_members(l->cluster), m->id, m->session, why.msg);
	return false;
}

/* Workers that cannot be attached leave the view, so that groups are made of the others. */
static void open_links(struct odm_links *l)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < l->view.n_workers; i++) {
		const struct odm_member *m = &l->view.worker[i];

		if (l->link[i].session != m->session && !open_link(l, i, m))
			continue;
		l->view.worker[n] = *m;
		l->link[n++] = l->link[i];
	}
	l->view.n_workers = n;
}

void odm_links_refresh(struct odm_links *l)
{
	bool listens;

	if (odm_members_epoch(odm_cluster_members(l->cluster)) == l->view.epoch)
		return;
	take_view(l);
	open_links(l);
	make_groups(l);
	/* One that nobody listens to is not aligned either. */
	listens = odm_cluster_opts(l->cluster)->shadow;
	odm_shadow_link_follow(&l->shadow, l->cluster, listens && l->view.has_shadow ? &l->view.shadow : NULL);
}

int odm_links_open(struct odm_links *l, struct od_err *err)
{
	char why[600];

	odm_links_refresh(l);
	odm_members_explain(odm_cluster_members(l->cluster), why, sizeof(why));
	return why[0] == '\0' ? OD_OK : od_fail(err, OD_ERR_UNREACHABLE, "cannot use %s", why);
}

int odm_links_wait(struct odm_links *l, struct od_err *err)
{
	const struct odm_cluster_opts *o = odm_cluster_opts(l->cluster);
	uint64_t end = od_now_ns() + ODM_RETURN_WAIT_NS, now;

	odm_links_refresh(l);
	while (l->view.n_workers == 0 && !atomic_load(o->cancel) && (now = od_now_ns()) < end) {
		if (odm_members_wait_any(odm_cluster_members(l->cluster), end - now, o->cancel))
			odm_links_refresh(l);
	}
	if (l->view.n_workers > 0)
		return OD_OK;
	if (atomic_load(o->cancel))
		return od_fail(err, OD_ERR_CANCELLED, "cancelled");
	return odm_links_none_left(l, err);
}

bool odm_links_join(struct odm_links *l)
{
	bool joined = false;

	odm_members_view(odm_cluster_members(l->cluster), &l->now);
	for (uint32_t i = 0; i < l->now.n_workers; i++) {
		const struct odm_member *m = &l->now.worker[i];
		uint32_t at = odm_view_find(&l->view, m->id);

		if (at == UINT32_MAX) {
			at = l->view.n_workers;
			l->link[at] = (struct odm_link){ .member = m->id };
		}
		if (l->link[at].session != 0 || !open_link(l, at, m))
			continue;
		l->view.worker[at] = *m;
		l->view.n_workers += at == l->view.n_workers;
		joined = true;
	}
	if (joined)
		make_groups(l);
	return joined;
}

int odm_links_none_left(struct odm_links *l, struct od_err *err)
{
	char why[600];

	odm_members_explain(odm_cluster_members(l->cluster), why, sizeof(why));
	return od_fail(err, OD_ERR_UNREACHABLE, "no worker is left to run experts: %s", why);
}

bool odm_links_alive(struct odm_links *l, uint32_t worker)
{
	const struct odm_link *k = &l->link[worker];

	return k->session != 0 && odm_members_alive(odm_cluster_members(l->cluster), k->member, k->session);
}
