#include "common/pack/gguf/gguf_config.h"

#include "common/model/config.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES 96
#define NONE UINT64_MAX

/* A file that is read, and the configuration that is made of it. */
struct gguf_model {
	const struct od_gguf *g;
	const struct gguf_arch *arch;
	json_t *out;
	uint32_t n_layers; /* without those that predict further tokens */
	uint32_t n_blocks; /* with them */
	uint64_t n_heads, hidden;
	int rc; /* the first failure; nothing is read after it */
	struct od_err *err;
};

struct gguf_arch {
	const char *name; /* general.architecture */
	const char *model_type, *architecture; /* config.json's */
	void (*read)(struct gguf_model *m);
};

static bool failed(struct gguf_model *m, int rc)
{
	if (m->rc == OD_OK)
		m->rc = rc;
	return m->rc != OD_OK;
}

/* The first failure's reason stays. */
#define refuse(m, ...) \
	do { \
		if ((m)->rc == OD_OK) \
			(m)->rc = od_fail((m)->err, __VA_ARGS__); \
	} while (0)

/* ---- Metadata ---- */

static void full_key(const struct gguf_model *m, const char *key, char buf[KEY_BYTES])
{
	snprintf(buf, KEY_BYTES, "%s.%s", m->arch->name, key);
}

static const struct od_gguf_value *value_of(const struct gguf_model *m, const char *key)
{
	char buf[KEY_BYTES];

	full_key(m, key, buf);
	return od_gguf_get(m->g, buf);
}

static bool is_integers(enum od_gguf_kind kind)
{
	return kind != OD_GGUF_F32 && kind != OD_GGUF_F64 && kind != OD_GGUF_STRING && kind != OD_GGUF_BOOL &&
	       kind != OD_GGUF_ARRAY;
}

/* Checks an array that has a value for each layer (MTP layers included or not): of integers, or of booleans. */
static bool check_layers(struct gguf_model *m, const char *key, const struct od_gguf_value *v, bool of_bools)
{
	const bool known = (of_bools && v->of == OD_GGUF_BOOL) || is_integers(v->of);

	if (m->rc == OD_OK && (!known || v->n < m->n_layers || v->n > m->n_blocks))
		refuse(m, OD_ERR_FORMAT,
		       "%s: key %s.%s: expected an array of %u %s, one for each layer, found %" PRIu64 "%s",
		       od_gguf_path(m->g), m->arch->name, key, m->n_layers, of_bools ? "booleans" : "integers", v->n,
		       known ? "" : " values of another kind");
	return m->rc == OD_OK;
}

/* An array that has a value for each layer. Layers that do not need one have 0; all others must have the same. */
static uint64_t get_shared_int(struct gguf_model *m, const char *key, const struct od_gguf_value *v)
{
	int64_t found = 0;

	if (!check_layers(m, key, v, false))
		return 0;
	for (uint32_t i = 0; i < m->n_layers; i++) {
		const int64_t x = od_gguf_int_at(v, i);

		if (x < 0 || x > INT32_MAX || (x != 0 && found != 0 && x != found)) {
			refuse(m, OD_ERR_UNSUPPORTED,
			       "%s: key %s.%s: expected the same number, 0 to %d, for all layers, found %" PRId64
			       " for layer %u after %" PRId64,
			       od_gguf_path(m->g), m->arch->name, key, INT32_MAX, x, i, found);
			return 0;
		}
		found = x != 0 ? x : found;
	}
	return (uint64_t)found;
}

/* The integer of a key, at least 0; `otherwise` where there is none (NONE: it must be there). llama.cpp also writes an
 * array with one for each layer. */
static uint64_t get_int(struct gguf_model *m, const char *key, uint64_t otherwise)
{
	const struct od_gguf_value *found = value_of(m, key);
	char buf[KEY_BYTES];
	uint64_t v = 0;

	if (m->rc != OD_OK)
		return 0;
	if (otherwise != NONE && found == NULL)
		return otherwise;
	if (found != NULL && found->kind == OD_GGUF_ARRAY && m->n_layers > 0)
		return get_shared_int(m, key, found);
	full_key(m, key, buf);
	failed(m, od_gguf_u64(m->g, buf, 0, INT32_MAX, &v, m->err));
	return m->rc == OD_OK ? v : 0;
}

/* A float as the double whose decimal digits are the fewest that give it: 1e-06 was one before it became a float. */
static double shortest(double d)
{
	const float f = (float)d;
	char text[40];

	for (int digits = 6; digits <= 9; digits++) {
		snprintf(text, sizeof(text), "%.*g", digits, d);
		if ((float)strtod(text, NULL) == f)
			return strtod(text, NULL);
	}
	return d;
}

static bool get_float(struct gguf_model *m, const char *key, double *out)
{
	char buf[KEY_BYTES];

	*out = 0;
	if (m->rc != OD_OK || value_of(m, key) == NULL)
		return false;
	full_key(m, key, buf);
	if (failed(m, od_gguf_f64(m->g, buf, out, m->err)))
		return false;
	if (!(fabs(*out) <= FLT_MAX)) {
		refuse(m, OD_ERR_RANGE, "%s: key %s: expected a finite number, found %g", od_gguf_path(m->g), buf,
		       *out);
		*out = 0;
		return false;
	}
	*out = shortest(*out);
	return true;
}

static bool flag(struct gguf_model *m, const char *key, bool otherwise)
{
	char buf[KEY_BYTES];
	bool v = otherwise;

	full_key(m, key, buf);
	if (m->rc == OD_OK && value_of(m, key) != NULL)
		failed(m, od_gguf_bool(m->g, buf, &v, m->err));
	return v;
}

/* ---- Fields ---- */

static void put(json_t *o, const char *key, json_t *v, struct gguf_model *m)
{
	if (json_object_set_new(o, key, v) != 0)
		refuse(m, OD_ERR_NOMEM, "%s: no memory for its configuration", od_gguf_path(m->g));
}

static void put_int(struct gguf_model *m, const char *field, uint64_t v)
{
	put(m->out, field, json_integer((json_int_t)v), m);
}

static void put_bool(struct gguf_model *m, const char *field, bool v)
{
	put(m->out, field, json_boolean(v), m);
}

static void put_text(struct gguf_model *m, const char *field, const char *v)
{
	put(m->out, field, json_string(v), m);
}

static void put_real(struct gguf_model *m, const char *field, double v)
{
	put(m->out, field, json_real(v), m);
}

