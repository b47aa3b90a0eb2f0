/* Qwen3.5 and Qwen3.6 with experts (35B-A3B, 122B-A10B, 397B-A17B): layers as in Qwen3-Next, projections of the delta
 * rule that are not interleaved, experts that may be stacked. Published with a vision tower, which is left out: of text
 * all three numbers of a position are the same, so mrope_section changes nothing. */
#include "common/model/families/parse.h"
#include "common/model/families/parse_gated.h"

static int parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	static const char *const own[] = { "partial_rotary_factor", "layer_types", "sliding_window", "use_qk_norm",
					   NULL };
	const struct od_parse p = { cfg, root, where, err };
	struct od_layer_spec l = { .router = { .renormalise = true, .scale = 1 }, .shared_gate = true };
	struct od_mixer delta = { 0 }, attention = { 0 };
	int rc = od_parse_refuse(&p, own);

	if (rc == OD_OK)
		rc = od_parse_only_bool(&p, "norm_topk_prob", true);
	if (rc == OD_OK)
		rc = od_parse_gated_mixers(&p, &delta, &attention);
	if (rc == OD_OK)
		rc = od_parse_experts(&p, "num_experts", "moe_intermediate_size");
	if (rc == OD_OK)
		rc = od_json_u32(root, "shared_expert_intermediate_size", 1, OD_DIM_MAX, &l.shared_intermediate, where,
				 err);
	return rc == OD_OK ? od_parse_gated_layers(&p, &delta, &attention, &l, false) : rc;
}

static const char *const architectures[] = { "Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM", NULL };
static const char *const model_types[] = { "qwen3_5_moe", "qwen3_5_moe_text", NULL };
static const char *const pictures[] = { "model.visual.", NULL };
static const char *const left_out[] = { "mtp.", NULL };

const struct od_family od_family_qwen3_5_moe = {
	.name = "qwen3_5_moe",
	.architectures = architectures,
	.model_types = model_types,
	.parse = parse,
	.names = {
		[OD_ROLE_SHARED_GATE] = "mlp.shared_expert.gate_proj.weight",
		[OD_ROLE_SHARED_UP] = "mlp.shared_expert.up_proj.weight",
		[OD_ROLE_SHARED_DOWN] = "mlp.shared_expert.down_proj.weight",
	},
	.stacked_gate_up = "mlp.experts.gate_up_proj",
	.stacked_down = "mlp.experts.down_proj",
	.text_type = "qwen3_5_moe_text",
	.other_modalities = pictures,
	.left_out = left_out,
	.kv_heads = 2,
};
