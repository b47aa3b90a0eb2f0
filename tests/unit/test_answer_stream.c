/* When an answer's blocks are given, its limits, and which format a template has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <utf8proc.h>

#include "tests/unit/answer_cases.h"

/* ---- What is given, and when ---- */

struct answer_stream {
	struct odm_chat_format format;
	struct odm_answer_sink sink;
	struct odm_answer *a;
	struct od_strbuf heard; /* "c:" content, "r:" reasoning, "f:" call, each with a "|" behind it */
	bool whole_characters, shows_arguments; /* "a:" arguments, "e:" the call's end */
};

static void hear(struct answer_stream *s, const char *what, const char *text, size_t len)
{
	const utf8proc_uint8_t *at = (const utf8proc_uint8_t *)text;
	utf8proc_int32_t c;

	for (size_t i = 0; i < len;) {
		const utf8proc_ssize_t n = utf8proc_iterate(at + i, (utf8proc_ssize_t)(len - i), &c);

		s->whole_characters = s->whole_characters && n > 0;
		i += n > 0 ? (size_t)n : 1;
	}
	od_strbuf_printf(&s->heard, "%s:", what);
	od_strbuf_append(&s->heard, text, len);
	od_strbuf_append(&s->heard, "|", 1);
}

static void hear_content(void *arg, const char *text, size_t len)
{
	hear(arg, "c", text, len);
}

static void hear_reasoning(void *arg, const char *text, size_t len)
{
	hear(arg, "r", text, len);
}

static void hear_call(void *arg, const char *name, const char *id)
{
	(void)id;
	hear(arg, "f", name, strlen(name));
}

static void hear_arguments(void *arg, const char *text, size_t len)
{
	struct answer_stream *s = arg;

	if (s->shows_arguments)
		hear(s, "a", text, len);
}

static void hear_call_end(void *arg, bool complete)
{
	struct answer_stream *s = arg;

	if (s->shows_arguments)
		hear(s, complete ? "e" : "broken", "", 0);
}

static void open_stream(struct answer_stream *s, const char *template_text, bool in_thought, size_t max_call_bytes)
{
	struct odm_answer_opts opts = { .format = &s->format,
					.in_thought = in_thought,
					.max_call_bytes = max_call_bytes };
	struct od_err err;

	*s = (struct answer_stream){ .sink = { s, hear_content, hear_reasoning, hear_call, hear_arguments,
					       hear_call_end },
				     .whole_characters = true };
	odm_chat_format_choose(&s->format, template_text, "</s>");
	assert_int_equal(odm_answer_new(&s->a, &opts, &s->sink, &err), OD_OK);
}

static void close_stream(struct answer_stream *s)
{
	odm_answer_free(s->a);
	od_strbuf_fini(&s->heard);
}

/* Pushes text and compares what is given at once. */
static void push(struct answer_stream *s, const char *text, const char *expected)
{
	od_strbuf_fini(&s->heard);
	assert_int_equal(odm_answer_push(s->a, text, strlen(text)), OD_OK);
	assert_string_equal(s->heard.len > 0 ? s->heard.text : "", expected);
}

static void finish(struct answer_stream *s, const char *expected)
{
	od_strbuf_fini(&s->heard);
	assert_int_equal(odm_answer_finish(s->a), OD_OK);
	assert_string_equal(s->heard.len > 0 ? s->heard.text : "", expected);
}

static void test_tags_are_held(void **state)
{
	struct answer_stream s;

	(void)state;
	open_stream(&s, "<tool_call> <think></think> <|im_end|>", false, 0);
	push(&s, "<thi", "");
	push(&s, "nk>", "");
	push(&s, "so", "r:so|");
	push(&s, "\n", "");
	push(&s, "\nand <", "r:\n\nand |");
	push(&s, "/thin", "");
	push(&s, "g></think", "r:</thing>|");
	push(&s, ">\n\nHello", "c:Hello|");
	push(&s, " <tool", "c: |");
	push(&s, "bar", "c:<toolbar|");
	push(&s, "\n<tool_call>", "");
	push(&s, "\n", "");
	push(&s, "a", "c:\n<tool_call>\na|");
	push(&s, "\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call", "");
	push(&s, ">", "f:f|");
	push(&s, "\n<tool_call>{\"f", "");
	push(&s, "\":", "c:\n<tool_call>{\"f\":|");
	push(&s, "<|im_end|>x", "");
	assert_true(odm_answer_over(s.a));
	finish(&s, "");
	close_stream(&s);
}

