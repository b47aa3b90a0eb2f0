/* bench_draw.h - random numbers that are the same on every machine: splitmix64 (Steele, Lea, Flood 2014).
 *
 * Thread: any; a state has one user. */
#ifndef OD_BENCH_DRAW_H
#define OD_BENCH_DRAW_H

#include <stdint.h>

#define OD_DRAW_STEP UINT64_C(0x9e3779b97f4a7c15)

static inline uint64_t od_draw_mix(uint64_t z)
{
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* Returns the next number and moves the state on. */
static inline uint64_t od_draw(uint64_t *state)
{
	return od_draw_mix(*state += OD_DRAW_STEP);
}

#endif
