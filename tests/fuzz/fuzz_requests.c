/* Any body as a request of /v1/messages, its count_tokens, and /v1/responses: it becomes messages, with calls whose
 * arguments have the value of the input, or an error that says something. First byte: which of them. */
#include <string.h>

#include "main-node/serve/api/anthropic_messages.h"
#include "main-node/serve/api/call_memory.h"
#include "main-node/serve/http/json_fields.h"
#include "main-node/serve/api/response_items.h"
#include "tests/fuzz/fuzz.h"

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

/* Each tool_use became a call whose arguments have the value of its input. */
static void check_inputs(const json_t *request, const json_t *chat)
{
	size_t at_message = 0, at_call = 0, i, k;
	const json_t *message, *block;

	json_array_foreach(json_object_get(request, "messages"), i, message)
		json_array_foreach(json_object_get(message, "content"), k, block)
	{
		const json_t *input = json_object_get(block, "input"), *arguments;
		json_t *value;

		if (strcmp(json_string_value(json_object_get(block, "type")), "tool_use") != 0)
			continue;
		arguments = json_object_get(json_object_get(next_call(chat, &at_message, &at_call), "function"),
					    "arguments");
		check(json_is_string(arguments));
		check(odm_fields_parse(json_string_value(arguments), json_string_length(arguments), &value, NULL) ==
		      OD_OK);
		check(json_equal(value, input));
		json_decref(value);
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
		      json_array_size(json_object_get(message, "tool_calls")) > 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *body = (const char *)data + 1;
	json_t *request, *chat = NULL;
	struct odm_call_memory *calls;
	struct odm_api_error e = { 0 };
	int rc;

	if (size < 1)
		return 0;
	rc = odm_fields_parse(body, size - 1, &request, &e);
	calls = odm_call_memory_new(4, 1000);
	odm_call_memory_put(calls, "t1", "{ \"a\":  1.50}");
	if (rc == OD_OK && data[0] % 3 == 2)
		rc = odm_chat_of_response(&chat, request, &e);
	else if (rc == OD_OK)
		rc = odm_chat_of_anthropic(&chat, request, body, size - 1, calls, data[0] % 3 == 1, &e);
	if (rc == OD_OK)
		check_chat(chat);
	else
		check(chat == NULL && e.status == 400 && e.message[0] != '\0');
	if (rc == OD_OK && data[0] % 3 != 2)
		check_inputs(request, chat);
	odm_call_memory_free(calls);
	json_decref(chat);
	json_decref(request);
	return 0;
}
