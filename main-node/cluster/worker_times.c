#include "main-node/cluster/worker_times.h"

#include <math.h>

#define FEWEST_SAMPLES 4
#define ROWS_BIND 1.5 /* times a run with few rows */
#define QUICKER 0.7 /* times the median: such a sample says that the worker has become quicker */
#define LOAD_NS_PER_WEIGHT 0.25
#define RUN_NS_PER_WEIGHT 0.05
#define LEAST_NS 0.001 /* no time is shorter, so that times can be divided; a loaded byte takes longer than this */
#define TRIAL_SHARE 0.02 /* time for trials of workers that get no work */

static double ring_median(const double *of, uint32_t n)
{
	double sorted[ODM_TIME_SAMPLES];

	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = i;

		for (; at > 0 && sorted[at - 1] > of[i]; at--)
			sorted[at] = sorted[at - 1];
		sorted[at] = of[i];
	}
	return n > 0 ? (sorted[(n - 1) / 2] + sorted[n / 2]) / 2 : 0;
}

static uint32_t kept(const struct odm_time_samples *s)
{
	return s->n < ODM_TIME_SAMPLES ? s->n : ODM_TIME_SAMPLES;
}

static void add_sample(struct odm_time_samples *s, double ns, uint64_t now)
{
	if (ns >= QUICKER * odm_time_median(s))
		s->last_ns = now;
	s->ns[s->n++ % ODM_TIME_SAMPLES] = fmax(ns, LEAST_NS);
	if (s->n == 2 * ODM_TIME_SAMPLES) /* it never overflows */
		s->n = ODM_TIME_SAMPLES;
}

bool odm_time_known(const struct odm_time_samples *s)
{
	return s->n >= FEWEST_SAMPLES;
}

bool odm_times_rows_bind(const struct odm_worker_times *t)
{
	const struct odm_time_samples *run = &t->of[ODM_TIME_RUN];

	return !odm_time_known(run) || odm_time_median(&t->many) > ROWS_BIND * odm_time_median(run);
}

double odm_time_median(const struct odm_time_samples *s)
{
	return ring_median(s->ns, kept(s));
}

double odm_time_spread(const struct odm_time_samples *s)
{
	const uint32_t n = kept(s);
	const double median = odm_time_median(s);
	double off[ODM_TIME_SAMPLES];

	for (uint32_t i = 0; i < n; i++)
		off[i] = fabs(s->ns[i] - median);
	return ring_median(off, n);
}

double odm_time_estimate(const struct odm_time_samples *s, double best, double units, uint32_t n_workers, uint64_t now)
{
	const double median = odm_time_median(s), idle_ns = now > s->last_ns ? (double)(now - s->last_ns) : 0;

	if (median <= best)
		return median;
	return fmax(best, median - idle_ns * TRIAL_SHARE / units / (n_workers > 1 ? n_workers - 1 : 1));
}

/* Rows of an expert from which on they cost more than its weights. */
static double many_rows(const struct odm_worker_times *t)
{
	const double run = odm_time_median(&t->of[ODM_TIME_RUN]), row = odm_time_median(&t->of[ODM_TIME_ROW]);

	return run > 0 && row > 0 ? run / row : ODM_ROWS_OF_RUN;
}

void odm_times_add(struct odm_worker_times *t, const struct odm_layer_report *r, uint64_t now)
{
	const bool many = r->n_experts > 0 && (double)r->n_pairs / r->n_experts >= many_rows(t);

	if (r->n_experts > 0)
		add_sample(&t->of[many ? ODM_TIME_ROW : ODM_TIME_RUN],
			   r->compute_ns / (many ? r->n_pairs : r->n_experts), now);
	if (many)
		add_sample(&t->many, r->compute_ns / r->n_experts, now);
	if (r->n_loads > 0 && r->loaded_bytes > 0)
		add_sample(&t->of[ODM_TIME_LOAD], r->load_ns / (double)r->loaded_bytes, now);
}

static void stretch(struct odm_time_samples *s, double times, double most_ns, uint64_t now)
{
	for (uint32_t i = 0; i < kept(s); i++)
		s->ns[i] = fmax(s->ns[i], fmin(s->ns[i] * times, most_ns));
	s->last_ns = now;
}

void odm_times_late(struct odm_worker_times *t, double times, double took_ns, double bytes, uint64_t now)
{
	struct odm_time_samples *run = &t->of[ODM_TIME_RUN];

	for (int kind = 0; kind < ODM_N_TIMES; kind++)
		stretch(&t->of[kind], times, kind == ODM_TIME_LOAD ? took_ns / bytes : took_ns, now);
	stretch(&t->many, times, took_ns, now);
	while (!odm_time_known(run))
		add_sample(run, took_ns, now);
}

struct odm_expert_times odm_expert_times_guess(double weights)
{
	return (struct odm_expert_times){ .load = LOAD_NS_PER_WEIGHT * weights,
					  .run = RUN_NS_PER_WEIGHT * weights,
					  .row = RUN_NS_PER_WEIGHT * weights };
}

double odm_expert_run_ns(const struct odm_expert_times *t, double rows)
{
	return fmax(t->run, rows * t->row);
}
