#include "tests/unit/answer_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "main-node/chat/chat_probe.h"

#define FOLDER "tests/golden/chat/"

static json_t *load(const char *path)
{
	json_error_t e;
	json_t *file = json_load_file(path, 0, &e);

	if (file == NULL)
		fail_msg("%s: %s", path, e.text);
	return file;
}

void answer_case_format(struct odm_chat_format *format, const char *text)
{
	struct od_jinja *parsed;
	struct od_err err;

	if (od_jinja_parse(&parsed, text, strlen(text), "template", &err) != OD_OK)
		fail_msg("%s", err.msg);
	odm_chat_format_choose(format, text, NULL);
	odm_chat_probe(format, parsed, NULL);
	od_jinja_free(parsed);
}

static const char *find_template(const struct answer_cases *cases, const char *name)
{
	const char *found = json_string_value(json_object_get(json_object_get(cases->files[0], "templates"), name));
	const json_t *c;
	size_t i;

	for (int f = 1; f < 3 && found == NULL; f++)
		json_array_foreach(json_object_get(cases->files[f], "cases"), i,
				   c) if (json_is_string(json_object_get(c, "family")) &&
					  strcmp(json_string_value(json_object_get(c, "family")), name) == 0) found =
			json_string_value(json_object_get(c, "template"));
	if (found == NULL)
		fail_msg("no template %s", name);
	return found;
}

/* A template is looked at once: its cases follow each other. */
static void choose_format(struct odm_chat_format *format, const char *text)
{
	static const char *known;
	static struct odm_chat_format known_format;

	if (text != known)
		answer_case_format(&known_format, text);
	known = text;
	*format = known_format;
}

static void read_case(const struct answer_cases *cases, struct answer_case *out, const json_t *c)
{
	const json_t *text = json_object_get(c, "text"), *in_thought = json_object_get(c, "in_thought");

	*out = (struct answer_case){
		.name = json_string_value(json_object_get(c, "name")),
		.template_text = find_template(cases, json_string_value(json_object_get(c, "template"))),
		.content = json_string_value(json_object_get(c, "content")),
		.reasoning = json_string_value(json_object_get(c, "reasoning")),
		.text = json_string_value(text),
		.len = json_string_length(text),
		.tools = json_object_get(c, "tools"),
		.calls = json_object_get(c, "tool_calls"),
		.echo = json_object_get(c, "echo"),
	};
	if (json_is_null(out->tools))
		out->tools = NULL;
	if (json_is_null(out->echo))
		out->echo = NULL;
	choose_format(&out->format, out->template_text);
	out->in_thought = json_is_null(in_thought) ? out->format.opens_thought : json_is_true(in_thought);
}

struct answer_cases answer_cases;

int answer_cases_setup(void **state)
{
	struct answer_cases *cases = &answer_cases;
	static const char *const paths[] = { FOLDER "answers.json", FOLDER "chat_cases.json",
					     FOLDER "chat_cases-3.json" };
	const json_t *c;
	size_t i;

	(void)state;
	for (size_t f = 0; f < 3; f++)
		cases->files[f] = load(paths[f]);
	cases->n = json_array_size(json_object_get(cases->files[0], "cases"));
	cases->c = calloc(cases->n, sizeof(*cases->c));
	assert_true(cases->n > 100 && cases->c != NULL);
	json_array_foreach(json_object_get(cases->files[0], "cases"), i, c) read_case(cases, &cases->c[i], c);
	return 0;
}

int answer_cases_teardown(void **state)
{
	(void)state;
	for (size_t f = 0; f < 3; f++)
		json_decref(answer_cases.files[f]);
	free(answer_cases.c);
	return 0;
}

struct odm_answer_opts answer_case_opts(const struct answer_case *c)
{
	return (struct odm_answer_opts){ .format = &c->format, .in_thought = c->in_thought, .tools = c->tools };
}
