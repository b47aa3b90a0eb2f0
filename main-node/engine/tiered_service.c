#include "main-node/engine/tiered_service.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/timed_cond.h"
#include "common/compute/ops.h"
#include "common/compute/scratch.h"
#include "common/model/resident.h"
#include "main-node/engine/host_experts.h"
#include "main-node/engine/pass_size.h"
#include "main-node/engine/state_plan.h"
#include "main-node/engine/tier_admission.h"
#include "main-node/engine/tier_store.h"
#include "main-node/predict/layer_stream.h"
#include "main-node/predict/prediction_wants.h"
#include "main-node/predict/predict_trial.h"
#include "main-node/predict/predictor_link.h"
#include "main-node/predict/step_uses.h"
#include "main-node/predict/want_gate.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOAD_ATTEMPTS 3 /* then the step fails */
#define LAYERS_AHEAD 3 /* 1 leaves a quarter of the waits, 3 next to none (docs/BENCHMARKS.md) */
#define LOOK_NS (50 * OD_NS_PER_MS) /* a step that is given up ends no later */

struct tiered {
	struct odm_expert_service base; /* first */
	struct od_expert_runner runner;
	const struct odm_model *model;
	const struct od_config *config;
	struct od_forward_opts o;
	struct odm_tier_store *store;
	struct od_schedule *schedule; /* the store's */
	pthread_mutex_t lock;
	pthread_cond_t ready; /* is_ready has become true */
	bool is_ready; /* under the lock, as the following: an expert has been loaded, or failed to load */
	uint64_t ready_ns; /* when the last one was */
	uint64_t session;
	bool given_up; /* the step under way */

	struct odm_predictions *predictions; /* NULL: nothing is predicted */
	struct odm_predictor_link predictor;
	struct odm_predicted_row *predicted; /* [max_rows] */
	struct odm_want want;
	uint32_t *want_expert; /* [n_experts] */
	bool *want_kept; /* [n_experts] */
	struct odm_want_gate gate;
	struct odm_step_uses uses; /* in the decode step */

	const struct odm_step *open[2]; /* by phase; NULL: there is none */
	/* by phase: the step's uses are counted, not if all experts were in memory; and they are predicted */
	bool follows[2], predicting[2];
	bool always_predicts; /* no trial */
	struct odm_predict_trial trial;
	struct odm_layer_stream stream; /* decode steps */
	uint64_t step_end_ns, step_loading_ns; /* when the last decode step ended; time of loads until then */
	uint64_t step_begin_ns; /* the decode step's, as the following */
	uint64_t step_stall_ns, step_bytes, step_experts, step_layers, step_missing, step_missing_chosen;
	struct odm_tier_admission admission;
	struct {
		uint64_t bytes, ns;
	} read; /* learnt so far */
	const struct odm_step *now; /* the step of the current layer */
	/* The layer under way. */
	const struct od_moe_call *call;
	size_t n_items, n_done; /* the device's */
	struct odm_host_experts *host; /* NULL: the host computes none */
	size_t n_host; /* the host's, in item behind the device's */
	bool host_due; /* the host has yet to compute them */
	struct od_schedule_item *item; /* [n_experts], in order of the first row that has the expert */
	unsigned *attempts; /* [n_experts], by item */
	bool *ordered; /* [n_experts], by item: its WANT came before the router spoke */
	uint32_t *item_of; /* [n_experts]: item + 1; 0: none */
	struct od_schedule_item **wave; /* [n_experts] */
	bool *in_wave; /* [n_experts]; those that are computed now */
	struct od_expert *expert; /* [n_experts]: of the experts in the wave */
	struct od_buf *choice, *scratch;
	uint64_t before[OD_N_COUNTERS], host_before; /* loads when they were last counted */
};

static struct tiered *tiered_of(struct od_expert_runner *r)
{
	return (struct tiered *)((char *)r - offsetof(struct tiered, runner));
}

static bool in_decode(const struct tiered *t)
{
	return t->now->phase == ODM_DECODE;
}

static bool counts_uses(const struct tiered *t)
{
	return t->follows[t->now->phase] && in_decode(t);
}

static bool predicts(const struct tiered *t)
{
	return t->predicting[t->now->phase];
}

/* ---- Predictions ---- */

static void send_wants(void *arg)
{
	struct tiered *t = arg;
	struct odm_want *w = &t->want;

	while (odm_predictions_take_want(t->predictions, w)) {
		od_schedule_keeps(t->schedule, w->m, w->expert, w->n, t->want_kept);
		odm_want_gate_filter(&t->gate, w, t->want_kept);
		for (size_t i = 0; i < w->n; i++) {
			t->want_expert[i] = w->expert[i];
			w->worker[i] = 0;
		}
		w->epoch = 1;
		(void)od_schedule_want(t->schedule, t->session, w->step, w->m, w->version, t->want_expert, w->n,
				       w->prompt);
		(void)odm_predictions_placed(t->predictions, w);
	}
}

