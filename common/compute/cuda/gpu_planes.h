/* gpu_planes.h - weights as SM bytes and planes of exponents (planes.h): a block of threads makes BF16 of a block of a
 * chunk.
 *
 * Where memory is fast, instructions are what limits this. So a thread has 64 weights that lie together, from their
 * codes to BF16 in registers; four codes are decoded by one look in a table, and the next escapes are in registers,
 * too. Symbols are turned right by a bit once, and then each byte of four weights takes one instruction.
 * Thread: device code; all GPU_PLANES_THREADS threads of the block call gpu_planes_decode. The lanes of a warp call
 * gpu_planes_find together, and get the same. */
#ifndef OD_COMPUTE_GPU_PLANES_H
#define OD_COMPUTE_GPU_PLANES_H

#include "common/compute/cuda/gpu_math.h"
#include "common/compute/cuda/kernels.h"

/* planes.c's weight: exponent byte, and SM byte = mantissa << 1 | sign. */
GPU_FN uint32_t gpu_merged(uint32_t e, uint32_t sm)
{
	return (sm & 1u) << 15 | e << 7 | sm >> 1;
}

/* Each of four bytes, turned right by a bit. */
GPU_FN uint32_t gpu_turned(uint32_t four)
{
	return gpu_choose_bits(four >> 1, four << 7, 0x7f7f7f7fu);
}

/* Four weights from bytes that are turned: the lowest bit of the exponent and the sign are on top. */
GPU_FN gpu_u2 gpu_merged_4(uint32_t e, uint32_t sm)
{
	const uint32_t low = gpu_choose_bits(sm, e, 0x7f7f7f7fu), high = gpu_choose_bits(e, sm, 0x7f7f7f7fu);
	gpu_u2 v;

	v.x = gpu_pick_bytes(low, high, 0x5140);
	v.y = gpu_pick_bytes(low, high, 0x7362);
	return v;
}

/* Eight weights from all bytes. */
GPU_FN gpu_u4 gpu_merged_8(gpu_u2 e, gpu_u2 sm)
{
	const gpu_u2 a = gpu_merged_4(gpu_turned(e.x), gpu_turned(sm.x)),
		     b = gpu_merged_4(gpu_turned(e.y), gpu_turned(sm.y));
	gpu_u4 v;

	v.x = a.x, v.y = a.y, v.z = b.x, v.w = b.y;
	return v;
}

#define HEADER_BYTES 16u
#define LEVELS 3u
#define WARPS (GPU_PLANES_THREADS / GPU_WARP)

/* A thread has a line of 64 of the block's weights: words of two. */
#define GPU_PLANES_LINE 64u
#define GPU_PLANES_WORDS (GPU_PLANES_LINE / 2)
static_assert(GPU_PLANES_LINE * GPU_PLANES_THREADS == GPU_PLANES_BLOCK, "all threads have one");

/* A block of a chunk, for all threads: it lies in shared memory. Who finds it stores it when all is loaded, so that the
 * loads wait for memory together. */
struct gpu_planes_block {
	const uint8_t *at; /* plain bytes, or exponents */
	uint32_t n[LEVELS]; /* codes of each level */
	uint32_t level[LEVELS]; /* where each begins, from `at` on */
	uint32_t symbols[LEVELS]; /* three bytes for each, turned */
	uint32_t raw; /* 1: exponents, not codes */
};

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
		const uint32_t pieces = (row + GPU_PLANES_BLOCK - 1) / GPU_PLANES_BLOCK, r = block / pieces,
			       end = (r + 1) * row;

		*first = r * row + block % pieces * GPU_PLANES_BLOCK;
		*weights = end - *first < GPU_PLANES_BLOCK ? end - *first : GPU_PLANES_BLOCK;
		return *first < n;
	}
	*first = block * (GPU_PLANES_BLOCK / row) * row;
	*weights = n - *first < GPU_PLANES_BLOCK / row * row ? n - *first : GPU_PLANES_BLOCK / row * row;
	return *first < n;
}

