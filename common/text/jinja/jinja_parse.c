#include "common/text/jinja/jinja_parse.h"

#include <stdlib.h>
#include <string.h>

#include "common/text/jinja/jinja_parse_expr.h"
#include "common/text/jinja/jinja_unicode.h"

#define MAX_TEMPLATE_BYTES ((size_t)4 << 20) /* published ones have up to 30 KiB */
#define MAX_PARSED_BYTES ((size_t)512 << 20)
#define MAX_PARSE_DEPTH 600u
#define MAX_PARSE_OPERATIONS 20000000u

/* ---- tokens ---- */

void jinja_next(struct jinja_parser *p)
{
	if (p->token->type != T_END)
		p->token++;
	p->j->line = p->token->line;
}

bool jinja_at(const struct jinja_parser *p, enum jinja_token_type type)
{
	return p->token->type == type;
}

bool jinja_at_name(const struct jinja_parser *p, const char *name)
{
	return p->token->type == T_NAME && jinja_str_is(p->token->s, name);
}

bool jinja_skip(struct jinja_parser *p, enum jinja_token_type type)
{
	if (!jinja_at(p, type))
		return false;
	jinja_next(p);
	return true;
}

bool jinja_skip_name(struct jinja_parser *p, const char *name)
{
	if (!jinja_at_name(p, name))
		return false;
	jinja_next(p);
	return true;
}

_Noreturn void jinja_unexpected(struct jinja_parser *p, const char *expected)
{
	if (jinja_at(p, T_NAME))
		jinja_fail(p->j, OD_ERR_FORMAT, "expected %s, found '%.*s'", expected,
			   (int)(p->token->s->len < 60 ? p->token->s->len : 60), p->token->s->p);
	jinja_fail(p->j, OD_ERR_FORMAT, "expected %s, found %s", expected, jinja_token_name(p->token->type));
}

void jinja_expect(struct jinja_parser *p, enum jinja_token_type type)
{
	if (!jinja_skip(p, type))
		jinja_unexpected(p, jinja_token_name(type));
}

const struct jinja_str *jinja_expect_name(struct jinja_parser *p)
{
	const struct jinja_str *name = p->token->s;

	jinja_expect(p, T_NAME);
	return name;
}

static void expect_word(struct jinja_parser *p, const char *word)
{
	char quoted[32] = "'";

	if (jinja_skip_name(p, word))
		return;
	strncat(quoted, word, sizeof(quoted) - 3);
	strncat(quoted, "'", 2);
	jinja_unexpected(p, quoted);
}

uint32_t jinja_name_id(struct jinja_parser *p, const struct jinja_str *name)
{
	struct od_jinja *t = p->t;

	jinja_charge(p->j, t->n_names / 8);
	for (size_t i = 0; i < t->n_names; i++)
		if (jinja_str_compare(t->names[i].s, name) == 0)
			return (uint32_t)i;
	jinja_grow(p->j, &t->names, t->n_names, &t->cap_names, sizeof(*t->names));
	t->names[t->n_names] = jinja_of_str(name);
	return (uint32_t)t->n_names++;
}

struct jinja_node *jinja_node_new(struct jinja_parser *p, enum jinja_node_kind kind, uint32_t line)
{
	struct jinja_node *n = jinja_alloc(p->j, sizeof(*n));

	n->kind = kind;
	n->line = line;
	return n;
}

void jinja_nodes_add(struct jinja_parser *p, struct jinja_nodes *list, struct jinja_node *n)
{
	jinja_grow(p->j, &list->v, list->n, &list->cap, sizeof(struct jinja_node *));
	list->v[list->n++] = n;
}

/* ---- statements ---- */

static void parse_body(struct jinja_parser *p, struct jinja_nodes *body, const char *const *ends);

/* The body of a block up to one of its end tags, of which the name is the current token then. */
static void parse_block(struct jinja_parser *p, struct jinja_nodes *body, const char *const *ends)
{
	const bool branch = p->branch;

	p->branch = false;
	jinja_skip(p, T_COLON);
	jinja_expect(p, T_BLOCK_END);
	parse_body(p, body, ends);
	p->branch = branch;
}

/* The body of an `if` is of the same scope as what is around it. */
static void parse_branch(struct jinja_parser *p, struct jinja_nodes *body, const char *const *ends)
{
	jinja_skip(p, T_COLON);
	jinja_expect(p, T_BLOCK_END);
	parse_body(p, body, ends);
}

static void parse_block_to(struct jinja_parser *p, struct jinja_nodes *body, const char *end)
{
	const char *const ends[] = { end, NULL };

	parse_block(p, body, ends);
	jinja_next(p);
}

