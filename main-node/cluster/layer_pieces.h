/* layer_pieces.h - one MoE layer's work, cut into pieces: rows of one expert on one worker. RUNs request pieces,
 * RESULTs answer them.
 *
 * An expert is placed on a worker (placement.h) and is one piece. If the layer has more rows than a RUN should have,
 * the rows are split into batches of that size, and a piece is an expert's rows of one batch. Batches are sent one
 * after the other, each to all of its workers (batch_rows.h).
 * Thread: the engine thread. Owner: the cluster service. */
#ifndef ODM_LAYER_PIECES_H
#define ODM_LAYER_PIECES_H

#include "common/model/forward.h"
#include "main-node/cluster/placement.h"

struct odm_pieces;

struct odm_piece {
	struct odm_pieces *work; /* the layer's */
	uint16_t expert;
	uint32_t first, count; /* range of order[]: (row, rank) pairs of this expert */
	uint32_t worker; /* index in the view */
	uint32_t batch;
	uint32_t n_passed; /* positions in the order of workers that failed attempts are through with (recovery.c) */
	uint64_t request; /* number of its RUN */
	uint64_t sent_ns; /* when that was sent */
	uint64_t run_bytes; /* row bytes of its RUN */
	uint32_t late_worker; /* one that was asked before and is late: its answer counts if it comes first */
	uint64_t late_request; /* 0: none was */
	enum { ODM_PIECE_TODO, ODM_PIECE_SENT, ODM_PIECE_DONE } state;
	bool first_of; /* the first piece of this expert on its worker */
	bool last; /* and the last one, also of other rows of the step */
	/* For workers with spools. */
	bool coming; /* a worker asked in this round is pulling the expert */
	bool missing; /* a worker asked in this round lacks it */
	bool resting; /* all workers were asked: not sent before the next round */
	bool fetch; /* no worker has it: the next one asked must pull it, whichever share it belongs to */
};

#define ODM_HALVES 2 /* layers under way at most: one of either half of a step's rows */

struct odm_pieces {
	uint32_t n_experts, top_k;
	const struct od_moe_call *call; /* NULL: none is under way; n and n_done are 0 then */
	uint32_t first_rank; /* the first piece's, among all of the layer */
	struct odm_piece *piece;
	size_t n, n_done;
	uint32_t *order; /* [max_rows * top_k]: row * top_k + rank, grouped by expert, rows in order */
	uint16_t *chosen; /* [n_chosen]: the layer's experts, by id */
	uint32_t *rows; /* [n_chosen]: of each */
	size_t n_chosen;
	/* Scratch. */
	uint32_t *end; /* [n_experts]: end of an expert's pairs */
	uint32_t *next; /* [n_experts], by index in chosen: its first pair that is not cut yet */
	uint32_t *worker_of; /* [n_experts], by index in chosen: its worker */
	uint32_t *scratch; /* for odm_deal */
};

OD_MUST_CHECK int odm_pieces_init(struct odm_pieces *p, const struct od_config *cfg, size_t max_rows,
				  size_t max_workers, struct od_err *err);
void odm_pieces_fini(struct odm_pieces *p);

/* Finds the workers of a layer's experts. keep as for odm_deal: the worker to which a prediction already sent an
 * expert. */
void odm_pieces_deal(struct odm_pieces *p, const struct od_moe_call *call, const struct odm_groups *g,
		     uint32_t (*keep)(void *arg, uint16_t expert), void *arg);
/* Cuts the layer, after odm_pieces_deal. max_rows: limit of a RUN, at least 1. */
void odm_pieces_cut(struct odm_pieces *p, const struct od_moe_call *call, uint32_t max_rows);
/* Then: other rows of the step will need the layer's experts, too. */
void odm_pieces_keep(struct odm_pieces *p);
void odm_pieces_end(struct odm_pieces *p); /* the layer is through, or given up */

static inline bool odm_pieces_under_way(const struct odm_pieces *p)
{
	return p->n_done < p->n;
}
/* The worker's next unsent pieces for one RUN, in order, at most max. *more: others are left. */
size_t odm_pieces_next(struct odm_pieces *p, uint32_t worker, size_t max, struct odm_piece **out, bool *more);
/* The piece that an expert of this worker's RESULT answers; NULL: none, or answered already. */
struct odm_piece *odm_pieces_find(struct odm_pieces *p, uint32_t worker, uint64_t request, uint32_t expert);
bool odm_pieces_asked(const struct odm_pieces *p, uint64_t request); /* a RUN of this number had pieces of it */
bool odm_pieces_open(const struct odm_pieces *p, uint64_t request); /* the RUN has an unanswered piece */
bool odm_pieces_owed(const struct odm_pieces *p, uint32_t worker); /* the worker has an unanswered piece */
uint32_t odm_pieces_most_rows(const struct odm_pieces *p, uint32_t worker); /* rows of its largest unanswered piece */

#endif
