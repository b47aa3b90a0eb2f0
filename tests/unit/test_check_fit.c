/* Fits to measured times: against numpy (fit_table.py), and where a known machine made the points. */
#include "deploy/plan/check_fit.h"
#include "deploy/plan/check_guesses.h"
#include "deploy/plan/check_shadow.h"
#include "deploy/plan/check_steps.h"
#include "deploy/plan/check_words.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fit_table.h"

static void expect_near(double found, double wanted, double relative)
{
	if (!(fabs(found - wanted) <= relative * fabs(wanted)))
		fail_msg("expected %.12g, found %.12g", wanted, found);
}

static void medians(void **state)
{
	double odd[] = { 5, 1, 9, 2, 3 }, even[] = { 4, 1, 3, 2 }, one[] = { 7 };

	(void)state;
	expect_near(odp_median(odd, 5), 3, 0);
	expect_near(odp_median(even, 4), 2, 0);
	expect_near(odp_median(one, 1), 7, 0);
}

static void lines_as_numpy(void **state)
{
	const double same[] = { 3, 3, 3 }, y[] = { 5, 1, 2 };
	struct odp_line flat;

	(void)state;
	for (size_t i = 0; i < sizeof(line_table) / sizeof(line_table[0]); i++) {
		const struct odp_line l = odp_fit_line(line_table[i].x, line_table[i].y, line_table[i].n);

		expect_near(l.slope, line_table[i].slope, 1e-9);
		expect_near(l.at_0, line_table[i].at_0, 1e-9);
	}
	flat = odp_fit_line(same, y, 3);
	expect_near(flat.slope, 0, 0);
	expect_near(flat.at_0, 2, 0);
}

static void rooflines_as_numpy(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(roofline_table) / sizeof(roofline_table[0]); i++) {
		const struct odp_roofline f = odp_fit_roofline(roofline_table[i].point, roofline_table[i].n);

		if (fabs(f.fixed_ns - roofline_table[i].fixed_ns) > 1e-6 * roofline_table[i].point[0].ns)
			fail_msg("case %zu: expected fixed %g, found %g", i, roofline_table[i].fixed_ns, f.fixed_ns);
		expect_near(f.speed, roofline_table[i].speed, 1e-6);
		expect_near(f.many, roofline_table[i].many, 1e-6);
	}
}

/* Times of a machine of this roofline. */
static size_t make_points(const struct odp_roofline *f, double weights, struct odp_timed *p)
{
	static const double rows[] = { 1, 2, 4, 16, 64 };
	size_t n = 0;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		p[n++] = (struct odp_timed){ .operations = 1, .weights = weights, .rows = rows[i] };
	p[n++] = (struct odp_timed){ .operations = 1, .weights = 2 * weights, .rows = 1 };
	for (size_t i = 0; i < n; i++)
		p[i].ns = odp_roofline_ns(f, &p[i]);
	return n;
}

