/* store_queue.h - whose request the store serves next, and how much of its memory each worker may fill.
 *
 * Workers take turns, piece by piece, so that one that asks for more, or reads more slowly, gets no more than its turn. A
 * worker has a bounded number of requests, and bytes on their way to it. OD_STORE_SHARE_BYTES of these are its own, whatever
 * others hold: workers that read nothing hold up nobody. What is left of the store's memory is for pieces and queues beyond
 * that, up to what a worker may have; of this surplus nobody takes more than it leaves to others.
 * Thread: the store's thread; odm_store_queue_done from any thread (the bytes on their way are atomic). */
#ifndef ODM_STORE_QUEUE_H
#define ODM_STORE_QUEUE_H

#include <stdatomic.h>

#include "common/net/store_wire.h"

#define ODM_STORE_WORKERS 112 /* with something open, at a time */
#define ODM_STORE_WORKER_BYTES OD_STORE_PIECE_BYTES
#define ODM_STORE_ALL_BYTES (64u << 20)
#define ODM_STORE_SURPLUS_BYTES (ODM_STORE_ALL_BYTES - ODM_STORE_WORKERS * OD_STORE_SHARE_BYTES)

struct odm_store_request {
	uint64_t request, offset;
	uint32_t file, bytes;
};

struct odm_store_worker {
	struct od_route route; /* len 0: the place is free, when nothing is on its way any more */
	uint32_t first, n;     /* of requests, a ring */
	struct odm_store_request open[OD_STORE_MAX_OPEN];
	_Atomic uint64_t sending; /* bytes on their way */
};

struct odm_store_queue {
	struct odm_store_worker worker[ODM_STORE_WORKERS];
	uint32_t turn;
};

/* OD_ERR_BUSY: this worker, or all places, are full. bytes is at most OD_STORE_PIECE_BYTES. */
OD_MUST_CHECK int odm_store_queue_add(struct odm_store_queue *q, const struct od_route *from,
				      const struct odm_store_request *r);
/* The next request and whose it is; NULL: none can be served now. It counts as sent (odm_store_queue_done ends that). */
struct odm_store_worker *odm_store_queue_take(struct odm_store_queue *q, struct odm_store_request *r);
/* The bytes have left, or were never sent. */
void odm_store_queue_done(struct odm_store_worker *w, uint64_t bytes);
/* This worker is gone. */
void odm_store_queue_drop(struct odm_store_worker *w);
/* Bytes on their way, to all. */
uint64_t odm_store_queue_sending(const struct odm_store_queue *q);

#endif
