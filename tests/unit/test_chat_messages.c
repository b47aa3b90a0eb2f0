/* From messages in OpenAI's format to what templates read. What an answer gave, sent back unchanged, must give the
 * template what jinja2 was seen to render as the model's own bytes ("echo" of tests/golden/chat/answers.json). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "main-node/chat/answer_print.h"
#include "main-node/chat/chat_messages.h"
#include "tests/unit/answer_cases.h"

/* ---- Calls come back as they were written ---- */

/* The message that a client sends back: what the server gave. */
static json_t *sent_back(const struct answer_case *c)
{
	const struct odm_answer_opts opts = answer_case_opts(c);
	json_t *answer, *call, *calls = json_array(), *message;
	struct od_err err;
	size_t i;

	assert_int_equal(odm_answer_object(&answer, &opts, c->text, c->len, 0, &err), OD_OK);
	json_array_foreach(json_object_get(answer, "tool_calls"), i, call) json_array_append_new(
		calls, json_pack("{s:s, s:s, s:{s:O, s:O}}", "id", "call_1", "type", "function", "function", "name",
				 json_object_get(call, "name"), "arguments", json_object_get(call, "arguments")));
	message = json_pack("{s:s, s:O, s:o}", "role", "assistant", "content", json_object_get(answer, "content"),
			    "tool_calls", calls);
	json_decref(answer);
	assert_non_null(message);
	return message;
}

static void check_args(const struct answer_case *c, const struct odm_context *context, const json_t *args,
		       const json_t *echo)
{
	static const char mark[] = "source:";
	const char *text = json_string_value(echo), *source = odm_context_source(context, args);

	if (text != NULL && strncmp(text, mark, strlen(mark)) == 0) {
		if (!json_is_object(args) || source == NULL || strcmp(source, text + strlen(mark)) != 0)
			fail_msg("%s: the object's text is %s, not %s", c->name, source != NULL ? source : "(none)",
				 text);
	} else if (!json_equal(args, echo) || source != NULL) {
		fail_msg("%s: arguments are %s", c->name, json_dumps(args, JSON_ENCODE_ANY));
	}
}

static void test_calls_come_back(void **state)
{
	size_t n = 0;

	(void)state;
	for (size_t i = 0; i < answer_cases.n; i++) {
		const struct answer_case *c = &answer_cases.c[i];
		json_t *messages, *call, *message;
		struct odm_context context;
		struct od_err err;
		size_t k;

		if (c->echo == NULL)
			continue;
		messages = json_pack("[o]", sent_back(c));
		assert_int_equal(odm_context_build(&context, messages, &c->format, &err), OD_OK);
		/* a text may be one of its own */
		message = json_array_get(context.messages, json_array_size(context.messages) - 1);
		if (json_array_size(json_object_get(message, "tool_calls")) != json_array_size(c->echo))
			fail_msg("%s: %s", c->name, json_dumps(context.messages, 0));
		json_array_foreach(json_object_get(message, "tool_calls"), k, call)
		{
			check_args(c, &context, json_object_get(json_object_get(call, "function"), "arguments"),
				   json_array_get(c->echo, k));
			n++;
		}
		odm_context_fini(&context);
		json_decref(messages);
	}
	assert_true(n > 30);
}

/* ---- What else is changed ---- */

static const struct odm_call_format lines = { .values = ODM_VALUE_LINES };

static const struct odm_chat_format formats[] = {
	['p' - 'a'] = { .echo = ODM_ECHO_TEXT }, /* most templates */
	['v' - 'a'] = { .calls = &lines, .n_calls = 1, .echo = ODM_ECHO_VALUES, .no_text = ODM_NO_TEXT_GIVEN },
	['h' - 'a'] = { .harmony = true, .takes_developer = true, .thought_field = ODM_THOUGHT_THINKING },
	['m' - 'a'] = { .ids = ODM_IDS_SHORT }, /* Mistral's */
	['b' - 'a'] = { .content = { [ODM_ROLE_USER] = ODM_CONTENT_BOTH } },
	['l' - 'a'] = { .content = { [ODM_ROLE_USER] = ODM_CONTENT_PARTS, [ODM_ROLE_ASSISTANT] = ODM_CONTENT_PARTS } },
	['k' - 'a'] = { .echo = ODM_ECHO_TEXT, .ids = ODM_IDS_COUNTED, .name_is_role = true }, /* Kimi's */
	['n' - 'a'] = { .echo = ODM_ECHO_TEXT, .no_text = ODM_NO_TEXT_NEVER },
	['t' - 'a'] = { .thought_field = ODM_THOUGHT_PARTS },
};

