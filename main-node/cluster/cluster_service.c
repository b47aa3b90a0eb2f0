#include "main-node/cluster/cluster_service.h"

#include "common/base/log.h"
#include "main-node/cluster/cluster_figures.h"
#include "main-node/cluster/cluster_view.h"
#include "main-node/cluster/layer_pieces.h"
#include "main-node/cluster/members_links.h"
#include "main-node/cluster/members_look.h"
#include "main-node/cluster/members_machine.h"
#include "main-node/cluster/members_times.h"
#include "main-node/cluster/prompt_rows.h"
#include "main-node/cluster/wire_rows.h"
#include "main-node/predict/prediction_drafts.h"
#include "main-node/predict/prediction_wants.h"
#include "main-node/predict/predictor_link.h"
#include "main-node/cluster/recovery.h"
#include "main-node/cluster/result_check.h"
#include "main-node/cluster/row_source.h"
#include "main-node/predict/step_uses.h"
#include "main-node/step/step_requests.h"
#include "main-node/step/timeline.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MANY_BYTES (16u * 1024u) /* bytes of rows on their way to workers */
#define MOST_NS (24 * 3600 * OD_NS_PER_S)
#define RESULTS_AT_ONCE 64 /* RESULTs of one worker, then the others get their turn */

/* One that has begun and not ended. */
struct open_step {
	const struct odm_step *step; /* the engine's; NULL: there is none */
	uint64_t epoch; /* the view's when it began */
	uint32_t layers_done;
};

struct service {
	struct odm_expert_service base;
	struct od_expert_runner runner; /* base.runner */
	struct odm_cluster *cluster;
	struct od_forward_opts o;
	struct odm_wire_rows wire;
	uint32_t run_rows; /* most rows of a RUN, as agreed */
	uint32_t step_rows; /* and as the links carry them */
	struct odm_links net;
	struct odm_predictor_link predictor; /* main's own: instead of the shadow, or while that is silent */
	struct open_step open[2]; /* by phase */
	struct odm_step_requests requests[2]; /* by phase */
	struct odm_row_source source[2]; /* by phase */
	struct open_step *now; /* the step of the current, or last, layer */
	uint64_t next_decode; /* number of the decode step after the last one; 0: there was none */
	struct odm_pieces work[ODM_HALVES]; /* layers under way */
	struct odm_prompt_rows prompt;
	struct odm_recovery recovery; /* for these pieces */
	struct odm_step_uses uses; /* in the decode step */
	/* Scratch of one RUN, of predictions, and of waiting. */
	struct odm_piece **piece; /* [n_experts] */
	struct odm_predicted_row *predicted; /* [max_rows] */
	uint16_t *needed; /* [n_experts] */
	uint32_t *dealt; /* [n_experts]: their members */
	bool *used_member; /* [OD_MAX_HOSTS], by member's id */
	bool *has_more; /* [OD_MAX_HOSTS], by index in the view */
	zmq_pollitem_t *items; /* [2 * OD_MAX_HOSTS + 3] */
	uint64_t last_request;
	bool many_in_flight; /* rows fill main's port */
	uint64_t layer_begin_ns; /* when its experts were asked for */
	uint64_t layer_stall_ns; /* the longest wait for a load in this layer */
	struct odm_cluster_figures figures;
};

/* --- a step --- */

static bool in_decode(const struct service *s)
{
	return s->now->step->phase == ODM_DECODE;
}

/* Counts from now on belong to this step. */
static void enter(struct service *s, const struct odm_step *step)
{
	s->now = &s->open[step->phase];
	s->net.shadow.counters = step->counters;
}

static void begin_predictions(struct service *s, const struct odm_step *step)
{
	const bool decode = step->phase == ODM_DECODE;
	size_t n = 0;

	if (decode)
		for (size_t i = 0; i < step->n_parts; i++) {
			const struct odm_part *p = &step->part[i];

			for (size_t j = p->first; j < p->first + p->n; j++)
				s->predicted[n++] = (struct odm_predicted_row){
					.sequence = p->sequence,
					.position = step->rows[j].position,
					.token = j > p->first ? step->rows[j].token :
								odm_shadow_link_token(&s->net.shadow, step, p),
					.prompt_tokens = p->prompt_tokens,
					.ahead = p->ahead,
					.outlook = step->outlook,
				};
		}
	odm_predictions_begin(odm_cluster_predictions(s->cluster), step->step, step->next_step, s->predicted, n,
			      decode);
}

/* RUNs are so small that heartbeats get through beside them. */
static void begin_links(struct service *s)
{
	s->step_rows = s->run_rows;
	for (uint32_t w = 0; w < s->net.view.n_workers; w++) {
		struct odm_link *l = &s->net.link[w];
		const size_t rows = (l->window_bytes = odm_members_window(odm_cluster_members(s->cluster), l->member)) /
				    (s->wire.row_bytes * (1 + s->o.config->top_k));

		l->watch.late = false;
		if (w < s->net.groups.n_workers && l->window_bytes < OD_MAX_HELD_BYTES && rows < s->step_rows)
			s->step_rows = rows > 0 ? (uint32_t)rows : 1;
	}
}

