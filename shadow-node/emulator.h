/* emulator.h - scaled emulative prediction (OD-MoE arXiv 2512.03927, sections 2.3 and 3.2): the quantised model runs
 * main's decode steps ahead of main, and what its routers choose is the prediction.
 *
 * A run emulates one step. It waits before a layer until the keys and values of earlier positions are what they
 * should be (align_apply.h). With early departure the shadow goes on with its own token for one step ("run-ahead
 * credit"); the next STEP confirms that run, or it is abandoned. A step that was overtaken is abandoned when its
 * true rows come from main anyway, else finished without being published, for its rows or its token.
 *
 * What the shadow never computed (prompts, or all there was before a restart) it asks for: keys and values, or, when
 * main's never come (SEQ_OPEN), the tokens, from which it computes them in pieces and unpublished. Until that is there
 * it predicts nothing. A STEP without a token goes on with the shadow's own; one that has none, or lags far behind,
 * asks for main's. Nothing here can change a token of main's.
 *
 * One emulator serves one session with main. Pure of sockets and clocks: messages go in, work is done piece by
 * piece, predictions and requests come out through struct ods_sink.
 * Thread: its owner's, which also has the device's compute queue. Owner: ods_emulator_new's caller; all memory is taken
 * there. */
#ifndef ODS_EMULATOR_H
#define ODS_EMULATOR_H

#include "common/base/counters.h"
#include "common/model/forward.h"
#include "common/net/wire.h"
#include "common/predict/prediction.h"
#include "shadow-node/shadow_sequence.h"

#define ODS_MAX_SEQUENCES 4
#define ODS_MAX_STEP_ROWS 256	   /* of decode; prompts never come as steps */
#define ODS_MAX_FILL_ROWS 32	   /* computed from tokens at a time: messages wait for one layer of them at most */
#define ODS_MAX_CATCH_UP 8u	   /* steps that it follows up for its own token; farther behind, it asks for main's */

/* Where the results go. */
struct ods_sink {
	void *arg;
	void (*predict)(void *arg, const struct od_prediction *p);
	void (*ask)(void *arg, uint64_t sequence, const struct ods_range *r);
	void (*ask_tokens)(void *arg, uint64_t sequence, uint32_t begin, uint32_t n);
};

struct ods_emulator_opts {
	struct od_forward_opts forward; /* state: NULL, it is made here; max_rows: ODS_MAX_STEP_ROWS at most */
	const struct od_expert *experts; /* [n_moe][n_experts], borrowed */
	uint32_t ctx_tokens;
	size_t max_sequences; /* at most ODS_MAX_SEQUENCES */
	bool early;	      /* departure */
	uint64_t *counters;   /* [OD_N_COUNTERS], the caller's: what is counted is added, by the emulator's thread */
};

struct ods_emulator;

/* Memory for the first sequence, for each further one; UINT64_MAX when it cannot be counted. */
uint64_t ods_emulator_bytes(const struct ods_emulator_opts *o);
uint64_t ods_emulator_sequence_bytes(const struct ods_emulator_opts *o);
OD_MUST_CHECK int ods_emulator_new(struct ods_emulator **out, const struct ods_emulator_opts *o,
				   const struct ods_sink *sink, struct od_err *err);
void ods_emulator_free(struct ods_emulator *e); /* NULL ok */

/* SEQ_OPEN, TOKENS, STEP, STATE, SEQ_TRUNCATE or SEQ_CLOSE of main. An error means that the message was dropped; err
 * says why. */
OD_MUST_CHECK int ods_emulator_message(struct ods_emulator *e, const struct od_msg *m, uint64_t now_ns,
				       struct od_err *err);

/* The next piece of work: the attention or the experts of one layer. *did is false when there is nothing to do
 * until a message comes or ods_emulator_deadline passes. An error costs the step its predictions; it may be of work that
 * was queued before, so none of the rows is trusted any more, and what the next STEP needs is asked for. */
OD_MUST_CHECK int ods_emulator_work(struct ods_emulator *e, uint64_t now_ns, bool *did, struct od_err *err);
uint64_t ods_emulator_deadline(const struct ods_emulator *e);

#endif
