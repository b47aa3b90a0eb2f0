/* gpu_planes.h - weights as SM bytes and planes of exponents (planes.h): a block of threads makes BF16 of a block of a chunk.
 *
 * Where memory is fast, instructions are what limits this: some fifteen for a weight. So four codes are decoded by one look in a table, and
 * a thread keeps the next escapes in registers.
 * Thread: device code; all GPU_PLANES_THREADS threads of the block call gpu_planes_decode. */
#ifndef OD_COMPUTE_GPU_PLANES_H
#define OD_COMPUTE_GPU_PLANES_H

#include "common/compute/cuda/gpu_math.h"
#include "common/compute/cuda/kernels.h"

/* planes.c's weight: exponent byte, and SM byte = mantissa << 1 | sign. */
GPU_FN uint32_t gpu_merged(uint32_t e, uint32_t sm)
{
	return (sm & 1u) << 15 | e << 7 | sm >> 1;
}

/* Two weights from bytes sm, e, sm, e: each half is turned right by a bit. */
GPU_FN uint32_t gpu_merged_2(uint32_t both)
{
	return gpu_choose_bits(both >> 1, both << 15, 0x7fff7fffu);
}

/* Eight weights from all bytes. */
GPU_FN gpu_u4 gpu_merged_8(gpu_u2 e, gpu_u2 sm)
{
	gpu_u4 v;

	v.x = gpu_merged_2(gpu_pick_bytes(sm.x, e.x, 0x5140));
	v.y = gpu_merged_2(gpu_pick_bytes(sm.x, e.x, 0x7362));
	v.z = gpu_merged_2(gpu_pick_bytes(sm.y, e.y, 0x5140));
	v.w = gpu_merged_2(gpu_pick_bytes(sm.y, e.y, 0x7362));
	return v;
}

#define HEADER_BYTES 16u
#define LEVELS 3u
#define WARPS (GPU_PLANES_THREADS / GPU_WARP) /* a thread has a group of 64 codes */

/* Of the block's weights a thread has units of eight: unit i begins at weight 8 * thread + i * GPU_PLANES_STRIDE. */
#define GPU_PLANES_STRIDE (8 * GPU_PLANES_THREADS)
#define GPU_PLANES_UNITS (GPU_PLANES_BLOCK / GPU_PLANES_STRIDE)

GPU_FN uint32_t u16_at(const uint8_t *at)
{
	return at[0] | (uint32_t)at[1] << 8;
}

GPU_FN uint32_t u32_at(const uint8_t *at)
{
	return u16_at(at) | u16_at(at + 2) << 16;
}

/* A block's weights are [first, first + weights) of a chunk of n; false: there is no such block (od_planes_span). */
GPU_FN bool gpu_planes_span(uint32_t n, uint32_t row, uint32_t block, uint32_t *first, uint32_t *weights)
{
	if (row > GPU_PLANES_BLOCK) {
		const uint32_t pieces = (row + GPU_PLANES_BLOCK - 1) / GPU_PLANES_BLOCK, r = block / pieces, end = (r + 1) * row;

		*first = r * row + block % pieces * GPU_PLANES_BLOCK;
		*weights = end - *first < GPU_PLANES_BLOCK ? end - *first : GPU_PLANES_BLOCK;
		return *first < n;
	}
	*first = block * (GPU_PLANES_BLOCK / row) * row;
	*weights = n - *first < GPU_PLANES_BLOCK / row * row ? n - *first : GPU_PLANES_BLOCK / row * row;
	return *first < n;
}

GPU_FN uint32_t level_bytes(uint32_t n)
{
	return n / 64 * 16 + (n % 64 + 7) / 8 * 2;
}

/* The n + 1 aligned words that have n words of 4 bytes at any address. Only the first byte need be there: what is behind weights can be
 * read (OD_PAD_BYTES). */
GPU_FN void load_words(const unsigned n, const uint8_t *at, uint32_t *to)
{
	GPU_UNROLL
	for (unsigned i = 0; i <= n; i++)
		to[i] = gpu_load_4(at - (uintptr_t)at % 4 + 4 * i);
}

/* Those n words. */
GPU_FN void shift_words(const unsigned n, const uint8_t *at, const uint32_t *from, uint32_t *to)
{
	GPU_UNROLL
	for (unsigned i = 0; i < n; i++)
		to[i] = gpu_funnel(from[i], from[i + 1], (uint32_t)((uintptr_t)at % 4) * 8);
}