static int begin_step(struct odm_expert_service *base, const struct odm_step *step, struct od_err *err)
{
	struct service *s = (struct service *)base;
	int rc = odm_links_wait(&s->net, err);

	if (rc != OD_OK)
		return rc;
	/* odm_links_wait refreshes the view, so the step's epoch is taken behind it. */
	s->open[step->phase] = (struct open_step){ .step = step, .epoch = s->net.view.epoch };
	s->next_decode = step->phase == ODM_DECODE ? step->next_step : s->next_decode;
	begin_links(s);
	enter(s, step);
	odm_step_requests_follow(&s->requests[step->phase], step);
	odm_row_source_begin(&s->source[step->phase]);
	if (step->phase == ODM_DECODE)
		odm_step_uses_begin(&s->uses, step);
	/* The token that predictions of a row must assume depends on what the shadow was told so far, which the STEP
	 * changes: so the table is told first. */
	begin_predictions(s, step);
	odm_shadow_link_step(&s->net.shadow, s->net.view.epoch, step);
	odm_predictor_link_step(&s->predictor, step);
	return OD_OK;
}

/* The answers to its RUNs do not count any more. */
static void give_up_rows(struct service *s)
{
	for (uint32_t w = 0; w < s->net.view.n_workers; w++)
		s->net.link[w].held_bytes = 0;
	if (s->many_in_flight)
		odm_members_give_up(odm_cluster_members(s->cluster));
	s->many_in_flight = false;
}

static void end_step(struct odm_expert_service *base, const struct odm_step *step)
{
	struct service *s = (struct service *)base;
	const struct open_step *o = &s->open[step->phase];
	bool changed = odm_members_epoch(odm_cluster_members(s->cluster)) != o->epoch;

	if (o->step == NULL) /* it did not begin */
		return;
	enter(s, step);
	/* RUNs void the WANTs of a step; not those of a step that was given up, of a prefill, or sent to a worker that
	 * joined while it ran. */
	if (o->layers_done < s->o.config->n_moe || step->phase == ODM_PREFILL || changed)
		odm_cluster_close_step(s->cluster, step->step, s->o.config->n_moe - 1);
	/* Dense layers behind the last one with experts. */
	if (o->layers_done == s->o.config->n_moe && step->phase == ODM_DECODE)
		odm_shadow_link_state(&s->net.shadow, s->net.view.epoch, step, s->o.config->n_layers - 1);
	for (size_t i = 0; i < ODM_HALVES; i++)
		odm_pieces_end(&s->work[i]);
	give_up_rows(s);
	s->open[step->phase].step = NULL;
}

static void kept(struct odm_expert_service *base, const struct odm_step *step, const uint32_t *kept)
{
	struct service *s = (struct service *)base;
	bool wants = false;

	for (size_t i = 0; i < step->n_parts; i++) {
		const struct odm_part *p = &step->part[i];
		const uint32_t length = step->rows[p->first].position + kept[i];

		if (kept[i] == p->n)
			continue;
		odm_shadow_link_truncate(&s->net.shadow, s->net.view.epoch, p->sequence, length);
		wants |= odm_predictions_truncate(odm_cluster_predictions(s->cluster), p->sequence, length);
	}
	if (wants)
		odm_cluster_flush_wants(s->cluster);
	odm_step_uses_settle(&s->uses, step, kept);
}

static void find_draft(struct odm_expert_service *base, uint64_t sequence, uint32_t position, int32_t token,
		       size_t most, struct odm_draft *d)
{
	struct odm_predictions *p = odm_cluster_predictions(((struct service *)base)->cluster);

	d->n = odm_predictions_draft(p, sequence, position, token, d->token, d->margin, most);
	if (d->n > 0) /* a single row's experts are known */
		odm_predictions_union(p, sequence, position, d->n + 1, d->experts);
}

/* --- one layer --- */

/* Somebody's predictions are scored and learnt from. */
static bool has_predictor(const struct service *s)
{
	const struct odm_cluster_opts *co = odm_cluster_opts(s->cluster);

	return co->shadow || co->own != NULL;
}

static struct service *service_of(struct od_expert_runner *r)
{
	return (struct service *)((char *)r - offsetof(struct service, runner));
}

/* The open step of this number. */
static const struct odm_step *find_step(const struct service *s, uint64_t number)
{
	const struct odm_step *decode = s->open[ODM_DECODE].step;

	return decode != NULL && decode->step == number ? decode : s->open[ODM_PREFILL].step;
}

static unsigned needs(struct od_expert_runner *r, uint64_t number, uint32_t m)
{
	struct service *s = service_of(r);
	const struct odm_step *step = find_step(s, number);
	const bool decode = step->phase == ODM_DECODE;
	unsigned what;

	enter(s, step);
	what = OD_FETCH_ROUTES | OD_FETCH_ROWS | odm_predictor_link_needs(&s->predictor, step);
	if (decode)
		odm_shadow_link_collect(&s->net.shadow, step, s->o.config->layer_of[m]);
	return decode && has_predictor(s) ? what | OD_FETCH_PROBABILITIES : what;
}

/* A layer that is being dealt. */
struct deal {
	struct service *s;
	const struct od_moe_call *call;
};

static uint32_t member_wanted_at(const struct deal *d, uint16_t expert)
{
	return odm_predictions_where(odm_cluster_predictions(d->s->cluster), d->call->step, d->call->m, expert);
}

static uint32_t wanted_at(void *arg, uint16_t expert)
{
	const struct deal *d = arg;
	const uint32_t id = member_wanted_at(d, expert);

	return id == ODM_NOBODY ? ODM_NOBODY : odm_view_find(&d->s->net.view, id);
}

/* Other rows of the step follow. */
static bool is_first_half(const struct service *s, const struct od_moe_call *call)
{
	return call->first + call->n_rows < s->now->step->n_rows;
}

