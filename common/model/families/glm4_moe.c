/* GLM-4.5, 4.6 and their Air models: grouped-query attention with biases on q, k and v alone, RoPE on a part of each
 * head and, in the large ones, a norm over each head of q and k; experts, groups and dense first layers as in
 * DeepSeek-V3. */
#include "common/model/families/parse.h"

static int read_attention(const struct od_parse *p, struct od_mixer *m)
{
	uint32_t dims;
	bool normed = false;
	int rc = od_parse_gqa(p, m);

	m->o_bias = false;
	if (rc == OD_OK)
		rc = od_json_bool_or(p->root, "use_qk_norm", false, &normed, p->where, p->err);
	m->qk_norm = normed ? OD_QK_NORM_HEAD : OD_QK_NORM_NONE;
	if (rc == OD_OK)
		rc = od_parse_rotated(p, m->k_dim, 0.5, &dims);
	return rc == OD_OK ? od_parse_rope(p, dims, false, &m->rope, NULL) : rc;
}

static int parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	static const char *const own[] = { "use_qk_norm", "partial_rotary_factor", NULL };
	const struct od_parse p = { cfg, root, where, err };
	struct od_layer_spec l = { .mixer = &od_mixer_gqa };
	int rc = od_parse_refuse(&p, own);

	if (rc == OD_OK)
		rc = read_attention(&p, &l.mix);
	if (rc == OD_OK)
		rc = od_parse_v3_experts(&p, &l, 1);
	if (rc == OD_OK)
		rc = od_parse_mtp(&p, "num_nextn_predict_layers");
	return rc == OD_OK ? od_parse_add_layers(&p, 1, &l) : rc;
}

static const char *const architectures[] = { "Glm4MoeForCausalLM", NULL };
static const char *const model_types[] = { "glm4_moe", NULL };

const struct od_family od_family_glm4_moe = {
	.name = "glm4_moe",
	.architectures = architectures,
	.model_types = model_types,
	.parse = parse,
	.kv_heads = 8,
};
