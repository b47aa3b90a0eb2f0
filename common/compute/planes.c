#include "common/compute/planes.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "chunks are little-endian and so is this code");

/* A chunk begins with 9 symbols, 3 zero bytes, the number of blocks, then the start of each block. A block begins with
 * counts. */
#define SYMBOLS_BYTES 12u
#define HEADER_BYTES 16u
#define BLOCK_HEADER_BYTES 8u
enum { KIND_CODED, KIND_RAW };

struct counts {
	uint16_t n2, n3, n4, kind;
};

static size_t pieces_of(size_t row)
{
	return (row + OD_PLANES_BLOCK - 1) / OD_PLANES_BLOCK;
}

static size_t block_rows(size_t row)
{
	return OD_PLANES_BLOCK / row;
}

size_t od_planes_blocks(size_t n, size_t row)
{
	size_t rows = n / row;

	if (row > OD_PLANES_BLOCK)
		return rows * pieces_of(row);
	return (rows + block_rows(row) - 1) / block_rows(row);
}

void od_planes_span(size_t n, size_t row, size_t b, size_t *first, size_t *weights)
{
	size_t end;

	if (row > OD_PLANES_BLOCK) {
		size_t r = b / pieces_of(row);

		*first = r * row + b % pieces_of(row) * OD_PLANES_BLOCK;
		end = (r + 1) * row;
		*weights = end - *first < OD_PLANES_BLOCK ? end - *first : OD_PLANES_BLOCK;
		return;
	}
	*first = b * block_rows(row) * row;
	end = *first + block_rows(row) * row;
	*weights = (end < n ? end : n) - *first;
}

size_t od_planes_bound(size_t n, size_t row)
{
	return HEADER_BYTES + od_planes_blocks(n, row) * (sizeof(uint32_t) + BLOCK_HEADER_BYTES) + n;
}

/* ---- Encoding ---- */

/* The nine commonest, the commoner first, of equally common ones the lower; absent ones are 0. */
static void choose_symbols(const uint8_t *e, size_t n, uint8_t symbol[OD_PLANES_LEVELS * OD_PLANES_SYMBOLS])
{
	size_t count[256] = { 0 };

	for (size_t i = 0; i < n; i++)
		count[e[i]]++;
	for (size_t s = 0; s < OD_PLANES_LEVELS * OD_PLANES_SYMBOLS; s++) {
		size_t best = 0;

		for (size_t v = 1; v < 256; v++)
			best = count[v] > count[best] ? v : best;
		symbol[s] = count[best] > 0 ? (uint8_t)best : 0;
		count[best] = 0;
	}
}

/* The codes of e [n] in one level to out; what escapes to next. Returns how many escaped. */
static size_t put_level(const uint8_t *e, size_t n, const uint8_t *symbol, uint8_t *out, uint8_t *next)
{
	size_t escaped = 0;
	uint8_t code_of[256];

	memset(code_of, OD_PLANES_ESCAPE, sizeof(code_of));
	for (size_t s = OD_PLANES_SYMBOLS; s-- > 0;) /* the first of equal ones: absent symbols are 0 */
		code_of[symbol[s]] = (uint8_t)s;

	for (size_t i = 0; i < n; i += 64) {
		size_t m = n - i < 64 ? n - i : 64, bytes = (m + 7) / 8;
		uint64_t plane[2] = { 0, 0 };

		for (size_t j = 0; j < m; j++) {
			uint64_t code = code_of[e[i + j]];

			plane[0] |= (code & 1) << j;
			plane[1] |= (code >> 1) << j;
			next[escaped] = e[i + j]; /* room for one more, so that nothing has to be guessed */
			escaped += code == OD_PLANES_ESCAPE;
		}
		memcpy(out, &plane[0], bytes);
		memcpy(out + bytes, &plane[1], bytes);
		out += 2 * bytes;
	}
	return escaped;
}

