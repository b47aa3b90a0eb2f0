/* regex.h - regular expressions as texts write them (ECMA-262's syntax, as JSON Schema and vLLM use it), as expressions
 * of a pool.
 *
 * Characters are those of Unicode; \d, \w and \s are digits, letters and white space of ASCII. Where readers of
 * expressions differ, as in \D and [^\w] beyond ASCII, a text matches only if it does for all of them. Done are
 * alternatives, groups, classes, repetitions (lazy ones match the same texts), escapes, ^ and $, and look-aheads
 * behind ^ at the start. Refused by name are back references, look-behinds, word boundaries and \p.
 * Thread: as the pool's. */
#ifndef OD_GRAMMAR_REGEX_H
#define OD_GRAMMAR_REGEX_H

#include "common/grammar/chars.h"

#define OD_MAX_PATTERN_BYTES 65536u

/* *re: the texts that match the pattern [len]; search: of which some part matches. In JSON each character has one
 * spelling (OD_WRITE_JSON). The error's text says what is wrong, and where. */
OD_MUST_CHECK int od_regex_compile(struct od_re_pool *p, const char *pattern, size_t len, enum od_writing w,
				   bool search, uint32_t *re, struct od_err *err);
/* The texts of which some part matches for one reader at least: others match for none. */
OD_MUST_CHECK int od_regex_compile_wide(struct od_re_pool *p, const char *pattern, size_t len, enum od_writing w,
					uint32_t *re, struct od_err *err);

#endif
