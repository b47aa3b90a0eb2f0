/* The expected commands for gnuplot are written by hand; its own SVG shows that it understood them. */
#include "tests/bench/report/bench_plot.h"

#include "common/base/file.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/temp_dir.h"

#define assert_has(text, part) assert_non_null(strstr(text, part))
#define assert_lacks(text, part) assert_null(strstr(text, part))

static void need_gnuplot(void)
{
	struct od_err err;

	if (od_plot_check(temp_dir, &err) == OD_ERR_MISSING)
		skip();
}

static struct od_plot *new_plot(const char *title)
{
	struct od_plot *p;

	assert_int_equal(od_plot_new(&p, title, NULL), OD_OK);
	return p;
}

static char *read_text(const char *name)
{
	char *text;
	size_t len;

	assert_int_equal(od_file_read(temp_path(name), 1 << 24, &text, &len, NULL), OD_OK);
	return text;
}

/* Writes name.svg and its script, frees the plot. */
static void draw(struct od_plot *p, const char *svg_name, const char *script_name, char **svg, char **script)
{
	struct od_err err = { 0 };

	od_plot_keep_script(p);
	if (od_plot_write(p, temp_path(svg_name), &err) != OD_OK)
		fail_msg("%s", err.msg);
	od_plot_free(p);
	*svg = read_text(svg_name);
	*script = read_text(script_name);
}

static void lines_carry_bands(void **state)
{
	struct od_plot *p = new_plot("Recall & \"drift\" of\ntoken_1 \\ $x `ls`");
	struct od_series *s = od_plot_series(p, OD_PLOT_LINE, "nf4, aligned");
	char *svg, *script;

	(void)state;
	need_gnuplot();
	od_plot_labels(p, "token", "recall");
	od_plot_x_log2(p);
	od_plot_x_range(p, 1, NAN);
	od_plot_y_range(p, NAN, 1.0);
	od_series_point(s, 1, 0.5, 0.25, 0.75);
	od_series_point(s, 2, NAN, NAN, NAN);
	od_series_point(s, 4, 0.875, NAN, NAN);
	od_series_point(s, 32, 1, INFINITY, 1);
	s = od_plot_series(p, OD_PLOT_LINE, NULL);
	for (int i = 1; i <= 50; i++)
		od_series_point(s, i, 1.0 / i, NAN, NAN);
	draw(p, "lines.svg", "lines.gp", &svg, &script);
	assert_has(script, "\n1 0.5 0.25 0.75 \n2 NaN NaN NaN \n4 0.875 NaN NaN \n32 1 NaN NaN \nEND\n");
	assert_has(script, "set title \"Recall & \\\"drift\\\" of\\ntoken_1 \\\\ $x \\140ls\\140\"\n");
	assert_has(script, "\nset xrange [1:*]\nset yrange [0:1]\n");
	assert_has(script, "set logscale x 2\n");
	assert_lacks(script, "set logscale y");
	assert_has(script, "$series0 using 1:3:4 with filledcurves");
	assert_has(script, "$series0 using 1:2 with linespoints");
	assert_lacks(script, "$series1 using 1:3:4");
	assert_has(script, "$series1 using 1:2 with lines ");
	assert_has(svg, "<svg");
	assert_has(svg, "Recall &amp; \"drift\" of"); /* a line of its own, and nothing interpreted */
	assert_has(svg, ">token_1 \\ $x `ls`<");
	assert_has(svg, ">nf4, aligned<");
	assert_has(svg, "> 32<");
	free(svg);
	free(script);
}

static void bars_stand_side_by_side(void **state)
{
	struct od_plot *p = new_plot(NULL);
	struct od_series *a = od_plot_series(p, OD_PLOT_BARS, "first");
	struct od_series *b = od_plot_series(p, OD_PLOT_BARS, "second");
	char *svg, *script;

	(void)state;
	need_gnuplot();
	for (int i = 0; i < 3; i++) {
		od_series_point(a, i, 10 + i, 9 + i, 11.5 + i);
		od_series_point(b, i, 20 - i, NAN, NAN);
		od_plot_x_tick(p, i, (const char *[]){ "token\nand KV", "token", "neither" }[i]);
	}
	od_plot_legend(p, OD_LEGEND_RIGHT);
	draw(p, "bars.svg", "bars.gp", &svg, &script);
	assert_has(script, "\n0 10 9 11.5 \n1 11 10 12.5 \n2 12 11 13.5 \nEND\n");
	/* Two bars share 0.8: 0.4 each, centres 0.2 to the left and to the right. */
	assert_has(script, "$series0 using ($1 + -0.200000):2:(0.368000) with boxes");
	assert_has(script, "$series0 using ($1 + -0.200000):3:(0):($4 - $3) with vectors");
	assert_has(script, "$series1 using ($1 + 0.200000):2:(0.368000) with boxes");
	assert_lacks(script, "$series1 using ($1 + 0.200000):3");
	assert_has(script, "set xrange [-0.6:2.6]\nset yrange [0:*]\n"); /* room beside the outermost */
	assert_has(script, "set xtics nomirror scale 0.5 (\"token\\nand KV\" 0, \"token\" 1, \"neither\" 2)\n");
	assert_has(script, "set xlabel \"\\n\" . \" \"\n"); /* room for the second line of a tick */
	assert_has(svg, ">neither<");
	assert_has(svg, ">second<");
	free(svg);
	free(script);
}

