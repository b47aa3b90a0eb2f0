/* json_schema_internal.h - what the files of json_schema share. Thread and owner: json_schema.h. */
#ifndef OD_GRAMMAR_JSON_SCHEMA_INTERNAL_H
#define OD_GRAMMAR_JSON_SCHEMA_INTERNAL_H

#include "common/grammar/json_schema.h"

#include "common/grammar/chars.h"

#define SCHEMA_MAX_PARTS 64u /* schemas that a value must satisfy at once */
#define SCHEMA_MAX_LENGTH 1000000u /* length of strings and arrays; larger limits count as none */

/* JSON types. */
enum {
	SCHEMA_NULL = 1,
	SCHEMA_BOOLEAN = 2,
	SCHEMA_NUMBER = 4,
	SCHEMA_STRING = 8,
	SCHEMA_ARRAY = 16,
	SCHEMA_OBJECT = 32,
	SCHEMA_ALL = 63,
};

/* Schemas of which a value must satisfy all. In a leaf their $ref, allOf, anyOf and oneOf are resolved: what they name
 * stands beside them. */
struct schema_parts {
	const json_t *v[SCHEMA_MAX_PARTS];
	size_t n;
	bool never; /* nothing satisfies them */
};

struct schema;

/* Sets the compiler's error, once: path of the schema, keyword, text. Returns OD_RE_NONE, which is no node either. */
uint32_t schema_refuse(struct schema *s, const json_t *schema, const char *keyword, int code, const char *fmt, ...)
	OD_PRINTF(5, 6);
bool schema_failed(const struct schema *s);
struct od_grammar *schema_grammar(struct schema *s);
const struct od_json_style *schema_style(const struct schema *s);
bool schema_is_text(const struct schema *s); /* strings of the leaf are bare text */
/* Expressions that are made once: a character of a string in its one spelling, in any; a number, a key that nothing is
 * said of (OD_RE_NONE: not made yet). */
uint32_t schema_one_char(struct schema *s, enum od_writing w);
uint32_t schema_any_char(struct schema *s, enum od_writing w);
uint32_t *schema_any_number(struct schema *s, bool integer);
uint32_t *schema_any_key(struct schema *s);
void schema_spend(struct schema *s, uint64_t work); /* counts work, as od_re_spend */
uint32_t schema_space(struct schema *s); /* white space between two tokens */
uint32_t schema_colon(struct schema *s); /* expression: behind a key */
uint32_t schema_quoted(struct schema *s, uint32_t text); /* expression: a string with this text */
/* Adds a schema to parts; where: the schema that has it, with the keyword, and the name within that (NULL: none). */
void schema_add(struct schema *s, struct schema_parts *parts, const json_t *schema, const json_t *where,
		const char *keyword, const char *name);
/* The schema that this one's $ref names; NULL: there is none, and the compilation has failed. */
const json_t *schema_target(struct schema *s, const json_t *schema);
/* The rule for values of these parts. */
uint32_t schema_rule(struct schema *s, const struct schema_parts *parts);
/* A keyword's value, a whole number of 0 or more; false: it is not there. */
bool schema_count(struct schema *s, const json_t *schema, const char *keyword, uint32_t *out);
/* The text of a value that is no array or object. */
uint32_t schema_literal_re(struct schema *s, const json_t *value);
uint32_t schema_key(struct schema *s, const char *name); /* expression: a key */
/* Texts one behind the other, to be one expression: each of them. */
struct schema_words {
	struct od_strbuf text;
	size_t *end; /* [n] */
	size_t n;
};
uint32_t schema_words_re(struct schema *s, const struct schema_words *l);
bool schema_allows_strings(struct schema *s, const json_t *schema); /* by its type */
bool schema_matches(struct od_re_pool *p, uint32_t re, const char *text, size_t len);

/* Expressions for what the parts of a leaf say of one type. */
uint32_t schema_number_re(struct schema *s, const struct schema_parts *leaf, bool integer);
uint32_t schema_string_re(struct schema *s, const struct schema_parts *leaf);
/* The number with this text, exponents included, is one that they allow. */
bool schema_allows_number(struct schema *s, const struct schema_parts *leaf, bool integer, const char *text);
uint32_t schema_string_text(struct schema *s, const struct schema_parts *leaf); /* without quotes */
uint32_t schema_array(struct schema *s, const struct schema_parts *leaf);
uint32_t schema_object(struct schema *s, const struct schema_parts *leaf);

#endif