/* Where the thread's group of a level of n codes begins; of a thread without one, where the level does. */
GPU_FN const uint8_t *group_at(const uint8_t *level, uint32_t n)
{
	return level + (64 * gpu_thread() < n ? 16 * gpu_thread() : 0);
}

/* The thread's group of a level of n codes, from what load_words has loaded: both planes. Codes behind the last one are any, but never
 * escapes. */
GPU_FN void make_planes(const uint8_t *level, uint32_t n, const uint32_t *words, uint64_t plane[2])
{
	const uint32_t first = 64 * gpu_thread(), bytes = n - first < 64 ? (n - first + 7) / 8 : 8;
	uint32_t w[4];

	shift_words(4, group_at(level, n), words, w);
	plane[0] = (uint64_t)w[1] << 32 | w[0];
	plane[1] = (uint64_t)w[3] << 32 | w[2];
	if (first >= n)
		plane[0] = plane[1] = 0;
	else if (bytes < 8)
		plane[1] = (plane[0] >> 8 * bytes | plane[1] << (64 - 8 * bytes)) & ((1ull << 8 * bytes) - 1);
}

/* next[l]: escapes of level l in groups before the thread's. shared: [2][warps]. Has one barrier. */
GPU_FN void count_before(const uint64_t plane[LEVELS][2], uint32_t *shared, uint32_t *next)
{
	/* Counts of two levels in one word: a level has at most 2^14 codes. */
	const uint32_t mine = gpu_popcount(plane[0][0] & plane[0][1]) | gpu_popcount(plane[1][0] & plane[1][1]) << 16;
	const uint32_t mine_2 = gpu_popcount(plane[2][0] & plane[2][1]);
	uint32_t sum = gpu_sum_up(mine), sum_2 = gpu_sum_up(mine_2);

	if (gpu_lane() == GPU_WARP - 1) {
		shared[gpu_warp()] = sum;
		shared[WARPS + gpu_warp()] = sum_2;
	}
	sum -= mine;
	sum_2 -= mine_2;
	gpu_sync();
	for (unsigned w = 0; w < gpu_warp(); w++) {
		sum += shared[w];
		sum_2 += shared[WARPS + w];
	}
	next[0] = sum & 0xffffu;
	next[1] = sum >> 16;
	next[2] = sum_2;
}

/* ---- Four codes at a time ---- */

/* Bit k of four to nibble k. */
GPU_FN uint32_t bits_to_nibbles(uint32_t bits)
{
	return (bits | bits << 3 | bits << 6 | bits << 9) & 0x1111u;
}

/* What four codes, whose low bits are in bits 0 to 3 of i and whose high bits are in the next four, take from the symbols (bytes 0 to 2)
 * and the next bytes of the level below (4 to 7): numbers for gpu_pick_bytes, and, from bit 16 on, bits of the level below. */
GPU_FN uint32_t entry_of(uint32_t i)
{
	const uint32_t low = bits_to_nibbles(i % 16), high = bits_to_nibbles(i / 16), escapes = low & high;
	const uint32_t before = escapes * 0x11110u; /* nibble k: how many escapes come before code k; nibble 4: all */

	return ((low + 2 * high + escapes + (before & escapes * 3)) & 0xffffu) | (before >> 16 & 7u) << 19;
}

/* The level below from its next byte on: two aligned words of it, and how many bits of the first one are used up. So up to eight bytes
 * behind it are read: of the chunk, its padding, or shared memory, but nothing from `end` on, which others may be writing. NULL: no end. */
struct below {
	const uint8_t *word, *end;
	uint32_t low, high, bits;
};

GPU_FN uint32_t below_word(const struct below *b, unsigned i)
{
	const uint8_t *at = b->word + 4 * i;

	return b->end == NULL || at < b->end ? *(const uint32_t *)(const void *)at : 0;
}

GPU_FN void begin_below(struct below *b, const uint8_t *at, const uint8_t *end)
{
	b->word = at - (uintptr_t)at % 4;
	b->end = end;
	b->low = below_word(b, 0);
	b->high = below_word(b, 1);
	b->bits = (uint32_t)((uintptr_t)at % 4) * 8;
}

