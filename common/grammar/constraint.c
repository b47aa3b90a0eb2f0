#include "common/grammar/constraint.h"

#include "common/grammar/chars.h"
#include "common/grammar/runs.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MASK_BYTES ((size_t)8 << 20) /* masks that are kept, by state and by expression each */
#define MIN_MASKS 8
#define MAX_FEW 256 /* tokens of a part that are listed */
#define MASK_WORK 1200000u /* as od_re_work counts, for one mask or one token */
#define MAX_RUNS 64 /* repetitions for which runs are kept */
#define MANY_EXITS 16384 /* behind so many ends of an expression it is cheaper to walk once for the whole state */

/* The tokens within an expression: those after which it can still be matched; and the nodes at which it may end, behind
 * which what follows decides. */
struct part {
	uint64_t *mask;
	int32_t *few; /* [n_few] the tokens, if there are few: then there is no need to look at all of the mask */
	size_t n_few;
	uint32_t *exits;
	size_t n_exits, cap_exits;
};

/* A part of an expression, or the mask of a state, by its number. */
struct kept_part {
	uint32_t key;
	struct part part;
	uint64_t used; /* time of its last use */
};

struct kept_list {
	struct kept_part *v;
	size_t n, max;
	uint32_t *hash; /* numbers in v plus one; 0: free; rebuilt when one goes */
	size_t hash_size;
};

struct od_constraint {
	atomic_uint refs;
	struct od_automaton *a;
	struct od_re_pool *res;
	const struct od_vocab *v;
	size_t mask_words;
	struct kept_list by_re, by_state;
	struct kept_runs {
		uint32_t one, rest;
		struct od_runs *runs; /* NULL: there are none for these */
	} * runs;
	size_t n_runs;
	uint32_t json_char, name_char, quote; /* expressions; their runs are those of the vocabulary */
	uint64_t clock;
	uint32_t *path; /* [max_depth + 1] states on the way to a node */
	bool failed; /* no memory */
	atomic_size_t bytes;
};

/* ---- What is kept ---- */

static struct kept_part *find(struct od_constraint *c, struct kept_list *l, uint32_t key)
{
	if (l->hash_size == 0)
		return NULL;
	for (size_t at = key * 0x9e3779b9u & (l->hash_size - 1); l->hash[at] != 0; at = (at + 1) & (l->hash_size - 1)) {
		struct kept_part *k = &l->v[l->hash[at] - 1];

		if (k->key == key) {
			k->used = ++c->clock;
			return k;
		}
	}
	return NULL;
}

static void put_hash(struct kept_list *l, size_t i)
{
	size_t at = l->v[i].key * 0x9e3779b9u & (l->hash_size - 1);

	while (l->hash[at] != 0)
		at = (at + 1) & (l->hash_size - 1);
	l->hash[at] = (uint32_t)i + 1;
}

static void free_part(struct part *p)
{
	free(p->mask);
	free(p->few);
	free(p->exits);
	*p = (struct part){ 0 };
}

/* The place of the one that was not used for the longest time, emptied. */
static struct kept_part *oldest(struct kept_list *l)
{
	struct kept_part *old = &l->v[0];

	for (size_t i = 1; i < l->n; i++)
		old = l->v[i].used < old->used ? &l->v[i] : old;
	free(old->part.exits);
	free(old->part.few);
	old->part = (struct part){ .mask = old->part.mask };
	return old;
}

/* A new entry with an empty mask; NULL: no memory. */
static struct kept_part *keep(struct od_constraint *c, struct kept_list *l, uint32_t key)
{
	struct kept_part *k;

	if (l->v == NULL) {
		l->max = MAX_MASK_BYTES / (c->mask_words * sizeof(uint64_t) + 1);
		l->max = l->max < MIN_MASKS ? MIN_MASKS : l->max > 4096 ? 4096 : l->max;
		for (l->hash_size = 16; l->hash_size < 2 * l->max;)
			l->hash_size *= 2;
		l->v = calloc(l->max, sizeof(*l->v));
		l->hash = calloc(l->hash_size, sizeof(*l->hash));
		if (l->v == NULL || l->hash == NULL)
			return NULL;
	}
	k = l->n < l->max ? &l->v[l->n] : oldest(l);
	if (k->part.mask == NULL)
		k->part.mask = malloc(c->mask_words * sizeof(uint64_t));
	if (k->part.mask == NULL)
		return NULL;
	memset(k->part.mask, 0, c->mask_words * sizeof(uint64_t));
	k->key = key;
	k->used = ++c->clock;
	if (l->n < l->max) {
		put_hash(l, l->n++);
		return k;
	}
	memset(l->hash, 0, l->hash_size * sizeof(*l->hash));
	for (size_t i = 0; i < l->n; i++)
		put_hash(l, i);
	return k;
}

