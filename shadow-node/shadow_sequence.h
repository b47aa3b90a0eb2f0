/* shadow_sequence.h - what the shadow knows of one of main's sequences: keys and values and whose they are, the tokens,
 * and how main chooses the next one.
 *
 * A token is main's word where there is one, else the shadow's own choice: with main's sampler, seed and place in the
 * stream of random numbers, on its own logits.
 * Thread: its emulator's. Owner: the emulator; all memory is taken at the start. */
#ifndef ODS_SHADOW_SEQUENCE_H
#define ODS_SHADOW_SEQUENCE_H

#include "common/model/forward.h"
#include "common/model/sampler.h"
#include "proto/od.pb-c.h"
#include "shadow-node/align_apply.h"

#define ODS_MAX_ASK_BYTES (1u << 20) /* of one answer, keys and values */
#define ODS_MAX_ASK_TOKENS 16384u

struct ods_sequence {
	bool used;
	uint64_t id;
	uint64_t heard; /* STEPs that had been heard when it was last spoken of */
	uint32_t ctx;
	struct od_seq_state *state;
	struct ods_align *align;
	int32_t *token; /* [ctx]; -1: not known */
	uint32_t known; /* all tokens before are: a lower bound that is moved when asked */
	uint32_t end;	/* no token is known from here on */
	uint32_t told;	/* TOKENS came up to here */
	bool own_state; /* main's keys and values never come */
	struct od_sampler *sampler;
	bool penalised;	/* it looks at the tokens before */
	uint32_t prompt_tokens, vocab;
	bool asked; /* for tokens from asked_begin on, at asked_ns */
	uint64_t asked_ns;
	uint32_t asked_begin;
};

uint64_t ods_sequence_bytes(const struct od_forward_opts *f, uint32_t ctx); /* UINT64_MAX: cannot be counted */
/* ods_sequence_fini is fine whatever this returns, and for zeroed memory. */
OD_MUST_CHECK int ods_sequence_init(struct ods_sequence *s, const struct od_forward_opts *f, struct od_err *err);
void ods_sequence_fini(struct ods_sequence *s);

/* An unused one becomes this sequence: greedy, its keys and values are main's to give. */
OD_MUST_CHECK int ods_sequence_begin(struct ods_sequence *s, uint64_t id, struct od_err *err);
/* What SEQ_OPEN says; it may come again. */
OD_MUST_CHECK int ods_sequence_open(struct ods_sequence *s, const Od__SeqOpen *m, struct od_err *err);
void ods_sequence_truncate(struct ods_sequence *s, uint32_t length);

/* The first position before limit whose token is not known; limit: there is none. */
uint32_t ods_sequence_unknown(struct ods_sequence *s, uint32_t limit);
void ods_sequence_forget_tokens(struct ods_sequence *s, uint32_t length); /* from length on */
void ods_sequence_set_token(struct ods_sequence *s, uint32_t position, int32_t token);
/* The token at position, by logits [vocab], which are overwritten. */
void ods_sequence_choose(struct ods_sequence *s, uint32_t position, float *logits);

#endif