static void test_json_answers_are_not_held(void **state)
{
	struct answer_stream s;

	(void)state;
	open_stream(&s, "<|python_tag|>", false, 0);
	push(&s, "{\"temp\"", "");
	push(&s, ": 1, ", "c:{\"temp\": 1, |");
	push(&s, "{\"name\": \"f\", \"parameters\": {}}", "c:{\"name\": \"f\", \"parameters\": {}}|");
	push(&s, "</s>", "");
	assert_true(odm_answer_over(s.a));
	close_stream(&s);
}

/* Nothing waits for what cannot come. */
static void test_what_is_not_held(void **state)
{
	const char *deep = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": "
			   "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[";
	json_t *no_tools = json_array();
	struct odm_answer_opts opts = { .tools = no_tools };
	struct answer_stream s;
	struct od_err err;

	(void)state;
	open_stream(&s, "<tool_call>", false, 0);
	push(&s, deep,
	     "c:<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": "
	     "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[|");
	odm_answer_free(s.a);
	opts.format = &s.format;
	assert_int_equal(odm_answer_new(&s.a, &opts, &s.sink, &err), OD_OK);
	push(&s, "a<tool_call>", "c:a<tool_call>|");
	close_stream(&s);
	json_decref(no_tools);
	open_stream(&s, "<|channel|><|message|>", false, 0);
	push(&s, "Hello to=you", "c:Hello to=you|");
	close_stream(&s);
}

static void open_early(struct answer_stream *s, const char *template_text)
{
	struct odm_answer_opts opts = { .format = &s->format, .early_calls = true };
	struct od_err err;

	open_stream(s, template_text, false, 0);
	s->shows_arguments = true;
	odm_answer_free(s->a);
	assert_int_equal(odm_answer_new(&s->a, &opts, &s->sink, &err), OD_OK);
}

