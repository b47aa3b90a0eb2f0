/* Pictures of od-bench recall. Bands and bars are 95 % intervals over prompts (recall_stats.h). */
#include "tests/bench/live/recall_sweep.h"
#include "tests/bench/report/bench_plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TICKS_MAX 16 /* more numbers run into each other */
#define NEVER 64 /* where a period of 0 stands on an axis of 1 to 32 */

struct drawing {
	const struct recall_configs *configs;
	const struct recall_view *v;
	const char *dir;
};

/* ---- Against token index ---- */

static int add_curve(const struct drawing *d, struct od_plot *p, size_t config, const char *title, struct od_err *err)
{
	const uint32_t bin = recall_bin_tokens(d->v->max_tokens);
	struct od_series *s = od_plot_series(p, OD_PLOT_LINE, title);

	for (uint32_t from = 0; from < d->v->max_tokens; from += bin) {
		struct od_recall_cell *cell = recall_prompt_token_cells(d->v, config, from, from + bin);
		struct recall_interval i;

		if (cell == NULL)
			return od_fail(err, OD_ERR_NOMEM, "a curve");
		i = recall_ratio(cell, d->v->prompts->n);
		free(cell);
		if (!isnan(i.value)) /* behind the end of every text */
			od_series_point(s, from + (bin + 1) / 2.0, i.value, i.low, i.high);
	}
	return OD_OK;
}

static struct od_plot *new_curves(const struct drawing *d, const char *what, struct od_err *err)
{
	const uint32_t bin = recall_bin_tokens(d->v->max_tokens);
	char title[200], x[80];
	struct od_plot *p;

	snprintf(title, sizeof(title), "%s\n%zu prompts; band: 95 %% interval over prompts", what, d->v->prompts->n);
	if (bin > 1)
		snprintf(x, sizeof(x), "index of the generated token (means of %u)", bin);
	else
		snprintf(x, sizeof(x), "index of the generated token");
	if (od_plot_new(&p, title, err) != OD_OK)
		return NULL;
	od_plot_labels(p, x, "recall");
	od_plot_x_range(p, 0, d->v->max_tokens);
	od_plot_y_at_most(p, 1); /* also where nothing was missed, around which gnuplot makes room */
	return p;
}

static int draw_fig3_group(const struct drawing *d, const char *group, bool close_up, struct od_err *err)
{
	static const struct {
		struct recall_align align;
		const char *title;
	} curve[] = {
		{ { 1, 1 }, "token, keys and values" },
		{ { 1, 0 }, "token" },
		{ { 0, 1 }, "keys and values" },
		{ { 0, 0 }, "nothing aligned" },
	};
	char what[100], name[100];
	struct od_plot *p;
	int rc = OD_OK;

	snprintf(what, sizeof(what), "Recall against token index, %s shadow%s", group,
		 close_up ? ", token aligned every step" : "");
	p = new_curves(d, what, err);
	if (p == NULL)
		return err->code;
	if (close_up)
		od_plot_close_up(p);
	else
		od_plot_y_range(p, 0, 1);
	for (size_t i = 0; rc == OD_OK && i < (close_up ? 2 : 4); i++) {
		int config = recall_find_shadow(d->configs, group, curve[i].align);

		if (config >= 0)
			rc = add_curve(d, p, (size_t)config, curve[i].title, err);
	}
	if (rc != OD_OK) {
		od_plot_free(p);
		return rc;
	}
	snprintf(name, sizeof(name), "fig3-%s%s.svg", group, close_up ? "-aligned" : "");
	return od_plot_save(p, d->dir, name, err);
}

/* ---- Against alignment period ---- */

static int add_periods(const struct drawing *d, struct od_plot *p, const char *group, bool token, bool kv,
		       const char *title, struct od_err *err)
{
	struct od_series *s = od_plot_series(p, OD_PLOT_LINE_BARS, title);

	for (size_t i = 0; i < RECALL_PERIODS; i++) {
		const uint32_t period = recall_periods[i];
		const struct recall_align a = { token ? period : 1, kv ? period : 1 };
		int config = recall_find_shadow(d->configs, group, a);
		struct od_recall_cell *cell = config >= 0 ? recall_prompt_cells(d->v, (size_t)config) : NULL;
		struct recall_interval r;

		if (cell == NULL)
			return od_fail(err, OD_ERR_NOMEM, "a curve");
		r = recall_ratio(cell, d->v->prompts->n);
		free(cell);
		if (period == 0)
			od_series_point(s, NEVER / 1.4, NAN, NAN, NAN); /* no line to what is no period */
		od_series_point(s, period > 0 ? period : NEVER, r.value, r.low, r.high);
	}
	return OD_OK;
}

