#include "common/text/jinja/jinja_parse_expr.h"

#include "common/text/jinja/jinja_parse.h"

#include <string.h>

#include "common/text/jinja/jinja_tests.h"

static struct jinja_node *parse_or(struct jinja_parser *p);
static struct jinja_node *parse_unary(struct jinja_parser *p, bool with_filter);

static struct jinja_node *binary(struct jinja_parser *p, enum jinja_node_kind kind, enum jinja_token_type op,
				 uint32_t line, struct jinja_node *a, struct jinja_node *b)
{
	struct jinja_node *n = jinja_node_new(p, kind, line);

	n->op.op = op;
	n->op.a = a;
	n->op.b = b;
	return n;
}

struct jinja_node *jinja_parse_expression(struct jinja_parser *p)
{
	const bool branch = p->branch;
	struct jinja_node *value, *n;

	jinja_enter(p->j);
	value = parse_or(p);
	while (jinja_at_name(p, "if")) {
		n = jinja_node_new(p, N_CHOICE, p->token->line);
		jinja_next(p);
		p->branch = true;
		n->choice.yes = value;
		n->choice.test = parse_or(p);
		if (jinja_skip_name(p, "else"))
			n->choice.no = jinja_parse_expression(p);
		value = n;
	}
	p->branch = branch;
	jinja_leave(p->j);
	return value;
}

static struct jinja_node *parse_compare(struct jinja_parser *p);

static struct jinja_node *parse_not(struct jinja_parser *p)
{
	struct jinja_node *n;
	uint32_t line = p->token->line;

	if (!jinja_skip_name(p, "not"))
		return parse_compare(p);
	jinja_enter(p->j);
	n = binary(p, N_NOT, T_END, line, parse_not(p), NULL);
	jinja_leave(p->j);
	return n;
}

static struct jinja_node *parse_and(struct jinja_parser *p)
{
	struct jinja_node *left = parse_not(p);
	uint32_t line = p->token->line;

	while (jinja_skip_name(p, "and")) {
		left = binary(p, N_AND, T_END, line, left, parse_not(p));
		line = p->token->line;
	}
	return left;
}

static struct jinja_node *parse_or(struct jinja_parser *p)
{
	struct jinja_node *left = parse_and(p);
	uint32_t line = p->token->line;

	while (jinja_skip_name(p, "or")) {
		left = binary(p, N_OR, T_END, line, left, parse_and(p));
		line = p->token->line;
	}
	return left;
}

static struct jinja_node *parse_product(struct jinja_parser *p);

static struct jinja_node *parse_concat(struct jinja_parser *p)
{
	struct jinja_node *first = parse_product(p), *n;

	if (!jinja_at(p, T_TILDE))
		return first;
	n = jinja_node_new(p, N_CONCAT, p->token->line);
	jinja_nodes_add(p, &n->items, first);
	while (jinja_skip(p, T_TILDE))
		jinja_nodes_add(p, &n->items, parse_product(p));
	return n;
}

static struct jinja_node *parse_sum(struct jinja_parser *p)
{
	struct jinja_node *left = parse_concat(p);

	while (jinja_at(p, T_ADD) || jinja_at(p, T_SUB)) {
		const struct jinja_token *op = p->token;

		jinja_next(p);
		left = binary(p, N_BINARY, op->type, op->line, left, parse_concat(p));
	}
	return left;
}

static bool compare_op(struct jinja_parser *p, enum jinja_compare_op *op)
{
	static const struct {
		enum jinja_token_type token;
		enum jinja_compare_op op;
	} ops[] = { { T_EQ, C_EQ }, { T_NE, C_NE }, { T_LT, C_LT }, { T_LE, C_LE }, { T_GT, C_GT }, { T_GE, C_GE } };

	for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
		if (jinja_skip(p, ops[i].token)) {
			*op = ops[i].op;
			return true;
		}
	}
	*op = C_IN;
	if (jinja_skip_name(p, "in"))
		return true;
	if (!jinja_at_name(p, "not") || p->token[1].type != T_NAME || !jinja_str_is(p->token[1].s, "in"))
		return false;
	*op = C_NOT_IN;
	jinja_next(p);
	jinja_next(p);
	return true;
}

