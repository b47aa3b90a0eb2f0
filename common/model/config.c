#include "common/model/config.h"

#include "common/base/json.h"
#include "common/base/mem.h"
#include "common/base/strbuf.h"
#include "common/compute/dtype.h"
#include "common/model/family.h"
#include "common/model/mixer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CONFIG_MAX_BYTES (16u << 20) /* quantization_config may list each matrix of each expert */
#define DIM_MAX (1u << 20)
#define VOCAB_MAX (1u << 24)
#define CTX_MAX (1u << 20) /* RoPE angles stay below od_sincos's bound */
#define WEIGHTS_MAX (1ull << 48) /* so that byte counts of the whole model fit in 64 bits with room to spare */

static int read_family(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	const char *architecture = NULL, *model_type = NULL;
	char known[512];
	json_t *list;
	int rc;

	if (od_json_has(root, "architectures")) {
		rc = od_json_arr(root, "architectures", &list, where, err);
		if (rc != OD_OK)
			return rc;
		architecture = json_string_value(json_array_get(list, 0));
		if (architecture == NULL)
			return od_fail(err, OD_ERR_FORMAT, "%s: field \"architectures\": expected a list of names",
				       where);
	}
	if (od_json_has(root, "model_type")) {
		rc = od_json_str(root, "model_type", &model_type, where, err);
		if (rc != OD_OK)
			return rc;
	}
	cfg->family = od_family_find(architecture, model_type);
	if (cfg->family != NULL)
		return OD_OK;
	if (od_family_missing(model_type) != NULL)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "%s: no known model family: a \"%.64s\" model has %s, which od-moe does not "
			       "have",
			       where, model_type, od_family_missing(model_type));
	od_family_list(known, sizeof(known));
	return od_fail(err, OD_ERR_UNSUPPORTED,
		       "%s: no known model family: architecture \"%.64s\", model_type "
		       "\"%.64s\"; known: %s",
		       where, architecture != NULL ? architecture : "(none)",
		       model_type != NULL ? model_type : "(none)", known);
}

static int read_token(const json_t *v, const char *key, uint32_t vocab, int32_t *out, const char *where,
		      struct od_err *err)
{
	json_int_t id = json_integer_value(v);

	if (!json_is_integer(v))
		return od_fail(err, OD_ERR_FORMAT, "%s: field \"%s\": expected a token id", where, key);
	if (id < 0 || id >= (json_int_t)vocab)
		return od_fail(err, OD_ERR_RANGE, "%s: field \"%s\": expected 0 to %u (vocab_size - 1), found %lld",
			       where, key, vocab - 1, (long long)id);
	*out = (int32_t)id;
	return OD_OK;
}

static bool is_eos(const struct od_config *cfg, int32_t id)
{
	for (uint32_t i = 0; i < cfg->n_eos; i++) {
		if (cfg->eos[i] == id)
			return true;
	}
	return false;
}

int od_config_add_eos(struct od_config *cfg, const json_t *obj, const char *where, struct od_err *err)
{
	const json_t *eos = json_object_get(obj, "eos_token_id");
	size_t n = json_is_array(eos) ? json_array_size(eos) : 1;

	if (eos == NULL || json_is_null(eos))
		return OD_OK;
	for (size_t i = 0; i < n; i++) {
		int32_t id;
		int rc = read_token(json_is_array(eos) ? json_array_get(eos, i) : eos, "eos_token_id", cfg->vocab, &id,
				    where, err);

		if (rc != OD_OK)
			return rc;
		if (is_eos(cfg, id))
			continue;
		if (cfg->n_eos == OD_MAX_EOS)
			return od_fail(err, OD_ERR_UNSUPPORTED,
				       "%s: field \"eos_token_id\": expected at most %d ids, "
				       "those of config.json included, found %d more",
				       where, OD_MAX_EOS, (int)(n - i));
		cfg->eos[cfg->n_eos++] = id;
	}
	return OD_OK;
}

static int read_special_tokens(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	int rc = OD_OK;

	cfg->bos = -1;
	if (od_json_has(root, "bos_token_id"))
		rc = read_token(json_object_get(root, "bos_token_id"), "bos_token_id", cfg->vocab, &cfg->bos, where,
				err);
	return rc == OD_OK ? od_config_add_eos(cfg, root, where, err) : rc;
}

