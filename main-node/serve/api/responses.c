/* /v1/responses: OpenAI's responses API, without stored state. */
#include "main-node/serve/api/api.h"
#include "main-node/serve/api/dialog.h"
#include "main-node/serve/api/response_items.h"
#include "common/text/utf8_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ID (ODM_REQUEST_ID_BYTES + 32)

struct response {
	struct odm_dialog d; /* must be first (dialog.h) */
	json_t *output; /* items that are complete */
	int64_t sequence; /* number of the next event */
	size_t thought_tokens;
	size_t logprobs_written; /* so many of d.logprobs are in the stream */
};

/* ---- Items ---- */

static const char *item_id(const struct response *r, const struct odm_block *b, char id[MAX_ID])
{
	static const char *const prefix[] = {
		[ODM_BLOCK_THOUGHT] = "rs", [ODM_BLOCK_TEXT] = "msg", [ODM_BLOCK_CALL] = "fc"
	};

	snprintf(id, MAX_ID, "%s_%s-%zu", prefix[b->kind], odm_exchange_id(r->d.reply.exchange), b->index);
	return id;
}

static json_t *logprobs_of(const struct response *r)
{
	json_t *all = json_object_get(r->d.logprobs, "content");

	return all != NULL ? json_incref(all) : json_array();
}

/* Takes text and logprobs. */
static json_t *part_json(const struct odm_block *b, json_t *text, json_t *logprobs)
{
	if (b->kind == ODM_BLOCK_TEXT)
		return json_pack("{s:s, s:o, s:[], s:o}", "type", "output_text", "text", text, "annotations",
				 "logprobs", logprobs);
	json_decref(logprobs);
	return json_pack("{s:s, s:o}", "type", "reasoning_text", "text", text);
}

static json_t *call_json(const struct response *r, const struct odm_block *b, const char *id, const char *status,
			 bool begins)
{
	const char *space, *name;

	odm_called_function(json_object_get(r->d.request, "tools"), b->name, &space, &name);
	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s*, s:o}", "id", id, "type", "function_call", "status", status,
			 "call_id", b->id, "name", name, "namespace", space, "arguments",
			 begins ? json_string("") : odm_block_text(b));
}

/* An item that begins has no text yet. */
static json_t *item_json(const struct response *r, const struct odm_block *b, bool begins)
{
	const char *status = begins ? "in_progress" : b->cut ? "incomplete" : "completed";
	char id[MAX_ID];
	json_t *content;

	item_id(r, b, id);
	if (b->kind == ODM_BLOCK_CALL)
		return call_json(r, b, id, status, begins);
	content = begins ? json_array() : json_pack("[o]", part_json(b, odm_block_text(b), logprobs_of(r)));
	if (b->kind == ODM_BLOCK_TEXT)
		return json_pack("{s:s, s:s, s:s, s:s, s:o}", "id", id, "type", "message", "status", status, "role",
				 "assistant", "content", content);
	return json_pack("{s:s, s:s, s:s, s:[], s:o}", "id", id, "type", "reasoning", "status", status, "summary",
			 "content", content);
}

/* ---- The response ---- */

static json_t *usage_json(const struct response *r)
{
	const struct odm_usage u = odm_reply_usage(&r->d.reply, 1);

	return json_pack("{s:I, s:{s:I, s:i}, s:I, s:{s:I}, s:I}", "input_tokens", (json_int_t)u.prompt_tokens,
			 "input_tokens_details", "cached_tokens", (json_int_t)u.cached_tokens, "cache_write_tokens", 0,
			 "output_tokens", (json_int_t)u.completion_tokens, "output_tokens_details", "reasoning_tokens",
			 (json_int_t)r->thought_tokens, "total_tokens",
			 (json_int_t)(u.prompt_tokens + u.completion_tokens));
}

static const char *const repeated[] = { "instructions",
					"max_output_tokens",
					"metadata",
					"parallel_tool_calls",
					"reasoning",
					"text",
					"tool_choice",
					"tools",
					"top_logprobs",
					"user",
					NULL };

