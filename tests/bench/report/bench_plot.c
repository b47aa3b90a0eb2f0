#include "tests/bench/report/bench_plot.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/strbuf.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MARKED_POINTS 40 /* a line with more carries no markers */
#define BARS_WIDTH 0.8 /* of the space between two x, for all bars at one */
#define SAYS_BYTES 400 /* of gnuplot's complaint */
#define LETTER_PX 7.7 /* a usual one, in our font */
#define LEGEND_LINE_PX 26

/* gnuplot's own error bars have a hole around the point. */
#define ERROR_BAR "vectors heads size screen 0.005,90 nofilled lw 1.2 lc rgb \"%s\" notitle"

extern char **environ;

struct od_series {
	enum od_plot_kind kind;
	char *title; /* quoted; NULL: not in the legend */
	struct od_strbuf data;
	size_t n_points;
	double x_min, x_max, y_min, y_max; /* y with errors */
	bool has_points, has_errors, has_negative; /* points: some that can be seen */
};

struct od_plot {
	struct od_strbuf head; /* title and labels, as commands */
	struct od_strbuf ticks; /* "text" x, ... */
	struct od_strbuf x_label, y_label;
	size_t tick_lines; /* of the highest text */
	double x_range[2], y_range[2], y_most;
	bool x_log2, y_log10, close_up, keep_script, failed;
	enum od_plot_legend legend;
	unsigned width, height;
	struct od_series series[OD_PLOT_SERIES];
	size_t n_series;
};

static const char *const colours[] = {
	"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999",
};
static const unsigned markers[] = { 7, 5, 9, 11, 13, 6, 4, 8 }; /* filled ones first */
#define N_COLOURS (sizeof(colours) / sizeof(colours[0]))

/* A string of gnuplot's. What would end it is escaped, and backquotes: it runs what stands between two. */
static void quote(struct od_strbuf *b, const char *text)
{
	od_strbuf_append(b, "\"", 1);
	for (const char *c = text; *c != '\0'; c++) {
		if (*c == '"' || *c == '\\')
			od_strbuf_printf(b, "\\%c", *c);
		else if (*c == '\n')
			od_strbuf_append(b, "\\n", 2);
		else if (*c == '`')
			od_strbuf_append(b, "\\140", 4);
		else
			od_strbuf_append(b, (unsigned char)*c < 0x20 ? " " : c, 1);
	}
	od_strbuf_append(b, "\"", 1);
}

static void set_text(struct od_strbuf *b, const char *what, const char *text)
{
	if (text == NULL)
		return;
	od_strbuf_printf(b, "set %s ", what);
	quote(b, text);
	od_strbuf_append(b, "\n", 1);
}

int od_plot_new(struct od_plot **out, const char *title, struct od_err *err)
{
	struct od_plot *p = calloc(1, sizeof(*p));

	*out = NULL;
	if (p == NULL)
		return od_fail(err, OD_ERR_NOMEM, "plot %s", title != NULL ? title : "without title");
	p->x_range[0] = p->x_range[1] = p->y_range[0] = p->y_range[1] = p->y_most = NAN;
	p->width = 800;
	p->height = 500;
	set_text(&p->head, "title", title);
	*out = p;
	return OD_OK;
}

void od_plot_free(struct od_plot *p)
{
	if (p == NULL)
		return;
	for (size_t i = 0; i < p->n_series; i++) {
		free(p->series[i].title);
		od_strbuf_fini(&p->series[i].data);
	}
	od_strbuf_fini(&p->head);
	od_strbuf_fini(&p->ticks);
	od_strbuf_fini(&p->x_label);
	od_strbuf_fini(&p->y_label);
	free(p);
}

void od_plot_labels(struct od_plot *p, const char *x, const char *y)
{
	if (x != NULL)
		od_strbuf_append(&p->x_label, x, strlen(x));
	if (y != NULL)
		od_strbuf_append(&p->y_label, y, strlen(y));
}

void od_plot_x_range(struct od_plot *p, double low, double high)
{
	p->x_range[0] = low;
	p->x_range[1] = high;
}

