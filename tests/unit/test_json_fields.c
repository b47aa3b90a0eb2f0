/* The reader of request fields: every kind, its bounds, and messages that name the field, what was expected and what
 * was found. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/strbuf.h"
#include "main-node/serve/http/json_fields.h"
#include "common/text/utf8_text.h"

struct json_fields_target {
	bool flag, inner;
	int64_t number;
	double real;
	const char *name;
	struct odm_strings stop;
	const json_t *any;
};

#define AT(field) offsetof(struct json_fields_target, field)

static const struct odm_field inner[] = { { "inner", ODM_FIELD_BOOL, AT(inner), 0, 0, NULL }, { 0 } };

static const struct odm_field table[] = {
	{ "flag", ODM_FIELD_BOOL, AT(flag), 0, 0, NULL },    { "number", ODM_FIELD_INT, AT(number), -3, 9, NULL },
	{ "real", ODM_FIELD_REAL, AT(real), 0.5, 2, NULL },  { "name", ODM_FIELD_STRING, AT(name), 0, 0, NULL },
	{ "stop", ODM_FIELD_STRINGS, AT(stop), 0, 3, NULL }, { "any", ODM_FIELD_JSON, AT(any), 0, 0, NULL },
	{ "options", ODM_FIELD_OBJECT, 0, 0, 0, inner },     { 0 },
};

static int read_text(const char *text, struct json_fields_target *t, json_t **o, struct odm_api_error *e)
{
	int rc = odm_fields_parse(text, strlen(text), o, e);

	return rc == OD_OK ? odm_fields_read(table, *o, t, e) : rc;
}

static void values_arrive(void **state)
{
	struct json_fields_target t = { .number = 7, .name = "unset" };
	struct odm_api_error e;
	json_t *o;

	(void)state;
	assert_int_equal(
		read_text(
			"{\"flag\": true, \"number\": -3, \"real\": 2, \"name\": \"x\", \"stop\": [\"a\", \"b\", \"c\"], "
			"\"any\": [1], \"options\": {\"inner\": true, \"other\": 1}, \"unknown\": 5}",
			&t, &o, &e),
		OD_OK);
	assert_true(t.flag && t.inner);
	assert_int_equal(t.number, -3);
	assert_float_equal(t.real, 2, 0);
	assert_string_equal(t.name, "x");
	assert_int_equal(t.stop.n, 3);
	assert_string_equal(t.stop.value[2], "c");
	assert_int_equal(json_array_size(t.any), 1);
	json_decref(o);

	t = (struct json_fields_target){ .number = 7, .real = 1.5, .name = "unset" };
	assert_int_equal(read_text("{\"number\": null, \"name\": null, \"stop\": \"one\", \"real\": 0.5}", &t, &o, &e),
			 OD_OK);
	assert_int_equal(t.number, 7);
	assert_string_equal(t.name, "unset");
	assert_int_equal(t.stop.n, 1);
	assert_string_equal(t.stop.value[0], "one");
	json_decref(o);
	assert_int_equal(read_text("{\"number\": 9.0, \"stop\": []}", &t, &o, &e), OD_OK);
	assert_int_equal(t.number, 9);
	assert_int_equal(t.stop.n, 0);
	json_decref(o);
}

static void errors_name_the_field(void **state)
{
	static const struct {
		const char *text, *param, *said;
	} bad[] = {
		{ "{\"flag\": 1}", "flag", "flag: expected true or false, found 1" },
		{ "{\"flag\": \"true\"}", "flag", "found a string" },
		{ "{\"number\": 10}", "number", "number: expected an integer from -3 to 9, found 10" },
		{ "{\"number\": -4}", "number", "found -4" },
		{ "{\"number\": 1.5}", "number", "found 1.5" },
		{ "{\"number\": true}", "number", "found true" },
		{ "{\"number\": []}", "number", "found an empty array" },
		{ "{\"real\": 0.4}", "real", "real: expected a number from 0.5 to 2, found 0.4" },
		{ "{\"real\": \"1\"}", "real", "found a string" },
		{ "{\"name\": {}}", "name", "name: expected a string, found an empty object" },
		{ "{\"name\": \"a\\u0000b\"}", "name", "U+0000" },
		{ "{\"stop\": 3}", "stop", "stop: expected a string or an array of strings, found 3" },
		{ "{\"stop\": \"\"}", "stop", "not empty" },
		{ "{\"stop\": [\"a\", \"\"]}", "stop[1]", "stop[1]: expected a string that is not empty" },
		{ "{\"stop\": [\"a\", null]}", "stop[1]", "stop[1]: expected a string, found null" },
		{ "{\"stop\": [\"a\", \"b\", \"c\", \"d\"]}", "stop", "at most 3 strings, found 4" },
		{ "{\"options\": 1}", "options", "options: expected an object, found 1" },
		{ "{\"options\": {\"inner\": 1}}", "options.inner", "options.inner: expected true or false" },
		{ "[]", "", "expected a JSON object, found an empty array" },
		{ "{\"a\": 1,}", "", "line 1" },
		{ "{\"a\": 1, \"a\": 1}", "", "not valid JSON" },
		{ "", "", "not valid JSON" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct odm_api_error e = { 0 };
		struct json_fields_target t = { 0 };
		json_t *o;

		assert_int_not_equal(read_text(bad[i].text, &t, &o, &e), OD_OK);
		assert_int_equal(e.status, 400);
		assert_string_equal(e.param, bad[i].param);
		if (strstr(e.message, bad[i].said) == NULL)
			fail_msg("%s: expected \"%s\" in \"%s\"", bad[i].text, bad[i].said, e.message);
		json_decref(o);
	}
}

/* Calls that models write may have them; they come back in requests. */
static void big_integers_become_reals(void **state)
{
	static const char given[] =
		"{\"a\": 123456789012345678901, \"b\":[-9223372036854775809,9223372036854775808 , 9223372036854775807, "
		"-9223372036854775808], \"c\": \"1234567890123456789012 \\\" 1234567890123456789012\", \"d\": "
		"12345678901234567890e2, \"e\": 1e-3, \"f\": 7}";
	json_t *o, *expected = json_pack("{s:f, s:[f, f, I, I], s:s, s:f, s:f, s:i}", "a", 123456789012345678901.0, "b",
					 -9223372036854775809.0, 9223372036854775808.0, (json_int_t)INT64_MAX,
					 (json_int_t)INT64_MIN, "c", "1234567890123456789012 \" 1234567890123456789012",
					 "d", 12345678901234567890e2, "e", 1e-3, "f", 7);
	struct odm_api_error e;

	(void)state;
	assert_int_equal(odm_fields_parse(given, strlen(given), &o, &e), OD_OK);
	if (!json_equal(o, expected))
		fail_msg("%s", json_dumps(o, 0));
	json_decref(o);
	assert_int_equal(odm_fields_parse("{\"a\": 1e999}", 12, &o, &e), OD_ERR_FORMAT);
	assert_int_equal(odm_fields_parse("{\"a\": 99999999999999999999", 26, &o, &e), OD_ERR_FORMAT);
	json_decref(expected);
}

