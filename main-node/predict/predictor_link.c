#include "main-node/predict/predictor_link.h"

#include "common/base/trace.h"

#include <stdlib.h>

static void on_prediction(void *arg, const struct od_prediction *p)
{
	struct odm_predictor_link *l = arg;
	struct od_prediction said = *p;

	said.stand_in = l->o.shadow;
	if (odm_predictions_add(l->o.predictions, &said))
		l->wants = true;
}

int odm_predictor_link_open(struct odm_predictor_link *l, const struct odm_predictor_link_opts *opts,
			    const struct od_forward_opts *fo, struct od_err *err)
{
	const struct od_predictor_opts o = {
		.config = fo->config,
		.dense = fo->dense,
		.device = fo->device,
		.profile = fo->profile,
		.max_rows = fo->max_rows,
		.max_sequences = opts->max_sequences,
		.emit = on_prediction,
		.arg = l,
	};
	int rc;

	if (opts->kind == NULL)
		return OD_OK;
	l->o = *opts;
	l->config = fo->config;
	l->device = fo->device;
	l->rows = calloc(fo->max_rows, sizeof(*l->rows));
	l->silent = calloc(fo->max_rows, sizeof(*l->silent));
	for (int i = 0; i < 2; i++)
		l->step[i].s.row = l->step[i].row = calloc(fo->max_rows, sizeof(*l->step[i].row));
	if (l->rows == NULL || l->silent == NULL || l->step[0].row == NULL || l->step[1].row == NULL)
		return od_fail(err, OD_ERR_NOMEM, "predictor: no memory for %zu rows", fo->max_rows);
	rc = od_id_table_init(&l->sequences, opts->max_sequences, err);
	return rc == OD_OK ? opts->kind->make(&l->predictor, &o, err) : rc;
}

void odm_predictor_link_close(struct odm_predictor_link *l)
{
	od_predictor_free(l->predictor);
	od_id_table_fini(&l->sequences);
	free(l->rows);
	free(l->silent);
	free(l->step[0].row);
	free(l->step[1].row);
	*l = (struct odm_predictor_link){ 0 };
}

static void send_wants(struct odm_predictor_link *l)
{
	if (l->wants)
		l->o.wants(l->o.arg);
	l->wants = false;
}

static void follow_sequence(struct odm_predictor_link *l, uint64_t sequence)
{
	if (od_id_table_find(&l->sequences, sequence) == OD_NO_NUMBER &&
	    od_id_table_add(&l->sequences, sequence) != OD_NO_NUMBER)
		od_predictor_begin_sequence(l->predictor, sequence);
}

/* Beside a shadow main's own predictor stands in while that is silent: dead, not there yet, or far behind. Returns
 * whether anything is asked of it. */
static bool ask(struct odm_predictor_link *l, struct odm_linked_step *t)
{
	if (!l->o.shadow)
		return true;
	if (odm_predictions_shadow_silent(l->o.predictions, t->s.step, l->silent, t->s.n_rows) == 0)
		return false;
	for (size_t i = 0; i < t->s.n_rows; i++)
		t->row[i].quiet = !l->silent[i];
	return true;
}

void odm_predictor_link_step(struct odm_predictor_link *l, const struct odm_step *step)
{
	struct odm_linked_step *t = &l->step[step->phase];
	uint64_t span = od_trace_begin();

	if (l->predictor == NULL)
		return;
	t->s.step = step->step;
	t->s.prompt = step->phase == ODM_PREFILL;
	t->s.n_rows = step->n_rows;
	t->counters = step->counters;
	for (size_t i = 0; i < step->n_parts; i++) {
		const struct odm_part *part = &step->part[i];

		follow_sequence(l, part->sequence);
		for (size_t r = part->first; r < part->first + part->n; r++)
			t->row[r] = (struct od_predict_row){ .sequence = part->sequence,
							     .position = step->rows[r].position,
							     .token = step->rows[r].token,
							     .quiet = l->o.shadow };
	}
	(void)ask(l, t);
	od_predictor_begin_step(l->predictor, &t->s);
	send_wants(l);
	od_trace_end("predict", span, (int64_t)step->step, -1, -1);
}

unsigned odm_predictor_link_needs(struct odm_predictor_link *l, const struct odm_step *step)
{
	l->needed = l->predictor != NULL && ask(l, &l->step[step->phase]);
	return l->needed ? OD_FETCH_ROUTES | OD_FETCH_PROBABILITIES | OD_FETCH_RESIDUALS : 0;
}

void odm_predictor_link_routed(struct odm_predictor_link *l, const struct od_moe_call *call)
{
	struct odm_linked_step *t = &l->step[l->step[ODM_DECODE].s.step == call->step ? ODM_DECODE : ODM_PREFILL];
	uint64_t span = od_trace_begin(), waits;
	const struct od_config *c = l->config;

	l->n_routed = call->first > 0 ? l->n_routed : 0;
	if (!l->needed)
		return;
	for (size_t i = 0; i < call->n_rows; i++) {
		l->rows[call->first + i] = (struct od_routed_row){
			.residual = call->residual + i * c->hidden,
			.probability = call->probability + i * c->n_experts,
			.expert = call->expert + i * c->top_k,
		};
	}
	/* The first half's rows stay where they are until the second half has been routed. */
	l->n_routed += call->n_rows;
	if (l->n_routed < t->s.n_rows)
		return;
	waits = od_device_waits(l->device);
	od_predictor_routed(l->predictor, &t->s, call->m, l->rows);
	t->counters[OD_C_SIDE_WAITS] += od_device_waits(l->device) - waits;
	send_wants(l);
	od_trace_end("predict", span, (int64_t)call->step, call->m, -1);
}

void odm_predictor_link_close_sequence(struct odm_predictor_link *l, uint64_t sequence)
{
	if (l->predictor == NULL || od_id_table_find(&l->sequences, sequence) == OD_NO_NUMBER)
		return;
	od_id_table_remove(&l->sequences, sequence);
	od_predictor_end_sequence(l->predictor, sequence);
}
