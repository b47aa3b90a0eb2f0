#include "main-node/cluster/want_backlog.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LOADS 8192 /* loads beyond these are left out of the estimate */
#define MOST_LAYER_NS 2e9 /* a longer time between layers is a pause */
#define NEW_SHARE 0.125 /* share of a new time in the mean */
#define MOST_LATE_LAYERS 16 /* a worker is at most so many layers behind on paper; older debt is forgotten */

/* A worker's loads so far, in the order of layers. */
struct odm_backlog_worker {
	double path; /* time on paper at which they have ended */
	uint32_t n; /* number */
	uint32_t n_window, first,
		last; /* the newest ones, as many as it has slots: their number, the first and last of them */
};

int odm_backlog_init(struct odm_backlog *b, uint32_t max_workers, struct od_err *err)
{
	*b = (struct odm_backlog){ .max = MAX_LOADS, .max_workers = max_workers };
	b->load = calloc(b->max, sizeof(*b->load));
	b->worker = calloc(max_workers, sizeof(*b->worker));
	b->index = calloc(max_workers, sizeof(*b->index));
	b->next = calloc(b->max, sizeof(*b->next));
	b->through = calloc(max_workers, sizeof(*b->through));
	if (b->load != NULL && b->worker != NULL && b->index != NULL && b->next != NULL && b->through != NULL)
		return OD_OK;
	odm_backlog_fini(b);
	return od_fail(err, OD_ERR_NOMEM, "loads that are ordered");
}

void odm_backlog_fini(struct odm_backlog *b)
{
	free(b->load);
	free(b->worker);
	free(b->index);
	free(b->next);
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

/* NULL: it is not among the workers that are dealt to. */
static struct odm_backlog_worker *worker_of(const struct odm_backlog *b, const struct odm_deal_times *times,
					    uint32_t n_workers, uint32_t id)
{
	const uint32_t w = id < b->max_workers ? b->index[id] : n_workers;

	return w < n_workers && times[w].id == id ? &b->worker[w] : NULL;
}

/* The time at which a load's slot is free again: when it has run. */
static double has_run(const struct odm_backlog *b, uint32_t load, const struct odm_deal_times *t)
{
	return comes_at(b, b->load[load].step, b->load[load].m) + t->expert.run;
}

/* The worker's next load. It takes the slot of the load that many slots before it. */
static void add_load(struct odm_backlog *b, struct odm_backlog_worker *w, uint32_t i, const struct odm_deal_times *t,
		     uint32_t slots)
{
	const struct odm_backlog_load *l = &b->load[i];
	const bool full = slots > 0 && w->n_window == slots;

	w->path = l->load_ns + fmax(l->ordered, fmax(w->path, full ? has_run(b, w->first, t) : 0));
	if (w->n++ > 0)
		b->next[w->last] = i;
	w->last = i;
	if (w->n_window == 0)
		w->first = i;
	else if (full)
		w->first = b->next[w->first];
	w->n_window += !full;
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

	b->pace_ns = best_pace(b, times, n_workers);
	/* between two routers, time on paper follows the clock, but not beyond a layer's time */
	paper = b->paper_ns + fmin(b->pace_ns, (double)(now - b->reached_ns));
	b->now = paper;
	for (uint32_t w = 0; w < n_workers; w++) {
		const uint32_t id = times[w].id;

		b->worker[w] = (struct odm_backlog_worker){ .path = id < b->max_workers ? b->through[id] : 0 };
		if (id < b->max_workers)
			b->index[id] = w;
	}
	for (uint32_t i = 0; i < b->n && is_before(&b->load[i], step, m); i++) {
		struct odm_backlog_worker *w = worker_of(b, times, n_workers, b->load[i].id);

		if (w != NULL)
			add_load(b, w, i, &times[w - b->worker], slots[w - b->worker]);
	}
	for (uint32_t w = 0; w < n_workers; w++) {
		const struct odm_backlog_worker *k = &b->worker[w];

		times[w].begin = fmax(0, k->path - paper);
		times[w].layer = fmax(0, comes_at(b, step, m) - paper);
		times[w].held = k->n;
		times[w].freed = k->n > 0 ? fmax(0, has_run(b, k->last, &times[w]) - paper) : 0;
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