/* The experts that a prompt's rows need in this layer, and their workers. The other half may need any. */
static size_t list_needed(struct service *s, const struct odm_pieces *work)
{
	const struct deal d = { s, work->call };
	size_t n = work->n_chosen, next = 0;

	for (size_t i = 0; i < n; i++) {
		s->needed[i] = work->chosen[i];
		s->dealt[i] = s->net.view.worker[work->worker_of[i]].id;
	}
	for (uint32_t e = 0; is_first_half(s, work->call) && e < s->o.config->n_experts; e++) {
		if (next < work->n_chosen && work->chosen[next] == e) {
			next++;
			continue;
		}
		s->needed[n] = (uint16_t)e;
		s->dealt[n++] = member_wanted_at(&d, (uint16_t)e);
	}
	return n;
}

/* Prefill needs nearly every expert, so say so before the rows come; the layer after it too when that pays. */
static void announce(struct service *s, const struct odm_pieces *work)
{
	struct odm_predictions *p = odm_cluster_predictions(s->cluster);
	const size_t pairs = s->now->step->n_rows * s->o.config->top_k, experts = s->o.config->n_experts;
	const uint64_t step = work->call->step;
	const uint32_t m = work->call->m;
	const size_t n = list_needed(s, work);

	odm_predictions_require(p, step, m, s->needed, s->dealt, n);
	if (pairs >= 4 * experts && m + 1 < s->o.config->n_moe)
		odm_predictions_require_all(p, step, m + 1, (uint32_t)(pairs / experts));
	odm_cluster_flush_wants(s->cluster);
}

/* --- sending --- */

static uint64_t held_bytes(const struct service *s)
{
	uint64_t bytes = 0;

	for (uint32_t w = 0; w < s->net.view.n_workers; w++)
		bytes += s->net.link[w].held_bytes;
	return bytes;
}

/* All rows share main's port. Heartbeats wait behind many bytes, and say nothing about a link then. */
static void hold(struct service *s, struct odm_link *l, uint64_t bytes)
{
	const bool were_many = s->many_in_flight;
	uint64_t all;

	l->held_bytes = bytes;
	all = held_bytes(s);
	s->many_in_flight = all > MANY_BYTES;
	if (s->many_in_flight || were_many)
		odm_members_in_flight(odm_cluster_members(s->cluster), s->many_in_flight ? all : 0);
}

/* A RUN of n pieces of one worker. request 0: a new one, which OD_ERR_BUSY puts off while the worker holds too many
 * rows. */
static int send_run(struct service *s, uint32_t worker, struct odm_piece **piece, size_t n, bool closes,
		    uint64_t request)
{
	const struct odm_pieces *work = piece[0]->work; /* and so all others' */
	struct odm_step_requests *names = &s->requests[s->now->step->phase];
	struct odm_link *l = &s->net.link[worker];
	uint64_t *told = &l->told_requests[s->now->step->phase];
	struct od_out_frame frame = { .bytes = s->wire.rows };
	Od__Header h = OD__HEADER__INIT;
	Od__Run run = OD__RUN__INIT;
	uint64_t sent_ns;
	uint32_t pairs = 0, n_loads = 0;
	int rc;

	run.n_rows = odm_wire_rows_run(&s->wire, work->call, work, piece, n);
	for (size_t i = 0; i < n; i++) {
		pairs += piece[i]->count;
		n_loads += piece[i]->first_of;
	}
	frame.len = (size_t)run.n_rows * s->wire.row_bytes;
	/* A worker that holds nothing gets its RUN however large it is, or it would never get it. */
	if (request == 0 && l->held_bytes > 0 && l->held_bytes + frame.len > l->window_bytes)
		return OD_ERR_BUSY;
	run.step = work->call->step;
	run.m = work->call->m;
	run.request = request != 0 ? request : ++s->last_request;
	run.experts = s->wire.expert_list;
	run.n_experts = n;
	run.closes = closes;
	run.fetch = piece[0]->fetch; /* and so all others' */
	run.prompt = !in_decode(s);
	/* one that is sent again: the first, with the names, may be lost */
	if (*told != names->version || request != 0)
		run.requests = names->text;
	h.body_case = OD__HEADER__BODY_RUN;
	h.run = &run;
	rc = odm_link_send(l, s->net.view.epoch, &h, &frame, 1);
	if (rc != OD_OK)
		return rc;
	sent_ns = od_now_ns();
	if (work == s->prompt.measured && piece[0]->batch == 0 && request == 0)
		odm_port_sent(&s->prompt.port, frame.len, sent_ns);
	/* Only a RUN that was sent has told the names. */
	*told = names->version;
	for (size_t i = 0; i < n; i++) {
		piece[i]->state = ODM_PIECE_SENT;
		piece[i]->request = run.request;
		piece[i]->sent_ns = sent_ns;
		piece[i]->run_bytes = request == 0 ? frame.len : piece[i]->run_bytes;
	}
	s->used_member[l->member] = true;
	hold(s, l, l->held_bytes + (request == 0 ? frame.len : 0));
	l->watch.expect_ns[work - s->work] +=
		odm_members_expect(odm_cluster_members(s->cluster), l->member, (uint32_t)n, n_loads, pairs,
				   (double)(frame.len + pairs * s->wire.row_bytes));
	odm_recovery_sent(&s->recovery, worker, piece, n);
	s->now->step->counters[OD_C_WORKER_RUNS]++;
	s->now->step->counters[OD_C_WORKER_ROWS] += run.n_rows;
	s->now->step->counters[OD_C_RUN_BYTES] += frame.len;
	return OD_OK;
}

