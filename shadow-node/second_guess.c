#include "shadow-node/second_guess.h"

#include "common/base/mem.h"
#include "common/base/trace.h"
#include "shadow-node/emulator_internal.h"

#include <string.h>

#define LEAST_GAP 1e-6 /* 0 is the guess itself */

static struct od_forward_opts one_row(const struct od_forward_opts *o)
{
	struct od_forward_opts one = *o;

	one.max_rows = 1;
	return one;
}

uint64_t ods_second_bytes(const struct od_forward_opts *o)
{
	const struct od_forward_opts one = one_row(o);

	return od_forward_bytes(&one) + 2 * (uint64_t)od_config_kv_dim(o->config) * sizeof(float);
}

int ods_second_init(struct ods_second *s, const struct od_forward_opts *o, size_t row_bytes, struct od_err *err)
{
	const struct od_forward_opts one = one_row(o);

	s->saved = od_alloc_array(2, row_bytes);
	if (s->saved == NULL)
		return od_fail(err, OD_ERR_NOMEM, "a row of second guesses");
	return od_forward_new(&s->forward, &one, err);
}

void ods_second_fini(struct ods_second *s)
{
	od_forward_free(s->forward);
	od_free(s->saved);
}

void ods_second_begin(struct ods_emulator *e)
{
	struct ods_second *s = &e->second;
	const struct row *r = &e->step.rows[0];
	const struct ods_sequence *q = r->seq;
	const struct od_row row = { q->state, r->position, q->nearly.token };

	s->active = false;
	if (e->step.n_rows != 1 || e->unaligned || !q->second_guesses || q->nearly.token < 0 ||
	    q->nearly_position != r->position || q->nearly.gap >= ODS_SECOND_MAX_GAP)
		return;
	s->token = q->nearly.token;
	s->gap = q->nearly.gap > LEAST_GAP ? (float)q->nearly.gap : (float)LEAST_GAP;
	s->attended = false;
	s->active = od_forward_begin(s->forward, e->step.number, &row, 1, NULL) == OD_OK;
	e->stats.second_guesses += s->active;
}

/* Its keys and values are seen by its own attention only. */
static void attend(struct ods_emulator *e, uint32_t layer)
{
	struct ods_second *s = &e->second;
	const struct row *r = &e->step.rows[0];
	char *k = od_seq_state_k(r->seq->state, layer, r->position);
	char *v = od_seq_state_v(r->seq->state, layer, r->position);

	memcpy(s->saved, k, e->row_bytes);
	memcpy(s->saved + e->row_bytes, v, e->row_bytes);
	od_forward_attention(s->forward);
	memcpy(k, s->saved, e->row_bytes);
	memcpy(v, s->saved + e->row_bytes, e->row_bytes);
	ods_publish_row(e, s->forward, 0, layer, s->token, s->gap);
	s->attended = true;
	s->active = layer + 1 < ODS_SECOND_LAYERS && layer + 1 < e->o.forward.config->n_layers;
}

int ods_second_work(struct ods_emulator *e, bool *did, struct od_err *err)
{
	struct ods_second *s = &e->second;
	const uint32_t layer = od_forward_layer(s->forward);
	const uint64_t begin = od_trace_begin();
	int rc = OD_OK;

	*did = s->active && layer < od_forward_layer(e->forward);
	if (!*did)
		return OD_OK;
	if (s->attended) {
		rc = od_forward_experts(s->forward, e->experts, err);
		s->attended = false;
		s->active = rc == OD_OK;
	} else {
		attend(e, layer);
	}
	od_trace_end("second guess", begin, (int64_t)e->step.number, layer, -1);
	return rc;
}
