#include "common/pack/team.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

struct team {
	const struct od_team_job *job;
	atomic_size_t next;
	atomic_ullong done_bytes;
	atomic_bool stop;
	pthread_mutex_t lock; /* guards the two below */
	int rc;
	struct od_err err;
};

struct member {
	struct team *team;
	unsigned index;
	pthread_t thread;
};

static void fail_team(struct team *t, int rc, const struct od_err *err)
{
	pthread_mutex_lock(&t->lock);
	if (t->rc == OD_OK) {
		t->rc = rc;
		t->err = *err;
	}
	pthread_mutex_unlock(&t->lock);
	atomic_store(&t->stop, true);
}

static void work(struct team *t, unsigned index, bool leader)
{
	const struct od_team_job *job = t->job;

	while (!atomic_load(&t->stop)) {
		size_t item = atomic_fetch_add(&t->next, 1);
		uint64_t bytes = 0;
		struct od_err err = { 0 };
		int rc;

		if (item >= job->n_items)
			break;
		rc = job->fn(job->arg, index, item, &bytes, &err);
		if (rc != OD_OK) {
			fail_team(t, rc, &err);
			break;
		}
		atomic_fetch_add(&t->done_bytes, bytes);
		if (leader && job->progress != NULL)
			job->progress(job->progress_arg, atomic_load(&t->done_bytes), job->all_bytes);
	}
}

static void *member_main(void *arg)
{
	struct member *m = arg;

	work(m->team, m->index, false);
	return NULL;
}

int od_team_run(const struct od_team_job *job, struct od_err *err)
{
	struct team t = { .job = job, .lock = PTHREAD_MUTEX_INITIALIZER };
	size_t n = job->n_threads < job->n_items ? job->n_threads : job->n_items, started = 0;
	struct member *member = n > 1 ? calloc(n, sizeof(*member)) : NULL;

	atomic_store(&t.done_bytes, job->done_bytes);
	/* Fewer threads than asked for are slower, not wrong. */
	for (size_t i = 1; member != NULL && i < n; i++) {
		member[started] = (struct member){ .team = &t, .index = (unsigned)i };
		if (pthread_create(&member[started].thread, NULL, member_main, &member[started]) != 0)
			break;
		started++;
	}
	work(&t, 0, true);
	for (size_t i = 0; i < started; i++)
		pthread_join(member[i].thread, NULL);
	free(member);
	if (t.rc != OD_OK) {
		if (err != NULL)
			*err = t.err;
		return t.rc;
	}
	if (job->progress != NULL)
		job->progress(job->progress_arg, atomic_load(&t.done_bytes), job->all_bytes);
	return OD_OK;
}
