/* spool.state: what is written is read, and a file with any bit flipped is not believed. */
#include "common/pack/spool/spool_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/file.h"
#include "tests/unit/temp_dir.h"

#define LAYERS 3
#define EXPERTS 5

static const char print[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

static struct od_spool_state make(uint8_t *whole)
{
	return (struct od_spool_state){ .fingerprint = print, .n_moe = LAYERS, .n_experts = EXPERTS, .whole = whole };
}

static void put(struct od_spool_state *s)
{
	struct od_err err;

	s->share = (struct od_share){ 4, 3, 2 };
	for (int i = 0; i < LAYERS * EXPERTS; i++)
		s->whole[i] = i % 3 == 0;
	assert_int_equal(od_spool_state_write(s, temp_dir, &err), OD_OK);
}

static void round_trip(void **state)
{
	uint8_t a[LAYERS * EXPERTS], b[LAYERS * EXPERTS];
	struct od_spool_state in = make(a), out = make(b);
	struct od_err err;
	char *text;
	size_t len;

	(void)state;
	put(&in);
	assert_int_equal(od_spool_state_read(&out, temp_dir, &err), OD_OK);
	assert_memory_equal(a, b, sizeof(a));
	assert_memory_equal(&out.share, &in.share, sizeof(in.share));
	/* As docs/PACK-FORMAT.md has it. */
	assert_int_equal(od_file_read(temp_path(OD_SPOOL_STATE_NAME), 1000, &text, &len, &err), OD_OK);
	assert_non_null(strstr(text, "share 4 3 2\n10010\n01001\n00100\nxxh3 "));
	free(text);
}

static void nothing_there(void **state)
{
	uint8_t a[LAYERS * EXPERTS] = { 1 };
	struct od_spool_state s = make(a);
	struct od_err err;

	(void)state;
	assert_int_equal(od_spool_state_read(&s, temp_path("nowhere"), &err), OD_ERR_MISSING);
	assert_int_equal(a[0], 0);
}

static void every_flipped_bit(void **state)
{
	uint8_t a[LAYERS * EXPERTS], zero[LAYERS * EXPERTS] = { 0 };
	struct od_spool_state s = make(a);
	struct od_err err;
	char *text;
	size_t len;

	(void)state;
	put(&s);
	assert_int_equal(od_file_read(temp_path(OD_SPOOL_STATE_NAME), 1000, &text, &len, &err), OD_OK);
	for (size_t bit = 0; bit < 8 * len; bit++) {
		text[bit / 8] ^= (char)(1 << bit % 8);
		assert_int_equal(od_file_write_atomic(temp_path(OD_SPOOL_STATE_NAME), text, len, &err), OD_OK);
		/* A flipped bit in the fingerprint is damage, too: the spool is this model's. */
		assert_int_equal(od_spool_state_read(&s, temp_dir, &err), OD_ERR_CORRUPT);
		assert_memory_equal(a, zero, sizeof(a));
		text[bit / 8] ^= (char)(1 << bit % 8);
	}
	for (size_t cut = 0; cut < len; cut++) {
		assert_int_equal(od_file_write_atomic(temp_path(OD_SPOOL_STATE_NAME), text, cut, &err), OD_OK);
		assert_int_not_equal(od_spool_state_read(&s, temp_dir, &err), OD_OK);
	}
	free(text);
}

static void another_model(void **state)
{
	uint8_t a[LAYERS * EXPERTS];
	struct od_spool_state s = make(a);
	struct od_err err;

	(void)state;
	put(&s);
	s.fingerprint = "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
	assert_int_equal(od_spool_state_read(&s, temp_dir, &err), OD_ERR_MISMATCH);
	s = make(a);
	s.n_experts--; /* another shape */
	assert_int_equal(od_spool_state_read(&s, temp_dir, &err), OD_ERR_CORRUPT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(round_trip),
		cmocka_unit_test(nothing_there),
		cmocka_unit_test(every_flipped_bit),
		cmocka_unit_test(another_model),
	};

	return cmocka_run_group_tests_name("spool state", tests, temp_dir_make, temp_dir_remove);
}
