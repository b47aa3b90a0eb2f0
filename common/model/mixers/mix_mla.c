/* Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): all heads' keys and values are linear in
 * one small latent, which alone is kept, beside one key that turns with the position. The matrix that makes keys of
 * latents is absorbed into queries, and values are made of the attended latent, in all phases. */
#include "common/model/mixer.h"

static uint32_t turning(const struct od_mixer *m)
{
	return m->k_dim - m->nope_dim;
}

static uint32_t kept(const struct od_mixer *m)
{
	return m->kv_rank + turning(m);
}

static void state(const struct od_mixer *m, struct od_state_spec *out)
{
	*out = (struct od_state_spec){ .n_streams = 1, .width = { kept(m) } };
}

static void shape(const struct od_config *c, const struct od_mixer *m, enum od_role role, uint64_t *n_out,
		  uint64_t *n_in)
{
	const uint64_t n = m->n_heads;
	const struct {
		enum od_role role;
		uint64_t n_out, n_in;
	} has[] = {
		{ OD_ROLE_Q, m->q_rank == 0 ? n * m->k_dim : 0, c->hidden },
		{ OD_ROLE_Q_A, m->q_rank, c->hidden },
		{ OD_ROLE_Q_A_NORM, m->q_rank, 0 },
		{ OD_ROLE_Q_B, m->q_rank != 0 ? n * m->k_dim : 0, m->q_rank },
		{ OD_ROLE_KV_A, kept(m), c->hidden },
		{ OD_ROLE_KV_A_NORM, m->kv_rank, 0 },
		{ OD_ROLE_KV_B, m->kv_apart ? 0 : n * (m->nope_dim + m->v_dim), m->kv_rank },
		{ OD_ROLE_K_B, m->kv_apart ? n * m->kv_rank : 0, m->nope_dim },
		{ OD_ROLE_V_B, m->kv_apart ? n * m->v_dim : 0, m->kv_rank },
		{ OD_ROLE_O, c->hidden, n * m->v_dim },
	};

	*n_out = *n_in = 0;
	for (size_t i = 0; i < sizeof(has) / sizeof(has[0]); i++)
		if (has[i].role == role && has[i].n_out > 0) {
			*n_out = has[i].n_out;
			*n_in = has[i].n_in;
		}
}

struct mla_scratch {
	struct od_ref q_a, q, latent_key, absorbed, attended, out;
};

static struct mla_scratch cut(const struct od_mixer *m, struct od_ref *scratch, size_t max_rows)
{
	const uint64_t each = sizeof(float), heads = m->n_heads * each;

	return (struct mla_scratch){
		.q_a = od_mix_cut(scratch, max_rows, m->q_rank * each),
		.q = od_mix_cut(scratch, max_rows, heads * m->k_dim),
		.latent_key = od_mix_cut(scratch, max_rows, kept(m) * each),
		.absorbed = od_mix_cut(scratch, max_rows, heads * kept(m)),
		.attended = od_mix_cut(scratch, max_rows, heads * m->kv_rank),
		.out = od_mix_cut(scratch, max_rows, heads * m->v_dim),
	};
}

static uint64_t scratch_bytes(const struct od_config *c, const struct od_mixer *m, size_t max_rows)
{
	struct od_ref at = { 0 };

	(void)c;
	cut(m, &at, max_rows);
	return at.at;
}

static void project(const struct od_mix_call *c, const struct mla_scratch *p)
{
	const struct od_mixer *m = &c->spec->mix;
	const struct od_weight *w = c->w->w;
	const struct od_weight *first = m->q_rank > 0 ? &w[OD_ROLE_Q_A] : &w[OD_ROLE_Q];

	od_mix_run(c, &(struct od_op){ .kind = OD_OP_LINEAR,
				       .linear = { .w = { first, &w[OD_ROLE_KV_A] },
						   .x = c->x,
						   .y = { m->q_rank > 0 ? p->q_a : p->q, p->latent_key } } });
	if (m->q_rank == 0)
		return;
	od_mix_run(c, &(struct od_op){ .kind = OD_OP_NORM,
				       .norm = { .x = p->q_a,
						 .weight = w[OD_ROLE_Q_A_NORM].data,
						 .y = p->q_a,
						 .n = m->q_rank,
						 .eps = m->norm_eps } });
	od_mix_run(c, &(struct od_op){ .kind = OD_OP_LINEAR,
				       .linear = { .w = { &w[OD_ROLE_Q_B] }, .x = p->q_a, .y = { p->q } } });
}

static void run(const struct od_mix_call *c)
{
	const struct od_mixer *m = &c->spec->mix;
	const struct od_weight *w = c->w->w;
	struct od_ref scratch = c->scratch;
	const struct mla_scratch p = cut(m, &scratch, c->max_rows);

	project(c, &p);
	od_mix_run(c, &(struct od_op){ .kind = OD_OP_LATENT_STORE,
				       .latent_store = { .rows = c->rows,
							 .latent_key = p.latent_key,
							 .turn = c->turn,
							 .norm = w[OD_ROLE_KV_A_NORM].data,
							 .eps = m->norm_eps,
							 .stream = c->stream[0],
							 .rank = m->kv_rank } });
	od_mix_run(c, &(struct od_op){ .kind = OD_OP_LATENT_QUERY,
				       .latent_query = { .rows = c->rows,
							 .q = p.q,
							 .out = p.absorbed,
							 .turn = c->turn,
							 .kv_b = &w[m->kv_apart ? OD_ROLE_K_B : OD_ROLE_KV_B],
							 .n_heads = m->n_heads,
							 .nope_dim = m->nope_dim,
							 .v_dim = m->v_dim,
							 .rank = m->kv_rank,
							 .turned = m->kv_apart } });
	/* Latents are keys and values of one head that all query heads share. */
	od_mix_run(c, &(struct od_op){ .kind = OD_OP_ATTEND,
				       .attend = { .rows = c->rows,
						   .q = p.absorbed,
						   .out = p.attended,
						   .keys = c->stream[0],
						   .values = c->stream[0],
						   .n_heads = m->n_heads,
						   .n_kv_heads = 1,
						   .k_dim = kept(m),
						   .v_dim = m->kv_rank,
						   .window = m->window,
						   .scale = m->scale,
						   .max_position = c->max_position } });
	od_mix_run(c, &(struct od_op){ .kind = OD_OP_LATENT_VALUE,
				       .latent_value = { .in = p.attended,
							 .out = p.out,
							 .kv_b = &w[m->kv_apart ? OD_ROLE_V_B : OD_ROLE_KV_B],
							 .n_heads = m->n_heads,
							 .nope_dim = m->kv_apart ? 0 : m->nope_dim,
							 .v_dim = m->v_dim,
							 .rank = m->kv_rank } });
	od_mix_run(c, &(struct od_op){ .kind = OD_OP_LINEAR,
				       .linear = { .w = { &w[OD_ROLE_O] }, .x = p.out, .y = { c->y } } });
}

const struct od_mixer_ops od_mixer_mla = {
	.name = "mla",
	.state = state,
	.shape = shape,
	.scratch_bytes = scratch_bytes,
	.run = run,
};