void od_plot_y_range(struct od_plot *p, double low, double high)
{
	p->y_range[0] = low;
	p->y_range[1] = high;
}

void od_plot_close_up(struct od_plot *p)
{
	p->close_up = true;
}

void od_plot_y_at_most(struct od_plot *p, double most)
{
	p->y_most = most;
}

void od_plot_x_log2(struct od_plot *p)
{
	p->x_log2 = true;
}

void od_plot_y_log10(struct od_plot *p)
{
	p->y_log10 = true;
}

void od_plot_x_tick(struct od_plot *p, double x, const char *text)
{
	size_t lines = 1;

	for (const char *c = text; *c != '\0'; c++)
		lines += *c == '\n';
	p->tick_lines = lines > p->tick_lines ? lines : p->tick_lines;
	if (p->ticks.len > 0)
		od_strbuf_append(&p->ticks, ", ", 2);
	quote(&p->ticks, text);
	od_strbuf_printf(&p->ticks, " %.9g", x);
}

void od_plot_legend(struct od_plot *p, enum od_plot_legend where)
{
	p->legend = where;
}

void od_plot_size(struct od_plot *p, unsigned width, unsigned height)
{
	p->width = width;
	p->height = height;
}

void od_plot_keep_script(struct od_plot *p)
{
	p->keep_script = true;
}

struct od_series *od_plot_series(struct od_plot *p, enum od_plot_kind kind, const char *title)
{
	struct od_strbuf quoted = { 0 };
	struct od_series *s;
	size_t len;

	if (p->n_series == OD_PLOT_SERIES)
		abort(); /* plots are written in the source */
	s = &p->series[p->n_series++];
	s->kind = kind;
	s->x_min = s->y_min = INFINITY;
	s->x_max = s->y_max = -INFINITY;
	if (title != NULL) {
		quote(&quoted, title);
		s->title = od_strbuf_take(&quoted, &len);
		p->failed = p->failed || s->title == NULL;
	}
	return s;
}

static void put_number(struct od_strbuf *b, double x)
{
	if (isfinite(x))
		od_strbuf_printf(b, "%.9g ", x);
	else
		od_strbuf_append(b, "NaN ", 4);
}

void od_series_point(struct od_series *s, double x, double y, double low, double high)
{
	bool error = isfinite(low) && isfinite(high);

	put_number(&s->data, x);
	put_number(&s->data, y);
	put_number(&s->data, error ? low : NAN);
	put_number(&s->data, error ? high : NAN);
	od_strbuf_append(&s->data, "\n", 1);
	s->n_points++;
	s->has_points = s->has_points || (isfinite(x) && isfinite(y));
	s->x_min = fmin(s->x_min, x);
	s->x_max = fmax(s->x_max, x);
	s->y_min = fmin(s->y_min, error ? fmin(y, low) : y);
	s->y_max = fmax(s->y_max, error ? fmax(y, high) : y);
	s->has_errors = s->has_errors || error;
	s->has_negative = s->has_negative || y < 0 || (error && low < 0);
}

/* Of the series before this one. */
static size_t count_bars(const struct od_plot *p, size_t before)
{
	size_t n = 0;

	for (size_t i = 0; i < before; i++)
		n += p->series[i].kind == OD_PLOT_BARS;
	return n;
}

static void put_range(struct od_strbuf *b, const char *axis, const double range[2], double most)
{
	od_strbuf_printf(b, "set %srange [", axis);
	for (size_t i = 0; i < 2; i++) {
		if (isfinite(range[i]))
			od_strbuf_printf(b, "%.9g", range[i]);
		else if (i == 1 && isfinite(most))
			od_strbuf_printf(b, "*<%.9g", most);
		else
			od_strbuf_append(b, "*", 1);
		od_strbuf_append(b, i == 0 ? ":" : "]\n", i == 0 ? 1 : 2);
	}
}

static bool is_empty(const struct od_plot *p)
{
	for (size_t i = 0; i < p->n_series; i++) {
		if (p->series[i].has_points)
			return false;
	}
	return true;
}

