#include "main-node/terminal/chat_answer.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "main-node/terminal/chat_reply.h"
#include "main-node/terminal/event_reader.h"
#include "main-node/terminal/plain_text.h"

#include <inttypes.h>
#include <string.h>

struct answer {
	struct odm_chat_session *session;
	struct odm_chat_reply reply;
	struct odm_event_reader events;
	struct od_strbuf text; /* without thoughts, which are not sent back */
	uint64_t begin_ns, first_ns, last_ns, end_ns; /* first, last: of its text and thoughts; 0: none came */
};

int odm_chat_find_model(struct odm_chat_session *s, struct od_err *err)
{
	json_t *list, *id;
	int rc;

	if (s->model != NULL)
		return OD_OK;
	rc = odm_chat_client_get(s->client, "/v1/models", &list, err);
	if (rc != OD_OK)
		return rc;
	id = json_object_get(json_array_get(json_object_get(list, "data"), 0), "id");
	if (json_is_string(id))
		s->model = json_incref(id);
	else
		rc = od_fail(err, OD_ERR_PROTOCOL, "%s: /v1/models names no model; --url names the server",
			     odm_chat_client_url(s->client));
	json_decref(list);
	return rc;
}

/* ---- The stream ---- */

static void on_text(void *arg, bool thought, const char *text, size_t len)
{
	struct answer *a = arg;

	a->last_ns = od_now_ns();
	if (a->first_ns == 0)
		a->first_ns = a->last_ns;
	if (!thought)
		od_strbuf_append(&a->text, text, len);
	odm_screen_text(a->session->screen, thought, text, len);
}

static void on_event(void *arg, const char *data, size_t len)
{
	struct answer *a = arg;

	odm_chat_reply_event(&a->reply, data, len);
}

/* Our server's comments tell how far the prompt is. */
static void on_comment(void *arg, const char *text, size_t len)
{
	static const char keep_alive[] = "keep-alive", choice[] = "choice 0: ";
	struct answer *a = arg;

	if (len > strlen(choice) && memcmp(text, choice, strlen(choice)) == 0) { /* there is only one */
		text += strlen(choice);
		len -= strlen(choice);
	}
	if (len > 0 && (len != strlen(keep_alive) || memcmp(text, keep_alive, len) != 0))
		odm_screen_progress(a->session->screen, text, len);
}

static int on_bytes(void *arg, const char *bytes, size_t len, struct od_err *err)
{
	struct answer *a = arg;
	int rc = odm_event_reader_feed(&a->events, bytes, len, err);

	if (rc == OD_OK && a->reply.err.code != OD_OK) {
		*err = a->reply.err;
		rc = err->code;
	}
	return rc == OD_OK && a->text.failed ? od_fail(err, OD_ERR_NOMEM, "no memory for the answer") : rc;
}

static json_t *request_json(const struct odm_chat_session *s, const char *question, size_t len)
{
	json_t *o = json_pack("{s:O, s:o, s:b, s:{s:b}}", "model", s->model, "messages",
			      odm_conversation_ask(&s->conversation, question, len), "stream", 1, "stream_options",
			      "include_usage", 1);

	if (json_object_update(o, s->settings) == 0 && json_object_update(o, s->retry) == 0)
		return o;
	json_decref(o);
	return NULL;
}