static int draw_fig6_group(const struct drawing *d, const char *group, bool kv_alone, struct od_err *err)
{
	char title[200], text[16];
	struct od_plot *p;
	int rc;

	snprintf(title, sizeof(title),
		 "Recall by alignment period, %s shadow%s\n%zu prompts; bars: 95 %% interval over "
		 "prompts",
		 group, kv_alone ? ", token aligned every step" : "", d->v->prompts->n);
	rc = od_plot_new(&p, title, err);
	if (rc != OD_OK)
		return rc;
	od_plot_labels(p, kv_alone ? "period of keys and values, steps" : "period, steps", "recall");
	od_plot_x_log2(p);
	od_plot_x_range(p, 0.8, NEVER * 1.25);
	od_plot_close_up(p);
	for (size_t i = 0; i < RECALL_PERIODS; i++) {
		snprintf(text, sizeof(text), "%u", recall_periods[i]);
		od_plot_x_tick(p, recall_periods[i] > 0 ? recall_periods[i] : NEVER,
			       recall_periods[i] > 0 ? text : "never");
	}
	if (kv_alone) {
		rc = add_periods(d, p, group, false, true, NULL, err);
	} else {
		od_plot_y_range(p, NAN, 1);
		rc = add_periods(d, p, group, false, true, "of keys and values, token every step", err);
		if (rc == OD_OK)
			rc = add_periods(d, p, group, true, false, "of the token, keys and values every step", err);
		if (rc == OD_OK)
			rc = add_periods(d, p, group, true, true, "of both", err);
	}
	if (rc != OD_OK) {
		od_plot_free(p);
		return rc;
	}
	snprintf(title, sizeof(title), "fig6-%s%s.svg", group, kv_alone ? "-kv" : "");
	return od_plot_save(p, d->dir, title, err);
}

/* ---- Beside others ---- */

/* A bar, with what lies between the prompts; all: rows without a prediction count as wrong. */
static int add_bar(const struct drawing *d, struct od_series *s, double x, size_t config, bool all, struct od_err *err)
{
	struct od_recall_cell *cell = recall_prompt_cells(d->v, config);
	struct recall_interval i;

	if (cell == NULL)
		return od_fail(err, OD_ERR_NOMEM, "a bar");
	for (size_t k = 0; all && k < d->v->prompts->n; k++)
		cell[k].uses = d->v->counts[config * d->v->prompts->n + k].expert_uses;
	i = recall_ratio(cell, d->v->prompts->n);
	free(cell);
	od_series_point(s, x, i.value, i.low, i.high);
	return OD_OK;
}

static int draw_table1(const struct drawing *d, struct od_err *err)
{
	struct od_series *predicted, *all;
	struct od_plot *p;
	char title[160];
	double x = 0;
	int rc;

	snprintf(title, sizeof(title),
		 "Recall of the shadow and of other predictors\n%zu prompts; bars: 95 %% interval over "
		 "prompts",
		 d->v->prompts->n);
	rc = od_plot_new(&p, title, err);
	if (rc != OD_OK)
		return rc;
	od_plot_labels(p, "shadow, by its precision, and predictors in main's own process", "recall");
	od_plot_y_range(p, 0, 1);
	predicted = od_plot_series(p, OD_PLOT_BARS, "of expert uses that they predict");
	all = od_plot_series(p, OD_PLOT_BARS, "of all expert uses");
	for (size_t i = 0; rc == OD_OK && i < d->configs->n; i++) {
		const struct recall_config *c = &d->configs->config[i];

		if (!recall_in_table1(c))
			continue;
		od_plot_x_tick(p, x, c->predictor != NULL ? c->name : c->group);
		rc = add_bar(d, predicted, x, i, false, err);
		if (rc == OD_OK)
			rc = add_bar(d, all, x++, i, true, err);
	}
	od_plot_size(p, x > 6 ? 200 + 95 * (unsigned)x : 800, 500); /* room for the names */
	if (rc == OD_OK)
		return od_plot_save(p, d->dir, "table1.svg", err);
	od_plot_free(p);
	return rc;
}

