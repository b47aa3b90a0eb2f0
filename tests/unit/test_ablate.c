/* od-bench ablate without a cluster: a setting's figures, worked out by hand, and which settings the plots are made
 * of. */
#include "tests/bench/live/ablate.h"
#include "tests/bench/live/rivals.h"
#include "tests/bench/report/ablate_summary.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define assert_close(found, expected) assert_true(fabs((found) - (expected)) <= 1e-9)
#define MS 1000000ull
#define S 1000000000ull

static void totals_are_per_token_and_speeds_per_prompt(void **state)
{
	/* 20, 10 and 4 tokens a second; 40, 10 and 10 decoded tokens; and one that ended with its first token. */
	const struct odm_figures f[] = {
		{ .c = { [OD_C_TOKENS] = 41,
			 [OD_C_DECODE_NS] = 2 * S,
			 [OD_C_EXPERT_USES] = 400,
			 [OD_C_PREDICTED_USES] = 390,
			 [OD_C_RECALLED_USES] = 380,
			 [OD_C_SERVED_IN_TIME] = 370,
			 [OD_C_EXTRA_LOADS] = 20,
			 [OD_C_HEDGE_USES] = 2,
			 [OD_C_ALIGN_BYTES] = 9000,
			 [OD_C_LATE_PREDICTIONS] = 6,
			 [OD_C_MISSING_PREDICTIONS] = 5,
			 [OD_C_STALLS] = 30,
			 [OD_C_STALL_NS] = 120 * MS,
			 [OD_C_DECODE_LAYERS] = 100,
			 [OD_C_EXPERTS_NS] = 1 * S,
			 [OD_C_LOADS] = 300,
			 [OD_C_LOAD_NS] = 1200 * MS,
			 [OD_C_GROUPS] = 4,
			 [OD_C_SLOTS] = 1 } },
		{ .c = { [OD_C_TOKENS] = 11,
			 [OD_C_DECODE_NS] = 1 * S,
			 [OD_C_EXPERT_USES] = 100,
			 [OD_C_PREDICTED_USES] = 100,
			 [OD_C_RECALLED_USES] = 95,
			 [OD_C_SERVED_IN_TIME] = 94,
			 [OD_C_EXTRA_LOADS] = 10,
			 [OD_C_STALLS] = 6,
			 [OD_C_STALL_NS] = 60 * MS,
			 [OD_C_DECODE_LAYERS] = 50,
			 [OD_C_EXPERTS_NS] = 500 * MS,
			 [OD_C_LOADS] = 60,
			 [OD_C_LOAD_NS] = 240 * MS,
			 [OD_C_GROUPS] = 4,
			 [OD_C_SLOTS] = 1 } },
		{ .c = { [OD_C_TOKENS] = 11,
			 [OD_C_DECODE_NS] = 2500 * MS,
			 [OD_C_EXPERT_USES] = 100,
			 [OD_C_PREDICTED_USES] = 100,
			 [OD_C_RECALLED_USES] = 100,
			 [OD_C_SERVED_IN_TIME] = 96,
			 [OD_C_STALLS] = 4,
			 [OD_C_STALL_NS] = 60 * MS,
			 [OD_C_DECODE_LAYERS] = 50,
			 [OD_C_EXPERTS_NS] = 500 * MS,
			 [OD_C_LOADS] = 40,
			 [OD_C_LOAD_NS] = 160 * MS,
			 [OD_C_GROUPS] = 4,
			 [OD_C_SLOTS] = 1 } },
		{ .c = { [OD_C_TOKENS] = 1, [OD_C_LOADS] = 0, [OD_C_GROUPS] = 4, [OD_C_SLOTS] = 1 } },
	};
	struct ablate_summary s;

	(void)state;
	assert_int_equal(ablate_summarise(f, 4, &s, NULL), OD_OK);
	assert_close(s.tok_per_s.median, 10);
	assert_close(s.tok_per_s.q1, 7); /* half-way from 4 to 10 */
	assert_close(s.tok_per_s.q3, 15); /* and from 10 to 20 */
	assert_close(s.tok_per_s.mean, 34.0 / 3);
	assert_close(s.tok_per_s.sd, sqrt((pow(20 - 34.0 / 3, 2) + pow(10 - 34.0 / 3, 2) + pow(4 - 34.0 / 3, 2)) / 2));
	assert_close(s.stalled_ms.median, 6); /* 3, 6, 6 */
	assert_close(s.stalled_ms.q1, 4.5);
	assert_int_equal(s.tokens, 60);
	assert_int_equal(s.uses, 600);
	assert_close(s.recall, 575.0 / 590);
	assert_close(s.served, 560.0 / 600);
	assert_close(s.stalls, 40.0 / 60);
	assert_close(s.stall_ms, 240.0 / 60);
	assert_close(s.extra, 30.0 / 600);
	assert_close(s.unforeseen, 23.0 / 60); /* neither predicted nor hedged */
	assert_close(s.late_loads, 17.0 / 60); /* the rest of what was not served */
	assert_close(s.late_predictions, 6.0 / 60);
	assert_close(s.missing_predictions, 5.0 / 60);
	assert_close(s.align_bytes, 150);
	assert_close(s.load_ms, 4);
	assert_close(s.main_ms, 3500.0 / 200);
	assert_close(s.worker_ms, 1760.0 / 200);
	assert_close(s.window_ms, 4 * 17.5 + 3 * 8.8); /* Eq. 1 with one slot */
}

