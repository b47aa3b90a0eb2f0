#include "common/grammar/re.h"

#include "common/base/mem.h"

#include <stdlib.h>
#include <string.h>

#define MAX_NODES (1u << 22)
#define MAX_LIST (1u << 24) /* members of alternatives and intersections together */
#define MAX_ROW_BYTES ((size_t)64 << 20)
#define DEFAULT_WORK 9000000u /* about a third of a second */
/* Costs in units of work, as measured. */
#define COST_DERIVATIVE 3
#define COST_NODE 8
#define COST_ROW 5
#define COST_MET 2 /* an expression that a search meets */
#define COST_LIST 3 /* beside one for each member */
#define UNKNOWN UINT32_MAX
#define MAX_DEPTH 2000 /* levels of expressions in expressions */

enum re_kind { RE_NONE, RE_EMPTY, RE_BYTE, RE_CAT, RE_ALT, RE_AND, RE_NOT, RE_REPEAT, RE_MULTIPLE };
enum re_live { LIVE_UNKNOWN, LIVE_YES, LIVE_NO };

struct re_node {
	uint8_t kind; /* enum re_kind */
	bool nullable;
	bool plain; /* without AND, NOT and MULTIPLE: it matches something unless it is NONE */
	uint8_t live; /* enum re_live */
	uint16_t depth;
	/* CAT: the two; NOT, REPEAT: a. ALT, AND: list[a ... a + b). BYTE: sets[a]. MULTIPLE: of a, remainder b. */
	uint32_t a, b;
	uint32_t min, max; /* REPEAT */
	uint32_t *row; /* [256] derivatives, UNKNOWN if not known; NULL: none is */
};

struct od_re_pool {
	struct re_node *node;
	size_t n, cap;
	uint32_t *list;
	size_t n_list, cap_list;
	struct od_byte_set *sets;
	size_t n_sets, cap_sets;
	uint32_t *hash; /* node numbers, 0: free */
	size_t hash_size; /* a power of two */
	uint8_t class_of[256]; /* bytes of one class are in the same sets */
	struct od_byte_set member[256]; /* [n_classes] bytes of a class */
	unsigned n_classes;
	uint64_t work, max_work;
	size_t row_bytes;
	int failed; /* OD_OK, or why */
};

/* ---- Memory ---- */

static void fail(struct od_re_pool *p, int rc)
{
	if (p->failed == OD_OK)
		p->failed = rc;
}

void od_re_spend(struct od_re_pool *p, uint64_t work)
{
	p->work += work;
	if (p->work > p->max_work)
		fail(p, OD_ERR_RANGE);
}

/* Room for one more of n elements. */
static bool grow(struct od_re_pool *p, void **v, size_t n, size_t more, size_t *cap, size_t size)
{
	if (od_grow(v, n, more, cap, size))
		return true;
	fail(p, OD_ERR_NOMEM);
	return false;
}

