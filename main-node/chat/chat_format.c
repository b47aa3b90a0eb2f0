#include "main-node/chat/chat_format.h"

#include <stdlib.h>
#include <string.h>

#define N(a) (sizeof(a) / sizeof((a)[0]))

/* ---- Calls ---- */

static const struct odm_call_format json_in_tags[] = { {
	.open = "<tool_call>",
	.head = "",
	.call = ODM_WS ODM_CALL ODM_WS,
	.end = "</tool_call>",
} };

/* Qwen3-Coder sometimes leaves out <tool_call>, and then often writes </tool_call> all the same. */
static const struct odm_call_format qwen_xml[] = { {
							   .open = "<tool_call>",
							   .head = "",
							   .call = ODM_WS "<function=" ODM_NAME ">",
							   .param = "<parameter=" ODM_KEY ">" ODM_VALUE "</parameter>",
							   .end = "</function>" ODM_WS "</tool_call>",
							   .values = ODM_VALUE_LINES,
						   },
						   {
							   .open = "<function=",
							   .head = "",
							   .call = ODM_NAME ">",
							   .param = "<parameter=" ODM_KEY ">" ODM_VALUE "</parameter>",
							   .end = "</function>",
							   .values = ODM_VALUE_LINES,
						   } };

static const struct odm_call_format glm_xml[] = { {
	.open = "<tool_call>",
	.head = "",
	.call = ODM_WS ODM_NAME,
	.param = "<arg_key>" ODM_KEY "</arg_key>" ODM_WS "<arg_value>" ODM_VALUE "</arg_value>",
	.end = "</tool_call>",
	.values = ODM_VALUE_JSON,
} };

static const struct odm_call_format minimax_xml[] = { {
	.open = "<minimax:tool_call>",
	.head = "",
	.call = ODM_WS "<invoke name=\"" ODM_NAME "\">",
	.param = "<parameter name=\"" ODM_KEY "\">" ODM_VALUE "</parameter>",
	.end = "</invoke>",
	.between = "",
	.close = "</minimax:tool_call>",
} };

static const struct odm_call_format deepseek_v3[] = { {
	.open = "<｜tool▁calls▁begin｜>",
	.head = "",
	.call = ODM_WS "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" ODM_NAME ODM_WS "```json" ODM_WS ODM_ARGS ODM_WS
		       "```" ODM_WS,
	.end = "<｜tool▁call▁end｜>",
	.between = "",
	.close = "<｜tool▁calls▁end｜>",
} };

static const struct odm_call_format deepseek_v31[] = { {
	.open = "<｜tool▁calls▁begin｜>",
	.head = "",
	.call = ODM_WS "<｜tool▁call▁begin｜>" ODM_NAME "<｜tool▁sep｜>" ODM_WS ODM_ARGS ODM_WS,
	.end = "<｜tool▁call▁end｜>",
	.between = "",
	.close = "<｜tool▁calls▁end｜>",
} };

/* Older models write an array; newer ones a name and its arguments, with or without an id. */
static const struct odm_call_format mistral[] = { {
							  .open = "[TOOL_CALLS]",
							  .head = ODM_WS "[",
							  .call = ODM_WS ODM_CALL ODM_WS,
							  .end = "",
							  .between = ",",
							  .close = "]",
							  .late_id = true,
						  },
						  {
							  .open = "[TOOL_CALLS]",
							  .head = "",
							  .call = ODM_WS ODM_NAME "[ARGS]" ODM_WS ODM_ARGS,
							  .end = "",
						  },
						  {
							  .open = "[TOOL_CALLS]",
							  .head = "",
							  .call = ODM_WS ODM_NAME "[CALL_ID]" ODM_ID
										  "[ARGS]" ODM_WS ODM_ARGS,
							  .end = "",
						  } };

static const struct odm_call_format kimi[] = { {
	.open = "<|tool_calls_section_begin|>",
	.head = "",
	.call = ODM_WS "<|tool_call_begin|>" ODM_WS ODM_ID ODM_WS "<|tool_call_argument_begin|>" ODM_WS ODM_ARGS ODM_WS,
	.end = "<|tool_call_end|>",
	.between = "",
	.close = "<|tool_calls_section_end|>",
} };

static const struct odm_call_format llama[] = { {
							.open = "<|python_tag|>",
							.head = "",
							.call = ODM_WS ODM_CALL,
							.end = "",
						},
						{
							.open = "{",
							.head = "",
							.call = ODM_CALL,
							.end = "",
							.at_start = true,
							.bare = true,
						} };

