#include "main-node/serve/api/dialog.h"

#include "common/text/utf8_text.h"
#include "main-node/serve/api/api.h"
#include "main-node/serve/jobs/token_text.h"

#include <stdio.h>
#include <string.h>

/* ---- The request ---- */

/* Drops all fields of *o but these: parsed JSON takes many times its text, and the request may wait for long. */
static int keep_only(json_t **o, const char *const *names, struct odm_api_error *e)
{
	json_t *kept = json_object();
	int rc = kept != NULL ? OD_OK : odm_no_memory(e);

	for (; rc == OD_OK && names != NULL && *names != NULL; names++) {
		json_t *v = json_object_get(*o, *names);

		rc = odm_field_check_kept(*names, v, e);
		if (rc == OD_OK && v != NULL && json_object_set(kept, *names, v) != 0)
			rc = odm_no_memory(e);
	}
	json_decref(*o);
	*o = kept;
	return rc;
}

static int read_chat(struct odm_dialog *d, struct odm_exchange *x, const struct odm_engine *engine, int *logprobs,
		     struct odm_api_error *e)
{
	const bool plain = json_object_get(d->chat, "messages") == NULL && json_object_get(d->chat, "prompt") != NULL;
	int rc = odm_generation_read(&d->g, d->chat, engine, e);

	d->reply.stream = d->g.stream;
	d->g.stream = d->g.stream && !d->format->whole_calls;
	if (rc == OD_OK && plain)
		rc = odm_turn_new_plain(&d->turn, engine, d->chat, logprobs, e);
	else if (rc == OD_OK)
		rc = odm_turn_new(&d->turn, x, engine, d->chat, logprobs, e);
	if (rc == OD_OK)
		rc = odm_choices_new(&d->reply.choices, x, e);
	if (rc == OD_OK)
		rc = odm_turn_add(d->turn, &d->reply, &d->g, *logprobs, &d->sink, e);
	for (size_t i = 0; rc != OD_OK && d->format->renamed != NULL && d->format->renamed[i][0] != NULL; i++)
		odm_api_error_rename(e, d->format->renamed[i][0], d->format->renamed[i][1]);
	return rc;
}

static int read_request(struct odm_dialog *d, struct odm_exchange *x, struct odm_api_error *e)
{
	static const char *const borrowed[] = { "stop", NULL }; /* d->g borrows it */
	const struct odm_engine *engine;
	int logprobs;
	int rc = odm_api_begin(x, d->format->api, &d->request, &engine, e);

	if (rc == OD_OK)
		rc = d->format->convert(&d->chat, d->request, x, e);
	if (rc != OD_OK || d->chat == NULL)
		return rc;
	rc = read_chat(d, x, engine, &logprobs, e);
	if (rc == OD_OK && logprobs >= 0)
		d->logprobs = odm_chat_logprobs_new();
	if (rc == OD_OK)
		rc = keep_only(&d->chat, borrowed, e);
	if (rc == OD_OK)
		rc = keep_only(&d->request, d->format->repeated, e);
	d->tokenizer = rc == OD_OK ? odm_engine_tokenizer(engine) : NULL;
	return rc;
}

/* ---- Blocks ---- */

json_t *odm_block_text(const struct odm_block *b)
{
	return odm_json_text(od_strbuf_text(&b->text), b->text.len);
}

static void end_block(struct odm_dialog *d, bool cut)
{
	if (!d->open)
		return;
	d->open = false;
	d->block.cut = cut;
	d->format->block_end(d, &d->block);
	d->block.text.len = 0;
	d->block.index++;
	d->wrote = true;
}

static void begin_block(struct odm_dialog *d, enum odm_block_kind kind)
{
	if (d->open && d->block.kind == kind)
		return;
	end_block(d, false);
	d->open = true;
	d->block.kind = kind;
	if (d->reply.stream && d->format->block_begin != NULL)
		d->format->block_begin(d, &d->block);
}