static const struct {
	char format;
	const char *given, *expected; /* the error's text if it is no array */
} rows[] = {
	/* unchanged */
	{ 'k',
	  "[{'role': 'assistant', 'content': '', 'tool_calls': [{'id': 'functions.f:0', 'type': 'function', 'function': {'name': "
	  "'f', 'arguments': '{}'}}]}, {'role': 'tool', 'tool_call_id': 'functions.f:0', 'content': 'r'}]",
	  "[{'role': 'assistant', 'content': '', 'tool_calls': [{'id': 'functions.f:0', 'type': 'function', 'function': {'name': "
	  "'f', 'arguments': '{}'}}]}, {'role': 'tool', 'tool_call_id': 'functions.f:0', 'content': 'r'}]" },
	{ 'p', "[{'role': 'system', 'content': ' a\\n'}, {'role': 'user', 'content': 'b', 'name': 'n', 'x': 1.50}]",
	  "[{'role': 'system', 'content': ' a\\n'}, {'role': 'user', 'content': 'b', 'name': 'n', 'x': 1.50}]" },
	{ 'v',
	  "[{'role': 'assistant', 'content': null, 'tool_calls': [{'type': 'function', 'function': {'name': 'f', 'arguments': "
	  "{'b': true}}}]}]",
	  "[{'role': 'assistant', 'content': null, 'tool_calls': [{'type': 'function', 'function': {'name': 'f', 'arguments': "
	  "{'b': true}}}]}]" },
	/* null: what an answer did not have, as clients send it back */
	{ 'p', "[{'role': 'assistant', 'content': null, 'refusal': null, 'tool_calls': null, 'x': {'y': null}}]",
	  "[{'role': 'assistant', 'content': '', 'x': {'y': null}}]" },
	{ 'v', "[{'role': 'assistant', 'content': null, 'refusal': null}]", "[{'role': 'assistant', 'content': ''}]" },
	{ 'v', "[{'role': 'assistant', 'tool_calls': [{'type': 'function', 'function': {'name': 'f'}}]}]",
	  "[{'role': 'assistant', 'content': null, 'tool_calls': [{'type': 'function', 'function': {'name': 'f'}}]}]" },
	/* parts */
	{ 'p', "[{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}]}]",
	  "[{'role': 'user', 'content': 'a\\nb'}]" },
	{ 'b', "[{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}]}]",
	  "[{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}]}]" },
	{ 'b', "[{'role': 'system', 'content': [{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}]}]",
	  "[{'role': 'system', 'content': 'a\\nb'}]" },
	{ 'l',
	  "[{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': null}, {'role': 'system', 'content': 'b'}]",
	  "[{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}]}, {'role': 'assistant', 'content': [{'type': 'text', 'text': "
	  "''}]}, {'role': 'system', 'content': 'b'}]" },
	/* parts that are no text */
	{ 'p',
	  "[{'role': 'user', 'content': [{'type': 'image_url', 'image_url': {'url': 'data:image/png;base64,AA'}}, {'type': 'text', "
	  "'text': 'a'}, {'type': 'input_audio', 'input_audio': {}}, {'type': 'file', 'file': {}}]}]",
	  "[{'role': 'user', 'content': '[an image that this model cannot see]\\na\\n[a recording that this model cannot hear]\\n[a file "
	  "that this model cannot read]'}]" },
	{ 'b',
	  "[{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}, {'type': 'image'}, {'type': 'hologram'}]}]",
	  "[{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': '[an image that this model cannot "
	  "see]'}, {'type': 'text', 'text': '[something of type hologram that this model cannot read]'}]}]" },
	{ 'p',
	  "[{'role': 'assistant', 'content': [{'type': 'thinking', 'thinking': 't'}, {'type': 'text', 'text': 'a'}]}]",
	  "[{'role': 'assistant', 'content': 'a', 'reasoning_content': 't'}]" },
	{ 'p',
	  "[{'role': 'assistant', 'content': [{'type': 'thinking', 'thinking': [{'type': 'text', 'text': 't'}]}, {'type': 'reasoning', "
	  "'reasoning': 'u'}, {'type': 'redacted_thinking', 'data': 'x'}, {'type': 'reasoning', 'text': 'v'}, 'a']}]",
	  "[{'role': 'assistant', 'content': 'a', 'reasoning_content': 'tuv'}]" },
	{ 'p', "[{'role': 'assistant', 'reasoning_content': 'r', 'content': [{'type': 'thinking', 'thinking': 't'}]}]",
	  "[{'role': 'assistant', 'content': '', 'reasoning_content': 'r'}]" },
	{ 't', "[{'role': 'assistant', 'content': 'a', 'reasoning': 't'}, {'role': 'assistant', 'content': 'a'}]",
	  "[{'role': 'assistant', 'content': [{'type': 'thinking', 'thinking': 't'}, {'type': 'text', 'text': 'a'}], 'reasoning': 't', "
	  "'reasoning_content': 't'}, {'role': 'assistant', 'content': 'a'}]" },
	/* refusals */
	{ 'p',
	  "[{'role': 'assistant', 'content': [{'type': 'refusal', 'refusal': 'no'}]}, {'role': 'assistant', 'content': null, "
	  "'refusal': 'never'}]",
	  "[{'role': 'assistant', 'content': 'no'}, {'role': 'assistant', 'content': 'never', 'refusal': 'never'}]" },
	{ 'p', "[{'role': 'assistant', 'content': [{'type': 'refusal'}]}]",
	  "messages[0].content[0].refusal: expected a string" },
	{ 'p', "[{'role': 'user', 'content': [{'type': 'text'}]}]", "messages[0].content[0].text: expected a string" },
	{ 'p', "[{'role': 'user', 'content': [{'type': null}]}]", "messages[0].content[0].type: expected a string" },
	{ 'p', "[{'role': 'user', 'content': [3]}]", "messages[0].content[0].type: expected a string" },
	{ 'p', "[{'role': 'user', 'content': ['a', {'text': 'b'}]}]", "[{'role': 'user', 'content': 'a\\nb'}]" },
	{ 'b', "[{'role': 'user', 'content': ['a']}]",
	  "[{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}]}]" },
	{ 'p', "[{'role': 'user', 'content': []}]", "[{'role': 'user', 'content': ''}]" },
	/* roles */
	{ 'p', "[{'role': 'developer', 'content': 'a'}]", "[{'role': 'system', 'content': 'a'}]" },
	{ 'h', "[{'role': 'developer', 'content': 'a'}]", "[{'role': 'developer', 'content': 'a'}]" },
	{ 'p', "[{'role': 'user', 'content': 'a'}, {'content': 'a'}]", "messages[1].role: expected a string" },
	{ 'p', "[{'role': 'user'}, {'role': 'system'}, {'role': 'assistant', 'tool_calls': []}, {'role': 'tool'}]",
	  "[{'role': 'user', 'content': ''}, {'role': 'system', 'content': ''}, {'role': 'assistant', 'content': ''}, {'role': 'tool', "
	  "'content': ''}]" },
	/* fields of another type, which templates would write or fail with */
	{ 'p',
	  "[{'role': 'assistant', 'content': 'a', 'name': 3, 'reasoning_content': {}, 'thinking': true, 'tool_call_id': []}]",
	  "[{'role': 'assistant', 'content': 'a'}]" },
	{ 'p', "[{'role': 'user', 'content': 3}]", "messages[0].content: expected a string or an array" },
	{ 'p', "['a']", "messages[0]: expected an object" },
	{ 'p', "{}", "messages: expected an array" },
	/* thoughts */
	{ 'p', "[{'role': 'assistant', 'content': 'a', 'reasoning': 'b'}]",
	  "[{'role': 'assistant', 'content': 'a', 'reasoning': 'b', 'reasoning_content': 'b'}]" },
	{ 'h', "[{'role': 'assistant', 'content': 'a', 'reasoning_content': 'b'}]",
	  "[{'role': 'assistant', 'content': 'a', 'reasoning_content': 'b', 'thinking': 'b'}]" },
	{ 'h',
	  "[{'role': 'assistant', 'content': 'a', 'reasoning_content': 'b', 'tool_calls': [{'function': {'name': 'f'}}]}]",
	  "[{'role': 'assistant', 'content': '', 'reasoning_content': 'b', 'thinking': 'b', 'tool_calls': [{'function': {'name': 'f'}, "
	  "'type': 'function'}]}]" },
	/* calls */
	{ 'h', "[{'role': 'assistant', 'tool_calls': [{'function': {'name': 'f', 'arguments': ''}}]}]",
	  "[{'role': 'assistant', 'content': '', 'tool_calls': [{'type': 'function', 'function': {'name': 'f', 'arguments': {}}}]}]" },
	{ 'h', "[{'role': 'assistant', 'tool_calls': [{'function': {'name': 'f', 'arguments': null}}]}]",
	  "[{'role': 'assistant', 'content': '', 'tool_calls': [{'type': 'function', 'function': {'name': 'f'}}]}]" },
	/* cut off, or no object: what the model wrote stays */
	{ 'h', "[{'role': 'assistant', 'tool_calls': [{'function': {'name': 'f', 'arguments': '{\\\"a\\\": 1'}}]}]",
	  "[{'role': 'assistant', 'content': '', 'tool_calls': [{'type': 'function', 'function': {'name': 'f', 'arguments': "
	  "{'arguments': '{\\\"a\\\": 1'}}}]}]" },
	{ 'v', "[{'role': 'assistant', 'tool_calls': [{'function': {'name': 'f', 'arguments': '[1]'}}]}]",
	  "[{'role': 'assistant', 'content': null, 'tool_calls': [{'type': 'function', 'function': {'name': 'f', 'arguments': "
	  "{'arguments': '[1]'}}}]}]" },
	/* calls of custom tools, and of functions before there were tools */
	{ 'p',
	  "[{'role': 'assistant', 'tool_calls': [{'id': 'c', 'type': 'custom', 'custom': {'name': 'f', 'input': 'a'}}]}, "
	  "{'role': 'tool', 'tool_call_id': 'c', 'content': 'r'}]",
	  "[{'role': 'assistant', 'content': '', 'tool_calls': [{'id': 'c', 'type': 'function', 'function': {'name': 'f', 'arguments': "
	  "'{\\\"input\\\": \\\"a\\\"}'}}]}, {'role': 'tool', 'tool_call_id': 'c', 'content': 'r', 'name': 'f'}]" },
	{ 'p', "[{'role': 'assistant', 'tool_calls': [{'type': 'custom', 'custom': {}}]}]",
	  "messages[0].tool_calls[0].function.name: expected a string" },
	{ 'h',
	  "[{'role': 'assistant', 'content': null, 'function_call': {'name': 'f', 'arguments': '{}'}}, "
	  "{'role': 'function', 'name': 'f', 'content': 'r'}]",
	  "[{'role': 'assistant', 'content': '', 'tool_calls': [{'type': 'function', 'function': {'name': 'f', 'arguments': {}}}]}, "
	  "{'role': 'tool', 'name': 'f', 'content': 'r'}]" },
	{ 'p',
	  "[{'role': 'assistant', 'content': 'a', 'function_call': {'name': 'g'}, 'tool_calls': [{'type': 'function', 'function': "
	  "{'name': 'f'}}]}]",
	  "[{'role': 'assistant', 'content': 'a', 'tool_calls': [{'type': 'function', 'function': {'name': 'f'}}]}]" },
	{ 'h', "[{'role': 'assistant', 'tool_calls': [{'function': {'name': 'f', 'arguments': 3}}]}]",
	  "messages[0].tool_calls[0].function.arguments: expected a string" },
	{ 'h', "[{'role': 'assistant', 'tool_calls': [{'function': {'arguments': '{}'}}]}]",
	  "messages[0].tool_calls[0].function.name: expected a string" },
	{ 'h', "[{'role': 'assistant', 'tool_calls': [3]}]", "messages[0].tool_calls[0].function: expected an object" },
	{ 'h', "[{'role': 'assistant', 'tool_calls': 3, 'content': ''}]", "messages[0].tool_calls: expected an array" },
	{ 'p',
	  "[{'role': 'assistant', 'tool_calls': [{'type': 'function', 'function': {'name': 'f', 'arguments': 'as it is'}}], "
	  "'content': ''}]",
	  "[{'role': 'assistant', 'tool_calls': [{'type': 'function', 'function': {'name': 'f', 'arguments': 'as it is'}}], "
	  "'content': ''}]" },
	/* compact JSON of a client that wrote the arguments anew */
	{ 'v',
	  "[{'role': 'assistant', 'content': '', 'tool_calls': [{'type': 'function', 'function': {'name': 'f', 'arguments': "
	  "'{\\\"a\\\":true,\\\"b\\\":[1,2],\\\"c\\\":\\\"x\\\\\\\\y\\\",\\\"d\\\":null,\\\"e\\\" :\\n  1.0}'}}]}]",
	  "[{'role': 'assistant', 'content': '', 'tool_calls': [{'type': 'function', 'function': {'name': 'f', 'arguments': "
	  "{'a': 'True', 'b': '[1,2]', 'c': 'x\\\\y', 'd': 'None', 'e': '1.0'}}}]}]" },
	/* answers of tools */
	{ 'p',
	  "[{'role': 'assistant', 'content': '', 'tool_calls': [{'id': 'c1', 'type': 'function', 'function': {'name': 'f', "
	  "'arguments': '{}'}}]}, {'role': 'tool', 'tool_call_id': 'c1', 'content': 'r'}, {'role': 'tool', 'tool_call_id': 'c2', "
	  "'content': 's'}]",
	  "[{'role': 'assistant', 'content': '', 'tool_calls': [{'id': 'c1', 'type': 'function', 'function': {'name': 'f', "
	  "'arguments': '{}'}}]}, {'role': 'tool', 'tool_call_id': 'c1', 'content': 'r', 'name': 'f'}, {'role': 'tool', "
	  "'tool_call_id': 'c2', 'content': 's'}]" },
};