static int send_piece_again(void *arg, struct odm_piece *p)
{
	return send_run(arg, p->worker, &p, 1, false, p->request);
}

/* A worker's next RUN. False: nothing is left, or it cannot be sent. After a full queue or a broken connection it is
 * tried again at the next wake-up, or the worker is dead by then. */
static bool send_next(struct service *s, uint32_t worker)
{
	struct odm_pieces *work;

	for (unsigned i = 0; (work = odm_prompt_rows_turn(&s->prompt, s->work, i, held_bytes(s))) != NULL; i++) {
		bool more;
		const size_t n = odm_pieces_next(work, worker, s->o.config->n_experts, s->piece, &more);

		if (n > 0)
			return send_run(s, worker, s->piece, n, !more && !is_first_half(s, work->call), 0) == OD_OK;
	}
	return false;
}

/* All workers in turns, so that none waits until another has all of its rows. */
static void pump(struct service *s)
{
	bool any = true;

	memset(s->has_more, 1, s->net.view.n_workers * sizeof(*s->has_more));
	while (any) {
		any = false;
		for (uint32_t w = 0; w < s->net.view.n_workers; w++) {
			s->has_more[w] = s->has_more[w] && send_next(s, w);
			any = any || s->has_more[w];
		}
	}
}

/* --- results --- */

/* Its WANT had been sent to this worker when the router spoke. */
static bool was_ordered(struct service *s, const struct odm_piece *p)
{
	return odm_predictions_ordered(odm_cluster_predictions(s->cluster), p->work->call->step, p->work->call->m,
				       p->expert) == s->net.link[p->worker].member;
}

static void count_result(struct service *s, const struct odm_piece *p, const Od__ExpertResult *r)
{
	bool decode = in_decode(s);
	uint64_t *c = s->now->step->counters;

	c[OD_C_LOADS] += r->loaded_bytes > 0;
	c[OD_C_LOADED_BYTES] += r->loaded_bytes;
	c[OD_C_LOAD_NS] += r->loaded_bytes > 0 ? r->load_ns : 0;
	c[OD_C_WORKER_COMPUTE_NS] += r->compute_ns;
	c[OD_C_DECODE_LOADS] += decode && r->loaded_bytes > 0;
	if (decode && s->net.view.worker[p->worker].cache) {
		c[OD_C_CACHE_USES]++;
		c[OD_C_CACHE_HITS] += r->cached == 1;
	}
	if (decode && r->loaded_bytes > 0)
		odm_step_uses_loaded(&s->uses, p->work->call->m, p->expert);
	if (decode && r->ready && was_ordered(s, p))
		for (uint32_t i = 0; i < p->count; i++)
			odm_step_uses_served(&s->uses, p->work->order[p->first + i] / s->o.config->top_k, c);
	if (!decode || r->ready)
		return;
	c[OD_C_STALLS]++;
	if (r->wait_ns > s->layer_stall_ns)
		s->layer_stall_ns = r->wait_ns;
}

/* Before anything of it counts, so that a RESULT is taken whole or not at all. */
static int check_result(struct service *s, struct odm_pieces *work, uint32_t worker, const struct od_msg *m,
			struct od_err *err)
{
	const Od__Result *r = m->header->result;
	size_t len;
	int rc;

	od_msg_frame(m, 0, &len);
	rc = odm_check_result(r, s->o.config->n_experts, s->wire.row_bytes, m->n_frames, len, err);
	for (size_t i = 0; rc == OD_OK && i < r->n_experts; i++) {
		const Od__ExpertResult *x = r->experts[i];
		const struct odm_piece *p = odm_pieces_find(work, worker, r->request, x->expert);

		if (p != NULL && x->code == OD_OK && x->rows != p->count)
			rc = od_fail(err, OD_ERR_SHAPE, "expert %u: expected %u rows, found %u", x->expert, p->count,
				     x->rows);
	}
	return rc;
}

/* Not a lie: the worker may be honest, and its memory or the checkpoint damaged. So another one is asked. */
static void refuse_outputs(struct service *s, struct odm_piece *p, const Od__ExpertResult *x)
{
	Od__ExpertResult refused = *x;

	refused.code = OD_ERR_CORRUPT;
	refused.reason =
		(char *)"its outputs are not all finite numbers, or beyond 7e16: its memory or the checkpoint may be damaged";
	odm_recovery_failed(&s->recovery, p, &refused);
}

/* bytes: the expert's rows. */
static void settle(struct service *s, struct odm_piece *p, const Od__ExpertResult *x, const uint8_t *bytes)
{
	if (x->code != OD_OK) {
		odm_recovery_failed(&s->recovery, p, x);
		return;
	}
	if (!odm_all_plausible(bytes, p->count * s->wire.row_bytes, s->o.profile == OD_PROFILE_BF16)) {
		refuse_outputs(s, p, x);
		return;
	}
	for (uint32_t j = 0; j < p->count; j++)
		odm_wire_rows_take(&s->wire, bytes + (size_t)j * s->wire.row_bytes,
				   p->work->call->y + (size_t)p->work->order[p->first + j] * s->wire.hidden);
	odm_row_source_add(&s->source[s->now->step->phase], s->net.link[p->worker].member);
	count_result(s, p, x);
	p->state = ODM_PIECE_DONE;
	p->work->n_done++;
}

