#include "common/grammar/gbnf.h"

#include "common/base/mem.h"
#include "common/base/strbuf.h"
#include "common/grammar/chars.h"
#include "common/grammar/vocab.h"

#include <stdlib.h>
#include <string.h>

#define MAX_NESTED 200 /* groups in groups */
#define MAX_STACKED 8 /* repetitions of repetitions, without a group between */
#define MAX_REPEAT 100000u
#define NAMES 65536u /* a power of two, above twice the names that fit into a text */

enum gbnf_kind { GBNF_CHARS, GBNF_TEXT, GBNF_RULE, GBNF_SEQUENCE, GBNF_CHOICE, GBNF_REPEAT };

struct gbnf_item {
	enum gbnf_kind kind;
	uint32_t min, max; /* GBNF_REPEAT */
	uint32_t rule; /* GBNF_RULE: its number */
	size_t at, len; /* GBNF_TEXT: its bytes */
	struct od_chars chars; /* GBNF_CHARS */
	struct gbnf_item *first, *last; /* children */
	struct gbnf_item *before, *next; /* siblings */
	struct gbnf_item *older; /* the item made before it, to free them all */
};

/* An expression, or a node if it leads to a rule that leads to itself. */
struct gbnf_made {
	bool is_node;
	uint32_t number;
};

struct gbnf_rule {
	const char *name; /* [len] */
	size_t len;
	size_t at; /* where it is named first */
	struct gbnf_item *body; /* NULL: not defined yet */
	struct gbnf_made made;
	uint32_t waits; /* mentions in it of rules that are no expressions yet */
	uint32_t mention; /* the last mention of it, plus one; 0: none */
};

/* A rule in the body of another. */
struct gbnf_mention {
	uint32_t by;
	uint32_t earlier; /* an earlier mention of the same rule, plus one; 0: none */
};

struct gbnf {
	struct od_grammar *g;
	struct od_re_pool *p;
	const char *text;
	size_t len, at;
	unsigned nested;
	struct gbnf_item *newest;
	struct od_strbuf bytes; /* all literals */
	struct gbnf_rule *rule; /* [n_rules], in the order in which they are named */
	size_t n_rules, cap_rules;
	uint32_t *names; /* [NAMES] rules plus one, by a hash of their names */
	struct gbnf_mention *mention;
	size_t n_mentions, cap_mentions;
	struct od_err *err;
	int rc;
};

/* ---- Reading ---- */

static size_t line_of(const struct gbnf *b, size_t at)
{
	size_t line = 1;

	for (size_t i = 0; i < at && i < b->len; i++)
		line += b->text[i] == '\n';
	return line;
}

static struct gbnf_item *refuse(struct gbnf *b, int code, const char *what)
{
	if (b->rc == OD_OK)
		b->rc = od_fail(b->err, code, "line %zu: %s", line_of(b, b->at), what);
	return NULL;
}

static bool grow(struct gbnf *b, void **v, size_t n, size_t *cap, size_t size)
{
	if (od_grow(v, n, 1, cap, size))
		return true;
	(void)refuse(b, OD_ERR_NOMEM, "no memory for a grammar");
	return false;
}

static struct gbnf_item *new_item(struct gbnf *b, enum gbnf_kind kind)
{
	struct gbnf_item *i = calloc(1, sizeof(*i));

	if (i == NULL)
		return refuse(b, OD_ERR_NOMEM, "no memory for a grammar");
	i->kind = kind;
	i->older = b->newest;
	b->newest = i;
	return i;
}

static void append(struct gbnf_item *parent, struct gbnf_item *child)
{
	child->before = parent->last;
	if (parent->last != NULL)
		parent->last->next = child;
	else
		parent->first = child;
	parent->last = child;
}

static bool next_is(const struct gbnf *b, char c)
{
	return b->at < b->len && b->text[b->at] == c;
}

static void skip_space(struct gbnf *b, bool lines)
{
	for (; b->at < b->len; b->at++) {
		const char c = b->text[b->at];

		if (c == '#')
			while (b->at + 1 < b->len && b->text[b->at + 1] != '\n' && b->text[b->at + 1] != '\r')
				b->at++;
		else if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r')))
			return;
	}
}

