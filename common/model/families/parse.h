/* parse.h - helpers for the parsers of config.json (family.h): read fields that several families share, under the names
 * of Hugging Face transformers, and refuse unsupported settings. An error names the field.
 *
 * Thread: any. */
#ifndef OD_MODEL_PARSE_H
#define OD_MODEL_PARSE_H

#include "common/base/json.h"
#include "common/model/family.h"
#include "common/model/mixer.h"

#define OD_DIM_MAX (1u << 20)

struct od_parse {
	struct od_config *cfg;
	const json_t *root;
	const char *where;
	struct od_err *err;
};

/* Refuses fields that would change results in ways that most families do not support, unless they have their neutral
 * value. own: those that the family reads itself; ends with NULL; NULL: none. */
OD_MUST_CHECK int od_parse_refuse(const struct od_parse *p, const char *const *own);
/* The field may be absent, null or expected. */
OD_MUST_CHECK int od_parse_only_bool(const struct od_parse *p, const char *key, bool expected);
OD_MUST_CHECK int od_parse_only_str(const struct od_parse *p, const char *key, const char *expected);
OD_MUST_CHECK int od_parse_absent(const struct od_parse *p, const char *key); /* or null */
OD_MUST_CHECK int od_parse_only_number(const struct od_parse *p, const char *key, double expected);

/* num_attention_heads, num_key_value_heads and head_dim (may be absent), attention_bias; scale and norm_eps follow. */
OD_MUST_CHECK int od_parse_gqa(const struct od_parse *p, struct od_mixer *mix);
/* Qwen's sliding_window, which applies only with use_sliding_window. */
OD_MUST_CHECK int od_parse_window(const struct od_parse *p, uint32_t *window);
/* How many of a head's elements RoPE rotates, by partial_rotary_factor [fallback; null: 1] beside or among RoPE's
 * settings. */
OD_MUST_CHECK int od_parse_rotated(const struct od_parse *p, uint32_t head, double fallback, uint32_t *dims);
/* The type of an object of RoPE's settings: rope_type, else type, else "default", and one of types (ends with NULL).
 * Refuses, by name, members that nothing reads in a RoPE of this type: they may well change its angles. where: the
 * object's name for messages. */
OD_MUST_CHECK int od_parse_rope_type(const struct od_parse *p, const json_t *o, const char *where,
				     const char *const *types, const char **type);
/* rope_theta with rope_scaling or rope_parameters: plain or YaRN over dims elements; adds the rope. *attention (NULL
 * ok): the factor of attention scores from mscale_all_dim. */
OD_MUST_CHECK int od_parse_rope(const struct od_parse *p, uint32_t dims, bool neighbours, uint32_t *index,
				double *attention);
/* Like od_parse_rope, for a family that has long RoPE instead of YaRN. */
OD_MUST_CHECK int od_parse_long_rope(const struct od_parse *p, uint32_t dims, uint32_t *index);
/* DeepSeek's multi-head latent attention with its RoPE, which turns neighbours; by_halves: rope_interleave may say that
 * it turns halves instead. */
OD_MUST_CHECK int od_parse_mla(const struct od_parse *p, bool by_halves, struct od_mixer *mix);
/* The number of routed experts (n_key or num_local_experts), num_experts_per_tok, the intermediate size (size_key). */
OD_MUST_CHECK int od_parse_experts(const struct od_parse *p, const char *n_key, const char *size_key);
/* n_group and topk_group, which must leave enough experts; they follow od_parse_experts. */
OD_MUST_CHECK int od_parse_groups(const struct od_parse *p, struct od_router_spec *router);
/* n_shared_experts [fallback] of the size of routed ones, as one network. */
OD_MUST_CHECK int od_parse_shared(const struct od_parse *p, uint32_t fallback, uint32_t *intermediate);
/* Routed, shared and dense networks of DeepSeek-V3 (arXiv 2412.19437, section 2.1.2) and the families that took them
 * over: sigmoids with a bias, groups by their two best. scale: where routed_scaling_factor is missing. */
OD_MUST_CHECK int od_parse_v3_experts(const struct od_parse *p, struct od_layer_spec *l, double scale);
/* key: how many layers behind those of the model a checkpoint may have. */
OD_MUST_CHECK int od_parse_mtp(const struct od_parse *p, const char *key);
/* Adds all layers: the first first_k_dense_replace [fallback] ones dense, the others with experts. */
OD_MUST_CHECK int od_parse_add_layers(const struct od_parse *p, uint32_t fallback, struct od_layer_spec *l);
OD_MUST_CHECK int od_parse_add_alike(const struct od_parse *p, const struct od_layer_spec *l); /* all layers */
OD_MUST_CHECK int od_parse_layers(const struct od_parse *p, uint32_t *n_layers); /* num_hidden_layers */

/* Qwen's mlp_only_layers and decoder_sparse_step. *sparse: the layer has routed experts. Call it for layer 0 first:
 * that call checks the fields for all layers. */
OD_MUST_CHECK int od_parse_is_sparse(const struct od_parse *p, uint32_t layer, bool *sparse);

#endif
