/* predictor_world.h - what the predictors' tests share: a model of norms, routers and embeddings only, on a device and
 * as the tests compute with it, rows of a step drawn at random, and everything that a predictor said. Thread: one.
 * Owner: pw_close frees all. */
#ifndef OD_TESTS_PREDICTOR_WORLD_H
#define OD_TESTS_PREDICTOR_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/predict/predictor.h"

#define PW_MAX_SAID 8192
#define PW_MAX_SEQUENCES 3

struct pw_said {
	struct od_prediction p; /* its pointers lead to here */
	size_t row; /* row of the step */
	uint16_t expert[OD_MAX_CANDIDATES];
	float probability[OD_MAX_CANDIDATES];
};

struct predictor_world {
	struct od_config cfg;
	struct od_device *device;
	struct od_buf *weights;
	uint64_t placed; /* bytes of them */
	struct od_dense dense;
	/* Copies on the host. */
	float *embed; /* [vocab][hidden] */
	size_t n_read; /* its rows that were read, where it is not on the device */
	float **norm, **router; /* [n_moe]: [hidden], [n_experts][hidden] */
	float **bias; /* [n_moe]: [n_experts], of routers by sigmoid */
	struct od_predictor *predictor;
	/* A prompt's step and another may be under way together: this one is told to the predictor. */
	struct od_predict_step step;
	uint64_t number; /* the newest step's */
	uint64_t sequence; /* owner of pw_begin's rows */
	size_t max_rows;
	uint64_t seed;
	struct od_predict_row *row, *prompt_row; /* [max_rows]: of a step; of a prompt's */
	/* Each row of the step. */
	float *residual; /* [max_rows][hidden] */
	float *probability; /* [max_rows][n_experts] */
	uint16_t *expert; /* [max_rows][top_k] */
	struct od_routed_row *rows;
	int64_t heard; /* layer that was routed last */
	struct pw_said *said; /* [PW_MAX_SAID] since pw_forget */
	size_t n_said;
};

struct pw_shape {
	uint32_t n_moe, n_experts, top_k, hidden, vocab;
	size_t max_rows;
	bool sigmoid; /* its routers choose by sigmoid + bias, else by softmax */
	bool in_file; /* its embedding is not on the device: rows are read */
};

/* kind NULL: no predictor yet. */
void pw_open(struct predictor_world *w, const char *kind, struct pw_shape shape);
void pw_close(struct predictor_world *w);
uint32_t pw_draw(struct predictor_world *w, uint32_t n); /* 0 .. n-1 */
float pw_real(struct predictor_world *w); /* -1 .. 1 */

/* Begins a step of rows with these tokens; NULL: drawn. */
void pw_begin(struct predictor_world *w, bool prompt, size_t n_rows, const int32_t *token);
/* Begins a step of these rows, which are copied. */
void pw_begin_rows(struct predictor_world *w, bool prompt, size_t n_rows, const struct od_predict_row *row);
/* The row of the step; n_rows: there is none. */
size_t pw_row(const struct predictor_world *w, uint64_t sequence, uint32_t position);
/* Routes layer m as w->probability and w->residual are: experts are the best of the probabilities. */
void pw_routed(struct predictor_world *w, uint32_t m);
/* Draws residuals and probabilities of all rows; pw_routed is next. */
void pw_draw_rows(struct predictor_world *w);
void pw_forget(struct predictor_world *w); /* forgets predictions */
/* The last word on (row, m) since pw_forget; NULL when there is none. */
const struct pw_said *pw_word(const struct predictor_world *w, size_t row, uint32_t m);

/* The k best of scores in double, ties to the lower; false when two scores at the edge are too close to tell. */
bool pw_best(const double *score, size_t n, size_t k, uint16_t *expert);
bool pw_same_set(const uint16_t *a, const uint16_t *b, size_t k);

#endif
