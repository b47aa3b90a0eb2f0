#include "tests/gpu/late_queues.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct work {
	struct work *next;
	int (*work)(void *arg, struct od_err *err); /* NULL: waits for a ticket of another queue */
	unsigned other;
	uint64_t ticket;
	_Alignas(16) unsigned char arg[];
};

struct queue {
	struct work *first, **end;
	uint64_t given, done, wanted; /* wanted: a wait needs the work up to here */
	struct od_err failed;
	int rc; /* OD_OK: nothing has failed since the last report */
};

struct od_late {
	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t changed;
	struct queue queue[OD_MAX_LATE];
	uint64_t random; /* 0: as late as may be */
	unsigned turn;
	bool stop;
	pthread_t thread;
};

/* ---- its own thread ---- */

static bool can_go_on(const struct od_late *l, const struct queue *q)
{
	return q->first != NULL && (q->first->work != NULL || l->queue[q->first->other].done >= q->first->ticket);
}

/* One of those that can go on: there is one. Mostly the same as before, so that one gets far ahead of the others. */
static struct queue *any_queue(struct od_late *l)
{
	unsigned n = 0, i = 0;

	l->random = l->random * 6364136223846793005u + 1442695040888963407u;
	if (can_go_on(l, &l->queue[l->turn]) && (l->random >> 32) % 32 != 0)
		return &l->queue[l->turn];
	for (i = 0; i < OD_MAX_LATE; i++)
		n += can_go_on(l, &l->queue[i]);
	n = (unsigned)(l->random >> 40) % n;
	for (i = 0; !can_go_on(l, &l->queue[i]) || n-- > 0; i++)
		;
	l->turn = i;
	return &l->queue[i];
}

/* Called with the lock held. Returns the queue to take work from next; NULL: no caller waits, so nothing is done
 * yet. */
static struct queue *next_queue(struct od_late *l)
{
	struct queue *q = NULL;

	for (unsigned i = 0; q == NULL && i < OD_MAX_LATE; i++)
		q = l->queue[i].done < l->queue[i].wanted ? &l->queue[i] : NULL;
	if (q != NULL && l->random != 0)
		return any_queue(l);
	/* Tickets are older than what waits for them, so this ends. */
	while (q != NULL && q->first->work == NULL && l->queue[q->first->other].done < q->first->ticket)
		q = &l->queue[q->first->other];
	return q;
}

static void do_first(struct od_late *l, struct queue *q)
{
	struct work *w = q->first;
	struct od_err err = { 0 };
	int rc = OD_OK;

	q->first = w->next;
	if (q->first == NULL)
		q->end = &q->first;
	pthread_mutex_unlock(&l->lock);
	if (w->work != NULL)
		rc = w->work(w->arg, &err);
	free(w);
	pthread_mutex_lock(&l->lock);
	if (rc != OD_OK && q->rc == OD_OK) {
		q->rc = rc;
		q->failed = err;
	}
	q->done++;
	pthread_cond_broadcast(&l->changed);
}

static void *work_main(void *arg)
{
	struct od_late *l = arg;

	pthread_mutex_lock(&l->lock);
	while (!l->stop) {
		struct queue *q = next_queue(l);

		if (q != NULL)
			do_first(l, q);
		else
			pthread_cond_wait(&l->changed, &l->lock);
	}
	pthread_mutex_unlock(&l->lock);
	return NULL;
}

/* ---- queues ---- */

static void give(struct od_late *l, unsigned q, struct work *w)
{
	if (w == NULL)
		abort(); /* devices for tests */
	w->next = NULL;
	pthread_mutex_lock(&l->lock);
	*l->queue[q].end = w;
	l->queue[q].end = &w->next;
	l->queue[q].given++;
	pthread_mutex_unlock(&l->lock);
}

void od_late_give(struct od_late *l, unsigned q, int (*work)(void *arg, struct od_err *err), const void *arg, size_t n)
{
	struct work *w = calloc(1, sizeof(*w) + n);

	if (w != NULL) {
		w->work = work;
		memcpy(w->arg, arg, n);
	}
	give(l, q, w);
}

void od_late_after(struct od_late *l, unsigned q, unsigned other, uint64_t ticket)
{
	struct work *w = calloc(1, sizeof(*w));

	if (w != NULL) {
		w->other = other;
		w->ticket = ticket;
	}
	give(l, q, w);
}

uint64_t od_late_ticket(struct od_late *l, unsigned q)
{
	uint64_t t;

	pthread_mutex_lock(&l->lock);
	t = l->queue[q].given;
	pthread_mutex_unlock(&l->lock);
	return t;
}

int od_late_wait(struct od_late *l, unsigned i, uint64_t t, struct od_err *err)
{
	struct queue *q = &l->queue[i];
	int rc;

	pthread_mutex_lock(&l->lock);
	assert(t <= q->given);
	q->wanted = q->wanted > t ? q->wanted : t;
	pthread_cond_broadcast(&l->changed);
	while (q->done < t)
		pthread_cond_wait(&l->changed, &l->lock);
	rc = q->rc;
	if (rc != OD_OK && err != NULL) {
		*err = q->failed;
		q->rc = OD_OK;
	}
	pthread_mutex_unlock(&l->lock);
	return rc;
}

bool od_late_any(struct od_late *l, bool (*uses)(const void *arg, const void *what), const void *what)
{
	bool any = false;

	pthread_mutex_lock(&l->lock);
	for (unsigned i = 0; i < OD_MAX_LATE; i++)
		for (const struct work *w = l->queue[i].first; w != NULL; w = w->next)
			any = any || (w->work != NULL && uses(w->arg, what));
	pthread_mutex_unlock(&l->lock);
	return any;
}

/* ---- life ---- */

int od_late_new(struct od_late **out, uint64_t seed, struct od_err *err)
{
	struct od_late *l = calloc(1, sizeof(*l));

	*out = NULL;
	if (l == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a device");
	for (unsigned i = 0; i < OD_MAX_LATE; i++)
		l->queue[i].end = &l->queue[i].first;
	l->random = seed;
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->changed, NULL);
	if (pthread_create(&l->thread, NULL, work_main, l) != 0) {
		pthread_cond_destroy(&l->changed);
		pthread_mutex_destroy(&l->lock);
		free(l);
		return od_fail(err, OD_ERR_NOMEM, "no thread for a device");
	}
	*out = l;
	return OD_OK;
}

void od_late_free(struct od_late *l)
{
	if (l == NULL)
		return;
	pthread_mutex_lock(&l->lock);
	l->stop = true;
	pthread_cond_broadcast(&l->changed);
	pthread_mutex_unlock(&l->lock);
	pthread_join(l->thread, NULL);
	for (unsigned i = 0; i < OD_MAX_LATE; i++)
		for (struct work *w = l->queue[i].first, *next; w != NULL; w = next) {
			next = w->next;
			free(w);
		}
	pthread_cond_destroy(&l->changed);
	pthread_mutex_destroy(&l->lock);
	free(l);
}
