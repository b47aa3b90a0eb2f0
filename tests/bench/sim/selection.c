#include "tests/bench/sim/selection.h"

#include "common/base/mem.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#define MAX_ROUNDS 1000 /* some forty are enough */
#define MET 1e-12
#define MET_AT_WORST 1e-9
#define NEVER 1e-13
#define SUM_ERROR 1e-9 /* relative to the sum of all f */

void sim_selection_hits(const double *q, uint32_t n, uint32_t max, double *hits)
{
	hits[0] = 1;
	for (uint32_t h = 1; h <= max; h++)
		hits[h] = 0;
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t h = max; h > 0; h--)
			hits[h] = hits[h] * (1 - q[i]) + hits[h - 1] * q[i];
		hits[0] *= 1 - q[i];
	}
}

/* before, after: [n + 1][k + 1], hits among the experts before i, and among i and those behind. */
static void inclusion(const double *q, uint32_t n, uint32_t k, double *before, double *after, double *f)
{
	const size_t row = k + 1;
	double all;

	for (uint32_t h = 0; h <= k; h++)
		before[h] = after[n * row + h] = h == 0;
	for (uint32_t i = 0; i < n; i++) {
		const double *left = before + i * row, *right = after + (n - i) * row;
		double *next_left = before + (i + 1) * row, *next_right = after + (n - 1 - i) * row;

		for (uint32_t h = 0; h <= k; h++) {
			next_left[h] = left[h] * (1 - q[i]) + (h > 0 ? left[h - 1] * q[i] : 0);
			next_right[h] = right[h] * (1 - q[n - 1 - i]) + (h > 0 ? right[h - 1] * q[n - 1 - i] : 0);
		}
	}
	all = before[n * row + k];
	for (uint32_t i = 0; i < n; i++) {
		const double *left = before + i * row, *right = after + (i + 1) * row;
		double others = 0; /* k - 1 of them */

		for (uint32_t h = 0; h < k; h++)
			others += left[h] * right[k - 1 - h];
		f[i] = q[i] * others / all;
	}
}

/* Room for both tables of inclusion(). */
static double *tables(uint32_t n, uint32_t k)
{
	uint64_t cells;

	if (!od_mul((uint64_t)n + 1, (uint64_t)k + 1, &cells) || cells > SIZE_MAX / 2 / sizeof(double))
		return NULL;
	return calloc(2 * cells, sizeof(double));
}

/* Never and always are as good as 1e-13 from it. */
static double odds(double p)
{
	return fmax(p, NEVER) / fmax(1 - p, NEVER);
}

/* tables_of: room for inclusion(); w and g are scratch [n]. False: not met. */
static bool fit(const double *f, uint32_t n, uint32_t k, double *tables_of, double *w, double *g, double *q)
{
	double *after = tables_of + ((size_t)n + 1) * (k + 1), worst = 1;

	for (uint32_t i = 0; i < n; i++)
		w[i] = odds(f[i]);
	for (int round = 0; round < MAX_ROUNDS && !(worst < MET); round++) {
		for (uint32_t i = 0; i < n; i++)
			q[i] = w[i] / (1 + w[i]);
		inclusion(q, n, k, tables_of, after, g);
		worst = 0;
		for (uint32_t i = 0; i < n; i++) {
			worst = fmax(worst, fabs(g[i] - f[i]));
			w[i] *= sqrt(odds(f[i]) / odds(g[i]));
		}
	}
	return worst < MET_AT_WORST;
}

static int check(const double *f, uint32_t n, uint32_t k, struct od_err *err)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (!(f[i] >= 0 && f[i] <= 1))
			return od_fail(err, OD_ERR_RANGE, "inclusion probability %u: expected 0 to 1, found %g", i,
				       f[i]);
		sum += f[i];
	}
	if (k == 0 || k > n || !(fabs(sum - k) < SUM_ERROR))
		return od_fail(err, OD_ERR_RANGE, "%u inclusion probabilities of sets of %u: their sum is %.9g", n, k,
			       sum);
	return OD_OK;
}

int sim_selection_fit(const double *f, uint32_t n, uint32_t k, double *q, struct od_err *err)
{
	double *scratch, *t;
	int rc = check(f, n, k, err);

	if (rc != OD_OK)
		return rc;
	scratch = calloc(2 * (size_t)n, sizeof(*scratch));
	t = tables(n, k);
	if (scratch == NULL || t == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "selection of %u of %u experts", k, n);
	else if (!fit(f, n, k, t, scratch, scratch + n, q))
		rc = od_fail(err, OD_ERR_INTERNAL, "the selection probabilities of %u of %u experts were not found", k,
			     n);
	free(scratch);
	free(t);
	return rc;
}

void sim_selection_scale(double *f, uint32_t n, uint32_t k)
{
	double scale = 0, next = 0;

	/* An f above 1 at some scale is above 1 at every greater scale. */
	do {
		double rest = k, sum = 0;

		scale = next;
		for (uint32_t i = 0; i < n; i++) {
			if (scale * f[i] >= 1)
				rest -= 1;
			else
				sum += f[i];
		}
		if (sum > 0 && rest > 0)
			next = rest / sum;
	} while (next > scale * (1 + 1e-15));
	for (uint32_t i = 0; i < n; i++)
		f[i] = fmin(1, scale * f[i]);
}
