/* recovery.h - recovers the pieces of layers under way when a worker dies, does not answer, or cannot run one: sends
 * them again, moves them to another worker, or holds them until one joins. Main keeps the rows until every output has
 * arrived, so tokens do not change.
 *
 * Thread: the engine thread. Owner: the cluster service. */
#ifndef ODM_RECOVERY_H
#define ODM_RECOVERY_H

#include "main-node/cluster/cluster_view.h"
#include "main-node/cluster/layer_pieces.h"

struct odm_recovery {
	struct odm_links *net; /* borrowed, as are the next two */
	struct odm_pieces *work; /* [ODM_HALVES]: layers under way */
	const struct odm_step *step; /* their step */
	/* Sends this piece again as a RUN of its own, to the same worker with the same request number. */
	int (*send_again)(void *arg, struct odm_piece *p);
	void *arg;
	size_t hidden;
	uint64_t expert_weights; /* weights of one expert */
	unsigned busy_rounds; /* probe rounds with BUSY answers and no progress */
	uint64_t pull_rounds; /* as busy_rounds, but that workers say that they pull experts is no progress */
	unsigned busy_lasts; /* rounds for which the last BUSY counts */
	struct od_err busy; /* the last BUSY: worker and reason */
	size_t done_before;
	uint64_t pulled_bytes; /* by all workers, as of the last round */
	uint64_t round_ns; /* time of the next probe round */
	uint64_t looked_ns; /* last look for late workers */
	uint64_t rest_ns; /* when resting pieces may be sent again; 0: none rests */
	/* deadline for a worker to join that serves the pieces of ODM_NOBODY; 0: no such pieces */
	uint64_t unserved_ns;
	/* the error of the last worker that could not run one, or why no worker was left to ask */
	struct od_err unserved;
};

/* A layer of the step begins, while no other one is under way. */
void odm_recovery_begin(struct odm_recovery *r, const struct odm_step *step);
/* A worker answered this piece with an error or with an unusable answer. */
void odm_recovery_failed(struct odm_recovery *r, struct odm_piece *p, const Od__ExpertResult *x);

/* sent: RUNs with these pieces were sent to the worker. answered: it answered pieces, and these are settled (ran: not
 * all with an error). attached: it answered a probe (ATTACHED). For every message of a worker the caller sets
 * unanswered to 0. */
void odm_recovery_sent(struct odm_recovery *r, uint32_t worker, struct odm_piece **piece, size_t n);
void odm_recovery_answered(struct odm_recovery *r, uint32_t worker, bool ran);
void odm_recovery_attached(struct odm_recovery *r, uint32_t worker);

/* worker answers this piece: the one that was asked, or one that is late and still the first. Then the rows of the
 * other's RUN no longer count as in flight when nothing of it is open, since its answer will not be looked at. */
void odm_recovery_first(struct odm_recovery *r, struct odm_piece *p, uint32_t worker);

/* To be called in each round of waiting. end_rests: makes pieces sendable that have rested long enough. probe: every
 * 250 ms probes all data sockets, distrusts workers that never answer, and sends lost RUNs again. move: gives pieces of
 * dead workers to others. overtake: asks others for what a late worker owes, and takes the answer that comes first.
 * serve: continues held pieces when a worker joins; if none does, drafts end before the rows that need these pieces
 * (odm_step.valid). An error ends the step: OD_ERR_TIMEOUT (only BUSY answers and no progress for three minutes, or no
 * answer for longer than pulling takes at 1 Mbit/s), or no worker is left for a row that is no draft. */
void odm_recovery_end_rests(struct odm_recovery *r);
OD_MUST_CHECK int odm_recovery_probe(struct odm_recovery *r, struct od_err *err);
void odm_recovery_move(struct odm_recovery *r);
void odm_recovery_overtake(struct odm_recovery *r);
OD_MUST_CHECK int odm_recovery_serve(struct odm_recovery *r, struct od_err *err);
/* How long the next round may wait. */
int odm_recovery_timeout_ms(const struct odm_recovery *r);

#endif