static struct jinja_node *parse_compare(struct jinja_parser *p)
{
	uint32_t line = p->token->line;
	struct jinja_node *first = parse_sum(p), *n = NULL;
	enum jinja_compare_op op;
	size_t cap = 0;

	while (compare_op(p, &op)) {
		if (n == NULL) {
			n = jinja_node_new(p, N_COMPARE, line);
			n->compare.first = first;
		}
		jinja_grow(p->j, &n->compare.ops, n->compare.rest.n, &cap, sizeof(op));
		n->compare.ops[n->compare.rest.n] = op;
		jinja_nodes_add(p, &n->compare.rest, parse_sum(p));
	}
	return n != NULL ? n : first;
}

static struct jinja_node *parse_power(struct jinja_parser *p)
{
	struct jinja_node *left = parse_unary(p, true);

	while (jinja_at(p, T_POW)) {
		uint32_t line = p->token->line;

		jinja_next(p);
		left = binary(p, N_BINARY, T_POW, line, left, parse_unary(p, true));
	}
	return left;
}

static struct jinja_node *parse_product(struct jinja_parser *p)
{
	struct jinja_node *left = parse_power(p);

	while (jinja_at(p, T_MUL) || jinja_at(p, T_DIV) || jinja_at(p, T_FLOORDIV) || jinja_at(p, T_MOD)) {
		const struct jinja_token *op = p->token;

		jinja_next(p);
		left = binary(p, N_BINARY, op->type, op->line, left, parse_power(p));
	}
	return left;
}

/* ---- calls, filters, tests ---- */

static void add_keyword(struct jinja_parser *p, struct jinja_arguments *a, size_t *cap)
{
	for (size_t i = 0; i < a->value.n; i++)
		if (jinja_str_compare(a->keyword[i].s, p->token->s) == 0)
			jinja_fail(p->j, OD_ERR_FORMAT, "the argument '%.*s' is given twice",
				   (int)(p->token->s->len < 60 ? p->token->s->len : 60), p->token->s->p);
	jinja_grow(p->j, &a->keyword, a->value.n, cap, sizeof(*a->keyword));
	a->keyword[a->value.n] = jinja_of_str(p->token->s);
	jinja_next(p);
	jinja_next(p);
	jinja_nodes_add(p, &a->value, jinja_parse_expression(p));
}

static void parse_arguments(struct jinja_parser *p, struct jinja_arguments *a)
{
	size_t cap = 0;

	jinja_expect(p, T_LPAREN);
	for (bool first = true; !jinja_at(p, T_RPAREN); first = false) {
		if (!first) {
			jinja_expect(p, T_COMMA);
			if (jinja_at(p, T_RPAREN))
				break;
		}
		if (a->more_kw != NULL)
			jinja_unexpected(p, "')' after **");
		if (jinja_skip(p, T_POW)) {
			a->more_kw = jinja_parse_expression(p);
		} else if (jinja_at(p, T_MUL) && a->more_pos == NULL) {
			jinja_next(p);
			a->more_pos = jinja_parse_expression(p);
		} else if (jinja_at(p, T_NAME) && p->token[1].type == T_ASSIGN) {
			add_keyword(p, a, &cap);
		} else if (a->value.n > 0 || a->more_pos != NULL) {
			jinja_unexpected(p, "a keyword argument after keyword arguments");
		} else {
			jinja_nodes_add(p, &a->pos, jinja_parse_expression(p));
		}
	}
	jinja_expect(p, T_RPAREN);
}

static struct jinja_node *parse_call(struct jinja_parser *p, struct jinja_node *callee)
{
	struct jinja_node *n = jinja_node_new(p, N_CALL, p->token->line);

