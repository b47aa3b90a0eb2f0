#include "main-node/cluster_service.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/trace.h"
#include "common/predict/random_predictor.h"
#include "main-node/shadow_link.h"
#include "main-node/worker_link.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFILL_BATCH_ROWS 64
#define PREFILL_OPEN_RUNS 2
#define ATTACH_TIMEOUT_MS 2000
#define WAIT_MS 250
#define RESEND_AFTER_NS (2 * OD_NS_PER_S)
#define MAX_RESENDS 2
#define RUN_EXPERTS_MAX 64

/* Some rows of one expert: what a RUN asks for, what a RESULT answers. */
struct piece {
	uint16_t expert;
	uint32_t first, count; /* in order[]: (row, rank) pairs of this expert */
	uint32_t worker;       /* index in the view */
	uint32_t attempts;
	uint64_t request;
	enum { TODO, SENT, DONE } state;
	bool last; /* of this expert on its worker */
};

struct service {
	struct odm_expert_service base;
	struct odm_cluster *cluster;
	struct od_forward_opts o;
	size_t hidden, row_bytes;
	uint32_t run_rows; /* of a prefill batch */
	struct odm_view view;
	struct odm_groups groups;
	struct odm_link *link; /* [max members], by index in the view */
	struct odm_shadow_link shadow;
	struct odm_step step;
	const struct od_moe_call *call;
	bool in_step;
	/* Scratch of one layer. */
	struct piece *piece; /* [max_rows * top_k + n_experts] */
	size_t n_pieces, n_done;
	uint32_t *order;   /* [max_rows * top_k]: row * top_k + rank, grouped by expert */
	uint32_t *count;   /* [n_experts + 1] */
	uint16_t *chosen;  /* [n_experts]: the layer's experts, by id */
	uint32_t *place;   /* [n_experts]: their workers */
	uint32_t *load;	   /* [max members] */
	uint32_t *row_slot; /* [max_rows]: row of the call -> row of the RUN */
	uint32_t *indices; /* [max_rows * top_k]: RunExpert.rows of one RUN */
	bool *used_member; /* [max members] */
	uint8_t *rows;	   /* [max_rows][row_bytes] */
	zmq_pollitem_t *items; /* [max members + 2] */
	uint64_t last_request;
	struct odm_figures sum; /* since the last figures() */
	uint64_t layer_stall_ns; /* the longest wait for a load in this layer */
};

static size_t row_bytes(const struct od_config *cfg, enum od_profile profile)
{
	return cfg->hidden * od_dtype_bytes(profile == OD_PROFILE_BF16 ? OD_BF16 : OD_F32);
}

uint32_t odm_run_rows(const struct od_config *cfg, enum od_profile profile)
{
	size_t most = OD_MAX_RUN_BYTES / row_bytes(cfg, profile);

	return most == 0 ? 1 : most < PREFILL_BATCH_ROWS ? (uint32_t)most : PREFILL_BATCH_ROWS;
}

/* --- membership, between steps --- */

static void close_links(struct service *s)
{
	for (uint32_t i = 0; i < s->view.n_workers; i++)
		odm_link_close(&s->link[i]);
}

/* Links follow the members: an index in the new view takes over the socket of the same session. */
static void take_view(struct service *s)
{
	struct odm_members *ms = odm_cluster_members(s->cluster);
	struct odm_link old[OD_MAX_HOSTS];
	uint32_t n_old = s->view.n_workers;
	const struct od_config *cfg = s->o.config;

	memcpy(old, s->link, n_old * sizeof(*old));
	odm_members_view(ms, &s->view);
	for (uint32_t i = 0; i < s->view.n_workers; i++) {
		s->link[i] = (struct odm_link){ .member = s->view.worker[i].id };
		for (uint32_t j = 0; j < n_old; j++) {
			if (old[j].session != 0 && old[j].member == s->view.worker[i].id &&
			    old[j].session == s->view.worker[i].session) {
				s->link[i] = old[j];
				old[j].socket = NULL;
			}
		}
	}
	for (uint32_t j = 0; j < n_old; j++)
		odm_link_close(&old[j]);
	s->groups = odm_groups_make(s->view.n_workers, odm_cluster_opts(s->cluster)->group_size, cfg->top_k,
				    cfg->n_layers);
}