static void check_target(struct jinja_parser *p, const struct jinja_node *n)
{
	if (n->kind == N_TUPLE) {
		for (size_t i = 0; i < n->items.n; i++)
			check_target(p, n->items.v[i]);
	} else if (n->kind != N_NAME && n->kind != N_MEMBER) {
		jinja_fail(p->j, OD_ERR_FORMAT, "expected a name to assign to, found another expression");
	} else if (n->kind == N_NAME && n->name == JINJA_NAME_LOOP && p->all_loops > 0) {
		jinja_fail(p->j, OD_ERR_FORMAT, "'loop' cannot be assigned to within a loop");
	}
}

static struct jinja_node *parse_target(struct jinja_parser *p, unsigned flags, const char *end)
{
	struct jinja_node *n = jinja_parse_tuple(p, JINJA_SIMPLE | flags, end);

	check_target(p, n);
	return n;
}

static struct jinja_node *parse_set(struct jinja_parser *p, uint32_t line)
{
	struct jinja_node *n = jinja_node_new(p, N_SET, line);

	n->set.target = parse_target(p, JINJA_WITH_MEMBER, NULL);
	if (jinja_skip(p, T_ASSIGN)) {
		n->set.value = jinja_parse_tuple(p, 0, NULL);
		return n;
	}
	n->kind = N_SET_BLOCK;
	n->set.value = jinja_parse_filters(p, NULL, false);
	parse_block_to(p, &n->set.body, "endset");
	return n;
}

static struct jinja_node *parse_for(struct jinja_parser *p, uint32_t line)
{
	static const char *const ends[] = { "else", "endfor", NULL };
	struct jinja_node *n = jinja_node_new(p, N_FOR, line);

	p->loops++;
	p->all_loops++;
	n->loop.target = parse_target(p, 0, "in");
	expect_word(p, "in");
	n->loop.iterable = jinja_parse_tuple(p, JINJA_NO_CHOICE, "recursive");
	if (jinja_skip_name(p, "if"))
		n->loop.test = jinja_parse_expression(p);
	n->loop.recursive = jinja_skip_name(p, "recursive");
	parse_block(p, &n->loop.body, ends);
	p->loops--;
	if (!jinja_skip_name(p, "endfor")) {
		jinja_next(p);
		parse_block_to(p, &n->loop.otherwise, "endfor");
	}
	p->all_loops--;
	return n;
}

static struct jinja_node *parse_if(struct jinja_parser *p, uint32_t line)
{
	static const char *const ends[] = { "elif", "else", "endif", NULL }, *const last[] = { "endif", NULL };
	const bool around = p->branch;
	struct jinja_node *first = jinja_node_new(p, N_IF, line), *n = first;

	p->branch = true;
	for (;;) {
		n->branch.test = jinja_parse_tuple(p, JINJA_NO_CHOICE, NULL);
		parse_branch(p, &n->branch.yes, ends);
		if (jinja_at_name(p, "elif")) {
			struct jinja_node *next = jinja_node_new(p, N_IF, p->token->line);

			jinja_next(p);
			jinja_nodes_add(p, &n->branch.no, next);
			n = next;
			continue;
		}
		if (jinja_skip_name(p, "else"))
			parse_branch(p, &n->branch.no, last);
		jinja_next(p);
		p->branch = around;
		return first;
	}
}

static struct jinja_node *parse_with(struct jinja_parser *p, uint32_t line)
{
	struct jinja_node *n = jinja_node_new(p, N_WITH, line);

	while (!jinja_at(p, T_BLOCK_END)) {
		if (n->with.targets.n > 0)
			jinja_expect(p, T_COMMA);
		jinja_nodes_add(p, &n->with.targets, parse_target(p, 0, NULL));
		jinja_expect(p, T_ASSIGN);
		jinja_nodes_add(p, &n->with.values, jinja_parse_expression(p));
	}
	parse_block_to(p, &n->with.body, "endwith");
	return n;
}

static void parse_params(struct jinja_parser *p, struct jinja_signature *s)
{
	size_t cap = 0;

	jinja_expect(p, T_LPAREN);
	while (!jinja_at(p, T_RPAREN)) {
		uint32_t id;

		if (s->n_params > 0)
			jinja_expect(p, T_COMMA);
		id = jinja_name_id(p, jinja_expect_name(p));
		for (size_t i = 0; i < s->n_params; i++)
			if (s->param[i] == id)
				jinja_fail(p->j, OD_ERR_FORMAT, "a macro has two parameters of the same name");
		jinja_grow(p->j, &s->param, s->n_params, &cap, sizeof(*s->param));
		s->param[s->n_params++] = id;
		if (jinja_skip(p, T_ASSIGN))
			jinja_nodes_add(p, &s->fallback, jinja_parse_expression(p));
		else if (s->fallback.n > 0)
			jinja_unexpected(p, "'=' (a parameter after one with a default needs one too)");
	}
	jinja_next(p);
}

