#include "shadow-node/align_apply.h"

#include "common/model/seq_state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Bits of a byte of the map. Without the first three the row is missing; TRUE_ROW excludes OWN_ROW and DUE.
 * ASKED: a sequence that has the page has requested the row. */
enum { OWN_ROW = 1, TRUE_ROW = 2, DUE = 4, ASKED = 8 };
#define HELD (OWN_ROW | TRUE_ROW)

struct map_page {
	uint32_t refs;
	uint8_t at[]; /* [n_layers][OD_KV_PAGE] */
};

struct ods_align {
	uint32_t n_layers, ctx, max_ask;
	struct map_page **page; /* [pages of ctx]; the first n_pages are allocated */
	uint32_t n_pages;
	uint32_t end; /* positions from here on are missing in all layers */
	uint32_t *settled; /* [n_layers]: all earlier positions are settled; a lower bound, updated on demand */
	bool *fixed; /* [n_layers]: has fixed state */
	bool *empty; /* [n_layers]: has no rows */
	bool any_fixed;
	uint32_t run_end; /* end of the rows that have been run */
	uint32_t due_begin, due_n;
	struct ods_range asked[ODS_MAX_ASKED];
	size_t n_asked;
	uint64_t heard_ns; /* time of the last request or answer */
};

static uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* ---- Pages ---- */

uint64_t ods_align_bytes(uint32_t n_layers, uint32_t ctx)
{
	return sizeof(struct ods_align) + n_layers * (sizeof(uint32_t) + 2 * sizeof(bool)) +
	       od_state_pages(ctx) * sizeof(struct map_page *);
}

uint64_t ods_align_page_bytes(uint32_t n_layers)
{
	return sizeof(struct map_page) + (uint64_t)n_layers * OD_KV_PAGE;
}

int ods_align_new(struct ods_align **out, uint32_t n_layers, uint32_t ctx, uint32_t max_ask, struct od_err *err)
{
	struct ods_align *a = calloc(1, sizeof(*a));

	*out = NULL;
	if (a == NULL)
		goto fail;
	a->n_layers = n_layers;
	a->ctx = ctx;
	a->max_ask = max_ask > 0 ? max_ask : 1;
	a->page = calloc(od_state_pages(ctx), sizeof(struct map_page *));
	a->settled = calloc(n_layers, sizeof(*a->settled));
	a->fixed = calloc(n_layers, sizeof(*a->fixed));
	a->empty = calloc(n_layers, sizeof(*a->empty));
	if (a->page == NULL || a->settled == NULL || a->fixed == NULL || a->empty == NULL)
		goto fail;
	*out = a;
	return OD_OK;
fail:
	ods_align_free(a);
	return od_fail(err, OD_ERR_NOMEM, "alignment of %u positions in %u layers", ctx, n_layers);
}

bool ods_align_reserve(struct ods_align *a, uint32_t end)
{
	assert(end <= a->ctx);
	while (a->n_pages < od_state_pages(end)) {
		struct map_page *p = calloc(1, ods_align_page_bytes(a->n_layers));

		if (p == NULL)
			return false;
		p->refs = 1;
		a->page[a->n_pages++] = p;
	}
	return true;
}

/* The byte of a position that has a page. */
static uint8_t *byte_of(const struct ods_align *a, uint32_t layer, uint32_t position)
{
	assert(position / OD_KV_PAGE < a->n_pages);
	return &a->page[position / OD_KV_PAGE]->at[layer * OD_KV_PAGE + position % OD_KV_PAGE];
}

/* The byte of any position; 0 without a page. */
static uint8_t known(const struct ods_align *a, uint32_t layer, uint32_t position)
{
	return position / OD_KV_PAGE < a->n_pages ? *byte_of(a, layer, position) : 0;
}

/* Main will send the row unrequested. A row of a shared page that is due for another sequence is not due for this
 * one. */
