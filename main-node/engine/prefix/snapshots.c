#include "main-node/engine/prefix/snapshots.h"

#include "common/base/mem.h"

#include <assert.h>
#include <stdlib.h>

#define NONE UINT32_MAX
/* One in so many texts, or fewer, goes on from an earlier turn than the last one. */
#define PASSED_DIVISOR 8

struct entry {
	uint32_t page; /* NONE: it is free, or being written */
	uint32_t next_free;
	uint64_t text; /* writer of the snapshot */
	uint32_t tokens, uses;
	bool passed;
	uint64_t worth, used; /* kept ones: the floor when it was used last, plus tokens; when that was */
};

struct odm_snapshots {
	struct entry *entry; /* [n] */
	uint32_t *of_page; /* [n_pages]: snapshot plus 1; 0: none */
	uint32_t n, n_pages, free;
	uint64_t clock; /* uses so far */
	uint64_t floor; /* worth of the last one that went for want of room: what is used from now on is worth more */
	struct odm_snapshot_counts count;
	void (*dropped)(void *arg, uint32_t snapshot);
	void *arg;
};

int odm_snapshots_new(struct odm_snapshots **out, uint32_t n, uint32_t n_pages,
		      void (*dropped)(void *arg, uint32_t snapshot), void *arg, struct od_err *err)
{
	struct odm_snapshots *s = calloc(1, sizeof(*s));

	*out = NULL;
	assert(n > 0 && n < NONE);
	if (s != NULL) {
		s->entry = calloc(n, sizeof(*s->entry));
		s->of_page = od_alloc_array(n_pages, sizeof(*s->of_page));
	}
	if (s == NULL || s->entry == NULL || s->of_page == NULL) {
		odm_snapshots_free(s);
		return od_fail(err, OD_ERR_NOMEM, "table of %u snapshots", n);
	}
	s->n = n;
	s->n_pages = n_pages;
	s->free = NONE;
	s->dropped = dropped;
	s->arg = arg;
	for (uint32_t i = n; i-- > 0;)
		odm_snapshots_give_back(s, i);
	*out = s;
	return OD_OK;
}

void odm_snapshots_free(struct odm_snapshots *s)
{
	if (s == NULL)
		return;
	free(s->entry);
	od_free(s->of_page);
	free(s);
}

/* It is used now. */
static void touch(struct odm_snapshots *s, uint32_t i)
{
	s->entry[i].worth = s->floor + s->entry[i].tokens;
	s->entry[i].used = ++s->clock;
}

static bool is_worth_less(const struct entry *a, const struct entry *b)
{
	return a->worth != b->worth ? a->worth < b->worth : a->used < b->used;
}

/* NONE: no snapshot is kept. */
static uint32_t worth_least(const struct odm_snapshots *s)
{
	uint32_t least = NONE;

	for (uint32_t i = 0; i < s->n; i++)
		if (s->entry[i].page != NONE && (least == NONE || is_worth_less(&s->entry[i], &s->entry[least])))
			least = i;
	return least;
}

/* It is no longer its page's. */
static void detach(struct odm_snapshots *s, uint32_t i)
{
	s->of_page[s->entry[i].page] = 0;
	s->entry[i].page = NONE;
	s->count.kept--;
	if (s->dropped != NULL)
		s->dropped(s->arg, i);
}

/* The snapshot that the text wrote for a page. */
static uint32_t written_by(const struct odm_snapshots *s, uint32_t page, uint64_t text)
{
	const uint32_t i = page < s->n_pages ? odm_snapshots_of(s, page) : NONE;

	return i != NONE && s->entry[i].text == text ? i : NONE;
}

uint32_t odm_snapshots_take(struct odm_snapshots *s, uint32_t old, uint64_t text)
{
	uint32_t i = s->free;

	if (i != NONE) {
		s->free = s->entry[i].next_free;
		return i;
	}
	i = written_by(s, old, text);
	if (i == NONE) {
		i = worth_least(s);
		s->count.dropped += i != NONE;
		if (i != NONE)
			s->floor = s->entry[i].worth;
	}
	if (i != NONE)
		detach(s, i);
	return i;
}

void odm_snapshots_give_back(struct odm_snapshots *s, uint32_t snapshot)
{
	s->entry[snapshot].page = NONE;
	s->entry[snapshot].next_free = s->free;
	s->free = snapshot;
}

bool odm_snapshots_keep(struct odm_snapshots *s, uint32_t snapshot, uint32_t page, uint64_t text, uint32_t tokens)
{
	struct entry *e = &s->entry[snapshot];

	assert(page < s->n_pages && e->page == NONE);
	s->count.written++;
	if (s->of_page[page] != 0) {
		odm_snapshots_give_back(s, snapshot);
		return false;
	}
	s->of_page[page] = snapshot + 1;
	*e = (struct entry){ .page = page, .text = text, .tokens = tokens };
	touch(s, snapshot);
	s->count.kept++;
	return true;
}

uint32_t odm_snapshots_of(const struct odm_snapshots *s, uint32_t page)
{
	return s->of_page[page] - 1; /* 0: NONE */
}

void odm_snapshots_use(struct odm_snapshots *s, uint32_t snapshot)
{
	assert(s->entry[snapshot].page != NONE);
	touch(s, snapshot);
	s->entry[snapshot].passed = false;
	s->entry[snapshot].uses++;
	s->count.used++;
}

uint32_t odm_snapshots_uses(const struct odm_snapshots *s, uint32_t snapshot)
{
	return s->entry[snapshot].uses;
}

void odm_snapshots_value(struct odm_snapshots *s, uint32_t snapshot, uint32_t tokens)
{
	assert(s->entry[snapshot].page != NONE);
	s->entry[snapshot].tokens = tokens;
	s->entry[snapshot].passed = false;
	touch(s, snapshot);
}

void odm_snapshots_pass(struct odm_snapshots *s, uint32_t snapshot, uint32_t tokens)
{
	if (s->entry[snapshot].passed)
		return;
	odm_snapshots_value(s, snapshot, tokens / PASSED_DIVISOR);
	s->entry[snapshot].passed = true;
}

static void free_kept(struct odm_snapshots *s, uint32_t i)
{
	if (i == NONE)
		return;
	detach(s, i);
	odm_snapshots_give_back(s, i);
}

void odm_snapshots_drop(struct odm_snapshots *s, uint32_t page)
{
	const uint32_t i = odm_snapshots_of(s, page);

	s->count.dropped += i != NONE;
	free_kept(s, i);
}

void odm_snapshots_forget(struct odm_snapshots *s, uint32_t page, uint64_t text)
{
	free_kept(s, written_by(s, page, text));
}

void odm_snapshots_forget_all(struct odm_snapshots *s, uint64_t text)
{
	for (uint32_t i = 0; i < s->n; i++)
		if (s->entry[i].page != NONE && s->entry[i].text == text)
			free_kept(s, i);
}

void odm_snapshots_count(const struct odm_snapshots *s, struct odm_snapshot_counts *c)
{
	*c = s->count;
}
