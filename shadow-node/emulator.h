/* emulator.h - scaled emulative prediction (OD-MoE arXiv 2512.03927, sections 2.3 and 3.2): the quantised model runs
 * main's decode steps ahead of main, and what its routers choose is the prediction.
 *
 * Each sequence has cursors of its own: how far main's STEPs have come, and how far the shadow has. A run is a batch of
 * rows of several sequences, layer by layer; it waits before a layer until the keys and values of earlier positions are
 * what they should be (align_apply.h), which are on their way. With early departure the shadow goes on with its own
 * token for one row of a sequence ("run-ahead credit"); the next STEP of that sequence confirms it, or the row is void. A
 * row that was overtaken is void when its true rows come from main anyway, else finished without being published, for
 * its rows or its token. Void rows cost nothing but time; a run that has no other is abandoned.
 *
 * What the shadow never computed (prompts, or all there was before a restart) it asks for: keys and values, or, when
 * main's never come (SEQ_OPEN), the tokens, from which it computes them in pieces and unpublished. Until that is there
 * the sequence sits out, and no other waits for it. A STEP without a token goes on with the shadow's own; one that has
 * none, or lags far behind, asks for main's. Nothing here can change a token of main's.
 *
 * One emulator serves one session with main. Pure of sockets and clocks: messages go in, work is done piece by
 * piece, predictions and requests come out through struct ods_sink.
 * Thread: its owner's, which also has the device's compute queue. Owner: ods_emulator_new's caller. Memory is taken there,
 * that of a sequence when it begins, pages of rows from a pool of all sequences as they grow. */
#ifndef ODS_EMULATOR_H
#define ODS_EMULATOR_H

#include "common/base/counters.h"
#include "common/model/forward.h"
#include "common/net/wire.h"
#include "common/predict/prediction.h"
#include "shadow-node/shadow_sequence.h"

#define ODS_MAX_SEQUENCES 1024
#define ODS_MAX_STEP_ROWS 256	   /* of decode; prompts never come as steps */
#define ODS_MAX_FILL_ROWS 32	   /* computed from tokens at a time: messages wait for one layer of them at most */
#define ODS_MAX_CATCH_UP 8u	   /* steps that it follows up for its own token; farther behind, it asks for main's */
#define ODS_MAX_LOGITS 32u	   /* rows whose tokens are chosen at a time: the vocabulary is long */
#define ODS_MAX_ASKED_AT_ONCE 8	   /* asked for and not answered for all sequences: the positions of so many of the longest ranges */

/* Where the results go. */
struct ods_sink {
	void *arg;
	/* All rows of a layer that are published, in the order of the run. Borrowed. */
	void (*predict)(void *arg, uint32_t m, const struct od_prediction *p, size_t n);
	void (*ask)(void *arg, uint64_t sequence, const struct ods_range *r);
	void (*ask_tokens)(void *arg, uint64_t sequence, uint32_t begin, uint32_t n);
};

struct ods_emulator_opts {
	struct od_forward_opts forward; /* state: NULL, it is made here; max_rows: ODS_MAX_STEP_ROWS at most */
	const struct od_expert *experts; /* [n_moe][n_experts], borrowed */
	uint32_t ctx_tokens;
	size_t max_sequences; /* 1 to ODS_MAX_SEQUENCES */
	uint32_t n_pages;     /* of rows, for all of them; those of one at least; 0: as many as they can have */
	bool early;	      /* departure */
	uint64_t *counters;   /* [OD_N_COUNTERS], the caller's: what is counted is added, by the emulator's thread */
};

struct ods_emulator;

/* Memory without sequences and their rows; for each sequence; for each page of rows. UINT64_MAX: it cannot be counted. */
uint64_t ods_emulator_bytes(const struct ods_emulator_opts *o);
uint64_t ods_emulator_sequence_bytes(const struct ods_emulator_opts *o);
uint64_t ods_emulator_page_bytes(const struct ods_emulator_opts *o);
OD_MUST_CHECK int ods_emulator_new(struct ods_emulator **out, const struct ods_emulator_opts *o,
				   const struct ods_sink *sink, struct od_err *err);
void ods_emulator_free(struct ods_emulator *e); /* NULL ok */

/* SEQ_OPEN, TOKENS, STEP, STATE, SEQ_TRUNCATE or SEQ_CLOSE of main. An error means that the message was dropped; err
 * says why. OD_ERR_BUSY: it is, or may be, about a sequence that sits out for want of memory, which the log has said. */
OD_MUST_CHECK int ods_emulator_message(struct ods_emulator *e, const struct od_msg *m, uint64_t now_ns,
				       struct od_err *err);

/* The next piece of work: the attention or the experts of one layer. *did is false when there is nothing to do
 * until a message comes or ods_emulator_deadline passes. An error costs the run its predictions; it may be of work that
 * was queued before, so none of the rows is trusted any more, and what the next STEP needs is asked for. */
OD_MUST_CHECK int ods_emulator_work(struct ods_emulator *e, uint64_t now_ns, bool *did, struct od_err *err);
uint64_t ods_emulator_deadline(const struct ods_emulator *e);

#endif
