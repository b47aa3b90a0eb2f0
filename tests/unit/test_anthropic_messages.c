/* Requests of Anthropic's messages API become requests of chat completions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "main-node/serve/api/client_fields.h"
#include "main-node/serve/api/anthropic_messages.h"
#include "main-node/serve/api/call_memory.h"
#include "tests/unit/request_rows.h"

#define USER "{'role': 'user', 'content': 'u'}"
#define ASK(fields) "{'max_tokens': 9, 'messages': [" USER "]" fields "}"
#define SAY(messages) "{'max_tokens': 9, 'messages': [" messages "]}"
#define SAID(messages) "{'max_tokens': 9, 'messages': [" messages "]}"

static const struct request_row rows[] = {
	/* Messages and system. */
	{ ASK(""), SAID(USER) },
	{ ASK(", 'system': 's', 'model': 'm', 'metadata': {'user_id': 'x'}"),
	  SAID("{'role': 'system', 'content': 's'}, " USER) },
	{ ASK(", 'system': [{'type': 'text', 'text': 'a', 'cache_control': {'type': 'ephemeral'}}, {'type': 'text', 'text': 'b'}]"),
	  SAID("{'role': 'system', 'content': 'a\\nb'}, " USER) },
	{ ASK(", 'system': [{'type': 'text', 'text': 'x-anthropic-billing-header: cc_version=1; cch=123;'}, {'type': 'text', 'text': "
	      "'b'}]"),
	  SAID("{'role': 'system', 'content': 'b'}, " USER) },
	{ ASK(", 'system': 'x-anthropic-billing-header: a'"), SAID(USER) },
	{ ASK(", 'system': null"), SAID(USER) },
	{ SAY("{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}]}"),
	  SAID("{'role': 'user', 'content': 'a\\nb', 'od_last_part': 2}") },
	{ SAY(USER ", {'role': 'user', 'content': 'v'}, {'role': 'system', 'content': 's'}, " USER),
	  SAID("{'role': 'user', 'content': 'u\\nv', 'od_last_part': 2}, {'role': 'system', 'content': 's'}, " USER) },
	{ SAY(USER ", {'role': 'assistant', 'content': 'a'}, " USER),
	  SAID(USER ", {'role': 'assistant', 'content': 'a'}, " USER) },
	/* A text to go on with; without one there is nothing. */
	{ SAY(USER ", {'role': 'assistant', 'content': 'Once'}"),
	  "{'max_tokens': 9, 'continue_final_message': true, 'messages': [" USER
	  ", {'role': 'assistant', 'content': 'Once'}]}" },
	{ SAY(USER ", {'role': 'assistant', 'content': [{'type': 'thinking', 'thinking': 'h'}]}"), SAID(USER) },
	{ SAY(USER ", {'role': 'assistant', 'content': ''}"), SAID(USER) },
	/* A turn of the assistant; spaces, numbers and escapes of an input. */
	{ SAY(USER
	      ", {'role': 'assistant', 'content': [{'type': 'redacted_thinking', 'data': 'x'}, {'type': 'thinking', 'thinking': "
	      "'h', 'signature': 'x'}, {'type': 'text', 'text': 'a '}, {'type': 'text', 'text': 'b'}, {'type': 'tool_use', 'id': "
	      "'t1', 'name': 'f', 'input': {'b':[1.50,1e2,true],'a':{'s,:':'x, y:\\u00e9'}}}, {'type': 'tool_use', 'id': 't2', "
	      "'name': 'g', 'input': {}}]}, {'role': 'user', 'content': [{'type': 'tool_result', 'tool_use_id': 't1', 'content': "
	      "'r'}, {'type': 'tool_result', 'tool_use_id': 't2', 'is_error': true, 'content': [{'type': 'text', 'text': 'r2'}, "
	      "{'type': 'text', 'text': 'r3'}]}, {'type': 'text', 'text': 'go'}]}"),
	  SAID(USER
	       ", {'role': 'assistant', 'content': 'a b', 'reasoning_content': 'h', 'tool_calls': [{'id': 't1', 'type': "
	       "'function', 'function': {'name': 'f', 'arguments': '{\\'b\\': [1.50, 1e2, true], \\'a\\': {\\'s,:\\': "
	       "\\'x, y:\\\\u00e9\\'}}'}}, {'id': 't2', 'type': 'function', 'function': {'name': 'g', 'arguments': '{}'}}]}, "
	       "{'role': 'tool', 'tool_call_id': 't1', 'content': 'r'}, {'role': 'tool', 'tool_call_id': 't2', 'content': "
	       "'Error: r2\\nr3'}, {'role': 'user', 'content': 'go'}") },
	{ SAY("{'role': 'assistant', 'content': [{'type': 'tool_use', 'id': 't', 'name': 'f', 'input': { 'a':1,'b':2 }}]}, {'role': "
	      "'user', 'content': [{'type': 'tool_result', 'tool_use_id': 't'}]}"),
	  SAID("{'role': 'assistant', 'content': null, 'tool_calls': [{'id': 't', 'type': 'function', 'function': {'name': 'f', "
	       "'arguments': '{ \\'a\\':1,\\'b\\':2 }'}}]}, {'role': 'tool', 'tool_call_id': 't', 'content': ''}") },
	/* Nothing, and what is no text. */
	{ SAY("{'role': 'user', 'content': []}, {'role': 'assistant'}, {'role': 'user', 'content': null}"),
	  SAID("{'role': 'user', 'content': ''}, {'role': 'assistant', 'content': ''}, {'role': 'user', 'content': ''}") },
	{ SAY("{'role': 'user', 'content': [{'type': 'image', 'source': {'type': 'base64', 'media_type': 'image/png', 'data': 'AA'}}, {'type': "
	      "'document', 'source': {'type': 'base64', 'media_type': 'application/pdf', 'data': 'AA'}, 'title': 'T'}, {'type': 'document', "
	      "'source': {'type': 'text', 'media_type': 'text/plain', 'data': 'words'}, 'title': 'W'}, {'type': 'document', 'source': {'type': "
	      "'url', 'url': 'u'}}, {'type': 'document', 'source': {'type': 'content', 'content': [{'type': 'text', 'text': 'c'}]}}, {'type': "
	      "'search_result', 'source': 's', 'title': 't', 'content': [{'type': 'text', 'text': 'found'}]}, {'type': 'container_upload', "
	      "'file_id': 'f'}]}"),
	  SAID("{'role': 'user', 'content': '[an image that this model cannot see]\\n[a file that this model cannot read: T]\\nW\\nwords\\n[a "
	       "file that this model cannot read]\\nc\\nt\\ns\\nfound\\n[a file that this model cannot read]', 'od_last_part': 135}") },
	{ SAY("{'role': 'user', 'content': [{'type': 'tool_result', 'tool_use_id': 't', 'content': [{'type': 'image', 'source': {}}, {'type': "
	      "'tool_reference', 'tool_name': 'f'}, {'type': 'text', 'text': 'a'}]}]}"),
	  SAID("{'role': 'tool', 'tool_call_id': 't', 'content': '[an image that this model cannot see]\\nf\\na'}") },
	/* Tools that another server ran. */
	{ SAY("{'role': 'assistant', 'content': [{'type': 'server_tool_use', 'id': 's1', 'name': 'web_search', 'input': {'query': 'q'}}, "
	      "{'type': 'web_search_tool_result', 'tool_use_id': 's1', 'content': [{'type': 'web_search_result', 'url': 'u', 'title': 't', "
	      "'encrypted_content': 'x'}]}, {'type': 'text', 'text': 'a', 'citations': []}]}, " USER),
	  SAID("{'role': 'assistant', 'content': null, 'tool_calls': [{'id': 's1', 'type': 'function', 'function': {'name': 'web_search', "
	       "'arguments': '{\\'query\\': \\'q\\'}'}}]}, {'role': 'tool', 'tool_call_id': 's1', 'content': 't\\nu'}, {'role': 'assistant', "
	       "'content': 'a'}, " USER) },
	{ SAY("{'role': 'assistant', 'content': [{'type': 'mcp_tool_use', 'id': 'm', 'name': 'f', 'server_name': 's', 'input': {}}, {'type': "
	      "'mcp_tool_result', 'tool_use_id': 'm', 'is_error': false, 'content': [{'type': 'text', 'text': 'r'}]}, {'type': "
	      "'code_execution_tool_result', 'tool_use_id': 'e', 'content': {'type': 'code_execution_result', 'stdout': 'o', 'stderr': '', "
	      "'return_code': 0, 'content': []}}, {'type': 'web_fetch_tool_result', 'tool_use_id': 'w', 'content': {'type': "
	      "'web_fetch_tool_result_error', 'error_code': 'url_not_accessible'}}]}, " USER),
	  SAID("{'role': 'assistant', 'content': null, 'tool_calls': [{'id': 'm', 'type': 'function', 'function': {'name': 'f', 'arguments': "
	       "'{}'}}]}, {'role': 'tool', 'tool_call_id': 'm', 'content': 'r'}, {'role': 'tool', 'tool_call_id': 'e', 'content': 'o'}, "
	       "{'role': 'tool', 'tool_call_id': 'w', 'content': 'url_not_accessible'}, " USER) },
	/* Tools. */
	{ ASK(", 'tools': [{'name': 'f', 'description': 'd', 'input_schema': {'type': 'object', 'x': 1}}, {'type': 'custom', 'name': 'g', "
	      "'input_schema': {}}], 'tool_choice': {'type': 'auto', 'disable_parallel_tool_use': true}"),
	  "{'max_tokens': 9, 'tools': [{'type': 'function', 'function': {'name': 'f', 'description': 'd', 'parameters': {'type': "
	  "'object', 'x': 1}}}, {'type': 'function', 'function': {'name': 'g', 'parameters': {}}}], 'tool_choice': 'auto', "
	  "'parallel_tool_calls': false, 'messages': [" USER "]}" },
	{ ASK(", 'tools': [], 'tool_choice': {'type': 'none'}"),
	  "{'max_tokens': 9, 'tools': [], 'tool_choice': 'none', 'messages': [" USER "]}" },
	{ ASK(", 'tool_choice': {'type': 'tool', 'name': 'f'}"),
	  "{'max_tokens': 9, 'tool_choice': {'type': 'function', 'function': {'name': 'f'}}, 'messages': [" USER "]}" },
	{ ASK(", 'tool_choice': {'type': 'any'}"),
	  "{'max_tokens': 9, 'tool_choice': 'required', 'messages': [" USER "]}" },
	{ ASK(", 'tool_choice': {'type': 'tool'}"), "tool_choice.name: expected a string, found nothing" },
	{ ASK(", 'tool_choice': {'type': 'all'}"),
	  "tool_choice.type: expected 'auto', 'any', 'tool' or 'none', found 'all', which is not supported here" },
	{ ASK(", 'tools': [{'name': 'f', 'strict': true, 'input_schema': {}}]"),
	  "{'max_tokens': 9, 'tools': [{'type': 'function', 'function': {'name': 'f', 'parameters': {}, 'strict': true}}], 'messages': [" USER
	  "]}" },
	{ ASK(", 'tool_choice': 'auto'"), "tool_choice: expected an object, found a string" },
	{ ASK(", 'tools': [{'type': 'web_search_20250305', 'name': 'web_search'}, {'name': 'f', 'input_schema': {}, 'defer_loading': true}, "
	      "{'type': 'bash_20250124', 'name': 'bash'}, {'type': 'mcp_toolset'}, {'type': 'tool_from_tomorrow'}], 'mcp_servers': [{}]"),
	  "{'max_tokens': 9, 'tools': [{'type': 'function', 'function': {'name': 'f', 'parameters': {}}}], 'messages': [" USER
	  "]}" },
	{ ASK(", 'tools': [{'name': 'f'}]"), "tools[0].input_schema: expected an object, found nothing" },
	{ ASK(", 'tools': [3]"), "tools[0]: expected an object, found 3" },
	{ ASK(", 'tools': {}"), "tools: expected an array, found an empty object" },
	/* Settings. */
	{ ASK(", 'stop_sequences': ['a', 'b'], 'temperature': 0.5, 'top_p': 0.25, 'top_k': 3, 'stream': true, 'seed': 7"),
	  "{'max_tokens': 9, 'stop': ['a', 'b'], 'temperature': 0.5, 'top_p': 0.25, 'top_k': 3, 'stream': true, 'seed': 7, "
	  "'messages': [" USER "]}" },
	{ ASK(", 'thinking': {'type': 'enabled', 'budget_tokens': 2000}, 'output_config': {'effort': 'xhigh'}"),
	  "{'max_tokens': 9, 'thinking': {'type': 'enabled', 'budget_tokens': 2000}, 'reasoning_effort': 'xhigh', 'messages': [" USER
	  "]}" },
	{ ASK(", 'thinking': {'type': 'disabled'}, 'chat_template_kwargs': {'a': 1}"),
	  "{'max_tokens': 9, 'chat_template_kwargs': {'a': 1}, 'thinking': {'type': 'disabled'}, 'messages': [" USER
	  "]}" },
	{ ASK(", 'temperature': 1.5"), "temperature: expected a number from 0 to 1, found 1.5" },
	{ ASK(", 'top_k': -1"), "top_k: expected an integer from 0 to 4294967295, found -1" },
	{ ASK(", 'stop_sequences': ['']"), "stop_sequences[0]: expected a string that is not empty" },
	{ ASK(", 'output_config': {'format': {'type': 'json_schema', 'schema': {}}}"),
	  "{'max_tokens': 9, 'output_format': {'type': 'json_schema', 'schema': {}}, 'messages': [" USER "]}" },
	{ ASK(", 'output_format': {'type': 'json_schema', 'schema': {}}"),
	  "{'max_tokens': 9, 'output_format': {'type': 'json_schema', 'schema': {}}, 'messages': [" USER "]}" },
	{ "{'messages': [" USER "]}", "max_tokens: missing; expected the most tokens that the answer may have" },
	{ "{'max_tokens': 0, 'messages': [" USER "]}", "max_tokens: expected at least 1, or -1, found 0" },
	/* Wrong or unsupported fields are refused by name. */
	{ "{'max_tokens': 9}", "messages: expected an array of messages that is not empty, found nothing" },
	{ SAY(""), "messages: expected an array of messages that is not empty, found an empty array" },
	{ SAY("'u'"), "messages[0]: expected an object, found a string" },
	{ SAY(USER ", {'content': 'u'}"), "messages[1].role: expected a string, found nothing" },
	{ SAY("{'role': 'tool', 'content': 'u'}"),
	  "messages[0].role: expected 'user', 'assistant' or 'system', found 'tool', which is not supported here" },
	{ SAY("{'role': 'user', 'content': [{'type': 'text'}]}"),
	  "messages[0].content[0].text: expected a string, found nothing" },
	{ SAY("{'role': 'user', 'content': ['a']}"), "messages[0].content[0]: expected an object, found a string" },
	{ SAY("{'role': 'user', 'content': [{'type': 'tool_result', 'content': 'a'}]}"),
	  "messages[0].content[0].tool_use_id: expected a string, found nothing" },
	{ SAY("{'role': 'user', 'content': [{'type': 'tool_result', 'tool_use_id': 't', 'is_error': 1}]}"),
	  "messages[0].content[0].is_error: expected true or false, found 1" },
	{ SAY("{'role': 'assistant', 'content': [{'type': 'tool_use', 'id': 't', 'name': 'f', 'input': '{}'}]}"),
	  "messages[0].content[0].input: expected an object, found a string" },
	{ SAY("{'role': 'assistant', 'content': [{'type': 'tool_use', 'id': '', 'name': 'f', 'input': {}}]}"),
	  "messages[0].content[0].id: expected a string that is not empty, without the character U+0000" },
	{ SAY("{'role': 'assistant', 'content': [{'type': 'server_tool_use'}]}"),
	  "messages[0].content[0].id: expected a string, found nothing" },
	{ SAY("{'role': 'user', 'content': 3}"),
	  "messages[0].content: expected a string or an array of blocks, found 3" },
	{ SAY(USER ", {'role': 'assistant', 'content': [{'type': 'tool_use', 'id': 't', 'name': 'f', 'input': {}}]}"),
	  "messages: the last one is of the assistant and calls a tool; expected its result behind it, a block of type tool_result in a "
	  "message of the user" },
	{ ASK(", 'system': [{'type': 'text'}]"), "system[0].text: expected a string, found nothing" },
	{ ASK(", 'system': 3"), "system: expected a string or an array, found 3" },
};

