#include "main-node/engine/pass.h"

#include "common/base/clock.h"
#include "common/base/pulse.h"
#include "common/compute/cards.h"
#include "common/compute/device.h"
#include "main-node/engine/model.h"
#include "main-node/engine/pass_size.h"
#include "main-node/step/step_requests.h"
#include "main-node/step/timeline.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char *requests_of(void *arg, char *buf, size_t size)
{
	const struct odm_pass *p = arg;

	return odm_join_requests(&p->step, buf, size);
}

int odm_pass_init(struct odm_pass *p, const struct odm_pass_opts *o, const struct od_forward_opts *fo,
		  struct od_err *err)
{
	*p = (struct odm_pass){ .o = *o, .max_rows = fo->max_rows, .max_logits = fo->max_logits };
	/* The log keeps a pointer to p->about, and that one to p: so p stays where it is. */
	p->about = (struct od_log_about){ .key = "request", .text = requests_of, .arg = p };
	p->rows = calloc(fo->max_rows, sizeof(*p->rows));
	p->part = calloc(o->max_parts, sizeof(*p->part));
	p->of = calloc(o->max_parts, sizeof(*p->of));
	p->valid = calloc(o->max_parts, sizeof(*p->valid));
	if (p->rows == NULL || p->part == NULL || p->of == NULL || p->valid == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu rows", fo->max_rows);
	return od_forward_new(&p->forward, fo, err);
}

void odm_pass_fini(struct odm_pass *p)
{
	od_forward_free(p->forward);
	free(p->rows);
	free(p->part);
	free(p->of);
	free(p->valid);
	*p = (struct odm_pass){ 0 };
}

void odm_pass_clear(struct odm_pass *p)
{
	assert(!p->open);
	p->step = (struct odm_step){
		.phase = p->o.phase, .rows = p->rows, .part = p->part, .valid = p->valid, .counters = p->counters
	};
}

void odm_pass_add(struct odm_pass *p, struct odm_sequence *q, uint32_t begin, const int32_t *tokens, size_t n)
{
	struct odm_step *s = &p->step;

	assert(s->n_parts < p->o.max_parts && n <= p->max_rows - s->n_rows);
	p->of[s->n_parts] = q;
	p->valid[s->n_parts] = (uint32_t)n;
	p->part[s->n_parts++] = (struct odm_part){
		.sequence = q->id,
		.first = s->n_rows,
		.n = n,
		.text = q->text,
		.prompt_tokens = (uint32_t)q->req.n_prompt,
		.ahead = p->o.phase == ODM_DECODE ? q->ahead : 1,
		.sampling = &q->req.sampling,
		.shared_sequence = q->shared_sequence,
		.shared_tokens = q->shared_tokens,
		.request = q->req.request,
	};
	for (size_t i = 0; i < n; i++)
		p->rows[s->n_rows++] =
			(struct od_row){ .seq = q->state, .position = begin + (uint32_t)i, .token = tokens[i] };
}

/* Main is to end, or all of its sequences are given up. Asked before each layer, and again and again while a layer
 * waits for workers: so the engine's pulse is here. */
static bool is_cancelled(void *arg)
{
	const struct odm_pass *p = arg;

	od_pulse_beat();
	if (atomic_load(p->o.model->opts.cancel))
		return true;
	for (size_t i = 0; i < p->step.n_parts; i++)
		if (!atomic_load(&p->of[i]->cancelled))
			return false;
	return true;
}

/* Counts the waits for the device since `before` as the step's. */
static void count_waits(struct odm_pass *p, uint64_t before)
{
	p->counters[OD_C_DEVICE_WAITS] += od_device_waits(p->o.model->device) - before;
}

/* Reads of dense weights since the last count as the step's; those between two steps are the next one's. */
static void count_dense(struct odm_pass *p)
{
	struct od_dense_figures now, *last = &p->o.model->dense_counted;

	od_dense_stream_figures(od_dense_streamed(p->o.model->dense), &now);
	p->counters[OD_C_DENSE_BYTES] += now.read_bytes - last->read_bytes;
	p->counters[OD_C_HOST_BYTES] += now.host_bytes - last->host_bytes;
	p->counters[OD_C_DENSE_WAIT_NS] += now.wait_ns - last->wait_ns;
	*last = now;
}

int odm_pass_begin(struct odm_pass *p, uint64_t step, uint64_t next_step, struct od_err *err)
{
	struct odm_expert_service *service = p->o.service;
	const uint64_t waits = od_device_waits(p->o.model->device);
	int rc = OD_OK;

	od_log_swap_about(&p->about);
	/* The pass is open before anything can fail, so that odm_pass_give_up() also tells the service of a step that
	 * did not begin. */
	p->open = p->served = true;
	p->alone = p->halved = false;
	p->step.step = step;
	p->step.next_step = next_step;
	p->step.cancelled = is_cancelled;
	p->step.arg = p;
	p->step.record = odm_timeline_begin(p->o.timeline, &p->step);
	p->overslept_ns = 0;
	memset(p->counters, 0, sizeof(p->counters)); /* the service counts from its begin on */
	/* The service goes first: it may have to wait for workers, and a shadow gets its STEP before main computes. */
	if (service->begin_step != NULL)
		rc = service->begin_step(service, &p->step, err);
	if (rc == OD_OK)
		rc = od_forward_begin(p->forward, step, p->rows, p->step.n_rows, err);
	if (rc == OD_OK)
		for (size_t i = 0; i < p->step.n_parts; i++) {
			const struct odm_observer *o = &p->of[i]->req.observer;

			if (o->step != NULL)
				o->step(o->arg, &p->step, &p->part[i]);
		}
	count_waits(p, waits);
	return rc;
}

static bool can_halve(const struct odm_model *m)
{
	return !odm_pass_size_fixed(m->config) && od_device_cards(m->device) == 1 && od_dense_chosen(m->dense) == NULL;
}

void odm_pass_alone(struct odm_pass *p)
{
	p->alone = p->o.service->halves != NULL && can_halve(p->o.model);
}

/* Between layers: the service may find out while the rows are under way. */
static void halve(struct odm_pass *p)
{
	if (!p->alone || p->halved || !p->o.service->halves(p->o.service, &p->step))
		return;
	od_forward_halve(p->forward, p->step.n_rows / 2);
	p->halved = true;
}

static unsigned observed(const struct odm_pass *p)
{
	for (size_t i = 0; i < p->step.n_parts; i++)
		if (p->of[i]->req.observer.route != NULL)
			return OD_FETCH_ROUTES;
	return 0;
}

/* Rows [begin, end) have been routed. */
static void observe_routes(struct odm_pass *p, size_t begin, size_t end)
{
	const struct od_forward *f = p->forward;

	for (size_t i = 0; i < p->step.n_parts; i++) {
		const struct odm_sequence *q = p->of[i];
		const struct odm_observer *o = &q->req.observer;

		if (o->route != NULL)
			for (size_t r = p->part[i].first; r < p->part[i].first + p->part[i].n; r++)
				if (r >= begin && r < end && !odm_sequence_was_seen(q, p->rows[r].position))
					o->route(o->arg,
						 p->rows[r].position < q->req.n_prompt ? ODM_PREFILL : ODM_DECODE,
						 p->rows[r].position, od_forward_m(f), od_forward_experts_of(f, r),
						 od_forward_weights_of(f, r), od_forward_margin_of(f, r));
	}
}

/* With layer_ns a layer takes this time with any number of rows, as on hardware where memory is the limit. The next
 * layer is shorter by what this sleep lasts too long, so that the layers of a step take their time together, not
 * more. */
static void pace(struct odm_pass *p, uint64_t begin_ns)
{
	const uint64_t due_ns = begin_ns + p->o.model->opts.layer_ns - p->overslept_ns;

	p->overslept_ns = 0;
	if (od_now_ns() >= due_ns)
		return;
	od_sleep_until(due_ns);
	p->overslept_ns = od_now_ns() - due_ns;
	if (p->overslept_ns > p->o.model->opts.layer_ns)
		p->overslept_ns = p->o.model->opts.layer_ns;
}

/* Runs the next layer up to its experts, and fetches the router results that are read on the host, with one wait. */
static int attention(struct odm_pass *p, struct od_err *err)
{
	struct odm_expert_service *service = p->o.service;
	const uint64_t span = odm_span_begin(&p->step), begin_ns = od_now_ns();
	int rc = od_forward_take(p->forward, err);

	if (rc != OD_OK)
		return rc;
	od_forward_attention(p->forward);
	if (od_forward_routed(p->forward))
		rc = od_forward_fetch_for(p->forward, service->runner, observed(p), err);
	if (p->o.phase == ODM_DECODE && p->o.model->opts.layer_ns > 0)
		pace(p, begin_ns);
	odm_span_end(&p->step, ODM_SPAN_ATTENTION,
		     od_forward_routed(p->forward) ? (int64_t)od_forward_m(p->forward) : -1, span);
	return rc;
}

static int experts(struct odm_pass *p, struct od_err *err)
{
	const uint64_t span = odm_span_begin(&p->step);
	const uint32_t m = od_forward_m(p->forward); /* afterwards it is the next layer's */
	const int rc = od_forward_experts(p->forward, p->o.service->runner, err);

	if (!p->o.service->has_spans)
		odm_span_end(&p->step, ODM_SPAN_EXPERTS, m, span);
	return rc;
}

static void end_step(struct odm_pass *p)
{
	struct odm_expert_service *service = p->o.service;

	if (p->served && service->end_step != NULL)
		service->end_step(service, &p->step);
	p->served = false;
}

static int layer(struct odm_pass *p, struct od_err *err)
{
	int rc = attention(p, err);

	if (rc == OD_OK && od_forward_routed(p->forward)) {
		/* before the experts: they end the layer, and od_forward_m() is the next one's */
		observe_routes(p, 0, p->step.n_rows);
		rc = experts(p, err);
	}
	return rc;
}

/* Collects the layer of a half that is under way, if there is one, and submits its next one. */
static int advance(struct odm_pass *p, unsigned half, struct od_err *err)
{
	struct od_expert_runner *runner = p->o.service->runner;
	const size_t middle = p->step.n_rows / 2;
	int rc = OD_OK;

	od_forward_turn_to(p->forward, half);
	if (od_forward_routed(p->forward))
		rc = od_forward_collect(p->forward, runner, err);
	while (rc == OD_OK && !od_forward_done(p->forward) && !od_forward_routed(p->forward))
		rc = attention(p, err);
	if (rc != OD_OK || od_forward_done(p->forward))
		return rc;
	observe_routes(p, half == 0 ? 0 : middle, half == 0 ? middle : p->step.n_rows);
	return od_forward_submit(p->forward, runner, err);
}

/* While main waits for one half's results, and computes its attention, the other half's rows are on their way. */
static int halves(struct odm_pass *p, struct od_err *err)
{
	const int rc = advance(p, 0, err);

	return rc == OD_OK ? advance(p, 1, err) : rc;
}

int odm_pass_layer(struct odm_pass *p, bool *done, struct od_err *err)
{
	const uint64_t waits = od_device_waits(p->o.model->device);
	int rc = OD_OK;

	*done = false;
	od_log_swap_about(&p->about);
	if (is_cancelled(p))
		rc = od_fail(err, OD_ERR_CANCELLED, "cancelled");
	halve(p);
	if (rc == OD_OK)
		rc = p->halved ? halves(p, err) : layer(p, err);
	*done = rc == OD_OK && od_forward_done(p->forward);
	count_waits(p, waits);
	if (*done)
		end_step(p); /* the step's messages go out before the head is computed */
	return rc;
}

int odm_pass_logits(struct odm_pass *p, const uint32_t *row, size_t n, float **logits, struct od_err *err)
{
	const uint64_t span = odm_span_begin(&p->step), waits = od_device_waits(p->o.model->device);
	int rc = od_forward_logits(p->forward, row, n, logits, err);

	count_waits(p, waits);
	odm_span_end(&p->step, ODM_SPAN_HEAD, -1, span);
	return rc;
}

/* Each sequence has the counters of the steps that it took part in. */
static void close_pass(struct odm_pass *p)
{
	if (!p->open)
		return;
	count_dense(p);
	end_step(p); /* before the sums: the service may still count */
	if (p->step.record != NULL)
		odm_timeline_drop(p->o.timeline, p->step.record);
	p->step.record = NULL;
	p->open = false;
	for (size_t i = 0; i < p->step.n_parts; i++)
		od_counters_add(p->of[i]->r.figures.c, p->counters);
	od_counters_add(p->o.total, p->counters);
}

/* Drafts are what a decode step has beside a row of each text. */
static void end_record(struct odm_pass *p, const uint32_t *kept)
{
	size_t n = 0;

	if (p->step.record == NULL)
		return;
	for (size_t i = 0; p->o.phase == ODM_DECODE && i < p->step.n_parts; i++)
		n += (kept != NULL ? kept[i] : p->part[i].n) - 1;
	odm_timeline_end(p->o.timeline, p->step.record, n);
	p->step.record = NULL;
}

int odm_pass_end(struct odm_pass *p, const uint32_t *kept, struct od_err *err)
{
	const uint64_t waits = od_device_waits(p->o.model->device);
	int rc = od_forward_end(p->forward, kept, err);

	count_waits(p, waits);
	if (rc == OD_OK)
		end_record(p, kept);
	close_pass(p); /* after an error, too: odm_pass_give_up() then finds nothing to do */
	return rc;
}

void odm_pass_give_up(struct odm_pass *p)
{
	close_pass(p);
}
