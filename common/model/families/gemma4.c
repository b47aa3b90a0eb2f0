/* Gemma 4's models with experts (26B-A4B), alone or as the text part of a model that sees pictures: every layer has a
 * dense network beside the experts and norms of all outputs; layers with a window and layers without differ in their
 * heads and RoPE. */
#include "common/model/families/parse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The two kinds of attention, as layer_types and rope_parameters call them. */
enum attention { SLIDING, FULL, N_ATTENTION };
static const char *const attention_names[N_ATTENTION] = { "sliding_attention", "full_attention" };
#define PATTERN 6u /* every sixth layer is a full one, where no list says so */
#define OVERRIDES "per_layer_config"

/* Refuses settings of the family's small models, and those that need more than text. */
static int refuse(const struct od_parse *p)
{
	static const char *const own[] = { "hidden_act",     "final_logit_softcapping",
					   "sliding_window", "layer_types",
					   OVERRIDES,	     NULL };
	bool moe;
	int rc = od_parse_refuse(p, own);

	if (rc == OD_OK)
		rc = od_parse_only_str(p, "hidden_activation", "gelu_pytorch_tanh");
	if (rc == OD_OK) /* transformers does not read it here */
		rc = od_parse_only_str(p, "hidden_act", "gelu_pytorch_tanh");
	if (rc == OD_OK)
		rc = od_json_bool_or(p->root, "enable_moe_block", false, &moe, p->where, p->err);
	if (rc == OD_OK && !moe)
		rc = od_fail(p->err, OD_ERR_UNSUPPORTED,
			     "%s: field \"enable_moe_block\": expected true: a model without experts is not "
			     "supported",
			     p->where);
	if (rc == OD_OK)
		rc = od_parse_only_bool(p, "attention_bias", false);
	if (rc == OD_OK)
		rc = od_parse_only_str(p, "use_bidirectional_attention", "vision");
	return rc == OD_OK ? od_parse_absent(p, "rope_scaling") : rc;
}

static int read_experts(const struct od_parse *p, struct od_layer_spec *l)
{
	struct od_config *c = p->cfg;
	int rc = od_json_u32(p->root, "num_experts", 1, OD_MAX_EXPERTS, &c->n_experts, p->where, p->err);

	if (rc == OD_OK)
		rc = od_json_u32(p->root, "moe_intermediate_size", 1, OD_DIM_MAX, &c->intermediate, p->where, p->err);
	if (rc == OD_OK)
		rc = od_json_u32(p->root, "top_k_experts", 1, c->n_experts < OD_MAX_TOP_K ? c->n_experts : OD_MAX_TOP_K,
				 &c->top_k, p->where, p->err);
	if (rc == OD_OK)
		rc = od_json_u32(p->root, "intermediate_size", 1, OD_DIM_MAX, &l->shared_intermediate, p->where,
				 p->err);
	l->ffn = OD_FFN_MOE;
	l->sandwich = l->scaled = true;
	l->router = (struct od_router_spec){ .renormalise = true,
					     .scale = 1,
					     .norm = true,
					     .factors = true,
					     .logit_scale = (float)(1.0 / sqrt(c->hidden)) };
	return rc;
}

/* ---- attention ---- */

/* The last layer is a full one, whatever the list says. */
static int read_kind(const struct od_parse *p, uint32_t layer, uint32_t n_layers, enum attention *kind)
{
	const char *key = "layer_types", *type;
	json_t *types = NULL;
	int rc = od_json_has(p->root, key) ? od_json_arr(p->root, key, &types, p->where, p->err) : OD_OK;

	*kind = (layer + 1) % PATTERN == 0 || layer + 1 == n_layers ? FULL : SLIDING;
	if (rc != OD_OK || types == NULL)
		return rc;
	type = json_string_value(json_array_get(types, layer));
	if (json_array_size(types) != n_layers || type == NULL ||
	    (strcmp(type, attention_names[FULL]) != 0 && strcmp(type, attention_names[SLIDING]) != 0))
		return od_fail(p->err, OD_ERR_UNSUPPORTED,
			       "%s: field \"%s\": expected \"full_attention\" or \"sliding_attention\" for each of "
			       "%u layers",
			       p->where, key, n_layers);
	*kind = strcmp(type, attention_names[FULL]) == 0 || layer + 1 == n_layers ? FULL : SLIDING;
	return OD_OK;
}

