#include "main-node/serve/jobs/job.h"

#include "common/base/clock.h"
#include "main-node/serve/jobs/job_internal.h"

#include <stdlib.h>
#include <string.h>

static void job_free(struct odm_job *j)
{
	if (j->stop != NULL)
		for (size_t i = 0; i < j->spec.req.n_stop; i++)
			free(j->stop[i]);
	free(j->stop);
	od_constraint_unref(j->spec.req.constraint);
	free(j->bias);
	free(j->prompt);
	free(j->end);
	free(j->stop_token);
	free(j->breakers);
	free(j->shown);
	free(j->fork);
	free(j->request);
	odm_news_fini(&j->news);
	pthread_mutex_destroy(&j->lock);
	free(j);
}

/* NULL: out of memory. */
static int32_t *copy_ids(const int32_t *ids, size_t n)
{
	int32_t *copy = malloc((n + 1) * sizeof(*copy));

	if (copy != NULL && n > 0)
		memcpy(copy, ids, n * sizeof(*ids));
	return copy;
}

static bool copy_forks(struct odm_job *j, const struct odm_request *from)
{
	j->fork = calloc(from->n_forks + 1, sizeof(*j->fork));
	if (j->fork != NULL && from->n_forks > 0)
		memcpy(j->fork, from->fork, from->n_forks * sizeof(*from->fork));
	return j->fork != NULL;
}

static bool copy_stops(struct odm_job *j, const struct odm_request *from)
{
	j->stop = calloc(from->n_stop + 1, sizeof(*j->stop));
	if (j->stop == NULL)
		return false;
	for (size_t i = 0; i < from->n_stop; i++) {
		j->stop[i] = strdup(from->stop[i]);
		if (j->stop[i] == NULL)
			return false;
	}
	return true;
}

static bool copy_bias(struct odm_job *j, const struct od_sampler_opts *from)
{
	j->bias = malloc((from->n_logit_bias + 1) * sizeof(*j->bias));
	if (j->bias != NULL && from->n_logit_bias > 0)
		memcpy(j->bias, from->logit_bias, from->n_logit_bias * sizeof(*j->bias));
	return j->bias != NULL;
}

/* Lets the request refer to copies of its lists. False: out of memory. */
static bool copy_lists(struct odm_job *j)
{
	struct odm_request *req = &j->spec.req;

	j->prompt = copy_ids(req->prompt, req->n_prompt);
	j->end = copy_ids(req->end, req->n_ends);
	j->shown = copy_ids(req->shown, req->n_shown);
	j->stop_token = copy_ids(req->stop_token, req->n_stop_tokens);
	j->breakers = copy_ids(req->sampling.dry.breakers, req->sampling.dry.n_breakers);
	if (j->prompt == NULL || j->end == NULL || j->shown == NULL || j->stop_token == NULL || j->breakers == NULL)
		return false;
	if (!copy_forks(j, req) || !copy_stops(j, req) || !copy_bias(j, &req->sampling))
		return false;
	if (req->request != NULL && (j->request = strdup(req->request)) == NULL)
		return false;
	req->prompt = j->prompt;
	req->end = j->end;
	req->shown = j->shown;
	req->stop_token = j->stop_token;
	req->sampling.dry.breakers = j->breakers;
	req->fork = j->fork;
	req->stop = (const char *const *)j->stop;
	req->sampling.logit_bias = req->sampling.n_logit_bias > 0 ? j->bias : NULL;
	req->request = j->request;
	return true;
}

struct odm_job *odm_job_new(const struct odm_job_spec *spec)
{
	struct odm_job *j = calloc(1, sizeof(*j));

	if (j == NULL)
		return NULL;
	atomic_init(&j->refs, 1);
	atomic_init(&j->holders, 0);
	j->spec = *spec;
	if (spec->req.constraint != NULL)
		(void)od_constraint_ref(spec->req.constraint);
	pthread_mutex_init(&j->lock, NULL);
	if (!copy_lists(j)) {
		job_free(j);
		return NULL;
	}
	return j;
}

struct odm_job *odm_job_ref(struct odm_job *j)
{
	atomic_fetch_add(&j->refs, 1);
	return j;
}

