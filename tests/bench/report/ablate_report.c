/* Tables of od-bench ablate: the same figures for a person and as JSON. */
#include "common/base/clock.h"
#include "tests/bench/live/ablate.h"
#include "tests/bench/live/rivals.h"
#include "tests/bench/report/ablate_summary.h"
#include "tests/bench/report/bench_table.h"

#include <math.h>

/* A worker that does not answer for a second and a half is let go, and the run is as good as lost for its speed. */
static size_t disturbed_runs(const struct ablate *a)
{
	size_t n = 0;

	for (size_t s = 0; s < a->n_settings; s++) {
		for (size_t i = 0; i < a->n_done; i++)
			n += ablate_runs(a, s)[i].c[OD_C_RECOVERED_RUNS] > 0;
	}
	return n;
}

static void report_setup(const struct ablate *a, struct od_report *r)
{
	od_report_fact(r, "prompts", "prompts", OD_INT(a->n_done), 0, NULL);
	od_report_fact(r, "max_tokens", "tokens of each, at most", OD_INT(a->max_tokens), 0, NULL);
	od_report_fact(r, "workers", "workers", OD_INT(a->workers), 0, NULL);
	od_report_fact(r, "groups", "groups", OD_INT(a->groups), 0, NULL);
	od_report_fact(r, "slots", "slots of a worker", OD_INT(a->slots), 0, NULL);
	od_report_fact(r, "shadow_precision", "shadow's precision", OD_TEXT(a->precision), 0, NULL);
	od_report_fact(r, "departure", "shadow's departure", OD_TEXT(a->departure), 0, NULL);
	od_report_fact(r, "hedge_percent", "hedges: budget of wasted loads over uses", OD_REAL(a->hedge_percent), 1,
		       "%");
	od_report_fact(r, "load_time_ms", "paced load", OD_REAL(a->load_time_ms), 2, "ms");
	od_report_fact(r, "run_time_ms", "paced computation of an expert", OD_REAL(a->run_time_ms), 2, "ms");
	if (!isnan(a->window_ms))
		od_report_fact(r, "calibrated_window_ms", "window (Eq. 1), loads not paced", OD_REAL(a->window_ms), 2,
			       "ms");
	od_report_fact(r, "disturbed_runs", "runs in which a worker was lost for a while", OD_INT(disturbed_runs(a)), 0,
		       NULL);
	od_report_fact(r, "fingerprint", "pack", OD_TEXT(a->fingerprint), 0, NULL);
	od_report_fact(r, "runs_with_other_tokens", "runs that wrote other tokens", OD_INT(a->n_other_tokens), 0, NULL);
}

static void speed_row(struct od_table *t, const char *label, const struct ablate_summary *s)
{
	od_table_row(t, (struct od_cell[]){
				OD_TEXT(label),
				OD_REAL(s->tok_per_s.median),
				OD_REAL(s->tok_per_s.q1),
				OD_REAL(s->tok_per_s.q3),
				OD_REAL(s->tok_per_s.mean),
				OD_REAL(s->tok_per_s.sd),
				OD_REAL(100 * s->recall),
				OD_REAL(100 * s->served),
				OD_REAL(100 * s->extra),
				OD_REAL(s->load_ms),
				OD_REAL(s->window_ms),
				OD_REAL(s->main_ms),
				OD_REAL(s->worker_ms),
			});
}

static void token_row(struct od_table *t, const char *label, const struct ablate_summary *s)
{
	od_table_row(t, (struct od_cell[]){
				OD_TEXT(label),
				OD_INT(s->tokens),
				OD_REAL((double)s->uses / (double)s->tokens),
				OD_REAL(s->stalls),
				OD_REAL(s->stall_ms),
				OD_REAL(s->unforeseen),
				OD_REAL(s->late_loads),
				OD_REAL(s->late_predictions),
				OD_REAL(s->missing_predictions),
				OD_REAL(s->align_bytes),
			});
}

static int report_figure(const struct ablate *a, const struct ablate_figure *f, struct od_report *r, struct od_err *err)
{
	static const struct od_column speed_columns[] = {
		{ "setting", "setting", 0 },	     { "tok_per_s_median", "tok/s", 2 },
		{ "tok_per_s_q1", "quartile", 2 },   { "tok_per_s_q3", "quartile", 2 },
		{ "tok_per_s_mean", "mean", 2 },     { "tok_per_s_sd", "sd", 2 },
		{ "recall_percent", "recall %", 2 }, { "served_percent", "served %", 2 },
		{ "extra_percent", "extra %", 2 },   { "load_ms", "load ms", 2 },
		{ "window_ms", "window ms", 2 },     { "main_ms", "t_main", 2 },
		{ "worker_ms", "t_worker", 2 },
	};
	static const struct od_column token_columns[] = {
		{ "setting", "a token", 0 },
		{ "tokens", "tokens", 0 },
		{ "uses", "uses", 1 },
		{ "stalls", "stalls", 3 },
		{ "stall_ms", "stalled ms", 3 },
		{ "unforeseen", "unforeseen", 3 },
		{ "late_loads", "load late", 3 },
		{ "late_predictions", "prediction late", 3 },
		{ "missing_predictions", "prediction missing", 3 },
		{ "align_bytes", "bytes to shadow", 0 },
	};
	struct od_table *speed = od_report_table(r, f->key, f->title, speed_columns, 13);
	struct od_table *token = od_report_table(r, f->token_key, NULL, token_columns, 10);
	struct ablate_summary s;

	for (size_t i = 0; i < f->n; i++) {
		int rc = ablate_summarise(ablate_runs(a, f->setting[i]), a->n_done, &s, err);

		if (rc != OD_OK)
			return rc;
		speed_row(speed, f->label[i], &s);
		token_row(token, f->label[i], &s);
	}
	return OD_OK;
}

