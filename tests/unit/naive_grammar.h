/* naive_grammar.h - a grammar, and a recogniser that is as plain as can be (Earley 1970, each column closed by going
 * over it until nothing is new), for tests of the automaton.
 *
 * Thread: one at a time. Owner: plain data, the caller's. */
#ifndef OD_TESTS_NAIVE_GRAMMAR_H
#define OD_TESTS_NAIVE_GRAMMAR_H

#include "common/grammar/grammar.h"

#define NAIVE_NODES 64
#define NAIVE_RULES 4
#define NAIVE_NO_LIMIT UINT32_MAX

enum naive_kind {
	NAIVE_TEXT,
	NAIVE_SET, /* one of the bytes of text */
	NAIVE_CAT,
	NAIVE_ALT, /* a or b */
	NAIVE_REPEAT,
	NAIVE_RULE, /* a: number of the rule */
	NAIVE_BRACKETS, /* [, space, a, space, ]: a is one level deeper, and so is the space before it */
};

struct naive_node {
	enum naive_kind kind;
	char text[40];
	unsigned a, b; /* earlier nodes */
	uint32_t min, max;
	bool as_re; /* becomes an expression, if it is regular */
};

struct naive_grammar {
	struct naive_node node[NAIVE_NODES];
	unsigned n, n_rules, root;
	unsigned body[NAIVE_RULES];
};

unsigned naive_text(struct naive_grammar *g, enum naive_kind kind, const char *text);
unsigned naive_node(struct naive_grammar *g, enum naive_kind kind, unsigned a, unsigned b, uint32_t min, uint32_t max);

/* Writes the grammar for the automaton; *root: its root. g is not finished yet. */
void naive_build(const struct naive_grammar *n, struct od_grammar *g, uint32_t *root);
/* True: a rule can begin with itself. */
bool naive_left_recursive(const struct naive_grammar *n);
bool naive_matches_any(const struct naive_grammar *n); /* some text */

struct naive_reader;
struct naive_reader *naive_reader_new(const struct naive_grammar *g);
void naive_reader_free(struct naive_reader *r);
/* Goes back to the first len bytes of the text. */
void naive_cut(struct naive_reader *r, unsigned len);
/* False: no text of the grammar begins like this; the byte is not added then. */
bool naive_read(struct naive_reader *r, uint8_t byte);
bool naive_ends(const struct naive_reader *r); /* the text is one of the grammar */
unsigned naive_length(const struct naive_reader *r);

#endif
