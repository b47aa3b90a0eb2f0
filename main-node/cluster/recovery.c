#include "main-node/cluster/recovery.h"

#include "common/base/log.h"

#define RESEND_AFTER_NS (2 * OD_NS_PER_S)
#define RESEND_NS_PER_BYTE 200 /* besides, of rows that are on their way: 5 MB/s, half of a 100 Mbit line */
#define MAX_RESENDS 2

static struct odm_members *members(const struct odm_recovery *r)
{
	return odm_cluster_members(r->net->cluster);
}

void odm_recovery_begin(struct odm_recovery *r, const struct od_moe_call *call, uint64_t *counters)
{
	r->call = call;
	r->counters = counters;
	r->rest_ns = r->unserved_ns = 0;
}

/* The nth living worker for a piece, counted through the layer's group and then the groups after it, those that have the
 * expert before those that lack it; each expert begins at another one, so that what a lost worker owed is spread. */
static uint32_t candidate(struct odm_recovery *r, const struct odm_piece *p, uint32_t nth)
{
	const struct odm_groups *g = &r->net->groups;
	uint32_t group = odm_group_of_layer(g, r->call->step, r->call->m);

	for (uint32_t i = 0; i < 2 * g->n_groups; i++) {
		uint32_t at = (group + i) % g->n_groups, size = odm_group_size(g, at);

		for (uint32_t j = 0; j < size; j++) {
			uint32_t w = odm_group_worker(g, at, (p->expert + j) % size);

			if (odm_worker_has(g, w, r->call->m, p->expert) == (i < g->n_groups) &&
			    odm_links_alive(r->net, w) && nth-- == 0)
				return w;
		}
	}
	return ODM_NOBODY;
}

static void move_piece(struct odm_recovery *r, struct odm_piece *p, uint32_t to)
{
	r->counters[OD_C_RECOVERED_RUNS] += p->state == ODM_PIECE_SENT;
	p->worker = to;
	p->state = ODM_PIECE_TODO;
	p->last = true; /* its neighbours may lie elsewhere now */
}

/* No worker of the view can run it: it waits for one that joins. */
static void set_aside(struct odm_recovery *r, struct odm_piece *p)
{
	move_piece(r, p, ODM_NOBODY);
	if (r->unserved_ns == 0)
		r->unserved_ns = od_now_ns() + ODM_RETURN_WAIT_NS;
}

/* To the first of its workers. */
static void begin_again(struct odm_recovery *r, struct odm_piece *p)
{
	const uint32_t to = candidate(r, p, 0);

	p->attempts = 1;
	p->coming = p->missing = false;
	if (to != ODM_NOBODY) {
		move_piece(r, p, to);
		return;
	}
	r->unserved.code = OD_OK;
	set_aside(r, p);
}

/* A worker that is away may be back within a while: then what was set aside goes on. */
int odm_recovery_serve(struct odm_recovery *r, struct od_err *err)
{
	char away[2];

	if (r->unserved_ns == 0)
		return OD_OK;
	if (odm_links_join(r->net)) {
		r->unserved_ns = 0;
		for (size_t i = 0; i < r->work->n; i++) {
			if (r->work->piece[i].worker == ODM_NOBODY)
				begin_again(r, &r->work->piece[i]);
		}
		return OD_OK;
	}
	odm_members_explain(members(r), away, sizeof(away));
	if (away[0] != '\0' && od_now_ns() < r->unserved_ns)
		return OD_OK;
	if (r->unserved.code == OD_OK)
		return odm_links_none_left(r->net, err);
	*err = r->unserved;
	return err->code;
}

/* Everything that dead workers owe goes to others. */
void odm_recovery_move(struct odm_recovery *r)
{
	for (uint32_t w = 0; w < r->net->view.n_workers; w++) {
		if (odm_links_alive(r->net, w))
			continue;
		odm_link_close(&r->net->link[w]);
		for (size_t i = 0; i < r->work->n; i++) {
			struct odm_piece *p = &r->work->piece[i];

			if (p->worker == w && p->state != ODM_PIECE_DONE)
				begin_again(r, p);
		}
	}
}

/* How long a worker may have heard nothing: what goes to all of them shares main's line. */
static uint64_t resend_after_ns(const struct odm_recovery *r)
{
	uint64_t bytes = 0;

	for (uint32_t w = 0; w < r->net->view.n_workers; w++)
		bytes += r->net->link[w].held_bytes;
	return RESEND_AFTER_NS + bytes * RESEND_NS_PER_BYTE;
}

