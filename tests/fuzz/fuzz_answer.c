/* Any text as a model's answer, in any format: how it is cut changes nothing, arguments are valid JSON, and what the
 * answer gave is taken when it is sent back. First byte: the format; second: in a thought, tools; third: bytes a
 * piece. */
#include <string.h>

#include "main-node/chat/answer_print.h"
#include "main-node/chat/chat_messages.h"
#include "tests/fuzz/fuzz.h"

static const char *const templates[] = {
	"<tool_call> <think></think> <|im_end|>",
	"<tool_call> <function= <think></think>",
	"<tool_call> <arg_key> <think></think>",
	"<minimax:tool_call> <invoke name= <think></think> [e~[",
	"<｜tool▁calls▁begin｜> ```json <think></think> arguments+",
	"<｜tool▁calls▁begin｜> <think></think>",
	"<|tool_calls_section_begin|>",
	"[TOOL_CALLS] [THINK][/THINK] length != 9",
	"<|START_ACTION|> <|START_THINKING|>",
	"<|python_tag|> <|eot_id|>",
	"<|tool_call> <tool_call|> <|channel> <turn|>",
	"<|channel|> <|message|> arguments|tojson",
	"",
};

static json_t *make_tools(void)
{
	return json_pack("[{s:{s:s, s:{s:{s:{s:s}, s:{s:[ss]}, s:{s:[{s:s}]}}}}}]", "function", "name", "f",
			 "parameters", "properties", "a", "type", "integer", "b", "type", "boolean", "null", "c",
			 "anyOf", "type", "object");
}

/* Sends the answer's calls back. */
static void send_back(const json_t *answer, const struct odm_chat_format *format)
{
	json_t *call, *calls = json_array(), *messages;
	struct odm_context context;
	struct od_err err;
	size_t i;

	json_array_foreach(json_object_get(answer, "tool_calls"), i, call)
	{
		const char *text = json_string_value(json_object_get(call, "arguments"));
		json_t *arguments = json_loads(text, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);

		check(json_is_object(arguments) && json_string_length(json_object_get(call, "name")) > 0);
		json_decref(arguments);
		json_array_append_new(calls, json_pack("{s:O}", "function", call));
	}
	messages = json_pack("[{s:s, s:O, s:o}]", "role", "assistant", "content", json_object_get(answer, "content"),
			     "tool_calls", calls);
	check(odm_context_build(&context, messages, format, &err) == OD_OK);
	odm_context_fini(&context);
	json_decref(messages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const stop[] = { "e" };
	struct odm_chat_format format;
	struct odm_answer_opts opts = { .format = &format, .max_call_bytes = 200 };
	json_t *whole, *cut, *tools = NULL;
	struct od_err err;

	if (size < 3)
		return 0;
	odm_chat_format_choose(&format, templates[data[0] % (sizeof(templates) / sizeof(templates[0]))], "</s>");
	opts.in_thought = data[1] & 1;
	if (data[1] & 2)
		opts.tools = tools = make_tools();
	check(odm_answer_object(&whole, &opts, (const char *)data + 3, size - 3, 0, &err) == OD_OK);
	check(odm_answer_object(&cut, &opts, (const char *)data + 3, size - 3, 1 + data[2] % 16, &err) == OD_OK);
	check(json_equal(whole, cut));
	send_back(whole, &format);
	json_decref(whole);
	json_decref(cut);
	opts.early_calls = true;
	opts.stop = stop;
	opts.n_stop = data[1] >> 2 & 1;
	check(odm_answer_object(&whole, &opts, (const char *)data + 3, size - 3, 0, &err) == OD_OK);
	check(odm_answer_object(&cut, &opts, (const char *)data + 3, size - 3, 1 + data[2] % 16, &err) == OD_OK);
	check(json_equal(whole, cut));
	json_decref(whole);
	json_decref(cut);
	json_decref(tools);
	return 0;
}
