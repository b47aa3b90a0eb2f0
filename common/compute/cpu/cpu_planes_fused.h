/* cpu_planes_fused.h - matmul of few rows with weights that stay planes (planes.h), decoded in registers: AVX-512 with
 * VBMI2. Included by a cpu_*vbmi2.c, which says before what the 16 lanes of a sum are: fused_order, FUSED_VECTORS,
 * row_vector, load_row_vector, add_vector.
 *
 * Weights are read from memory at two thirds of their size, so this is faster than plain BF16 as long as arithmetic
 * keeps up. What that takes, measured on Zen 5 (GB/s of BF16 that the planes stand for, one core, weights in memory;
 * plain BF16: 34):
 * - Four blocks side by side (31, with the best distance of prefetching 33): their sums hide the latency of adding, and
 *   no block needs to know how many escapes another one has.
 * - All that the next blocks consist of is fetched while these are computed (-> 43): planes while the deeper levels are
 *   decoded, SM bytes with every step. A fixed distance ahead leaves memory idle whenever levels change.
 * - Decoding is a step ahead of adding, and both go through the blocks side by side (-> 50): the processor's window is
 *   too short to find the next step's work behind this one's chain.
 * Shuffles of two sources and moves from general registers to masks are avoided: each costs as much as two others. */
#ifndef OD_COMPUTE_CPU_PLANES_FUSED_H
#define OD_COMPUTE_CPU_PLANES_FUSED_H

#include <immintrin.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/compute/cpu/cpu_tiles.h"
#include "common/compute/cpu/matmul.h"
#include "common/compute/cpu/planes_avx512.h"
#include "common/compute/cpu/planes_groups.h"

#define SIDE_BY_SIDE 4u /* blocks */
#define STEP PLANES_GROUP /* weights of each block in a step: a group of its codes */
#define FUSED_ROWS 8u /* more leave no time for decoding in registers */
/* SM bytes are fetched a second time so far ahead of their reads: a core drops a fetch when it has no buffer for it
 * (cpu_tiles.h). */
#define SM_NEAR_BYTES 1024u

/* n codes of a level to out, which has room for whole groups. A line is fetched at *ahead with every group, evenly. */
static void decode_level(const uint8_t *level, size_t n, const uint8_t *symbol, const uint8_t *below, uint8_t *out,
			 const uint8_t **ahead)
{
	const x64_symbols s = x64_symbols_of(symbol);

	for (; n >= PLANES_FOUR; n -= PLANES_FOUR, level += PLANES_FOUR / 4, out += PLANES_FOUR) {
		const x64_codes c = x64_codes_of(level, 4);

		V16_UNROLL(4)
		for (size_t g = 0; g < 4; g++, *ahead += OD_LINE_BYTES) {
			od_prefetch((uintptr_t)*ahead);
			x64_store(out + g * STEP, planes_group(s, c, g, &below));
		}
	}
	for (; n >= STEP; n -= STEP, level += STEP / 4, out += STEP, *ahead += OD_LINE_BYTES) {
		od_prefetch((uintptr_t)*ahead);
		planes_put_groups(1, s, level, &below, out);
	}
	if (n > 0)
		x64_store(out, planes_last(s, level, n, below));
}

/* Where reading stands in the blocks that are computed side by side. */
struct streams {
	const uint8_t *codes[SIDE_BY_SIDE], *deep[SIDE_BY_SIDE]; /* level 1's codes; the symbols behind its escapes */
	const uint8_t *sm; /* the first block's; the others are sm_stride behind each other */
	size_t sm_stride;
	const uint8_t *ahead; /* SM bytes to fetch */
	x64 next[SIDE_BY_SIDE]; /* exponents of the next step */
	x64 symbol[OD_PLANES_SYMBOLS];
};

static ALWAYS_INLINE __mmask64 mask_at(const uint8_t *plane)
{
	uint64_t m;

	memcpy(&m, plane, sizeof(m));
	return _cvtu64_mask64(m);
}

/* As planes_group, of all blocks. Masks leave the units that shuffle to those who put words together: with several rows
 * a fifteenth faster. */
static ALWAYS_INLINE void decode_next(const size_t no, struct streams *s, size_t at)
{
	__mmask64 escape[SIDE_BY_SIDE];

	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++) {
		const uint8_t *p = s->codes[o] + at / 4;
		__mmask64 low = mask_at(p), high = mask_at(p + STEP / 8);

		escape[o] = _kand_mask64(low, high);
		s->next[o] = _mm512_mask_mov_epi8(_mm512_mask_blend_epi8(low, s->symbol[0], s->symbol[1]), high,
						  s->symbol[2]);
	}
	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++) {
		s->next[o] = _mm512_mask_expand_epi8(s->next[o], escape[o], _mm512_loadu_si512(s->deep[o]));
		s->deep[o] += __builtin_popcountll(_cvtmask64_u64(escape[o]));
	}
}

