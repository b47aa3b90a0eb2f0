/* OLMoE (1B-7B): attention with a norm over all of q and all of k together, which are clipped, as v is, where clip_qkv
 * says so; every layer has experts. */
#include "common/model/families/parse.h"

static int parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	static const char *const own[] = { "use_qk_norm", NULL };
	const struct od_parse p = { cfg, root, where, err };
	struct od_layer_spec l = { .mixer = &od_mixer_gqa, .ffn = OD_FFN_MOE, .router = { .scale = 1 } };
	double clip = 0;
	int rc = od_parse_refuse(&p, own);

	if (rc == OD_OK)
		rc = od_parse_gqa(&p, &l.mix);
	l.mix.qk_norm = OD_QK_NORM_ROW;
	if (rc == OD_OK)
		rc = od_json_f64_or(root, "clip_qkv", 1e-6, 1e30, 0, &clip, where, err);
	l.mix.clip = (float)clip;
	if (rc == OD_OK)
		rc = od_parse_rope(&p, l.mix.k_dim, false, &l.mix.rope, NULL);
	if (rc == OD_OK)
		rc = od_parse_experts(&p, "num_experts", "intermediate_size");
	if (rc == OD_OK)
		rc = od_json_bool_or(root, "norm_topk_prob", false, &l.router.renormalise, where, err);
	return rc == OD_OK ? od_parse_add_alike(&p, &l) : rc;
}

static const char *const architectures[] = { "OlmoeForCausalLM", NULL };
static const char *const model_types[] = { "olmoe", NULL };

const struct od_family od_family_olmoe = {
	.name = "olmoe",
	.architectures = architectures,
	.model_types = model_types,
	.parse = parse,
	.rms_eps = 1e-5,
};