/* The integer of a key, at least 1, as a field. */
static uint64_t copy_int(struct gguf_model *m, const char *key, const char *field)
{
	const uint64_t v = get_int(m, key, NONE);

	if (v == 0)
		refuse(m, OD_ERR_RANGE, "%s: key %s.%s: expected 1 to %d, found 0" OD_GGUF_OTHER, od_gguf_path(m->g),
		       m->arch->name, key, INT32_MAX);
	put_int(m, field, v);
	return v;
}

static void copy_int_if(struct gguf_model *m, const char *key, const char *field)
{
	if (value_of(m, key) != NULL)
		put_int(m, field, get_int(m, key, NONE));
}

static void copy_float_if(struct gguf_model *m, const char *key, const char *field)
{
	double v;

	if (get_float(m, key, &v))
		put_real(m, field, v);
}

/* ---- Tensors ---- */

static const struct od_gguf_tensor *in_layer(const struct gguf_model *m, uint32_t layer, const char *name)
{
	char buf[KEY_BYTES];

	snprintf(buf, sizeof(buf), "blk.%u.%s", layer, name);
	return od_gguf_find(m->g, buf);
}

/* The first layer that has the tensor. */
static const struct od_gguf_tensor *in_any(const struct gguf_model *m, const char *name)
{
	const struct od_gguf_tensor *t = NULL;

	for (uint32_t i = 0; t == NULL && i < m->n_layers; i++)
		t = in_layer(m, i, name);
	return t;
}

/* The stacked matrix down of a layer's experts; in old files the first expert's, because each has tensors of its
 * own. */
static const struct od_gguf_tensor *down_of(const struct gguf_model *m, uint32_t layer)
{
	const struct od_gguf_tensor *t = in_layer(m, layer, "ffn_down_exps.weight");

	return t != NULL ? t : in_layer(m, layer, "ffn_down.0.weight");
}

static bool is_sparse(const struct gguf_model *m, uint32_t layer)
{
	return down_of(m, layer) != NULL;
}

/* Refuses a number that metadata and a tensor say differently. No key: nothing to compare. */
static void agree(struct gguf_model *m, const char *key, const struct od_gguf_tensor *t, uint64_t of_tensor)
{
	const uint64_t said = get_int(m, key, of_tensor);

	if (m->rc == OD_OK && said != of_tensor)
		refuse(m, OD_ERR_MISMATCH,
		       "%s: key %s.%s is %" PRIu64 ", but tensor %s has %" PRIu64
		       ": the file is damaged or was edited; get it again",
		       od_gguf_path(m->g), m->arch->name, key, said, t->name, of_tensor);
}

/* The width of the routed experts: down has rows of it. */
static uint64_t expert_width(struct gguf_model *m)
{
	const struct od_gguf_tensor *t = NULL;

	for (uint32_t i = 0; t == NULL && i < m->n_layers; i++)
		t = down_of(m, i);
	return t != NULL ? t->dim[0] : 0;
}

/* The width of the shared experts, all together. */
static uint64_t shared_width(struct gguf_model *m)
{
	const struct od_gguf_tensor *t = in_any(m, "ffn_down_shexp.weight");

	return t != NULL ? t->dim[0] : 0;
}

/* All layers with experts have the same number and width of them, as the metadata say. */
static void check_experts(struct gguf_model *m, const char *width_key)
{
	const uint64_t width = expert_width(m);

	for (uint32_t i = 0; m->rc == OD_OK && i < m->n_layers; i++) {
		const struct od_gguf_tensor *t = down_of(m, i);

		if (t == NULL)
			continue;
		if (t == in_layer(m, i, "ffn_down_exps.weight"))
			agree(m, "expert_count", t, t->dim[2]);
		agree(m, width_key, t, t->dim[0]);
		if (m->rc == OD_OK && t->dim[0] != width)
			refuse(m, OD_ERR_UNSUPPORTED,
			       "%s: tensor %s: expected experts as wide as those of the first layer, %" PRIu64
			       ", found %" PRIu64,
			       od_gguf_path(m->g), t->name, width, t->dim[0]);
	}
	if (m->rc == OD_OK && width == 0)
		refuse(m, OD_ERR_MISSING,
		       "%s: none of %u layers has a tensor blk.N.ffn_down_exps.weight: expected experts, as key "
		       "%s.expert_count says" OD_GGUF_OTHER,
		       od_gguf_path(m->g), m->n_layers, m->arch->name);
}

/* The layer's feed-forward network: of the metadata, and of the tensors of dense layers. */
static void put_dense_width(struct gguf_model *m)
{
	const struct od_gguf_tensor *t = in_any(m, "ffn_down.weight");

	if (t != NULL)
		agree(m, "feed_forward_length", t, t->dim[0]);
	/* Without dense layers it stands for nothing. */
	put_int(m, "intermediate_size", t != NULL ? t->dim[0] : 1);
}

static void put_shared_width(struct gguf_model *m)
{
	if (shared_width(m) > 0)
		agree(m, "expert_shared_feed_forward_length", in_any(m, "ffn_down_shexp.weight"), shared_width(m));
	put_int(m, "shared_expert_intermediate_size", shared_width(m));
}

static void put_bias(struct gguf_model *m, const char *field)
{
	put_bool(m, field, in_any(m, "attn_q.bias") != NULL || in_any(m, "attn_qkv.bias") != NULL);
}

/* Layers without experts, as a list of their numbers. */
static void put_dense_layers(struct gguf_model *m)
{
	json_t *list = json_array();

	put(m->out, "mlp_only_layers", list, m);
	for (uint32_t i = 0; m->rc == OD_OK && i < m->n_layers; i++)
		if (!is_sparse(m, i) && json_array_append_new(list, json_integer(i)) != 0)
			refuse(m, OD_ERR_NOMEM, "no memory for a list of layers");
}

/* ---- RoPE ---- */

static void put_theta(struct gguf_model *m, json_t *o)
{
	double theta;

	if (get_float(m, "rope.freq_base", &theta))
		put(o, "rope_theta", json_real(theta), m);
}

static void refuse_real(struct gguf_model *m, const char *key, const char *expected, double found)
{
	refuse(m, OD_ERR_UNSUPPORTED, "%s: key %s.%s: expected %s, found %g", od_gguf_path(m->g), m->arch->name, key,
	       expected, found);
}

/* The key is missing or has a value that changes nothing. */
static void check_real(struct gguf_model *m, const char *key, double neutral, double also)
{
	char expected[32];
	double v;

	snprintf(expected, sizeof(expected), "%g", neutral);
	if (get_float(m, key, &v) && v != neutral && v != also)
		refuse_real(m, key, expected, v);
}