static int open_links(struct service *s)
{
	struct odm_members *ms = odm_cluster_members(s->cluster);
	bool all = true;

	for (uint32_t i = 0; i < s->view.n_workers; i++) {
		struct odm_member *m = &s->view.worker[i];
		struct od_err why;

		if (s->link[i].session == m->session)
			continue;
		if (odm_link_open(&s->link[i], odm_cluster_zmq(s->cluster), m, ATTACH_TIMEOUT_MS, &why) == OD_OK)
			continue;
		odm_members_distrust(ms, m->id, m->session, why.msg);
		m->session = 0; /* not used in this view */
		all = false;
	}
	return all ? OD_OK : OD_ERR_UNREACHABLE;
}

/* Workers that could not be attached leave the view, so that groups are made of the others. */
static void drop_unattached(struct service *s)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->view.n_workers; i++) {
		if (s->view.worker[i].session == 0)
			continue;
		s->view.worker[n] = s->view.worker[i];
		s->link[n++] = s->link[i];
	}
	s->view.n_workers = n;
	s->groups = odm_groups_make(n, odm_cluster_opts(s->cluster)->group_size, s->o.config->top_k,
				    s->o.config->n_layers);
}

static int no_worker_left(struct service *s, struct od_err *err)
{
	char why[600];

	odm_members_explain(odm_cluster_members(s->cluster), why, sizeof(why));
	return od_fail(err, OD_ERR_UNREACHABLE, "no worker is left to run experts: %s", why);
}

static int refresh(struct service *s, struct od_err *err)
{
	if (odm_members_epoch(odm_cluster_members(s->cluster)) != s->view.epoch) {
		take_view(s);
		if (open_links(s) != OD_OK)
			drop_unattached(s);
		odm_shadow_link_follow(&s->shadow, s->cluster, s->view.has_shadow ? &s->view.shadow : NULL);
	}
	return s->view.n_workers > 0 ? OD_OK : no_worker_left(s, err);
}

/* --- a step --- */

static void predict_random(struct service *s, const struct odm_step *step)
{
	const struct od_config *cfg = s->o.config;
	uint16_t expert[OD_MAX_TOP_K];

	for (uint32_t m = 0; m < cfg->n_layers; m++) {
		struct odm_prediction p = { .step = step->step, .m = m, .token = step->rows[0].token, .expert = expert,
					    .n = cfg->top_k };

		od_predict_random(step->step, m, cfg->n_experts, cfg->top_k, expert);
		odm_predictions_add(odm_cluster_predictions(s->cluster), &p);
	}
	odm_cluster_flush_wants(s->cluster);
}

static int begin_step(struct odm_expert_service *base, const struct odm_step *step, struct od_err *err)
{
	struct service *s = (struct service *)base;
	bool decode = step->phase == ODM_DECODE;
	int rc = refresh(s, err);

	if (rc != OD_OK)
		return rc;
	s->step = *step;
	s->in_step = true;
	odm_predictions_begin(odm_cluster_predictions(s->cluster), step->step, &step->rows[0].token,
			      decode ? step->n_rows : 0, step->rows[0].position - step->prompt_tokens, decode);
	if (!decode)
		return OD_OK;
	odm_shadow_link_step(&s->shadow, s->view.epoch, step);
	if (odm_cluster_opts(s->cluster)->predictor == ODM_PREDICT_RANDOM)
		predict_random(s, step);
	return OD_OK;
}

static void end_step(struct odm_expert_service *base)
{
	struct service *s = (struct service *)base;

	/* A step that was given up leaves WANTs behind; one that went through has closed them all. */
	if (s->in_step && s->call != NULL)
		odm_cluster_close_step(s->cluster, s->step.step, s->o.config->n_layers - 1);
	s->in_step = false;
	s->call = NULL;
}

