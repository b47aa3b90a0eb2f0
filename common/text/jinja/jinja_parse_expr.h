/* jinja_parse_expr.h - parses expressions; only for common/text/jinja.
 *
 * Thread: as the job. */
#ifndef OD_TEXT_JINJA_PARSE_EXPR_H
#define OD_TEXT_JINJA_PARSE_EXPR_H

#include "common/text/jinja/jinja_parse.h"

struct jinja_node *jinja_parse_expression(struct jinja_parser *p);
struct jinja_node *jinja_parse_primary(struct jinja_parser *p, bool with_member);

enum jinja_tuple_flags {
	JINJA_SIMPLE = 1, /* only names and literals */
	JINJA_NO_CHOICE = 2, /* no a if b else c */
	JINJA_PARENTHESES = 4, /* an empty tuple is one */
	JINJA_WITH_MEMBER = 8, /* with JINJA_SIMPLE: also NAME.ATTRIBUTE */
};
/* One expression, or a tuple where commas follow. end: a name that ends it, or NULL. */
struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, unsigned flags, const char *end);
/* "|name(...)|name": the filters of `of`. first: the bar of the first one was not written. */
struct jinja_node *jinja_parse_filters(struct jinja_parser *p, struct jinja_node *of, bool first);

#endif
