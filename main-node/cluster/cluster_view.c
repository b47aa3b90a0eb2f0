#include "main-node/cluster/cluster_view.h"

#include "main-node/cluster/members_links.h"
#include "main-node/cluster/members_look.h"
#include "main-node/cluster/members_times.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ATTACH_WAIT_NS (3 * OD_NS_PER_S) /* at the start, for data ports; longer than odm_link_attach waits */

int odm_links_init(struct odm_links *l, struct odm_cluster *c, const struct od_forward_opts *o, struct od_err *err)
{
	const struct odm_cluster_opts *co = odm_cluster_opts(c);

	*l = (struct odm_links){ .cluster = c };
	l->view.worker = calloc(OD_MAX_HOSTS, sizeof(*l->view.worker));
	l->now.worker = calloc(OD_MAX_HOSTS, sizeof(*l->now.worker));
	l->times = calloc(OD_MAX_HOSTS, sizeof(*l->times));
	l->link = calloc(OD_MAX_HOSTS, sizeof(*l->link));
	l->joining = calloc(OD_MAX_HOSTS + 1, sizeof(*l->joining));
	if (l->view.worker == NULL || l->now.worker == NULL || l->times == NULL || l->link == NULL ||
	    l->joining == NULL)
		return od_fail(err, OD_ERR_NOMEM, "links to the workers");
	return odm_shadow_link_init(&l->shadow, o, co->ctx_tokens, &co->align, err);
}

void odm_links_fini(struct odm_links *l)
{
	for (uint32_t i = 0; i < l->view.n_workers; i++)
		odm_link_close(&l->link[i]);
	for (uint32_t i = 0; i < l->n_joining; i++)
		odm_link_close(&l->joining[i]);
	odm_shadow_link_fini(&l->shadow);
	free(l->view.worker);
	free(l->now.worker);
	free(l->times);
	free(l->link);
	free(l->joining);
}

static void cost_of(void *arg, uint32_t worker, uint32_t m, const uint16_t *expert, size_t n, uint8_t *cost)
{
	const struct odm_links *l = arg;

	odm_members_cost(odm_cluster_members(l->cluster), &l->view.worker[worker], m, expert, n, cost);
}

static void make_groups(struct odm_links *l)
{
	l->groups = odm_cluster_groups(l->cluster, &l->view);
	if (odm_view_has_costs(&l->view))
		l->groups.cost = cost_of;
	l->groups.cost_arg = l;
	l->groups.times = l->times;
	odm_links_time(l);
}

void odm_links_time(struct odm_links *l)
{
	odm_members_times(odm_cluster_members(l->cluster), l->view.worker, l->view.n_workers, l->times);
}

static bool is_of(const struct odm_link *k, const struct odm_member *m)
{
	return k->session != 0 && k->session == m->session && k->member == m->id && k->others == m->others;
}

/* ---- Attaching ---- */

static struct odm_link *find_joining(struct odm_links *l, const struct odm_member *m)
{
	for (uint32_t i = 0; i < l->n_joining; i++) {
		if (is_of(&l->joining[i], m))
			return &l->joining[i];
	}
	return NULL;
}

/* True: it is attached, and *to has its socket now. */
static bool take_joined(struct odm_links *l, const struct odm_member *m, struct odm_link *to)
{
	struct odm_link *k = find_joining(l, m);

	if (k == NULL || !k->attached)
		return false;
	*to = *k;
	*k = l->joining[--l->n_joining];
	return true;
}

static void distrust(struct odm_links *l, const struct odm_link *k, const char *why)
{
	odm_members_distrust(odm_cluster_members(l->cluster), k->member, k->session, why);
}

static void begin_joining(struct odm_links *l, const struct odm_member *m)
{
	struct odm_link *k = &l->joining[l->n_joining];
	struct od_err why;

	if (find_joining(l, m) != NULL)
		return;
	*k = (struct odm_link){ 0 };
	if (odm_link_open(k, odm_cluster_zmq(l->cluster), m, &why) == OD_OK)
		l->n_joining++;
	else
		distrust(l, &(struct odm_link){ .member = m->id, .session = m->session }, why.msg);
}

static bool is_here(const struct odm_links *l, const struct odm_link *k)
{
	bool here = l->now.has_shadow && is_of(k, &l->now.shadow);

	for (uint32_t i = 0; i < l->now.n_workers && !here; i++)
		here = is_of(k, &l->now.worker[i]);
	return here;
}

static bool has_link(const struct odm_links *l, const struct odm_member *m)
{
	for (uint32_t i = 0; i < l->view.n_workers; i++) {
		if (is_of(&l->link[i], m))
			return true;
	}
	return false;
}

