/* DeepSeek-V3 and R1 (arXiv 2412.19437), and Kimi-K2, which has its shape: attention as in DeepSeek-V2; routers take
 * sigmoids with a bias that balances the experts' load, in groups of which the two best experts count. */
#include "common/model/families/parse.h"

static int parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	const struct od_parse p = { cfg, root, where, err };
	struct od_layer_spec l = { .mixer = &od_mixer_mla };
	int rc = od_parse_refuse(&p, NULL);

	if (rc == OD_OK)
		rc = od_parse_only_bool(&p, "attention_bias", false);
	if (rc == OD_OK)
		rc = od_parse_mla(&p, true, &l.mix);
	if (rc == OD_OK) /* transformers would turn so many elements, but only qk_rope_head_dim are there to turn */
		rc = od_parse_only_number(&p, "head_dim", cfg->rope[l.mix.rope].dims);
	if (rc == OD_OK)
		rc = od_parse_v3_experts(&p, &l, 2.5);
	if (rc == OD_OK)
		rc = od_parse_mtp(&p, "num_nextn_predict_layers");
	return rc == OD_OK ? od_parse_add_layers(&p, 3, &l) : rc;
}

static const char *const architectures[] = { "DeepseekV3ForCausalLM", NULL };
static const char *const model_types[] = { "deepseek_v3", "kimi_k2", NULL };

const struct od_family od_family_deepseek_v3 = {
	.name = "deepseek_v3",
	.architectures = architectures,
	.model_types = model_types,
	.parse = parse,
};
