/* The file of checksums that belongs to a GGUF file, and what other processes find there. */
#include "common/pack/gguf/gguf_sums.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/file.h"
#include "tests/unit/gguf_metadata.h"
#include "tests/unit/temp_dir.h"

#define MANY 3000u /* their sums take several pages */
#define FEW 10u

static struct od_gguf *open_gguf(void)
{
	struct od_gguf *g;
	struct od_err err;

	assert_int_equal(od_gguf_open(&g, temp_path("model.gguf"), &err), OD_OK);
	return g;
}

static int make_gguf(void **state)
{
	json_t *metadata = json_pack("{s:s}", "general.architecture", "llama");
	struct od_strbuf b = { 0 };
	struct od_err err;
	int rc = temp_dir_make(state);

	gguf_make(&b, metadata);
	if (rc == 0)
		rc = od_file_write_atomic(temp_path("model.gguf"), od_strbuf_text(&b), b.len, &err);
	od_strbuf_fini(&b);
	json_decref(metadata);
	return rc;
}

static struct od_gguf_sums *open_sums(size_t n)
{
	struct od_gguf *g = open_gguf();
	struct od_gguf_sums *s;
	struct od_err err;

	assert_int_equal(od_gguf_sums_open(&s, temp_path("sums.bin"), g, n, &err), OD_OK);
	od_gguf_close(g);
	return s;
}

static void learn(struct od_gguf_sums *s, size_t i, uint64_t sum)
{
	struct od_err err;

	assert_int_equal(od_gguf_sums_check(s, i, sum, &err), OD_OK);
}

static void is_corrupt(struct od_gguf_sums *s, size_t i, uint64_t sum)
{
	struct od_err err;

	assert_int_equal(od_gguf_sums_check(s, i, sum, &err), OD_ERR_CORRUPT);
	assert_non_null(strstr(err.msg, "to begin anew, remove "));
	assert_non_null(strstr(err.msg, temp_path("sums.bin")));
}

static void keeps_them(void **state)
{
	struct od_gguf_sums *s = open_sums(MANY), *other = open_sums(MANY);

	(void)state;
	learn(s, 5, 55);
	learn(other, 5, 55); /* processes share them */
	is_corrupt(other, 5, 56);
	assert_int_equal(od_gguf_sums_learned(other), 0);
	od_gguf_sums_close(s);
	od_gguf_sums_close(other);
	s = open_sums(MANY);
	assert_int_equal(od_gguf_sums_n_known(s), 1);
	is_corrupt(s, 5, 56);
	od_gguf_sums_close(s);
}

/* Another version of od-moe may count other tensors. */
static void does_not_shorten_a_file_in_use(void **state)
{
	struct od_gguf_sums *s = open_sums(MANY), *other;

	(void)state;
	learn(s, MANY - 1, 7);
	other = open_sums(FEW);
	is_corrupt(s, MANY - 1, 8);
	assert_int_equal(od_gguf_sums_n_known(other), 0);
	learn(other, 0, 9);
	assert_int_equal(od_gguf_sums_known(s, 0), 0);
	od_gguf_sums_close(s);
	od_gguf_sums_close(other);
}

/* A copy of the file with another time, or the file after a change. */
static void begins_anew_beside_those_in_use(void **state)
{
	const struct timespec times[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
	struct od_gguf_sums *s = open_sums(MANY), *other;

	(void)state;
	learn(s, 5, 55);
	assert_int_equal(utimensat(AT_FDCWD, temp_path("model.gguf"), times, 0), 0);
	other = open_sums(MANY);
	assert_int_equal(od_gguf_sums_n_known(other), 0);
	learn(other, 5, 66);
	is_corrupt(s, 5, 66);
	od_gguf_sums_close(s);
	od_gguf_sums_close(other);
	other = open_sums(MANY);
	assert_int_equal(od_gguf_sums_known(other, 5), 66);
	od_gguf_sums_close(other);
}

static void follows_no_link(void **state)
{
	static const char text[] = "not ours";
	char found[sizeof(text)] = "";
	struct od_gguf_sums *s;
	struct od_err err;
	uint64_t size;
	int fd;

	(void)state;
	assert_int_equal(od_file_write_atomic(temp_path("other"), text, sizeof(text), &err), OD_OK);
	unlink(temp_path("sums.bin"));
	assert_int_equal(symlink(temp_path("other"), temp_path("sums.bin")), 0);
	s = open_sums(MANY);
	learn(s, 5, 55);
	is_corrupt(s, 5, 56);
	od_gguf_sums_close(s);
	assert_int_equal(od_file_open(temp_path("other"), &fd, &size, &err), OD_OK);
	assert_int_equal(size, sizeof(text));
	assert_int_equal(od_file_pread(fd, found, sizeof(text), 0, "other", &err), OD_OK);
	assert_string_equal(found, text);
	close(fd);
}

/* Where no file can be made, they are in memory. */
static void does_without_a_file(void **state)
{
	struct od_gguf *g = open_gguf();
	struct od_gguf_sums *s;
	struct od_err err;

	(void)state;
	assert_int_equal(od_gguf_sums_open(&s, temp_path("missing/sums.bin"), g, FEW, &err), OD_OK);
	learn(s, 5, 55);
	assert_int_equal(od_gguf_sums_check(s, 5, 56, &err), OD_ERR_CORRUPT);
	od_gguf_sums_close(s);
	od_gguf_close(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(keeps_them, make_gguf, temp_dir_remove),
		cmocka_unit_test_setup_teardown(does_not_shorten_a_file_in_use, make_gguf, temp_dir_remove),
		cmocka_unit_test_setup_teardown(begins_anew_beside_those_in_use, make_gguf, temp_dir_remove),
		cmocka_unit_test_setup_teardown(follows_no_link, make_gguf, temp_dir_remove),
		cmocka_unit_test_setup_teardown(does_without_a_file, make_gguf, temp_dir_remove),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
