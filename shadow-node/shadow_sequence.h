/* shadow_sequence.h - the shadow's copy of one of main's sequences: KV rows and their origin, tokens, main's sampler,
 * and the progress of both sides.
 *
 * A token is main's where main sent one, otherwise the shadow's own: sampled from its own logits with main's sampler
 * settings, seed and number of the draw.
 * Thread: the emulator's. Owner: the emulator. A sequence allocates when it begins; pages of KV rows are taken as it
 * grows. */
#ifndef ODS_SHADOW_SEQUENCE_H
#define ODS_SHADOW_SEQUENCE_H

#include "common/model/forward.h"
#include "common/model/forward_open.h"
#include "common/model/sampler.h"
#include "proto/od.pb-c.h"
#include "shadow-node/align_apply.h"

#define ODS_MAX_ASK_BYTES (1u << 20) /* limit of one answer with KV rows */
#define ODS_MAX_ASK_TOKENS 16384u
/* copies of fixed state: main's text, the two newest rows ahead, and the one that a run writes */
#define ODS_FIXED_COPIES 4

struct ods_sequence {
	uint64_t id;
	char request[72]; /* main's name of it, for logs; "": none */
	uint64_t heard; /* STEPs received when the last message about the sequence arrived */
	uint32_t ctx; /* with long RoPE, of a text that is not long, only the original context */
	struct od_seq_state *state;
	struct ods_align *align;
	int32_t *token; /* [ctx]; -1: not known */
	float *margin; /* [ctx]: of the shadow's own tokens, see od_sampler_sample; 0 for main's */
	uint32_t known; /* all earlier tokens are known: a lower bound, updated on demand */
	uint32_t end; /* no token is known from here on */
	uint32_t told; /* end of the tokens received in TOKENS */
	/* tokens from here on may be the shadow's own, because main left them out; UINT32_MAX: none */
	uint32_t main_end;
	/* the shadow runs all rows, prompts too: main never sends them, or cannot, because of fixed state */
	bool own_state;
	/* some layers have fixed state: rows run one after the other, and state is that of align's run_end */
	bool fixed;
	struct od_sampler *sampler;
	bool penalised; /* the sampler has penalties, so it needs all earlier tokens */
	uint32_t prompt_tokens, vocab;
	bool asked; /* tokens from asked_begin on were requested at asked_ns */
	uint64_t asked_ns;
	uint32_t asked_begin;

	/* The emulator's cursors. Positions [next, stepped) wait for a run; [stepped, next) have run ahead of the
	 * newest STEP, with the shadow's own tokens, or are running. */
	uint32_t stepped; /* end of the newest STEP */
	uint64_t step; /* number of the newest STEP */
	uint32_t begun; /* begin of the newest STEP */
	uint32_t next; /* the first position that has not run, and is not running, for publication */
	uint32_t limit; /* positions [stepped, limit) may run ahead */
	/* Rows of the newest STEP; above 1: the rows are drafts, which do not wait for due rows that are own. */
	uint32_t ahead;
	uint32_t state_rows; /* the newest STEP's */
	bool unmarked; /* these rows are not marked as due yet, for lack of memory */
	uint64_t in_step; /* emulator's count of received STEPs at the newest one with rows of the sequence */
	int want; /* enum want of emulator_plan.c, while a run is chosen */
	bool said; /* the log has a warning that there is no memory for more positions */
	bool closed; /* closed, but kept until the run ends */
	size_t run_first, run_n; /* its rows in the run; none: run_n is 0 */
};

/* Adds what a sequence takes without its KV pages, as a copy, and what a page takes. */
void ods_sequence_split(const struct od_forward_opts *f, uint32_t ctx, struct od_split *s);

/* A new sequence: greedy sampling, and main sends the KV rows. */
OD_MUST_CHECK int ods_sequence_new(struct ods_sequence **out, uint64_t id, const struct od_forward_opts *f,
				   struct od_err *err);
void ods_sequence_free(struct ods_sequence *s); /* NULL ok */
/* Applies the sampler settings, own_state and is_long of a SEQ_OPEN; a sequence may get several, but of one is_long
 * once it has rows. */
OD_MUST_CHECK int ods_sequence_open(struct ods_sequence *s, const Od__SeqOpen *m, struct od_err *err);

/* Takes pages for positions [0, end); call it before other calls about them. False: too few are free, and none were
 * taken. */
OD_MUST_CHECK bool ods_sequence_reserve(struct ods_sequence *s, uint32_t end);
/* s shares the first n positions (whole pages) of from: both see the same rows, now and later. Positions whose tokens
 * may be the shadow's own are left out. Shares nothing when s has pages already, memory is short, or only one is a long
 * text; with fixed state, tokens only. */
void ods_sequence_share(struct ods_sequence *s, struct ods_sequence *from, uint32_t n);

/* Drops the KV rows from position on. Shared pages are left to the other sequences; no run may then have rows of s. */
void ods_sequence_drop_rows(struct ods_sequence *s, uint32_t position);

/* After a commit, or when all rows are lost: what state holds. sure: main's text cannot become shorter than that. */
void ods_sequence_note_run(struct ods_sequence *s, uint32_t sure);
void ods_sequence_clear(struct ods_sequence *s);
/* Fixed state goes back, so that the row at position, or an earlier one, can run next. Nothing without fixed state. */
void ods_sequence_rewind(struct ods_sequence *s, uint32_t position);

/* The first position before limit whose token is unknown; limit: none. */
uint32_t ods_sequence_unknown(struct ods_sequence *s, uint32_t limit);
void ods_sequence_forget_tokens(struct ods_sequence *s, uint32_t length); /* from length on */
void ods_sequence_set_token(struct ods_sequence *s, uint32_t position, int32_t token);
/* Samples the token at position from logits [vocab], which are overwritten. */
void ods_sequence_choose(struct ods_sequence *s, uint32_t position, float *logits);

#endif
