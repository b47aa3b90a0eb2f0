#include "common/grammar/automaton.h"

#include "common/base/mem.h"

#include <stdlib.h>
#include <string.h>

#define UNKNOWN UINT32_MAX
#define MAX_SETS (1u << 22)
#define MAX_ALL_WAYS (1u << 24) /* sets together */
#define MAX_ROW_BYTES ((size_t)64 << 20)
#define MAX_LEVEL 1000 /* levels of JSON, as most readers have it */
#define MAX_RECURSION 4000 /* stacks in stacks while two are joined */
#define MAX_WAYS (1u << 20) /* in a state, before equal ones are joined */

/* A way: of a state, an expression; of a stack, a node; and the stack behind it. */
struct reading {
	uint32_t what, stack;
};

/* A state, or a stack: several stacks that are possible at once, sorted by what is on top. */
struct set {
	uint32_t first, n; /* ways[first ...] */
	bool is_state;
	bool ends; /* state: the text may end; stack: nothing need follow */
	uint16_t level; /* stack: levels of JSON around it */
	uint32_t opened; /* stack: its state; UNKNOWN: not made yet */
	uint32_t met; /* stack: the last opening in which it was met */
	uint32_t *row; /* [256] state: the next ones, UNKNOWN where not made yet; NULL: none is */
};

struct od_automaton {
	struct od_grammar *g;
	struct od_re_pool *res;
	struct set *set;
	size_t n, cap;
	struct reading *ways;
	size_t n_ways, cap_ways;
	uint32_t *hash; /* numbers of sets plus one, 0: free */
	size_t hash_size;
	/* joined stacks: of two, sorted */
	struct joined {
		uint32_t a, b, both;
	} * joined;
	size_t n_joined, joined_size;
	uint32_t *space; /* [MAX_LEVEL + 1] expressions; UNKNOWN: not made yet */
	uint32_t start, bottom, level_end;
	/* an opening: stacks whose readings are still to be expanded, and calls of rules, by what may follow them */
	uint32_t opening; /* its number */
	uint32_t *todo;
	size_t n_todo, cap_todo;
	struct call {
		uint32_t body, stack; /* stack: UNKNOWN, if the rule is not called */
	} * call; /* [rules of the grammar] by order */
	uint32_t *called; /* orders of the rules that are called: a heap, the highest first */
	size_t n_called;
	size_t row_bytes;
	int failed;
};

/* A set that is being made. */
struct making {
	struct reading *way;
	size_t n, cap;
	bool ends;
};

static void fail(struct od_automaton *a, int rc)
{
	if (a->failed == OD_OK)
		a->failed = rc;
}

/* Nodes that are expanded, and ways that are joined, are work of the pool of expressions. */
static void count(struct od_automaton *a, size_t work)
{
	od_re_spend(a->res, work);
	if (od_re_check(a->res, NULL) != OD_OK)
		fail(a, OD_ERR_RANGE);
}

static bool grow(struct od_automaton *a, void **v, size_t n, size_t more, size_t *cap, size_t size)
{
	if (od_grow(v, n, more, cap, size))
		return true;
	fail(a, OD_ERR_NOMEM);
	return false;
}

/* ---- Sets ---- */