bool odm_links_attach(struct odm_links *l)
{
	bool all = true;

	for (uint32_t i = 0; i < l->n_joining; i++) {
		struct odm_link *k = &l->joining[i];
		const bool was = k->attached;
		const int rc = odm_link_attach(k);

		if (rc == OD_OK && !was)
			odm_members_attached(odm_cluster_members(l->cluster), k->member, k->session);
		if (rc == OD_OK || rc == OD_ERR_BUSY)
			continue;
		/* Distrust goes first: it names the session, which the close clears. */
		distrust(l, k, "no answer on its data port; check that the port is open");
		odm_link_close(k);
		*k = l->joining[--l->n_joining];
		i--;
		all = false;
	}
	return all;
}

/* Follows membership: closes links of members that left, starts attaching new ones. */
static void follow_members(struct odm_links *l)
{
	if (odm_members_epoch(odm_cluster_members(l->cluster)) == l->now.epoch)
		return;
	odm_members_view(odm_cluster_members(l->cluster), &l->now);
	/* without a shadow predictor PREDICTs are ignored */
	l->now.has_shadow = l->now.has_shadow && odm_cluster_opts(l->cluster)->shadow;
	/* Sessions that ended go before new ones begin: `joining` has room for present members only. */
	for (uint32_t i = 0; i < l->n_joining; i++) {
		if (is_here(l, &l->joining[i]))
			continue;
		odm_link_close(&l->joining[i]);
		l->joining[i--] = l->joining[--l->n_joining];
	}
	for (uint32_t i = 0; i < l->now.n_workers; i++) {
		if (!has_link(l, &l->now.worker[i]))
			begin_joining(l, &l->now.worker[i]);
	}
	if (l->now.has_shadow && !is_of(&l->shadow.link, &l->now.shadow))
		begin_joining(l, &l->now.shadow);
}

/* Until a member changes or a daemon answers, 100 ms at most. */
static void wait_a_little(struct odm_links *l)
{
	zmq_pollitem_t items[OD_MAX_HOSTS + 2];
	size_t n = odm_links_items(l, items);
	uint64_t count;

	zmq_poll(items, (int)n, 100);
	/* The signal is read off before the caller looks at the members: a later one wakes the next poll. */
	if (read(odm_cluster_changed_fd(l->cluster), &count, sizeof(count)) < 0)
		return; /* nothing changed */
}

size_t odm_links_items(const struct odm_links *l, zmq_pollitem_t *items)
{
	size_t n = 0;

	items[n++] = (zmq_pollitem_t){ .fd = odm_cluster_changed_fd(l->cluster), .events = ZMQ_POLLIN };
	for (uint32_t i = 0; i < l->n_joining; i++) {
		if (!l->joining[i].attached)
			items[n++] = (zmq_pollitem_t){ .socket = l->joining[i].socket, .events = ZMQ_POLLIN };
	}
	return n;
}

/* ---- The view ---- */

/* Links follow the members: an index in the new view takes over the socket of the same session. Workers that are not
 * attached are left out, so that groups are made of the others. */
static void take_view(struct odm_links *l)
{
	struct odm_link old[OD_MAX_HOSTS];
	uint32_t n_old = l->view.n_workers, n = 0;

	/* Workers get new indices below, where others' links may still be: so these are taken from a copy. */
	memcpy(old, l->link, n_old * sizeof(*old));
	for (uint32_t i = 0; i < l->now.n_workers; i++) {
		const struct odm_member *m = &l->now.worker[i];
		bool have = take_joined(l, m, &l->link[n]);

		for (uint32_t j = 0; j < n_old && !have; j++) {
			if (!is_of(&old[j], m))
				continue;
			l->link[n] = old[j];
			old[j] = (struct odm_link){ 0 };
			have = true;
		}
		if (have)
			l->view.worker[n++] = *m;
	}
	l->view.n_workers = n;
	odm_view_count(&l->view);
	l->stale = false;
	l->view.epoch = l->now.epoch;
	for (uint32_t j = 0; j < n_old; j++) /* links that were taken over are zeros */
		odm_link_close(&old[j]);
}

static void send_parts(struct odm_links *l)
{
	if (odm_link_send_parts(&l->shadow.link, l->now.epoch, l->now.part, l->now.n_parts) != OD_OK)
		distrust(l, &l->shadow.link, "its data port does not take messages");
}

static void take_shadow(struct odm_links *l)
{
	struct odm_link link = { 0 };

	if (l->now.has_shadow && is_of(&l->shadow.link, &l->now.shadow))
		return;
	if (l->now.has_shadow && take_joined(l, &l->now.shadow, &link)) {
		odm_shadow_link_follow(&l->shadow, &link);
		send_parts(l);
		return;
	}
	if (l->shadow.link.session != 0)
		odm_shadow_link_follow(&l->shadow, &link);
}

bool odm_links_refresh(struct odm_links *l)
{
	/* Attaching goes first: it counts the epoch up (odm_members_attached), so that this call takes the new ones. */
	const bool all = odm_links_attach(l);

	follow_members(l);
	if (l->view.epoch != l->now.epoch || l->stale) {
		take_view(l);
		make_groups(l);
		take_shadow(l);
	}
	return all;
}

