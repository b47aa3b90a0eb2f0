/* Reads of JSON that somebody else wrote: what each getter takes and refuses, and with which words. */
#include "common/base/json.h"

#include "common/base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/temp_dir.h"

static json_t *root; /* used by the getters' tests */

static const char text[] =
	"{\"zero\": 0, \"seven\": 7, \"minus\": -1, \"big\": 4294967296, \"top\": 9223372036854775807, \"real\": 3.0,"
	" \"exp\": 1e3, \"tiny\": -2.5e-3, \"str\": \"text\", \"nul\": \"a\\u0000b\", \"empty\": \"\", \"yes\": true, \"no\": false,"
	" \"null\": null, \"obj\": {\"in\": 1}, \"arr\": [1, 2]}";

static int make(void **state)
{
	struct od_err err;

	if (temp_dir_make(state) != 0)
		return -1;
	return od_json_parse(text, strlen(text), "f", &root, &err);
}

static int drop(void **state)
{
	json_decref(root);
	return temp_dir_remove(state);
}

/* The expected values are those of Python's float(). */
static void big_integers(void **state)
{
	static const struct {
		const char *number;
		double value;
	} t[] = {
		{ "9223372036854775808", 0x1p63 },
		{ "-9223372036854775809", -0x1p63 },
		{ "18446744073709551615", 0x1p64 },
		{ "1000000000000000019884624838656", 1e30 }, /* as published */
		{ "1797693134862315", 1797693134862315.0 },
	};
	char file[160];
	uint64_t u;
	double d;

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		const bool small = strlen(t[i].number) < 19;
		struct od_err err = { 0 };
		json_t *o;

		snprintf(file, sizeof(file), "{\"s\": \"%s\", \"a\" : [1, %s], \"n\":%s}", t[i].number, t[i].number,
			 t[i].number);
		assert_int_equal(od_json_parse(file, strlen(file), "f", &o, &err), OD_OK);
		assert_string_equal(json_string_value(json_object_get(o, "s")), t[i].number);
		assert_true(json_is_integer(json_array_get(json_object_get(o, "a"), 0)));
		assert_true(json_number_value(json_array_get(json_object_get(o, "a"), 1)) == t[i].value);
		assert_int_equal(od_json_f64(o, "n", -1e31, 1e31, &d, "f", &err), OD_OK);
		assert_true(d == t[i].value);
		assert_int_equal(od_json_u64(o, "n", 0, UINT64_MAX, &u, "f", &err), small ? OD_OK : OD_ERR_FORMAT);
		assert_true(small || strstr(err.msg, "expected an integer, found a number beyond 63 bits") != NULL);
		json_decref(o);
	}
}

/* jansson reads 1024 bytes at a time: a number may stand at each place around that, and be longer. */
static void big_integers_keep_their_digits(void **state)
{
	static const size_t length[] = { 19, 20, 21, 308, 309, 310, 3000 };
	char *file = malloc(16000), digits[3001];
	json_error_t why;

	(void)state;
	memset(digits, '9', sizeof(digits));
	for (size_t i = 0; i < 7 * 60; i++) {
		const size_t len = length[i % 7], room = 990 + i / 7;
		json_t *o, *copy, *a;

		digits[len] = '\0';
		snprintf(file, 16000, "[1.5, %*s-%s,%s , 1e20, {\"k\": %s, \"j\": \"%s\"}, 2e22, 7]", (int)room, "",
			 digits, digits, digits, digits);
		digits[len] = '9';
		o = od_json_decode(file, strlen(file), 0, &why);
		assert_non_null(o);
		copy = od_json_copy(o);
		assert_true(json_equal(o, copy) && json_object_get(json_array_get(copy, 4), "k") != NULL);
		a = i % 2 == 0 ? o : copy;
		for (size_t k = 1; k < 3; k++) {
			const char *found = od_json_digits(json_array_get(a, k));

			assert_true(found != NULL && strlen(found) == len + (k == 1) &&
				    memcmp(found + (k == 1), digits, len) == 0);
			assert_true((json_real_value(json_array_get(a, k)) < 0) == (k == 1));
		}
		assert_int_equal(strlen(od_json_digits(json_object_get(json_array_get(a, 4), "k"))), len);
		for (size_t k = 0; k < 7; k += k == 0 ? 3 : k == 3 ? 2 : 1)
			assert_null(od_json_digits(json_array_get(a, k)));
		json_decref(o);
		json_decref(copy);
	}
	free(file);
}

