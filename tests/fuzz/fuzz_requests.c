/* Any body as a request of /v1/messages, its count_tokens, /v1/responses, and Ollama's /api/chat and /api/generate: it
 * becomes messages, with calls whose arguments have the value of the input, or an error that says something. First
 * byte: which of them, from '0' on. */
#include <string.h>

#include "main-node/serve/api/anthropic_messages.h"
#include "main-node/serve/api/call_memory.h"
#include "main-node/serve/api/ollama_request.h"
#include "main-node/serve/api/response_items.h"
#include "main-node/serve/http/json_fields.h"
#include "tests/fuzz/fuzz.h"

enum { MESSAGES, COUNT_TOKENS, RESPONSES, OLLAMA_CHAT, OLLAMA_PROMPT, N_KINDS };

/* The next call of chat, in order; NULL: none. */
static const json_t *next_call(const json_t *chat, size_t *message, size_t *call)
{
	const json_t *messages = json_object_get(chat, "messages");

	for (; *message < json_array_size(messages); ++*message, *call = 0) {
		const json_t *c =
			json_array_get(json_object_get(json_array_get(messages, *message), "tool_calls"), (*call)++);

		if (c != NULL)
			return c;
	}
	return NULL;
}

static void check_arguments(const json_t *call, const json_t *input)
{
	const json_t *arguments = json_object_get(json_object_get(call, "function"), "arguments");
	json_t *value;

	check(json_is_string(arguments));
	check(odm_fields_parse(json_string_value(arguments), json_string_length(arguments), &value, NULL) == OD_OK);
	check(json_equal(value, input));
	json_decref(value);
}

/* Each call of Ollama's messages is one still. */
static void check_calls(const json_t *request, const json_t *chat)
{
	size_t at_message = 0, at_call = 0, i, k;
	const json_t *message, *call;
	json_t *none = json_object();

	json_array_foreach(json_object_get(request, "messages"), i, message)
		json_array_foreach(json_object_get(message, "tool_calls"), k, call)
	{
		const json_t *input = json_object_get(json_object_get(call, "function"), "arguments");

		check_arguments(next_call(chat, &at_message, &at_call), json_is_object(input) ? input : none);
	}
	check(next_call(chat, &at_message, &at_call) == NULL);
	json_decref(none);
}

/* Tools that a server runs have types of their own: server_tool_use, mcp_tool_use ... */
static bool is_call(const json_t *message, const json_t *block)
{
	static const char end[] = "tool_use";
	const char *type = json_string_value(json_object_get(block, "type"));
	const size_t len = strlen(type), n = sizeof(end) - 1;

	return strcmp(json_string_value(json_object_get(message, "role")), "assistant") == 0 && len >= n &&
	       strcmp(type + len - n, end) == 0;
}

/* Each tool_use became a call whose arguments have the value of its input. */
static void check_inputs(const json_t *request, const json_t *chat)
{
	size_t at_message = 0, at_call = 0, i, k;
	const json_t *message, *block;

	json_array_foreach(json_object_get(request, "messages"), i, message)
		json_array_foreach(json_object_get(message, "content"), k, block)
	{
		if (is_call(message, block))
			check_arguments(next_call(chat, &at_message, &at_call), json_object_get(block, "input"));
	}
	check(next_call(chat, &at_message, &at_call) == NULL);
}

static void check_chat(const json_t *chat)
{
	const json_t *messages = json_object_get(chat, "messages"), *message;
	size_t i;

	check(json_is_array(messages));
	json_array_foreach(messages, i, message)
	{
		check(json_string_length(json_object_get(message, "role")) > 0);
		check(json_is_string(json_object_get(message, "content")) ||
		      json_array_size(json_object_get(message, "content")) > 0 ||
		      json_array_size(json_object_get(message, "tool_calls")) > 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *body = (const char *)data + 1;
	json_t *request, *chat = NULL;
	struct odm_call_memory *calls;
	struct odm_api_error e = { 0 };
	unsigned kind;
	int rc;

	if (size < 1)
		return 0;
	kind = (uint8_t)(data[0] - '0') % N_KINDS;
	rc = odm_fields_parse(body, size - 1, &request, &e);
	calls = odm_call_memory_new(4, 1000);
	odm_call_memory_put(calls, "t1", "{ \"a\":  1.50}");
	if (rc == OD_OK && kind == RESPONSES)
		rc = odm_chat_of_response(&chat, request, &e);
	else if (rc == OD_OK && kind == OLLAMA_CHAT)
		rc = odm_chat_of_ollama_chat(&chat, request, body, size - 1, calls, &e);
	else if (rc == OD_OK && kind == OLLAMA_PROMPT)
		rc = odm_chat_of_ollama_prompt(&chat, request, false, &e);
	else if (rc == OD_OK)
		rc = odm_chat_of_anthropic(&chat, request, body, size - 1, calls, kind == COUNT_TOKENS, &e);
	if (rc != OD_OK)
		check(chat == NULL && e.status == 400 && e.message[0] != '\0');
	else if (chat == NULL) /* nothing to answer */
		check(kind == OLLAMA_CHAT || kind == OLLAMA_PROMPT);
	else if (json_object_get(chat, "prompt") != NULL) /* raw */
		check(kind == OLLAMA_PROMPT && json_string_length(json_object_get(chat, "prompt")) > 0);
	else
		check_chat(chat);
	if (chat != NULL && kind == OLLAMA_CHAT)
		check_calls(request, chat);
	if (chat != NULL && (kind == MESSAGES || kind == COUNT_TOKENS))
		check_inputs(request, chat);
	odm_call_memory_free(calls);
	json_decref(chat);
	json_decref(request);
	return 0;
}