/* Of those that speak several times about a row. */
static int draw_leads(const struct drawing *d, struct od_err *err)
{
	uint32_t farthest = 1;
	struct od_plot *p;
	char tick[16];
	int rc = od_plot_new(&p, "Recall by layers ahead, of predictors that speak several times about a row", err);

	if (rc != OD_OK)
		return rc;
	od_plot_labels(p, "layers ahead", "recall");
	od_plot_y_range(p, NAN, 1);
	od_plot_close_up(p);
	for (size_t i = 0; i < d->configs->n; i++) {
		struct od_series *s;

		if (!recall_in_table1(&d->configs->config[i]) || !recall_speaks_often(d->v, i))
			continue;
		s = od_plot_series(p, OD_PLOT_LINE, d->configs->config[i].name);
		for (uint32_t n = 1; n <= d->v->n_moe; n++) {
			struct od_recall_cell sum = recall_sum_leads(d->v, i, n, n + 1);

			if (sum.uses == 0)
				continue;
			od_series_point(s, n, od_recall_rate(&sum), NAN, NAN);
			farthest = n > farthest ? n : farthest;
		}
	}
	for (uint32_t n = 1; n <= farthest; n += 1 + (farthest - 1) / TICKS_MAX) {
		snprintf(tick, sizeof(tick), "%u", n);
		od_plot_x_tick(p, n, tick);
	}
	return od_plot_save(p, d->dir, "table1-lead.svg", err);
}

/* ---- Any configurations ---- */

static int draw_tokens(const struct drawing *d, struct od_err *err)
{
	struct od_plot *p = new_curves(d, "Recall against token index", err);
	int rc = OD_OK;

	if (p == NULL)
		return err->code;
	for (size_t i = 0; rc == OD_OK && i < d->configs->n; i++)
		rc = add_curve(d, p, i, d->configs->config[i].name, err);
	if (rc == OD_OK)
		return od_plot_save(p, d->dir, "recall-by-token.svg", err);
	od_plot_free(p);
	return rc;
}

static int draw_layers(const struct drawing *d, struct od_err *err)
{
	struct od_plot *p;
	int rc = od_plot_new(&p, "Recall by layer", err);

	if (rc != OD_OK)
		return rc;
	od_plot_labels(p, "layer", "recall");
	for (size_t i = 0; i < d->configs->n; i++) {
		struct od_series *s = od_plot_series(p, OD_PLOT_LINE, d->configs->config[i].name);

		for (uint32_t m = 0; m < d->v->n_moe; m++) {
			struct od_recall_cell sum = { 0 };

			for (size_t k = 0; k < d->v->prompts->n; k++) {
				const struct od_recall_cell *one =
					&d->v->counts[i * d->v->prompts->n + k].recall.layer[m];

				sum.uses += one->uses;
				sum.recalled += one->recalled;
			}
			if (sum.uses > 0)
				od_series_point(s, m, od_recall_rate(&sum), NAN, NAN);
		}
	}
	return od_plot_save(p, d->dir, "recall-by-layer.svg", err);
}

int recall_draw(unsigned set, const struct recall_configs *c, const struct recall_view *v, const char *dir,
		struct od_err *err)
{
	const struct drawing d = { c, v, dir };
	const char *group[RECALL_CONFIGS_MAX];
	size_t n = recall_groups(c, group);
	int rc = OD_OK;

	if (set == 0) {
		rc = draw_tokens(&d, err);
		return rc == OD_OK ? draw_layers(&d, err) : rc;
	}
	for (size_t i = 0; rc == OD_OK && i < n && (set & RECALL_FIG3); i++) {
		rc = draw_fig3_group(&d, group[i], false, err);
		if (rc == OD_OK)
			rc = draw_fig3_group(&d, group[i], true, err);
	}
	for (size_t i = 0; rc == OD_OK && i < n && (set & RECALL_FIG6); i++) {
		rc = draw_fig6_group(&d, group[i], false, err);
		if (rc == OD_OK)
			rc = draw_fig6_group(&d, group[i], true, err);
	}
	if (rc == OD_OK && (set & RECALL_TABLE1))
		rc = draw_table1(&d, err);
	return rc == OD_OK && (set & RECALL_TABLE1) ? draw_leads(&d, err) : rc;
}