static int stream(struct answer *a, const char *question, size_t len, struct od_err *err)
{
	struct odm_chat_session *s = a->session;
	json_t *request;
	int rc = odm_chat_find_model(s, err);

	if (rc != OD_OK)
		return rc;
	request = request_json(s, question, len);
	if (request == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for the request");
	a->begin_ns = od_now_ns();
	rc = odm_chat_client_post(s->client, "/v1/chat/completions", request, on_bytes, a, err);
	a->end_ns = od_now_ns();
	json_decref(request);
	if (rc == OD_OK && !a->reply.done && a->reply.finish[0] == '\0')
		rc = od_fail(err, OD_ERR_IO, "%s: the stream ended before the answer did",
			     odm_chat_client_url(s->client));
	return rc;
}

/* ---- Figures ---- */

static double seconds_since(const struct answer *a, uint64_t ns)
{
	return od_seconds(ns - a->begin_ns);
}

/* Tokens per second of decoding, by this program's clock; 0: too little to tell. */
static double tok_per_s(const struct answer *a)
{
	const uint64_t tokens = a->reply.usage.completion_tokens, ns = a->last_ns - a->first_ns;

	return tokens > 1 && ns > 0 ? (double)(tokens - 1) / od_seconds(ns) : 0;
}

static void put_line(const struct answer *a, const char *ended, struct od_strbuf *out)
{
	const struct odm_chat_usage *u = &a->reply.usage;
	const double speed = tok_per_s(a);

	if (u->known)
		od_strbuf_printf(out, "%" PRIu64 " prompt tokens (%" PRIu64 " cached), %" PRIu64 " generated; ",
				 u->prompt_tokens, u->cached_tokens, u->completion_tokens);
	if (a->first_ns > 0)
		od_strbuf_printf(out, "TTFT %.3f s", seconds_since(a, a->first_ns));
	else
		od_strbuf_printf(out, "no text in %.3f s", seconds_since(a, a->end_ns));
	if (speed > 0)
		od_strbuf_printf(out, ", then %.2f tok/s", speed);
	if (strcmp(ended, "length") == 0)
		od_strbuf_printf(out, "; cut off at the limit of tokens");
	else if (strcmp(ended, "stop") != 0)
		od_strbuf_printf(out, "; ended: %s", ended);
}

static void put_all(const struct answer *a, const char *ended, struct od_strbuf *out)
{
	const struct odm_chat_usage *u = &a->reply.usage;
	const struct odm_chat_session *s = a->session;
	char name[200];

	od_strbuf_printf(out, "model       %s at %s\n",
			 odm_plain_line(name, sizeof(name), json_string_value(s->model), json_string_length(s->model)),
			 odm_chat_client_url(s->client));
	if (u->known)
		od_strbuf_printf(out,
				 "tokens      %" PRIu64 " prompt, of these %" PRIu64 " cached; %" PRIu64 " generated\n",
				 u->prompt_tokens, u->cached_tokens, u->completion_tokens);
	if (a->first_ns > 0)
		od_strbuf_printf(out, "speed       TTFT %.3f s, %.2f tok/s\n", seconds_since(a, a->first_ns),
				 tok_per_s(a));
	od_strbuf_printf(out, "time        %.3f s in all\n", seconds_since(a, a->end_ns));
	od_strbuf_printf(out, "ended       %s", ended);
}

static void show_figures(const struct answer *a, const char *ended)
{
	const struct odm_chat_session *s = a->session;
	struct od_strbuf out = { 0 };

	if (s->verbose)
		put_all(a, ended, &out);
	else
		put_line(a, ended, &out);
	if (!out.failed && s->screen->terminal)
		odm_screen_dim_note(s->screen, "%s", out.text);
	else if (!out.failed && s->verbose)
		fprintf(stderr, "%s\n", out.text);
	od_strbuf_fini(&out);
}

/* ---- A turn ---- */

/* Adds the answer to the conversation, also when it is not whole: the user has read it. */
static void keep(struct answer *a, const char *question, size_t len)
{
	struct odm_chat_session *s = a->session;
	struct od_err err;

	json_decref(s->unanswered);
	s->unanswered = NULL;
	if (a->text.len == 0)
		s->unanswered = json_stringn_nocheck(question, len);
	else if (odm_conversation_add(&s->conversation, question, len, a->text.text, a->text.len, &err) != OD_OK)
		od_log(OD_LOG_ERROR, "%s", err.msg);
}

void odm_chat_answer(struct odm_chat_session *s, const char *question, size_t len)
{
	struct answer a = { .session = s };
	struct od_err err = { 0 };
	int rc;

	a.reply.text = on_text;
	a.events.event = on_event;
	a.events.comment = on_comment;
	a.reply.arg = a.events.arg = &a;
	rc = stream(&a, question, len, &err);
	odm_screen_end(s->screen);
	keep(&a, question, len);
	if (rc != OD_OK && rc != OD_ERR_CANCELLED) {
		od_log(OD_LOG_ERROR, "%s", err.msg);
		s->any_failed = true;
		json_decref(s->model); /* the next server there may have another */
		s->model = NULL;
	} else if (a.begin_ns > 0) {
		show_figures(&a, rc == OD_OK ? a.reply.finish : "by Ctrl-C");
	}
	odm_event_reader_fini(&a.events);
	od_strbuf_fini(&a.text);
}
