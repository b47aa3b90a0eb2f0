#include "tests/unit/naive_grammar.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LENGTH 200u
#define MAX_SYMBOLS 6 /* in a production */
#define MAX_PRODUCTIONS 3
#define SPACE NAIVE_NODES /* instead of a node's number */
#define INDENT (NAIVE_NODES + 1u)

unsigned naive_node(struct naive_grammar *g, enum naive_kind kind, unsigned a, unsigned b, uint32_t min, uint32_t max)
{
	assert(g->n < NAIVE_NODES);
	g->node[g->n] = (struct naive_node){ .kind = kind, .a = a, .b = b, .min = min, .max = max };
	return g->n++;
}

unsigned naive_text(struct naive_grammar *g, enum naive_kind kind, const char *text)
{
	const unsigned i = naive_node(g, kind, 0, 0, 0, 0);

	assert(strlen(text) < sizeof(g->node[i].text));
	memcpy(g->node[i].text, text, strlen(text) + 1);
	return i;
}

/* ---- For the automaton ---- */

static bool is_regular(const struct naive_grammar *n, unsigned i)
{
	const struct naive_node *x = &n->node[i];

	switch (x->kind) {
	case NAIVE_TEXT:
	case NAIVE_SET: return true;
	case NAIVE_CAT:
	case NAIVE_ALT: return is_regular(n, x->a) && is_regular(n, x->b);
	case NAIVE_REPEAT: return is_regular(n, x->a);
	case NAIVE_RULE:
	case NAIVE_BRACKETS: return false;
	}
	return false;
}

static uint32_t build_re(const struct naive_grammar *n, struct od_re_pool *p, unsigned i)
{
	const struct naive_node *x = &n->node[i];
	struct od_byte_set set = { { 0 } };

	switch (x->kind) {
	case NAIVE_TEXT: return od_re_text(p, x->text, strlen(x->text));
	case NAIVE_SET:
		for (const char *c = x->text; *c != '\0'; c++)
			od_byte_set_add(&set, (uint8_t)*c);
		return od_re_byte(p, &set);
	case NAIVE_CAT: return od_re_cat(p, build_re(n, p, x->a), build_re(n, p, x->b));
	case NAIVE_ALT: return od_re_or(p, build_re(n, p, x->a), build_re(n, p, x->b));
	case NAIVE_REPEAT: return od_re_repeat(p, build_re(n, p, x->a), x->min, x->max);
	case NAIVE_RULE:
	case NAIVE_BRACKETS: break;
	}
	abort();
}

static uint32_t build(const struct naive_grammar *n, struct od_grammar *g, const uint32_t *rules, unsigned i)
{
	const struct naive_node *x = &n->node[i];
	uint32_t a, space;

	if ((x->as_re && is_regular(n, i)) || x->kind == NAIVE_SET)
		return od_syntax_re(g, build_re(n, od_grammar_res(g), i));
	switch (x->kind) {
	case NAIVE_TEXT: return od_syntax_text(g, x->text, strlen(x->text));
	case NAIVE_CAT: return od_syntax_cat(g, build(n, g, rules, x->a), build(n, g, rules, x->b));
	case NAIVE_ALT: return od_syntax_or(g, build(n, g, rules, x->a), build(n, g, rules, x->b));
	case NAIVE_REPEAT: return od_syntax_repeat(g, build(n, g, rules, x->a), x->min, x->max);
	case NAIVE_RULE: return rules[x->a];
	case NAIVE_BRACKETS:
		space = od_syntax_space(g);
		a = od_syntax_level(g, od_syntax_cat(g, space, build(n, g, rules, x->a)));
		a = od_syntax_cat(g, a, od_syntax_cat(g, space, od_syntax_text(g, "]", 1)));
		return od_syntax_cat(g, od_syntax_text(g, "[", 1), a);
	case NAIVE_SET: break;
	}
	abort();
}