static void begin_predictions(struct tiered *t, const struct odm_step *step)
{
	const bool decode = step->phase == ODM_DECODE;
	size_t n = 0;

	for (size_t i = 0; decode && i < step->n_parts; i++) {
		const struct odm_part *p = &step->part[i];

		for (size_t j = p->first; j < p->first + p->n; j++)
			t->predicted[n++] = (struct odm_predicted_row){ .sequence = p->sequence,
									.position = step->rows[j].position,
									.token = step->rows[j].token,
									.prompt_tokens = p->prompt_tokens,
									.ahead = p->ahead,
									.outlook = step->outlook };
	}
	odm_predictions_begin(t->predictions, step->step, step->next_step, t->predicted, n, decode);
	odm_predictor_link_step(&t->predictor, step);
}

/* ---- A step ---- */

static uint64_t stored_bytes(const struct tiered *t)
{
	return (uint64_t)t->config->n_moe * t->config->n_experts * od_pack_expert_stored_bytes(t->model->pack);
}

/* With few rows experts are predicted, with many they are loaded ahead by use. */
static void choose_regime(struct tiered *t)
{
	const bool before = t->stream.on, on = t->follows[ODM_DECODE] && odm_layer_stream_next(&t->stream);

	if (on != before)
		od_log(OD_LOG_DEBUG, "experts: %s", on ? "they are loaded ahead" : "they are no longer loaded ahead");
	t->stream.on = on;
	odm_tier_store_stream(t->store, on);
}

static int begin_step(struct odm_expert_service *base, const struct odm_step *step, struct od_err *err)
{
	struct tiered *t = (struct tiered *)base;

	(void)err;
	t->open[step->phase] = t->now = step;
	odm_tier_store_open_step(t->store);
	t->follows[step->phase] = odm_tier_store_all(t->store) == NULL;
	if (step->phase == ODM_DECODE)
		choose_regime(t);
	t->predicting[step->phase] =
		t->predictions != NULL && t->follows[step->phase] && !(step->phase == ODM_DECODE && t->stream.on) &&
		(t->always_predicts || step->phase == ODM_PREFILL || odm_predict_trial_next(&t->trial));
	if (step->phase == ODM_DECODE) {
		t->step_begin_ns = od_now_ns();
		t->step_stall_ns = t->step_bytes = t->step_experts = t->step_layers = 0;
		t->step_missing = t->step_missing_chosen = 0;
	}
	if (counts_uses(t))
		odm_step_uses_begin(&t->uses, step);
	if (predicts(t))
		begin_predictions(t, step);
	return OD_OK;
}

static void learn_costs(struct tiered *t, const struct odm_step *step)
{
	struct odm_tier_step s = { .n_rows = step->n_rows,
				   .step_ns = od_now_ns() - t->step_begin_ns,
				   .stall_ns = t->step_stall_ns,
				   .read_bytes = t->step_bytes,
				   .streams = t->stream.on };
	const double all = (double)(t->step_layers * t->config->n_experts);

	if (t->step_layers > 0)
		s.chosen = (double)t->step_experts / all;
	if (t->step_missing > 0) {
		s.missing = (double)t->step_missing / all;
		s.missing_chosen = (double)t->step_missing_chosen / (double)t->step_missing;
	}
	odm_tier_admission_step(&t->admission, &s);
}

/* After any step. decode: one that was not given up, whose waits count. */
static void learn_reads(struct tiered *t, bool decode)
{
	const uint64_t now_ns = od_now_ns();
	struct od_load_figures f;

	od_schedule_figures(t->schedule, &f);
	odm_tier_admission_read(&t->admission, f.c[OD_C_LOADED_BYTES] - t->read.bytes, f.loading_ns - t->read.ns);
	t->read.bytes = f.c[OD_C_LOADED_BYTES];
	t->read.ns = f.loading_ns;
	if (!decode)
		return;
	if (t->step_end_ns > 0)
		odm_layer_stream_ended(&t->stream, now_ns - t->step_end_ns, t->step_stall_ns,
				       f.loading_ns - t->step_loading_ns);
	t->step_end_ns = now_ns;
	t->step_loading_ns = f.loading_ns;
}

