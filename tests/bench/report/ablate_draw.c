/* Pictures of od-bench ablate. Speeds are medians over prompts, with quartiles. */
#include "tests/bench/live/ablate.h"
#include "tests/bench/report/ablate_summary.h"
#include "tests/bench/report/bench_plot.h"

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
	od_plot_keep_script(p);
	return od_plot_save(p, dir, name, err);
}

static void put_spread(struct od_series *to, double x, const struct ablate_spread *s)
{
	od_series_point(to, x, s->median, s->q1, s->q3);
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
	rc = od_plot_new(&speed, "Speed, by alignment of the shadow", err);
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
		put_spread(bars, (double)i, &s[i].tok_per_s);
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
struct lines {
	const struct ablate_figure *figure;
	size_t n_x;
	const char *const *names;
	const char *file[2], *title[2]; /* [enum ablate_by] */
};

static int draw_lines(const struct ablate *a, const struct lines *l, enum ablate_by by, const char *dir,
		      struct od_err *err)
{
	static const char *const labels[] = {
		[ABLATE_BY_SPEED] = "tokens/s, median and quartiles",
		[ABLATE_BY_STALLS] = "ms a token, median and quartiles",
	};
	struct ablate_summary s[ABLATE_MAX_BARS];
	struct od_series *line = NULL;
	struct od_plot *p;
	int rc = summarise(a, l->figure, s, err);

	if (rc == OD_OK)
		rc = od_plot_new(&p, l->title[by], err);
	if (rc != OD_OK)
		return rc;
	od_plot_labels(p, "KV period, tokens", labels[by]);
	od_plot_x_log2(p);
	for (size_t i = 0; i < l->figure->n; i++) {
		size_t row = i / l->n_x;

		if (i % l->n_x == 0)
			line = od_plot_series(p, OD_PLOT_LINE_BARS, l->names[row]);
		/* Beside each other, so that bars can be told apart. */
		put_spread(line, ldexp(1, (int)(i % l->n_x)) * (1 + 0.02 * (double)row),
			   by == ABLATE_BY_SPEED ? &s[i].tok_per_s : &s[i].stalled_ms);
	}
	return write_plot(p, dir, l->file[by], err);
}

static int draw_both(const struct ablate *a, const struct lines *l, const char *dir, struct od_err *err)
{
	int rc = OD_OK;

	if (l->figure->n == 0)
		return rc;
	rc = draw_lines(a, l, ABLATE_BY_SPEED, dir, err);
	return rc == OD_OK ? draw_lines(a, l, ABLATE_BY_STALLS, dir, err) : rc;
}

int ablate_draw(const struct ablate *a, const char *dir, struct od_err *err)
{
	static const char *const periods[ABLATE_PERIODS] = {
		"token period 1", "token period 2", "token period 4", "token period 8", "token period 16",
	};
	char loads[ABLATE_LOADS][32];
	const char *load_names[ABLATE_LOADS];
	const struct lines fig9 = { &a->figure[ABLATE_FIG9],
				    ABLATE_PERIODS,
				    periods,
				    { "fig9.svg", "fig9-stalls.svg" },
				    { "Speed, by periods of alignment", "Time stalled, by periods of alignment" } };
	const struct lines fig10 = { &a->figure[ABLATE_FIG10],
				     ABLATE_KV_PERIODS,
				     load_names,
				     { "fig10.svg", "fig10-stalls.svg" },
				     { "Speed, by KV period and load time",
				       "Time stalled, by KV period and load time" } };
	int rc = OD_OK;

	for (size_t i = 0; i < ABLATE_LOADS; i++) {
		const struct ablate_setting *s = &a->setting[fig10.figure->setting[i * ABLATE_KV_PERIODS]];

		snprintf(loads[i], sizeof(loads[i]), "load %.2f ms", s->load_time_ms);
		load_names[i] = loads[i];
	}
	if (a->figure[ABLATE_FIG8].n > 0)
		rc = draw_cases(a, dir, err);
	if (rc == OD_OK)
		rc = draw_both(a, &fig9, dir, err);
	return rc == OD_OK ? draw_both(a, &fig10, dir, err) : rc;
}