void naive_build(const struct naive_grammar *n, struct od_grammar *g, uint32_t *root)
{
	uint32_t rules[NAIVE_RULES];

	for (unsigned i = 0; i < n->n_rules; i++)
		rules[i] = od_syntax_rule(g, (const char[]){ (char)('A' + i), '\0' });
	for (unsigned i = 0; i < n->n_rules; i++)
		od_syntax_define(g, rules[i], build(n, g, rules, n->body[i]));
	*root = build(n, g, rules, n->root);
}

/* ---- Facts ---- */

struct facts {
	bool productive[NAIVE_NODES], nullable[NAIVE_NODES];
};

static bool can(const struct naive_grammar *n, const bool *known, unsigned i, bool empty)
{
	const struct naive_node *x = &n->node[i];

	switch (x->kind) {
	case NAIVE_TEXT: return !empty || x->text[0] == '\0';
	case NAIVE_SET: return !empty;
	case NAIVE_CAT: return known[x->a] && known[x->b];
	case NAIVE_ALT: return known[x->a] || known[x->b];
	case NAIVE_REPEAT: return x->min == 0 || known[x->a];
	case NAIVE_RULE: return known[n->body[x->a]];
	case NAIVE_BRACKETS: return !empty && known[x->a];
	}
	return false;
}

static void find_facts(const struct naive_grammar *n, struct facts *f)
{
	memset(f, 0, sizeof(*f));
	for (unsigned round = 0; round < 2 * NAIVE_NODES; round++)
		for (unsigned i = 0; i < n->n; i++) {
			f->productive[i] |= can(n, f->productive, i, false);
			f->nullable[i] |= can(n, f->nullable, i, true);
		}
}

/* The rules with which a node can begin, as bits. */
static unsigned begins(const struct naive_grammar *n, const struct facts *f, unsigned i)
{
	const struct naive_node *x = &n->node[i];

	switch (x->kind) {
	case NAIVE_TEXT:
	case NAIVE_SET:
	case NAIVE_BRACKETS: return 0;
	case NAIVE_CAT: return begins(n, f, x->a) | (f->nullable[x->a] ? begins(n, f, x->b) : 0);
	case NAIVE_ALT: return begins(n, f, x->a) | begins(n, f, x->b);
	case NAIVE_REPEAT: return x->max > 0 ? begins(n, f, x->a) : 0;
	case NAIVE_RULE: return 1u << x->a;
	}
	return 0;
}

bool naive_left_recursive(const struct naive_grammar *n)
{
	unsigned reached[NAIVE_RULES];
	struct facts f;

	find_facts(n, &f);
	for (unsigned i = 0; i < n->n_rules; i++)
		reached[i] = begins(n, &f, n->body[i]);
	for (unsigned round = 0; round < NAIVE_RULES; round++)
		for (unsigned i = 0; i < n->n_rules; i++)
			for (unsigned k = 0; k < n->n_rules; k++)
				reached[i] |= reached[i] >> k & 1 ? reached[k] : 0;
	for (unsigned i = 0; i < n->n_rules; i++)
		if (reached[i] >> i & 1)
			return true;
	return false;
}

bool naive_matches_any(const struct naive_grammar *n)
{
	struct facts f;

	find_facts(n, &f);
	return f.productive[n->root];
}

/* ---- The recogniser ---- */

/* A byte of these, or a non-terminal: a node at a level of brackets, behind so many repetitions. */
struct naive_symbol {
	const char *bytes; /* NULL: a non-terminal */
	unsigned n_bytes;
	unsigned node, level, times;
};

struct naive_production {
	struct naive_symbol symbol[MAX_SYMBOLS];
	unsigned n;
};

struct naive_item {
	struct naive_symbol left;
	unsigned production, dot, origin;
	bool is_whole; /* nothing is behind the dot */
	struct naive_symbol next; /* the symbol behind it */
};

struct naive_column {
	struct naive_item *item;
	unsigned n, cap;
};