/* One block to out; returns its bytes. */
static size_t put_block(const uint8_t *e, size_t n, const uint8_t *symbol, uint8_t *out)
{
	uint8_t level[OD_PLANES_LEVELS][OD_PLANES_BLOCK / 4 + 16], left[OD_PLANES_LEVELS][OD_PLANES_BLOCK + 1];
	size_t n2 = put_level(e, n, symbol, level[0], left[0]);
	size_t n3 = put_level(left[0], n2, symbol + OD_PLANES_SYMBOLS, level[1], left[1]);
	size_t n4 = put_level(left[1], n3, symbol + 2 * OD_PLANES_SYMBOLS, level[2], left[2]);
	size_t bytes[OD_PLANES_LEVELS] = { od_planes_level_bytes(n), od_planes_level_bytes(n2),
					   od_planes_level_bytes(n3) };
	struct counts c = { (uint16_t)n2, (uint16_t)n3, (uint16_t)n4, KIND_CODED };
	uint8_t *at = out + BLOCK_HEADER_BYTES;

	if (n4 + bytes[0] + bytes[1] + bytes[2] >= n) {
		c = (struct counts){ .kind = KIND_RAW };
		memcpy(at, e, n);
		at += n;
	} else {
		memcpy(at, left[2], n4);
		at += n4;
		for (size_t l = OD_PLANES_LEVELS; l-- > 0; at += bytes[l])
			memcpy(at, level[l], bytes[l]);
	}
	memcpy(out, &c, sizeof(c));
	return (size_t)(at - out);
}

size_t od_planes_encode(const uint8_t *e, size_t n, size_t row, uint8_t *out)
{
	uint32_t blocks = (uint32_t)od_planes_blocks(n, row);
	size_t at = HEADER_BYTES + blocks * sizeof(uint32_t);

	memset(out, 0, SYMBOLS_BYTES);
	choose_symbols(e, n, out);
	memcpy(out + SYMBOLS_BYTES, &blocks, sizeof(blocks));
	for (uint32_t b = 0; b < blocks; b++) {
		uint32_t offset = (uint32_t)at;
		size_t first, weights;

		od_planes_span(n, row, b, &first, &weights);
		memcpy(out + HEADER_BYTES + b * sizeof(offset), &offset, sizeof(offset));
		at += put_block(e + first, weights, out, out + at);
	}
	return at;
}

/* ---- Reading ---- */

static uint32_t offset_of(const uint8_t *chunk, size_t b)
{
	uint32_t offset;

	memcpy(&offset, chunk + HEADER_BYTES + b * sizeof(offset), sizeof(offset));
	return offset;
}

struct od_planes_block od_planes_at(const uint8_t *chunk, size_t n, size_t row, size_t b)
{
	const uint8_t *at = chunk + offset_of(chunk, b);
	struct od_planes_block k = { .plain = at + BLOCK_HEADER_BYTES };
	struct counts c;
	size_t first;

	memcpy(&c, at, sizeof(c));
	od_planes_span(n, row, b, &first, &k.n[0]);
	k.raw = c.kind == KIND_RAW;
	if (k.raw)
		return k;
	k.n[1] = c.n2;
	k.n[2] = c.n3;
	k.level[2] = k.plain + c.n4;
	k.level[1] = k.level[2] + od_planes_level_bytes(c.n3);
	k.level[0] = k.level[1] + od_planes_level_bytes(c.n2);
	return k;
}

/* Escapes among the codes of whole groups of 64. */
static inline __attribute__((always_inline)) size_t count_groups(const uint8_t *level, size_t groups)
{
	size_t escapes = 0;

	for (size_t g = 0; g < groups; g++) {
		uint64_t plane[2];

		memcpy(plane, level + g * sizeof(plane), sizeof(plane));
		escapes += (size_t)__builtin_popcountll(plane[0] & plane[1]);
	}
	return escapes;
}

#if defined(__x86_64__)
/* Every chunk is counted once per load, which without the instruction would take as long as decoding it. */
__attribute__((target("popcnt"))) static size_t count_groups_popcnt(const uint8_t *level, size_t groups)
{
	return count_groups(level, groups);
}

/* Eight groups at a time: twice as fast. */
__attribute__((target("avx512f,avx512vpopcntdq"))) static size_t count_groups_avx512(const uint8_t *level,
										     size_t groups)
{
	__m512i escapes = _mm512_setzero_si512();
	size_t g = 0;

	for (; g + 8 <= groups; g += 8) {
		__m512i a = _mm512_loadu_si512(level + 16 * g), b = _mm512_loadu_si512(level + 16 * g + 64);
		__m512i both = _mm512_and_si512(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));

		escapes = _mm512_add_epi64(escapes, _mm512_popcnt_epi64(both));
	}
	return (size_t)_mm512_reduce_add_epi64(escapes) + count_groups(level + 16 * g, groups - g);
}
#endif

