/* Requests of OpenAI's responses API become requests of chat completions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "main-node/serve/api/client_fields.h"
#include "main-node/serve/api/response_items.h"
#include "tests/unit/request_rows.h"

#define USER "{'role': 'user', 'content': 'u'}"
#define ASK(fields) "{'input': 'u'" fields "}"
#define ITEMS(items) "{'input': [" items "]}"
#define SAID(messages) "{'messages': [" messages "]}"
#define CALL(id, name) "{'id': '" id "', 'type': 'function', 'function': {'name': '" name "', 'arguments': '{}'}}"

static const struct request_row rows[] = {
	/* Input and instructions. */
	{ ASK(""), SAID(USER) },
	{ ASK(", 'instructions': 's', 'model': 'm', 'user': 'x', 'prompt_cache_key': 'k'"),
	  SAID("{'role': 'system', 'content': 's'}, " USER) },
	{ ITEMS(USER), SAID(USER) },
	{ ITEMS(""), SAID("") },
	{ ITEMS("{'type': 'message', 'role': 'developer', 'content': [{'type': 'input_text', 'text': 'a'}, {'type': 'input_text', "
		"'text': 'b'}]}, {'role': 'system', 'content': 's'}, " USER ", " USER),
	  SAID("{'role': 'developer', 'content': 'a\\nb'}, {'role': 'system', 'content': 's'}, " USER ", " USER) },
	/* An assistant's turn. */
	{ ITEMS(USER
		", {'type': 'reasoning', 'id': 'rs', 'summary': [], 'content': [{'type': 'reasoning_text', 'text': 'h'}]}, {'id': "
		"'m', 'type': 'message', 'role': 'assistant', 'status': 'completed', 'content': [{'type': 'output_text', 'text': "
		"'a', 'annotations': []}]}, {'type': 'function_call', 'id': 'fc', 'call_id': 'c1', 'name': 'f', 'arguments': "
		"'{ \\'a\\':1.50}'}, {'type': 'function_call', 'call_id': 'c2', 'name': 'g', 'arguments': '{}'}, {'type': "
		"'function_call_output', 'call_id': 'c1', 'output': 'r'}, {'type': 'function_call_output', 'call_id': 'c2', "
		"'output': [{'type': 'input_text', 'text': 'r2'}]}"),
	  SAID(USER
	       ", {'role': 'assistant', 'content': 'a', 'reasoning_content': 'h', 'tool_calls': [{'id': 'c1', 'type': 'function', "
	       "'function': {'name': 'f', 'arguments': '{ \\'a\\':1.50}'}}, " CALL(
		       "c2",
		       "g") "]}, {'role': 'tool', "
			    "'tool_call_id': 'c1', 'content': 'r'}, {'role': 'tool', 'tool_call_id': 'c2', 'content': 'r2'}") },
	{ ITEMS("{'type': 'reasoning', 'summary': [{'type': 'summary_text', 'text': 'h'}, {'type': 'summary_text', 'text': 'i'}], "
		"'encrypted_content': 'x'}, {'type': 'function_call', 'call_id': 'c', 'name': 'f', 'arguments': '{}'}"),
	  SAID("{'role': 'assistant', 'content': null, 'reasoning_content': 'h\\ni', 'tool_calls': [" CALL("c",
													   "f") "]}") },
	{ ITEMS("{'type': 'reasoning', 'summary': [], 'encrypted_content': 'x'}, " USER), SAID(USER) },
	{ ITEMS("{'role': 'assistant', 'content': 'a'}, {'role': 'assistant', 'content': [{'type': 'refusal', 'refusal': 'no'}]}"),
	  SAID("{'role': 'assistant', 'content': 'a'}, {'role': 'assistant', 'content': 'no'}") },
	{ ITEMS("{'type': 'function_call', 'call_id': 'c', 'name': 'f', 'arguments': '{}'}, {'role': 'assistant', 'content': 'a'}, "
		"{'type': 'reasoning', 'summary': [{'type': 'summary_text', 'text': 'h'}]}, {'role': 'assistant', 'content': 'b'}, "
		"{'role': 'assistant', 'content': 'c'}"),
	  SAID("{'role': 'assistant', 'content': null, 'tool_calls': [" CALL(
		  "c",
		  "f") "]}, {'role': 'assistant', 'content': 'a'}, "
		       "{'role': 'assistant', 'content': 'b', 'reasoning_content': 'h'}, {'role': 'assistant', 'content': 'c'}") },
	/* Nothing, and what is no text. */
	{ ITEMS("{'role': 'user'}, {'role': 'assistant', 'content': null}, {'type': 'function_call_output', 'call_id': 'c'}, {'type': "
		"'reasoning'}"),
	  SAID("{'role': 'user', 'content': ''}, {'role': 'assistant', 'content': ''}, {'role': 'tool', 'tool_call_id': 'c', 'content': "
	       "''}") },
	{ ITEMS("{'type': null, 'role': 'user', 'content': ['a', {'text': 'b'}]}"),
	  SAID("{'role': 'user', 'content': 'a\\nb', 'od_last_part': 2}") },
	{ ITEMS("{'role': 'user', 'content': [{'type': 'input_text', 'text': 'a'}, {'type': 'input_image', 'image_url': 'x'}, {'type': "
		"'input_file', 'filename': 'n.pdf', 'file_data': 'x'}, {'type': 'input_audio', 'input_audio': {}}, {'type': 'part_from_tomorrow'}]}"),
	  SAID("{'role': 'user', 'content': 'a\\n[an image that this model cannot see]\\n[a file that this model cannot read: n.pdf]\\n[a "
	       "recording that this model cannot hear]\\n[something of type part_from_tomorrow that this model cannot read]', 'od_last_part': 126}") },
	{ ITEMS("{'type': 'function_call_output', 'call_id': 'c', 'output': [{'type': 'input_image', 'image_url': 'x'}]}"),
	  SAID("{'role': 'tool', 'tool_call_id': 'c', 'content': '[an image that this model cannot see]'}") },
	/* Tools. */
	{ ASK(", 'tools': [{'type': 'function', 'name': 'f', 'description': 'd', 'parameters': {'x': 1}, 'strict': true}, {'type': "
	      "'function', 'name': 'g', 'parameters': null}], 'tool_choice': 'auto', 'parallel_tool_calls': true"),
	  "{'tool_choice': 'auto', 'parallel_tool_calls': true, 'tools': [{'type': 'function', 'function': {'name': 'f', "
	  "'description': 'd', 'parameters': {'x': 1}, 'strict': true}}, {'type': 'function', 'function': {'name': 'g'}}], 'messages': [" USER
	  "]}" },
	{ ASK(", 'tools': [{'type': 'web_search'}, {'type': 'function', 'name': 'f'}, {'type': 'custom', 'name': 'c', 'format': {'type': "
	      "'grammar'}}, {'type': 'local_shell'}, {'type': 'mcp', 'server_label': 'x'}, {'type': 'tool_from_tomorrow'}]"),
	  "{'tools': [{'type': 'function', 'function': {'name': 'f'}}], 'messages': [" USER "]}" },
	{ ASK(", 'tools': [{'type': 'web_search'}]"), "{'tools': [], 'messages': [" USER "]}" },
	{ ASK(", 'tools': [{'type': 'namespace', 'name': 'mcp__s', 'description': 'd', 'tools': [{'type': 'function', 'name': 'f', 'strict': "
	      "false, 'parameters': {}}, {'type': 'custom', 'name': 'c'}]}]"),
	  "{'tools': [{'type': 'function', 'function': {'name': 'mcp__s__f', 'parameters': {}}}], 'messages': [" USER
	  "]}" },
	{ ASK(", 'tools': [{'type': 'namespace', 'tools': []}]"), "tools[0].name: expected a string, found nothing" },
	{ ASK(", 'tools': [{'type': 'namespace', 'name': 'n', 'tools': [{'type': 'function'}]}]"),
	  "tools[0].tools[0].name: expected a string, found nothing" },
	{ ITEMS(USER
		", {'type': 'function_call', 'call_id': 'c', 'namespace': 'mcp__s', 'name': 'f', 'arguments': '{}'}, {'type': "
		"'function_call_output', 'call_id': 'c', 'output': 'r'}"),
	  SAID(USER ", {'role': 'assistant', 'content': null, 'tool_calls': [" CALL(
		  "c", "mcp__s__f") "]}, {'role': 'tool', "
				    "'tool_call_id': 'c', 'content': 'r'}") },
	/* Items of tools that are no functions. */
	{ ITEMS("{'type': 'custom_tool_call', 'call_id': 'c', 'name': 'apply_patch', 'input': '*** Begin'}, {'type': "
		"'custom_tool_call_output', 'call_id': 'c', 'output': 'done'}"),
	  SAID("{'role': 'assistant', 'content': null, 'tool_calls': [{'id': 'c', 'type': 'function', 'function': {'name': 'apply_patch', "
	       "'arguments': '{\\'input\\': \\'*** Begin\\'}'}}]}, {'role': 'tool', 'tool_call_id': 'c', 'content': 'done'}") },
	{ ITEMS("{'type': 'local_shell_call', 'id': 'i', 'call_id': 'c', 'action': {'type': 'exec', 'command': ['ls']}}, {'type': "
		"'local_shell_call_output', 'id': 'c', 'output': 'a b'}"),
	  SAID("{'role': 'assistant', 'content': null, 'tool_calls': [{'id': 'c', 'type': 'function', 'function': {'name': 'local_shell', "
	       "'arguments': '{\\'type\\': \\'exec\\', \\'command\\': [\\'ls\\']}'}}]}, {'role': 'tool', 'tool_call_id': 'c', 'content': "
	       "'a b'}") },
	{ ITEMS("{'type': 'shell_call_output', 'call_id': 'c', 'output': [{'stdout': 'o', 'stderr': 'e', 'outcome': {'type': 'exit', "
		"'exit_code': 0}}]}"),
	  SAID("{'role': 'tool', 'tool_call_id': 'c', 'content': 'o\\ne'}") },
	{ ITEMS("{'type': 'computer_call_output', 'call_id': 'c', 'output': {'type': 'computer_screenshot', 'image_url': 'x'}}"),
	  SAID("{'role': 'tool', 'tool_call_id': 'c', 'content': '[an image that this model cannot see]'}") },
	{ ITEMS("{'type': 'web_search_call', 'id': 'ws', 'status': 'completed', 'action': {'type': 'search', 'query': 'q'}}"),
	  SAID("{'role': 'assistant', 'content': null, 'tool_calls': [{'id': 'ws', 'type': 'function', 'function': {'name': 'web_search', "
	       "'arguments': '{\\'type\\': \\'search\\', \\'query\\': \\'q\\'}'}}]}, {'role': 'tool', 'tool_call_id': 'ws', 'content': "
	       "'[the result is not given here]'}") },
	{ ITEMS("{'type': 'file_search_call', 'id': 'fs', 'queries': ['q'], 'results': [{'filename': 'n', 'text': 't', 'score': 1}]}"),
	  SAID("{'role': 'assistant', 'content': null, 'tool_calls': [{'id': 'fs', 'type': 'function', 'function': {'name': 'file_search', "
	       "'arguments': '{\\'queries\\': [\\'q\\']}'}}]}, {'role': 'tool', 'tool_call_id': 'fs', 'content': 'n\\nt'}") },
	{ ITEMS("{'type': 'code_interpreter_call', 'id': 'ci', 'code': '1+1', 'outputs': [{'type': 'logs', 'logs': '2'}, {'type': 'image', "
		"'url': 'u'}]}"),
	  SAID("{'role': 'assistant', 'content': null, 'tool_calls': [{'id': 'ci', 'type': 'function', 'function': {'name': "
	       "'code_interpreter', 'arguments': '{\\'code\\': \\'1+1\\'}'}}]}, {'role': 'tool', 'tool_call_id': 'ci', 'content': '2\\n[an "
	       "image that this model cannot see]'}") },
	{ ITEMS("{'type': 'mcp_call', 'id': 'm', 'server_label': 's', 'name': 'f', 'arguments': '{\\'a\\':1}', 'output': 'r', 'error': null}"),
	  SAID("{'role': 'assistant', 'content': null, 'tool_calls': [{'id': 'm', 'type': 'function', 'function': {'name': 'f', "
	       "'arguments': '{\\'a\\':1}'}}]}, {'role': 'tool', 'tool_call_id': 'm', 'content': 'r'}") },
	{ ITEMS("{'type': 'item_reference', 'id': 'x'}, {'type': 'compaction', 'encrypted_content': 'x'}, {'type': 'mcp_list_tools', 'id': "
		"'l', 'server_label': 's', 'tools': [{'name': 'f'}]}, {'type': 'mcp_approval_request', 'id': 'a', 'name': 'f', 'arguments': "
		"'{}'}, {'type': 'item_from_tomorrow'}, {'id': 'msg_1'}, {'type': null, 'id': 'rs_1'}, " USER),
	  SAID(USER) },
	{ ASK(", 'tools': [{'name': 'f'}]"), "tools[0].type: expected a string, found nothing" },
	{ ASK(", 'tools': [{'type': 'function'}]"), "tools[0].name: expected a string, found nothing" },
	{ ASK(", 'tools': [{'type': 'function', 'name': 'f', 'parameters': 3}]"),
	  "tools[0].parameters: expected an object, found 3" },
	{ ASK(", 'tools': 3"), "tools: expected an array, found 3" },
	/* Settings. */
	{ ASK(", 'max_output_tokens': 9, 'temperature': 0.5, 'top_p': 0.25, 'stream': true, 'seed': 7, 'stop': ['x'], 'store': false, "
	      "'background': false, 'text': {'format': {'type': 'text'}, 'verbosity': 'low'}, 'truncation': 'auto', 'metadata': {}"),
	  "{'max_tokens': 9, 'temperature': 0.5, 'top_p': 0.25, 'stop': ['x'], 'stream': true, 'seed': 7, 'text.format': {'type': 'text'}, 'messages': [" USER
	  "]}" },
	{ ASK(", 'reasoning': {'effort': 'low', 'summary': 'auto'}, 'include': ['reasoning.encrypted_content']"),
	  "{'reasoning': {'effort': 'low', 'summary': 'auto'}, 'messages': [" USER "]}" },
	{ ASK(", 'include': ['message.output_text.logprobs', 'reasoning.encrypted_content']"),
	  "{'logprobs': true, 'top_logprobs': 0, 'messages': [" USER "]}" },
	{ ASK(", 'top_logprobs': 2"), "{'logprobs': true, 'top_logprobs': 2, 'messages': [" USER "]}" },
	{ ASK(", 'max_output_tokens': 0"), "max_output_tokens: expected at least 1, or -1, found 0" },
	{ ASK(", 'top_logprobs': 21"), "top_logprobs: expected an integer from 0 to 20, found 21" },
	{ ASK(", 'text': {'format': {'type': 'json_schema'}}"),
	  "{'text.format': {'type': 'json_schema'}, 'messages': [" USER "]}" },
	{ ASK(", 'truncation': 'none'"), "truncation: expected 'auto' or 'disabled', found 'none'" },
	{ ASK(", 'metadata': 3"), "metadata: expected an object" },
	/* These would need stored state. */
	{ ASK(", 'previous_response_id': 'resp_1'"), "previous_response_id is not supported here; leave it out" },
	{ ASK(", 'conversation': 'conv_1'"), "conversation is not supported here; leave it out" },
	{ ASK(", 'background': true"), "background is not supported here; leave it out" },
	{ ASK(", 'store': true"), "{'messages': [" USER "]}" },
	{ ASK(", 'prompt': {'id': 'p'}"), "prompt is not supported here; leave it out" },
	/* Wrong fields are refused by name. */
	{ "{}", "input: expected a string or an array of items, found nothing" },
	{ ITEMS("3"), "input[0]: expected an object, found 3" },
	{ ITEMS("{'content': 'a'}"), "input[0].role: expected a string, found nothing" },
	{ ITEMS("{'role': 'tool', 'content': 'a'}"),
	  "input[0].role: expected 'user', 'assistant', 'system' or 'developer', found 'tool', which is not supported here" },
	{ ITEMS("{'role': 'user', 'content': [{'type': 'input_text'}]}"),
	  "input[0].content[0].text: expected a string, found nothing" },
	{ ITEMS("{'type': 'function_call', 'name': 'f', 'arguments': '{}'}"),
	  "input[0].call_id: expected a string, found nothing" },
	{ ITEMS("{'type': 'function_call', 'call_id': 'c', 'name': 'f', 'arguments': {}}"),
	  "input[0].arguments: expected a string, found an empty object" },
	{ ITEMS("{'type': 'function_call_output', 'call_id': 'c', 'output': 3}"),
	  "input[0].output: expected a string or an array, found 3" },
	{ ITEMS("{'role': 'user', 'content': 3}"), "input[0].content: expected a string or an array, found 3" },
};

