/* Templates and what Python's jinja2 makes of them: tests/golden/chat. With arguments: the cases of these files, and
 * every difference is printed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/text/jinja/jinja.h"

#define FOLDER "tests/golden/chat/"

static const char *field(const json_t *c, const char *name)
{
	return json_string_value(json_object_get(c, name));
}

static void set(json_t *vars, const char *name, json_t *v)
{
	if (v != NULL)
		json_object_set(vars, name, v);
}

/* The case's variables; of a file of constructs, what holds for all its cases and is not a case's own. */
static json_t *variables(const json_t *file, json_t *c)
{
	static const char *const always[] = { "messages", "tools", "documents", "add_generation_prompt" };
	json_t *vars = json_object(), *none = json_null();

	json_object_update(vars, json_object_get(file, "extra"));

	for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++) {
		json_t *v = json_object_get(c, always[i]);

		if (v != NULL || json_object_get(vars, always[i]) == NULL)
			set(vars, always[i], v != NULL ? v : none);
	}
	if (field(c, "bos_token") != NULL)
		set(vars, "bos_token", json_object_get(c, "bos_token"));
	if (field(c, "eos_token") != NULL)
		set(vars, "eos_token", json_object_get(c, "eos_token"));
	json_object_update(vars, json_object_get(c, "extra"));
	return vars;
}

static int render(const json_t *file, json_t *c, char **text, size_t *len, struct od_err *err)
{
	const json_t *template = json_object_get(c, "template");
	struct od_jinja_opts opts = { 0 };
	json_t *vars = variables(file, c);
	const char *when = field(c, "now") != NULL ? field(c, "now") : field(file, "now");
	struct od_jinja *t;
	struct tm now;
	int rc;

	*text = NULL;
	if (when != NULL) {
		memset(&now, 0, sizeof(now));
		assert_non_null(strptime(when, "%Y-%m-%dT%H:%M:%S", &now));
		opts.now = &now;
	}
	rc = od_jinja_parse(&t, json_string_value(template), json_string_length(template), "template", err);
	if (rc == OD_OK)
		rc = od_jinja_render(t, vars, &opts, text, len, err);
	od_jinja_free(t);
	json_decref(vars);
	return rc;
}

/* True when it is what jinja2 makes of it. */
static bool same(const json_t *file, json_t *c)
{
	const json_t *expected = json_object_get(c, "rendered");
	struct od_err err = { 0 };
	size_t len = 0;
	char *text;
	int rc = render(file, c, &text, &len, &err);
	bool good;

	if (expected == NULL)
		good = rc != OD_OK && err.msg[0] != '\0';
	else
		good = rc == OD_OK && len == json_string_length(expected) &&
		       memcmp(text, json_string_value(expected), len) == 0;
	if (!good)
		printf("# %s\n#   template: %.2000s\n#   expected: %s\n#   found:    %s\n", field(c, "name"),
		       field(c, "template"), expected != NULL ? json_string_value(expected) : field(c, "error"),
		       rc == OD_OK ? text : err.msg);
	free(text);
	return good;
}

static size_t run_file(const char *path)
{
	json_error_t why;
	json_t *file = json_load_file(path, JSON_ALLOW_NUL, &why), *c;
	size_t i, bad = 0;

	if (file == NULL)
		fail_msg("%s: %s", path, why.text);
	assert_true(json_array_size(json_object_get(file, "cases")) > 0);
	json_array_foreach(json_object_get(file, "cases"), i, c) bad += !same(file, c);
	if (bad > 0)
		printf("# %s: %zu of %zu differ\n", path, bad, i);
	json_decref(file);
	return bad;
}

static void test_published_style(void **state)
{
	(void)state;
	assert_int_equal(run_file(FOLDER "chat_cases.json"), 0);
	assert_int_equal(run_file(FOLDER "chat_cases-3.json"), 0);
}

/* Constructs of published templates, family by family. */
static void test_constructs(void **state)
{
	(void)state;
	assert_int_equal(run_file(FOLDER "constructs.json"), 0);
}

static void test_random(void **state)
{
	(void)state;
	assert_int_equal(run_file(FOLDER "random.json"), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_published_style),
		cmocka_unit_test(test_constructs),
		cmocka_unit_test(test_random),
	};
	size_t bad = 0;

	for (int i = 1; i < argc; i++)
		bad += run_file(argv[i]);
	if (argc > 1)
		return bad > 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