static void check_ids(const struct odm_context *c, const char *const *ids)
{
	const json_t *m, *call;
	size_t i, k;

	json_array_foreach(c->messages, i, m)
	{
		json_array_foreach(json_object_get(m, "tool_calls"), k, call)
		{
			assert_non_null(*ids);
			assert_string_equal(json_string_value(json_object_get(call, "id")), *ids++);
		}
		if (json_object_get(m, "tool_call_id") != NULL)
			assert_string_equal(json_string_value(json_object_get(m, "tool_call_id")), *ids++);
	}
	assert_null(*ids);
}

/* JSON with ' for ". */
static json_t *parse(const char *text)
{
	char *copy = strdup(text);
	json_error_t e;
	json_t *v;

	assert_non_null(copy);
	for (char *c = copy; *c != '\0'; c++)
		*c = *c == '\'' ? '"' : *c;
	v = json_loads(copy, 0, &e);
	if (v == NULL)
		fail_msg("%s: %s", copy, e.text);
	free(copy);
	return v;
}

static void test_messages(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		json_t *given = parse(rows[i].given),
		       *expected = rows[i].expected[0] == '[' ? parse(rows[i].expected) : NULL;
		struct odm_chat_format format;
		struct odm_context context;
		struct od_err err = { 0 };
		int rc;

		format = formats[rows[i].format - 'a'];
		rc = odm_context_build(&context, given, &format, &err);
		if (expected == NULL) {
			assert_int_not_equal(rc, OD_OK);
			assert_null(context.messages);
			assert_string_equal(err.msg, rows[i].expected);
		} else if (rc != OD_OK || !json_equal(context.messages, expected)) {
			fail_msg("%s gives %s (%s)", rows[i].given, json_dumps(context.messages, 0), err.msg);
		}
		odm_context_fini(&context);
		json_decref(given);
		json_decref(expected);
	}
}

