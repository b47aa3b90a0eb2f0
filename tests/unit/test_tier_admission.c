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
	double disk; /* bytes a second */
	double skew; /* reads less than if all experts were chosen as often */
};

static double read_bytes(const struct machine *m, const struct odm_tier_texts *t, double n, double kv)
{
	const double room = fmax(0, (double)t->shared_bytes - kv),
		     missing = fmax(0, (double)t->all_bytes - room) / (double)t->all_bytes;

	return m->skew * (1 - pow(1 - m->share, n)) * missing * (double)t->stored_bytes;
}

/* Each point stands for as many steps. */
static double true_rate(const struct machine *m, const struct odm_tier_texts *t, double n)
{
	double s = 0;

	for (int i = 0; i < ODM_LIFE_POINTS; i++) {
		double kv = (double)t->running_bytes[i] / t->n_running * fmin(n, t->n_running);

		if (n > t->n_running)
			kv += (n - t->n_running) * (double)t->text_bytes[i];
		s += fmax(m->step_s + n * m->row_s, read_bytes(m, t, n, kv) / m->disk);
	}
	return n * ODM_LIFE_POINTS / s;
}

static void one_step(struct odm_tier_admission *a, const struct machine *m, const struct odm_tier_texts *t, uint32_t n)
{
	const double kv = (double)t->running_bytes[0] / t->n_running * n, bytes = read_bytes(m, t, n, kv),
		     compute = m->step_s + n * m->row_s, read = bytes / m->disk;
	struct odm_tier_step s = { .n_rows = n,
				   .step_ns = (uint64_t)(fmax(compute, read) * NS),
				   .stall_ns = (uint64_t)(fmax(0, read - compute) * NS),
				   .read_bytes = (uint64_t)bytes,
				   .even_bytes = (uint64_t)(bytes / m->skew),
				   .chosen = 1 - pow(1 - m->share, n) };

	odm_tier_admission_step(a, &s);
}

static void it_is_as_the_machine(void **state)
{
	uint64_t seed = 7;
	unsigned n_yes = 0, n_no = 0, n_bound = 0;

	(void)state;
	for (int round = 0; round < 3000; round++) {
		const struct machine m = { .step_s = 1e-3 * (1 + random_below(&seed, 50)),
					   .row_s = 1e-4 * (1 + random_below(&seed, 30)),
					   .share = 0.01 * (1 + random_below(&seed, 30)),
					   .disk = 1e8 * (1 + random_below(&seed, 100)),
					   .skew = 0.1 * (3 + random_below(&seed, 8)) };
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
		odm_tier_admission_read(&a, (uint64_t)m.disk, (uint64_t)NS);
		for (int i = 0; i < 400; i++)
			one_step(&a, &m, &t, 1 + random_below(&seed, t.n_running));
		if (a.skew == 0) { /* nothing was missing so far: it expects even choices */
			assert_true(read_bytes(&m, &t, t.n_running, (double)t.running_bytes[0]) < 1);
			continue;
		}
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
	const struct machine m = { 1e-2, 1e-3, 0.1, 1e9, 1 };
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
	assert_true(odm_tier_admission_admits(&a, &t)); /* no step ever waited for reads */
	odm_tier_admission_read(&a, 1000, (uint64_t)NS);
	assert_false(odm_tier_admission_admits(&a, &t));
	t.n_running = 0;
	assert_true(odm_tier_admission_admits(&a, &t));
}

static void rho_is_as_the_machine(void **state)
{
	const struct machine m = { 1e-2, 1e-3, 0.1, 1e9, 1 };
	struct odm_tier_texts t = {
		.n_running = 10, .n_waiting = 1, .shared_bytes = 1000, .all_bytes = 1000, .stored_bytes = 1000
	};
	struct odm_tier_admission a = { 0 };

	(void)state;
	for (uint32_t i = 0; i < 7; i++)
		one_step(&a, &m, &t, 1 + i);
	odm_tier_admission_read(&a, (uint64_t)m.disk, (uint64_t)NS);
	assert_true(isinf(odm_tier_admission_rho(&a, 1e6, 10)));
	for (uint32_t i = 0; i < 93; i++)
		one_step(&a, &m, &t, 1 + i % 10);
	assert_true(fabs(odm_tier_admission_rho(&a, 4e7, 10) - 2) < 0.01); /* 40 ms / 20 ms */
	assert_true(fabs(odm_tier_admission_rho(&a, 2.2e7, 1) - 2) < 0.01); /* 22 ms / 11 ms */
	for (uint32_t i = 0; i < 2000; i++) /* it does not forget */
		one_step(&a, &m, &t, 10);
	assert_true(fabs(odm_tier_admission_rho(&a, 2.2e7, 1) - 2) < 0.2);
	a.bytes_per_s = 0;
	assert_true(isinf(odm_tier_admission_rho(&a, 1e6, 10)));
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
	assert_true(a.n == 0 && a.bytes_per_s == 0);
	assert_true(odm_tier_admission_rate(&a, &t, 1) == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(it_is_as_the_machine),
					    cmocka_unit_test(before_anything_is_known),
					    cmocka_unit_test(rho_is_as_the_machine),
					    cmocka_unit_test(strange_steps_change_nothing) };

	return cmocka_run_group_tests_name("tier_admission", tests, NULL, NULL);
}