static void close_sequence(struct odm_expert_service *base, uint64_t sequence)
{
	struct service *s = (struct service *)base;

	odm_shadow_link_close_sequence(&s->shadow, s->view.epoch, sequence);
	/* The shadow may have run ahead into a step that will not come. */
	odm_cluster_close_step(s->cluster, s->step.next_step, s->o.config->n_layers - 1);
}

/* --- one layer: who gets what --- */

/* order[] and chosen[]: (row, rank) pairs grouped by expert, experts by id. Returns how many experts. */
static size_t group_by_expert(struct service *s)
{
	const struct od_moe_call *c = s->call;
	const struct od_config *cfg = s->o.config;
	size_t n = c->n_rows * cfg->top_k, n_chosen = 0;
	uint32_t at = 0;

	memset(s->count, 0, (cfg->n_experts + 1) * sizeof(*s->count));
	for (size_t i = 0; i < n; i++)
		s->count[c->expert[i]]++;
	for (uint32_t e = 0; e < cfg->n_experts; e++) {
		uint32_t size = s->count[e];

		if (size > 0)
			s->chosen[n_chosen++] = (uint16_t)e;
		s->count[e] = at; /* from here: where the expert's next pair goes */
		at += size;
	}
	s->count[cfg->n_experts] = at;
	for (size_t i = 0; i < n; i++)
		s->order[s->count[c->expert[i]]++] = (uint32_t)i;
	return n_chosen;
}

static uint32_t index_of_member(const struct odm_view *v, uint32_t id)
{
	for (uint32_t i = 0; i < v->n_workers; i++) {
		if (v->worker[i].id == id)
			return i;
	}
	return ODM_NOBODY;
}

static uint32_t wanted_at(void *arg, uint16_t expert)
{
	struct service *s = arg;
	uint32_t id = odm_predictions_where(odm_cluster_predictions(s->cluster), s->call->step, s->call->m, expert);

	return id == ODM_NOBODY ? ODM_NOBODY : index_of_member(&s->view, id);
}

static void add_piece(struct service *s, uint16_t expert, uint32_t first, uint32_t count, uint32_t worker, bool last)
{
	s->piece[s->n_pieces++] = (struct piece){
		.expert = expert, .first = first, .count = count, .worker = worker, .last = last, .state = TODO
	};
}

static void make_pieces(struct service *s, size_t n_chosen)
{
	bool decode = s->step.phase == ODM_DECODE;
	uint32_t batch = decode ? UINT32_MAX : s->run_rows, first = 0;

	if (decode)
		odm_deal(&s->groups, s->call->step, s->call->m, s->chosen, n_chosen, wanted_at, s, s->place, s->load);
	s->n_pieces = s->n_done = 0;
	for (size_t i = 0; i < n_chosen; i++) {
		uint16_t e = s->chosen[i];
		uint32_t end = s->count[e]; /* group_by_expert left the end there */
		uint32_t worker = decode ? s->place[i] : odm_prefill_worker(&s->groups, e);

		for (; first < end; first += end - first < batch ? end - first : batch) {
			uint32_t n = end - first < batch ? end - first : batch;

			add_piece(s, e, first, n, worker, first + n == end);
		}
	}
}

/* Prefill needs nearly every expert, so say so before the rows come; the layer after it too when that pays. */
static void announce(struct service *s, size_t n_chosen)
{
	struct odm_predictions *p = odm_cluster_predictions(s->cluster);
	const struct od_config *cfg = s->o.config;

	if (s->step.phase == ODM_DECODE)
		return;
	odm_predictions_require(p, s->call->step, s->call->m, s->chosen, n_chosen);
	if (s->call->n_rows * cfg->top_k >= 4u * (size_t)cfg->n_experts && s->call->m + 1 < cfg->n_layers) {
		for (uint32_t e = 0; e < cfg->n_experts; e++)
			s->chosen[e] = (uint16_t)e;
		odm_predictions_require(p, s->call->step, s->call->m + 1, s->chosen, cfg->n_experts);
	}
	odm_cluster_flush_wants(s->cluster);
}

/* --- sending --- */

