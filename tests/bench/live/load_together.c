#include "tests/bench/live/load_together.h"

#include "common/base/clock.h"
#include "tests/bench/report/bench_stats.h"
#include "tests/bench/report/bench_table.h"
#include "tests/bench/report/load_draw.h"

#include <stdio.h>
#include <stdlib.h>

#define N_RULES 3 /* enum od_load_rule */

enum rows { DECODE, PREFILL, N_ROWS };
static const char *const rows_names[] = { "decode", "prefill" };

struct together {
	const struct load_together_opts *o;
	double *ms[N_RULES], *ratio[N_RULES]; /* [rounds]; ratio: to fifo's */
	double *bound; /* [rounds]: of the least time that any order could take to fifo's */
	uint64_t *run_ns; /* [n] */
};

static void draw_runs(const struct together *t, const struct load_case *c, enum rows rows, uint64_t *state)
{
	const struct od_config *cfg = od_pack_config(c->source->pack);
	const double weights = (double)OD_N_EXPERT_MATS * cfg->hidden * cfg->intermediate;
	const double bytes = (double)od_pack_expert_raw_bytes(c->source->pack);

	for (size_t i = 0; i < t->o->n; i++)
		t->run_ns[i] = (uint64_t)od_load_run_ns(weights, bytes, rows == DECODE ? 1 : od_load_draw_rows(state));
}

/* Everything has been loaded and the shortest run follows; or the first is there and all run. */
static double least_ns(const struct together *t, double load_ns)
{
	double sum = 0, shortest = (double)t->run_ns[0], all = load_ns * (double)t->o->n;

	for (size_t i = 0; i < t->o->n; i++) {
		sum += (double)t->run_ns[i];
		if ((double)t->run_ns[i] < shortest)
			shortest = (double)t->run_ns[i];
	}
	return all + shortest > load_ns + sum ? all + shortest : load_ns + sum;
}

static int measure_round(const struct together *t, const struct load_together_line *l, struct load_together *g,
			 double load_ns, size_t round, struct od_err *err)
{
	for (int r = 0; r < N_RULES; r++) {
		struct load_time time;
		int rc;

		g->rule = (enum od_load_rule)r;
		rc = load_run(&l->c, g, &time, err);
		if (rc != OD_OK)
			return rc;
		t->ms[r][round] = (double)time.ns / OD_NS_PER_MS;
		t->ratio[r][round] = t->ms[r][round] / t->ms[OD_LOAD_FIFO][round];
	}
	t->bound[round] = least_ns(t, load_ns) / OD_NS_PER_MS / t->ms[OD_LOAD_FIFO][round];
	return OD_OK;
}

static double median(double *x, size_t n)
{
	struct od_stats s;

	od_stats_of(x, n, &s);
	return s.median;
}

static void report_line(const struct together *t, const struct load_together_line *l, enum rows rows, bool pools,
			double load_ns, struct od_table *table)
{
	const size_t n = t->o->rounds;

	od_table_row(table, (struct od_cell[]){
				    OD_TEXT(l->source),
				    OD_TEXT(od_codec_names[od_pack_codec(l->c.source->pack)]),
				    OD_TEXT(od_form_names[l->c.source->form]),
				    OD_INT(l->c.n_inflaters),
				    OD_TEXT(rows_names[rows]),
				    OD_TEXT(pools ? "F S E" : "none"),
				    OD_REAL(load_ns / OD_NS_PER_MS),
				    OD_REAL(median(t->ms[OD_LOAD_FIFO], n)),
				    OD_REAL(100 * median(t->ratio[OD_LOAD_BLOCKS], n)),
				    OD_REAL(100 * median(t->ratio[OD_LOAD_JOHNSON], n)),
				    pools ? OD_NONE : OD_REAL(100 * median(t->bound, n)),
			    });
}

/* The loads alone, RUN after RUN, are what the rules go by; then every rule has the same experts with the same runs. */
static int measure_line(const struct together *t, const struct load_together_line *l, struct od_table *table,
			struct od_err *err)
{
	struct load_together g = { .run_ns = t->run_ns };
	uint64_t state = t->o->seed;
	struct load_time alone;
	double load_ns;
	int rc = load_run(&l->c, NULL, &alone, err);

	g.profile = alone.parts;
	load_ns = (double)alone.ns / (double)t->o->n;
	for (int i = 0; i < (l->c.source->form == OD_FORM_PLANES ? 2 : 1) * N_ROWS; i++) {
		const enum rows rows = (enum rows)(i % N_ROWS);

		g.pools = i >= N_ROWS;
		for (size_t round = 0; rc == OD_OK && round < t->o->rounds; round++) {
			draw_runs(t, &l->c, rows, &state);
			rc = measure_round(t, l, &g, load_ns, round, err);
		}
		if (rc == OD_OK)
			report_line(t, l, rows, g.pools, load_ns, table);
	}
	return rc;
}

static int bench(const struct together *t, const struct load_together_line *line, size_t n_lines, struct od_err *err)
{
	static const struct od_column columns[] = {
		{ "source", "source", 0 },
		{ "codec", "codec", 0 },
		{ "form", "form", 0 },
		{ "load_threads", "L", 0 },
		{ "rows", "rows", 0 },
		{ "cached", "cached", 0 },
		{ "load_ms", "a load, ms", 1 },
		{ "fifo_ms", "fifo, ms", 1 },
		{ "blocks_percent", "blocks, %", 1 },
		{ "johnson_percent", "johnson, %", 1 },
		{ "least_percent", "at least, %", 1 },
	};
	struct od_report *r;
	struct od_table *table;
	int rc = od_report_new(&r, "Experts of one RUN: until the last has run, in % of fifo's time", err);

	if (rc != OD_OK)
		return rc;
	od_report_fact(r, "together", "experts of a RUN", OD_INT(t->o->n), 0, NULL);
	od_report_fact(r, "slots", "slots", OD_INT(line->c.n_slots), 0, NULL);
	od_report_fact(r, "rounds", "rounds", OD_INT(t->o->rounds), 0, NULL);
	od_report_fact(r, "read_threads", "read threads", OD_INT(line->c.n_readers), 0, NULL);
	table = od_report_table(r, "orders", NULL, columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t i = 0; rc == OD_OK && i < n_lines; i++)
		rc = measure_line(t, &line[i], table, err);
	if (rc == OD_OK)
		rc = od_report_print(r, stdout, t->o->json, err);
	od_report_free(r);
	return rc;
}

int load_together_bench(const struct load_together_line *line, size_t n_lines, const struct load_together_opts *o,
			struct od_err *err)
{
	struct together t = { .o = o };
	double *all = calloc((2 * N_RULES + 1) * o->rounds, sizeof(*all));
	int rc;

	t.run_ns = calloc(o->n, sizeof(*t.run_ns));
	for (int r = 0; all != NULL && r < N_RULES; r++) {
		t.ms[r] = all + (size_t)r * o->rounds;
		t.ratio[r] = all + (size_t)(N_RULES + r) * o->rounds;
	}
	t.bound = all != NULL ? all + 2 * N_RULES * o->rounds : NULL;
	rc = all != NULL && t.run_ns != NULL ? bench(&t, line, n_lines, err) :
					       od_fail(err, OD_ERR_NOMEM, "%zu experts of a RUN", o->n);
	free(t.run_ns);
	free(all);
	return rc;
}
