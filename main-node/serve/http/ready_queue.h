/* ready_queue.h - exchanges that other threads have prepared or have news for, on their way to the HTTP thread.
 *
 * Thread: push: any; the rest: the HTTP thread. Owner: the HTTP server, which contains it. The queue holds a reference
 * to each exchange in it. */
#ifndef ODM_READY_QUEUE_H
#define ODM_READY_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <uv.h>

struct odm_exchange;

struct odm_ready_queue {
	uv_async_t async; /* the owner initialises it; a push sends it */
	pthread_mutex_t lock; /* protects the rest, and the fields of exchanges that are this queue's */
	struct odm_exchange *first, **last;
};

void odm_ready_queue_init(struct odm_ready_queue *q);
void odm_ready_queue_fini(struct odm_ready_queue *q);

/* prepared: endpoint->prepare has returned; else there is news. An exchange that is in the queue stays where it is. */
void odm_ready_queue_push(struct odm_ready_queue *q, struct odm_exchange *x, bool prepared);
/* NULL: the queue is empty. The caller now holds the reference. *prepared: some push since the last pop said so. */
struct odm_exchange *odm_ready_queue_pop(struct odm_ready_queue *q, bool *prepared);

#endif
