#include "main-node/cluster/want_backlog.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LOADS 8192 /* loads beyond these are left out of the estimate */
#define MOST_LAYER_NS 2e9 /* a longer time between layers is a pause */
#define NEW_SHARE 0.125 /* share of a new time in the mean */
#define MOST_LATE_LAYERS 16 /* a worker is at most so many layers behind on paper; older debt is forgotten */

int odm_backlog_init(struct odm_backlog *b, uint32_t max_workers, struct od_err *err)
{
	*b = (struct odm_backlog){ .max = MAX_LOADS, .max_workers = max_workers };
	b->load = calloc(b->max, sizeof(*b->load));
	b->path = calloc(max_workers, sizeof(*b->path));
	b->through = calloc(max_workers, sizeof(*b->through));
	if (b->load != NULL && b->path != NULL && b->through != NULL)
		return OD_OK;
	odm_backlog_fini(b);
	return od_fail(err, OD_ERR_NOMEM, "loads that are ordered");
}

void odm_backlog_fini(struct odm_backlog *b)
{
	free(b->load);
	free(b->path);
	free(b->through);
	*b = (struct odm_backlog){ 0 };
}

static bool is_before(const struct odm_backlog_load *l, uint64_t step, uint32_t m)
{
	return l->step < step || (l->step == step && l->m < m);
}

static bool is_of(const struct odm_backlog_load *l, uint64_t step, uint32_t m)
{
	return l->step == step && l->m == m;
}

/* Layers from the last router to this one, if only decode steps come between. */
static double layers_until(const struct odm_backlog *b, uint64_t step, uint32_t m)
{
	return step == b->step ? (double)m - b->m : (double)b->n_moe - b->m + m;
}

/* A load of a layer that has run: advances the time at which its worker had ended such loads, on paper. */
static void end_load(struct odm_backlog *b, const struct odm_backlog_load *l)
{
	const double most = b->paper_ns + MOST_LATE_LAYERS * b->pace_ns;
	double *through;

	if (l->id >= b->max_workers)
		return;
	through = &b->through[l->id];
	*through = fmin(most, fmax(*through, l->ordered) + l->load_ns);
}

void odm_backlog_reached(struct odm_backlog *b, uint64_t step, uint32_t m, uint32_t n_moe, uint64_t stall_ns,
			 uint64_t now)
{
	const double ns = (double)(now - b->reached_ns);
	const bool follows = step == b->step + 1 || (step == b->step && m > b->m);
	size_t over = 0;

	if (b->reached_ns != 0 && ns < MOST_LAYER_NS && follows) {
		const double layers = layers_until(b, step, m), share = b->layer_ns > 0 ? NEW_SHARE : 1;

		while (over < b->n && (is_before(&b->load[over], step, m) || is_of(&b->load[over], step, m)))
			over++;
		b->layer_ns += share * (ns / layers - b->layer_ns);
		b->stall_ns += share * (fmin((double)stall_ns, ns / layers) - b->stall_ns);
		b->loads += share * ((double)over / layers - b->loads);
		b->paper_ns += b->pace_ns * layers;
	} else {
		b->paper_ns += ns; /* a prompt's step or a pause was between: workers caught up */
	}
	b->step = step;
	b->m = m;
	b->n_moe = n_moe;
	b->reached_ns = now;
	for (over = 0; over < b->n && (is_before(&b->load[over], step, m) || is_of(&b->load[over], step, m)); over++)
		end_load(b, &b->load[over]);
	memmove(b->load, b->load + over, (b->n - over) * sizeof(*b->load));
	b->n -= over;
}

static double comes_at(const struct odm_backlog *b, uint64_t step, uint32_t m)
{
	return b->paper_ns + b->pace_ns * layers_until(b, step, m);
}

static uint32_t index_of(const struct odm_deal_times *times, uint32_t n_workers, uint32_t id)
{
	uint32_t w = 0;

	while (w < n_workers && times[w].id != id)
		w++;
	return w;
}

/* When the worker's slot for its next load, the k-th of those in `before`, is free: when the load that many slots
 * earlier has run. */
static double slot_free(const struct odm_backlog *b, size_t before, const struct odm_deal_times *t, uint32_t slots)
{
	for (size_t i = before; i-- > 0;) {
		if (b->load[i].id == t->id && slots-- == 1)
			return comes_at(b, b->load[i].step, b->load[i].m) + t->expert.run;
	}
	return 0;
}

/* The shortest time of a layer that these workers allow: without waits for loads, or all of them loading all the
 * time. */
static double best_pace(const struct odm_backlog *b, const struct odm_deal_times *times, uint32_t n_workers)
{
	double rate = 0;

	for (uint32_t w = 0; w < n_workers; w++)
		rate += 1 / times[w].expert.load;
	return fmin(b->layer_ns, fmax(b->layer_ns - b->stall_ns, b->loads / rate));
}

void odm_backlog_begin(struct odm_backlog *b, uint64_t step, uint32_t m, const uint32_t *slots,
		       struct odm_deal_times *times, uint32_t n_workers, uint64_t now)
{
	double paper;
	size_t n = 0;

	b->pace_ns = best_pace(b, times, n_workers);
	/* between two routers, time on paper follows the clock, but not beyond a layer's time */
	paper = b->paper_ns + fmin(b->pace_ns, (double)(now - b->reached_ns));
	b->now = paper;
	for (uint32_t w = 0; w < n_workers; w++)
		b->path[w] = times[w].id < b->max_workers ? b->through[times[w].id] : 0;
	for (; n < b->n && is_before(&b->load[n], step, m); n++) {
		const struct odm_backlog_load *l = &b->load[n];
		const uint32_t w = index_of(times, n_workers, l->id);

		if (w < n_workers)
			b->path[w] =
				l->load_ns + fmax(l->ordered, fmax(b->path[w], slot_free(b, n, &times[w], slots[w])));
	}
	for (uint32_t w = 0; w < n_workers; w++) {
		times[w].begin = fmax(0, b->path[w] - paper);
		times[w].layer = fmax(0, comes_at(b, step, m) - paper);
		times[w].held = 0;
		times[w].freed = fmax(0, slot_free(b, n, &times[w], 1) - paper);
	}
	for (size_t i = 0; i < n; i++) {
		const uint32_t w = index_of(times, n_workers, b->load[i].id);

		if (w < n_workers)
			times[w].held++;
	}
}

void odm_backlog_clear(struct odm_backlog *b, uint64_t step, uint32_t m)
{
	size_t kept = 0;

	for (size_t i = 0; i < b->n; i++)
		if (!is_of(&b->load[i], step, m))
			b->load[kept++] = b->load[i];
	b->n = kept;
}

void odm_backlog_add(struct odm_backlog *b, uint64_t step, uint32_t m, uint32_t id, double load_ns)
{
	size_t at = b->n;

	if (b->n == b->max || step < b->step || (step == b->step && m <= b->m))
		return;
	for (; at > 0 && !is_before(&b->load[at - 1], step, m) && !is_of(&b->load[at - 1], step, m); at--)
		b->load[at] = b->load[at - 1];
	b->load[at] =
		(struct odm_backlog_load){ .step = step, .m = m, .id = id, .load_ns = load_ns, .ordered = b->now };
	b->n++;
}