static void add_text(struct odm_dialog *d, const char *text, size_t len)
{
	od_strbuf_append(&d->block.text, text, len);
	if (d->reply.stream && len > 0)
		d->format->block_text(d, &d->block, text, len);
	d->wrote = true;
}

static void on_content(void *arg, size_t choice, const char *text, size_t len)
{
	(void)choice;
	begin_block(arg, ODM_BLOCK_TEXT);
	add_text(arg, text, len);
}

static void on_reasoning(void *arg, size_t choice, const char *text, size_t len)
{
	(void)choice;
	begin_block(arg, ODM_BLOCK_THOUGHT);
	add_text(arg, text, len);
}

static void on_call(void *arg, size_t choice, const struct odm_turn_call *call)
{
	struct odm_dialog *d = arg;

	(void)choice;
	end_block(d, false);
	snprintf(d->call_id, sizeof(d->call_id), "%s", call->id);
	snprintf(d->call_name, sizeof(d->call_name), "%s", call->name);
	d->block.id = d->call_id;
	d->block.name = d->call_name;
	begin_block(d, ODM_BLOCK_CALL);
	d->wrote = true;
}

static void on_arguments(void *arg, size_t choice, const char *text, size_t len)
{
	(void)choice;
	add_text(arg, text, len);
}

static void on_call_end(void *arg, size_t choice, bool complete)
{
	(void)choice;
	end_block(arg, !complete);
}

static bool on_news(void *arg, size_t choice, const struct odm_news *news)
{
	struct odm_dialog *d = arg;

	d->wrote = false;
	if (d->logprobs != NULL && !d->reply.ended[choice].early)
		odm_chat_logprobs_add(d->logprobs, d->tokenizer, news->tokens.record, news->tokens.n, ODM_MAX_LOGPROBS);
	odm_turn_news(d->turn, &d->reply, choice, news);
	if (d->reply.ended[choice].done && d->reply.error.status == 0) {
		end_block(d, odm_dialog_cut(d));
	}
	return d->wrote;
}

static void on_end(void *arg)
{
	struct odm_dialog *d = arg;

	d->format->end(d);
}

static void on_fail(void *arg, const struct odm_api_error *e)
{
	struct odm_dialog *d = arg;

	if (d->reply.stream)
		d->format->fail(d, e);
	else
		odm_exchange_fail(d->reply.exchange, e);
}

enum odm_finish odm_dialog_finish(const struct odm_dialog *d)
{
	return d->reply.ended[0].finish;
}

bool odm_dialog_cut(const struct odm_dialog *d)
{
	return odm_dialog_finish(d) == ODM_FINISH_LENGTH || odm_dialog_finish(d) == ODM_FINISH_CONTEXT;
}

/* ---- The endpoint's functions ---- */

void odm_dialog_prepare(struct odm_dialog *d, const struct odm_dialog_format *format, struct odm_exchange *x)
{
	struct odm_api_error e;
	int rc;

	d->format = format;
	d->ops = (struct odm_reply_ops){
		.news = on_news, .end = on_end, .fail = on_fail, .keep_alive = format->keep_alive
	};
	d->sink = (struct odm_turn_sink){ d, on_content, on_reasoning, on_call, on_arguments, on_call_end };
	odm_reply_init(&d->reply, &d->ops, d, x, odm_app_of(x)->model);
	rc = read_request(d, x, &e);
	if (rc == OD_OK && d->chat == NULL)
		format->end(d);
	else
		odm_reply_submit(&d->reply, odm_app_of(x)->thread, rc, &e);
}

void odm_dialog_fini(struct odm_dialog *d)
{
	odm_choices_free(d->reply.choices);
	odm_turn_free(d->turn);
	odm_generation_fini(&d->g);
	od_strbuf_fini(&d->block.text);
	json_decref(d->logprobs);
	json_decref(d->chat);
	json_decref(d->request);
}

void odm_dialog_start(struct odm_exchange *x)
{
	struct odm_dialog *d = odm_exchange_state(x);

	odm_reply_start(&d->reply);
	if (d->reply.stream && d->format->begin != NULL)
		d->format->begin(d);
	odm_reply_news(&d->reply);
}
