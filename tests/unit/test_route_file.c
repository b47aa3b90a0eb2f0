/* Recorded routes: the bytes of a small recording worked out by hand, and everything that can be wrong with a file. */
#include "tests/bench/sim/route_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/temp_dir.h"

/* Two layers of four experts, top 2: a prompt of two rows, a decode step that was given up after a layer. */
static const uint8_t golden[] = {
	'o', 'd', '-', 'r', 'o', 'u', 't', 'e', 1, 0, 0,  0,  2,  0,  0,  0,  4,  0,  0,  0,  2,  0,  0,  0, /* head */
	0,   1,	  2,   3,   4,	 5,   6,   7,	8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24,
	25,  26,  27,  28,  29,	 30,  31,  'S', 1, 2, 0,  0,  0,  9,  0,  0,  0,  0,  0,  0,  0, /* at 56 */
	5,   0,	  0,   0,   0,	 0,   0,   0,	0, 0, 0,  0,  5,  0,  0,  0,  0,  0,  0,  0,  1,  0,  0,  0,  'L',
	3,   1,	  0,   2,   'L', 1,   0,   2,	3, /* at 94 and 99 */
	'S', 0,	  1,   0,   0,	 0,   12,  0,	0, 0, 0,  0,  0,  1,  5,  0,  0,  0,  0,  0,  0,  0,  2,  0,  0,
	0, /* at 104 */
	'L', 0,	  3, /* at 130 */
	'E', 2,	  0,   0,   0,	 0,   0,   0,	0, /* at 133 */
};

static struct od_route_head head_of(uint32_t layers, uint32_t experts, uint32_t top_k)
{
	struct od_route_head h = { .n_moe = layers, .n_experts = experts, .top_k = top_k };

	for (uint8_t i = 0; i < 32; i++)
		h.fingerprint[i] = i;
	return h;
}

static void written_byte_by_byte(void **state)
{
	static const uint16_t e[][2] = { { 3, 1 }, { 0, 2 }, { 1, 0 }, { 2, 3 }, { 0, 3 } };
	const struct od_route_head head = head_of(2, 4, 2);
	struct od_route_writer *w;
	uint8_t got[sizeof(golden) + 1];
	FILE *f;

	(void)state;
	assert_int_equal(od_route_open(&w, temp_path("routes"), &head, NULL), OD_OK);
	od_route_step(w, 9, true, 2);
	od_route_row(w, 5, 0);
	od_route_row(w, 5, 1);
	for (int layer = 0; layer < 2; layer++) {
		od_route_layer(w);
		od_route_experts(w, e[2 * layer]);
		od_route_experts(w, e[2 * layer + 1]);
	}
	od_route_step(w, 12 + (1ull << 56), false, 1);
	od_route_row(w, 5, 2);
	od_route_layer(w);
	od_route_experts(w, e[4]);
	assert_int_equal(od_route_close(w, NULL), OD_OK);
	f = fopen(temp_path("routes"), "rb");
	assert_non_null(f);
	assert_int_equal(fread(got, 1, sizeof(got), f), sizeof(golden));
	fclose(f);
	assert_memory_equal(got, golden, sizeof(golden));
}

static void read_back(void **state)
{
	static const uint16_t first[] = { 3, 1, 0, 2, 1, 0, 2, 3 };
	const struct od_route_head head = head_of(2, 4, 2);
	struct od_routes r;

	(void)state;
	assert_int_equal(od_routes_parse(&r, golden, sizeof(golden), "golden", NULL), OD_OK);
	assert_memory_equal(&r.head, &head, sizeof(head));
	assert_int_equal(r.n_steps, 2);
	assert_true(r.step[0].prompt && r.step[0].step == 9 && r.step[0].n_rows == 2 && r.step[0].n_moe == 2);
	assert_true(r.step[0].row[1].sequence == 5 && r.step[0].row[1].position == 1);
	assert_memory_equal(r.step[0].expert, first, sizeof(first));
	assert_true(!r.step[1].prompt && r.step[1].step == 12 + (1ull << 56) && r.step[1].n_moe == 1);
	assert_true(r.step[1].row[0].position == 2 && r.step[1].expert[0] == 0 && r.step[1].expert[1] == 3);
	od_routes_fini(&r);
}