static void put_row(struct service *s, uint32_t slot, uint32_t row)
{
	const float *x = s->call->x + (size_t)row * s->hidden;
	uint8_t *to = s->rows + (size_t)slot * s->row_bytes;

	if (s->o.profile == OD_PROFILE_BF16)
		s->o.backend->f32_to_bf16((uint16_t *)(void *)to, x, s->hidden);
	else
		memcpy(to, x, s->row_bytes);
}

/* A RUN of n pieces of one worker: each row travels once. */
static int send_run(struct service *s, uint32_t worker, struct piece **piece, size_t n, bool closes)
{
	Od__RunExpert expert[RUN_EXPERTS_MAX], *list[RUN_EXPERTS_MAX];
	struct odm_link *l = &s->link[worker];
	Od__Run run = OD__RUN__INIT;
	Od__Header h = OD__HEADER__INIT;
	struct od_out_frame frame = { .bytes = s->rows };
	size_t k = s->o.config->top_k, at = 0;
	int rc;

	memset(s->row_slot, 0xff, s->call->n_rows * sizeof(*s->row_slot));
	for (size_t i = 0; i < n; i++) {
		od__run_expert__init(&expert[i]);
		list[i] = &expert[i];
		expert[i].expert = piece[i]->expert;
		expert[i].rank = (uint32_t)(piece[i] - s->piece);
		expert[i].last = piece[i]->last;
		expert[i].rows = s->indices + at;
		expert[i].n_rows = piece[i]->count;
		for (uint32_t j = 0; j < piece[i]->count; j++) {
			uint32_t row = s->order[piece[i]->first + j] / (uint32_t)k;

			if (s->row_slot[row] == UINT32_MAX) {
				s->row_slot[row] = run.n_rows;
				put_row(s, run.n_rows++, row);
			}
			s->indices[at++] = s->row_slot[row];
		}
	}
	run.step = s->call->step;
	run.m = s->call->m;
	run.request = ++s->last_request;
	run.experts = list;
	run.n_experts = n;
	run.closes = closes;
	frame.len = (size_t)run.n_rows * s->row_bytes;
	h.body_case = OD__HEADER__BODY_RUN;
	h.run = &run;
	rc = odm_link_send(l, s->view.epoch, &h, &frame, 1);
	if (rc != OD_OK)
		return rc;
	for (size_t i = 0; i < n; i++) {
		piece[i]->state = SENT;
		piece[i]->request = run.request;
	}
	s->used_member[l->member] = true;
	l->open++;
	l->last_ns = od_now_ns();
	s->sum.worker_runs++;
	return OD_OK;
}

/* The worker's next pieces: all of them in decode, one batch in prefill. *more: others are left. */
static size_t next_pieces(struct service *s, uint32_t worker, struct piece **out, bool *more)
{
	size_t max = s->step.phase == ODM_DECODE ? RUN_EXPERTS_MAX : 1, n = 0;

	*more = false;
	for (size_t i = 0; i < s->n_pieces && !*more; i++) {
		if (s->piece[i].worker != worker || s->piece[i].state != TODO)
			continue;
		if (n == max)
			*more = true;
		else
			out[n++] = &s->piece[i];
	}
	return n;
}

static bool link_alive(struct service *s, uint32_t worker)
{
	const struct odm_link *l = &s->link[worker];

	return l->session != 0 &&
	       odm_members_alive(odm_cluster_members(s->cluster), l->member, l->session);
}

static void pump(struct service *s, uint32_t worker)
{
	unsigned max = s->step.phase == ODM_DECODE ? UINT32_MAX : PREFILL_OPEN_RUNS;
	struct piece *piece[RUN_EXPERTS_MAX];
	bool more = true;

	while (more && s->link[worker].open < max) {
		size_t n = next_pieces(s, worker, piece, &more);

		/* A full queue or a broken connection: tried again at the next wake-up, or the worker is dead by then. */
		if (n == 0 || send_run(s, worker, piece, n, !more) != OD_OK)
			return;
	}
}

/* --- losing a worker --- */

