#include "common/model/families/parse.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* RoPE's settings stand in one of these, in older or in newer files. */
static const char *const rope_objects[] = { "rope_scaling", "rope_parameters" };

static int refuse(const struct od_parse *p, const char *key, const char *expected)
{
	char *found = json_dumps(json_object_get(p->root, key), JSON_ENCODE_ANY | JSON_COMPACT);
	int rc = od_fail(p->err, OD_ERR_UNSUPPORTED, "%s: field \"%s\": expected %s, found %.64s", p->where, key,
			 expected, found != NULL ? found : "something else");

	free(found);
	return rc;
}

int od_parse_only_bool(const struct od_parse *p, const char *key, bool expected)
{
	bool found;
	int rc = od_json_bool_or(p->root, key, expected, &found, p->where, p->err);

	if (rc == OD_OK && found != expected)
		rc = refuse(p, key, expected ? "true" : "false");
	return rc;
}

int od_parse_only_str(const struct od_parse *p, const char *key, const char *expected)
{
	const char *found = expected;
	char quoted[64];
	int rc = od_json_has(p->root, key) ? od_json_str(p->root, key, &found, p->where, p->err) : OD_OK;

	if (rc != OD_OK || strcmp(found, expected) == 0)
		return rc;
	snprintf(quoted, sizeof(quoted), "\"%s\"", expected);
	return refuse(p, key, quoted);
}

int od_parse_only_number(const struct od_parse *p, const char *key, double expected)
{
	char text[32];
	double found;
	int rc = od_json_f64_or(p->root, key, -HUGE_VAL, HUGE_VAL, expected, &found, p->where, p->err);

	if (rc != OD_OK || found == expected)
		return rc;
	snprintf(text, sizeof(text), "%g", expected);
	return refuse(p, key, text);
}

int od_parse_absent(const struct od_parse *p, const char *key)
{
	return od_json_has(p->root, key) ? refuse(p, key, "none") : OD_OK;
}

static bool is_own(const char *const *own, const char *key)
{
	for (; own != NULL && *own != NULL; own++)
		if (strcmp(*own, key) == 0)
			return true;
	return false;
}

/* partial_rotary_factor inside of an object of RoPE's settings. */
static int refuse_partial(const struct od_parse *p, const char *key)
{
	const json_t *o = json_object_get(p->root, key);
	double fraction = 1;
	int rc = OD_OK;

	if (json_is_object(o))
		rc = od_json_f64_or(o, "partial_rotary_factor", 0, 1, 1, &fraction, p->where, p->err);
	if (rc == OD_OK && fraction != 1)
		rc = od_fail(p->err, OD_ERR_UNSUPPORTED, "%s: field \"%s\": expected partial_rotary_factor 1, found %g",
			     p->where, key, fraction);
	return rc;
}

/* Layers of different attention in a family whose layers are all alike. */
static int refuse_types(const struct od_parse *p, const char *key)
{
	json_t *types;
	int rc = od_json_arr(p->root, key, &types, p->where, p->err);

	for (size_t i = 0; rc == OD_OK && i < json_array_size(types); i++) {
		const char *type = json_string_value(json_array_get(types, i));

		if (type == NULL || strcmp(type, "full_attention") != 0)
			rc = refuse(p, key, "\"full_attention\" for every layer");
	}
	return rc;
}

/* SiLU has two names. */
static int refuse_activation(const struct od_parse *p)
{
	const char *name = json_string_value(json_object_get(p->root, "hidden_act"));

	return name != NULL && strcmp(name, "swish") == 0 ? OD_OK : od_parse_only_str(p, "hidden_act", "silu");
}

