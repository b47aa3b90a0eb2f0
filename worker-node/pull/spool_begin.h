/* spool_begin.h - what a worker must have before it can serve: the small files of the pack and every expert's header,
 * pulled from the store where the spool lacks them.
 *
 * Thread: main(), before others exist; it waits for the store as long as it takes. */
#ifndef ODW_SPOOL_BEGIN_H
#define ODW_SPOOL_BEGIN_H

#include "common/pack/spool/spool.h"
#include "worker-node/pull/store_client.h"

/* The pack of the spool, with the experts that are there. A spool that lacks nothing needs no store. */
OD_MUST_CHECK int odw_spool_begin(struct od_spool *spool, struct odw_store *store, struct od_pack **pack,
				  struct od_err *err);

#endif
