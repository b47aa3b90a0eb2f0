/* /v1/chat/completions: the answer to a chat's messages, whole or as a stream of events, in OpenAI's format. */
#include "main-node/serve/api/api.h"
#include "main-node/serve/api/chat_turn.h"
#include "main-node/serve/jobs/token_text.h"
#include "common/text/utf8_text.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TOKENS 1e9
#define ID_PREFIX "chatcmpl-"
#define CHUNK "chat.completion.chunk"

struct chat_choice {
	/* collected for an answer that is not a stream; arguments belong to its last call */
	struct od_strbuf content, reasoning, arguments;
	json_t *calls; /* collected for an answer that is not a stream; NULL: none */
	json_t *logprobs; /* log probabilities that are not written yet; NULL: none */
	bool begun; /* the stream has its role */
	size_t call; /* index of the stream's last call */
};

/* Fields that only this endpoint has; borrowed while preparing. */
struct chat_fields {
	const json_t *modalities;
	int64_t max_completion_tokens; /* -1: no limit; ODM_NOT_GIVEN */
};

struct chat {
	struct odm_reply reply; /* must be first (odm_reply_on_start) */
	struct odm_generation g;
	struct odm_turn *turn;
	struct odm_turn_sink sink;
	const struct od_tokenizer *tokenizer;
	int logprobs; /* number of the best that are told beside each generated token; -1: none are */
	json_t *prompt_logprobs; /* NULL: not asked for, or not there yet */
	struct chat_choice *choice; /* [g.n] */
	bool wrote; /* something was written to the stream since the last news */
};

#define AT(field) offsetof(struct chat_fields, field)

static const struct odm_field fields[] = {
	{ "max_completion_tokens", ODM_FIELD_INT, AT(max_completion_tokens), -1, MAX_TOKENS, NULL },
	{ "modalities", ODM_FIELD_JSON, AT(modalities), 0, 0, NULL },
	{ 0 },
};

/* ---- Chunks of a stream ---- */

/* Takes message, and the choice's log probabilities so far. finish: NULL: it goes on. */
static json_t *choice_json(struct chat *c, size_t i, const char *what, json_t *message, const char *finish)
{
	json_t *logprobs = c->choice[i].logprobs;

	c->choice[i].logprobs = NULL;
	return json_pack("{s:I, s:o, s:o?, s:s?}", "index", (json_int_t)i, what, message, "logprobs", logprobs,
			 "finish_reason", finish);
}

/* Takes delta. */
static void write_delta(struct chat *c, size_t i, json_t *delta, const char *finish)
{
	c->wrote = true;
	if (!c->choice[i].begun) {
		json_t *logprobs = c->choice[i].logprobs;

		c->choice[i].begun = true;
		c->choice[i].logprobs = NULL; /* the next chunk has them */
		write_delta(c, i, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), NULL);
		c->choice[i].logprobs = logprobs;
	}
	odm_reply_write(&c->reply,
			odm_reply_json(&c->reply, ID_PREFIX, CHUNK,
				       json_pack("[o]", choice_json(c, i, "delta", delta, finish))),
			finish != NULL, (size_t)c->g.n);
}

static void write_call(struct chat *c, size_t i, const struct odm_turn_call *call)
{
	write_delta(c, i,
		    json_pack("{s:[{s:I, s:s, s:s, s:{s:s, s:s}}]}", "tool_calls", "index", (json_int_t)call->index,
			      "id", call->id, "type", "function", "function", "name", call->name, "arguments", ""),
		    NULL);
	c->choice[i].call = call->index;
}

/* ---- What the model writes ---- */

static void on_content(void *arg, size_t i, const char *text, size_t len)
{
	struct chat *c = arg;

	if (c->reply.stream)
		write_delta(c, i, json_pack("{s:o}", "content", odm_json_text(text, len)), NULL);
	else
		od_strbuf_append(&c->choice[i].content, text, len);
}

static void on_reasoning(void *arg, size_t i, const char *text, size_t len)
{
	struct chat *c = arg;

	if (c->reply.stream)
		write_delta(c, i, json_pack("{s:o}", "reasoning_content", odm_json_text(text, len)), NULL);
	else
		od_strbuf_append(&c->choice[i].reasoning, text, len);
}

