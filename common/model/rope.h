/* rope.h - the frequencies of rotary position embeddings. Thread: any. */
#ifndef OD_MODEL_ROPE_H
#define OD_MODEL_ROPE_H

#include "common/model/config.h"

/* inv_freq [head_dim / 2], as Hugging Face has it: 1 / theta^(2i / head_dim), rounded to f32 at each step. */
void od_rope_frequencies(const struct od_config *cfg, float *inv_freq);

#endif