static json_t *decode(const char *any)
{
	json_error_t why;

	return od_json_decode(any, strlen(any), JSON_DECODE_ANY, &why);
}

static void digits_are_of_the_number(void **state)
{
	json_t *v = decode("-18446744073709551615");

	(void)state;
	assert_string_equal(od_json_digits(v), "-18446744073709551615");
	json_decref(v);
	v = decode("{\"a\": 18446744073709551615, \"b\": 3.5, \"a\": 18446744073709551616}");
	assert_string_equal(od_json_digits(json_object_get(v, "a")), "18446744073709551616"); /* the last counts */
	assert_null(od_json_digits(json_object_get(v, "b")));
	json_decref(v);
	assert_null(od_json_digits(NULL));
	assert_null(decode("[18446744073709551615, 1e999]"));
	assert_null(decode("[18446744073709551615\"]"));
	v = json_real(2.5);
	assert_null(od_json_digits(v));
	json_decref(v);
}

static void whole_texts(void **state)
{
	static const struct {
		const char *text, *reason; /* NULL: good */
	} t[] = {
		{ "{}", NULL },
		{ " {\"a\": {\"a\": 1}} \n", NULL },
		{ "{\"a\": 9223372036854775807}", NULL },
		{ "{\"a\": -9223372036854775808}", NULL },
		{ "{\"a\": \"\\u0000\"}", NULL },
		{ "", "f: not valid JSON: it is empty" },
		{ "[]", "f: expected a JSON object" },
		{ "3", "f: " },
		{ "{\"a\": 1, \"a\": 1}", "duplicate object key" },
		{ "{\"a\": {\"b\": 1, \"c\": 2, \"b\": 3}}", "duplicate object key" },
		{ "{\"a\": 1, \"\\u0061\": 2}", "duplicate object key" }, /* one key in two spellings */
		{ "{\"a\": 1e999}", "real number overflow" },
		{ "{\"a\": NaN}", "f: not valid JSON: line 1" },
		{ "{\"a\": Infinity}", "f: not valid JSON: line 1" },
		{ "{\"a\": 0x10}", "f: not valid JSON: line 1" },
		{ "{\"a\": 01}", "f: not valid JSON: line 1" },
		{ "{\"a\": .5}", "f: not valid JSON: line 1" },
		{ "{\"a\": 1,}", "f: not valid JSON: line 1" },
		{ "{\n\"a\": 1\n", "f: not valid JSON: line 3" },
		{ "{} x", "f: not valid JSON: line 1, column 4" },
		{ "{\"\\u0000\": 1}", "NUL byte in object key" },
		{ "{\"a\": \"\xff\"}", "f: not valid JSON: line 1" },
		{ "{\"a\": \"\\ud800\"}", "f: not valid JSON: line 1" },
		{ "\xef\xbb\xbf{}", "f: not valid JSON: it begins with a byte order mark" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct od_err err = { 0 };
		json_t *o = root;
		int rc = od_json_parse(t[i].text, strlen(t[i].text), "f", &o, &err);

		if (t[i].reason == NULL) {
			assert_int_equal(rc, OD_OK);
			assert_non_null(o);
			json_decref(o);
			continue;
		}
		if (rc != OD_ERR_FORMAT || strstr(err.msg, t[i].reason) == NULL)
			fail_msg("%s: %d \"%s\", expected \"%s\"", t[i].text, rc, err.msg, t[i].reason);
		assert_null(o);
	}
}

static void a_nul_and_a_cut(void **state)
{
	struct od_err err;
	json_t *o;

	(void)state;
	assert_int_equal(od_json_parse("{}\0", 3, "f", &o, &err), OD_ERR_FORMAT);
	for (size_t len = 0; len + 1 < sizeof(text); len++) { /* every cut of a good text is bad */
		assert_int_equal(od_json_parse(text, len, "f", &o, &err), OD_ERR_FORMAT);
		assert_null(o);
	}
}

/* Deeper than the parser's stack should go. */
static void depth_is_bounded(void **state)
{
	enum { DEPTH = 200000 };
	static char deep[6 + DEPTH];
	struct od_err err;
	json_t *o;

	(void)state;
	memcpy(deep, "{\"a\": ", 6);
	memset(deep + 6, '[', DEPTH);
	assert_int_equal(od_json_parse(deep, sizeof(deep), "f", &o, &err), OD_ERR_FORMAT);
	assert_non_null(strstr(err.msg, "depth"));
}

/* ---- no memory ---- */

/* Sanitizers end a program that asks for so much, unless they are told to fail. */
#define SANITIZER_OPTIONS(function) \
	__attribute__((visibility("default"))) const char *function(void); \
	const char *function(void) \
	{ \
		return "allocator_may_return_null=1"; \
	}
SANITIZER_OPTIONS(__asan_default_options)
SANITIZER_OPTIONS(__tsan_default_options)

static int allocations, denied; /* jansson's count; the one that gets no memory */
static json_malloc_t malloc_before;

static void *grudging(size_t size)
{
	return malloc_before(allocations++ == denied ? (size_t)1 << 62 : size);
}

/* Each allocation in turn: the whole text is read, or it is memory that is missing, never the text that is wrong. */
static void no_memory(void **state)
{
	static const char *const texts[] = {
		text,
		"{\"big\": [18446744073709551616, 1], \"deep\": {\"a\": [{\"b\": null}]}}",
		"{\"k\": \"\\u00e9 a longer string than the first buffer\"}",
	};
	json_free_t free_before;
	struct od_err err;
	json_t *o;

	(void)state;
	json_get_alloc_funcs(&malloc_before, &free_before);
	json_set_alloc_funcs(grudging, free);
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		int rc = OD_ERR_NOMEM, failures = 0;

		for (denied = 0; rc != OD_OK; denied++) {
			allocations = 0;
			rc = od_json_parse(texts[i], strlen(texts[i]), "f", &o, &err);
			if (rc != OD_OK && (rc != OD_ERR_NOMEM || strstr(err.msg, "f: no memory") == NULL || o != NULL))
				fail_msg("text %zu, allocation %d: %s", i, denied, err.msg);
			failures += rc != OD_OK;
		}
		json_decref(o);
		assert_true(failures > 2);
	}
	json_set_alloc_funcs(malloc_before, free_before);
}

