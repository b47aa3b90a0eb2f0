/* /api/chat and /api/generate: Ollama's API. Streams are lines of JSON, each a piece of the answer; the last one has
 * the counts. */
#include "main-node/serve/api/api.h"
#include "main-node/serve/api/call_memory.h"
#include "main-node/serve/api/dialog.h"
#include "main-node/serve/api/ollama_request.h"
#include "common/text/utf8_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct ollama {
	struct odm_dialog d; /* must be first (dialog.h) */
	bool generates; /* /api/generate: the text stands in the answer itself, not in a message */
	/* An answer that is not a stream collects its texts here, and its calls as JSON: arguments stay as the model
	 * wrote them. */
	struct od_strbuf text, thought, calls;
};

/* ---- Objects ---- */

static json_t *now_json(void)
{
	char at[sizeof("2026-02-03T04:05:06.123456789Z")] = "", seconds[sizeof("2026-02-03T04:05:06")] = "";
	struct timespec now;
	struct tm utc;

	if (timespec_get(&now, TIME_UTC) == 0 || gmtime_r(&now.tv_sec, &utc) == NULL)
		return json_string(at);
	strftime(seconds, sizeof(seconds), "%Y-%m-%dT%H:%M:%S", &utc);
	snprintf(at, sizeof(at), "%s.%09dZ", seconds, (int)now.tv_nsec);
	return json_string(at);
}

static json_t *new_object(const struct ollama *a, bool done)
{
	return json_pack("{s:s, s:o, s:b}", "model", a->d.reply.model, "created_at", now_json(), "done", done);
}

/* Adds a piece of the answer, which stands last in o. Takes thought, NULL: none. */
static void add_texts(const struct ollama *a, json_t *o, json_t *text, json_t *thought)
{
	json_t *in = a->generates ? o : json_pack("{s:s}", "role", "assistant");

	json_object_set_new(in, a->generates ? "response" : "content", text);
	if (thought != NULL)
		json_object_set_new(in, "thinking", thought);
	if (!a->generates)
		json_object_set_new(o, "message", in);
}

/* The log probabilities that no object has yet. */
static void add_logprobs(struct ollama *a, json_t *o)
{
	json_t *list = json_object_get(a->d.logprobs, "content");

	if (json_array_size(list) == 0)
		return;
	json_object_set_new(o, "logprobs", json_copy(list));
	json_array_clear(list);
}

/* Writes o, and takes it. calls: JSON that the message at its end gets; empty: none. */
static void write_object(struct ollama *a, json_t *o, const struct od_strbuf *calls)
{
	char *text = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;
	struct od_strbuf out = { 0 };
	size_t len;

	out.failed = text == NULL || calls->failed;
	if (text != NULL && calls->len > 0) /* the braces of message and object */
		od_strbuf_printf(&out, "%.*s,\"tool_calls\":[%s]}}", (int)(strlen(text) - 2), text, calls->text);
	else if (text != NULL)
		od_strbuf_append(&out, text, strlen(text));
	free(text);
	json_decref(o);
	text = od_strbuf_take(&out, &len);
	if (!a->d.reply.stream) {
		odm_exchange_reply(a->d.reply.exchange, 200, "application/json", text, len);
		return;
	}
	if (text != NULL)
		odm_exchange_write_line(a->d.reply.exchange, text, len);
	else
		odm_exchange_write_json(a->d.reply.exchange, NULL); /* ends the stream */
	free(text);
}

/* ---- The answer ---- */

static void write_piece(struct ollama *a, json_t *text, json_t *thought, const struct od_strbuf *calls)
{
	json_t *o = new_object(a, false);

	add_logprobs(a, o);
	add_texts(a, o, text, thought);
	write_object(a, o, calls);
}

static void block_text(struct odm_dialog *d, const struct odm_block *b, const char *text, size_t len)
{
	static const struct od_strbuf none;
	const bool thought = b->kind == ODM_BLOCK_THOUGHT;

	if (b->kind != ODM_BLOCK_CALL)
		write_piece((struct ollama *)d, thought ? json_string("") : odm_json_text(text, len),
			    thought ? odm_json_text(text, len) : NULL, &none);
}

static void append_call(struct od_strbuf *out, const struct odm_block *b)
{
	json_t *arguments = odm_block_text(b);

	od_strbuf_append(out, ",", out->len > 0);
	od_strbuf_printf(out, "{\"id\":");
	odm_json_quote(out, b->id, strlen(b->id));
	od_strbuf_printf(out, ",\"function\":{\"name\":");
	odm_json_quote(out, b->name, strlen(b->name));
	od_strbuf_printf(out, ",\"arguments\":%s}}", arguments != NULL ? json_string_value(arguments) : "{}");
	out->failed = out->failed || arguments == NULL;
	json_decref(arguments);
}

static void end_call(struct ollama *a, const struct odm_block *b)
{
	struct od_strbuf call = { 0 };

	odm_call_memory_put(odm_app_of(a->d.reply.exchange)->calls, b->id, od_strbuf_text(&b->text));
	if (!a->d.reply.stream) {
		append_call(&a->calls, b);
		return;
	}
	append_call(&call, b);
	write_piece(a, json_string(""), NULL, &call);
	od_strbuf_fini(&call);
}