/* An expert of a RESULT that counts. */
static void record_expert(struct odm_timeline_answer *a, const struct odm_piece *p, const Od__ExpertResult *x)
{
	a->sent_ns = a->experts == 0 || p->sent_ns < a->sent_ns ? p->sent_ns : a->sent_ns;
	if (x->loaded_bytes > 0 && x->load_ns > a->load_ns)
		a->load_ns = x->load_ns;
	if (x->wait_ns > a->wait_ns)
		a->wait_ns = x->wait_ns;
	a->compute_ns += x->compute_ns;
	a->experts++;
	a->ready += x->ready;
}

static void record_answer(struct service *s, struct odm_timeline_answer *a)
{
	if (s->now->step->record == NULL || a->experts == 0)
		return;
	a->answered_ns = od_now_ns();
	odm_timeline_answered(s->now->step->record, a);
}

/* Times are a peer's: absurd ones are no longer than a day. */
static double sane_ns(uint64_t ns)
{
	return (double)(ns < MOST_NS ? ns : MOST_NS);
}

static void report_work(struct odm_layer_report *r, const Od__ExpertResult *x)
{
	r->n_experts++;
	r->n_pairs += x->rows;
	r->compute_ns += sane_ns(x->compute_ns);
	r->n_loads += x->loaded_bytes > 0;
	r->loaded_bytes += x->loaded_bytes;
	r->load_ns += x->loaded_bytes > 0 ? sane_ns(x->load_ns) : 0;
}

/* How long the worker had the RUN. */
static double worked_ns(const Od__Result *r)
{
	double ns = sane_ns(r->experts[0]->wait_ns);

	for (size_t i = 0; i < r->n_experts; i++)
		ns += sane_ns(r->experts[i]->compute_ns);
	return ns;
}

/* The layer under way that asked for it; NULL: the answer is no longer needed. */
static struct odm_pieces *asked_by(struct service *s, const Od__Result *r)
{
	struct odm_pieces *any = NULL;

	for (size_t i = 0; i < ODM_HALVES; i++) {
		struct odm_pieces *work = &s->work[i];

		if (work->call == NULL || r->step != work->call->step || r->m != work->call->m)
			continue;
		if (any == NULL || odm_pieces_asked(work, r->request))
			any = work;
	}
	return any;
}

static void on_result(struct service *s, uint32_t worker, const struct od_msg *m)
{
	const Od__Result *r = m->header->result;
	struct odm_link *l = &s->net.link[worker];
	const struct odm_piece *any = NULL;
	struct odm_timeline_answer answer = { .member = l->member, .m = r->m };
	struct odm_pieces *work = asked_by(s, r);
	bool ran = false;
	const uint8_t *bytes;
	struct od_err why;
	size_t len;

	if (work == NULL)
		return;
	if (check_result(s, work, worker, m, &why) != OD_OK) {
		od_log_limited(OD_LOG_WARN, "dropped a malformed RESULT: %s", why.msg);
		odm_members_distrust(odm_cluster_members(s->cluster), l->member, l->session,
				     "it sent a malformed RESULT");
		return;
	}
	bytes = od_msg_frame(m, 0, &len);
	s->now->step->counters[OD_C_RESULT_BYTES] += len;
	for (size_t i = 0; i < r->n_experts; i++) {
		const Od__ExpertResult *x = r->experts[i];
		/* NULL: this answer is no longer needed, or was never asked for */
		struct odm_piece *p = odm_pieces_find(work, worker, r->request, x->expert);

		/* A worker that was overtaken may still be the first to answer. Its error is nothing: the piece is
		 * another's. */
		if (p != NULL && (p->worker == worker || x->code == OD_OK)) {
			any = p;
			odm_recovery_first(&s->recovery, p, worker);
			settle(s, p, x, bytes);
			if (p->state == ODM_PIECE_DONE)
				record_expert(&answer, p, x);
			ran = ran || p->state == ODM_PIECE_DONE;
			if (p->state == ODM_PIECE_DONE)
				report_work(&l->watch.report[work - s->work], x);
		}
		/* Rows of experts that are not needed any more lie between the others, so they are skipped, too. */
		if (x->rows > 0)
			bytes += (size_t)x->rows * s->wire.row_bytes;
	}
	if (any == NULL)
		return;
	record_answer(s, &answer);
	if (ran && work == s->prompt.measured && any->batch == 0)
		odm_port_answered(&s->prompt.port, len, worked_ns(r), od_now_ns());
	odm_recovery_answered(&s->recovery, worker, ran);
	/* A late worker holds nothing of what it was sent before it was overtaken: neither of RUNs that others got, nor
	 * of those that stayed. */
	if (any->request == r->request && !odm_pieces_open(work, r->request))
		hold(s, l, l->held_bytes > any->run_bytes ? l->held_bytes - any->run_bytes : 0);
}

static int receive(struct service *s, uint32_t worker, struct od_err *err)
{
	int rc = OD_OK;

	for (int i = 0; i < RESULTS_AT_ONCE && rc == OD_OK && s->net.link[worker].session != 0; i++) {
		struct od_msg m;

		rc = odm_link_recv(&s->net.link[worker], &m);
		if (rc == OD_ERR_BUSY)
			return OD_OK;
		if (rc != OD_OK)
			return od_fail(err, rc, "data socket: %s", od_status_text(rc));
		s->net.link[worker].watch.unanswered = 0;
		if (m.header->body_case == OD__HEADER__BODY_RESULT)
			on_result(s, worker, &m);
		else if (m.header->body_case == OD__HEADER__BODY_ATTACHED)
			odm_recovery_attached(&s->recovery, worker);
		else
			od_log_limited(OD_LOG_WARN, "dropped %s on a worker's data socket: expected RESULT",
				       od_body_name(m.header->body_case));
		od_msg_fini(&m);
	}
	return rc;
}

