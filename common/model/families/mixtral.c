/* Mixtral (8x7B, 8x22B and checkpoints of their shape): grouped-query attention, and in every layer a router that takes
 * the softmax over all experts, then the top k, renormalised. */
#include "common/model/families/parse.h"

static int parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	static const char *const own[] = { "sliding_window", NULL };
	const struct od_parse p = { cfg, root, where, err };
	struct od_layer_spec l = { .mixer = &od_mixer_gqa,
				   .ffn = OD_FFN_MOE,
				   .router = { .renormalise = true, .scale = 1 } };
	int rc = od_parse_refuse(&p, own);

	if (rc == OD_OK)
		rc = od_parse_only_bool(&p, "attention_bias", false);
	if (rc == OD_OK)
		rc = od_parse_gqa(&p, &l.mix);
	if (rc == OD_OK)
		rc = od_parse_rope(&p, l.mix.k_dim, false, &l.mix.rope, NULL);
	if (rc == OD_OK)
		rc = od_parse_experts(&p, "num_local_experts", "intermediate_size");
	if (rc == OD_OK)
		rc = od_json_u32_or(root, "sliding_window", 1, UINT32_MAX, 0, &l.mix.window, where, err);
	return rc == OD_OK ? od_parse_add_alike(&p, &l) : rc;
}

static const char *const architectures[] = { "MixtralForCausalLM", NULL };
static const char *const model_types[] = { "mixtral", NULL };

const struct od_family od_family_mixtral = {
	.name = "mixtral",
	.architectures = architectures,
	.model_types = model_types,
	.parse = parse,
	.names = { [OD_ROLE_ROUTER] = "block_sparse_moe.gate.weight" },
	.experts = "block_sparse_moe.experts",
	.expert_mat = { [OD_MAT_GATE] = "w1", [OD_MAT_UP] = "w3", [OD_MAT_DOWN] = "w2" },
	.kv_heads = 8,
	.rope_theta = 1e6,
};
