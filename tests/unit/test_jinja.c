/* The limits and messages of the template interpreter, and what its tests against jinja2 (test_jinja_golden) cannot
 * say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/text/jinja/jinja.h"

static struct od_err err;

/* The text, malloc'd, or NULL: then *rc and err say why. */
static char *render(const char *template, const char *vars, const struct od_jinja_limits *limits, int *rc)
{
	struct od_jinja_opts opts = { 0 };
	json_error_t why;
	json_t *v = od_json_decode(vars, strlen(vars), 0, &why);
	struct od_jinja *t;
	char *text = NULL;
	size_t len;

	assert_non_null(v);
	if (limits != NULL)
		opts.limits = *limits;
	err = (struct od_err){ 0 };
	*rc = od_jinja_parse(&t, template, strlen(template), "x.jinja", &err);
	if (*rc == OD_OK)
		*rc = od_jinja_render(t, v, &opts, &text, &len, &err);
	else
		assert_null(t);
	od_jinja_free(t);
	json_decref(v);
	assert_true(*rc == OD_OK ? text != NULL : text == NULL && err.code == *rc);
	return text;
}

static void gives_of(const char *vars, const char *template, const char *expected)
{
	int rc;
	char *text = render(template, vars, NULL, &rc);

	if (text == NULL)
		fail_msg("%s: %s", template, err.msg);
	assert_string_equal(text, expected);
	free(text);
}

static void gives(const char *template, const char *expected)
{
	gives_of("{}", template, expected);
}

/* The code, and words of the message. */
static void fails(const char *template, int code, const char *words)
{
	int rc;

	free(render(template, "{\"l\": [1], \"d\": {\"a\": null}}", NULL, &rc));
	if (rc != code || strstr(err.msg, words) == NULL)
		fail_msg("%s: expected %d \"%s\", found %d \"%s\"", template, code, words, rc, err.msg);
}

static void fails_within(const char *template, const struct od_jinja_limits *limits, const char *words)
{
	int rc;

	free(render(template, "{}", limits, &rc));
	if (rc != OD_ERR_RANGE || strstr(err.msg, words) == NULL)
		fail_msg("%s: expected OD_ERR_RANGE \"%s\", found %d \"%s\"", template, words, rc, err.msg);
}

static void messages_name_line_and_reason(void **state)
{
	(void)state;
	fails("a\n{{ x.y }}", OD_ERR_FORMAT, "x.jinja, line 2: 'x' is undefined");
	fails("{# \n #}\n\n{{ d.b.c }}", OD_ERR_FORMAT, "line 4: 'dict' object has no attribute 'b'");
	fails("{% if l %}\n{{ l + 'a' }}{% endif %}", OD_ERR_FORMAT,
	      "line 2: '+' is not supported between list and str");
	fails("{% macro f() %}\n{{ 1 / 0 }}{% endmacro %}\n\n{{ f() }}", OD_ERR_FORMAT, "line 2: division by zero");
	fails("{{ l.append(2) }}", OD_ERR_FORMAT, "access to attribute 'append' of 'list' object is unsafe.");
	fails("{{ 'a'|replace('b') }}", OD_ERR_FORMAT, "replace: the argument 'new' is missing");
	fails("{{ 'a'|indent(widht=2) }}", OD_ERR_FORMAT, "indent: unexpected keyword argument 'widht'");
	fails("{{ 'a'.split(sep='a', sepp='b') }}", OD_ERR_FORMAT, "split: unexpected keyword argument 'sepp'");
	fails("\n\n{{ raise_exception('no ' ~ 'way') }}", OD_ERR_ARG, "line 3: no way");
}

static void parser_names_what_it_expected(void **state)
{
	(void)state;
	fails("{% if x %}", OD_ERR_FORMAT, "line 1: expected 'endif', found the end of the template");
	fails("{{ 1 + }}", OD_ERR_FORMAT, "expected an expression, found '}}'");
	fails("{{ (1 }}", OD_ERR_FORMAT, "expected ')', found '}'");
	fails("\n{% endfor %}", OD_ERR_FORMAT, "line 2: unexpected tag 'endfor'");
	fails("{% for x in l %}{% endif %}", OD_ERR_FORMAT, "unexpected tag 'endif'");
	fails("{{ 'abc }}", OD_ERR_FORMAT, "a string has no end");
	fails("{% break %}", OD_ERR_FORMAT, "'break' is outside of a loop");
	fails("{# never", OD_ERR_FORMAT, "a comment has no end");
	fails("{{ a b }}", OD_ERR_FORMAT, "expected '}}', found 'b'");
	fails("{{ a ! b }}", OD_ERR_FORMAT, "unexpected character '!'");
	fails("{% set 1 = 2 %}", OD_ERR_FORMAT, "expected a name to assign to");
}

