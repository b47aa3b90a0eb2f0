/* parse.h - what parsers of config.json (family.h) share: readings of fields that several families have, under the names that
 * transformers gives them, and the refusal of settings that nothing here implements.
 * Thread: any. Each names the field in its reason. */
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

/* Fields that change numbers in ways which no family here has, each with the value that changes nothing. */
OD_MUST_CHECK int od_parse_refuse(const struct od_parse *p);
/* The field may be absent, null or expected. */
OD_MUST_CHECK int od_parse_only_bool(const struct od_parse *p, const char *key, bool expected);
OD_MUST_CHECK int od_parse_only_str(const struct od_parse *p, const char *key, const char *expected);

/* num_attention_heads, num_key_value_heads, head_dim (may be absent), attention_bias; scale and norm_eps follow. */
OD_MUST_CHECK int od_parse_gqa(const struct od_parse *p, struct od_mixer *mix);
/* Qwen's sliding_window, which counts with use_sliding_window alone. */
OD_MUST_CHECK int od_parse_window(const struct od_parse *p, uint32_t *window);
/* rope_theta with rope_scaling or rope_parameters: plain or YaRN over dims elements; adds the rope. attention (NULL ok):
 * factor of scores by mscale_all_dim. */
OD_MUST_CHECK int od_parse_rope(const struct od_parse *p, uint32_t dims, bool neighbours, uint32_t *index, double *attention);
/* Number of routed experts under n_key (or num_local_experts), num_experts_per_tok, their inner size under size_key. */
OD_MUST_CHECK int od_parse_experts(const struct od_parse *p, const char *n_key, const char *size_key);
OD_MUST_CHECK int od_parse_layers(const struct od_parse *p, uint32_t *n_layers); /* num_hidden_layers */

/* Qwen's choice of layers: mlp_only_layers and decoder_sparse_step. *sparse: the layer has routed experts. Fields are
 * checked for all layers when it is asked about the first. */
OD_MUST_CHECK int od_parse_is_sparse(const struct od_parse *p, uint32_t layer, bool *sparse);

#endif
