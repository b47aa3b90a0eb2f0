/* The memory of calls: what it gives back, what it forgets, and what its file brings back, whatever has happened to
 * that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "main-node/serve/api/call_memory.h"
#include "tests/unit/random.h"
#include "tests/unit/temp_dir.h"

#define MAX_BYTES 4000u

/* Expected: NULL: nothing. */
static void assert_got(struct odm_call_memory *m, const char *id, const char *input, const char *expected)
{
	json_t *v = json_loads(input, 0, NULL);
	char *got;

	assert_non_null(v);
	got = odm_call_memory_get(m, id, v);
	if (expected == NULL)
		assert_null(got);
	else
		assert_string_equal(got != NULL ? got : "(nothing)", expected);
	free(got);
	json_decref(v);
}

static void test_values(void **state)
{
	static const char text[] =
		"{ \"b\":1.50,\"a\": [1.0, 2, \"\\u00e9\", null, true],  \"c\":{\"d\": 12345678901234567890}}";
	struct odm_call_memory *m = odm_call_memory_new(100, 1000);

	(void)state;
	odm_call_memory_put(m, "x", text);
	assert_got(m, "x", "{\"b\":1.5,\"a\":[1,2.0,\"\u00e9\",null,true],\"c\":{\"d\":12345678901234567890.0}}", text);
	assert_got(m, "x", "{\"a\":[1,2,\"\u00e9\",null,true],\"b\":1.5,\"c\":{\"d\":12345678901234567890.0}}", text);
	assert_got(m, "y", "{}", NULL);
	assert_got(m, "x", "{}", NULL);
	assert_got(m, "x", "{\"b\":1.6,\"a\":[1,2,\"\u00e9\",null,true],\"c\":{\"d\":12345678901234567890.0}}", NULL);
	assert_got(m, "x", "{\"b\":1.5,\"a\":[1,2,\"\u00e9\",null,false],\"c\":{\"d\":12345678901234567890.0}}", NULL);
	assert_got(m, "x", "{\"b\":1.5,\"a\":[1,2,\"\u00e9\",null],\"c\":{\"d\":12345678901234567890.0}}", NULL);
	assert_got(m, "x", "{\"b\":1.5,\"a\":[1,2,\"\u00e9\",null,true],\"c\":{\"e\":12345678901234567890.0}}", NULL);
	assert_got(NULL, "x", "{}", NULL);
	odm_call_memory_free(m);
	odm_call_memory_free(NULL);
}

static void test_nothing_hidden_comes_back(void **state)
{
	struct odm_call_memory *m = odm_call_memory_new(100, 1000);

	(void)state;
	odm_call_memory_put(m, "x", "{\"a\":\"do harm\",\"a\":1}");
	odm_call_memory_put(m, "y", "{\"n\":12345678901234567890,\"a\":{\"b\":0,\"b\":1}}");
	assert_got(m, "x", "{\"a\":1}", NULL);
	assert_got(m, "y", "{\"n\":12345678901234567890.0,\"a\":{\"b\":1}}", NULL);
	odm_call_memory_free(m);
}

static void test_the_newest_of_an_id(void **state)
{
	struct odm_call_memory *m = odm_call_memory_new(100, 1000);

	(void)state;
	odm_call_memory_put(m, "x", "{ }");
	odm_call_memory_put(m, "y", "{  }");
	odm_call_memory_put(m, "x", "{   }");
	assert_got(m, "x", "{}", "{   }");
	assert_got(m, "y", "{}", "{  }");
	odm_call_memory_free(m);
}

/* Puts n calls; how many of them are remembered, which must be the newest. */
static size_t put_many(struct odm_call_memory *m, int n)
{
	size_t kept = 0;
	char id[16];

	for (int i = 0; i < n; i++) {
		snprintf(id, sizeof(id), "id %04d", i);
		odm_call_memory_put(m, id, "{}");
	}
	for (int i = 0; i < n; i++) {
		json_t *empty = json_object();
		char *got;

		snprintf(id, sizeof(id), "id %04d", i);
		got = odm_call_memory_get(m, id, empty);
		assert_true(got != NULL || kept == 0);
		kept += got != NULL;
		free(got);
		json_decref(empty);
	}
	return kept;
}

