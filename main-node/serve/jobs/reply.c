#include "main-node/serve/jobs/reply.h"

#include "common/base/clock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define KEEP_ALIVE_NS (15 * OD_NS_PER_S)
#define MOST_UNSENT_BYTES (64u << 10) /* beyond this, text stays in the jobs, where it is bounded */

void odm_reply_init(struct odm_reply *r, const struct odm_reply_ops *ops, void *arg, struct odm_exchange *x,
		    const char *model)
{
	*r = (struct odm_reply){
		.ops = ops, .arg = arg, .exchange = x, .model = model, .created = (int64_t)time(NULL)
	};
}

void odm_reply_submit(struct odm_reply *r, struct odm_engine_thread *t, int rc, struct odm_api_error *e)
{
	const struct odm_engine *engine = odm_engine_thread_engine(t);

	if (engine != NULL)
		(void)odm_engine_fingerprint(engine, r->fingerprint);
	if (rc == OD_OK)
		rc = odm_choices_submit(r->choices, t, e);
	if (rc != OD_OK)
		odm_exchange_fail(r->exchange, e);
}

/* ---- News ---- */

static void note_end(struct odm_reply *r, size_t i, const struct odm_news *news)
{
	struct odm_choice_end *end = &r->ended[i];

	end->done = true;
	end->finish = end->early ? ODM_FINISH_EOS : news->finish;
	end->n_tokens = news->n_tokens;
	end->shared_tokens = news->shared_tokens;
	if (end->early || r->error.status != 0)
		return;
	if (news->err.code != OD_OK)
		odm_api_from_err(&r->error, &news->err);
	else if (news->finish == ODM_FINISH_CANCELLED)
		odm_api_fail(&r->error, 503, NULL, OD_ERR_CANCELLED, "the text was not read in time");
}

/* Writes comments, which clients skip: nothing else comes until the prompt is through. */
static void write_progress(struct odm_reply *r, size_t i, const struct odm_news *news)
{
	const size_t n = odm_choices_prompt_tokens(r->choices, i);
	char line[96];

	if (news->done || news->text.len > 0 || (news->begun && news->prefilled_tokens >= n))
		return;
	if (news->begun)
		snprintf(line, sizeof(line), "choice %zu: prompt %u/%zu tokens", i, news->prefilled_tokens, n);
	else
		snprintf(line, sizeof(line), "choice %zu: waiting, place %zu", i, news->position);
	odm_exchange_write_comment(r->exchange, line);
}

static void on_news(void *arg, size_t i, const struct odm_news *news)
{
	struct odm_reply *r = arg;

	if (news->done)
		note_end(r, i, news);
	r->written_ns = od_now_ns();
	if (r->error.status == 0 && !r->ops->news(r->arg, i, news) && r->stream)
		write_progress(r, i, news);
}

static void fail(struct odm_reply *r)
{
	if (r->ops->fail != NULL)
		r->ops->fail(r->arg, &r->error);
	else if (r->stream)
		odm_exchange_write_json(r->exchange, odm_api_error_json(&r->error));
	else
		odm_exchange_fail(r->exchange, &r->error);
}

void odm_reply_news(struct odm_reply *r)
{
	bool done;

	if (r->over || (r->stream && odm_exchange_unsent(r->exchange) > MOST_UNSENT_BYTES))
		return;
	done = odm_choices_poll(r->choices, on_news, r);
	if (r->error.status != 0)
		odm_choices_cancel(r->choices);
	if (!done && r->error.status == 0)
		return;
	r->over = true;
	if (r->error.status != 0)
		fail(r);
	else
		r->ops->end(r->arg);
	if (r->stream)
		odm_exchange_end(r->exchange);
}

void odm_reply_start(struct odm_reply *r)
{
	r->written_ns = od_now_ns();
	if (r->stream)
		odm_exchange_stream(r->exchange);
}

void odm_reply_tick(struct odm_reply *r, uint64_t now_ns)
{
	if (!r->stream || now_ns < r->written_ns + KEEP_ALIVE_NS)
		return;
	r->written_ns = now_ns;
	if (r->ops->keep_alive != NULL)
		r->ops->keep_alive(r->arg);
	else
		odm_exchange_write_comment(r->exchange, "keep-alive");
}

void odm_reply_gone(struct odm_reply *r)
{
	odm_choices_cancel(r->choices);
}

void odm_reply_on_start(struct odm_exchange *x)
{
	odm_reply_start(odm_exchange_state(x));
	odm_reply_news(odm_exchange_state(x));
}

void odm_reply_on_news(struct odm_exchange *x)
{
	odm_reply_news(odm_exchange_state(x));
}

void odm_reply_on_tick(struct odm_exchange *x, uint64_t now_ns)
{
	odm_reply_tick(odm_exchange_state(x), now_ns);
}

void odm_reply_on_gone(struct odm_exchange *x)
{
	if (odm_exchange_state(x) != NULL)
		odm_reply_gone(odm_exchange_state(x));
}

void odm_reply_end_choice(struct odm_reply *r, size_t choice)
{
	if (r->ended[choice].done || r->ended[choice].early)
		return;
	r->ended[choice].early = true;
	odm_choices_cancel_one(r->choices, choice);
}

/* ---- OpenAI's format ---- */

struct odm_usage odm_reply_usage(const struct odm_reply *r, size_t n)
{
	struct odm_usage u = { 0 };

	for (size_t i = 0; i < odm_choices_count(r->choices); i++) {
		u.completion_tokens += r->ended[i].n_tokens;
		if (i % n == 0) /* a prompt counts once */
			u.prompt_tokens += odm_choices_prompt_tokens(r->choices, i);
		if (i % n == 0)
			u.cached_tokens += r->ended[i].shared_tokens;
	}
	return u;
}

json_t *odm_reply_json(const struct odm_reply *r, const char *id_prefix, const char *object, json_t *choices)
{
	char id[ODM_REQUEST_ID_BYTES + 16];

	snprintf(id, sizeof(id), "%s%s", id_prefix, odm_exchange_id(r->exchange));
	return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", id, "object", object, "created",
			 (json_int_t)r->created, "model", r->model, "system_fingerprint", r->fingerprint, "choices",
			 choices);
}

void odm_reply_write(struct odm_reply *r, json_t *o)
{
	if (r->include_usage)
		json_object_set_new(o, "usage", json_null());
	odm_exchange_write_json(r->exchange, o);
}

/* Takes o. */
static json_t *with_usage(const struct odm_reply *r, json_t *o, size_t n)
{
	const struct odm_usage u = odm_reply_usage(r, n);

	json_object_set_new(o, "usage", odm_usage_json(&u));
	return o;
}

void odm_reply_end_stream(struct odm_reply *r, const char *id_prefix, const char *object, size_t n)
{
	static const char done[] = "data: [DONE]\n\n";

	if (r->include_usage)
		odm_exchange_write_json(r->exchange,
					with_usage(r, odm_reply_json(r, id_prefix, object, json_array()), n));
	odm_exchange_write(r->exchange, done, sizeof(done) - 1);
}

void odm_reply_whole(struct odm_reply *r, const char *id_prefix, const char *object, json_t *choices, size_t n)
{
	odm_exchange_reply_json(r->exchange, 200, with_usage(r, odm_reply_json(r, id_prefix, object, choices), n));
}