static void wait_for_something(struct service *s)
{
	size_t n = odm_links_items(&s->net, s->items);
	uint64_t count;

	if (s->net.shadow.link.socket != NULL)
		s->items[n++] = (zmq_pollitem_t){ .socket = s->net.shadow.link.socket, .events = ZMQ_POLLIN };
	for (uint32_t w = 0; w < s->net.view.n_workers; w++) {
		if (s->net.link[w].socket != NULL && (s->net.link[w].held_bytes > 0 || s->net.link[w].watch.late))
			s->items[n++] = (zmq_pollitem_t){ .socket = s->net.link[w].socket, .events = ZMQ_POLLIN };
	}
	/* The signal of a change is read off before run_pieces looks at the members: one that comes later wakes the
	 * next poll. */
	zmq_poll(s->items, (int)n, odm_recovery_timeout_ms(&s->recovery));
	if (read(odm_cluster_changed_fd(s->cluster), &count, sizeof(count)) < 0)
		return; /* nothing changed */
}

/* Until all pieces of this layer are done. */
static int run_pieces(struct service *s, const struct odm_pieces *work, struct od_err *err)
{
	int rc = OD_OK;

	odm_recovery_move(&s->recovery); /* workers may have died while main computed */
	while (rc == OD_OK && work->n_done < work->n) {
		if (s->now->step->cancelled(s->now->step->arg))
			return od_fail(err, OD_ERR_CANCELLED, "cancelled");
		odm_recovery_end_rests(&s->recovery);
		pump(s);
		odm_shadow_link_serve(&s->net.shadow, s->net.view.epoch);
		wait_for_something(s);
		/* Answers are taken before workers are judged by what is missing. */
		for (uint32_t w = 0; rc == OD_OK && w < s->net.view.n_workers; w++)
			rc = receive(s, w, err);
		odm_links_attach(&s->net);
		if (rc == OD_OK)
			rc = odm_recovery_probe(&s->recovery, err);
		odm_recovery_move(&s->recovery);
		odm_recovery_overtake(&s->recovery);
		if (rc == OD_OK)
			rc = odm_recovery_serve(&s->recovery, err);
	}
	return rc;
}

/* A layer of a decode step, behind its RUNs, which are urgent. */
static void after_runs(struct service *s, const struct od_moe_call *call)
{
	odm_shadow_link_state(&s->net.shadow, s->net.view.epoch, s->now->step, s->o.config->layer_of[call->m]);
	odm_cluster_close_unused(s->cluster, call->step, call->m, s->used_member);
	odm_predictions_learn(odm_cluster_predictions(s->cluster), call->step, call->m, call->probability,
			      s->now->step->counters);
	odm_predictions_record(odm_cluster_predictions(s->cluster), s->now->step, call->m);
}

/* Learns from the times that the workers report. */
static void learn_costs(struct service *s, size_t half)
{
	for (uint32_t w = 0; w < s->net.view.n_workers; w++) {
		const struct odm_link *l = &s->net.link[w];

		if (l->watch.report[half].n_experts > 0)
			odm_members_worked(odm_cluster_members(s->cluster), l->member, &l->watch.report[half]);
	}
}

static bool halves(struct odm_expert_service *base, const struct odm_step *step)
{
	const struct service *s = (struct service *)base;

	return odm_prompt_rows_halves(&s->prompt, s->net.times, s->net.groups.n_many, step->n_rows);
}

/* Rows of a RUN of a prompt's layer, which has been dealt. */
static uint32_t batch_rows(struct service *s, const struct odm_pieces *work)
{
	const struct odm_view *v = &s->net.view;
	struct odm_prompt_layer layer = { .work = work,
					  .half = work->call->n_rows < s->now->step->n_rows,
					  .most = s->step_rows };
	struct odm_many_times t = { 0 };

	layer.n_with = odm_prompt_rows_count(&s->prompt, work, s->net.times, v->n_workers);
	if (layer.n_with > 0)
		t = odm_members_many(odm_cluster_members(s->cluster), v->worker, s->prompt.n_dealt, v->n_workers);
	else
		layer.n_with = s->net.groups.n_many;
	layer.run_ns = t.run;
	layer.row_ns = t.row;
	return odm_prompt_rows_batch(&s->prompt, &layer, od_now_ns());
}

/* half: of the rows. */
static int begin_layer(struct service *s, size_t half, struct od_err *err)
{
	struct odm_pieces *other = &s->work[1 - half];
	int rc = OD_OK;

	/* The view changes only while nothing is under way. */
	if (odm_pieces_under_way(other) && odm_links_any_lost(&s->net))
		rc = run_pieces(s, other, err);
	/* A decode step between two layers of a prompt may have found all workers gone. */
	if (rc == OD_OK && s->net.view.n_workers == 0) {
		rc = odm_links_wait(&s->net, err);
		begin_links(s);
	}
	if (rc != OD_OK)
		return rc;
	odm_pieces_end(&s->work[half]); /* one that failed and begins again */
	if (!odm_pieces_under_way(other)) {
		odm_recovery_begin(&s->recovery, s->now->step);
		odm_links_avoid_lost(&s->net);
		odm_prompt_rows_begin(&s->prompt, &s->work[half]);
	}
	odm_links_time(&s->net);
	for (uint32_t w = 0; w < s->net.view.n_workers; w++) {
		struct odm_link *l = &s->net.link[w];

		if (!odm_pieces_under_way(other))
			hold(s, l, 0);
		l->watch.expect_ns[half] = 0;
		l->watch.report[half] = (struct odm_layer_report){ 0 };
	}
	return OD_OK;
}

