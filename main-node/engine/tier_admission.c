#include "main-node/engine/tier_admission.h"

#include "common/base/clock.h"
#include "main-node/predict/layer_stream.h"

#include <math.h>

#define FEW_STEPS 8.0 /* with fewer nothing is known */
#define RECENT_STEPS 256.0 /* sums are over about so many steps */
#define LEAST_SPREAD 0.01 /* rows differ enough to show what one takes: variance / mean^2 */
#define LEAST_GAIN 0.97 /* estimates are not exact, and a text that waits is slow for its reader */
#define DISK_BOUND 0.9 /* share of a step's time: reads that take more are its limit */
#define WAITED 0.5 /* share of the time of reads that steps wait, until it is known */
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

/* 0: not known. */
static double bytes_per_s(const struct odm_tier_admission *a)
{
	return a->read_s > 0 ? a->read_bytes / a->read_s : 0;
}

/* Where the disk was not the limit. */
static void learn_waits(struct odm_tier_admission *a, const struct odm_tier_step *s)
{
	const double read_s = bytes_per_s(a) > 0 ? (double)s->read_bytes / bytes_per_s(a) : 0;

	if (!s->streams && read_s > 0 && read_s < DISK_BOUND * od_seconds(s->step_ns))
		a->waited += (fmin(od_seconds(s->stall_ns) / read_s, 1) - a->waited) / RECENT_STEPS;
}

void odm_tier_admission_step(struct odm_tier_admission *a, const struct odm_tier_step *s)
{
	const double keep = 1 - 1 / RECENT_STEPS, rows = (double)s->n_rows,
		     computed = od_seconds(s->step_ns - s->stall_ns);

	if (s->n_rows == 0 || s->stall_ns > s->step_ns)
		return;
	if (a->n <= 0)
		a->waited = WAITED;
	a->n = a->n * keep + 1;
	a->rows = a->rows * keep + rows;
	a->s = a->s * keep + computed;
	a->rows_rows = a->rows_rows * keep + rows * rows;
	a->rows_s = a->rows_s * keep + rows * computed;
	a->row_s = row_s(a);
	if (s->chosen > 0 && s->chosen < MOST_CHOSEN)
		a->left = blend(a->left, pow(1 - s->chosen, 1 / rows), 1 / RECENT_STEPS);
	if (s->missing > 0 && s->missing_chosen < MOST_CHOSEN) {
		a->missing = blend(a->missing, s->missing, 1 / RECENT_STEPS);
		a->missing_left = blend(a->missing_left, pow(1 - s->missing_chosen, 1 / rows), 1 / RECENT_STEPS);
	}
	learn_waits(a, s);
}

void odm_tier_admission_read(struct odm_tier_admission *a, uint64_t bytes, uint64_t ns)
{
	const double keep = 1 - 1 / RECENT_STEPS;

	if (ns == 0)
		return;
	a->read_bytes = a->read_bytes * keep + (double)bytes;
	a->read_s = a->read_s * keep + od_seconds(ns);
}

/* KV cache of n texts. */
static double kv_bytes(const struct odm_tier_texts *t, double n, size_t point)
{
	const double running = t->n_running, more = n > running ? n - running : 0;

	return (double)t->running_bytes[point] * fmin(n, running) / fmax(running, 1) +
	       more * (double)t->text_bytes[point];
}

/* The share of the experts that are not kept that n rows choose. missing: how many are not kept, of all. The more they
 * are, the more are they like all experts. */
static double missing_chosen(const struct odm_tier_admission *a, double left, double missing, double n)
{
	const double more = missing > a->missing && a->missing < 1 ? (missing - a->missing) / (1 - a->missing) : 0;

	if (a->missing_left <= 0)
		return 1 - pow(left, n);
	return 1 - pow(a->missing_left + more * (left - a->missing_left), n);
}

/* With experts loaded ahead: so many that what is still waited for, and the computing, take as long as all reads.
 * all: time to read what is missing; part: share of it that is chosen. */
static double streamed_s(const struct odm_tier_admission *a, double compute, double all, double part)
{
	const double waits = a->waited * part * all, more = (1 - part) * all, spare = compute + waits - part * all,
		     ahead = more + waits > 0 ? fmin(fmax(spare / (more + waits), 0), 1) : 0;

	return fmax(compute + (1 - ahead) * waits, part * all + ahead * more);
}

/* Time of a step of n rows when so large a share of the experts is not kept. */
static double step_s(const struct odm_tier_admission *a, const struct odm_tier_texts *t, double n, double missing)
{
	const double compute = compute_s(a, n), left = a->left > 0 ? a->left : 1 - t->row_share,
		     part = missing_chosen(a, left, missing, n);
	double all;

	if (bytes_per_s(a) <= 0)
		return compute;
	all = missing * (double)t->stored_bytes / bytes_per_s(a);
	if (!odm_layer_stream_pays(1 - pow(left, n)))
		return fmax(compute + a->waited * part * all, part * all);
	return streamed_s(a, compute, all, part);
}

double odm_tier_admission_rate(const struct odm_tier_admission *a, const struct odm_tier_texts *t, uint32_t n)
{
	const double all = (double)t->all_bytes;
	double sum_s = 0;

	if (a->n <= 0)
		return 0;
	for (size_t i = 0; i < ODM_LIFE_POINTS; i++) {
		const double room = fmax(0, (double)t->shared_bytes - kv_bytes(t, n, i));

		sum_s += step_s(a, t, n, fmax(0, all - room) / all);
	}
	return n * ODM_LIFE_POINTS / sum_s;
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
