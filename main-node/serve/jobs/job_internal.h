/* job_internal.h - the representation of a job: for engine_thread.c and job.c only.
 *
 * Thread: `lock` protects the news; the fields above it never change, those below belong to the engine thread's
 * lock. */
#ifndef ODM_JOB_INTERNAL_H
#define ODM_JOB_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "main-node/serve/jobs/job.h"

struct odm_engine_thread;

/* The jobs of one request; under the engine thread's lock. */
struct odm_ticket {
	size_t n_open;
	bool counts; /* it counts in the limit of open requests */
};

struct odm_job {
	atomic_uint refs, holders;
	struct odm_engine_thread *thread; /* set when it is submitted */
	struct odm_job_spec spec;
	/* The copies that spec.req refers to. */
	int32_t *prompt, *end, *shown, *stop_token, *breakers;
	size_t *fork;
	char **stop, *request;
	struct od_logit_bias *bias;
	size_t max_unread_bytes;

	pthread_mutex_t lock;
	struct odm_news news;
	size_t unread_tokens; /* generated tokens in the news */
	bool any_news; /* wake was called and the news not taken */

	struct odm_ticket *ticket; /* NULL when done */
	struct odm_job *next; /* links the queue */
	struct odm_sequence *sequence; /* NULL: not in the engine */
	bool queued, begun, cancelled;
	uint64_t submitted_ns, begun_ns, first_token_ns; /* 0: not yet */
};

/* These act like ref and unref, but the last to let go calls release. The queue or the engine holds a job until it is
 * done; tell_positions() holds one because a cancel may end it meanwhile, and a wake after release would reach freed
 * memory. */
void odm_job_hold(struct odm_job *j);
void odm_job_let_go(struct odm_job *j);

/* Each changes the news and calls wake if there was none. text: false if too much is unread, generated tokens
 * included. */
bool odm_job_tell_text(struct odm_job *j, const char *piece, size_t len);
void odm_job_tell_token(struct odm_job *j, const struct odm_token *t);
void odm_job_tell_position(struct odm_job *j, size_t position); /* does nothing if the job has begun or is done */
void odm_job_tell_prefill(struct odm_job *j, uint32_t prefilled_tokens);
/* r: NULL: it never was in the engine. */
void odm_job_tell_done(struct odm_job *j, const struct odm_result *r, const struct od_err *err);

#endif