static void nothing_measured_is_no_number(void **state)
{
	struct ablate_summary s;
	struct ablate_pair p;

	(void)state;
	assert_int_equal(ablate_summarise(NULL, 0, &s, NULL), OD_OK);
	assert_true(isnan(s.tok_per_s.median) && isnan(s.tok_per_s.sd) && isnan(s.recall) && isnan(s.served));
	assert_int_equal(ablate_compare(NULL, NULL, 0, ABLATE_BY_SPEED, &p, NULL), OD_OK);
	assert_true(isnan(p.gain.median));
	assert_string_equal(ablate_verdict(&p), "undecided");
}

/* Speeds of a and b: [n], tokens a second. */
static struct ablate_pair compare(const double *a, const double *b, size_t n)
{
	struct odm_figures fa[16], fb[16];
	struct ablate_pair p;

	for (size_t i = 0; i < n; i++) {
		fa[i] = (struct odm_figures){
			.c = { [OD_C_TOKENS] = 101, [OD_C_DECODE_NS] = (uint64_t)(100 / a[i] * 1e9) }
		};
		fb[i] = (struct odm_figures){
			.c = { [OD_C_TOKENS] = 101, [OD_C_DECODE_NS] = (uint64_t)(100 / b[i] * 1e9) }
		};
	}
	assert_int_equal(ablate_compare(fa, fb, n, ABLATE_BY_SPEED, &p, NULL), OD_OK);
	return p;
}

static void cases_are_compared_prompt_by_prompt(void **state)
{
	/* Prompts differ far more than cases do, and still all is clear. */
	const double a[] = { 2, 4, 8, 16, 32, 64 }, b[] = { 1, 2, 4, 8, 16, 32 };
	const double c[] = { 1, 2, 4, 8, 16, 128 };
	struct ablate_pair p = compare(a, b, 6);

	(void)state;
	assert_true(fabs(p.gain.median - 2) < 1e-6);
	assert_int_equal(p.n_better, 6);
	assert_string_equal(ablate_verdict(&p), "yes");
	p = compare(b, a, 6);
	assert_int_equal(p.n_better, 0);
	assert_string_equal(ablate_verdict(&p), "no");
	p = compare(a, b, 5); /* six coins that all fall on one side: 1 in 32; five: 1 in 16, not enough */
	assert_string_equal(ablate_verdict(&p), "undecided");
	p = compare(a, c, 6);
	assert_int_equal(p.n_better, 5);
	assert_string_equal(ablate_verdict(&p), "undecided");
}