GPU_FN uint32_t four_codes(const bool has_table, const uint32_t *table, uint32_t i, uint32_t symbols, struct below *b)
{
	const uint32_t entry = has_table ? table[i] : entry_of(i), four = gpu_pick_bytes(symbols, gpu_funnel(b->low, b->high, b->bits), entry);

	b->bits += entry >> 16;
	b->low = b->bits < 32 ? b->low : b->high;
	b->word += b->bits < 32 ? 0 : 4;
	if (b->bits >= 32)
		b->high = below_word(b, 1);
	b->bits %= 32;
	return four;
}

/* Each group of a level's bytes has its four units of 16 bytes in an order of its own, so that threads that write theirs do not meet
 * in a bank. */
GPU_FN uint32_t unit_of(uint32_t group, uint32_t unit)
{
	return 64 * group + 16 * (unit ^ (group / 2 % 4));
}

/* The thread's group of a level: of each code its symbol (symbols: three bytes), of an escape the next byte of the level below. swaps:
 * the units' order is as unit_of says. */
GPU_FN void decode_group(const bool has_table, const uint64_t plane[2], uint32_t symbols, struct below *b, const uint32_t *table, uint8_t *to,
			 const bool swaps)
{
	GPU_NO_UNROLL
	for (unsigned half = 0; half < 2; half++) {
		const uint32_t low = (uint32_t)(plane[0] >> 32 * half), high = (uint32_t)(plane[1] >> 32 * half);
		/* A byte for each four codes: the even and the odd fours. */
		const uint32_t even = (low & 0x0f0f0f0fu) | (high << 4 & 0xf0f0f0f0u), odd = (low >> 4 & 0x0f0f0f0fu) | (high & 0xf0f0f0f0u);
		uint32_t word[8];

		GPU_UNROLL
		for (unsigned i = 0; i < 4; i++) {
			word[2 * i] = four_codes(has_table, table, even >> 8 * i & 255u, symbols, b);
			word[2 * i + 1] = four_codes(has_table, table, odd >> 8 * i & 255u, symbols, b);
		}
		GPU_UNROLL
		for (unsigned u = 0; u < 2; u++) {
			const gpu_u4 v = { word[4 * u], word[4 * u + 1], word[4 * u + 2], word[4 * u + 3] };
			const uint32_t unit = 2 * half + u;

			gpu_store_16(to + (swaps ? unit_of(gpu_thread(), unit) : 64 * gpu_thread() + 16 * unit), v);
		}
	}
}

/* The thread's units of a block's SM bytes, [weights]; what lies behind the last one is any. */
GPU_FN void load_units(const uint8_t *sm, uint32_t weights, gpu_u2 *mine)
{
	if ((uintptr_t)sm % 8 == 0) {
		GPU_UNROLL
		for (unsigned i = 0; i < GPU_PLANES_UNITS; i++)
			if (8 * gpu_thread() + i * GPU_PLANES_STRIDE < weights)
				mine[i] = gpu_load_8(sm + 8 * gpu_thread() + i * GPU_PLANES_STRIDE);
		return;
	}
	GPU_UNROLL
	for (unsigned i = 0; i < GPU_PLANES_UNITS; i++) {
		const uint8_t *at = sm + 8 * gpu_thread() + i * GPU_PLANES_STRIDE;
		uint32_t words[3] = { 0, 0, 0 }, w[2];

		if (8 * gpu_thread() + i * GPU_PLANES_STRIDE < weights)
			load_words(2, at, words);
		shift_words(2, at, words, w);
		mine[i].x = w[0], mine[i].y = w[1];
	}
}

#define TABLE_BYTES (GPU_PLANES_THREADS * sizeof(uint32_t))
static_assert(GPU_PLANES_THREADS == 256, "each thread makes an entry of the table");

GPU_FN void decode_levels(const bool has_table, const uint32_t *symbols, const uint8_t *plain, const uint32_t *n,
			  const uint64_t plane[LEVELS][2], const uint32_t *next, const uint32_t *table, uint8_t *e, uint8_t *other)
{
	GPU_UNROLL
	for (unsigned l = LEVELS; l-- > 0;) {
		const uint8_t *below = l == LEVELS - 1 ? plain : l % 2 == 0 ? other : e;
		struct below b;

		if (64 * gpu_thread() < n[l]) {
			/* Without a table, other may be full, and e begins behind it. */
			begin_below(&b, below + next[l], !has_table && l == 0 ? e : NULL);
			decode_group(has_table, plane[l], symbols[l], &b, table, l % 2 == 0 ? e : other, l == 0);
		}
		if (l > 0)
			gpu_sync();
	}
}

