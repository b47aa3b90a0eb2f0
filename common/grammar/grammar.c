#include "common/grammar/grammar.h"

#include "common/base/mem.h"

#include <stdlib.h>
#include <string.h>

#define MAX_NODES (1u << 22)
#define MAX_NESTED 500 /* nodes in nodes, without rules between: bounds recursion */

struct rule {
	char *name; /* NULL: none */
	uint32_t body;
	/* in the search for left recursion */
	enum { RULE_NEW, RULE_OPEN, RULE_DONE } search;
	uint32_t order; /* above that of all rules with which it can begin */
};

struct od_grammar {
	struct od_re_pool *res;
	struct od_syntax *node;
	uint16_t *nested; /* [n] */
	size_t n, cap, cap_nested;
	uint32_t *list;
	size_t n_list, cap_list;
	struct rule *rule;
	size_t n_rules, cap_rules;
	uint32_t n_ordered;
	uint32_t *hash; /* node numbers plus one, 0: free */
	size_t hash_size;
	uint32_t root;
	int failed;
};

/* ---- Memory ---- */

static bool grow(struct od_grammar *g, void **v, size_t n, size_t more, size_t *cap, size_t size)
{
	if (od_grow(v, n, more, cap, size))
		return true;
	g->failed = OD_ERR_NOMEM;
	return false;
}

static uint64_t hash_of(const struct od_grammar *g, const struct od_syntax *n)
{
	uint64_t h = n->kind;
	const uint32_t field[] = { n->kind == OD_SYNTAX_ALT ? 0 : n->a, n->b, n->min, n->max };

	for (size_t i = 0; i < 4; i++)
		h = (h ^ field[i]) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
	if (n->kind == OD_SYNTAX_ALT)
		for (uint32_t i = 0; i < n->b; i++)
			h = (h ^ g->list[n->a + i]) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
	return h;
}

static bool same(const struct od_grammar *g, const struct od_syntax *x, const struct od_syntax *y)
{
	if (x->kind != y->kind || x->b != y->b || x->min != y->min || x->max != y->max)
		return false;
	return x->kind == OD_SYNTAX_ALT ? memcmp(g->list + x->a, g->list + y->a, x->b * sizeof(*g->list)) == 0 :
					  x->a == y->a;
}

static bool rehash(struct od_grammar *g)
{
	const size_t size = g->hash_size == 0 ? 256 : 2 * g->hash_size;
	uint32_t *hash = calloc(size, sizeof(*hash));

	if (hash == NULL) {
		g->failed = OD_ERR_NOMEM;
		return false;
	}
	for (size_t i = 0; i < g->n; i++) {
		size_t at = hash_of(g, &g->node[i]) & (size - 1);

		while (hash[at] != 0)
			at = (at + 1) & (size - 1);
		hash[at] = (uint32_t)i + 1;
	}
	free(g->hash);
	g->hash = hash;
	g->hash_size = size;
	return true;
}

static unsigned nested_in(const struct od_grammar *g, const struct od_syntax *n)
{
	unsigned most = 0;

	switch (n->kind) {
	case OD_SYNTAX_IS_EMPTY:
	case OD_SYNTAX_IS_NONE:
	case OD_SYNTAX_RE:
	case OD_SYNTAX_RULE:
	case OD_SYNTAX_LEVEL_END:
	case OD_SYNTAX_SPACE: return 0;
	case OD_SYNTAX_CAT: /* its right side becomes a frame */
		return g->nested[n->a] + 1u > g->nested[n->b] ? g->nested[n->a] + 1u : g->nested[n->b];
	case OD_SYNTAX_REPEAT:
	case OD_SYNTAX_LEVEL: return g->nested[n->a] + 1u;
	case OD_SYNTAX_ALT:
		for (uint32_t i = 0; i < n->b; i++)
			most = g->nested[g->list[n->a + i]] > most ? g->nested[g->list[n->a + i]] : most;
		return most + 1;
	}
	return 0;
}