static void unknown_features_are_refused_by_name(void **state)
{
	(void)state;
	fails("\n{% include 'x' %}", OD_ERR_UNSUPPORTED, "line 2: the tag 'include' is not supported");
	fails("{% extends 'x' %}", OD_ERR_UNSUPPORTED, "'extends'");
	fails("{% block a %}{% endblock %}", OD_ERR_UNSUPPORTED, "'block'");
	fails("{% trans %}", OD_ERR_FORMAT, "unexpected tag 'trans'");
	fails("\n\n{{ l|urlize }}", OD_ERR_UNSUPPORTED, "line 3: the filter 'urlize' is not supported");
	fails("{{ l|nonsense }}", OD_ERR_FORMAT, "the filter 'nonsense' does not exist");
	fails("{{ l is nonsense }}", OD_ERR_FORMAT, "the test 'nonsense' does not exist");
	fails("{{ '\\N{DASH}' }}", OD_ERR_UNSUPPORTED, "\\N");
	gives("{% if false %}{{ 1|nonsense }}{% endif %}ok", "ok"); /* as jinja2 */
	fails("{% if l %}{{ 1|nonsense }}{% endif %}", OD_ERR_FORMAT, "'nonsense'");
	fails("{{ 9223372036854775808 }}", OD_ERR_UNSUPPORTED, "more than 64 bits");
	fails("{{ 9223372036854775807 + 1 }}", OD_ERR_RANGE, "more than 64 bits");
	fails("{{ 2 ** 64 }}", OD_ERR_RANGE, "more than 64 bits");
	fails("{{ -(-9223372036854775807 - 1) }}", OD_ERR_RANGE, "more than 64 bits");
	fails("{{ '9999999999999999999'|int }}", OD_ERR_RANGE, "more than 64 bits");
}

/* Expected is what Python's json, jinja2 and tojson write. */
static void integers_of_variables_keep_their_digits(void **state)
{
	static const char vars[] =
		"{\"b\": 18446744073709551615, \"n\": [-9223372036854775809, 1e22, 12345678901234567890123], \"m\": "
		"{\"maximum\": 18446744073709551616}}";
	static const struct {
		const char *template, *expected;
	} t[] = {
		{ "{{ b }} {{ n }} {{ m }}",
		  "18446744073709551615 [-9223372036854775809, 1e+22, 12345678901234567890123] {'maximum': 18446744073709551616}" },
		{ "{{ b|tojson }} {{ n|tojson }} {{ m|tojson(indent=1) }}",
		  "18446744073709551615 [-9223372036854775809, 1e+22, 12345678901234567890123] {\n \"maximum\": 18446744073709551616\n}" },
		{ "{{ b is number }} {{ b is integer }} {{ b is float }} {{ b is string }}", "True True False False" },
		{ "{{ b > 9223372036854775807 }} {{ b == 1 }} {{ n[0] < 0 }} {{ b in [b] }} {{ n|min == n[0] }} {{ b and 1 }}",
		  "True False True True True 1" },
		{ "{{ b|string ~ '!' }} {{ b|int }} {{ +b }} {{ -b }} {{ -n[0] }} {{ n[0]|abs }} {{ b|abs }} {{ b|round(2) }}",
		  "18446744073709551615! 18446744073709551615 18446744073709551615 -18446744073709551615 9223372036854775809 "
		  "9223372036854775809 18446744073709551615 18446744073709551615" },
		{ "{{ '%s %r' % (b, b) }} {{ '{} {:.1e}'.format(b, b) }} {{ '%.2e' % b }}",
		  "18446744073709551615 18446744073709551615 18446744073709551615 1.8e+19 1.84e+19" },
		{ "{{ {b: b}|tojson }} {{ {b: 1}[b] }}", "{\"18446744073709551615\": 18446744073709551615} 1" },
		{ "{{ b|float }} {{ b / 2 }} {{ 1.5 * b }}",
		  "1.8446744073709552e+19 9.223372036854776e+18 2.7670116110564327e+19" },
	};
	int rc;

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
		gives_of(vars, t[i].template, t[i].expected);
	/* Formats of integers have no more than 64 bits. */
	free(render("{{ '%d' % b }}", vars, NULL, &rc));
	assert_int_equal(rc, OD_ERR_RANGE);
	free(render("{{ '{:,}'.format(b) }}", vars, NULL, &rc));
	assert_int_equal(rc, OD_ERR_RANGE);
}

static void limits_hold(void **state)
{
	const struct od_jinja_limits few = { .operations = 10000 }, small = { .memory_bytes = 1 << 20 },
				     brief = { .output_bytes = 1000 }, flat = { .depth = 50 };

	(void)state;
	fails_within("{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}", &few,
		     "operations");
	fails_within("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", NULL, "deep");
	fails_within("{% set x = namespace() %}{% set x.x = x %}{{ x }}", NULL, "deep");
	fails_within("{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}", NULL, "deep");
	fails_within("{{ 'a' * 2000000 }}", &small, "memory");
	fails_within(
		"{% set n = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
		NULL, "memory");
	fails_within("{{ [0] * 100000000000 }}", NULL, "");
	fails_within("{{ '%1000000000d' % 1 }}", NULL, "1000000");
	fails_within("{{ 'a' * 1001 }}", &brief, "longer");
	fails_within("{% set x %}{{ 'a' * 1001 }}{% endset %}", &brief, "longer");
	fails_within("{{ range(100001)|list }}", NULL, "100000");
	fails_within(
		"{{ [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]] }}",
		&flat, "deep");
}

