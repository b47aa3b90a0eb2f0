/* bench_deal.c - od-bench deal: main's time to deal a layer's experts to workers. */
#include "common/base/clock.h"
#include "main-node/cluster/placement.h"
#include "tests/bench/bench.h"
#include "tests/bench/report/bench_stats.h"
#include "tests/bench/report/bench_table.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_EXPERTS 1024u
#define DEALS 16u /* deals of a turn: several microseconds, so that the clock does not count */
#define TURNS 201u

static const size_t sizes[] = { 2, 8, 32, 128, 256 };
enum { N_SIZES = sizeof(sizes) / sizeof(sizes[0]) };

struct deal {
	uint64_t workers, group, moe;
	uint16_t expert[MAX_EXPERTS];
	uint32_t worker[MAX_EXPERTS], *scratch;
};

/* As if caches had something of two experts in three. */
static void cost_of(void *arg, uint32_t worker, uint32_t m, const uint16_t *expert, size_t n, uint8_t *cost)
{
	(void)arg;
	for (size_t i = 0; i < n; i++)
		cost[i] = (worker + m + expert[i]) % 3 == 0 ? ODM_COST_LOAD : ODM_COST_SM;
}

/* Median microseconds of one deal. */
static double time_of(struct deal *d, size_t n, bool many, bool caches)
{
	struct odm_groups g = odm_groups_make((uint32_t)d->workers, (uint32_t)d->group, 0, (uint32_t)d->moe);
	double us[TURNS];

	g.few = many ? 0 : UINT32_MAX;
	g.homes = g.still = caches;
	g.cost = caches ? cost_of : NULL;
	for (size_t t = 0; t < TURNS; t++) {
		const uint64_t begin_ns = od_now_ns();

		for (uint32_t i = 0; i < DEALS; i++)
			odm_deal(&g, t, i % (uint32_t)d->moe, d->expert, n, NULL, NULL, d->worker, d->scratch);
		us[t] = (double)(od_now_ns() - begin_ns) / 1e3 / DEALS;
	}
	od_stats_sort(us, TURNS);
	return us[TURNS / 2];
}

static int report(struct deal *d, bool json, struct od_err *err)
{
	static const struct od_column columns[] = {
		{ "experts", "experts", 0 },
		{ "group_us", "group, us", 2 },
		{ "group_caches_us", "with caches", 2 },
		{ "all_us", "all workers, us", 2 },
		{ "all_caches_us", "with caches", 2 },
	};
	struct od_table *table;
	struct od_report *r;
	int rc = od_report_new(&r, "Dealing the experts of a layer", err);

	if (rc != OD_OK)
		return rc;
	od_report_fact(r, "workers", "workers", OD_INT(d->workers), 0, NULL);
	od_report_fact(r, "group", "workers of a group", OD_INT(d->group), 0, NULL);
	table = od_report_table(r, "deals", NULL, columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t i = 0; i < N_SIZES; i++) {
		const struct od_cell cells[] = { OD_INT(sizes[i]), OD_REAL(time_of(d, sizes[i], false, false)),
						 OD_REAL(time_of(d, sizes[i], false, true)),
						 OD_REAL(time_of(d, sizes[i], true, false)),
						 OD_REAL(time_of(d, sizes[i], true, true)) };

		od_table_row(table, cells);
	}
	rc = od_report_print(r, stdout, json, err);
	od_report_free(r);
	return rc;
}

int od_bench_deal(int argc, char **argv, struct od_err *err)
{
	struct deal d = { .workers = 16, .group = 8, .moe = 12 };
	bool help = false, json = false;
	size_t n;
	const struct od_arg table[] = {
		{ "workers", OD_ARG_UINT, &d.workers, "N", "of the cluster; default 16", 1, 1024, NULL },
		{ "group", OD_ARG_UINT, &d.group, "G", "workers that serve a layer; default 8", 1, 1024, NULL },
		{ "json", OD_ARG_FLAG, &json, NULL, "the figures as JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &help, NULL, "this text", 0, 0, NULL },
	};
	const size_t n_table = sizeof(table) / sizeof(table[0]);
	int rc = od_args_parse(table, n_table, argc, argv, NULL, 0, &n, err);

	if (rc != OD_OK)
		return rc;
	if (help) {
		od_bench_usage("deal [OPTIONS]",
			       "Measures how long main needs to place the experts of a layer: on the layer's group\n"
			       "(few rows), or on all workers (a prompt).",
			       table, n_table);
		return OD_OK;
	}
	if (d.group > d.workers)
		d.group = d.workers; /* as main has it */
	for (uint16_t e = 0; e < MAX_EXPERTS; e++)
		d.expert[e] = e;
	d.scratch = calloc(ODM_DEAL_SCRATCH(MAX_EXPERTS, d.workers), sizeof(*d.scratch));
	if (d.scratch == NULL)
		return od_fail(err, OD_ERR_NOMEM, "scratch of %lu workers", (unsigned long)d.workers);
	rc = report(&d, json, err);
	free(d.scratch);
	return rc;
}
