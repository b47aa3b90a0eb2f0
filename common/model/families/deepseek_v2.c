/* DeepSeek-V2 and V2-Lite (arXiv 2405.04434): multi-head latent attention, first layers dense, shared experts, routing
 * within groups of experts, YaRN whose mscale also scales scores. */
#include "common/model/families/parse.h"

#include <string.h>

static int read_groups(const struct od_parse *p, struct od_router_spec *r)
{
	const char *method = "greedy";
	int rc = od_json_has(p->root, "topk_method") ? od_json_str(p->root, "topk_method", &method, p->where, p->err) :
						       OD_OK;

	if (rc != OD_OK || strcmp(method, "greedy") == 0)
		return rc;
	if (strcmp(method, "group_limited_greedy") != 0)
		return od_fail(p->err, OD_ERR_UNSUPPORTED,
			       "%s: field \"topk_method\": expected \"greedy\" or \"group_limited_greedy\", "
			       "found \"%.64s\"",
			       p->where, method);
	return od_parse_groups(p, r);
}

static int read_experts(const struct od_parse *p, struct od_layer_spec *l)
{
	double scale;
	int rc = od_parse_experts(p, "n_routed_experts", "moe_intermediate_size");

	if (rc == OD_OK)
		rc = read_groups(p, &l->router);
	if (rc == OD_OK)
		rc = od_json_u32(p->root, "intermediate_size", 1, OD_DIM_MAX, &l->intermediate, p->where, p->err);
	if (rc == OD_OK)
		rc = od_parse_shared(p, 0, &l->shared_intermediate);
	if (rc == OD_OK)
		rc = od_json_f64_or(p->root, "routed_scaling_factor", 1e-6, 1e6, 1, &scale, p->where, p->err);
	if (rc == OD_OK)
		l->router.scale = (float)scale;
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
		/* the published code and transformers disagree on it */
		rc = od_parse_only_bool(&p, "norm_topk_prob", false);
	if (rc == OD_OK)
		rc = od_parse_only_str(&p, "scoring_func", "softmax");
	if (rc == OD_OK)
		rc = od_parse_only_number(&p, "moe_layer_freq", 1);
	if (rc == OD_OK)
		rc = od_parse_mla(&p, false, &l.mix);
	if (rc == OD_OK)
		rc = read_experts(&p, &l);
	return rc == OD_OK ? od_parse_add_layers(&p, 0, &l) : rc;
}

static const char *const architectures[] = { "DeepseekV2ForCausalLM", NULL };
static const char *const model_types[] = { "deepseek_v2", NULL };

const struct od_family od_family_deepseek_v2 = {
	.name = "deepseek_v2",
	.architectures = architectures,
	.model_types = model_types,
	.parse = parse,
};