static void test_short_ids(void **state)
{
	json_t *given = parse(
		"[{'role': 'assistant', 'content': '', 'tool_calls': [{'id': 'call_0123456789', 'function': {'name': 'f'}}, "
		"{'id': 'abcDEF012', 'function': {'name': 'g'}}]}, {'role': 'tool', 'tool_call_id': 'call_0123456789', "
		"'content': 'r'}, {'role': 'tool', 'tool_call_id': 'abcDEF012', 'content': 's'}]");
	const json_t *calls, *tool;
	struct odm_chat_format format;
	struct odm_context context;
	struct od_err err;
	const char *id;

	(void)state;
	format = formats['m' - 'a'];
	assert_int_equal(odm_context_build(&context, given, &format, &err), OD_OK);
	calls = json_object_get(json_array_get(context.messages, 0), "tool_calls");
	id = json_string_value(json_object_get(json_array_get(calls, 0), "id"));
	assert_int_equal(strlen(id), 9);
	assert_int_equal(strspn(id, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"), 9);
	tool = json_array_get(context.messages, 1);
	assert_string_equal(json_string_value(json_object_get(tool, "tool_call_id")), id);
	assert_string_equal(json_string_value(json_object_get(tool, "name")), "f");
	assert_string_equal(json_string_value(json_object_get(json_array_get(calls, 1), "id")), "abcDEF012");
	tool = json_array_get(context.messages, 2);
	assert_string_equal(json_string_value(json_object_get(tool, "tool_call_id")), "abcDEF012");
	odm_context_fini(&context);
	json_decref(given);
}

#define CALL(id, name) "{'id': '" id "', 'type': 'function', 'function': {'name': '" name "', 'arguments': '{}'}}"
#define CALLS(calls) "{'role': 'assistant', 'content': '', 'tool_calls': [" calls "]}"
#define RESULT(id) "{'role': 'tool', 'tool_call_id': '" id "', 'content': 'r'}"

/* Kimi's ids are counted over the conversation, whatever ids the client has: others', its own twice, none. */
static void test_counted_ids(void **state)
{
	static const struct {
		const char *given, *ids[12];
	} cases[] = {
		{ "[" CALLS(CALL("toolu_1", "f") ", " CALL("call_x", "g")) ", " RESULT("call_x") ", " RESULT(
			  "toolu_1") ", " CALLS(CALL("functions.f:0", "f")) ", " RESULT("functions.f:0") "]",
		  { "functions.f:0", "functions.g:1", "functions.g:1", "functions.f:0", "functions.f:2",
		    "functions.f:2" } },
		{ "[" CALLS(CALL("functions.f:0", "f")) ", " RESULT("functions.f:0") ", " CALLS(
			  CALL("functions.f:0", "f")) ", " RESULT("functions.f:0") "]",
		  { "functions.f:0", "functions.f:0", "functions.f:1", "functions.f:1" } },
		{ "[" CALLS(CALL("same", "f") ", " CALL("same", "g")) ", " RESULT("same") ", " RESULT("same") "]",
		  { "functions.f:0", "functions.g:1", "functions.f:0", "functions.g:1" } },
		{ "[" CALLS("{'function': {'name': 'f'}}, " CALL(
			  "", "g")) ", {'role': 'tool', 'content': 'r'}, " RESULT("other") "]",
		  { "functions.f:0", "functions.g:1", "functions.f:0", "functions.g:1" } },
		{ "[" RESULT("unknown") ", " CALLS(CALL("a", "f")) "]", { "unknown", "functions.f:0" } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		json_t *given = parse(cases[i].given);
		struct odm_context context;
		struct od_err err;

		assert_int_equal(odm_context_build(&context, given, &formats['k' - 'a'], &err), OD_OK);
		check_ids(&context, cases[i].ids);
		odm_context_fini(&context);
		json_decref(given);
	}
}

/* The request stays as it was. */
static void test_request_is_not_changed(void **state)
{
	json_t *given = parse(
		"[{'role': 'user', 'content': [{'type': 'image'}]}, {'role': 'assistant', 'tool_calls': [{'function': "
		"{'name': 'f', 'arguments': '{}'}}]}]");
	json_t *copy = json_deep_copy(given);
	struct odm_chat_format format;
	struct odm_context context;
	struct od_err err;

	(void)state;
	format = formats['b' - 'a'];
	assert_int_equal(odm_context_build(&context, given, &format, &err), OD_OK);
	assert_true(json_equal(given, copy));
	assert_false(json_equal(context.messages, copy));
	odm_context_fini(&context);
	json_decref(given);
	json_decref(copy);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_calls_come_back),
		cmocka_unit_test(test_messages),
		cmocka_unit_test(test_short_ids),
		cmocka_unit_test(test_counted_ids),
		cmocka_unit_test(test_request_is_not_changed),
	};

	return cmocka_run_group_tests(tests, answer_cases_setup, answer_cases_teardown);
}
