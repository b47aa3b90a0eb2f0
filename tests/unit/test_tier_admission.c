/* Whether one more text pays: beside a machine whose times are known, which steps show. */
#include "main-node/engine/tier_admission.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/random.h"

#define NS 1e9
#define MIB 1048576.0

struct machine {
	double step_s, row_s; /* a step of n rows computes for step_s + n * row_s */
	double share; /* share of a layer's experts that a row chooses */
	/* A row chooses this share of those that are not kept: from `rare`, at `few` of them, to `share`, at all. */
	double rare, few;
	double disk; /* bytes a second */
	double waited; /* share of the time of reads that steps wait for */
};

static double missing(const struct odm_tier_texts *t, double kv)
{
	const double room = fmax(0, (double)t->shared_bytes - kv);

	return fmax(0, (double)t->all_bytes - room) / (double)t->all_bytes;
}

static double missing_chosen(const struct machine *m, double share_missing, double n)
{
	double p = m->rare;

	if (share_missing > m->few)
		p += (m->share - m->rare) * (share_missing - m->few) / (1 - m->few);
	return 1 - pow(1 - p, n);
}

static bool streams(const struct machine *m, double n)
{
	return 1 - pow(1 - m->share, n) >= 0.6;
}

/* Loaded ahead is the share of what is missing, found here by trying, with which a step is shortest: waits for the rest
 * of what is chosen, or reads, which are more than that. */
static double true_step_s(const struct machine *m, const struct odm_tier_texts *t, double n, double kv)
{
	const double compute = m->step_s + n * m->row_s, x = missing(t, kv),
		     all = x * (double)t->stored_bytes / m->disk, part = all * missing_chosen(m, x, n);
	double best = fmax(compute + m->waited * part, part);

	for (int i = 0; streams(m, n) && i <= 2000; i++) {
		const double ahead = i / 2000.0;

		best = fmin(best, fmax(compute + (1 - ahead) * m->waited * part, part + ahead * (all - part)));
	}
	return best;
}

/* Each point stands for as many steps. */
static double true_rate(const struct machine *m, const struct odm_tier_texts *t, double n)
{
	double s = 0;

	for (int i = 0; i < ODM_LIFE_POINTS; i++) {
		double kv = (double)t->running_bytes[i] / t->n_running * fmin(n, t->n_running);

		if (n > t->n_running)
			kv += (n - t->n_running) * (double)t->text_bytes[i];
		s += true_step_s(m, t, n, kv);
	}
	return n * ODM_LIFE_POINTS / s;
}

/* With the memory of all texts that run. */
static void one_step(struct odm_tier_admission *a, const struct machine *m, const struct odm_tier_texts *t, uint32_t n)
{
	const double kv = (double)t->running_bytes[0], compute = m->step_s + n * m->row_s,
		     step = true_step_s(m, t, n, kv),
		     bytes = missing(t, kv) * missing_chosen(m, missing(t, kv), n) * (double)t->stored_bytes;
	struct odm_tier_step s = { .n_rows = n,
				   .step_ns = (uint64_t)(step * NS),
				   .stall_ns = (uint64_t)((step - compute) * NS),
				   .read_bytes = (uint64_t)bytes,
				   .streams = streams(m, n),
				   .chosen = 1 - pow(1 - m->share, n),
				   .missing = missing(t, kv),
				   .missing_chosen = missing_chosen(m, missing(t, kv), n) };

	odm_tier_admission_step(a, &s);
}

static void it_is_as_the_machine(void **state)
{
	uint64_t seed = 7;
	unsigned n_yes = 0, n_no = 0, n_bound = 0;

	(void)state;
	for (int round = 0; round < 3000; round++) {
		struct machine m = { .step_s = 1e-3 * (1 + random_below(&seed, 50)),
				     .row_s = 1e-4 * (1 + random_below(&seed, 30)),
				     .share = 0.01 * (1 + random_below(&seed, 30)),
				     .disk = 1e8 * (1 + random_below(&seed, 100)),
				     .waited = 0.5 };
		struct odm_tier_texts t = { .n_running = 2 + random_below(&seed, 30),
					    .n_waiting = 1 + random_below(&seed, 40),
					    .all_bytes = (uint64_t)(MIB * 1000),
					    .stored_bytes = (uint64_t)(MIB * 900),
					    .row_share = m.share };
		struct odm_tier_admission a = { 0 };
		double best = 0, later = 0;

		t.shared_bytes = (uint64_t)(MIB * (100 + random_below(&seed, 1400)));
		for (int i = 0; i < ODM_LIFE_POINTS; i++) {
			t.text_bytes[i] = (uint64_t)(MIB * (1 + random_below(&seed, 20)));
			t.running_bytes[i] = t.n_running * (uint64_t)(MIB * (1 + random_below(&seed, 20)));
		}
		m.few = missing(&t, (double)t.running_bytes[0]);
		/* If nothing was missing so far, it expects even choices. */
		m.rare = m.few > 0 ? m.share * 0.1 * (3 + random_below(&seed, 8)) : m.share;
		odm_tier_admission_read(&a, (uint64_t)m.disk, (uint64_t)NS);
		for (int i = 0; i < 400; i++)
			one_step(&a, &m, &t, 1 + random_below(&seed, t.n_running));
		for (uint32_t n = 1; n <= t.n_running + t.n_waiting; n++) {
			const double is = odm_tier_admission_rate(&a, &t, n), want = true_rate(&m, &t, n);
			assert_true(fabs(is / want - 1) < 0.02);
			if (n <= t.n_running)
				best = fmax(best, want);
			else
				later = fmax(later, want);
			n_bound += want < 0.9 * n / (m.step_s + n * m.row_s);
		}
		if (fabs(later / best - 0.97) < 0.02)
			continue;
		assert_int_equal(odm_tier_admission_admits(&a, &t), later > 0.97 * best);
		n_yes += later > 0.97 * best;
		n_no += later <= 0.97 * best;
	}
	assert_true(n_yes > 1000 && n_no > 50 && n_bound > 10000);
}