/* Reads the settings that have one name in every family. */
static int read_common(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	const struct {
		const char *key;
		uint32_t max, *out;
	} field[] = {
		{ "hidden_size", DIM_MAX, &cfg->hidden },
		{ "vocab_size", VOCAB_MAX, &cfg->vocab },
		{ "max_position_embeddings", CTX_MAX, &cfg->ctx_max },
	};
	double eps = cfg->family->rms_eps;
	const bool must = eps == 0 || json_object_get(root, "rms_norm_eps") != NULL;
	int rc = OD_OK;

	for (size_t i = 0; i < sizeof(field) / sizeof(field[0]) && rc == OD_OK; i++)
		rc = od_json_u32(root, field[i].key, 1, field[i].max, field[i].out, where, err);
	if (rc == OD_OK && must)
		rc = od_json_f64(root, "rms_norm_eps", 0, 1, &eps, where, err);
	if (rc == OD_OK)
		rc = od_json_bool_or(root, "tie_word_embeddings", false, &cfg->tied_head, where, err);
	if (rc == OD_OK)
		rc = read_special_tokens(cfg, root, where, err);
	if (rc == OD_OK)
		cfg->rms_eps = (float)eps;
	return rc;
}

/* Weights under one scale, across or down; null and -1: all. From the shape of the scales only a power of two can be
 * told (pack/source.h): 96 would be taken for 128. */
static int check_extent(const json_t *v, json_int_t least, const char *key, const char *where, struct od_err *err)
{
	const json_int_t n = json_integer_value(v);

	if (!json_is_integer(v) || n == -1 || (n >= least && (n & (n - 1)) == 0))
		return OD_OK;
	return od_fail(err, OD_ERR_UNSUPPORTED,
		       "%s: field \"%s\": expected a power of two of at least %lld, found %lld", where, key,
		       (long long)least, (long long)n);
}

/* A number of a row's weights, or [down, across]. */
static int check_block(const json_t *o, const char *key, const char *where, struct od_err *err)
{
	const json_t *v = json_object_get(o, key);
	int rc;

	if (!json_is_array(v))
		return check_extent(v, 16, key, where, err);
	rc = check_extent(json_array_get(v, 0), 1, key, where, err);
	return rc == OD_OK ? check_extent(json_array_get(v, 1), 16, key, where, err) : rc;
}

/* gpt-oss' own way (Open Compute Project, Microscaling Formats 1.0): blocks of 32 under one power of two, which nothing
 * can change. The other fields say how a program should load them. */
static int check_mxfp4(const json_t *q, const char *key, const char *where, struct od_err *err)
{
	static const char *const known[] = { "quant_method", "modules_to_not_convert", "dequantize" };
	const char *name;
	json_t *value;

	json_object_foreach((json_t *)q, name, value)
	{
		size_t i = 0;

		while (i < sizeof(known) / sizeof(known[0]) && strcmp(name, known[i]) != 0)
			i++;
		if (i == sizeof(known) / sizeof(known[0]))
			return od_fail(err, OD_ERR_UNSUPPORTED,
				       "%s: field \"%s\": field \"%.64s\" is not supported with "
				       "quant_method \"mxfp4\"",
				       where, key, name);
	}
	return OD_OK;
}

/* How weights of 8 and 4 bits are scaled is seen from the tensors; here only that it is one of the ways which are
 * looked for there. */
