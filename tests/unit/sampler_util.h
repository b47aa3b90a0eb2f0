/* sampler_util.h - for tests: samplers, what they choose of logits that stay, and their margins. */
#ifndef OD_TESTS_SAMPLER_UTIL_H
#define OD_TESTS_SAMPLER_UTIL_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/model/sampler.h"

#define MAX_VOCAB 400

static inline struct od_sampler *open_sampler(const struct od_sampler_opts *o, uint32_t vocab)
{
	struct od_sampler *s;
	struct od_err err;

	assert_int_equal(od_sampler_new(&s, o, vocab, &err), OD_OK);
	return s;
}

static inline int32_t sample_with(struct od_sampler *s, const float *logits, uint32_t n, float *margin)
{
	float copy[MAX_VOCAB];

	assert_true(n <= MAX_VOCAB);
	memcpy(copy, logits, n * sizeof(*copy));
	return od_sampler_sample(s, copy, margin);
}

static inline int32_t sample(struct od_sampler *s, const float *logits, uint32_t n)
{
	return sample_with(s, logits, n, NULL);
}

/* want is the reference's; infinite: no other candidate. */
static inline void check_margin(float margin, double want)
{
	if (want == (double)INFINITY)
		assert_true(margin == INFINITY);
	else
		assert_true(fabs(margin - want) <= 1e-6 * fabs(want) + 1e-9);
}

#endif
