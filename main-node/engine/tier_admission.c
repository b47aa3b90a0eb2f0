#include "main-node/engine/tier_admission.h"

#include "common/base/clock.h"

#include <math.h>

#define FEW_STEPS 8.0 /* with fewer nothing is known */
#define RECENT_STEPS 256.0 /* sums are over about so many steps */
#define WAITED_SHARE 0.25 /* share of a step: reads were its limit, so they show the rate */
#define LEAST_SPREAD 0.01 /* rows differ enough to show what one takes: variance / mean^2 */
#define FASTER_SHARE 0.1
#define SLOWER_SHARE 0.02
#define LEAST_GAIN 0.97 /* estimates are not exact, and a text that waits is slow for its reader */
#define MOST_SKEW 2.0
#define MOST_CHOSEN 0.999 /* share of experts: more says nothing about one row */

static double blend(double old, double now, double share)
{
	return old > 0 ? old + share * (now - old) : now;
}

/* Seconds that one more row takes. When the number of rows hardly changes, recent steps do not show it: then it is the
 * share of a step's time that it was before. */
static double row_s(struct odm_tier_admission *a)
{
	const double mean_rows = a->rows / a->n, mean_s = a->s / a->n,
		     spread = a->rows_rows / a->n - mean_rows * mean_rows;

	if (spread > LEAST_SPREAD * mean_rows * mean_rows) {
		const double slope = (a->rows_s / a->n - mean_rows * mean_s) / spread;

		a->row_time_share = fmin(fmax(slope * mean_rows / mean_s, 0), 1);
	}
	return a->row_time_share * mean_s / mean_rows;
}

/* Time to compute a step of n rows. */
static double compute_s(const struct odm_tier_admission *a, double n)
{
	return a->s / a->n + a->row_s * (n - a->rows / a->n);
}

void odm_tier_admission_step(struct odm_tier_admission *a, const struct odm_tier_step *s)
{
	const double keep = 1 - 1 / RECENT_STEPS, rows = (double)s->n_rows,
		     computed = od_seconds(s->step_ns - s->stall_ns);

	if (s->n_rows == 0 || s->stall_ns > s->step_ns)
		return;
	a->n = a->n * keep + 1;
	a->rows = a->rows * keep + rows;
	a->s = a->s * keep + computed;
	a->rows_rows = a->rows_rows * keep + rows * rows;
	a->rows_s = a->rows_s * keep + rows * computed;
	a->row_s = row_s(a);
	if (s->chosen > 0 && s->chosen < MOST_CHOSEN)
		a->left = blend(a->left, pow(1 - s->chosen, 1 / rows), 1 / RECENT_STEPS);
	if (s->even_bytes > 0)
		a->skew = blend(a->skew, fmin((double)s->read_bytes / (double)s->even_bytes, MOST_SKEW),
				1 / RECENT_STEPS);
	if ((double)s->stall_ns > WAITED_SHARE * (double)s->step_ns)
		odm_tier_admission_read(a, s->read_bytes, s->step_ns);
}

void odm_tier_admission_read(struct odm_tier_admission *a, uint64_t bytes, uint64_t ns)
{
	const double now = ns > 0 ? (double)bytes / od_seconds(ns) : 0;

	/* Slower steps say less than faster ones, since not only the disk may have held them up. But a part of what a
	 * step uses may have been read before it began. */
	a->bytes_per_s = blend(a->bytes_per_s, now, now > a->bytes_per_s ? FASTER_SHARE : SLOWER_SHARE);
}

double odm_tier_admission_rho(const struct odm_tier_admission *a, double bytes, size_t n_rows)
{
	if (a->n < FEW_STEPS || a->bytes_per_s == 0)
		return INFINITY;
	return bytes / a->bytes_per_s / compute_s(a, (double)n_rows);
}

/* KV cache of n texts. */
static double kv_bytes(const struct odm_tier_texts *t, double n, size_t point)
{
	const double running = t->n_running, more = n > running ? n - running : 0;

	return (double)t->running_bytes[point] * fmin(n, running) / fmax(running, 1) +
	       more * (double)t->text_bytes[point];
}

/* Time to read a step's experts if the cache kept none. */
static double read_all_s(const struct odm_tier_admission *a, const struct odm_tier_texts *t, double n)
{
	if (a->bytes_per_s == 0)
		return 0;
	return (a->skew > 0 ? a->skew : 1) * (1 - pow(a->left > 0 ? a->left : 1 - t->row_share, n)) *
	       (double)t->stored_bytes / a->bytes_per_s;
}

double odm_tier_admission_rate(const struct odm_tier_admission *a, const struct odm_tier_texts *t, uint32_t n)
{
	const double all = (double)t->all_bytes, compute = a->n > 0 ? compute_s(a, n) : 0, read = read_all_s(a, t, n);
	double sum_s = 0;

	for (size_t i = 0; i < ODM_LIFE_POINTS; i++) {
		const double room = fmax(0, (double)t->shared_bytes - kv_bytes(t, n, i));

		sum_s += fmax(compute, read * fmax(0, all - room) / all);
	}
	return a->n > 0 ? n * ODM_LIFE_POINTS / sum_s : 0;
}

/* With one more text they leave memory for all experts, always. */
static bool leave_all_experts(const struct odm_tier_texts *t)
{
	for (size_t i = 0; i < ODM_LIFE_POINTS; i++)
		if (t->running_bytes[i] + t->text_bytes[i] + t->all_bytes > t->shared_bytes)
			return false;
	return true;
}

bool odm_tier_admission_admits(const struct odm_tier_admission *a, const struct odm_tier_texts *t)
{
	double best = 0;

	if (t->n_running == 0)
		return true;
	if (a->n < FEW_STEPS)
		return leave_all_experts(t);
	for (uint32_t n = 1; n <= t->n_running; n++)
		best = fmax(best, odm_tier_admission_rate(a, t, n));
	for (uint32_t n = t->n_running + 1; n <= t->n_running + t->n_waiting; n++)
		if (odm_tier_admission_rate(a, t, n) >= LEAST_GAIN * best)
			return true;
	return false;
}
