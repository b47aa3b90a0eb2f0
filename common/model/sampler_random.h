/* sampler_random.h - the sampler's random numbers: those of splitmix64 (Steele, Lea and Flood 2014), which computes the
 * i-th of a stream directly. Thread: any. */
#ifndef OD_MODEL_SAMPLER_RANDOM_H
#define OD_MODEL_SAMPLER_RANDOM_H

#include <stdint.h>
#include <string.h>

#define OD_STREAM_STEP 0x9e3779b97f4a7c15u

static inline uint64_t od_mix_high(uint64_t z) /* right in the upper 31 bits */
{
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	return (z ^ z >> 27) * 0x94d049bb133111ebu;
}

static inline uint64_t od_mix(uint64_t z)
{
	z = od_mix_high(z);
	return z ^ z >> 31;
}

/* Each draw has a stream of its own: its numbers depend only on the seed, the draw and the token. */
static inline uint64_t od_stream_of(uint64_t seed, uint64_t draw)
{
	return od_mix(od_mix(seed + OD_STREAM_STEP) + draw * OD_STREAM_STEP);
}

/* The number of a token: an odd multiple of 2^-53, so neither 0 nor 1. */
static inline double od_uniform(uint64_t stream, uint32_t id)
{
	/* 52 random bits as the fraction of a number from 1 to 2: vectors cannot convert 64-bit integers. Then minus 1
	 * plus 2^-53, which is exact. */
	const uint64_t bits = 0x3ff0000000000000u | od_mix(stream + id * OD_STREAM_STEP) >> 12;
	double one_to_two;

	memcpy(&one_to_two, &bits, sizeof(one_to_two));
	return one_to_two - 0x1.fffffffffffffp-1;
}

#endif