static void on_call(void *arg, size_t i, const struct odm_turn_call *call)
{
	struct chat *c = arg;
	struct chat_choice *t = &c->choice[i];

	if (c->reply.stream) {
		write_call(c, i, call);
		return;
	}
	if (t->calls == NULL)
		t->calls = json_array();
	json_array_append_new(t->calls, json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", call->id, "type", "function",
						  "function", "name", call->name, "arguments", ""));
}

static void on_arguments(void *arg, size_t i, const char *text, size_t len)
{
	struct chat *c = arg;
	struct chat_choice *t = &c->choice[i];

	if (c->reply.stream)
		write_delta(c, i,
			    json_pack("{s:[{s:I, s:{s:o}}]}", "tool_calls", "index", (json_int_t)t->call, "function",
				      "arguments", odm_json_text(text, len)),
			    NULL);
	else
		od_strbuf_append(&t->arguments, text, len);
}

static void on_call_end(void *arg, size_t i, bool complete)
{
	struct chat_choice *t = &((struct chat *)arg)->choice[i];
	json_t *call = json_array_get(t->calls, json_array_size(t->calls) - 1);

	(void)complete; /* in a stream the client sees it from the arguments */
	if (call != NULL)
		json_object_set_new(json_object_get(call, "function"), "arguments",
				    odm_json_text(t->arguments.text, t->arguments.len));
	od_strbuf_fini(&t->arguments);
}

static const char *finish_of(const struct chat *c, size_t i)
{
	return odm_turn_called(c->turn, &c->reply, i) ? "tool_calls" : odm_finish_reason(c->reply.ended[i].finish);
}

static void add_tokens(struct chat *c, size_t i, const struct odm_token_list *l)
{
	struct chat_choice *t = &c->choice[i];
	const size_t of_prompt = odm_prompt_records(l->record, l->n);

	if (of_prompt > 0 && c->prompt_logprobs == NULL)
		c->prompt_logprobs = json_array();
	if (of_prompt > 0)
		odm_prompt_logprobs_add(c->prompt_logprobs, c->tokenizer, l->record, of_prompt,
					(size_t)c->g.prompt_logprobs);
	if (c->logprobs < 0 || l->n == of_prompt || c->reply.ended[i].early)
		return;
	if (t->logprobs == NULL)
		t->logprobs = odm_chat_logprobs_new();
	odm_chat_logprobs_add(t->logprobs, c->tokenizer, l->record + of_prompt, l->n - of_prompt, (size_t)c->logprobs);
}

static bool on_news(void *arg, size_t i, const struct odm_news *news)
{
	struct chat *c = arg;

	c->wrote = false;
	add_tokens(c, i, &news->tokens);
	odm_turn_news(c->turn, &c->reply, i, news);
	if (c->reply.stream && c->reply.ended[i].done && c->reply.error.status == 0)
		write_delta(c, i, json_object(), finish_of(c, i));
	return c->wrote;
}

/* ---- The whole answer ---- */

static json_t *text_or_null(const struct od_strbuf *b)
{
	return b->len > 0 ? odm_json_text(b->text, b->len) : json_null();
}

static json_t *message_json(const struct chat_choice *t)
{
	json_t *o = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content",
			      t->calls == NULL && t->content.len == 0 ? json_string("") : text_or_null(&t->content),
			      "refusal");

	if (t->reasoning.len > 0)
		json_object_set_new(o, "reasoning_content", text_or_null(&t->reasoning));
	if (t->calls != NULL)
		json_object_set(o, "tool_calls", t->calls);
	return o;
}

static void on_end(void *arg)
{
	struct chat *c = arg;
	json_t *choices;

	if (c->reply.stream) {
		odm_reply_end_stream(&c->reply, ID_PREFIX, CHUNK, (size_t)c->g.n);
		return;
	}
	choices = json_array();
	for (size_t i = 0; i < (size_t)c->g.n; i++)
		json_array_append_new(choices,
				      choice_json(c, i, "message", message_json(&c->choice[i]), finish_of(c, i)));
	odm_reply_whole_with(&c->reply, ID_PREFIX, "chat.completion", choices, (size_t)c->g.n, "prompt_logprobs",
			     c->prompt_logprobs);
	c->prompt_logprobs = NULL;
}

