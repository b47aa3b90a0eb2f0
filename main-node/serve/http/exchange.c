#include "main-node/serve/http/exchange.h"

#include "main-node/serve/http/exchange_internal.h"
#include "main-node/serve/http/ready_queue.h"

#include <stdlib.h>
#include <string.h>

static const char json_content[] = "application/json";

struct odm_exchange *odm_exchange_ref(struct odm_exchange *x)
{
	atomic_fetch_add(&x->refs, 1);
	return x;
}

void odm_exchange_unref(struct odm_exchange *x)
{
	if (x == NULL || atomic_fetch_sub(&x->refs, 1) != 1)
		return;
	if (x->endpoint != NULL && x->endpoint->free_state != NULL)
		x->endpoint->free_state(x->state);
	od_strbuf_fini(&x->body);
	od_strbuf_fini(&x->out);
	for (struct odm_header_text *t = x->header_texts, *next; t != NULL; t = next) {
		next = t->next;
		free(t);
	}
	free(x->rest);
	free(x->text);
	free(x);
}

void odm_exchange_wake(struct odm_exchange *x)
{
	odm_ready_queue_push(x->ready, x, false);
}

/* ---- The request ---- */

void *odm_exchange_app(const struct odm_exchange *x)
{
	return x->app;
}

const char *odm_exchange_id(const struct odm_exchange *x)
{
	return x->id;
}

bool odm_exchange_trusted(const struct odm_exchange *x)
{
	return x->trusted;
}

const char *odm_exchange_rest(const struct odm_exchange *x)
{
	return x->rest != NULL ? x->rest : "";
}

const char *odm_exchange_body(const struct odm_exchange *x, size_t *len)
{
	*len = x->body.len;
	return od_strbuf_text(&x->body);
}

void odm_exchange_set_state(struct odm_exchange *x, void *state)
{
	x->state = state;
}

void *odm_exchange_new_state(struct odm_exchange *x, size_t bytes)
{
	x->state = calloc(1, bytes);
	if (x->state == NULL)
		odm_exchange_reply_json(x, 503, NULL);
	return x->state;
}

void *odm_exchange_state(const struct odm_exchange *x)
{
	return x->state;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

void odm_exchange_add_work(struct odm_exchange *x, const struct odm_work *w)
{
	x->work.texts += w->texts;
	x->work.tokens += w->tokens;
	x->work.queue_ns = larger(x->work.queue_ns, w->queue_ns);
	x->work.first_token_ns = larger(x->work.first_token_ns, w->first_token_ns);
}

/* ---- A whole answer ---- */

bool odm_exchange_replied(const struct odm_exchange *x)
{
	return x->replied;
}

void odm_exchange_reply(struct odm_exchange *x, int status, const char *content_type, char *text, size_t len)
{
	if (x->replied || x->streaming) {
		free(text);
		return;
	}
	x->replied = true;
	x->status = status;
	x->content_type = content_type;
	x->text = text;
	x->len = len;
}

void odm_exchange_reply_json(struct odm_exchange *x, int status, json_t *o)
{
	char *text = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;

	json_decref(o);
	odm_exchange_reply(x, status, json_content, text, text != NULL ? strlen(text) : 0);
}

void odm_exchange_reply_file(struct odm_exchange *x, const struct odm_exchange_file *f)
{
	if (x->replied || x->streaming)
		return;
	x->replied = true;
	x->status = 200;
	x->file = *f;
}

static bool has(const struct odm_exchange *x, enum odm_endpoint_flag flag)
{
	return x->endpoint != NULL && (x->endpoint->flags & flag);
}

void odm_exchange_fail(struct odm_exchange *x, const struct odm_api_error *e)
{
	odm_exchange_reply_json(x, e->status,
				has(x, ODM_ENDPOINT_ANTHROPIC) ? odm_api_error_anthropic(e, x->id) :
				has(x, ODM_ENDPOINT_OLLAMA)    ? odm_api_error_ollama(e) :
								 odm_api_error_json(e));
}

/* ---- A stream ---- */

void odm_exchange_stream(struct odm_exchange *x)
{
	x->streaming = !x->replied;
}

size_t odm_exchange_unsent(const struct odm_exchange *x)
{
	return x->out.len - x->out_sent;
}

void odm_exchange_write(struct odm_exchange *x, const char *text, size_t len)
{
	if (!x->streaming || x->ended || x->lost)
		return;
	if (x->out_sent > 0 && x->out_sent >= odm_exchange_unsent(x)) { /* moves no more bytes than were sent */
		x->out.len -= x->out_sent;
		memmove(x->out.text, x->out.text + x->out_sent, x->out.len);
		x->out_sent = 0;
	}
	od_strbuf_append(&x->out, text, len);
}

void odm_exchange_write_json(struct odm_exchange *x, json_t *o)
{
	char *text = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;

	json_decref(o);
	x->out.failed = x->out.failed || text == NULL;
	if (text == NULL)
		return;
	odm_exchange_write_line(x, text, strlen(text));
	free(text);
}

void odm_exchange_write_line(struct odm_exchange *x, const char *text, size_t len)
{
	const bool event = !has(x, ODM_ENDPOINT_OLLAMA);

	odm_exchange_write(x, "data: ", event ? 6 : 0);
	odm_exchange_write(x, text, len);
	odm_exchange_write(x, "\n\n", event ? 2 : 1);
}

void odm_exchange_write_event(struct odm_exchange *x, json_t *o)
{
	const char *type = json_string_value(json_object_get(o, "type"));

	if (type != NULL) {
		odm_exchange_write(x, "event: ", 7);
		odm_exchange_write(x, type, strlen(type));
		odm_exchange_write(x, "\n", 1);
	}
	odm_exchange_write_json(x, o);
}

void odm_exchange_write_comment(struct odm_exchange *x, const char *text)
{
	if (has(x, ODM_ENDPOINT_OLLAMA))
		return;
	odm_exchange_write(x, ": ", 2);
	odm_exchange_write(x, text, strlen(text));
	odm_exchange_write(x, "\n\n", 2);
}

void odm_exchange_end(struct odm_exchange *x)
{
	x->ended = true;
}
