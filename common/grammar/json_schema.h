/* json_schema.h - a JSON schema (2020-12, and what earlier drafts write differently) as a grammar of JSON texts.
 *
 * The texts are those that the schema allows, written in one way of several: keys in the order of the schema, those
 * that it does not name at the end; white space as od_syntax_space, before all of it at most one space; numbers of at
 * most 40 digits before and behind the point, integers without point and exponent, with a minimum or maximum no
 * exponent at all; strings with a pattern or a format, and keys, with each character in one spelling. Properties that
 * the schema does not name never have the name of one that it does, and count as one for minProperties.
 *
 * A keyword that cannot be kept is refused with its path, never dropped; unknown ones are annotations, as the standard
 * has it.
 * Thread: as the grammar's. */
#ifndef OD_GRAMMAR_JSON_SCHEMA_H
#define OD_GRAMMAR_JSON_SCHEMA_H

#include <jansson.h>

#include "common/grammar/chars.h"
#include "common/grammar/grammar.h"

/* Adds the schema, an object or a boolean, to the grammar and finishes it. The error's text begins with the path:
 * "#/properties/a/not: ...". */
OD_MUST_CHECK int od_json_schema_compile(struct od_grammar *g, const json_t *schema, struct od_err *err);

/* How values are written. */
struct od_json_style {
	const char *quote; /* around strings */
	bool quote_is_symbol; /* it may be one (vocab.h), or spelled; a string has neither in it */
	enum od_writing writing; /* within them */
	bool bare_keys; /* without quotes */
	bool space; /* white space is allowed */
	/* A string that is the whole value is bare text, in which this does not occur; NULL: it has quotes, too. */
	const char *text_end;
};
extern const struct od_json_style od_json_style; /* JSON's own */

/* *root: the node for values of a schema within whole (they may be the same), in a grammar that has more; the caller
 * finishes it. Behind that, od_json_schema_check says whether branches of oneOf exclude each other, and frees check
 * (NULL ok). */
struct od_schema_check;
OD_MUST_CHECK int od_json_schema_syntax(struct od_grammar *g, const json_t *whole, const json_t *schema,
					const struct od_json_style *style, uint32_t *root,
					struct od_schema_check **check, struct od_err *err);
/* Where the schema is, for od_json_schema_check: stands before its path. */
void od_schema_check_label(struct od_schema_check *check, const char *label);
OD_MUST_CHECK int od_json_schema_check(const struct od_grammar *g, struct od_schema_check *check, struct od_err *err);

#endif
