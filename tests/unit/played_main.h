/* played_main.h - for tests of od-shadow as a process: a main that is played over the wire. What a prediction must be
 * comes from the pack's weights and a forward pass over main's own keys and values. */
#ifndef OD_TESTS_PLAYED_MAIN_H
#define OD_TESTS_PLAYED_MAIN_H

#include "tests/unit/state_util.h"
#include "tests/unit/shadow_process.h" /* behind it: its names are short */

#define CTX 96u
#define PROMPT 24u
#define STEPS 20u
#define SEQUENCE 5u

struct pass {
	struct od_device *device;
	struct od_shadow_store *store;
	struct od_state_pool *states; /* for one sequence */
	struct od_seq_state *state;
	struct od_forward *forward;
	struct od_expert_runner *experts;
	float *logits; /* the last row's */
};

struct heard { /* the newest PREDICT for (step, m); a step is a position */
	bool any;
	int32_t token;
	uint16_t expert[MAX_K];
};

struct fake {
	void *context, *control, *data;
	uint64_t session, pinged_ns;
	enum od_profile profile;
	struct pass own, judge; /* judge: the shadow's weights */
	struct heard heard[STEPS + 2][MAX_LAYERS];
	uint64_t answered; /* STATE_REQUESTs, each once */
	uint32_t answered_until[MAX_LAYERS]; /* the end of the range that was answered last */
	uint64_t ignore; /* STATE_REQUESTs left to do so with */
	uint64_t pongs;
	uint64_t c[OD_N_COUNTERS]; /* as the newest PONG has them */
	uint64_t last_step;
	uint32_t ahead; /* in STEPs */
};

void send_control(struct fake *f, Od__Header *h);
void send_data(struct fake *f, Od__Header *h, const struct od_out_frame *frames, size_t n);
void hello_of(Od__Hello *hello, uint8_t fingerprint[32], enum od_profile profile);
void begin_session(struct fake *f, uint16_t port, enum od_profile profile, const char *precision);
void end_session(struct fake *f);
void open_fake(struct fake *f, const struct od_shadow_choice *c, enum od_profile profile);
void close_fake(struct fake *f);
/* Before a session begins: main must not be silent while it lasts, as it would be here on a slow machine. */
int32_t prefill_main(struct fake *f);
void send_step(struct fake *f, uint64_t number, uint32_t position, int32_t token);
/* Main computes these rows; route [n_layers][top_k] of the last one when not NULL. */
void run_rows(struct pass *p, const int32_t *token, size_t n, uint16_t *route);
int32_t best_token(const struct fake *f);
/* Until the shadow has said its word about this step, with this token, for every layer. */
void wait_for_step(struct fake *f, uint64_t number, int32_t token);
/* A step of main's: STEP, its rows, and the shadow's word for every layer. exact: the shadow has main's weights. */
int32_t step(struct fake *f, int32_t token, bool exact, bool send_rows);
/* Its PONGs come to say so; they never say more. */
void wait_for_count(struct fake *f, enum od_counter counter, uint64_t n);

#endif