/* A call is complete (odm_dialog_format.whole_calls). */
static void block_end(struct odm_dialog *d, const struct odm_block *b)
{
	struct ollama *a = (struct ollama *)d;

	if (b->kind == ODM_BLOCK_CALL)
		end_call(a, b);
	else if (!d->reply.stream)
		od_strbuf_append(b->kind == ODM_BLOCK_TEXT ? &a->text : &a->thought, od_strbuf_text(&b->text),
				 b->text.len);
}

/* load_duration is the time in the queue, which Ollama counts there, too: the model is loaded. */
static void add_counts(const struct ollama *a, json_t *o)
{
	const struct odm_usage u = odm_reply_usage(&a->d.reply, 1);
	const struct odm_reply_times t = odm_reply_times(&a->d.reply);
	json_t *counts = json_pack(
		"{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "done_reason", odm_finish_reason(odm_dialog_finish(&a->d)),
		"total_duration", (json_int_t)t.total_ns, "load_duration", (json_int_t)t.queue_ns, "prompt_eval_count",
		(json_int_t)u.prompt_tokens, "prompt_eval_duration", (json_int_t)t.prompt_ns, "eval_count",
		(json_int_t)u.completion_tokens, "eval_duration", (json_int_t)t.generation_ns);

	json_object_update(o, counts);
	json_decref(counts);
}

static json_t *text_of(const struct od_strbuf *b)
{
	return odm_json_text(od_strbuf_text(b), b->len);
}

static void end(struct odm_dialog *d)
{
	struct ollama *a = (struct ollama *)d;
	json_t *o = new_object(a, true);

	if (d->chat != NULL)
		add_counts(a, o);
	else
		json_object_set_new(o, "done_reason", json_string("load"));
	add_logprobs(a, o);
	add_texts(a, o, text_of(&a->text), a->thought.len > 0 ? text_of(&a->thought) : NULL);
	write_object(a, o, &a->calls);
}

static void fail(struct odm_dialog *d, const struct odm_api_error *e)
{
	odm_exchange_write_json(d->reply.exchange, odm_api_error_ollama(e));
}

/* There are no comments in lines of JSON: a piece without text keeps the stream alive. */
static void keep_alive(void *d)
{
	static const struct od_strbuf none;

	write_piece(d, json_string(""), NULL, &none);
}

/* ---- The request ---- */

static int convert_chat(json_t **chat, const json_t *request, const struct odm_exchange *x, struct odm_api_error *e)
{
	size_t len;
	const char *body = odm_exchange_body(x, &len);

	return odm_chat_of_ollama_chat(chat, request, body, len, odm_app_of(x)->calls, e);
}

static int convert_prompt(json_t **chat, const json_t *request, const struct odm_exchange *x, struct odm_api_error *e)
{
	return odm_chat_of_ollama_prompt(chat, request, odm_app_of(x)->chat == NULL, e);
}

static void prepare(struct odm_exchange *x, bool generates)
{
	static const char *const chat_renamed[][2] = { { "response_format", "format" },
						       { "max_tokens", "num_predict" },
						       { NULL, NULL } };
	static const char *const prompt_renamed[][2] = { { "response_format", "format" },
							 { "max_tokens", "num_predict" },
							 { "messages", "prompt" },
							 { NULL, NULL } };
	static const struct odm_dialog_format chat = { .api = ODM_API_OLLAMA_CHAT,
						       .convert = convert_chat,
						       .block_text = block_text,
						       .block_end = block_end,
						       .end = end,
						       .fail = fail,
						       .keep_alive = keep_alive,
						       .renamed = chat_renamed,
						       .whole_calls = true };
	static const struct odm_dialog_format prompt = { .api = ODM_API_OLLAMA_GENERATE,
							 .convert = convert_prompt,
							 .block_text = block_text,
							 .block_end = block_end,
							 .end = end,
							 .fail = fail,
							 .keep_alive = keep_alive,
							 .renamed = prompt_renamed,
							 .whole_calls = true };
	struct ollama *a = odm_exchange_new_state(x, sizeof(*a));

	if (a == NULL)
		return;
	a->generates = generates;
	odm_dialog_prepare(&a->d, generates ? &prompt : &chat, x);
}

static void prepare_chat(struct odm_exchange *x)
{
	prepare(x, false);
}

static void prepare_prompt(struct odm_exchange *x)
{
	prepare(x, true);
}

static void free_state(void *state)
{
	struct ollama *a = state;

	if (a == NULL)
		return;
	odm_dialog_fini(&a->d);
	od_strbuf_fini(&a->text);
	od_strbuf_fini(&a->thought);
	od_strbuf_fini(&a->calls);
	free(a);
}

const struct odm_endpoint odm_ollama_chat_endpoint = {
	.method = "POST",
	.path = "/api/chat",
	.flags = ODM_ENDPOINT_OLLAMA,
	.prepare = prepare_chat,
	.start = odm_dialog_start,
	.news = odm_reply_on_news,
	.tick = odm_reply_on_tick,
	.gone = odm_reply_on_gone,
	.free_state = free_state,
};
const struct odm_endpoint odm_ollama_generate_endpoint = {
	.method = "POST",
	.path = "/api/generate",
	.flags = ODM_ENDPOINT_OLLAMA,
	.prepare = prepare_prompt,
	.start = odm_dialog_start,
	.news = odm_reply_on_news,
	.tick = odm_reply_on_tick,
	.gone = odm_reply_on_gone,
	.free_state = free_state,
};