/* transformers 5 writes what differs from head_dim and num_key_value_heads layer by layer; layers are numbered "05" or
 * "5". */
static const json_t *override_of(const json_t *all, uint32_t layer)
{
	const char *key;
	json_t *o;

	json_object_foreach((json_t *)(uintptr_t)all, key, o)
	{
		char *end;

		if (*key >= '0' && *key <= '9' && strtoul(key, &end, 10) == layer && *end == '\0')
			return o;
	}
	return NULL;
}

static int bad_override(const struct od_parse *p, const char *expected)
{
	return od_fail(p->err, OD_ERR_UNSUPPORTED, "%s: field \"" OVERRIDES "\": expected %s", p->where, expected);
}

/* Layers of one kind have one shape. */
static int read_override(const struct od_parse *p, enum attention kind, uint32_t n_layers, uint32_t *dim,
			 uint32_t *kv_heads)
{
	const json_t *all = json_object_get(p->root, OVERRIDES), *first = NULL;
	char where[1024];
	size_t n = 0, known = 0, n_kind = 0;
	int rc = OD_OK;

	if (!json_is_object(all))
		return bad_override(p, "an object");
	for (uint32_t i = 0; rc == OD_OK && i < n_layers; i++) {
		const json_t *o = override_of(all, i);
		enum attention of;

		rc = read_kind(p, i, n_layers, &of);
		known += o != NULL;
		if (rc != OD_OK || of != kind)
			continue;
		first = n_kind++ == 0 ? o : first;
		n += o != NULL;
		if (o != NULL && !json_equal(o, first))
			return bad_override(p, "the same for all layers of a kind");
	}
	if (rc != OD_OK || (n > 0 && n < n_kind) || known != json_object_size(all))
		return rc != OD_OK ? rc : bad_override(p, "numbers of layers, and the same for all layers of a kind");
	if (n == 0)
		return OD_OK;
	if (json_object_size(first) !=
	    (size_t)od_json_has(first, "head_dim") + od_json_has(first, "num_key_value_heads"))
		return bad_override(p, "\"head_dim\" and \"num_key_value_heads\" alone");
	snprintf(where, sizeof(where), "%s: field \"" OVERRIDES "\"", p->where);
	rc = od_json_u32_or(first, "head_dim", 2, OD_DIM_MAX, *dim, dim, where, p->err);
	return rc == OD_OK ?
		       od_json_u32_or(first, "num_key_value_heads", 1, OD_DIM_MAX, *kv_heads, kv_heads, where, p->err) :
		       rc;
}

