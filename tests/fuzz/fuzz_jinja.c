/* Any text at all as a chat template, with any JSON as its variables: it is refused with a reason, or gives UTF-8
 * within the limits; twice the same.
 * Input: the template, a zero byte, a JSON object. Without the object the variables are a conversation. */
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/jinja/jinja.h"
#include "tests/fuzz/fuzz.h"

#define OUTPUT_BYTES (1u << 20)

static const char conversation[] =
	"{\"messages\": [{\"role\": \"system\", \"content\": \"It's \\u00fc\"}, {\"role\": \"user\", \"content\": \" a b\\n\"},"
	" {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": [1, 2.5]}}}]},"
	" {\"role\": \"tool\", \"content\": [{\"type\": \"text\", \"text\": \"{}\"}]}], \"add_generation_prompt\": true, \"tools\": [{\"a\": {}}],"
	" \"bos_token\": \"<s>\", \"n\": 7, \"f\": 1e20, \"s\": \"Hello, World\", \"d\": {\"a\": 1, \"b\": [true, null]}}";

static json_t *variables(const uint8_t *data, size_t size)
{
	json_error_t why;
	json_t *v = size > 0 ? json_loadb((const char *)data, size, JSON_ALLOW_NUL, &why) : NULL;

	if (json_is_object(v))
		return v;
	json_decref(v);
	v = json_loads(conversation, 0, &why);
	check(v != NULL);
	return v;
}

static int render(const struct od_jinja *t, const json_t *vars, const struct tm *now, char **text, size_t *len)
{
	struct od_text_spans users = { 0 };
	const struct od_jinja_opts opts = {
		.limits = { .operations = 100000, .memory_bytes = 64u << 20, .output_bytes = OUTPUT_BYTES },
		.now = now,
		.users = &users
	};
	struct od_err err = { 0 };
	int rc = od_jinja_render(t, vars, &opts, text, len, &err);

	if (rc != OD_OK)
		check(*text == NULL && *len == 0 && err.msg[0] != '\0' && err.code == rc);
	else
		check(*len <= OUTPUT_BYTES && (*text)[*len] == '\0');
	check(rc == OD_OK || users.n == 0);
	for (size_t i = 0; i < users.n; i++)
		check(users.v[i].begin < users.v[i].end && users.v[i].end <= *len &&
		      (i == 0 || users.v[i].begin > users.v[i - 1].end));
	od_text_spans_fini(&users);
	return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end = size > 0 ? memchr(data, 0, size) : NULL;
	const size_t len = end != NULL ? (size_t)(end - data) : size;
	const struct tm now = { .tm_year = 126, .tm_mon = 1, .tm_mday = 3, .tm_hour = 4 };
	struct od_err err = { 0 };
	char *text[2];
	size_t n[2];
	struct od_jinja *t;
	json_t *vars, *utf8;
	int rc[2];

	if (od_jinja_parse(&t, (const char *)data, len, "fuzz", &err) != OD_OK) {
		check(t == NULL && err.msg[0] != '\0');
		return 0;
	}
	vars = variables(end != NULL ? end + 1 : NULL, end != NULL ? size - len - 1 : 0);
	for (int i = 0; i < 2; i++)
		rc[i] = render(t, vars, &now, &text[i], &n[i]);
	check(rc[0] == rc[1] && n[0] == n[1]);
	if (rc[0] == OD_OK) {
		check(memcmp(text[0], text[1], n[0]) == 0);
		utf8 = json_stringn(text[0], n[0]);
		check(utf8 != NULL);
		json_decref(utf8);
	}
	free(text[0]);
	free(text[1]);
	json_decref(vars);
	od_jinja_free(t);
	return 0;
}