/* A worker that says it has nothing to do although we wait for it: the RUN went down with a broken connection, or could
 * not be sent. Asked again a few times; then its data socket is taken for dead, however lively its heartbeats. */
void odm_recovery_resend(struct odm_recovery *r, uint32_t worker)
{
	struct odm_members *ms = members(r);
	struct odm_link *l = &r->net->link[worker];
	const uint64_t silent_ns = od_now_ns() - l->last_ns;
	struct odm_member_stats st;
	char name[300];

	if (l->session == 0 || silent_ns < RESEND_AFTER_NS || silent_ns < resend_after_ns(r) ||
	    !odm_pieces_owed(r->work, worker) || !odm_members_stats(ms, l->member, &st, name, sizeof(name)))
		return;
	l->last_ns = od_now_ns();
	odm_link_reattach(l);
	if (st.busy || st.pongs == l->last_pongs) {
		l->last_pongs = st.pongs;
		return;
	}
	if (l->resends++ == MAX_RESENDS) {
		odm_members_distrust(ms, l->member, l->session, "it answers heartbeats, but not on its data port");
		return;
	}
	od_log_limited(OD_LOG_WARN, "%s does not know of what it was asked; asking again", name);
	for (size_t i = 0; i < r->work->n; i++) {
		struct odm_piece *p = &r->work->piece[i];

		/* Under the same number, so that whichever answer comes first counts. Pieces that went out together are asked for
		 * one by one: some of them may have been answered. */
		if (p->worker == worker && p->state == ODM_PIECE_SENT && r->send_again(r->arg, p) != OD_OK)
			return; /* tried again, or the worker is distrusted */
	}
}

/* Asked once more after a rest: it is being pulled there, or at one of those that were asked. */
static void rest(struct odm_recovery *r, struct odm_piece *p, uint32_t to)
{
	move_piece(r, p, to);
	p->resting = true;
	if (r->rest_ns == 0)
		r->rest_ns = od_now_ns() + ODM_REST_MS * OD_NS_PER_MS;
}

void odm_recovery_end_rests(struct odm_recovery *r)
{
	if (r->rest_ns == 0 || od_now_ns() < r->rest_ns)
		return;
	r->rest_ns = 0;
	for (size_t i = 0; i < r->work->n; i++)
		r->work->piece[i].resting = false;
}

/* All have been asked, and none has it. True: there will be another round. */
static bool ask_all_again(struct odm_recovery *r, struct odm_piece *p)
{
	const uint32_t first = candidate(r, p, 0);

	if (!p->coming && (p->fetch || !p->missing))
		return false;
	p->fetch = p->fetch || !p->coming;
	p->attempts = 1;
	p->coming = p->missing = false;
	rest(r, p, first != ODM_NOBODY ? first : p->worker); /* nobody: all are dead, which is another's business */
	return true;
}

void odm_recovery_failed(struct odm_recovery *r, struct odm_piece *p, const Od__ExpertResult *x)
{
	const bool lacks = x->code == OD_ERR_BUSY || x->code == OD_ERR_MISSING;
	char name[300] = "a worker", reason[300];
	struct odm_member_stats st;
	uint32_t to;

	od_peer_text(x->reason, reason, sizeof(reason));
	odm_members_stats(members(r), r->net->link[p->worker].member, &st, name, sizeof(name));
	p->coming = p->coming || x->code == OD_ERR_BUSY;
	p->missing = p->missing || x->code == OD_ERR_MISSING;
	if (lacks) /* nothing was lost */
		p->state = ODM_PIECE_TODO;
	if (p->fetch && x->code == OD_ERR_BUSY) { /* one that pulls it is enough */
		rest(r, p, p->worker);
		return;
	}
	to = candidate(r, p, p->attempts++);
	if (to == p->worker)
		to = candidate(r, p, p->attempts++);
	if (to == ODM_NOBODY && ask_all_again(r, p))
		return;
	if (to == ODM_NOBODY) {
		set_aside(r, p);
		od_fail(&r->unserved, OD_ERR_IO, "no worker can run expert %u of layer %u; the last, %s, said: %s", p->expert,
			r->call->m, name, reason);
		return;
	}
	od_log_limited(lacks ? OD_LOG_DEBUG : OD_LOG_WARN, "%s cannot run expert %u of layer %u (%s); another worker will", name,
		       p->expert, r->call->m, reason);
	move_piece(r, p, to);
}