static bool admits(struct odm_expert_service *base, const struct odm_waiting *w)
{
	struct tiered *t = (struct tiered *)base;
	const uint64_t page_bytes = odm_state_plan_page_bytes(t->model);
	struct odm_tier_texts x = { .n_running = w->n_running,
				    .n_waiting = w->n_waiting,
				    .all_bytes = odm_tier_plan_all_bytes(&t->model->tiers, t->config),
				    .stored_bytes = stored_bytes(t),
				    .row_share = (double)t->config->top_k / t->config->n_experts };

	if (!t->model->shares_memory)
		return true;
	for (size_t i = 0; i < ODM_LIFE_POINTS; i++) {
		x.running_bytes[i] = w->running_pages[i] * page_bytes;
		x.text_bytes[i] = w->text_pages[i] * page_bytes;
	}
	x.shared_bytes = odm_tier_store_shared_bytes(t->store);
	return odm_tier_admission_admits(&t->admission, &x);
}

static void end_step(struct odm_expert_service *base, const struct odm_step *step)
{
	struct tiered *t = (struct tiered *)base;

	if (t->open[step->phase] == NULL)
		return;
	if (step->phase == ODM_DECODE && !t->given_up)
		learn_costs(t, step);
	learn_reads(t, step->phase == ODM_DECODE && !t->given_up);
	od_schedule_close(t->schedule, t->session, step->step, t->config->n_moe - 1);
	if (step->phase == ODM_DECODE && t->follows[ODM_DECODE] && !t->stream.on)
		odm_predict_trial_ended(&t->trial, t->given_up ? 0 : od_now_ns() - t->step_begin_ns, step->n_rows);
	t->given_up = false;
	t->open[step->phase] = NULL;
	t->call = NULL;
	odm_tier_store_close_step(t->store);
}

static void kept(struct odm_expert_service *base, const struct odm_step *step, const uint32_t *kept)
{
	struct tiered *t = (struct tiered *)base;
	bool wants = false;

	t->now = step;
	for (size_t i = 0; predicts(t) && i < step->n_parts; i++) {
		const struct odm_part *p = &step->part[i];

		if (kept[i] < p->n)
			wants |= odm_predictions_truncate(t->predictions, p->sequence,
							  step->rows[p->first].position + kept[i]);
	}
	if (wants)
		send_wants(t);
	if (counts_uses(t))
		odm_step_uses_settle(&t->uses, step, kept);
}

/* ---- A layer ---- */

static unsigned needs(struct od_expert_runner *r, uint64_t number, uint32_t m)
{
	struct tiered *t = tiered_of(r);
	unsigned what = OD_FETCH_ROUTES;

	(void)m;
	t->now = t->open[ODM_DECODE] != NULL && t->open[ODM_DECODE]->step == number ? t->open[ODM_DECODE] :
										      t->open[ODM_PREFILL];
	odm_tier_store_leave_all(t->store);
	if (odm_tier_store_all(t->store) != NULL)
		return 0;
	if (odm_host_experts_may(t->host, t->now->n_rows))
		what |= OD_FETCH_ROWS;
	if (!predicts(t))
		return what;
	what |= odm_predictor_link_needs(&t->predictor, t->now);
	return in_decode(t) ? what | OD_FETCH_PROBABILITIES : what;
}

/* One item for each expert that a row has chosen. */
static void list_items(struct tiered *t)
{
	const struct od_moe_call *call = t->call;
	const size_t n = call->n_rows * t->config->top_k;

	memset(t->item_of, 0, t->config->n_experts * sizeof(*t->item_of));
	t->n_items = t->n_done = t->n_host = 0;
	t->host_due = false;
	for (size_t i = 0; i < n; i++) {
		const uint16_t expert = call->expert[i];

		if (t->item_of[expert] == 0) {
			t->item[t->n_items] = (struct od_schedule_item){ .expert = expert,
									 .rank = (uint32_t)t->n_items,
									 .last = true };
			t->attempts[t->n_items] = 0;
			t->item_of[expert] = (uint32_t)++t->n_items;
		}
		t->item[t->item_of[expert] - 1].n_rows++;
	}
}

static void note_ordered(struct tiered *t)
{
	for (size_t i = 0; i < t->n_items; i++)
		t->ordered[i] = predicts(t) && in_decode(t) &&
				odm_predictions_ordered(t->predictions, t->call->step, t->call->m,
							(uint16_t)t->item[i].expert) != ODM_NOBODY;
}

static void run_experts(struct tiered *t, const struct od_expert *expert, struct od_ref choice)
{
	od_resident_run(&t->o, t->call, expert, choice, od_buf_ref(t->scratch, 0));
}

/* Operations read the shapes of experts that none of their rows has chosen, a GPU also their formats, but not their
 * weights: these may be anywhere. They have the form of the others, so that a GPU's tables are all of one size. */
static void bind_shapes(struct tiered *t, uint32_t m)
{
	struct od_expert_mem anywhere = { 0 };

	for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++)
		if ((od_form_bufs(t->model->form) & 1u << i) != 0)
			anywhere.at[i] = od_buf_ref(t->choice, 0);
	for (uint32_t i = 0; i < t->config->n_experts; i++)
		od_pack_bind(t->model->pack, m, i, &anywhere, &t->expert[i]);
}

