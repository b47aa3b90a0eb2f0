/* Chunks of planes against a decoder that reads them bit by bit, as docs/PACK-FORMAT.md says. */
#include "common/base/mem.h"
#include "common/compute/backend.h"
#include "common/compute/cpu/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t seed = 1;

static uint32_t draw(void)
{
	seed = seed * 1664525u + 1013904223u;
	return seed >> 8;
}

enum planes_kind { GEOMETRIC, UNIFORM, SAME, TWO, N_KINDS };

static uint8_t draw_exponent(enum planes_kind kind)
{
	uint8_t v = 125;

	switch (kind) {
	case GEOMETRIC:
		while (draw() % 5 < 3 && v > 90)
			v--;
		return v;
	case UNIFORM: return (uint8_t)draw();
	case SAME: return 7;
	case TWO: return draw() % 100 == 0 ? 0 : 255;
	case N_KINDS: break;
	}
	return 0;
}

static const struct {
	size_t rows, row;
} shapes[] = { { 1, 1 },     { 1, 63 },	   { 3, 64 },	 { 5, 65 },    { 7, 1000 },  { 100, 200 },
	       { 3, 16384 }, { 2, 16385 }, { 2, 50000 }, { 300, 129 }, { 16385, 1 }, { 17, 4096 } };
#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

struct planes_sample {
	size_t n, row, bytes;
	uint8_t *e, *chunk; /* malloc'd, of exactly their size and OD_PAD_BYTES */
};

static struct planes_sample sample_of(enum planes_kind kind, size_t shape)
{
	struct planes_sample s = { .row = shapes[shape].row, .n = shapes[shape].rows * shapes[shape].row };
	uint8_t *room;

	s.e = malloc(s.n);
	for (size_t i = 0; i < s.n; i++)
		s.e[i] = draw_exponent(kind);
	room = malloc(od_planes_bound(s.n, s.row));
	s.bytes = od_planes_encode(s.e, s.n, s.row, room);
	assert_true(s.bytes <= od_planes_bound(s.n, s.row));
	s.chunk = calloc(1, s.bytes + OD_PAD_BYTES);
	memcpy(s.chunk, room, s.bytes);
	free(room);
	return s;
}

static void sample_free(struct planes_sample *s)
{
	free(s->e);
	free(s->chunk);
}

static size_t word(const uint8_t *at, size_t bytes)
{
	size_t v = 0;

	for (size_t i = bytes; i-- > 0;)
		v = v << 8 | at[i];
	return v;
}

/* Code i of a level of n. */
static unsigned code_at(const uint8_t *level, size_t n, size_t i)
{
	size_t group = i / 64 * 64, in_group = n - group < 64 ? n - group : 64, bytes = (in_group + 7) / 8,
	       bit = i - group;
	const uint8_t *plane = level + group / 4;

	return (plane[bit / 8] >> bit % 8 & 1u) | (plane[bytes + bit / 8] >> bit % 8 & 1u) << 1;
}

static size_t level_bytes(size_t n)
{
	return n / 64 * 16 + (n % 64 + 7) / 8 * 2;
}

/* Exponents of the block at `at`, of so many weights, to e; returns its bytes. */
static size_t read_block(const uint8_t *chunk, const uint8_t *at, size_t weights, uint8_t *e)
{
	size_t n[4] = { weights, word(at, 2), word(at + 2, 2), word(at + 4, 2) }, used[4] = { 0 };
	const uint8_t *level[4] = { 0 }, *plain = at + 8;

	if (word(at + 6, 2) == 1) {
		memcpy(e, plain, weights);
		return 8 + weights;
	}
	level[2] = plain + n[3];
	level[1] = level[2] + level_bytes(n[2]);
	level[0] = level[1] + level_bytes(n[1]);
	for (size_t i = 0; i < weights; i++) {
		unsigned l = 0, code;

		while (l < 3 && (code = code_at(level[l], n[l], used[l]++)) == 3)
			l++;
		e[i] = l < 3 ? chunk[3 * l + code] : plain[used[3]++];
	}
	return (size_t)(level[0] + level_bytes(weights) - at);
}

static void what_is_written_reads_as_the_format_says(void **state)
{
	(void)state;
	for (size_t shape = 0; shape < N_SHAPES; shape++)
		for (int kind = 0; kind < N_KINDS; kind++) {
			struct planes_sample s = sample_of((enum planes_kind)kind, shape);
			size_t blocks = word(s.chunk + 12, 4), done = 0, end = 16 + 4 * blocks;
			uint8_t *e = malloc(s.n);

			for (size_t b = 0; b < blocks; b++) {
				size_t left = s.row - done % s.row,
				       most = s.row > 16384 ? 16384 : 16384 / s.row * s.row;
				size_t weights = s.row > 16384 ? (left < most ? left : most) :
								 (s.n - done < most ? s.n - done : most);

				assert_int_equal(word(s.chunk + 16 + 4 * b, 4), end);
				end += read_block(s.chunk, s.chunk + end, weights, e + done);
				done += weights;
			}
			assert_int_equal(done, s.n);
			assert_int_equal(end, s.bytes);
			assert_memory_equal(e, s.e, s.n);
			free(e);
			sample_free(&s);
		}
}

