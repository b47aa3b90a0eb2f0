/* batch.h - who is in the next step: admission, decode steps of all running texts, prompts beside them (core.md, section 6).
 *
 * Texts are admitted in order of arrival, when there is a place and pages of state for all positions that they may have; those
 * that begin alike share pages. A decode step has rows of all texts that are being written. Prompts go through the layers in
 * chunks of rows, of one or several texts; while texts are being written, a chunk pauses between layers for their steps:
 * what runs between two decode steps takes about twice as long as one of them at most.
 * Thread: the engine thread. Owner: the engine. */
#ifndef ODM_BATCH_H
#define ODM_BATCH_H

#include "main-node/engine/pass.h"

struct odm_batch {
	struct odm_pass prefill, decode;
	struct odm_sequence *first, **last; /* all that are not done, in order of arrival */
	uint32_t n_admitted, max_sequences;
	uint64_t next_decode; /* number of the next decode step */
	size_t chunk_rows;    /* of the next chunk beside decode steps at most; fewer when a layer of the last one took long */
	uint64_t decode_ns;   /* how long decode steps take: a mean that forgets */
	uint64_t layer_ns;    /* the longest layer of the chunk under way */
	/* Scratch, [max_sequences]. */
	struct odm_sequence **sampled;
	uint32_t *row;
};

/* Memory of both passes. */
uint64_t odm_batch_bytes(const struct od_forward_opts *o, uint32_t max_sequences);
/* o: max_rows are a chunk's. */
OD_MUST_CHECK int odm_batch_init(struct odm_batch *b, struct odm_engine *e, const struct od_forward_opts *o,
				 uint32_t max_sequences, struct od_err *err);
void odm_batch_fini(struct odm_batch *b);

#endif
