#include "main-node/serve/http/ready_queue.h"

#include "main-node/serve/http/exchange_internal.h"

void odm_ready_queue_init(struct odm_ready_queue *q)
{
	pthread_mutex_init(&q->lock, NULL);
	q->last = &q->first;
}

void odm_ready_queue_fini(struct odm_ready_queue *q)
{
	pthread_mutex_destroy(&q->lock);
}

void odm_ready_queue_push(struct odm_ready_queue *q, struct odm_exchange *x, bool prepared)
{
	pthread_mutex_lock(&q->lock);
	x->prepared = x->prepared || prepared;
	if (!x->in_ready) {
		x->in_ready = true;
		x->next_ready = NULL;
		odm_exchange_ref(x);
		*q->last = x;
		q->last = &x->next_ready;
		uv_async_send(&q->async);
	}
	pthread_mutex_unlock(&q->lock);
}

struct odm_exchange *odm_ready_queue_pop(struct odm_ready_queue *q, bool *prepared)
{
	struct odm_exchange *x;

	*prepared = false;
	pthread_mutex_lock(&q->lock);
	x = q->first;
	if (x != NULL) {
		q->first = x->next_ready;
		if (q->first == NULL)
			q->last = &q->first;
		x->in_ready = false;
		*prepared = x->prepared;
		x->prepared = false;
	}
	pthread_mutex_unlock(&q->lock);
	return x;
}