/* n weights, whole steps, of each of no blocks times the same of nr rows; the streams move on. */
static ALWAYS_INLINE void add_rows(const size_t no, const size_t nr, struct streams *s, size_t n, const float *x,
				   size_t x_stride, v16 (*sum)[4])
{
	const __m512i order = fused_order();

	for (size_t k = 0; k < n; k += STEP) {
		__m512i w[SIDE_BY_SIDE][2];

		/* Words of exponent and SM byte, in the order that lanes want. */
		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++) {
			__m512i e = _mm512_permutexvar_epi32(order, s->next[o]);
			__m512i m = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(s->sm + o * s->sm_stride + k));

			w[o][0] = _mm512_unpacklo_epi8(m, e);
			w[o][1] = _mm512_unpackhi_epi8(m, e);
		}
		decode_next(no, s, k + STEP);
		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++) {
			w[o][0] = _mm512_shrdi_epi16(w[o][0], w[o][0], 1);
			w[o][1] = _mm512_shrdi_epi16(w[o][1], w[o][1], 1);
		}
		V16_UNROLL(4)
		for (size_t index = 0; index < FUSED_VECTORS; index++) {
			V16_UNROLL(4)
			for (size_t r = 0; r < nr; r++) {
				row_vector xp = load_row_vector(x + r * x_stride + k, index);

				V16_UNROLL(4)
				for (size_t o = 0; o < no; o++)
					sum[o][r] = add_vector(sum[o][r], w[o], index, xp);
			}
		}
		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++) {
			od_prefetch((uintptr_t)(s->ahead + o * OD_LINE_BYTES));
			od_prefetch((uintptr_t)(s->sm + o * s->sm_stride + k + SM_NEAR_BYTES));
		}
		s->ahead += no * OD_LINE_BYTES;
	}
	s->sm += n;
	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++)
		s->codes[o] += n / 4;
}

/* ---- Blocks, side by side ---- */

/* A chunk of a matrix, in units: a block of whole rows, or the blocks of a longer row. */
struct unit_chunk {
	const uint8_t *chunk, *sm;
	size_t row, weights, first_row;
	size_t rows, blocks; /* a unit's; one of them is 1 */
};

struct unit_rows {
	const float *x;
	size_t x_stride;
	float *y;
	size_t y_stride;
};

/* Room for what no blocks' level 1 escapes to: each less than a step apart from the next. */
#define DEEP_BYTES (OD_PLANES_BLOCK + 2 * STEP)

/* The streams of block b of each unit, at its beginning. False: one of them is raw. */
static ALWAYS_INLINE bool open_streams(const size_t no, const struct unit_chunk *c, size_t unit, size_t b,
				       uint8_t *deep, struct streams *s)
{
	const uint8_t *symbols = od_planes_symbols(c->chunk), *second = symbols + OD_PLANES_SYMBOLS;
	struct od_planes_block k[SIDE_BY_SIDE];
	uint8_t deepest[OD_PLANES_BLOCK + 2 * STEP];
	const uint8_t *ahead;
	size_t first, weights;

	for (size_t o = 0; o < no; o++) {
		k[o] = od_planes_at(c->chunk, c->weights, c->row, (unit + o) * c->blocks + b);
		if (k[o].raw)
			return false;
	}
	/* Blocks follow each other in memory. */
	ahead = k[no - 1].level[0] + od_planes_level_bytes(k[no - 1].n[0]);
	for (size_t o = 0; o < no; o++) {
		decode_level(k[o].level[2], k[o].n[2], second + OD_PLANES_SYMBOLS, k[o].plain, deepest, &ahead);
		decode_level(k[o].level[1], k[o].n[1], second, deepest, deep, &ahead);
		s->codes[o] = k[o].level[0];
		s->deep[o] = deep;
		deep += (k[o].n[1] / STEP + 1) * STEP;
	}
	od_planes_span(c->weights, c->row, unit * c->blocks + b, &first, &weights);
	s->sm = c->sm + first;
	s->sm_stride = c->rows * c->row;
	s->ahead = s->sm + no * s->sm_stride;
	for (size_t i = 0; i < OD_PLANES_SYMBOLS; i++)
		s->symbol[i] = _mm512_set1_epi8((char)symbols[i]);
	return true;
}

/* Over the rows of a block that are not asked for. */
static void skip_rows(struct streams *s, size_t weights)
{
	for (size_t k = 0; k < weights; k += STEP, s->codes[0] += STEP / 4) {
		uint64_t plane[2];

		memcpy(plane, s->codes[0], sizeof(plane));
		s->deep[0] += __builtin_popcountll(plane[0] & plane[1]);
	}
	s->sm += weights;
}

