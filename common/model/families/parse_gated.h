/* parse_gated.h - reads the mixers and layers that Qwen3-Next and the families that took them over share.
 *
 * Thread: as parse.h. */
#ifndef OD_FAMILIES_PARSE_GATED_H
#define OD_FAMILIES_PARSE_GATED_H

#include "common/model/families/parse.h"

/* The mixers of Qwen3-Next and of the families that took them over: gated delta rules (linear_*) and gated attention
 * with RoPE on a part of each head. attention.rope and the norms are read too. */
OD_MUST_CHECK int od_parse_gated_mixers(const struct od_parse *p, struct od_mixer *delta, struct od_mixer *attention);
/* Adds all layers, each with one of the two mixers by layer_types or full_attention_interval. l: what is the same in
 * all of them, unless dense says so. dense: mlp_only_layers and decoder_sparse_step count; else all layers have
 * experts. */
OD_MUST_CHECK int od_parse_gated_layers(const struct od_parse *p, const struct od_mixer *delta,
					const struct od_mixer *attention, const struct od_layer_spec *l, bool dense);

#endif
