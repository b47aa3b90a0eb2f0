/* recall_tape.h - the predictions of one prompt's decode steps as a simulation of the cluster wants them
 * (served_sim.h): what the shadow said of main's token, and what it had said before of a token that it
 * guessed.
 *
 * Thread: its owner's. Owner: recall_tape_init ... recall_tape_fini by the caller. */
#ifndef OD_BENCH_RECALL_TAPE_H
#define OD_BENCH_RECALL_TAPE_H

#include "tests/bench/live/recall_record.h"
#include "tests/bench/sim/served_sim.h"

struct recall_tape {
	uint32_t n_moe, max_steps;
	int32_t *guess;		    /* [max_steps]; -1: none */
	struct served_view *shadow; /* [max_steps][n_moe], as in struct served_trace, and so are the others */
	struct served_view *ahead;
};

OD_MUST_CHECK int recall_tape_init(struct recall_tape *t, uint32_t n_moe, uint32_t max_steps, struct od_err *err);
void recall_tape_fini(struct recall_tape *t); /* one that is all zero, too */
uint64_t recall_tape_bytes(uint32_t n_moe, uint32_t max_steps);

void recall_tape_clear(struct recall_tape *t); /* another prompt follows */
/* step, p->m: in range. token: main's in that step. early: the step has not begun. */
void recall_tape_add(struct recall_tape *t, uint32_t step, const struct od_prediction *p, int32_t token, bool early);
/* The token of a step that begins was left to the shadow: whatever it guessed is right. */
void recall_tape_any(struct recall_tape *t, uint32_t step, int32_t token);

/* Pointers into recording and tape. */
struct served_trace recall_tape_trace(const struct recall_tape *t, const struct recall_recording *rec,
				      const struct od_config *cfg);

#endif