/* Adds the fields of the request that the response repeats; fields that were not given get their defaults. */
static void add_request(json_t *o, const struct response *r)
{
	json_t *defaults = json_pack("{s:{}, s:b, s:{s:n, s:n}, s:{s:{s:s}}, s:s, s:[], s:i}", "metadata",
				     "parallel_tool_calls", 1, "reasoning", "effort", "summary", "text", "format",
				     "type", "text", "tool_choice", "auto", "tools", "top_logprobs", 0);

	for (const char *const *name = repeated; *name != NULL; name++) {
		json_t *v = json_object_get(r->d.request, *name);

		if (v == NULL || json_is_null(v))
			v = json_object_get(defaults, *name);
		json_object_set_new(o, *name, v != NULL ? json_incref(v) : json_null());
	}
	json_decref(defaults);
}

/* error: NULL: none. */
static json_t *response_json(const struct response *r, const char *status, const struct odm_api_error *error)
{
	const struct odm_reply *reply = &r->d.reply;
	const bool cut = strcmp(status, "incomplete") == 0, over = cut || strcmp(status, "completed") == 0;
	char id[MAX_ID];
	json_t *o;

	snprintf(id, sizeof(id), "resp_%s", odm_exchange_id(reply->exchange));
	o = json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:b, s:b, s:n, s:s, s:O, s:f, s:f}", "id", id, "object",
		      "response", "created_at", (json_int_t)reply->created, "model", reply->model, "system_fingerprint",
		      reply->fingerprint, "status", status, "background", 0, "store", 0, "previous_response_id",
		      "truncation", "disabled", "output", r->output, "temperature", r->d.g.temperature, "top_p",
		      r->d.g.top_p);
	json_object_set_new(o, "incomplete_details",
			    cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null());
	json_object_set_new(o, "error",
			    error == NULL ? json_null() :
					    json_pack("{s:s, s:o}", "code", "server_error", "message",
						      odm_json_text(error->message, strlen(error->message))));
	json_object_set_new(o, "usage", over ? usage_json(r) : json_null());
	add_request(o, r);
	return o;
}

/* ---- Events ---- */

/* Takes o, the event's fields but for its type and number. */
static void write_event(struct response *r, const char *type, json_t *o)
{
	json_object_set_new(o, "type", json_string(type));
	json_object_set_new(o, "sequence_number", json_integer(r->sequence++));
	odm_exchange_write_event(r->d.reply.exchange, o);
}

static void write_response(struct response *r, const char *type, const char *status, const struct odm_api_error *error)
{
	write_event(r, type, json_pack("{s:o}", "response", response_json(r, status, error)));
}

static void write_item(struct response *r, const char *type, const struct odm_block *b, json_t *item)
{
	write_event(r, type, json_pack("{s:I, s:o}", "output_index", (json_int_t)b->index, "item", item));
}

/* Writes an event about the content of an item; takes value. logprobs: taken; NULL unless the item is text. A call has
 * no parts. */
static void write_inner(struct response *r, const char *type, const struct odm_block *b, const char *name,
			json_t *value, json_t *logprobs)
{
	char id[MAX_ID];
	json_t *o = json_pack("{s:s, s:I, s:o}", "item_id", item_id(r, b, id), "output_index", (json_int_t)b->index,
			      name, value);

	if (b->kind != ODM_BLOCK_CALL)
		json_object_set_new(o, "content_index", json_integer(0));
	if (logprobs != NULL)
		json_object_set_new(o, "logprobs", logprobs);
	write_event(r, type, o);
}

/* Returns the log probabilities that the stream does not have yet. */
static json_t *new_logprobs(struct response *r)
{
	json_t *all = json_object_get(r->d.logprobs, "content"), *some = json_array();

	for (; r->logprobs_written < json_array_size(all); r->logprobs_written++)
		json_array_append(some, json_array_get(all, r->logprobs_written));
	return some;
}

static void begin(struct odm_dialog *d)
{
	struct response *r = (struct response *)d;

	write_response(r, "response.created", "in_progress", NULL);
	write_response(r, "response.in_progress", "in_progress", NULL);
}

static void block_begin(struct odm_dialog *d, const struct odm_block *b)
{
	struct response *r = (struct response *)d;

	write_item(r, "response.output_item.added", b, item_json(r, b, true));
	if (b->kind != ODM_BLOCK_CALL)
		write_inner(r, "response.content_part.added", b, "part", part_json(b, json_string(""), json_array()),
			    NULL);
}

