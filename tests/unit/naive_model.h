/* naive_model.h - for tests: tiny models in double precision, in the plainest way: every position from the first one
 * on, keys and values of all of them side by side; those of latent attention are made of every latent, which its mixer
 * never does. Of the product's arithmetic only the frequencies of rotary embeddings are used (test_rope.c has them). */
#ifndef OD_TESTS_NAIVE_MODEL_H
#define OD_TESTS_NAIVE_MODEL_H

#include "tests/unit/tiny_model.h"

#define NAIVE_WIDEST 64 /* widest head or latent; heads: 8 */

/* Cosine and sine of a pair of elements at a position, as f32s: the angle is one too, as in Hugging Face. */
void naive_turn(const struct od_rope *rope, uint32_t pair, uint32_t position, float *cosine, float *sine);
/* y [n][hidden] of x [n][hidden], the normed rows of positions 0 to n - 1, by a layer's mixer. */
void naive_mix(const struct tiny_model *t, const struct tiny_weights *w, uint32_t layer, uint32_t n, const double *x,
	       double *y);
/* Logits [n_prompt][vocab] of the model's prompt, in profile f32; to be freed. */
double *naive_logits(const struct tiny_model *t, const struct tiny_weights *w);

#endif
