#include "shadow-node/align_apply.h"

#include "common/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* What a byte of the map says; 0 is missing. TRUE_ROW stands alone. */
enum { OWN_ROW = 1, TRUE_ROW = 2, DUE = 4 };

struct ods_align {
	uint32_t n_layers, ctx, max_ask;
	uint8_t *map;	   /* [n_layers][ctx] */
	uint32_t end;	   /* nothing is said of what stands there or behind, in any layer */
	uint32_t *settled; /* [n_layers]: all positions before are settled; a lower bound that is moved when asked */
	uint32_t due_begin, due_n;
	struct ods_range asked[ODS_MAX_ASKED];
	size_t n_asked;
	uint64_t heard_ns; /* when one was sent or answered last */
};

static uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

uint64_t ods_align_bytes(uint32_t n_layers, uint32_t ctx)
{
	return sizeof(struct ods_align) + (uint64_t)n_layers * ctx + n_layers * sizeof(uint32_t);
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
	a->map = od_alloc_array(n_layers, ctx);
	a->settled = calloc(n_layers, sizeof(*a->settled));
	if (a->map == NULL || a->settled == NULL)
		goto fail;
	*out = a;
	return OD_OK;
fail:
	ods_align_free(a);
	return od_fail(err, OD_ERR_NOMEM, "alignment of %u positions in %u layers", ctx, n_layers);
}

void ods_align_free(struct ods_align *a)
{
	if (a == NULL)
		return;
	od_free(a->map);
	free(a->settled);
	free(a);
}

static uint8_t *row_map(const struct ods_align *a, uint32_t layer)
{
	return a->map + (size_t)layer * a->ctx;
}

/* Everything from position on may have become unsettled. */
static void unsettle(struct ods_align *a, uint32_t layer, uint32_t position)
{
	a->settled[layer] = min_u32(a->settled[layer], position);
}

static void touch(struct ods_align *a, uint32_t end)
{
	if (end > a->end)
		a->end = end;
}

static void forget_asked(struct ods_align *a, size_t i)
{
	a->asked[i] = a->asked[--a->n_asked];
}

void ods_align_truncate(struct ods_align *a, uint32_t length)
{
	for (uint32_t l = 0; l < a->n_layers && length < a->end; l++) {
		memset(row_map(a, l) + length, 0, a->end - length);
		unsettle(a, l, length);
	}
	a->end = min_u32(a->end, length);
	if (a->due_begin >= length)
		a->due_n = 0;
	else
		a->due_n = min_u32(a->due_n, length - a->due_begin);
	/* Main cannot answer for rows that are gone; what is left of such a range is asked for anew. */
	for (size_t i = a->n_asked; i-- > 0;)
		if (a->asked[i].begin + a->asked[i].n > length)
			forget_asked(a, i);
}

void ods_align_settle(struct ods_align *a)
{
	for (uint32_t l = 0; l < a->n_layers && a->due_n > 0; l++) {
		uint8_t *at = row_map(a, l) + a->due_begin;

		/* An own row that was to be replaced goes too: the true one can be asked for. */
		for (uint32_t i = 0; i < a->due_n; i++) {
			if (at[i] & DUE) {
				at[i] = 0;
				unsettle(a, l, a->due_begin + i);
			}
		}
	}
	a->due_n = 0;
}

void ods_align_step(struct ods_align *a, uint32_t begin, uint32_t n, uint32_t n_due, bool keep)
{
	ods_align_truncate(a, keep ? begin + n : begin);
	a->due_begin = begin + n - n_due;
	a->due_n = n_due;
	if (n_due > 0)
		touch(a, begin + n);
	for (uint32_t l = 0; l < a->n_layers && n_due > 0; l++) {
		uint8_t *at = row_map(a, l) + a->due_begin;

		for (uint32_t i = 0; i < n_due; i++)
			if (at[i] != TRUE_ROW)
				at[i] |= DUE;
		unsettle(a, l, a->due_begin);
	}
}

static bool inside(const struct ods_range *r, uint32_t begin, uint32_t n)
{
	return r->begin >= begin && r->begin - begin <= n && r->n <= n - (r->begin - begin);
}

