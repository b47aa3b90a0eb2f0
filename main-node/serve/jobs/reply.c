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
	end->drafted_tokens = news->drafted_tokens;
	end->accepted_tokens = news->accepted_tokens;
	end->queue_ns = news->queue_ns;
	end->first_token_ns = news->first_token_ns;
	end->total_ns = news->total_ns;
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

static uint64_t longer(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

struct odm_reply_times odm_reply_times(const struct odm_reply *r)
{
	struct odm_reply_times t = { 0 };

	for (size_t i = 0; i < odm_choices_count(r->choices); i++) {
		const struct odm_choice_end *e = &r->ended[i];
		const uint64_t first_ns = e->first_token_ns > 0 ? e->first_token_ns : e->total_ns;

		t.queue_ns = longer(t.queue_ns, e->queue_ns);
		t.prompt_ns = longer(t.prompt_ns, first_ns - e->queue_ns);
		t.generation_ns = longer(t.generation_ns, e->total_ns - first_ns);
		t.total_ns = longer(t.total_ns, e->total_ns);
	}
	return t;
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

/* llama-server's fields of a prompt, or of the generated text. */
static void add_phase(json_t *o, const char *phase, size_t n, uint64_t ns)
{
	const double ms = (double)ns / 1e6;
	char name[32];

	snprintf(name, sizeof(name), "%s_n", phase);
	json_object_set_new(o, name, json_integer((json_int_t)n));
	snprintf(name, sizeof(name), "%s_ms", phase);
	json_object_set_new(o, name, json_real(ms));
	snprintf(name, sizeof(name), "%s_per_token_ms", phase);
	json_object_set_new(o, name, json_real(n > 0 ? ms / (double)n : 0));
	snprintf(name, sizeof(name), "%s_per_second", phase);
	json_object_set_new(o, name, json_real(ns > 0 ? (double)n * 1e3 / ms : 0));
}

static json_t *timings_json(const struct odm_reply *r, const struct odm_usage *u)
{
	const struct odm_reply_times t = odm_reply_times(r);
	json_t *o = json_pack("{s:I}", "cache_n", (json_int_t)u->cached_tokens);
	size_t drafted = 0, accepted = 0;

	add_phase(o, "prompt", u->prompt_tokens - u->cached_tokens, t.prompt_ns);
	add_phase(o, "predicted", u->completion_tokens, t.generation_ns);
	for (size_t i = 0; i < odm_choices_count(r->choices); i++) {
		drafted += r->ended[i].drafted_tokens;
		accepted += r->ended[i].accepted_tokens;
	}
	if (drafted > 0) {
		json_object_set_new(o, "draft_n", json_integer((json_int_t)drafted));
		json_object_set_new(o, "draft_n_accepted", json_integer((json_int_t)accepted));
	}
	return o;
}

/* Takes o. */
static json_t *with_timings(const struct odm_reply *r, json_t *o, size_t n)
{
	const struct odm_usage u = odm_reply_usage(r, n);

	json_object_set_new(o, "timings", timings_json(r, &u));
	return o;
}

/* Takes o. */
static json_t *with_usage(const struct odm_reply *r, json_t *o, size_t n)
{
	const struct odm_usage u = odm_reply_usage(r, n);

	json_object_set_new(o, "usage", odm_usage_json(&u));
	return with_timings(r, o, n);
}

static bool all_ended(const struct odm_reply *r)
{
	size_t i = 0;

	while (i < odm_choices_count(r->choices) && r->ended[i].done)
		i++;
	return i == odm_choices_count(r->choices);
}

void odm_reply_write(struct odm_reply *r, json_t *o, bool ends, size_t n)
{
	if (r->include_usage)
		json_object_set_new(o, "usage", json_null());
	else if (ends && all_ended(r))
		o = with_timings(r, o, n);
	odm_exchange_write_json(r->exchange, o);
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
	odm_reply_whole_with(r, id_prefix, object, choices, n, "", NULL);
}

void odm_reply_whole_with(struct odm_reply *r, const char *id_prefix, const char *object, json_t *choices, size_t n,
			  const char *name, json_t *value)
{
	json_t *o = with_usage(r, odm_reply_json(r, id_prefix, object, choices), n);

	if (value != NULL)
		json_object_set_new(o, name, value);
	odm_exchange_reply_json(r->exchange, 200, o);
}
