#include "main-node/engine/lookup_draft.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SHORTEST 2 /* tokens that are looked up: a single one repeats everywhere */
#define LONGEST 3
#define N_LENGTHS (LONGEST - SHORTEST + 1)

struct odm_lookup {
	size_t max_tokens, n; /* n: tokens of the text so far */
	size_t mask;
	/* [mask + 1] each, linear probing, at most half full: where the latest occurrence of some tokens ended; 0:
	 * unused. The tokens themselves are read from the text. */
	uint32_t *cell[N_LENGTHS];
};

int odm_lookup_new(struct odm_lookup **out, size_t max_tokens, struct od_err *err)
{
	struct odm_lookup *l;
	size_t n_cells = 2;

	*out = NULL;
	if (max_tokens > UINT32_MAX)
		return od_fail(err, OD_ERR_RANGE, "lookup drafts: expected at most %u tokens, found %zu", UINT32_MAX,
			       max_tokens);
	while (n_cells < 2 * max_tokens)
		n_cells *= 2;
	l = calloc(1, sizeof(*l));
	if (l == NULL)
		goto fail;
	l->max_tokens = max_tokens;
	l->mask = n_cells - 1;
	for (size_t i = 0; i < N_LENGTHS; i++) {
		l->cell[i] = calloc(n_cells, sizeof(*l->cell[i]));
		if (l->cell[i] == NULL)
			goto fail;
	}
	*out = l;
	return OD_OK;
fail:
	odm_lookup_free(l);
	return od_fail(err, OD_ERR_NOMEM, "no memory for the lookup drafts of %zu tokens", max_tokens);
}

void odm_lookup_free(struct odm_lookup *l)
{
	if (l == NULL)
		return;
	for (size_t i = 0; i < N_LENGTHS; i++)
		free(l->cell[i]);
	free(l);
}

static size_t hash(const int32_t *token, size_t length)
{
	uint64_t h = length;

	for (size_t i = 0; i < length; i++) {
		h = (h ^ (uint32_t)token[i]) * 0x9e3779b97f4a7c15u;
		h ^= h >> 32;
	}
	return (size_t)h;
}

/* The cell of the tokens that end before text[end], or the unused one where they belong. */
static uint32_t *find(const struct odm_lookup *l, const int32_t *text, size_t end, size_t length)
{
	const int32_t *token = text + end - length;
	uint32_t *cell = l->cell[length - SHORTEST];
	size_t at = hash(token, length) & l->mask;

	while (cell[at] != 0 && memcmp(text + cell[at] - length, token, length * sizeof(*token)) != 0)
		at = (at + 1) & l->mask;
	return &cell[at];
}

/* The tokens before each new one have a successor now. The end of the text has none, so it never finds itself. */
static void take_in(struct odm_lookup *l, const int32_t *text, size_t n)
{
	assert(l->n <= n && n <= l->max_tokens);
	for (; l->n < n; l->n++)
		for (size_t length = SHORTEST; length <= LONGEST && length <= l->n; length++)
			*find(l, text, l->n, length) = (uint32_t)l->n;
}

/* How many tokens before text[at] are the last ones of text [n]; max at most. */
static size_t repeated(const int32_t *text, size_t n, size_t at, size_t max)
{
	size_t m = 0;

	while (m < max && m < at && text[at - 1 - m] == text[n - 1 - m])
		m++;
	return m;
}

size_t odm_lookup_draft(struct odm_lookup *l, const int32_t *text, size_t n, int32_t *out, size_t max)
{
	size_t at = 0;

	take_in(l, text, n);
	for (size_t length = LONGEST; at == 0 && length >= SHORTEST; length--)
		if (length <= n)
			at = *find(l, text, n, length);
	if (at == 0)
		return 0;
	max = repeated(text, n, at, max);
	for (size_t i = 0; i < max; i++) /* past the end of the text the draft repeats itself */
		out[i] = at + i < n ? text[at + i] : out[at + i - n];
	return max;
}