/* ---- The request ---- */

static int check_asked(struct chat *c, const struct chat_fields *a, struct odm_api_error *e)
{
	const json_t *only = json_array_get(a->modalities, 0);

	if (a->modalities != NULL && (json_array_size(a->modalities) != 1 || !json_is_string(only) ||
				      strcmp(json_string_value(only), "text") != 0))
		return odm_api_fail(e, 400, "modalities", OD_ERR_UNSUPPORTED,
				    "modalities: only [\"text\"] is supported here");
	if (a->max_completion_tokens == 0)
		return odm_api_fail(e, 400, "max_completion_tokens", OD_ERR_RANGE,
				    "max_completion_tokens: expected at least 1, or -1, found 0");
	if (a->max_completion_tokens != ODM_NOT_GIVEN)
		c->g.max_tokens = a->max_completion_tokens;
	return OD_OK;
}

static int add_choices(struct chat *c, struct odm_exchange *x, struct odm_api_error *e)
{
	int rc = odm_choices_new(&c->reply.choices, x, e);

	c->choice = calloc((size_t)c->g.n, sizeof(*c->choice));
	if (rc == OD_OK && c->choice == NULL)
		rc = odm_no_memory(e);
	if (rc == OD_OK)
		rc = odm_turn_add(c->turn, &c->reply, &c->g, c->logprobs, &c->sink, e);
	return rc;
}

static int read_request(struct chat *c, struct odm_exchange *x, struct odm_api_error *e)
{
	const struct odm_engine *engine;
	struct chat_fields a = { .max_completion_tokens = ODM_NOT_GIVEN };
	json_t *request;
	int rc = odm_api_begin(x, ODM_API_CHAT, &request, &engine, e);

	if (rc == OD_OK)
		rc = odm_generation_read(&c->g, request, engine, e);
	if (rc == OD_OK)
		rc = odm_fields_read(fields, request, &a, e);
	if (rc == OD_OK)
		rc = check_asked(c, &a, e);
	if (rc == OD_OK)
		rc = odm_turn_new(&c->turn, x, engine, request, &c->logprobs, e);
	if (rc == OD_OK)
		rc = add_choices(c, x, e);
	c->tokenizer = rc == OD_OK ? odm_engine_tokenizer(engine) : NULL;
	c->reply.stream = c->g.stream;
	c->reply.include_usage = c->g.include_usage;
	json_decref(request);
	return rc;
}

static void prepare(struct odm_exchange *x)
{
	static const struct odm_reply_ops ops = { .news = on_news, .end = on_end };
	struct chat *c = odm_exchange_new_state(x, sizeof(*c));
	struct odm_api_error e;
	int rc;

	if (c == NULL)
		return;
	odm_reply_init(&c->reply, &ops, c, x, odm_app_of(x)->model);
	c->sink = (struct odm_turn_sink){ c, on_content, on_reasoning, on_call, on_arguments, on_call_end };
	rc = read_request(c, x, &e);
	odm_reply_submit(&c->reply, odm_app_of(x)->thread, rc, &e);
}

static void free_choices(struct chat_choice *choice, size_t n)
{
	if (choice == NULL)
		return;
	for (size_t i = 0; i < n; i++) {
		od_strbuf_fini(&choice[i].content);
		od_strbuf_fini(&choice[i].reasoning);
		json_decref(choice[i].calls);
		json_decref(choice[i].logprobs);
	}
	free(choice);
}

static void free_state(void *state)
{
	struct chat *c = state;

	if (c == NULL)
		return;
	odm_choices_free(c->reply.choices);
	free_choices(c->choice, (size_t)c->g.n);
	json_decref(c->prompt_logprobs);
	odm_turn_free(c->turn);
	odm_generation_fini(&c->g);
	free(c);
}

const struct odm_endpoint odm_chat_completions_endpoint = {
	.method = "POST",
	.path = "/v1/chat/completions",
	.prepare = prepare,
	.start = odm_reply_on_start,
	.news = odm_reply_on_news,
	.tick = odm_reply_on_tick,
	.gone = odm_reply_on_gone,
	.free_state = free_state,
};