static void load(const char *content, size_t len, json_t **o, int want, const char *reason)
{
	struct od_err err = { 0 };

	assert_int_equal(od_file_write_atomic(temp_path("p.json"), content, len, &err), OD_OK);
	assert_int_equal(od_json_load(temp_path("p.json"), 4096, o, &err), want);
	if (strstr(err.msg, reason) == NULL)
		fail_msg("%s", err.msg);
}

/* Python's json.dumps(float("inf")) and so on. A file of numbers may have them where nothing reads them; a field of
 * ours may not. */
static void words_of_python(void **state)
{
	static const char words[] =
		"{\"limit\": [0.0, Infinity], \"low\":-Infinity,\n\"not\" :NaN, \"s\": \"Infinity, \\\"NaN\\\"\", \"n\": 5,"
		"\"big\": -9223372036854775809}";
	static const struct {
		const char *key, *found;
	} t[] = { { "low", "found -Infinity" }, { "not", "found NaN" } };
	struct od_err err;
	json_t *o;
	double d;

	(void)state;
	load(words, strlen(words), &o, OD_OK, "");
	assert_string_equal(json_string_value(json_object_get(o, "s")), "Infinity, \"NaN\"");
	assert_int_equal(json_integer_value(json_object_get(o, "n")), 5);
	assert_true(json_real_value(json_object_get(o, "big")) == -0x1p63);
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		assert_int_equal(od_json_f64(o, t[i].key, -1e308, 1e308, &d, "f", &err), OD_ERR_FORMAT);
		assert_non_null(strstr(err.msg, t[i].key));
		assert_non_null(strstr(err.msg, t[i].found));
	}
	assert_int_equal(od_json_f64_or(o, "low", -1e308, 1e308, 1, &d, "f", &err), OD_ERR_FORMAT);
	json_decref(o);
	load("{\"a\": Infinit}", 14, &o, OD_ERR_FORMAT, "not valid JSON: line 1");
	load("{\"a\": Infinity", 14, &o, OD_ERR_FORMAT, "not valid JSON: line 1");
	load("{\"a\": nan}", 10, &o, OD_ERR_FORMAT, "not valid JSON: line 1");
	load("{Infinity: 1}", 13, &o, OD_OK, ""); /* no harm: no such field */
	json_decref(o);
	assert_int_equal(od_json_parse("{\"a\": NaN}", 10, "f", &o, &err), OD_ERR_FORMAT); /* elsewhere JSON is JSON */
}

