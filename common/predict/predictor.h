/* predictor.h - one interface for everything in main's own process that says which experts come next: the rivals of the
 * shadow node, and what corrects it. Live (od-main --predictor) and in od-bench recall they are driven by the same calls.
 *
 *   begin_sequence -> [ begin_step -> routed(0) .. routed(n_layers - 1) ] x steps -> end_sequence
 *
 * Steps of a prompt are told too (prompt true), so that counts and histories see them; no prediction is asked of them.
 * Predictions come out through emit, at any time between begin_step and the routed() of the layer they are about; a later
 * one for the same (row, m) replaces an earlier one.
 * Thread: one at a time (main's engine thread). Owner: od_predictor_free by whoever made it; the weights and the
 * configuration are borrowed. */
#ifndef OD_PREDICT_PREDICTOR_H
#define OD_PREDICT_PREDICTOR_H

#include <stdbool.h>

#include "common/model/weights.h"
#include "common/predict/prediction.h"

/* One row of a step at the moment its router has spoken. */
struct od_routed_row {
	const float *residual;	  /* [hidden]: what goes on to the next layer but for the experts' outputs */
	const float *probability; /* [n_experts]: softmax of the router's logits */
	const uint16_t *expert;	  /* [top_k], best first */
};

struct od_predict_step {
	uint64_t step, sequence;
	bool prompt;
	size_t n_rows;
	uint32_t position;    /* of the first row; the others follow */
	const int32_t *token; /* [n_rows] */
};

struct od_predictor {
	/* Any of these may be NULL. */
	void (*begin_sequence)(struct od_predictor *p, uint64_t sequence);
	void (*begin_step)(struct od_predictor *p, const struct od_predict_step *s);
	void (*routed)(struct od_predictor *p, uint32_t m, const struct od_routed_row *rows, size_t n_rows);
	void (*end_sequence)(struct od_predictor *p, uint64_t sequence);
	void (*free)(struct od_predictor *p);
};

struct od_predictor_opts {
	const struct od_config *config;
	const struct od_dense *dense;	  /* for those that run routers ahead of their layer */
	const struct od_backend *backend;
	size_t max_rows;		  /* of a step */
	void (*emit)(void *arg, const struct od_prediction *p);
	void *arg;
};

#endif
