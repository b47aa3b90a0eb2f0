/* cpu_planes.h - decoding of planes (planes.h) and merging of bit-fields, written once over the 64 exponents of a
 * planes_*.h that is included before. */
#ifndef OD_COMPUTE_CPU_PLANES_H
#define OD_COMPUTE_CPU_PLANES_H

#include <string.h>

#include "common/base/mem.h"
#include "common/compute/cpu/cpu_tiles.h"
#include "common/compute/cpu/planes_groups.h"

/* How far ahead of its reads a block's planes, and the SM bytes, are fetched: what follows a block's planes is the next
 * block. */
#define PLANES_AHEAD_BYTES 4096u
#define PLANES_NEAR_BYTES 1024u

static ALWAYS_INLINE void planes_fetch(const uint8_t *p)
{
	od_prefetch((uintptr_t)p + PLANES_AHEAD_BYTES);
}

/* Codes are worth taking on into L1, too; with SM bytes merging is slower. */
static ALWAYS_INLINE void planes_fetch_codes(const uint8_t *level)
{
	planes_fetch(level);
	__builtin_prefetch((const void *)((uintptr_t)level + PLANES_NEAR_BYTES));
}

/* n codes to out, whose room is a multiple of 64. */
static void planes_level(const uint8_t *level, size_t n, const uint8_t *symbol, const uint8_t *below, uint8_t *out)
{
	const x64_symbols s = x64_symbols_of(symbol);

	for (; n >= PLANES_FOUR; n -= PLANES_FOUR, level += PLANES_FOUR / 4, out += PLANES_FOUR) {
		planes_fetch_codes(level);
		planes_put_groups(4, s, level, &below, out);
	}
	for (; n >= PLANES_GROUP; n -= PLANES_GROUP, level += PLANES_GROUP / 4, out += PLANES_GROUP) {
		planes_fetch_codes(level);
		planes_put_groups(1, s, level, &below, out);
	}
	if (n > 0)
		x64_store(out, planes_last(s, level, n, below));
}

/* Symbols behind level 1's escapes: levels 3 and 2 decoded. A decoder reads up to 64 bytes past what it takes. */
struct planes_deep {
	uint8_t second[OD_PLANES_BLOCK + OD_PAD_BYTES], third[OD_PLANES_BLOCK + OD_PAD_BYTES];
};

static const uint8_t *planes_below(const struct od_planes_block *k, const uint8_t *symbol, struct planes_deep *d)
{
	/* Fetches what no level fetches: the counts, and codes that are stored plainly. */
	for (const uint8_t *p = k->plain; p < k->level[2] + OD_LINE_BYTES; p += OD_LINE_BYTES)
		planes_fetch(p);
	planes_level(k->level[2], k->n[2], symbol + 2 * OD_PLANES_SYMBOLS, k->plain, d->third);
	planes_level(k->level[1], k->n[1], symbol + OD_PLANES_SYMBOLS, d->third, d->second);
	return d->second;
}

static void planes_decode(const uint8_t *chunk, size_t n, size_t row, size_t b, uint8_t *e)
{
	const struct od_planes_block k = od_planes_at(chunk, n, row, b);
	const uint8_t *symbol = od_planes_symbols(chunk);
	struct planes_deep deep;

	if (k.raw)
		memcpy(e, k.plain, k.n[0]);
	else
		planes_level(k.level[0], k.n[0], symbol, planes_below(&k, symbol, &deep), e);
}

/* The last weights, fewer than 64: neither is a byte of sm read nor one of w written that is not theirs. */
static void planes_merge_last(x64 e, const uint8_t *sm, uint16_t *w, size_t weights)
{
	uint8_t low[64];
	uint16_t out[64];

	memcpy(low, sm, weights);
	x64_merge(out, low, e);
	memcpy(w, out, weights * sizeof(*w));
}

static void merge_bf16(const uint8_t *e, const uint8_t *sm, size_t n, uint16_t *w)
{
	size_t i = 0;

	for (; i + 64 <= n; i += 64) {
		planes_fetch(e + i);
		planes_fetch(sm + i);
		x64_merge(w + i, sm + i, x64_load(e + i));
	}
	if (i < n)
		planes_merge_last(x64_load(e + i), sm + i, w + i, n - i);
}

static ALWAYS_INLINE void merge_groups(const size_t groups, x64_symbols s, const uint8_t *level, const uint8_t **below,
				       const uint8_t *sm, uint16_t *w)
{
	const x64_codes c = x64_codes_of(level, groups);

	planes_fetch_codes(level);
	V16_UNROLL(4)
	for (size_t i = 0; i < groups * PLANES_GROUP; i += PLANES_GROUP) {
		planes_fetch(sm + i + PLANES_AHEAD_BYTES);
		x64_merge(w + i, sm + i, planes_group(s, c, i / PLANES_GROUP, below));
	}
}

static void planes_merge(const uint8_t *chunk, size_t n, size_t row, size_t b, const uint8_t *sm, uint16_t *w)
{
	const struct od_planes_block k = od_planes_at(chunk, n, row, b);
	const uint8_t *symbol = od_planes_symbols(chunk), *level = k.level[0], *below;
	const x64_symbols s = x64_symbols_of(symbol);
	struct planes_deep deep;
	size_t i = 0;

	if (k.raw) {
		merge_bf16(k.plain, sm, k.n[0], w);
		return;
	}
	/* Decoding the deeper levels does not read sm: prefetch the start of sm in that time. */
	for (size_t p = 0; p < PLANES_AHEAD_BYTES && p < k.n[0]; p += 64)
		planes_fetch(sm + p);
	below = planes_below(&k, symbol, &deep);
	for (; i + PLANES_FOUR <= k.n[0]; i += PLANES_FOUR, level += PLANES_FOUR / 4)
		merge_groups(4, s, level, &below, sm + i, w + i);
	for (; i + PLANES_GROUP <= k.n[0]; i += PLANES_GROUP, level += PLANES_GROUP / 4)
		merge_groups(1, s, level, &below, sm + i, w + i);
	if (i < k.n[0])
		planes_merge_last(planes_last(s, level, k.n[0] - i, below), sm + i, w + i, k.n[0] - i);
}

static void planes_kernels(struct od_backend *t)
{
	t->planes_decode = planes_decode;
	t->planes_merge = planes_merge;
	t->merge_bf16 = merge_bf16;
}

#endif
