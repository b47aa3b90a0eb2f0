/* Qwen1.5-MoE and Qwen2-MoE: grouped-query attention with biases on q, k and v; a shared expert beside the routed ones,
 * whose output has a sigmoid gate of its own; every second layer may see a window. */
#include "common/model/families/parse.h"

#include <string.h>

/* By layer_types, or, where they are not listed, as transformers fills them in. */
static int read_window(const struct od_parse *p, uint32_t layer, uint32_t n_layers, uint32_t *window)
{
	uint32_t size = 0, last;
	json_t *types = NULL;
	const char *type;
	int rc = od_parse_window(p, &size);

	*window = 0;
	if (rc == OD_OK)
		rc = od_json_u32_or(p->root, "max_window_layers", 0, UINT32_MAX, 28, &last, p->where, p->err);
	if (rc == OD_OK && od_json_has(p->root, "layer_types"))
		rc = od_json_arr(p->root, "layer_types", &types, p->where, p->err);
	if (rc != OD_OK)
		return rc;
	if (types == NULL) {
		*window = layer % 2 == 0 && layer < last ? size : 0;
		return OD_OK;
	}
	type = json_string_value(json_array_get(types, layer));
	if (json_array_size(types) != n_layers || type == NULL ||
	    (strcmp(type, "full_attention") != 0 && strcmp(type, "sliding_attention") != 0))
		return od_fail(p->err, OD_ERR_UNSUPPORTED,
			       "%s: field \"layer_types\": expected \"full_attention\" or "
			       "\"sliding_attention\" for each of %u layers",
			       p->where, n_layers);
	if (strcmp(type, "full_attention") == 0)
		return OD_OK;
	*window = size;
	/* transformers then has a window of no position in such layers, or refuses. */
	return size > 0 ? OD_OK :
			  od_fail(p->err, OD_ERR_UNSUPPORTED,
				  "%s: field \"layer_types\": layer %u is \"sliding_attention\": "
				  "expected \"use_sliding_window\" true and a \"sliding_window\"",
				  p->where, layer);
}

static int add_layers(const struct od_parse *p, struct od_layer_spec *l)
{
	const uint32_t shared = l->shared_intermediate;
	uint32_t n_layers;
	int rc = od_parse_layers(p, &n_layers);

	for (uint32_t i = 0; rc == OD_OK && i < n_layers; i++) {
		bool sparse = false;

		rc = od_parse_is_sparse(p, i, &sparse);
		if (rc == OD_OK)
			rc = read_window(p, i, n_layers, &l->mix.window);
		l->ffn = sparse ? OD_FFN_MOE : OD_FFN_DENSE;
		l->shared_intermediate = sparse ? shared : 0;
		l->shared_gate = sparse;
		if (rc == OD_OK)
			rc = od_config_add_layer(p->cfg, l, p->err);
	}
	return rc;
}

static int parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	static const char *const own[] = { "sliding_window", "layer_types", NULL };
	const struct od_parse p = { cfg, root, where, err };
	struct od_layer_spec l = { .mixer = &od_mixer_gqa, .router = { .scale = 1 } };
	int rc = od_parse_refuse(&p, own);

	if (rc == OD_OK)
		rc = od_parse_only_bool(&p, "attention_bias", false);
	if (rc == OD_OK)
		rc = od_parse_gqa(&p, &l.mix);
	if (rc == OD_OK)
		rc = od_json_bool_or(root, "qkv_bias", true, &l.mix.qkv_bias, where, err);
	if (rc == OD_OK)
		rc = od_parse_rope(&p, l.mix.k_dim, false, &l.mix.rope, NULL);
	if (rc == OD_OK)
		rc = od_parse_experts(&p, "num_experts", "moe_intermediate_size");
	if (rc == OD_OK)
		rc = od_json_bool_or(root, "norm_topk_prob", false, &l.router.renormalise, where, err);
	if (rc == OD_OK)
		rc = od_json_u32(root, "intermediate_size", 1, OD_DIM_MAX, &l.intermediate, where, err);
	if (rc == OD_OK)
		rc = od_json_u32(root, "shared_expert_intermediate_size", 1, OD_DIM_MAX, &l.shared_intermediate, where,
				 err);
	return rc == OD_OK ? add_layers(&p, &l) : rc;
}

static const char *const architectures[] = { "Qwen2MoeForCausalLM", NULL };
static const char *const model_types[] = { "qwen2_moe", NULL };

const struct od_family od_family_qwen2_moe = {
	.name = "qwen2_moe",
	.architectures = architectures,
	.model_types = model_types,
	.parse = parse,
	.names = {
		[OD_ROLE_SHARED_GATE] = "mlp.shared_expert.gate_proj.weight",
		[OD_ROLE_SHARED_UP] = "mlp.shared_expert.up_proj.weight",
		[OD_ROLE_SHARED_DOWN] = "mlp.shared_expert.down_proj.weight",
	},
	.kv_heads = 16,
};
