/* Qwen3-Next (80B-A3B): three layers of four have a gated delta rule instead of attention; attention has gates; weights
 * of norms are stored minus 1; a shared expert with a gate of its own. */
#include "common/model/families/parse.h"
#include "common/model/families/parse_gated.h"

static int parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	static const char *const own[] = { "partial_rotary_factor", "layer_types", "sliding_window", "use_qk_norm",
					   NULL };
	const struct od_parse p = { cfg, root, where, err };
	struct od_layer_spec l = { .router = { .scale = 1 }, .shared_gate = true };
	struct od_mixer delta = { .by_key_head = true }, attention = { 0 };
	int rc = od_parse_refuse(&p, own);

	if (rc == OD_OK)
		rc = od_parse_gated_mixers(&p, &delta, &attention);
	if (rc == OD_OK)
		rc = od_parse_experts(&p, "num_experts", "moe_intermediate_size");
	if (rc == OD_OK)
		rc = od_json_bool_or(root, "norm_topk_prob", true, &l.router.renormalise, where, err);
	if (rc == OD_OK)
		rc = od_json_u32(root, "intermediate_size", 1, OD_DIM_MAX, &l.intermediate, where, err);
	if (rc == OD_OK)
		rc = od_json_u32(root, "shared_expert_intermediate_size", 1, OD_DIM_MAX, &l.shared_intermediate, where,
				 err);
	return rc == OD_OK ? od_parse_gated_layers(&p, &delta, &attention, &l, true) : rc;
}

static const char *const architectures[] = { "Qwen3NextForCausalLM", NULL };
static const char *const model_types[] = { "qwen3_next", NULL };
static const char *const left_out[] = { "mtp.", NULL };

const struct od_family od_family_qwen3_next = {
	.name = "qwen3_next",
	.architectures = architectures,
	.model_types = model_types,
	.parse = parse,
	.names = {
		[OD_ROLE_SHARED_GATE] = "mlp.shared_expert.gate_proj.weight",
		[OD_ROLE_SHARED_UP] = "mlp.shared_expert.up_proj.weight",
		[OD_ROLE_SHARED_DOWN] = "mlp.shared_expert.down_proj.weight",
	},
	.left_out = left_out,
	.kv_heads = 2,
};