struct naive_reader {
	const struct naive_grammar *g;
	struct facts facts;
	unsigned length;
	struct naive_column column[MAX_LENGTH + 1];
};

static void put(struct naive_production *p, struct naive_symbol s)
{
	assert(p->n < MAX_SYMBOLS);
	p->symbol[p->n++] = s;
}

static void put_bytes(struct naive_production *p, const char *bytes, unsigned n)
{
	put(p, (struct naive_symbol){ .bytes = bytes, .n_bytes = n });
}

static void put_node(struct naive_production *p, unsigned node, unsigned level, unsigned times)
{
	put(p, (struct naive_symbol){ .node = node, .level = level, .times = times });
}

/* The productions of a node; returns their number. A text is one byte, and the rest of it: times counts them. */
static unsigned productions_of_node(const struct naive_reader *r, const struct naive_symbol *s,
				    struct naive_production *p)
{
	const struct naive_node *x = &r->g->node[s->node];
	const unsigned next = x->max == NAIVE_NO_LIMIT && s->times >= x->min ? s->times : s->times + 1;
	unsigned n = 0;

	switch (x->kind) {
	case NAIVE_TEXT:
		if (s->times < strlen(x->text)) {
			put_bytes(&p[0], x->text + s->times, 1);
			put_node(&p[0], s->node, s->level, s->times + 1);
		}
		return 1;
	case NAIVE_SET: put_bytes(&p[0], x->text, (unsigned)strlen(x->text)); return 1;
	case NAIVE_CAT:
		put_node(&p[0], x->a, s->level, 0);
		put_node(&p[0], x->b, s->level, 0);
		return 1;
	case NAIVE_ALT:
		put_node(&p[0], x->a, s->level, 0);
		put_node(&p[1], x->b, s->level, 0);
		return 2;
	case NAIVE_REPEAT:
		if (s->times < x->max) {
			put_node(&p[n], x->a, s->level, 0);
			put_node(&p[n++], s->node, s->level, next);
		}
		return s->times >= x->min ? n + 1 : n;
	case NAIVE_RULE: put_node(&p[0], r->g->body[x->a], s->level, 0); return 1;
	case NAIVE_BRACKETS:
		put_bytes(&p[0], "[", 1);
		put_node(&p[0], SPACE, s->level + 1, 0);
		put_node(&p[0], x->a, s->level + 1, 0);
		put_node(&p[0], SPACE, s->level, 0);
		put_bytes(&p[0], "]", 1);
		return 1;
	}
	return 0;
}

static unsigned productions_of(const struct naive_reader *r, const struct naive_symbol *s, struct naive_production *p)
{
	memset(p, 0, MAX_PRODUCTIONS * sizeof(*p));
	if (s->node < NAIVE_NODES)
		return productions_of_node(r, s, p);
	if (s->node == INDENT) { /* at most times blanks */
		if (s->times > 0) {
			put_bytes(&p[0], " ", 1);
			put_node(&p[0], INDENT, 0, s->times - 1);
		}
		return s->times > 0 ? 2 : 1;
	}
	put_bytes(&p[0], " ", 1);
	put_bytes(&p[1], "\n", 1);
	put_node(&p[1], INDENT, 0, 2 * s->level);
	return 3;
}

static bool is_productive(const struct naive_reader *r, const struct naive_production *p)
{
	for (unsigned i = 0; i < p->n; i++) {
		const struct naive_symbol *s = &p->symbol[i];

		if (s->bytes != NULL || s->node >= NAIVE_NODES || r->facts.productive[s->node])
			continue;
		return false;
	}
	return true;
}

static bool same_symbol(const struct naive_symbol *a, const struct naive_symbol *b)
{
	return a->bytes == b->bytes && a->node == b->node && a->level == b->level && a->times == b->times;
}