/* Another worker for a piece: of the layer's group first, then of the groups after it. */
static uint32_t replacement(struct service *s, uint32_t gone)
{
	const struct odm_groups *g = &s->groups;
	uint32_t group = s->step.phase == ODM_DECODE ? odm_group_of_layer(g, s->call->step, s->call->m)
						     : gone % g->n_groups;

	for (uint32_t i = 0; i < g->n_groups; i++) {
		uint32_t at = (group + i) % g->n_groups, size = odm_group_size(g, at);

		for (uint32_t j = 0; j < size; j++) {
			uint32_t w = odm_group_worker(g, at, (j + gone) % size);

			if (w != gone && link_alive(s, w))
				return w;
		}
	}
	return link_alive(s, gone) ? gone : ODM_NOBODY;
}

static int move_piece(struct service *s, struct piece *p, struct od_err *err)
{
	uint32_t to = replacement(s, p->worker);

	if (to == ODM_NOBODY)
		return no_worker_left(s, err);
	p->worker = to;
	p->state = TODO;
	p->last = true; /* its neighbours may lie elsewhere now */
	s->sum.recovered_runs++;
	return OD_OK;
}

/* Everything that dead workers owe goes to others. */
static int move_from_dead(struct service *s, struct od_err *err)
{
	for (uint32_t w = 0; w < s->view.n_workers; w++) {
		if (link_alive(s, w))
			continue;
		odm_link_close(&s->link[w]);
		for (size_t i = 0; i < s->n_pieces; i++) {
			int rc = OD_OK;

			if (s->piece[i].worker == w && s->piece[i].state != DONE)
				rc = move_piece(s, &s->piece[i], err);
			if (rc != OD_OK)
				return rc;
		}
	}
	return OD_OK;
}

static bool owes(const struct service *s, uint32_t worker)
{
	for (size_t i = 0; i < s->n_pieces; i++) {
		if (s->piece[i].worker == worker && s->piece[i].state != DONE)
			return true;
	}
	return false;
}

/* A worker that says it has nothing to do although we wait for it: the RUN went down with a broken connection, or could
 * not be sent. Asked again a few times; then its data socket is taken for dead, however lively its heartbeats. */
static void resend_lost(struct service *s, uint32_t worker)
{
	struct odm_members *ms = odm_cluster_members(s->cluster);
	struct odm_link *l = &s->link[worker];
	struct odm_member_stats st;
	char name[300];

	if (l->session == 0 || od_now_ns() - l->last_ns < RESEND_AFTER_NS || !owes(s, worker) ||
	    !odm_members_stats(ms, l->member, &st, name, sizeof(name)))
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
	for (size_t i = 0; i < s->n_pieces; i++) {
		if (s->piece[i].worker == worker && s->piece[i].state == SENT)
			s->piece[i].state = TODO;
	}
	l->open = 0;
}

/* --- results --- */

static struct piece *find_piece(struct service *s, const Od__Result *r)
{
	for (size_t i = 0; i < s->n_pieces; i++) {
		struct piece *p = &s->piece[i];

		if (p->state == SENT && p->request == r->request && p->expert == r->expert)
			return p;
	}
	return NULL;
}

static void put_outputs(struct service *s, const struct piece *p, const uint8_t *bytes)
{
	for (uint32_t j = 0; j < p->count; j++) {
		float *y = s->call->y + (size_t)s->order[p->first + j] * s->hidden;
		const uint8_t *from = bytes + (size_t)j * s->row_bytes;

		if (s->o.profile == OD_PROFILE_BF16)
			s->o.backend->bf16_to_f32(y, (const uint16_t *)(const void *)from, s->hidden);
		else
			memcpy(y, from, s->row_bytes);
	}
}

static void count_result(struct service *s, const Od__Result *r)
{
	s->sum.loads += r->loaded_bytes > 0;
	s->sum.loaded_bytes += r->loaded_bytes;
	s->sum.load_ns += r->loaded_bytes > 0 ? r->load_ns : 0;
	s->sum.worker_compute_ns += r->compute_ns;
	if (s->step.phase != ODM_DECODE || r->ready)
		return;
	s->sum.stalls++;
	if (r->wait_ns > s->layer_stall_ns)
		s->layer_stall_ns = r->wait_ns;
}