/* llama.cpp's own default is linear scaling by a factor of 1. */
static bool is_yarn(struct gguf_model *m)
{
	const char *type = "linear";
	char key[KEY_BYTES], shown[OD_GGUF_SHOWN_BYTES];
	size_t len = strlen(type);

	full_key(m, "rope.scaling.type", key);
	if (m->rc == OD_OK && value_of(m, "rope.scaling.type") != NULL)
		failed(m, od_gguf_str(m->g, key, &type, &len, m->err));
	if (m->rc != OD_OK || (len == 4 && strncmp(type, "none", len) == 0))
		return false;
	if (len == 6 && strncmp(type, "linear", len) == 0) {
		check_real(m, "rope.scaling.factor", 1, 0);
		check_real(m, "rope.scale_linear", 1, 0); /* its old name */
		return false;
	}
	if (len == 4 && strncmp(type, "yarn", len) == 0)
		return true;
	refuse(m, OD_ERR_UNSUPPORTED,
	       "%s: key %s: expected \"yarn\", \"none\" or \"linear\" with a factor of 1, found \"%s\"",
	       od_gguf_path(m->g), key, od_gguf_shown(type, len, shown));
	return false;
}

/* o: where the fields of YaRN go, if the file has it. */
static bool put_yarn(struct gguf_model *m, json_t *o)
{
	static const struct {
		const char *key, *field;
	} reals[] = {
		{ "rope.scaling.factor", "factor" },
		{ "rope.scaling.yarn_beta_fast", "beta_fast" },
		{ "rope.scaling.yarn_beta_slow", "beta_slow" },
		{ "rope.scaling.yarn_attn_factor", "attention_factor" },
	};
	double v;

	check_real(m, "rope.scaling.attn_factor", 1, 1); /* a further factor: only Phi-3.5-MoE has one */
	if (!is_yarn(m))
		return false;
	check_real(m, "rope.scaling.yarn_ext_factor", 1, -1);
	put(o, "rope_type", json_string("yarn"), m);
	for (size_t i = 0; i < sizeof(reals) / sizeof(reals[0]); i++)
		if (get_float(m, reals[i].key, &v))
			put(o, reals[i].field, json_real(v), m);
	put(o, "original_max_position_embeddings",
	    json_integer(
		    (json_int_t)get_int(m, "rope.scaling.original_context_length", get_int(m, "context_length", NONE))),
	    m);
	/* It is 0.1 times the field, which multiplies a logarithm; the other field is the same in all models. */
	if (get_float(m, "rope.scaling.yarn_log_multiplier", &v) && v != 0) {
		put(o, "mscale", json_real(shortest(10 * v)), m);
		put(o, "mscale_all_dim", json_real(shortest(10 * v)), m);
	}
	return true;
}

static void put_rope(struct gguf_model *m)
{
	json_t *scaling = json_object();

	put_theta(m, m->out);
	if (put_yarn(m, scaling))
		put(m->out, "rope_scaling", scaling, m);
	else
		json_decref(scaling);
}

/* n of all as a fraction that gives n again when it is multiplied by all and cut to an integer. */
static double part_of(uint64_t n, uint64_t all)
{
	const double part = all > 0 ? (double)n / (double)all : 1;

	return (uint64_t)((double)all * part) < n ? nextafter(part, 1) : part;
}

/* The part of a head that turns, of head_dim elements. */
static double rotary_part(struct gguf_model *m, uint64_t head_dim)
{
	return part_of(get_int(m, "rope.dimension_count", head_dim), head_dim);
}

/* All elements of a head turn. */
static void check_rotary(struct gguf_model *m, const char *key, uint64_t head_dim)
{
	const uint64_t dims = get_int(m, key, head_dim);

	if (m->rc == OD_OK && dims != head_dim)
		refuse(m, OD_ERR_UNSUPPORTED, "%s: key %s.%s: expected the size of a head, %" PRIu64 ", found %" PRIu64,
		       od_gguf_path(m->g), m->arch->name, key, head_dim, dims);
}

/* The numbers of a vector; NULL: it is missing or of another type than F32, or there was a failure before. */
static json_t *numbers_of(struct gguf_model *m, const char *name)
{
	const struct od_gguf_tensor *t = od_gguf_find(m->g, name);
	json_t *list = NULL;
	float v[OD_MAX_ROPE_PAIRS];

	if (m->rc != OD_OK || t == NULL)
		return NULL;
	if (t->dtype != OD_F32 || t->dim[0] > OD_MAX_ROPE_PAIRS || t->bytes != t->dim[0] * sizeof(float)) {
		refuse(m, OD_ERR_SHAPE, "%s: tensor %s: expected up to %d F32, found %" PRIu64 " %s",
		       od_gguf_path(m->g), name, OD_MAX_ROPE_PAIRS, t->dim[0], t->type_name);
		return NULL;
	}
	if (failed(m, od_gguf_read(m->g, t, 0, v, t->bytes, m->err)))
		return NULL;
	list = json_array();
	for (uint64_t i = 0; i < t->dim[0]; i++) {
		if (isfinite(v[i]) && json_array_append_new(list, json_real(shortest((double)v[i]))) == 0)
			continue;
		refuse(m, OD_ERR_RANGE, "%s: tensor %s: number %" PRIu64 ": expected a finite one, found %g",
		       od_gguf_path(m->g), name, i, (double)v[i]);
		json_decref(list);
		return NULL;
	}
	return list;
}

/* Llama 3.1's scaling comes as divisors of frequencies; Mixtures with it are not supported. */
static void check_divisors(struct gguf_model *m)
{
	json_t *list = numbers_of(m, "rope_freqs.weight");

	for (size_t i = 0; i < json_array_size(list); i++)
		if (m->rc == OD_OK && json_number_value(json_array_get(list, i)) != 1)
			refuse(m, OD_ERR_UNSUPPORTED,
			       "%s: tensor rope_freqs.weight: expected 1 for every pair of a head, found %g "
			       "for pair %zu: RoPE scaled as in Llama 3.1 is not supported",
			       od_gguf_path(m->g), json_number_value(json_array_get(list, i)), i);
	json_decref(list);
}

/* A head turns as a whole, by frequencies as they are. */
static void check_whole_rope(struct gguf_model *m, uint64_t head_dim)
{
	check_rotary(m, "rope.dimension_count", head_dim);
	check_divisors(m);
}

/* ---- What all have ---- */

static uint64_t put_head_dim(struct gguf_model *m)
{
	const uint64_t dim = get_int(m, "attention.key_length", m->n_heads > 0 ? m->hidden / m->n_heads : 0);

	put_int(m, "head_dim", dim);
	return dim;
}

static void put_attention(struct gguf_model *m)
{
	m->n_heads = copy_int(m, "attention.head_count", "num_attention_heads");
	put_int(m, "num_key_value_heads", get_int(m, "attention.head_count_kv", m->n_heads));
}