/* The n + 1 aligned words that have n words of 4 bytes at any address. Only the first byte need be there: what is
 * behind weights can be read (OD_PAD_BYTES). */
GPU_FN void load_words(const unsigned n, const uint8_t *at, uint32_t *to)
{
	const uint8_t *words = at - (uintptr_t)at % 4;

	GPU_UNROLL
	for (unsigned i = 0; i <= n; i++)
		to[i] = gpu_load_4(words + 4 * i);
}

/* Shifts n words. bits: 8 times their address, modulo 32. */
GPU_FN void shift_words(const unsigned n, uint32_t bits, const uint32_t *from, uint32_t *to)
{
	GPU_UNROLL
	for (unsigned i = 0; i < n; i++)
		to[i] = gpu_funnel(from[i], from[i + 1], bits);
}

GPU_FN uint32_t bits_at(const uint8_t *at)
{
	return 8 * (uint32_t)(uintptr_t)at;
}

GPU_FN uint32_t level_bytes(uint32_t n)
{
	return n / 64 * 16 + (n % 64 + 7) / 8 * 2;
}

#define PREFETCHED 128u

/* Finds a block of a checked chunk. weights: what it has (gpu_planes_span); is_last: of the chunk. Its codes are needed
 * as soon as its first bytes have said where they are, so the lanes ask for all of it meanwhile; of the last one, for
 * what it has at least. */
GPU_FN struct gpu_planes_block gpu_planes_find(const uint8_t *chunk, uint32_t block, uint32_t weights, bool is_last)
{
	const uint8_t *start = chunk + HEADER_BYTES + 4 * block;
	const uint32_t begin = u32_at(start), bytes = is_last ? level_bytes(weights) : u32_at(start + 4) - begin;
	const uint8_t *at = chunk + begin;
	struct gpu_planes_block b;
	uint32_t offset = u16_at(at + 4); /* plain bytes, then the deepest level */

	for (uint32_t i = PREFETCHED * gpu_lane(); i < bytes; i += PREFETCHED * GPU_WARP)
		gpu_prefetch(at + i);
	b.at = at + 8;
	b.raw = u16_at(at + 6);
	GPU_UNROLL
	for (unsigned l = LEVELS; l-- > 0; offset += level_bytes(b.n[l])) {
		b.n[l] = l > 0 ? u16_at(at + 2 * (l - 1)) : weights;
		b.level[l] = offset;
		b.symbols[l] = gpu_turned(u16_at(chunk + 3 * l) | (uint32_t)chunk[3 * l + 2] << 16);
	}
	return b;
}

/* ---- What a thread loads ---- */

/* Its line of a block's bytes, [weights]: by 16 bytes, or, if those are not aligned or not all there, slowly. */
GPU_FN bool line_is_whole(const uint8_t *bytes, uint32_t weights)
{
	return (uintptr_t)bytes % 16 == 0 && GPU_PLANES_LINE * gpu_thread() + GPU_PLANES_LINE <= weights;
}

/* If it is not whole, some other bytes: that takes less than a branch. */
GPU_FN void load_line(const uint8_t *bytes, bool is_whole, uint32_t *to)
{
	const uint8_t *line = bytes - (uintptr_t)bytes % 16 + (is_whole ? GPU_PLANES_LINE * gpu_thread() : 0);

	GPU_UNROLL
	for (unsigned u = 0; u < 4; u++) {
		const gpu_u4 v = gpu_load_16(line + 16 * u);

		to[4 * u] = v.x, to[4 * u + 1] = v.y, to[4 * u + 2] = v.z, to[4 * u + 3] = v.w;
	}
}

/* 16 of them; behind the last weight any */
GPU_FN void load_slowly(const uint8_t *bytes, uint32_t weights, unsigned unit, uint32_t *to)
{
	const uint32_t first = GPU_PLANES_LINE * gpu_thread() + 16 * unit;
	uint32_t words[5] = { 0, 0, 0, 0, 0 };

	if (first < weights)
		load_words(4, bytes + first, words);
	shift_words(4, bits_at(bytes), words, to);
}

