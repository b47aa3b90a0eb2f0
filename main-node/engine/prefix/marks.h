/* marks.h - where a text's fixed state is copied into snapshots: where other texts are likely to go on from
 * it:
 *
 * - The last whole page of its prompt, for the next turn.
 * - The page before it, if the prompt ends soon behind it: the same prompt may come again, whose last token is always
 *   computed, and a chat template may write the end of a prompt in another way in the next turn.
 * - The page at which the prompt parts from what other texts began with.
 * - The page before the first token whose log probability is wanted, if only those behind it are.
 * - The pages at its forks: where others are likely to part from it (odm_request.forks).
 * - The last whole page of its answer so far, for a next turn that repeats the answer.
 *
 * A step writes a snapshot on its way, however its rows are cut; it is kept if the step commits these rows.
 * Thread: the engine thread. Owner: the sequence. */
#ifndef ODM_MARKS_H
#define ODM_MARKS_H

#include "common/model/seq_state.h"
#include "main-node/engine/prefix/snapshots.h"

#define ODM_MAX_WANTED OD_MAX_MARKS

struct odm_marks {
	uint32_t wanted[ODM_MAX_WANTED], n_wanted; /* lengths in prefill, in order */
	uint32_t last; /* the one of the prompt's last whole page; 0: none */
	uint32_t begin; /* rows up to here were there already */
	uint32_t end; /* rows up to here are computed, or in a step */
	struct {
		uint32_t length, snapshot;
	} mark[OD_MAX_MARKS];
	uint32_t n_marks; /* marks of the step that has its rows */
	uint32_t answer; /* page whose snapshot is the newest one of the answer; ODM_NO_PAGE */
};

/* A text, when it is admitted. */
struct odm_marks_plan {
	uint32_t n_prefill; /* tokens that it computes first */
	uint32_t begin; /* tokens that are there */
	uint32_t known; /* tokens that other texts begin with */
	const size_t *fork; /* [n_forks], lengths */
	size_t n_forks;
};
void odm_marks_plan(struct odm_marks *m, const struct odm_marks_plan *p);
/* Another text could begin at this length, if a snapshot were taken. False: it is too late for that, or there are
 * enough. */
bool odm_marks_want(struct odm_marks *m, uint32_t length);
/* The greatest length up to `most` at which one will be taken in prefill, of a text that has come to `length`; 0:
 * none. */
uint32_t odm_marks_coming(const struct odm_marks *m, uint32_t length, uint32_t most);
/* A step with rows of the text (its number) up to `end` is about to begin: those of its prompt, or of its answer. */
void odm_marks_begin(struct odm_marks *m, struct odm_snapshots *s, struct od_seq_state *state, uint64_t text,
		     uint32_t end, bool answer);

#endif
