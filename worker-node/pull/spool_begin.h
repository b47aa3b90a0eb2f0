/* spool_begin.h - pulls what a worker needs before it can serve: the small files of the pack and every expert's header,
 * as far as the spool lacks them.
 *
 * Thread: main(), before others exist; waits for the store without a limit. Owner: the caller. */
#ifndef ODW_SPOOL_BEGIN_H
#define ODW_SPOOL_BEGIN_H

#include "common/pack/spool/spool.h"
#include "worker-node/pull/store_client.h"

/* Opens the spool's pack, with the experts present so far. If the spool lacks nothing, the store is not needed. */
OD_MUST_CHECK int odw_spool_begin(struct od_spool *spool, struct odw_store *store, struct od_pack **pack,
				  struct od_err *err);

#endif