/* True when no piece of this request is open any more. */
static bool request_done(const struct service *s, uint64_t request)
{
	for (size_t i = 0; i < s->n_pieces; i++) {
		if (s->piece[i].state == SENT && s->piece[i].request == request)
			return false;
	}
	return true;
}

static int failed_result(struct service *s, struct piece *p, const Od__Result *r, struct od_err *err)
{
	char name[300] = "a worker";
	struct odm_member_stats st;

	odm_members_stats(odm_cluster_members(s->cluster), s->link[p->worker].member, &st, name, sizeof(name));
	if (++p->attempts >= s->view.n_workers + 1)
		return od_fail(err, r->code < 0 ? r->code : OD_ERR_INTERNAL,
			       "expert %u of layer %u cannot be run by any worker; the last, %s, said: %s", p->expert,
			       s->call->m, name, r->reason);
	od_log_limited(OD_LOG_WARN, "%s cannot run expert %u of layer %u (%s); another worker will", name, p->expert,
		       s->call->m, r->reason);
	return move_piece(s, p, err);
}

static int on_result(struct service *s, uint32_t worker, const struct od_msg *m, struct od_err *err)
{
	const Od__Result *r = m->header->result;
	struct piece *p = r->step == s->call->step && r->m == s->call->m ? find_piece(s, r) : NULL;
	struct odm_link *l = &s->link[worker];
	const void *bytes;
	size_t len;
	int rc = OD_OK;

	if (p == NULL || p->worker != worker)
		return OD_OK; /* an answer that is no longer needed */
	l->last_ns = od_now_ns();
	l->resends = 0;
	bytes = od_msg_frame(m, 0, &len);
	if (r->code != OD_OK) {
		rc = failed_result(s, p, r, err);
	} else if (bytes == NULL || len != (size_t)p->count * s->row_bytes) {
		od_log_limited(OD_LOG_WARN, "a RESULT of expert %u has %zu bytes, expected %zu", p->expert, len,
			       (size_t)p->count * s->row_bytes);
		odm_members_distrust(odm_cluster_members(s->cluster), l->member, l->session, "it sent a malformed RESULT");
		rc = move_piece(s, p, err);
	} else {
		put_outputs(s, p, bytes);
		count_result(s, r);
		p->state = DONE;
		s->n_done++;
	}
	if (l->open > 0 && request_done(s, r->request))
		l->open--;
	return rc;
}

static int receive(struct service *s, uint32_t worker, struct od_err *err)
{
	int rc = OD_OK;

	while (rc == OD_OK && s->link[worker].session != 0) {
		struct od_msg m;

		rc = odm_link_recv(&s->link[worker], &m);
		if (rc == OD_ERR_BUSY)
			return OD_OK;
		if (rc != OD_OK)
			return od_fail(err, rc, "data socket: %s", od_status_text(rc));
		if (m.header->body_case == OD__HEADER__BODY_RESULT)
			rc = on_result(s, worker, &m, err);
		od_msg_fini(&m);
	}
	return rc;
}

static void wait_for_something(struct service *s)
{
	size_t n = 0;
	uint64_t count;

	s->items[n++] = (zmq_pollitem_t){ .fd = odm_cluster_changed_fd(s->cluster), .events = ZMQ_POLLIN };
	if (s->shadow.link.socket != NULL)
		s->items[n++] = (zmq_pollitem_t){ .socket = s->shadow.link.socket, .events = ZMQ_POLLIN };
	for (uint32_t w = 0; w < s->view.n_workers; w++) {
		if (s->link[w].socket != NULL && s->link[w].open > 0)
			s->items[n++] = (zmq_pollitem_t){ .socket = s->link[w].socket, .events = ZMQ_POLLIN };
	}
	zmq_poll(s->items, (int)n, WAIT_MS);
	if (read(odm_cluster_changed_fd(s->cluster), &count, sizeof(count)) < 0)
		return; /* nothing changed */
}