int od_parse_refuse(const struct od_parse *p, const char *const *own)
{
	static const char *const off[] = { "mlp_bias", "lm_head_bias", "use_qk_norm" };
	static const struct {
		const char *key;
		double neutral;
	} number[] = {
		{ "partial_rotary_factor", 1 },	  { "embedding_multiplier", 1 }, { "residual_multiplier", 1 },
		{ "logits_scaling", 1 },	  { "logit_scale", 1 },		 { "attn_logit_softcapping", 0 },
		{ "final_logit_softcapping", 0 }, { "swiglu_limit", 0 },	 { "sliding_window", 0 },
		{ "attention_chunk_size", 0 },
	};
	int rc = is_own(own, "hidden_act") ? OD_OK : refuse_activation(p);

	for (size_t i = 0; rc == OD_OK && i < sizeof(off) / sizeof(off[0]); i++)
		if (!is_own(own, off[i]))
			rc = od_parse_only_bool(p, off[i], false);
	if (rc == OD_OK)
		rc = od_parse_only_bool(p, "is_causal", true);
	for (size_t i = 0; rc == OD_OK && i < sizeof(number) / sizeof(number[0]); i++)
		if (!is_own(own, number[i].key))
			rc = od_parse_only_number(p, number[i].key, number[i].neutral);
	for (size_t i = 0; rc == OD_OK && i < 2 && !is_own(own, "partial_rotary_factor"); i++)
		rc = refuse_partial(p, rope_objects[i]);
	if (rc == OD_OK && !is_own(own, "layer_types") && od_json_has(p->root, "layer_types"))
		rc = refuse_types(p, "layer_types");
	/* overrides for single layers */
	if (rc == OD_OK && !is_own(own, "per_layer_config"))
		rc = od_parse_absent(p, "per_layer_config");
	return rc;
}

/* Null is as many as num_attention_heads; missing it may be another number. */
static int read_kv_heads(const struct od_parse *p, struct od_mixer *m)
{
	const char *key = "num_key_value_heads";
	const bool missing = json_object_get(p->root, key) == NULL && p->cfg->family->kv_heads != 0;

	return od_json_u32_or(p->root, key, 1, OD_DIM_MAX, missing ? p->cfg->family->kv_heads : m->n_heads,
			      &m->n_kv_heads, p->where, p->err);
}

/* head_dim may be absent or null, and may differ from hidden / heads. */
int od_parse_gqa(const struct od_parse *p, struct od_mixer *m)
{
	const uint32_t hidden = p->cfg->hidden;
	int rc = od_json_u32(p->root, "num_attention_heads", 1, OD_DIM_MAX, &m->n_heads, p->where, p->err);

	if (rc == OD_OK)
		rc = read_kv_heads(p, m);
	if (rc == OD_OK)
		rc = od_json_u32_or(p->root, "head_dim", 1, OD_DIM_MAX, 0, &m->k_dim, p->where, p->err);
	if (rc == OD_OK)
		rc = od_json_bool_or(p->root, "attention_bias", false, &m->qkv_bias, p->where, p->err);
	if (rc != OD_OK)
		return rc;
	if (m->k_dim == 0) {
		if (hidden % m->n_heads != 0)
			return od_fail(p->err, OD_ERR_FORMAT,
				       "%s: field \"head_dim\" is missing and \"hidden_size\" %u is not a multiple of "
				       "\"num_attention_heads\" %u",
				       p->where, hidden, m->n_heads);
		m->k_dim = hidden / m->n_heads;
	}
	if (m->k_dim % 2 != 0)
		return od_fail(p->err, OD_ERR_UNSUPPORTED,
			       "%s: field \"head_dim\": expected an even number (RoPE turns pairs), found "
			       "%u",
			       p->where, m->k_dim);
	if (m->n_heads % m->n_kv_heads != 0)
		return od_fail(p->err, OD_ERR_FORMAT,
			       "%s: field \"num_key_value_heads\": expected a divisor of "
			       "\"num_attention_heads\" %u, found %u",
			       p->where, m->n_heads, m->n_kv_heads);
	if ((uint64_t)m->n_heads * m->k_dim > OD_DIM_MAX)
		return od_fail(p->err, OD_ERR_RANGE,
			       "%s: field \"head_dim\": expected at most %u for all %u heads together, found %u "
			       "each",
			       p->where, OD_DIM_MAX, m->n_heads, m->k_dim);
	m->v_dim = m->k_dim;
	m->o_bias = m->qkv_bias;
	m->scale = (float)(1.0 / sqrt((double)m->k_dim));
	m->norm_eps = p->cfg->rms_eps;
	return OD_OK;
}