/* However deep a template or its variables are, the stack of a thread is enough. */
static void deep_nesting_is_no_crash(void **state)
{
	enum { DEPTH = 100000 };
	static const char *const open[] = { "(", "[", "{'a':", "-", "not ", "f(", "x[", "x|map(" };
	char *text = malloc(DEPTH * 8 + 100);
	int rc;

	(void)state;
	for (size_t k = 0; k < sizeof(open) / sizeof(open[0]); k++) {
		size_t n = strlen(open[k]), at = 3;

		memcpy(text, "{{ ", 3);
		for (int i = 0; i < DEPTH; i++, at += n)
			memcpy(text + at, open[k], n);
		memcpy(text + at, "1 }}", 5);
		free(render(text, "{}", NULL, &rc));
		assert_int_equal(rc, OD_ERR_RANGE);
	}
	free(text);
}

static void *render_often(void *arg)
{
	const struct od_jinja *t = arg;
	json_t *vars = json_pack("{s:[i,i,i]}", "l", 1, 2, 3);
	size_t bad = 0;

	for (int i = 0; i < 200; i++) {
		char *text;
		size_t len;

		if (od_jinja_render(t, vars, NULL, &text, &len, NULL) != OD_OK ||
		    strcmp(text, "1-2-3 [3, 2, 1] é!") != 0)
			bad++;
		free(text);
	}
	json_decref(vars);
	return (void *)bad;
}

static void threads_share_a_template(void **state)
{
	static const char text[] = "{% macro m(x) %}{{ x }}!{% endmacro %}{{ l|join('-') }} {{ l[::-1] }} {{ m('é') }}";
	pthread_t thread[4];
	struct od_jinja *t;
	void *bad;

	(void)state;
	assert_int_equal(od_jinja_parse(&t, text, strlen(text), "t", NULL), OD_OK);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, render_often, t), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(thread[i], &bad);
		assert_null(bad);
	}
	od_jinja_free(t);
}

static const char *source_of_args(void *arg, const json_t *object)
{
	return json_object_get(object, "x") != NULL ? arg : NULL;
}

/* tojson writes an object's own text, inside others and with other styles too, and what else sees the object sees its
 * fields. */
static void objects_with_a_text(void **state)
{
	static const char template[] =
		"{{ a|tojson }} {{ [c]|tojson }} {{ c|tojson(indent=1) }} {{ a.x }} {{ dict(a)|tojson }}";
	static char text[] = "{\"x\" :1.50}";
	const struct od_jinja_opts opts = { .source = source_of_args, .arg = text };
	json_t *vars = json_loads("{\"a\": {\"x\": 1.5}, \"c\": {\"a\": {\"x\": 1.5}}}", 0, NULL);
	struct od_jinja *t;
	char *out;
	size_t len;

	(void)state;
	assert_int_equal(od_jinja_parse(&t, template, strlen(template), "x", &err), OD_OK);
	assert_int_equal(od_jinja_render(t, vars, &opts, &out, &len, &err), OD_OK);
	assert_string_equal(out, "{\"x\" :1.50} [{\"a\": {\"x\" :1.50}}] {\n \"a\": {\"x\" :1.50}\n} 1.5 {\"x\": 1.5}");
	free(out);
	od_jinja_free(t);
	json_decref(vars);
}

static void bad_bytes(void **state)
{
	struct od_jinja *t;

	(void)state;
	assert_int_equal(od_jinja_parse(&t, "a\n\xff", 3, "t", &err), OD_ERR_FORMAT);
	assert_non_null(strstr(err.msg, "line 2: byte 2 is not valid UTF-8"));
	assert_int_equal(od_jinja_parse(&t, "{{ '\0' }}", 9, "t", NULL), OD_OK); /* a zero byte is a character */
	od_jinja_free(t);
	od_jinja_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(messages_name_line_and_reason),
		cmocka_unit_test(parser_names_what_it_expected),
		cmocka_unit_test(unknown_features_are_refused_by_name),
		cmocka_unit_test(integers_of_variables_keep_their_digits),
		cmocka_unit_test(limits_hold),
		cmocka_unit_test(deep_nesting_is_no_crash),
		cmocka_unit_test(threads_share_a_template),
		cmocka_unit_test(objects_with_a_text),
		cmocka_unit_test(bad_bytes),
	};

	return cmocka_run_group_tests_name("jinja", tests, NULL, NULL);
}
