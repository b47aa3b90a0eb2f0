/* Gated delta rule (arXiv 2412.06464) as Qwen3-Next has it: a short convolution over queries, keys and values, then of
 * each head a matrix that forgets, is corrected by each row, and is read by its query. All rows go one after the other,
 * in all phases. */
#include "common/model/mixer.h"

static struct od_delta_shape delta_shape(const struct od_mixer *m)
{
	return (struct od_delta_shape){ .n_heads = m->n_heads,
					.n_key_heads = m->n_kv_heads,
					.k_dim = m->k_dim,
					.v_dim = m->v_dim,
					.taps = m->conv,
					.tiled = m->tiled };
}

static uint64_t row_bytes(const struct od_delta_shape *s)
{
	return od_delta_row(s) * sizeof(float);
}

static void state(const struct od_mixer *m, struct od_state_spec *out)
{
	const struct od_delta_shape s = delta_shape(m);

	*out = (struct od_state_spec){ .fixed_bytes = od_delta_state(&s) * sizeof(float),
				       .saved_bytes = row_bytes(&s) };
}

static void shape(const struct od_config *c, const struct od_mixer *m, enum od_role role, uint64_t *n_out,
		  uint64_t *n_in)
{
	const struct od_delta_shape s = delta_shape(m);
	const uint64_t channels = od_delta_channels(&s), values = od_delta_values(&s), n = m->n_heads;
	const struct {
		enum od_role role;
		uint64_t n_out, n_in;
	} has[] = {
		{ OD_ROLE_DELTA_QKVZ, m->by_key_head ? channels + values : 0, c->hidden },
		{ OD_ROLE_DELTA_BA, m->by_key_head ? 2 * n : 0, c->hidden },
		{ OD_ROLE_DELTA_QKV, m->by_key_head ? 0 : channels, c->hidden },
		{ OD_ROLE_DELTA_Z, m->by_key_head ? 0 : values, c->hidden },
		{ OD_ROLE_DELTA_B, m->by_key_head ? 0 : n, c->hidden },
		{ OD_ROLE_DELTA_A, m->by_key_head ? 0 : n, c->hidden },
		{ OD_ROLE_DELTA_CONV, channels * m->conv, 0 },
		{ OD_ROLE_DELTA_A_LOG, n, 0 },
		{ OD_ROLE_DELTA_DT_BIAS, n, 0 },
		{ OD_ROLE_DELTA_NORM, m->v_dim, 0 },
		{ OD_ROLE_DELTA_OUT, c->hidden, values },
	};

	*n_out = *n_in = 0;
	for (size_t i = 0; i < sizeof(has) / sizeof(has[0]); i++)
		if (has[i].role == role && has[i].n_out > 0) {
			*n_out = has[i].n_out;
			*n_in = has[i].n_in;
		}
}

/* The projected row is not used after its pieces are made, so mixed and y take its memory. */
struct delta_scratch {
	struct od_ref row, z, ba, mixed, y, index;
};

static struct delta_scratch cut(const struct od_mixer *m, struct od_ref *scratch, size_t max_rows)
{
	const struct od_delta_shape s = delta_shape(m);
	const uint64_t each = sizeof(float), values = od_delta_values(&s) * each;

	return (struct delta_scratch){
		.row = od_mix_cut(scratch, max_rows, row_bytes(&s)),
		.z = od_mix_cut(scratch, max_rows, values),
		.ba = od_mix_cut(scratch, max_rows, 2 * m->n_heads * each),
		.index = od_mix_cut(scratch, max_rows, sizeof(uint32_t)),
		.mixed = od_mix_cut(scratch, max_rows, od_delta_channels(&s) * each),
		.y = od_mix_cut(scratch, max_rows, values),
	};
}

static uint64_t scratch_bytes(const struct od_config *c, const struct od_mixer *m, size_t max_rows)
{
	struct od_ref at = { 0 };

	(void)c;
	cut(m, &at, max_rows);
	return at.at;
}