void odm_job_unref(struct odm_job *j)
{
	if (j != NULL && atomic_fetch_sub(&j->refs, 1) == 1)
		job_free(j);
}

void odm_job_hold(struct odm_job *j)
{
	(void)odm_job_ref(j);
	atomic_fetch_add(&j->holders, 1);
}

void odm_job_let_go(struct odm_job *j)
{
	if (atomic_fetch_sub(&j->holders, 1) == 1 && j->spec.release != NULL)
		j->spec.release(j->spec.arg);
	odm_job_unref(j);
}

size_t odm_job_prompt_tokens(const struct odm_job *j)
{
	return j->spec.req.n_prompt;
}

/* Ends a change of the news. */
static void unlock_and_wake(struct odm_job *j)
{
	const bool first = !j->any_news;

	j->any_news = true;
	pthread_mutex_unlock(&j->lock);
	if (first && j->spec.wake != NULL)
		j->spec.wake(j->spec.arg);
}

bool odm_job_tell_text(struct odm_job *j, const char *piece, size_t len)
{
	bool good;

	pthread_mutex_lock(&j->lock);
	good = j->news.text.len + len + j->unread_tokens * sizeof(struct odm_token_record) <= j->max_unread_bytes;
	if (good)
		od_strbuf_append(&j->news.text, piece, len);
	good = good && !j->news.text.failed && !j->news.tokens.failed;
	unlock_and_wake(j);
	return good;
}

/* Tokens of the prompt do not count as unread: the client has sent as much. */
void odm_job_tell_token(struct odm_job *j, const struct odm_token *t)
{
	const bool of_prompt = t->position < j->spec.req.n_prompt;

	pthread_mutex_lock(&j->lock);
	odm_token_list_add(&j->news.tokens, t, of_prompt);
	j->unread_tokens += !of_prompt;
	unlock_and_wake(j);
}

void odm_job_tell_position(struct odm_job *j, size_t position)
{
	pthread_mutex_lock(&j->lock);
	if (j->news.position == position || j->news.begun || j->news.done) {
		pthread_mutex_unlock(&j->lock);
		return;
	}
	j->news.position = position;
	unlock_and_wake(j);
}

void odm_job_tell_prefill(struct odm_job *j, uint32_t prefilled_tokens)
{
	pthread_mutex_lock(&j->lock);
	if (j->news.begun && j->news.prefilled_tokens == prefilled_tokens) {
		pthread_mutex_unlock(&j->lock);
		return;
	}
	j->news.begun = true;
	j->news.position = 0;
	j->news.prefilled_tokens = prefilled_tokens;
	unlock_and_wake(j);
}

void odm_job_tell_done(struct odm_job *j, const struct odm_result *r, const struct od_err *err)
{
	pthread_mutex_lock(&j->lock);
	j->news.done = true;
	j->news.err = *err;
	j->news.finish = r != NULL ? r->finish : ODM_FINISH_CANCELLED;
	if (r != NULL) {
		j->news.stop = r->stop;
		j->news.n_tokens = r->n_tokens;
		j->news.shared_tokens = (size_t)r->figures.c[OD_C_SHARED_TOKENS];
		j->news.drafted_tokens = (size_t)r->figures.c[OD_C_DRAFTED];
		j->news.accepted_tokens = (size_t)r->figures.c[OD_C_ACCEPTED];
		j->news.total_ns = od_now_ns() - j->submitted_ns;
		j->news.queue_ns = j->begun_ns > 0 ? j->begun_ns - j->submitted_ns : 0;
		j->news.first_token_ns = j->first_token_ns > 0 ? j->first_token_ns - j->submitted_ns : 0;
	}
	unlock_and_wake(j);
}

bool odm_job_take_news(struct odm_job *j, struct odm_news *news)
{
	bool any;

	pthread_mutex_lock(&j->lock);
	any = j->any_news;
	if (any) {
		*news = j->news;
		j->news.text = (struct od_strbuf){ 0 };
		j->news.tokens = (struct odm_token_list){ 0 };
		j->unread_tokens = 0;
		j->any_news = false;
	}
	pthread_mutex_unlock(&j->lock);
	return any;
}

void odm_news_fini(struct odm_news *news)
{
	od_strbuf_fini(&news->text);
	odm_token_list_fini(&news->tokens);
}