static int run_pieces(struct service *s, struct od_err *err)
{
	int rc = OD_OK;

	while (rc == OD_OK && s->n_done < s->n_pieces) {
		for (uint32_t w = 0; w < s->view.n_workers; w++)
			pump(s, w);
		odm_shadow_link_serve(&s->shadow, s->o.config, s->view.epoch);
		wait_for_something(s);
		for (uint32_t w = 0; rc == OD_OK && w < s->view.n_workers; w++) {
			rc = receive(s, w, err);
			resend_lost(s, w);
		}
		if (rc == OD_OK)
			rc = move_from_dead(s, err);
	}
	return rc;
}

static int run(struct od_expert_runner *r, const struct od_moe_call *call, struct od_err *err)
{
	struct service *s = (struct service *)r; /* runner is the first member of the first */
	bool decode = s->step.phase == ODM_DECODE;
	uint64_t start_ns = od_now_ns(), span;
	size_t n_chosen;
	int rc;

	s->call = call;
	s->layer_stall_ns = 0;
	memset(s->used_member, 0, OD_MAX_HOSTS * sizeof(*s->used_member));
	for (uint32_t w = 0; w < s->view.n_workers; w++)
		s->link[w].open = 0;
	if (decode)
		odm_predictions_resolve(odm_cluster_predictions(s->cluster), call->step, call->m, call->expert,
					call->n_rows);
	n_chosen = group_by_expert(s);
	make_pieces(s, n_chosen);
	announce(s, n_chosen);
	span = od_trace_begin();
	for (uint32_t w = 0; w < s->view.n_workers; w++)
		pump(s, w);
	od_trace_end("send RUNs", span, (int64_t)call->step, call->m, -1);
	if (decode) { /* behind the RUNs, which are urgent */
		odm_shadow_link_state(&s->shadow, s->view.epoch, &s->step, call->m);
		odm_cluster_close_unused(s->cluster, call->step, call->m, s->used_member);
		s->sum.expert_uses += call->n_rows * s->o.config->top_k;
	}
	span = od_trace_begin();
	rc = run_pieces(s, err);
	od_trace_end("wait for experts", span, (int64_t)call->step, call->m, -1);
	if (rc != OD_OK)
		return rc;
	s->call = NULL;
	if (decode) {
		s->sum.decode_layers++;
		s->sum.experts_ns += od_now_ns() - start_ns;
		s->sum.stall_ns += s->layer_stall_ns;
	}
	return OD_OK;
}

/* --- figures --- */

/* Recall and lateness since the last time. */
static void recall_figures(struct service *s, struct odm_figures *f, struct od_recall *detail)
{
	struct odm_predictions *p = odm_cluster_predictions(s->cluster);
	const struct odm_cluster_opts *co = odm_cluster_opts(s->cluster);
	uint64_t rows = odm_predictions_scored_rows(p);
	struct od_recall recall;

	if (!f->has_predictor || od_recall_init(&recall, co->config->n_layers, co->ctx_tokens, NULL) != OD_OK)
		return;
	odm_predictions_recall(p, &recall);
	f->predicted_uses = recall.all.uses;
	f->recalled_uses = recall.all.recalled;
	f->late_predictions = recall.late_rows;
	f->missing_predictions = rows - recall.in_time_rows - recall.late_rows;
	if (detail != NULL)
		od_recall_merge(detail, &recall);
	od_recall_fini(&recall);
	odm_predictions_reset_figures(p);
}

static void node_figures(struct service *s, struct odm_figures *f)
{
	struct odm_members *ms = odm_cluster_members(s->cluster);

	for (uint32_t i = 0; i < odm_members_count(ms); i++) {
		struct odm_member_stats st;
		char name[300];

		if (!odm_members_stats(ms, i, &st, name, sizeof(name)))
			continue;
		odm_figures_add_node(f, name, st.peak_rss_bytes, st.alive);
		if (st.slots > 0 && (f->slots == 0 || st.slots < f->slots))
			f->slots = st.slots;
	}
}