/* Each case against the next: OD-MoE found every one faster than what follows it. */
static int report_order(const struct ablate *a, enum ablate_by by, struct od_report *r, struct od_err *err)
{
	static const struct od_column columns[] = {
		{ "better", "is it better", 0 },  { "than", "than", 0 },
		{ "gain_median", "by", 3 },	  { "gain_ci_low", "at least", 3 },
		{ "gain_ci_high", "at most", 3 }, { "prompts_better", "in prompts", 0 },
		{ "prompts", "of", 0 },		  { "verdict", "95 % sure", 0 },
	};
	const struct ablate_figure *f = &a->figure[ABLATE_FIG8];
	struct od_table *t =
		by == ABLATE_BY_SPEED ?
			od_report_table(r, "order", "Order of the cases by speed: how many times as fast as the next",
					columns, 8) :
			od_report_table(r, "order_by_stalls",
					"Order by stalls: milliseconds a token less than the next", columns, 8);
	struct ablate_pair p;

	for (size_t i = 0; i + 1 < f->n; i++) {
		int rc = ablate_compare(ablate_runs(a, f->setting[i]), ablate_runs(a, f->setting[i + 1]), a->n_done, by,
					&p, err);

		if (rc != OD_OK)
			return rc;
		od_table_row(t, (struct od_cell[]){
					OD_TEXT(f->label[i]),
					OD_TEXT(f->label[i + 1]),
					OD_REAL(p.gain.median),
					OD_REAL(p.gain.ci_low),
					OD_REAL(p.gain.ci_high),
					OD_INT(p.n_better),
					OD_INT(p.gain.n),
					OD_TEXT(ablate_verdict(&p)),
				});
	}
	return OD_OK;
}

static void report_runs(const struct ablate *a, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "predictor", "", 0 },	     { "align_token", "", 0 },	    { "align_kv", "", 0 },
		{ "load_time_ms", "", 0 },   { "prompt", "", 0 },	    { "tokens", "", 0 },
		{ "decode_s", "", 0 },	     { "tok_per_s", "", 0 },	    { "expert_uses", "", 0 },
		{ "predicted_uses", "", 0 }, { "recalled_uses", "", 0 },    { "stalls", "", 0 },
		{ "stall_s", "", 0 },	     { "late_predictions", "", 0 }, { "missing_predictions", "", 0 },
		{ "align_bytes", "", 0 },    { "served_in_time", "", 0 },   { "extra_loads", "", 0 },
	};
	struct od_table *t = od_report_detail(r, "by_run", columns, 18);

	for (size_t s = 0; s < a->n_settings; s++) {
		for (size_t i = 0; i < a->n_done; i++) {
			const struct ablate_setting *k = &a->setting[s];
			const struct odm_figures *f = &ablate_runs(a, s)[i];
			const uint64_t *c = f->c;

			od_table_row(t, (struct od_cell[]){
						OD_TEXT(rival_names[k->predictor]),
						OD_INT(k->align_token),
						OD_INT(k->align_kv),
						OD_REAL(k->load_time_ms),
						OD_TEXT(a->prompts->prompt[i].name),
						OD_INT(c[OD_C_TOKENS]),
						OD_REAL(od_seconds(c[OD_C_DECODE_NS])),
						OD_REAL(odm_figures_tok_per_s(f)),
						OD_INT(c[OD_C_EXPERT_USES]),
						OD_INT(c[OD_C_PREDICTED_USES]),
						OD_INT(c[OD_C_RECALLED_USES]),
						OD_INT(c[OD_C_STALLS]),
						OD_REAL(od_seconds(c[OD_C_STALL_NS])),
						OD_INT(c[OD_C_LATE_PREDICTIONS]),
						OD_INT(c[OD_C_MISSING_PREDICTIONS]),
						OD_INT(c[OD_C_ALIGN_BYTES]),
						OD_INT(c[OD_C_SERVED_IN_TIME]),
						OD_INT(c[OD_C_EXTRA_LOADS]),
					});
		}
	}
}

int ablate_report(const struct ablate *a, bool json, struct od_err *err)
{
	struct od_report *r;
	int rc = od_report_new(&r, "Ablation: what prediction and alignment are worth", err);

	if (rc != OD_OK)
		return rc;
	report_setup(a, r);
	for (size_t i = 0; rc == OD_OK && i < ABLATE_FIGURES; i++) {
		if (a->figure[i].n == 0)
			continue;
		rc = report_figure(a, &a->figure[i], r, err);
		if (rc == OD_OK && i == ABLATE_FIG8)
			rc = report_order(a, ABLATE_BY_SPEED, r, err);
		if (rc == OD_OK && i == ABLATE_FIG8)
			rc = report_order(a, ABLATE_BY_STALLS, r, err);
	}
	report_runs(a, r);
	if (rc == OD_OK)
		rc = od_report_print(r, stdout, json, err);
	od_report_free(r);
	return rc;
}
