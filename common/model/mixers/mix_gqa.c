/* Grouped-query attention (arXiv 2305.13245) with RoPE; q, k and v may be normed, have biases or be clipped, and v may
 * be k. Keys and values may be those of an earlier layer: then there are only queries. */
#include "common/model/mixer.h"

static void state(const struct od_mixer *m, struct od_state_spec *out)
{
	*out = (struct od_state_spec){ .n_streams = m->kv_of == 0 ? 2 : 0,
				       .width = { m->n_kv_heads * m->k_dim, m->n_kv_heads * m->v_dim } };
}

static uint64_t norm_size(const struct od_mixer *m, uint32_t n_heads)
{
	switch (m->qk_norm) {
	case OD_QK_NORM_NONE: return 0;
	case OD_QK_NORM_HEAD: return m->k_dim;
	case OD_QK_NORM_ROW: return (uint64_t)n_heads * m->k_dim;
	}
	return 0;
}

static void matrix(uint64_t out, uint64_t in, uint64_t *n_out, uint64_t *n_in)
{
	*n_out = out;
	*n_in = in;
}

static bool is_of_kv(enum od_role role)
{
	return role == OD_ROLE_K || role == OD_ROLE_V || role == OD_ROLE_K_BIAS || role == OD_ROLE_V_BIAS ||
	       role == OD_ROLE_K_NORM;
}

static void shape(const struct od_config *c, const struct od_mixer *m, enum od_role role, uint64_t *n_out,
		  uint64_t *n_in)
{
	const uint64_t q = (uint64_t)m->n_heads * m->k_dim * (m->gated ? 2 : 1), k = (uint64_t)m->n_kv_heads * m->k_dim;
	const uint64_t v = (uint64_t)m->n_kv_heads * m->v_dim, out = (uint64_t)m->n_heads * m->v_dim;

	matrix(0, 0, n_out, n_in);
	if (m->kv_of != 0 && is_of_kv(role))
		return;
	if (role == OD_ROLE_Q)
		matrix(q, c->hidden, n_out, n_in);
	else if (role == OD_ROLE_K)
		matrix(k, c->hidden, n_out, n_in);
	else if (role == OD_ROLE_V && !m->v_is_k)
		matrix(v, c->hidden, n_out, n_in);
	else if (role == OD_ROLE_O)
		matrix(c->hidden, out, n_out, n_in);
	else if (role == OD_ROLE_Q_BIAS || role == OD_ROLE_K_BIAS || role == OD_ROLE_V_BIAS)
		*n_out = !m->qkv_bias ? 0 : role == OD_ROLE_Q_BIAS ? q : role == OD_ROLE_K_BIAS ? k : v;
	else if (role == OD_ROLE_O_BIAS)
		*n_out = m->o_bias ? c->hidden : 0;
	else if (role == OD_ROLE_SINKS)
		*n_out = m->sinks ? m->n_heads : 0;
	else if (role == OD_ROLE_Q_NORM || role == OD_ROLE_K_NORM)
		*n_out = norm_size(m, role == OD_ROLE_Q_NORM ? m->n_heads : m->n_kv_heads);
}

struct gqa_scratch {
	struct od_ref q, k, v, out, gated_q, gate; /* the last two: only with gates */
};

static struct gqa_scratch cut(const struct od_mixer *m, struct od_ref *scratch, size_t max_rows)
{
	const uint64_t each = sizeof(float);

	return (struct gqa_scratch){
		.q = od_mix_cut(scratch, max_rows, m->n_heads * m->k_dim * each),
		.k = od_mix_cut(scratch, max_rows, m->n_kv_heads * m->k_dim * each),
		.v = od_mix_cut(scratch, max_rows, m->n_kv_heads * m->v_dim * each),
		.out = od_mix_cut(scratch, max_rows, m->n_heads * m->v_dim * each),
		.gated_q = od_mix_cut(scratch, max_rows, m->gated ? 2 * m->n_heads * m->k_dim * each : 0),
		.gate = od_mix_cut(scratch, max_rows, m->gated ? m->n_heads * m->k_dim * each : 0),
	};
}