/* Settings of other models of an architecture that change results and that no family here has. */
static void refuse_settings(struct gguf_model *m)
{
	static const char *const keys[] = {
		"attention.scale",
		"attention.temperature_scale",
		"attention.max_alibi_bias",
		"attention.indexer.head_count",
		"attn_logit_softcapping",
		"router_logit_softcapping",
		"logit_scale",
		"residual_scale",
		"embedding_scale",
		"swiglu_clamp_exp",
		"swiglu_clamp_shexp",
	};

	for (size_t i = 0; m->rc == OD_OK && i < sizeof(keys) / sizeof(keys[0]); i++) {
		const struct od_gguf_value *v = value_of(m, keys[i]);
		const double x = v != NULL && v->kind != OD_GGUF_ARRAY ? od_gguf_number_at(v, 0) : 0;

		if (v != NULL && (v->kind == OD_GGUF_ARRAY || (x != 0 && x != 1)))
			refuse(m, OD_ERR_UNSUPPORTED,
			       "%s: key %s.%s: expected none, 0 or 1 (no effect), found %s%g: a model with it "
			       "is not supported",
			       od_gguf_path(m->g), m->arch->name, keys[i],
			       v->kind == OD_GGUF_ARRAY ? "an array of " : "",
			       v->kind == OD_GGUF_ARRAY ? (double)v->n : x);
	}
	if (!flag(m, "attention.causal", true))
		refuse(m, OD_ERR_UNSUPPORTED, "%s: key %s.attention.causal: expected true, found false",
		       od_gguf_path(m->g), m->arch->name);
}

static void put_common(struct gguf_model *m)
{
	const struct od_gguf_tensor *embed = od_gguf_find(m->g, "token_embd.weight");
	const uint64_t blocks = get_int(m, "block_count", NONE), mtp = get_int(m, "nextn_predict_layers", 0);
	char key[KEY_BYTES];
	double eps;

	if (m->rc == OD_OK && (blocks == 0 || mtp >= blocks || blocks > OD_MAX_LAYERS))
		refuse(m, OD_ERR_RANGE,
		       "%s: key %s.block_count: expected 1 to %d layers, found %" PRIu64 ", of which %" PRIu64
		       " predict further tokens",
		       od_gguf_path(m->g), m->arch->name, OD_MAX_LAYERS, blocks, mtp);
	if (m->rc == OD_OK && embed == NULL)
		refuse(m, OD_ERR_MISSING, "%s: tensor token_embd.weight is missing" OD_GGUF_OTHER, od_gguf_path(m->g));
	if (m->rc == OD_OK && mtp > 0 && in_layer(m, 0, "attn_norm.weight") == NULL)
		refuse(m, OD_ERR_UNSUPPORTED,
		       "%s: a file with the layers alone that predict further tokens: name the file of the "
		       "whole model",
		       od_gguf_path(m->g));
	if (m->rc != OD_OK)
		return;
	refuse_settings(m);
	m->n_layers = (uint32_t)(blocks - mtp);
	m->n_blocks = (uint32_t)blocks;
	put(m->out, "architectures", json_pack("[s]", m->arch->architecture), m);
	put_text(m, "model_type", m->arch->model_type);
	put_int(m, "num_hidden_layers", m->n_layers);
	if (mtp > 0)
		put_int(m, "num_nextn_predict_layers", mtp);
	m->hidden = copy_int(m, "embedding_length", "hidden_size");
	agree(m, "embedding_length", embed, embed->dim[0]);
	agree(m, "vocab_size", embed, embed->dim[1]);
	copy_int(m, "context_length", "max_position_embeddings");
	put_int(m, "vocab_size", embed->dim[1]);
	put_bool(m, "tie_word_embeddings", od_gguf_find(m->g, "output.weight") == NULL);
	if (get_float(m, "attention.layer_norm_rms_epsilon", &eps) ||
	    get_float(m, "attention.layer_norm_epsilon", &eps)) {
		put_real(m, "rms_norm_eps", eps);
	} else if (m->rc == OD_OK) {
		full_key(m, "attention.layer_norm_rms_epsilon", key);
		failed(m, od_gguf_f64(m->g, key, &eps, m->err));
	}
}

enum gating { GATING_NONE, GATING_SOFTMAX, GATING_SIGMOID, GATING_CHOSEN_SOFTMAX };

/* How a router's numbers become weights; files of one kind need not say it. */
static void check_gating(struct gguf_model *m, enum gating expected)
{
	static const char *const names[] = { "none", "softmax", "sigmoid", "softmax of the chosen" };
	const uint64_t found = get_int(m, "expert_gating_func", GATING_NONE);

	if (m->rc == OD_OK && found != GATING_NONE && found != expected)
		refuse(m, OD_ERR_UNSUPPORTED, "%s: key %s.expert_gating_func: expected %d (%s), found %" PRIu64,
		       od_gguf_path(m->g), m->arch->name, (int)expected, names[expected], found);
}

static void put_experts(struct gguf_model *m, const char *n_field, const char *width_field)
{
	/* Some have no key for the experts' width alone. */
	check_experts(m, value_of(m, "expert_feed_forward_length") != NULL ||
					 strcmp(width_field, "intermediate_size") != 0 ?
				 "expert_feed_forward_length" :
				 "feed_forward_length");
	copy_int(m, "expert_count", n_field);
	copy_int(m, "expert_used_count", "num_experts_per_tok");
	put_int(m, width_field, expert_width(m));
}

/* ---- Architectures ---- */

static void read_llama(struct gguf_model *m)
{
	put_attention(m);
	check_whole_rope(m, put_head_dim(m));
	check_gating(m, GATING_SOFTMAX);
	put_bias(m, "attention_bias");
	put_experts(m, "num_local_experts", "intermediate_size");
	put_rope(m);
}

static void read_qwen2moe(struct gguf_model *m)
{
	put_attention(m);
	check_whole_rope(m, put_head_dim(m));
	check_gating(m, GATING_SOFTMAX);
	put_experts(m, "num_experts", "moe_intermediate_size");
	put_dense_width(m);
	put_shared_width(m);
	put_bool(m, "norm_topk_prob", false);
	put_bias(m, "qkv_bias");
	put_dense_layers(m);
	put_rope(m);
}

static void read_qwen3moe(struct gguf_model *m)
{
	put_attention(m);
	check_whole_rope(m, put_head_dim(m));
	check_gating(m, GATING_SOFTMAX);
	put_experts(m, "num_experts", "moe_intermediate_size");
	put_dense_width(m);
	put_bool(m, "norm_topk_prob", true);
	put_bias(m, "attention_bias");
	put_dense_layers(m);
	put_rope(m);
}

