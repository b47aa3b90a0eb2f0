/* GLM-4.7-Flash: DeepSeek-V3's attention and experts; mlp_layer_types says which layers are dense. */
#include "common/model/families/parse.h"

#include <string.h>

/* Without a list only the first layer is dense. Other files have first_k_dense_replace beside it, which then must say
 * so. */
static int add_layers(const struct od_parse *p, struct od_layer_spec *l)
{
	const char *key = "mlp_layer_types", *type;
	json_t *types = NULL;
	uint32_t n_layers;
	int rc = od_parse_layers(p, &n_layers);

	if (rc == OD_OK && !od_json_has(p->root, key)) {
		rc = od_parse_only_number(p, "first_k_dense_replace", 1);
		return rc == OD_OK ? od_parse_add_layers(p, 1, l) : rc;
	}
	if (rc == OD_OK)
		rc = od_json_arr(p->root, key, &types, p->where, p->err);
	for (uint32_t i = 0; rc == OD_OK && i < n_layers; i++) {
		type = json_string_value(json_array_get(types, i));
		if (json_array_size(types) != n_layers || type == NULL ||
		    (strcmp(type, "dense") != 0 && strcmp(type, "sparse") != 0))
			return od_fail(p->err, OD_ERR_UNSUPPORTED,
				       "%s: field \"%s\": expected \"dense\" or \"sparse\" for each of %u "
				       "layers",
				       p->where, key, n_layers);
		l->ffn = strcmp(type, "dense") == 0 ? OD_FFN_DENSE : OD_FFN_MOE;
		rc = od_config_add_layer(p->cfg, l, p->err);
	}
	return rc;
}

static int parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	const struct od_parse p = { cfg, root, where, err };
	struct od_layer_spec l = { .mixer = &od_mixer_mla };
	int rc = od_parse_refuse(&p, NULL);

	if (rc == OD_OK)
		rc = od_parse_only_bool(&p, "attention_bias", false);
	if (rc == OD_OK)
		rc = od_parse_mla(&p, true, &l.mix);
	if (rc == OD_OK) /* another name of qk_rope_head_dim */
		rc = od_parse_only_number(&p, "head_dim", cfg->rope[l.mix.rope].dims);
	if (rc == OD_OK)
		rc = od_parse_v3_experts(&p, &l, 1.8);
	if (rc == OD_OK)
		rc = od_parse_mtp(&p, "num_nextn_predict_layers");
	return rc == OD_OK ? add_layers(&p, &l) : rc;
}

static const char *const architectures[] = { "Glm4MoeLiteForCausalLM", NULL };
static const char *const model_types[] = { "glm4_moe_lite", NULL };

const struct od_family od_family_glm4_moe_lite = {
	.name = "glm4_moe_lite",
	.architectures = architectures,
	.model_types = model_types,
	.parse = parse,
};