static bool is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* The number of the rule with the name at the cursor; UINT32_MAX: there is none. */
static uint32_t take_name(struct gbnf *b)
{
	const size_t begin = b->at;
	uint32_t hash = 2166136261u; /* FNV-1a */
	size_t slot;

	for (; b->at < b->len && is_word(b->text[b->at]); b->at++)
		hash = (hash ^ (uint8_t)b->text[b->at]) * 16777619u;
	if (b->at == begin) {
		(void)refuse(b, OD_ERR_FORMAT, "expected the name of a rule");
		return UINT32_MAX;
	}
	for (slot = hash & (NAMES - 1); b->names[slot] != 0; slot = (slot + 1) & (NAMES - 1)) {
		const struct gbnf_rule *r = &b->rule[b->names[slot] - 1];

		if (r->len == b->at - begin && memcmp(r->name, b->text + begin, r->len) == 0)
			return b->names[slot] - 1;
	}
	if (!grow(b, (void **)&b->rule, b->n_rules, &b->cap_rules, sizeof(*b->rule)))
		return UINT32_MAX;
	b->rule[b->n_rules] = (struct gbnf_rule){ .name = b->text + begin, .len = b->at - begin, .at = begin };
	b->names[slot] = (uint32_t)++b->n_rules;
	return b->names[slot] - 1;
}

/* n hexadecimal digits; UINT32_MAX: they are not there. */
static uint32_t take_hex(struct gbnf *b, size_t n)
{
	uint32_t c = 0;

	if (b->len - b->at < n)
		return UINT32_MAX;
	for (size_t i = 0; i < n; i++) {
		const char x = b->text[b->at + i], low = (char)(x | 0x20);

		if (x >= '0' && x <= '9')
			c = c << 4 | (uint32_t)(x - '0');
		else if (low >= 'a' && low <= 'f')
			c = c << 4 | (uint32_t)(low - 'a' + 10);
		else
			return UINT32_MAX;
	}
	b->at += n;
	return c;
}

static uint32_t take_escape(struct gbnf *b)
{
	const char c = b->at < b->len ? b->text[b->at++] : '\0';
	uint32_t value = UINT32_MAX;

	switch (c) {
	case 'n': return '\n';
	case 't': return '\t';
	case 'r': return '\r';
	case '\\':
	case '"':
	case '[':
	case ']':
	case '-': return (uint8_t)c;
	case 'x': value = take_hex(b, 2); break;
	case 'u': value = take_hex(b, 4); break;
	case 'U': value = take_hex(b, 8); break;
	default:
		(void)refuse(b, OD_ERR_FORMAT,
			     "an unknown escape; expected \\n, \\t, \\r, \\\\, \\\", \\[, \\], \\-, \\xHH, \\uHHHH or "
			     "\\UHHHHHHHH");
		return UINT32_MAX;
	}
	if (value > OD_MAX_CHAR || (value >= 0xd800 && value <= 0xdfff)) {
		(void)refuse(b, OD_ERR_FORMAT,
			     "expected 2, 4 or 8 hexadecimal digits of a Unicode character behind \\x, \\u or \\U");
		return UINT32_MAX;
	}
	return value;
}

/* A character or an escape; UINT32_MAX: refused. end: what closes the place where it stands, for the message. */
static uint32_t take_char(struct gbnf *b, const char *end)
{
	size_t n;
	uint32_t c;

	if (b->at == b->len) {
		(void)refuse(b, OD_ERR_FORMAT, end);
		return UINT32_MAX;
	}
	c = od_char_at(b->text + b->at, b->len - b->at, &n);
	if (c == UINT32_MAX)
		(void)refuse(b, OD_ERR_FORMAT, "invalid UTF-8");
	else
		b->at += n;
	return c == '\\' ? take_escape(b) : c;
}

static struct gbnf_item *take_literal(struct gbnf *b)
{
	struct gbnf_item *i = new_item(b, GBNF_TEXT);

	if (i == NULL)
		return NULL;
	i->at = b->bytes.len;
	while (!next_is(b, '"')) {
		const uint32_t c = take_char(b, "expected \" at the end of a literal");
		char utf8[4];

		if (c == UINT32_MAX)
			return NULL;
		od_strbuf_append(&b->bytes, utf8, od_char_write(c, utf8));
	}
	b->at++;
	i->len = b->bytes.len - i->at;
	return i;
}