static void depth_is_limited(void **state)
{
	struct odm_api_error e;
	char *text = malloc(200001);
	json_t *o;

	(void)state;
	memset(text, '[', 200000);
	text[200000] = '\0';
	assert_int_equal(odm_fields_parse(text, 200000, &o, &e), OD_ERR_FORMAT);
	assert_null(o);
	free(text);
}

static void assert_text(const char *bytes, size_t len, const char *expected)
{
	json_t *s = odm_json_text(bytes, len);

	assert_non_null(s);
	assert_int_equal(json_string_length(s), strlen(expected));
	assert_string_equal(json_string_value(s), expected);
	assert_int_equal(odm_utf8_valid(bytes, len), strlen(expected) == len && memcmp(bytes, expected, len) == 0);
	json_decref(s);
}

/* Each wrong byte becomes U+FFFD, as RFC 3629 has right and wrong. */
static void wrong_bytes_become_replacements(void **state)
{
	(void)state;
	assert_text("", 0, "");
	assert_text("aü\xf0\x9f\x90\xa6", 7, "aü\xf0\x9f\x90\xa6");
	assert_text("a\xff"
		    "b",
		    3,
		    "a\xef\xbf\xbd"
		    "b");
	assert_text("\xc3", 1, "\xef\xbf\xbd");
	assert_text("\xc0\x80", 2, "\xef\xbf\xbd\xef\xbf\xbd"); /* overlong */
	assert_text("\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"); /* a surrogate */
	/* above U+10FFFF */
	assert_text("\xf4\x90\x80\x80"
		    "x",
		    5,
		    "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
		    "x");
	assert_int_equal(odm_utf8_count("aü\xf0\x9f\x90\xa6\xff", 8), 4);
	assert_int_equal(odm_utf8_char("ü", 2), 2);
	assert_int_equal(odm_utf8_char("ü", 1), 0);
}

