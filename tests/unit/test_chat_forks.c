/* Where other prompts part from a chat's prompt: what odm_chat_forks says of published templates, against prompts that
 * agents ask for next, rendered in full. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "main-node/chat/chat_forks.h"
#include "tests/unit/temp_dir.h"

#define RULES "Rules of the project: tabs, short functions, no surprises."
#define TOOLS \
	"'tools': [{'type': 'function', 'function': {'name': 'read', 'description': 'Reads a file.', 'parameters': " \
	"{'type': 'object', 'properties': {'path': {'type': 'string', 'description': 'Where.'}}}}}]"
#define OTHER_TOOLS \
	"'tools': [{'type': 'function', 'function': {'name': 'look', 'description': 'Looks.', 'parameters': {'type': " \
	"'object', 'properties': {}}}}]"
#define SYSTEM "{'role': 'system', 'content': 'You help with programs.'}"
#define TASK \
	"{'role': 'user', 'content': [{'type': 'text', 'text': '" RULES "'}, {'type': 'text', 'text': 'Fix the sum.'}]}"
#define JOINED "{'role': 'user', 'content': '" RULES "\\nFix the sum.', 'od_last_part': 59}"
#define WORK \
	"{'role': 'assistant', 'content': 'I look.', 'reasoning_content': 'Which file?', 'tool_calls': [{'id': " \
	"'abcdefghi', 'type': 'function', 'function': {'name': 'read', 'arguments': '{`path`: `sum.c`}'}}]}, {'role': " \
	"'tool', 'tool_call_id': 'abcdefghi', 'content': 'int sum;'}"

/* Prompts that part from the first one, in the order in which they do it. */
struct fork_case {
	const char *messages;
	const char *others[3];
};

static const struct fork_case cases[] = {
	{ SYSTEM ", " TASK ", " WORK,
	  { SYSTEM ", {'role': 'user', 'content': 'What is here?'}",
	    SYSTEM ", {'role': 'user', 'content': [{'type': 'text', 'text': '" RULES
		   "'}, {'type': 'text', 'text': 'Write a test.'}]}",
	    SYSTEM ", " TASK ", " WORK
		   ", {'role': 'assistant', 'content': 'Done.'}, {'role': 'user', 'content': 'Thank you.'}" } },
	{ SYSTEM ", " JOINED,
	  { SYSTEM ", {'role': 'user', 'content': 'What is here?'}",
	    SYSTEM ", {'role': 'user', 'content': '" RULES "\\nWrite a test.'}",
	    SYSTEM ", " JOINED
		   ", {'role': 'assistant', 'content': 'Done.'}, {'role': 'user', 'content': 'Thank you.'}" } },
	{ SYSTEM ", {'role': 'user', 'content': '" RULES "'}, {'role': 'user', 'content': 'Fix the sum.'}",
	  { SYSTEM ", {'role': 'user', 'content': 'What is here?'}",
	    SYSTEM ", {'role': 'user', 'content': '" RULES "'}, {'role': 'user', 'content': 'Write a test.'}", NULL } },
};

static json_t *parse(const char *messages, const char *tools)
{
	char text[4096];
	json_error_t e;
	json_t *v;

	snprintf(text, sizeof(text), "{'messages': [%s], %s, 'add_generation_prompt': true}", messages, tools);
	for (char *c = text; *c != '\0'; c++)
		if (*c == '\'')
			*c = '"';
	/* arguments are JSON within JSON */
	for (char *c = text; (c = strchr(c, '`')) != NULL;) {
		memmove(c + 1, c, strlen(c) + 1);
		*c++ = '\\';
		*c++ = '"';
	}
	v = json_loads(text, 0, &e);
	if (v == NULL)
		fail_msg("%s: %s", text, e.text);
	return v;
}

static char *render(const struct odm_chat_template *t, const json_t *vars)
{
	struct od_err err;
	char *text;
	size_t len;

	if (odm_chat_template_prompt(t, vars, NULL, &text, &len, &err) != OD_OK)
		fail_msg("%s", err.msg);
	assert_int_equal(strlen(text), len);
	return text;
}

static size_t same_bytes(const char *a, const char *b)
{
	size_t n = 0;

	while (a[n] != '\0' && a[n] == b[n])
		n++;
	return n;
}

static void check_case(const struct odm_chat_template *t, const char *family, const struct fork_case *c)
{
	json_t *vars = parse(c->messages, TOOLS);
	char *text = render(t, vars);
	size_t fork[ODM_CHAT_FORKS], n = odm_chat_forks(t, vars, text, strlen(text), fork);

	assert_in_range(n, 1, ODM_CHAT_FORKS);
	for (size_t i = 1; i < n; i++)
		assert_true(fork[i - 1] < fork[i] && fork[i] <= strlen(text));
	for (size_t i = 0; i < 4; i++) {
		json_t *other = i == 3		     ? parse(c->others[0], OTHER_TOOLS) :
				c->others[i] != NULL ? parse(c->others[i], TOOLS) :
						       NULL;
		char *there = other != NULL ? render(t, other) : strdup(text);
		const size_t at = same_bytes(text, there);
		bool found = other == NULL;

		for (size_t k = 0; k < n; k++)
			found = found || fork[k] == at;
		if (!found)
			fail_msg("%s, case %zu: no fork at %zu, where this parts: %s", family, (size_t)(c - cases), at,
				 there);
		free(there);
		json_decref(other);
	}
	free(text);
	json_decref(vars);
}

static struct odm_chat_template *open_template(const json_t *template)
{
	const char *path = temp_path("chat_template.jinja");
	FILE *f = fopen(path, "w");
	struct odm_chat_template *t;
	struct od_err err;

	assert_non_null(f);
	assert_int_equal(fputs(json_string_value(template), f) < 0, 0);
	assert_int_equal(fclose(f), 0);
	if (odm_chat_template_open(&t, temp_dir, &err) != OD_OK)
		fail_msg("%s", err.msg);
	return t;
}

static void test_published_templates(void **state)
{
	static const char *const wanted[] = { "qwen3_moe", "qwen3_next", "qwen3_5_moe", "glm4_moe", "minimax_m2" };
	static const char *const files[] = { "tests/golden/chat/chat_cases.json",
					     "tests/golden/chat/chat_cases-3.json" };
	size_t n = 0;

	(void)state;
	for (size_t k = 0; k < 2; k++) {
		json_t *all = json_load_file(files[k], 0, NULL), *one, *seen = json_object();
		size_t i;

		json_array_foreach(json_object_get(all, "cases"), i, one)
		{
			const char *family = json_string_value(json_object_get(one, "family"));
			struct odm_chat_template *t;
			bool is_wanted = false;

			for (size_t j = 0; family != NULL && j < sizeof(wanted) / sizeof(wanted[0]); j++)
				is_wanted = is_wanted || strcmp(family, wanted[j]) == 0;
			if (!is_wanted || json_object_get(seen, family) != NULL)
				continue;
			json_object_set_new(seen, family, json_true());
			t = open_template(json_object_get(one, "template"));
			for (size_t j = 0; j < sizeof(cases) / sizeof(cases[0]); j++)
				check_case(t, family, &cases[j]);
			odm_chat_template_close(t);
			n++;
		}
		json_decref(seen);
		json_decref(all);
	}
	assert_int_equal(n, sizeof(wanted) / sizeof(wanted[0]));
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_published_templates) };

	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
