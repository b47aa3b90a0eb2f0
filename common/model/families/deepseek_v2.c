/* DeepSeek-V2 and V2-Lite (arXiv 2405.04434): multi-head latent attention, first layers dense, shared experts, routing within
 * groups of experts, YaRN whose mscale also scales scores. */
#include "common/model/families/parse.h"

#include <math.h>
#include <string.h>

#define INNER_EPS 1e-6f /* of the norms of latents, whatever rms_norm_eps says */

static int read_attention(const struct od_parse *p, struct od_mixer *m)
{
	const struct {
		const char *key;
		uint32_t max, *out;
	} field[] = {
		{ "num_attention_heads", OD_DIM_MAX, &m->n_heads }, { "kv_lora_rank", OD_MAX_RANK, &m->kv_rank },
		{ "qk_nope_head_dim", OD_MAX_RANK, &m->nope_dim },  { "qk_rope_head_dim", OD_MAX_RANK, &m->k_dim },
		{ "v_head_dim", OD_MAX_RANK, &m->v_dim },
	};
	uint32_t rope_dim;
	double attention;
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < sizeof(field) / sizeof(field[0]); i++)
		rc = od_json_u32(p->root, field[i].key, 1, field[i].max, field[i].out, p->where, p->err);
	if (rc == OD_OK)
		rc = od_json_u32_or(p->root, "q_lora_rank", 1, OD_DIM_MAX, 0, &m->q_rank, p->where, p->err);
	if (rc != OD_OK)
		return rc;
	rope_dim = m->k_dim;
	if (rope_dim % 2 != 0)
		return od_fail(p->err, OD_ERR_UNSUPPORTED, "%s: field \"qk_rope_head_dim\": expected an even number (RoPE turns pairs), "
			       "found %u", p->where, rope_dim);
	m->k_dim += m->nope_dim;
	if ((uint64_t)m->n_heads * (m->nope_dim + m->v_dim + m->kv_rank + rope_dim) > OD_DIM_MAX)
		return od_fail(p->err, OD_ERR_RANGE, "%s: field \"num_attention_heads\": expected at most %u elements for all heads "
			       "together, found %u heads", p->where, OD_DIM_MAX, m->n_heads);
	rc = od_parse_rope(p, rope_dim, true, &m->rope, &attention);
	if (rc != OD_OK)
		return rc;
	m->n_kv_heads = 1;
	m->norm_eps = INNER_EPS;
	m->scale = (float)(attention / sqrt((double)m->k_dim));
	return OD_OK;
}

static int read_groups(const struct od_parse *p, struct od_router_spec *r)
{
	const uint32_t n = p->cfg->n_experts;
	const char *method = "greedy";
	int rc = od_json_has(p->root, "topk_method") ? od_json_str(p->root, "topk_method", &method, p->where, p->err) : OD_OK;

	if (rc != OD_OK || strcmp(method, "greedy") == 0)
		return rc;
	if (strcmp(method, "group_limited_greedy") != 0)
		return od_fail(p->err, OD_ERR_UNSUPPORTED, "%s: field \"topk_method\": expected \"greedy\" or \"group_limited_greedy\", "
			       "found \"%.64s\"", p->where, method);
	rc = od_json_u32(p->root, "n_group", 1, n < OD_MAX_GROUPS ? n : OD_MAX_GROUPS, &r->n_groups, p->where, p->err);
	if (rc == OD_OK)
		rc = od_json_u32(p->root, "topk_group", 1, r->n_groups, &r->top_groups, p->where, p->err);
	if (rc == OD_OK && n % r->n_groups != 0)
		rc = od_fail(p->err, OD_ERR_FORMAT, "%s: field \"n_group\": expected a divisor of \"n_routed_experts\" %u, found %u",
			     p->where, n, r->n_groups);
	if (rc == OD_OK && p->cfg->top_k > n / r->n_groups * r->top_groups)
		rc = od_fail(p->err, OD_ERR_FORMAT, "%s: field \"topk_group\": %u groups of %u experts have fewer than "
			     "\"num_experts_per_tok\" %u", p->where, r->top_groups, n / r->n_groups, p->cfg->top_k);
	return rc;
}

static int read_experts(const struct od_parse *p, struct od_layer_spec *l)
{
	uint32_t n_shared;
	double scale;
	int rc = od_parse_experts(p, "n_routed_experts", "moe_intermediate_size");

	if (rc == OD_OK)
		rc = read_groups(p, &l->router);
	if (rc == OD_OK)
		rc = od_json_u32(p->root, "intermediate_size", 1, OD_DIM_MAX, &l->intermediate, p->where, p->err);
	if (rc == OD_OK)
		rc = od_json_u32_or(p->root, "n_shared_experts", 0, OD_MAX_EXPERTS, 0, &n_shared, p->where, p->err);
	if (rc == OD_OK)
		rc = od_json_f64_or(p->root, "routed_scaling_factor", 1e-6, 1e6, 1, &scale, p->where, p->err);
	if (rc != OD_OK)
		return rc;
	if ((uint64_t)n_shared * p->cfg->intermediate > OD_DIM_MAX)
		return od_fail(p->err, OD_ERR_RANGE, "%s: field \"n_shared_experts\": expected at most %u, found %u", p->where,
			       OD_DIM_MAX / p->cfg->intermediate, n_shared);
	l->shared_intermediate = n_shared * p->cfg->intermediate;
	l->router.scale = (float)scale;
	return OD_OK;
}

static int add_layers(const struct od_parse *p, struct od_layer_spec *l)
{
	uint32_t n_layers, first = 0;
	int rc = od_parse_layers(p, &n_layers);

	if (rc == OD_OK)
		rc = od_json_u32_or(p->root, "first_k_dense_replace", 0, UINT32_MAX, 0, &first, p->where, p->err);
	for (uint32_t i = 0; rc == OD_OK && i < n_layers; i++) {
		l->ffn = i < first ? OD_FFN_DENSE : OD_FFN_MOE;
		rc = od_config_add_layer(p->cfg, l, p->err);
	}
	return rc;
}

static int parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	const struct od_parse p = { cfg, root, where, err };
	struct od_layer_spec l = { .mixer = &od_mixer_mla };
	uint32_t every;
	int rc = od_parse_refuse(&p);

	if (rc == OD_OK)
		rc = od_parse_only_bool(&p, "attention_bias", false);
	if (rc == OD_OK)
		rc = od_parse_only_bool(&p, "norm_topk_prob", false); /* the published code and transformers disagree on it */
	if (rc == OD_OK)
		rc = od_parse_only_str(&p, "scoring_func", "softmax");
	if (rc == OD_OK)
		rc = od_json_u32_or(root, "moe_layer_freq", 1, UINT32_MAX, 1, &every, where, err);
	if (rc == OD_OK && every != 1)
		rc = od_fail(err, OD_ERR_UNSUPPORTED, "%s: field \"moe_layer_freq\": expected 1, found %u", where, every);
	if (rc == OD_OK)
		rc = read_attention(&p, &l.mix);
	if (rc == OD_OK)
		rc = read_experts(&p, &l);
	return rc == OD_OK ? add_layers(&p, &l) : rc;
}

static const char *const architectures[] = { "DeepseekV2ForCausalLM", NULL };
static const char *const model_types[] = { "deepseek_v2", NULL };

const struct od_family od_family_deepseek_v2 = {
	.name = "deepseek_v2",
	.architectures = architectures,
	.model_types = model_types,
	.parse = parse,
};