int od_parse_window(const struct od_parse *p, uint32_t *window)
{
	bool used;
	int rc = od_json_bool_or(p->root, "use_sliding_window", false, &used, p->where, p->err);

	*window = 0;
	if (rc != OD_OK || !used || json_is_null(json_object_get(p->root, "sliding_window")))
		return rc;
	return od_json_u32_or(p->root, "sliding_window", 1, UINT32_MAX, 4096, window, p->where, p->err);
}

/* ---- RoPE ---- */

static double mscale(double factor, double m)
{
	return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

/* It stands beside rope_scaling, in it, or in both places. fallback: where it stands in neither; 0: it must. */
static int read_original_ctx(const struct od_parse *p, const json_t *o, const char *where, uint32_t fallback,
			     uint32_t *ctx)
{
	static const char key[] = "original_max_position_embeddings";
	uint32_t outer, inner = 0;
	int rc = od_json_u32_or(p->root, key, 1, UINT32_MAX, 0, &outer, p->where, p->err);

	if (rc == OD_OK && ((outer == 0 && fallback == 0) || od_json_has(o, key)))
		rc = od_json_u32(o, key, 1, UINT32_MAX, &inner, where, p->err);
	if (rc == OD_OK && outer != 0 && inner != 0 && inner != outer)
		rc = od_fail(p->err, OD_ERR_FORMAT, "%s: field \"%s\": found two values, %u and %u", p->where, key,
			     outer, inner);
	*ctx = inner != 0 ? inner : outer != 0 ? outer : fallback;
	return rc;
}

/* The names and defaults are those of transformers, the formulae YaRN's (arXiv 2309.00071). */
static int read_yarn(const struct od_parse *p, const json_t *o, const char *where, struct od_rope *r, double *attention)
{
	double m, m_all, magnitude;
	bool truncate;
	/* Without it the model's own length counts, but then something must say how much longer it became. */
	int rc = read_original_ctx(p, o, where, od_json_has(o, "factor") ? p->cfg->ctx_max : 0, &r->original_ctx);

	if (rc == OD_OK)
		rc = od_json_f64_or(o, "factor", 1, 1e6, 0, &r->factor, where, p->err);
	if (rc == OD_OK)
		rc = od_json_f64_or(o, "beta_fast", 0, 1e6, 32, &r->beta_fast, where, p->err);
	if (rc == OD_OK)
		rc = od_json_f64_or(o, "beta_slow", 0, 1e6, 1, &r->beta_slow, where, p->err);
	if (rc == OD_OK)
		rc = od_json_f64_or(o, "mscale", 0, 1e6, 0, &m, where, p->err);
	if (rc == OD_OK)
		rc = od_json_f64_or(o, "mscale_all_dim", 0, 1e6, 0, &m_all, where, p->err);
	if (rc == OD_OK)
		rc = od_json_f64_or(o, "attention_factor", 0, 1e6, -1, &magnitude, where, p->err);
	if (rc == OD_OK)
		/* null: false */
		rc = od_json_bool_or(o, "truncate", !json_is_null(json_object_get(o, "truncate")), &truncate, where,
				     p->err);
	if (rc != OD_OK)
		return rc;
	r->between = !truncate;
	/* Frequencies above 1 would make angles that od_sincos is not good for. */
	if (r->factor == 0 && p->cfg->ctx_max < r->original_ctx)
		return od_fail(p->err, OD_ERR_RANGE,
			       "%s: field \"factor\" is missing and max_position_embeddings %u is below "
			       "original_max_position_embeddings %u",
			       where, p->cfg->ctx_max, r->original_ctx);
	r->factor = r->factor != 0 ? r->factor : (double)p->cfg->ctx_max / r->original_ctx;
	r->beta_fast = r->beta_fast != 0 ? r->beta_fast : 32;
	r->beta_slow = r->beta_slow != 0 ? r->beta_slow : 1;
	if (magnitude < 0)
		magnitude =
			m != 0 && m_all != 0 ? mscale(r->factor, m) / mscale(r->factor, m_all) : mscale(r->factor, 1);
	r->magnitude = (float)magnitude;
	if (attention != NULL && m_all != 0)
		*attention = mscale(r->factor, m_all) * mscale(r->factor, m_all);
	return OD_OK;
}

/* A factor for each pair; below `least` angles would be larger than od_sincos is good for. */
static int read_factors(const struct od_parse *p, const json_t *o, const char *where, const char *key, double least,
			uint32_t n, float factor[OD_MAX_ROPE_PAIRS])
{
	json_t *list;
	int rc = od_json_arr(o, key, &list, where, p->err);

	if (rc != OD_OK)
		return rc;
	if (json_array_size(list) != n)
		return od_fail(p->err, OD_ERR_FORMAT,
			       "%s: field \"%s\": expected %u numbers, one for each pair of a head, found %zu", where,
			       key, n, json_array_size(list));
	for (uint32_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(list, i);

		if (!json_is_number(v) || !(json_number_value(v) >= least && json_number_value(v) <= 1e6))
			return od_fail(p->err, OD_ERR_RANGE,
				       "%s: field \"%s\": number %u: expected %g to 1e6, found %s%g", where, key, i,
				       least, json_is_number(v) ? "" : "something else than ", json_number_value(v));
		factor[i] = (float)json_number_value(v);
	}
	return OD_OK;
}

/* As Phi-3.5-MoE has it, with magnitudes of its own. */
static int read_long(const struct od_parse *p, const json_t *o, const char *where, struct od_rope *r)
{
	static const char *const factors[] = { "short_factor", "long_factor" };
	const double least = (double)p->cfg->ctx_max / (1 << 20);
	double magnitude[2] = { 0, 0 };
	int rc = r->dims / 2 <= OD_MAX_ROPE_PAIRS ?
			 OD_OK :
			 od_fail(p->err, OD_ERR_UNSUPPORTED,
				 "%s: field \"head_dim\": expected at most %d with long RoPE, found %u", p->where,
				 2 * OD_MAX_ROPE_PAIRS, r->dims);

	/* Without it transformers 5.23 takes max_position_embeddings, whatever stands beside the object: never the long
	 * factors. */
	if (rc == OD_OK)
		rc = od_json_u32(o, "original_max_position_embeddings", 1, UINT32_MAX, &r->short_ctx, where, p->err);
	if (rc == OD_OK)
		rc = read_original_ctx(p, o, where, 0, &r->short_ctx);
	for (uint32_t set = 0; rc == OD_OK && set < 2; set++)
		rc = read_factors(p, o, where, factors[set], least, r->dims / 2, r->pair_factor[set]);
	if (rc == OD_OK)
		rc = od_json_f64(o, "short_mscale", 0, 1e6, &magnitude[0], where, p->err);
	if (rc == OD_OK)
		rc = od_json_f64(o, "long_mscale", 0, 1e6, &magnitude[1], where, p->err);
	r->magnitude = (float)magnitude[0];
	r->long_magnitude = (float)magnitude[1];
	return rc;
}

/* Settings of each type of RoPE, by transformers' names. A type without an entry has the common ones only. */
static const char *const rope_common[] = { "rope_type", "type", "rope_theta", "partial_rotary_factor", NULL };
/* they change nothing of a text */
static const char *const rope_pictures[] = { "mrope_section", "mrope_interleaved", NULL };
static const char *const rope_yarn[] = { "factor",
					 "beta_fast",
					 "beta_slow",
					 "mscale",
					 "mscale_all_dim",
					 "attention_factor",
					 "truncate",
					 "original_max_position_embeddings",
					 NULL };
static const char *const rope_long[] = {
	"short_factor", "long_factor", "short_mscale", "long_mscale", "original_max_position_embeddings", NULL
};
static const char *const rope_proportional[] = { "factor", NULL };

static const char *const *rope_members(const char *type)
{
	static const struct {
		const char *type;
		const char *const *members;
	} of[] = { { "yarn", rope_yarn }, { "longrope", rope_long }, { "proportional", rope_proportional } };

	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
		if (strcmp(of[i].type, type) == 0)
			return of[i].members;
	return NULL;
}

int od_parse_rope_type(const struct od_parse *p, const json_t *o, const char *where, const char *const *types,
		       const char **type)
{
	const char *key = od_json_has(o, "rope_type") ? "rope_type" : "type", *name;
	char expected[64] = "";
	json_t *value;
	int rc;

	*type = "default";
	rc = od_json_has(o, key) ? od_json_str(o, key, type, where, p->err) : OD_OK;
	if (rc != OD_OK)
		return rc;
	if (!is_own(types, *type)) {
		for (size_t i = 0, n = 0; types[i] != NULL && n < sizeof(expected); i++)
			n += (size_t)snprintf(expected + n, sizeof(expected) - n, "%s\"%s\"", i > 0 ? " or " : "",
					      types[i]);
		return od_fail(p->err, OD_ERR_UNSUPPORTED, "%s: field \"%s\": expected %s, found \"%.64s\"", where, key,
			       expected, *type);
	}
	json_object_foreach((json_t *)(uintptr_t)o, name, value) if (
		!json_is_null(value) && !is_own(rope_common, name) && !is_own(rope_members(*type), name) &&
		!(p->cfg->family->other_modalities != NULL &&
		  is_own(rope_pictures,
			 name))) return od_fail(p->err, OD_ERR_UNSUPPORTED,
						"%s: field \"%.64s\" is not supported in a RoPE of type \"%s\"", where,
						name, *type);
	return OD_OK;
}

/* rope_scaling (older files) or rope_parameters (newer ones). */
static int read_scaling(const struct od_parse *p, const char *key, bool has_long, struct od_rope *r, double *attention,
			const json_t **at)
{
	const char *const types[] = { "default", has_long ? "longrope" : "yarn", NULL }, *type;
	char where[1024];
	json_t *o;
	int rc = od_json_obj(p->root, key, &o, p->where, p->err);

	if (rc != OD_OK)
		return rc;
	snprintf(where, sizeof(where), "%s: field \"%s\"", p->where, key);
	rc = od_parse_rope_type(p, o, where, types, &type);
	if (rc != OD_OK)
		return rc;
	/* "type": "default" may stand without one; then the frequency base is where it always was. */
	if (od_json_has(o, "rope_theta"))
		*at = o;
	if (strcmp(type, "default") == 0)
		return OD_OK;
	return has_long ? read_long(p, o, where, r) : read_yarn(p, o, where, r, attention);
}

int od_parse_rotated(const struct od_parse *p, uint32_t head, double fallback, uint32_t *dims)
{
	const char *key = "partial_rotary_factor";
	const bool is_null = json_is_null(json_object_get(p->root, key)); /* then transformers has no default for it */
	double fraction, inner;
	int rc = od_json_f64_or(p->root, key, 0, 1, is_null ? 1 : fallback, &fraction, p->where, p->err);

	for (size_t i = 0; rc == OD_OK && i < 2; i++) {
		const json_t *o = json_object_get(p->root, rope_objects[i]);

		if (!json_is_object(o) || !od_json_has(o, key))
			continue;
		rc = od_json_f64(o, key, 0, 1, &inner, p->where, p->err);
		if (rc == OD_OK && od_json_has(p->root, key) && inner != fraction)
			rc = od_fail(p->err, OD_ERR_FORMAT, "%s: field \"%s\": found two values, %g and %g", p->where,
				     key, fraction, inner);
		fraction = inner;
	}
	*dims = rc == OD_OK ? (uint32_t)(head * fraction) : 0;
	if (rc == OD_OK && (*dims == 0 || *dims % 2 != 0))
		rc = od_fail(p->err, OD_ERR_UNSUPPORTED,
			     "%s: field \"%s\": expected an even number of the %u elements of a head "
			     "(RoPE turns pairs), found %g of them",
			     p->where, key, head, head * fraction);
	return rc;
}

/* r: dims and neighbours are set. */
static int parse_rope(const struct od_parse *p, struct od_rope r, bool has_long, uint32_t *index, double *attention)
{
	const json_t *at = p->root;
	const double theta = p->cfg->family->rope_theta;
	double outer;
	int rc = OD_OK;

	if (attention != NULL)
		*attention = 1;
	if (od_json_has(p->root, rope_objects[0]) && od_json_has(p->root, rope_objects[1]))
		return od_fail(p->err, OD_ERR_FORMAT, "%s: fields \"%s\" and \"%s\": expected one of them, found both",
			       p->where, rope_objects[0], rope_objects[1]);
	for (size_t i = 0; rc == OD_OK && i < 2; i++)
		if (od_json_has(p->root, rope_objects[i]))
			rc = read_scaling(p, rope_objects[i], has_long, &r, attention, &at);
	if (rc == OD_OK)
		rc = od_json_f64_or(at, "rope_theta", 1, 1e12, theta != 0 ? theta : 10000, &r.theta, p->where, p->err);
	if (rc == OD_OK)
		rc = od_json_f64_or(p->root, "rope_theta", 1, 1e12, r.theta, &outer, p->where, p->err);
	if (rc == OD_OK && outer != r.theta)
		rc = od_fail(p->err, OD_ERR_FORMAT, "%s: field \"rope_theta\": found two values, %g and %g", p->where,
			     outer, r.theta);
	if (rc == OD_OK && r.factor != 0 && r.theta == 1)
		rc = od_fail(p->err, OD_ERR_RANGE, "%s: field \"rope_theta\": expected more than 1 with YaRN, found 1",
			     p->where);
	return rc == OD_OK ? od_config_add_rope(p->cfg, &r, index, p->err) : rc;
}

int od_parse_rope(const struct od_parse *p, uint32_t dims, bool neighbours, uint32_t *index, double *attention)
{
	const struct od_rope r = { .dims = dims, .neighbours = neighbours, .magnitude = 1 };

	return parse_rope(p, r, false, index, attention);
}

int od_parse_long_rope(const struct od_parse *p, uint32_t dims, uint32_t *index)
{
	const struct od_rope r = { .dims = dims, .magnitude = 1 };

	return parse_rope(p, r, true, index, NULL);
}

/* A field of transformers that is true where it is missing, and false where it is null. */
static int bool_or_true(const struct od_parse *p, const char *key, bool *out)
{
	return od_json_bool_or(p->root, key, !json_is_null(json_object_get(p->root, key)), out, p->where, p->err);
}

/* ---- latent attention ---- */

int od_parse_mla(const struct od_parse *p, bool by_halves, struct od_mixer *m)
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
	bool neighbours = true;
	int rc = by_halves ? bool_or_true(p, "rope_interleave", &neighbours) : OD_OK;

	for (size_t i = 0; rc == OD_OK && i < sizeof(field) / sizeof(field[0]); i++)
		rc = od_json_u32(p->root, field[i].key, 1, field[i].max, field[i].out, p->where, p->err);
	if (rc == OD_OK)
		rc = od_json_u32_or(p->root, "q_lora_rank", 1, OD_DIM_MAX, 0, &m->q_rank, p->where, p->err);
	if (rc != OD_OK)
		return rc;
	rope_dim = m->k_dim;
	if (rope_dim % 2 != 0)
		return od_fail(p->err, OD_ERR_UNSUPPORTED,
			       "%s: field \"qk_rope_head_dim\": expected an even number (RoPE turns pairs), "
			       "found %u",
			       p->where, rope_dim);
	m->k_dim += m->nope_dim;
	if ((uint64_t)m->n_heads * (m->nope_dim + m->v_dim + m->kv_rank + rope_dim) > OD_DIM_MAX)
		return od_fail(p->err, OD_ERR_RANGE,
			       "%s: field \"num_attention_heads\": expected at most %u elements for all heads "
			       "together, found %u heads",
			       p->where, OD_DIM_MAX, m->n_heads);
	rc = od_parse_rope(p, rope_dim, neighbours, &m->rope, &attention);
	if (rc != OD_OK)
		return rc;
	m->n_kv_heads = 1;
	m->norm_eps = 1e-6f; /* norms of latents have this one, whatever rms_norm_eps says */
	m->scale = (float)(attention / sqrt((double)m->k_dim));
	return OD_OK;
}