/* {"a": [unit, unit, ...]}; returns the status, 0: it was parsed. */
static int parse_many(const char *unit, size_t n)
{
	struct od_strbuf body = { 0 };
	struct odm_api_error e = { 0 };
	json_t *o;
	int rc;

	od_strbuf_append(&body, "{\"a\":[0", 7);
	for (size_t i = 0; i < n; i++)
		od_strbuf_append(&body, unit, strlen(unit));
	od_strbuf_append(&body, "]}", 2);
	rc = odm_fields_parse(body.text, body.len, &o, &e);
	assert_int_equal(rc == OD_OK, o != NULL);
	od_strbuf_fini(&body);
	json_decref(o);
	return e.status;
}

static void values_are_limited(void **state)
{
	const size_t most = 1u << 21;

	(void)state;
	assert_int_equal(parse_many(",1", most - 2), 0); /* the two brackets count */
	assert_int_equal(parse_many(",1", most - 1), 413);
	assert_int_equal(parse_many(",{}", most / 2), 413);
	assert_int_equal(parse_many(",[]", most / 2), 413);
	assert_int_equal(parse_many(",\"[{,\\\"[{,\"", most / 4), 0); /* nesting within strings does not count */
}

static void *little_malloc(size_t size)
{
	return size < 1000 ? malloc(size) : NULL;
}

/* Large blocks are what memory ends with. For small ones that fail, jansson has wrong words or assertions. */
static void too_little_memory_is_no_fault_of_the_body(void **state)
{
	json_malloc_t before;
	json_free_t free_before;

	(void)state;
	json_get_alloc_funcs(&before, &free_before);
	json_set_alloc_funcs(little_malloc, free);
	assert_int_equal(parse_many(",1", 10), 0);
	assert_int_equal(parse_many(",1", 1000), 503);
	json_set_alloc_funcs(before, free_before);
}

static void errors_have_the_format_of_openai(void **state)
{
	static const struct {
		int status;
		const char *type;
	} type[] = { { 400, "invalid_request_error" }, { 401, "authentication_error" },
		     { 404, "not_found_error" },       { 429, "rate_limit_error" },
		     { 500, "server_error" },	       { 503, "service_unavailable_error" } };

	(void)state;
	for (size_t i = 0; i < sizeof(type) / sizeof(type[0]); i++) {
		struct odm_api_error e;
		json_t *o, *error;

		odm_api_fail(&e, type[i].status, i == 0 ? "field" : NULL, OD_ERR_ARG, "bad byte \xff");
		e.code = i == 0 ? "a_code" : NULL;
		o = odm_api_error_json(&e);
		error = json_object_get(o, "error");
		assert_int_equal(json_object_size(error), 4);
		assert_string_equal(json_string_value(json_object_get(error, "type")), type[i].type);
		assert_string_equal(json_string_value(json_object_get(error, "message")), "bad byte \xef\xbf\xbd");
		assert_int_equal(json_is_null(json_object_get(error, "param")), i > 0);
		assert_int_equal(json_is_null(json_object_get(error, "code")), i > 0);
		json_decref(o);
	}
}

static void errors_have_the_format_of_anthropic(void **state)
{
	static const struct {
		int status;
		const char *type;
	} rows[] = { { 400, "invalid_request_error" }, { 401, "authentication_error" },
		     { 403, "permission_error" },      { 404, "not_found_error" },
		     { 413, "request_too_large" },     { 429, "rate_limit_error" },
		     { 503, "overloaded_error" },      { 500, "api_error" } };

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		json_t *o, *expected = json_pack("{s:s, s:{s:s, s:s}, s:s}", "type", "error", "error", "type",
						 rows[i].type, "message", "x: 3", "request_id", "r-1");
		struct odm_api_error e;

		odm_api_fail(&e, rows[i].status, "x", OD_ERR_ARG, "x: %d", 3);
		o = odm_api_error_anthropic(&e, "r-1");
		if (!json_equal(o, expected))
			fail_msg("%s", json_dumps(o, 0));
		json_decref(o);
		json_decref(expected);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values_arrive),
		cmocka_unit_test(errors_name_the_field),
		cmocka_unit_test(big_integers_become_reals),
		cmocka_unit_test(depth_is_limited),
		cmocka_unit_test(values_are_limited),
		cmocka_unit_test(too_little_memory_is_no_fault_of_the_body),
		cmocka_unit_test(wrong_bytes_become_replacements),
		cmocka_unit_test(errors_have_the_format_of_openai),
		cmocka_unit_test(errors_have_the_format_of_anthropic),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