static int read_quantization(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	static const char *const known[] = { "compressed-tensors", "fp8", "mxfp4" };
	const char *key = od_json_has(root, "compression_config") ? "compression_config" : "quantization_config", *name;
	const json_t *q = json_object_get(root, key);
	const char *method = json_string_value(json_object_get(q, "quant_method"));
	const size_t n_known = cfg->family->mxfp4 ? 3 : 2;
	json_t *group;
	size_t i = 0;
	int rc;

	if (od_json_has(root, "quantization"))
		return od_fail(
			err, OD_ERR_UNSUPPORTED,
			"%s: field \"quantization\": expected none: weights as MLX packs them are not supported; "
			"use another publication of the model, or the one in BF16",
			where);
	if (!od_json_has(root, key))
		return OD_OK;
	while (i < n_known && (method == NULL || strcmp(method, known[i]) != 0))
		i++;
	if (i == n_known)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "%s: field \"%s\": expected quant_method \"compressed-tensors\"%s, found "
			       "%s%.64s%s: use a publication of the model in such a format, or in BF16",
			       where, key, n_known > 2 ? ", \"fp8\" or \"mxfp4\"" : " or \"fp8\"",
			       method != NULL ? "\"" : "none", method != NULL ? method : "",
			       method != NULL ? "\"" : "");
	if (json_object_size(json_object_get(json_object_get(q, "transform_config"), "config_groups")) > 0)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "%s: field \"%s\": expected no transform_config; rotated weights are not "
			       "supported",
			       where, key);
	cfg->scaled = true;
	if (strcmp(method, "mxfp4") == 0)
		return check_mxfp4(q, key, where, err);
	rc = check_block(q, "weight_block_size", where, err);
	if (rc == OD_OK)
		for (size_t k = 0; k < 2; k++) {
			const json_int_t n =
				json_integer_value(json_array_get(json_object_get(q, "weight_block_size"), k));

			cfg->scale_block[k] = n > 0 && n <= UINT32_MAX ? (uint32_t)n : 0;
		}
	json_object_foreach(json_object_get(q, "config_groups"), name, group)
	{
		const json_t *weights = json_object_get(group, "weights");

		if (rc == OD_OK)
			rc = check_block(weights, "group_size", where, err);
		if (rc == OD_OK)
			rc = check_block(weights, "block_structure", where, err);
	}
	return rc;
}

/* ---- layers ---- */

int od_config_add_rope(struct od_config *cfg, const struct od_rope *rope, uint32_t *index, struct od_err *err)
{
	*index = cfg->n_ropes;
	if (cfg->n_ropes == OD_MAX_ROPES)
		return od_fail(err, OD_ERR_UNSUPPORTED, "rotary embeddings: expected at most %d different ones",
			       OD_MAX_ROPES);
	if (rope->short_ctx != 0 && od_config_short_ctx(cfg) != UINT32_MAX &&
	    rope->short_ctx != od_config_short_ctx(cfg))
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "rotary embeddings: expected one original context, found %u and %u",
			       od_config_short_ctx(cfg), rope->short_ctx);
	cfg->rope[cfg->n_ropes++] = *rope;
	return OD_OK;
}