/* ---- experts and layers ---- */

/* The number of experts has several names; transformers takes some for others in each family, so all that are there
 * must agree. */
static int read_n_experts(const struct od_parse *p, const char *n_key)
{
	static const char *const other[] = { "num_local_experts", "num_experts", "n_routed_experts" };
	struct od_config *c = p->cfg;
	const char *key = n_key;
	uint32_t again;
	int rc;

	if (!od_json_has(p->root, n_key) && od_json_has(p->root, other[0])) /* as transformers 5 writes it for some */
		key = other[0];
	rc = od_json_u32(p->root, key, 1, OD_MAX_EXPERTS, &c->n_experts, p->where, p->err);
	for (size_t i = 0; rc == OD_OK && i < sizeof(other) / sizeof(other[0]); i++) {
		rc = od_json_u32_or(p->root, other[i], 1, OD_MAX_EXPERTS, c->n_experts, &again, p->where, p->err);
		if (rc == OD_OK && again != c->n_experts)
			rc = od_fail(p->err, OD_ERR_FORMAT,
				     "%s: fields \"%s\" and \"%s\": expected the same number, found %u and %u",
				     p->where, key, other[i], c->n_experts, again);
	}
	return rc;
}

int od_parse_experts(const struct od_parse *p, const char *n_key, const char *size_key)
{
	struct od_config *c = p->cfg;
	int rc = od_json_u32(p->root, size_key, 1, OD_DIM_MAX, &c->intermediate, p->where, p->err);

	if (rc == OD_OK)
		rc = read_n_experts(p, n_key);
	if (rc != OD_OK)
		return rc;
	return od_json_u32(p->root, "num_experts_per_tok", 1, c->n_experts < OD_MAX_TOP_K ? c->n_experts : OD_MAX_TOP_K,
			   &c->top_k, p->where, p->err);
}

