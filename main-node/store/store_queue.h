/* store_queue.h - chooses the store's next request, and bounds the memory that each worker may use.
 *
 * Workers take turns, one piece each, so that a worker with more requests, or a slow reader, gets no more than its
 * turn. Each worker has a bounded number of requests and of bytes in flight. OD_STORE_SHARE_BYTES of these are
 * guaranteed to it, so workers that read nothing delay no others. The rest of the store's memory is a shared surplus
 * for further bytes, up to the bound per worker; no worker may take more of the surplus than it leaves to the others.
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
	struct od_route route; /* len 0: the slot is free once no bytes are in flight */
	uint32_t first, n; /* ring of requests */
	struct odm_store_request open[OD_STORE_MAX_OPEN];
	_Atomic uint64_t sending; /* bytes in flight */
};

struct odm_store_queue {
	struct odm_store_worker worker[ODM_STORE_WORKERS];
	uint32_t turn;
};

/* OD_ERR_BUSY: the worker's queue is full, or all slots are taken. r->bytes is at most OD_STORE_PIECE_BYTES. */
OD_MUST_CHECK int odm_store_queue_add(struct odm_store_queue *q, const struct od_route *from,
				      const struct odm_store_request *r);
/* Takes the next request and returns its worker; NULL: none can be served now. Its bytes count as in flight until
 * odm_store_queue_done. */
struct odm_store_worker *odm_store_queue_take(struct odm_store_queue *q, struct odm_store_request *r);
/* The bytes were sent or discarded. */
void odm_store_queue_done(struct odm_store_worker *w, uint64_t bytes);
/* The worker has left: drops its requests. */
void odm_store_queue_drop(struct odm_store_worker *w);
/* Bytes in flight to all workers. */
uint64_t odm_store_queue_sending(const struct odm_store_queue *q);

#endif