	n->call.callee = callee;
	parse_arguments(p, &n->call.args);
	return n;
}

struct jinja_node *jinja_parse_filters(struct jinja_parser *p, struct jinja_node *of, bool first)
{
	while (first || jinja_skip(p, T_PIPE)) {
		struct jinja_node *n = jinja_node_new(p, N_FILTER, p->token->line);
		const struct jinja_str *name = jinja_expect_name(p);

		n->apply.of = of;
		n->apply.name = name;
		n->apply.function = jinja_find_filter(name);
		if (n->apply.function == NULL && !p->branch)
			jinja_fail_unknown(p->j, "filter", name);
		if (jinja_at(p, T_LPAREN))
			parse_arguments(p, &n->apply.args);
		of = n;
		first = false;
	}
	return of;
}

static struct jinja_node *parse_item(struct jinja_parser *p, struct jinja_node *of);

static struct jinja_node *parse_postfix(struct jinja_parser *p, struct jinja_node *n)
{
	for (;;) {
		if (jinja_at(p, T_DOT) || jinja_at(p, T_LBRACKET))
			n = parse_item(p, n);
		else if (jinja_at(p, T_LPAREN))
			n = parse_call(p, n);
		else
			return n;
	}
}

static bool begins_argument(const struct jinja_parser *p)
{
	if (jinja_at(p, T_NAME))
		return !jinja_at_name(p, "else") && !jinja_at_name(p, "or") && !jinja_at_name(p, "and");
	return jinja_at(p, T_STRING) || jinja_at(p, T_INT) || jinja_at(p, T_FLOAT) || jinja_at(p, T_LBRACKET) ||
	       jinja_at(p, T_LBRACE);
}

static struct jinja_node *parse_test(struct jinja_parser *p, struct jinja_node *of)
{
	uint32_t line = p->token->line;
	struct jinja_node *n = jinja_node_new(p, N_TEST, line);
	const struct jinja_str *name;
	bool negated;

	jinja_next(p); /* is */
	negated = jinja_skip_name(p, "not");
	name = jinja_expect_name(p);
	n->apply.of = of;
	n->apply.name = name;
	n->apply.function = jinja_find_test(name);
	if (n->apply.function == NULL && !p->branch)
		jinja_fail_unknown(p->j, "test", name);
	if (jinja_at(p, T_LPAREN)) {
		parse_arguments(p, &n->apply.args);
	} else if (begins_argument(p)) {
		if (jinja_at_name(p, "is"))
			jinja_unexpected(p, "something other than a second test");
		jinja_nodes_add(p, &n->apply.args.pos, parse_postfix(p, jinja_parse_primary(p, false)));
	}
	return negated ? binary(p, N_NOT, T_END, line, n, NULL) : n;
}

static struct jinja_node *parse_filters_and_tests(struct jinja_parser *p, struct jinja_node *n)
{
	for (;;) {
		if (jinja_at(p, T_PIPE))
			n = jinja_parse_filters(p, n, false);
		else if (jinja_at_name(p, "is"))
			n = parse_test(p, n);
		else if (jinja_at(p, T_LPAREN))
			n = parse_call(p, n);
		else
			return n;
	}
}

/* A sign binds to what follows without its filters: -1|abs is 1. */
static struct jinja_node *parse_unary(struct jinja_parser *p, bool with_filter)
{
	uint32_t line = p->token->line;
	struct jinja_node *n;

	jinja_enter(p->j);
	if (jinja_skip(p, T_SUB))
		n = binary(p, N_NEGATE, T_END, line, parse_unary(p, false), NULL);
	else if (jinja_skip(p, T_ADD))
		n = binary(p, N_PLUS, T_END, line, parse_unary(p, false), NULL);
	else
		n = jinja_parse_primary(p, false);
	n = parse_postfix(p, n);
	if (with_filter)
		n = parse_filters_and_tests(p, n);
	jinja_leave(p->j);
	return n;
}