static struct gbnf_item *take_class(struct gbnf *b)
{
	static const char end[] = "expected ] at the end of a class";
	struct gbnf_item *i = new_item(b, GBNF_CHARS);
	bool negated = false;

	if (i == NULL)
		return NULL;
	if (next_is(b, '^'))
		negated = true, b->at++;
	if (next_is(b, ']'))
		return refuse(b, OD_ERR_FORMAT, "a class without characters; expected one before ]");
	while (!next_is(b, ']')) {
		const uint32_t first = take_char(b, end);
		uint32_t last = first;

		if (first != UINT32_MAX && next_is(b, '-') && !(b->at + 1 < b->len && b->text[b->at + 1] == ']')) {
			b->at++;
			last = take_char(b, end);
		}
		if (first == UINT32_MAX || last == UINT32_MAX)
			return NULL;
		if (last < first)
			return refuse(b, OD_ERR_FORMAT, "a range whose end is before its start");
		od_chars_add(&i->chars, first, last);
	}
	b->at++;
	if (negated)
		od_chars_negate(&i->chars);
	return i;
}

static struct gbnf_item *take_token(struct gbnf *b)
{
	struct gbnf_item *i;
	const char *end;

	if (next_is(b, '!'))
		return refuse(b, OD_ERR_UNSUPPORTED, "a negated token (!<...>) is not supported here");
	if (b->at + 1 < b->len && b->text[b->at + 1] == '[')
		return refuse(
			b, OD_ERR_UNSUPPORTED,
			"a token by its number (<[...]>) is not supported here; expected <text> of a special token");
	end = memchr(b->text + b->at, '>', b->len - b->at);
	if (end == NULL || memchr(b->text + b->at, '\n', (size_t)(end - b->text) - b->at) != NULL)
		return refuse(b, OD_ERR_FORMAT, "expected > at the end of a token");
	i = new_item(b, GBNF_TEXT);
	if (i == NULL)
		return NULL;
	i->at = b->bytes.len;
	od_strbuf_append(&b->bytes, OD_SYMBOL, 1);
	while (b->text + b->at <= end) { /* character by character: no byte of it may be that of a symbol */
		size_t n;

		if (od_char_at(b->text + b->at, b->len - b->at, &n) == UINT32_MAX)
			return refuse(b, OD_ERR_FORMAT, "invalid UTF-8");
		od_strbuf_append(&b->bytes, b->text + b->at, n);
		b->at += n;
	}
	i->len = b->bytes.len - i->at;
	return i;
}

static struct gbnf_item *take_choice(struct gbnf *b, bool lines);

static struct gbnf_item *take_group(struct gbnf *b)
{
	struct gbnf_item *i;

	b->at++;
	if (++b->nested > MAX_NESTED)
		return refuse(b, OD_ERR_RANGE, "it is nested too deep");
	i = take_choice(b, true);
	if (i == NULL)
		return NULL;
	if (!next_is(b, ')'))
		return refuse(b, OD_ERR_FORMAT, "expected ) at the end of a group");
	b->at++;
	b->nested--;
	return i;
}

static struct gbnf_item *take_mention(struct gbnf *b)
{
	struct gbnf_item *i = new_item(b, GBNF_RULE);
	const uint32_t rule = i != NULL ? take_name(b) : UINT32_MAX;

	if (rule == UINT32_MAX)
		return NULL;
	i->rule = rule;
	return i;
}

/* An item without repetition; NULL and b->rc OD_OK: there is none at the cursor. */
static struct gbnf_item *take_atom(struct gbnf *b)
{
	struct gbnf_item *i;
	const char c = b->at < b->len ? b->text[b->at] : '\0';

	switch (c) {
	case '"': b->at++; return take_literal(b);
	case '[': b->at++; return take_class(b);
	case '(': return take_group(b);
	case '<':
	case '!': return take_token(b);
	case '.':
		i = new_item(b, GBNF_CHARS);
		if (i != NULL)
			od_chars_add(&i->chars, 0, OD_MAX_CHAR);
		b->at++;
		return i;
	default: return is_word(c) ? take_mention(b) : NULL;
	}
}

