#include "tests/bench/report/ablate_summary.h"

#include "common/base/clock.h"

#include <math.h>
#include <stdlib.h>

#define MIN_PROMPTS 6 /* fewer give no such interval (bench_stats.h) */

/* Sorts x. */
static struct ablate_spread spread_of(double *x, size_t n)
{
	struct ablate_spread s;
	struct od_stats all;
	double squares = 0;

	od_stats_of(x, n, &all);
	for (size_t i = 0; i < n; i++)
		squares += (x[i] - all.mean) * (x[i] - all.mean);
	s.median = all.median;
	s.q1 = od_stats_percentile(x, n, 0.25);
	s.q3 = od_stats_percentile(x, n, 0.75);
	s.mean = all.mean;
	s.sd = n > 1 ? sqrt(squares / (double)(n - 1)) : NAN;
	return s;
}

static double stalled_ms(const struct odm_figures *f)
{
	return od_seconds(f->c[OD_C_STALL_NS]) * 1e3 / (double)(f->c[OD_C_TOKENS] - 1);
}

static double share(double counted, double of)
{
	return of > 0 ? counted / of : NAN;
}

static void put_totals(struct ablate_summary *out, const struct odm_figures *sum)
{
	const uint64_t *c = sum->c;
	double tokens = (double)c[OD_C_TOKENS], uses = (double)c[OD_C_EXPERT_USES],
	       recalled = (double)c[OD_C_RECALLED_USES];
	double foreseen = recalled + (double)c[OD_C_HEDGE_USES];

	out->tokens = c[OD_C_TOKENS];
	out->uses = c[OD_C_EXPERT_USES];
	out->recall = share(recalled, (double)c[OD_C_PREDICTED_USES]);
	out->served = share((double)c[OD_C_SERVED_IN_TIME], uses);
	out->extra = share((double)c[OD_C_EXTRA_LOADS], uses);
	out->stalls = share((double)c[OD_C_STALLS], tokens);
	out->stall_ms = share(od_seconds(c[OD_C_STALL_NS]) * 1e3, tokens);
	out->unforeseen = share(uses - foreseen, tokens);
	out->late_loads = share(fmax(0, foreseen - (double)c[OD_C_SERVED_IN_TIME]), tokens);
	out->late_predictions = share((double)c[OD_C_LATE_PREDICTIONS], tokens);
	out->missing_predictions = share((double)c[OD_C_MISSING_PREDICTIONS], tokens);
	out->align_bytes = share((double)c[OD_C_ALIGN_BYTES], tokens);
	out->load_ms = share(od_seconds(c[OD_C_LOAD_NS]) * 1e3, (double)c[OD_C_LOADS]);
	out->main_ms = od_seconds(odm_figures_main_ns(sum)) * 1e3;
	out->worker_ms = od_seconds(odm_figures_worker_ns(sum)) * 1e3;
	out->window_ms = od_seconds(odm_figures_window_ns(sum, c[OD_C_SLOTS])) * 1e3;
}

int ablate_summarise(const struct odm_figures *f, size_t n, struct ablate_summary *out, struct od_err *err)
{
	struct odm_figures sum = { 0 };
	double *speed = calloc(n + 1, sizeof(*speed)), *stalled = calloc(n + 1, sizeof(*stalled));
	size_t n_speeds = 0;

	*out = (struct ablate_summary){ 0 };
	if (speed == NULL || stalled == NULL) {
		free(speed);
		free(stalled);
		return od_fail(err, OD_ERR_NOMEM, "figures of %zu prompts", n);
	}
	for (size_t i = 0; i < n; i++) {
		od_counters_add(sum.c, f[i].c);
		sum.c[OD_C_TOKENS] -= f[i].c[OD_C_TOKENS] > 0; /* the first comes from the prompt's pass */
		if (odm_figures_tok_per_s(&f[i]) <= 0) /* fewer than two tokens */
			continue;
		speed[n_speeds] = odm_figures_tok_per_s(&f[i]);
		stalled[n_speeds++] = stalled_ms(&f[i]);
	}
	out->tok_per_s = spread_of(speed, n_speeds);
	out->stalled_ms = spread_of(stalled, n_speeds);
	put_totals(out, &sum);
	free(speed);
	free(stalled);
	return OD_OK;
}

static double neutral(enum ablate_by by)
{
	return by == ABLATE_BY_SPEED ? 1 : 0;
}

int ablate_compare(const struct odm_figures *a, const struct odm_figures *b, size_t n, enum ablate_by by,
		   struct ablate_pair *out, struct od_err *err)
{
	double *x = calloc(n + 1, sizeof(*x));
	size_t n_both = 0;

	*out = (struct ablate_pair){ .by = by };
	if (x == NULL)
		return od_fail(err, OD_ERR_NOMEM, "figures of %zu prompts", n);
	for (size_t i = 0; i < n; i++) {
		double of_a = odm_figures_tok_per_s(&a[i]), of_b = odm_figures_tok_per_s(&b[i]);

		if (of_a <= 0 || of_b <= 0) /* fewer than two tokens */
			continue;
		x[n_both] = by == ABLATE_BY_SPEED ? of_a / of_b : stalled_ms(&b[i]) - stalled_ms(&a[i]);
		out->n_better += x[n_both++] > neutral(by);
	}
	od_stats_of(x, n_both, &out->gain);
	free(x);
	return OD_OK;
}

const char *ablate_verdict(const struct ablate_pair *p)
{
	if (p->gain.n < MIN_PROMPTS)
		return "undecided";
	return p->gain.ci_low > neutral(p->by) ? "yes" : p->gain.ci_high < neutral(p->by) ? "no" : "undecided";
}