static bool due(const struct ods_align *a, uint32_t layer, uint32_t position)
{
	return position >= a->due_begin && position - a->due_begin < a->due_n && (known(a, layer, position) & DUE) != 0;
}

static bool held(const struct ods_align *a, uint32_t layer, uint32_t position)
{
	if (a->fixed[layer])
		return position < a->run_end;
	return a->empty[layer] || (known(a, layer, position) & HELD) != 0;
}

static bool missing(const struct ods_align *a, uint32_t layer, uint32_t position)
{
	return !held(a, layer, position) && !due(a, layer, position);
}

/* Closes a request: any sequence may request the range again. */
static void forget_asked(struct ods_align *a, size_t i)
{
	const struct ods_range *r = &a->asked[i];

	for (uint32_t p = r->begin; p < r->begin + r->n; p++)
		*byte_of(a, r->layer, p) &= (uint8_t)~ASKED;
	a->asked[i] = a->asked[--a->n_asked];
}

static void drop_pages(struct ods_align *a, uint32_t n)
{
	while (a->n_pages > n) {
		struct map_page *p = a->page[--a->n_pages];

		if (--p->refs == 0)
			free(p);
	}
}

void ods_align_free(struct ods_align *a)
{
	if (a == NULL)
		return;
	while (a->n_asked > 0)
		forget_asked(a, 0);
	if (a->page != NULL)
		drop_pages(a, 0);
	free(a->page);
	free(a->settled);
	free(a->fixed);
	free(a->empty);
	free(a);
}

/* Positions from here on may be unsettled. */
static void unsettle(struct ods_align *a, uint32_t layer, uint32_t position)
{
	a->settled[layer] = min_u32(a->settled[layer], position);
}

static void touch(struct ods_align *a, uint32_t end)
{
	if (end > a->end)
		a->end = end;
}

void ods_align_share(struct ods_align *a, const struct ods_align *from, uint32_t n)
{
	assert(a->n_pages == 0 && n <= from->n_pages);
	for (; a->n_pages < n; a->n_pages++) {
		a->page[a->n_pages] = from->page[a->n_pages];
		a->page[a->n_pages]->refs++;
	}
	touch(a, n * OD_KV_PAGE);
}

bool ods_align_shared(const struct ods_align *a, uint32_t length)
{
	for (uint32_t i = length / OD_KV_PAGE; i < a->n_pages; i++)
		if (a->page[i]->refs > 1)
			return true;
	return false;
}

/* ---- Fixed state ---- */

void ods_align_set_fixed(struct ods_align *a, uint32_t layer)
{
	a->fixed[layer] = a->any_fixed = true;
}

void ods_align_run(struct ods_align *a, uint32_t end)
{
	a->run_end = end;
	if (a->any_fixed)
		touch(a, end);
}

void ods_align_set_empty(struct ods_align *a, uint32_t layer)
{
	a->empty[layer] = true;
}

/* ---- Messages from main ---- */

/* Everything except the map itself. */
static void forget_from(struct ods_align *a, uint32_t length)
{
	/* Main cannot send rows that are gone; the rest of such a range is requested again. */
	for (size_t i = a->n_asked; i-- > 0;)
		if (a->asked[i].begin + a->asked[i].n > length)
			forget_asked(a, i);
	for (uint32_t l = 0; l < a->n_layers; l++)
		unsettle(a, l, length);
	a->end = min_u32(a->end, length);
	a->run_end = min_u32(a->run_end, length);
	if (a->due_begin >= length)
		a->due_n = 0;
	else
		a->due_n = min_u32(a->due_n, length - a->due_begin);
}

static void clear_from(struct ods_align *a, uint32_t length)
{
	for (uint32_t l = 0; l < a->n_layers; l++)
		for (uint32_t p = length, n; p < a->end; p += n) {
			n = min_u32(OD_KV_PAGE - p % OD_KV_PAGE, a->end - p);
			memset(byte_of(a, l, p), 0, n);
		}
	forget_from(a, length);
}