static void test_the_oldest_go_first(void **state)
{
	struct odm_call_memory *few = odm_call_memory_new(10, 1000), *small = odm_call_memory_new(1000, 95);

	(void)state;
	assert_int_equal(put_many(few, 9), 9);
	assert_int_equal(put_many(few, 1000), 10);
	assert_int_equal(put_many(small, 1000), 10); /* 9 bytes each */
	odm_call_memory_put(small, "id 0999", "{        }"); /* 8 more: one must go */
	assert_got(small, "id 0990", "{}", NULL);
	assert_got(small, "id 0991", "{}", "{}");
	assert_got(small, "id 0999", "{}", "{        }");
	odm_call_memory_put(
		small, "big",
		"{                                                                                            }");
	assert_got(small, "big", "{}", NULL);
	assert_got(small, "id 0999", "{}", NULL);
	assert_int_equal(put_many(small, 1000), 10);
	odm_call_memory_free(few);
	odm_call_memory_free(small);
}

/* ---- In a file ---- */

/* A memory that begins with what the file has. */
static struct odm_call_memory *open_memory(const char *path)
{
	struct odm_call_memory *m = odm_call_memory_new(1000, MAX_BYTES);
	struct od_err err;

	if (odm_call_memory_use_file(m, path, &err) != OD_OK)
		fail_msg("%s", err.msg);
	return m;
}

static size_t size_of(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	return (size_t)st.st_size;
}

static void test_it_outlives_the_process(void **state)
{
	const char *path = temp_path("calls");
	struct odm_call_memory *m = open_memory(path);

	(void)state;
	odm_call_memory_put(m, "x", "{ }");
	odm_call_memory_put(m, "y", "{\"a\":  \"\\u00e9\"}");
	odm_call_memory_put(m, "x", "{   }");
	odm_call_memory_free(m);
	for (int i = 0; i < 2; i++) {
		m = open_memory(path);
		assert_got(m, "x", "{}", "{   }");
		assert_got(m, "y", "{\"a\": \"\u00e9\"}", "{\"a\":  \"\\u00e9\"}");
		odm_call_memory_leave_file(m);
		odm_call_memory_put(m, "z", "{ }"); /* not in the file any more */
		odm_call_memory_free(m);
	}
	m = open_memory(path);
	assert_got(m, "z", "{}", NULL);
	odm_call_memory_free(m);
}

static void test_the_file_is_bounded(void **state)
{
	const char *path = temp_path("bounded");
	struct odm_call_memory *m = NULL;
	size_t largest = 0, size;
	char big[3900];

	(void)state;
	memset(big, ' ', sizeof(big));
	big[0] = '{';
	big[sizeof(big) - 2] = '}';
	big[sizeof(big) - 1] = '\0';
	for (int i = 0; i < 5000; i++) {
		char id[16];

		if (i % 200 == 0) { /* so many calls may wait, if nothing is written meanwhile */
			odm_call_memory_free(m);
			m = open_memory(path);
		}
		snprintf(id, sizeof(id), "id %04d", i);
		odm_call_memory_put(m, id, "{ }");
		if (i % 200 != 199)
			continue;
		if (i < 4000)
			odm_call_memory_put(m, "big", big);
		odm_call_memory_leave_file(m);
		size = size_of(path);
		largest = size > largest ? size : largest;
		assert_in_range(size, 1, 4 * MAX_BYTES);
	}
	assert_true(largest > MAX_BYTES);
	odm_call_memory_free(m);
	m = open_memory(path);
	assert_in_range(size_of(path), MAX_BYTES, 2 * MAX_BYTES);
	for (int i = 4800; i < 5000; i++) {
		char id[16];

		snprintf(id, sizeof(id), "id %04d", i);
		assert_got(m, id, "{}", "{ }");
	}
	assert_got(m, "id 0000", "{}", NULL);
	odm_call_memory_free(m);
}

#define N_CALLS 12u

static void name_call(char id[16], char arguments[32], unsigned i)
{
	snprintf(id, 16, "call %u", i);
	snprintf(arguments, 32, "{\"n\":  %u}", i * i);
}

