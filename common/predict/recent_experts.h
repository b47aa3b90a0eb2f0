/* recent_experts.h - the experts that each text used last, layer by layer, as a predictor sees them, and by how much
 * main's cache prior (struct od_cache_prior) raises their scores.
 *
 * It knows nothing of drafts that were undone, nor of rows that the predictor was not shown; some rows later it is
 * right again. The range of scores is the mean of those that it was given.
 * Thread: the predictor's. Owner: the caller of new. */
#ifndef OD_PREDICT_RECENT_EXPERTS_H
#define OD_PREDICT_RECENT_EXPERTS_H

#include "common/base/status.h"
#include "common/model/config.h"

struct od_recent_experts;

/* config->prior.recent is above 0. config: borrowed. */
OD_MUST_CHECK int od_recent_experts_new(struct od_recent_experts **out, const struct od_config *config,
					size_t max_sequences, struct od_err *err);
void od_recent_experts_free(struct od_recent_experts *r); /* NULL ok */
void od_recent_experts_end(struct od_recent_experts *r, uint64_t sequence);

/* A row of MoE layer m has chosen expert [top_k], best first. */
void od_recent_experts_routed(struct od_recent_experts *r, uint64_t sequence, uint32_t m, const uint16_t *expert);
/* score [n_experts]: probabilities by a router of layer m for the next row. They become those with the prior, but for
 * a common factor. */
void od_recent_experts_raise(struct od_recent_experts *r, uint64_t sequence, uint32_t m, float *score);

#endif
