/* bench_sample.c - od-bench sample: how long the sampler takes to choose a token, by its options. */
#include "common/base/clock.h"
#include "common/model/sampler.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_draw.h"
#include "tests/bench/report/bench_stats.h"
#include "tests/bench/report/bench_table.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DRAWS 10000
#define SAME 8u /* draws from the same logits */

static const struct setting {
	const char *name;
	struct od_sampler_opts o;
	bool margin;
} settings[] = {
	{ "greedy", { .top_p = 1, .repetition_penalty = 1 }, false },
	{ "greedy, margin", { .top_p = 1, .repetition_penalty = 1 }, true },
	{ "temperature 0.8", { .temperature = 0.8, .top_p = 1, .repetition_penalty = 1 }, false },
	{ "temperature 0.8, margin", { .temperature = 0.8, .top_p = 1, .repetition_penalty = 1 }, true },
	{ "temperature 0.8, min-p 0.05",
	  { .temperature = 0.8, .top_p = 1, .min_p = 0.05, .repetition_penalty = 1 },
	  false },
	{ "temperature 0.8, top-k 50",
	  { .temperature = 0.8, .top_k = 50, .top_p = 1, .repetition_penalty = 1 },
	  false },
	{ "temperature 0.8, top-p 0.9", { .temperature = 0.8, .top_p = 0.9, .repetition_penalty = 1 }, false },
	{ "temperature 0.7, top-k 20, top-p 0.8",
	  { .temperature = 0.7, .top_k = 20, .top_p = 0.8, .repetition_penalty = 1 },
	  false },
};
enum { N_SETTINGS = sizeof(settings) / sizeof(settings[0]) };

struct sampling {
	uint64_t vocab, draws;
	double deviation;
	float *logits, *copy; /* [vocab] */
	struct od_sampler *sampler[N_SETTINGS];
	double us[N_SETTINGS + 1][MAX_DRAWS]; /* the last: of a copy of the logits */
};

/* Box and Muller 1958. */
static double gauss(uint64_t *seed)
{
	const double a = ((double)(od_draw(seed) >> 12) + 0.5) * 0x1p-52, b = (double)(od_draw(seed) >> 12) * 0x1p-52;

	return sqrt(-2 * log(a)) * cos(2 * M_PI * b);
}

/* The settings take turns, so that a disturbance meets all of them. */
static void measure(struct sampling *s)
{
	uint64_t seed = 1;

	for (uint64_t d = 0; d < s->draws; d++) {
		if (d % SAME == 0)
			for (uint64_t i = 0; i < s->vocab; i++)
				s->logits[i] = (float)(s->deviation * gauss(&seed));
		for (size_t i = 0; i <= N_SETTINGS; i++) {
			uint64_t begin = od_now_ns();
			float margin;

			memcpy(s->copy, s->logits, s->vocab * sizeof(*s->copy));
			if (i < N_SETTINGS) {
				begin = od_now_ns();
				(void)od_sampler_sample(s->sampler[i], s->copy, settings[i].margin ? &margin : NULL);
			}
			s->us[i][d] = (double)(od_now_ns() - begin) / 1e3;
		}
	}
}

static int report(struct sampling *s, bool json, struct od_err *err)
{
	static const struct od_column columns[] = { { "setting", "setting", 0 },
						    { "us", "us", 1 },
						    { "copies", "copies", 1 } };
	struct od_stats copy, one;
	struct od_table *table;
	struct od_report *r;
	int rc = od_report_new(&r, "Choosing a token", err);

	if (rc != OD_OK)
		return rc;
	od_stats_of(s->us[N_SETTINGS], s->draws, &copy);
	od_report_fact(r, "vocab", "logits", OD_INT(s->vocab), 0, NULL);
	od_report_fact(r, "deviation", "their standard deviation", OD_REAL(s->deviation), 1, NULL);
	od_report_fact(r, "draws", "draws", OD_INT(s->draws), 0, NULL);
	od_report_fact(r, "copy_us", "copy of the logits", OD_REAL(copy.median), 1, "us");
	table = od_report_table(r, "settings", NULL, columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t i = 0; i < N_SETTINGS; i++) {
		od_stats_of(s->us[i], s->draws, &one);
		od_table_row(table, (struct od_cell[]){ OD_TEXT(settings[i].name), OD_REAL(one.median),
							OD_REAL(one.median / copy.median) });
	}
	rc = od_report_print(r, stdout, json, err);
	od_report_free(r);
	return rc;
}

static int run(struct sampling *s, bool json, struct od_err *err)
{
	int rc = OD_OK;

	s->logits = calloc(s->vocab, sizeof(*s->logits));
	s->copy = calloc(s->vocab, sizeof(*s->copy));
	if (s->logits == NULL || s->copy == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "%llu logits", (unsigned long long)s->vocab);
	for (size_t i = 0; rc == OD_OK && i < N_SETTINGS; i++)
		rc = od_sampler_new(&s->sampler[i], &settings[i].o, (uint32_t)s->vocab, err);
	if (rc == OD_OK) {
		measure(s);
		rc = report(s, json, err);
	}
	for (size_t i = 0; i < N_SETTINGS; i++)
		od_sampler_free(s->sampler[i]);
	free(s->logits);
	free(s->copy);
	return rc;
}

static int parse_and_run(struct sampling *s, int argc, char **argv, struct od_err *err)
{
	bool help = false, json = false;
	size_t n;
	const struct od_arg table[] = {
		{ "vocab", OD_ARG_UINT, &s->vocab, "N", "tokens; default 32000", 1, 1 << 20, NULL },
		{ "deviation", OD_ARG_REAL, &s->deviation, "X", "standard deviation of the logits; default 3", 0, 1000,
		  NULL },
		{ "draws", OD_ARG_UINT, &s->draws, "N", "of each setting, in turns; default 301", 1, MAX_DRAWS, NULL },
		{ "json", OD_ARG_FLAG, &json, NULL, "the figures as JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &help, NULL, "this text", 0, 0, NULL },
	};
	const size_t n_table = sizeof(table) / sizeof(table[0]);
	int rc = od_args_parse(table, n_table, argc, argv, NULL, 0, &n, err);

	if (rc != OD_OK)
		return rc;
	if (help) {
		od_bench_usage(
			"sample [OPTIONS]",
			"Measures how long the sampler takes to choose a token from random logits, on one thread.",
			table, n_table);
		return OD_OK;
	}
	return run(s, json, err);
}

int od_bench_sample(int argc, char **argv, struct od_err *err)
{
	struct sampling *s = calloc(1, sizeof(*s)); /* large */
	int rc;

	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "the times of all draws");
	s->vocab = 32000;
	s->draws = 301;
	s->deviation = 3;
	rc = parse_and_run(s, argc, argv, err);
	free(s);
	return rc;
}
