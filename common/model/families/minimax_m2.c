/* MiniMax-M2: grouped-query attention with a norm over all of q and all of k together and RoPE on a part of each head;
 * every layer has experts, chosen by sigmoids with a bias. */
#include "common/model/families/parse.h"

/* Settings of its predecessors that config.json still has; in M2 they stand for nothing. */
static int refuse(const struct od_parse *p)
{
	static const char *const own[] = { "use_qk_norm", "partial_rotary_factor", NULL };
	static const char *const on[] = { "use_qk_norm", "use_routing_bias" };
	static const struct {
		const char *key;
		double neutral;
	} number[] = {
		{ "shared_intermediate_size", 0 },
		{ "layernorm_full_attention_beta", 1 },
		{ "layernorm_mlp_beta", 1 },
		{ "routed_scaling_factor", 1 },
	};
	json_t *types = NULL;
	int rc = od_parse_refuse(p, own);

	for (size_t i = 0; rc == OD_OK && i < sizeof(on) / sizeof(on[0]); i++)
		rc = od_parse_only_bool(p, on[i], true);
	for (size_t i = 0; rc == OD_OK && i < sizeof(number) / sizeof(number[0]); i++)
		rc = od_parse_only_number(p, number[i].key, number[i].neutral);
	if (rc == OD_OK)
		rc = od_parse_only_bool(p, "attention_bias", false);
	if (rc == OD_OK)
		rc = od_parse_only_str(p, "qk_norm_type", "per_layer");
	if (rc == OD_OK)
		rc = od_parse_only_str(p, "scoring_func", "sigmoid");
	if (rc == OD_OK && od_json_has(p->root, "attn_type_list"))
		rc = od_json_arr(p->root, "attn_type_list", &types, p->where, p->err);
	for (size_t i = 0; rc == OD_OK && i < json_array_size(types); i++)
		if (json_integer_value(json_array_get(types, i)) != 1)
			rc = od_fail(p->err, OD_ERR_UNSUPPORTED,
				     "%s: field \"attn_type_list\": expected 1 for every layer", p->where);
	return rc;
}

static int read_attention(const struct od_parse *p, struct od_mixer *m)
{
	uint32_t rotary = 0, dims = 0;
	int rc = od_json_has(p->root, "head_dim") ?
			 OD_OK :
			 od_fail(p->err, OD_ERR_MISSING, "%s: field \"head_dim\" is missing", p->where);

	if (rc == OD_OK)
		rc = od_parse_gqa(p, m);
	m->qk_norm = OD_QK_NORM_ROW;
	if (rc == OD_OK)
		rc = od_json_u32_or(p->root, "rotary_dim", 1, m->k_dim, m->k_dim, &rotary, p->where, p->err);
	if (rc == OD_OK)
		rc = od_parse_rotated(p, m->k_dim, (double)rotary / m->k_dim, &dims);
	if (rc == OD_OK && od_json_has(p->root, "rotary_dim") && dims != rotary)
		rc = od_fail(p->err, OD_ERR_FORMAT,
			     "%s: field \"rotary_dim\": found %u, and a partial_rotary_factor that makes it %u",
			     p->where, rotary, dims);
	return rc == OD_OK ? od_parse_rope(p, dims, false, &m->rope, NULL) : rc;
}

static int parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	const struct od_parse p = { cfg, root, where, err };
	struct od_layer_spec l = {
		.mixer = &od_mixer_gqa,
		.ffn = OD_FFN_MOE,
		.router = { .score = OD_SCORE_SIGMOID, .bias = true, .renormalise = true, .scale = 1 },
	};
	int rc = refuse(&p);

	if (rc == OD_OK)
		rc = read_attention(&p, &l.mix);
	if (rc == OD_OK)
		rc = od_parse_experts(&p, "num_local_experts", "intermediate_size");
	if (rc == OD_OK)
		rc = od_parse_mtp(&p, "num_mtp_modules");
	return rc == OD_OK ? od_parse_add_alike(&p, &l) : rc;
}

static const char *const architectures[] = { "MiniMaxM2ForCausalLM", NULL };
static const char *const model_types[] = { "minimax_m2", NULL };

const struct od_family od_family_minimax_m2 = {
	.name = "minimax_m2",
	.architectures = architectures,
	.model_types = model_types,
	.parse = parse,
	.names = {
		[OD_ROLE_ROUTER] = "block_sparse_moe.gate.weight",
		[OD_ROLE_ROUTER_BIAS] = "block_sparse_moe.e_score_correction_bias",
	},
	.experts = "block_sparse_moe.experts",
	.expert_mat = { [OD_MAT_GATE] = "w1", [OD_MAT_UP] = "w3", [OD_MAT_DOWN] = "w2" },
	.kv_heads = 8,
	.rope_theta = 5e6,
};