/* Rows [begin, end) of each of no units times nr rows; begin is 0 but for a single unit. False: a block is raw, and
 * nothing is written. */
static ALWAYS_INLINE bool units_tile(const size_t no, const size_t nr, const struct unit_chunk *c, size_t unit,
				     size_t begin, size_t end, const struct unit_rows *u)
{
	_Alignas(OD_LINE_BYTES) uint8_t deep[SIDE_BY_SIDE * DEEP_BYTES];
	struct streams s;
	v16 sum[SIDE_BY_SIDE][4];

	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++) {
		V16_UNROLL(4)
		for (size_t r = 0; r < nr; r++)
			sum[o][r] = v16_set1(0);
	}
	for (size_t b = 0; b < c->blocks; b++) {
		size_t col = b * OD_PLANES_BLOCK, n = b + 1 < c->blocks ? OD_PLANES_BLOCK : c->row - col;

		if (!open_streams(no, c, unit, b, deep, &s))
			return false;
		skip_rows(&s, begin * c->row);
		decode_next(no, &s, 0);
		for (size_t row = begin; row < end; row++) {
			float *y = u->y + c->first_row + unit * c->rows + row;

			add_rows(no, nr, &s, n, u->x + col, u->x_stride, sum);
			if (b + 1 < c->blocks)
				continue;
			V16_UNROLL(4)
			for (size_t o = 0; o < no; o++) {
				V16_UNROLL(4)
				for (size_t r = 0; r < nr; r++) {
					y[r * u->y_stride + o * c->rows] = canonical(v16_fold_add(sum[o][r]));
					sum[o][r] = v16_set1(0);
				}
			}
		}
	}
	return true;
}

/* Any number of rows, at most four at a time: the second time the blocks lie in the cache. */
static ALWAYS_INLINE bool units_rows(const size_t no, const struct unit_chunk *c, size_t unit, size_t begin, size_t end,
				     size_t n_rows, struct unit_rows u)
{
	bool coded = true;

	for (size_t r = 0, nr; coded && r < n_rows; r += nr) {
		nr = n_rows - r < 4 ? n_rows - r : 4;
		switch (nr) {
		case 1: coded = units_tile(no, 1, c, unit, begin, end, &u); break;
		case 2: coded = units_tile(no, 2, c, unit, begin, end, &u); break;
		case 3: coded = units_tile(no, 3, c, unit, begin, end, &u); break;
		default: coded = units_tile(no, 4, c, unit, begin, end, &u); break;
		}
		u.x += nr * u.x_stride;
		u.y += nr * u.y_stride;
	}
	return coded;
}

static struct unit_chunk chunk_of(const struct od_mat *w, size_t o)
{
	size_t i = o / w->planes->chunk_rows, first = i * w->planes->chunk_rows, row = w->n_in;
	size_t rows = w->n_out - first < w->planes->chunk_rows ? w->n_out - first : w->planes->chunk_rows;
	bool whole = row <= OD_PLANES_BLOCK;

	return (struct unit_chunk){
		.chunk = od_planes_chunk(w->planes, i),
		.sm = (const uint8_t *)w->data + first * row,
		.row = row,
		.weights = rows * row,
		.first_row = first,
		.rows = whole ? OD_PLANES_BLOCK / row : 1,
		.blocks = whole ? 1 : (row + OD_PLANES_BLOCK - 1) / OD_PLANES_BLOCK,
	};
}

/* Blocks that are stored raw are merged, and so are all when there are many rows. */
static void matmul_fused(const struct od_backend *be, const struct od_mat *w, const float *x, size_t x_stride, float *y,
			 size_t y_stride, size_t n_rows, size_t o_begin, size_t o_end)
{
	const struct unit_rows u = { x, x_stride, y, y_stride };

	if (n_rows > FUSED_ROWS || w->n_in % STEP != 0) {
		od_matmul_merged(be, w, x, x_stride, y, y_stride, n_rows, o_begin, o_end);
		return;
	}
	for (size_t o = o_begin, n; o < o_end; o += n) {
		const struct unit_chunk c = chunk_of(w, o);
		size_t begin = (o - c.first_row) % c.rows, unit = (o - c.first_row) / c.rows;
		size_t end = c.first_row + c.weights / c.row < o_end ? c.first_row + c.weights / c.row : o_end;

		n = SIDE_BY_SIDE * c.rows;
		if (begin == 0 && end - o >= n && units_rows(SIDE_BY_SIDE, &c, unit, 0, c.rows, n_rows, u))
			continue;
		n = end - o < c.rows - begin ? end - o : c.rows - begin;
		if (!units_rows(1, &c, unit, begin, begin + n, n_rows, u))
			od_matmul_merged(be, w, x, x_stride, y, y_stride, n_rows, o, o + n);
	}
}

#endif
