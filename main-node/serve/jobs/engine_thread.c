#include "main-node/serve/jobs/engine_thread.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/pulse.h"
#include "main-node/serve/jobs/job_internal.h"

#include <pthread.h>
#include <stdlib.h>

#define DEFAULT_MAX_UNREAD_BYTES (1u << 20)

struct odm_engine_thread {
	struct odm_engine_thread_opts opts;
	size_t parallel, max_open;
	pthread_t thread;
	atomic_bool cancel; /* the engine looks at it */
	int close_rc; /* odm_main_node_close's result, valid after the thread has ended */
	struct od_pulse pulse;

	struct odm_job **running; /* [parallel] jobs in the engine; engine thread */

	pthread_mutex_t lock; /* protects everything below, and the lower fields of jobs */
	pthread_cond_t work; /* signalled when there is a job, or the end */
	enum odm_serve_state state;
	struct od_err why; /* the reason of ODM_SERVE_FAILED */
	struct odm_main_node *node; /* with its engine; NULL until ready */
	struct odm_job *first, **last; /* queue */
	size_t n_running, n_begun, n_waiting, n_open;
	bool stopping, positions_changed;
	uint64_t last_step_ns, last_token_ns;
	struct od_err last_error;
};

/* ---- In and out ---- */

/* Lock held: the job has left; its request may have too. */
static void leave(struct odm_engine_thread *t, struct odm_job *j)
{
	struct odm_ticket *k = j->ticket;

	j->ticket = NULL;
	if (--k->n_open == 0) {
		t->n_open -= k->counts;
		free(k);
	}
	if (j->begun)
		t->n_begun--;
	else
		t->n_waiting--;
	t->positions_changed = true;
}

