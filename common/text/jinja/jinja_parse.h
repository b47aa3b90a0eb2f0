/* jinja_parse.h - what the two halves of the parser share: statements (jinja_parse.c), expressions
 * (jinja_parse_expr.c).
 *
 * Thread: as the job. */
#ifndef OD_TEXT_JINJA_PARSE_H
#define OD_TEXT_JINJA_PARSE_H

#include "common/text/jinja/jinja_ast.h"

struct jinja_macro_names { /* names that the bodies of the macros around read */
	struct jinja_macro_names *outer;
	bool known[JINJA_N_KNOWN];
};

struct jinja_parser {
	struct jinja_job *j;
	struct od_jinja *t;
	const struct jinja_token *token;
	struct jinja_macro_names *macros;
	unsigned loops; /* around, within the macro */
	unsigned all_loops; /* around */
	bool branch; /* within an `if`, no block in between: an unknown filter counts when it is reached */
};

/* ---- tokens ---- */
void jinja_next(struct jinja_parser *p);
bool jinja_at(const struct jinja_parser *p, enum jinja_token_type type);
bool jinja_at_name(const struct jinja_parser *p, const char *name);
bool jinja_skip(struct jinja_parser *p, enum jinja_token_type type); /* if it is there */
bool jinja_skip_name(struct jinja_parser *p, const char *name);
void jinja_expect(struct jinja_parser *p, enum jinja_token_type type);
const struct jinja_str *jinja_expect_name(struct jinja_parser *p);
_Noreturn void jinja_unexpected(struct jinja_parser *p, const char *expected);
uint32_t jinja_name_id(struct jinja_parser *p, const struct jinja_str *name);

struct jinja_node *jinja_node_new(struct jinja_parser *p, enum jinja_node_kind kind, uint32_t line);
void jinja_nodes_add(struct jinja_parser *p, struct jinja_nodes *list, struct jinja_node *n);

#endif