/* Reals as their bits: decimal text depends on the locale and on how many digits one prints. */
static uint64_t bits_of(double x)
{
	uint64_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

static void rope_text(const struct od_rope *r, struct od_strbuf *out)
{
	od_strbuf_printf(out, " dims=%u neighbours=%d theta=%016" PRIx64 " magnitude=%08" PRIx32, r->dims,
			 r->neighbours, bits_of(r->theta), od_f32_bits(r->magnitude));
	if (r->factor != 0)
		od_strbuf_printf(
			out, " factor=%016" PRIx64 " beta_fast=%016" PRIx64 " beta_slow=%016" PRIx64 " original_ctx=%u",
			bits_of(r->factor), bits_of(r->beta_fast), bits_of(r->beta_slow), r->original_ctx);
	/* Later settings: without them the text is as it was. */
	if (r->between)
		od_strbuf_printf(out, " between=1");
	if (r->pairs != 0)
		od_strbuf_printf(out, " pairs=%u", r->pairs);
	if (r->divisor != 0)
		od_strbuf_printf(out, " divisor=%016" PRIx64, bits_of(r->divisor));
	if (r->short_ctx == 0)
		return;
	od_strbuf_printf(out, " short_ctx=%u long_magnitude=%08" PRIx32, r->short_ctx, od_f32_bits(r->long_magnitude));
	for (uint32_t set = 0; set < 2; set++) {
		od_strbuf_printf(out, set == 0 ? " short_factors=" : " long_factors=");
		for (uint32_t i = 0; i < r->dims / 2; i++)
			od_strbuf_printf(out, "%s%08" PRIx32, i > 0 ? "," : "", od_f32_bits(r->pair_factor[set][i]));
	}
}

/* Adds only settings that routers of the first families did not have, so that packs of these keep their
 * fingerprints. */
static void router_text(const struct od_router_spec *r, struct od_strbuf *out)
{
	static const char *const score[] = { [OD_SCORE_SOFTMAX] = "softmax",
					     [OD_SCORE_SIGMOID] = "sigmoid",
					     [OD_SCORE_LOGIT] = "logit",
					     [OD_SCORE_MIXER] = "mixer" };

	if (r->score != OD_SCORE_SOFTMAX || r->bias || r->group_two || r->sum_eps != 0)
		od_strbuf_printf(out, " score=%s router_bias=%d group_two=%d sum_eps=%08" PRIx32, score[r->score],
				 r->bias, r->group_two, od_f32_bits(r->sum_eps));
	if (r->logit_bias)
		od_strbuf_printf(out, " logit_bias=1");
	if (r->norm || r->factors || r->logit_scale != 0)
		od_strbuf_printf(out, " router_norm=%d factors=%d logit_scale=%08" PRIx32, r->norm, r->factors,
				 od_f32_bits(r->logit_scale));
	if (r->band != 0)
		od_strbuf_printf(out, " band=%08" PRIx32, od_f32_bits(r->band));
}

/* All of a layer that changes results; layers of the same text are of one kind. */
static void layer_text(const struct od_layer_spec *l, struct od_strbuf *out)
{
	const struct od_mixer *m = &l->mix;

	od_strbuf_printf(out,
			 " mixer=%s heads=%u kv_heads=%u k_dim=%u v_dim=%u window=%u scale=%08" PRIx32
			 " rope=%u qkv_bias=%d "
			 "o_bias=%d qk_norm=%d norm_eps=%08" PRIx32 " clip=%08" PRIx32 " nope=%u q_rank=%u kv_rank=%u",
			 l->mixer->name, m->n_heads, m->n_kv_heads, m->k_dim, m->v_dim, m->window,
			 od_f32_bits(m->scale), m->rope, m->qkv_bias, m->o_bias, m->qk_norm, od_f32_bits(m->norm_eps),
			 od_f32_bits(m->clip), m->nope_dim, m->q_rank, m->kv_rank);
	if (m->sinks) /* a later setting, as `between` */
		od_strbuf_printf(out, " sinks=1");
	if (m->gated)
		od_strbuf_printf(out, " gated=1");
	if (m->conv > 0)
		od_strbuf_printf(out, " conv=%u by_key_head=%d%s", m->conv, m->by_key_head, m->tiled ? " tiled=1" : "");
	if (m->kv_apart)
		od_strbuf_printf(out, " kv_apart=1");
	if (m->v_norm || m->v_is_k)
		od_strbuf_printf(out, " v_norm=%d v_is_k=%d", m->v_norm, m->v_is_k);
	if (m->kv_of != 0)
		od_strbuf_printf(out, " kv_of=%u", m->kv_of - 1);
	if (l->sandwich || l->scaled)
		od_strbuf_printf(out, " sandwich=%d scaled=%d", l->sandwich, l->scaled);
	if (l->ffn == OD_FFN_DENSE) {
		od_strbuf_printf(out, " dense=%u", l->intermediate);
	} else {
		od_strbuf_printf(
			out, " groups=%u top_groups=%u renormalise=%d weight=%08" PRIx32 " shared=%u shared_gate=%d",
			l->router.n_groups, l->router.top_groups, l->router.renormalise, od_f32_bits(l->router.scale),
			l->shared_intermediate, l->shared_gate);
		router_text(&l->router, out);
	}
}

static bool same_kind(const struct od_layer_spec *a, const struct od_layer_spec *b)
{
	struct od_strbuf x = { 0 }, y = { 0 };
	bool same;

	layer_text(a, &x);
	layer_text(b, &y);
	same = !x.failed && !y.failed && strcmp(x.text, y.text) == 0;
	od_strbuf_fini(&x);
	od_strbuf_fini(&y);
	return same;
}

int od_config_add_layer(struct od_config *cfg, const struct od_layer_spec *spec, struct od_err *err)
{
	struct od_layer_spec l = *spec;
	uint32_t kind = 0;

	if (l.ffn == OD_FFN_MOE) {
		l.intermediate = 0;
	} else {
		l.router = (struct od_router_spec){ 0 };
		l.shared_intermediate = 0;
		l.shared_gate = l.sandwich = l.scaled = false;
	}
	while (kind < cfg->n_kinds && !same_kind(&cfg->kind[kind], &l))
		kind++;
	if (cfg->n_layers == OD_MAX_LAYERS || kind == OD_MAX_LAYER_KINDS)
		return od_fail(err, OD_ERR_UNSUPPORTED, "layer %u: expected at most %d layers of at most %d kinds",
			       cfg->n_layers, OD_MAX_LAYERS, OD_MAX_LAYER_KINDS);
	if (kind == cfg->n_kinds)
		cfg->kind[cfg->n_kinds++] = l;
	cfg->kind_of[cfg->n_layers] = (uint8_t)kind;
	cfg->m_of[cfg->n_layers] = (uint16_t)cfg->n_moe;
	if (l.ffn == OD_FFN_MOE)
		cfg->layer_of[cfg->n_moe++] = (uint16_t)cfg->n_layers;
	cfg->n_layers++;
	return OD_OK;
}

int od_config_set_prior(struct od_config *cfg, const struct od_cache_prior *prior, struct od_err *err)
{
	if (!(prior->lambda >= 0 && prior->lambda <= 1))
		return od_fail(err, OD_ERR_RANGE, "routing: lambda: expected 0 to 1, found %g", (double)prior->lambda);
	if (prior->recent > cfg->n_experts)
		return od_fail(err, OD_ERR_RANGE, "routing: experts that count as cached: expected 1 to %u, found %u",
			       cfg->n_experts, prior->recent);
	if (prior->keep > cfg->top_k)
		return od_fail(err, OD_ERR_RANGE, "routing: experts that are kept: expected 0 to %u (top-k), found %u",
			       cfg->top_k, prior->keep);
	cfg->prior = *prior;
	cfg->prior.lambda += 0.0f; /* -0 */
	return OD_OK;
}

struct od_cache_prior od_config_prior(const struct od_config *cfg, float lambda)
{
	return (struct od_cache_prior){ .recent = cfg->n_experts > 1 ? cfg->n_experts / 2 : 1,
					.keep = cfg->top_k > 2 ? 2 : cfg->top_k - 1,
					.lambda = lambda };
}

const char *od_config_routing(const struct od_config *cfg, char buf[OD_ROUTING_CHARS])
{
	if (cfg->prior.recent == 0)
		snprintf(buf, OD_ROUTING_CHARS, "router");
	else
		for (int digits = 6; digits <= 9; digits++) { /* as many as tell it from other numbers */
			snprintf(buf, OD_ROUTING_CHARS, "cache-prior:%.*g:%u:%u", digits, (double)cfg->prior.lambda,
				 cfg->prior.keep, cfg->prior.recent);
			if (strtof(buf + strlen("cache-prior:"), NULL) == cfg->prior.lambda)
				break;
		}
	return buf;
}

int od_config_take_layers(struct od_config *cfg, uint32_t begin, uint32_t end, struct od_err *err)
{
	if (begin >= end || end > cfg->n_layers)
		return od_fail(err, OD_ERR_RANGE, "layers %u-%u: expected layers of 0-%u, the first one first", begin,
			       end - 1, cfg->n_layers - 1);
	for (uint32_t i = begin; i < end; i++) {
		const uint32_t kv_of = od_config_layer(cfg, i)->mix.kv_of;

		if (kv_of != 0 && kv_of - 1 < begin)
			return od_fail(err, OD_ERR_UNSUPPORTED,
				       "layers %u-%u: layer %u attends to the keys of layer %u, so both must be "
				       "in one part",
				       begin, end - 1, i, kv_of - 1);
	}
	cfg->held.begin = begin;
	cfg->held.end = end;
	return OD_OK;
}

void od_config_moe_held(const struct od_config *cfg, uint32_t *begin, uint32_t *end)
{
	*begin = 0;
	while (*begin < cfg->n_moe && cfg->layer_of[*begin] < od_config_begin(cfg))
		++*begin;
	*end = *begin;
	while (*end < cfg->n_moe && cfg->layer_of[*end] < od_config_end(cfg))
		++*end;
}

/* Each dimension is bounded; all of them together could still describe 2^66 weights. */
static int check_size(const struct od_config *cfg, const char *where, struct od_err *err)
{
	uint64_t n = 0, n_out, n_in, size;
	bool fits = true;

	for (int mat = 0; mat < od_expert_tensors(cfg); mat++) {
		od_expert_mat_shape(cfg, (enum od_expert_mat)mat, &n_out, &n_in);
		fits = fits && od_mul(n_out, n_in, &size) && od_mul(size, cfg->n_experts, &size) &&
		       od_mul(size, cfg->n_moe, &size) && od_add(n, size, &n);
	}
	for (uint32_t layer = 0; layer < cfg->n_layers; layer++)
		for (int role = 0; role < OD_N_ROLES; role++) {
			if (layer > 0 && !od_role_per_layer((enum od_role)role))
				continue;
			od_role_shape(cfg, (enum od_role)role, layer, &n_out, &n_in);
			fits = fits && od_mul(n_out, n_in == 0 ? 1 : n_in, &size) && od_add(n, size, &n);
		}
	if (!fits || n > WEIGHTS_MAX)
		return od_fail(err, OD_ERR_RANGE,
			       "%s: expected at most 2^48 weights in all, found more "
			       "(%u layers, %u experts, hidden_size %u, intermediate_size %u)",
			       where, cfg->n_layers, cfg->n_experts, cfg->hidden, cfg->intermediate);
	return OD_OK;
}

/* The text part's own model_type may be missing; transformers would read another one's fields with other defaults. */
static int check_text_type(const struct od_config *cfg, const json_t *root, const json_t *text, const char *where,
			   struct od_err *err)
{
	const char *outer = json_string_value(json_object_get(root, "model_type")), *expected = cfg->family->text_type,
		   *found = expected;
	char inside[1024];
	int rc = OD_OK;

	if (expected == NULL || (outer != NULL && strcmp(outer, expected) == 0))
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: field \"text_config\": expected none in a %s model", where,
			       outer != NULL ? outer : cfg->family->name);
	snprintf(inside, sizeof(inside), "%s: field \"text_config\"", where);
	if (od_json_has(text, "model_type"))
		rc = od_json_str(text, "model_type", &found, inside, err);
	if (rc == OD_OK && strcmp(found, expected) != 0)
		rc = od_fail(err, OD_ERR_UNSUPPORTED,
			     "%s: field \"model_type\": expected \"%s\" in a \"%s\" model, found \"%.64s\"", inside,
			     expected, outer != NULL ? outer : cfg->family->name, found);
	return rc;
}

