/* batch.h - continuous batching: admission, decode steps of all running texts, and chunked prefill between them.
 *
 * Texts are admitted in order of arrival, when fewer run than may and the pool can promise pages for all their
 * positions; texts with a common prefix share pages. A decode step has rows of all texts in decode: the last token of
 * each, and its draft. Prefill runs in chunks of rows of one or several texts. A chunk pauses between layers for decode
 * steps, so that the work between two decode steps takes at most about twice as long as a decode step.
 * Thread: the engine thread. Owner: the engine. */
#ifndef ODM_BATCH_H
#define ODM_BATCH_H

#include "main-node/engine/draft_policy.h"
#include "common/model/forward_open.h"
#include "main-node/engine/mask_ahead.h"
#include "main-node/engine/pass.h"

#define ODM_PREFILL_PER_DECODE 2 /* time of prompts between two decode steps, in decode steps */

struct odm_batch {
	struct odm_pass prefill, decode;
	struct odm_sequence *first, **last; /* all sequences that are not done, in order of arrival */
	uint32_t n_admitted, max_sequences;
	double written_tokens; /* moving average over ended texts */
	uint64_t next_decode; /* number of the next decode step */
	/* limit of the next prefill chunk beside decode; reduced when a layer of the last one was slow */
	size_t chunk_rows;
	uint64_t decode_ns; /* duration of decode steps: a moving average */
	uint64_t layer_ns; /* the slowest layer of the current chunk */
	struct odm_draft_policy policy;
	uint64_t steps_of[ODM_BATCH_BUCKETS], decode_texts; /* as in odm_report */
	double experts; /* experts that the rows of the decode step use, by its drafts */
	struct odm_mask_ahead *masks;
	/* Scratch. */
	struct odm_draft **draft; /* [max_sequences] */
	uint32_t *row; /* [max_sequences], or [max_logits] of either pass */
};

/* o->max_rows: of a prefill chunk. */
OD_MUST_CHECK int odm_batch_init(struct odm_batch *b, struct odm_engine *e, const struct od_forward_opts *o,
				 uint32_t max_sequences, struct od_err *err);
void odm_batch_fini(struct odm_batch *b);

/* Rows of the next chunk beside decode steps of decode_ns: a layer should take no longer than prompts may between two
 * of them. layer_ns: the slowest layer of a chunk of n_rows; 0: not known. */
size_t odm_chunk_rows(uint64_t decode_ns, uint64_t layer_ns, size_t n_rows, size_t max_rows);

/* The engine's, as odm_engine_submit and odm_engine_work. */
OD_MUST_CHECK int odm_batch_submit(struct odm_engine *e, const struct odm_request *req, struct odm_sequence **out,
				   struct od_err *err);
bool odm_batch_work(struct odm_engine *e);

#endif
