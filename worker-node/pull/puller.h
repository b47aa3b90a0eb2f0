/* puller.h - the thread that fills a worker's spool from main's store while the worker serves: pull_plan.h says what,
 * store_client.h gets it, every chunk is checked before it is written.
 *
 * Nothing here ends the process: a full disk, a store that is gone or is another model's is said in the log and in the
 * answer to whoever asks for an expert, and tried again.
 * Thread: a monitor, every function from any thread. Owner: start takes the spool and the store; the pack is borrowed
 * until stop. */
#ifndef ODW_PULLER_H
#define ODW_PULLER_H

#include "common/pack/spool/spool.h"
#include "worker-node/pull/store_client.h"

struct odw_puller;

struct odw_puller_opts {
	struct od_spool *spool;
	struct odw_store *store;
	const struct od_pack *pack;
	const char *dir;      /* of the spool, for messages */
	uint64_t limit_bytes; /* UINT64_MAX: none */
};

struct odw_pull_figures {
	uint64_t pulled_bytes, whole_bytes, goal_bytes;
	uint64_t changes; /* counts up with every expert that comes or goes */
};

/* Takes spool and store even when it fails. */
OD_MUST_CHECK int odw_puller_start(struct odw_puller **out, const struct odw_puller_opts *opts, struct od_err *err);
void odw_puller_stop(struct odw_puller *p); /* joins and frees; NULL ok */

/* Main says whose share this worker is to hold. */
void odw_puller_place(struct odw_puller *p, const struct od_share *share);
/* Main says that nobody has this expert: it joins what is to be held, if the limit leaves room. */
void odw_puller_fetch(struct odw_puller *p, uint32_t m, uint32_t expert);

/* A load failed with code and err. Absent: it is pulled at once, if it is to be held. Damaged on disk: it counts as absent,
 * and what is damaged is pulled again; only what is damaged time and again keeps its code. Returns the code that main is
 * told, err the reason; OD_ERR_BUSY: it is on its way, ask again. */
int odw_puller_missed(struct odw_puller *p, uint32_t m, uint32_t expert, int code, struct od_err *err);

void odw_puller_figures(struct odw_puller *p, struct odw_pull_figures *f);

#endif
