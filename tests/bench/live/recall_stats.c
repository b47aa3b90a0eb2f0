#include "tests/bench/live/recall_stats.h"

#include <math.h>
#include <stdlib.h>

const double recall_margin_edges[RECALL_MARGINS - 1] = { 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.6 };

size_t recall_margin_bucket(double margin)
{
	size_t i = 0;

	while (i < RECALL_MARGINS - 1 && margin >= recall_margin_edges[i])
		i++;
	return i;
}

int recall_counts_init(struct recall_counts *c, uint32_t n_moe, uint32_t n_tokens, struct od_err *err)
{
	int rc;

	*c = (struct recall_counts){ .n_leads = 2 * n_moe + 1 };
	rc = od_recall_init(&c->recall, n_moe, n_tokens, err);
	if (rc != OD_OK)
		return rc;
	c->lead = calloc(c->n_leads, sizeof(*c->lead));
	if (c->lead != NULL)
		return OD_OK;
	recall_counts_fini(c);
	return od_fail(err, OD_ERR_NOMEM, "recall of %u layers", n_moe);
}

void recall_counts_fini(struct recall_counts *c)
{
	od_recall_fini(&c->recall);
	free(c->lead);
	*c = (struct recall_counts){ 0 };
}

static bool holds(const uint16_t *set, size_t n, uint16_t x)
{
	for (size_t i = 0; i < n; i++) {
		if (set[i] == x)
			return true;
	}
	return false;
}

static void count(struct od_recall_cell *c, bool hit)
{
	c->uses++;
	c->recalled += hit;
}

void recall_counts_row(struct recall_counts *c, const struct recall_row *r)
{
	size_t bucket = recall_margin_bucket(r->margin);

	c->expert_uses += r->n_used;
	od_recall_see(&c->recall, r->layer);
	if (r->n_predicted == 0) {
		c->missing_rows++;
		return;
	}
	od_recall_add(&c->recall, r->layer, r->token, r->predicted, r->n_predicted, r->used, r->n_used, false);
	for (size_t i = 0; i < r->n_used && i < OD_MAX_TOP_K; i++) {
		bool hit = holds(r->predicted, r->n_predicted, r->used[i]);

		count(&c->rank[i], hit);
		count(&c->margin[bucket], hit);
	}
}

void recall_counts_lead(struct recall_counts *c, uint32_t lead, const struct recall_row *r)
{
	struct od_recall_cell *cell = &c->lead[lead < c->n_leads ? lead : c->n_leads - 1];

	for (size_t i = 0; i < r->n_used; i++)
		count(cell, holds(r->predicted, r->n_predicted, r->used[i]));
}

static void merge(struct od_recall_cell *into, const struct od_recall_cell *from, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		into[i].uses += from[i].uses;
		into[i].recalled += from[i].recalled;
	}
}

void recall_counts_merge(struct recall_counts *into, const struct recall_counts *from)
{
	od_recall_merge(&into->recall, &from->recall);
	merge(into->rank, from->rank, OD_MAX_TOP_K);
	merge(into->margin, from->margin, RECALL_MARGINS);
	merge(into->lead, from->lead, into->n_leads < from->n_leads ? into->n_leads : from->n_leads);
	into->expert_uses += from->expert_uses;
	into->missing_rows += from->missing_rows;
	into->guesses += from->guesses;
	into->wrong_guesses += from->wrong_guesses;
	into->kv_rows += from->kv_rows;
	into->align_bytes += from->align_bytes;
	into->asked_rows += from->asked_rows;
	into->asked_bytes += from->asked_bytes;
	into->tokens += from->tokens;
	into->steps += from->steps;
}

struct od_recall_cell recall_sum(const struct od_recall_cell *cell, size_t n, size_t from, size_t to)
{
	struct od_recall_cell sum = { 0 };

	for (size_t i = from; i < to && i < n; i++)
		merge(&sum, &cell[i], 1);
	return sum;
}

double recall_t975(size_t df)
{
	/* Beyond the table: the expansion around the normal quantile z (Abramowitz and Stegun 26.7.5). */
	static const double few[] = { 12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281 };
	const double z = 1.959963984540054, n = (double)df;

	if (df == 0)
		return NAN;
	if (df <= sizeof(few) / sizeof(few[0]))
		return few[df - 1];
	return z + (pow(z, 3) + z) / (4 * n) + (5 * pow(z, 5) + 16 * pow(z, 3) + 3 * z) / (96 * n * n) +
	       (3 * pow(z, 7) + 19 * pow(z, 5) + 17 * pow(z, 3) - 15 * z) / (384 * n * n * n);
}

struct sums {
	double uses, recalled;
	size_t n;
};

/* Sums over the prompts that both (b NULL: a alone) have uses in. */
static struct sums sum_of(const struct od_recall_cell *of, const struct od_recall_cell *a,
			  const struct od_recall_cell *b, size_t n)
{
	struct sums s = { 0 };

	for (size_t i = 0; i < n; i++) {
		if (a[i].uses == 0 || (b != NULL && b[i].uses == 0))
			continue;
		s.uses += (double)of[i].uses;
		s.recalled += (double)of[i].recalled;
		s.n++;
	}
	return s;
}

/* A prompt's share in how far R is from the truth. */
static double residual(const struct od_recall_cell *c, const struct sums *s)
{
	return ((double)c->recalled - s->recalled / s->uses * (double)c->uses) / s->uses;
}

static struct recall_interval around(double value, double squares, size_t n)
{
	double half = NAN;

	if (n > 1)
		half = recall_t975(n - 1) * sqrt((double)n / (double)(n - 1) * squares);
	return (struct recall_interval){ value, value - half, value + half };
}

struct recall_interval recall_ratio(const struct od_recall_cell *cell, size_t n)
{
	const struct sums s = sum_of(cell, cell, NULL, n);
	struct recall_interval r = { NAN, NAN, NAN };
	double squares = 0;

	if (s.n == 0)
		return r;
	for (size_t i = 0; i < n; i++)
		squares += cell[i].uses > 0 ? pow(residual(&cell[i], &s), 2) : 0;
	r = around(s.recalled / s.uses, squares, s.n);
	if (r.low < 0)
		r.low = 0;
	if (r.high > 1)
		r.high = 1;
	return r;
}

struct recall_interval recall_difference(const struct od_recall_cell *a, const struct od_recall_cell *b, size_t n)
{
	const struct sums sa = sum_of(a, a, b, n), sb = sum_of(b, a, b, n);
	double squares = 0;

	if (sa.n == 0)
		return (struct recall_interval){ NAN, NAN, NAN };
	for (size_t i = 0; i < n; i++) {
		if (a[i].uses > 0 && b[i].uses > 0)
			squares += pow(residual(&a[i], &sa) - residual(&b[i], &sb), 2);
	}
	return around(sa.recalled / sa.uses - sb.recalled / sb.uses, squares, sa.n);
}

void recall_spread(const struct od_recall_cell *cell, size_t n, double *mean, double *sd)
{
	double sum = 0, squares = 0;
	size_t have = 0;

	for (size_t i = 0; i < n; i++) {
		sum += od_recall_rate(&cell[i]);
		have += cell[i].uses > 0;
	}
	*mean = have > 0 ? sum / (double)have : NAN;
	for (size_t i = 0; i < n; i++)
		squares += cell[i].uses > 0 ? pow(od_recall_rate(&cell[i]) - *mean, 2) : 0;
	*sd = have > 1 ? sqrt(squares / (double)(have - 1)) : NAN;
}