static const struct odm_call_format gemma[] = { {
	.open = "<|tool_call>",
	.head = "",
	.call = "call:" ODM_NAME ODM_VALUE "<tool_call|>",
	.end = "",
	.values = ODM_VALUE_GEMMA,
} };

static const struct odm_call_format cohere[] = { {
	.open = "<|START_ACTION|>",
	.head = ODM_WS "[",
	.call = ODM_WS ODM_CALL ODM_WS,
	.end = "",
	.between = ",",
	.close = "]" ODM_WS "<|END_ACTION|>",
} };

/* The first row is taken whose needs the template has all: rows with more needs come first. ends: texts that end a turn
 * besides common_ends. */
static const struct family {
	const char *name, *need[2], *end[2];
	const struct odm_call_format *calls;
	size_t n_calls;
	enum odm_echo echo;
} families[] = {
	{ .name = "harmony", .need = { "<|channel|>", "<|message|>" } },
	{ "gemma", { "<|tool_call>", "<tool_call|>" }, { "<|tool_response>" }, gemma, N(gemma), ODM_ECHO_GEMMA },
	{ "minimax",
	  { "<minimax:tool_call>", "<invoke name=" },
	  { NULL },
	  minimax_xml,
	  N(minimax_xml),
	  ODM_ECHO_VALUES },
	{ "qwen-xml", { "<tool_call>", "<function=" }, { NULL }, qwen_xml, N(qwen_xml), ODM_ECHO_VALUES },
	{ "glm",
	  { "<tool_call>", "<arg_key>" },
	  { "<|user|>", "<|observation|>" },
	  glm_xml,
	  N(glm_xml),
	  ODM_ECHO_VALUES },
	{ "deepseek-v3",
	  { "<｜tool▁calls▁begin｜>", "```json" },
	  { NULL },
	  deepseek_v3,
	  N(deepseek_v3),
	  ODM_ECHO_OBJECT },
	{ "deepseek-v3.1", { "<｜tool▁calls▁begin｜>" }, { NULL }, deepseek_v31, N(deepseek_v31), ODM_ECHO_OBJECT },
	{ "kimi", { "<|tool_calls_section_begin|>" }, { NULL }, kimi, N(kimi), ODM_ECHO_OBJECT },
	{ "mistral", { "[TOOL_CALLS]" }, { NULL }, mistral, N(mistral), ODM_ECHO_OBJECT },
	{ "cohere", { "<|START_ACTION|>" }, { NULL }, cohere, N(cohere), ODM_ECHO_OBJECT },
	{ "json-in-tags", { "<tool_call>" }, { NULL }, json_in_tags, N(json_in_tags), ODM_ECHO_OBJECT },
	{ "llama", { "<|python_tag|>" }, { NULL }, llama, N(llama), ODM_ECHO_OBJECT },
	{ "llama", { "{\"name\": function name", "\"parameters\":" }, { NULL }, llama, N(llama), ODM_ECHO_OBJECT },
	{ .name = "plain" },
};

/* ---- Thoughts and ends ---- */

static const struct odm_thought_tags thought_tags[] = {
	{ "<|channel>", "<channel|>", "thought\n" },
	{ "<|START_THINKING|>", "<|END_THINKING|>", NULL },
	{ "[THINK]", "[/THINK]", NULL },
	{ "<seed:think>", "</seed:think>", NULL },
	{ "<think>", "</think>", NULL },
};

static const char *const common_ends[] = {
	"<|im_end|>",	   "<|endoftext|>",	    "<|eot_id|>", "<|eom_id|>",
	"<|end_of_text|>", "<｜end▁of▁sentence｜>", "[e~[",	  "<turn|>",
	"<end_of_turn>",   "<|END_OF_TURN_TOKEN|>", "<|end|>",	  "[EOS]",
};

static bool lacks(const char *text, const char *need)
{
	return need != NULL && strstr(text, need) == NULL;
}

static const struct family *find_family(const char *text)
{
	const struct family *f = families;

	while (lacks(text, f->need[0]) || lacks(text, f->need[1]))
		f++;
	return f;
}

static void add_end(struct odm_chat_format *format, const char *end)
{
	if (format->n_ends < ODM_MAX_ENDS)
		format->end[format->n_ends++] = end;
}