static size_t count_whole_groups(const uint8_t *level, size_t groups)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512vpopcntdq"))
		return count_groups_avx512(level, groups);
	if (__builtin_cpu_supports("popcnt"))
		return count_groups_popcnt(level, groups);
#endif
	return count_groups(level, groups);
}

/* Escapes among n codes; false: bits behind the last code are set. */
static bool count_escapes(const uint8_t *level, size_t n, size_t *escapes)
{
	size_t last = n % 64, bytes = (last + 7) / 8;
	uint64_t plane[2] = { 0, 0 };

	*escapes = count_whole_groups(level, n / 64);
	memcpy(&plane[0], level + n / 64 * 16, bytes);
	memcpy(&plane[1], level + n / 64 * 16 + bytes, bytes);
	*escapes += (size_t)__builtin_popcountll(plane[0] & plane[1]);
	return ((plane[0] | plane[1]) >> last) == 0;
}

/* A block of so many weights in bytes [0, room) of at; *bytes: how many of them it takes. */
static int check_block(const uint8_t *at, size_t room, size_t weights, size_t *bytes, struct od_err *err)
{
	size_t level[OD_PLANES_LEVELS], found[OD_PLANES_LEVELS];
	struct counts c;
	bool tidy;

	*bytes = 0;
	if (room < BLOCK_HEADER_BYTES)
		return od_fail(err, OD_ERR_CORRUPT, "its header extends beyond the end of the chunk");
	memcpy(&c, at, sizeof(c));
	if (c.kind > KIND_RAW || (c.kind == KIND_RAW && (c.n2 | c.n3 | c.n4) != 0))
		return od_fail(err, OD_ERR_CORRUPT, "kind %u with counts %u, %u, %u", c.kind, c.n2, c.n3, c.n4);
	level[0] = od_planes_level_bytes(weights);
	level[1] = od_planes_level_bytes(c.n2);
	level[2] = od_planes_level_bytes(c.n3);
	*bytes = BLOCK_HEADER_BYTES + (c.kind == KIND_RAW ? weights : c.n4 + level[0] + level[1] + level[2]);
	if (room < *bytes)
		return od_fail(err, OD_ERR_CORRUPT, "expected %zu bytes, found %zu", *bytes, room);
	if (c.kind == KIND_RAW)
		return OD_OK;
	at += BLOCK_HEADER_BYTES + c.n4;
	tidy = count_escapes(at, c.n3, &found[2]);
	tidy = count_escapes(at + level[2], c.n2, &found[1]) && tidy;
	tidy = count_escapes(at + level[2] + level[1], weights, &found[0]) && tidy;
	if (found[0] != c.n2 || found[1] != c.n3 || found[2] != c.n4)
		return od_fail(err, OD_ERR_CORRUPT, "escapes of its levels: expected %u, %u, %u, found %zu, %zu, %zu",
			       c.n2, c.n3, c.n4, found[0], found[1], found[2]);
	return tidy ? OD_OK : od_fail(err, OD_ERR_CORRUPT, "bits are set after a level's last code");
}

int od_planes_check(const uint8_t *chunk, size_t bytes, size_t n, size_t row, struct od_err *err)
{
	size_t blocks = od_planes_blocks(n, row), at = HEADER_BYTES + blocks * sizeof(uint32_t);
	uint32_t found;

	if (bytes < at)
		return od_fail(err, OD_ERR_CORRUPT, "planes: expected at least %zu bytes for %zu blocks, found %zu", at,
			       blocks, bytes);
	memcpy(&found, chunk + SYMBOLS_BYTES, sizeof(found));
	if (found != blocks || chunk[9] != 0 || chunk[10] != 0 || chunk[11] != 0)
		return od_fail(err, OD_ERR_CORRUPT, "planes: header: expected %zu blocks, found %u", blocks, found);
	for (size_t b = 0; b < blocks; b++) {
		size_t first, weights, took;
		int rc;

		if (offset_of(chunk, b) != at)
			return od_fail(err, OD_ERR_CORRUPT, "planes: block %zu: expected offset %zu, found %u", b, at,
				       offset_of(chunk, b));
		od_planes_span(n, row, b, &first, &weights);
		rc = check_block(chunk + at, bytes - at, weights, &took, err);
		if (rc != OD_OK)
			return od_fail_within(err, "planes: block %zu", b);
		at += took;
	}
	if (at != bytes)
		return od_fail(err, OD_ERR_CORRUPT, "planes: expected %zu bytes, found %zu", at, bytes);
	return OD_OK;
}