static int convert(json_t **chat, const json_t *request, const char *body, struct odm_api_error *e)
{
	int rc = odm_client_fields_apply((json_t *)(uintptr_t)request, ODM_API_MESSAGES, e);

	*chat = NULL;
	return rc == OD_OK ? odm_chat_of_anthropic(chat, request, body, strlen(body), NULL, false, e) : rc;
}

static int convert_to_count(json_t **chat, const json_t *request, const char *body, struct odm_api_error *e)
{
	return odm_chat_of_anthropic(chat, request, body, strlen(body), NULL, true, e);
}

static void test_requests(void **state)
{
	(void)state;
	check_rows(rows, sizeof(rows) / sizeof(rows[0]), convert);
}

static void test_requests_to_count(void **state)
{
	static const struct request_row counted[] = {
		{ "{'messages': [" USER "]}", "{'messages': [" USER "]}" },
		{ "{'messages': [" USER ", {'role': 'assistant', 'content': 'a'}]}",
		  "{'messages': [" USER ", {'role': 'assistant', 'content': 'a'}]}" },
		{ "{'messages': 3}", "messages: expected an array of messages that is not empty, found 3" },
	};

	(void)state;
	check_rows(counted, sizeof(counted) / sizeof(counted[0]), convert_to_count);
}

