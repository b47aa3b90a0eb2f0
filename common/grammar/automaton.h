/* automaton.h - the pushdown automaton of a grammar, deterministic, and built as it is needed.
 *
 * A state is the set of all ways in which the text so far can be read: for each, the expression that is being matched
 * and the stack of nodes that follow. Stacks that go on alike are shared and joined, as in a graph-structured stack
 * (Tomita 1987), and equal sets have equal numbers. So a state is a number, and a step is a look into a table once it
 * has been made. Every state can still come to an end of the grammar: dead ends are never entered.
 *
 * An automaton that lacks memory, or needs too much work, fails for good: od_automaton_check says why, and steps then
 * lead to OD_STATE_DEAD.
 * Thread: one at a time. Owner: od_automaton_new's caller. */
#ifndef OD_GRAMMAR_AUTOMATON_H
#define OD_GRAMMAR_AUTOMATON_H

#include "common/grammar/grammar.h"

#define OD_STATE_DEAD 0u /* no text of the grammar goes on like this */

struct od_automaton;

/* Takes the grammar, which is finished, also on failure. */
OD_MUST_CHECK int od_automaton_new(struct od_automaton **out, struct od_grammar *g, struct od_err *err);
void od_automaton_free(struct od_automaton *a); /* NULL ok */
OD_MUST_CHECK int od_automaton_check(const struct od_automaton *a, struct od_err *err);
size_t od_automaton_memory(const struct od_automaton *a); /* bytes */
struct od_re_pool *od_automaton_res(struct od_automaton *a);

uint32_t od_automaton_start(const struct od_automaton *a);
uint32_t od_automaton_step(struct od_automaton *a, uint32_t state, uint8_t byte);
bool od_automaton_ends(const struct od_automaton *a, uint32_t state); /* the text may end here */
/* True: only this byte can follow, and the text may not end. False: there may be several, or it is not known. */
bool od_automaton_forced(const struct od_automaton *a, uint32_t state, uint8_t *byte);

/* The ways of a state: the expression, and what follows it. */
size_t od_automaton_ways(const struct od_automaton *a, uint32_t state);
void od_automaton_way(const struct od_automaton *a, uint32_t state, size_t i, uint32_t *re, uint32_t *stack);
/* The state in which the text is when the expression before this stack has ended. */
uint32_t od_automaton_after(struct od_automaton *a, uint32_t stack);

#endif