/* gnuplot's lower end is then above 0: it is no more than a tick below the least value. */
static bool begins_above_0(const struct od_plot *p)
{
	double min = INFINITY, max = -INFINITY;

	for (size_t i = 0; i < p->n_series; i++) {
		min = fmin(min, p->series[i].y_min);
		max = fmax(max, p->series[i].y_max);
	}
	return p->close_up && count_bars(p, p->n_series) == 0 && !isfinite(p->y_range[0]) && max > 0 && min >= max / 4;
}

/* Bars need room beside the outermost ones. y starts at 0, or the shortest bar and the lowest point would look like
 * nothing. Lines reach from end to end where they are curves; where they are a few points, these stay off the frame. */
static void put_axes(struct od_strbuf *b, const struct od_plot *p)
{
	double x[2] = { p->x_range[0], p->x_range[1] }, y[2] = { p->y_range[0], p->y_range[1] };
	bool bars = false, negative = false, curves = false;
	double x_min = INFINITY, x_max = -INFINITY;

	for (size_t i = 0; i < p->n_series; i++) {
		const struct od_series *s = &p->series[i];

		bars = bars || s->kind == OD_PLOT_BARS;
		negative = negative || s->has_negative;
		curves = curves || s->n_points > MARKED_POINTS;
		x_min = fmin(x_min, s->x_min);
		x_max = fmax(x_max, s->x_max);
	}
	if (bars) {
		x[0] = isfinite(x[0]) ? x[0] : x_min - 0.6;
		x[1] = isfinite(x[1]) ? x[1] : x_max + 0.6;
	}
	if (!isfinite(y[0]) && !negative && !p->y_log10 && !begins_above_0(p))
		y[0] = 0;
	if (p->x_log2)
		od_strbuf_printf(b, "set logscale x 2\n");
	if (p->y_log10)
		od_strbuf_printf(b, "set logscale y 10\n");
	od_strbuf_printf(b, "set autoscale xfix\n");
	if (!bars && !curves)
		od_strbuf_printf(b, "set offsets graph 0.03, graph 0.03, 0, 0\n");
	put_range(b, "x", x, NAN);
	put_range(b, "y", y, p->y_most);
	if (p->ticks.len > 0)
		od_strbuf_printf(b, "set xtics nomirror scale 0.5 (%s)\n", p->ticks.text);
}

struct legend {
	enum od_plot_legend where;
	size_t longest; /* bytes of a title */
	size_t lines; /* below the picture */
};

static struct legend legend_of(const struct od_plot *p)
{
	struct legend l = { .where = OD_LEGEND_NONE };
	size_t n = 0, in_line;

	for (size_t i = 0; i < p->n_series; i++) {
		size_t len = p->series[i].title != NULL ? strlen(p->series[i].title) : 0;

		n += len > 0;
		l.longest = len > l.longest ? len : l.longest;
	}
	if (n > 0)
		l.where = p->legend;
	if (l.where == OD_LEGEND_BELOW) {
		in_line = (size_t)((p->width - 130) / (LETTER_PX * (double)l.longest + 70));
		in_line = in_line > 0 ? in_line : 1;
		l.lines = (n + in_line - 1) / in_line;
	}
	return l;
}

/* gnuplot takes letters of an SVG for wider than they are: the legend is told a quarter of a letter less for each,
 * and two more for a gap. */
static void put_legend(struct od_strbuf *b, const struct legend *l)
{
	static const char *const places[] = {
		[OD_LEGEND_BELOW] = "outside below center horizontal",
		[OD_LEGEND_RIGHT] = "outside right center vertical",
		[OD_LEGEND_INSIDE] = "inside vertical opaque",
	};

	if (l->where == OD_LEGEND_NONE)
		od_strbuf_printf(b, "set key off\n");
	else
		od_strbuf_printf(b, "set key %s Left reverse samplen 2.5 spacing 1.25 width %.1f\n", places[l->where],
				 2 - 0.25 * (double)l->longest);
}

