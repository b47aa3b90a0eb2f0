/* Pictures of od-bench ablate. Speeds are medians over prompts, with quartiles. */
#include "common/base/file.h"
#include "tests/bench/ablate.h"
#include "tests/bench/ablate_summary.h"
#include "tests/bench/bench_plot.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Summaries of a figure's settings. */
static int summarise(const struct ablate *a, const struct ablate_figure *f, struct ablate_summary *s,
		     struct od_err *err)
{
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < f->n; i++)
		rc = ablate_summarise(ablate_runs(a, f->setting[i]), a->n_done, &s[i], err);
	return rc;
}

/* Frees p. */
static int write_plot(struct od_plot *p, const char *dir, const char *name, struct od_err *err)
{
	char path[PATH_MAX];
	int rc = od_path(path, sizeof(path), dir, name, err);

	od_plot_keep_script(p);
	if (rc == OD_OK)
		rc = od_plot_write(p, path, err);
	od_plot_free(p);
	return rc;
}

static void put_speed(struct od_series *to, double x, const struct ablate_summary *s)
{
	od_series_point(to, x, s->tok_per_s.median, s->tok_per_s_q1, s->tok_per_s_q3);
}

/* "1 token and KV" is too wide below a bar: the number goes above the rest. */
static void put_tick(struct od_plot *p, double x, const char *label)
{
	char text[sizeof(((struct ablate_figure *)0)->label[0])], *blank;

	snprintf(text, sizeof(text), "%s", label);
	blank = strchr(text, ' ');
	if (blank != NULL)
		*blank = '\n';
	od_plot_x_tick(p, x, text);
}

static int draw_cases(const struct ablate *a, const char *dir, struct od_err *err)
{
	const struct ablate_figure *f = &a->figure[ABLATE_FIG8];
	struct ablate_summary s[ABLATE_MAX_BARS];
	struct od_plot *speed, *served;
	struct od_series *bars, *parts[2];
	int rc = summarise(a, f, s, err);

	if (rc != OD_OK)
		return rc;
	rc = od_plot_new(&speed, "Speed, by what the shadow is told", err);
	if (rc != OD_OK)
		return rc;
	rc = od_plot_new(&served, "Expert uses that waited for a load", err);
	if (rc != OD_OK) {
		od_plot_free(speed);
		return rc;
	}
	od_plot_labels(speed, NULL, "tokens/s, median and quartiles");
	od_plot_labels(served, NULL, "a token");
	bars = od_plot_series(speed, OD_PLOT_BARS, NULL);
	parts[0] = od_plot_series(served, OD_PLOT_BARS, "not predicted, or wrongly");
	parts[1] = od_plot_series(served, OD_PLOT_BARS, "predicted, but not there in time");
	for (size_t i = 0; i < f->n; i++) {
		put_tick(speed, (double)i, f->label[i]);
		put_tick(served, (double)i, f->label[i]);
		put_speed(bars, (double)i, &s[i]);
		od_series_point(parts[0], (double)i, s[i].unforeseen, NAN, NAN);
		od_series_point(parts[1], (double)i, s[i].late_loads, NAN, NAN);
	}
	rc = write_plot(speed, dir, "fig8.svg", err);
	if (rc != OD_OK) {
		od_plot_free(served);
		return rc;
	}
	return write_plot(served, dir, "fig8-stalls.svg", err);
}

/* Lines over KV periods: a figure's settings in rows of n_x, one line each. */
static int draw_lines(const struct ablate *a, const struct ablate_figure *f, size_t n_x, const char *const *names,
		      const char *title, const char *dir, const char *file, struct od_err *err)
{
	struct ablate_summary s[ABLATE_MAX_BARS];
	struct od_series *line = NULL;
	struct od_plot *p;
	int rc = summarise(a, f, s, err);

	if (rc == OD_OK)
		rc = od_plot_new(&p, title, err);
	if (rc != OD_OK)
		return rc;
	od_plot_labels(p, "KV period, tokens", "tokens/s, median and quartiles");
	od_plot_x_log2(p);
	for (size_t i = 0; i < f->n; i++) {
		if (i % n_x == 0)
			line = od_plot_series(p, OD_PLOT_LINE_BARS, names[i / n_x]);
		/* Beside each other, so that bars can be told apart. */
		put_speed(line, ldexp(1, (int)(i % n_x)) * (1 + 0.02 * (double)(i / n_x)), &s[i]);
	}
	return write_plot(p, dir, file, err);
}

int ablate_draw(const struct ablate *a, const char *dir, struct od_err *err)
{
	static const char *const periods[ABLATE_PERIODS] = {
		"token period 1", "token period 2", "token period 4", "token period 8", "token period 16",
	};
	const struct ablate_figure *f9 = &a->figure[ABLATE_FIG9], *f10 = &a->figure[ABLATE_FIG10];
	char loads[ABLATE_LOADS][32];
	const char *load_names[ABLATE_LOADS];
	int rc = OD_OK;

	if (a->figure[ABLATE_FIG8].n > 0)
		rc = draw_cases(a, dir, err);
	if (rc == OD_OK && f9->n > 0)
		rc = draw_lines(a, f9, ABLATE_PERIODS, periods, "Speed, by periods of alignment", dir, "fig9.svg", err);
	for (size_t i = 0; i < ABLATE_LOADS && f10->n > 0; i++) {
		snprintf(loads[i], sizeof(loads[i]), "load %.2f ms",
			 a->setting[f10->setting[i * ABLATE_KV_PERIODS]].load_time_ms);
		load_names[i] = loads[i];
	}
	if (rc == OD_OK && f10->n > 0)
		rc = draw_lines(a, f10, ABLATE_KV_PERIODS, load_names, "Speed, by KV period and load time", dir,
				"fig10.svg", err);
	return rc;
}
