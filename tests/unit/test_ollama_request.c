/* Requests of Ollama's API become requests of chat completions. What is expected is written by hand from Ollama's
 * description of its API. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "main-node/serve/api/call_memory.h"
#include "main-node/serve/api/ollama_request.h"
#include "main-node/serve/http/json_fields.h"

static int convert(json_t **chat, const char *body, bool generates, bool plain, struct odm_call_memory *calls,
		   struct odm_api_error *e)
{
	json_t *request;
	int rc;

	*e = (struct odm_api_error){ 0 };
	assert_int_equal(odm_fields_parse(body, strlen(body), &request, e), OD_OK);
	if (generates)
		rc = odm_chat_of_ollama_prompt(chat, request, plain, e);
	else
		rc = odm_chat_of_ollama_chat(chat, request, body, strlen(body), calls, e);
	json_decref(request);
	return rc;
}

/* wanted: NULL: there is nothing to answer. */
static void check(const char *body, bool generates, bool plain, struct odm_call_memory *calls, const char *wanted)
{
	json_t *chat, *expected = wanted != NULL ? json_loads(wanted, 0, NULL) : NULL;
	struct odm_api_error e;

	assert_true(wanted == NULL || expected != NULL);
	if (convert(&chat, body, generates, plain, calls, &e) != OD_OK)
		fail_msg("%s: %s", body, e.message);
	if (expected == NULL ? chat != NULL : !json_equal(chat, expected))
		fail_msg("%s becomes %s", body, chat != NULL ? json_dumps(chat, 0) : "nothing");
	json_decref(chat);
	json_decref(expected);
}

static void chat(const char *body, const char *wanted)
{
	check(body, false, false, NULL, wanted);
}

static void prompt(const char *body, const char *wanted)
{
	check(body, true, false, NULL, wanted);
}

#define HI "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]"

static void settings(void **state)
{
	(void)state;
	chat("{" HI "}", "{\"stream\": true, " HI "}");
	chat("{" HI
	     ", \"stream\": false, \"think\": \"low\", \"keep_alive\": \"5m\", \"tools\": [{\"type\": \"function\"}]}",
	     "{\"stream\": false, \"think\": \"low\", \"tools\": [{\"type\": \"function\"}], " HI "}");
	chat("{" HI
	     ", \"options\": {\"num_predict\": 7, \"temperature\": 0.5, \"top_k\": 3, \"top_p\": 0.9, \"min_p\": 0.1, "
	     "\"seed\": 5, \"stop\": [\"a\"], \"repetition_penalty\": 1.1, \"repeat_last_n\": 9, "
	     "\"presence_penalty\": 1, \"frequency_penalty\": 2, \"num_ctx\": 99, \"think\": true}}",
	     "{\"stream\": true, \"max_tokens\": 7, \"temperature\": 0.5, \"top_k\": 3, \"top_p\": 0.9, \"min_p\": 0.1, "
	     "\"seed\": 5, \"stop\": [\"a\"], \"repetition_penalty\": 1.1, \"repeat_last_n\": 9, "
	     "\"presence_penalty\": 1, \"frequency_penalty\": 2, " HI "}");
	for (const char *const *n = (const char *const[]){ "-1", "-2", "0", "null", NULL }; *n != NULL; n++) {
		char body[200];

		snprintf(body, sizeof(body), "{" HI ", \"options\": {\"num_predict\": %s}}", *n);
		chat(body, "{\"stream\": true, " HI "}");
	}
}

static void formats(void **state)
{
	(void)state;
	chat("{" HI ", \"format\": \"\"}", "{\"stream\": true, " HI "}");
	chat("{" HI ", \"format\": \"json\"}",
	     "{\"stream\": true, \"response_format\": {\"type\": \"json_object\"}, " HI "}");
	chat("{" HI ", \"format\": {\"type\": \"object\"}}",
	     "{\"stream\": true, \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"response\", "
	     "\"schema\": {\"type\": \"object\"}}}, " HI "}");
}

static void messages(void **state)
{
	(void)state;
	chat("{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"a\"}, "
	     "{\"role\": \"user\", \"content\": \"b\", \"images\": []}, {\"role\": \"assistant\", \"thinking\": \"T\"}]}",
	     "{\"stream\": true, \"messages\": [{\"role\": \"system\", \"content\": \"S\"}, "
	     "{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": \"b\"}, "
	     "{\"role\": \"assistant\", \"content\": \"\", \"reasoning_content\": \"T\"}]}");
	chat("{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"images\": [\"AAAA\", \"BBBB\"]}, "
	     "{\"role\": \"user\", \"images\": [\"AAAA\"]}]}",
	     "{\"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, "
	     "{\"type\": \"image\"}, {\"type\": \"image\"}]}, {\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}");
	chat("{\"messages\": []}", NULL);
	chat("{\"messages\": null}", NULL);
	chat("{}", NULL);
}

#define CALL(id, arguments) \
	"{\"messages\": [{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{" id \
	"\"function\": {\"name\": \"f\", \"arguments\": " arguments "}}]}]}"
#define CALLED(id, text) \
	"{\"stream\": true, \"messages\": [{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{" id \
	"\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": " text "}}]}]}"

