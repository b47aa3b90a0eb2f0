/* Fields that clients send, and how each is treated; docs/CLIENTS.md is made from the same table. With --write FILE:
 * makes the page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/base/file.h"
#include "common/base/strbuf.h"
#include "main-node/serve/api/client_fields.h"

#define PAGE "docs/CLIENTS.md"

static const struct {
	enum odm_api_kind kind;
	const char *name;
} apis[] = {
	{ ODM_API_COMPLETIONS, "/v1/completions" },
	{ ODM_API_CHAT, "/v1/chat/completions" },
	{ ODM_API_RESPONSES, "/v1/responses" },
	{ ODM_API_MESSAGES, "/v1/messages" },
	{ ODM_API_OLLAMA_OPTIONS, "options" },
	{ ODM_API_TOKENS, "/tokenize" },
	{ ODM_API_OLLAMA_CHAT, "/api/chat" },
	{ ODM_API_OLLAMA_GENERATE, "/api/generate" },
	{ ODM_API_OLLAMA_SHOW, "/api/show" },
	{ ODM_API_CHOICES, "/v1/choices" },
	{ ODM_API_INFILL, "/infill" },
};
#define N_SAMPLERS 5 /* the first ones take settings of sampling */
#define N_APIS (sizeof(apis) / sizeof(apis[0]))

static bool refuses(const char *field, const char *value, enum odm_api_kind api)
{
	json_t *request = json_pack("{s:o}", field, json_loads(value, JSON_DECODE_ANY, NULL));
	struct odm_api_error e = { 0 };
	int rc = odm_client_fields_apply(request, api, &e);

	if (rc != OD_OK) {
		assert_int_equal(rc, OD_ERR_UNSUPPORTED);
		assert_int_equal(e.status, 400);
		assert_string_equal(e.param, field);
		assert_memory_equal(e.message, field, strlen(field));
	}
	json_decref(request);
	return rc != OD_OK;
}

