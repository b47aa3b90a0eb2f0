/* /v1/messages and /v1/messages/count_tokens: Anthropic's messages API. */
#include "main-node/serve/api/anthropic_messages.h"
#include "main-node/serve/api/api.h"
#include "main-node/serve/api/call_memory.h"
#include "main-node/serve/api/dialog.h"
#include "common/text/utf8_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Clients need the signature of a thought and send it back; nothing here checks it. */
#define SIGNATURE "unsigned"

struct message {
	struct odm_dialog d; /* must be first (dialog.h) */
	/* an answer that is not a stream collects its blocks here, as JSON: a call's input stays as the model wrote
	 * it */
	struct od_strbuf content;
};

/* ---- The message ---- */

static const char *stop_reason(const struct odm_dialog *d)
{
	if (odm_turn_called(d->turn, &d->reply, 0))
		return "tool_use";
	switch (odm_dialog_finish(d)) {
	case ODM_FINISH_LENGTH: return "max_tokens";
	case ODM_FINISH_CONTEXT: return "model_context_window_exceeded";
	case ODM_FINISH_STOP: return "stop_sequence";
	case ODM_FINISH_EOS:
	case ODM_FINISH_CANCELLED:
	case ODM_FINISH_ERROR: break;
	}
	return "end_turn";
}

/* {"stop_reason", "stop_sequence"} of an answer that is complete. */
static json_t *stop_json(const struct odm_dialog *d)
{
	const char *reason = stop_reason(d);
	size_t which;
	const bool stopped = strcmp(reason, "stop_sequence") == 0 && odm_turn_stopped(d->turn, 0, &which);

	return json_pack("{s:s, s:s?}", "stop_reason", reason, "stop_sequence",
			 stopped ? d->g.stop.value[which] : NULL);
}

/* input_tokens counts the tokens that were computed; before the answer is complete, all of the prompt. */
static json_t *usage_json(const struct odm_dialog *d)
{
	const struct odm_usage u = odm_reply_usage(&d->reply, 1);

	return json_pack("{s:I, s:i, s:I, s:I}", "input_tokens", (json_int_t)(u.prompt_tokens - u.cached_tokens),
			 "cache_creation_input_tokens", 0, "cache_read_input_tokens", (json_int_t)u.cached_tokens,
			 "output_tokens", (json_int_t)u.completion_tokens);
}

static json_t *message_json(const struct odm_dialog *d)
{
	char id[ODM_REQUEST_ID_BYTES + sizeof("msg_")];

	snprintf(id, sizeof(id), "msg_%s", odm_exchange_id(d->reply.exchange));
	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:[], s:n, s:n, s:o}", "id", id, "type", "message", "role",
			 "assistant", "model", d->reply.model, "system_fingerprint", d->reply.fingerprint, "content",
			 "stop_reason", "stop_sequence", "usage", usage_json(d));
}

/* ---- A whole answer ---- */

/* Appends o, less the brace that ends it, and takes it. */
static void append_open(struct od_strbuf *out, json_t *o)
{
	char *text = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;

	if (text != NULL)
		od_strbuf_append(out, text, strlen(text) - 1);
	else
		out->failed = true;
	free(text);
	json_decref(o);
}

static void append_block(struct od_strbuf *out, const struct odm_block *b)
{
	json_t *text = odm_block_text(b);

	od_strbuf_append(out, ",", out->len > 0);
	if (b->kind == ODM_BLOCK_TEXT) {
		append_open(out, json_pack("{s:s, s:O}", "type", "text", "text", text));
	} else if (b->kind == ODM_BLOCK_THOUGHT) {
		append_open(out,
			    json_pack("{s:s, s:O, s:s}", "type", "thinking", "thinking", text, "signature", SIGNATURE));
	} else {
		append_open(out, json_pack("{s:s, s:s, s:s}", "type", "tool_use", "id", b->id, "name", b->name));
		od_strbuf_printf(out, ",\"input\":%s", text != NULL ? json_string_value(text) : "{}");
	}
	od_strbuf_append(out, "}", 1);
	json_decref(text);
}

static void reply(struct message *m)
{
	struct od_strbuf out = { 0 };
	json_t *o = message_json(&m->d), *stop = stop_json(&m->d);
	char *text;
	size_t len;

	json_object_update(o, stop);
	json_object_del(o, "content");
	append_open(&out, o);
	od_strbuf_printf(&out, ",\"content\":[%s]}", od_strbuf_text(&m->content));
	out.failed = out.failed || m->content.failed;
	text = od_strbuf_take(&out, &len);
	odm_exchange_reply(m->d.reply.exchange, 200, "application/json", text, len);
	json_decref(stop);
}

/* ---- Events ---- */

static void write_event(struct odm_dialog *d, json_t *o)
{
	odm_exchange_write_event(d->reply.exchange, o);
}

static void ping(void *d)
{
	write_event(d, json_pack("{s:s}", "type", "ping"));
}

static void begin(struct odm_dialog *d)
{
	write_event(d, json_pack("{s:s, s:o}", "type", "message_start", "message", message_json(d)));
	ping(d);
}

