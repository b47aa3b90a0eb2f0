/* byte_set.h - a set of byte values. Thread: any. Owner: plain data. */
#ifndef OD_GRAMMAR_BYTE_SET_H
#define OD_GRAMMAR_BYTE_SET_H

#include <stdbool.h>
#include <stdint.h>

struct od_byte_set {
	uint64_t w[4]; /* bit b % 64 of w[b / 64] */
};

static inline bool od_byte_set_has(const struct od_byte_set *s, uint8_t b)
{
	return s->w[b >> 6] >> (b & 63) & 1;
}

static inline void od_byte_set_add(struct od_byte_set *s, uint8_t b)
{
	s->w[b >> 6] |= (uint64_t)1 << (b & 63);
}

/* Adds first to last, both included. */
static inline void od_byte_set_add_range(struct od_byte_set *s, unsigned first, unsigned last)
{
	for (unsigned b = first; b <= last; b++)
		od_byte_set_add(s, (uint8_t)b);
}

static inline void od_byte_set_unite(struct od_byte_set *s, const struct od_byte_set *other)
{
	for (int i = 0; i < 4; i++)
		s->w[i] |= other->w[i];
}

static inline int od_byte_set_count(const struct od_byte_set *s)
{
	int n = 0;

	for (int i = 0; i < 4; i++)
		n += __builtin_popcountll(s->w[i]);
	return n;
}

#endif
