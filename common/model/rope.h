/* rope.h - the frequencies of rotary position embeddings. Thread: any. */
#ifndef OD_MODEL_ROPE_H
#define OD_MODEL_ROPE_H

#include "common/model/layer_spec.h"

/* inv_freq [dims / 2] = 1 / theta^(2i / dims), or 0 from `pairs` on; rounded to f32 at each step as Hugging Face
 * transformers does. With YaRN (arXiv 2309.00071) frequencies with few rotations in the original context are divided by
 * its factor, those with many are kept, and a ramp blends between them. With long RoPE the factors of a long text, or
 * of others. */
void od_rope_frequencies(const struct od_rope *rope, bool is_long, float *inv_freq);

#endif