static struct odm_call_memory *calls;

static int convert_with_calls(json_t **chat, const json_t *request, const char *body, struct odm_api_error *e)
{
	return odm_chat_of_anthropic(chat, request, body, strlen(body), calls, false, e);
}

static void test_calls_that_are_remembered(void **state)
{
	static const struct request_row remembered[] = {
		{ SAY("{'role': 'assistant', 'content': [{'type': 'tool_use', 'id': 't1', 'name': 'f', 'input': {'a':1.5}}, {'type': "
		      "'tool_use', 'id': 't2', 'name': 'f', 'input': {'a':1.5}}]}, " USER),
		  SAID("{'role': 'assistant', 'content': null, 'tool_calls': [{'id': 't1', 'type': 'function', 'function': {'name': 'f', "
		       "'arguments': '{  \\'a\\':1.50}'}}, {'id': 't2', 'type': 'function', 'function': {'name': 'f', 'arguments': "
		       "'{\\'a\\': 1.5}'}}]}, " USER) },
	};

	(void)state;
	calls = odm_call_memory_new(10, 1000);
	odm_call_memory_put(calls, "t1", "{  \"a\":1.50}");
	check_rows(remembered, 1, convert_with_calls);
	odm_call_memory_free(calls);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_calls_that_are_remembered),
		cmocka_unit_test(test_requests),
		cmocka_unit_test(test_requests_to_count),
	};

	return cmocka_run_group_tests_name("anthropic messages", tests, NULL, NULL);
}