static bool any_due(const struct ods_align *a, const struct ods_range *r)
{
	const uint8_t *at = row_map(a, r->layer) + r->begin;

	for (uint32_t i = 0; i < r->n; i++) {
		if (at[i] & DUE)
			return true;
	}
	return false; /* all of them came already */
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

/* Answered are the ranges that lack nothing any more. */
static void note_answer(struct ods_align *a, const struct ods_range *r, uint64_t now_ns)
{
	for (size_t i = a->n_asked; i-- > 0;) {
		const struct ods_range *q = &a->asked[i];

		if (q->layer != r->layer || r->begin >= q->begin + q->n || q->begin >= r->begin + r->n)
			continue;
		a->heard_ns = now_ns;
		if (memchr(row_map(a, q->layer) + q->begin, 0, q->n) == NULL)
			forget_asked(a, i);
	}
}

void ods_align_true(struct ods_align *a, const struct ods_range *r, uint64_t now_ns)
{
	memset(row_map(a, r->layer) + r->begin, TRUE_ROW, r->n);
	touch(a, r->begin + r->n);
	note_answer(a, r, now_ns);
}

void ods_align_own(struct ods_align *a, uint32_t layer, uint32_t position)
{
	uint8_t *at = row_map(a, layer) + position;

	if (*at != TRUE_ROW)
		*at |= OWN_ROW;
	touch(a, position + 1);
}

bool ods_align_is_true(const struct ods_align *a, uint32_t layer, uint32_t position)
{
	return row_map(a, layer)[position] == TRUE_ROW;
}

bool ods_align_ready(struct ods_align *a, uint32_t layer, uint32_t position)
{
	const uint8_t *map = row_map(a, layer);
	uint32_t p = a->settled[layer];

	while (p < position && (map[p] == TRUE_ROW || map[p] == OWN_ROW))
		p++;
	a->settled[layer] = p;
	if (position < a->due_begin + a->due_n)
		while (p < position && (map[p] & (TRUE_ROW | OWN_ROW)) != 0)
			p++;
	return p >= position;
}

uint32_t ods_align_missing(struct ods_align *a, uint32_t limit)
{
	for (uint32_t l = 0; l < a->n_layers; l++) {
		const uint8_t *map = row_map(a, l), *zero;

		if (ods_align_ready(a, l, limit))
			continue;
		zero = memchr(map + a->settled[l], 0, limit - a->settled[l]);
		if (zero != NULL)
			limit = (uint32_t)(zero - map);
	}
	return limit;
}

/* The asked range that holds the position, or NULL. */
static const struct ods_range *asked_at(const struct ods_align *a, uint32_t layer, uint32_t position)
{
	for (size_t i = 0; i < a->n_asked; i++) {
		const struct ods_range *q = &a->asked[i];

		if (q->layer == layer && position >= q->begin && position - q->begin < q->n)
			return q;
	}
	return NULL;
}

/* The first run of missing positions before limit that is not asked for. */
static bool find_missing(struct ods_align *a, uint32_t layer, uint32_t limit, struct ods_range *r)
{
	const uint8_t *map = row_map(a, layer);
	uint32_t p;

	if (ods_align_ready(a, layer, limit)) /* moves the bound, so that a long text is not searched every time */
		return false;
	p = a->settled[layer];
	while (p < limit) {
		const uint8_t *zero = memchr(map + p, 0, limit - p);
		const struct ods_range *q;
		uint32_t n = 1;

		if (zero == NULL)
			return false;
		p = (uint32_t)(zero - map);
		q = asked_at(a, layer, p);
		if (q != NULL) {
			p = q->begin + q->n;
			continue;
		}
		while (n < a->max_ask && p + n < limit && map[p + n] == 0 && asked_at(a, layer, p + n) == NULL)
			n++;
		*r = (struct ods_range){ .layer = layer, .begin = p, .n = n };
		return true;
	}
	return false;
}

bool ods_align_ask(struct ods_align *a, uint32_t position, uint64_t now_ns, struct ods_range *r)
{
	if (a->n_asked == ODS_MAX_ASKED)
		return false;
	for (uint32_t l = 0; l < a->n_layers; l++) {
		if (!find_missing(a, l, position, r))
			continue;
		a->asked[a->n_asked++] = *r;
		a->heard_ns = now_ns;
		return true;
	}
	return false;
}

void ods_align_expire(struct ods_align *a, uint64_t now_ns)
{
	if (now_ns >= ods_align_deadline(a))
		a->n_asked = 0;
}

size_t ods_align_asked(const struct ods_align *a)
{
	return a->n_asked;
}

uint64_t ods_align_deadline(const struct ods_align *a)
{
	return a->n_asked > 0 ? a->heard_ns + ODS_ASK_AGAIN_NS : UINT64_MAX;
}