/* The thread's group of level 0 of n codes: both planes together. */
GPU_FN const uint8_t *group_at(const uint8_t *level, uint32_t n)
{
	return level + (64 * gpu_thread() < n ? 16 * gpu_thread() : 0);
}

/* 32 codes: their low bits and their high bits. */
struct codes {
	uint32_t low, high;
};

/* Its two halves. words: [5], from load_words. Codes behind the last one are any, but never escapes. */
GPU_FN void make_group(const uint8_t *level, uint32_t n, const uint32_t *words, struct codes *c)
{
	const uint32_t first = 64 * gpu_thread(), bytes = n - first < 64 ? (n - first + 7) / 8 : 8;
	uint32_t w[4];

	shift_words(4, bits_at(level), words, w); /* groups are multiples of 16 bytes */
	if (first >= n) {
		w[0] = w[1] = w[2] = w[3] = 0;
	} else if (bytes < 8) {
		const uint64_t low = (uint64_t)w[1] << 32 | w[0];
		const uint64_t high = (low >> 8 * bytes | ((uint64_t)w[3] << 32 | w[2]) << (64 - 8 * bytes)) &
				      ((1ull << 8 * bytes) - 1);

		w[2] = (uint32_t)high, w[3] = (uint32_t)(high >> 32);
	}
	c[0].low = w[0], c[0].high = w[2];
	c[1].low = w[1], c[1].high = w[3];
}

/* Codes [32 * i, 32 * i + 32) of a level of n. Those behind the last one are garbage and may be escapes: that changes
 * only the counts of later threads, which have no codes of this level. */
GPU_FN struct codes load_codes(const uint8_t *level, uint32_t n, uint32_t i)
{
	const uint32_t group = i / 2 * 64, plane = n - group < 64 ? (n - group + 7) / 8 : 8; /* bytes */
	const uint8_t *low = level + (32 * i < n ? 8 * i - i % 2 * 4 : 0), *high = low + (32 * i < n ? plane : 0);
	uint32_t words[4];
	struct codes c;

	load_words(1, low, words);
	load_words(1, high, words + 2);
	shift_words(1, bits_at(low), words, &c.low);
	shift_words(1, bits_at(high), words + 2, &c.high);
	return c;
}

GPU_FN uint32_t n_escapes(const struct codes *c)
{
	return gpu_popcount((uint64_t)(c[0].low & c[0].high) << 32 | (c[1].low & c[1].high));
}

/* The sum over earlier warps of what each has; all lanes of the warp call this. */
GPU_FN uint32_t sum_before(const uint32_t *of_warps)
{
	uint32_t sum = gpu_lane() % WARPS < gpu_warp() ? of_warps[gpu_lane() % WARPS] : 0;

	GPU_UNROLL
	for (unsigned by = WARPS / 2; by > 0; by /= 2)
		sum += gpu_shuffle_xor_u32(sum, by);
	return sum;
}

/* next[l]: escapes of level l that come before the thread's. many: as in decode_below. shared: [2][warps]. Has one
 * barrier. */
GPU_FN void count_before(const bool many, const struct codes codes[LEVELS][2], uint32_t *shared, uint32_t *next)
{
	/* All in one word: no field overflows in the sum of 31 threads with 64 codes of levels 0 and 1, and 32 of level
	 * 2, garbage or not. */
	const uint32_t n[LEVELS] = { n_escapes(codes[0]), n_escapes(codes[1]), n_escapes(codes[2]) };
	const uint32_t mine = n[0] << 21 | n[1] << 10 | (many ? 0 : n[2]), before = gpu_sum_up(mine) - mine;
	uint32_t earlier;

	next[0] = before >> 21;
	next[1] = before >> 10 & 0x7ffu;
	next[2] = many ? gpu_sum_up(n[2]) - n[2] : before & 0x3ffu;
	if (gpu_lane() == GPU_WARP - 1) {
		shared[gpu_warp()] = (next[0] + n[0]) | (next[1] + n[1]) << 16; /* a level has at most 2^14 codes */
		shared[WARPS + gpu_warp()] = next[2] + n[2];
	}
	gpu_sync(); /* all warps' counts are there, and the table, if decode_below has made it */
	earlier = sum_before(shared);
	next[0] += earlier & 0xffffu;
	next[1] += earlier >> 16;
	next[2] += sum_before(shared + WARPS);
}