static void read_olmoe(struct gguf_model *m)
{
	put_attention(m);
	check_whole_rope(m, put_head_dim(m));
	check_gating(m, GATING_SOFTMAX);
	put_experts(m, "num_experts", "intermediate_size");
	put_bool(m, "norm_topk_prob", false);
	put_bias(m, "attention_bias");
	copy_float_if(m, "attention.clamp_kqv", "clip_qkv");
	put_rope(m);
}

/* How many layers at the beginning have no experts; none may follow. */
static void put_first_dense(struct gguf_model *m)
{
	const uint64_t said = get_int(m, "leading_dense_block_count", 0);
	uint32_t first = 0;

	while (first < m->n_layers && !is_sparse(m, first))
		first++;
	if (m->rc == OD_OK && said != first)
		refuse(m, OD_ERR_MISMATCH,
		       "%s: key %s.leading_dense_block_count is %" PRIu64
		       ", but the first layer with tensors of experts is %u",
		       od_gguf_path(m->g), m->arch->name, said, first);
	put_int(m, "first_k_dense_replace", first);
}

static void put_shared_count(struct gguf_model *m)
{
	const struct od_gguf_tensor *t = in_any(m, "ffn_down_shexp.weight");
	const uint64_t width = expert_width(m), n = width > 0 ? shared_width(m) / width : 0;

	if (t != NULL && n * width != t->dim[0])
		refuse(m, OD_ERR_UNSUPPORTED,
		       "%s: tensor %s: expected a width that is a multiple of the routed experts', %" PRIu64
		       ", found %" PRIu64,
		       od_gguf_path(m->g), t->name, width, t->dim[0]);
	if (t != NULL)
		agree(m, "expert_shared_count", t, n);
	put_int(m, "n_shared_experts", n);
}

/* The routers of these published models choose within groups; files of before August 2025 do not say it. */
static const struct {
	uint64_t layers, experts, groups, used;
} published_groups[] = {
	{ 60, 160, 8, 3 }, /* DeepSeek-V2 */
	{ 61, 256, 8, 4 }, /* DeepSeek-V3, R1 */
};

static void put_groups(struct gguf_model *m)
{
	const uint64_t experts = get_int(m, "expert_count", NONE);
	uint64_t groups = get_int(m, "expert_group_count", 0), used = get_int(m, "expert_group_used_count", 0);

	for (size_t i = 0; i < sizeof(published_groups) / sizeof(published_groups[0]) && groups == 0; i++)
		if (published_groups[i].layers == m->n_layers && published_groups[i].experts == experts) {
			groups = published_groups[i].groups;
			used = published_groups[i].used;
		}
	put_int(m, "n_group", groups > 0 ? groups : 1);
	put_int(m, "topk_group", used > 0 ? used : 1);
}

/* The widths of heads: files that llama.cpp made before it absorbed the latents have no keys of their own for them. */
static void put_latents(struct gguf_model *m)
{
	const uint64_t rope = get_int(m, "rope.dimension_count", NONE);
	const uint64_t key = get_int(m, "attention.key_length_mla", get_int(m, "attention.key_length", NONE));
	const uint64_t value = get_int(m, "attention.value_length_mla", get_int(m, "attention.value_length", NONE));

	copy_int_if(m, "attention.q_lora_rank", "q_lora_rank");
	copy_int(m, "attention.kv_lora_rank", "kv_lora_rank");
	put_int(m, "qk_rope_head_dim", rope);
	put_int(m, "qk_nope_head_dim", key > rope ? key - rope : 0);
	put_int(m, "v_head_dim", value);
}

/* It is told from DeepSeek-V3 as llama.cpp does: by its layers and its vocabulary. */
static bool is_glm_flash(const struct gguf_model *m)
{
	return m->n_layers == 47 && json_integer_value(json_object_get(m->out, "vocab_size")) == 154880;
}

/* DeepSeek-V2 and its Lite choose by softmax, V3, Kimi-K2 and GLM-4.7-Flash by sigmoids with a bias. Early files do not
 * say it. */
static bool is_v3(struct gguf_model *m)
{
	const bool has_bias = in_any(m, "exp_probs_b.bias") != NULL || in_any(m, "exp_probs_b") != NULL;

	check_gating(m, has_bias ? GATING_SIGMOID : GATING_SOFTMAX);
	return has_bias;
}

static bool has_groups(const struct gguf_model *m)
{
	return json_integer_value(json_object_get(m->out, "n_group")) > 1;
}

static void read_deepseek2(struct gguf_model *m)
{
	const bool v3 = is_v3(m), flash = v3 && is_glm_flash(m);
	double scale;

	m->n_heads = copy_int(m, "attention.head_count", "num_attention_heads");
	put_latents(m);
	put_experts(m, "n_routed_experts", "moe_intermediate_size");
	put_dense_width(m);
	put_shared_count(m);
	put_groups(m);
	put_first_dense(m);
	put_real(m, "routed_scaling_factor", get_float(m, "expert_weights_scale", &scale) && scale != 0 ? scale : 1);
	put_bool(m, "norm_topk_prob", flag(m, "expert_weights_norm", false)); /* it is written where it is true */
	put_text(m, "scoring_func", v3 ? "sigmoid" : "softmax");
	if (v3) {
		put_text(m, "model_type", flash ? "glm4_moe_lite" : "deepseek_v3");
		put(m->out, "architectures",
		    json_pack("[s]", flash ? "Glm4MoeLiteForCausalLM" : "DeepseekV3ForCausalLM"), m);
		put_text(m, "topk_method", "noaux_tc");
	} else {
		put_text(m, "topk_method", has_groups(m) ? "group_limited_greedy" : "greedy");
	}
	put_rope(m);
}

static void read_glm4moe(struct gguf_model *m)
{
	uint64_t dim;

	check_gating(m, GATING_SIGMOID);
	put_attention(m);
	dim = put_head_dim(m);
	put_real(m, "partial_rotary_factor", rotary_part(m, dim));
	put_experts(m, "n_routed_experts", "moe_intermediate_size");
	put_dense_width(m);
	put_shared_count(m);
	put_groups(m);
	put_first_dense(m);
	copy_float_if(m, "expert_weights_scale", "routed_scaling_factor");
	put_bool(m, "norm_topk_prob", flag(m, "expert_weights_norm", true));
	put_bias(m, "attention_bias");
	put_bool(m, "use_qk_norm", in_any(m, "attn_q_norm.weight") != NULL);
	put_rope(m);
}

