#include "tests/bench/live/recall_record.h"

#include "common/base/mem.h"
#include "common/model/resident.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct recall_recorder {
	struct recall_recorder_opts o;
	struct od_state_pool *state;
	struct od_forward *forward;
	struct od_expert_runner *experts;
	struct od_sampler *sampler;
	struct od_row *rows; /* [max_rows] */
	float *logits; /* [vocab]; the forward pass's */
	struct recall_recording rec;
};

/* Bytes of one position, without keys and values. */
static uint64_t position_bytes(const struct recall_recorder_opts *o)
{
	const struct od_config *c = o->forward.config;
	uint64_t layer = c->top_k * sizeof(uint16_t) + c->n_experts * sizeof(float) + sizeof(float);

	if (o->residual)
		layer += c->hidden * sizeof(float);
	return layer * c->n_moe + sizeof(int32_t) + sizeof(float);
}

uint64_t recall_recorder_bytes(const struct recall_recorder_opts *o)
{
	const struct od_config *c = o->forward.config;
	uint64_t sum = od_state_pool_bytes(c, o->forward.profile, od_state_pages(o->positions), 1), bytes;

	if (!od_mul(o->positions, position_bytes(o), &bytes) || !od_add(sum, bytes, &sum) ||
	    !od_add(sum, od_forward_bytes(&o->forward), &sum))
		return UINT64_MAX;
	return sum;
}

static int open_arrays(struct recall_recorder *r, struct od_err *err)
{
	const struct od_config *c = r->o.forward.config;
	const uint64_t n = r->o.positions, layers = n * c->n_moe;
	struct recall_recording *rec = &r->rec;

	r->rows = calloc(r->o.forward.max_rows, sizeof(*r->rows));
	rec->token = calloc(n + 1, sizeof(*rec->token)); /* the last token has no position */
	rec->token_margin = calloc(n + 1, sizeof(*rec->token_margin));
	rec->expert = od_alloc_array(layers * c->top_k, sizeof(*rec->expert));
	rec->probability = od_alloc_array(layers * c->n_experts, sizeof(float));
	rec->margin = od_alloc_array(layers, sizeof(float));
	rec->residual = r->o.residual ? od_alloc_array(layers * c->hidden, sizeof(float)) : NULL;
	if (r->rows == NULL || rec->token == NULL || rec->token_margin == NULL || rec->expert == NULL ||
	    rec->probability == NULL || rec->margin == NULL || (r->o.residual && rec->residual == NULL))
		return od_fail(err, OD_ERR_NOMEM, "no memory to record %u positions", r->o.positions);
	return OD_OK;
}

int recall_recorder_new(struct recall_recorder **out, const struct recall_recorder_opts *o, struct od_err *err)
{
	struct recall_recorder *r = calloc(1, sizeof(*r));
	struct od_sampler_opts greedy;
	int rc;

	*out = NULL;
	if (r == NULL)
		return od_fail(err, OD_ERR_NOMEM, "recorder");
	r->o = *o;
	od_sampler_defaults(&greedy);
	rc = open_arrays(r, err);
	if (rc == OD_OK)
		rc = od_state_pool_new(&r->state, o->forward.device, o->forward.config, o->forward.profile,
				       o->positions, 1, od_state_pages(o->positions), err);
	r->o.forward.state = r->state;
	if (rc == OD_OK)
		rc = od_forward_new(&r->forward, &r->o.forward, err);
	if (rc == OD_OK)
		rc = od_resident_new(&r->experts, &r->o.forward, o->experts, err);
	if (rc == OD_OK)
		rc = od_sampler_new(&r->sampler, &greedy, o->forward.config->vocab, err);
	if (rc == OD_OK)
		rc = od_seq_state_new(&r->rec.state, r->state, err);
	if (rc == OD_OK)
		rc = od_seq_state_promise(r->rec.state, o->positions);
	if (rc == OD_OK)
		*out = r;
	else
		recall_recorder_free(r);
	return rc;
}

void recall_recorder_free(struct recall_recorder *r)
{
	if (r == NULL)
		return;
	od_resident_free(r->experts);
	od_forward_free(r->forward);
	od_sampler_free(r->sampler);
	od_seq_state_free(r->rec.state);
	od_state_pool_free(r->state);
	free(r->rows);
	free(r->rec.token);
	free(r->rec.token_margin);
	od_free(r->rec.expert);
	od_free(r->rec.probability);
	od_free(r->rec.margin);
	od_free(r->rec.residual);
	free(r);
}

/* Keeps the current layer's route of row i at this position. */
static void keep_route(struct recall_recorder *r, uint32_t position, size_t i)
{
	const struct od_config *c = r->o.forward.config;
	const size_t at = (size_t)position * c->n_moe + od_forward_m(r->forward);
	struct recall_recording *rec = &r->rec;

	memcpy(rec->expert + at * c->top_k, od_forward_experts_of(r->forward, i), c->top_k * sizeof(*rec->expert));
	memcpy(rec->probability + at * c->n_experts, od_forward_probabilities_of(r->forward, i),
	       c->n_experts * sizeof(float));
	rec->margin[at] = od_forward_margin_of(r->forward, i);
	if (rec->residual != NULL)
		memcpy(rec->residual + at * c->hidden, od_forward_residual_of(r->forward, i),
		       c->hidden * sizeof(float));
}