static void figures(struct odm_expert_service *base, struct odm_figures *f, struct od_recall *recall)
{
	struct service *s = (struct service *)base;
	const struct odm_figures *sum = &s->sum;

	f->cluster = true;
	f->has_predictor = odm_cluster_opts(s->cluster)->predictor != ODM_PREDICT_NONE;
	f->expert_uses = sum->expert_uses;
	f->stalls = sum->stalls;
	f->stall_ns = sum->stall_ns;
	f->decode_layers = sum->decode_layers;
	f->experts_ns = sum->experts_ns;
	f->loads = sum->loads;
	f->loaded_bytes = sum->loaded_bytes;
	f->load_ns = sum->load_ns;
	f->worker_runs = sum->worker_runs;
	f->worker_compute_ns = sum->worker_compute_ns;
	f->recovered_runs = sum->recovered_runs;
	f->state_bytes = s->shadow.state_bytes;
	f->workers = s->view.n_workers;
	f->groups = s->groups.n_groups;
	recall_figures(s, f, recall);
	node_figures(s, f);
	s->sum = (struct odm_figures){ 0 };
	s->shadow.state_bytes = 0;
}

static void free_service(struct odm_expert_service *base)
{
	struct service *s = (struct service *)base;

	if (s->link != NULL)
		close_links(s);
	odm_link_close(&s->shadow.link);
	odm_cluster_close(s->cluster);
	free(s->view.worker);
	free(s->link);
	free(s->piece);
	free(s->order);
	free(s->count);
	free(s->chosen);
	free(s->place);
	free(s->load);
	free(s->row_slot);
	free(s->indices);
	free(s->used_member);
	free(s->items);
	od_free(s->rows);
	free(s);
}

static int allocate(struct service *s, struct od_err *err)
{
	const struct od_config *cfg = s->o.config;
	size_t pairs = s->o.max_rows * cfg->top_k;

	s->view.worker = calloc(OD_MAX_HOSTS, sizeof(*s->view.worker));
	s->link = calloc(OD_MAX_HOSTS, sizeof(*s->link));
	s->piece = calloc(pairs + cfg->n_experts, sizeof(*s->piece));
	s->order = calloc(pairs, sizeof(*s->order));
	s->count = calloc(cfg->n_experts + 1, sizeof(*s->count));
	s->chosen = calloc(cfg->n_experts, sizeof(*s->chosen));
	s->place = calloc(cfg->n_experts, sizeof(*s->place));
	s->load = calloc(OD_MAX_HOSTS, sizeof(*s->load));
	s->row_slot = calloc(s->o.max_rows, sizeof(*s->row_slot));
	s->indices = calloc(pairs, sizeof(*s->indices));
	s->used_member = calloc(OD_MAX_HOSTS, sizeof(*s->used_member));
	s->items = calloc(OD_MAX_HOSTS + 2, sizeof(*s->items));
	s->rows = od_alloc_array(s->o.max_rows, s->row_bytes);
	if (s->view.worker == NULL || s->link == NULL || s->piece == NULL || s->order == NULL || s->count == NULL ||
	    s->chosen == NULL || s->place == NULL || s->load == NULL || s->row_slot == NULL || s->indices == NULL ||
	    s->used_member == NULL || s->items == NULL || s->rows == NULL)
		return od_fail(err, OD_ERR_NOMEM, "cluster: no memory for %zu rows", s->o.max_rows);
	return OD_OK;
}

int odm_cluster_service_new(struct odm_expert_service **out, struct odm_cluster *c, const struct od_forward_opts *opts,
			    struct od_err *err)
{
	struct service *s = calloc(1, sizeof(*s));
	int rc;

	*out = NULL;
	if (s == NULL) {
		odm_cluster_close(c);
		return od_fail(err, OD_ERR_NOMEM, "cluster");
	}
	s->base = (struct odm_expert_service){
		.runner.run = run,
		.begin_step = begin_step,
		.end_step = end_step,
		.close_sequence = close_sequence,
		.figures = figures,
		.free = free_service,
	};
	s->cluster = c;
	s->o = *opts;
	s->hidden = opts->config->hidden;
	s->row_bytes = row_bytes(opts->config, opts->profile);
	s->run_rows = odm_run_rows(opts->config, opts->profile);
	rc = allocate(s, err);
	if (rc == OD_OK)
		rc = refresh(s, err);
	if (rc != OD_OK) {
		free_service(&s->base);
		return rc;
	}
	*out = &s->base;
	return OD_OK;
}
