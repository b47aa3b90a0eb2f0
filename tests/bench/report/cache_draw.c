#include "tests/bench/report/cache_draw.h"

#include "common/base/clock.h"

#include <math.h>
#include <stdio.h>

const struct cache_kind cache_kinds[CACHE_KINDS] = {
	{ "rank", CACHE_RANK, true },	     { "rank F", CACHE_RANK, false },
	{ "lfu", CACHE_LFU, false },	     [CACHE_KIND_LRU] = { "lru", CACHE_LRU, false },
	{ "marking", CACHE_MARKING, false }, { "fifo", CACHE_FIFO, false },
	{ "belady", CACHE_BELADY, false },
};

double cache_makespan_ms(const struct cache_result *r)
{
	return r->makespan_ns / (double)r->layers / OD_NS_PER_MS;
}

double cache_read_percent(const struct cache_result *r)
{
	return 100.0 * (double)r->read_bytes / (double)r->cold_bytes;
}

double cache_rank_share(const struct cache_world *w, uint32_t rank)
{
	uint64_t uses = 0, visits = 0;

	for (uint32_t i = 0; i < w->groups.n_workers; i++) {
		uses += cache_own_layers(w, i) > 0 ? w->profile[i].uses[rank] : 0;
		visits += w->profile[i].visits;
	}
	return visits > 0 ? (double)uses / (double)visits : 0;
}

static double makespan_percent(const struct cache_study *s, const struct cache_result *r)
{
	return 100 * cache_makespan_ms(r) / cache_makespan_ms(&s->cold);
}

/* Beside what everybody knows: the policies lie too close together to be told apart between nothing and all. Where LRU
 * has next to nothing to load, what others load is many times as much, and would hide the rest. */
static double makespan_to_lru(const struct cache_study *s, const struct cache_result *r)
{
	const size_t budget = (size_t)(r - s->result[0]) / CACHE_KINDS;
	const double lru = cache_makespan_ms(&s->result[budget][CACHE_KIND_LRU]);

	return lru > 0.01 * cache_makespan_ms(&s->cold) ? 100 * cache_makespan_ms(r) / lru : NAN;
}

static double stay(const struct cache_study *s, const struct cache_result *r)
{
	(void)s;
	return r->stays > 0 ? r->stay_steps / (double)r->stays : NAN;
}

struct curves {
	double (*y)(const struct cache_study *s, const struct cache_result *r);
	const char *name, *title, *label;
	bool log;
};

static const struct curves all_curves[] = {
	{ makespan_percent, "cache-makespan.svg", "A layer's loads", "% of the time without a cache", false },
	{ makespan_to_lru, "cache-makespan-lru.svg", "A layer's loads compared with LRU", "% of the time with LRU",
	  false },
	{ stay, "cache-stay.svg", "How long an expert stays", "steps", true },
};

static int draw_curves(const struct cache_study *s, const struct curves *c, const char *dir, struct od_err *err)
{
	struct od_plot *p;
	char title[240];
	int rc;

	snprintf(title, sizeof(title), "%s\nworkers: %u, groups: %u, decode steps: %zu", c->title,
		 s->world.groups.n_workers, s->world.groups.n_groups, s->routes.n_decode_steps);
	rc = od_plot_new(&p, title, err);
	if (rc != OD_OK)
		return rc;
	od_plot_labels(p, "cache, % of all experts as published", c->label);
	od_plot_x_range(p, 0, NAN);
	if (c->log)
		od_plot_y_log10(p);
	else
		od_plot_y_range(p, 0, NAN);
	for (size_t k = 0; k < CACHE_KINDS; k++) {
		struct od_series *line = od_plot_series(p, OD_PLOT_LINE, cache_kinds[k].name);

		for (size_t b = 0; b < s->n_budgets; b++)
			od_series_point(line, s->budget[b].percent, c->y(s, &s->result[b][k]), NAN, NAN);
	}
	return od_plot_save(p, dir, c->name, err);
}

static int draw_ranks(const struct cache_study *s, const char *dir, struct od_err *err)
{
	struct od_series *bars;
	struct od_plot *p;
	int rc = od_plot_new(&p, "How often the expert of each rank was used when a worker had its layer's turn", err);

	if (rc != OD_OK)
		return rc;
	od_plot_labels(p, "rank, by uses until then", "turns in which it was used, %");
	od_plot_y_range(p, 0, NAN);
	bars = od_plot_series(p, OD_PLOT_BARS, NULL);
	for (uint32_t rank = 0; rank < s->routes.n_experts; rank++)
		od_series_point(bars, rank + 1, 100 * cache_rank_share(&s->world, rank), NAN, NAN);
	return od_plot_save(p, dir, "cache-ranks.svg", err);
}

int cache_draw(const struct cache_study *s, const char *dir, struct od_err *err)
{
	int rc = draw_ranks(s, dir, err);

	for (size_t i = 0; rc == OD_OK && i < sizeof(all_curves) / sizeof(all_curves[0]); i++)
		rc = draw_curves(s, &all_curves[i], dir, err);
	return rc;
}
