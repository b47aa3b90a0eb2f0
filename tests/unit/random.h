/* random.h - numbers for tests that are the same in every run: a function of the seed, which moves on. */
#ifndef OD_TESTS_RANDOM_H
#define OD_TESTS_RANDOM_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t random_u64(uint64_t *seed) /* splitmix64 */
{
	uint64_t z = *seed += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static inline size_t random_below(uint64_t *seed, size_t n)
{
	return (size_t)(random_u64(seed) % n);
}

#endif