/* ---- Four codes at a time ---- */

/* The table's entry for four codes, whose low bits are in bits 0 to 3 of i and whose high bits are in the next four:
 * numbers for gpu_pick_bytes, which picks from the symbols (bytes 0 to 2) and the next bytes of the level below (4 to
 * 7), and, from bit 16 on, how many of the level below are taken. */
GPU_FN uint32_t entry_of(uint32_t i)
{
	/* Bit k of four to nibble k, of both. */
	const uint32_t both = (i & 15u) | i >> 4 << 16, twos = (both | both << 6) & 0x03030303u,
		       bits = (twos | twos << 3) & 0x11111111u;
	const uint32_t low = bits & 0xffffu, high = bits >> 16, escapes = low & high;
	const uint32_t before = escapes * 0x11110u; /* nibble k: how many escapes come before code k; nibble 4: all */

	return ((low + 2 * high + escapes + (before & escapes * 3)) & 0xffffu) | (before & 0x70000u);
}

#define TABLE_BYTES (GPU_PLANES_THREADS * sizeof(uint32_t))
static_assert(GPU_PLANES_THREADS == 256, "each thread makes an entry of the table");

/* The level below: the word that its next byte is in, and the one behind, turned. Up to 40 bytes behind the last one
 * are read, because the codes behind a level's last one may be escapes: of the chunk, its padding, or shared memory
 * that is not written meanwhile. ahead: address in shared memory of what is four bytes behind the next one; of plain
 * bytes, from base on, which is aligned to 4. */
struct below {
	const uint8_t *base; /* NULL: shared memory, where bytes are turned */
	uint32_t low, high, ahead;
};

GPU_FN uint32_t below_word(const bool is_plain, const struct below *b, uint32_t at)
{
	return is_plain ? gpu_turned(gpu_load_4(b->base + (at & ~3u))) : gpu_shared_u32(at & ~3u);
}

GPU_FN void begin_below(const bool is_plain, struct below *b, const uint8_t *bytes, uint32_t next)
{
	const uint32_t odd = (uint32_t)((uintptr_t)bytes % 4),
		       at = is_plain ? odd + next : gpu_shared_address(bytes) + next;

	b->base = is_plain ? bytes - odd : NULL;
	b->ahead = at + 4;
	b->low = below_word(is_plain, b, at);
	b->high = below_word(is_plain, b, b->ahead);
}

/* i: which byte of `fours` says how they are coded; table: address. */
GPU_FN uint32_t four_codes(const bool is_plain, uint32_t table, uint32_t fours, uint32_t i, uint32_t symbols,
			   struct below *b)
{
	const uint32_t entry = gpu_shared_u32(table + 4 * gpu_pick_bytes(fours, 0, 0x4440 + i)), before = b->ahead;
	const uint32_t four = gpu_pick_bytes(symbols, gpu_funnel(b->low, b->high, 8 * before), entry);

	b->ahead += entry >> 16;
	if (((b->ahead ^ before) & 4) != 0) { /* by at most four: no word is left out */
		b->low = b->high;
		b->high = below_word(is_plain, b, b->ahead);
	}
	return four;
}

/* Bytes of 32 codes: of each its symbol, of an escape the next byte of the level below. */
GPU_FN void decode_codes(const bool is_plain, struct codes c, uint32_t table, uint32_t symbols, struct below *b,
			 uint32_t *word)
{
	/* A byte for each four codes: the even and the odd fours. */
	const uint32_t even = (c.low & 0x0f0f0f0fu) | (c.high << 4 & 0xf0f0f0f0u),
		       odd = (c.low >> 4 & 0x0f0f0f0fu) | (c.high & 0xf0f0f0f0u);

	GPU_UNROLL
	for (unsigned i = 0; i < 4; i++) {
		word[2 * i] = four_codes(is_plain, table, even, i, symbols, b);
		word[2 * i + 1] = four_codes(is_plain, table, odd, i, symbols, b);
	}
}

