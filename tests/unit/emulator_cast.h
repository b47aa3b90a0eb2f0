/* emulator_cast.h - many sequences for the emulator, each of which must be told the same of as if it were alone. The
 * oracle is an emulator of one sequence, which gets that sequence's messages and no others. Main is a script here: its
 * keys and values are any numbers, for they are what they are. */
#ifndef OD_TESTS_EMULATOR_CAST_H
#define OD_TESTS_EMULATOR_CAST_H

#include "tests/unit/emulator_world.h"

#define MAX_SAID 6000u
#define MAX_REQUESTS 64u

struct said { /* about one row at one layer */
	uint32_t position, m;
	int32_t token;
	uint16_t expert[OD_MAX_CANDIDATES];
	float probability[OD_MAX_CANDIDATES];
};

struct request {
	uint64_t sequence;
	bool tokens;
	struct ods_range range; /* the tokens': layer 0 */
};

struct cast;

/* An emulator, and what it said. */
struct stage {
	struct cast *cast;
	struct ods_emulator *e;
	uint64_t counters[OD_N_COUNTERS];
	struct request request[MAX_REQUESTS];
	size_t n_requests;
	unsigned asked_rows;
	bool late; /* it works when the test says so, and gets answers late */
};

struct actor { /* a sequence */
	uint64_t id; /* 0: none */
	struct stage alone;
	struct said *one, *many; /* [MAX_SAID]: what was said of it alone, and among the others */
	size_t n_one, n_many;
	int32_t token[CTX];
	uint32_t version[CTX]; /* version of main's rows there: no two texts have the same */
	uint32_t length; /* committed */
	uint32_t rows; /* rows of the step under way */
	uint32_t due; /* rows that come with it */
	bool own_state, tells; /* tells: main sends the prompt's tokens */
	bool fresh; /* no step went before: rows may be missing, and the token to go on with */
};

struct cast {
	struct model model;
	struct od_seq_state *rows; /* for the size of a row */
	struct pass pass;
	enum od_profile profile;
	bool early, unaligned, drafts, aligned; /* aligned: main's rows always come */
	struct stage all;
	struct actor actor[MAX_SEQS];
	uint32_t n;
	uint64_t next_id, step, now;
	uint32_t version;
	uint32_t lose, lose_step; /* percent, of what `all` gets */
	const struct actor *deaf; /* no answers come for it, nor its rows of one layer */
	uint32_t deaf_layer;
};

void answer(struct cast *c, struct stage *st);
/* Until there is nothing to do without another message. */
void drain(struct cast *c, struct stage *st);
/* More prompt: nothing tells of it but TOKENS, where they are sent. */
void add_prompt(struct cast *c, struct actor *a, uint32_t n);
/* prompt: tokens of it behind what it shares with another. */
void enter_behind(struct cast *c, struct actor *a, uint32_t prompt, const struct actor *from, uint32_t shared);
void enter(struct cast *c, struct actor *a, uint32_t prompt);
void leave(struct cast *c, struct actor *a);
void truncate_to(struct cast *c, struct actor *a, uint32_t length);
/* Some sequences have rows in the next step. */
bool choose_step(struct cast *c, uint32_t take, uint32_t right);
void begin_both(struct cast *c);
/* The rows of a layer leave. */
void layer_both(struct cast *c, uint32_t layer);
void end_both(struct cast *c);
void assert_same(const struct cast *c);
void step_both(struct cast *c, uint32_t take, uint32_t right);
void open_cast(struct cast *c, uint32_t n, bool early, enum od_profile profile, uint64_t from_seed, uint32_t n_pages);
void close_cast(struct cast *c);

#endif