static bool take_number(struct gbnf *b, uint32_t *n)
{
	uint64_t value = 0;

	if (b->at == b->len || b->text[b->at] < '0' || b->text[b->at] > '9')
		return false;
	for (; b->at < b->len && b->text[b->at] >= '0' && b->text[b->at] <= '9'; b->at++)
		value = value > MAX_REPEAT ? value : value * 10 + (uint64_t)(b->text[b->at] - '0');
	if (value > MAX_REPEAT)
		(void)refuse(b, OD_ERR_RANGE, "a repetition of more than 100000 times");
	*n = (uint32_t)value;
	return true;
}

/* {2}, {2,} or {2,3}, behind the bracket. */
static void take_counts(struct gbnf *b, bool lines, uint32_t *min, uint32_t *max)
{
	skip_space(b, lines);
	if (!take_number(b, min)) {
		(void)refuse(b, OD_ERR_FORMAT, "expected a number behind {");
		return;
	}
	*max = *min;
	skip_space(b, lines);
	if (next_is(b, ',')) {
		b->at++;
		skip_space(b, lines);
		if (!take_number(b, max))
			*max = OD_RE_NO_LIMIT;
		skip_space(b, lines);
	}
	if (!next_is(b, '}'))
		(void)refuse(b, OD_ERR_FORMAT, "expected } at the end of a repetition");
	else if (*max < *min)
		(void)refuse(b, OD_ERR_FORMAT, "a repetition whose maximum is below its minimum");
	b->at++;
}

/* An item and its repetitions; lines: line breaks may stand behind them. */
static struct gbnf_item *take_item(struct gbnf *b, bool lines)
{
	struct gbnf_item *i = take_atom(b), *outer;
	unsigned times = 0;

	while (i != NULL && b->rc == OD_OK) {
		char c;
		uint32_t min, max;

		skip_space(b, lines);
		c = b->at < b->len ? b->text[b->at] : '\0';
		if (c != '*' && c != '+' && c != '?' && c != '{')
			return i;
		min = c == '+';
		max = c == '?' ? 1 : OD_RE_NO_LIMIT;
		b->at++;
		if (c == '{')
			take_counts(b, lines, &min, &max);
		if (++times > MAX_STACKED)
			return refuse(b, OD_ERR_RANGE, "too many repetitions of one item");
		outer = new_item(b, GBNF_REPEAT);
		if (outer == NULL)
			return NULL;
		outer->min = min;
		outer->max = max;
		append(outer, i);
		i = outer;
	}
	return NULL;
}

static struct gbnf_item *take_choice(struct gbnf *b, bool lines)
{
	struct gbnf_item *c = new_item(b, GBNF_CHOICE), *s, *i;

	while (c != NULL) {
		s = new_item(b, GBNF_SEQUENCE);
		if (s == NULL)
			return NULL;
		append(c, s);
		skip_space(b, true); /* behind ::=, ( and | */
		while ((i = take_item(b, lines)) != NULL)
			append(s, i);
		if (b->rc != OD_OK)
			return NULL;
		if (next_is(b, '*') || next_is(b, '+') || next_is(b, '?') || next_is(b, '{'))
			return refuse(b, OD_ERR_FORMAT, "expected an item before a repetition");
		if (!next_is(b, '|'))
			return c;
		b->at++;
	}
	return NULL;
}

static void take_rule(struct gbnf *b)
{
	const uint32_t rule = take_name(b);
	struct gbnf_item *body;

	if (rule == UINT32_MAX)
		return;
	skip_space(b, false);
	if (b->len - b->at < 3 || memcmp(b->text + b->at, "::=", 3) != 0) {
		(void)refuse(b, OD_ERR_FORMAT, "expected ::= behind the name of a rule");
		return;
	}
	b->at += 3;
	body = take_choice(b, false);
	if (body == NULL)
		return;
	if (next_is(b, ')'))
		(void)refuse(b, OD_ERR_FORMAT, "a bracket that was not opened");
	else if (b->at < b->len && !next_is(b, '\n') && !next_is(b, '\r'))
		(void)refuse(b, OD_ERR_FORMAT,
			     "expected a literal, a class, a rule, a group, | or the end of the line");
	b->rule[rule].body = body;
	skip_space(b, true);
}