static void what_would_change_the_answer_is_refused_by_name(void **state)
{
	static const struct {
		const char *field, *value, *neutral;
	} t[] = {
		{ "tfs", "0.9", "1" },
		{ "tfs", "0.9", "1.0" },
		{ "mirostat", "2", "0" },
		{ "smoothing_factor", "0.8", "0.0" },
		{ "epsilon_cutoff", "0.5", "0" },
		{ "format", "\"json\"", "\"\"" },
		{ "use_beam_search", "true", "false" },
		{ "penalize_nl", "true", "false" },
		{ "tfs_z", "0.5", "1" },
		{ "top_a", "0.1", "0" },
		{ "bad_words", "[\"a\"]", "[]" },
		{ "do_sample", "false", "true" },
		{ "no_repeat_ngram_size", "3", "0" },
		{ "allowed_token_ids", "[5]", "[]" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
		for (size_t a = 0; a < N_SAMPLERS; a++) {
			if (strcmp(t[i].field, "do_sample") != 0 && !refuses(t[i].field, t[i].value, apis[a].kind))
				fail_msg("%s: %s is taken", t[i].field, t[i].value);
			if (refuses(t[i].field, t[i].neutral, apis[a].kind))
				fail_msg("%s: %s is refused", t[i].field, t[i].neutral);
		}
	assert_false(refuses("nobody_knows_it", "1", ODM_API_CHAT));
	assert_true(refuses("previous_response_id", "\"resp_1\"", ODM_API_RESPONSES));
	assert_false(refuses("store", "true", ODM_API_RESPONSES)); /* clients send it unasked */
	assert_false(refuses("store", "true", ODM_API_CHAT));
}

static void assert_becomes(const char *text, enum odm_api_kind api, const char *wanted)
{
	json_t *request = json_loads(text, 0, NULL), *expected = json_loads(wanted, 0, NULL);
	struct odm_api_error e = { 0 };

	assert_int_equal(odm_client_fields_apply(request, api, &e), OD_OK);
	if (!json_equal(request, expected))
		fail_msg("%s does not become %s", text, wanted);
	json_decref(request);
	json_decref(expected);
}

/* Ollama has its settings in an object of their own. */
static void options_are_looked_at_with_the_request(void **state)
{
	static const enum odm_api_kind kinds[] = { ODM_API_OLLAMA_CHAT, ODM_API_OLLAMA_GENERATE };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		json_t *request = json_loads("{\"options\": {\"mirostat\": 1}}", 0, NULL);
		struct odm_api_error e = { 0 };

		assert_int_equal(odm_client_fields_apply(request, kinds[i], &e), OD_ERR_UNSUPPORTED);
		assert_string_equal(e.param, "mirostat");
		assert_int_equal(odm_client_fields_apply(request, ODM_API_OLLAMA_SHOW, &e), OD_OK);
		json_decref(request);
		assert_becomes("{\"options\": {\"repeat_penalty\": 1.1}}", kinds[i],
			       "{\"options\": {\"repetition_penalty\": 1.1}}");
		assert_becomes("{\"options\": 3, \"repeat_penalty\": 1.1}", kinds[i],
			       "{\"options\": 3, \"repeat_penalty\": 1.1}");
	}
	assert_becomes("{\"name\": \"m\"}", ODM_API_OLLAMA_SHOW, "{\"model\": \"m\"}");
}

static void aliases_mean_what_they_mean(void **state)
{
	(void)state;
	assert_becomes("{\"repeat_penalty\": 1.1}", ODM_API_CHAT, "{\"repetition_penalty\": 1.1}");
	assert_becomes("{\"repeat_penalty\": 1.1, \"repetition_penalty\": 2}", ODM_API_MESSAGES,
		       "{\"repetition_penalty\": 2}");
	assert_becomes("{\"typ_p\": 0.5}", ODM_API_MESSAGES, "{\"typical_p\": 0.5}");
	assert_becomes("{\"n_predict\": -1}", ODM_API_COMPLETIONS, "{\"max_tokens\": -1}");
	assert_becomes("{\"n_predict\": 5}", ODM_API_RESPONSES, "{\"max_output_tokens\": 5}");
	assert_becomes("{\"max_tokens\": 5}", ODM_API_RESPONSES, "{\"max_output_tokens\": 5}");
	assert_becomes("{\"max_tokens\": 5}", ODM_API_CHAT, "{\"max_tokens\": 5}");
}

/* No row is shadowed by another: each field has one fate in an API. */
static void rows_are_single(void **state)
{
	(void)state;
	for (const struct odm_client_field *f = odm_client_fields; f->name != NULL; f++) {
		assert_true(f->apis != 0);
		assert_int_equal(f->fate == ODM_FIELD_ALIAS, f->means != NULL);
		for (const struct odm_client_field *g = f + 1; g->name != NULL; g++)
			if ((f->apis & g->apis) != 0 && strcmp(f->name, g->name) == 0)
				fail_msg("%s stands twice", f->name);
		if (f->neutral != NULL)
			for (size_t a = 0; a < N_APIS; a++)
				assert_false((f->apis & apis[a].kind) != 0 &&
					     refuses(f->name, f->neutral, apis[a].kind));
	}
}

/* ---- The page ---- */

static void write_apis(struct od_strbuf *out, unsigned kinds)
{
	const unsigned all =
		ODM_API_COMPLETIONS | ODM_API_CHAT | ODM_API_RESPONSES | ODM_API_MESSAGES | ODM_API_OLLAMA_OPTIONS;
	const char *comma = "";

	if (kinds == all) {
		od_strbuf_printf(out, "all");
		return;
	}
	for (size_t i = 0; i < N_APIS; i++)
		if ((kinds & apis[i].kind) != 0) {
			od_strbuf_printf(out, "%s`%s`", comma, apis[i].name);
			comma = ", ";
		}
}

static void write_note(struct od_strbuf *out, const struct odm_client_field *f)
{
	if (f->fate == ODM_FIELD_ALIAS)
		od_strbuf_printf(out, "as `%s`", f->means);
	else if (f->neutral != NULL)
		od_strbuf_printf(out, "`%s` is taken", f->neutral);
	else
		od_strbuf_printf(out, "%s", f->note != NULL ? f->note : "");
}

static void write_fate(struct od_strbuf *out, const char *title, const char *about, enum odm_fate fate,
		       enum odm_fate also)
{
	od_strbuf_printf(out, "\n## %s\n\n%s\n\n| field | API | |\n|---|---|---|\n", title, about);
	for (const struct odm_client_field *f = odm_client_fields; f->name != NULL; f++) {
		if (f->fate != fate && f->fate != also)
			continue;
		od_strbuf_printf(out, "| `%s` | ", f->name);
		write_apis(out, f->apis);
		od_strbuf_printf(out, " | ");
		write_note(out, f);
		od_strbuf_printf(out, " |\n");
	}
}

static void write_page(struct od_strbuf *out)
{
	od_strbuf_printf(
		out,
		"# What clients send\n\n"
		"Every field of a request that clients of OpenAI, Anthropic, vLLM, llama-server and Ollama are known to send, and what\n"
		"becomes of it here. The page is made from the table that the server reads requests by (`make docs/CLIENTS.md`;\n"
		"`client_fields.c`). A field that is in no list is ignored, and the log says so once. null is as good as nothing.\n"
		"\"All\" are `/v1/completions`, `/v1/chat/completions`, `/v1/responses`, `/v1/messages`, and `options`, the object of this\n"
		"name in Ollama's `/api/chat` and `/api/generate`. `/v1/choices` is listed with what it does not take as\n"
		"`/v1/chat/completions` does; fields about sampling and the answer's form change nothing there. `/infill` is listed with\n"
		"what it does not take as `/v1/completions` does.\n");
	write_fate(out, "Done", "What values mean is in [ARCHITECTURE](ARCHITECTURE.md#serving).", ODM_FIELD_DONE,
		   ODM_FIELD_ALIAS);
	write_fate(out, "Ignored", "They do not change the answer, for the reason that is given.", ODM_FIELD_IGNORED,
		   ODM_FIELD_IGNORED);
	write_fate(
		out, "Refused by name",
		"They ask for what is not done here: status 400. Values that ask for nothing are taken: null, false, 0, \"\", [] and {}, and\n"
		"the one that is given.",
		ODM_FIELD_REFUSED, ODM_FIELD_REFUSED);
}

static void the_page_is_made_from_the_table(void **state)
{
	struct od_strbuf page = { 0 };
	char *text;
	size_t len;

	(void)state;
	write_page(&page);
	assert_int_equal(od_file_read(PAGE, 1u << 20, &text, &len, NULL), OD_OK);
	if (len != page.len || memcmp(text, page.text, len) != 0)
		fail_msg(PAGE " is not what the table says: make " PAGE);
	free(text);
	od_strbuf_fini(&page);
}

static int write_to(const char *path)
{
	struct od_strbuf page = { 0 };
	FILE *f = fopen(path, "w");
	int rc = 1;

	write_page(&page);
	if (f != NULL)
		rc = fwrite(page.text, 1, page.len, f) == page.len ? 0 : 1;
	if (f != NULL && fclose(f) != 0)
		rc = 1;
	od_strbuf_fini(&page);
	return rc;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_would_change_the_answer_is_refused_by_name),
		cmocka_unit_test(options_are_looked_at_with_the_request),
		cmocka_unit_test(aliases_mean_what_they_mean),
		cmocka_unit_test(rows_are_single),
		cmocka_unit_test(the_page_is_made_from_the_table),
	};

	if (argc == 3 && strcmp(argv[1], "--write") == 0)
		return write_to(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