/* gnuplot keeps one line for ticks, and none between the label and a legend below. */
static void put_x_label(struct od_strbuf *b, const struct od_plot *p, enum od_plot_legend legend)
{
	if (p->x_label.len == 0 && p->tick_lines < 2)
		return;
	od_strbuf_printf(b, "set xlabel ");
	for (size_t i = 1; i < p->tick_lines; i++)
		od_strbuf_printf(b, "\"\\n\" . ");
	quote(b, p->x_label.len > 0 ? p->x_label.text : " ");
	od_strbuf_printf(b, p->x_label.len > 0 && legend == OD_LEGEND_BELOW ? " . \"\\n\"\n" : "\n");
}

static void put_y_label(struct od_strbuf *b, const struct od_plot *p)
{
	char label[200];

	snprintf(label, sizeof(label), "%s%s", p->y_label.len > 0 ? p->y_label.text : "",
		 begins_above_0(p) ? " (the axis begins above 0)" : "");
	if (label[0] != '\0')
		set_text(b, "ylabel", label);
}

static void put_head(struct od_strbuf *b, const struct od_plot *p)
{
	struct legend l = legend_of(p);
	unsigned height = p->height + (l.lines > 1 ? (unsigned)(l.lines - 1) * LEGEND_LINE_PX : 0);

	od_strbuf_printf(
		b,
		"set encoding utf8\n"
		"set terminal svg size %u,%u fixed noenhanced font \"DejaVu Sans,Helvetica,Arial,sans-serif,15\" "
		"background \"#ffffff\" linewidth 1.2\n"
		"set border 3 lc rgb \"#444444\"\n"
		"set grid ytics lc rgb \"#dddddd\" lt 1 lw 0.7\n"
		"set tics nomirror scale 0.5 textcolor rgb \"#000000\"\n"
		"set style fill solid 0.85 noborder\n",
		p->width, height);
	if (p->head.len > 0)
		od_strbuf_append(b, p->head.text, p->head.len);
	put_x_label(b, p, l.where);
	put_y_label(b, p);
	put_legend(b, &l);
	put_axes(b, p);
}