/* Finds the object that describes the text model of a multimodal one. Tokens that end a text, and whether the head is
 * tied, may stand outside it. */
static int find_text(struct od_config *cfg, const json_t *root, const json_t **text, const char *where,
		     struct od_err *err)
{
	const char *key = "text_config";
	json_t *inner;
	int rc;

	*text = root;
	if (!od_json_has(root, key))
		return OD_OK;
	rc = od_json_obj(root, key, &inner, where, err);
	if (rc == OD_OK)
		rc = check_text_type(cfg, root, inner, where, err);
	if (rc == OD_OK)
		*text = inner;
	cfg->multimodal = rc == OD_OK;
	return rc;
}

static int parse_family(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	int rc = cfg->family->parse(cfg, root, where, err);

	if (rc == OD_OK && cfg->n_moe == 0)
		rc = od_fail(err, OD_ERR_UNSUPPORTED,
			     "%s: none of the %u layers has routed experts: expected at least one", where,
			     cfg->n_layers);
	return rc;
}

/* A GGUF file, and a pack made of one, has some weights in another form, as llama.cpp's converter writes them:
 * docs/GGUF.md. */
static int read_gguf(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	const char *key = "gguf";
	json_t *gguf;
	bool apart = false, by_key_head = false;
	int rc;

	if (!od_json_has(root, key))
		return OD_OK;
	rc = od_json_obj(root, key, &gguf, where, err);
	if (rc == OD_OK)
		rc = od_json_bool_or(gguf, "kv_apart", false, &apart, where, err);
	if (rc == OD_OK)
		rc = od_json_bool_or(gguf, "by_key_head", false, &by_key_head, where, err);
	if (rc == OD_OK)
		rc = od_json_u32_or(root, "num_nextn_predict_layers", 0, OD_MAX_LAYERS, cfg->n_mtp, &cfg->n_mtp, where,
				    err);
	cfg->norms_around_one = false; /* 1 has been added */
	for (uint32_t i = 0; i < cfg->n_kinds; i++) {
		struct od_mixer *m = &cfg->kind[i].mix;

		m->tiled = cfg->kind[i].mixer == &od_mixer_delta && !m->by_key_head;
		m->by_key_head = m->by_key_head && by_key_head; /* early files of Qwen3-Next have it as published */
		m->kv_apart = cfg->kind[i].mixer == &od_mixer_mla && apart;
	}
	return rc;
}