static int submit(struct od_expert_runner *r, const struct od_moe_call *call, struct od_err *err)
{
	struct service *s = service_of(r);
	struct odm_pieces *work = &s->work[call->first > 0];
	const bool decode = in_decode(s);
	uint64_t span;
	int rc = odm_row_source_check(&s->source[s->now->step->phase], odm_cluster_members(s->cluster), call->m,
				      call->x, call->n_rows, s->wire.hidden, err);

	if (rc != OD_OK)
		return rc;
	s->layer_begin_ns = od_now_ns();
	memset(s->used_member, 0, OD_MAX_HOSTS * sizeof(*s->used_member));
	rc = begin_layer(s, call->first > 0, err);
	if (rc != OD_OK)
		return rc;
	/* The router has chosen: what was ordered up to now was in time, and RUNs will change the table. So uses are
	 * counted first. */
	if (decode) {
		odm_cluster_reached(s->cluster, call->step, call->m, s->layer_stall_ns);
		odm_predictions_resolve(odm_cluster_predictions(s->cluster), call->step, call->m, call->expert);
		odm_step_uses_routed(&s->uses, call->m, call->expert, call->n_rows, s->now->step->counters);
	}
	s->layer_stall_ns = 0;
	/* Placement goes to workers that were sent a WANT for the expert: their loads are under way. */
	s->net.groups.second = call->first > 0;
	odm_pieces_deal(work, call, &s->net.groups, wanted_at, &(struct deal){ s, call });
	odm_pieces_cut(work, call, decode ? s->step_rows : batch_rows(s, work));
	if (call->first > 0) /* after the first half's, whose experts are required for both */
		work->first_rank = s->work[0].n;
	if (is_first_half(s, call))
		odm_pieces_keep(work);
	/* A prompt's loads begin with WANTs, because its RUNs take long to send. */
	if (!decode && call->first == 0)
		announce(s, work);
	span = odm_span_begin(s->now->step);
	pump(s);
	odm_span_end(s->now->step, ODM_SPAN_SEND, call->m, span);
	if (decode)
		after_runs(s, call);
	/* Main's own predictor computes while the workers do. */
	odm_predictor_link_routed(&s->predictor, call);
	return OD_OK;
}

static int collect(struct od_expert_runner *r, const struct od_moe_call *call, struct od_err *err)
{
	struct service *s = service_of(r);
	const size_t half = call->first > 0;
	const uint64_t span = odm_span_begin(s->now->step);
	const int rc = run_pieces(s, &s->work[half], err);

	odm_span_end(s->now->step, ODM_SPAN_WAIT, call->m, span);
	if (rc != OD_OK)
		return rc;
	/* The times belong to this layer's RUNs; the next submit() sets them to 0. */
	pump(s); /* the other half's rows go while main computes */
	learn_costs(s, half);
	odm_prompt_rows_end(&s->prompt, &s->work[half], od_now_ns());
	odm_pieces_end(&s->work[half]);
	s->now->layers_done += !is_first_half(s, call);
	if (in_decode(s)) {
		s->now->step->counters[OD_C_DECODE_LAYERS]++;
		const uint64_t ns = od_now_ns() - s->layer_begin_ns;

		s->now->step->counters[OD_C_EXPERTS_NS] += ns;
		/* workers say it */
		s->now->step->counters[OD_C_STALL_NS] += s->layer_stall_ns < ns ? s->layer_stall_ns : ns;
	}
	return OD_OK;
}

/* --- figures --- */

static void nodes(struct odm_expert_service *base, struct odm_figures *f)
{
	odm_cluster_figures_nodes(&((struct service *)base)->figures, f);
}

static void machines(struct odm_expert_service *base, struct odm_machines *list)
{
	odm_members_machines(odm_cluster_members(((struct service *)base)->cluster), list);
}

static int ready(struct odm_expert_service *base, struct od_err *why)
{
	return odm_members_ready(odm_cluster_members(((struct service *)base)->cluster), why);
}

static int failed(struct odm_expert_service *base, struct od_err *why)
{
	struct service *s = (struct service *)base;

	return odm_members_all_gone(odm_cluster_members(s->cluster)) ? odm_links_none_left(&s->net, why) : OD_OK;
}

static void count_open(struct odm_expert_service *base, uint64_t *c)
{
	struct service *s = (struct service *)base;
	uint64_t now[OD_N_COUNTERS];

	odm_cluster_figures_voided(&s->figures, c, now);
	if (has_predictor(s))
		odm_predictions_count_open(odm_cluster_predictions(s->cluster), c);
}

static void close_sequence(struct odm_expert_service *base, uint64_t sequence, enum odm_company company,
			   struct odm_figures *f, struct od_recall *recall)
{
	struct service *s = (struct service *)base;
	uint64_t since[OD_N_COUNTERS], voided[OD_N_COUNTERS];