static void read_minimax(struct gguf_model *m)
{
	uint64_t dim;

	check_gating(m, GATING_SIGMOID);
	put_attention(m);
	dim = put_head_dim(m);
	put_int(m, "rotary_dim", get_int(m, "rope.dimension_count", dim));
	put_experts(m, "num_local_experts", "intermediate_size");
	put_bool(m, "use_qk_norm", true);
	put_bool(m, "use_routing_bias", true);
	put_text(m, "scoring_func", "sigmoid");
	put_rope(m);
}

/* recurrent_layers must say the same as the tensors. full_attention_interval is not compared: the converter writes 4
 * beside lists of another step, and llama.cpp reads it only where there is no list. */
static void check_recurrent(struct gguf_model *m)
{
	const char *key = "attention.recurrent_layers";
	const struct od_gguf_value *v = value_of(m, key);

	if (v == NULL || v->kind != OD_GGUF_ARRAY || !check_layers(m, key, v, true))
		return;
	for (uint32_t i = 0; m->rc == OD_OK && i < m->n_layers; i++) {
		const bool has = in_layer(m, i, "ssm_a") != NULL;

		if ((od_gguf_int_at(v, i) != 0) != has)
			refuse(m, OD_ERR_MISMATCH,
			       "%s: key %s.%s is %s for layer %u, but tensor blk.%u.ssm_a is %s: the file is "
			       "damaged or was edited; get it again",
			       od_gguf_path(m->g), m->arch->name, key, has ? "false" : "true", i, i,
			       has ? "there" : "missing");
	}
}

/* A layer with a tensor of the gated delta rule is such a layer. */
static void put_layer_types(struct gguf_model *m)
{
	json_t *list = json_array();

	check_recurrent(m);
	put(m->out, "layer_types", list, m);
	for (uint32_t i = 0; m->rc == OD_OK && i < m->n_layers; i++)
		if (json_array_append_new(list, json_string(in_layer(m, i, "ssm_a") != NULL ? "linear_attention" :
											      "full_attention")) != 0)
			refuse(m, OD_ERR_NOMEM, "no memory for a list of layers");
}

static void put_delta(struct gguf_model *m)
{
	const uint64_t heads = get_int(m, "ssm.time_step_rank", NONE), inner = get_int(m, "ssm.inner_size", NONE);

	put_int(m, "linear_num_value_heads", heads);
	copy_int(m, "ssm.group_count", "linear_num_key_heads");
	copy_int(m, "ssm.state_size", "linear_key_head_dim");
	put_int(m, "linear_value_head_dim", heads > 0 ? inner / heads : 0);
	copy_int(m, "ssm.conv_kernel", "linear_conv_kernel_dim");
	put_layer_types(m);
}

/* Settings that Qwen3-Next and Qwen3.5 have in common, without RoPE. */
static uint64_t read_gated(struct gguf_model *m)
{
	uint64_t dim;

	put_attention(m);
	dim = put_head_dim(m);
	check_gating(m, GATING_SOFTMAX);
	put_experts(m, "num_experts", "moe_intermediate_size");
	put_shared_width(m);
	put_bias(m, "attention_bias");
	put_delta(m);
	return dim;
}

static void read_qwen3next(struct gguf_model *m)
{
	const uint64_t dim = read_gated(m);

	put_dense_width(m);
	put_bool(m, "norm_topk_prob", true);
	put_dense_layers(m);
	put_real(m, "partial_rotary_factor", rotary_part(m, dim));
	put_rope(m);
}

static void read_qwen35moe(struct gguf_model *m)
{
	const uint64_t dim = read_gated(m);
	json_t *rope = json_object();

	put(rope, "rope_type", json_string("default"), m);
	put_theta(m, rope);
	put(rope, "partial_rotary_factor", json_real(rotary_part(m, dim)), m);
	(void)put_yarn(m, rope);
	put(m->out, "rope_parameters", rope, m);
}

/* Element i of an array of a value for each layer, or the value that all have. */
static int64_t layer_value(const struct od_gguf_value *v, uint32_t i)
{
	return v == NULL ? 0 : od_gguf_int_at(v, v->kind == OD_GGUF_ARRAY ? i : 0);
}

/* A value for each layer, or n: every n-th layer sees all. Without the key layers alternate, which is the family's own
 * rule. */
static void put_window_types(struct gguf_model *m)
{
	const char *key = "attention.sliding_window_pattern";
	const struct od_gguf_value *v = value_of(m, key);
	json_t *list;

	if (v == NULL)
		return;
	if (v->kind == OD_GGUF_ARRAY ? !check_layers(m, key, v, true) : get_int(m, key, NONE) == 0)
		return;
	list = json_array();
	put(m->out, "layer_types", list, m);
	for (uint32_t i = 0; m->rc == OD_OK && i < m->n_layers; i++) {
		const int64_t n = layer_value(v, i);
		const bool slides = v->kind == OD_GGUF_ARRAY ? n != 0 : i % n < n - 1;

		if (json_array_append_new(list, json_string(slides ? "sliding_attention" : "full_attention")) != 0)
			refuse(m, OD_ERR_NOMEM, "no memory for a list of layers");
	}
}

static void read_gpt_oss(struct gguf_model *m)
{
	json_t *scaling;

	put_attention(m);
	check_whole_rope(m, put_head_dim(m));
	check_gating(m, GATING_CHOSEN_SOFTMAX);
	put_experts(m, "num_local_experts", "intermediate_size");
	put_bias(m, "attention_bias");
	copy_int(m, "attention.sliding_window", "sliding_window");
	put_window_types(m);
	put_real(m, "swiglu_limit", 7);
	put_rope(m);
	scaling = json_object_get(m->out, "rope_scaling");
	if (scaling != NULL) /* as published; there is no key for it */
		put(scaling, "truncate", json_false(), m);
	else /* said, because the family's own setting is YaRN */
		put(m->out, "rope_scaling", json_pack("{s:s}", "rope_type", "default"), m);
}

/* The published model has magnitudes of its own, which the converter replaces by LongRoPE's formula of its lengths. */
static double long_magnitude(struct gguf_model *m)
{
	double magnitude;

	if (get_int(m, "rope.scaling.original_context_length", NONE) == 4096 &&
	    get_int(m, "context_length", NONE) == 131072)
		return 1.243163121016122;
	return get_float(m, "rope.scaling.attn_factor", &magnitude) ? magnitude : 1;
}

