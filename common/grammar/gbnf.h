/* gbnf.h - grammars as texts write them in GBNF, llama.cpp's notation, as nodes.
 *
 * Rules that do not lead to themselves become regular expressions, which are faster. A rule that is defined twice is
 * what the last definition says, as there. <text> is the special token of that text; tokens by number, <[7]>, and
 * negated ones, !<text>, are refused by name.
 * Thread: as the grammar's. */
#ifndef OD_GRAMMAR_GBNF_H
#define OD_GRAMMAR_GBNF_H

#include "common/grammar/grammar.h"

#define OD_MAX_GBNF_BYTES 65536u

/* *root: the node of the rule root; od_grammar_finish then refuses left recursion. The error's text says in which line,
 * and what was expected. */
OD_MUST_CHECK int od_gbnf_compile(struct od_grammar *g, const char *text, size_t len, uint32_t *root,
				  struct od_err *err);

#endif