	odm_shadow_link_close_sequence(&s->net.shadow, s->net.view.epoch, sequence);
	odm_predictor_link_close_sequence(&s->predictor, sequence);
	f->cluster = true;
	f->has_predictor = has_predictor(s);
	/* The shadow may have run ahead of its end. */
	if (odm_predictions_close(odm_cluster_predictions(s->cluster), sequence))
		odm_cluster_flush_wants(s->cluster);
	/* Nor will that step come, and CLOSEs go before the counters are asked for. */
	if (company != ODM_NOT_LAST && s->next_decode != 0)
		odm_cluster_close_step(s->cluster, s->next_decode, s->o.config->n_moe - 1);
	if (f->has_predictor)
		odm_predictions_take(odm_cluster_predictions(s->cluster), sequence, f->c, &f->first_prediction_ns,
				     recall);
	odm_cluster_figures_voided(&s->figures, f->c, voided);
	memcpy(s->figures.voided, voided, sizeof(voided));
	if (company != ODM_NOT_LAST)
		odm_cluster_figures_loads(&s->figures, since);
	if (company == ODM_ALONE)
		odm_cluster_figures_count_loads(f->c, since);
	f->c[OD_C_WORKERS] = s->net.view.n_workers;
	f->c[OD_C_GROUPS] = s->net.groups.n_groups;
	nodes(base, f);
	f->c[OD_C_SLOTS] = odm_cluster_figures_slots(f);
}

static void free_service(struct odm_expert_service *base)
{
	struct service *s = (struct service *)base;

	odm_predictor_link_close(&s->predictor);
	odm_links_fini(&s->net); /* before the cluster: its sockets belong to the same ZeroMQ context */
	odm_cluster_close(s->cluster);
	for (size_t i = 0; i < ODM_HALVES; i++)
		odm_pieces_fini(&s->work[i]);
	odm_step_uses_fini(&s->uses);
	free(s->piece);
	free(s->predicted);
	free(s->needed);
	free(s->dealt);
	odm_prompt_rows_fini(&s->prompt);
	free(s->used_member);
	free(s->has_more);
	free(s->items);
	odm_wire_rows_fini(&s->wire);
	free(s);
}

static int allocate(struct service *s, struct od_err *err)
{
	int rc = odm_wire_rows_init(&s->wire, &s->o, err);

	if (rc == OD_OK)
		rc = odm_links_init(&s->net, s->cluster, &s->o, err);
	for (size_t i = 0; rc == OD_OK && i < ODM_HALVES; i++)
		rc = odm_pieces_init(&s->work[i], s->o.config, s->o.max_rows, OD_MAX_HOSTS, err);
	if (rc == OD_OK)
		rc = odm_step_uses_init(&s->uses, s->o.config, odm_cluster_opts(s->cluster)->decode_rows, err);
	if (rc == OD_OK)
		rc = odm_prompt_rows_init(&s->prompt, s->o.config, (double)s->wire.row_bytes, OD_MAX_HOSTS, err);
	if (rc != OD_OK)
		return rc;
	s->piece = calloc(s->o.config->n_experts, sizeof(*s->piece));
	s->predicted = calloc(s->o.max_rows, sizeof(*s->predicted));
	s->needed = calloc(s->o.config->n_experts, sizeof(*s->needed));
	s->dealt = calloc(s->o.config->n_experts, sizeof(*s->dealt));
	s->used_member = calloc(OD_MAX_HOSTS, sizeof(*s->used_member));
	s->has_more = calloc(OD_MAX_HOSTS, sizeof(*s->has_more));
	s->items = calloc(2 * OD_MAX_HOSTS + 3, sizeof(*s->items));
	if (s->piece == NULL || s->predicted == NULL || s->needed == NULL || s->dealt == NULL ||
	    s->used_member == NULL || s->has_more == NULL || s->items == NULL)
		return od_fail(err, OD_ERR_NOMEM, "cluster: no memory for %zu rows", s->o.max_rows);
	return OD_OK;
}

static void flush_wants(void *arg)
{
	odm_cluster_flush_wants(arg);
}

static int open_predictor(struct service *s, struct od_err *err)
{
	const struct odm_cluster_opts *co = odm_cluster_opts(s->cluster);
	const struct odm_predictor_link_opts o = {
		.kind = co->own,
		.predictions = odm_cluster_predictions(s->cluster),
		.shadow = co->shadow,
		.max_sequences = co->max_sequences,
		.wants = flush_wants,
		.arg = s->cluster,
	};

	return odm_predictor_link_open(&s->predictor, &o, &s->o, err);
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
		.runner = &s->runner,
		.has_spans = true,
		.begin_step = begin_step,
		.halves = halves,
		.end_step = end_step,
		.kept = kept,
		.draft = find_draft,
		.close_sequence = close_sequence,
		.nodes = nodes,
		.machines = machines,
		.ready = ready,
		.failed = failed,
		.count_open = count_open,
		.free = free_service,
	};
	s->runner = (struct od_expert_runner){ .needs = needs, .submit = submit, .collect = collect };
	s->recovery = (struct odm_recovery){ .net = &s->net,
					     .work = s->work,
					     .send_again = send_piece_again,
					     .arg = s,
					     .hidden = opts->config->hidden,
					     .expert_weights =
						     3 * (uint64_t)opts->config->hidden * opts->config->intermediate };
	s->cluster = s->figures.cluster = c;
	s->o = *opts;
	s->run_rows = odm_wire_rows_most(opts->config, opts->profile);
	if (s->run_rows > opts->max_rows)
		s->run_rows = (uint32_t)opts->max_rows;
	rc = allocate(s, err);
	if (rc == OD_OK)
		rc = open_predictor(s, err);
	if (rc == OD_OK)
		rc = odm_links_open(&s->net, err);
	if (rc != OD_OK) {
		free_service(&s->base);
		return rc;
	}
	*out = &s->base;
	return OD_OK;
}