/* Positions [begin, begin + n) through all layers; logits of the last stay in r->logits. */
static int pass(struct recall_recorder *r, uint32_t begin, uint32_t n, struct od_err *err)
{
	const unsigned what = OD_FETCH_ROUTES | OD_FETCH_PROBABILITIES | (r->o.residual ? OD_FETCH_RESIDUALS : 0);
	struct recall_recording *rec = &r->rec;
	int rc;

	for (uint32_t i = 0; i < n; i++)
		r->rows[i] =
			(struct od_row){ .seq = rec->state, .position = begin + i, .token = rec->token[begin + i] };
	rc = od_forward_begin(r->forward, begin + 1, r->rows, n, err);
	while (rc == OD_OK && !od_forward_done(r->forward)) {
		od_forward_attention(r->forward);
		if (!od_forward_routed(r->forward))
			continue;
		rc = od_forward_fetch(r->forward, what, err);
		if (rc == OD_OK)
			for (uint32_t i = 0; i < n; i++)
				keep_route(r, begin + i, i);
		if (rc == OD_OK)
			rc = od_forward_experts(r->forward, r->experts, err);
	}
	if (rc == OD_OK)
		rc = od_forward_logits(r->forward, &(uint32_t){ n - 1 }, 1, &r->logits, err);
	return rc == OD_OK ? od_forward_end(r->forward, NULL, err) : rc;
}

static float best_less_second(const float *logits, uint32_t n)
{
	float best = -INFINITY, second = -INFINITY;

	for (uint32_t i = 0; i < n; i++) {
		if (logits[i] > best) {
			second = best;
			best = logits[i];
		} else if (logits[i] > second) {
			second = logits[i];
		}
	}
	return best - second;
}

static bool is_eos(const struct od_config *c, int32_t token)
{
	for (uint32_t i = 0; i < c->n_eos; i++) {
		if (c->eos[i] == token)
			return true;
	}
	return false;
}

/* An empty state for a prompt of n tokens. */
static int begin_text(struct recall_recorder *r, uint32_t n, struct od_err *err)
{
	const bool is_long = n > od_config_short_ctx(r->o.forward.config);
	int rc;

	if (od_seq_state_is_long(r->rec.state) == is_long) {
		od_seq_state_set_length(r->rec.state, 0);
		return OD_OK;
	}
	od_seq_state_free(r->rec.state);
	rc = od_seq_state_new(&r->rec.state, r->state, err);
	if (rc != OD_OK)
		return rc;
	od_seq_state_set_long(r->rec.state, is_long);
	return od_seq_state_promise(r->rec.state, r->o.positions);
}

/* As generate.c does it: a token is sampled, and is passed through the model unless it is the last. With long RoPE a
 * short text ends at the original context: nothing is recorded of what would be computed anew. */
static int decode(struct recall_recorder *r, struct od_err *err)
{
	const struct od_config *c = r->o.forward.config;
	const uint32_t of_state = od_seq_state_ctx(r->rec.state),
		       ctx = r->o.ctx_tokens < of_state ? r->o.ctx_tokens : of_state;
	const uint32_t room = ctx - r->rec.n_prompt + 1;
	const uint32_t most = r->o.max_tokens < room ? r->o.max_tokens : room;
	struct recall_recording *rec = &r->rec;
	int rc = OD_OK;

	while (rc == OD_OK) {
		uint32_t position = rec->n_prompt + rec->n_tokens;

		rec->token_margin[rec->n_tokens] = best_less_second(r->logits, c->vocab);
		rec->token[position] = od_sampler_sample(r->sampler, r->logits, NULL);
		rec->n_tokens++;
		if (is_eos(c, rec->token[position])) {
			rec->finish = "eos";
			break;
		}
		if (rec->n_tokens == most) {
			rec->finish = most == r->o.max_tokens ? "length" : "context";
			break;
		}
		rc = pass(r, position, 1, err);
		rec->n_steps++;
	}
	return rc;
}

int recall_record(struct recall_recorder *r, const struct od_prompt *prompt, struct recall_recording **out,
		  struct od_err *err)
{
	const uint32_t chunk = (uint32_t)r->o.forward.max_rows, n = (uint32_t)prompt->n_ids;
	struct recall_recording *rec = &r->rec;
	int rc = begin_text(r, n, err);

	*out = NULL;
	rec->prompt = prompt;
	rec->n_prompt = n;
	rec->n_tokens = rec->n_steps = 0;
	memcpy(rec->token, prompt->ids, n * sizeof(*rec->token));
	for (uint32_t at = 0; rc == OD_OK && at < n; at += chunk)
		rc = pass(r, at, n - at < chunk ? n - at : chunk, err);
	if (rc == OD_OK)
		rc = decode(r, err);
	if (rc == OD_OK)
		*out = rec;
	return rc;
}
