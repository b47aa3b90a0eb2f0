/* layer_pieces.h - one MoE layer's work, cut into pieces: some rows of one expert on one worker. What a RUN asks for and a
 * RESULT answers.
 *
 * An expert is dealt to a worker (placement.h) and is one piece, unless the layer has more rows than a RUN may have: then rows
 * are cut into batches of so many, and a piece is an expert's rows of one batch.
 * Thread: the engine thread. Owner: the cluster service. */
#ifndef ODM_LAYER_PIECES_H
#define ODM_LAYER_PIECES_H

#include "common/model/forward.h"
#include "main-node/cluster/placement.h"

struct odm_piece {
	uint16_t expert;
	uint32_t first, count; /* in order[]: (row, rank) pairs of this expert */
	uint32_t worker;       /* index in the view */
	uint32_t batch;
	uint32_t attempts;     /* that failed */
	uint64_t request;      /* of the RUN it went out with, */
	uint64_t run_bytes;    /* and the rows of that */
	enum { ODM_PIECE_TODO, ODM_PIECE_SENT, ODM_PIECE_DONE } state;
	bool last; /* of this expert on its worker */
	/* Of workers with spools. */
	bool coming;  /* one that was asked in this round is pulling the expert, */
	bool missing; /* one lacks it */
	bool resting; /* not sent before the next round: all have been asked */
	bool fetch;   /* nobody has it: who is asked shall pull it, whosever share it is */
};

struct odm_pieces {
	uint32_t n_experts, top_k;
	struct odm_piece *piece;
	size_t n, n_done;
	uint32_t *order;  /* [max_rows * top_k]: row * top_k + rank, grouped by expert, rows in order */
	uint16_t *chosen; /* [n_chosen]: the layer's experts, by id */
	size_t n_chosen;
	/* Scratch. */
	uint32_t *end;	   /* [n_experts]: behind an expert's pairs */
	uint32_t *next;	   /* [n_experts], by place in chosen: its first pair that is not cut yet */
	uint32_t *place;   /* [n_experts], by place in chosen */
	uint32_t *scratch; /* odm_deal's */
};

OD_MUST_CHECK int odm_pieces_init(struct odm_pieces *p, const struct od_config *cfg, size_t max_rows, size_t max_workers,
				  struct od_err *err);
void odm_pieces_fini(struct odm_pieces *p);

/* keep as for odm_deal: where a prediction already sent an expert. max_rows: of a RUN, at least 1. */
void odm_pieces_cut(struct odm_pieces *p, const struct od_moe_call *call, const struct odm_groups *g,
		    uint32_t (*keep)(void *arg, uint16_t expert), void *arg, uint32_t max_rows);

/* The worker's next pieces that are to do and go into one RUN, in order, at most max. *more: others are left. */
size_t odm_pieces_next(struct odm_pieces *p, uint32_t worker, size_t max, struct odm_piece **out, bool *more);
/* The sent piece that an expert of a RESULT answers; NULL: none (any more). */
struct odm_piece *odm_pieces_find(struct odm_pieces *p, uint64_t request, uint32_t expert);
bool odm_pieces_open(const struct odm_pieces *p, uint64_t request); /* a piece of it is unanswered */
bool odm_pieces_owed(const struct odm_pieces *p, uint32_t worker);  /* this worker was sent one and has not answered it */
uint32_t odm_pieces_most_rows(const struct odm_pieces *p, uint32_t worker); /* of such a piece */

#endif
