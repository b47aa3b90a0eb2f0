/* bench_plot.h - plots of benchmark results: an SVG written by gnuplot, from a script that contains the data.
 *
 * Build a plot step by step, then call od_plot_write. It also reports an earlier lack of memory, so that the calls in
 * between need no check. Texts are copied and shown verbatim (UTF-8; a newline breaks the line). Colours are Okabe and
 * Ito's, safe for colour-blind readers; series also differ in marker.
 * Thread: one at a time. Owner: the caller owns the plot, the plot owns its series. */
#ifndef OD_BENCH_PLOT_H
#define OD_BENCH_PLOT_H

#include <stddef.h>

#include "common/base/status.h"

struct od_plot;
struct od_series;

enum od_plot_kind {
	OD_PLOT_LINE, /* a line, markers where points are few; errors as a band */
	OD_PLOT_LINE_BARS, /* the same; errors as bars */
	OD_PLOT_POINTS, /* markers only; errors as bars */
	OD_PLOT_BARS, /* columns side by side at each x (say 0, 1, 2, ... with ticks); errors as bars */
};

/* the first is the default */
enum od_plot_legend { OD_LEGEND_BELOW, OD_LEGEND_RIGHT, OD_LEGEND_INSIDE, OD_LEGEND_NONE };

#define OD_PLOT_SERIES 16 /* more are unreadable: od_plot_series aborts */

/* title may be NULL. *out is NULL unless OD_OK. */
OD_MUST_CHECK int od_plot_new(struct od_plot **out, const char *title, struct od_err *err);
void od_plot_free(struct od_plot *p); /* NULL ok */

void od_plot_labels(struct od_plot *p, const char *x, const char *y); /* of the axes; NULL: none */
/* NaN: that end is automatic; the lower end of y is then 0 unless values are negative. */
void od_plot_x_range(struct od_plot *p, double low, double high);
void od_plot_y_range(struct od_plot *p, double low, double high);
/* For differences that would be invisible from 0 on: the lower end of y is near the least value, and the label says so.
 * Without effect where some value is less than a quarter of the largest. */
void od_plot_close_up(struct od_plot *p);
void od_plot_y_at_most(struct od_plot *p, double most); /* upper bound of an automatic upper end */
void od_plot_x_log2(struct od_plot *p); /* ticks at powers of two */
void od_plot_y_log10(struct od_plot *p);
/* A text below x. The first such tick turns automatic ticks off. */
void od_plot_x_tick(struct od_plot *p, double x, const char *text);
void od_plot_legend(struct od_plot *p, enum od_plot_legend where); /* none is shown for a single series without title */
/* Pixels; default 800 x 500. A legend below with several lines makes it higher. */
void od_plot_size(struct od_plot *p, unsigned width, unsigned height);
void od_plot_keep_script(struct od_plot *p); /* PATH.gp beside PATH.svg: `gnuplot PATH.gp > PATH.svg` draws it again */

/* The next series, never NULL; title NULL: not in the legend. */
struct od_series *od_plot_series(struct od_plot *p, enum od_plot_kind kind, const char *title);
/* y NaN: a gap. low, high: ends of the error bar (not its size), NaN for none. A plot without points shows a note. */
void od_series_point(struct od_series *s, double x, double y, double low, double high);

/* Checks that plots can be written into dir (created if missing), before a benchmark runs for minutes. */
OD_MUST_CHECK int od_plot_check(const char *dir, struct od_err *err);
/* path must end with ".svg". OD_ERR_MISSING: no gnuplot (the text names the package). OD_ERR_INTERNAL: gnuplot rejected
 * the script; err has gnuplot's message. The file appears complete or not at all. */
OD_MUST_CHECK int od_plot_write(const struct od_plot *p, const char *path, struct od_err *err);
/* Writes dir/name, says so, and frees p. */
OD_MUST_CHECK int od_plot_save(struct od_plot *p, const char *dir, const char *name, struct od_err *err);

#endif
