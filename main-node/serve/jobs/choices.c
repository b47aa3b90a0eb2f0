#include "main-node/serve/jobs/choices.h"

#include <stdlib.h>

struct odm_choices {
	struct odm_exchange *exchange;
	struct odm_job *job[ODM_MAX_CHOICES];
	bool done[ODM_MAX_CHOICES];
	size_t n, n_done;
	bool submitted;
};

static void wake(void *arg)
{
	odm_exchange_wake(arg);
}

static void release(void *arg)
{
	odm_exchange_unref(arg);
}

int odm_choices_new(struct odm_choices **out, struct odm_exchange *x, struct odm_api_error *e)
{
	struct odm_choices *c = calloc(1, sizeof(*c));

	*out = c;
	if (c == NULL)
		return odm_no_memory(e);
	c->exchange = x; /* it owns the choices */
	return OD_OK;
}

void odm_choices_free(struct odm_choices *c)
{
	if (c == NULL)
		return;
	odm_choices_cancel(c);
	for (size_t i = 0; i < c->n; i++)
		odm_job_unref(c->job[i]);
	free(c);
}

int odm_choices_add(struct odm_choices *c, struct odm_job_spec *spec, struct odm_api_error *e)
{
	if (c->n == ODM_MAX_CHOICES)
		return odm_api_fail(e, 400, "prompt", OD_ERR_RANGE,
				    "prompt: expected at most %d choices (prompts times n)", ODM_MAX_CHOICES);
	spec->wake = wake;
	spec->release = release;
	spec->arg = c->exchange;
	spec->req.request = odm_exchange_id(c->exchange);
	c->job[c->n] = odm_job_new(spec);
	if (c->job[c->n] == NULL)
		return odm_no_memory(e);
	c->n++;
	return OD_OK;
}

int odm_choices_submit(struct odm_choices *c, struct odm_engine_thread *t, struct odm_api_error *e)
{
	struct od_err err;
	int rc;

	for (size_t i = 0; i < c->n; i++) /* each job has one until it is done; before, the exchange owns the jobs */
		odm_exchange_ref(c->exchange);
	rc = odm_engine_thread_submit(t, c->job, c->n, false, &err);
	c->submitted = rc == OD_OK;
	if (c->submitted)
		return OD_OK;
	for (size_t i = 0; i < c->n; i++)
		odm_exchange_unref(c->exchange);
	odm_api_from_err(e, &err);
	return rc;
}

size_t odm_choices_count(const struct odm_choices *c)
{
	return c->n;
}

size_t odm_choices_prompt_tokens(const struct odm_choices *c, size_t choice)
{
	return odm_job_prompt_tokens(c->job[choice]);
}

bool odm_choices_poll(struct odm_choices *c, void (*event)(void *arg, size_t choice, const struct odm_news *news),
		      void *arg)
{
	for (size_t i = 0; i < c->n; i++) {
		struct odm_news news;

		if (c->done[i] || !odm_job_take_news(c->job[i], &news))
			continue;
		c->done[i] = news.done;
		c->n_done += news.done;
		if (news.done)
			odm_exchange_add_work(c->exchange, &(struct odm_work){ .texts = 1,
									       .tokens = news.n_tokens,
									       .queue_ns = news.queue_ns,
									       .first_token_ns = news.first_token_ns });
		event(arg, i, &news);
		odm_news_fini(&news);
	}
	return c->n_done == c->n;
}

void odm_choices_cancel(struct odm_choices *c)
{
	if (c == NULL)
		return;
	for (size_t i = 0; i < c->n; i++)
		odm_choices_cancel_one(c, i);
}

void odm_choices_cancel_one(struct odm_choices *c, size_t choice)
{
	if (c->submitted && !c->done[choice])
		odm_engine_thread_cancel(c->job[choice]);
}