static uint64_t mix(uint64_t h, uint64_t x)
{
	h = (h ^ x) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

static uint64_t hash_of(const struct reading *way, size_t n, bool is_state, bool ends)
{
	uint64_t h = (uint64_t)is_state << 1 | ends;

	for (size_t i = 0; i < n; i++)
		h = mix(h, (uint64_t)way[i].what << 32 | way[i].stack);
	return h;
}

static bool rehash(struct od_automaton *a)
{
	const size_t size = a->hash_size == 0 ? 256 : 2 * a->hash_size;
	uint32_t *hash = calloc(size, sizeof(*hash));

	if (hash == NULL) {
		fail(a, OD_ERR_NOMEM);
		return false;
	}
	for (size_t i = 0; i < a->n; i++) {
		const struct set *s = &a->set[i];
		size_t at = hash_of(a->ways + s->first, s->n, s->is_state, s->ends) & (size - 1);

		while (hash[at] != 0)
			at = (at + 1) & (size - 1);
		hash[at] = (uint32_t)i + 1;
	}
	free(a->hash);
	a->hash = hash;
	a->hash_size = size;
	return true;
}

static uint16_t level_of(const struct od_automaton *a, const struct reading *way, size_t n)
{
	unsigned most = 0;

	for (size_t i = 0; i < n; i++) {
		const unsigned level = a->set[way[i].stack].level + (way[i].what == a->level_end);

		most = level > most ? level : most;
	}
	return (uint16_t)(most < UINT16_MAX ? most : UINT16_MAX);
}

/* The number of the set with these ways, sorted by what they are, all different. */
static uint32_t intern(struct od_automaton *a, const struct reading *way, size_t n, bool is_state, bool ends)
{
	size_t at;

	if (a->failed != OD_OK || (2 * a->n >= a->hash_size && !rehash(a)))
		return OD_STATE_DEAD;
	for (at = hash_of(way, n, is_state, ends) & (a->hash_size - 1); a->hash[at] != 0;
	     at = (at + 1) & (a->hash_size - 1)) {
		const struct set *s = &a->set[a->hash[at] - 1];

		if (s->n == n && s->is_state == is_state && s->ends == ends &&
		    (n == 0 || memcmp(a->ways + s->first, way, n * sizeof(*way)) == 0))
			return a->hash[at] - 1;
	}
	if (a->n == MAX_SETS || a->n_ways + n > MAX_ALL_WAYS)
		fail(a, OD_ERR_RANGE);
	if (a->failed != OD_OK || !grow(a, (void **)&a->set, a->n, 1, &a->cap, sizeof(*a->set)) ||
	    !grow(a, (void **)&a->ways, a->n_ways, n, &a->cap_ways, sizeof(*a->ways)))
		return OD_STATE_DEAD;
	a->set[a->n] = (struct set){ .first = (uint32_t)a->n_ways,
				     .n = (uint32_t)n,
				     .is_state = is_state,
				     .ends = ends,
				     .level = is_state ? 0 : level_of(a, way, n),
				     .opened = UNKNOWN };
	if (n > 0)
		memcpy(a->ways + a->n_ways, way, n * sizeof(*way));
	a->n_ways += n;
	a->hash[at] = (uint32_t)a->n + 1;
	return (uint32_t)a->n++;
}

/* This node on the stack. */
static uint32_t push(struct od_automaton *a, uint32_t node, uint32_t stack)
{
	const struct reading w = { node, stack };

	return node == OD_SYNTAX_EMPTY ? stack : intern(a, &w, 1, false, false);
}

/* Numbers of sets that are joined are often close together: their bits must not cancel each other out. */
static uint64_t hash_of_two(uint32_t x, uint32_t y)
{
	return mix(0, (uint64_t)x << 32 | y);
}

static bool rehash_joined(struct od_automaton *a)
{
	const size_t size = a->joined_size == 0 ? 256 : 2 * a->joined_size;
	struct joined *v = calloc(size, sizeof(*v));

	if (v == NULL) {
		fail(a, OD_ERR_NOMEM);
		return false;
	}
	for (size_t i = 0; i < a->joined_size; i++) {
		size_t at = hash_of_two(a->joined[i].a, a->joined[i].b) & (size - 1);

		if (a->joined[i].b == 0)
			continue;
		while (v[at].b != 0)
			at = (at + 1) & (size - 1);
		v[at] = a->joined[i];
	}
	free(a->joined);
	a->joined = v;
	a->joined_size = size;
	return true;
}

static uint32_t join(struct od_automaton *a, uint32_t x, uint32_t y, unsigned depth);

static uint32_t make_joined(struct od_automaton *a, uint32_t x, uint32_t y, unsigned depth)
{
	const struct set sx = a->set[x], sy = a->set[y]; /* sets and ways move */
	struct reading *way = malloc((sx.n + sy.n + 1) * sizeof(*way));
	uint32_t i = 0, k = 0, both;
	size_t n = 0;

	count(a, 8 + sx.n + sy.n);
	if (way == NULL)
		fail(a, OD_ERR_NOMEM);
	if (a->failed != OD_OK) {
		free(way);
		return x;
	}
	while (i < sx.n || k < sy.n) {
		const struct reading *wx = &a->ways[sx.first + i], *wy = &a->ways[sy.first + k];

		if (k == sy.n || (i < sx.n && wx->what < wy->what)) {
			way[n++] = *wx;
			i++;
		} else if (i == sx.n || wy->what < wx->what) {
			way[n++] = *wy;
			k++;
		} else {
			const uint32_t what = wx->what;

			way[n++] = (struct reading){ what, join(a, wx->stack, wy->stack, depth + 1) };
			i++, k++;
		}
	}
	both = intern(a, way, n, false, sx.ends || sy.ends);
	free(way);
	return both;
}

/* Both stacks at once. */
static uint32_t join(struct od_automaton *a, uint32_t x, uint32_t y, unsigned depth)
{
	uint32_t both;
	size_t at;

	count(a, 1);
	if (x == y || a->failed != OD_OK)
		return x;
	if (x > y) {
		both = x;
		x = y;
		y = both;
	}
	if (depth > MAX_RECURSION)
		fail(a, OD_ERR_RANGE);
	if (2 * a->n_joined >= a->joined_size && !rehash_joined(a))
		return x;
	for (at = hash_of_two(x, y) & (a->joined_size - 1); a->joined[at].b != 0; at = (at + 1) & (a->joined_size - 1))
		if (a->joined[at].a == x && a->joined[at].b == y)
			return a->joined[at].both;
	both = make_joined(a, x, y, depth);
	if (a->failed != OD_OK || (2 * a->n_joined >= a->joined_size && !rehash_joined(a)))
		return x;
	for (at = hash_of_two(x, y) & (a->joined_size - 1); a->joined[at].b != 0; at = (at + 1) & (a->joined_size - 1))
		;
	a->joined[at] = (struct joined){ x, y, both };
	a->n_joined++;
	return both;
}

/* ---- States ---- */

/* Adds a way to a state; ways with the same expression are joined later. */
static void add(struct od_automaton *a, struct making *m, uint32_t re, uint32_t stack)
{
	if (m->n == MAX_WAYS)
		fail(a, OD_ERR_RANGE);
	else if (grow(a, (void **)&m->way, m->n, 1, &m->cap, sizeof(*m->way)))
		m->way[m->n++] = (struct reading){ re, stack };
}

static void add_state(struct od_automaton *a, struct making *m, uint32_t state)
{
	const struct set s = a->set[state];

	m->ends |= s.ends;
	for (uint32_t i = 0; i < s.n; i++) {
		const struct reading w = a->ways[s.first + i];

		add(a, m, w.what, w.stack);
	}
}

static int by_what(const void *x, const void *y)
{
	const struct reading *a = x, *b = y;

	if (a->what != b->what)
		return a->what < b->what ? -1 : 1;
	return a->stack < b->stack ? -1 : a->stack > b->stack;
}

/* All stacks of these n ways at once: by halves, so that few sets are made that are not the last one. */
static uint32_t join_all(struct od_automaton *a, const struct reading *way, size_t n)
{
	if (n == 1)
		return way[0].stack;
	return join(a, join_all(a, way, n / 2), join_all(a, way + n / 2, n - n / 2), 0);
}

/* Makes the state of the ways that were added; m is empty afterwards. */
static uint32_t make_state(struct od_automaton *a, struct making *m)
{
	uint32_t state = OD_STATE_DEAD;
	size_t n = 0;

	count(a, m->n);
	if (m->n > 1)
		qsort(m->way, m->n, sizeof(*m->way), by_what);
	for (size_t i = 0, end; i < m->n; i = end) {
		for (end = i + 1; end < m->n && m->way[end].what == m->way[i].what;)
			end++;
		m->way[n++] = (struct reading){ m->way[i].what, join_all(a, m->way + i, end - i) };
	}
	if (n > 0 || m->ends)
		state = intern(a, m->way, n, true, m->ends);
	free(m->way);
	*m = (struct making){ 0 };
	return a->failed == OD_OK ? state : OD_STATE_DEAD;
}

static uint32_t space_of(struct od_automaton *a, unsigned level)
{
	uint32_t *re;

	if (level > MAX_LEVEL) {
		fail(a, OD_ERR_RANGE);
		return OD_RE_NONE;
	}
	re = &a->space[level];
	if (*re == UNKNOWN) {
		const uint32_t blank = od_re_text(a->res, " ", 1);
		const uint32_t line =
			od_re_cat(a->res, od_re_text(a->res, "\n", 1), od_re_repeat(a->res, blank, 0, 2 * level));

		*re = od_re_or(a->res, OD_RE_EMPTY, od_re_or(a->res, blank, line));
	}
	return *re;
}

/* ---- Opening a stack ----
 *
 * The state behind a stack has the ways of all stacks that are reached from it without a byte. Each is expanded once.
 * Rules that several nodes begin with are expanded once, too, with all that may follow them: a rule comes after all
 * that call it, except those that are reached through what is empty in it. */

/* Remembers to expand the readings of a stack. */
static void reach(struct od_automaton *a, uint32_t stack)
{
	if (a->failed != OD_OK || a->set[stack].met == a->opening)
		return;
	a->set[stack].met = a->opening;
	if (grow(a, (void **)&a->todo, a->n_todo, 1, &a->cap_todo, sizeof(*a->todo)))
		a->todo[a->n_todo++] = stack;
}

static void call_rule(struct od_automaton *a, uint32_t order, uint32_t body, uint32_t stack)
{
	struct call *c = &a->call[order];
	size_t i = a->n_called;

	if (c->stack != UNKNOWN) {
		c->stack = join(a, c->stack, stack, 0);
		return;
	}
	*c = (struct call){ body, stack };
	for (a->n_called++; i > 0 && a->called[(i - 1) / 2] < order; i = (i - 1) / 2)
		a->called[i] = a->called[(i - 1) / 2];
	a->called[i] = order;
}

static struct call take_call(struct od_automaton *a)
{
	const uint32_t order = a->called[0], last = a->called[--a->n_called];
	const struct call c = a->call[order];
	size_t i = 0, child;

	for (; (child = 2 * i + 1) < a->n_called; i = child) {
		if (child + 1 < a->n_called && a->called[child + 1] > a->called[child])
			child++;
		if (a->called[child] <= last)
			break;
		a->called[i] = a->called[child];
	}
	a->called[i] = last;
	a->call[order].stack = UNKNOWN;
	return c;
}

static void add_re(struct od_automaton *a, struct making *m, uint32_t re, uint32_t stack)
{
	if (od_re_goes_on(a->res, re))
		add(a, m, re, stack);
	if (od_re_nullable(a->res, re))
		reach(a, stack);
}

static void expand(struct od_automaton *a, struct making *m, uint32_t node, uint32_t stack);

static void expand_repeat(struct od_automaton *a, struct making *m, uint32_t node, uint32_t stack)
{
	const struct od_syntax n = *od_grammar_node(a->g, node);
	const bool empty = od_grammar_node(a->g, n.a)->nullable;
	uint32_t rest;

	if (n.min == 0 || empty)
		reach(a, stack);
	if (!od_grammar_node(a->g, n.a)->productive)
		return;
	rest = push(a, od_grammar_rest(a->g, node), stack);
	/* Behind an empty time one time less is left: nothing new can follow. */
	if (empty && a->failed == OD_OK)
		a->set[rest].met = a->opening;
	expand(a, m, n.a, rest);
}

/* Adds all with which the node can begin, and reaches what follows it if it can be empty. */
static void expand(struct od_automaton *a, struct making *m, uint32_t node, uint32_t stack)
{
	const struct od_syntax n = *od_grammar_node(a->g, node); /* nodes move */

	count(a, 1);
	if (a->failed != OD_OK || !n.productive)
		return;
	switch (n.kind) {
	case OD_SYNTAX_IS_NONE: return;
	case OD_SYNTAX_IS_EMPTY:
	case OD_SYNTAX_LEVEL_END: reach(a, stack); return;
	case OD_SYNTAX_RE: add_re(a, m, n.a, stack); return;
	case OD_SYNTAX_SPACE: add_re(a, m, space_of(a, a->set[stack].level), stack); return;
	case OD_SYNTAX_CAT: expand(a, m, n.a, push(a, n.b, stack)); return;
	case OD_SYNTAX_LEVEL: expand(a, m, n.a, push(a, a->level_end, stack)); return;
	case OD_SYNTAX_ALT:
		for (uint32_t i = 0; i < n.b; i++)
			expand(a, m, od_grammar_member(a->g, &n, i), stack);
		return;
	case OD_SYNTAX_RULE: call_rule(a, od_grammar_order(a->g, &n), od_grammar_body(a->g, &n), stack); return;
	case OD_SYNTAX_REPEAT: expand_repeat(a, m, node, stack); return;
	}
}

static void expand_stack(struct od_automaton *a, struct making *m, uint32_t stack)
{
	const struct set s = a->set[stack]; /* sets and ways move */

	if (s.opened != UNKNOWN) {
		add_state(a, m, s.opened);
		return;
	}
	m->ends |= s.ends;
	for (uint32_t i = 0; i < s.n; i++) {
		const struct reading w = a->ways[s.first + i];

		expand(a, m, w.what, w.stack);
	}
}

uint32_t od_automaton_after(struct od_automaton *a, uint32_t stack)
{
	struct making m = { 0 };
	uint32_t state;

	if (a->set[stack].opened != UNKNOWN || a->failed != OD_OK)
		return a->failed == OD_OK ? a->set[stack].opened : OD_STATE_DEAD;
	a->opening++;
	reach(a, stack);
	while (a->failed == OD_OK && (a->n_todo > 0 || a->n_called > 0)) {
		if (a->n_todo > 0) {
			expand_stack(a, &m, a->todo[--a->n_todo]);
		} else {
			const struct call c = take_call(a);

			expand(a, &m, c.body, c.stack);
		}
	}
	state = make_state(a, &m);
	if (a->failed == OD_OK)
		a->set[stack].opened = state;
	return state;
}

/* ---- Life ---- */

/* Memory of which all numbers are UNKNOWN. */
static void *unknown(size_t n, size_t size)
{
	void *v = malloc((n + 1) * size);

	if (v != NULL)
		memset(v, 0xff, (n + 1) * size);
	return v;
}

int od_automaton_new(struct od_automaton **out, struct od_grammar *g, struct od_err *err)
{
	struct od_automaton *a = calloc(1, sizeof(*a));
	int rc;

	*out = NULL;
	if (a == NULL) {
		od_grammar_free(g);
		return od_fail(err, OD_ERR_NOMEM, "no memory for an automaton");
	}
	a->g = g;
	a->res = od_grammar_res(g);
	a->level_end = od_grammar_level_end(g);
	a->space = unknown(MAX_LEVEL + 1, sizeof(*a->space));
	a->call = unknown(od_grammar_rules(g), sizeof(*a->call));
	a->called = unknown(od_grammar_rules(g), sizeof(*a->called));
	if (a->space == NULL || a->call == NULL || a->called == NULL)
		fail(a, OD_ERR_NOMEM);
	(void)intern(a, NULL, 0, true, false); /* OD_STATE_DEAD */
	a->bottom = intern(a, NULL, 0, false, true);
	if (a->failed == OD_OK)
		a->start = od_automaton_after(a, push(a, od_grammar_root(g), a->bottom));
	rc = od_automaton_check(a, err);
	if (rc == OD_OK && a->start == OD_STATE_DEAD)
		rc = od_fail(err, OD_ERR_ARG, "no text can satisfy it");
	if (rc != OD_OK) {
		od_automaton_free(a);
		return rc;
	}
	*out = a;
	return OD_OK;
}

void od_automaton_free(struct od_automaton *a)
{
	if (a == NULL)
		return;
	for (size_t i = 0; i < a->n; i++)
		free(a->set[i].row);
	free(a->set);
	free(a->ways);
	free(a->hash);
	free(a->joined);
	free(a->space);
	free(a->todo);
	free(a->call);
	free(a->called);
	od_grammar_free(a->g);
	free(a);
}

int od_automaton_check(const struct od_automaton *a, struct od_err *err)
{
	int rc = od_re_check(a->res, err);

	if (rc != OD_OK)
		return rc;
	rc = a->failed != OD_OK ? a->failed : od_grammar_failed(a->g);
	if (rc == OD_ERR_NOMEM)
		return od_fail(err, rc, "no memory for an automaton");
	return rc == OD_OK ? OD_OK :
			     od_fail(err, rc, "it needs too much work or memory, or the text is nested too deep");
}

size_t od_automaton_memory(const struct od_automaton *a)
{
	return od_grammar_memory(a->g) + od_grammar_rules(a->g) * (sizeof(*a->call) + sizeof(*a->called)) +
	       a->cap * sizeof(*a->set) + a->cap_ways * sizeof(*a->ways) + a->hash_size * sizeof(*a->hash) +
	       a->joined_size * sizeof(*a->joined) + a->row_bytes;
}

struct od_re_pool *od_automaton_res(struct od_automaton *a)
{
	return a->res;
}

/* ---- Steps ---- */

uint32_t od_automaton_start(const struct od_automaton *a)
{
	return a->start;
}

bool od_automaton_ends(const struct od_automaton *a, uint32_t state)
{
	return a->set[state].ends;
}

static uint32_t make_step(struct od_automaton *a, uint32_t state, uint8_t byte)
{
	struct making m = { 0 };

	for (uint32_t i = 0; i < a->set[state].n && a->failed == OD_OK; i++) {
		const struct reading w = a->ways[a->set[state].first + i];
		const uint32_t re = od_re_step(a->res, w.what, byte);

		if (re == OD_RE_NONE)
			continue;
		if (od_re_nullable(a->res, re))
			add_state(a, &m, od_automaton_after(a, w.stack));
		if (od_re_goes_on(a->res, re))
			add(a, &m, re, w.stack);
	}
	return make_state(a, &m);
}

static uint32_t *new_row(struct od_automaton *a)
{
	uint32_t *row = a->row_bytes < MAX_ROW_BYTES ? malloc(256 * sizeof(*row)) : NULL;

	if (row == NULL) {
		fail(a, a->row_bytes < MAX_ROW_BYTES ? OD_ERR_NOMEM : OD_ERR_RANGE);
		return NULL;
	}
	memset(row, 0xff, 256 * sizeof(*row));
	a->row_bytes += 256 * sizeof(*row);
	return row;
}

uint32_t od_automaton_step(struct od_automaton *a, uint32_t state, uint8_t byte)
{
	uint32_t next, *row = a->set[state].row;

	if (row != NULL && row[byte] != UNKNOWN)
		return row[byte];
	if (state == OD_STATE_DEAD || a->failed != OD_OK)
		return OD_STATE_DEAD;
	next = make_step(a, state, byte);
	if (od_re_check(a->res, NULL) != OD_OK || od_grammar_failed(a->g) != OD_OK)
		fail(a, OD_ERR_RANGE);
	if (a->failed != OD_OK)
		return OD_STATE_DEAD;
	row = a->set[state].row != NULL ? a->set[state].row : new_row(a);
	a->set[state].row = row;
	if (row != NULL)
		od_re_fill_class(a->res, row, byte, next);
	return row != NULL ? next : OD_STATE_DEAD;
}

bool od_automaton_forced(const struct od_automaton *a, uint32_t state, uint8_t *byte)
{
	const struct set *s = &a->set[state];
	struct od_byte_set first = { { 0 } };

	if (s->ends)
		return false;
	for (uint32_t i = 0; i < s->n; i++)
		od_re_first(a->res, a->ways[s->first + i].what, &first);
	if (od_byte_set_count(&first) != 1)
		return false;
	for (unsigned i = 0; i < 4; i++)
		if (first.w[i] != 0)
			*byte = (uint8_t)(64 * i + (unsigned)__builtin_ctzll(first.w[i]));
	return true;
}

size_t od_automaton_ways(const struct od_automaton *a, uint32_t state)
{
	return a->set[state].n;
}

void od_automaton_way(const struct od_automaton *a, uint32_t state, size_t i, uint32_t *re, uint32_t *stack)
{
	const struct reading w = a->ways[a->set[state].first + i];

	*re = w.what;
	*stack = w.stack;
}