static void read_phimoe(struct gguf_model *m)
{
	json_t *longs, *shorts, *scaling;
	double magnitude;

	put_attention(m);
	check_whole_rope(m, put_head_dim(m));
	check_gating(m, GATING_SOFTMAX);
	put_experts(m, "num_local_experts", "intermediate_size");
	put_bias(m, "attention_bias");
	put_bool(m, "lm_head_bias", od_gguf_find(m->g, "output.bias") != NULL);
	put_real(m, "router_jitter_noise", 0.01); /* as in transformers; no file says it */
	if (get_int(m, "attention.sliding_window", 0) > 0)
		copy_int(m, "attention.sliding_window", "sliding_window");
	put_theta(m, m->out);
	longs = numbers_of(m, "rope_factors_long.weight");
	shorts = numbers_of(m, "rope_factors_short.weight");
	if (longs != NULL && shorts != NULL) {
		scaling =
			json_pack("{s:s, s:o, s:o}", "type", "longrope", "long_factor", longs, "short_factor", shorts);
		put(scaling, "original_max_position_embeddings",
		    json_integer((json_int_t)get_int(m, "rope.scaling.original_context_length", NONE)), m);
		magnitude = long_magnitude(m);
		put(scaling, "short_mscale", json_real(magnitude), m);
		put(scaling, "long_mscale", json_real(magnitude), m);
		put(m->out, "rope_scaling", scaling, m);
		return;
	}
	json_decref(longs);
	json_decref(shorts);
}

static void gemma_attention(struct gguf_model *m)
{
	const struct od_gguf_value *pattern = value_of(m, "attention.sliding_window_pattern");
	const struct od_gguf_value *kv = value_of(m, "attention.head_count_kv");
	int64_t full_kv = 0, sliding_kv = 0;
	bool own_v = true;
	json_t *types = json_array();

	put(m->out, "layer_types", types, m);
	if (pattern == NULL || pattern->kind != OD_GGUF_ARRAY)
		refuse(m, OD_ERR_FORMAT,
		       "%s: key %s.attention.sliding_window_pattern: expected an array with a boolean for each of %u "
		       "layers",
		       od_gguf_path(m->g), m->arch->name, m->n_layers);
	if (kv == NULL || kv->kind != OD_GGUF_ARRAY)
		(void)get_int(m, "attention.head_count_kv", NONE);
	if (m->rc != OD_OK || !check_layers(m, "attention.sliding_window_pattern", pattern, true) ||
	    (kv->kind == OD_GGUF_ARRAY && !check_layers(m, "attention.head_count_kv", kv, false)))
		return;
	for (uint32_t i = 0; i < m->n_layers; i++) {
		const bool slides = layer_value(pattern, i) != 0;
		int64_t *of = slides ? &sliding_kv : &full_kv;

		json_array_append_new(types, json_string(slides ? "sliding_attention" : "full_attention"));
		*of = *of != 0 ? *of : layer_value(kv, i);
		if (layer_value(kv, i) != *of || *of < 1 || *of > INT32_MAX) {
			refuse(m, OD_ERR_UNSUPPORTED,
			       "%s: key %s.attention.head_count_kv: expected the same number, at least 1, for all "
			       "layers with a window, and for all without, found %" PRId64 " for layer %u",
			       od_gguf_path(m->g), m->arch->name, layer_value(kv, i), i);
			return;
		}
		own_v = own_v &&
			(slides || in_layer(m, i, "attn_k.weight") == NULL || in_layer(m, i, "attn_v.weight") != NULL);
	}
	put_int(m, "num_key_value_heads", (uint64_t)(sliding_kv > 0 ? sliding_kv : full_kv));
	put_int(m, "num_global_key_value_heads", (uint64_t)(full_kv > 0 ? full_kv : sliding_kv));
	put_bool(m, "attention_k_eq_v", !own_v);
}

#define STANDS_STILL 1e29 /* llama.cpp divides frequencies of elements that do not turn by 1e30 */

/* Frequencies that turn are divided by one number, those that do not by a huge one. */
static void put_turning(struct gguf_model *m, json_t *o)
{
	json_t *list = numbers_of(m, "rope_freqs.weight");
	const size_t n = json_array_size(list);
	const double divisor = n > 0 ? json_number_value(json_array_get(list, 0)) : 1;
	size_t turning = 0, still;

	while (turning < n && json_number_value(json_array_get(list, turning)) == divisor)
		turning++;
	for (still = turning; still < n && json_number_value(json_array_get(list, still)) >= STANDS_STILL;)
		still++;
	if (m->rc == OD_OK && (still < n || divisor >= STANDS_STILL))
		refuse(m, OD_ERR_UNSUPPORTED,
		       "%s: tensor rope_freqs.weight: expected one divisor for the first pairs of a head and "
		       "1e30 for the others, found %g for pair %zu",
		       od_gguf_path(m->g), json_number_value(json_array_get(list, still < n ? still : 0)),
		       still < n ? still : 0);
	json_decref(list);
	put(o, "partial_rotary_factor", json_real(n > 0 ? part_of(turning, n) : 1), m);
	if (divisor != 1)
		put(o, "factor", json_real(divisor), m);
}

static void gemma_rope(struct gguf_model *m)
{
	json_t *full = json_object(), *sliding = json_object(), *both = json_object();
	double theta;

	put(both, "full_attention", full, m);
	put(both, "sliding_attention", sliding, m);
	put(full, "rope_type", json_string("proportional"), m);
	put_turning(m, full);
	put_theta(m, full);
	put(sliding, "rope_type", json_string("default"), m);
	put(sliding, "rope_theta", json_real(get_float(m, "rope.freq_base_swa", &theta) ? theta : 10000), m);
	put(m->out, "rope_parameters", both, m);
}

/* Layers that use the keys of others may have shared experts of twice the width. */
static bool is_double_wide(const struct gguf_model *m)
{
	const struct od_gguf_tensor *first = in_layer(m, 0, "ffn_down.weight"),
				    *last = in_layer(m, m->n_layers - 1, "ffn_down.weight");

	return first != NULL && last != NULL && last->dim[0] == 2 * first->dim[0];
}