static void free_list(struct kept_list *l)
{
	for (size_t i = 0; i < l->n; i++)
		free_part(&l->v[i].part);
	free(l->v);
	free(l->hash);
}

/* ---- Walks through the vocabulary ---- */

static void allow(const struct od_vocab *v, uint32_t node, uint64_t *mask)
{
	for (uint32_t i = v->tokens[node]; i < v->tokens[node + 1]; i++)
		mask[v->sorted[i] / 64] |= (uint64_t)1 << v->sorted[i] % 64;
}

/* Adds the tokens among these nodes that the automaton allows in the state with which path[depth of the first, less
 * one] was set. */
static void walk_state(struct od_constraint *c, uint32_t begin, uint32_t end, uint64_t *mask)
{
	const struct od_vocab *v = c->v;

	for (uint32_t i = begin; i < end;) {
		const unsigned depth = v->depth[i];
		const uint32_t next = od_automaton_step(c->a, c->path[depth - 1], v->byte[i]);

		if (next == OD_STATE_DEAD) {
			i = v->skip[i];
			continue;
		}
		c->path[depth] = next;
		allow(v, i++, mask);
	}
}

static bool add_exit(struct part *p, uint32_t node)
{
	if (p->n_exits == p->cap_exits) {
		const size_t cap = p->cap_exits == 0 ? 64 : 2 * p->cap_exits;
		uint32_t *v = realloc(p->exits, cap * sizeof(*v));

		if (v == NULL)
			return false;
		p->exits = v;
		p->cap_exits = cap;
	}
	p->exits[p->n_exits++] = node;
	return true;
}

/* Adds the tokens among these nodes that fit into the expression of path[depth of the first, less one]. */
static bool walk_re(struct od_constraint *c, uint32_t begin, uint32_t end, struct part *p)
{
	const struct od_vocab *v = c->v;

	for (uint32_t i = begin; i < end;) {
		const unsigned depth = v->depth[i];
		const uint32_t next = od_re_step(c->res, c->path[depth - 1], v->byte[i]);

		if (next == OD_RE_NONE || !od_re_live(c->res, next)) {
			i = v->skip[i];
			continue;
		}
		/* Nothing follows at the last byte of the longest tokens. */
		if (od_re_nullable(c->res, next) && v->skip[i] > i + 1 && !add_exit(p, i))
			return false;
		c->path[depth] = next;
		allow(v, i++, p->mask);
	}
	return true;
}

/* The runs of a repeated piece; NULL: there are none, or there is no memory. */
static const struct od_runs *runs_of(struct od_constraint *c, uint32_t one, uint32_t rest)
{
	struct kept_runs *more;

	if (rest == c->quote && (one == c->json_char || one == c->name_char))
		return one == c->json_char ? c->v->json_string : c->v->json_name;
	for (size_t i = 0; i < c->n_runs; i++)
		if (c->runs[i].one == one && c->runs[i].rest == rest)
			return c->runs[i].runs;
	if (c->n_runs == MAX_RUNS)
		return NULL;
	more = realloc(c->runs, (c->n_runs + 1) * sizeof(*more));
	if (more == NULL)
		return NULL;
	c->runs = more;
	more[c->n_runs] = (struct kept_runs){ one, rest, NULL };
	if (od_runs_new(&more[c->n_runs].runs, c->v, c->res, one, rest) == OD_ERR_NOMEM)
		c->failed = true;
	return more[c->n_runs++].runs;
}

/* Fills the part of a repetition and what follows it. */
static bool add_run(struct od_constraint *c, const struct od_runs *r, uint32_t min, uint32_t max, uint32_t rest,
		    struct part *p)
{
	od_runs_mask(r, max, p->mask);
	for (size_t i = 0; i < r->n_ends; i++) {
		const struct od_run_end *end = &r->end[i];

		if (end->pieces < min || end->pieces > max)
			continue;
		c->path[c->v->depth[end->node] - 1] = rest;
		if (!walk_re(c, end->node, c->v->skip[end->node], p))
			return false;
	}
	return true;
}