static void test_early_calls(void **state)
{
	struct answer_stream s;

	(void)state;
	open_early(&s, "<tool_call>");
	push(&s, "<tool_call>{\"name\": \"f\", \"arguments\": ", "");
	push(&s, "{\"a\": \"x", "f:f|a:{\"a\": \"x|");
	push(&s, "\\ud83d", ""); /* a half of a character */
	push(&s, "\\ude00y\\", "a:\\ud83d\\ude00y|");
	push(&s, "n\"}", "a:\\n\"}|");
	push(&s, "}</tool_call>", "e:|");
	push(&s, "<tool_call>{\"arguments\": {}, \"name\": \"f\"}", ""); /* the name is last */
	push(&s, "</tool_call>", "f:f|a:{}|e:|");
	push(&s, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1", "f:f|a:{\"a\": 1|");
	finish(&s, "broken:|");
	close_stream(&s);
	open_early(&s, "<tool_call><function=");
	push(&s, "<tool_call>\n<function=f>\n", "");
	push(&s, "<parameter=p>\n0123456789012345", "f:f|a:{\"p\": \"01234|"); /* the rest may be the end tag's */
	push(&s, "\n</parameter>", "a:56789012345|");
	push(&s, "\n</function>\n</tool_call>", "a:\"}|e:|");
	close_stream(&s);
	open_early(&s, "<|tool_call><tool_call|>");
	push(&s, "<|tool_call>call:f{a:1,b:<|\"|>xy\"z01234567890", "f:f|a:{\"a\": 1, \"b\": \"xy\\\"z|");
	push(&s, "<|\"|>}<tool_call|>", "a:01234567890\"}|e:|");
	close_stream(&s);
}

/* The white space around an answer, and stop strings. */
static void test_ends_of_an_answer(void **state)
{
	static const char *const stop[] = { "END", "\n\n" };
	struct odm_answer_opts opts = { .lead = " ", .tail = "\n", .stop = stop, .n_stop = 2 };
	struct answer_stream s;
	struct od_err err;
	size_t which;

	(void)state;
	open_stream(&s, "plain", false, 0);
	opts.format = &s.format;
	odm_answer_free(s.a);
	assert_int_equal(odm_answer_new(&s.a, &opts, &s.sink, &err), OD_OK);
	push(&s, " ", "");
	push(&s, " a", "c: a|");
	push(&s, "\n", "");
	push(&s, "b E", "c:\nb |");
	push(&s, "N\n", "");
	finish(&s, "c:EN|");
	assert_false(odm_answer_stopped(s.a, &which));
	odm_answer_free(s.a);
	assert_int_equal(odm_answer_new(&s.a, &opts, &s.sink, &err), OD_OK);
	push(&s, "a EN", "c:a |");
	push(&s, "Db", "");
	assert_true(odm_answer_stopped(s.a, &which) && odm_answer_over(s.a));
	assert_int_equal(which, 0);
	push(&s, "c", "");
	finish(&s, "");
	close_stream(&s);
}

static void test_waiting_calls(void **state)
{
	const char *call = "<minimax:tool_call><invoke name=\"f\"></invoke></minimax:tool_call>";
	const char *format = "<minimax:tool_call><invoke name= <think></think>";
	struct answer_stream s;

	(void)state;
	open_stream(&s, format, true, 0);
	push(&s, "a", "r:a|");
	push(&s, call, "");
	finish(&s, "f:f|");
	close_stream(&s);
	open_stream(&s, format, true, 0);
	push(&s, call, "");
	push(&s, "\nb", "r:<minimax:tool_call><invoke name=\"f\"></invoke></minimax:tool_call>\nb|");
	finish(&s, "");
	close_stream(&s);
}

static void test_characters_stay_whole(void **state)
{
	(void)state;
	for (size_t i = 0; i < answer_cases.n; i++) {
		const struct answer_case *c = &answer_cases.c[i];
		struct answer_stream s;

		open_stream(&s, c->template_text, c->in_thought, 0);
		for (size_t k = 0; k < c->len; k++)
			assert_int_equal(odm_answer_push(s.a, c->text + k, 1), OD_OK);
		assert_int_equal(odm_answer_finish(s.a), OD_OK);
		if (!s.whole_characters)
			fail_msg("%s: a piece ends inside a character", c->name);
		close_stream(&s);
	}
}

static void test_broken_characters_pass(void **state)
{
	struct answer_stream s;

	(void)state;
	open_stream(&s, "", false, 0);
	push(&s, "a\xe2\x82", "c:a|");
	push(&s, "b\xff\xf0\x9f",
	     "c:\xe2\x82"
	     "b\xff|");
	finish(&s, "c:\xf0\x9f|");
	close_stream(&s);
}

/* ---- Limits ---- */

static void test_call_of_the_greatest_length(void **state)
{
	const char *call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
	struct answer_stream s;

	(void)state;
	open_stream(&s, "<tool_call>", false, strlen(call));
	push(&s, call, "f:f|");
	close_stream(&s);
	open_stream(&s, "<tool_call>", false, strlen(call) - 2); /* too long before its last byte is there */
	push(&s, call, "c:<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>|");
	close_stream(&s);
	open_stream(&s, "<|channel|> <|message|>", false, 4);
	push(&s, "<|channel|>commentary to=functions.f<|message|>{   }",
	     "c:<|channel|>commentary to=functions.f<|message|>{   }|");
	close_stream(&s);
}

/* Megabytes of beginnings that lead nowhere: all come back, and none is looked at again and again. */
static void test_long_nonsense(void **state)
{
	static const struct {
		const char *template_text, *text;
	} rows[] = {
		{ "<tool_call> <function=", "<tool_call><function=a><parameter=b>" },
		{ "<tool_call> <function=", "<tool_call><function=a><parameter=b></parameter>" },
		{ "<tool_call>", "<tool_call>{\"name\": \"" },
		{ "<tool_call>", "<tool_call>{\"name\": {" },
		{ "<tool_call> <arg_key>", "<tool_call>a\n<arg_key>" },
		{ "[TOOL_CALLS]", "[TOOL_CALLS][{\"name" },
		{ "<|tool_call> <tool_call|>", "<|tool_call>call:a{b:" },
		{ "<|channel|><|message|>", "<|channel|>analysis" },
		{ "<|channel|><|message|>", "<|channel|> to=functions.a<|message|>{" },
		{ "<think></think>", "<think><" },
	};
	const size_t total = (size_t)2 << 20;

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const size_t n = strlen(rows[i].text);
		size_t pushed = 0, given = 0;
		struct answer_stream s;

		open_stream(&s, rows[i].template_text, false, 0);
		for (; pushed < total; pushed += n) {
			assert_int_equal(odm_answer_push(s.a, rows[i].text, n), OD_OK);
			given += s.heard.len;
			od_strbuf_fini(&s.heard);
		}
		assert_int_equal(odm_answer_finish(s.a), OD_OK);
		given += s.heard.len;
		assert_true(given >= pushed - n || strstr(rows[i].template_text, "think") != NULL ||
			    strstr(rows[i].template_text, "channel") != NULL);
		close_stream(&s);
	}
}

/* ---- Forms ---- */

static const char *template_of(const char *start)
{
	for (size_t i = 0; i < answer_cases.n; i++)
		if (strncmp(answer_cases.c[i].name, start, strlen(start)) == 0 &&
		    answer_cases.c[i].name[strlen(start)] == '/')
			return answer_cases.c[i].template_text;
	fail_msg("no case of %s", start);
	return NULL;
}

