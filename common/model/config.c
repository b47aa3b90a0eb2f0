#include "common/model/config.h"

#include "common/base/json.h"
#include "common/base/mem.h"
#include "common/compute/dtype.h"
#include "common/model/family.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CONFIG_MAX_BYTES (1u << 20)
#define DIM_MAX (1u << 20)
#define VOCAB_MAX (1u << 24)
#define CTX_MAX (1u << 20)	   /* RoPE angles stay below od_sincos's bound */
#define WEIGHTS_MAX (1ull << 48) /* so that byte counts of the whole model fit in 64 bits with room to spare */

static int read_family(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	const char *architecture = NULL, *model_type = NULL;
	char known[256];
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
	od_family_list(known, sizeof(known));
	return od_fail(err, OD_ERR_UNSUPPORTED, "%s: no known model family: architecture \"%.64s\", model_type "
		       "\"%.64s\"; known: %s", where, architecture != NULL ? architecture : "(none)",
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
			return od_fail(err, OD_ERR_UNSUPPORTED, "%s: field \"eos_token_id\": expected at most %d ids, "
				       "those of config.json included, found %d more", where, OD_MAX_EOS, (int)(n - i));
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

/* head_dim may be absent or null, and may differ from hidden / heads. */
static int read_heads(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	int rc = od_json_u32(root, "num_attention_heads", 1, DIM_MAX, &cfg->n_heads, where, err);

	if (rc == OD_OK)
		rc = od_json_u32_or(root, "num_key_value_heads", 1, DIM_MAX, cfg->n_heads, &cfg->n_kv_heads, where,
				    err);
	if (rc == OD_OK)
		rc = od_json_u32_or(root, "head_dim", 1, DIM_MAX, 0, &cfg->head_dim, where, err);
	if (rc != OD_OK)
		return rc;
	if (cfg->head_dim == 0) {
		if (cfg->hidden % cfg->n_heads != 0)
			return od_fail(err, OD_ERR_FORMAT, "%s: field \"head_dim\" is missing and \"hidden_size\" %u "
				       "is no multiple of \"num_attention_heads\" %u", where, cfg->hidden,
				       cfg->n_heads);
		cfg->head_dim = cfg->hidden / cfg->n_heads;
	}
	if (cfg->head_dim % 2 != 0)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: field \"head_dim\": expected an even number (RoPE turns "
			       "pairs), found %u", where, cfg->head_dim);
	if (cfg->n_heads % cfg->n_kv_heads != 0)
		return od_fail(err, OD_ERR_FORMAT, "%s: field \"num_key_value_heads\": expected a divisor of "
			       "\"num_attention_heads\" %u, found %u", where, cfg->n_heads, cfg->n_kv_heads);
	if ((uint64_t)cfg->n_heads * cfg->head_dim > DIM_MAX)
		return od_fail(err, OD_ERR_RANGE, "%s: field \"head_dim\": expected at most %u for all %u heads "
			       "together, found %u each", where, DIM_MAX, cfg->n_heads, cfg->head_dim);
	return OD_OK;
}

/* What config.json calls the same in every family. */
static int read_common(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	const struct {
		const char *key;
		uint32_t max, *out;
	} field[] = {
		{ "hidden_size", DIM_MAX, &cfg->hidden },
		{ "num_hidden_layers", OD_MAX_LAYERS, &cfg->n_layers },
		{ "vocab_size", VOCAB_MAX, &cfg->vocab },
		{ "max_position_embeddings", CTX_MAX, &cfg->ctx_max },
	};
	double eps;
	int rc = OD_OK;

	for (size_t i = 0; i < sizeof(field) / sizeof(field[0]) && rc == OD_OK; i++)
		rc = od_json_u32(root, field[i].key, 1, field[i].max, field[i].out, where, err);
	if (rc == OD_OK)
		rc = read_heads(cfg, root, where, err);
	if (rc == OD_OK)
		rc = od_json_f64(root, "rms_norm_eps", 0, 1, &eps, where, err);
	if (rc == OD_OK)
		rc = od_json_bool_or(root, "tie_word_embeddings", false, &cfg->tied_head, where, err);
	if (rc == OD_OK)
		rc = read_special_tokens(cfg, root, where, err);
	if (rc == OD_OK)
		cfg->rms_eps = (float)eps;
	return rc;
}

/* Weights under one scale, across or down; null and -1: all. From the shape of the scales only a power of two can be told
 * (pack/source.h): 96 would be taken for 128. */
static int check_extent(const json_t *v, json_int_t least, const char *key, const char *where, struct od_err *err)
{
	const json_int_t n = json_integer_value(v);

	if (!json_is_integer(v) || n == -1 || (n >= least && (n & (n - 1)) == 0))
		return OD_OK;
	return od_fail(err, OD_ERR_UNSUPPORTED, "%s: field \"%s\": expected a power of two of at least %lld, found %lld", where,
		       key, (long long)least, (long long)n);
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

/* How weights of 8 and 4 bits are scaled is seen from the tensors; here only that it is one of the ways which are looked
 * for there. */
static int read_quantization(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	static const char *const known[] = { "compressed-tensors", "fp8" };
	const char *key = od_json_has(root, "compression_config") ? "compression_config" : "quantization_config", *name;
	const json_t *q = json_object_get(root, key);
	const char *method = json_string_value(json_object_get(q, "quant_method"));
	json_t *group;
	size_t i = 0;
	int rc;

	if (!od_json_has(root, key))
		return OD_OK;
	while (i < sizeof(known) / sizeof(known[0]) && (method == NULL || strcmp(method, known[i]) != 0))
		i++;
	if (i == sizeof(known) / sizeof(known[0]))
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: field \"%s\": expected quant_method \"compressed-tensors\" or "
			       "\"fp8\", found %s%.64s%s: use such a publication of the model, or the BF16 one", where, key,
			       method != NULL ? "\"" : "none", method != NULL ? method : "", method != NULL ? "\"" : "");
	if (json_object_size(json_object_get(json_object_get(q, "transform_config"), "config_groups")) > 0)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: field \"%s\": expected no transform_config: weights that are rotated before "
			       "they are used are not supported", where, key);
	cfg->scaled = true;
	rc = check_block(q, "weight_block_size", where, err);
	json_object_foreach(json_object_get(q, "config_groups"), name, group) {
		const json_t *weights = json_object_get(group, "weights");

		if (rc == OD_OK)
			rc = check_block(weights, "group_size", where, err);
		if (rc == OD_OK)
			rc = check_block(weights, "block_structure", where, err);
	}
	return rc;
}