static bool has_param(const struct jinja_signature *s, uint32_t id)
{
	for (size_t i = 0; i < s->n_params; i++)
		if (s->param[i] == id)
			return true;
	return false;
}

/* Python's closures: break and continue do not reach out of a macro, names do. */
static void parse_macro_body(struct jinja_parser *p, struct jinja_signature *s, const char *end)
{
	struct jinja_macro_names names = { .outer = p->macros };
	unsigned loops = p->loops;

	p->macros = &names;
	p->loops = 0;
	parse_block_to(p, &s->body, end);
	p->loops = loops;
	p->macros = names.outer;
	s->takes_caller = names.known[JINJA_NAME_CALLER] && !has_param(s, JINJA_NAME_CALLER);
	s->takes_kwargs = names.known[JINJA_NAME_KWARGS] && !has_param(s, JINJA_NAME_KWARGS);
	s->takes_varargs = names.known[JINJA_NAME_VARARGS] && !has_param(s, JINJA_NAME_VARARGS);
}

static struct jinja_node *parse_macro(struct jinja_parser *p, uint32_t line)
{
	struct jinja_node *n = jinja_node_new(p, N_MACRO, line);

	n->macro.signature.name = jinja_expect_name(p);
	n->macro.name = jinja_name_id(p, n->macro.signature.name);
	parse_params(p, &n->macro.signature);
	parse_macro_body(p, &n->macro.signature, "endmacro");
	return n;
}

static struct jinja_node *parse_call_block(struct jinja_parser *p, uint32_t line)
{
	struct jinja_node *n = jinja_node_new(p, N_CALL_BLOCK, line);

	if (jinja_at(p, T_LPAREN))
		parse_params(p, &n->macro.signature);
	n->macro.call = jinja_parse_expression(p);
	if (n->macro.call->kind != N_CALL)
		jinja_fail(p->j, OD_ERR_FORMAT, "expected a call of a macro, found another expression");
	parse_macro_body(p, &n->macro.signature, "endcall");
	return n;
}

static struct jinja_node *parse_filter_block(struct jinja_parser *p, uint32_t line)
{
	struct jinja_node *n = jinja_node_new(p, N_FILTER_BLOCK, line);

	n->filter_block.filter = jinja_parse_filters(p, NULL, true);
	parse_block_to(p, &n->filter_block.body, "endfilter");
	return n;
}

static struct jinja_node *parse_print(struct jinja_parser *p, uint32_t line)
{
	struct jinja_node *n = jinja_node_new(p, N_OUTPUT, line);

	while (!jinja_at(p, T_BLOCK_END)) {
		if (n->items.n > 0)
			jinja_expect(p, T_COMMA);
		jinja_nodes_add(p, &n->items, jinja_parse_expression(p));
	}
	return n;
}

/* Marks what the assistant wrote; of no effect on the text. */
static struct jinja_node *parse_generation(struct jinja_parser *p, uint32_t line)
{
	struct jinja_node *n = jinja_node_new(p, N_SCOPE, line);
	unsigned loops = p->loops;

	p->loops = 0;
	parse_block_to(p, &n->items, "endgeneration");
	p->loops = loops;
	return n;
}

static struct jinja_node *parse_jump(struct jinja_parser *p, uint32_t line, enum jinja_node_kind kind, const char *name)
{
	if (p->loops == 0)
		jinja_fail(p->j, OD_ERR_FORMAT, "'%s' is outside of a loop", name);
	return jinja_node_new(p, kind, line);
}

static struct jinja_node *parse_break(struct jinja_parser *p, uint32_t line)
{
	return parse_jump(p, line, N_BREAK, "break");
}

static struct jinja_node *parse_continue(struct jinja_parser *p, uint32_t line)
{
	return parse_jump(p, line, N_CONTINUE, "continue");
}

static struct jinja_node *parse_statement(struct jinja_parser *p)
{
	static const struct {
		const char *name;
		struct jinja_node *(*parse)(struct jinja_parser *, uint32_t line); /* NULL: not supported here */
	} tag[] = {
		{ "set", parse_set },
		{ "if", parse_if },
		{ "for", parse_for },
		{ "macro", parse_macro },
		{ "call", parse_call_block },
		{ "filter", parse_filter_block },
		{ "with", parse_with },
		{ "print", parse_print },
		{ "generation", parse_generation },
		{ "break", parse_break },
		{ "continue", parse_continue },
		{ "autoescape", NULL },
		{ "block", NULL },
		{ "extends", NULL },
		{ "from", NULL },
		{ "import", NULL },
		{ "include", NULL },
	};
	const uint32_t line = p->token->line;
	const struct jinja_str *name = jinja_expect_name(p);
	const int len = (int)(name->len < 60 ? name->len : 60);

