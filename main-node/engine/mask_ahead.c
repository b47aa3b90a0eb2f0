#include "main-node/engine/mask_ahead.h"

#include <pthread.h>
#include <stdlib.h>

struct mask_job {
	struct od_constraint *constraint;
	uint32_t state;
	const int32_t *draft; /* [n] */
	size_t n;
};

struct odm_mask_ahead {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool busy, stopping; /* under lock */
	struct mask_job *job; /* [max] */
	size_t n, max;
};

/* A failure comes again when the text is sampled from, and is reported there. */
static void find_masks(const struct mask_job *j)
{
	const uint64_t *mask;
	uint32_t state = j->state;

	for (size_t i = 0; state != OD_STATE_DEAD && od_constraint_mask(j->constraint, state, &mask, NULL) == OD_OK;
	     i++) {
		if (i == j->n)
			return;
		state = od_constraint_step(j->constraint, state, j->draft[i]);
	}
}

static void *mask_main(void *arg)
{
	struct odm_mask_ahead *m = arg;

	pthread_mutex_lock(&m->lock);
	for (;;) {
		while (!m->busy && !m->stopping)
			pthread_cond_wait(&m->changed, &m->lock);
		if (m->stopping)
			break;
		pthread_mutex_unlock(&m->lock);
		for (size_t i = 0; i < m->n; i++)
			find_masks(&m->job[i]);
		pthread_mutex_lock(&m->lock);
		m->busy = false;
		pthread_cond_broadcast(&m->changed);
	}
	pthread_mutex_unlock(&m->lock);
	return NULL;
}

int odm_mask_ahead_new(struct odm_mask_ahead **out, size_t max_texts, struct od_err *err)
{
	struct odm_mask_ahead *m = calloc(1, sizeof(*m));

	*out = NULL;
	if (m != NULL)
		m->job = calloc(max_texts, sizeof(*m->job));
	if (m == NULL || m->job == NULL) {
		free(m);
		return od_fail(err, OD_ERR_NOMEM, "no memory for masks of %zu texts", max_texts);
	}
	m->max = max_texts;
	pthread_mutex_init(&m->lock, NULL);
	pthread_cond_init(&m->changed, NULL);
	if (pthread_create(&m->thread, NULL, mask_main, m) != 0) {
		pthread_cond_destroy(&m->changed);
		pthread_mutex_destroy(&m->lock);
		free(m->job);
		free(m);
		return od_fail(err, OD_ERR_NOMEM, "cannot start the thread of masks");
	}
	pthread_setname_np(m->thread, "od-masks");
	*out = m;
	return OD_OK;
}

void odm_mask_ahead_free(struct odm_mask_ahead *m)
{
	if (m == NULL)
		return;
	pthread_mutex_lock(&m->lock);
	m->stopping = true;
	pthread_cond_broadcast(&m->changed);
	pthread_mutex_unlock(&m->lock);
	pthread_join(m->thread, NULL);
	pthread_cond_destroy(&m->changed);
	pthread_mutex_destroy(&m->lock);
	free(m->job);
	free(m);
}

void odm_mask_ahead_add(struct odm_mask_ahead *m, struct od_constraint *c, uint32_t state, const int32_t *draft,
			size_t n)
{
	if (m->n < m->max)
		m->job[m->n++] = (struct mask_job){ c, state, draft, n };
}

void odm_mask_ahead_start(struct odm_mask_ahead *m)
{
	if (m->n == 0)
		return;
	pthread_mutex_lock(&m->lock);
	m->busy = true;
	pthread_cond_broadcast(&m->changed);
	pthread_mutex_unlock(&m->lock);
}

void odm_mask_ahead_wait(struct odm_mask_ahead *m)
{
	if (m->n == 0)
		return;
	pthread_mutex_lock(&m->lock);
	while (m->busy)
		pthread_cond_wait(&m->changed, &m->lock);
	pthread_mutex_unlock(&m->lock);
	m->n = 0;
}