static void not_json_at_all(void **state)
{
	static const struct {
		const char *text;
		size_t len;
		const char *reason;
	} t[] = {
		{ "", 0, "f: not valid JSON: it is empty" },
		{ "\xef\xbb\xbf{}", 5,
		  "f: not valid JSON: it begins with a byte order mark; save it as UTF-8 without one" },
		{ "\xff\xfe{\0}\0", 6, "f: not valid JSON: it is UTF-16; save it as UTF-8" },
		{ "\xfe\xff\0{\0}", 6, "f: not valid JSON: it is UTF-16; save it as UTF-8" },
	};
	struct od_err err;
	json_t *o;

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		assert_int_equal(od_json_parse(t[i].text, t[i].len, "f", &o, &err), OD_ERR_FORMAT);
		assert_string_equal(err.msg, t[i].reason);
	}
	/* A file may have been saved by an editor that writes one. */
	load("\xef\xbb\xbf{}", 5, &o, OD_OK, "");
	json_decref(o);
	load("", 0, &o, OD_ERR_FORMAT, "p.json: not valid JSON: it is empty");
	load("\xef\xbb\xbf", 3, &o, OD_ERR_FORMAT, "p.json: not valid JSON: it is empty");
	load("\xff\xfe{\0}\0", 6, &o, OD_ERR_FORMAT, "UTF-16");
}

static void files(void **state)
{
	struct od_err err;
	json_t *o = root;

	(void)state;
	assert_int_equal(od_file_write_atomic(temp_path("a.json"), "{\"k\": 5}", 8, &err), OD_OK);
	assert_int_equal(od_json_load(temp_path("a.json"), 8, &o, &err), OD_OK);
	assert_int_equal(json_integer_value(json_object_get(o, "k")), 5);
	json_decref(o);
	assert_int_equal(od_json_load(temp_path("a.json"), 7, &o, &err), OD_ERR_FORMAT);
	assert_null(o);
	assert_int_equal(od_json_load(temp_path("absent.json"), 7, &o, &err), OD_ERR_MISSING);
	assert_null(o);
	assert_int_equal(od_file_write_atomic(temp_path("b.json"), "{\"k\": 5", 7, &err), OD_OK);
	assert_int_equal(od_json_load(temp_path("b.json"), 99, &o, &err), OD_ERR_FORMAT);
	assert_non_null(strstr(err.msg, "/b.json: not valid JSON"));
}

static void refused(int rc, int want, const struct od_err *err, const char *reason)
{
	assert_int_equal(rc, want);
	assert_string_equal(err->msg, reason);
}