/* Commas go between the plotted elements; a band or an error bar is one beside its line. */
static void put_element(struct od_strbuf *b, size_t series, const char *fmt, ...) OD_PRINTF(3, 4);
static void put_element(struct od_strbuf *b, size_t series, const char *fmt, ...)
{
	char text[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	od_strbuf_printf(b, "%s\t$series%zu using %s", b->len > 0 ? ", \\\n" : "", series, text);
}

static void put_titled(struct od_strbuf *b, const struct od_series *s)
{
	if (s->title != NULL)
		od_strbuf_printf(b, " title %s", s->title);
	else
		od_strbuf_printf(b, " notitle");
}

static void put_line(struct od_strbuf *b, const struct od_series *s, size_t i)
{
	const char *colour = colours[i % N_COLOURS];
	unsigned marker = markers[i % N_COLOURS];
	unsigned dash = i < N_COLOURS ? 1 : 2;

	if (s->has_errors && s->kind == OD_PLOT_LINE)
		put_element(b, i, "1:3:4 with filledcurves fs transparent solid 0.25 noborder lc rgb \"%s\" notitle",
			    colour);
	else if (s->has_errors)
		put_element(b, i, "1:3:(0):($4 - $3) with " ERROR_BAR, colour);
	if (s->kind == OD_PLOT_POINTS)
		put_element(b, i, "1:2 with points pt %u ps 0.9 lc rgb \"%s\"", marker, colour);
	else if (s->n_points > MARKED_POINTS)
		put_element(b, i, "1:2 with lines lw 2 dt %u lc rgb \"%s\"", dash, colour);
	else
		put_element(b, i, "1:2 with linespoints lw 2 dt %u pt %u ps 0.8 lc rgb \"%s\"", dash, marker, colour);
	put_titled(b, s);
}

static void put_bars(struct od_strbuf *b, const struct od_plot *p, size_t i)
{
	const struct od_series *s = &p->series[i];
	size_t n = count_bars(p, p->n_series), at = count_bars(p, i);
	double width = BARS_WIDTH / (double)n, shift = ((double)at - ((double)n - 1) / 2) * width;

	put_element(b, i, "($1 + %.6f):2:(%.6f) with boxes lc rgb \"%s\"", shift, width * 0.92, colours[i % N_COLOURS]);
	put_titled(b, s);
	if (s->has_errors)
		put_element(b, i, "($1 + %.6f):3:(0):($4 - $3) with " ERROR_BAR, shift, "#222222");
}

static char *script_of(const struct od_plot *p, size_t *len)
{
	struct od_strbuf b = { 0 }, elements = { 0 };

	put_head(&b, p);
	for (size_t i = 0; i < p->n_series; i++) { /* x, y, from, to */
		const struct od_strbuf *data = &p->series[i].data;

		b.failed = b.failed || data->failed;
		od_strbuf_printf(&b, "$series%zu << END\n%sEND\n", i, data->len > 0 ? data->text : "");
	}
	for (size_t i = 0; i < p->n_series; i++) {
		if (p->series[i].kind == OD_PLOT_BARS)
			put_bars(&elements, p, i);
		else
			put_line(&elements, &p->series[i], i);
	}
	/* Of nothing gnuplot makes no picture. */
	if (is_empty(p))
		od_strbuf_printf(&b, "set label \"nothing to show\" at graph 0.5, graph 0.5 center\n"
				     "plot [1:2] [1:2] NaN notitle\n");
	else
		od_strbuf_printf(&b, "plot \\\n%s\n", elements.len > 0 ? elements.text : "");
	b.failed = b.failed || elements.failed || p->failed || p->head.failed || p->ticks.failed || p->x_label.failed ||
		   p->y_label.failed;
	od_strbuf_fini(&elements);
	return od_strbuf_take(&b, len);
}

/* Files without a name: gnuplot may write as much as it likes, and nobody waits for anybody. */
struct pipes {
	int in, out, says;
};

static void close_pipes(struct pipes *f)
{
	int fds[] = { f->in, f->out, f->says };

	for (size_t i = 0; i < 3; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
	}
}

static int open_pipes(struct pipes *f, const char *script, size_t len, struct od_err *err)
{
	f->in = memfd_create("script", MFD_CLOEXEC);
	f->out = memfd_create("picture", MFD_CLOEXEC);
	f->says = memfd_create("says", MFD_CLOEXEC);
	if (f->in < 0 || f->out < 0 || f->says < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot make a file in memory for gnuplot");
	return od_file_pwrite(f->in, script, len, 0, "script for gnuplot", err);
}

static int spawn_gnuplot(const struct pipes *f, char *const argv[], int *status, struct od_err *err)
{
	posix_spawn_file_actions_t actions;
	pid_t pid;
	int rc;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, f->in, STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, f->out, STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&actions, f->says, STDERR_FILENO);
	rc = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (rc == ENOENT || rc == EACCES)
		return od_fail(err, OD_ERR_MISSING,
			       "plots need gnuplot, which is not installed; "
			       "on Debian: apt-get install gnuplot-nox");
	if (rc != 0) {
		errno = rc;
		return od_fail_errno(err, OD_ERR_IO, "cannot start gnuplot");
	}
	while (waitpid(pid, status, 0) < 0) {
		if (errno != EINTR)
			return od_fail_errno(err, OD_ERR_IO, "waiting for gnuplot");
	}
	return OD_OK;
}

/* gnuplot shows the command, an arrow and then what is wrong: on one line, and its end, where the reason is. */
static int complain(const struct pipes *f, int status, struct od_err *err)
{
	char says[SAYS_BYTES] = "";
	off_t size = lseek(f->says, 0, SEEK_END);
	ssize_t n = pread(f->says, says, sizeof(says) - 1, size > SAYS_BYTES - 1 ? size - (SAYS_BYTES - 1) : 0);
	size_t used = 0;

	for (ssize_t i = 0; i < n; i++) {
		char c = (unsigned char)says[i] > 0x20 ? says[i] : ' '; /* bytes of UTF-8 stay */

		if (c != ' ' || (used > 0 && says[used - 1] != ' '))
			says[used++] = c;
	}
	says[used] = '\0';
	if (WIFSIGNALED(status))
		return od_fail(err, OD_ERR_INTERNAL, "gnuplot was ended by signal %d: %s", WTERMSIG(status), says);
	return od_fail(err, OD_ERR_INTERNAL, "gnuplot ended with status %d: %s", WEXITSTATUS(status), says);
}

static int take_picture(const struct pipes *f, const char *path, struct od_err *err)
{
	struct stat st;
	void *picture;
	int rc;

	if (fstat(f->out, &st) != 0)
		return od_fail_errno(err, OD_ERR_IO, "the picture of gnuplot");
	if (st.st_size == 0)
		return complain(f, 0, err);
	picture = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, f->out, 0);
	if (picture == MAP_FAILED)
		return od_fail_errno(err, OD_ERR_IO, "the picture of gnuplot");
	rc = od_file_write_atomic(path, picture, (size_t)st.st_size, err);
	munmap(picture, (size_t)st.st_size);
	return rc;
}

