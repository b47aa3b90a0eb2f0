#include "common/model/dry.h"

#include "common/base/same_math.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#define LOG_FLOAT_MAX 88.7228391 /* limits the exponent, as in llama.cpp */
#define MIN_LIMITED_BASE 1.000001 /* smaller ones need no limit */

enum dry_head { NO_HEAD, HEAD_OF_LONG, IS_BREAKER };

struct od_dry {
	struct od_dry_opts o;
	uint32_t vocab;
	int32_t *ring; /* [window]: recent tokens */
	uint32_t n_ring, at; /* filled entries; index of the next one */
	int32_t *text; /* [window]: recent tokens, the last one first */
	uint32_t *match; /* [window]: how many tokens from here on are those of the beginning of `text` */
	uint32_t *prolonged; /* [vocab]: 1 + the longest match that the token would prolong; 0: none. 0 between calls */
	uint8_t *head; /* [vocab]: enum dry_head; the highest that holds */
	int32_t *breakers; /* [o.n_breakers] */
	const int32_t **by_head; /* [n_long]: breakers of several tokens, sorted by the first */
	size_t n_long;
};

void od_dry_defaults(struct od_dry_opts *o)
{
	*o = (struct od_dry_opts){ .base = OD_DRY_BASE, .allowed_length = 2, .window = 64 };
}

bool od_dry_is_on(const struct od_dry_opts *o)
{
	return o->multiplier != 0 && o->window > 0;
}

int od_dry_check(const struct od_dry_opts *o, struct od_err *err)
{
	if (!(o->multiplier >= 0 && o->multiplier <= OD_MAX_DRY_MULTIPLIER)) /* NaN fails */
		return od_fail(err, OD_ERR_ARG, "sampling: dry_multiplier: expected 0 to %g, found %g",
			       OD_MAX_DRY_MULTIPLIER, o->multiplier);
	if (!(o->base >= 1 && o->base <= OD_MAX_DRY_BASE))
		return od_fail(err, OD_ERR_ARG, "sampling: dry_base: expected 1 to %g, found %g", OD_MAX_DRY_BASE,
			       o->base);
	if (o->allowed_length > OD_MAX_DRY_WINDOW)
		return od_fail(err, OD_ERR_ARG, "sampling: dry_allowed_length: expected 0 to %u, found %u",
			       OD_MAX_DRY_WINDOW, o->allowed_length);
	if (o->window > OD_MAX_DRY_WINDOW)
		return od_fail(err, OD_ERR_ARG, "sampling: dry_penalty_last_n: expected 0 to %u, found %u",
			       OD_MAX_DRY_WINDOW, o->window);
	return OD_OK;
}

/* ---- Breakers ---- */

static int by_first_token(const void *a, const void *b)
{
	const int32_t *const *x = a, *const *y = b;

	return ((*x)[1] > (*y)[1]) - ((*x)[1] < (*y)[1]);
}

/* Each begins with its number of tokens. */
static int check_breakers(const struct od_dry *d, struct od_err *err)
{
	const int32_t *b = d->breakers;

	for (size_t i = 0, n; i < d->o.n_breakers; i += 1 + n) {
		n = b[i] >= 1 && b[i] <= (int32_t)OD_MAX_BREAKER_TOKENS ? (size_t)b[i] : 0;
		if (n == 0 || n > d->o.n_breakers - i - 1)
			return od_fail(err, OD_ERR_ARG,
				       "sampling: dry_sequence_breakers: expected 1 to %u tokens in each, found %d",
				       OD_MAX_BREAKER_TOKENS, b[i]);
		for (size_t k = i + 1; k <= i + n; k++)
			if (b[k] < 0 || (uint32_t)b[k] >= d->vocab)
				return od_fail(err, OD_ERR_ARG,
					       "sampling: dry_sequence_breakers: expected tokens of 0 to %u, found %d",
					       d->vocab - 1, b[k]);
	}
	return OD_OK;
}