static int read_heads(const struct od_parse *p, enum attention kind, uint32_t n_layers, struct od_mixer *m)
{
	const bool overrides = od_json_has(p->root, OVERRIDES);
	bool k_is_v = false;
	uint32_t kv_heads = 0;
	int rc = od_json_u32(p->root, "num_attention_heads", 1, OD_DIM_MAX, &m->n_heads, p->where, p->err);

	if (rc == OD_OK)
		rc = od_json_u32(p->root, "num_key_value_heads", 1, OD_DIM_MAX, &kv_heads, p->where, p->err);
	if (rc == OD_OK && (kind == SLIDING || overrides))
		rc = od_json_u32_or(p->root, "head_dim", 2, OD_DIM_MAX, 256, &m->k_dim, p->where, p->err);
	if (rc == OD_OK && kind == FULL && !overrides)
		rc = od_json_u32_or(p->root, "global_head_dim", 2, OD_DIM_MAX, 512, &m->k_dim, p->where, p->err);
	if (rc == OD_OK)
		rc = od_json_bool_or(p->root, "attention_k_eq_v", false, &k_is_v, p->where, p->err);
	m->v_is_k = k_is_v && kind == FULL;
	if (rc == OD_OK && overrides)
		rc = read_override(p, kind, n_layers, &m->k_dim, &kv_heads);
	if (rc == OD_OK && m->v_is_k && !overrides)
		rc = od_json_u32_or(p->root, "num_global_key_value_heads", 1, OD_DIM_MAX, kv_heads, &kv_heads, p->where,
				    p->err);
	if (rc != OD_OK)
		return rc;
	if (m->n_heads % kv_heads != 0)
		return od_fail(p->err, OD_ERR_FORMAT,
			       "%s: field \"%s\": expected a divisor of \"num_attention_heads\" %u, found %u", p->where,
			       m->v_is_k ? "num_global_key_value_heads" : "num_key_value_heads", m->n_heads, kv_heads);
	if (m->k_dim % 2 != 0 || (uint64_t)m->n_heads * m->k_dim > OD_DIM_MAX)
		return od_fail(p->err, OD_ERR_UNSUPPORTED,
			       "%s: field \"%s\": expected an even number (RoPE turns pairs) and at most %u for "
			       "all %u heads together, found %u",
			       p->where, kind == FULL ? "global_head_dim" : "head_dim", OD_DIM_MAX, m->n_heads,
			       m->k_dim);
	m->n_kv_heads = kv_heads;
	m->v_dim = m->k_dim;
	m->scale = 1;
	m->qk_norm = OD_QK_NORM_HEAD;
	m->v_norm = true;
	m->norm_eps = p->cfg->rms_eps;
	return OD_OK;
}

/* transformers turns the whole head then, whatever this says. */
static int read_whole(const struct od_parse *p, const json_t *o, const char *where)
{
	double factor;
	int rc = od_json_f64_or(o, "partial_rotary_factor", 0, 1, 1, &factor, where, p->err);

	if (rc == OD_OK && factor != 1)
		rc = od_fail(p->err, OD_ERR_UNSUPPORTED,
			     "%s: field \"partial_rotary_factor\": expected 1 with type \"default\", found %g", where,
			     factor);
	return rc;
}

/* RoPE type "proportional" turns only some of a head's pairs; their frequencies are those of the whole head. */
static int read_partial(const struct od_parse *p, const json_t *o, const char *where, struct od_rope *r)
{
	double factor, scale_factor;
	int rc = od_json_f64_or(o, "partial_rotary_factor", 0, 1, 1, &factor, where, p->err);

	if (rc == OD_OK)
		rc = od_json_f64_or(o, "factor", 1, 1e6, 1, &scale_factor, where, p->err);
	if (rc != OD_OK)
		return rc;
	r->pairs = (uint32_t)(factor * r->dims / 2);
	r->divisor = scale_factor != 1 ? scale_factor : 0;
	if (r->pairs == 0)
		return od_fail(p->err, OD_ERR_UNSUPPORTED,
			       "%s: field \"partial_rotary_factor\": expected at least a pair of the %u elements of "
			       "a head, found %g",
			       where, r->dims, factor);
	r->pairs = r->pairs < r->dims / 2 ? r->pairs : 0;
	return OD_OK;
}

/* Beside the objects of the two kinds transformers reads nothing, so nothing may stand there. */
static int check_kinds(const struct od_parse *p, const json_t *all, const char *where)
{
	const char *name;
	json_t *value;

	json_object_foreach(
		(json_t *)(uintptr_t)all, name,
		value) if (!json_is_null(value) && strcmp(name, attention_names[FULL]) != 0 &&
			   strcmp(name, attention_names[SLIDING]) !=
				   0) return od_fail(p->err, OD_ERR_UNSUPPORTED,
						     "%s: field \"%.64s\": expected \"%s\" and \"%s\" alone", where,
						     name, attention_names[FULL], attention_names[SLIDING]);
	return OD_OK;
}