/* path NULL: nothing is kept of what gnuplot says. */
static int run_gnuplot(char *const argv[], const char *script, size_t len, const char *path, struct od_err *err)
{
	struct pipes f = { -1, -1, -1 };
	int status = 0, rc = open_pipes(&f, script, len, err);

	if (rc == OD_OK)
		rc = spawn_gnuplot(&f, argv, &status, err);
	if (rc == OD_OK && status != 0)
		rc = complain(&f, status, err);
	if (rc == OD_OK && path != NULL)
		rc = take_picture(&f, path, err);
	close_pipes(&f);
	return rc;
}

int od_plot_check(const char *dir, struct od_err *err)
{
	char *argv[] = { "gnuplot", "--version", NULL };
	int rc = run_gnuplot(argv, "", 0, NULL, err);

	if (rc == OD_OK)
		rc = od_mkdir_p(dir, err);
	if (rc == OD_OK && access(dir, W_OK | X_OK) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot write into %s", dir);
	return rc;
}

static int write_script(const char *svg, const char *script, size_t len, struct od_err *err)
{
	char path[PATH_MAX];
	size_t stem = strlen(svg) - strlen(".svg");

	if (stem + sizeof(".gp") > sizeof(path))
		return od_fail(err, OD_ERR_RANGE, "path too long: %s", svg);
	memcpy(path, svg, stem);
	memcpy(path + stem, ".gp", sizeof(".gp"));
	return od_file_write_atomic(path, script, len, err);
}

int od_plot_write(const struct od_plot *p, const char *path, struct od_err *err)
{
	char *argv[] = { "gnuplot", "-d", NULL }; /* -d: nobody's start-up file changes the picture */
	size_t len = strlen(path), script_len;
	char *script;
	int rc;

	if (len < sizeof(".svg") || strcmp(path + len - strlen(".svg"), ".svg") != 0)
		return od_fail(err, OD_ERR_ARG, "%s: a picture's name must end with .svg", path);
	script = script_of(p, &script_len);
	if (script == NULL)
		return od_fail(err, OD_ERR_NOMEM, "picture %s", path);
	rc = run_gnuplot(argv, script, script_len, path, err);
	if (rc == OD_OK && p->keep_script)
		rc = write_script(path, script, script_len, err);
	free(script);
	return rc == OD_OK ? rc : od_fail_within(err, "%s", path);
}

int od_plot_save(struct od_plot *p, const char *dir, const char *name, struct od_err *err)
{
	char path[PATH_MAX];
	int rc = od_path(path, sizeof(path), dir, name, err);

	if (rc == OD_OK)
		rc = od_plot_write(p, path, err);
	if (rc == OD_OK)
		od_log(OD_LOG_INFO, "drew %s", path);
	od_plot_free(p);
	return rc;
}