/* Experts that the next layers lack are loaded while this one is computed; the last layer is followed by the next
 * step's first. One layer would not do: an expert may take longer to read than a layer to compute. What a layer lacks
 * when it is nearer counts more than what it lacked before. */
static void stream_next(struct tiered *t)
{
	for (uint32_t i = 1; i <= LAYERS_AHEAD && i < t->config->n_moe; i++) {
		const bool next_step = t->call->m + i >= t->config->n_moe;
		const uint64_t step = next_step ? t->now->next_step : t->call->step;
		const uint32_t m = (t->call->m + i) % t->config->n_moe;

		(void)od_schedule_want(t->schedule, t->session, step, m, LAYERS_AHEAD - i + 1, t->want_expert,
				       od_schedule_missing(t->schedule, m, t->stream.least, t->want_expert), false);
	}
}

/* After od_schedule_run. */
static void learn_choice(struct tiered *t, size_t n_missing)
{
	t->step_missing += n_missing;
	t->step_missing_chosen += t->n_host;
	for (size_t i = 0; i < t->n_items; i++)
		t->step_missing_chosen += !t->item[i].kept;
	odm_layer_stream_routed(&t->stream, t->config->n_moe, t->config->n_experts, t->n_items + t->n_host);
}

/* Some experts that the card lacks are computed where they are. */
static void leave_to_host(struct tiered *t)
{
	if (!odm_host_experts_may(t->host, t->call->n_rows))
		return;
	t->n_host = odm_host_experts_take(t->host, t->schedule, t->call, t->item, t->n_items);
	t->n_items -= t->n_host;
	t->host_due = t->n_host > 0;
}

static int submit(struct od_expert_runner *r, const struct od_moe_call *call, struct od_err *err)
{
	struct tiered *t = tiered_of(r);
	const struct od_expert *all = odm_tier_store_all(t->store);
	uint64_t *c = t->now->counters;
	size_t n_missing;
	int rc;

	t->call = call;
	if (all != NULL) { /* as --resident does */
		run_experts(t, all + (size_t)call->m * t->config->n_experts, call->expert_at);
		return OD_OK;
	}
	if (counts_uses(t)) {
		if (predicts(t))
			odm_predictions_resolve(t->predictions, call->step, call->m, call->expert);
		odm_step_uses_routed(&t->uses, call->m, call->expert, call->n_rows, c);
	}
	list_items(t);
	leave_to_host(t);
	if (!od_device_maps(t->o.device))
		bind_shapes(t, call->m);
	note_ordered(t);
	n_missing = counts_uses(t) ? od_schedule_missing(t->schedule, call->m, 0, t->want_expert) : 0;
	rc = od_schedule_run(t->schedule, t->session, call->step, call->m, true, t->item, t->n_items);
	if (rc != OD_OK)
		return od_fail(err, rc, "layer %u: %zu experts cannot be queued", call->m, t->n_items);
	if (counts_uses(t)) {
		learn_choice(t, n_missing);
		if (t->stream.on)
			stream_next(t);
	}
	if (predicts(t) && in_decode(t)) {
		odm_predictions_learn(t->predictions, call->step, call->m, call->probability, c);
		odm_predictions_record(t->predictions, t->now, call->m);
		odm_want_gate_routed(&t->gate, call->step, call->m, call->expert, call->n_rows * t->config->top_k);
	}
	if (predicts(t)) /* it computes while experts are loaded */
		odm_predictor_link_routed(&t->predictor, call);
	return OD_OK;
}

static void count_item(struct tiered *t, const struct od_schedule_item *item)
{
	const bool decode = in_decode(t);
	uint64_t *c = t->now->counters;

	if (odm_host_experts_may(t->host, t->call->n_rows))
		odm_host_experts_note(t->host, item);
	c[OD_C_LOADS] += item->loaded_bytes > 0;
	c[OD_C_LOADED_BYTES] += item->loaded_bytes;
	c[OD_C_LOAD_NS] += item->loaded_bytes > 0 ? item->load_ns : 0;
	if (!decode)
		return;
	t->step_bytes += item->loaded_bytes;
	c[OD_C_DECODE_LOADS] += item->loaded_bytes > 0;
	c[OD_C_CACHE_USES]++;
	c[OD_C_CACHE_HITS] += item->kept;
	if (item->loaded_bytes > 0 && counts_uses(t))
		odm_step_uses_loaded(&t->uses, t->call->m, (uint16_t)item->expert);
	c[OD_C_STALLS] += !item->ready;
	for (size_t i = 0;
	     counts_uses(t) && item->ready && t->ordered[item - t->item] && i < t->call->n_rows * t->config->top_k; i++)
		if (t->call->expert[i] == item->expert)
			odm_step_uses_served(&t->uses, i / t->config->top_k, c);
}

