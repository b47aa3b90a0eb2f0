/* recall_tape.h - the predictions of one prompt's decode steps in the form of the cluster simulation (served_trace.h):
 * the shadow's predictions for main's token, and its earlier ones for a guessed token.
 *
 * Thread: its owner's. Owner: recall_tape_init ... recall_tape_fini by the caller. */
#ifndef OD_BENCH_RECALL_TAPE_H
#define OD_BENCH_RECALL_TAPE_H

#include "tests/bench/live/recall_record.h"
#include "tests/bench/sim/served_trace.h"

struct recall_tape {
	uint32_t n_moe, max_steps;
	int32_t *guess; /* [max_steps]; -1: none */
	struct odp_view *shadow; /* [max_steps][n_moe]; all as in struct served_trace */
	struct odp_view *ahead; /* [max_steps][n_moe] */
};

OD_MUST_CHECK int recall_tape_init(struct recall_tape *t, uint32_t n_moe, uint32_t max_steps, struct od_err *err);
void recall_tape_fini(struct recall_tape *t); /* all zero is fine */
uint64_t recall_tape_bytes(uint32_t n_moe, uint32_t max_steps);

void recall_tape_clear(struct recall_tape *t); /* another prompt follows */
/* step, p->m: in range. token: main's in that step. early: the step has not begun. */
void recall_tape_add(struct recall_tape *t, uint32_t step, const struct od_prediction *p, int32_t token, bool early);
/* A step begins whose token the shadow chooses: any guess of it is right. */
void recall_tape_any(struct recall_tape *t, uint32_t step, int32_t token);

/* Pointers into recording and tape. */
struct served_trace recall_tape_trace(const struct recall_tape *t, const struct recall_recording *rec,
				      const struct od_config *cfg);

#endif
