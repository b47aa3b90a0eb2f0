#include "main-node/engine/prefix/prefix_cache.h"

#include "common/base/mem.h"
#include "common/pack/checksum.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define LONG (UINT32_MAX - 1) /* instead of a parent: the first page of a long text */

/* A page in the tree. Its parent is newer in the order of use, so the oldest node has no children. */
struct node {
	int32_t token[OD_KV_PAGE];
	uint32_t parent; /* the page before it; NONE or LONG: it is a text's first */
	uint32_t next; /* in its bucket, plus 1; 0: none */
	uint32_t newer, older; /* NONE: it is the newest, the oldest */
	bool goes; /* while pages are forgotten */
};

struct odm_prefix_cache {
	struct od_state_pool *pool;
	struct node *node; /* [n_pages], by page */
	uint32_t *bucket; /* [mask + 1]: page plus 1; 0: none */
	uint32_t mask, max_idle, newest, oldest;
	bool uses_free;
	void (*dropped)(void *arg, uint32_t page);
	void *arg;
};

int odm_prefix_cache_new(struct odm_prefix_cache **out, struct od_state_pool *pool, uint32_t n_pages, uint32_t max_idle,
			 void (*dropped)(void *arg, uint32_t page), void *arg, struct od_err *err)
{
	struct odm_prefix_cache *c = calloc(1, sizeof(*c));
	size_t n_buckets = 1;

	*out = NULL;
	assert(n_pages < LONG);
	while (n_buckets < n_pages)
		n_buckets *= 2;
	if (c != NULL) {
		c->node = od_alloc_array(n_pages, sizeof(*c->node)); /* memory is touched only when used */
		c->bucket = od_alloc_array(n_buckets, sizeof(*c->bucket));
	}
	if (c == NULL || c->node == NULL || c->bucket == NULL) {
		odm_prefix_cache_free(c);
		return od_fail(err, OD_ERR_NOMEM, "prefix cache of %u pages", n_pages);
	}
	c->pool = pool;
	c->mask = (uint32_t)(n_buckets - 1);
	c->max_idle = max_idle;
	c->newest = c->oldest = NONE;
	c->dropped = dropped;
	c->arg = arg;
	*out = c;
	return OD_OK;
}

void odm_prefix_cache_free(struct odm_prefix_cache *c)
{
	if (c == NULL)
		return;
	od_free(c->node);
	od_free(c->bucket);
	free(c);
}

void odm_prefix_cache_use_free(struct odm_prefix_cache *c)
{
	c->uses_free = true;
}

/* ---- Order of use ---- */

static void unlink_node(struct odm_prefix_cache *c, uint32_t page)
{
	const struct node *n = &c->node[page];

	*(n->newer != NONE ? &c->node[n->newer].older : &c->newest) = n->older;
	*(n->older != NONE ? &c->node[n->older].newer : &c->oldest) = n->newer;
}

static void make_newest(struct odm_prefix_cache *c, uint32_t page)
{
	struct node *n = &c->node[page];

	n->newer = NONE;
	n->older = c->newest;
	*(c->newest != NONE ? &c->node[c->newest].newer : &c->oldest) = page;
	c->newest = page;
}

/* A text's pages, from the last one to the first. */
static void use(struct odm_prefix_cache *c, const uint32_t *page, uint32_t n)
{
	while (n-- > 0) {
		unlink_node(c, page[n]);
		make_newest(c, page[n]);
	}
}

/* ---- The tree ---- */

static uint32_t *bucket_of(const struct odm_prefix_cache *c, uint32_t parent, const int32_t *token)
{
	const uint64_t hash = XXH3_64bits(token, OD_KV_PAGE * sizeof(*token)) + parent * 0x9e3779b97f4a7c15ull;

	return &c->bucket[(hash ^ hash >> 32) & c->mask];
}

static uint32_t find_child(const struct odm_prefix_cache *c, uint32_t parent, const int32_t *token)
{
	for (uint32_t at = *bucket_of(c, parent, token); at != 0; at = c->node[at - 1].next)
		if (c->node[at - 1].parent == parent &&
		    memcmp(c->node[at - 1].token, token, sizeof(c->node[0].token)) == 0)
			return at - 1;
	return NONE;
}

static void add_child(struct odm_prefix_cache *c, uint32_t parent, const int32_t *token, uint32_t page)
{
	uint32_t *bucket = bucket_of(c, parent, token);
	struct node *n = &c->node[page];

	memcpy(n->token, token, sizeof(n->token));
	n->parent = parent;
	n->goes = false;
	n->next = *bucket;
	*bucket = page + 1;
	make_newest(c, page);
	od_state_pool_keep(c->pool, page);
}

/* It has no children. */
static void drop_node(struct odm_prefix_cache *c, uint32_t page)
{
	uint32_t *at = bucket_of(c, c->node[page].parent, c->node[page].token);

	while (*at != page + 1)
		at = &c->node[*at - 1].next;
	*at = c->node[page].next;
	unlink_node(c, page);
	if (c->dropped != NULL)
		c->dropped(c->arg, page);
	od_state_pool_drop(c->pool, page);
}

uint32_t odm_prefix_cache_find(struct odm_prefix_cache *c, bool is_long, const int32_t *text, uint32_t n_pages,
			       uint32_t *page)
{
	uint32_t n = 0, at = is_long ? LONG : NONE;

	while (n < n_pages && (at = find_child(c, at, text + (size_t)n * OD_KV_PAGE)) != NONE)
		page[n++] = at;
	use(c, page, n);
	return n;
}

void odm_prefix_cache_add(struct odm_prefix_cache *c, bool is_long, const int32_t *text, uint32_t n_pages,
			  uint32_t *page)
{
	uint32_t parent = is_long ? LONG : NONE;

	for (uint32_t i = 0; i < n_pages; i++) {
		const int32_t *token = text + (size_t)i * OD_KV_PAGE;
		const uint32_t there = find_child(c, parent, token);

		if (there == NONE)
			add_child(c, parent, token, page[i]);
		else
			page[i] = there;
		parent = page[i];
	}
	use(c, page, n_pages);
}

/* Drops a page and all behind it. Parents are newer than their children. */
static void drop_from(struct odm_prefix_cache *c, uint32_t first)
{
	for (uint32_t page = first; page != NONE; page = c->node[page].older) {
		const uint32_t parent = c->node[page].parent;

		c->node[page].goes = page == first || (parent < LONG && c->node[parent].goes);
	}
	for (uint32_t page = c->oldest, newer; page != NONE; page = newer) {
		newer = page != first ? c->node[page].newer : NONE;
		if (c->node[page].goes)
			drop_node(c, page);
	}
}

void odm_prefix_cache_forget(struct odm_prefix_cache *c, bool is_long, const int32_t *text, uint32_t begin,
			     uint32_t end, const uint32_t *page)
{
	uint32_t at = is_long ? LONG : NONE;

	for (uint32_t i = 0; i < end; i++) {
		at = find_child(c, at, text + (size_t)i * OD_KV_PAGE);
		if (at == NONE)
			return;
		if (i >= begin && at == page[i]) {
			drop_from(c, at);
			return;
		}
	}
}

/* An oldest page that a sequence has frees no memory now, but it has not been used for longest; the sequence adds it
 * again. */
void odm_prefix_cache_trim(struct odm_prefix_cache *c)
{
	/* the number of free pages does not depend on how many are idle */
	const uint64_t most = (uint64_t)c->max_idle + (c->uses_free ? od_state_pool_free_pages(c->pool) : 0);

	while (od_state_pool_idle_pages(c->pool) > most)
		drop_node(c, c->oldest);
}