static int read_rope(const struct od_parse *p, enum attention kind, uint32_t dims, uint32_t *index)
{
	static const char *const types[] = { "default", "proportional", NULL };
	const char *key = "rope_parameters", *name = attention_names[kind], *type;
	struct od_rope r = { .dims = dims, .magnitude = 1 };
	json_t *all, *o;
	char where[1024];
	int rc;

	if (!od_json_has(p->root, key)) { /* as transformers has it */
		r.theta = kind == FULL ? 1e6 : 1e4;
		r.pairs = kind == FULL ? dims / 8 : 0;
		if (kind == FULL && r.pairs == 0) /* 0 would be all */
			return od_fail(p->err, OD_ERR_UNSUPPORTED,
				       "%s: field \"%s\" is missing, so a quarter of a head turns: expected "
				       "\"global_head_dim\" of at least 8, found %u",
				       p->where, key, dims);
		return od_config_add_rope(p->cfg, &r, index, p->err);
	}
	rc = od_json_obj(p->root, key, &all, p->where, p->err);
	snprintf(where, sizeof(where), "%s: field \"%s\"", p->where, key);
	if (rc == OD_OK)
		rc = check_kinds(p, all, where);
	if (rc == OD_OK)
		rc = od_json_obj(all, name, &o, where, p->err);
	snprintf(where, sizeof(where), "%s: field \"%s\": \"%s\"", p->where, key, name);
	if (rc == OD_OK)
		rc = od_parse_rope_type(p, o, where, types, &type);
	if (rc == OD_OK)
		rc = od_json_f64(o, "rope_theta", 1, 1e12, &r.theta, where, p->err);
	if (rc == OD_OK)
		rc = strcmp(type, "proportional") == 0 ? read_partial(p, o, where, &r) : read_whole(p, o, where);
	return rc == OD_OK ? od_config_add_rope(p->cfg, &r, index, p->err) : rc;
}

/* How many of the last layers use keys and values of earlier ones, and how wide their dense networks are. */
static int read_sharing(const struct od_parse *p, uint32_t n_layers, uint32_t intermediate, uint32_t *n_shared,
			uint32_t *wide)
{
	const char *key = "num_kv_shared_layers";
	bool is_double = false;
	int rc = od_json_u32_or(p->root, key, 0, n_layers - 1, 0, n_shared, p->where, p->err);

	if (rc == OD_OK)
		rc = od_json_bool_or(p->root, "use_double_wide_mlp", false, &is_double, p->where, p->err);
	*wide = is_double ? 2 * intermediate : intermediate;
	if (rc == OD_OK && *n_shared > 0 && *wide > OD_DIM_MAX)
		return od_fail(p->err, OD_ERR_RANGE,
			       "%s: field \"intermediate_size\": expected at most %u with \"use_double_wide_mlp\", "
			       "found %u",
			       p->where, OD_DIM_MAX / 2, intermediate);
	return rc;
}

/* The layer uses keys and values of the last layer of its kind that has its own. */
static int share_kv(const struct od_parse *p, enum attention kind, uint32_t n_own, uint32_t n_layers, uint32_t *kv_of)
{
	for (*kv_of = n_own; *kv_of > 0; (*kv_of)--) {
		enum attention of;
		int rc = read_kind(p, *kv_of - 1, n_layers, &of);

		if (rc != OD_OK || of == kind)
			return rc;
	}
	return od_fail(p->err, OD_ERR_FORMAT,
		       "%s: field \"num_kv_shared_layers\": expected a \"%s\" layer among the %u layers with keys "
		       "and values of their own, found none",
		       p->where, attention_names[kind], n_own);
}

/* Each layer's own embedding of a token. Missing, its width is not 0. */
static int read_inputs(const struct od_parse *p, uint32_t n_layers)
{
	const char *key = "hidden_size_per_layer_input", *vocab_key = "vocab_size_per_layer_input";
	uint32_t *width = &p->cfg->layer_input, vocab = p->cfg->vocab;
	int rc = od_json_u32_or(p->root, key, 0, OD_DIM_MAX / n_layers, 256, width, p->where, p->err);

	if (rc == OD_OK && *width > 0)
		rc = od_json_u32_or(p->root, vocab_key, 1, UINT32_MAX, 262144, &vocab, p->where, p->err);
	if (rc == OD_OK && vocab != p->cfg->vocab)
		rc = od_fail(p->err, OD_ERR_UNSUPPORTED, "%s: field \"%s\": expected \"vocab_size\" %u, found %u",
			     p->where, vocab_key, p->cfg->vocab, vocab);
	return rc;
}

