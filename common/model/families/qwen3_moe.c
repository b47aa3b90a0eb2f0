/* Qwen3-MoE (30B-A3B, 235B-A22B, Coder): grouped-query attention with a norm over each head of q and k, heads whose
 * size is their own; layers are dense where mlp_only_layers or decoder_sparse_step says so. */
#include "common/model/families/parse.h"

static int parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	static const char *const own[] = { "sliding_window", "use_qk_norm", NULL };
	const struct od_parse p = { cfg, root, where, err };
	struct od_layer_spec l = { .mixer = &od_mixer_gqa, .router = { .scale = 1 } };
	uint32_t n_layers = 0;
	int rc = od_parse_refuse(&p, own);

	if (rc == OD_OK)
		rc = od_parse_gqa(&p, &l.mix);
	l.mix.qk_norm = OD_QK_NORM_HEAD;
	if (rc == OD_OK)
		rc = od_parse_rope(&p, l.mix.k_dim, false, &l.mix.rope, NULL);
	if (rc == OD_OK)
		rc = od_parse_experts(&p, "num_experts", "moe_intermediate_size");
	if (rc == OD_OK)
		rc = od_json_bool_or(root, "norm_topk_prob", false, &l.router.renormalise, where, err);
	if (rc == OD_OK)
		rc = od_json_u32(root, "intermediate_size", 1, OD_DIM_MAX, &l.intermediate, where, err);
	if (rc == OD_OK)
		rc = od_parse_window(&p, &l.mix.window);
	if (rc == OD_OK)
		rc = od_parse_layers(&p, &n_layers);
	for (uint32_t i = 0; rc == OD_OK && i < n_layers; i++) {
		bool sparse;

		rc = od_parse_is_sparse(&p, i, &sparse);
		l.ffn = rc == OD_OK && sparse ? OD_FFN_MOE : OD_FFN_DENSE;
		if (rc == OD_OK)
			rc = od_config_add_layer(cfg, &l, err);
	}
	return rc;
}

static const char *const architectures[] = { "Qwen3MoeForCausalLM", NULL };
static const char *const model_types[] = { "qwen3_moe", NULL };

const struct od_family od_family_qwen3_moe = {
	.name = "qwen3_moe",
	.architectures = architectures,
	.model_types = model_types,
	.parse = parse,
	.kv_heads = 4,
};