int od_parse_groups(const struct od_parse *p, struct od_router_spec *r)
{
	const uint32_t n = p->cfg->n_experts;
	int rc = od_json_u32(p->root, "n_group", 1, n < OD_MAX_GROUPS ? n : OD_MAX_GROUPS, &r->n_groups, p->where,
			     p->err);

	if (rc == OD_OK)
		rc = od_json_u32(p->root, "topk_group", 1, r->n_groups, &r->top_groups, p->where, p->err);
	if (rc == OD_OK && n % r->n_groups != 0)
		rc = od_fail(p->err, OD_ERR_FORMAT,
			     "%s: field \"n_group\": expected a divisor of \"n_routed_experts\" %u, found %u", p->where,
			     n, r->n_groups);
	if (rc == OD_OK && r->group_two && r->n_groups > 1 && n / r->n_groups < 2)
		rc = od_fail(p->err, OD_ERR_FORMAT,
			     "%s: field \"n_group\": expected groups of at least 2 of %u experts, found %u "
			     "groups",
			     p->where, n, r->n_groups);
	if (rc == OD_OK && p->cfg->top_k > n / r->n_groups * r->top_groups)
		rc = od_fail(p->err, OD_ERR_FORMAT,
			     "%s: field \"topk_group\": %u groups of %u experts have fewer than "
			     "\"num_experts_per_tok\" %u",
			     p->where, r->top_groups, n / r->n_groups, p->cfg->top_k);
	return rc;
}