static void project(const struct od_mix_call *c, const struct delta_scratch *p)
{
	const struct od_mixer *m = &c->spec->mix;
	const struct od_weight *w = c->w->w;
	/* a stands behind all of b. */
	const struct od_ref a = od_ref_at(p->ba, (uint64_t)c->n_rows * m->n_heads * sizeof(float));

	if (m->by_key_head)
		od_mix_run(c, &(struct od_op){ .kind = OD_OP_LINEAR,
					       .linear = { .w = { &w[OD_ROLE_DELTA_QKVZ], &w[OD_ROLE_DELTA_BA] },
							   .x = c->x,
							   .y = { p->mixed, p->ba } } });
	else
		od_mix_run(c, &(struct od_op){ .kind = OD_OP_LINEAR,
					       .linear = { .w = { &w[OD_ROLE_DELTA_QKV], &w[OD_ROLE_DELTA_Z],
								  &w[OD_ROLE_DELTA_B], &w[OD_ROLE_DELTA_A] },
							   .x = c->x,
							   .y = { p->mixed, p->z, p->ba, a } } });
	od_mix_run(c, &(struct od_op){ .kind = OD_OP_DELTA_IN,
				       .delta_in = { .qkv = p->mixed,
						     .z = p->z,
						     .b = p->ba,
						     .a = m->by_key_head ? (struct od_ref){ 0 } : a,
						     .row = p->row,
						     .a_log = w[OD_ROLE_DELTA_A_LOG].data,
						     .dt_bias = w[OD_ROLE_DELTA_DT_BIAS].data,
						     .shape = delta_shape(m),
						     .by_key_head = m->by_key_head } });
}

/* The states behind all spans; z nowhere: these alone. */
static void advance(const struct od_mix_call *c, const struct delta_scratch *p, struct od_ref row, struct od_ref z)
{
	const struct od_weight *w = c->w->w;

	for (uint32_t i = 0; i < c->n_spans; i++)
		od_mix_run(c, &(struct od_op){ .kind = OD_OP_DELTA,
					       .delta = { .rows = c->rows,
							  .table = c->span[i].table,
							  .first = c->span[i].first,
							  .n_take = c->span[i].n,
							  .row = row,
							  .conv = w[OD_ROLE_DELTA_CONV].data,
							  .norm = w[OD_ROLE_DELTA_NORM].data,
							  .from = c->span[i].from,
							  .to = c->span[i].to,
							  .z = z,
							  .mixed = p->mixed,
							  .y = p->y,
							  .index = p->index,
							  .shape = delta_shape(&c->spec->mix),
							  .eps = c->spec->mix.norm_eps } });
}

static void run(const struct od_mix_call *c)
{
	const struct od_delta_shape s = delta_shape(&c->spec->mix);
	struct od_ref scratch = c->scratch;
	const struct delta_scratch p = cut(&c->spec->mix, &scratch, c->max_rows);

	project(c, &p);
	if (c->saved.buf != NULL)
		od_mix_run(c, &(struct od_op){ .kind = OD_OP_COPY,
					       .copy = { .from = p.row, .to = c->saved, .n = row_bytes(&s) } });
	advance(c, &p, p.row, p.z);
	od_mix_run(c, &(struct od_op){ .kind = OD_OP_LINEAR,
				       .linear = { .w = { &c->w->w[OD_ROLE_DELTA_OUT] }, .x = p.z, .y = { c->y } } });
}

static void replay(const struct od_mix_call *c)
{
	struct od_ref scratch = c->scratch;
	const struct delta_scratch p = cut(&c->spec->mix, &scratch, c->max_rows);

	advance(c, &p, c->saved, (struct od_ref){ 0 });
}

const struct od_mixer_ops od_mixer_delta = {
	.name = "delta",
	.state = state,
	.shape = shape,
	.scratch_bytes = scratch_bytes,
	.run = run,
	.replay = replay,
};