static uint32_t intern(struct od_grammar *g, struct od_syntax n)
{
	unsigned nested;
	size_t at;

	if (g->failed != OD_OK || (2 * g->n >= g->hash_size && !rehash(g)))
		return OD_SYNTAX_NONE;
	for (at = hash_of(g, &n) & (g->hash_size - 1); g->hash[at] != 0; at = (at + 1) & (g->hash_size - 1))
		if (same(g, &g->node[g->hash[at] - 1], &n)) {
			if (n.kind == OD_SYNTAX_ALT)
				g->n_list = n.a;
			return g->hash[at] - 1;
		}
	nested = nested_in(g, &n);
	if (g->n == MAX_NODES || nested > MAX_NESTED)
		g->failed = OD_ERR_RANGE;
	if (g->failed != OD_OK || !grow(g, (void **)&g->node, g->n, 1, &g->cap, sizeof(*g->node)) ||
	    !grow(g, (void **)&g->nested, g->n, 1, &g->cap_nested, sizeof(*g->nested)))
		return OD_SYNTAX_NONE;
	g->nested[g->n] = (uint16_t)nested;
	g->node[g->n] = n;
	g->hash[at] = (uint32_t)g->n + 1;
	return (uint32_t)g->n++;
}

int od_grammar_new(struct od_grammar **out, struct od_err *err)
{
	struct od_grammar *g = calloc(1, sizeof(*g));
	int rc;

	*out = NULL;
	if (g == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a grammar");
	rc = od_re_pool_new(&g->res, err);
	if (rc == OD_OK) {
		(void)intern(g, (struct od_syntax){ .kind = OD_SYNTAX_IS_EMPTY, .productive = true, .nullable = true });
		(void)intern(g, (struct od_syntax){ .kind = OD_SYNTAX_IS_NONE });
		if (g->failed != OD_OK)
			rc = od_fail(err, g->failed, "no memory for a grammar");
	}
	if (rc != OD_OK) {
		od_grammar_free(g);
		return rc;
	}
	*out = g;
	return OD_OK;
}

void od_grammar_free(struct od_grammar *g)
{
	if (g == NULL)
		return;
	od_re_pool_free(g->res);
	for (size_t i = 0; i < g->n_rules; i++)
		free(g->rule[i].name);
	free(g->rule);
	free(g->node);
	free(g->nested);
	free(g->list);
	free(g->hash);
	free(g);
}

struct od_re_pool *od_grammar_res(struct od_grammar *g)
{
	return g->res;
}

size_t od_grammar_memory(const struct od_grammar *g)
{
	return od_re_memory(g->res) + g->cap * (sizeof(*g->node) + sizeof(*g->nested)) +
	       g->cap_list * sizeof(*g->list) + g->cap_rules * sizeof(*g->rule) + g->hash_size * sizeof(*g->hash);
}

/* ---- Nodes ---- */

uint32_t od_syntax_re(struct od_grammar *g, uint32_t re)
{
	if (re <= OD_RE_EMPTY)
		return re == OD_RE_EMPTY ? OD_SYNTAX_EMPTY : OD_SYNTAX_NONE;
	return intern(g, (struct od_syntax){ .kind = OD_SYNTAX_RE, .a = re });
}

uint32_t od_syntax_text(struct od_grammar *g, const char *text, size_t len)
{
	return od_syntax_re(g, od_re_text(g->res, text, len));
}

uint32_t od_syntax_cat(struct od_grammar *g, uint32_t a, uint32_t b)
{
	if (a == OD_SYNTAX_NONE || b == OD_SYNTAX_NONE)
		return OD_SYNTAX_NONE;
	if (a == OD_SYNTAX_EMPTY)
		return b;
	return b == OD_SYNTAX_EMPTY ? a : intern(g, (struct od_syntax){ .kind = OD_SYNTAX_CAT, .a = a, .b = b });
}

static int by_number(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

uint32_t od_syntax_alt(struct od_grammar *g, const uint32_t *node, size_t n)
{
	const size_t begin = g->n_list;
	size_t to = begin;
	uint32_t only;

	if (!grow(g, (void **)&g->list, begin, n, &g->cap_list, sizeof(*g->list)))
		return OD_SYNTAX_NONE;
	for (size_t i = 0; i < n; i++)
		if (node[i] != OD_SYNTAX_NONE)
			g->list[g->n_list++] = node[i];
	if (g->n_list - begin > 1)
		qsort(g->list + begin, g->n_list - begin, sizeof(*g->list), by_number);
	for (size_t i = begin; i < g->n_list; i++)
		if (i == begin || g->list[i] != g->list[i - 1])
			g->list[to++] = g->list[i];
	g->n_list = to;
	if (to - begin > 1)
		return intern(g, (struct od_syntax){
					 .kind = OD_SYNTAX_ALT, .a = (uint32_t)begin, .b = (uint32_t)(to - begin) });
	only = to > begin ? g->list[begin] : OD_SYNTAX_NONE;
	g->n_list = begin;
	return only;
}

uint32_t od_syntax_or(struct od_grammar *g, uint32_t a, uint32_t b)
{
	const uint32_t both[2] = { a, b };

	return od_syntax_alt(g, both, 2);
}

uint32_t od_syntax_repeat(struct od_grammar *g, uint32_t a, uint32_t min, uint32_t max)
{
	if (min > max)
		return OD_SYNTAX_NONE;
	if (max == 0 || a == OD_SYNTAX_EMPTY)
		return OD_SYNTAX_EMPTY;
	if (a == OD_SYNTAX_NONE)
		return min == 0 ? OD_SYNTAX_EMPTY : OD_SYNTAX_NONE;
	if (min == 1 && max == 1)
		return a;
	return intern(g, (struct od_syntax){ .kind = OD_SYNTAX_REPEAT, .a = a, .min = min, .max = max });
}

uint32_t od_syntax_level(struct od_grammar *g, uint32_t a)
{
	if (a <= OD_SYNTAX_NONE)
		return a;
	return intern(g, (struct od_syntax){ .kind = OD_SYNTAX_LEVEL, .a = a });
}

uint32_t od_syntax_space(struct od_grammar *g)
{
	return intern(g, (struct od_syntax){ .kind = OD_SYNTAX_SPACE });
}

uint32_t od_syntax_rule(struct od_grammar *g, const char *name)
{
	struct rule r = { .body = OD_SYNTAX_NONE };

	if (!grow(g, (void **)&g->rule, g->n_rules, 1, &g->cap_rules, sizeof(*g->rule)))
		return OD_SYNTAX_NONE;
	if (name != NULL) {
		r.name = strdup(name);
		if (r.name == NULL)
			g->failed = OD_ERR_NOMEM;
	}
	g->rule[g->n_rules] = r;
	return intern(g, (struct od_syntax){ .kind = OD_SYNTAX_RULE, .a = (uint32_t)g->n_rules++ });
}

void od_syntax_define(struct od_grammar *g, uint32_t rule, uint32_t body)
{
	if (g->failed == OD_OK)
		g->rule[g->node[rule].a].body = body;
}

/* ---- Checks ---- */

/* Whether a node is known to match some text (or the empty one). A rule is known by its body, so that a chain of rules
 * is found out in one round. */
static bool is_known(const struct od_grammar *g, uint32_t node, bool empty)
{
	const struct od_syntax *n = &g->node[node];

	if (n->kind == OD_SYNTAX_RULE)
		n = &g->node[g->rule[n->a].body];
	return empty ? n->nullable : n->productive;
}

/* Whether a node matches some text (or the empty one), by what is known of others. */
static bool matches(const struct od_grammar *g, const struct od_syntax *n, bool empty)
{
	switch (n->kind) {
	case OD_SYNTAX_IS_EMPTY:
	case OD_SYNTAX_LEVEL_END:
	case OD_SYNTAX_SPACE: return true;
	case OD_SYNTAX_IS_NONE: return false;
	case OD_SYNTAX_RE: return empty ? od_re_nullable(g->res, n->a) : od_re_live(g->res, n->a);
	case OD_SYNTAX_CAT: return is_known(g, n->a, empty) && is_known(g, n->b, empty);
	case OD_SYNTAX_ALT:
		for (uint32_t i = 0; i < n->b; i++)
			if (is_known(g, g->list[n->a + i], empty))
				return true;
		return false;
	case OD_SYNTAX_REPEAT: return n->min == 0 || is_known(g, n->a, empty);
	case OD_SYNTAX_RULE: return is_known(g, g->rule[n->a].body, empty);
	case OD_SYNTAX_LEVEL: return is_known(g, n->a, empty);
	}
	return false;
}

#define MAX_CHECKS 20000000u /* checks of a node */

/* Finds out what nodes match. Each round goes on from what earlier ones found, upwards and downwards in turn: nodes
 * come after their parts, but not after the rules that they name. */
static void find_matches(struct od_grammar *g)
{
	size_t checks = 0;
	bool found = true;

	for (bool up = true; found && g->failed == OD_OK; up = !up) {
		found = false;
		for (size_t i = 0; i < g->n; i++) {
			struct od_syntax *n = &g->node[up ? i : g->n - 1 - i];

			if (!n->productive && matches(g, n, false))
				n->productive = found = true;
			if (!n->nullable && matches(g, n, true))
				n->nullable = found = true;
		}
		checks += g->n;
		if (checks > MAX_CHECKS)
			g->failed = OD_ERR_RANGE;
	}
}

/* Rules that a node can begin with are searched; returns the number of one that begins with itself, or -1. */
static int64_t begins_with(struct od_grammar *g, uint32_t node, unsigned depth);

static int64_t search_rule(struct od_grammar *g, uint32_t number, unsigned depth)
{
	struct rule *r = &g->rule[number];
	int64_t found;

	if (r->search == RULE_DONE)
		return -1;
	if (r->search == RULE_OPEN)
		return number;
	r->search = RULE_OPEN;
	found = begins_with(g, r->body, depth);
	r->search = RULE_DONE;
	r->order = g->n_ordered++;
	return found;
}

#define MAX_SEARCH 10000 /* nodes that begin with nodes, through rules: bounds recursion */

static int64_t begins_with(struct od_grammar *g, uint32_t node, unsigned depth)
{
	const struct od_syntax *n = &g->node[node];
	int64_t found = -1;

	if (depth > MAX_SEARCH)
		g->failed = OD_ERR_RANGE;
	if (g->failed != OD_OK)
		return -1;
	for (; n->kind == OD_SYNTAX_CAT && found < 0; n = &g->node[n->b]) {
		found = begins_with(g, n->a, depth + 1);
		if (!g->node[n->a].nullable)
			return found;
	}
	if (found >= 0 || !n->productive)
		return found;
	switch (n->kind) {
	case OD_SYNTAX_ALT:
		for (uint32_t i = 0; i < n->b && found < 0; i++)
			found = begins_with(g, g->list[n->a + i], depth + 1);
		return found;
	case OD_SYNTAX_REPEAT:
	case OD_SYNTAX_LEVEL: return begins_with(g, n->a, depth + 1);
	case OD_SYNTAX_RULE: return search_rule(g, n->a, depth + 1);
	case OD_SYNTAX_IS_EMPTY:
	case OD_SYNTAX_IS_NONE:
	case OD_SYNTAX_RE:
	case OD_SYNTAX_CAT:
	case OD_SYNTAX_LEVEL_END:
	case OD_SYNTAX_SPACE: break;
	}
	return -1;
}

int od_grammar_finish(struct od_grammar *g, uint32_t root, struct od_err *err)
{
	int64_t left = -1;
	int rc;

	if (g->failed == OD_OK) {
		g->root = root;
		find_matches(g);
		for (size_t i = 0; i < g->n_rules && left < 0; i++)
			left = search_rule(g, (uint32_t)i, 0);
	}
	rc = od_re_check(g->res, err);
	if (rc != OD_OK)
		return rc;
	if (g->failed == OD_ERR_NOMEM)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a grammar");
	if (g->failed != OD_OK)
		return od_fail(err, g->failed, "it is nested too deep or too large; make it simpler");
	if (left >= 0)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "the rule \"%.100s\" can begin with itself (left recursion); write it as a repetition",
			       g->rule[left].name != NULL ? g->rule[left].name : "?");
	if (!g->node[root].productive)
		return od_fail(err, OD_ERR_ARG, "no text can satisfy it");
	return OD_OK;
}

/* ---- For the automaton ---- */

const struct od_syntax *od_grammar_node(const struct od_grammar *g, uint32_t node)
{
	return &g->node[node];
}

uint32_t od_grammar_member(const struct od_grammar *g, const struct od_syntax *alt, uint32_t i)
{
	return g->list[alt->a + i];
}

uint32_t od_grammar_body(const struct od_grammar *g, const struct od_syntax *rule)
{
	return g->rule[rule->a].body;
}

uint32_t od_grammar_order(const struct od_grammar *g, const struct od_syntax *rule)
{
	return g->rule[rule->a].order;
}

uint32_t od_grammar_rules(const struct od_grammar *g)
{
	return (uint32_t)g->n_rules;
}

uint32_t od_grammar_root(const struct od_grammar *g)
{
	return g->root;
}

uint32_t od_grammar_rest(struct od_grammar *g, uint32_t repeat)
{
	const struct od_syntax n = g->node[repeat];
	const uint32_t min = n.min > 0 ? n.min - 1 : 0, max = n.max == OD_RE_NO_LIMIT ? n.max : n.max - 1;
	const uint32_t rest = od_syntax_repeat(g, n.a, min, max);

	if (g->failed == OD_OK && rest > OD_SYNTAX_NONE)
		g->node[rest].productive = true; /* as the repetition is */
	return rest;
}

uint32_t od_grammar_level_end(struct od_grammar *g)
{
	const uint32_t end = intern(g, (struct od_syntax){ .kind = OD_SYNTAX_LEVEL_END });

	g->node[end].productive = true;
	return end;
}

int od_grammar_failed(const struct od_grammar *g)
{
	return g->failed;
}