static void integers(void **state)
{
	struct od_err err;
	uint64_t v = 99;
	uint32_t w = 99;

	(void)state;
	assert_int_equal(od_json_u64(root, "zero", 0, 0, &v, "f", &err), OD_OK);
	assert_int_equal(v, 0);
	assert_int_equal(od_json_u64(root, "top", 0, UINT64_MAX, &v, "f", &err), OD_OK);
	assert_true(v == INT64_MAX);
	assert_int_equal(od_json_u64(root, "seven", 7, 7, &v, "f", &err), OD_OK);
	assert_int_equal(v, 7);
	refused(od_json_u64(root, "seven", 8, 9, &v, "f", &err), OD_ERR_RANGE, &err,
		"f: field \"seven\": expected 8 to 9, found 7");
	assert_int_equal(v, 0);
	refused(od_json_u64(root, "seven", 0, 6, &v, "f", &err), OD_ERR_RANGE, &err,
		"f: field \"seven\": expected 0 to 6, found 7");
	refused(od_json_u64(root, "minus", 0, UINT64_MAX, &v, "f", &err), OD_ERR_RANGE, &err,
		"f: field \"minus\": expected 0 to 18446744073709551615, found -1");
	refused(od_json_u64(root, "real", 0, 9, &v, "f", &err), OD_ERR_FORMAT, &err,
		"f: field \"real\": expected an integer, found a real number");
	refused(od_json_u64(root, "exp", 0, 9999, &v, "f", &err), OD_ERR_FORMAT, &err,
		"f: field \"exp\": expected an integer, found a real number");
	refused(od_json_u64(root, "str", 0, 9, &v, "f", &err), OD_ERR_FORMAT, &err,
		"f: field \"str\": expected an integer, found a string");
	refused(od_json_u64(root, "yes", 0, 9, &v, "f", &err), OD_ERR_FORMAT, &err,
		"f: field \"yes\": expected an integer, found a boolean");
	refused(od_json_u64(root, "null", 0, 9, &v, "f", &err), OD_ERR_FORMAT, &err,
		"f: field \"null\": expected an integer, found null");
	refused(od_json_u64(root, "absent", 0, 9, &v, "f", &err), OD_ERR_MISSING, &err,
		"f: field \"absent\": expected an integer, found nothing");
	refused(od_json_u64(json_object_get(root, "arr"), "k", 0, 9, &v, "f", &err), OD_ERR_MISSING, &err,
		"f: field \"k\": expected an integer, found nothing"); /* no object at all */

	assert_int_equal(od_json_u32(root, "seven", 0, UINT32_MAX, &w, "f", &err), OD_OK);
	assert_int_equal(w, 7);
	assert_int_equal(od_json_u32(root, "big", 0, UINT32_MAX, &w, "f", &err), OD_ERR_RANGE); /* 0 if it were cut */
	assert_int_equal(w, 0);
}

static void reals(void **state)
{
	struct od_err err;
	double d = 9;

	(void)state;
	assert_int_equal(od_json_f64(root, "tiny", -1, 1, &d, "f", &err), OD_OK);
	assert_true(d == -2.5e-3);
	assert_int_equal(od_json_f64(root, "seven", 7, 7, &d, "f", &err), OD_OK); /* an integer is a number */
	assert_true(d == 7);
	refused(od_json_f64(root, "seven", 0, 1.5, &d, "f", &err), OD_ERR_RANGE, &err,
		"f: field \"seven\": expected 0 to 1.5, found 7");
	assert_true(d == 0);
	refused(od_json_f64(root, "str", 0, 1, &d, "f", &err), OD_ERR_FORMAT, &err,
		"f: field \"str\": expected a number, found a string");
	refused(od_json_f64(root, "absent", 0, 1, &d, "f", &err), OD_ERR_MISSING, &err,
		"f: field \"absent\": expected a number, found nothing");
}