static uint64_t mix(uint64_t h, uint64_t x)
{
	h = (h ^ x) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

static uint64_t hash_of(const struct od_re_pool *p, const struct re_node *n)
{
	uint64_t h = mix(n->kind, n->min);

	h = mix(h, n->max);
	if (n->kind == RE_ALT || n->kind == RE_AND) {
		for (uint32_t i = 0; i < n->b; i++)
			h = mix(h, p->list[n->a + i]);
		return h;
	}
	if (n->kind == RE_BYTE) {
		for (int i = 0; i < 4; i++)
			h = mix(h, p->sets[n->a].w[i]);
		return h;
	}
	return mix(mix(h, n->a), n->b);
}

static bool same(const struct od_re_pool *p, const struct re_node *x, const struct re_node *y)
{
	if (x->kind != y->kind || x->min != y->min || x->max != y->max)
		return false;
	if (x->kind == RE_BYTE)
		return memcmp(&p->sets[x->a], &p->sets[y->a], sizeof(*p->sets)) == 0;
	if (x->kind == RE_ALT || x->kind == RE_AND)
		return x->b == y->b && memcmp(p->list + x->a, p->list + y->a, x->b * sizeof(*p->list)) == 0;
	return x->a == y->a && x->b == y->b;
}

static bool rehash(struct od_re_pool *p)
{
	const size_t size = p->hash_size == 0 ? 256 : 2 * p->hash_size;
	uint32_t *hash = calloc(size, sizeof(*hash));

	if (hash == NULL) {
		fail(p, OD_ERR_NOMEM);
		return false;
	}
	for (size_t i = 1; i < p->n; i++) {
		size_t at = hash_of(p, &p->node[i]) & (size - 1);

		while (hash[at] != 0)
			at = (at + 1) & (size - 1);
		hash[at] = (uint32_t)i;
	}
	free(p->hash);
	p->hash = hash;
	p->hash_size = size;
	return true;
}

static uint16_t deeper(unsigned a, unsigned b)
{
	const unsigned d = (a > b ? a : b) + 1;

	return (uint16_t)(d < UINT16_MAX ? d : UINT16_MAX);
}

static void describe(const struct od_re_pool *p, struct re_node *n)
{
	const struct re_node *a =
		n->kind == RE_CAT || n->kind == RE_NOT || n->kind == RE_REPEAT ? &p->node[n->a] : NULL;
	const struct re_node *b = n->kind == RE_CAT ? &p->node[n->b] : a;

	n->plain = true;
	if (a != NULL) {
		n->plain = a->plain && b->plain;
		/* Levels of recursion: the right side of a concatenation is entered only behind a nullable left one. */
		n->depth = deeper(a->depth, n->kind == RE_CAT && a->nullable ? b->depth : 0);
		if (n->kind == RE_CAT && b->depth > n->depth)
			n->depth = b->depth;
	}
	switch ((enum re_kind)n->kind) {
	case RE_NONE:
	case RE_BYTE: break;
	case RE_EMPTY: n->nullable = true; break;
	case RE_CAT: n->nullable = a->nullable && b->nullable; break;
	case RE_NOT:
		n->nullable = !a->nullable;
		n->plain = false;
		break;
	case RE_REPEAT: n->nullable = n->min == 0 || a->nullable; break;
	case RE_MULTIPLE:
		n->nullable = n->b == 0;
		n->plain = false;
		break;
	case RE_ALT:
	case RE_AND:
		n->nullable = n->kind == RE_AND;
		n->plain = n->kind == RE_ALT;
		for (uint32_t i = 0; i < n->b; i++) {
			const struct re_node *c = &p->node[p->list[n->a + i]];

			n->nullable = n->kind == RE_AND ? n->nullable && c->nullable : n->nullable || c->nullable;
			n->plain = n->plain && c->plain;
			n->depth = deeper(n->depth > 0 ? n->depth - 1u : 0, c->depth);
		}
	}
}

/* The number of this node. Lists and sets that it names are taken back if the pool has it already. */
static uint32_t intern(struct od_re_pool *p, struct re_node n)
{
	const bool listed = n.kind == RE_ALT || n.kind == RE_AND;
	size_t at;

	if (p->failed != OD_OK)
		return OD_RE_NONE;
	if (2 * p->n >= p->hash_size && !rehash(p))
		return OD_RE_NONE;
	for (at = hash_of(p, &n) & (p->hash_size - 1); p->hash[at] != 0; at = (at + 1) & (p->hash_size - 1))
		if (same(p, &p->node[p->hash[at]], &n)) {
			if (listed)
				p->n_list = n.a;
			if (n.kind == RE_BYTE)
				p->n_sets = n.a;
			return p->hash[at];
		}
	describe(p, &n);
	od_re_spend(p, COST_NODE);
	if (p->n == MAX_NODES || n.depth > MAX_DEPTH)
		fail(p, OD_ERR_RANGE);
	if (p->failed != OD_OK || !grow(p, (void **)&p->node, p->n, 1, &p->cap, sizeof(*p->node)))
		return OD_RE_NONE;
	p->node[p->n] = n;
	p->hash[at] = (uint32_t)p->n;
	return (uint32_t)p->n++;
}

int od_re_pool_new(struct od_re_pool **out, struct od_err *err)
{
	struct od_re_pool *p = calloc(1, sizeof(*p));

	*out = NULL;
	if (p == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for regular expressions");
	p->max_work = DEFAULT_WORK;
	p->n_classes = 1;
	od_byte_set_add_range(&p->member[0], 0, 255);
	if (!grow(p, (void **)&p->node, 0, 2, &p->cap, sizeof(*p->node))) {
		free(p);
		return od_fail(err, OD_ERR_NOMEM, "no memory for regular expressions");
	}
	p->node[OD_RE_NONE] = (struct re_node){ .kind = RE_NONE, .plain = true, .live = LIVE_NO };
	p->node[OD_RE_EMPTY] = (struct re_node){ .kind = RE_EMPTY, .plain = true, .nullable = true, .live = LIVE_YES };
	p->n = 2;
	*out = p;
	return OD_OK;
}

void od_re_pool_free(struct od_re_pool *p)
{
	if (p == NULL)
		return;
	for (size_t i = 0; i < p->n; i++)
		free(p->node[i].row);
	free(p->node);
	free(p->list);
	free(p->sets);
	free(p->hash);
	free(p);
}

int od_re_check(const struct od_re_pool *p, struct od_err *err)
{
	if (p->failed == OD_ERR_NOMEM)
		return od_fail(err, OD_ERR_NOMEM, "no memory for regular expressions");
	if (p->failed != OD_OK)
		return od_fail(err, p->failed, "it needs too much work or memory; make it simpler");
	return OD_OK;
}

void od_re_fail(struct od_re_pool *p)
{
	fail(p, OD_ERR_NOMEM);
}

uint64_t od_re_work(const struct od_re_pool *p)
{
	return p->work;
}

void od_re_allow(struct od_re_pool *p, uint64_t work)
{
	p->max_work = p->work + work;
}

size_t od_re_memory(const struct od_re_pool *p)
{
	return p->cap * sizeof(*p->node) + p->cap_list * sizeof(*p->list) + p->cap_sets * sizeof(*p->sets) +
	       p->hash_size * sizeof(*p->hash) + p->row_bytes;
}

/* ---- Making expressions ---- */

static const struct re_node *at(const struct od_re_pool *p, uint32_t r)
{
	return &p->node[r];
}

/* Bytes that a new set tells apart get classes of their own. */
static void refine(struct od_re_pool *p, const struct od_byte_set *set)
{
	unsigned n = p->n_classes;
	int split[256]; /* new class of the members of an old one; -1: none yet */
	bool has_out[256] = { false };

	memset(split, -1, sizeof(split));
	for (unsigned b = 0; b < 256; b++)
		has_out[p->class_of[b]] |= !od_byte_set_has(set, (uint8_t)b);
	for (unsigned b = 0; b < 256; b++) {
		const uint8_t c = p->class_of[b];

		if (!od_byte_set_has(set, (uint8_t)b) || !has_out[c])
			continue;
		if (split[c] < 0)
			split[c] = (int)n++;
		p->class_of[b] = (uint8_t)split[c];
	}
	p->n_classes = n;
	memset(p->member, 0, sizeof(p->member));
	for (unsigned b = 0; b < 256; b++)
		od_byte_set_add(&p->member[p->class_of[b]], (uint8_t)b);
}

static uint32_t byte_of(struct od_re_pool *p, const struct od_byte_set *set)
{
	if (od_byte_set_count(set) == 0 || !grow(p, (void **)&p->sets, p->n_sets, 1, &p->cap_sets, sizeof(*p->sets)))
		return OD_RE_NONE;
	p->sets[p->n_sets] = *set;
	return intern(p, (struct re_node){ .kind = RE_BYTE, .a = (uint32_t)p->n_sets++ });
}

uint32_t od_re_byte(struct od_re_pool *p, const struct od_byte_set *set)
{
	const size_t n = p->n_sets;
	const uint32_t r = p->failed == OD_OK ? byte_of(p, set) : OD_RE_NONE;

	/* A set that was made of others before tells no more bytes apart than they do. */
	if (p->n_sets > n)
		refine(p, set);
	return r;
}

uint32_t od_re_text(struct od_re_pool *p, const char *text, size_t len)
{
	uint32_t r = OD_RE_EMPTY;

	while (len-- > 0 && p->failed == OD_OK) {
		struct od_byte_set one = { { 0 } };

		od_byte_set_add(&one, (uint8_t)text[len]);
		r = od_re_cat(p, od_re_byte(p, &one), r);
	}
	return p->failed == OD_OK ? r : OD_RE_NONE;
}

uint32_t od_re_cat(struct od_re_pool *p, uint32_t a, uint32_t b)
{
	if (a == OD_RE_NONE || b == OD_RE_NONE)
		return OD_RE_NONE;
	if (a == OD_RE_EMPTY)
		return b;
	if (b == OD_RE_EMPTY)
		return a;
	return intern(p, (struct re_node){ .kind = RE_CAT, .a = a, .b = b });
}

static int by_number(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* Appends r to the list, or its members if it is of the same kind. */
static bool put(struct od_re_pool *p, enum re_kind kind, uint32_t r)
{
	const bool flat = at(p, r)->kind == kind;
	const uint32_t n = flat ? at(p, r)->b : 1, from = at(p, r)->a;

	if (p->n_list + n > MAX_LIST)
		fail(p, OD_ERR_RANGE);
	if (p->failed != OD_OK || !grow(p, (void **)&p->list, p->n_list, n, &p->cap_list, sizeof(*p->list)))
		return false;
	for (uint32_t i = 0; i < n; i++)
		p->list[p->n_list++] = flat ? p->list[from + i] : r;
	return true;
}

/* Single bytes of an alternative are one set. */
static void merge_sets(struct od_re_pool *p, size_t begin)
{
	struct od_byte_set all = { { 0 } };
	size_t n = begin, found = 0;
	uint32_t r = OD_RE_NONE;

	for (size_t i = begin; i < p->n_list; i++) {
		const struct re_node *c = at(p, p->list[i]);

		if (c->kind == RE_BYTE) {
			od_byte_set_unite(&all, &p->sets[c->a]);
			r = p->list[i];
			found++;
		} else {
			p->list[n++] = p->list[i];
		}
	}
	if (found == 0)
		return;
	p->n_list = n;
	if (found > 1)
		r = byte_of(p, &all);
	p->list[p->n_list++] = r; /* there is room: a set has left */
}

/* The list from begin on, without repetitions and what changes nothing. */
static uint32_t make_list(struct od_re_pool *p, enum re_kind kind, size_t begin)
{
	size_t n = begin;
	uint32_t r;

	od_re_spend(p, COST_LIST + (p->n_list - begin));
	if (kind == RE_ALT)
		merge_sets(p, begin);
	if (p->n_list - begin > 1)
		qsort(p->list + begin, p->n_list - begin, sizeof(*p->list), by_number);
	for (size_t i = begin; i < p->n_list; i++)
		if (i == begin || p->list[i] != p->list[i - 1]) {
			const struct re_node *c = at(p, p->list[i]);
			const bool all = c->kind == RE_NOT && c->a == OD_RE_NONE, none = c->kind == RE_NONE;

			if (kind == RE_ALT ? all : none) {
				r = p->list[i];
				p->n_list = begin;
				return r;
			}
			if (kind == RE_ALT ? none : all)
				continue;
			r = p->list[i];
			p->list[n++] = r;
		}
	p->n_list = n;
	if (n - begin <= 1) {
		r = n > begin ? p->list[begin] : kind == RE_ALT ? OD_RE_NONE : od_re_not(p, OD_RE_NONE);
		p->n_list = begin;
		return r;
	}
	return intern(p, (struct re_node){ .kind = kind, .a = (uint32_t)begin, .b = (uint32_t)(n - begin) });
}

uint32_t od_re_alt(struct od_re_pool *p, const uint32_t *r, size_t n)
{
	const size_t begin = p->n_list;

	for (size_t i = 0; i < n; i++)
		if (r[i] != OD_RE_NONE && !put(p, RE_ALT, r[i]))
			return OD_RE_NONE;
	return make_list(p, RE_ALT, begin);
}

static int by_text(const void *a, const void *b)
{
	const struct od_re_word *x = a, *y = b;
	const int c = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);

	return c != 0 ? c : x->len < y->len ? -1 : x->len > y->len;
}

/* The rest of the sorted words, behind the first `at` bytes, which they have in common. */
static uint32_t tree(struct od_re_pool *p, const struct od_re_word *word, size_t n, size_t at)
{
	uint32_t branch[257];
	size_t n_branches = 0, common = at;

	if (n == 0 || p->failed != OD_OK)
		return OD_RE_NONE;
	/* The first and the last word show how far all are the same: so the depth is the number of forks. */
	while (common < word[0].len && common < word[n - 1].len && word[0].text[common] == word[n - 1].text[common])
		common++;
	if (common > at)
		return od_re_cat(p, od_re_text(p, word[0].text + at, common - at), tree(p, word, n, common));
	for (size_t i = 0, k; i < n; i = k) {
		for (k = i + 1; k < n && word[k].len > at && word[i].len > at && word[k].text[at] == word[i].text[at];)
			k++;
		if (word[i].len == at) {
			branch[n_branches++] = OD_RE_EMPTY;
			for (k = i + 1; k < n && word[k].len == at;)
				k++;
			continue;
		}
		branch[n_branches++] =
			od_re_cat(p, od_re_text(p, word[i].text + at, 1), tree(p, word + i, k - i, at + 1));
	}
	return od_re_alt(p, branch, n_branches);
}

uint32_t od_re_words(struct od_re_pool *p, struct od_re_word *word, size_t n)
{
	if (n > 1)
		qsort(word, n, sizeof(*word), by_text);
	return tree(p, word, n, 0);
}

uint32_t od_re_or(struct od_re_pool *p, uint32_t a, uint32_t b)
{
	const uint32_t both[2] = { a, b };

	if (a == OD_RE_NONE || a == b)
		return b;
	return b == OD_RE_NONE ? a : od_re_alt(p, both, 2);
}

uint32_t od_re_and(struct od_re_pool *p, uint32_t a, uint32_t b)
{
	const size_t begin = p->n_list;

	if (a == OD_RE_NONE || b == OD_RE_NONE || a == b)
		return a == b ? a : OD_RE_NONE;
	if (at(p, a)->kind == RE_BYTE && at(p, b)->kind == RE_BYTE) {
		struct od_byte_set set = p->sets[at(p, a)->a];

		for (int i = 0; i < 4; i++)
			set.w[i] &= p->sets[at(p, b)->a].w[i];
		return byte_of(p, &set);
	}
	if (!put(p, RE_AND, a) || !put(p, RE_AND, b))
		return OD_RE_NONE;
	return make_list(p, RE_AND, begin);
}

uint32_t od_re_not(struct od_re_pool *p, uint32_t a)
{
	if (at(p, a)->kind == RE_NOT)
		return at(p, a)->a;
	return intern(p, (struct re_node){ .kind = RE_NOT, .a = a });
}

uint32_t od_re_without(struct od_re_pool *p, const char *text)
{
	const uint32_t all = od_re_not(p, OD_RE_NONE), it = od_re_text(p, text, strlen(text));

	return od_re_not(p, od_re_cat(p, all, od_re_cat(p, it, all)));
}

uint32_t od_re_repeat(struct od_re_pool *p, uint32_t a, uint32_t min, uint32_t max)
{
	if (min > max)
		return OD_RE_NONE;
	if (max == 0 || a == OD_RE_EMPTY)
		return OD_RE_EMPTY;
	if (a == OD_RE_NONE)
		return min == 0 ? OD_RE_EMPTY : OD_RE_NONE;
	if (min == 1 && max == 1)
		return a;
	if (at(p, a)->nullable)
		min = 0;
	if (at(p, a)->kind == RE_REPEAT && at(p, a)->min == 0 && at(p, a)->max == OD_RE_NO_LIMIT)
		return a;
	return intern(p, (struct re_node){ .kind = RE_REPEAT, .a = a, .min = min, .max = max });
}

uint32_t od_re_multiple(struct od_re_pool *p, uint32_t k)
{
	for (unsigned d = '0'; d <= '9'; d++) {
		struct od_byte_set one = { { 0 } };

		od_byte_set_add(&one, (uint8_t)d);
		(void)od_re_byte(p, &one);
	}
	return intern(p, (struct re_node){ .kind = RE_MULTIPLE, .a = k });
}

/* ---- The automaton ---- */

bool od_re_nullable(const struct od_re_pool *p, uint32_t r)
{
	return at(p, r)->nullable;
}

static uint32_t derive_list(struct od_re_pool *p, enum re_kind kind, uint32_t first, uint32_t n, uint8_t byte)
{
	uint32_t *part, r = OD_RE_NONE;

	/* The list may move while the members' derivatives are made. */
	part = malloc(n * sizeof(*part));
	if (part == NULL) {
		fail(p, OD_ERR_NOMEM);
		return OD_RE_NONE;
	}
	for (uint32_t i = 0; i < n; i++)
		part[i] = od_re_step(p, p->list[first + i], byte);
	if (kind == RE_ALT) {
		r = od_re_alt(p, part, n);
	} else {
		const size_t begin = p->n_list;
		bool room = true;

		for (uint32_t i = 0; i < n && room; i++)
			room = put(p, RE_AND, part[i]);
		r = room ? make_list(p, RE_AND, begin) : OD_RE_NONE;
	}
	free(part);
	return r;
}

static uint32_t derive(struct od_re_pool *p, uint32_t r, uint8_t byte)
{
	const struct re_node n = *at(p, r); /* nodes move */
	uint32_t d;

	switch ((enum re_kind)n.kind) {
	case RE_NONE:
	case RE_EMPTY: return OD_RE_NONE;
	case RE_BYTE: return od_byte_set_has(&p->sets[n.a], byte) ? OD_RE_EMPTY : OD_RE_NONE;
	case RE_CAT:
		d = od_re_cat(p, od_re_step(p, n.a, byte), n.b);
		return at(p, n.a)->nullable ? od_re_or(p, d, od_re_step(p, n.b, byte)) : d;
	case RE_ALT:
	case RE_AND: return derive_list(p, n.kind, n.a, n.b, byte);
	case RE_NOT: return od_re_not(p, od_re_step(p, n.a, byte));
	case RE_REPEAT:
		d = od_re_step(p, n.a, byte);
		return od_re_cat(
			p, d,
			od_re_repeat(p, n.a, n.min > 0 ? n.min - 1 : 0, n.max == OD_RE_NO_LIMIT ? n.max : n.max - 1));
	case RE_MULTIPLE:
		if (byte < '0' || byte > '9')
			return OD_RE_NONE;
		d = (uint32_t)(((uint64_t)n.b * 10 + (byte - '0')) % n.a);
		return intern(p, (struct re_node){ .kind = RE_MULTIPLE, .a = n.a, .b = d });
	}
	return OD_RE_NONE;
}

static uint32_t *new_row(struct od_re_pool *p)
{
	uint32_t *row = p->row_bytes < MAX_ROW_BYTES ? malloc(256 * sizeof(*row)) : NULL;

	if (row == NULL) {
		fail(p, p->row_bytes < MAX_ROW_BYTES ? OD_ERR_NOMEM : OD_ERR_RANGE);
		return NULL;
	}
	memset(row, 0xff, 256 * sizeof(*row));
	p->row_bytes += 256 * sizeof(*row);
	od_re_spend(p, COST_ROW);
	return row;
}

void od_re_fill_class(const struct od_re_pool *p, uint32_t row[256], uint8_t byte, uint32_t value)
{
	const struct od_byte_set *m = &p->member[p->class_of[byte]];

	for (unsigned i = 0; i < 4; i++)
		for (uint64_t w = m->w[i]; w != 0; w &= w - 1)
			row[64 * i + (unsigned)__builtin_ctzll(w)] = value;
}

uint32_t od_re_step(struct od_re_pool *p, uint32_t r, uint8_t byte)
{
	uint32_t d, *row;

	if (at(p, r)->row != NULL && at(p, r)->row[byte] != UNKNOWN)
		return at(p, r)->row[byte];
	if (r <= OD_RE_EMPTY || p->failed != OD_OK)
		return OD_RE_NONE;
	if (at(p, r)->kind == RE_BYTE) /* needs no row */
		return derive(p, r, byte);
	od_re_spend(p, COST_DERIVATIVE);
	d = derive(p, r, byte);
	if (p->failed != OD_OK)
		return OD_RE_NONE;
	row = at(p, r)->row != NULL ? at(p, r)->row : new_row(p);
	p->node[r].row = row;
	if (row == NULL)
		return OD_RE_NONE;
	od_re_fill_class(p, row, byte, d);
	return d;
}

/* ---- What can still match ---- */

/* A search from r, depth first, for an expression that is known to match something, or is nullable. */
struct re_search {
	uint32_t *path; /* from r to the one that is looked at */
	uint16_t *byte; /* next byte to try at each */
	size_t n, cap, cap_byte;
	uint32_t *seen; /* all that were met */
	size_t n_seen, cap_seen;
};

static bool go_to(struct od_re_pool *p, struct re_search *s, uint32_t r)
{
	if (!grow(p, (void **)&s->path, s->n, 1, &s->cap, sizeof(*s->path)) ||
	    !grow(p, (void **)&s->byte, s->n, 1, &s->cap_byte, sizeof(*s->byte)) ||
	    !grow(p, (void **)&s->seen, s->n_seen, 1, &s->cap_seen, sizeof(*s->seen)))
		return false;
	s->path[s->n] = s->seen[s->n_seen++] = r;
	s->byte[s->n++] = 0;
	od_re_spend(p, COST_MET);
	p->node[r].live = LIVE_NO; /* until found; no expression is entered twice */
	return true;
}

static bool known_live(struct od_re_pool *p, uint32_t r)
{
	struct re_node *n = &p->node[r];

	if (n->live == LIVE_UNKNOWN && (n->nullable || (n->plain && r != OD_RE_NONE)))
		n->live = LIVE_YES;
	return n->live == LIVE_YES;
}

/* True: the first byte of its class. */
static bool is_first(const struct od_re_pool *p, unsigned byte)
{
	const struct od_byte_set *m = &p->member[p->class_of[byte]];

	for (unsigned i = 0; i < byte / 64; i++)
		if (m->w[i] != 0)
			return false;
	return (m->w[byte / 64] & (((uint64_t)1 << byte % 64) - 1)) == 0;
}

static bool search(struct od_re_pool *p, struct re_search *s, uint32_t r)
{
	bool first[256];

	for (unsigned b = 0; b < 256; b++)
		first[b] = is_first(p, b);
	if (!go_to(p, s, r))
		return false;
	while (s->n > 0 && p->failed == OD_OK) {
		const size_t top = s->n - 1;
		uint32_t next;

		if (s->byte[top] == 256) {
			s->n--;
			continue;
		}
		if (!first[s->byte[top]++])
			continue;
		next = od_re_step(p, s->path[top], (uint8_t)(s->byte[top] - 1));
		if (known_live(p, next))
			return true;
		if (p->node[next].live == LIVE_UNKNOWN && !go_to(p, s, next))
			return false;
	}
	return false;
}

bool od_re_live(struct od_re_pool *p, uint32_t r)
{
	struct re_search s = { 0 };
	bool found;

	if (known_live(p, r) || at(p, r)->live == LIVE_NO)
		return at(p, r)->live == LIVE_YES;
	found = search(p, &s, r);
	/* All on the way to one that matches do so too. Of the others that were met, those that were left are dead only
	 * if nothing was found: an expression on the way may be reached from them. */
	if (found || p->failed != OD_OK)
		for (size_t i = 0; i < s.n_seen; i++)
			p->node[s.seen[i]].live = LIVE_UNKNOWN;
	if (found)
		for (size_t i = 0; i < s.n; i++)
			p->node[s.path[i]].live = LIVE_YES;
	free(s.path);
	free(s.byte);
	free(s.seen);
	return found;
}

bool od_re_goes_on(struct od_re_pool *p, uint32_t r)
{
	if (r <= OD_RE_EMPTY || !at(p, r)->nullable)
		return od_re_live(p, r) && r != OD_RE_EMPTY;
	if (at(p, r)->plain)
		return true;
	for (unsigned b = 0; b < 256; b++)
		if (is_first(p, b) && od_re_live(p, od_re_step(p, r, (uint8_t)b)))
			return true;
	return false;
}

void od_re_first(const struct od_re_pool *p, uint32_t r, struct od_byte_set *set)
{
	const struct re_node *n = at(p, r);
	struct od_byte_set common, one;

	for (; n->kind == RE_CAT; n = at(p, n->b)) {
		od_re_first(p, n->a, set);
		if (!at(p, n->a)->nullable)
			return;
	}
	switch ((enum re_kind)n->kind) {
	case RE_NONE:
	case RE_EMPTY:
	case RE_CAT: return;
	case RE_BYTE: od_byte_set_unite(set, &p->sets[n->a]); return;
	case RE_ALT:
		for (uint32_t i = 0; i < n->b; i++)
			od_re_first(p, p->list[n->a + i], set);
		return;
	case RE_AND:
		memset(&common, 0xff, sizeof(common));
		for (uint32_t i = 0; i < n->b; i++) {
			one = (struct od_byte_set){ { 0 } };
			od_re_first(p, p->list[n->a + i], &one);
			for (int k = 0; k < 4; k++)
				common.w[k] &= one.w[k];
		}
		od_byte_set_unite(set, &common);
		return;
	case RE_NOT: od_byte_set_add_range(set, 0, 255); return;
	case RE_REPEAT: od_re_first(p, n->a, set); return;
	case RE_MULTIPLE: od_byte_set_add_range(set, '0', '9');
	}
}

bool od_re_begins_with_repeat(const struct od_re_pool *p, uint32_t r, uint32_t *one, uint32_t *min, uint32_t *max,
			      uint32_t *rest)
{
	const struct re_node *n = at(p, r);

	*rest = n->kind == RE_CAT ? n->b : OD_RE_EMPTY;
	if (n->kind == RE_CAT)
		n = at(p, n->a);
	if (n->kind != RE_REPEAT)
		return false;
	*one = n->a;
	*min = n->min;
	*max = n->max;
	return true;
}