/* The choices of the wave's experts alone. */
static struct od_ref wave_choice(struct tiered *t, size_t n_wave)
{
	const size_t n = t->call->n_rows * t->config->top_k;
	struct od_ref at = od_buf_ref(t->choice, 0);
	uint16_t *choice;

	if (n_wave == t->n_items && t->n_host == 0)
		return t->call->expert_at;
	choice = (uint16_t *)od_ref_stage(at);
	for (size_t i = 0; i < n; i++)
		choice[i] = t->in_wave[t->call->expert[i]] ? t->call->expert[i] : OD_NO_EXPERT;
	od_ref_push(at, n * sizeof(*choice), OD_QUEUE_COMPUTE);
	return at;
}

static int run_host(struct tiered *t, struct od_err *err)
{
	if (!t->host_due)
		return OD_OK;
	t->host_due = false;
	t->now->counters[OD_C_HOST_EXPERTS] += t->n_host;
	if (in_decode(t))
		t->now->counters[OD_C_CACHE_USES] += t->n_host;
	return odm_host_experts_run(t->host, t->call, err);
}

static int compute(struct tiered *t, size_t n, struct od_err *err)
{
	struct od_err *why = err;
	int host, rc;

	for (size_t i = 0; i < n; i++) {
		const struct od_schedule_item *item = t->wave[i];

		t->in_wave[item->expert] = true;
		od_pack_bind(t->model->pack, t->call->m, item->expert, &item->mem, &t->expert[item->expert]);
	}
	run_experts(t, t->expert, wave_choice(t, n));
	host = run_host(t, err); /* while the device computes */
	if (host != OD_OK)
		why = NULL;
	/* The slots are free when the device has read them. */
	rc = od_device_wait(t->o.device, OD_QUEUE_COMPUTE, od_device_ticket(t->o.device, OD_QUEUE_COMPUTE), why);
	for (size_t i = 0; i < n; i++) {
		t->in_wave[t->wave[i]->expert] = false;
		count_item(t, t->wave[i]);
		od_schedule_done(t->schedule, t->wave[i]);
		t->n_done++;
	}
	return host != OD_OK ? host : rc;
}

/* A load that failed is tried again: bytes from a disk may be damaged once and right the next time. */
static int try_again(struct tiered *t, struct od_schedule_item *item, struct od_err *err)
{
	const size_t i = (size_t)(item - t->item);
	const struct od_schedule_item again = {
		.expert = item->expert, .rank = item->rank, .n_rows = item->n_rows, .last = true
	};
	const int code = item->code;
	struct od_err why;

	if (++t->attempts[i] >= LOAD_ATTEMPTS)
		return od_fail(err, code, "expert %u of MoE layer %u: %s (tried %d times)", item->expert, t->call->m,
			       item->reason, LOAD_ATTEMPTS);
	(void)od_fail(&why, code, "%s", item->reason);
	*item = again;
	return od_schedule_run(t->schedule, t->session, t->call->step, t->call->m, true, item, 1) == OD_OK ?
		       OD_OK :
		       od_fail(err, code, "%s", why.msg);
}

/* Experts that were loaded ahead and are not kept are computed first, alone: so their slots are free for the next layer
 * while the kept ones are computed. */
static size_t most_of_wave(const struct tiered *t)
{
	size_t n = 0;

	for (size_t i = 0; t->n_done == 0 && i < t->n_items; i++)
		n += t->item[i].ready && !t->item[i].kept;
	return n > 0 ? n : t->n_items;
}

/* Runs all that are ready, in one operation. *waits: none is. */
static int run_ready(struct tiered *t, bool *waits, struct od_err *err)
{
	struct od_schedule_item *first = od_schedule_take(t->schedule);
	size_t n;
	int rc = OD_OK;

	*waits = first == NULL;
	if (first == NULL)
		return OD_OK;
	t->wave[0] = first;
	n = od_schedule_take_more(t->schedule, t->wave, most_of_wave(t), UINT64_MAX);
	if (first->code == OD_OK)
		return compute(t, n, err);
	for (size_t i = 0; i < n && rc == OD_OK; i++)
		rc = try_again(t, t->wave[i], err);
	return rc;
}

static void wait_for_load(struct tiered *t)
{
	const uint64_t until_ns = od_now_ns() + LOOK_NS;
	bool early = true;

	pthread_mutex_lock(&t->lock);
	while (!t->is_ready && early)
		early = od_timed_cond_wait(&t->ready, &t->lock, until_ns);
	t->is_ready = false;
	pthread_mutex_unlock(&t->lock);
}

