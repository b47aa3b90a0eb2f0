/* Phi-3.5-MoE: LayerNorm, grouped-query attention with long RoPE, and a sparse mixer as router, which chooses two
 * experts; biases at attention, norms and head. */
#include "common/model/families/parse.h"

static int read_attention(const struct od_parse *p, struct od_mixer *m)
{
	int rc = od_parse_gqa(p, m);

	if (rc == OD_OK)
		rc = od_json_u32_or(p->root, "sliding_window", 1, UINT32_MAX, 0, &m->window, p->where, p->err);
	if (m->window >= p->cfg->ctx_max) /* as published: no text is longer */
		m->window = 0;
	return rc == OD_OK ? od_parse_long_rope(p, m->k_dim, &m->rope) : rc;
}

/* Jitter is noise in training; beyond that it is half the width of the router's band. */
static int read_router(const struct od_parse *p, struct od_router_spec *r)
{
	double jitter;
	int rc = od_json_f64_or(p->root, "router_jitter_noise", 0, 1, 0.01, &jitter, p->where, p->err);

	if (rc == OD_OK)
		rc = od_parse_experts(p, "num_local_experts", "intermediate_size");
	if (rc == OD_OK)
		rc = od_parse_only_number(p, "num_experts_per_tok", 2);
	*r = (struct od_router_spec){ .score = OD_SCORE_MIXER, .scale = 1, .band = (float)(2 * jitter) };
	return rc;
}

static int parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	static const char *const own[] = { "lm_head_bias", "sliding_window", NULL };
	const struct od_parse p = { cfg, root, where, err };
	struct od_layer_spec l = { .mixer = &od_mixer_gqa, .ffn = OD_FFN_MOE };
	int rc = od_parse_refuse(&p, own);

	cfg->norm = OD_NORM_LAYER;
	if (rc == OD_OK)
		rc = od_json_bool_or(root, "lm_head_bias", false, &cfg->head_bias, where, err);
	if (rc == OD_OK)
		rc = read_attention(&p, &l.mix);
	if (rc == OD_OK)
		rc = read_router(&p, &l.router);
	return rc == OD_OK ? od_parse_add_alike(&p, &l) : rc;
}

static const char *const architectures[] = { "PhiMoEForCausalLM", "PhimoeForCausalLM", NULL };
static const char *const model_types[] = { "phimoe", NULL };

const struct od_family od_family_phimoe = {
	.name = "phimoe",
	.architectures = architectures,
	.model_types = model_types,
	.parse = parse,
	.names = { [OD_ROLE_ROUTER] = "block_sparse_moe.gate.weight" },
	.experts = "block_sparse_moe.experts",
	.expert_mat = { [OD_MAT_GATE] = "w1", [OD_MAT_UP] = "w3", [OD_MAT_DOWN] = "w2" },
	.kv_heads = 8,
	.rope_theta = 1e6,
};
