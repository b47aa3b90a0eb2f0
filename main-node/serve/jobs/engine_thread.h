/* engine_thread.h - the thread that owns the engine while od-main serves: it opens it, feeds it with jobs and closes
 * it.
 *
 * A job is one text. Jobs of one request are submitted together and count as one in the limit of open requests; they
 * are generated in order of arrival, as many at once as the engine takes. What a job has to tell collects in its news
 * until it is taken, so a slow reader delays no other; if it leaves too much text unread, its job is cancelled. While
 * there is no job, the thread sleeps.
 * Thread: any, unless a function says otherwise. Owner: counted references of jobs; the thread holds one until a job is
 * done. */
#ifndef ODM_ENGINE_THREAD_H
#define ODM_ENGINE_THREAD_H

#include "main-node/node/main_node.h"
#include "main-node/serve/jobs/job.h"

struct odm_engine_thread;

enum odm_serve_state { ODM_SERVE_LOADING, ODM_SERVE_READY, ODM_SERVE_FAILED };

struct odm_engine_thread_opts {
	struct odm_main_opts node; /* .engine.cancel is replaced */
	size_t queue; /* requests that may wait beside the `node.engine.parallel` that are generated */
	size_t max_unread_bytes; /* limit of one job; 0: 1 MiB */
	/* Engine thread, no lock held: the engine is open, but not ready yet: no request has seen it. NULL ok. */
	void (*opened)(void *arg, const struct odm_engine *e);
	/* Engine thread, no lock held: the state has changed. */
	void (*changed)(void *arg);
	/* Engine thread, no lock held: a job's first step begins; it has its first token; it is done. ns: since it was
	 * submitted; rc: its error or OD_OK. Each may be NULL. */
	void (*begun)(void *arg, uint64_t ns);
	void (*first_token)(void *arg, uint64_t ns);
	void (*ended)(void *arg, const struct odm_result *r, int rc);
	void *arg;
};

OD_MUST_CHECK int odm_engine_thread_start(struct odm_engine_thread **out, const struct odm_engine_thread_opts *opts,
					  struct od_err *err);
/* Cancels all jobs, closes the engine and joins; from now on nothing can be submitted. Not OD_OK: as
 * odm_main_node_close. */
int odm_engine_thread_stop(struct odm_engine_thread *t);
/* call after odm_engine_thread_stop, and after all jobs are gone; NULL ok */
void odm_engine_thread_free(struct odm_engine_thread *t);

/* *why (NULL ok): the reason of ODM_SERVE_FAILED. */
enum odm_serve_state odm_engine_thread_state(struct odm_engine_thread *t, struct od_err *why);
/* NULL until ready, and after the end. Use it only for things that never change: pack, tokenizer, context,
 * odm_engine_check. */
const struct odm_engine *odm_engine_thread_engine(struct odm_engine_thread *t);

struct odm_engine_activity {
	size_t open_requests, running, waiting; /* running: jobs that left the queue; waiting: jobs in it */
	uint64_t last_step_ns, last_token_ns; /* od_now_ns; 0: never */
	/* the error of the newest job that failed without being cancelled; a success clears it */
	struct od_err last_error;
};
/* One thread, for the service's watchdog: has the engine's thread got on since the last call? Wakes it if it sleeps. */
bool odm_engine_thread_alive(struct odm_engine_thread *t);
/* Only the loop thread, which also calls odm_engine_thread_stop, may call these two: they use the node after they have
 * released the lock, so it must not be closed meanwhile. They are odm_main_node_served_bytes (0 without a node) and
 * odm_main_node_reload_peers. */
uint64_t odm_engine_thread_served_bytes(struct odm_engine_thread *t);
OD_MUST_CHECK int odm_engine_thread_reload_peers(struct odm_engine_thread *t, struct od_err *err);
void odm_engine_thread_activity(struct odm_engine_thread *t, struct odm_engine_activity *a);

/* Submits all or none. A submitted job has news at once, its position in the queue, and wake is not called for it: take
 * it. OD_ERR_BUSY: as many requests are open as may be; OD_ERR_UNREACHABLE: the engine is not ready; else the error of
 * odm_engine_check. beyond: the limit does not count. */
OD_MUST_CHECK int odm_engine_thread_submit(struct odm_engine_thread *t, struct odm_job *const *job, size_t n,
					   bool beyond, struct od_err *err);
/* A waiting job is done at once, a running one soon. */
void odm_engine_thread_cancel(struct odm_job *j);

#endif