/* ---- subscripts ---- */

static struct jinja_node *constant(struct jinja_parser *p, struct jinja_value v)
{
	struct jinja_node *n = jinja_node_new(p, N_CONST, p->token->line);

	n->constant = v;
	return n;
}

static bool ends_slice_bound(const struct jinja_parser *p)
{
	return jinja_at(p, T_COLON) || jinja_at(p, T_RBRACKET) || jinja_at(p, T_COMMA);
}

static struct jinja_node *parse_index(struct jinja_parser *p)
{
	struct jinja_node *n, *begin = NULL;
	uint32_t line = p->token->line;

	if (!jinja_at(p, T_COLON)) {
		begin = jinja_parse_expression(p);
		if (!jinja_at(p, T_COLON))
			return begin;
	}
	jinja_next(p);
	n = jinja_node_new(p, N_SLICE, line);
	n->slice.begin = begin;
	if (!ends_slice_bound(p))
		n->slice.end = jinja_parse_expression(p);
	if (jinja_skip(p, T_COLON) && !ends_slice_bound(p))
		n->slice.step = jinja_parse_expression(p);
	return n;
}

static struct jinja_node *parse_brackets(struct jinja_parser *p)
{
	struct jinja_node *first, *tuple;

	if (jinja_at(p, T_RBRACKET)) { /* an empty tuple, in jinja2 */
		first = jinja_node_new(p, N_TUPLE, p->token->line);
	} else {
		first = parse_index(p);
		if (jinja_at(p, T_COMMA)) {
			tuple = jinja_node_new(p, N_TUPLE, p->token->line);
			jinja_nodes_add(p, &tuple->items, first);
			while (!jinja_at(p, T_RBRACKET)) {
				jinja_expect(p, T_COMMA);
				jinja_nodes_add(p, &tuple->items, parse_index(p));
			}
			first = tuple;
		}
	}
	jinja_expect(p, T_RBRACKET);
	return first;
}

static struct jinja_node *parse_item(struct jinja_parser *p, struct jinja_node *of)
{
	struct jinja_node *n = jinja_node_new(p, N_ITEM, p->token->line);

	n->item.of = of;
	if (jinja_skip(p, T_LBRACKET)) {
		n->item.index = parse_brackets(p);
		return n;
	}
	jinja_next(p); /* . */
	if (jinja_at(p, T_INT)) {
		n->item.index = constant(p, jinja_int(p->token->i));
		jinja_next(p);
		return n;
	}
	n->kind = N_ATTRIBUTE;
	n->attribute.of = of;
	n->attribute.name = jinja_expect_name(p);
	return n;
}

/* ---- literals and names ---- */

static struct jinja_node *parse_list(struct jinja_parser *p)
{
	struct jinja_node *n = jinja_node_new(p, N_LIST, p->token->line);

	jinja_next(p);
	while (!jinja_at(p, T_RBRACKET)) {
		jinja_nodes_add(p, &n->items, jinja_parse_expression(p));
		if (!jinja_at(p, T_RBRACKET))
			jinja_expect(p, T_COMMA);
	}
	jinja_next(p);
	return n;
}

static struct jinja_node *parse_dict(struct jinja_parser *p)
{
	struct jinja_node *n = jinja_node_new(p, N_DICT, p->token->line);

	jinja_next(p);
	while (!jinja_at(p, T_RBRACE)) {
		jinja_nodes_add(p, &n->dict.keys, jinja_parse_expression(p));
		jinja_expect(p, T_COLON);
		jinja_nodes_add(p, &n->dict.values, jinja_parse_expression(p));
		if (!jinja_at(p, T_RBRACE))
			jinja_expect(p, T_COMMA);
	}
	jinja_next(p);
	return n;
}

static struct jinja_node *parse_strings(struct jinja_parser *p)
{
	struct jinja_text t = { 0 };
	const struct jinja_str *s = p->token->s;
	struct jinja_node *n;