/* Decodes without a table, code by code: [n] bytes. */
GPU_FN void decode_slowly(const bool is_plain, struct codes c, uint32_t n, uint32_t symbols, const uint8_t *below,
			  uint8_t *to)
{
	GPU_NO_UNROLL
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t code = (c.low >> i & 1u) | (c.high >> i & 1u) << 1;
		uint32_t byte = symbols >> 8 * code;

		if (code == 3)
			byte = is_plain ? gpu_turned(*below++) : *below++;
		to[i] = (uint8_t)byte;
	}
}

/* The thread's codes of a level but the first, to bytes. many: it has 64, not 32. is_plain: the level below is plain
 * bytes. */
GPU_FN void decode_level(const bool many, const bool is_plain, const struct codes *c, uint32_t n, uint32_t table,
			 uint32_t symbols, const uint8_t *below, uint32_t next, uint8_t *to)
{
	const uint32_t first = (many ? 64 : 32) * gpu_thread();

	if (first >= n)
		return;
	if (many) {
		const uint32_t left = n - first;

		decode_slowly(is_plain, c[0], left < 32 ? left : 32, symbols, below + next, to + first);
		next += gpu_popcount(c[0].low & c[0].high);
		if (left > 32)
			decode_slowly(is_plain, c[1], left < 64 ? left - 32 : 32, symbols, below + next,
				      to + first + 32);
	} else {
		struct below b;
		uint32_t w[8];

		begin_below(is_plain, &b, below, next);
		decode_codes(is_plain, c[0], table, symbols, &b, w);
		GPU_UNROLL
		for (unsigned u = 0; u < 2; u++) {
			const gpu_u4 v = { w[4 * u], w[4 * u + 1], w[4 * u + 2], w[4 * u + 3] };

			gpu_store_16(to + first + 16 * u, v);
		}
	}
}

/* Decodes levels 2 and 1 of a coded block to bytes from `shared` on, and makes the table for level 0. Level 2 comes
 * first: an escape of level 1 stands for the next byte of level 2, as one of level 0 does for one of level 1. A thread
 * has 32 codes of each of the two. many: it has 64, as no trained weights need; then bytes of level 2 lie where the
 * table will be, so the table is made last. words: of the thread's group of level 0, from load_words; group: its codes.
 * Returns how many escapes of level 0 come before them. */
GPU_FN uint32_t decode_below(const bool many, const struct gpu_planes_block *b, const uint32_t *words, uint8_t *shared,
			     uint32_t *entries, struct codes *group)
{
	uint8_t *bytes_1 = shared, *bytes_2 = shared + GPU_PLANES_BLOCK;
	const uint32_t table = gpu_shared_address(entries);
	const unsigned halves = many ? 2 : 1;
	struct codes codes[LEVELS][2] = { { { 0, 0 } } };
	uint32_t next[LEVELS];

	GPU_UNROLL
	for (unsigned half = 0; half < halves; half++) {
		const uint32_t i = halves * gpu_thread() + half;

		if (32 * i < b->n[1]) { /* level 2 has no more */
			GPU_UNROLL
			for (unsigned l = 1; l < LEVELS; l++)
				codes[l][half] = load_codes(b->at + b->level[l], b->n[l], i);
		}
	}
	make_group(b->at + b->level[0], b->n[0], words, group);
	codes[0][0] = group[0], codes[0][1] = group[1];
	if (!many)
		entries[gpu_thread()] = entry_of(gpu_thread());
	/* bytes_1 is not written before the next barrier */
	count_before(many, codes, (uint32_t *)(void *)bytes_1, next);
	decode_level(many, true, codes[2], b->n[2], table, b->symbols[2], b->at, next[2], bytes_2);
	gpu_sync(); /* bytes of level 2 are there; and all have read the counts, where those of level 1 go */
	decode_level(many, false, codes[1], b->n[1], table, b->symbols[1], bytes_2, next[1], bytes_1);
	gpu_sync(); /* bytes of level 1 are there, and those of level 2 have been used */
	if (many) {
		entries[gpu_thread()] = entry_of(gpu_thread());
		gpu_sync(); /* the table is there */
	}
	return next[0];
}

