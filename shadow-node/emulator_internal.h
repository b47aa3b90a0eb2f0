/* emulator_internal.h - what emulator.c (runs), emulator_plan.c (what runs next) and emulator_messages.c share. */
#ifndef ODS_EMULATOR_INTERNAL_H
#define ODS_EMULATOR_INTERNAL_H

#include "shadow-node/emulator.h"
#include "shadow-node/saved_rows.h"
#include "shadow-node/shadow_sequence.h"

#define ODS_IDLE_STEPS 64 /* STEPs without a message about a sequence, after which another sequence may evict it */

struct row {
	struct ods_sequence *seq; /* NULL: the sequence has ended */
	uint32_t position;
	int32_t token;
	bool published; /* false: it runs only for its KV row or for the token that follows */
	bool is_void; /* not published, no token is sampled from it, its KV rows are not used */
	bool was_true; /* main's KV row of this layer arrived before the shadow's own attention */
};

/* The rows of one sequence in a STEP. */
struct emulator_part {
	struct ods_sequence *seq; /* NULL: there is no room for it */
	size_t first, n; /* rows of the message */
};

enum phase { NO_RUN, BEFORE_ATTENTION, BEFORE_EXPERTS, FINISHED };

struct ods_emulator {
	struct ods_emulator_opts o;
	struct ods_sink sink;
	struct od_state_pool *state; /* all sequences' state */
	struct od_forward *forward;
	struct od_expert_runner *experts;
	struct ods_sequence **sequence; /* [max_sequences]; the first n_sequences are used, sorted by id */
	size_t n_sequences;
	uint64_t *closed; /* [max_sequences]: ids of the sequences closed last (ring); 0: unused */
	size_t n_closed;
	uint64_t heard; /* STEPs received, dropped ones too */
	uint64_t newest; /* number of the newest STEP */
	uint32_t streamed; /* layer of the newest STATE of that STEP; the next ones are of this layer or later */
	bool turned_away; /* at least one sequence was refused for lack of room */
	/* a STEP left the token to the shadow: from then on tokens are sampled before they are needed */
	bool unaligned;

	/* The run. Rows of one sequence are adjacent; its void rows follow its live ones. */
	enum phase phase;
	uint64_t n_runs;
	bool chained; /* it is in the chain's layers */
	bool fixed; /* the model has layers with fixed state */
	unsigned n_published; /* published runs since the last unpublished one */
	struct row *rows; /* [max_rows] */
	size_t n_rows, n_live; /* live: not void */
	bool waits; /* some row is not ready for the next layer */
	uint64_t layer_begin_ns, layer_end_ns; /* the newest layer; end: when the next one may begin */
	bool paused; /* the newest layer has been computed, and the rest of its time is waited for */

	struct row *spare; /* [max_rows]: the run that is being planned */
	size_t n_spare;
	struct emulator_part *parts; /* [max_rows] */
	struct od_row *od_rows; /* [max_rows] */
	uint32_t *pick; /* [max_rows] */
	int32_t *token; /* [max_rows] */
	struct ods_chain_rows *chain_rows; /* [max_rows] */
	struct ods_saved saved; /* true rows, saved during the shadow's attention */
	struct od_prediction *prediction; /* [max_rows] */
	uint16_t *expert; /* [max_rows][OD_MAX_CANDIDATES] */
	float *probability; /* [max_rows][OD_MAX_CANDIDATES] */
};

static inline bool ods_running(const struct ods_emulator *e)
{
	return e->phase == BEFORE_ATTENTION || e->phase == BEFORE_EXPERTS;
}

/* The run, or the finished one, has a live row of the sequence. */
static inline bool ods_in_run(const struct ods_emulator *e, const struct ods_sequence *q)
{
	return q->run_n > 0 && !e->rows[q->run_first].is_void;
}

/* Rows after the sequence's newest STEP have run, or are running, with the shadow's own tokens. */
static inline bool ods_is_ahead(const struct ods_sequence *q)
{
	return q->next > q->stepped;
}

/* Ends the run, or releases the finished one. */
void ods_end_run(struct ods_emulator *e);
/* Voids the sequence's rows of the run from position on. */
void ods_void_rows(struct ods_emulator *e, struct ods_sequence *q, uint32_t position);
/* Also drops the sequence's KV rows from position on. */
void ods_drop_rows(struct ods_emulator *e, struct ods_sequence *q, uint32_t position);
/* Drops all rows that were run ahead: they are not main's next ones. */
void ods_take_back_guesses(struct ods_emulator *e, struct ods_sequence *q);
/* Drops the run and all rows that wait for one, after work on the device failed. */
void ods_give_up(struct ods_emulator *e);
/* Frees a sequence that was removed from e->sequence; one that the run still uses is freed after the run. */
void ods_release(struct ods_emulator *e, struct ods_sequence *q);

/* The run's layers, in this process or in the chain (emulator_layers.c). An error of the chain ends the run as one of
 * the device. */
int ods_layers_begin(struct ods_emulator *e, struct od_err *err);
uint32_t ods_layer(const struct ods_emulator *e); /* the cursor */
bool ods_layers_done(const struct ods_emulator *e);
/* Attention and router of a layer, all of a dense one; published: probabilities are wanted. Rows become the shadow's
 * own. */
int ods_layer_attention(struct ods_emulator *e, bool published, struct od_err *err);
bool ods_layer_routed(const struct ods_emulator *e); /* experts are next */
uint32_t ods_layer_m(const struct ods_emulator *e);
const float *ods_layer_probabilities(const struct ods_emulator *e, size_t row);
int ods_layer_experts(struct ods_emulator *e, struct od_err *err);
/* All layers are done: commits kept [n], rows of each sequence, unless NULL; afterwards logits can be computed. */
int ods_layers_end(struct ods_emulator *e, const uint32_t *kept, size_t n, struct od_err *err);
/* Writes main's rows of a layer, a frame for each stream, which must stay valid until a sync. */
int ods_layer_put(struct ods_emulator *e, const struct od_seq_state *seq, uint32_t layer, uint32_t begin, uint32_t n,
		  const struct od_out_frame *frames, size_t n_frames, struct od_err *err);

/* Samples the tokens that follow rows [n] of the finished run. */
OD_MUST_CHECK int ods_choose_tokens(struct ods_emulator *e, const uint32_t *row, size_t n, struct od_err *err);
/* Between two runs. Priority: rows of STEPs, then rows ahead, then prompts. After RUNS_PER_FILL published runs prompts
 * go first once, so that a busy shadow still fills missing rows. Does nothing when there is nothing to run. */
OD_MUST_CHECK int ods_choose_run(struct ods_emulator *e, struct od_err *err);
/* Requests the missing rows before those that wait. A sequence in the run has all its rows, so it requests only
 * tokens. */
void ods_ask(struct ods_emulator *e, uint64_t now_ns);

#endif
