/* predictor.h - the interface of the predictors in main's process. od-main --predictor and od-bench recall drive them
 * with the same calls; od-bench has further ones for comparison (tests/bench/live/rivals.h).
 *
 *   begin_sequence -> [ begin_step -> routed(0) .. routed(n_moe - 1) ] x steps -> end_sequence
 *
 * A step has rows of several sequences, each of which has begun. Steps of prompts are passed too (prompt true), so that
 * counts and histories include them; they need no predictions. A prompt step and another step may be open together:
 * whole decode steps may run between the layers of a prompt step. A step may end early (an error, a cancellation): the
 * next begin_step of its kind discards it. A predictor keeps its learned state when sequences end. It is deterministic
 * and allocates nothing after its creation.
 * Predictions leave through emit, at any time between begin_step and the routed() of their layer; a later one for the
 * same (row, m) replaces an earlier one. A predictor without data for a row emits nothing.
 * Thread: one at a time (main's engine thread). Owner: od_predictor_free by whoever made it; the weights, the
 * configuration and the pool are borrowed. */
#ifndef OD_PREDICT_PREDICTOR_H
#define OD_PREDICT_PREDICTOR_H

#include <stdbool.h>

#include "common/base/status.h"
#include "common/model/weights.h"
#include "common/predict/prediction.h"

/* One row of a step right after its router. */
struct od_routed_row {
	const float *residual; /* [hidden]: input of the next layer without the experts' outputs */
	const float *probability; /* [n_experts]: the router's (OD_OP_ROUTE) */
	const uint16_t *expert; /* [top_k], best first */
};

struct od_predict_row {
	uint64_t sequence;
	uint32_t position;
	int32_t token;
	bool quiet; /* needs no prediction; may change from call to call */
};

struct od_predict_step {
	uint64_t step;
	bool prompt;
	size_t n_rows;
	/* [n_rows], rows of one sequence adjacent, in order of position, without gaps; borrowed until the step's last
	 * routed(). */
	const struct od_predict_row *row;
};

struct od_predictor {
	/* Any of these but free may be NULL. */
	void (*begin_sequence)(struct od_predictor *p, uint64_t sequence);
	void (*begin_step)(struct od_predictor *p, const struct od_predict_step *s);
	void (*routed)(struct od_predictor *p, const struct od_predict_step *s, uint32_t m,
		       const struct od_routed_row *rows);
	void (*end_sequence)(struct od_predictor *p, uint64_t sequence);
	void (*free)(struct od_predictor *p);
};

struct od_predictor_opts {
	const struct od_config *config;
	const struct od_dense *dense; /* for predictors that run routers ahead of their layer */
	struct od_device *device; /* holds dense; its compute queue is the predictor's during a call */
	enum od_profile profile;
	size_t max_rows; /* most rows of a step */
	size_t max_sequences; /* open at a time; at least 1 */
	void (*emit)(void *arg, const struct od_prediction *p);
	void *arg;
};

/* *out is NULL unless OD_OK. */
typedef int od_predictor_make_fn(struct od_predictor **out, const struct od_predictor_opts *opts, struct od_err *err);

struct od_predictor_kind {
	const char *name;
	od_predictor_make_fn *make;
};
#define OD_PREDICTOR_NAMES "next-gate", "trajectory"
#define OD_N_PREDICTORS 2
#define OD_NEXT_GATE 0 /* its index among them */
extern const struct od_predictor_kind od_predictor_kinds[OD_N_PREDICTORS]; /* in the order of OD_PREDICTOR_NAMES */

static inline void od_predictor_begin_sequence(struct od_predictor *p, uint64_t sequence)
{
	if (p->begin_sequence != NULL)
		p->begin_sequence(p, sequence);
}

static inline void od_predictor_begin_step(struct od_predictor *p, const struct od_predict_step *s)
{
	if (p->begin_step != NULL)
		p->begin_step(p, s);
}

/* s: as in its begin_step, except `quiet`. rows [s->n_rows]. */
static inline void od_predictor_routed(struct od_predictor *p, const struct od_predict_step *s, uint32_t m,
				       const struct od_routed_row *rows)
{
	if (p->routed != NULL)
		p->routed(p, s, m, rows);
}

static inline void od_predictor_end_sequence(struct od_predictor *p, uint64_t sequence)
{
	if (p->end_sequence != NULL)
		p->end_sequence(p, sequence);
}

static inline void od_predictor_free(struct od_predictor *p) /* NULL ok */
{
	if (p != NULL)
		p->free(p);
}

#endif
