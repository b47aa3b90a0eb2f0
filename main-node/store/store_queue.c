#include "main-node/store/store_queue.h"

static struct odm_store_worker *find(struct odm_store_queue *q, const struct od_route *route)
{
	for (uint32_t i = 0; i < ODM_STORE_WORKERS; i++) {
		if (q->worker[i].route.len > 0 && od_route_equal(&q->worker[i].route, route))
			return &q->worker[i];
	}
	return NULL;
}

/* The store does not learn when a worker has left, so a worker without open requests loses its slot. If there is none,
 * a worker that waits for the surplus loses its slot: others may hold the surplus for long, and waiting workers could
 * fill all slots. */
static struct odm_store_worker *free_slot(struct odm_store_queue *q)
{
	struct odm_store_worker *waiting = NULL;

	for (uint32_t i = 0; i < ODM_STORE_WORKERS; i++) {
		struct odm_store_worker *w = &q->worker[i];

		if (atomic_load(&w->sending) > 0)
			continue;
		if (w->n == 0)
			return w;
		if (w->open[w->first].bytes > OD_STORE_SHARE_BYTES)
			waiting = w;
	}
	return waiting;
}

int odm_store_queue_add(struct odm_store_queue *q, const struct od_route *from, const struct odm_store_request *r)
{
	struct odm_store_worker *w = find(q, from);

	if (w == NULL) {
		w = free_slot(q);
		if (w == NULL)
			return OD_ERR_BUSY;
		w->route = *from;
		w->first = w->n = 0;
	}
	if (w->n == OD_STORE_MAX_OPEN)
		return OD_ERR_BUSY;
	w->open[(w->first + w->n++) % OD_STORE_MAX_OPEN] = *r;
	return OD_OK;
}

static uint64_t beyond_share(uint64_t bytes)
{
	return bytes > OD_STORE_SHARE_BYTES ? bytes - OD_STORE_SHARE_BYTES : 0;
}

/* Others only lower what is on its way meanwhile. */
static bool may_have(const struct odm_store_queue *q, const struct odm_store_worker *w, uint32_t bytes)
{
	const uint64_t has = atomic_load(&w->sending), beyond = beyond_share(has + bytes);
	uint64_t used = beyond;

	if (beyond == 0)
		return true;
	for (uint32_t i = 0; i < ODM_STORE_WORKERS; i++)
		used += &q->worker[i] != w ? beyond_share(atomic_load(&q->worker[i].sending)) : 0;
	return has + bytes <= ODM_STORE_WORKER_BYTES && used + beyond <= ODM_STORE_SURPLUS_BYTES;
}

struct odm_store_worker *odm_store_queue_take(struct odm_store_queue *q, struct odm_store_request *r)
{
	for (uint32_t i = 0; i < ODM_STORE_WORKERS; i++) {
		const uint32_t at = (q->turn + i) % ODM_STORE_WORKERS;
		struct odm_store_worker *w = &q->worker[at];

		if (w->n == 0 || !may_have(q, w, w->open[w->first].bytes))
			continue;
		*r = w->open[w->first];
		w->first = (w->first + 1) % OD_STORE_MAX_OPEN;
		w->n--;
		atomic_fetch_add(&w->sending, r->bytes);
		q->turn = (at + 1) % ODM_STORE_WORKERS;
		return w;
	}
	return NULL;
}

void odm_store_queue_done(struct odm_store_worker *w, uint64_t bytes)
{
	atomic_fetch_sub(&w->sending, bytes); /* now its slot may be somebody else's */
}

uint64_t odm_store_queue_sending(const struct odm_store_queue *q)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < ODM_STORE_WORKERS; i++)
		sum += atomic_load(&q->worker[i].sending);
	return sum;
}

void odm_store_queue_drop(struct odm_store_worker *w)
{
	w->n = 0;
	w->route.len = 0;
}