void ods_align_unshare(struct ods_align *a, uint32_t n)
{
	forget_from(a, n * OD_KV_PAGE);
	drop_pages(a, n);
}

void ods_align_truncate(struct ods_align *a, uint32_t length)
{
	assert(!ods_align_shared(a, length));
	clear_from(a, length);
}

void ods_align_clear(struct ods_align *a)
{
	clear_from(a, 0);
}

void ods_align_settle(struct ods_align *a, uint32_t n_layers, uint32_t limit)
{
	const uint32_t end = min_u32(a->due_begin + a->due_n, limit);
	const uint8_t kept = a->any_fixed ? ASKED | OWN_ROW : ASKED; /* rows of fixed state would have to run again */

	for (uint32_t l = 0; l < min_u32(n_layers, a->n_layers); l++) {
		/* Also drops an own row that was to be replaced: the true one can be requested. */
		for (uint32_t p = a->due_begin; p < end; p++) {
			if (*byte_of(a, l, p) & DUE) {
				*byte_of(a, l, p) &= kept;
				unsettle(a, l, p);
			}
		}
	}
	if (n_layers >= a->n_layers && end > a->due_begin) {
		a->due_n -= end - a->due_begin;
		a->due_begin = end;
	}
}

void ods_align_step(struct ods_align *a, uint32_t end, uint32_t n_due)
{
	a->due_begin = end - n_due;
	a->due_n = n_due;
	if (n_due > 0)
		touch(a, end);
	if (n_due > 0)
		for (uint32_t l = 0; l < a->n_layers; l++) {
			if (a->fixed[l] || a->empty[l])
				continue;
			for (uint32_t p = a->due_begin; p < end; p++)
				if ((*byte_of(a, l, p) & TRUE_ROW) == 0)
					*byte_of(a, l, p) |= DUE;
			unsettle(a, l, a->due_begin);
		}
}

static bool inside(const struct ods_range *r, uint32_t begin, uint32_t n)
{
	return r->begin >= begin && r->begin - begin <= n && r->n <= n - (r->begin - begin);
}

static bool any_due(const struct ods_align *a, const struct ods_range *r)
{
	for (uint32_t p = r->begin; p < r->begin + r->n; p++) {
		if (due(a, r->layer, p))
			return true;
	}
	return false; /* all of them have arrived */
}

bool ods_align_expects(const struct ods_align *a, const struct ods_range *r, bool asked)
{
	if (!asked)
		return inside(r, a->due_begin, a->due_n) && any_due(a, r);
	for (size_t i = 0; i < a->n_asked; i++)
		if (a->asked[i].layer == r->layer && inside(r, a->asked[i].begin, a->asked[i].n))
			return true;
	return false;
}

/* Closes the requests whose ranges are complete. */
static void note_answer(struct ods_align *a, const struct ods_range *r, uint64_t now_ns)
{
	for (size_t i = a->n_asked; i-- > 0;) {
		const struct ods_range *q = &a->asked[i];
		uint32_t p = q->begin;

		if (q->layer != r->layer || r->begin >= q->begin + q->n || q->begin >= r->begin + r->n)
			continue;
		a->heard_ns = now_ns;
		while (p < q->begin + q->n && !missing(a, q->layer, p))
			p++;
		if (p == q->begin + q->n)
			forget_asked(a, i);
	}
}

void ods_align_true(struct ods_align *a, const struct ods_range *r, uint64_t now_ns)
{
	for (uint32_t p = r->begin; p < r->begin + r->n; p++)
		*byte_of(a, r->layer, p) = TRUE_ROW;
	touch(a, r->begin + r->n);
	note_answer(a, r, now_ns);
}

void ods_align_own(struct ods_align *a, uint32_t layer, uint32_t position)
{
	uint8_t *at = byte_of(a, layer, position);

	if (a->fixed[layer])
		return;
	if ((*at & TRUE_ROW) == 0)
		*at |= OWN_ROW;
	touch(a, position + 1);
}