/* Number of calls that are there. Others are nothing, never something else. */
static unsigned count_calls(struct odm_call_memory *m)
{
	unsigned n = 0;

	for (unsigned i = 0; i < N_CALLS; i++) {
		char id[16], arguments[32], *got;
		json_t *v;

		name_call(id, arguments, i);
		v = json_loads(arguments, 0, NULL);
		got = odm_call_memory_get(m, id, v);
		if (got != NULL)
			assert_string_equal(got, arguments);
		n += got != NULL;
		free(got);
		json_decref(v);
	}
	return n;
}

static void write_bytes(const char *path, const char *bytes, size_t n)
{
	FILE *f = fopen(path, "wb");

	assert_non_null(f);
	assert_int_equal(fwrite(bytes, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

/* A flipped bit costs one call; a file that was cut off costs those behind, and foreign bytes cost none. */
static void test_damage(void **state)
{
	const char *path = temp_path("damaged");
	struct odm_call_memory *m = open_memory(path);
	uint64_t seed = 7;
	struct od_err err;
	char *good, *bad;
	size_t len;

	(void)state;
	for (unsigned i = 0; i < N_CALLS; i++) {
		char id[16], arguments[32];

		name_call(id, arguments, i);
		odm_call_memory_put(m, id, arguments);
	}
	odm_call_memory_free(m);
	assert_int_equal(od_file_read(path, 100000, &good, &len, &err), OD_OK);
	bad = malloc(len + 100);
	assert_non_null(bad);
	for (unsigned round = 0; round < 300; round++) {
		const size_t at = random_below(&seed, len);
		unsigned n, least = N_CALLS - 1;

		memcpy(bad, good, len);
		if (round % 3 == 0) {
			bad[at] ^= (char)(1 << random_below(&seed, 8));
			write_bytes(path, bad, len);
		} else if (round % 3 == 1) {
			write_bytes(path, bad, at);
			least = (unsigned)(at * N_CALLS / len) > 0 ? (unsigned)(at * N_CALLS / len) - 1 : 0;
		} else {
			memmove(bad + at + 99, bad + at, len - at);
			for (size_t i = 0; i < 99; i++)
				bad[at + i] = good[random_below(&seed, len)];
			write_bytes(path, bad, len + 99);
		}
		m = open_memory(path);
		n = count_calls(m);
		assert_in_range(n, least, N_CALLS);
		odm_call_memory_free(m);
		m = open_memory(path); /* it was written anew */
		assert_int_equal(count_calls(m), n);
		odm_call_memory_free(m);
	}
	free(bad);
	free(good);
}

/* Each is refused, or begun anew; nothing hangs. */
static void test_what_is_no_file(void **state)
{
	const char *path = temp_path("other"), *target = temp_path("target");
	struct odm_call_memory *m = odm_call_memory_new(10, MAX_BYTES);
	char *big = calloc(1, 9 * MAX_BYTES);
	struct od_err err;

	(void)state;
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_not_equal(odm_call_memory_use_file(m, path, &err), OD_OK);
	assert_int_equal(rmdir(path), 0);
	write_bytes(target, "mine", 4);
	assert_int_equal(symlink(target, path), 0);
	(void)!odm_call_memory_use_file(m, path, &err);
	odm_call_memory_put(m, "x", "{ }");
	odm_call_memory_leave_file(m);
	assert_int_equal(od_file_read(target, 4, &(char *){ NULL }, &(size_t){ 0 }, &err), OD_OK); /* as before */
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0);
	(void)!odm_call_memory_use_file(m, path, &err);
	odm_call_memory_leave_file(m);
	unlink(path);
	assert_non_null(big);
	write_bytes(path, big, 9 * MAX_BYTES);
	odm_call_memory_free(m);
	m = open_memory(path);
	odm_call_memory_put(m, "x", "{ }");
	odm_call_memory_free(m);
	m = open_memory(path);
	assert_got(m, "x", "{}", "{ }");
	odm_call_memory_free(m);
	free(big);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_nothing_hidden_comes_back),
		cmocka_unit_test(test_the_newest_of_an_id),
		cmocka_unit_test(test_the_oldest_go_first),
		cmocka_unit_test(test_it_outlives_the_process),
		cmocka_unit_test(test_the_file_is_bounded),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_what_is_no_file),
	};

	return cmocka_run_group_tests_name("call memory", tests, temp_dir_make, temp_dir_remove);
}
