/* constraint.h - which tokens of a vocabulary a grammar allows next.
 *
 * A token is allowed if some text of the grammar begins with the text so far and the token's bytes. Most of a mask
 * depends on the expression that is being matched, not on the stack behind it (XGrammar, Dong et al. 2024): such parts
 * are kept by expression, masks by state.
 *
 * Several texts share a constraint; each has a state of its own, which is a number.
 * Thread: one at a time; od_constraint_ref and od_constraint_unref from any thread. Owner: references; the vocabulary
 * must outlive it. */
#ifndef OD_GRAMMAR_CONSTRAINT_H
#define OD_GRAMMAR_CONSTRAINT_H

#include "common/grammar/automaton.h"
#include "common/grammar/vocab.h"

struct od_constraint;

/* Takes the grammar, which is finished, also on failure. Finds the first mask. The vocabulary is borrowed. */
OD_MUST_CHECK int od_constraint_new(struct od_constraint **out, struct od_grammar *g, const struct od_vocab *v,
				    struct od_err *err);
struct od_constraint *od_constraint_ref(struct od_constraint *c);
void od_constraint_unref(struct od_constraint *c); /* NULL ok */
size_t od_constraint_size(const struct od_constraint *c); /* bytes, about; any thread */

const struct od_vocab *od_constraint_vocab(const struct od_constraint *c);

uint32_t od_constraint_start(const struct od_constraint *c);
/* *mask: [(n_tokens + 63) / 64] bit t % 64 of mask[t / 64] is set if token t is allowed; it holds until the next call.
 * Tokens that end a text are not in it. Fails when the text needs too much work or memory, or no token fits. */
OD_MUST_CHECK int od_constraint_mask(struct od_constraint *c, uint32_t state, const uint64_t **mask,
				     struct od_err *err);
/* The state behind a token; OD_STATE_DEAD: it is not allowed. */
uint32_t od_constraint_step(struct od_constraint *c, uint32_t state, int32_t token);
bool od_constraint_ends(const struct od_constraint *c, uint32_t state); /* the text may end here */
bool od_constraint_is_over(const struct od_constraint *c, uint32_t state); /* and nothing can follow */
/* The bytes that must follow, at most size of them; returns their number. */
size_t od_constraint_forced(struct od_constraint *c, uint32_t state, char *bytes, size_t size);

/* Sets the logits [n_tokens] of tokens that are not allowed to minus infinity. */
void od_mask_apply(const uint64_t *mask, float *logits, uint32_t n_tokens);

#endif
