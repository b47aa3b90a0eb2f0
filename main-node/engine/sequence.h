/* sequence.h - one text: its prompt, its state, how its tokens are chosen and shown, what it cost.
 *
 *   waiting -> prefill -> decode -> done; from each of them to done when it fails or is cancelled
 *
 * Thread: the engine thread, but for odm_sequence_cancel. Owner: who submitted it, until odm_sequence_take; its request's memory
 * is borrowed until it is done. */
#ifndef ODM_SEQUENCE_H
#define ODM_SEQUENCE_H

#include <stdatomic.h>

#include "common/base/strbuf.h"
#include "common/text/stopper.h"
#include "main-node/engine/engine.h"

enum odm_sequence_phase { ODM_WAITING, ODM_IN_PREFILL, ODM_IN_DECODE, ODM_DONE };

struct odm_sequence {
	struct odm_engine *engine;
	const struct od_config *config;
	struct odm_request req;
	enum odm_sequence_phase phase;
	atomic_bool cancelled;
	uint64_t id; /* 0 while it waits */
	bool alone;  /* no other has been admitted while it was */
	struct od_seq_state *state;
	uint64_t shared_sequence; /* its state begins with pages of that one */
	uint32_t shared_tokens;
	struct od_sampler *sampler;
	struct od_detok *detok;
	struct od_stopper *stopper;
	struct od_strbuf shown; /* the text of the tokens, without what is held back */
	size_t room;   /* tokens that may come at most */
	int32_t *text; /* [n_prompt + room]: prompt and tokens */
	size_t n_text;
	uint64_t submitted_ns, first_ns;   /* of its first token, 0: none yet */
	uint64_t own[OD_N_COUNTERS]; /* what belongs to no step */
	struct odm_result r;
	bool ended; /* there will be no further token; it finishes when its rows are through */
	struct od_err err; /* why it failed; code OD_OK: it did not */
	/* Of the decode step under way. */
	int32_t row[ODM_MAX_DRAFT + 1];
	size_t n_rows;
	uint32_t kept;
	struct odm_sequence *next; /* in order of arrival */
};

/* Refuses what no engine could write. ctx: tokens of its context. */
OD_MUST_CHECK int odm_sequence_new(struct odm_sequence **out, struct odm_engine *e, const struct odm_request *req,
				   struct od_err *err);
void odm_sequence_free(struct odm_sequence *q); /* NULL ok */

/* Positions that its rows will have at most. */
uint32_t odm_sequence_positions(const struct odm_sequence *q);
/* The last token, and a draft of what follows, into row and n_rows: at most max of them. */
void odm_sequence_next_rows(struct odm_sequence *q, size_t max);
/* Chooses the next token by logits [vocab] of this position, which are overwritten, and shows it; or ends the text, well or
 * with an error. */
void odm_sequence_sample(struct odm_sequence *q, uint32_t position, float *logits);
/* There will be no further token: err NULL: as r.finish says, else for this reason. */
void odm_sequence_end(struct odm_sequence *q, const struct od_err *err);
/* One that has ended is done. The rest of its text is shown, and its state freed. */
void odm_sequence_finish(struct odm_sequence *q);

#endif