int od_parse_shared(const struct od_parse *p, uint32_t fallback, uint32_t *intermediate)
{
	uint32_t n;
	int rc = od_json_u32_or(p->root, "n_shared_experts", 0, OD_MAX_EXPERTS, fallback, &n, p->where, p->err);

	*intermediate = 0;
	if (rc == OD_OK && (uint64_t)n * p->cfg->intermediate > OD_DIM_MAX)
		rc = od_fail(p->err, OD_ERR_RANGE, "%s: field \"n_shared_experts\": expected at most %u, found %u",
			     p->where, OD_DIM_MAX / p->cfg->intermediate, n);
	if (rc == OD_OK)
		*intermediate = n * p->cfg->intermediate;
	return rc;
}

int od_parse_v3_experts(const struct od_parse *p, struct od_layer_spec *l, double scale)
{
	struct od_router_spec *r = &l->router;
	int rc = od_parse_only_str(p, "scoring_func", "sigmoid");

	*r = (struct od_router_spec){ .score = OD_SCORE_SIGMOID, .bias = true, .group_two = true, .sum_eps = 1e-20f };
	if (rc == OD_OK)
		rc = od_parse_only_str(p, "topk_method", "noaux_tc");
	if (rc == OD_OK)
		rc = od_parse_only_number(p, "moe_layer_freq", 1);
	if (rc == OD_OK)
		rc = od_parse_experts(p, "n_routed_experts", "moe_intermediate_size");
	if (rc == OD_OK)
		rc = od_parse_groups(p, r);
	if (rc == OD_OK)
		rc = bool_or_true(p, "norm_topk_prob", &r->renormalise);
	if (rc == OD_OK)
		rc = od_json_f64_or(p->root, "routed_scaling_factor", 1e-6, 1e6, scale, &scale, p->where, p->err);
	if (rc == OD_OK)
		rc = od_json_u32(p->root, "intermediate_size", 1, OD_DIM_MAX, &l->intermediate, p->where, p->err);
	r->scale = (float)scale;
	return rc == OD_OK ? od_parse_shared(p, 1, &l->shared_intermediate) : rc;
}