int od_config_parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	const json_t *text = root;
	int rc;

	memset(cfg, 0, sizeof(*cfg));
	rc = read_family(cfg, root, where, err);
	if (rc == OD_OK)
		rc = find_text(cfg, root, &text, where, err);
	if (rc == OD_OK)
		rc = read_common(cfg, text, where, err);
	if (rc == OD_OK && text != root)
		rc = od_config_add_eos(cfg, root, where, err);
	if (rc == OD_OK)
		rc = read_quantization(cfg, root, where, err);
	if (rc == OD_OK && text != root && !cfg->scaled)
		rc = read_quantization(cfg, text, where, err);
	if (rc == OD_OK)
		rc = parse_family(cfg, text, where, err);
	if (rc == OD_OK && text != root) /* it counts more than the one inside */
		rc = od_json_bool_or(root, "tie_word_embeddings", cfg->tied_head, &cfg->tied_head, where, err);
	if (rc == OD_OK)
		rc = read_gguf(cfg, root, where, err);
	if (rc == OD_OK)
		rc = check_size(cfg, where, err);
	if (rc != OD_OK)
		memset(cfg, 0, sizeof(*cfg));
	return rc;
}

int od_config_load(struct od_config *cfg, const char *path, struct od_err *err)
{
	json_t *root;
	int rc;

	memset(cfg, 0, sizeof(*cfg));
	rc = od_json_load(path, CONFIG_MAX_BYTES, &root, err);
	if (rc != OD_OK)
		return rc;
	rc = od_config_parse(cfg, root, path, err);
	json_decref(root);
	return rc;
}

