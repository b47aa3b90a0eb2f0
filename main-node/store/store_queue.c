#include "main-node/store/store_queue.h"

static struct odm_store_worker *find(struct odm_store_queue *q, const struct od_route *route)
{
	for (uint32_t i = 0; i < ODM_STORE_WORKERS; i++) {
		if (q->worker[i].route.len > 0 && od_route_equal(&q->worker[i].route, route))
			return &q->worker[i];
	}
	return NULL;
}

/* A place where nothing is open: nobody is told when a worker has gone, so whoever wants nothing loses it. */
static struct odm_store_worker *free_place(struct odm_store_queue *q)
{
	for (uint32_t i = 0; i < ODM_STORE_WORKERS; i++) {
		if (q->worker[i].n == 0 && atomic_load(&q->worker[i].sending) == 0)
			return &q->worker[i];
	}
	return NULL;
}

int odm_store_queue_add(struct odm_store_queue *q, const struct od_route *from, const struct odm_store_request *r)
{
	struct odm_store_worker *w = find(q, from);

	if (w == NULL) {
		w = free_place(q);
		if (w == NULL)
			return OD_ERR_BUSY;
		w->route = *from;
		w->first = 0;
	}
	if (w->n == OD_STORE_MAX_OPEN)
		return OD_ERR_BUSY;
	w->open[(w->first + w->n++) % OD_STORE_MAX_OPEN] = *r;
	return OD_OK;
}

struct odm_store_worker *odm_store_queue_take(struct odm_store_queue *q, struct odm_store_request *r)
{
	for (uint32_t i = 0; i < ODM_STORE_WORKERS; i++) {
		const uint32_t at = (q->turn + i) % ODM_STORE_WORKERS;
		struct odm_store_worker *w = &q->worker[at];
		const struct odm_store_request *next = &w->open[w->first];

		if (w->n == 0 || atomic_load(&w->sending) + next->bytes > ODM_STORE_WORKER_BYTES)
			continue;
		if (atomic_load(&q->sending) + next->bytes > ODM_STORE_ALL_BYTES)
			return NULL; /* it is this one's turn, and no smaller request of another's shall overtake it for ever */
		*r = *next;
		w->first = (w->first + 1) % OD_STORE_MAX_OPEN;
		w->n--;
		atomic_fetch_add(&w->sending, r->bytes);
		atomic_fetch_add(&q->sending, r->bytes);
		q->turn = (at + 1) % ODM_STORE_WORKERS;
		return w;
	}
	return NULL;
}

void odm_store_queue_done(struct odm_store_queue *q, struct odm_store_worker *w, uint64_t bytes)
{
	atomic_fetch_sub(&q->sending, bytes);
	atomic_fetch_sub(&w->sending, bytes); /* last: now its place may be somebody else's */
}

void odm_store_queue_drop(struct odm_store_worker *w)
{
	w->n = 0;
	w->route.len = 0;
}