static void block_text(struct odm_dialog *d, const struct odm_block *b, const char *text, size_t len)
{
	static const char *const type[] = {
		[ODM_BLOCK_THOUGHT] = "response.reasoning_text.delta",
		[ODM_BLOCK_TEXT] = "response.output_text.delta",
		[ODM_BLOCK_CALL] = "response.function_call_arguments.delta",
	};
	struct response *r = (struct response *)d;

	write_inner(r, type[b->kind], b, "delta", odm_json_text(text, len),
		    b->kind == ODM_BLOCK_TEXT ? new_logprobs(r) : NULL);
}

static void write_block_end(struct response *r, const struct odm_block *b)
{
	static const char *const type[] = {
		[ODM_BLOCK_THOUGHT] = "response.reasoning_text.done",
		[ODM_BLOCK_TEXT] = "response.output_text.done",
		[ODM_BLOCK_CALL] = "response.function_call_arguments.done",
	};
	const bool call = b->kind == ODM_BLOCK_CALL;

	write_inner(r, type[b->kind], b, call ? "arguments" : "text", odm_block_text(b),
		    b->kind == ODM_BLOCK_TEXT ? logprobs_of(r) : NULL);
	if (!call)
		write_inner(r, "response.content_part.done", b, "part", part_json(b, odm_block_text(b), logprobs_of(r)),
			    NULL);
	write_item(r, "response.output_item.done", b, item_json(r, b, false));
}

static void block_end(struct odm_dialog *d, const struct odm_block *b)
{
	struct response *r = (struct response *)d;
	int32_t *ids;
	size_t n;

	/* Encoding the text again counts about as many tokens as the model wrote: it may have cut the text
	 * otherwise. */
	if (b->kind == ODM_BLOCK_THOUGHT && b->text.len > 0 &&
	    od_tokenizer_encode(d->tokenizer, b->text.text, b->text.len, 0, &ids, &n, NULL) == OD_OK) {
		r->thought_tokens += n;
		free(ids);
	}
	if (d->reply.stream)
		write_block_end(r, b);
	json_array_append_new(r->output, item_json(r, b, false));
}

static void end(struct odm_dialog *d)
{
	struct response *r = (struct response *)d;
	const bool cut = odm_dialog_cut(d);

	if (d->reply.stream)
		write_response(r, cut ? "response.incomplete" : "response.completed", cut ? "incomplete" : "completed",
			       NULL);
	else
		odm_exchange_reply_json(d->reply.exchange, 200,
					response_json(r, cut ? "incomplete" : "completed", NULL));
}

static void fail(struct odm_dialog *d, const struct odm_api_error *e)
{
	write_response((struct response *)d, "response.failed", "failed", e);
}

/* ---- The request ---- */

static int convert(json_t **chat, const json_t *request, const struct odm_exchange *x, struct odm_api_error *e)
{
	(void)x;
	return odm_chat_of_response(chat, request, e);
}

static void prepare(struct odm_exchange *x)
{
	static const char *const renamed[][2] = { { "messages", "input" }, { NULL, NULL } };
	static const struct odm_dialog_format format = {
		.api = ODM_API_RESPONSES,
		.convert = convert,
		.begin = begin,
		.block_begin = block_begin,
		.block_text = block_text,
		.block_end = block_end,
		.end = end,
		.fail = fail,
		.renamed = renamed,
		.repeated = repeated,
	};
	struct response *r = odm_exchange_new_state(x, sizeof(*r));

	if (r == NULL)
		return;
	r->output = json_array();
	odm_dialog_prepare(&r->d, &format, x);
}

static void free_state(void *state)
{
	struct response *r = state;

	if (r == NULL)
		return;
	odm_dialog_fini(&r->d);
	json_decref(r->output);
	free(r);
}

const struct odm_endpoint odm_responses_endpoint = {
	.method = "POST",
	.path = "/v1/responses",
	.prepare = prepare,
	.start = odm_dialog_start,
	.news = odm_reply_on_news,
	.tick = odm_reply_on_tick,
	.gone = odm_reply_on_gone,
	.free_state = free_state,
};