static void bars_below_zero_are_not_cut(void **state)
{
	struct od_plot *p = new_plot(NULL);
	struct od_series *s = od_plot_series(p, OD_PLOT_BARS, NULL);
	char *svg, *script;

	(void)state;
	need_gnuplot();
	od_series_point(s, 0, 1, NAN, NAN);
	od_series_point(s, 1, -1, NAN, NAN);
	draw(p, "negative.svg", "negative.gp", &svg, &script);
	assert_has(script, "set yrange [*:*]\n");
	assert_has(script, "set key off\n");
	free(svg);
	free(script);
}

static void points_carry_bars(void **state)
{
	struct od_plot *p = new_plot("points");
	struct od_series *s = od_plot_series(p, OD_PLOT_POINTS, "measured");
	char *svg, *script;

	(void)state;
	need_gnuplot();
	od_series_point(s, 1, 2, 1, 3);
	s = od_plot_series(p, OD_PLOT_LINE_BARS, "joined");
	od_series_point(s, 1, 3, 2, 4);
	od_series_point(s, 2, 4, 3, 5);
	od_plot_legend(p, OD_LEGEND_INSIDE);
	od_plot_size(p, 640, 480);
	draw(p, "points.svg", "points.gp", &svg, &script);
	assert_has(script, "$series0 using 1:3:(0):($4 - $3) with vectors");
	assert_has(script, "$series0 using 1:2 with points");
	assert_has(script, "$series1 using 1:3:(0):($4 - $3) with vectors");
	assert_has(script, "$series1 using 1:2 with linespoints");
	assert_has(svg, "width=\"640\" height=\"480\"");
	free(svg);
	free(script);
}

static void the_same_plot_is_the_same_picture(void **state)
{
	struct od_plot *p = new_plot("twice");
	struct od_series *s = od_plot_series(p, OD_PLOT_LINE, "a");
	char *svg, *script, *again;

	(void)state;
	need_gnuplot();
	od_series_point(s, 1, 2, NAN, NAN);
	od_series_point(s, 2, 3, NAN, NAN);
	draw(p, "twice.svg", "twice.gp", &svg, &script);
	p = new_plot("twice");
	s = od_plot_series(p, OD_PLOT_LINE, "a");
	od_series_point(s, 1, 2, NAN, NAN);
	od_series_point(s, 2, 3, NAN, NAN);
	assert_int_equal(od_plot_write(p, temp_path("again.svg"), NULL), OD_OK);
	od_plot_free(p);
	again = read_text("again.svg");
	assert_string_equal(again, svg);
	assert_int_not_equal(access(temp_path("again.gp"), F_OK), 0); /* a script only when asked */
	free(again);
	free(svg);
	free(script);
}

static void a_picture_of_nothing_says_so(void **state)
{
	static const enum od_plot_kind kinds[] = { OD_PLOT_LINE, OD_PLOT_LINE_BARS, OD_PLOT_POINTS, OD_PLOT_BARS };

	(void)state;
	need_gnuplot();
	for (int i = 0; i < 12; i++) { /* no series; one without points; one of gaps */
		struct od_plot *p = new_plot("nothing");
		struct od_series *s = i % 3 > 0 ? od_plot_series(p, kinds[i / 3], "a") : NULL;
		char *svg, *script;

		od_plot_y_range(p, NAN, 1);
		if (i / 3 == 1)
			od_plot_x_log2(p);
		if (i / 3 == 2)
			od_plot_y_log10(p);
		if (i % 3 == 2)
			od_series_point(s, 1, NAN, NAN, NAN);
		draw(p, "nothing.svg", "nothing.gp", &svg, &script);
		assert_has(svg, ">nothing to show<");
		if (i / 3 == 2)
			assert_has(script, "set logscale y 10\n");
		free(svg);
		free(script);
	}
}

