/* grammar.h - a context-free grammar whose terminals are regular expressions over bytes.
 *
 * Nodes are numbers, made bottom up; rules can be used before they are defined. What JSON needs beyond that: a level is
 * a node within which the indentation may be larger, and space is the white space that may stand between two tokens of
 * JSON: none, one space, or a line break and at most two spaces a level.
 *
 * A grammar that lacks memory fails for good, as its pool of expressions does (re.h): od_grammar_finish says so.
 * Thread: one at a time. Owner: od_grammar_new's caller, until an automaton takes it. */
#ifndef OD_GRAMMAR_GRAMMAR_H
#define OD_GRAMMAR_GRAMMAR_H

#include "common/grammar/re.h"

#define OD_SYNTAX_EMPTY 0u /* the empty text */
#define OD_SYNTAX_NONE 1u /* nothing matches */

enum od_syntax_kind {
	OD_SYNTAX_IS_EMPTY,
	OD_SYNTAX_IS_NONE,
	OD_SYNTAX_RE, /* a: expression */
	OD_SYNTAX_CAT, /* a, then b */
	OD_SYNTAX_ALT, /* list[a ... a + b) */
	OD_SYNTAX_REPEAT, /* min to max times a */
	OD_SYNTAX_RULE, /* a: number of the rule */
	OD_SYNTAX_LEVEL, /* a, one level deeper */
	OD_SYNTAX_LEVEL_END, /* ends a level; within the automaton only */
	OD_SYNTAX_SPACE,
};

struct od_syntax {
	enum od_syntax_kind kind;
	uint32_t a, b, min, max;
	/* valid when the grammar is finished: it matches some text; the empty one */
	bool productive, nullable;
};

struct od_grammar;

OD_MUST_CHECK int od_grammar_new(struct od_grammar **out, struct od_err *err);
void od_grammar_free(struct od_grammar *g); /* NULL ok */
struct od_re_pool *od_grammar_res(struct od_grammar *g); /* the pool for its expressions */
size_t od_grammar_memory(const struct od_grammar *g); /* bytes */

uint32_t od_syntax_re(struct od_grammar *g, uint32_t re);
uint32_t od_syntax_text(struct od_grammar *g, const char *text, size_t len);
uint32_t od_syntax_cat(struct od_grammar *g, uint32_t a, uint32_t b);
uint32_t od_syntax_alt(struct od_grammar *g, const uint32_t *node, size_t n);
uint32_t od_syntax_or(struct od_grammar *g, uint32_t a, uint32_t b);
/* max may be OD_RE_NO_LIMIT. */
uint32_t od_syntax_repeat(struct od_grammar *g, uint32_t a, uint32_t min, uint32_t max);
uint32_t od_syntax_level(struct od_grammar *g, uint32_t a);
uint32_t od_syntax_space(struct od_grammar *g);
/* A new rule, to be defined once. The name is for errors; NULL: none. */
uint32_t od_syntax_rule(struct od_grammar *g, const char *name);
void od_syntax_define(struct od_grammar *g, uint32_t rule, uint32_t body);

/* Checks the grammar and closes it: OD_ERR_UNSUPPORTED for left recursion, which names a rule; OD_ERR_ARG if no text
 * matches root. */
OD_MUST_CHECK int od_grammar_finish(struct od_grammar *g, uint32_t root, struct od_err *err);

/* For the automaton. */
const struct od_syntax *od_grammar_node(const struct od_grammar *g, uint32_t node);
uint32_t od_grammar_member(const struct od_grammar *g, const struct od_syntax *alt, uint32_t i);
uint32_t od_grammar_body(const struct od_grammar *g, const struct od_syntax *rule);
uint32_t od_grammar_rules(const struct od_grammar *g); /* their number */
/* A number below that, of its own, and above those of all rules with which the rule can begin. */
uint32_t od_grammar_order(const struct od_grammar *g, const struct od_syntax *rule);
uint32_t od_grammar_root(const struct od_grammar *g);
/* The node for what is left of a repetition behind one time. */
uint32_t od_grammar_rest(struct od_grammar *g, uint32_t repeat);
uint32_t od_grammar_level_end(struct od_grammar *g);
int od_grammar_failed(const struct od_grammar *g); /* OD_OK, or OD_ERR_NOMEM, OD_ERR_RANGE */

#endif