/* The one that docs/PACK-FORMAT.md works out. */
static void the_formats_example(void **state)
{
	static const uint8_t e[] = { 7, 7, 8, 7, 9, 7, 1 }, expected[] = {
		7, 1, 8, 9, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x14,
	};
	uint8_t chunk[64];

	(void)state;
	assert_true(od_planes_bound(sizeof(e), sizeof(e)) <= sizeof(chunk));
	assert_int_equal(od_planes_encode(e, sizeof(e), sizeof(e), chunk), sizeof(expected));
	assert_memory_equal(chunk, expected, sizeof(expected));
}

static void small(void **state)
{
	struct planes_sample s = sample_of(GEOMETRIC, 11), uniform = sample_of(UNIFORM, 11);

	(void)state;
	assert_true(s.bytes * 8 < s.n * 3); /* about 2.3 bits of entropy */
	assert_true(uniform.bytes <= uniform.n + uniform.n / 100); /* raw */
	sample_free(&s);
	sample_free(&uniform);
}

static const struct od_backend *tables[8];
static size_t n_tables;

static int find_tables(void **state)
{
	(void)state;
	for (int cpu = OD_CPU_SCALAR; cpu <= OD_CPU_NEON; cpu++)
		n_tables += od_backend_cpu(&tables[n_tables], (enum od_cpu)cpu, OD_PROFILE_F32, NULL) == OD_OK;
	return n_tables > 0 ? 0 : -1;
}

static void every_table_decodes(void **state)
{
	(void)state;
	for (size_t i = 0; i < n_tables * N_SHAPES * N_KINDS; i++) {
		const struct od_backend *be = tables[i / N_KINDS / N_SHAPES];
		struct planes_sample s = sample_of((enum planes_kind)(i % N_KINDS), i / N_KINDS % N_SHAPES);

		assert_int_equal(od_planes_check(s.chunk, s.bytes, s.n, s.row, NULL), OD_OK);
		for (size_t b = 0; b < od_planes_blocks(s.n, s.row); b++) {
			size_t first, weights;
			uint8_t *e;

			od_planes_span(s.n, s.row, b, &first, &weights);
			e = malloc((weights + 63) / 64 * 64);
			be->planes_decode(s.chunk, s.n, s.row, b, e);
			assert_memory_equal(e, s.e + first, weights);
			free(e);
		}
		sample_free(&s);
	}
}

/* Every BF16 there is, and in place: SM in the upper half of where the weights go. */
static void every_table_merges_in_place(void **state)
{
	(void)state;
	for (size_t i = 0; i < n_tables * N_SHAPES * N_KINDS; i++) {
		const struct od_backend *be = tables[i / N_KINDS / N_SHAPES];
		struct planes_sample s = sample_of((enum planes_kind)(i % N_KINDS), i / N_KINDS % N_SHAPES);
		uint16_t *w = malloc(2 * s.n + OD_PAD_BYTES), *expected = malloc(2 * s.n);
		uint8_t *sm = (uint8_t *)w + s.n;

		for (size_t k = 0; k < s.n; k++) {
			sm[k] = (uint8_t)draw();
			expected[k] = (uint16_t)(sm[k] << 15 | s.e[k] << 7 | sm[k] >> 1);
		}
		for (size_t b = 0; b < od_planes_blocks(s.n, s.row); b++) {
			size_t first, weights;

			od_planes_span(s.n, s.row, b, &first, &weights);
			be->planes_merge(s.chunk, s.n, s.row, b, sm + first, w + first);
		}
		assert_memory_equal(w, expected, 2 * s.n);
		free(w);
		free(expected);
		sample_free(&s);
	}
}

/* All lengths, apart and in place; nothing behind is written. */
static void every_table_merges_plain_exponents(void **state)
{
	(void)state;
	for (size_t i = 0; i < n_tables * 300; i++) {
		const size_t n = i / n_tables;
		uint8_t *e = od_alloc(n), *sm = od_alloc(n);
		uint16_t *w = od_alloc(2 * n), *expected = od_alloc(2 * n);

		for (size_t k = 0; k < n; k++) {
			e[k] = (uint8_t)draw();
			sm[k] = (uint8_t)draw();
			expected[k] = (uint16_t)(sm[k] << 15 | e[k] << 7 | sm[k] >> 1);
		}
		tables[i % n_tables]->merge_bf16(e, sm, n, w);
		assert_memory_equal(w, expected, 2 * n + OD_PAD_BYTES);
		memcpy((uint8_t *)w + n, sm, n);
		tables[i % n_tables]->merge_bf16(e, (uint8_t *)w + n, n, w);
		assert_memory_equal(w, expected, 2 * n + OD_PAD_BYTES);
		od_free(e);
		od_free(sm);
		od_free(w);
		od_free(expected);
	}
}

/* Whatever the check lets pass decodes without a step beyond the chunk (sanitizers watch), and a chunk that was cut or
 * has another count is refused. */