/* ---- Queries ---- */

bool ods_align_is_true(const struct ods_align *a, uint32_t layer, uint32_t position)
{
	return (known(a, layer, position) & TRUE_ROW) != 0;
}

/* The first unsettled position before limit; limit: none. */
static uint32_t find_unsettled(struct ods_align *a, uint32_t layer, uint32_t limit)
{
	uint32_t p = a->fixed[layer] ? a->run_end : a->settled[layer];

	while (p < limit && held(a, layer, p) && !due(a, layer, p))
		p++;
	a->settled[layer] = p;
	return p;
}

bool ods_align_held(struct ods_align *a, uint32_t layer, uint32_t position)
{
	uint32_t p = find_unsettled(a, layer, position);

	while (p < position && held(a, layer, p))
		p++;
	return p >= position;
}

bool ods_align_ready(struct ods_align *a, uint32_t layer, uint32_t position)
{
	if (position < a->due_begin + a->due_n)
		return ods_align_held(a, layer, position);
	return find_unsettled(a, layer, position) >= position;
}

uint32_t ods_align_missing_in(struct ods_align *a, uint32_t layer, uint32_t limit)
{
	uint32_t p;

	/* moves the lower bound, so that a long text is not searched every time */
	if (ods_align_ready(a, layer, limit))
		return limit;
	for (p = a->settled[layer]; p < limit && !missing(a, layer, p); p++)
		;
	return p;
}

uint32_t ods_align_missing(struct ods_align *a, uint32_t limit)
{
	for (uint32_t l = 0; l < a->n_layers; l++)
		limit = ods_align_missing_in(a, l, limit);
	return limit;
}

/* ---- Requests ---- */

/* Missing, not requested, and not due for another sequence. */
static bool open_to_ask(const struct ods_align *a, uint32_t layer, uint32_t position)
{
	return known(a, layer, position) == 0;
}

/* The first range of such positions before limit, at most max_ask of them. */
static bool find_open(struct ods_align *a, uint32_t layer, uint32_t limit, struct ods_range *r)
{
	uint32_t p = ods_align_missing_in(a, layer, limit), n = 1;

	while (p < limit && !open_to_ask(a, layer, p))
		p++;
	if (p >= limit)
		return false;
	while (n < a->max_ask && p + n < limit && open_to_ask(a, layer, p + n))
		n++;
	*r = (struct ods_range){ .layer = layer, .begin = p, .n = n };
	return true;
}

bool ods_align_ask(struct ods_align *a, uint32_t position, uint64_t now_ns, struct ods_range *r)
{
	const uint32_t limit = min_u32(position, a->n_pages * OD_KV_PAGE);

	if (a->n_asked == ODS_MAX_ASKED || ods_align_asked(a) >= (uint64_t)ODS_FULL_RANGES * a->max_ask)
		return false;
	for (uint32_t l = 0; l < a->n_layers; l++) {
		if (a->fixed[l] || !find_open(a, l, limit, r))
			continue;
		for (uint32_t p = r->begin; p < r->begin + r->n; p++)
			*byte_of(a, l, p) |= ASKED;
		a->asked[a->n_asked++] = *r;
		a->heard_ns = now_ns;
		return true;
	}
	return false;
}

void ods_align_expire(struct ods_align *a, uint64_t now_ns)
{
	while (a->n_asked > 0 && now_ns >= ods_align_deadline(a))
		forget_asked(a, 0);
}

uint64_t ods_align_asked(const struct ods_align *a)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < a->n_asked; i++)
		sum += a->asked[i].n;
	return sum;
}

uint32_t ods_align_max_ask(const struct ods_align *a)
{
	return a->max_ask;
}

uint64_t ods_align_deadline(const struct ods_align *a)
{
	return a->n_asked > 0 ? a->heard_ns + ODS_ASK_AGAIN_NS : UINT64_MAX;
}