static void more_than_256_experts_take_two_bytes(void **state)
{
	static const uint16_t e[] = { 299, 256, 0 };
	const struct od_route_head head = head_of(1, 300, 3);
	struct od_route_writer *w;
	struct od_routes r;

	(void)state;
	assert_int_equal(od_route_open(&w, temp_path("routes"), &head, NULL), OD_OK);
	od_route_step(w, 1, false, 1);
	od_route_row(w, 1, 0);
	od_route_layer(w);
	od_route_experts(w, e);
	assert_int_equal(od_route_close(w, NULL), OD_OK);
	assert_int_equal(od_routes_load(&r, temp_path("routes"), NULL), OD_OK);
	assert_memory_equal(r.step[0].expert, e, sizeof(e));
	od_routes_fini(&r);
}

/* One byte of the golden bytes is another. */
static void refused(size_t at, uint8_t byte, int code, const char *says)
{
	uint8_t bytes[sizeof(golden)];
	struct od_routes r;
	struct od_err err;

	memcpy(bytes, golden, sizeof(golden));
	bytes[at] = byte;
	assert_int_equal(od_routes_parse(&r, bytes, sizeof(bytes), "file", &err), code);
	if (strstr(err.msg, says) == NULL)
		fail_msg("expected \"%s\", found \"%s\"", says, err.msg);
	assert_null(r.step);
}

static void what_is_wrong_is_said(void **state)
{
	(void)state;
	refused(0, 'x', OD_ERR_FORMAT, "not a recording");
	refused(8, 2, OD_ERR_UNSUPPORTED, "version 2");
	refused(12, 0, OD_ERR_RANGE, "no such model");
	refused(18, 1, OD_ERR_RANGE, "no such model");
	refused(20, 5, OD_ERR_RANGE, "no such model");
	refused(56, 'x', OD_ERR_FORMAT, "at byte 56");
	refused(56, 'L', OD_ERR_FORMAT, "belongs to no step");
	refused(57, 2, OD_ERR_FORMAT, "impossible number of rows");
	refused(58, 0, OD_ERR_FORMAT, "impossible number of rows");
	refused(58, 200, OD_ERR_FORMAT, "ends early");
	refused(60, 2, OD_ERR_FORMAT, "impossible number of rows");
	refused(95, 4, OD_ERR_FORMAT, "does not have");
	refused(95, 1, OD_ERR_FORMAT, "same expert twice");
	refused(104, 'L', OD_ERR_FORMAT, "belongs to no step");
	refused(69, 2, OD_ERR_FORMAT, "not greater");
	refused(134, 3, OD_ERR_FORMAT, "number of steps");
}

static void every_cut_is_noticed(void **state)
{
	struct od_routes r;
	struct od_err err;

	(void)state;
	for (size_t len = 0; len < sizeof(golden); len++) {
		uint8_t *bytes = malloc(len + 1); /* exactly so many, for the address sanitizer */

		memcpy(bytes, golden, len);
		assert_int_equal(od_routes_parse(&r, bytes, len, "file", &err), OD_ERR_FORMAT);
		if (len >= 56)
			assert_non_null(strstr(err.msg, "ends early"));
		free(bytes);
	}
}

static void more_than_the_end(void **state)
{
	uint8_t bytes[sizeof(golden) + 1] = { 0 };
	struct od_routes r;
	struct od_err err;

	(void)state;
	memcpy(bytes, golden, sizeof(golden));
	assert_int_equal(od_routes_parse(&r, bytes, sizeof(bytes), "file", &err), OD_ERR_FORMAT);
	assert_non_null(strstr(err.msg, "something follows"));
}

static void a_full_disk_is_told_at_the_end(void **state)
{
	static const uint16_t e[] = { 0, 1 };
	const struct od_route_head head = head_of(1, 2, 2);
	struct od_route_writer *w;
	struct od_err err;

	(void)state;
	assert_int_equal(od_route_open(&w, "/nonexistent/routes", &head, &err), OD_ERR_IO);
	assert_null(w);
	if (access("/dev/full", W_OK) != 0)
		skip();
	assert_int_equal(od_route_open(&w, "/dev/full", &head, NULL), OD_OK);
	for (uint64_t step = 1; step < 10000; step++) {
		od_route_step(w, step, false, 1);
		od_route_row(w, 1, 0);
		od_route_layer(w);
		od_route_experts(w, e);
	}
	assert_int_equal(od_route_close(w, &err), OD_ERR_IO);
	assert_non_null(strstr(err.msg, "/dev/full"));
	assert_int_equal(od_route_close(NULL, NULL), OD_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(written_byte_by_byte),
		cmocka_unit_test(read_back),
		cmocka_unit_test(more_than_256_experts_take_two_bytes),
		cmocka_unit_test(what_is_wrong_is_said),
		cmocka_unit_test(every_cut_is_noticed),
		cmocka_unit_test(more_than_the_end),
		cmocka_unit_test(a_full_disk_is_told_at_the_end),
	};

	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
