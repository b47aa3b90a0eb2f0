/* forward_world.h - for the tests of the forward pass: the tiny models, those of other families among them, an engine
 * that runs prompts of one on a device and keeps all results, and experts on another device. */
#ifndef OD_TESTS_FORWARD_WORLD_H
#define OD_TESTS_FORWARD_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/model/resident.h"
#include "tests/unit/device_util.h"
#include "tests/unit/tiny_model.h"

#define MAX_ROWS 512
#define CTX 320
#define SEQUENCES 2
/* The models of tests/golden/model/forward.json, then N_MADE small ones of other families, which no reference knows:
 * some in profile bf16, with weights of several formats. */
#define N_MADE 11
size_t case_count(void);
void load_case(struct tiny_model *t, size_t i);
/* Another prompt of the same model, so that two sequences differ. */
int32_t other_token(const struct tiny_model *t, size_t i);

/* Results of a prompt's rows, all positions. */
struct result {
	float *logits; /* [n][vocab] */
	uint16_t *expert; /* [n_moe][n][top_k] */
	float *weight; /* [n_moe][n][top_k] */
	float *margin; /* [n_moe][n] */
};

void result_new(struct result *r, const struct tiny_model *t);
void result_free(struct result *r);
/* Fails the test when they differ. */
void same(const struct tiny_model *t, const struct result *a, const struct result *b, const char *what);

struct engine {
	const struct tiny_model *t;
	struct od_device *device;
	struct tiny_weights weights;
	struct od_state_pool *state;
	struct od_forward_opts opts;
	struct od_forward *forward;
	struct od_expert_runner *resident, *runner; /* runner: the one that run_forward_step uses */
};

/* On its device, with weights that lie anywhere. */
void open_forward_pass(struct engine *e, const struct tiny_weights *w, uint32_t ctx);
void engine_open_ctx(struct engine *e, const struct tiny_model *t, unsigned threads, enum od_cpu cpu, uint32_t ctx);
void engine_open(struct engine *e, const struct tiny_model *t, unsigned threads, enum od_cpu cpu);
void engine_close(struct engine *e); /* its sequences are freed already */
struct od_seq_state *new_seq(const struct engine *e);

/* Row `row` of the step is position `at` of the result's prompt. */
void note_routes(const struct engine *e, size_t row, size_t at, struct result *r);
void note_logits(const struct engine *e, size_t row, size_t at, struct result *r);
/* One step up to its end; row i's results go to its position of r[i]. */
void run_step_to(struct engine *e, const struct od_row *rows, size_t n, struct result **r);
void run_forward_step(struct engine *e, const struct od_row *rows, size_t n, struct result **r);
/* The case's prompt (from position `from`) in chunks. */
void run_chunks(struct engine *e, struct od_seq_state *seq, size_t from, size_t chunk, struct result *out);
void run_prompt(const struct tiny_model *t, unsigned threads, enum od_cpu cpu, size_t chunk, struct result *out);

/* Experts on a device that is not the forward pass's, as those of a cluster are: rows and routes come from the host,
 * and the experts' outputs go there. */
struct elsewhere {
	struct od_expert_runner runner;
	const struct tiny_model *t;
	struct od_device *device;
	struct tiny_weights weights;
	struct od_buf *x, *expert, *y, *scratch;
};

int submit_elsewhere(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err);
int collect_elsewhere(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err);
void elsewhere_open(struct elsewhere *w, const struct tiny_model *t);
void elsewhere_close(struct elsewhere *w);

#endif