static int take_breakers(struct od_dry *d, struct od_err *err)
{
	int rc;

	if (d->o.n_breakers == 0)
		return OD_OK;
	d->breakers = calloc(d->o.n_breakers, sizeof(*d->breakers));
	d->by_head = calloc(d->o.n_breakers / 3 + 1, sizeof(*d->by_head)); /* a long one has three numbers or more */
	if (d->breakers == NULL || d->by_head == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for breakers of %zu tokens", d->o.n_breakers);
	memcpy(d->breakers, d->o.breakers, d->o.n_breakers * sizeof(*d->breakers));
	rc = check_breakers(d, err);
	if (rc != OD_OK)
		return rc;
	for (size_t i = 0; i < d->o.n_breakers; i += 1 + (size_t)d->breakers[i]) {
		uint8_t *head = &d->head[d->breakers[i + 1]];

		if (d->breakers[i] == 1) {
			*head = IS_BREAKER;
			continue;
		}
		*head = *head == NO_HEAD ? HEAD_OF_LONG : *head;
		d->by_head[d->n_long++] = &d->breakers[i];
	}
	qsort(d->by_head, d->n_long, sizeof(*d->by_head), by_first_token);
	return OD_OK;
}

/* ---- Life ---- */

int od_dry_new(struct od_dry **out, const struct od_dry_opts *o, uint32_t vocab, struct od_err *err)
{
	struct od_dry *d;
	int rc = od_dry_check(o, err);

	*out = NULL;
	if (rc != OD_OK)
		return rc;
	d = calloc(1, sizeof(*d));
	if (d == NULL)
		return od_fail(err, OD_ERR_NOMEM, "DRY");
	d->o = *o;
	d->vocab = vocab;
	d->ring = calloc(o->window + 1, sizeof(*d->ring));
	d->text = calloc(o->window + 1, sizeof(*d->text));
	d->match = calloc(o->window + 1, sizeof(*d->match));
	d->prolonged = calloc(vocab, sizeof(*d->prolonged));
	d->head = calloc(vocab, sizeof(*d->head));
	if (d->ring == NULL || d->text == NULL || d->match == NULL || d->prolonged == NULL || d->head == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "DRY over %u tokens", o->window);
	if (rc == OD_OK)
		rc = take_breakers(d, err);
	if (rc != OD_OK) {
		od_dry_free(d);
		return rc;
	}
	*out = d;
	return OD_OK;
}

void od_dry_free(struct od_dry *d)
{
	if (d == NULL)
		return;
	free(d->ring);
	free(d->text);
	free(d->match);
	free(d->prolonged);
	free(d->head);
	free(d->breakers);
	free(d->by_head);
	free(d);
}

void od_dry_clear(struct od_dry *d)
{
	d->n_ring = d->at = 0;
}

void od_dry_add(struct od_dry *d, int32_t token)
{
	d->ring[d->at] = token;
	d->at = d->at + 1 < d->o.window ? d->at + 1 : 0;
	d->n_ring += d->n_ring < d->o.window;
}

/* ---- Penalties ---- */

static void reverse_text(struct od_dry *d)
{
	uint32_t from = d->at;

	for (uint32_t i = 0; i < d->n_ring; i++) {
		from = from > 0 ? from - 1 : d->o.window - 1;
		d->text[i] = d->ring[from];
	}
}

/* The breaker's tokens end the text from its place i on. */
static bool stands_at(const struct od_dry *d, const int32_t *breaker, uint32_t i)
{
	const uint32_t behind = (uint32_t)breaker[0] - 1;

	if (behind > i)
		return false;
	for (uint32_t k = 0; k < behind; k++)
		if (breaker[2 + k] != d->text[i - 1 - k])
			return false;
	return true;
}

/* Tokens behind the head of the longest breaker that begins at place i of the text; -1: none begins there. */
static int breaker_at(const struct od_dry *d, uint32_t i)
{
	const int32_t token = d->text[i];
	int longest = d->head[token] == IS_BREAKER ? 0 : -1;
	size_t low = 0, high = d->n_long;

	if (d->head[token] == NO_HEAD)
		return -1;
	while (low < high) {
		const size_t middle = low + (high - low) / 2;

		if (d->by_head[middle][1] < token)
			low = middle + 1;
		else
			high = middle;
	}
	for (; low < d->n_long && d->by_head[low][1] == token; low++)
		if (d->by_head[low][0] - 1 > longest && stands_at(d, d->by_head[low], i))
			longest = d->by_head[low][0] - 1;
	return longest;
}

/* Tokens behind the last breaker. */
static uint32_t match_limit(const struct od_dry *d)
{
	for (uint32_t i = 0; i < d->n_ring; i++) {
		const int behind = breaker_at(d, i);

		if (behind >= 0)
			return i - (uint32_t)behind;
	}
	return d->n_ring;
}

/* Fills match. The match that reaches furthest says how the text goes on within it (the Z function: Gusfield 1997,
 * 1.4), so that each token is compared once. */
static void match_beginning(struct od_dry *d)
{
	const int32_t *t = d->text;
	const uint32_t n = d->n_ring;
	uint32_t begin = 0, end = 0; /* it is that match */

	for (uint32_t k = 1; k < n; k++) {
		uint32_t len = 0;

		if (k < end)
			len = d->match[k - begin] < end - k ? d->match[k - begin] : end - k;
		while (k + len < n && t[len] == t[k + len])
			len++;
		d->match[k] = len;
		if (k + len > end) {
			begin = k;
			end = k + len;
		}
	}
}

/* base^exponent by squaring: the same bits everywhere. */
static double power(double base, uint32_t exponent)
{
	double p = 1;

	for (; exponent > 0; exponent /= 2, base *= base)
		p *= exponent % 2 != 0 ? base : 1;
	return p;
}

static float penalty(const struct od_dry_opts *o, uint32_t match)
{
	const double most = o->base > MIN_LIMITED_BASE ? LOG_FLOAT_MAX / od_log_same(o->base) : 0;
	uint32_t exponent = match - o->allowed_length;
	double p;

	if (most >= 1 && exponent > most)
		exponent = (uint32_t)most;
	p = o->multiplier * power(o->base, exponent);
	return p < (double)FLT_MAX ? (float)p : FLT_MAX;
}

void od_dry_penalise(struct od_dry *d, float *logits)
{
	const uint32_t allowed = d->o.allowed_length;
	uint32_t limit;

	if (d->n_ring <= allowed)
		return;
	reverse_text(d);
	limit = match_limit(d);
	if (limit < allowed)
		return;
	match_beginning(d);
	for (uint32_t k = 1; k < d->n_ring; k++) {
		const uint32_t match = d->match[k] < limit ? d->match[k] : limit;
		uint32_t *longest = &d->prolonged[d->text[k - 1]];

		if (match >= allowed && match + 1 > *longest)
			*longest = match + 1;
	}
	for (uint32_t k = 1; k < d->n_ring; k++) {
		const int32_t token = d->text[k - 1];

		if (d->prolonged[token] > 0 && d->head[token] != IS_BREAKER)
			logits[token] -= penalty(&d->o, d->prolonged[token] - 1);
		d->prolonged[token] = 0;
	}
}
