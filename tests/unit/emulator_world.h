/* emulator_world.h - a main that is simulated for the emulator: a forward pass of its own, a channel that loses and
 * doubles messages, and a judge that works out what each prediction must be from main's own keys and values. */
#ifndef OD_TESTS_EMULATOR_WORLD_H
#define OD_TESTS_EMULATOR_WORLD_H

#include "shadow-node/emulator.h"
#include "tests/unit/emulator_model.h"

#define MAX_SEQS 16u
#define MAX_STEPS 4096u
#define QUEUE 4096u

struct sequence {
	uint64_t id;
	struct od_seq_state *state; /* main's */
	uint8_t text[CTX]; /* main's tokens below its length */
	uint32_t writes; /* times that rows of prompts and steps were written to `state` */
	int32_t next; /* token that stands at length */
	bool open, stepped;
	uint64_t told; /* number of the newest STEP with rows of it that reached the shadow */
	bool went_back; /* without a message: then what comes next is a step, which says so */
	uint64_t silent; /* the newest STEP at that time: up to it, main has other rows than the shadow */
	/* the shadow's newest word ahead of main */
	struct {
		uint32_t position;
		int32_t token;
		bool known[LAYERS];
	} guess;
};

struct sent_step {
	uint64_t number;
	size_t n_rows;
	struct {
		uint32_t seq, position, ahead;
		int32_t token;
	} row[STEP_ROWS]; /* ahead: of a sequence's first row */
	int32_t choice[STEP_ROWS]; /* main's token behind each row */
	uint8_t text[MAX_SEQS][CTX]; /* main's tokens, up to the step's */
	uint32_t writes[MAX_SEQS];
	bool predicted[STEP_ROWS][LAYERS]; /* with the right token */
	uint16_t said[LAYERS][STEP_ROWS][TOP_K]; /* by the shadow, once it knew the step */
	uint16_t route[LAYERS][STEP_ROWS][TOP_K]; /* main's own */
};

struct message { /* a message's fields without od.proto */
	Od__Header__BodyCase kind;
	Od__StepRow rows[STEP_ROWS];
	size_t n_rows;
	uint64_t sequence, step;
	bool due;
	uint32_t layer, n; /* n: of all ranges; the length of SEQ_TRUNCATE */
	struct {
		uint64_t sequence;
		uint32_t begin, n;
	} range[STEP_ROWS];
	size_t n_ranges;
	char k[CTX * 64], v[CTX * 64];
};

struct world {
	enum od_profile profile;
	struct model main_model, shadow_model;
	struct pass main_pass, judge_pass;
	struct od_seq_state *judge_state;
	bool same_weights, own_rows; /* own_rows: state does not always follow */
	bool judge; /* check every prediction */
	/* Not NULL: judges the predictions of a layer instead, and no guess is noted. */
	void (*judge_run)(struct world *w, uint32_t m, const struct od_prediction *p, size_t n);
	void *judge_arg;
	uint64_t counters[OD_N_COUNTERS];
	struct ods_emulator *emulator;
	struct sequence seq[MAX_SEQS];
	uint32_t n_seqs; /* used ones of seq; more than the shadow has room for in one test only */
	uint64_t next_id, step, now;
	uint32_t lose, twice; /* percent */
	struct message *queue; /* ring of QUEUE */
	size_t head, n_queued;
	struct sent_step *sent; /* [MAX_STEPS] by number */
	uint64_t delivered; /* newest STEP that reached the shadow */
	uint32_t layer; /* main's next STATE of the step that is going on; LAYERS: all sent */
	bool due;
	unsigned guesses, checked, asks, predicts;
	bool lose_asks;
};

size_t row_bytes(const struct world *w);
void push_state(struct world *w, const struct sequence *s, uint32_t layer, uint32_t begin, uint32_t n, uint64_t step);
/* A prompt, or more of it later: no message tells of it. */
void prefill(struct world *w, struct sequence *s);
void open_sequence(struct world *w, struct sequence *s);
/* A decode step over some of the sequences; several rows of one are a verified draft. */
bool begin_step(struct world *w, bool one_row);
/* A step by hand: rows are added to the next step, then it begins. Rows of one sequence are adjacent. */
struct sent_step *next_step(struct world *w);
void put_row(struct sent_step *t, uint32_t seq, uint32_t position, int32_t token);
void run_step(struct world *w, struct sent_step *t);
/* Main keeps the first n rows of a sequence of the newest step, all of which have left. tell: by SEQ_TRUNCATE. */
void keep_rows(struct world *w, struct sequence *s, uint32_t n, bool tell);
/* The rows of one layer leave while main goes on; false: the step is through. */
bool send_layer(struct world *w);
/* Give the shadow a message now; deliver() takes the next of the channel, with losses and doubles. */
int hand_over(struct world *w, const struct message *m);
bool deliver(struct world *w);
bool work(struct world *w); /* one piece; false: nothing to do */
/* Until nobody has anything to do; a second without an answer passes when it must. */
void settle(struct world *w);
/* More prompt, truncation or the end of a sequence, with nothing on its way that would be about other rows. */
void disturb(struct world *w);
void open_world(struct world *w, enum od_profile profile, bool same_weights, bool early, uint64_t from_seed);
/* open_world with a number of sequences; open_world has 3. */
void open_large_world(struct world *w, enum od_profile profile, bool same_weights, bool early, uint64_t from_seed,
		      uint32_t n_seqs);
/* Like open_large_world; each layer of the shadow takes at least layer_ns. */
void open_paced_world(struct world *w, enum od_profile profile, bool same_weights, bool early, uint64_t from_seed,
		      uint32_t n_seqs, uint64_t layer_ns);
void close_world(struct world *w);
void assert_predicted(const struct world *w, uint64_t step);

#endif