GPU_FN void decode_coded(const struct gpu_planes_block *b, const uint8_t *sm, uint8_t *shared, uint32_t *word)
{
	uint32_t *entries = (uint32_t *)(void *)(shared + 2 * GPU_PLANES_BLOCK - TABLE_BYTES);
	const bool is_whole = line_is_whole(sm, b->n[0]);
	uint32_t mine[GPU_PLANES_WORDS / 2], words[5], next;
	struct codes group[2];
	struct below below;

	/* All that a thread loads is under way together. */
	load_words(4, group_at(b->at + b->level[0], b->n[0]), words);
	load_line(sm, is_whole, mine);
	if (b->n[1] > GPU_PLANES_BLOCK / 2)
		next = decode_below(true, b, words, shared, entries, group);
	else
		next = decode_below(false, b, words, shared, entries, group);
	if (!is_whole) {
		GPU_UNROLL
		for (unsigned u = 0; u < 4; u++)
			load_slowly(sm, b->n[0], u, mine + 4 * u);
	}
	begin_below(false, &below, shared, next);
	GPU_UNROLL
	for (unsigned half = 0; half < 2; half++) {
		uint32_t e[8];

		decode_codes(false, group[half], gpu_shared_address(entries), b->symbols[0], &below, e);
		GPU_UNROLL
		for (unsigned i = 0; i < 8; i++) {
			const gpu_u2 v = gpu_merged_4(e[i], gpu_turned(mine[8 * half + i]));

			word[16 * half + 2 * i] = v.x, word[16 * half + 2 * i + 1] = v.y;
		}
	}
}

GPU_FN void decode_raw(const struct gpu_planes_block *b, const uint8_t *sm, uint32_t *word)
{
	GPU_UNROLL
	for (unsigned u = 0; u < 4; u++) {
		uint32_t mine[4], e[4];

		load_slowly(sm, b->n[0], u, mine);
		load_slowly(b->at, b->n[0], u, e);
		GPU_UNROLL
		for (unsigned i = 0; i < 4; i++) {
			const gpu_u2 v = gpu_merged_4(gpu_turned(e[i]), gpu_turned(mine[i]));

			word[8 * u + 2 * i] = v.x, word[8 * u + 2 * i + 1] = v.y;
		}
	}
}

/* Weights of the thread's line of a block, [GPU_PLANES_WORDS], from its exponents and from the block's SM bytes; what
 * lies behind the last weight is any. shared: GPU_PLANES_TASK bytes, aligned to 16, that no thread uses any more;
 * others still read them when this returns. */
GPU_FN void gpu_planes_decode(const struct gpu_planes_block *b, const uint8_t *sm, uint8_t *shared, uint32_t *word)
{
	if (b->raw != 0)
		decode_raw(b, sm, word);
	else
		decode_coded(b, sm, shared, word);
}

/* ---- Weights in shared memory ---- */

/* Unit `unit` (16 bytes) of a line. Each line has its eight units in an order of its own, so that neither threads with
 * one unit of many lines nor those with all of one line meet in a bank. */
GPU_FN uint32_t gpu_planes_unit(uint32_t line, uint32_t unit)
{
	return 2 * GPU_PLANES_LINE * line + ((16 * unit ^ 16 * line) & 0x70u);
}

/* The thread's line, weights in their order; all threads, after all have decoded. */
GPU_FN void gpu_planes_store(uint8_t *shared, const uint32_t *word)
{
	GPU_UNROLL
	for (unsigned u = 0; u < 8; u++) {
		const gpu_u4 v = { word[4 * u], word[4 * u + 1], word[4 * u + 2], word[4 * u + 3] };

		gpu_store_16(shared + gpu_planes_unit(gpu_thread(), u), v);
	}
}

#undef HEADER_BYTES
#undef PREFETCHED
#undef LEVELS
#undef WARPS
#undef TABLE_BYTES

#endif