static void what_is_broken_is_refused(void **state)
{
	const struct od_backend *be = tables[0];
	size_t refused = 0, passed = 0;

	(void)state;
	for (size_t shape = 0; shape < N_SHAPES; shape++) {
		struct planes_sample s = sample_of(GEOMETRIC, shape);
		uint8_t *e = malloc(OD_PLANES_BLOCK);
		struct od_err err;

		for (size_t cut = 0; cut < s.bytes; cut += 1 + s.bytes / 40)
			assert_int_equal(od_planes_check(s.chunk, cut, s.n, s.row, &err), OD_ERR_CORRUPT);
		for (int i = 0; i < 300; i++) {
			size_t at = i < 150 ? draw() % s.bytes : draw() % (s.bytes < 40 ? s.bytes : 40);
			uint8_t was = s.chunk[at];

			s.chunk[at] = (uint8_t)draw();
			if (od_planes_check(s.chunk, s.bytes, s.n, s.row, &err) != OD_OK)
				refused++;
			else
				for (size_t b = 0; b < od_planes_blocks(s.n, s.row); b++, passed++)
					be->planes_decode(s.chunk, s.n, s.row, b, e);
			s.chunk[at] = was;
		}
		assert_int_equal(od_planes_check(s.chunk, s.bytes, s.n, s.row, &err), OD_OK);
		free(e);
		sample_free(&s);
	}
	assert_true(refused > 1000 && passed > 100);
}

/* The first code of a level that is no escape becomes one, or the first escape none. */
static void turn_a_code(uint8_t *level, size_t n, bool escape)
{
	size_t i = 0, bytes;

	while ((code_at(level, n, i) == 3) == escape)
		i++;
	bytes = n - i / 64 * 64 < 64 ? (n % 64 + 7) / 8 : 8;
	for (size_t plane = 0; plane < 2; plane++) {
		uint8_t *at = level + i / 64 * 16 + plane * bytes + i % 64 / 8;

		*at = (uint8_t)(escape ? *at | 1u << i % 8 : *at & ~(1u << i % 8));
	}
}

/* Every rule by itself: what breaks it is refused, and said. */
static void every_rule_is_checked(void **state)
{
	static const struct {
		size_t at;
		const char *says;
	} header[] = { { 9, "header" },	   { 11, "header" },   { 12, "header" },   { 16, "offset" },
		       { 20, "expected" }, { 22, "expected" }, { 24, "expected" }, { 26, "kind" } };
	struct planes_sample s = sample_of(GEOMETRIC, 3); /* 5 rows of 65: one block */
	uint8_t *whole = malloc(s.bytes);
	size_t n2 = word(s.chunk + 20, 2), n3 = word(s.chunk + 22, 2), n4 = word(s.chunk + 24, 2);
	size_t n[3] = { s.n, n2, n3 }, at[3] = { 0, 0, 28 + n4 };
	struct od_err err;

	(void)state;
	at[1] = at[2] + level_bytes(n3);
	at[0] = at[1] + level_bytes(n2);
	memcpy(whole, s.chunk, s.bytes);
	assert_true(n4 > 0 && n3 > n4 && at[0] + level_bytes(s.n) == s.bytes);
	for (size_t i = 0; i < 6; i++) {
		memcpy(s.chunk, whole, s.bytes);
		turn_a_code(s.chunk + at[i / 2], n[i / 2], i % 2 == 0);
		assert_int_equal(od_planes_check(s.chunk, s.bytes, s.n, s.row, &err), OD_ERR_CORRUPT);
		assert_non_null(strstr(err.msg, "escapes of its levels"));
	}
	for (size_t i = 0; i < sizeof(header) / sizeof(header[0]); i++) {
		memcpy(s.chunk, whole, s.bytes);
		s.chunk[header[i].at] += 2;
		assert_int_equal(od_planes_check(s.chunk, s.bytes, s.n, s.row, &err), OD_ERR_CORRUPT);
		assert_non_null(strstr(err.msg, header[i].says));
	}
	memcpy(s.chunk, whole, s.bytes);
	s.chunk[s.bytes - 2] |= 0x80; /* 325 codes: the last group has 5 */
	assert_int_equal(od_planes_check(s.chunk, s.bytes, s.n, s.row, &err), OD_ERR_CORRUPT);
	assert_non_null(strstr(err.msg, "after a level's last code"));
	memcpy(s.chunk, whole, s.bytes);
	assert_int_equal(od_planes_check(s.chunk, s.bytes + 1, s.n, s.row, &err), OD_ERR_CORRUPT);
	assert_int_equal(od_planes_check(s.chunk, s.bytes, s.n, s.row, &err), OD_OK);
	free(whole);
	sample_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_written_reads_as_the_format_says),
		cmocka_unit_test(the_formats_example),
		cmocka_unit_test(small),
		cmocka_unit_test(every_table_decodes),
		cmocka_unit_test(every_table_merges_in_place),
		cmocka_unit_test(every_table_merges_plain_exponents),
		cmocka_unit_test(every_rule_is_checked),
		cmocka_unit_test(what_is_broken_is_refused),
	};

	return cmocka_run_group_tests(tests, find_tables, NULL);
}