static void find_ends(struct odm_chat_format *format, const struct family *f, const char *text, const char *eos)
{
	for (size_t i = 0; i < N(f->end) && f->end[i] != NULL; i++)
		add_end(format, f->end[i]);
	for (size_t i = 0; i < N(common_ends); i++)
		if (strstr(text, common_ends[i]) != NULL)
			add_end(format, common_ends[i]);
	if (eos != NULL && strlen(eos) < sizeof(format->eos))
		memcpy(format->eos, eos, strlen(eos) + 1);
}

static const char *last_of(const char *text, size_t len, const char *what)
{
	const size_t n = strlen(what);

	for (size_t at = len + 1; at-- > 0;)
		if (len - at >= n && memcmp(text + at, what, n) == 0)
			return text + at;
	return NULL;
}

static bool left_open(const struct odm_thought_tags *t, const char *text, size_t len)
{
	const char *open = last_of(text, len, t->open), *close = last_of(text, len, t->close);

	return open != NULL && (close == NULL || close < open);
}

/* In a template, the text behind the last add_generation_prompt is the prompt's end; of several branches the last one
 * counts that does not turn thinking off. */
static void find_thoughts(struct odm_chat_format *format, const char *text)
{
	const char *tail = last_of(text, strlen(text), "add_generation_prompt");

	for (size_t i = 0; i < N(thought_tags) && format->thoughts == NULL; i++)
		if (strstr(text, thought_tags[i].open) != NULL || strstr(text, thought_tags[i].close) != NULL)
			format->thoughts = &thought_tags[i];
	format->opens_thought =
		format->thoughts != NULL && tail != NULL && left_open(format->thoughts, tail, strlen(tail));
}

void odm_chat_format_choose(struct odm_chat_format *format, const char *text, const char *eos)
{
	const struct family *f = find_family(text);

	*format = (struct odm_chat_format){ .name = f->name, .calls = f->calls, .n_calls = f->n_calls };
	format->stray = f->calls == qwen_xml ? "</tool_call>" : NULL;
	format->harmony = f == families;
	if (!format->harmony) {
		find_thoughts(format, text);
		find_ends(format, f, text, eos);
	}
	format->echo = f->echo;
	format->ids = f->calls == kimi ? ODM_IDS_COUNTED : ODM_IDS_ANY;
}

/* ---- What answers contain ---- */

static void call_marks(const struct odm_call_format *f, void (*mark)(void *arg, const char *text), void *arg)
{
	const char *const texts[] = { f->open, f->head, f->call, f->param, f->end, f->between, f->close };

	for (size_t i = 0; i < N(texts); i++)
		if (texts[i] != NULL)
			mark(arg, texts[i]);
	if (f->values == ODM_VALUE_GEMMA)
		mark(arg, "<|\"|>"); /* its quote */
}

void odm_chat_format_marks(const struct odm_chat_format *format, bool calls, void (*mark)(void *arg, const char *text),
			   void *arg)
{
	static const char *const of_harmony[] = { "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
						  "<|end|>" };

	if (format->harmony)
		for (size_t i = 0; i < N(of_harmony); i++)
			mark(arg, of_harmony[i]);
	if (format->thoughts != NULL) {
		mark(arg, format->thoughts->open);
		mark(arg, format->thoughts->close);
	}
	if (!calls)
		return;
	for (size_t i = 0; i < format->n_calls; i++)
		call_marks(&format->calls[i], mark, arg);
}

void odm_chat_format_ends(const struct odm_chat_format *format, void (*end)(void *arg, const char *text), void *arg)
{
	static const char *const of_harmony[] = { "<|return|>", "<|call|>" };

	if (format->harmony)
		for (size_t i = 0; i < N(of_harmony); i++)
			end(arg, of_harmony[i]);
	for (size_t i = 0; i < format->n_ends; i++)
		end(arg, format->end[i]);
	if (format->eos[0] != '\0')
		end(arg, format->eos);
}

static bool touches(const struct od_text_spans *users, size_t begin, size_t end)
{
	for (size_t i = users->n; i > 0 && users->v[i - 1].end > begin; i--)
		if (users->v[i - 1].begin < end)
			return true;
	return false;
}

bool odm_chat_format_in_thought(const struct odm_chat_format *format, const char *prompt, size_t len,
				const struct od_text_spans *users)
{
	const size_t n = format->thoughts == NULL ? 0 : strlen(format->thoughts->open);

	while (len > 0 && strchr(" \n\r\t", prompt[len - 1]) != NULL && prompt[len - 1] != '\0')
		len--;
	return n > 0 && len >= n && memcmp(prompt + len - n, format->thoughts->open, n) == 0 &&
	       !touches(users, len - n, len);
}