/* Finds out what is behind the dot; returns whether the item is new. */
static bool add(const struct naive_reader *r, struct naive_column *c, struct naive_item item)
{
	struct naive_production p[MAX_PRODUCTIONS];

	for (unsigned i = 0; i < c->n; i++) {
		const struct naive_item *x = &c->item[i];

		if (x->origin == item.origin && x->dot == item.dot && x->production == item.production &&
		    same_symbol(&x->left, &item.left))
			return false;
	}
	if (c->n == c->cap) {
		c->cap = c->cap == 0 ? 32 : 2 * c->cap;
		c->item = realloc(c->item, c->cap * sizeof(*c->item));
		assert(c->item != NULL);
	}
	(void)productions_of(r, &item.left, p);
	item.is_whole = item.dot == p[item.production].n;
	if (!item.is_whole)
		item.next = p[item.production].symbol[item.dot];
	c->item[c->n++] = item;
	return true;
}

static bool predict(struct naive_reader *r, struct naive_column *c, const struct naive_symbol *s)
{
	struct naive_production p[MAX_PRODUCTIONS];
	const unsigned n = productions_of(r, s, p);
	bool found = false;

	for (unsigned i = 0; i < n; i++)
		if (is_productive(r, &p[i]))
			found |= add(r, c, (struct naive_item){ .left = *s, .production = i, .origin = r->length });
	return found;
}

/* left was read from column origin on: what waited for it there goes on. */
static bool complete(struct naive_reader *r, struct naive_column *c, struct naive_symbol left, unsigned origin)
{
	bool found = false;

	for (unsigned i = 0; i < r->column[origin].n; i++) {
		struct naive_item waiting = r->column[origin].item[i];

		if (waiting.is_whole || waiting.next.bytes != NULL || !same_symbol(&waiting.next, &left))
			continue;
		waiting.dot++;
		found |= add(r, c, waiting);
	}
	return found;
}

static void close_column(struct naive_reader *r)
{
	struct naive_column *c = &r->column[r->length];
	bool found = true;

	while (found) {
		found = false;
		for (unsigned i = 0; i < c->n; i++) {
			const struct naive_item item = c->item[i];

			if (item.is_whole)
				found |= complete(r, c, item.left, item.origin);
			else if (item.next.bytes == NULL)
				found |= predict(r, c, &item.next);
		}
	}
}

struct naive_reader *naive_reader_new(const struct naive_grammar *g)
{
	struct naive_reader *r = calloc(1, sizeof(*r));
	const struct naive_symbol root = { .node = g->root };

	assert(r != NULL);
	r->g = g;
	find_facts(g, &r->facts);
	(void)predict(r, &r->column[0], &root);
	close_column(r);
	return r;
}

void naive_reader_free(struct naive_reader *r)
{
	for (unsigned i = 0; i <= MAX_LENGTH; i++)
		free(r->column[i].item);
	free(r);
}

void naive_cut(struct naive_reader *r, unsigned len)
{
	assert(len <= r->length);
	r->length = len;
}

bool naive_read(struct naive_reader *r, uint8_t byte)
{
	const struct naive_column *from = &r->column[r->length];
	struct naive_column *to = &r->column[r->length + 1];

	assert(r->length < MAX_LENGTH);
	to->n = 0;
	for (unsigned i = 0; i < from->n; i++) {
		struct naive_item item = from->item[i];

		if (item.is_whole || item.next.bytes == NULL ||
		    memchr(item.next.bytes, byte, item.next.n_bytes) == NULL)
			continue;
		item.dot++;
		(void)add(r, to, item);
	}
	if (to->n == 0)
		return false;
	r->length++;
	close_column(r);
	return true;
}

bool naive_ends(const struct naive_reader *r)
{
	const struct naive_column *c = &r->column[r->length];
	const struct naive_symbol root = { .node = r->g->root };
	for (unsigned i = 0; i < c->n; i++)
		if (c->item[i].origin == 0 && same_symbol(&c->item[i].left, &root) && c->item[i].is_whole)
			return true;
	return false;
}

unsigned naive_length(const struct naive_reader *r)
{
	return r->length;
}
