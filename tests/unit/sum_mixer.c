#include "tests/unit/sum_mixer.h"

#include "tests/unit/config_util.h"
#include "tests/unit/device_util.h"

static uint64_t state_bytes(const struct od_mixer *m)
{
	return m->k_dim * sizeof(float);
}

/* v is what a row does to the state. */
static void state(const struct od_mixer *m, struct od_state_spec *out)
{
	*out = (struct od_state_spec){ .fixed_bytes = state_bytes(m), .saved_bytes = state_bytes(m) };
}

static void shape(const struct od_config *c, const struct od_mixer *m, enum od_role role, uint64_t *n_out,
		  uint64_t *n_in)
{
	*n_out = role == OD_ROLE_O						     ? c->hidden :
		 role == OD_ROLE_V || role == OD_ROLE_KV_B || role == OD_ROLE_Q_NORM ? m->k_dim :
										       0;
	*n_in = role == OD_ROLE_V ? c->hidden : role == OD_ROLE_O || role == OD_ROLE_KV_B ? m->k_dim : 0;
}

struct sum_scratch {
	struct od_ref v, y, kept;
};

static struct sum_scratch cut(const struct od_mixer *m, struct od_ref *scratch, size_t max_rows)
{
	return (struct sum_scratch){ .v = od_mix_cut(scratch, max_rows, state_bytes(m)),
				     .y = od_mix_cut(scratch, max_rows, state_bytes(m)),
				     .kept = od_mix_cut(scratch, 1, state_bytes(m)) };
}

static uint64_t scratch_bytes(const struct od_config *c, const struct od_mixer *m, size_t max_rows)
{
	struct od_ref at = { 0 };

	(void)c;
	cut(m, &at, max_rows);
	return at.at;
}

/* One row, whatever the step has: so the order of a sequence's rows is the only one. */
static void run_row(const struct od_mix_call *c, struct od_op op)
{
	op.profile = c->profile;
	op.n_rows = 1;
	od_device_run(c->device, OD_QUEUE_COMPUTE, &op);
}

static void copy(const struct od_mix_call *c, struct od_ref from, struct od_ref to)
{
	run_row(c, (struct od_op){ .kind = OD_OP_COPY,
				   .copy = { .from = from, .to = to, .n = state_bytes(&c->spec->mix) } });
}

/* The state behind a span's rows, whose v lie side by side among those of all rows. */
static void advance(const struct od_mix_call *c, const struct sum_scratch *p, const struct od_span *s, struct od_ref v)
{
	const struct od_mixer *m = &c->spec->mix;
	const struct od_ref next = s->to;
	uint32_t n = 0;

	copy(c, s->from, next);
	for (uint32_t r = 0; r < c->n_rows; r++) {
		const uint64_t at = r * state_bytes(m);

		if (c->info[r].table != s->table || n++ < s->first || n > s->first + s->n)
			continue;
		run_row(c,
			(struct od_op){ .kind = OD_OP_LINEAR,
					.linear = { .w = { &c->w->w[OD_ROLE_KV_B] }, .x = next, .y = { p->kept } } });
		copy(c, p->kept, next);
		run_row(c, (struct od_op){ .kind = OD_OP_NORM,
					   .norm = { .x = next,
						     .add = od_ref_at(v, at),
						     .weight = c->w->w[OD_ROLE_Q_NORM].data,
						     .y = od_ref_at(p->y, at),
						     .n = m->k_dim,
						     .eps = m->norm_eps } });
	}
}

static void run(const struct od_mix_call *c)
{
	const struct od_weight *w = c->w->w;
	struct od_ref scratch = c->scratch;
	const struct sum_scratch p = cut(&c->spec->mix, &scratch, c->max_rows);

	od_mix_run(c, &(struct od_op){ .kind = OD_OP_LINEAR,
				       .linear = { .w = { &w[OD_ROLE_V] }, .x = c->x, .y = { p.v } } });
	if (c->saved.buf != NULL)
		od_mix_run(c,
			   &(struct od_op){ .kind = OD_OP_COPY,
					    .copy = { .from = p.v, .to = c->saved, .n = state_bytes(&c->spec->mix) } });
	for (uint32_t i = 0; i < c->n_spans; i++)
		advance(c, &p, &c->span[i], p.v);
	od_mix_run(c, &(struct od_op){ .kind = OD_OP_LINEAR,
				       .linear = { .w = { &w[OD_ROLE_O] }, .x = p.y, .y = { c->y } } });
}

static void replay(const struct od_mix_call *c)
{
	struct od_ref scratch = c->scratch;
	const struct sum_scratch p = cut(&c->spec->mix, &scratch, c->max_rows);

	for (uint32_t i = 0; i < c->n_spans; i++)
		advance(c, &p, &c->span[i], c->saved);
}

const struct od_mixer_ops sum_mixer = {
	.name = "sum",
	.state = state,
	.shape = shape,
	.scratch_bytes = scratch_bytes,
	.run = run,
	.replay = replay,
};

static void add(struct od_config *c, const struct od_layer_spec *l)
{
	struct od_err err = { 0 };

	must(od_config_add_layer(c, l, &err), &err);
}

struct od_config sum_mixer_config(uint32_t vocab, uint32_t ctx)
{
	struct od_config c = uniform_config((struct uniform){ .n_layers = 1,
							      .hidden = 40,
							      .heads = 4,
							      .kv_heads = 2,
							      .head_dim = 8,
							      .window = 4,
							      .n_experts = 6,
							      .top_k = 2,
							      .intermediate = 20,
							      .vocab = vocab,
							      .ctx = ctx });
	struct od_layer_spec attention = c.kind[0], sum = c.kind[0];

	sum.mixer = &sum_mixer;
	sum.mix = (struct od_mixer){ .k_dim = 24, .norm_eps = 1e-5f, .rope = UINT32_MAX };
	add(&c, &sum);
	sum.ffn = OD_FFN_DENSE;
	sum.intermediate = 36;
	add(&c, &sum);
	add(&c, &attention);
	sum.ffn = OD_FFN_MOE;
	sum.mix.k_dim = 19;
	add(&c, &sum);
	assert_int_equal(c.n_moe, 4);
	return c;
}