static int convert(json_t **chat, const json_t *request, const char *body, struct odm_api_error *e)
{
	int rc = odm_client_fields_apply((json_t *)(uintptr_t)request, ODM_API_RESPONSES, e);

	(void)body;
	*chat = NULL;
	return rc == OD_OK ? odm_chat_of_response(chat, request, e) : rc;
}

static void test_requests(void **state)
{
	(void)state;
	check_rows(rows, sizeof(rows) / sizeof(rows[0]), convert);
}

/* The model's calls are those that the client gets. */
static void test_called_functions(void **state)
{
	static const struct {
		const char *called, *space, *name;
	} cases[] = {
		{ "f", NULL, "f" },
		{ "mcp__s__f", "mcp__s", "f" },
		{ "mcp__s__g__h", "mcp__s", "g__h" },
		{ "mcp__s__x", NULL, "mcp__s__x" },
		{ "mcp__s_f", NULL, "mcp__s_f" },
	};
	char *text = with_quotes(
		"[{'type': 'function', 'name': 'f'}, {'type': 'namespace'}, {'type': 'namespace', 'name': 'mcp__s', 'tools': "
		"[3, {'type': 'function', 'name': 'f'}, {'type': 'function', 'name': 'g__h'}]}]");
	json_t *tools = parse_row(text);

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *space, *name;

		odm_called_function(tools, cases[i].called, &space, &name);
		assert_string_equal(name, cases[i].name);
		assert_true((space == NULL) == (cases[i].space == NULL));
		if (space != NULL)
			assert_string_equal(space, cases[i].space);
	}
	json_decref(tools);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_requests),
		cmocka_unit_test(test_called_functions),
	};

	return cmocka_run_group_tests_name("response items", tests, NULL, NULL);
}