static void stalls_are_compared_as_time(void **state)
{
	struct odm_figures a[6], b[6];
	struct ablate_pair p;

	(void)state;
	for (uint64_t i = 0; i < 6; i++) {
		a[i] = (struct odm_figures){
			.c = { [OD_C_TOKENS] = 101, [OD_C_DECODE_NS] = S, [OD_C_STALL_NS] = 100 * i * MS }
		};
		b[i] = (struct odm_figures){ .c = { [OD_C_TOKENS] = 101,
						    [OD_C_DECODE_NS] = S,
						    [OD_C_STALL_NS] = (100 * i + 10 * i + 50) * MS } };
	}
	assert_int_equal(ablate_compare(a, b, 6, ABLATE_BY_STALLS, &p, NULL), OD_OK);
	assert_true(fabs(p.gain.median - 0.75) < 1e-9); /* 0.5, 0.6, ... 1 ms a token */
	assert_true(fabs(p.gain.ci_low - 0.5) < 1e-9 && fabs(p.gain.ci_high - 1) < 1e-9);
	assert_int_equal(p.n_better, 6);
	assert_string_equal(ablate_verdict(&p), "yes");
	assert_int_equal(ablate_compare(b, a, 6, ABLATE_BY_STALLS, &p, NULL), OD_OK);
	assert_string_equal(ablate_verdict(&p), "no");
	assert_int_equal(ablate_compare(a, a, 6, ABLATE_BY_STALLS, &p, NULL), OD_OK);
	assert_int_equal(p.n_better, 0);
	assert_string_equal(ablate_verdict(&p), "undecided");
}

static const struct ablate_setting *setting_of(const struct ablate *a, int figure, size_t i)
{
	return &a->setting[a->figure[figure].setting[i]];
}

static void figures_are_the_papers(void **state)
{
	static struct ablate a;
	const bool all[ABLATE_FIGURES] = { true, true, true };
	const struct ablate_figure *f = a.figure;

	(void)state;
	ablate_plan(&a, all, 4.75);
	assert_int_equal(f[ABLATE_FIG8].n, 6);
	assert_string_equal(rival_names[setting_of(&a, ABLATE_FIG8, 2)->predictor], "shadow");
	assert_int_equal(setting_of(&a, ABLATE_FIG8, 2)->align_token, 0);
	assert_int_equal(setting_of(&a, ABLATE_FIG8, 2)->align_kv, 1);
	assert_string_equal(rival_names[setting_of(&a, ABLATE_FIG8, 4)->predictor], "random");
	assert_string_equal(rival_names[setting_of(&a, ABLATE_FIG8, 5)->predictor], "none");
	assert_int_equal(f[ABLATE_FIG9].n, 25);
	assert_string_equal(f[ABLATE_FIG9].label[14], "T4 KV16");
	assert_int_equal(setting_of(&a, ABLATE_FIG9, 14)->align_token, 4);
	assert_int_equal(setting_of(&a, ABLATE_FIG9, 14)->align_kv, 16);
	assert_int_equal(f[ABLATE_FIG10].n, 12);
	assert_string_equal(f[ABLATE_FIG10].label[11], "KV32, load 9.50 ms");
	assert_true(setting_of(&a, ABLATE_FIG10, 11)->load_time_ms == 9.5);
	assert_int_equal(setting_of(&a, ABLATE_FIG10, 11)->align_token, 1);
	/* A setting that two figures show is measured once: T1 KV1 is in all of them, T1 KV2 to KV16 in two. */
	assert_int_equal(f[ABLATE_FIG8].setting[0], f[ABLATE_FIG9].setting[0]);
	assert_int_equal(f[ABLATE_FIG8].setting[0], f[ABLATE_FIG10].setting[0]);
	assert_int_equal(f[ABLATE_FIG9].setting[4], f[ABLATE_FIG10].setting[4]);
	assert_int_equal(a.n_settings, 6 + 24 + 7);
}

static void only_what_is_wanted_is_measured(void **state)
{
	static struct ablate a;

	(void)state;
	ablate_plan(&a, (const bool[ABLATE_FIGURES]){ true, false, false }, 5);
	assert_int_equal(a.n_settings, 6);
	assert_int_equal(a.figure[ABLATE_FIG9].n, 0);
	assert_int_equal(a.figure[ABLATE_FIG10].n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(totals_are_per_token_and_speeds_per_prompt),
		cmocka_unit_test(nothing_measured_is_no_number),
		cmocka_unit_test(cases_are_compared_prompt_by_prompt),
		cmocka_unit_test(stalls_are_compared_as_time),
		cmocka_unit_test(figures_are_the_papers),
		cmocka_unit_test(only_what_is_wanted_is_measured),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