/* Shares that are all 1 are drawn at the upper end, not below a share of 1.01. */
static void an_automatic_end_keeps_its_bound(void **state)
{
	struct od_plot *p = new_plot("all");
	struct od_series *s = od_plot_series(p, OD_PLOT_LINE, NULL);
	char *svg, *script;

	(void)state;
	need_gnuplot();
	od_plot_y_at_most(p, 1);
	od_series_point(s, 1, 1, NAN, NAN);
	od_series_point(s, 2, 1, NAN, NAN);
	draw(p, "all.svg", "all.gp", &svg, &script);
	assert_has(script, "\nset yrange [0:*<1]\n");
	assert_lacks(svg, "1.01");
	free(svg);
	free(script);
}

/* y begins at 0. A close-up says where it does not, and does so only if that is above 0; logarithms have no 0. */
static void an_axis_that_begins_above_0_says_so(void **state)
{
	static const struct {
		double least;
		bool close_up, log;
		const char *range;
	} cases[] = {
		{ 0.9, false, false, "[0:*]" }, { 0.9, true, false, "[*:*]" }, { 0.2, true, false, "[0:*]" },
		{ -1, true, false, "[*:*]" },	{ 0.9, false, true, "[*:*]" },
	};

	(void)state;
	need_gnuplot();
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct od_plot *p = new_plot("ends");
		struct od_series *s = od_plot_series(p, OD_PLOT_LINE, NULL);
		char *svg, *script, range[40];

		od_plot_labels(p, "x", "recall");
		if (cases[i].close_up)
			od_plot_close_up(p);
		if (cases[i].log)
			od_plot_y_log10(p);
		od_series_point(s, 1, 1, NAN, NAN);
		od_series_point(s, 2, 0.95, cases[i].least, 1);
		draw(p, "ends.svg", "ends.gp", &svg, &script);
		snprintf(range, sizeof(range), "\nset yrange %s\n", cases[i].range);
		assert_has(script, range);
		if (cases[i].close_up && cases[i].least == 0.9)
			assert_has(svg, ">recall (the axis begins above 0)<");
		else
			assert_has(svg, ">recall<");
		free(svg);
		free(script);
	}
}

static int write_one(const char *path, double from, struct od_err *err)
{
	struct od_plot *p = new_plot("one");
	int rc;

	od_plot_x_range(p, from, 4);
	od_series_point(od_plot_series(p, OD_PLOT_LINE, NULL), 2, 1, NAN, NAN);
	rc = od_plot_write(p, path, err);
	od_plot_free(p);
	return rc;
}

static void errors_say_what_to_do(void **state)
{
	char *path = strdup(getenv("PATH"));
	struct od_err err;

	(void)state;
	setenv("PATH", temp_dir, 1);
	assert_int_equal(write_one(temp_path("one.svg"), 1, &err), OD_ERR_MISSING);
	assert_has(err.msg, "gnuplot-nox");
	assert_int_equal(od_plot_check(temp_dir, &err), OD_ERR_MISSING);
	setenv("PATH", path, 1);
	free(path);
	need_gnuplot();
	assert_int_equal(od_plot_check(temp_path("a/b"), &err), OD_OK);
	assert_true(od_is_dir(temp_path("a/b")));
	assert_int_equal(od_plot_check("/proc/self/no", &err), OD_ERR_IO);
	assert_int_equal(write_one(temp_path("none/one.svg"), 1, &err), OD_ERR_IO);
	assert_has(err.msg, "none/one.svg");
	assert_int_equal(write_one(temp_path("one.png"), 1, &err), OD_ERR_ARG);
	assert_int_equal(write_one(temp_path("no.svg"), 4, &err), OD_ERR_INTERNAL); /* no range: its own words */
	assert_has(err.msg, "gnuplot ended with status");
	assert_has(err.msg, "range");
	assert_int_not_equal(access(temp_path("no.svg"), F_OK), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lines_carry_bands),
		cmocka_unit_test(bars_stand_side_by_side),
		cmocka_unit_test(bars_below_zero_are_not_cut),
		cmocka_unit_test(points_carry_bars),
		cmocka_unit_test(the_same_plot_is_the_same_picture),
		cmocka_unit_test(a_picture_of_nothing_says_so),
		cmocka_unit_test(an_automatic_end_keeps_its_bound),
		cmocka_unit_test(an_axis_that_begins_above_0_says_so),
		cmocka_unit_test(errors_say_what_to_do),
	};

	return cmocka_run_group_tests_name("bench_plot", tests, temp_dir_make, temp_dir_remove);
}