	for (size_t i = 0; i < sizeof(tag) / sizeof(tag[0]); i++) {
		if (!jinja_str_is(name, tag[i].name))
			continue;
		if (tag[i].parse == NULL)
			jinja_fail(p->j, OD_ERR_UNSUPPORTED, "the tag '%.*s' is not supported in chat templates", len,
				   name->p);
		return tag[i].parse(p, line);
	}
	p->j->line = line;
	jinja_fail(p->j, OD_ERR_FORMAT, "unexpected tag '%.*s'", len, name->p);
}

static bool at_end_tag(const struct jinja_parser *p, const char *const *ends)
{
	for (; ends != NULL && *ends != NULL; ends++)
		if (jinja_at_name(p, *ends))
			return true;
	return false;
}

static struct jinja_node *parse_text(struct jinja_parser *p)
{
	struct jinja_node *n = jinja_node_new(p, N_TEXT, p->token->line);

	n->text = p->token->s;
	jinja_next(p);
	return n;
}

static struct jinja_node *parse_variable(struct jinja_parser *p)
{
	struct jinja_node *n = jinja_node_new(p, N_OUTPUT, p->token->line);

	jinja_next(p);
	jinja_nodes_add(p, &n->items, jinja_parse_tuple(p, 0, NULL));
	jinja_expect(p, T_VARIABLE_END);
	return n;
}

/* Up to an end tag, or to the end of the template if ends is NULL. */
static void parse_body(struct jinja_parser *p, struct jinja_nodes *body, const char *const *ends)
{
	jinja_enter(p->j);
	while (!jinja_at(p, T_END)) {
		if (jinja_at(p, T_DATA)) {
			jinja_nodes_add(p, body, parse_text(p));
		} else if (jinja_at(p, T_VARIABLE_BEGIN)) {
			jinja_nodes_add(p, body, parse_variable(p));
		} else {
			jinja_expect(p, T_BLOCK_BEGIN);
			if (at_end_tag(p, ends)) {
				jinja_leave(p->j);
				return;
			}
			jinja_nodes_add(p, body, parse_statement(p));
			jinja_expect(p, T_BLOCK_END);
		}
	}
	jinja_leave(p->j);
	if (ends != NULL) {
		size_t last = 0;

		while (ends[last + 1] != NULL)
			last++;
		expect_word(p, ends[last]);
	}
}

static void parse_template(struct od_jinja *t, const char *text, size_t len)
{
	static const char *const known[JINJA_N_KNOWN] = { "loop", "caller", "kwargs", "varargs" };
	struct jinja_parser p = { .j = &t->job, .t = t };
	size_t bad;

	t->job.line = 1;
	if (len > MAX_TEMPLATE_BYTES)
		jinja_fail(p.j, OD_ERR_RANGE, "expected at most %zu MiB, found %zu bytes", MAX_TEMPLATE_BYTES >> 20,
			   len);
	if (!jinja_utf8_valid(text, len, &bad)) {
		for (size_t i = 0; i < bad; i++)
			t->job.line += text[i] == '\n';
		jinja_fail(p.j, OD_ERR_FORMAT, "byte %zu is not valid UTF-8", bad);
	}
	for (size_t i = 0; i < JINJA_N_KNOWN; i++)
		jinja_name_id(&p, jinja_str_z(p.j, known[i]));
	p.token = jinja_lex(p.j, text, len);
	t->job.line = p.token->line;
	parse_body(&p, &t->body, NULL);
}

/* No local changes between here and a longjmp. */
static int parse_or_leave(struct od_jinja *t, const char *text, size_t len)
{
	if (setjmp(t->job.leave) != 0)
		return t->job.code;
	parse_template(t, text, len);
	return OD_OK;
}

int od_jinja_parse(struct od_jinja **out, const char *text, size_t len, const char *name, struct od_err *err)
{
	struct od_jinja *t = calloc(1, sizeof(*t));
	struct od_err ignored;
	size_t n_name = strlen(name);
	char *copy = malloc(n_name + 1);
	int rc;

	*out = NULL;
	if (t == NULL || copy == NULL) {
		free(t);
		free(copy);
		return od_fail(err, OD_ERR_NOMEM, "no memory for %s", name);
	}
	memcpy(copy, name, n_name + 1);
	t->job.name = copy;
	t->job.err = err != NULL ? err : &ignored;
	t->job.max_bytes = MAX_PARSED_BYTES;
	t->job.max_depth = MAX_PARSE_DEPTH;
	t->job.operations_left = MAX_PARSE_OPERATIONS;
	rc = parse_or_leave(t, text, len);
	t->job.err = NULL;
	if (rc != OD_OK) {
		od_jinja_free(t);
		return rc;
	}
	*out = t;
	return OD_OK;
}

void od_jinja_free(struct od_jinja *t)
{
	if (t == NULL)
		return;
	jinja_free_all(&t->job);
	free((char *)t->job.name);
	free(t);
}