static void read_gemma4(struct gguf_model *m)
{
	const struct od_gguf_tensor *shared = in_layer(m, 0, "ffn_down.weight");
	double cap;

	m->n_heads = copy_int(m, "attention.head_count", "num_attention_heads");
	gemma_attention(m);
	check_rotary(m, "rope.dimension_count", copy_int(m, "attention.key_length", "global_head_dim"));
	check_rotary(m, "rope.dimension_count_swa", copy_int(m, "attention.key_length_swa", "head_dim"));
	check_gating(m, GATING_SOFTMAX);
	copy_int(m, "attention.sliding_window", "sliding_window");
	check_experts(m, "expert_feed_forward_length");
	copy_int(m, "expert_count", "num_experts");
	copy_int(m, "expert_used_count", "top_k_experts");
	put_int(m, "moe_intermediate_size", expert_width(m));
	put_int(m, "intermediate_size", shared != NULL ? shared->dim[0] : 0);
	put_bool(m, "enable_moe_block", true);
	put_text(m, "hidden_activation", "gelu_pytorch_tanh");
	put_int(m, "num_kv_shared_layers", get_int(m, "attention.shared_kv_layers", 0));
	put_bool(m, "use_double_wide_mlp", is_double_wide(m));
	put_int(m, "hidden_size_per_layer_input", get_int(m, "embedding_length_per_layer_input", 0));
	if (od_gguf_find(m->g, "per_layer_token_embd.weight") != NULL)
		put_int(m, "vocab_size_per_layer_input", od_gguf_find(m->g, "per_layer_token_embd.weight")->dim[1]);
	if (get_float(m, "final_logit_softcapping", &cap) && cap != 0)
		put_real(m, "final_logit_softcapping", cap);
	gemma_rope(m);
}

static const struct gguf_arch archs[] = {
	{ "llama", "mixtral", "MixtralForCausalLM", read_llama },
	{ "qwen2moe", "qwen2_moe", "Qwen2MoeForCausalLM", read_qwen2moe },
	{ "qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", read_qwen3moe },
	{ "qwen3next", "qwen3_next", "Qwen3NextForCausalLM", read_qwen3next },
	{ "qwen35moe", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", read_qwen35moe },
	{ "olmoe", "olmoe", "OlmoeForCausalLM", read_olmoe },
	{ "deepseek2", "deepseek_v2", "DeepseekV2ForCausalLM", read_deepseek2 },
	{ "glm4moe", "glm4_moe", "Glm4MoeForCausalLM", read_glm4moe },
	{ "minimax-m2", "minimax_m2", "MiniMaxM2ForCausalLM", read_minimax },
	{ "gpt-oss", "gpt_oss", "GptOssForCausalLM", read_gpt_oss },
	{ "gemma4", "gemma4_text", "Gemma4ForCausalLM", read_gemma4 },
	{ "phimoe", "phimoe", "PhiMoEForCausalLM", read_phimoe },
};
#define N_ARCHS (sizeof(archs) / sizeof(archs[0]))

static void list_archs(char *buf, size_t size)
{
	size_t len = 0;

	for (size_t i = 0; i < N_ARCHS && len < size; i++)
		len += (size_t)snprintf(buf + len, size - len, "%s%s", i > 0 ? ", " : "", archs[i].name);
}

/* Files that lie beside a model: of projections (mmproj), of adapters. */
static int refuse_other(const struct od_gguf *g, const char *key, const char *text, size_t len, struct od_err *err)
{
	char shown[OD_GGUF_SHOWN_BYTES];

	if (len == 7 && strncmp(text, "adapter", 7) == 0)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "%s is an adapter (LoRA), which is not supported: name a model's own file; "
			       "llama-export-lora merges an adapter into one",
			       od_gguf_path(g));
	return od_fail(err, OD_ERR_UNSUPPORTED,
		       "%s is no language model (%s \"%s\"), but a file beside one, such as the projections of "
		       "pictures (mmproj): name the model's own file",
		       od_gguf_path(g), key, od_gguf_shown(text, len, shown));
}

static const struct gguf_arch *arch_of(const char *name, size_t len)
{
	for (size_t i = 0; i < N_ARCHS; i++)
		if (strlen(archs[i].name) == len && strncmp(archs[i].name, name, len) == 0)
			return &archs[i];
	return NULL;
}

int od_gguf_check_arch(const char *where, const char *name, size_t len, struct od_err *err)
{
	char list[256], shown[OD_GGUF_SHOWN_BYTES];

	if (arch_of(name, len) != NULL)
		return OD_OK;
	if (len == 6 && strncmp(name, "gptoss", len) == 0)
		return od_fail(
			err, OD_ERR_UNSUPPORTED,
			"%s: general.architecture: \"gptoss\" is what Ollama's own converter makes of gpt-oss: use a "
			"file that llama.cpp made (\"gpt-oss\"), or the published checkpoint",
			where);
	list_archs(list, sizeof(list));
	return od_fail(err, OD_ERR_UNSUPPORTED,
		       "%s: general.architecture \"%s\" is not supported: expected a mixture of experts of one of %s",
		       where, od_gguf_shown(name, len, shown), list);
}

static int find_arch(const struct od_gguf *g, const struct gguf_arch **out, struct od_err *err)
{
	const char *name, *type = "model";
	size_t len, type_len = 5;
	int rc = OD_OK;

	*out = NULL;
	if (od_gguf_get(g, "general.type") != NULL)
		rc = od_gguf_str(g, "general.type", &type, &type_len, err);
	if (rc != OD_OK)
		return rc;
	if (type_len != 5 || strncmp(type, "model", 5) != 0)
		return refuse_other(g, "general.type", type, type_len, err);
	rc = od_gguf_str(g, "general.architecture", &name, &len, err);
	if (rc != OD_OK)
		return rc;
	if (len == 4 && strncmp(name, "clip", 4) == 0)
		return refuse_other(g, "general.architecture", name, len, err);
	*out = arch_of(name, len);
	return od_gguf_check_arch(od_gguf_path(g), name, len, err);
}

/* An architecture may have models without experts. */
static void refuse_dense(struct gguf_model *m)
{
	char list[256];

	if (get_int(m, "expert_count", 0) > 0 || m->rc != OD_OK)
		return;
	list_archs(list, sizeof(list));
	refuse(m, OD_ERR_UNSUPPORTED,
	       "%s: a dense model (general.architecture \"%s\" without experts): expected a mixture of experts "
	       "of one of %s; llama.cpp runs this one",
	       od_gguf_path(m->g), m->arch->name, list);
}

int od_gguf_config(const struct od_gguf *g, json_t **out, struct od_err *err)
{
	struct gguf_model m = { .g = g, .err = err };
	int rc = find_arch(g, &m.arch, err);

	*out = NULL;
	if (rc != OD_OK)
		return rc;
	m.out = json_object();
	refuse_dense(&m);
	if (m.rc == OD_OK)
		put_common(&m);
	if (m.rc == OD_OK)
		m.arch->read(&m);
	put(m.out, "gguf",
	    json_pack("{s:b, s:b}", "kv_apart", in_any(&m, "attn_k_b.weight") != NULL, "by_key_head",
		      in_any(&m, "ssm_in.weight") != NULL),
	    &m);
	if (m.rc != OD_OK) {
		json_decref(m.out);
		return m.rc;
	}
	*out = m.out;
	return OD_OK;
}