static uint64_t scratch_bytes(const struct od_config *c, const struct od_mixer *m, size_t max_rows)
{
	struct od_ref at = { 0 };

	(void)c;
	cut(m, &at, max_rows);
	return at.at;
}

static void run(const struct od_mix_call *c)
{
	const struct od_mixer *m = &c->spec->mix;
	const struct od_weight *w = c->w->w;
	struct od_ref scratch = c->scratch;
	const struct gqa_scratch p = cut(m, &scratch, c->max_rows);
	const bool own = m->kv_of == 0;

	od_mix_run(c, &(struct od_op){ .kind = OD_OP_LINEAR,
				       .linear = { .w = { &w[OD_ROLE_Q], own ? &w[OD_ROLE_K] : NULL,
							  own && !m->v_is_k ? &w[OD_ROLE_V] : NULL },
						   .x = c->x,
						   .y = { m->gated ? p.gated_q : p.q, p.k, p.v },
						   .bias = { w[OD_ROLE_Q_BIAS].data, w[OD_ROLE_K_BIAS].data,
							     w[OD_ROLE_V_BIAS].data } } });
	if (m->gated)
		od_mix_run(c, &(struct od_op){ .kind = OD_OP_SPLIT,
					       .split = { .in = p.gated_q,
							  .first = p.q,
							  .second = p.gate,
							  .n_heads = m->n_heads,
							  .dim = m->k_dim } });
	if (own && m->v_is_k) /* before k is normed and turned */
		od_mix_run(c, &(struct od_op){ .kind = OD_OP_COPY,
					       .copy = { .from = p.k,
							 .to = p.v,
							 .n = (uint64_t)m->n_kv_heads * m->k_dim * sizeof(float) } });
	od_mix_run(c, &(struct od_op){ .kind = OD_OP_ROPE_STORE,
				       .rope_store = { .rows = c->rows,
						       .q = p.q,
						       .k = own ? p.k : (struct od_ref){ 0 },
						       .v = own ? p.v : (struct od_ref){ 0 },
						       .turn = c->turn,
						       .q_norm = w[OD_ROLE_Q_NORM].data,
						       .k_norm = w[OD_ROLE_K_NORM].data,
						       .norm_row = m->qk_norm == OD_QK_NORM_ROW,
						       .v_norm = m->v_norm,
						       .eps = m->norm_eps,
						       .clip = m->clip,
						       .keys = c->stream[0],
						       .values = c->stream[1],
						       .n_heads = m->n_heads,
						       .n_kv_heads = m->n_kv_heads,
						       .k_dim = m->k_dim,
						       .v_dim = m->v_dim } });
	/* All rows are stored before any attends: rows of one sequence see each other. */
	od_mix_run(c, &(struct od_op){ .kind = OD_OP_ATTEND,
				       .attend = { .rows = c->rows,
						   .q = p.q,
						   .out = p.out,
						   .keys = c->stream[0],
						   .values = c->stream[1],
						   .n_heads = m->n_heads,
						   .n_kv_heads = m->n_kv_heads,
						   .k_dim = m->k_dim,
						   .v_dim = m->v_dim,
						   .window = m->window,
						   .scale = m->scale,
						   .sinks = w[OD_ROLE_SINKS].data,
						   .max_position = c->max_position } });
	if (m->gated)
		od_mix_run(c, &(struct od_op){ .kind = OD_OP_GATE,
					       .gate = { .y = p.out, .gate = p.gate, .n = m->n_heads * m->v_dim } });
	od_mix_run(c, &(struct od_op){ .kind = OD_OP_LINEAR,
				       .linear = { .w = { &w[OD_ROLE_O] },
						   .x = p.out,
						   .y = { c->y },
						   .bias = { w[OD_ROLE_O_BIAS].data } } });
}

const struct od_mixer_ops od_mixer_gqa = {
	.name = "gqa",
	.state = state,
	.shape = shape,
	.scratch_bytes = scratch_bytes,
	.run = run,
};
