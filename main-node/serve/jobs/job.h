/* job.h - a text that the engine's thread is asked for, and the news of it.
 *
 * What a job has to tell collects in its news until it is taken.
 * Thread: any. Owner: counted references; the engine's thread holds one from odm_engine_thread_submit until the job is
 * done. */
#ifndef ODM_JOB_H
#define ODM_JOB_H

#include "common/base/strbuf.h"
#include "main-node/engine/engine.h"
#include "main-node/serve/jobs/token_list.h"

struct odm_job;

/* A job is made from this. */
struct odm_job_spec {
	/* odm_job_new copies its lists, and takes a reference to its constraint. The observer is the job's own.
	 * req.request is NULL for the self-test of /health only; req.logprobs is -1: news has no tokens. */
	struct odm_request req;
	/* Engine thread: with this piece the text ends, as with a stop string (ODM_FINISH_STOP). NULL: none. */
	bool (*ends)(void *ends_arg, const char *piece, size_t len);
	void *ends_arg; /* must outlive the job */
	/* There is news where there was none. No lock held; engine thread, or that of odm_engine_thread_cancel. */
	void (*wake)(void *arg);
	/* called once, when a submitted job is done, after the last wake has returned; threads as wake; NULL ok */
	void (*release)(void *arg);
	void *arg;
};

/* NULL: out of memory. */
struct odm_job *odm_job_new(const struct odm_job_spec *spec);
struct odm_job *odm_job_ref(struct odm_job *j);
void odm_job_unref(struct odm_job *j); /* NULL ok */

struct odm_news {
	struct od_strbuf text; /* new text since the last time */
	struct odm_token_list tokens; /* new tokens since the last time, if log probabilities were asked for */
	bool begun; /* it has left the queue */
	size_t position; /* before it has begun: its position among the waiting jobs; 1: it is the next */
	uint32_t prefilled_tokens; /* tokens of the prompt */
	bool done;
	/* Below: valid when done. */
	struct od_err err; /* code OD_OK: none */
	enum odm_finish finish;
	size_t stop; /* if ODM_FINISH_STOP was not by `ends`: index of the stop string */
	size_t n_tokens; /* generated tokens, EOS included */
	size_t shared_tokens; /* tokens of the prompt that were not computed again */
	size_t drafted_tokens, accepted_tokens; /* draft tokens, and those of them that stood */
	/* time from submission to the first step, to the first token (0: there was none) and to the end */
	uint64_t queue_ns, first_token_ns, total_ns;
};
/* False: there is none, and *news is not set. */
bool odm_job_take_news(struct odm_job *j, struct odm_news *news);
void odm_news_fini(struct odm_news *news);
size_t odm_job_prompt_tokens(const struct odm_job *j);

#endif
