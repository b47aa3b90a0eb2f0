/* gpt-oss (OpenAI's model card, arXiv 2508.10925): grouped-query attention with sinks and biases, whose layers may see
 * a window only; all layers have experts, chosen by logits, with biases and a clamped SwiGLU. Checkpoints stack the
 * experts of a layer, in MXFP4 or in BF16. */
#include "common/model/families/parse.h"

#include <string.h>

/* The published fields beside those that od_parse_gqa reads; defaults are those of transformers. */
static int read_attention(const struct od_parse *p, struct od_mixer *m)
{
	int rc = od_json_has(p->root, "head_dim") ?
			 OD_OK :
			 od_fail(p->err, OD_ERR_MISSING, "%s: field \"head_dim\" is missing", p->where);

	if (rc == OD_OK)
		rc = od_parse_gqa(p, m);
	if (rc == OD_OK && !od_json_has(p->root, "attention_bias"))
		m->qkv_bias = m->o_bias = true;
	m->sinks = true;
	/* Without its settings, or if there are none in it, transformers would take those of the published models. */
	if (rc == OD_OK && json_object_size(json_object_get(p->root, "rope_scaling")) == 0 &&
	    !od_json_has(p->root, "rope_parameters"))
		rc = od_fail(p->err, OD_ERR_MISSING,
			     "%s: field \"rope_scaling\" is missing, and \"rope_parameters\" too", p->where);
	return rc == OD_OK ? od_parse_rope(p, m->k_dim, false, &m->rope, NULL) : rc;
}

static int read_experts(const struct od_parse *p)
{
	struct od_config *c = p->cfg;
	uint32_t again;
	double limit;
	int rc = od_parse_experts(p, "num_local_experts", "intermediate_size");

	if (rc == OD_OK) /* its older name, which the published files have too */
		rc = od_json_u32_or(p->root, "experts_per_token", 1, OD_MAX_TOP_K, c->top_k, &again, p->where, p->err);
	if (rc == OD_OK && again != c->top_k)
		rc = od_fail(p->err, OD_ERR_FORMAT,
			     "%s: fields \"num_experts_per_tok\" and \"experts_per_token\": expected the same "
			     "number, found %u and %u",
			     p->where, c->top_k, again);
	if (rc == OD_OK)
		rc = od_json_f64_or(p->root, "swiglu_limit", 1e-3, 1e6, 7, &limit, p->where, p->err);
	if (rc != OD_OK)
		return rc;
	c->expert_bias = true;
	c->act = (struct od_act_spec){ OD_ACT_CLAMPED, (float)limit };
	return OD_OK;
}

/* Reads a layer's attention: "sliding_attention" or "full_attention"; without a list they alternate. */
static int read_type(const struct od_parse *p, const json_t *types, uint32_t layer, bool *slides)
{
	const char *type = json_string_value(json_array_get(types, layer));

	*slides = types == NULL ? layer % 2 == 0 : type != NULL && strcmp(type, "sliding_attention") == 0;
	if (types == NULL || *slides || (type != NULL && strcmp(type, "full_attention") == 0))
		return OD_OK;
	return od_fail(p->err, OD_ERR_UNSUPPORTED,
		       "%s: field \"layer_types\": layer %u: expected \"sliding_attention\" or "
		       "\"full_attention\", found \"%.64s\"",
		       p->where, layer, type != NULL ? type : "(none)");
}

static int add_layers(const struct od_parse *p, struct od_layer_spec *l)
{
	uint32_t n_layers = 0, window = 0;
	json_t *types = NULL;
	int rc = od_parse_layers(p, &n_layers);

	if (rc == OD_OK && od_json_has(p->root, "layer_types"))
		rc = od_json_arr(p->root, "layer_types", &types, p->where, p->err);
	if (rc == OD_OK && types != NULL && json_array_size(types) != n_layers)
		rc = od_fail(p->err, OD_ERR_FORMAT,
			     "%s: field \"layer_types\": expected %u entries, as \"num_hidden_layers\" says, "
			     "found %zu",
			     p->where, n_layers, json_array_size(types));
	if (rc == OD_OK)
		rc = od_json_u32(p->root, "sliding_window", 1, UINT32_MAX, &window, p->where, p->err);
	for (uint32_t i = 0; rc == OD_OK && i < n_layers; i++) {
		bool slides;

		rc = read_type(p, types, i, &slides);
		l->mix.window = slides ? window : 0;
		if (rc == OD_OK)
			rc = od_config_add_layer(p->cfg, l, p->err);
	}
	return rc;
}

static int parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	static const char *const own[] = { "swiglu_limit", "sliding_window", "layer_types", NULL };
	const struct od_parse p = { cfg, root, where, err };
	struct od_layer_spec l = {
		.mixer = &od_mixer_gqa,
		.ffn = OD_FFN_MOE,
		.router = { .score = OD_SCORE_LOGIT, .logit_bias = true, .scale = 1 },
	};
	int rc = od_parse_refuse(&p, own);

	if (rc == OD_OK) /* The activation's sigmoid has this factor. */
		rc = od_parse_only_number(&p, "swiglu_alpha", 1.702);
	if (rc == OD_OK)
		rc = read_attention(&p, &l.mix);
	if (rc == OD_OK)
		rc = read_experts(&p);
	return rc == OD_OK ? add_layers(&p, &l) : rc;
}

static const char *const architectures[] = { "GptOssForCausalLM", NULL };
static const char *const model_types[] = { "gpt_oss", NULL };

const struct od_family od_family_gpt_oss = {
	.name = "gpt_oss",
	.architectures = architectures,
	.model_types = model_types,
	.parse = parse,
	.names = { [OD_ROLE_ROUTER] = "mlp.router.weight" },
	.stacked_gate_up = "mlp.experts.gate_up_proj",
	.stacked_down = "mlp.experts.down_proj",
	.interleaved = true,
	.transposed = true,
	.mxfp4 = true,
	.kv_heads = 8,
	.rope_theta = 150000,
};