static void read_rules(struct gbnf *b)
{
	skip_space(b, true);
	while (b->rc == OD_OK && b->at < b->len)
		take_rule(b);
	for (size_t i = 0; i < b->n_rules && b->rc == OD_OK; i++)
		if (b->rule[i].body == NULL)
			b->rc = od_fail(b->err, OD_ERR_FORMAT, "line %zu: the rule \"%.*s\" is not defined",
					line_of(b, b->rule[i].at), (int)(b->rule[i].len < 100 ? b->rule[i].len : 100),
					b->rule[i].name);
	if (b->bytes.failed)
		(void)refuse(b, OD_ERR_NOMEM, "no memory for a grammar");
}

/* ---- Making expressions and nodes ---- */

/* Finds the mentions of rules in the body of a rule. */
static void find_mentions(struct gbnf *b, const struct gbnf_item *i, uint32_t by)
{
	if (b->rc == OD_OK && i->kind == GBNF_RULE &&
	    grow(b, (void **)&b->mention, b->n_mentions, &b->cap_mentions, sizeof(*b->mention))) {
		b->mention[b->n_mentions] = (struct gbnf_mention){ by, b->rule[i->rule].mention };
		b->rule[i->rule].mention = (uint32_t)++b->n_mentions;
		b->rule[by].waits++;
	}
	for (const struct gbnf_item *c = i->first; c != NULL; c = c->next)
		find_mentions(b, c, by);
}

static uint32_t node_of(struct gbnf *b, struct gbnf_made m)
{
	return m.is_node ? m.number : od_syntax_re(b->g, m.number);
}

static struct gbnf_made make(struct gbnf *b, struct gbnf_item *i);

/* From the last child to the first. Neighbours that are expressions become one. */
static struct gbnf_made make_sequence(struct gbnf *b, const struct gbnf_item *s)
{
	uint32_t re = OD_RE_EMPTY, node = OD_SYNTAX_EMPTY;
	bool is_node = false;

	for (struct gbnf_item *i = s->last; i != NULL; i = i->before) {
		const struct gbnf_made m = make(b, i);

		if (!m.is_node) {
			re = od_re_cat(b->p, m.number, re);
			continue;
		}
		node = od_syntax_cat(b->g, m.number, od_syntax_cat(b->g, od_syntax_re(b->g, re), node));
		re = OD_RE_EMPTY;
		is_node = true;
	}
	if (!is_node)
		return (struct gbnf_made){ false, re };
	return (struct gbnf_made){ true, od_syntax_cat(b->g, od_syntax_re(b->g, re), node) };
}

static struct gbnf_made make_choice(struct gbnf *b, const struct gbnf_item *c)
{
	uint32_t *all, re, n = 0, n_re = 0, n_nodes = 0;
	struct gbnf_made m;

	if (c->first == c->last)
		return make(b, c->first);
	for (const struct gbnf_item *i = c->first; i != NULL; i = i->next)
		n++;
	all = calloc(n + 1, sizeof(*all));
	if (all == NULL) {
		(void)refuse(b, OD_ERR_NOMEM, "no memory for a grammar");
		return (struct gbnf_made){ false, OD_RE_NONE };
	}
	/* expressions from the start on, nodes from the end on */
	for (struct gbnf_item *i = c->first; i != NULL; i = i->next) {
		m = make(b, i);
		if (m.is_node)
			all[n - n_nodes++] = m.number;
		else
			all[n_re++] = m.number;
	}
	re = od_re_alt(b->p, all, n_re);
	m = (struct gbnf_made){ false, re };
	if (n_nodes > 0) {
		all[n - n_nodes] = od_syntax_re(b->g, re);
		m = (struct gbnf_made){ true, od_syntax_alt(b->g, all + n - n_nodes, n_nodes + (size_t)1) };
	}
	free(all);
	return m;
}

static struct gbnf_made make(struct gbnf *b, struct gbnf_item *i)
{
	struct gbnf_made m = { false, OD_RE_NONE };

