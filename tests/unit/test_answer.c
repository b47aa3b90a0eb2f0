/* What raw texts mean, by the table of tests/golden/chat/answers.json, however they are cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "main-node/chat/answer_print.h"
#include "tests/unit/answer_cases.h"

static size_t n_wrong;

static bool same_text(const struct answer_case *c, const json_t *got, const char *key, const char *expected, const char *how)
{
	const char *text = json_string_value(json_object_get(got, key));

	if (text != NULL && strcmp(text, expected) == 0)
		return true;
	print_error("%s, %s: %s: expected\n%s\nfound\n%s\n", c->name, how, key, expected, text);
	return false;
}

static bool same_calls(const struct answer_case *c, const json_t *got, const char *how)
{
	char *text;

	if (json_equal(json_object_get(got, "tool_calls"), c->calls))
		return true;
	text = json_dumps(json_object_get(got, "tool_calls"), JSON_INDENT(1));
	print_error("%s, %s: calls: found\n%s\n", c->name, how, text);
	free(text);
	return false;
}

static void expect(const struct answer_case *c, const json_t *got, const char *how)
{
	const bool calls = same_calls(c, got, how), content = same_text(c, got, "content", c->content, how);

	if (!same_text(c, got, "reasoning", c->reasoning, how) || !calls || !content)
		n_wrong++;
}

static void play(const struct answer_case *c, size_t piece)
{
	const struct odm_answer_opts opts = answer_case_opts(c);
	struct od_err err;
	json_t *got;
	char how[32];

	snprintf(how, sizeof(how), "%zu bytes at a time", piece);
	assert_int_equal(odm_answer_object(&got, &opts, c->text, c->len, piece, &err), OD_OK);
	expect(c, got, how);
	json_decref(got);
}

static void test_whole(void **state)
{
	(void)state;
	for (size_t i = 0; i < answer_cases.n; i++)
		play(&answer_cases.c[i], 0);
	assert_int_equal(n_wrong, 0);
}

static void test_byte_by_byte(void **state)
{
	(void)state;
	for (size_t i = 0; i < answer_cases.n; i++)
		for (size_t piece = 1; piece <= 3; piece++)
			play(&answer_cases.c[i], piece);
	assert_int_equal(n_wrong, 0);
}

/* As odm_answer_object, in the two pieces that meet at `cut`. */
struct heard {
	struct od_strbuf text[2];
	json_t *calls;
};

static void hear_content(void *arg, const char *text, size_t len)
{
	od_strbuf_append(&((struct heard *)arg)->text[0], text, len);
}

static void hear_reasoning(void *arg, const char *text, size_t len)
{
	od_strbuf_append(&((struct heard *)arg)->text[1], text, len);
}

static void hear_call(void *arg, const struct odm_tool_call *call)
{
	json_t *o = json_pack("{s:s, s:s, s:s*}", "name", call->name, "arguments", call->arguments, "id", call->id);

	assert_int_equal(json_array_append_new(((struct heard *)arg)->calls, o), 0);
}

static json_t *play_cut(const struct answer_case *c, size_t cut)
{
	const struct odm_answer_opts opts = answer_case_opts(c);
	struct heard h = { .calls = json_array() };
	const struct odm_answer_sink sink = { &h, hear_content, hear_reasoning, hear_call };
	struct odm_answer *a;
	struct od_err err;
	json_t *got;

	assert_int_equal(odm_answer_new(&a, &opts, &sink, &err), OD_OK);
	assert_int_equal(odm_answer_push(a, c->text, cut), OD_OK);
	assert_int_equal(odm_answer_push(a, c->text + cut, c->len - cut), OD_OK);
	assert_int_equal(odm_answer_finish(a), OD_OK);
	assert_true(odm_answer_over(a));
	odm_answer_free(a);
	got = json_pack("{s:s%, s:s%, s:o}", "content", h.text[0].len > 0 ? h.text[0].text : "", h.text[0].len, "reasoning",
			h.text[1].len > 0 ? h.text[1].text : "", h.text[1].len, "tool_calls", h.calls);
	od_strbuf_fini(&h.text[0]);
	od_strbuf_fini(&h.text[1]);
	return got;
}

static void test_every_cut(void **state)
{
	char how[32];

	(void)state;
	for (size_t i = 0; i < answer_cases.n; i++)
		for (size_t cut = 0; cut <= answer_cases.c[i].len; cut++) {
			json_t *got = play_cut(&answer_cases.c[i], cut);

			snprintf(how, sizeof(how), "cut at %zu", cut);
			assert_non_null(got);
			expect(&answer_cases.c[i], got, how);
			json_decref(got);
		}
	assert_int_equal(n_wrong, 0);
}

/* The beginning of any case is a text, too; nothing of it is lost, and how it comes changes nothing. */
static void test_every_beginning(void **state)
{
	(void)state;
	for (size_t i = 0; i < answer_cases.n; i++)
		for (size_t len = 0; len < answer_cases.c[i].len; len++) {
			const struct odm_answer_opts opts = answer_case_opts(&answer_cases.c[i]);
			struct od_err err;
			json_t *whole, *bytes;

			assert_int_equal(odm_answer_object(&whole, &opts, answer_cases.c[i].text, len, 0, &err), OD_OK);
			assert_int_equal(odm_answer_object(&bytes, &opts, answer_cases.c[i].text, len, 1, &err), OD_OK);
			if (!json_equal(whole, bytes))
				fail_msg("%s: the first %zu bytes", answer_cases.c[i].name, len);
			json_decref(whole);
			json_decref(bytes);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whole),
		cmocka_unit_test(test_byte_by_byte),
		cmocka_unit_test(test_every_cut),
		cmocka_unit_test(test_every_beginning),
	};

	return cmocka_run_group_tests(tests, answer_cases_setup, answer_cases_teardown);
}
