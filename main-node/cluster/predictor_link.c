#include "main-node/cluster/predictor_link.h"

#include "common/base/trace.h"

#include <stdlib.h>

static void on_prediction(void *arg, const struct od_prediction *p)
{
	struct odm_predictor_link *l = arg;
	struct od_prediction said = *p;

	said.stand_in = odm_cluster_opts(l->cluster)->shadow;
	if (odm_predictions_add(odm_cluster_predictions(l->cluster), &said))
		l->wants = true;
}

int odm_predictor_link_open(struct odm_predictor_link *l, struct odm_cluster *c, const struct od_forward_opts *fo,
			    struct od_err *err)
{
	const struct od_predictor_kind *kind = odm_cluster_opts(c)->own;
	const struct od_predictor_opts o = {
		.config = fo->config,
		.dense = fo->dense,
		.device = fo->device,
		.profile = fo->profile,
		.max_rows = fo->max_rows,
		.emit = on_prediction,
		.arg = l,
	};

	if (kind == NULL)
		return OD_OK;
	l->cluster = c;
	l->device = fo->device;
	l->rows = calloc(fo->max_rows, sizeof(*l->rows));
	l->token = calloc(fo->max_rows, sizeof(*l->token));
	if (l->rows == NULL || l->token == NULL)
		return od_fail(err, OD_ERR_NOMEM, "predictor: no memory for %zu rows", fo->max_rows);
	return kind->make(&l->predictor, &o, err);
}

void odm_predictor_link_close(struct odm_predictor_link *l)
{
	od_predictor_free(l->predictor);
	free(l->rows);
	free(l->token);
	*l = (struct odm_predictor_link){ 0 };
}

static void send_wants(struct odm_predictor_link *l)
{
	if (l->wants)
		odm_cluster_flush_wants(l->cluster);
	l->wants = false;
}

void odm_predictor_link_step(struct odm_predictor_link *l, const struct odm_step *step)
{
	struct od_predict_step s = {
		.step = step->step,
		.sequence = step->sequence,
		.prompt = step->phase == ODM_PREFILL,
		.n_rows = step->n_rows,
		.position = step->rows[0].position,
		.token = l->token,
	};
	uint64_t span = od_trace_begin();

	if (l->predictor == NULL)
		return;
	if (l->sequence != step->sequence)
		od_predictor_begin_sequence(l->predictor, step->sequence);
	l->sequence = step->sequence;
	l->counters = step->counters;
	for (size_t i = 0; i < step->n_rows; i++)
		l->token[i] = step->rows[i].token;
	od_predictor_begin_step(l->predictor, &s);
	send_wants(l);
	od_trace_end("predict", span, (int64_t)step->step, -1, -1);
}

/* Beside a shadow main's own predictor stands in while that is silent: dead, not there yet, or far behind. */
unsigned odm_predictor_link_needs(struct odm_predictor_link *l, const struct odm_step *step)
{
	l->needed = l->predictor != NULL && (!odm_cluster_opts(l->cluster)->shadow ||
					     odm_predictions_shadow_silent(odm_cluster_predictions(l->cluster), step->step));
	return l->needed ? OD_FETCH_ROUTES | OD_FETCH_PROBABILITIES | OD_FETCH_RESIDUALS : 0;
}

void odm_predictor_link_routed(struct odm_predictor_link *l, const struct od_moe_call *call)
{
	uint64_t span = od_trace_begin(), waits;
	const struct od_config *c;

	if (!l->needed)
		return;
	c = odm_cluster_opts(l->cluster)->config;
	waits = od_device_waits(l->device);
	for (size_t i = 0; i < call->n_rows; i++) {
		l->rows[i] = (struct od_routed_row){
			.residual = call->residual + i * c->hidden,
			.probability = call->probability + i * c->n_experts,
			.expert = call->expert + i * c->top_k,
		};
	}
	od_predictor_routed(l->predictor, call->m, l->rows, call->n_rows);
	l->counters[OD_C_SIDE_WAITS] += od_device_waits(l->device) - waits;
	send_wants(l);
	od_trace_end("predict", span, (int64_t)call->step, call->m, -1);
}

void odm_predictor_link_close_sequence(struct odm_predictor_link *l, uint64_t sequence)
{
	if (l->predictor == NULL || l->sequence != sequence)
		return;
	od_predictor_end_sequence(l->predictor, sequence);
	l->sequence = 0;
}