static int admit(struct odm_engine_thread *t, struct odm_job *const *job, size_t n, bool beyond, struct od_err *err)
{
	struct odm_ticket *k;

	if (t->stopping)
		return od_fail(err, OD_ERR_UNREACHABLE, "the server is ending");
	if (!beyond && t->n_open >= t->max_open)
		return od_fail(err, OD_ERR_BUSY,
			       "%zu requests are being served or wait, as many as may; try again later", t->n_open);
	k = malloc(sizeof(*k));
	if (k == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a request");
	*k = (struct odm_ticket){ .n_open = n, .counts = !beyond };
	t->n_open += k->counts;
	for (size_t i = 0; i < n; i++) {
		struct odm_job *j = job[i];

		odm_job_hold(j);
		j->thread = t;
		j->ticket = k;
		j->queued = true;
		j->submitted_ns = od_now_ns();
		j->max_unread_bytes = t->opts.max_unread_bytes;
		/* the job is not shared yet, so no lock is needed; and no wake, because the submitter looks first */
		j->news.position = ++t->n_waiting;
		j->any_news = true;
		*t->last = j;
		t->last = &j->next;
	}
	pthread_cond_signal(&t->work);
	return OD_OK;
}

int odm_engine_thread_submit(struct odm_engine_thread *t, struct odm_job *const *job, size_t n, bool beyond,
			     struct od_err *err)
{
	const struct odm_engine *e = odm_engine_thread_engine(t);
	int rc = OD_OK;

	if (e == NULL)
		return od_fail(err, OD_ERR_UNREACHABLE, "the model is being loaded");
	for (size_t i = 0; rc == OD_OK && i < n; i++)
		rc = odm_engine_check(e, &job[i]->spec.req, err);
	if (rc != OD_OK)
		return rc;
	pthread_mutex_lock(&t->lock);
	rc = admit(t, job, n, beyond, err);
	pthread_mutex_unlock(&t->lock);
	return rc;
}

/* Lock held. */
static void unlink_queued(struct odm_engine_thread *t, struct odm_job *j)
{
	struct odm_job **at = &t->first;

	while (*at != j)
		at = &(*at)->next;
	*at = j->next;
	if (t->last == &j->next)
		t->last = at;
	j->next = NULL;
	j->queued = false;
}

static void say_failed(const struct odm_job *j, const struct od_err *err)
{
	if (err->code == OD_ERR_CANCELLED && j->spec.req.request != NULL)
		OD_LOG_EVENT(OD_LOG_INFO, "cancelled", od_log_text("request", j->spec.req.request));
	else if (err->code != OD_OK && err->code != OD_ERR_CANCELLED &&
		 j->spec.req.request == NULL) /* it is asked for again and again */
		od_log_limited(OD_LOG_WARN, "the self-test of /health failed: %s", err->msg);
	else if (err->code != OD_OK && err->code != OD_ERR_CANCELLED)
		OD_LOG_EVENT(OD_LOG_WARN, "a text failed", od_log_text("request", j->spec.req.request),
			     od_log_text("error", err->msg));
}

void odm_engine_thread_cancel(struct odm_job *j)
{
	struct odm_engine_thread *t = j->thread;
	struct od_err err;
	bool queued;

	if (t == NULL)
		return;
	pthread_mutex_lock(&t->lock);
	j->cancelled = true;
	queued = j->queued;
	if (queued) {
		unlink_queued(t, j);
		leave(t, j);
		pthread_cond_signal(&t->work);
	} else if (j->sequence != NULL) {
		odm_sequence_cancel(j->sequence);
	}
	pthread_mutex_unlock(&t->lock);
	/* The thread that takes a job off the queue ends it, so it is told only once. No lock is held, because
	 * telling the client may wake its thread, which takes locks of its own. */
	if (!queued)
		return;
	(void)od_fail(&err, OD_ERR_CANCELLED, "cancelled");
	say_failed(j, &err);
	odm_job_tell_done(j, NULL, &err);
	odm_job_let_go(j);
}

/* ---- What the engine tells ---- */

static bool on_text(void *arg, const char *piece, size_t len)
{
	return odm_job_tell_text(arg, piece, len);
}

static bool on_ends(void *arg, const char *piece, size_t len)
{
	const struct odm_job *j = arg;

	return j->spec.ends(j->spec.ends_arg, piece, len);
}

static void on_token(void *arg, const struct odm_token *token)
{
	struct odm_job *j = arg;
	struct odm_engine_thread *t = j->thread;
	const uint64_t now = od_now_ns();

	if (token->position >= j->spec.req.n_prompt) {
		pthread_mutex_lock(&t->lock);
		t->last_token_ns = now;
		pthread_mutex_unlock(&t->lock);
		if (j->first_token_ns == 0 && t->opts.first_token != NULL)
			t->opts.first_token(t->opts.arg, now - j->submitted_ns);
		if (j->first_token_ns == 0)
			j->first_token_ns = now;
	}
	if (j->spec.req.logprobs >= 0)
		odm_job_tell_token(j, token);
}

static void say_begun(const struct odm_job *j, uint32_t shared_tokens)
{
	const struct odm_engine_thread *t = j->thread;
	const uint64_t queue_ns = j->begun_ns - j->submitted_ns;

	if (t->opts.begun != NULL)
		t->opts.begun(t->opts.arg, queue_ns);
	if (j->spec.req.request != NULL)
		OD_LOG_EVENT(OD_LOG_INFO, "begun", od_log_text("request", j->spec.req.request),
			     od_log_number("prompt_tokens", (double)j->spec.req.n_prompt),
			     od_log_number("shared_tokens", shared_tokens),
			     od_log_number("queue_seconds", od_seconds(queue_ns)));
}

static void on_progress(void *arg, uint32_t done, uint32_t n_prompt)
{
	struct odm_job *j = arg;
	struct odm_engine_thread *t = j->thread;
	const uint64_t now = od_now_ns();
	const bool first = !j->begun;

	(void)n_prompt;
	pthread_mutex_lock(&t->lock);
	t->last_step_ns = now;
	if (first) {
		j->begun = true;
		j->begun_ns = now;
		t->n_waiting--;
		t->n_begun++;
		t->positions_changed = true;
	}
	pthread_mutex_unlock(&t->lock);
	if (first)
		say_begun(j, done);
	odm_job_tell_prefill(j, done);
}

static void on_step(void *arg, const struct odm_step *step, const struct odm_part *part)
{
	struct odm_job *j = arg;
	struct odm_engine_thread *t = j->thread;
	const uint64_t now = od_now_ns();

	(void)step, (void)part;
	pthread_mutex_lock(&t->lock);
	t->last_step_ns = now;
	pthread_mutex_unlock(&t->lock);
}

/* ---- Engine thread ---- */

static void end_job(struct odm_engine_thread *t, struct odm_job *j, struct odm_result *r, const struct od_err *err)
{
	pthread_mutex_lock(&t->lock);
	/* The job leaves before its client hears of the end: a client that asks again at once finds the room free. */
	j->sequence = NULL;
	leave(t, j);
	if (err->code != OD_ERR_CANCELLED)
		t->last_error = *err; /* no error clears it */
	pthread_mutex_unlock(&t->lock);
	if (t->opts.ended != NULL)
		t->opts.ended(t->opts.arg, r, err->code);
	say_failed(j, err);
	odm_job_tell_done(j, r, err);
	odm_job_let_go(j);
}

static void give_to_engine(struct odm_engine_thread *t, struct odm_job *j)
{
	struct odm_result none = { .finish = ODM_FINISH_ERROR };
	struct odm_sequence *q;
	struct od_err err = { 0 };

	j->spec.req.observer = (struct odm_observer){
		.arg = j, .progress = on_progress, .token = on_token, .text = on_text, .step = on_step
	};
	if (j->spec.ends != NULL)
		j->spec.req.observer.ends = on_ends;
	if (odm_engine_submit(odm_main_node_engine(t->node), &j->spec.req, &q, &err) != OD_OK) {
		end_job(t, j, &none, &err);
		return;
	}
	pthread_mutex_lock(&t->lock);
	j->sequence = q;
	/* A cancel since the job left the queue found no text to cancel, and only left its mark. */
	if (j->cancelled)
		odm_sequence_cancel(q);
	t->running[t->n_running++] = j;
	pthread_mutex_unlock(&t->lock);
}

static void take_done(struct odm_engine_thread *t)
{
	for (size_t i = 0; i < t->n_running;) {
		struct odm_job *j = t->running[i];
		struct odm_sequence *q = j->sequence;
		struct odm_result r;
		struct od_err err;

		if (!odm_sequence_done(q)) {
			i++;
			continue;
		}
		pthread_mutex_lock(&t->lock);
		j->sequence = NULL; /* odm_engine_thread_cancel no longer finds it */
		t->n_running--;
		/* Later jobs move up one by one: tell_positions needs the order of arrival. */
		for (size_t k = i; k < t->n_running; k++)
			t->running[k] = t->running[k + 1];
		pthread_mutex_unlock(&t->lock);
		if (odm_sequence_take(q, &r, &err) == OD_OK)
			err = (struct od_err){ 0 };
		end_job(t, j, &r, &err);
		odm_result_fini(&r);
	}
}

/* Lock held: the next job for the engine; NULL: none, or no room. */
static struct odm_job *next_job(struct odm_engine_thread *t)
{
	struct odm_job *j = t->n_running < t->parallel ? t->first : NULL;

	if (j != NULL)
		unlink_queued(t, j);
	return j;
}

/* Tells each waiting job how many are before it. Call it with the lock held; it is released while jobs are told,
 * because a wake runs with no lock held. */
static void tell_positions(struct odm_engine_thread *t)
{
	struct odm_job **job = malloc((t->n_waiting + 1) * sizeof(struct odm_job *));
	size_t n = 0;

	t->positions_changed = false;
	if (job == NULL)
		return;
	for (size_t i = 0; i < t->n_running; i++)
		if (!t->running[i]->begun)
			job[n++] = t->running[i];
	for (struct odm_job *j = t->first; j != NULL; j = j->next)
		job[n++] = j;
	for (size_t i = 0; i < n; i++)
		odm_job_hold(job[i]);
	pthread_mutex_unlock(&t->lock);
	for (size_t i = 0; i < n; i++) {
		odm_job_tell_position(job[i], i + 1);
		odm_job_let_go(job[i]);
	}
	free(job);
	pthread_mutex_lock(&t->lock);
}

/* Sleeps until there is work and fills the engine. False: the end. */
static bool prepare_work(struct odm_engine_thread *t)
{
	struct odm_job *j;

	pthread_mutex_lock(&t->lock);
	od_pulse_beat();
	while (!t->stopping && t->first == NULL && t->n_running == 0 && !t->positions_changed) {
		pthread_cond_wait(&t->work, &t->lock);
		od_pulse_beat();
	}
	while (!t->stopping && (j = next_job(t)) != NULL) {
		pthread_mutex_unlock(&t->lock);
		give_to_engine(t, j);
		pthread_mutex_lock(&t->lock);
	}
	if (t->positions_changed)
		tell_positions(t);
	if (!t->stopping || t->n_running > 0) {
		pthread_mutex_unlock(&t->lock);
		return true;
	}
	while (t->first != NULL) { /* jobs that never reached the engine end here */
		/* The cancel takes the lock itself, and drops the queue's reference: this one keeps the job until it
		 * returns. */
		j = odm_job_ref(t->first);
		pthread_mutex_unlock(&t->lock);
		odm_engine_thread_cancel(j);
		odm_job_unref(j);
		pthread_mutex_lock(&t->lock);
	}
	pthread_mutex_unlock(&t->lock);
	return false;
}

static bool open_engine(struct odm_engine_thread *t)
{
	struct odm_main_node *node;
	struct od_err err = { 0 };
	int rc = odm_main_node_open(&node, &t->opts.node, &err);

	if (rc == OD_OK && t->opts.opened != NULL)
		t->opts.opened(t->opts.arg, odm_main_node_engine(node));
	pthread_mutex_lock(&t->lock);
	t->node = node;
	t->why = err;
	t->state = rc == OD_OK ? ODM_SERVE_READY : ODM_SERVE_FAILED;
	pthread_mutex_unlock(&t->lock);
	if (t->opts.changed != NULL)
		t->opts.changed(t->opts.arg);
	return rc == OD_OK;
}

static void *engine_main(void *arg)
{
	struct odm_engine_thread *t = arg;
	struct odm_main_node *node;

	od_pulse_of_thread(&t->pulse);
	if (!open_engine(t))
		return NULL;
	while (prepare_work(t)) {
		if (t->n_running > 0)
			odm_engine_work(odm_main_node_engine(t->node));
		take_done(t);
	}
	pthread_mutex_lock(&t->lock);
	/* Other threads look under the lock: none finds the node once it is being closed. */
	node = t->node;
	t->node = NULL;
	pthread_mutex_unlock(&t->lock);
	t->close_rc = odm_main_node_close(node);
	return NULL;
}

/* ---- Life ---- */

void odm_engine_thread_free(struct odm_engine_thread *t)
{
	if (t == NULL)
		return;
	pthread_cond_destroy(&t->work);
	pthread_mutex_destroy(&t->lock);
	free(t->running);
	free(t);
}

int odm_engine_thread_start(struct odm_engine_thread **out, const struct odm_engine_thread_opts *opts,
			    struct od_err *err)
{
	struct odm_engine_thread *t = calloc(1, sizeof(*t));

	*out = NULL;
	if (t == NULL)
		return od_fail(err, OD_ERR_NOMEM, "engine thread");
	t->opts = *opts;
	t->opts.node.engine.cancel = &t->cancel;
	if (t->opts.max_unread_bytes == 0)
		t->opts.max_unread_bytes = DEFAULT_MAX_UNREAD_BYTES;
	t->parallel = opts->node.engine.parallel > 0 ? opts->node.engine.parallel : 1;
	t->max_open = t->parallel + opts->queue;
	t->last = &t->first;
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->work, NULL);
	t->running = calloc(t->parallel, sizeof(struct odm_job *));
	if (t->running == NULL || pthread_create(&t->thread, NULL, engine_main, t) != 0) {
		odm_engine_thread_free(t);
		return od_fail(err, OD_ERR_NOMEM, "cannot start the engine thread");
	}
	pthread_setname_np(t->thread, "od-engine");
	*out = t;
	return OD_OK;
}