static int add_layers(const struct od_parse *p, struct od_layer_spec *l)
{
	const uint32_t intermediate = l->shared_intermediate;
	struct od_mixer mix[N_ATTENTION] = { { .window = 0 } };
	uint32_t n_layers, n_shared = 0, wide = 0, window;
	int rc = od_parse_layers(p, &n_layers);

	if (rc == OD_OK)
		rc = od_json_u32_or(p->root, "sliding_window", 1, UINT32_MAX, 512, &window, p->where, p->err);
	if (rc == OD_OK)
		rc = read_inputs(p, n_layers);
	if (rc == OD_OK)
		rc = read_sharing(p, n_layers, intermediate, &n_shared, &wide);
	for (int kind = 0; rc == OD_OK && kind < N_ATTENTION; kind++) {
		rc = read_heads(p, (enum attention)kind, n_layers, &mix[kind]);
		if (rc == OD_OK)
			rc = read_rope(p, (enum attention)kind, mix[kind].k_dim, &mix[kind].rope);
		if (rc == OD_OK && kind == SLIDING)
			mix[kind].window = window;
	}
	for (uint32_t i = 0; rc == OD_OK && i < n_layers; i++) {
		const bool shares = i >= n_layers - n_shared;
		enum attention kind;

		rc = read_kind(p, i, n_layers, &kind);
		if (rc != OD_OK)
			return rc;
		l->mix = mix[kind];
		l->shared_intermediate = shares ? wide : intermediate;
		if (shares)
			rc = share_kv(p, kind, n_layers - n_shared, n_layers, &l->mix.kv_of);
		if (rc == OD_OK)
			rc = od_config_add_layer(p->cfg, l, p->err);
	}
	return rc;
}

static int parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	const struct od_parse p = { cfg, root, where, err };
	struct od_layer_spec l = { .mixer = &od_mixer_gqa };
	double cap = 0;
	int rc = refuse(&p);

	if (rc == OD_OK)
		rc = od_json_bool_or(root, "tie_word_embeddings", true, &cfg->tied_head, where, err);
	if (rc == OD_OK)
		/* transformers divides by it, 0 too */
		rc = od_json_f64_or(root, "final_logit_softcapping", 1e-6, 1e6, 0, &cap, where, err);
	cfg->logit_cap = (float)cap;
	cfg->embed_scale = (float)sqrt(cfg->hidden);
	cfg->act.kind = OD_ACT_GELU;
	if (rc == OD_OK)
		rc = read_experts(&p, &l);
	return rc == OD_OK ? add_layers(&p, &l) : rc;
}

static const char *const architectures[] = { "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", NULL };
static const char *const model_types[] = { "gemma4_text", "gemma4", NULL };
static const char *const other_modalities[] = { "model.vision_tower.", "model.embed_vision.", "model.audio_tower.",
						"model.embed_audio.", NULL };

const struct od_family od_family_gemma4 = {
	.name = "gemma4",
	.architectures = architectures,
	.model_types = model_types,
	.parse = parse,
	.names = {
		[OD_ROLE_FFN_NORM] = "pre_feedforward_layernorm_2.weight",
		[OD_ROLE_ROUTER] = "router.proj.weight",
		[OD_ROLE_SHARED_GATE] = "mlp.gate_proj.weight",
		[OD_ROLE_SHARED_UP] = "mlp.up_proj.weight",
		[OD_ROLE_SHARED_DOWN] = "mlp.down_proj.weight",
	},
	.experts = "experts",
	.stacked_gate_up = "experts.gate_up_proj",
	.stacked_down = "experts.down_proj",
	.text_type = "gemma4_text",
	.other_modalities = other_modalities,
};