/* Nothing of the step is loaded or computed any more. What is queued of the other step is asked for again by its next
 * layer, because none has a layer under way. */
static void give_up(struct tiered *t)
{
	od_schedule_begin(t->schedule, ++t->session);
	while (od_schedule_take(t->schedule) != NULL)
		;
	t->given_up = true;
}

static int run_items(struct tiered *t, struct od_err *err)
{
	uint64_t begin_ns = 0;
	int rc = OD_OK;

	while (rc == OD_OK && (t->n_done < t->n_items || t->host_due)) {
		bool waits;

		rc = run_ready(t, &waits, err);
		if (rc != OD_OK || !waits)
			continue;
		if (t->host_due) {
			rc = run_host(t, err);
			continue;
		}
		if (t->now->cancelled(t->now->arg))
			rc = od_fail(err, OD_ERR_CANCELLED, "cancelled");
		begin_ns = od_now_ns();
		wait_for_load(t);
		if (in_decode(t)) {
			t->step_stall_ns += od_now_ns() - begin_ns;
			t->now->counters[OD_C_STALL_NS] += od_now_ns() - begin_ns;
		}
	}
	if (rc != OD_OK)
		give_up(t);
	return rc;
}

static void learn_loads(struct tiered *t)
{
	uint64_t ready_ns;

	if (!odm_host_experts_may(t->host, t->call->n_rows))
		return;
	pthread_mutex_lock(&t->lock);
	ready_ns = t->ready_ns;
	pthread_mutex_unlock(&t->lock);
	odm_host_experts_end(t->host, ready_ns);
}

static int collect(struct od_expert_runner *r, const struct od_moe_call *call, struct od_err *err)
{
	struct tiered *t = tiered_of(r);
	const uint64_t begin_ns = od_now_ns();
	int rc;

	(void)call; /* t->call */
	if (odm_tier_store_all(t->store) != NULL)
		return OD_OK;
	rc = run_items(t, err);
	if (rc == OD_OK)
		learn_loads(t);
	if (in_decode(t)) {
		t->step_layers++;
		t->step_experts += t->n_items + t->n_host;
		t->now->counters[OD_C_DECODE_LAYERS]++;
		t->now->counters[OD_C_EXPERTS_NS] += od_now_ns() - begin_ns;
	}
	t->call = NULL;
	return rc;
}

/* ---- Figures ---- */

static uint64_t host_bytes(const struct tiered *t)
{
	return od_host_tier_served_bytes(odm_tier_store_host(t->store));
}

/* Loads that no RUN has used are in no item's figures. */
static void count_loads(struct tiered *t, uint64_t *c)
{
	const uint64_t host = host_bytes(t);
	struct od_load_figures f;
	uint64_t since[OD_N_COUNTERS];

	od_schedule_figures(t->schedule, &f);
	od_counters_since(since, f.c, t->before);
	memcpy(t->before, f.c, sizeof(t->before));
	c[OD_C_BEGUN_LOADS] += since[OD_C_LOADS] + since[OD_C_CANCELLED_LOADS];
	c[OD_C_EXTRA_LOADS] += since[OD_C_CANCELLED_LOADS] + since[OD_C_UNUSED_LOADS];
	c[OD_C_HOST_BYTES] += host - t->host_before;
	t->host_before = host;
}

static void close_sequence(struct odm_expert_service *base, uint64_t sequence, enum odm_company company,
			   struct odm_figures *f, struct od_recall *recall)
{
	struct tiered *t = (struct tiered *)base;

	odm_predictor_link_close_sequence(&t->predictor, sequence);
	f->cluster = t->follows[ODM_DECODE];
	f->has_predictor = f->cluster && t->predictions != NULL;
	if (t->predictions != NULL) {
		if (odm_predictions_close(t->predictions, sequence))
			send_wants(t);
		odm_predictions_take(t->predictions, sequence, f->c, &f->first_prediction_ns, recall);
	}
	if (company == ODM_ALONE)
		count_loads(t, f->c);
	f->c[OD_C_GROUPS] = 1;
	f->c[OD_C_SLOTS] = 2; /* for the window: a layer's loads may begin while the one before it is computed */
}

static void count_open(struct odm_expert_service *base, uint64_t *c)
{
	struct tiered *t = (struct tiered *)base;

	if (t->predictions != NULL)
		odm_predictions_count_open(t->predictions, c);
}

static uint64_t kept_experts(struct odm_expert_service *base)
{
	struct tiered *t = (struct tiered *)base;
	const size_t all = (size_t)t->config->n_moe * t->config->n_experts;
	uint8_t *kept = calloc(all, sizeof(*kept));
	uint64_t seen = UINT64_MAX, n = 0; /* no change has this number */

	if (kept != NULL && od_schedule_cached(t->schedule, &seen, kept))
		for (size_t i = 0; i < all; i++)
			n += kept[i];
	free(kept);
	return n;
}