/* Lists the tokens of a part, if they are few. False: no memory. */
static bool list_few(const struct od_constraint *c, struct part *p)
{
	size_t n = 0;

	for (size_t i = 0; i < c->mask_words; i++)
		n += (size_t)__builtin_popcountll(p->mask[i]);
	if (n > MAX_FEW)
		return true;
	p->few = calloc(n + 1, sizeof(*p->few));
	if (p->few == NULL)
		return false;
	for (size_t i = 0; i < c->mask_words; i++)
		for (uint64_t w = p->mask[i]; w != 0; w &= w - 1)
			p->few[p->n_few++] = (int32_t)(64 * i + (size_t)__builtin_ctzll(w));
	return true;
}

static void add_part(const struct od_constraint *c, const struct part *p, uint64_t *mask)
{
	if (p->few == NULL)
		for (size_t i = 0; i < c->mask_words; i++)
			mask[i] |= p->mask[i];
	for (size_t i = 0; i < p->n_few; i++)
		mask[p->few[i] / 64] |= (uint64_t)1 << p->few[i] % 64;
}

static const struct part *part_of(struct od_constraint *c, uint32_t re)
{
	struct kept_part *k = find(c, &c->by_re, re);
	const struct od_runs *runs = NULL;
	uint32_t one, min, max, rest;
	bool done;

	if (k != NULL)
		return &k->part;
	k = keep(c, &c->by_re, re);
	if (k == NULL) {
		c->failed = true;
		return NULL;
	}
	if (od_re_begins_with_repeat(c->res, re, &one, &min, &max, &rest))
		runs = runs_of(c, one, rest);
	c->path[0] = re;
	done = runs != NULL ? add_run(c, runs, min, max, rest, &k->part) : walk_re(c, 0, c->v->n_nodes, &k->part);
	done = done && list_few(c, &k->part);
	c->failed |= !done;
	return done ? &k->part : NULL;
}

/* ---- Memory ---- */

static size_t list_memory(const struct od_constraint *c, const struct kept_list *l)
{
	size_t n = l->max * sizeof(*l->v) + l->hash_size * sizeof(*l->hash) + l->n * c->mask_words * sizeof(uint64_t);

	for (size_t i = 0; i < l->n; i++)
		n += l->v[i].part.cap_exits * sizeof(uint32_t);
	return n;
}

static size_t memory_of(const struct od_constraint *c)
{
	size_t n = od_automaton_memory(c->a) + list_memory(c, &c->by_re) + list_memory(c, &c->by_state);

	for (size_t i = 0; i < c->n_runs; i++)
		n += od_runs_memory(c->runs[i].runs);
	return n;
}

size_t od_constraint_size(const struct od_constraint *c)
{
	return atomic_load(&c->bytes);
}

/* ---- Masks ---- */

/* Adds the tokens of one way. False: it has too many ends, or there is no memory. */
static bool add_way(struct od_constraint *c, uint32_t re, uint32_t stack, uint64_t *mask)
{
	const struct part *p = part_of(c, re);
	uint32_t after;

	if (p == NULL)
		return false;
	add_part(c, p, mask);
	if (p->n_exits == 0)
		return true;
	after = od_automaton_after(c->a, stack);
	if (od_automaton_ways(c->a, after) == 0)
		return true;
	if (p->n_exits > MANY_EXITS)
		return false;
	for (size_t i = 0; i < p->n_exits; i++) {
		const uint32_t node = p->exits[i];

		c->path[c->v->depth[node]] = after;
		walk_state(c, node + 1, c->v->skip[node], mask);
	}
	return true;
}

static bool is_empty(const struct od_constraint *c, const uint64_t *mask)
{
	uint64_t any = 0;

	for (size_t i = 0; i < c->mask_words; i++)
		any |= mask[i];
	return any == 0;
}

static int check(const struct od_constraint *c, struct od_err *err)
{
	if (c->failed)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a mask of tokens");
	return od_automaton_check(c->a, err);
}

int od_constraint_mask(struct od_constraint *c, uint32_t state, const uint64_t **mask, struct od_err *err)
{
	struct kept_part *k = find(c, &c->by_state, state);
	const size_t ways = od_automaton_ways(c->a, state);
	int rc = OD_OK;

	*mask = NULL;
	if (k != NULL) {
		*mask = k->part.mask;
		return OD_OK;
	}
	od_re_allow(c->res, MASK_WORK);
	k = keep(c, &c->by_state, state);
	if (k == NULL)
		c->failed = true;
	for (size_t i = 0; i < ways && !c->failed; i++) {
		uint32_t re, stack;

		od_automaton_way(c->a, state, i, &re, &stack);
		if (add_way(c, re, stack, k->part.mask))
			continue;
		c->path[0] = state;
		walk_state(c, 0, c->v->n_nodes, k->part.mask);
		break;
	}
	rc = check(c, err);
	if (rc == OD_OK && ways > 0 && is_empty(c, k->part.mask) && !od_automaton_ends(c->a, state))
		rc = od_fail(err, OD_ERR_UNSUPPORTED,
			     "the model's vocabulary has no token with which the text can go on");
	if (rc != OD_OK && k != NULL)
		k->key = OD_STATE_DEAD; /* found for no text */
	if (rc == OD_OK)
		*mask = k->part.mask;
	atomic_store(&c->bytes, memory_of(c));
	return rc;
}