static void test_formats(void **state)
{
	static const struct {
		const char *family, *format;
		enum odm_echo echo;
		bool opens_thought, takes_parts, takes_thinking;
	} rows[] = {
		{ "qwen3_moe", "json-in-tags", ODM_ECHO_TEXT, false, false, false },
		{ "hermes", "json-in-tags", ODM_ECHO_OBJECT, false, false, false },
		{ "qwen3_next", "qwen-xml", ODM_ECHO_VALUES, false, false, false },
		{ "qwen3_5_moe", "qwen-xml", ODM_ECHO_VALUES, true, true, false },
		{ "glm4_moe", "glm", ODM_ECHO_VALUES, false, true, false },
		{ "minimax_m2", "minimax", ODM_ECHO_VALUES, true, true, false },
		{ "deepseek_v3", "deepseek-v3", ODM_ECHO_TEXT, true, false, false },
		{ "deepseek-v3.1", "deepseek-v3.1", ODM_ECHO_TEXT, false, false, false },
		{ "gpt_oss", "harmony", ODM_ECHO_OBJECT, false, false, true },
		{ "gemma4", "gemma", ODM_ECHO_GEMMA, false, true, false },
		{ "mistral", "mistral", ODM_ECHO_OBJECT, false, false, false },
		{ "mistral-named", "mistral", ODM_ECHO_TEXT, false, false, false },
		{ "llama", "llama", ODM_ECHO_OBJECT, false, false, false },
		{ "kimi", "kimi", ODM_ECHO_TEXT, false, false, false },
		{ "mixtral", "plain", ODM_ECHO_TEXT, false, false, false },
		{ "olmoe", "plain", ODM_ECHO_TEXT, false, false, false },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct odm_chat_format f;

		answer_case_format(&f, template_of(rows[i].family));
		assert_string_equal(f.name, rows[i].format);
		assert_int_equal(f.echo, rows[i].echo);
		assert_int_equal(f.opens_thought, rows[i].opens_thought);
		assert_int_equal(f.content[ODM_ROLE_USER] == ODM_CONTENT_BOTH, rows[i].takes_parts);
		assert_int_equal(f.thought_field == ODM_THOUGHT_THINKING, rows[i].takes_thinking);
	}
}

static void test_prompt_ends(void **state)
{
	static const struct {
		const char *prompt;
		bool in_thought;
	} rows[] = {
		{ "<think>", true },
		{ "<|im_start|>assistant\n<think>\n", true },
		{ "<|im_start|>assistant\n<think>\n\n</think>\n\n", false },
		{ "<|im_start|>user\n<think>\n<|im_end|>\n<|im_start|>assistant\n", false },
		{ "", false },
		{ "think>", false },
	};
	const struct od_text_spans none = { 0 };
	struct odm_chat_format f;

	(void)state;
	odm_chat_format_choose(&f, "<think></think>", NULL);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_int_equal(odm_chat_format_in_thought(&f, rows[i].prompt, strlen(rows[i].prompt), &none),
				 rows[i].in_thought);
	odm_chat_format_choose(&f, "", NULL);
	assert_false(odm_chat_format_in_thought(&f, "<think>", 7, &none));
}

/* A tag of which any byte is a user's opens no thought. */
static void test_users_tags(void **state)
{
	static const char prompt[] = "assistant\n<think>\n";
	struct odm_chat_format f;

	(void)state;
	odm_chat_format_choose(&f, "<think></think>", NULL);
	for (size_t at = 0; at < sizeof(prompt) - 1; at++) {
		struct od_text_span spans[2] = { { 0, 2 }, { at, at + 1 } };
		const struct od_text_spans users = { .v = at < 2 ? spans : &spans[1], .n = 1 },
					   both = { .v = spans, .n = 2 };
		const bool hit = at >= 10 && at < 17;

		assert_int_equal(odm_chat_format_in_thought(&f, prompt, sizeof(prompt) - 1, &users), !hit);
		if (at > 2)
			assert_int_equal(odm_chat_format_in_thought(&f, prompt, sizeof(prompt) - 1, &both), !hit);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tags_are_held),
		cmocka_unit_test(test_json_answers_are_not_held),
		cmocka_unit_test(test_what_is_not_held),
		cmocka_unit_test(test_early_calls),
		cmocka_unit_test(test_ends_of_an_answer),
		cmocka_unit_test(test_waiting_calls),
		cmocka_unit_test(test_characters_stay_whole),
		cmocka_unit_test(test_broken_characters_pass),
		cmocka_unit_test(test_call_of_the_greatest_length),
		cmocka_unit_test(test_long_nonsense),
		cmocka_unit_test(test_formats),
		cmocka_unit_test(test_prompt_ends),
		cmocka_unit_test(test_users_tags),
	};

	return cmocka_run_group_tests(tests, answer_cases_setup, answer_cases_teardown);
}