/* ---- Open and free ---- */

static void free_service(struct odm_expert_service *base)
{
	struct tiered *t = (struct tiered *)base;

	odm_host_experts_free(t->host);
	odm_tier_store_free(t->store);
	odm_predictor_link_close(&t->predictor);
	odm_predictions_free(t->predictions);
	odm_step_uses_fini(&t->uses);
	pthread_cond_destroy(&t->ready);
	pthread_mutex_destroy(&t->lock);
	od_buf_free(t->choice);
	od_buf_free(t->scratch);
	free(t->predicted);
	odm_want_gate_fini(&t->gate);
	free(t->want.expert);
	free(t->want.worker);
	free(t->want.rank);
	free(t->want.expert_before);
	free(t->want.worker_before);
	free(t->want_expert);
	free(t->want_kept);
	free(t->item);
	free(t->attempts);
	free(t->ordered);
	free(t->item_of);
	free(t->wave);
	free(t->in_wave);
	free(t->expert);
	free(t);
}

static int allocate(struct tiered *t, struct od_err *err)
{
	const size_t n = t->config->n_experts, rows = t->o.max_rows;
	int rc;

	t->predicted = calloc(rows, sizeof(*t->predicted));
	t->want.expert = calloc(n, sizeof(*t->want.expert));
	t->want.worker = calloc(n, sizeof(*t->want.worker));
	t->want.rank = calloc(n, sizeof(*t->want.rank));
	t->want.expert_before = calloc(n, sizeof(*t->want.expert_before));
	t->want.worker_before = calloc(n, sizeof(*t->want.worker_before));
	t->want_expert = calloc(n, sizeof(*t->want_expert));
	t->want_kept = calloc(n, sizeof(*t->want_kept));
	t->item = calloc(n, sizeof(*t->item));
	t->attempts = calloc(n, sizeof(*t->attempts));
	t->ordered = calloc(n, sizeof(*t->ordered));
	t->item_of = calloc(n, sizeof(*t->item_of));
	t->wave = calloc(n, sizeof(*t->wave));
	t->in_wave = calloc(n, sizeof(*t->in_wave));
	t->expert = calloc(n, sizeof(*t->expert));
	if (t->predicted == NULL || t->want.expert == NULL || t->want.worker == NULL || t->want.expert_before == NULL ||
	    t->want.worker_before == NULL || t->want.rank == NULL || t->want_expert == NULL || t->want_kept == NULL ||
	    t->item == NULL || t->attempts == NULL || t->ordered == NULL || t->item_of == NULL || t->wave == NULL ||
	    t->in_wave == NULL || t->expert == NULL)
		return od_fail(err, OD_ERR_NOMEM, "experts in tiers: no memory for %zu rows", rows);
	rc = odm_step_uses_init(&t->uses, t->config, odm_pass_size_rows(t->config, (uint32_t)t->model->opts.parallel),
				err);
	if (rc == OD_OK)
		rc = od_buf_new_shared(&t->choice, t->o.device, rows * t->config->top_k * sizeof(uint16_t),
				       "choices of experts", err);
	if (rc == OD_OK && od_ref_stage(od_buf_ref(t->choice, 0)) == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for choices of experts");
	if (rc == OD_OK)
		bind_shapes(t, 0);
	if (rc == OD_OK)
		rc = od_buf_new(
			&t->scratch, t->o.device,
			od_experts_scratch_bytes(t->config->hidden, t->config->intermediate, n, t->config->top_k, rows),
			"the rows of experts", err);
	return rc;
}

static int open_predictor(struct tiered *t, const struct odm_tiered_opts *o, struct od_err *err)
{
	const struct odm_engine_opts *e = &t->model->opts;
	const struct odm_predictions_opts po = { .n_moe = t->config->n_moe,
						 .n_experts = t->config->n_experts,
						 .top_k = t->config->top_k,
						 .max_sequences = (uint32_t)e->parallel,
						 .max_rows = odm_pass_size_rows(t->config, (uint32_t)e->parallel),
						 .max_draft = e->draft != ODM_DRAFT_OFF ? ODM_MAX_DRAFT : 0,
						 .max_tokens = (uint32_t)e->ctx_tokens,
						 .hedge = o->hedge };
	struct odm_predictor_link_opts lo = {
		.kind = o->own, .max_sequences = (uint32_t)e->parallel, .wants = send_wants, .arg = t
	};
	int rc;

	if (o->own == NULL)
		return OD_OK;
	t->always_predicts = o->always;
	rc = odm_want_gate_init(&t->gate, t->config, err);
	if (rc == OD_OK)
		rc = odm_predictions_new(&t->predictions, &po, err);
	lo.predictions = t->predictions;
	return rc == OD_OK ? odm_predictor_link_open(&t->predictor, &lo, &t->o, err) : rc;
}

/* On a load thread. */
static void wake(void *arg)
{
	struct tiered *t = arg;

	pthread_mutex_lock(&t->lock);
	t->is_ready = true;
	t->ready_ns = od_now_ns();
	pthread_cond_signal(&t->ready);
	pthread_mutex_unlock(&t->lock);
}

static void show_progress(const struct tiered *t, uint32_t m)
{
	if (!t->model->opts.quiet && isatty(STDERR_FILENO))
		fprintf(stderr, "\rloading experts: %u of %u layers%s", m, t->config->n_moe,
			m == t->config->n_moe ? "\n" : "   ");
}

/* Loads a layer's experts, as if a row had chosen all of them. */
static int load_layer(struct tiered *t, uint32_t m, struct od_err *err)
{
	const struct od_moe_call call = { .step = 0, .m = m };
	int rc;

	t->call = &call;
	t->n_items = t->config->n_experts;
	t->n_done = 0;
	for (uint32_t i = 0; i < t->n_items; i++) {
		t->item[i] = (struct od_schedule_item){ .expert = i, .rank = i, .last = true };
		t->attempts[i] = 0;
	}
	rc = od_schedule_run(t->schedule, t->session, 0, m, true, t->item, t->n_items);
	while (rc == OD_OK && t->n_done < t->n_items) {
		struct od_schedule_item *item = od_schedule_take(t->schedule);

		if (atomic_load(t->model->opts.cancel))
			rc = od_fail(err, OD_ERR_CANCELLED, "cancelled");
		else if (item == NULL)
			wait_for_load(t);
		else if (item->code != OD_OK)
			rc = try_again(t, item, err);
		else
			t->n_done++, od_schedule_done(t->schedule, item);
	}
	t->call = NULL;
	return rc;
}

/* Where there is memory for all experts, they are loaded before the first step, and stay. */
static int load_all(struct tiered *t, struct od_err *err)
{
	int rc = OD_OK;

	for (uint32_t m = 0; rc == OD_OK && m < t->config->n_moe; m++) {
		show_progress(t, m);
		rc = load_layer(t, m, err);
	}
	if (rc != OD_OK)
		return rc;
	learn_reads(t, false);
	show_progress(t, t->config->n_moe);
	odm_tier_store_enter_all(t->store);
	return OD_OK;
}

static int open_store(struct tiered *t, struct od_err *err)
{
	const struct odm_tier_store_opts o = {
		.model = t->model, .device = t->o.device, .session = ++t->session, .wake = wake, .wake_arg = t
	};
	int rc = odm_tier_store_new(&t->store, &o, err);

	if (rc != OD_OK)
		return rc;
	t->schedule = odm_tier_store_schedule(t->store);
	if (odm_tier_plan_holds_all(&t->model->tiers, t->config))
		rc = load_all(t, err);
	if (rc == OD_OK && odm_tier_store_host_cpu(t->store) != NULL)
		rc = odm_host_experts_new(&t->host, odm_tier_store_host(t->store), odm_tier_store_host_cpu(t->store),
					  t->model->pack, &t->o, err);
	return rc == OD_OK ? odm_tier_store_share(t->store, err) : rc;
}

int odm_tiered_service_new(struct odm_expert_service **out, struct odm_model *model, const struct odm_tiered_opts *o,
			   struct od_err *err)
{
	struct tiered *t = calloc(1, sizeof(*t));
	int rc;

	*out = NULL;
	if (t == NULL)
		return od_fail(err, OD_ERR_NOMEM, "experts in tiers");
	t->base = (struct odm_expert_service){ .runner = &t->runner,
					       .begin_step = begin_step,
					       .end_step = end_step,
					       .kept = kept,
					       .admits = admits,
					       .close_sequence = close_sequence,
					       .count_open = count_open,
					       .kept_experts = kept_experts,
					       .free = free_service };
	t->runner =
		(struct od_expert_runner){ .on_device = true, .needs = needs, .submit = submit, .collect = collect };
	od_timed_cond_init(&t->ready);
	pthread_mutex_init(&t->lock, NULL);
	t->model = model;
	t->config = model->config;
	t->o = odm_model_forward_opts(model);
	rc = allocate(t, err);
	if (rc == OD_OK)
		rc = open_predictor(t, o, err);
	if (rc == OD_OK)
		rc = open_store(t, err);
	if (rc != OD_OK) {
		free_service(&t->base);
		return rc;
	}
	*out = &t->base;
	return OD_OK;
}