static void strings_and_containers(void **state)
{
	struct od_err err;
	const char *s = text;
	json_t *v = root;

	(void)state;
	assert_int_equal(od_json_str(root, "str", &s, "f", &err), OD_OK);
	assert_string_equal(s, "text");
	assert_int_equal(od_json_str(root, "empty", &s, "f", &err), OD_OK);
	assert_string_equal(s, "");
	assert_int_equal(od_json_str(root, "nul", &s, "f", &err), OD_OK);
	assert_memory_equal(s, "a\0b", 4);
	refused(od_json_str(root, "seven", &s, "f", &err), OD_ERR_FORMAT, &err,
		"f: field \"seven\": expected a string, found an integer");
	assert_null(s);
	refused(od_json_str(root, "absent", &s, "f", &err), OD_ERR_MISSING, &err,
		"f: field \"absent\": expected a string, found nothing");

	assert_int_equal(od_json_obj(root, "obj", &v, "f", &err), OD_OK);
	assert_ptr_equal(v, json_object_get(root, "obj"));
	refused(od_json_obj(root, "arr", &v, "f", &err), OD_ERR_FORMAT, &err,
		"f: field \"arr\": expected an object, found an array");
	assert_null(v);
	assert_int_equal(od_json_arr(root, "arr", &v, "f", &err), OD_OK);
	assert_ptr_equal(v, json_object_get(root, "arr"));
	refused(od_json_arr(root, "obj", &v, "f", &err), OD_ERR_FORMAT, &err,
		"f: field \"obj\": expected an array, found an object");
	assert_null(v);
	assert_int_equal(od_json_arr(root, "absent", &v, "f", &err), OD_ERR_MISSING);
	assert_null(v);
}

static void fields_that_may_be_missing(void **state)
{
	static const char *const missing[] = { "absent", "null" };
	struct od_err err;
	uint32_t w;
	double d;
	bool b;

	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_false(od_json_has(root, missing[i]));
		assert_int_equal(od_json_bool_or(root, missing[i], i, &b, "f", &err), OD_OK);
		assert_int_equal(b, i);
		/* The fallback is the caller's: it need not be in range. */
		assert_int_equal(od_json_u32_or(root, missing[i], 1, 9, 77, &w, "f", &err), OD_OK);
		assert_int_equal(w, 77);
		assert_int_equal(od_json_f64_or(root, missing[i], 0, 1, -3.5, &d, "f", &err), OD_OK);
		assert_true(d == -3.5);
	}
	assert_true(od_json_has(root, "zero"));
	assert_true(od_json_has(root, "no"));
	assert_int_equal(od_json_bool_or(root, "yes", false, &b, "f", &err), OD_OK);
	assert_true(b);
	assert_int_equal(od_json_bool_or(root, "no", true, &b, "f", &err), OD_OK);
	assert_false(b);
	assert_int_equal(od_json_u32_or(root, "seven", 1, 9, 77, &w, "f", &err), OD_OK);
	assert_int_equal(w, 7);
	assert_int_equal(od_json_f64_or(root, "tiny", -1, 1, 77, &d, "f", &err), OD_OK);
	assert_true(d == -2.5e-3);
	refused(od_json_bool_or(root, "zero", true, &b, "f", &err), OD_ERR_FORMAT, &err,
		"f: field \"zero\": expected true or false, found an integer");
	assert_int_equal(od_json_u32_or(root, "seven", 8, 9, 77, &w, "f", &err), OD_ERR_RANGE);
	assert_int_equal(od_json_u32_or(root, "str", 8, 9, 77, &w, "f", &err), OD_ERR_FORMAT);
	assert_int_equal(od_json_f64_or(root, "str", 8, 9, 77, &d, "f", &err), OD_ERR_FORMAT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(whole_texts),
		cmocka_unit_test(big_integers_keep_their_digits),
		cmocka_unit_test(digits_are_of_the_number),
		cmocka_unit_test(big_integers),
		cmocka_unit_test(a_nul_and_a_cut),
		cmocka_unit_test(depth_is_bounded),
		cmocka_unit_test(files),
		cmocka_unit_test(no_memory),
		cmocka_unit_test(words_of_python),
		cmocka_unit_test(not_json_at_all),
		cmocka_unit_test(integers),
		cmocka_unit_test(reals),
		cmocka_unit_test(strings_and_containers),
		cmocka_unit_test(fields_that_may_be_missing),
	};

	return cmocka_run_group_tests(tests, make, drop);
}
