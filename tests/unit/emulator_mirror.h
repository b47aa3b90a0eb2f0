/* emulator_mirror.h - judges an emulator that runs several rows ahead. The mirror computes each of its runs again,
 * layer by layer, with the shadow's weights, on the KV rows that the emulator has at that time. It knows where each of
 * these comes from: main's rows must have main's bits, the shadow's own rows those that the mirror computed for the
 * same text. So it works whenever main's rows arrive. It also knows which tokens the shadow must choose, and what it
 * may say. */
#ifndef OD_TESTS_EMULATOR_MIRROR_H
#define OD_TESTS_EMULATOR_MIRROR_H

#include "common/model/sampler.h"
#include "tests/unit/emulator_world.h"

#define ROW_BYTES 64u /* one stream's row */

struct mirror_row { /* a row of the run */
	uint32_t seq, position;
	int32_t token;
	uint64_t text; /* hash of the tokens up to its own */
};

struct mirror_cell { /* a position of a sequence */
	uint64_t own_text[LAYERS]; /* the shadow's own row there: of which text */
	char own[LAYERS][2][ROW_BYTES];
	uint64_t choice_text; /* the token that the shadow chooses there after this text */
	int32_t choice;
	float margin;
	uint64_t said_text; /* the text of the row's prediction */
	unsigned said; /* bit m: at layer m */
};

struct mirror {
	struct world *w;
	struct pass pass;
	struct od_seq_state *state[MAX_SEQS];
	struct mirror_row row[STEP_ROWS];
	size_t n_rows;
	struct mirror_cell cell[MAX_SEQS][CTX];
	uint8_t text[MAX_SEQS][CTX]; /* the shadow's belief: main's newest STEP, its own tokens behind it */
	uint64_t told[MAX_SEQS]; /* the STEP of which that is */
	bool once; /* nothing may be said twice */
	bool unseen; /* rows may be run unpublished, which the mirror cannot see */
	struct od_sampler_opts sampling;
	uint32_t prompt_tokens;
	unsigned runs, ahead; /* runs; rows that were said ahead, at layer 0 */
	unsigned mixed; /* runs on rows both true and own */
};

void open_mirror(struct mirror *m, struct world *w); /* w's predictions go there */
void close_mirror(struct mirror *m);
/* Hash of the first n tokens; never 0. */
uint64_t hash_text(const uint8_t *text, uint32_t n);
/* The token that the shadow chooses at the position after this text; -1: not known. */
int32_t choice_of(const struct mirror *m, uint32_t seq, const uint8_t *text, uint32_t position);
/* The row at the position was said of at all layers, for this text. */
bool is_said(const struct mirror *m, uint32_t seq, const uint8_t *text, uint32_t position);
/* Main has undone the rows from there on. */
void unsay(struct mirror *m, uint32_t seq, uint32_t from);
/* Main's rows that the shadow holds are main's, as far as they can still be compared. */
void check_true_rows(const struct mirror *m);
/* The newest STEP's rows were all said of, and the rows ahead that it allows: no more and no fewer. */
void assert_all_said(struct mirror *m);

#endif