/* The exponents of a coded block, whose levels have n codes (n[LEVELS]: plain bytes), to e, with units in their order; other: as much
 * room. The deepest level comes first: its bytes are what the escapes of the level above stand for, and so on, from one place to the
 * other and back. The table is where other has room for it, which it nearly always has. */
GPU_FN void decode(const uint8_t *chunk, const uint8_t *plain, const uint32_t *n, const uint8_t *sm, gpu_u2 *mine, uint8_t *e, uint8_t *other)
{
	uint32_t *table = (uint32_t *)(void *)(other + GPU_PLANES_BLOCK - TABLE_BYTES);
	const uint8_t *level[LEVELS], *at = plain + n[LEVELS];
	uint32_t words[LEVELS][5], symbols[LEVELS], next[LEVELS];
	uint64_t plane[LEVELS][2];

	/* Without a branch: so all loads are under way together. */
	load_units(sm, n[0], mine);
	GPU_UNROLL
	for (unsigned l = LEVELS; l-- > 0; at += level_bytes(n[l])) {
		level[l] = at;
		load_words(4, group_at(at, n[l]), words[l]);
		symbols[l] = u16_at(chunk + 3 * l) | (uint32_t)chunk[3 * l + 2] << 16;
	}
	GPU_UNROLL
	for (unsigned l = 0; l < LEVELS; l++)
		make_planes(level[l], n[l], words[l], plane[l]);
	table[gpu_thread()] = entry_of(gpu_thread());
	count_before(plane, (uint32_t *)(void *)other, next); /* other is not written before the barrier behind the deepest level */
	if (n[1] <= GPU_PLANES_BLOCK - TABLE_BYTES)
		decode_levels(true, symbols, plain, n, plane, next, table, e, other);
	else
		decode_levels(false, symbols, plain, n, plane, next, table, e, other);
}

/* The exponents of block `block` of a checked chunk, to shared memory, while the thread loads its units of the block's SM bytes, sm
 * [weights], to mine; what lies behind the last weight is any. shared: GPU_PLANES_SHARED bytes, aligned to 16; no thread uses it any
 * more. Ends with the block together. */
GPU_FN void gpu_planes_decode(const uint8_t *chunk, uint32_t block, uint32_t weights, const uint8_t *sm, uint8_t *shared, gpu_u2 *mine)
{
	uint8_t *exponents = shared + GPU_PLANES_BLOCK;
	const uint8_t *at = chunk + u32_at(chunk + HEADER_BYTES + 4 * block);
	uint32_t n[LEVELS + 1];

	n[0] = weights;
	GPU_UNROLL
	for (unsigned l = 0; l < LEVELS; l++)
		n[l + 1] = u16_at(at + 2 * l);
	if (u16_at(at + 6) != 0) { /* raw */
		load_units(sm, weights, mine);
		GPU_UNROLL
		for (unsigned u = 0; u < 4 && 64 * gpu_thread() + 16 * u < weights; u++) {
			const uint8_t *from = at + 8 + 64 * gpu_thread() + 16 * u;
			uint32_t words[5], w[4];
			gpu_u4 v;

			load_words(4, from, words);
			shift_words(4, from, words, w);
			v.x = w[0], v.y = w[1], v.z = w[2], v.w = w[3];
			gpu_store_16(exponents + unit_of(gpu_thread(), u), v);
		}
	} else {
		decode(chunk, at + 8, n, sm, mine, exponents, shared);
	}
	gpu_sync();
}

/* The exponents of the thread's unit i. */
GPU_FN gpu_u2 gpu_planes_exponents(const uint8_t *shared, unsigned i)
{
	/* unit_of is the same for all units of a thread. */
	const uint8_t *mine = shared + GPU_PLANES_BLOCK + unit_of(gpu_thread() / 8, gpu_thread() / 2 % 4) + gpu_thread() % 2 * 8;

	return gpu_shared_8(mine + i * GPU_PLANES_STRIDE);
}

#undef HEADER_BYTES
#undef LEVELS
#undef WARPS
#undef TABLE_BYTES

#endif
