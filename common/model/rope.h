/* rope.h - the frequencies of rotary position embeddings. Thread: any. */
#ifndef OD_MODEL_ROPE_H
#define OD_MODEL_ROPE_H

#include "common/model/layer_spec.h"

/* inv_freq [dims / 2], as Hugging Face has it: 1 / theta^(2i / dims), rounded to f32 at each step. With YaRN (arXiv 2309.00071)
 * those of few rotations within the original context are divided by its factor, those of many stay, between them a ramp. */
void od_rope_frequencies(const struct od_rope *rope, float *inv_freq);

#endif