/* Each dimension is bounded; all of them together could still describe 2^66 weights. */
static int check_size(const struct od_config *cfg, const char *where, struct od_err *err)
{
	uint64_t n = 0, n_out, n_in, size;
	bool fits = true;

	for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
		od_expert_mat_shape(cfg, (enum od_expert_mat)mat, &n_out, &n_in);
		fits = fits && od_mul(n_out, n_in, &size) && od_mul(size, cfg->n_experts, &size) &&
		       od_mul(size, cfg->n_moe, &size) && od_add(n, size, &n);
	}
	for (int role = 0; role < OD_N_ROLES; role++) {
		od_role_shape(cfg, (enum od_role)role, &n_out, &n_in);
		fits = fits && od_mul(n_out, n_in == 0 ? 1 : n_in, &size) &&
		       od_mul(size, od_role_per_layer((enum od_role)role) ? cfg->n_layers : 1, &size) &&
		       od_add(n, size, &n);
	}
	if (!fits || n > WEIGHTS_MAX)
		return od_fail(err, OD_ERR_RANGE, "%s: the model's shapes together make more than 2^48 weights "
			       "(%u layers, %u experts, hidden_size %u, intermediate_size %u)", where, cfg->n_layers,
			       cfg->n_experts, cfg->hidden, cfg->intermediate);
	return OD_OK;
}

int od_config_parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	int rc;

	memset(cfg, 0, sizeof(*cfg));
	rc = read_family(cfg, root, where, err);
	if (rc == OD_OK)
		rc = read_common(cfg, root, where, err);
	if (rc == OD_OK)
		rc = read_quantization(cfg, root, where, err);
	if (rc == OD_OK)
		rc = cfg->family->parse(cfg, root, where, err);
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

int od_config_canonical(const struct od_config *cfg, char *buf, size_t size, struct od_err *err)
{
	uint64_t theta;
	int n;

	/* Reals as their bits: decimal text depends on the locale and on how many digits one prints. */
	memcpy(&theta, &cfg->rope_theta, sizeof(theta));
	n = snprintf(buf, size, "family=%s layers=%u hidden=%u heads=%u kv_heads=%u head_dim=%u vocab=%u experts=%u "
		     "top_k=%u intermediate=%u window=%u rms_eps=%08" PRIx32 " rope_theta=%016" PRIx64 " tied_head=%d",
		     cfg->family->name, cfg->n_layers, cfg->hidden, cfg->n_heads, cfg->n_kv_heads, cfg->head_dim,
		     cfg->vocab, cfg->n_experts, cfg->top_k, cfg->intermediate, cfg->sliding_window,
		     od_f32_bits(cfg->rms_eps), theta, cfg->tied_head);
	if (n < 0 || (size_t)n >= size)
		return od_fail(err, OD_ERR_RANGE, "canonical configuration needs %d bytes, there are %zu", n + 1, size);
	return n;
}
