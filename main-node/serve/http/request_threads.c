#include "main-node/serve/http/request_threads.h"

#include "main-node/serve/http/exchange_internal.h"
#include "main-node/serve/http/ready_queue.h"

#include <pthread.h>
#include <stdlib.h>

struct odm_request_threads {
	pthread_t *thread;
	unsigned n;
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct odm_exchange *first, **last;
	bool stopping;
};

static struct odm_exchange *next_exchange(struct odm_request_threads *t)
{
	struct odm_exchange *x;

	pthread_mutex_lock(&t->lock);
	while (t->first == NULL && !t->stopping)
		pthread_cond_wait(&t->work, &t->lock);
	x = t->first;
	if (x != NULL) {
		t->first = x->next_request;
		if (t->first == NULL)
			t->last = &t->first;
		x->next_request = NULL;
	}
	pthread_mutex_unlock(&t->lock);
	return x;
}

static void *prepare_requests(void *arg)
{
	struct odm_exchange *x;

	while ((x = next_exchange(arg)) != NULL) {
		x->endpoint->prepare(x);
		odm_ready_queue_push(x->ready, x, true);
		odm_exchange_unref(x);
	}
	return NULL;
}

int odm_request_threads_start(struct odm_request_threads **out, unsigned n, struct od_err *err)
{
	struct odm_request_threads *t = calloc(1, sizeof(*t));

	*out = NULL;
	if (t == NULL)
		return od_fail(err, OD_ERR_NOMEM, "request threads");
	t->last = &t->first;
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->work, NULL);
	t->thread = calloc(n, sizeof(*t->thread));
	while (t->thread != NULL && t->n < n) {
		if (pthread_create(&t->thread[t->n], NULL, prepare_requests, t) != 0)
			break;
		pthread_setname_np(t->thread[t->n++], "od-request");
	}
	if (t->n == n) {
		*out = t;
		return OD_OK;
	}
	odm_request_threads_stop(t);
	return od_fail(err, OD_ERR_NOMEM, "cannot start %u request threads", n);
}

void odm_request_threads_stop(struct odm_request_threads *t)
{
	if (t == NULL)
		return;
	pthread_mutex_lock(&t->lock);
	t->stopping = true;
	pthread_cond_broadcast(&t->work);
	pthread_mutex_unlock(&t->lock);
	for (unsigned i = 0; i < t->n; i++)
		pthread_join(t->thread[i], NULL);
	pthread_cond_destroy(&t->work);
	pthread_mutex_destroy(&t->lock);
	free(t->thread);
	free(t);
}

void odm_request_threads_push(struct odm_request_threads *t, struct odm_exchange *x)
{
	odm_exchange_ref(x);
	pthread_mutex_lock(&t->lock);
	x->next_request = NULL;
	*t->last = x;
	t->last = &x->next_request;
	pthread_cond_signal(&t->work);
	pthread_mutex_unlock(&t->lock);
}
