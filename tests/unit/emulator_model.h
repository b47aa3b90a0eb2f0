/* emulator_model.h - for tests of the emulator: a small model, its rough copy, and forward passes outside the
 * emulator. */
#ifndef OD_TESTS_EMULATOR_MODEL_H
#define OD_TESTS_EMULATOR_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/model/forward.h"
#include "common/model/forward_open.h"
#include "tests/unit/state_util.h"

#define LAYERS 3u
#define CTX 80u /* more than a page */
#define VOCAB 40u
#define EXPERTS 6u
#define TOP_K 2u
#define MAX_ROWS 8u /* rows of a piece of a prompt */
#define STEP_ROWS 32u /* rows of a step */

struct model { /* on a device of its own */
	struct od_device *device;
	struct od_dense dense;
	struct od_layer_weights layer[LAYERS];
	struct od_expert expert[LAYERS * EXPERTS];
	struct od_buf *buf[128];
	size_t n_bufs;
};

/* Work that fails, which shows at the device's next wait. */
struct failure {
	struct od_device *device;
	struct od_buf *choice, *scratch;
	struct od_op op;
};

struct pass {
	struct od_device *device;
	struct od_state_pool *state;
	struct od_forward *forward;
	struct od_expert_runner *experts;
};

extern uint64_t seed; /* state of draw and chance */
extern struct od_config config; /* since make_model() */
extern bool delta_layer; /* make_model(): layer 1 has a gated delta rule instead of attention */

uint32_t draw(uint32_t n); /* 0 .. n-1 */
bool chance(uint32_t percent);
void make_model(struct model *m, uint64_t from_seed);
void make_rough_copy(struct model *m, uint64_t from_seed); /* like make_model, with experts a little off */
void free_model(struct model *m);
/* the model's device fails whenever fail_device is called */
void open_failure(struct failure *f, const struct model *m);
void fail_device(const struct failure *f);
void close_failure(struct failure *f);
struct od_forward_opts pass_opts(const struct model *m, enum od_profile profile); /* without a state; MAX_ROWS */
/* A forward pass over n sequences of ctx positions, STEP_ROWS at a time. */
void open_pass(struct pass *p, const struct model *m, enum od_profile profile, uint32_t ctx, uint32_t n);
void close_pass(struct pass *p); /* its sequences are freed */
/* All layers; route [LAYERS][n_rows][TOP_K] when not NULL. */
void run_pass(struct pass *p, const struct od_row *rows, size_t n_rows, uint16_t *route);
/* Its rows become part of their sequences. */
void end_pass(struct pass *p);
struct od_seq_state *make_state(const struct pass *p);
/* Borrowed until the pass goes on. */
float *logits_of(struct pass *p, size_t row);

#endif