	if (od_re_check(b->p, NULL) != OD_OK || b->rc != OD_OK)
		return m;
	switch (i->kind) {
	case GBNF_CHARS: m.number = od_chars_re(b->p, &i->chars, OD_WRITE_PLAIN); break;
	case GBNF_TEXT: m.number = od_re_text(b->p, od_strbuf_text(&b->bytes) + i->at, i->len); break;
	case GBNF_RULE: return b->rule[i->rule].made;
	case GBNF_SEQUENCE: return make_sequence(b, i);
	case GBNF_CHOICE: return make_choice(b, i);
	case GBNF_REPEAT:
		m = make(b, i->first);
		m.number = m.is_node ? od_syntax_repeat(b->g, m.number, i->min, i->max) :
				       od_re_repeat(b->p, m.number, i->min, i->max);
	}
	return m;
}

/* Makes rules into expressions, beginning with those that mention no other; those that are left lead to themselves, or
 * to one that does, and become rules of the grammar. */
static void make_rules(struct gbnf *b)
{
	uint32_t *ready = calloc(b->n_rules + 1, sizeof(*ready));
	size_t n = 0;

	if (ready == NULL) {
		(void)refuse(b, OD_ERR_NOMEM, "no memory for a grammar");
		return;
	}
	for (uint32_t i = 0; i < b->n_rules; i++)
		find_mentions(b, b->rule[i].body, i);
	for (uint32_t i = 0; i < b->n_rules; i++)
		if (b->rule[i].waits == 0)
			ready[n++] = i;
	for (size_t k = 0; k < n && b->rc == OD_OK; k++) {
		struct gbnf_rule *r = &b->rule[ready[k]];

		r->made = make(b, r->body);
		for (uint32_t at = r->mention; at != 0; at = b->mention[at - 1].earlier)
			if (--b->rule[b->mention[at - 1].by].waits == 0)
				ready[n++] = b->mention[at - 1].by;
	}
	free(ready);
	for (size_t i = 0; i < b->n_rules && b->rc == OD_OK; i++) {
		struct gbnf_rule *r = &b->rule[i];
		char name[104];
		const size_t len = r->len < sizeof(name) - 1 ? r->len : sizeof(name) - 1;

		if (r->waits == 0)
			continue;
		memcpy(name, r->name, len);
		name[len] = '\0';
		r->made = (struct gbnf_made){ true, od_syntax_rule(b->g, name) };
	}
	for (size_t i = 0; i < b->n_rules && b->rc == OD_OK; i++)
		if (b->rule[i].waits > 0)
			od_syntax_define(b->g, b->rule[i].made.number, node_of(b, make(b, b->rule[i].body)));
}

static int find_root(struct gbnf *b, uint32_t *root)
{
	for (size_t i = 0; i < b->n_rules; i++)
		if (b->rule[i].len == 4 && memcmp(b->rule[i].name, "root", 4) == 0) {
			*root = node_of(b, b->rule[i].made);
			return od_re_check(b->p, b->err);
		}
	return od_fail(b->err, OD_ERR_FORMAT, "the rule \"root\" is not defined; a grammar begins with it");
}

int od_gbnf_compile(struct od_grammar *g, const char *text, size_t len, uint32_t *root, struct od_err *err)
{
	struct gbnf b = { .g = g, .p = od_grammar_res(g), .text = text, .len = len, .err = err };

	*root = OD_SYNTAX_NONE;
	if (len > OD_MAX_GBNF_BYTES)
		return od_fail(err, OD_ERR_RANGE, "it has %zu bytes; expected at most %u", len, OD_MAX_GBNF_BYTES);
	b.names = calloc(NAMES, sizeof(*b.names));
	if (b.names == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a grammar");
	read_rules(&b);
	if (b.rc == OD_OK)
		make_rules(&b);
	if (b.rc == OD_OK)
		b.rc = find_root(&b, root);
	while (b.newest != NULL) {
		struct gbnf_item *i = b.newest;

		b.newest = i->older;
		od_chars_fini(&i->chars);
		free(i);
	}
	od_strbuf_fini(&b.bytes);
	free(b.rule);
	free(b.names);
	free(b.mention);
	return b.rc;
}