static void block_begin(struct odm_dialog *d, const struct odm_block *b)
{
	json_t *block;

	if (b->kind == ODM_BLOCK_TEXT)
		block = json_pack("{s:s, s:s}", "type", "text", "text", "");
	else if (b->kind == ODM_BLOCK_THOUGHT)
		block = json_pack("{s:s, s:s, s:s}", "type", "thinking", "thinking", "", "signature", "");
	else
		block = json_pack("{s:s, s:s, s:s, s:{}}", "type", "tool_use", "id", b->id, "name", b->name, "input");
	write_event(d, json_pack("{s:s, s:I, s:o}", "type", "content_block_start", "index", (json_int_t)b->index,
				 "content_block", block));
}

/* Takes text. */
static void write_delta(struct odm_dialog *d, const struct odm_block *b, const char *type, const char *name,
			json_t *text)
{
	write_event(d, json_pack("{s:s, s:I, s:{s:s, s:o}}", "type", "content_block_delta", "index",
				 (json_int_t)b->index, "delta", "type", type, name, text));
}

static void block_text(struct odm_dialog *d, const struct odm_block *b, const char *text, size_t len)
{
	static const char *const type[][2] = {
		[ODM_BLOCK_THOUGHT] = { "thinking_delta", "thinking" },
		[ODM_BLOCK_TEXT] = { "text_delta", "text" },
		[ODM_BLOCK_CALL] = { "input_json_delta", "partial_json" },
	};

	write_delta(d, b, type[b->kind][0], type[b->kind][1], odm_json_text(text, len));
}

static void block_end(struct odm_dialog *d, const struct odm_block *b)
{
	if (b->kind == ODM_BLOCK_CALL && b->text.text != NULL && !b->cut)
		odm_call_memory_put(odm_app_of(d->reply.exchange)->calls, b->id, b->text.text);
	if (!d->reply.stream) {
		append_block(&((struct message *)d)->content, b);
		return;
	}
	if (b->kind == ODM_BLOCK_THOUGHT)
		write_delta(d, b, "signature_delta", "signature", json_string(SIGNATURE));
	write_event(d, json_pack("{s:s, s:I}", "type", "content_block_stop", "index", (json_int_t)b->index));
}

static void end(struct odm_dialog *d)
{
	if (!d->reply.stream) {
		reply((struct message *)d);
		return;
	}
	write_event(d, json_pack("{s:s, s:o, s:o}", "type", "message_delta", "delta", stop_json(d), "usage",
				 usage_json(d)));
	write_event(d, json_pack("{s:s}", "type", "message_stop"));
}

static void fail(struct odm_dialog *d, const struct odm_api_error *e)
{
	write_event(d, odm_api_error_anthropic(e, odm_exchange_id(d->reply.exchange)));
}

/* ---- The request ---- */

static int convert_any(json_t **chat, const json_t *request, const struct odm_exchange *x, bool counting,
		       struct odm_api_error *e)
{
	size_t len;
	const char *body = odm_exchange_body(x, &len);

	return odm_chat_of_anthropic(chat, request, body, len, odm_app_of(x)->calls, counting, e);
}

static int convert(json_t **chat, const json_t *request, const struct odm_exchange *x, struct odm_api_error *e)
{
	return convert_any(chat, request, x, false, e);
}

static void prepare(struct odm_exchange *x)
{
	static const struct odm_dialog_format format = {
		.api = ODM_API_MESSAGES,
		.convert = convert,
		.begin = begin,
		.block_begin = block_begin,
		.block_text = block_text,
		.block_end = block_end,
		.end = end,
		.fail = fail,
		.keep_alive = ping,
	};
	struct message *m = odm_exchange_new_state(x, sizeof(*m));

	if (m == NULL)
		return;
	odm_dialog_prepare(&m->d, &format, x);
}

static void free_state(void *state)
{
	struct message *m = state;

	if (m == NULL)
		return;
	odm_dialog_fini(&m->d);
	od_strbuf_fini(&m->content);
	free(m);
}

static void prepare_count(struct odm_exchange *x)
{
	const struct odm_engine *engine;
	json_t *request, *chat = NULL;
	struct odm_turn *turn = NULL;
	struct odm_api_error e;
	int rc = odm_api_begin(x, ODM_API_MESSAGES, &request, &engine, &e), logprobs;

	if (rc == OD_OK)
		rc = convert_any(&chat, request, x, true, &e);
	if (rc == OD_OK)
		rc = odm_turn_new(&turn, x, engine, chat, &logprobs, &e);
	if (rc == OD_OK)
		odm_exchange_reply_json(x, 200,
					json_pack("{s:I}", "input_tokens", (json_int_t)odm_turn_prompt_tokens(turn)));
	else
		odm_exchange_fail(x, &e);
	odm_turn_free(turn);
	json_decref(chat);
	json_decref(request);
}

const struct odm_endpoint odm_messages_endpoint = {
	.method = "POST",
	.path = "/v1/messages",
	.flags = ODM_ENDPOINT_ANTHROPIC,
	.prepare = prepare,
	.start = odm_dialog_start,
	.news = odm_reply_on_news,
	.tick = odm_reply_on_tick,
	.gone = odm_reply_on_gone,
	.free_state = free_state,
};
const struct odm_endpoint odm_count_tokens_endpoint = {
	.method = "POST",
	.path = "/v1/messages/count_tokens",
	.flags = ODM_ENDPOINT_ANTHROPIC,
	.prepare = prepare_count,
};
