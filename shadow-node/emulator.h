/* emulator.h - scaled emulative prediction (OD-MoE arXiv 2512.03927, sections 2.3 and 3.2): a quantised model runs
 * main's decode steps ahead of main. The choices of its routers are the predictions.
 *
 * Each sequence has two cursors: the end of main's newest STEP, and the shadow's own progress. A run is a batch of rows
 * of several sequences, computed layer by layer. Before each layer it waits for the due KV rows of earlier positions
 * (align_apply.h). With early departure the shadow runs ahead of the STEP with its own tokens, as many rows as the STEP
 * allows, one a run. The sequence's next STEP confirms these rows up to the first one with another token and voids the
 * rest. If the STEP allows more than one, they are drafts for main to verify, and they do not wait for due KV rows
 * where the shadow has its own. A row that main has overtaken is void when main sends its true KV row; otherwise the
 * run finishes it unpublished, for its KV row or its token. Void rows cost only time; a run of void rows alone is
 * abandoned.
 *
 * The shadow requests from main what it has not computed (prompts, or everything before a restart): KV rows, or, when
 * main never sends KV rows (SEQ_OPEN), tokens, from which it computes the rows in pieces, unpublished. Until they are
 * there, this sequence pauses and the others go on. A STEP without a token continues with the shadow's own token; a
 * shadow that has no token, or lags far behind, requests main's. The emulator can never change main's output.
 *
 * One emulator serves one session with main. It uses no sockets and no clock: messages go in, ods_emulator_work does
 * one piece of work per call, and predictions and requests leave through struct ods_sink.
 * Thread: the owner's, which also owns the device's compute queue. Owner: ods_emulator_new's caller. ods_emulator_new
 * allocates; a sequence allocates when it begins and takes its pages of KV rows from a shared pool as it grows. */
#ifndef ODS_EMULATOR_H
#define ODS_EMULATOR_H

#include "common/base/counters.h"
#include "common/model/forward.h"
#include "common/model/forward_open.h"
#include "common/net/wire.h"
#include "common/predict/prediction.h"
#include "shadow-node/chain.h"
#include "shadow-node/shadow_sequence.h"

#define ODS_MAX_SEQUENCES 1024
#define ODS_BASE_BYTES (64u << 20) /* the program beside the emulator: libraries, messages on their way */
#define ODS_MAX_STEP_ROWS 256 /* limit of a decode step; prompts are never sent as steps */
#define ODS_MAX_FILL_ROWS 32 /* computed from tokens at a time; messages wait for at most one layer of these */
#define ODS_MAX_CATCH_UP 8u /* rows it recomputes to get its own token; if farther behind, it requests main's */
#define ODS_MAX_LOGITS 32u /* rows whose tokens are sampled at a time: one row of logits is large */
#define ODS_MAX_ASKED_AT_ONCE 8 /* bound on open requests of all sequences, in ranges of maximum length */

/* Receives the results. */
struct ods_sink {
	void *arg;
	/* p [n]: the predictions of all published rows of MoE layer m, in the order of the run. Borrowed. */
	void (*predict)(void *arg, uint32_t m, const struct od_prediction *p, size_t n);
	void (*ask)(void *arg, uint64_t sequence, const struct ods_range *r);
	void (*ask_tokens)(void *arg, uint64_t sequence, uint32_t begin, uint32_t n);
};

struct ods_emulator_opts {
	struct od_forward_opts forward; /* state: NULL (created here); max_rows: at most ODS_MAX_STEP_ROWS */
	const struct od_expert *experts; /* [n_moe][n_experts], borrowed */
	struct ods_chain *chain; /* the layers that this process does not hold; borrowed; NULL: it holds all */
	uint32_t ctx_tokens;
	size_t max_sequences; /* 1 to ODS_MAX_SEQUENCES */
	/* KV pages of all sequences together; a text that gets none is not predicted; 0: the maximum */
	uint32_t n_pages;
	bool early; /* early departure: run ahead with the shadow's own tokens, as far as STEPs allow */
	uint64_t layer_ns; /* a layer of a run takes at least as long, whatever its rows: emulates slower hardware */
	uint64_t *counters; /* [OD_N_COUNTERS], the caller's; the emulator's thread adds to them */
};

struct ods_emulator;

/* Adds its memory: without sequences and KV pages; of each sequence, as a copy; of each page. The state of o need not
 * be made yet, nor the weights loaded. */
void ods_emulator_split(const struct ods_emulator_opts *o, struct od_split *s);
OD_MUST_CHECK int ods_emulator_new(struct ods_emulator **out, const struct ods_emulator_opts *o,
				   const struct ods_sink *sink, struct od_err *err);
void ods_emulator_free(struct ods_emulator *e); /* NULL ok */

/* Does the next piece of work: the attention or the experts of one layer. *did is false when there is nothing to do
 * until a message arrives or ods_emulator_deadline passes. With layer_ns, nothing is done in the rest of a layer's
 * time, which follows its experts; its predictions are published before. On an error the run's predictions are lost.
 * The error may come from work queued earlier, so all KV rows are dropped, and the shadow requests those that the next
 * STEP needs. */
OD_MUST_CHECK int ods_emulator_work(struct ods_emulator *e, uint64_t now_ns, bool *did, struct od_err *err);
uint64_t ods_emulator_deadline(const struct ods_emulator *e);

#endif
