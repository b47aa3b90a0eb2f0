/* puller.h - the thread that fills a worker's spool from main's store while the worker serves. pull_plan.h selects
 * experts, store_client.h fetches them; every chunk is checked before it is written.
 *
 * No error here ends the process: a full disk, an unreachable store or a store of another model is logged, reported to
 * RUNs that need an expert, and retried.
 * Thread: any (a monitor). Owner: start takes the spool and the store; the pack is borrowed until stop. */
#ifndef ODW_PULLER_H
#define ODW_PULLER_H

#include "common/pack/spool/spool.h"
#include "worker-node/pull/store_client.h"

struct odw_puller;

struct odw_puller_opts {
	struct od_spool *spool;
	struct odw_store *store;
	const struct od_pack *pack;
	const char *dir; /* the spool's, for messages */
	uint64_t limit_bytes; /* UINT64_MAX: none */
};

struct odw_pull_figures {
	uint64_t pulled_bytes, whole_bytes, goal_bytes;
	uint64_t changes; /* grows with every expert added or removed */
};

/* Takes spool and store even when it fails. */
OD_MUST_CHECK int odw_puller_start(struct odw_puller **out, const struct odw_puller_opts *opts, struct od_err *err);
void odw_puller_stop(struct odw_puller *p); /* joins and frees; NULL ok */

/* Sets the share that main assigned with PLACE. */
void odw_puller_place(struct odw_puller *p, const struct od_share *share);
/* Main requests an expert that no worker has: adds it to the goal, if the limit leaves room. */
void odw_puller_fetch(struct odw_puller *p, uint32_t m, uint32_t expert);

/* Handles a load that failed with code and err; begin_ns: when what failed began to be read. Absent: pulls the expert
 * at once if it is in the goal. Damaged on disk: treats it as absent and pulls the damaged chunks again, unless that
 * has been done since; after repeated damage the code is kept. Returns the code for main, err the reason; OD_ERR_BUSY:
 * the expert is being pulled, or has just been; ask again. */
int odw_puller_missed(struct odw_puller *p, uint32_t m, uint32_t expert, uint64_t begin_ns, int code,
		      struct od_err *err);

void odw_puller_figures(struct odw_puller *p, struct odw_pull_figures *f);

#endif
