/* sequence.h - one text: its prompt, KV cache, sampler, stop strings and statistics.
 *
 *   waiting -> [restore ->] prefill -> decode -> done
 *
 * It goes from each of them to done when it fails or is cancelled, and from decode back to waiting, once, when it
 * outgrows the original context of long RoPE: all its rows are computed anew.
 *
 * Thread: the engine thread, except odm_sequence_cancel. Owner: the caller of submit, until odm_sequence_take; the
 * request's memory is borrowed until the text is done. */
#ifndef ODM_SEQUENCE_H
#define ODM_SEQUENCE_H

#include <stdatomic.h>

#include "common/base/strbuf.h"
#include "common/text/stopper.h"
#include "main-node/engine/engine.h"
#include "main-node/engine/prefix/marks.h"

struct odm_lookup;
struct odm_model;
struct odm_prefix_read;

/* Restore: pages of its prompt are being read from files. */
enum odm_sequence_phase { ODM_WAITING, ODM_IN_RESTORE, ODM_IN_PREFILL, ODM_IN_DECODE, ODM_DONE };

struct odm_sequence {
	struct odm_engine *engine; /* engine that has it, for the batch */
	const struct odm_model *model;
	struct odm_expert_service *service; /* for drafts */
	const struct od_config *config;
	struct odm_request req;
	enum odm_sequence_phase phase;
	atomic_bool cancelled;
	uint64_t id; /* 0 while it waits */
	bool alone; /* no other sequence was admitted at the same time */
	struct od_seq_state *state;
	uint64_t shared_sequence; /* another one in progress that begins with the same shared_tokens; 0: none */
	uint32_t shared_tokens;
	struct odm_prefix_read *restore; /* set in phase restore, else NULL */
	/* The restore's pages; snapshot that their fixed state is read to, or ODM_NO_SNAPSHOT. */
	uint32_t restore_end, restore_snapshot;
	struct odm_marks marks;
	int32_t *late; /* tokens that would end the text before req.min_tokens; for the sampler */
	struct od_sampler *sampler;
	struct od_detok *detok;
	struct od_stopper *stopper;
	int32_t *end; /* [n_ends] distinct tokens that end it: EOS, and the request's */
	size_t n_ends;
	float *raw; /* [vocab]: logits as the sampler got them; NULL: no log probabilities are wanted */
	struct odm_lookup *lookup; /* set with --draft lookup, else NULL */
	uint32_t allowed; /* state of req.constraint behind the tokens so far */
	bool over; /* the constraint is satisfied, and nothing can follow */
	struct od_strbuf shown; /* the text of the tokens, without the part held back by the stopper */
	size_t room; /* limit of generated tokens */
	int32_t *text; /* [n_prompt + room]: prompt and tokens */
	size_t n_text;
	size_t n_prefill; /* tokens of text that are prefilled: the prompt, or all when they are computed anew */
	uint64_t submitted_ns, first_ns; /* time of submission; time of its first token, 0: none yet */
	uint64_t own[OD_N_COUNTERS]; /* counters that belong to no step */
	struct odm_result r;
	bool ended; /* no further token; it finishes when its step ends */
	struct od_err err; /* its error; code OD_OK: none */
	/* The current decode step. */
	struct odm_draft draft; /* n is cut to what the step verifies */
	bool guessed; /* the draft may be wrong: it is neither the request's own nor forced */
	uint64_t forced, forced_right; /* tokens that a constraint forced, and of them those that stood, so far */
	int32_t row[ODM_MAX_DRAFT + 1]; /* the last token and the draft */
	size_t n_rows;
	uint32_t kept; /* rows that were sampled from */
	uint32_t ahead; /* odm_part.ahead */
	struct odm_sequence *next; /* in order of arrival */
};

/* Any thread: refuses requests that the engine could never serve; but for its KV cache, for which there is
 * odm_state_plan_fits. */
OD_MUST_CHECK int odm_sequence_check(const struct odm_model *m, const struct odm_request *req, struct od_err *err);
size_t odm_sequence_room(const struct odm_model *m, const struct odm_request *req); /* limit of generated tokens */
/* After odm_sequence_check. */
OD_MUST_CHECK int odm_sequence_new(struct odm_sequence **out, const struct odm_model *m,
				   struct odm_expert_service *service, const struct odm_request *req,
				   struct od_err *err);
void odm_sequence_free(struct odm_sequence *q); /* NULL ok */

/* True: with long RoPE it is, or will be after its prefill, a long text. */
bool odm_sequence_is_long(const struct odm_sequence *q);
/* In decode: its last token is behind the original context of long RoPE, and its state is that of a short text. */
bool odm_sequence_outgrown(const struct odm_sequence *q);
/* It has no state any more, and waits again to be computed anew. */
void odm_sequence_restart(struct odm_sequence *q);
/* The text is computed anew, and what was made of this position is known already. */
bool odm_sequence_was_seen(const struct odm_sequence *q, uint32_t position);
/* The maximum number of positions of its rows. */
uint32_t odm_sequence_positions(const struct odm_sequence *q);
/* Tells the reader that so many tokens of the prompt are through. */
void odm_sequence_progress(const struct odm_sequence *q, uint32_t n);
/* Fills draft with at most max tokens. guess: from the shadow or from the text, if there are no others. */
void odm_sequence_draft(struct odm_sequence *q, size_t max, bool guess);
/* Counts that so many tokens of the draft stand. */
void odm_sequence_drafted(struct odm_sequence *q, size_t right);
/* Fills row and n_rows with the last token and the draft, and ahead, at most as given. */
void odm_sequence_next_rows(struct odm_sequence *q, uint32_t ahead);
/* The reader wants the log probabilities of the prompt's tokens from some position on, and has not got them: the logits
 * of rows from the returned position on are needed. UINT32_MAX: it wants none. */
uint32_t odm_sequence_shows_from(const struct odm_sequence *q);
/* Shows the prompt's token behind this position, if there is one, from the logits [vocab] of the position; and its
 * first one. May end the text with an error. */
void odm_sequence_show_prompt(struct odm_sequence *q, uint32_t position, const float *logits);
/* Samples the next token from logits [vocab] of this position, which are overwritten, and shows it; or ends the text,
 * with or without an error. */
void odm_sequence_sample(struct odm_sequence *q, uint32_t position, float *logits);
/* Marks it as ended: no further token. err: the error, or NULL: r.finish is set. */
void odm_sequence_end(struct odm_sequence *q, const struct od_err *err);
/* Makes an ended sequence done: shows the rest of its text. Its state is the caller's to free. */
void odm_sequence_finish(struct odm_sequence *q);

#endif