static void set_bytes(struct odm_tier_texts *t, uint64_t running, uint64_t text)
{
	for (int i = 0; i < ODM_LIFE_POINTS; i++) {
		t->running_bytes[i] = running;
		t->text_bytes[i] = text;
	}
}

static void before_anything_is_known(void **state)
{
	const struct machine m = { .step_s = 1e-2, .row_s = 1e-3, .share = 0.1, .rare = 0.1, .disk = 1e9 };
	struct odm_tier_texts t = { .n_running = 0,
				    .n_waiting = 5,
				    .shared_bytes = 1000,
				    .all_bytes = 980,
				    .stored_bytes = 980,
				    .row_share = 0.1 };
	struct odm_tier_admission a = { 0 };

	(void)state;
	set_bytes(&t, 0, 10);
	assert_true(odm_tier_admission_admits(&a, &t)); /* nothing runs */
	t.n_running = 1;
	set_bytes(&t, 10, 10);
	assert_true(odm_tier_admission_admits(&a, &t)); /* there is room for all */
	t.running_bytes[ODM_LIFE_POINTS - 1] = 20; /* not later */
	assert_false(odm_tier_admission_admits(&a, &t));
	for (int i = 0; i < 20; i++)
		one_step(&a, &m, &t, 1);
	assert_true(odm_tier_admission_admits(&a, &t)); /* reads of a few bytes take no time */
	set_bytes(&t, 20, 900);
	assert_true(odm_tier_admission_admits(&a, &t)); /* nothing was ever read */
	odm_tier_admission_read(&a, 1000, (uint64_t)NS);
	assert_false(odm_tier_admission_admits(&a, &t));
	t.n_running = 0;
	assert_true(odm_tier_admission_admits(&a, &t));
}

/* Reads of long ago count less; a clock that stands still says nothing. */
static void the_rate_of_reads_follows(void **state)
{
	struct odm_tier_admission a = { 0 };

	(void)state;
	odm_tier_admission_read(&a, 1000000, (uint64_t)NS);
	odm_tier_admission_read(&a, 3000000, (uint64_t)NS);
	assert_true(fabs(a.read_bytes / a.read_s - 2e6) < 1e4);
	odm_tier_admission_read(&a, 3000000, 0);
	assert_true(fabs(a.read_bytes / a.read_s - 2e6) < 1e4);
	for (int i = 0; i < 2000; i++)
		odm_tier_admission_read(&a, 500, (uint64_t)NS / 1000);
	assert_true(fabs(a.read_bytes / a.read_s - 5e5) < 1e4);
}

/* Steps wait for a part of the reads, as long as the disk is not their limit and no layers are loaded ahead. */
static void waits_are_learnt(void **state)
{
	struct odm_tier_texts t = { .n_running = 4,
				    .n_waiting = 1,
				    .shared_bytes = 900,
				    .all_bytes = 1000,
				    .stored_bytes = 100000000,
				    .row_share = 0.1 };
	const struct machine m = {
		.step_s = 1e-2, .row_s = 1e-3, .share = 0.1, .rare = 0.1, .disk = 1e9, .waited = 0.8
	};
	struct odm_tier_admission a = { 0 };
	struct odm_tier_step s;
	double before;

	(void)state;
	odm_tier_admission_read(&a, (uint64_t)m.disk, (uint64_t)NS);
	for (int i = 0; i < 3000; i++)
		one_step(&a, &m, &t, 1 + (uint32_t)i % 4);
	assert_true(fabs(a.waited - 0.8) < 1e-3);
	before = a.waited;
	s = (struct odm_tier_step){
		.n_rows = 1, .step_ns = (uint64_t)NS / 100, .stall_ns = (uint64_t)NS / 1000, .read_bytes = 9900000
	};
	odm_tier_admission_step(&a, &s); /* bound by the disk */
	s.read_bytes = 5000000;
	s.streams = true;
	odm_tier_admission_step(&a, &s);
	assert_true(a.waited == before);
	s.streams = false;
	odm_tier_admission_step(&a, &s); /* a fifth: 1 ms of 5 */
	assert_true(a.waited < before && a.waited > before - 0.01);
}

static void strange_steps_change_nothing(void **state)
{
	const struct odm_tier_step none = { .step_ns = 5 }, late = { .n_rows = 1, .step_ns = 5, .stall_ns = 6 };
	struct odm_tier_admission a = { 0 };
	struct odm_tier_texts t = { .n_running = 1, .n_waiting = 1, .shared_bytes = 1, .all_bytes = 1 };

	(void)state;
	odm_tier_admission_step(&a, &none);
	odm_tier_admission_step(&a, &late);
	odm_tier_admission_read(&a, 0, 0);
	assert_true(a.n == 0 && a.read_s == 0);
	assert_true(odm_tier_admission_rate(&a, &t, 1) == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(it_is_as_the_machine),
					    cmocka_unit_test(before_anything_is_known),
					    cmocka_unit_test(the_rate_of_reads_follows),
					    cmocka_unit_test(waits_are_learnt),
					    cmocka_unit_test(strange_steps_change_nothing) };

	return cmocka_run_group_tests_name("tier_admission", tests, NULL, NULL);
}
