#include "deploy/plan/model_cost.h"

#include "common/model/seq_state.h"
#include "common/pack/shadow/shadow_load.h"

#include <stdlib.h>

/* ---- weights by block ---- */

static bool is_shared(enum od_role role)
{
	return role >= OD_ROLE_SHARED_GATE && role <= OD_ROLE_SHARED_SCORE;
}

/* Vectors cost nothing beside matrices; of embeddings a token reads one row. */
static void add_dense(void *arg, const struct od_dense_size *t)
{
	struct odp_model *m = arg;
	const double weights = t->n_in > 0 ? (double)t->n_out * (double)t->n_in : 0;

	m->dense_bytes += t->bytes;
	if (t->role == OD_ROLE_HEAD || (t->role == OD_ROLE_EMBED && m->config->tied_head))
		m->head_weights += weights;
	else if (t->role == OD_ROLE_LAYER_PROJECT)
		m->block[0].dense_weights += weights;
	else if (od_role_per_layer(t->role) && is_shared(t->role))
		m->block[t->layer].shared_weights += weights;
	else if (od_role_per_layer(t->role))
		m->block[t->layer].dense_weights += weights;
}

/* Multiply-adds of a row with each position before it: scores and the sum of values. Latents are read as they are. */
static double context_weights(const struct od_mixer *mix)
{
	const double heads = mix->n_heads;

	if (mix->conv > 0)
		return 0;
	if (mix->kv_rank > 0)
		return heads * (2.0 * mix->kv_rank + mix->k_dim - mix->nope_dim);
	return heads * (mix->k_dim + mix->v_dim);
}

/* The gated delta rule reads and writes its state once a row. */
static double state_weights(const struct od_mixer *mix)
{
	return mix->conv > 0 ? 2.0 * mix->n_heads * mix->k_dim * mix->v_dim : 0;
}

static void fill_blocks(struct odp_model *m)
{
	for (uint32_t i = 0; i < m->config->n_layers; i++) {
		const struct od_layer_spec *spec = od_config_layer(m->config, i);
		struct odp_sim_block *b = &m->block[i];
		uint64_t row[OD_MAX_STREAMS];
		const uint32_t n = od_state_row_bytes(m->config, m->profile, i, row);

		b->moe = spec->ffn == OD_FFN_MOE;
		b->context_weights = context_weights(&spec->mix);
		b->dense_weights += state_weights(&spec->mix);
		for (uint32_t k = 0; k < n; k++)
			b->state_bytes += (double)row[k];
		m->kv_bytes += (uint64_t)b->state_bytes;
	}
	od_pack_each_dense(m->pack, add_dense, m);
	for (uint32_t i = 0; i < m->config->n_layers; i++)
		m->dense_weights += m->block[i].dense_weights + m->block[i].shared_weights;
}

static double expert_weights(const struct od_config *cfg)
{
	double sum = 0;

	for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
		uint64_t n_out, n_in;

		od_expert_mat_shape(cfg, (enum od_expert_mat)mat, &n_out, &n_in);
		sum += (double)n_out * (double)n_in;
	}
	return sum;
}

/* ---- opening ---- */

int odp_model_open(struct odp_model *m, const char *given, enum od_profile profile, struct od_err *err)
{
	int rc;

	*m = (struct odp_model){ .profile = profile };
	rc = od_pack_open_shape(&m->pack, given, &m->source, err);
	if (rc != OD_OK)
		return rc;
	m->config = od_pack_config(m->pack);
	m->block = calloc(m->config->n_layers, sizeof(*m->block));
	if (m->block == NULL) {
		odp_model_close(m);
		return od_fail(err, OD_ERR_NOMEM, "%u layers", m->config->n_layers);
	}
	fill_blocks(m);
	m->expert_weights = expert_weights(m->config);
	m->experts_bytes = (uint64_t)m->config->n_moe * m->config->n_experts * od_pack_expert_raw_bytes(m->pack);
	m->expert_stored_bytes = od_pack_expert_stored_bytes(m->pack);
	m->fixed_bytes = od_state_fixed_bytes(m->config);
	m->row_bytes = (uint64_t)m->config->hidden * (profile == OD_PROFILE_F32 ? sizeof(float) : sizeof(uint16_t));
	m->has_planes = od_pack_can_form(m->pack, OD_FORM_PLANES, NULL) == OD_OK;
	return OD_OK;
}

void odp_model_close(struct odp_model *m)
{
	od_pack_close(m->pack);
	free(m->block);
	*m = (struct odp_model){ 0 };
}

/* ---- sums ---- */

double odp_model_weights(const struct odp_model *m)
{
	return (double)od_pack_weights(m->pack);
}

double odp_model_active_weights(const struct odp_model *m)
{
	return m->dense_weights + m->head_weights + (double)m->config->n_moe * m->config->top_k * m->expert_weights;
}

double odp_model_expert_bytes(const struct odp_model *m)
{
	return (double)od_pack_expert_raw_bytes(m->pack) / m->expert_weights;
}

static double bits_of(const struct odp_model *m, enum od_precision precision)
{
	return od_shadow_expert_bits(m->pack, precision);
}

struct odp_sim_model odp_model_for_sim(const struct odp_model *m, enum od_form form, enum od_precision shadow)
{
	return (struct odp_sim_model){
		.n_layers = m->config->n_layers,
		.n_moe = m->config->n_moe,
		.n_experts = m->config->n_experts,
		.top_k = m->config->top_k,
		.block = m->block,
		.head_weights = m->head_weights,
		.router_weights = (double)m->config->hidden * m->config->n_experts,
		.expert_weights = m->expert_weights,
		.load_bytes = m->expert_stored_bytes,
		.slot_bytes = od_pack_slot_bytes(m->pack, form),
		.row_bytes = (double)m->row_bytes,
		.recurrent = m->fixed_bytes > 0,
		.shadow_factor = shadow != 0 ? bits_of(m, shadow) / bits_of(m, OD_PRECISION_BF16) : 0,
	};
}