static void machines_are_found(void **state)
{
	static const struct odp_roofline machine[] = {
		{ 0, 1e9, 8e9 },
		{ 50000, 1e9, 8e9 },
		{ 2000, 3e10, 3e11 },
		{ 1e6, 4e8, 4e8 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(machine) / sizeof(machine[0]); i++) {
		struct odp_timed p[8];
		const size_t n = make_points(&machine[i], 2e6, p);
		const struct odp_roofline f = odp_fit_roofline(p, n);

		if (fabs(f.fixed_ns - machine[i].fixed_ns) > 1e-6 * p[0].ns)
			fail_msg("case %zu: found a fixed time of %g", i, f.fixed_ns);
		expect_near(f.speed, machine[i].speed, 1e-6);
		expect_near(f.many, machine[i].many, 1e-6);
	}
}

/* Rows never count: all that is known is that they do not up to the most. */
static void flat_times(void **state)
{
	struct odp_timed p[8];
	const struct odp_roofline machine = { 0, 1e8, 1e12 };
	const size_t n = make_points(&machine, 2e6, p);
	const struct odp_roofline f = odp_fit_roofline(p, n);

	(void)state;
	expect_near(f.speed, 1e8, 1e-6);
	expect_near(f.many, 64e8, 1e-6);
}

static void anchors(void **state)
{
	const struct odp_timed p = { .operations = 2, .weights = 1e6, .rows = 1, .ns = 3e6 };
	struct odp_roofline f = { .fixed_ns = 100, .speed = 1e9, .many = 8e9 };
	struct odp_roofline slow = { .fixed_ns = 1e5, .speed = 1e8, .many = 3e8 };

	(void)state;
	odp_roofline_anchor(&f, &p);
	expect_near(f.fixed_ns, 1e6, 1e-9); /* 3 ms = 2 x 1 ms + 1 ms */
	expect_near(f.speed, 1e9, 0);
	odp_roofline_anchor(&slow, &p); /* its products alone take longer: the speed must be higher */
	expect_near(slow.fixed_ns, 0, 0);
	expect_near(slow.speed, 1e6 / 3e6 * 1e9, 1e-9);
	expect_near(slow.many, slow.speed, 1e-9);
}

static void layers_of_a_shadow(void **state)
{
	const struct odp_layer_cost l = { .dense_weights = 2e6, .expert_weights = 1e6, .n_experts = 8, .top_k = 2 };
	const double ns = odp_layer_ns(&l, 1e9, 5e9, 16);

	(void)state;
	expect_near(odp_layer_ns(&l, 1e9, 5e9, 1), 4e6, 1e-9); /* 2 + 2 x 1 ms */
	/* 16 rows: the dense part 16 x 2 / 5 ms; 8 (1 - 0.75^16) = 7.92 experts with 4.04 rows each, so 1 ms each */
	expect_near(ns, 6.4e6 + 7.9198e6, 1e-4);
	expect_near(odp_fit_many(&l, 1e9, 16, ns), 5e9, 1e-6);
	expect_near(odp_fit_many(&l, 1e9, 16, 1), 16e9, 1e-6); /* rows do not count */
	expect_near(odp_fit_many(&l, 1e9, 16, 1e12), 1e9, 1e-6); /* slower than any */
}

static void guesses(void **state)
{
	struct odp_rates r = { 0 };

	(void)state;
	odp_take_guesses(&r, &(struct odp_guesses){ .uses = 200, .recalled = 190, .tokens = 50, .right = 45 });
	expect_near(r.recall, 0.95, 1e-12);
	expect_near(r.accept, 0.9, 1e-12);
	odp_take_guesses(&r, &(struct odp_guesses){ .uses = 63, .recalled = 60, .tokens = 15, .right = 15 });
	expect_near(r.recall + r.accept, 0, 0); /* too few to say */
	odp_take_guesses(&r, &(struct odp_guesses){ .uses = 100, .tokens = 100 });
	assert_true(r.recall > 0 && r.recall < 0.01 && r.accept > 0 && r.accept < 0.01); /* none is a word */
}

static void words(void **state)
{
	const struct odp_rates r = { .fixed_ns = 50000,
				     .speed = 4e9,
				     .many = 3e10,
				     .read_rate = 2e9,
				     .link_rate = 1.25e8,
				     .latency_ns = 200000,
				     .recall = 0.97,
				     .accept = 0.9 };
	const struct odp_rates none = { 0 };
	const struct od_host_words w = odp_words_of(&r, 12e9, 0.5), unmeasured = odp_words_of(&none, 12e9, 1);

	(void)state;
	expect_near(w.memory_bytes, 12e9, 0);
	expect_near(w.read_rate, 2e9, 0);
	expect_near(w.speed, 0.2, 1e-12);
	expect_near(w.many, 3, 1e-12);
	expect_near(w.link_bits, 1e9, 1e-12);
	expect_near(w.latency_ms, 0.2, 1e-12);
	expect_near(w.fixed_ms, 0.05, 1e-12);
	expect_near(w.recall, 0.97, 0);
	expect_near(w.accept, 0.9, 0);
	expect_near(unmeasured.memory_bytes, 12e9, 0);
	expect_near(unmeasured.fixed_ms + unmeasured.speed + unmeasured.read_rate, 0, 0);
	expect_near(odp_byte_share("int8", 0.9), 0.5, 1e-12);
	expect_near(odp_byte_share("nf4+int8", 0.75), 0.3125, 1e-12);
	expect_near(odp_byte_share("bf16", 0.9), 1, 1e-12);
	expect_near(odp_byte_share("", 0.9), 1, 1e-12);
}

/* A layer of main takes 100 without workers. Answers take 20 + 30 + 200, and 50 + 150, from RUN to RESULT: so of
 * 400 for a layer 50 are main's own. A layer that a dense one follows tells nothing. */
static void own_times(void **state)
{
	enum { N = 4 };
	const struct od_config config = { .n_layers = 5, .n_moe = N, .layer_of = { 0, 1, 3, 4 } };
	const double way_ns[] = { 20, 50 };
	const struct odp_known_times k = {
		.config = &config, .layer_ns = 100, .head_ns = 70, .way_ns = way_ns, .row_ns = 5, .n_members = 2
	};
	struct odm_timeline_span span[N];
	struct odm_timeline_answer answer[2 * N];
	struct odm_timeline_step r = {
		.begin_ns = 990, .span = span, .answer = answer, .n_spans = N, .n_answers = 2 * N
	};
	struct odp_own_times t = { .n_layers = 0 };

	(void)state;
	for (uint32_t m = 0; m < N; m++) {
		span[m] = (struct odm_timeline_span){ .what = ODM_SPAN_ATTENTION, .m = m, .begin_ns = 1000 + 400 * m };
		answer[2 * m] = (struct odm_timeline_answer){ .m = m, .wait_ns = 30, .compute_ns = 200, .experts = 1 };
		answer[2 * m + 1] = (struct odm_timeline_answer){
			.member = 1, .m = m, .compute_ns = 150, .experts = 1, .ready = 1
		};
	}
	answer[4].experts = 2; /* one after the other, of which the last one took 130 */
	answer[4].ready = 1;
	answer[4].compute_ns = 260;
	answer[4].wait_ns = 95;
	odp_add_own_times(&t, &k, &r, 2750);
	assert_int_equal(t.n_layers, 2);
	expect_near(t.layer_ns[0], 50, 0);
	expect_near(t.layer_ns[1], 50, 0);
	/* The step takes 550 from its last layer on, and 10 before its first. 350 of these are known of that layer, 100
	 * of the dense layer and 70 of the head. */
	assert_int_equal(t.n_steps, 1);
	expect_near(t.step_ns[0], 40, 0);
	answer[4].ready = 2; /* together */
	answer[4].wait_ns = 10;
	answer[7].member = 2; /* there is no such member */
	odp_add_own_times(&t, &k, &r, 2750);
	assert_int_equal(t.n_layers, 4);
	expect_near(t.layer_ns[3], 5, 0);
	answer[6].member = 2;
	odp_add_own_times(&t, &k, &r, 2750);
	assert_int_equal(t.n_steps, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(own_times),
		cmocka_unit_test(medians),
		cmocka_unit_test(lines_as_numpy),
		cmocka_unit_test(rooflines_as_numpy),
		cmocka_unit_test(machines_are_found),
		cmocka_unit_test(flat_times),
		cmocka_unit_test(anchors),
		cmocka_unit_test(layers_of_a_shadow),
		cmocka_unit_test(guesses),
		cmocka_unit_test(words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