int odm_engine_thread_stop(struct odm_engine_thread *t)
{
	pthread_mutex_lock(&t->lock);
	t->stopping = true;
	atomic_store(&t->cancel, true);
	pthread_cond_signal(&t->work);
	pthread_mutex_unlock(&t->lock);
	pthread_join(t->thread, NULL);
	return t->close_rc;
}

enum odm_serve_state odm_engine_thread_state(struct odm_engine_thread *t, struct od_err *why)
{
	enum odm_serve_state s;

	pthread_mutex_lock(&t->lock);
	s = t->state;
	if (why != NULL)
		*why = t->why;
	pthread_mutex_unlock(&t->lock);
	return s;
}

const struct odm_engine *odm_engine_thread_engine(struct odm_engine_thread *t)
{
	const struct odm_engine *e;

	pthread_mutex_lock(&t->lock);
	e = odm_main_node_engine(t->node);
	pthread_mutex_unlock(&t->lock);
	return e;
}

bool odm_engine_thread_alive(struct odm_engine_thread *t)
{
	const bool moved = od_pulse_moved(&t->pulse);

	pthread_mutex_lock(&t->lock);
	/* A sleeping thread beats only when it is woken; the next call sees that beat. */
	pthread_cond_signal(&t->work);
	pthread_mutex_unlock(&t->lock);
	return moved;
}

uint64_t odm_engine_thread_served_bytes(struct odm_engine_thread *t)
{
	const struct odm_main_node *node;

	pthread_mutex_lock(&t->lock);
	node = t->node;
	pthread_mutex_unlock(&t->lock);
	return node != NULL ? odm_main_node_served_bytes(node) : 0;
}

int odm_engine_thread_reload_peers(struct odm_engine_thread *t, struct od_err *err)
{
	struct odm_main_node *node;

	pthread_mutex_lock(&t->lock);
	node = t->node;
	pthread_mutex_unlock(&t->lock);
	return node != NULL ? odm_main_node_reload_peers(node, err) :
			      od_fail(err, OD_ERR_UNREACHABLE, "the engine has ended");
}

void odm_engine_thread_activity(struct odm_engine_thread *t, struct odm_engine_activity *a)
{
	pthread_mutex_lock(&t->lock);
	*a = (struct odm_engine_activity){
		.open_requests = t->n_open,
		.running = t->n_begun,
		.waiting = t->n_waiting,
		.last_step_ns = t->last_step_ns,
		.last_token_ns = t->last_token_ns,
		.last_error = t->last_error,
	};
	pthread_mutex_unlock(&t->lock);
}
