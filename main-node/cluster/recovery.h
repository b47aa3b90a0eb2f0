/* recovery.h - what becomes of a layer's pieces when a worker dies, does not answer, or cannot run one: asked again, moved to
 * another worker, or set aside until one joins. Main keeps the rows until every output is there, so the tokens do not change.
 *
 * Thread: the engine thread. Owner: the cluster service. */
#ifndef ODM_RECOVERY_H
#define ODM_RECOVERY_H

#include "main-node/cluster/cluster_view.h"
#include "main-node/cluster/layer_pieces.h"

struct odm_recovery {
	struct odm_links *net;	 /* borrowed, as are the next two */
	struct odm_pieces *work;
	const struct od_moe_call *call; /* the layer under way */
	uint64_t *counters;	 /* [OD_N_COUNTERS] of the sequence */
	/* A RUN of this sent piece alone, to the same worker and under the same number. */
	int (*send_again)(void *arg, struct odm_piece *p);
	void *arg;
	uint64_t expert_weights; /* of one */
	unsigned busy_rounds; /* of probes, while BUSY was said now and then and nothing got on */
	unsigned busy_lasts;  /* rounds for which the last BUSY counts */
	struct od_err busy;   /* who said so, and of what */
	size_t done_before;
	uint64_t pulled_bytes; /* by all workers, as they said in the last round */
	uint64_t round_ns;    /* when data sockets are probed next */
	uint64_t rest_ns;     /* when resting pieces may be sent again; 0: none rests */
	uint64_t unserved_ns; /* until when pieces of ODM_NOBODY wait for a worker to join; 0: there are none */
	struct od_err unserved; /* what the last worker that could not run one said, or why none was left to ask */
};

/* A layer begins. */
void odm_recovery_begin(struct odm_recovery *r, const struct od_moe_call *call, uint64_t *counters);
/* A worker answered that it cannot run this piece, or so that its answer is of no use. */
void odm_recovery_failed(struct odm_recovery *r, struct odm_piece *p, const Od__ExpertResult *x);

/* RUNs went to this worker; it answered one of these pieces (ran: not with an error); it answered a probe (ATTACHED). Whatever comes from it, the caller
 * sets unanswered to 0. */
void odm_recovery_sent(struct odm_recovery *r, uint32_t worker, struct odm_piece **piece, size_t n);
void odm_recovery_answered(struct odm_recovery *r, uint32_t worker, bool ran);
void odm_recovery_attached(struct odm_recovery *r, uint32_t worker);

/* Of each turn of waiting: pieces that rested long enough may be sent; all data sockets are probed, every 250 ms, those that
 * never answer are distrusted, and RUNs that were lost on the way are sent again; what dead workers owe goes to others; what was
 * set aside goes on when a worker joins. Errors end the step: OD_ERR_TIMEOUT, workers said BUSY for three minutes and nothing got
 * on; or nobody is left. */
void odm_recovery_end_rests(struct odm_recovery *r);
OD_MUST_CHECK int odm_recovery_probe(struct odm_recovery *r, struct od_err *err);
void odm_recovery_move(struct odm_recovery *r);
OD_MUST_CHECK int odm_recovery_serve(struct odm_recovery *r, struct od_err *err);
/* How long the next turn can wait. */
int odm_recovery_timeout_ms(const struct odm_recovery *r);

#endif
