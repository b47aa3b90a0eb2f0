/* recall.h - recall of predictions: predicted-and-used experts over used experts (OD-MoE section 3.2, Eq. 2 and 3), per
 * layer and per token index; late predictions are counted separately.
 *
 * Thread: its owner's. Owner: od_recall_init ... od_recall_fini by the caller. */
#ifndef OD_PREDICT_RECALL_H
#define OD_PREDICT_RECALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct od_recall_cell {
	uint64_t uses, recalled;
};

/* Rows of a layer: all, those predicted before the router chose, and those predicted after. The others have no
 * prediction. */
struct od_recall_rows {
	uint64_t seen, in_time, late;
};

struct od_recall {
	uint32_t n_moe, n_tokens;
	uint32_t tokens_seen; /* token indices from here on are empty */
	struct od_recall_cell all;
	struct od_recall_cell *layer; /* [n_moe] */
	struct od_recall_cell *token; /* [n_tokens]: by index of the generated token; later ones count in the last */
	struct od_recall_rows rows;
	struct od_recall_rows *layer_rows; /* [n_moe] */
};

/* n_moe, n_tokens: at least 1, else OD_ERR_RANGE. *r is empty unless OD_OK. */
OD_MUST_CHECK int od_recall_init(struct od_recall *r, uint32_t n_moe, uint32_t n_tokens, struct od_err *err);
void od_recall_fini(struct od_recall *r);
void od_recall_reset(struct od_recall *r);

/* The router of a layer (below n_moe) has routed a row, predicted or not. */
void od_recall_see(struct od_recall *r, uint32_t layer);
/* Counts a row's prediction. predicted and used list each expert once, in any order. */
void od_recall_add(struct od_recall *r, uint32_t layer, uint32_t token, const uint16_t *predicted, size_t n_predicted,
		   const uint16_t *used, size_t n_used, bool late);
/* od_recall_add in two steps, for a row that is counted later: the number of predicted and used experts, and the
 * counting. */
size_t od_recall_hits(const uint16_t *predicted, size_t n_predicted, const uint16_t *used, size_t n_used);
void od_recall_add_hits(struct od_recall *r, uint32_t layer, uint32_t token, size_t n_used, size_t hits, bool late);

/* Adds the counts of `from`; layers and token indices that `into` lacks go to its last ones. */
void od_recall_merge(struct od_recall *into, const struct od_recall *from);

static inline uint64_t od_recall_missing(const struct od_recall_rows *r)
{
	return r->seen > r->in_time + r->late ? r->seen - r->in_time - r->late : 0;
}

static inline double od_recall_rate(const struct od_recall_cell *c) /* 0..1; 0 without uses */
{
	return c->uses > 0 ? (double)c->recalled / (double)c->uses : 0;
}

#endif