uint32_t od_constraint_step(struct od_constraint *c, uint32_t state, int32_t token)
{
	const char *bytes;
	const size_t n = token >= 0 && (uint32_t)token < c->v->n_tokens ? od_vocab_bytes(c->v, token, &bytes) : 0;

	if (n == 0)
		return OD_STATE_DEAD;
	od_re_allow(c->res, MASK_WORK);
	for (size_t i = 0; i < n && state != OD_STATE_DEAD; i++)
		state = od_automaton_step(c->a, state, (uint8_t)bytes[i]);
	return state;
}

const struct od_vocab *od_constraint_vocab(const struct od_constraint *c)
{
	return c->v;
}

uint32_t od_constraint_start(const struct od_constraint *c)
{
	return od_automaton_start(c->a);
}

bool od_constraint_ends(const struct od_constraint *c, uint32_t state)
{
	return od_automaton_ends(c->a, state);
}

bool od_constraint_is_over(const struct od_constraint *c, uint32_t state)
{
	return od_automaton_ends(c->a, state) && od_automaton_ways(c->a, state) == 0;
}

size_t od_constraint_forced(struct od_constraint *c, uint32_t state, char *bytes, size_t size)
{
	size_t n = 0;
	uint8_t byte;

	while (n < size && state != OD_STATE_DEAD && od_automaton_forced(c->a, state, &byte)) {
		bytes[n++] = (char)byte;
		state = od_automaton_step(c->a, state, byte);
	}
	return state != OD_STATE_DEAD ? n : 0;
}

/* ---- Life ---- */

int od_constraint_new(struct od_constraint **out, struct od_grammar *g, const struct od_vocab *v, struct od_err *err)
{
	struct od_constraint *c = calloc(1, sizeof(*c));
	const uint64_t *mask;
	int rc;

	*out = NULL;
	if (c == NULL) {
		od_grammar_free(g);
		return od_fail(err, OD_ERR_NOMEM, "no memory for a grammar");
	}
	atomic_init(&c->refs, 1);
	c->v = v;
	c->mask_words = (v->n_tokens + (size_t)63) / 64;
	c->path = calloc(v->max_depth + (size_t)1, sizeof(*c->path));
	rc = od_automaton_new(&c->a, g, err);
	if (rc == OD_OK && c->path == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for a grammar");
	if (rc == OD_OK) {
		c->res = od_automaton_res(c->a);
		c->json_char = od_any_char(c->res, OD_WRITE_JSON);
		c->name_char = od_one_char(c->res, OD_WRITE_JSON);
		c->quote = od_re_text(c->res, "\"", 1);
		rc = od_constraint_mask(c, od_constraint_start(c), &mask, err);
	}
	if (rc != OD_OK) {
		od_constraint_unref(c);
		return rc;
	}
	*out = c;
	return OD_OK;
}

struct od_constraint *od_constraint_ref(struct od_constraint *c)
{
	atomic_fetch_add(&c->refs, 1);
	return c;
}

void od_constraint_unref(struct od_constraint *c)
{
	if (c == NULL || atomic_fetch_sub(&c->refs, 1) > 1)
		return;
	free_list(&c->by_re);
	free_list(&c->by_state);
	for (size_t i = 0; i < c->n_runs; i++)
		od_runs_free(c->runs[i].runs);
	free(c->runs);
	od_automaton_free(c->a);
	free(c->path);
	free(c);
}

void od_mask_apply(const uint64_t *mask, float *logits, uint32_t n_tokens)
{
	for (uint32_t at = 0; at < n_tokens; at += 64) {
		const uint64_t word = mask[at / 64];
		const uint32_t n = n_tokens - at < 64 ? n_tokens - at : 64;

		if (word == UINT64_MAX)
			continue;
		for (uint32_t i = 0; i < n; i++)
			logits[at + i] = word >> i & 1 ? logits[at + i] : -INFINITY;
	}
}