	n = constant(p, jinja_of_str(s));
	if (p->token[1].type == T_STRING) { /* one behind the other is one string */
		for (const struct jinja_token *k = p->token; k->type == T_STRING; k++)
			jinja_add(p->j, &t, k->s->p, k->s->len);
		n->constant = jinja_text_value(p->j, &t);
	}
	while (jinja_at(p, T_STRING))
		jinja_next(p);
	return n;
}

static struct jinja_node *parse_name(struct jinja_parser *p, bool with_member)
{
	const struct jinja_str *name = p->token->s;
	struct jinja_node *n = jinja_node_new(p, N_CONST, p->token->line);

	jinja_next(p);
	if (jinja_str_is(name, "true") || jinja_str_is(name, "True")) {
		n->constant = jinja_bool(true);
	} else if (jinja_str_is(name, "false") || jinja_str_is(name, "False")) {
		n->constant = jinja_bool(false);
	} else if (jinja_str_is(name, "none") || jinja_str_is(name, "None")) {
		n->constant = JINJA_NONE_VALUE;
	} else if (with_member && jinja_skip(p, T_DOT)) {
		n->kind = N_MEMBER;
		n->member.name = jinja_name_id(p, name);
		n->member.attribute = jinja_expect_name(p);
	} else {
		n->kind = N_NAME;
		n->name = jinja_name_id(p, name);
		if (n->name < JINJA_N_KNOWN)
			for (struct jinja_macro_names *m = p->macros; m != NULL; m = m->outer)
				m->known[n->name] = true;
	}
	return n;
}

struct jinja_node *jinja_parse_primary(struct jinja_parser *p, bool with_member)
{
	struct jinja_node *n;

	if (jinja_at(p, T_NAME))
		return parse_name(p, with_member);
	if (jinja_at(p, T_STRING))
		return parse_strings(p);
	if (jinja_at(p, T_LBRACKET))
		return parse_list(p);
	if (jinja_at(p, T_LBRACE))
		return parse_dict(p);
	if (jinja_skip(p, T_LPAREN)) {
		n = jinja_parse_tuple(p, JINJA_PARENTHESES, NULL);
		jinja_expect(p, T_RPAREN);
		return n;
	}
	if (!jinja_at(p, T_INT) && !jinja_at(p, T_FLOAT))
		jinja_unexpected(p, "an expression");
	n = constant(p, jinja_at(p, T_INT) ? jinja_int(p->token->i) : jinja_float(p->token->f));
	jinja_next(p);
	return n;
}

static bool ends_tuple(const struct jinja_parser *p, const char *end)
{
	return jinja_at(p, T_VARIABLE_END) || jinja_at(p, T_BLOCK_END) || jinja_at(p, T_RPAREN) ||
	       (end != NULL && jinja_at_name(p, end));
}

static struct jinja_node *parse_tuple_item(struct jinja_parser *p, unsigned flags)
{
	if ((flags & JINJA_SIMPLE) != 0)
		return jinja_parse_primary(p, (flags & JINJA_WITH_MEMBER) != 0);
	return (flags & JINJA_NO_CHOICE) != 0 ? parse_or(p) : jinja_parse_expression(p);
}

struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, unsigned flags, const char *end)
{
	struct jinja_node *n = jinja_node_new(p, N_TUPLE, p->token->line);
	bool is_tuple = false;

	jinja_enter(p->j);
	while (!ends_tuple(p, end)) {
		jinja_nodes_add(p, &n->items, parse_tuple_item(p, flags));
		if (!jinja_skip(p, T_COMMA))
			break;
		is_tuple = true;
	}
	jinja_leave(p->j);
	if (is_tuple)
		return n;
	if (n->items.n == 1)
		return n->items.v[0];
	if ((flags & JINJA_PARENTHESES) == 0)
		jinja_unexpected(p, "an expression");
	return n;
}
