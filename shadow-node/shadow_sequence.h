/* shadow_sequence.h - what the shadow knows of one of main's sequences: keys and values and whose they are, the tokens,
 * how main chooses the next one, and how far both sides are.
 *
 * A token is main's word where there is one, else the shadow's own choice: with main's sampler, seed and place in the
 * stream of random numbers, on its own logits.
 * Thread: its emulator's. Owner: the emulator. A sequence takes its memory when it begins, but for the pages of its rows:
 * those it takes as it grows. */
#ifndef ODS_SHADOW_SEQUENCE_H
#define ODS_SHADOW_SEQUENCE_H

#include "common/model/forward.h"
#include "common/model/sampler.h"
#include "proto/od.pb-c.h"
#include "shadow-node/align_apply.h"

#define ODS_MAX_ASK_BYTES (1u << 20) /* of one answer, keys and values */
#define ODS_MAX_ASK_TOKENS 16384u

struct ods_sequence {
	uint64_t id;
	uint64_t heard; /* STEPs that had been heard when it was last spoken of */
	uint32_t ctx;
	struct od_seq_state *state;
	struct ods_align *align;
	int32_t *token; /* [ctx]; -1: not known */
	uint32_t known; /* all tokens before are: a lower bound that is moved when asked */
	uint32_t end;	/* no token is known from here on */
	uint32_t told;	/* TOKENS came up to here */
	uint32_t main_end; /* tokens from here on may be our own choice, for main left them to us; UINT32_MAX: none */
	bool own_state; /* main's keys and values never come */
	struct od_sampler *sampler;
	bool penalised;	/* it looks at the tokens before */
	uint32_t prompt_tokens, vocab;
	bool asked; /* for tokens from asked_begin on, at asked_ns */
	uint64_t asked_ns;
	uint32_t asked_begin;

	/* The emulator's cursors. Positions [next, stepped) wait for a run; next is stepped + 1 when the one after the newest
	 * STEP has been run ahead, or is being so. */
	uint32_t stepped;    /* end of what main's STEPs have named: the newest one ended there */
	uint64_t step;	     /* its number */
	uint32_t begun;	     /* where it began */
	uint32_t next;	     /* the first position that is neither run nor in the run for publication */
	uint32_t state_rows; /* of the newest STEP */
	bool unmarked;	     /* there was no memory to note that they are due */
	bool credit;	     /* the newest STEP may be run ahead of: taken when that begins */
	uint64_t in_step;    /* number, of STEPs that were heard, of the newest one that had rows of it */
	int want;	     /* enum want of emulator.c, while a run is chosen */
	bool said;	     /* that there is no memory for more of it */
	bool closed;	     /* it is only there until the run is over */
	size_t run_first, run_n; /* its rows in the run; none: run_n is 0 */
};

/* Of one sequence without the pages of its rows; of a page. UINT64_MAX: cannot be counted. */
uint64_t ods_sequence_bytes(const struct od_forward_opts *f, uint32_t ctx);
uint64_t ods_sequence_page_bytes(const struct od_forward_opts *f);

/* A sequence that begins: greedy, its keys and values are main's to give. */
OD_MUST_CHECK int ods_sequence_new(struct ods_sequence **out, uint64_t id, const struct od_forward_opts *f,
				   struct od_err *err);
void ods_sequence_free(struct ods_sequence *s); /* NULL ok */
/* What SEQ_OPEN says of how tokens are chosen; it may come again. */
OD_MUST_CHECK int ods_sequence_open(struct ods_sequence *s, const Od__SeqOpen *m, struct od_err *err);

/* Pages for positions [0, end), before anything is said of them. False: there are not so many, and none were taken. */
OD_MUST_CHECK bool ods_sequence_reserve(struct ods_sequence *s, uint32_t end);
/* The first n positions, whole pages, are those of from: what is known of them there is known here, now and later. As many
 * of them as can be; none when s has pages already. */
void ods_sequence_share(struct ods_sequence *s, struct ods_sequence *from, uint32_t n);

/* Rows from position on are not known any more. Pages that others have too are left to them: then no run may have rows of it. */
void ods_sequence_drop_rows(struct ods_sequence *s, uint32_t position);

/* The first position before limit whose token is not known; limit: there is none. */
uint32_t ods_sequence_unknown(struct ods_sequence *s, uint32_t limit);
void ods_sequence_forget_tokens(struct ods_sequence *s, uint32_t length); /* from length on */
void ods_sequence_set_token(struct ods_sequence *s, uint32_t position, int32_t token);
/* The token at position, by logits [vocab], which are overwritten. */
void ods_sequence_choose(struct ods_sequence *s, uint32_t position, float *logits);

#endif
