/* emulator_internal.h - what emulator.c (runs) and emulator_messages.c share. */
#ifndef ODS_EMULATOR_INTERNAL_H
#define ODS_EMULATOR_INTERNAL_H

#include "shadow-node/emulator.h"
#include "shadow-node/shadow_sequence.h"

#define ODS_IDLE_STEPS 64 /* without a word of it: a sequence's place may go to another */

struct row {
	struct ods_sequence *seq; /* NULL: it is over */
	uint32_t position;
	int32_t token;
	bool published; /* else it runs for its own rows or its token only */
	bool is_void;	/* neither published nor chosen from, and its own rows are not believed */
	bool was_true;	/* main's keys and values of this layer were here before our own attention */
};

/* What a STEP has of one sequence. */
struct part {
	struct ods_sequence *seq; /* NULL: it finds no place */
	size_t first, n; /* rows of the message */
};

enum phase { NO_RUN, BEFORE_ATTENTION, BEFORE_EXPERTS, FINISHED };

struct ods_emulator {
	struct ods_emulator_opts o;
	struct ods_sink sink;
	struct od_state_pool *state; /* of all sequences */
	struct od_forward *forward;
	struct od_expert_runner *experts;
	struct ods_sequence **sequence; /* [max_sequences]; n_sequences, in order of their ids */
	size_t n_sequences;
	uint64_t *closed; /* [max_sequences]: the last ones that are over; 0: none */
	size_t n_closed;
	uint64_t heard;	   /* STEPs, those that were dropped too */
	uint64_t newest;   /* number of the newest STEP ever */
	uint32_t streamed; /* the newest STATE of that STEP was of this layer: what comes is of this one or later ones */
	bool turned_away;  /* some sequence found no place */
	bool unaligned;	   /* some STEP left the token to us: then it is chosen before it is asked for */

	/* The run. Rows of one sequence stand together; void ones behind the others. */
	enum phase phase;
	uint64_t n_runs;
	unsigned n_published; /* of them, since the last one that was not */
	struct row *rows; /* [max_rows] */
	size_t n_rows, n_live; /* live: not void */
	bool waits; /* some row must not visit the layer yet */

	struct row *spare; /* [max_rows]: being planned */
	size_t n_spare;
	struct part *parts;	/* [max_rows] */
	struct od_row *od_rows; /* [max_rows] */
	uint32_t *pick;		/* [max_rows] */
	struct od_buf *saved;	/* [max_rows], od_state_pool_most_bytes each: true rows during our own attention */
	struct od_prediction *prediction; /* [max_rows] */
	uint16_t *expert;	/* [max_rows][OD_MAX_CANDIDATES] */
	float *probability;	/* the same */
};

static inline bool ods_running(const struct ods_emulator *e)
{
	return e->phase == BEFORE_ATTENTION || e->phase == BEFORE_EXPERTS;
}

/* Does the run, or the one that is through, have a row of it that is not void? */
static inline bool ods_in_run(const struct ods_emulator *e, const struct ods_sequence *q)
{
	return q->run_n > 0 && !e->rows[q->run_first].is_void;
}

/* The position behind the newest STEP of it has been run, or is being so, with our own token. */
static inline bool ods_is_ahead(const struct ods_sequence *q)
{
	return q->next > q->stepped;
}

/* Its rows of the run from position on. */
void ods_void_rows(struct ods_emulator *e, struct ods_sequence *q, uint32_t position);
/* The same, and nothing is known of rows from there on. */
void ods_drop_rows(struct ods_emulator *e, struct ods_sequence *q, uint32_t position);
/* What was run ahead was not main's next step. */
void ods_take_back_guess(struct ods_emulator *e, struct ods_sequence *q);
/* The run, and all that waits for one, after work that failed on the device. */
void ods_give_up(struct ods_emulator *e);
/* Of a sequence that is none of e->sequence any more. */
void ods_release(struct ods_emulator *e, struct ods_sequence *q);

#endif
