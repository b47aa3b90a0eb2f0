/* emulator_internal.h - what emulator.c (runs) and emulator_messages.c share. */
#ifndef ODS_EMULATOR_INTERNAL_H
#define ODS_EMULATOR_INTERNAL_H

#include "shadow-node/emulator.h"
#include "shadow-node/shadow_sequence.h"

#define ODS_IDLE_STEPS 64 /* without a word of it: a sequence's place may go to another */

struct row {
	struct ods_sequence *seq;
	uint32_t position;
	int32_t token;	     /* -1 in a STEP that waits: what we chose ourselves */
	uint32_t state_rows; /* of the first row: as STEP says */
	bool first, last;    /* of its sequence in this step */
	bool was_true;	     /* main's keys and values of this layer were here before our own attention */
};

struct step {
	uint64_t number, next; /* next: the number of the step after this one; 0: not known */
	size_t n_rows;
	struct row *rows; /* [max_rows] */
};

enum phase { NO_RUN, BEFORE_ATTENTION, BEFORE_EXPERTS, FINISHED };

struct ods_emulator {
	struct ods_emulator_opts o;
	struct ods_sink sink;
	struct od_state_pool *state; /* of all sequences */
	struct od_forward *forward;
	struct od_expert_runner *experts;
	struct ods_sequence sequence[ODS_MAX_SEQUENCES];
	uint64_t closed[ODS_MAX_SEQUENCES]; /* the last ones that are over; 0: none */
	size_t n_closed;
	uint64_t heard; /* STEPs, those that were dropped too */

	/* The run. */
	enum phase phase;
	struct step step;
	bool ahead;	/* no STEP has confirmed it yet */
	bool published; /* else it runs for its own rows or its token only */

	/* The newest STEP, while it waits for the run, for rows or for a token. */
	bool pending;
	struct step latest;
	uint64_t newest; /* number of the newest STEP ever */
	bool unaligned;	 /* some STEP left the token to us: then it is chosen before it is asked for */

	struct step spare; /* being made */
	struct od_row *od_rows; /* [max_rows] */
	struct od_buf *saved;	/* [max_rows], od_state_pool_most_bytes each: true rows during our own attention */
};

static inline bool ods_running(const struct ods_emulator *e)
{
	return e->phase == BEFORE_ATTENTION || e->phase == BEFORE_EXPERTS;
}

static inline void ods_swap_steps(struct step *a, struct step *b)
{
	struct step t = *a;

	*a = *b;
	*b = t;
}

/* The run is given up, or forgotten when it is through. */
void ods_abandon(struct ods_emulator *e);
/* The same, and the STEP that waits, after work that failed on the device. */
void ods_give_up(struct ods_emulator *e);

#endif