int odm_links_open(struct odm_links *l, struct od_err *err)
{
	const struct odm_cluster_opts *o = odm_cluster_opts(l->cluster);
	const uint64_t by = odm_cluster_connect_by(l->cluster), attach_by = od_now_ns() + ATTACH_WAIT_NS;
	struct odm_members *ms = odm_cluster_members(l->cluster);
	char why[600];

	for (;;) {
		const uint64_t now = od_now_ns();

		odm_links_refresh(l);
		odm_members_explain(ms, why, sizeof(why));
		if ((why[0] == '\0' || now > by) && (l->n_joining == 0 || (now > by && now > attach_by)))
			break;
		if (atomic_load(o->cancel))
			return od_fail(err, OD_ERR_CANCELLED, "cancelled");
		wait_a_little(l);
	}
	if (l->view.n_workers == 0)
		return od_fail(
			err, OD_ERR_UNREACHABLE, "cannot use %s",
			why[0] != '\0' ?
				why :
				"the workers: none has answered on its data port; check that the ports are open");
	if (odm_members_ready(ms, err) != OD_OK)
		return err->code;
	odm_members_started(ms);
	return OD_OK;
}

int odm_links_wait(struct odm_links *l, struct od_err *err)
{
	const struct odm_cluster_opts *o = odm_cluster_opts(l->cluster);
	uint64_t end = od_now_ns() + ODM_RETURN_WAIT_NS;

	for (;;) {
		/* first: one that comes now is seen below */
		const bool awaited = odm_members_awaited(odm_cluster_members(l->cluster));

		odm_links_refresh(l);
		if (l->view.n_workers > 0)
			return OD_OK;
		if (atomic_load(o->cancel))
			return od_fail(err, OD_ERR_CANCELLED, "cancelled");
		if ((!awaited && l->n_joining == 0) || od_now_ns() >= end)
			return odm_links_none_left(l, err);
		wait_a_little(l);
	}
}

bool odm_links_join(struct odm_links *l)
{
	bool joined = false;

	follow_members(l);
	for (uint32_t i = 0; i < l->now.n_workers; i++) {
		const struct odm_member *m = &l->now.worker[i];
		uint32_t at = odm_view_find(&l->view, m->id);

		if (at == UINT32_MAX)
			at = l->view.n_workers;
		else if (l->link[at].session != 0)
			continue;
		if (!take_joined(l, m, &l->link[at]))
			continue;
		l->view.worker[at] = *m;
		l->view.n_workers += at == l->view.n_workers;
		joined = true;
	}
	if (joined) { /* it may be any worker: no other can run what is left */
		l->view.n_few = l->view.n_many = l->view.n_workers;
		make_groups(l);
	}
	return joined;
}

static void put_last(struct odm_links *l, uint32_t worker)
{
	const uint32_t last = l->view.n_workers - 1;
	const struct odm_link link = l->link[worker];
	const struct odm_member member = l->view.worker[worker];

	memmove(l->link + worker, l->link + worker + 1, (last - worker) * sizeof(*l->link));
	memmove(l->view.worker + worker, l->view.worker + worker + 1, (last - worker) * sizeof(*l->view.worker));
	l->link[last] = link;
	l->view.worker[last] = member;
}

static bool is_lost(const struct odm_links *l, uint32_t worker)
{
	return l->link[worker].watch.late || l->link[worker].session == 0;
}

/* Counts lost ones of the first n workers. */
static uint32_t count_lost(const struct odm_links *l, uint32_t n)
{
	uint32_t lost = 0;

	for (uint32_t i = 0; i < n; i++)
		lost += is_lost(l, i);
	return lost;
}

static bool others_have_all(const struct odm_links *l)
{
	uint32_t id[OD_MAX_HOSTS], n = 0;

	for (uint32_t i = 0; i < l->view.n_few; i++)
		if (!is_lost(l, i))
			id[n++] = l->view.worker[i].id;
	return odm_members_have_all(odm_cluster_members(l->cluster), id, n);
}

bool odm_links_any_lost(const struct odm_links *l)
{
	const uint32_t lost = count_lost(l, l->view.n_few);

	return lost > 0 && lost < l->view.n_few;
}

void odm_links_avoid_lost(struct odm_links *l)
{
	const uint32_t lost = count_lost(l, l->view.n_few), lost_many = count_lost(l, l->view.n_many);

	if (!odm_links_any_lost(l))
		return;
	if (!others_have_all(l)) {
		for (uint32_t i = 0; i < l->view.n_few; i++)
			l->link[i].watch.late = false;
		return;
	}
	/* From the last one on: put_last() moves only workers behind i. */
	for (uint32_t i = l->view.n_few; i-- > 0;) {
		if (is_lost(l, i))
			put_last(l, i);
	}
	l->view.n_few -= lost;
	l->view.n_many -= lost_many;
	if (l->view.n_many == 0)
		l->view.n_many = l->view.n_few;
	l->stale = true;
	make_groups(l);
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