static void act_text(const struct od_act_spec *a, struct od_strbuf *out)
{
	switch (a->kind) {
	case OD_ACT_SILU: break; /* the first families' activation */
	case OD_ACT_GELU: od_strbuf_printf(out, " act=gelu"); break;
	case OD_ACT_CLAMPED: od_strbuf_printf(out, " act=clamped limit=%08" PRIx32, od_f32_bits(a->limit)); break;
	}
}

int od_config_canonical(const struct od_config *cfg, struct od_strbuf *out, struct od_err *err)
{
	od_strbuf_printf(out,
			 "family=%s hidden=%u vocab=%u experts=%u top_k=%u intermediate=%u rms_eps=%08" PRIx32
			 " tied_head=%d",
			 cfg->family->name, cfg->hidden, cfg->vocab, cfg->n_experts, cfg->top_k, cfg->intermediate,
			 od_f32_bits(cfg->rms_eps), cfg->tied_head);
	if (cfg->expert_bias) /* a later setting, as those of layers */
		od_strbuf_printf(out, " expert_bias=1");
	act_text(&cfg->act, out);
	if (cfg->norm != OD_NORM_RMS || cfg->head_bias) /* later settings: without them the text is as it was */
		od_strbuf_printf(out, " norm=%s head_bias=%d", cfg->norm == OD_NORM_LAYER ? "layer" : "rms",
				 cfg->head_bias);
	if (cfg->norms_around_one)
		od_strbuf_printf(out, " norms_around_one=1");
	if (cfg->embed_scale != 0 || cfg->logit_cap != 0)
		od_strbuf_printf(out, " embed_scale=%08" PRIx32 " logit_cap=%08" PRIx32, od_f32_bits(cfg->embed_scale),
				 od_f32_bits(cfg->logit_cap));
	if (cfg->layer_input != 0)
		od_strbuf_printf(out, " layer_input=%u", cfg->layer_input);
	for (uint32_t i = 0; i < cfg->n_ropes; i++) {
		od_strbuf_printf(out, "; rope %u:", i);
		rope_text(&cfg->rope[i], out);
	}
	for (uint32_t i = 0; i < cfg->n_kinds; i++) {
		od_strbuf_printf(out, "; kind %u:", i);
		layer_text(&cfg->kind[i], out);
	}
	od_strbuf_printf(out, "; layers");
	for (uint32_t i = 0; i < cfg->n_layers; i++)
		od_strbuf_printf(out, " %u", cfg->kind_of[i]);
	return !out->failed ? OD_OK : od_fail(err, OD_ERR_NOMEM, "no memory for the configuration's text");
}
