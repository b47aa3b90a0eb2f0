/* chain.h - the layers of the shadow's model that other hosts hold (part.h), as the emulator uses them: a model that
 * does not fit one machine is split by layers over several. OD-MoE (arXiv 2512.03927) needs two 24 GB cards for an INT8
 * Mixtral.
 *
 * The first shadow has the emulator, the embeddings, the head, and all decisions. It sends a part the rows that the
 * layer before gave, asks for one layer after the other, and gets the router's probabilities; behind a part's last
 * layer it gets the rows for the next part, or for the head. KV pages and copies of fixed state have the same numbers
 * everywhere. Main's KV rows go through the first shadow, so that what a part is told comes in one order.
 * A call that needs an answer waits for it, as a layer that is computed here would be waited for. After an error the
 * chain is down: its parts know no rows any more, until ods_chain_up has connected again.
 * Thread: the emulator's. Owner: the caller. */
#ifndef ODS_CHAIN_H
#define ODS_CHAIN_H

#include "common/model/forward.h"
#include "common/net/keys.h"
#include "common/net/wire.h"

#define ODS_MAX_PARTS 16 /* besides the first shadow */

struct ods_chain;

struct ods_chain_opts {
	const struct od_config *config; /* with the first shadow's part */
	const struct od_keys *keys; /* NULL: none */
	/* Asked now and then while an answer is waited for. True: the wait ends with an error. */
	bool (*interrupted)(void *arg);
	void *arg;
};

/* Room for runs; at least 1 of each. */
struct ods_chain_room {
	size_t max_rows, max_sequences;
	uint32_t n_pages;
};

/* Connects to the parts, which must hold the layers behind the first shadow's, in order. A chain whose parts do not
 * answer yet is down, without an error. */
OD_MUST_CHECK int ods_chain_new(struct ods_chain **out, const struct ods_chain_opts *o, const Od__Parts *parts,
				struct od_err *err);
void ods_chain_free(struct ods_chain *c); /* NULL ok */

/* True: all parts are connected. If they are not, tries to connect from time to time; *fresh is then set when that
 * succeeds, and rows that parts had are lost. Waits 2 s at most. */
bool ods_chain_up(struct ods_chain *c, uint64_t now_ns, bool *fresh);
uint64_t ods_chain_deadline(const struct ods_chain *c); /* when the next try is due; UINT64_MAX: the chain is up */
/* When it is up: *room, what the first shadow has room for, becomes what all have. */
OD_MUST_CHECK int ods_chain_room(struct ods_chain *c, struct ods_chain_room *room, struct od_err *err);

/* ---- a run ---- */

/* A sequence's rows: those of its state from its length on. */
struct ods_chain_rows {
	const struct od_seq_state *seq;
	uint32_t n;
};

/* Rows of sequences [n], their tokens, and x [rows][hidden], what the first shadow's last layer gave. */
OD_MUST_CHECK int ods_chain_begin(struct ods_chain *c, uint64_t run, const struct ods_chain_rows *rows, size_t n,
				  const int32_t *token, const float *x, struct od_err *err);
uint32_t ods_chain_layer(const struct ods_chain *c); /* the cursor; n_layers when only the head is left */
/* The current layer: mixer and router, whose probabilities are wanted or not; all of a dense layer, with which the
 * cursor moves. Keys and values of rows keep [n_keep], ascending, stay. */
OD_MUST_CHECK int ods_chain_attention(struct ods_chain *c, bool probabilities, const uint32_t *keep, size_t n_keep,
				      struct od_err *err);
bool ods_chain_routed(const struct ods_chain *c); /* ods_chain_experts is next */
const float *ods_chain_probabilities_of(const struct ods_chain *c, size_t row); /* [n_experts], of the current layer */
void ods_chain_experts(struct ods_chain *c); /* the cursor moves; the part computes them meanwhile */
/* After all layers: rows [n_rows][hidden] for the head. */
OD_MUST_CHECK int ods_chain_output(struct ods_chain *c, const float **x, struct od_err *err);
/* Models with fixed state: kept [n] rows of each sequence, in the order of begin. */
OD_MUST_CHECK int ods_chain_commit(struct ods_chain *c, const uint32_t *kept, size_t n, struct od_err *err);

/* Main's rows of positions [begin, begin + n) in a layer that a part holds: a frame for each stream. */
OD_MUST_CHECK int ods_chain_put(struct ods_chain *c, const struct od_seq_state *seq, uint32_t layer, uint32_t begin,
				uint32_t n, const struct od_out_frame *frames, size_t n_frames, struct od_err *err);

#endif