int od_parse_mtp(const struct od_parse *p, const char *key)
{
	const char *other = "num_mtp_layers"; /* as transformers 5 writes num_nextn_predict_layers */

	return od_json_u32_or(p->root, od_json_has(p->root, key) ? key : other, 0, OD_MAX_LAYERS, 0, &p->cfg->n_mtp,
			      p->where, p->err);
}

int od_parse_add_layers(const struct od_parse *p, uint32_t fallback, struct od_layer_spec *l)
{
	uint32_t n_layers, first = 0;
	int rc = od_parse_layers(p, &n_layers);

	if (rc == OD_OK)
		rc = od_json_u32_or(p->root, "first_k_dense_replace", 0, UINT32_MAX, fallback, &first, p->where,
				    p->err);
	for (uint32_t i = 0; rc == OD_OK && i < n_layers; i++) {
		l->ffn = i < first ? OD_FFN_DENSE : OD_FFN_MOE;
		rc = od_config_add_layer(p->cfg, l, p->err);
	}
	return rc;
}

int od_parse_add_alike(const struct od_parse *p, const struct od_layer_spec *l)
{
	uint32_t n_layers;
	int rc = od_parse_layers(p, &n_layers);

	for (uint32_t i = 0; rc == OD_OK && i < n_layers; i++)
		rc = od_config_add_layer(p->cfg, l, p->err);
	return rc;
}

int od_parse_layers(const struct od_parse *p, uint32_t *n_layers)
{
	return od_json_u32(p->root, "num_hidden_layers", 1, OD_MAX_LAYERS, n_layers, p->where, p->err);
}

int od_parse_is_sparse(const struct od_parse *p, uint32_t layer, bool *sparse)
{
	json_t *list = NULL;
	uint32_t step;
	int rc = od_json_u32_or(p->root, "decoder_sparse_step", 1, UINT32_MAX, 1, &step, p->where, p->err);

	if (rc == OD_OK && od_json_has(p->root, "mlp_only_layers"))
		rc = od_json_arr(p->root, "mlp_only_layers", &list, p->where, p->err);
	if (rc != OD_OK)
		return rc;
	*sparse = (layer + 1) % step == 0;
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *v = json_array_get(list, i);

		if (!json_is_integer(v) || json_integer_value(v) < 0)
			return od_fail(p->err, OD_ERR_RANGE,
				       "%s: field \"mlp_only_layers\": expected layer numbers, counted from 0",
				       p->where);
		*sparse = *sparse && json_integer_value(v) != layer;
	}
	return OD_OK;
}