/* Arguments are written as the model wrote them, where that is known; else as the client spelt them. */
static void calls_and_results(void **state)
{
	struct odm_call_memory *m = odm_call_memory_new(4, 1000);

	(void)state;
	odm_call_memory_put(m, "c1", "{ \"a\":  1.50}");
	check(CALL("\"id\": \"c1\", ", "{\"a\": 1.5}"), false, false, m,
	      CALLED("\"id\": \"c1\", ", "\"{ \\\"a\\\":  1.50}\""));
	check(CALL("\"id\": \"c1\", ", "{\"a\":2.0,\"b\":[1,2]}"), false, false, m,
	      CALLED("\"id\": \"c1\", ", "\"{\\\"a\\\": 2.0, \\\"b\\\": [1, 2]}\""));
	check(CALL("", "{\"z\":1,\"a\":1e2}"), false, false, m, CALLED("", "\"{\\\"z\\\": 1, \\\"a\\\": 1e2}\""));
	check(CALL("", "{ \"z\" :1}"), false, false, m, CALLED("", "\"{ \\\"z\\\" :1}\""));
	check(CALL("", "null"), false, false, m, CALLED("", "\"{}\""));
	odm_call_memory_free(m);
	chat("{\"messages\": [{\"role\": \"tool\", \"content\": \"sunny\", \"tool_name\": \"f\", \"tool_call_id\": \"c1\"}]}",
	     "{\"stream\": true, \"messages\": [{\"role\": \"tool\", \"content\": \"sunny\", \"name\": \"f\", "
	     "\"tool_call_id\": \"c1\"}]}");
}

static void prompts(void **state)
{
	static const char raw[] = "{\"stream\": true, \"prompt\": \"Hi\"}";

	(void)state;
	prompt("{\"prompt\": \"Hi\"}", "{\"stream\": true, " HI "}");
	prompt("{\"prompt\": \"Hi\", \"system\": \"S\", \"images\": [\"AAAA\"]}",
	       "{\"stream\": true, \"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", "
	       "\"content\": [{\"type\": \"text\", \"text\": \"Hi\"}, {\"type\": \"image\"}]}]}");
	prompt("{\"prompt\": \"Hi\", \"raw\": true}", raw);
	prompt("{\"prompt\": \"Hi\", \"raw\": true, \"tools\": [], \"system\": \"S\"}", raw);
	check("{\"prompt\": \"Hi\"}", true, true, NULL, raw);
	check("{\"prompt\": \"Hi\", \"system\": \"S\"}", true, true, NULL,
	      "{\"stream\": true, \"messages\": [{\"role\": \"system\", \"content\": \"S\"}, "
	      "{\"role\": \"user\", \"content\": \"Hi\"}]}");
	prompt("{\"prompt\": \"\", \"raw\": true}", NULL);
	prompt("{\"system\": \"S\"}", NULL);
}

static void wrong_fields_are_named(void **state)
{
	static const struct {
		bool generates;
		const char *body, *field;
	} t[] = {
		{ false, "{\"messages\": 3}", "messages" },
		{ false, "{\"messages\": [3]}", "messages[0]" },
		{ false, "{\"messages\": [{\"content\": \"a\"}]}", "messages[0].role" },
		{ false, "{\"messages\": [{\"role\": \"user\", \"content\": [1]}]}", "messages[0].content" },
		{ false, "{\"messages\": [{\"role\": \"user\", \"images\": \"a\"}]}", "messages[0].images" },
		{ false, "{\"messages\": [{\"role\": \"user\", \"images\": [1]}]}", "messages[0].images" },
		{ false, "{\"messages\": [{\"role\": \"a\", \"thinking\": 1}]}", "messages[0].thinking" },
		{ false, "{\"messages\": [{\"role\": \"a\", \"tool_name\": 1}]}", "messages[0].tool_name" },
		{ false, "{\"messages\": [{\"role\": \"a\", \"tool_calls\": 1}]}", "messages[0].tool_calls" },
		{ false, "{\"messages\": [{\"role\": \"a\", \"tool_calls\": [1]}]}",
		  "messages[0].tool_calls[0].function" },
		{ false, CALL("", "\"{}\""), "messages[0].tool_calls[0].function.arguments" },
		{ false, CALL("\"id\": 3, ", "{}"), "messages[0].tool_calls[0].id" },
		{ false, "{\"options\": 3}", "options" },
		{ false, "{\"options\": {\"num_predict\": -3}}", "options.num_predict" },
		{ false, "{\"options\": {\"stop\": 3}}", "options.stop" },
		{ false, "{\"stream\": 3}", "stream" },
		{ false, "{\"format\": \"xml\"}", "format" },
		{ true, "{\"prompt\": 3}", "prompt" },
		{ true, "{\"prompt\": \"a\", \"system\": 3}", "system" },
		{ true, "{\"prompt\": \"a\", \"raw\": 3}", "raw" },
		{ true, "{\"prompt\": \"a\", \"raw\": true, \"images\": [\"A\"]}", "images" },
		{ true, "{\"prompt\": \"a\", \"images\": 3}", "images" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct odm_api_error e;
		json_t *made;

		assert_int_not_equal(convert(&made, t[i].body, t[i].generates, false, NULL, &e), OD_OK);
		assert_null(made);
		assert_int_equal(e.status, 400);
		assert_string_equal(e.param, t[i].field);
		assert_memory_equal(e.message, t[i].field, strlen(t[i].field));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(settings), cmocka_unit_test(formats),
		cmocka_unit_test(messages), cmocka_unit_test(calls_and_results),
		cmocka_unit_test(prompts),  cmocka_unit_test(wrong_fields_are_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
