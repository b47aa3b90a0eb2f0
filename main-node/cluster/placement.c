#include "main-node/cluster/placement.h"

#include "common/pack/share.h"

#include <math.h>
#include <string.h>

/* Experts of a group for each of its workers: as a rule there is a slot for each. */
#define FEW_PER_WORKER 2

#define TICK_NS 100.0
#define MOST_TICKS (1u << 30) /* 107 s */
#define MOVES_ONE_OF 128
#define HOMING_SHARE 0.03 /* share of the time that is given to loading experts at home */

struct odm_groups odm_groups_make(uint32_t n_workers, uint32_t asked, uint32_t top_k, uint32_t n_moe)
{
	const uint32_t size = asked > 0 ? asked : top_k, few = FEW_PER_WORKER * (size < n_workers ? size : n_workers);

	return (struct odm_groups){ .n_workers = n_workers,
				    .n_many = n_workers,
				    .n_groups = od_share_groups(n_workers, asked, top_k),
				    .n_moe = n_moe,
				    .few = few > top_k ? few : top_k }; /* a row's are always few */
}

uint32_t odm_group_of_layer(const struct odm_groups *g, uint64_t step, uint32_t m)
{
	uint64_t start = !g->still && g->n_groups > 1 && g->n_moe % g->n_groups == 1 ? step % g->n_groups : 0;

	return (uint32_t)((m + start) % g->n_groups);
}

uint32_t odm_group_size(const struct odm_groups *g, uint32_t group)
{
	return (g->n_workers - group + g->n_groups - 1) / g->n_groups;
}

uint32_t odm_group_worker(const struct odm_groups *g, uint32_t group, uint32_t i)
{
	return group + i * g->n_groups;
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 31) * 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
	return x ^ x >> 32;
}

/* An expert's place in its layer's circle; the worker's arc begins at homes_from. So a layer's experts are shared
 * evenly, and few have another home when shares change a little. */
static double circle_place(const struct odm_groups *g, uint32_t m, uint16_t expert)
{
	const uint64_t turned = mix((uint64_t)m + 1);

	return ((double)((expert + turned) % g->n_experts) + (double)(turned >> 11) * 0x1p-53) / g->n_experts;
}

#define NO_ARC (-INFINITY)

static double arc_from(const struct odm_deal_times *t)
{
	return t->home > 0 ? t->homes_from : NO_ARC;
}

/* The worker whose arc begins closest before the place. */
struct home_search {
	double at, best;
	uint32_t home;
};

static struct home_search home_search(const struct odm_groups *g, uint32_t m, uint16_t expert)
{
	return (struct home_search){ .at = circle_place(g, m, expert), .best = 2 };
}

static void look_at(struct home_search *h, uint32_t w, double from)
{
	const double behind = h->at >= from ? h->at - from : h->at - from + 1;

	h->home = behind < h->best ? w : h->home;
	h->best = behind < h->best ? behind : h->best;
}

uint32_t odm_home(const struct odm_groups *g, uint32_t m, uint16_t expert)
{
	struct home_search h = home_search(g, m, expert);

	for (uint32_t w = 0; w < g->n_workers; w++)
		look_at(&h, w, arc_from(&g->times[w]));
	return h.home;
}

/* A layer's experts on their way to workers. Times are in ticks. */
struct dealer {
	const struct odm_groups *g;
	uint64_t step;
	uint32_t m, group;
	const uint16_t *expert;
	const uint32_t *rows; /* NULL: one each */
	size_t n;
	/* Scratch. */
	double *drawn; /* [n]: of each, uniform in (0, 1) */
	double *arc; /* [n_workers]: with homes, where its arc begins */
	uint32_t *run; /* [n_workers]: a run of one row takes so long */
	uint32_t *loading; /* [n_workers]: a load takes so long */
	uint32_t *pick, *key; /* [n_workers]: few: the expert that it would be dealt next, and its rank */
	uint32_t *load; /* [n_workers]: when each is through */
	uint32_t *path; /* [n_workers]: when its loads are through */
	uint32_t *loads; /* [n_workers]: their number */
	uint32_t *next; /* [n_workers]: position in `order`; all experts before it are dealt */
	uint32_t *home; /* [n]: with homes, the expert's; or the worker that loads it already; else ODM_NOBODY */
	uint32_t *by_rows; /* [n]: indices of experts, the one with most rows first */
	uint32_t *order; /* [n_workers][n]: indices of experts, the cheapest first; ODM_NOBODY behind the last */
	uint8_t *cost; /* [n_workers][n]; ODM_COST_LACKS: the expert is not dealt to this worker */
};

static uint32_t ticks(double ns)
{
	return ns < TICK_NS * MOST_TICKS ? (uint32_t)(ns / TICK_NS) : MOST_TICKS;
}

static uint32_t plus(uint32_t a, uint32_t b)
{
	return a + b < MOST_TICKS ? a + b : MOST_TICKS;
}

/* Uniform in (0, 1), of an expert of this layer. */
static double draw(const struct dealer *d, size_t i)
{
	const uint64_t number = (d->step * d->g->n_moe + d->m) << 16 | d->expert[i];

	return ((double)(mix(number) >> 11) + 0.5) * 0x1p-53;
}

static uint32_t run_ticks(const struct odm_deal_times *t, double rows)
{
	return ticks(odm_expert_run_ns(&t->expert, rows) + rows * t->row_link);
}

/* As odm_home, from a table that is read quickly. */
static uint32_t home_of(const struct dealer *d, size_t i)
{
	struct home_search h = home_search(d->g, d->m, d->expert[i]);

	for (uint32_t w = 0; w < d->g->n_workers; w++)
		look_at(&h, w, d->arc[w]);
	return h.home;
}

static void make_dealer(struct dealer *d, uint32_t *scratch)
{
	const size_t n_workers = d->g->n_workers;

	scratch += (uintptr_t)scratch % sizeof(double) / sizeof(*scratch);
	d->drawn = (double *)(void *)scratch;
	d->arc = d->drawn + d->n;
	d->run = scratch + 2 * d->n + 2 * n_workers;
	d->loading = d->run + n_workers;
	d->pick = d->loading + n_workers;
	d->key = d->pick + n_workers;
	d->load = d->key + n_workers;
	d->path = d->load + n_workers;
	d->loads = d->path + n_workers;
	d->next = d->loads + n_workers;
	d->home = d->next + n_workers;
	d->by_rows = d->home + d->n;
	d->order = d->by_rows + d->n;
	d->cost = (uint8_t *)(d->order + d->n * n_workers);
	for (size_t w = 0; w < n_workers; w++) {
		d->arc[w] = arc_from(&d->g->times[w]);
		d->run[w] = run_ticks(&d->g->times[w], 1);
		d->loading[w] = ticks(d->g->times[w].expert.load);
	}
	for (size_t i = 0; i < d->n; i++) {
		d->home[i] = d->g->homes ? home_of(d, i) : ODM_NOBODY;
		d->drawn[i] = draw(d, i);
	}
}

static bool is_member(const struct dealer *d, uint32_t w)
{
	return w % d->g->n_groups == d->group;
}

static uint8_t *cost_at(const struct dealer *d, uint32_t w, size_t i)
{
	return &d->cost[w * d->n + i];
}

static void ask(const struct dealer *d, uint32_t w)
{
	if (d->g->cost == NULL)
		memset(cost_at(d, w, 0), ODM_COST_LOAD, d->n);
	else
		d->g->cost(d->g->cost_arg, w, d->m, d->expert, d->n, cost_at(d, w, 0));
}

/* An expert that all workers lack may go to any. */
static void ask_all(const struct dealer *d)
{
	for (uint32_t w = 0; w < d->g->n_workers; w++)
		ask(d, w);
	for (size_t i = 0; i < d->n && d->g->cost != NULL; i++) {
		uint32_t w = 0;

		while (w < d->g->n_workers && *cost_at(d, w, i) == ODM_COST_LACKS)
			w++;
		for (uint32_t any = 0; any < d->g->n_workers && w == d->g->n_workers; any++)
			*cost_at(d, any, i) = ODM_COST_LOAD;
	}
}

/* Times at which a worker has ended its loads, and all of its work. */
struct deal_end {
	uint32_t path, load;
};

/* Time at which it has a slot for its next load. Each expert of this layer frees its slot when it has run. */
static uint32_t slot_at(const struct dealer *d, uint32_t w, uint32_t run)
{
	const struct odm_deal_times *t = &d->g->times[w];
	const uint32_t n = d->loads[w], later = (t->slots - 1) * run;

	if (t->slots == 0 || n + t->held < t->slots)
		return 0;
	if (n < t->slots)
		return ticks(t->freed);
	return d->load[w] > later ? d->load[w] - later : 0;
}

/* If an expert of this cost is dealt to it. Loads and runs are two machines in a row. */
static struct deal_end end_with(const struct dealer *d, uint32_t w, size_t i, uint8_t cost)
{
	const struct odm_deal_times *t = &d->g->times[w];
	const uint32_t run = d->rows != NULL ? run_ticks(t, d->rows[i]) : d->run[w];
	const uint32_t units = cost == ODM_COST_LACKS ? ODM_COST_LOAD : cost;
	struct deal_end e = { d->path[w], d->load[w] };

	if (units > 0) {
		const uint32_t slot = slot_at(d, w, run);

		e.path = plus(slot > e.path ? slot : e.path,
			      units == ODM_COST_LOAD ? d->loading[w] : ticks(t->expert.load * units / ODM_COST_LOAD));
	}
	e.load = plus(units > 0 && e.path > e.load ? e.path : e.load, run);
	return e;
}

/* A bound that is quick to find: with this cost no expert ends earlier. So most workers need no more arithmetic. */
static uint32_t least_end(const struct dealer *d, uint32_t w, uint8_t cost)
{
	const uint32_t loaded = cost >= ODM_COST_LOAD ? plus(d->path[w], d->loading[w]) : 0;

	return plus(loaded > d->load[w] ? loaded : d->load[w], d->run[w]);
}

/* A choice's rank: the smallest wins. An expert that is to be loaded leaves its home for a worker that ends clearly
 * earlier, but not always, so that in the end its home caches it: the less that costs, the more often it stays. On
 * average this takes HOMING_SHARE of the time from the layer's beginning on. */
static uint32_t key_of(const struct dealer *d, uint32_t w, size_t i, uint32_t load)
{
	const bool leaves = d->home[i] != ODM_NOBODY && d->home[i] != w && *cost_at(d, w, i) > 0;

	if (!leaves)
		return load;
	return plus(load, ticks(fmax(0, load * TICK_NS - d->g->times[w].layer) * HOMING_SHARE / d->drawn[i]));
}

static void give(const struct dealer *d, uint32_t w, size_t i, uint8_t cost)
{
	const struct deal_end e = end_with(d, w, i, cost);

	d->path[w] = e.path;
	d->load[w] = e.load;
	d->loads[w] += cost > 0;
}

static void begin_loads(const struct dealer *d)
{
	for (uint32_t w = 0; w < d->g->n_workers; w++) {
		d->load[w] = ticks(d->g->times[w].layer + d->g->times[w].link);
		d->path[w] = ticks(d->g->times[w].begin);
		d->loads[w] = 0;
	}
}

/* ---- Few ---- */

/* An expert that a worker loads already stays with that worker. */
static void deal_again(const struct dealer *d, uint32_t (*keep)(void *arg, uint16_t expert), void *arg,
		       uint32_t *worker)
{
	begin_loads(d);
	for (size_t i = 0; i < d->n; i++) {
		const uint32_t w = keep != NULL ? keep(arg, d->expert[i]) : ODM_NOBODY;

		worker[i] = w < d->g->n_workers ? w : ODM_NOBODY;
		if (worker[i] != ODM_NOBODY)
			give(d, w, i, *cost_at(d, w, i));
	}
}

#define N_RANKS (2 * (ODM_COST_LOAD + 1))

static uint32_t rank_of(const struct dealer *d, uint32_t w, size_t i)
{
	return 2u * *cost_at(d, w, i) + (d->home[i] != w);
}

/* By cost, of equal ones those first whose home it is, then by their numbers. */
static void sort_by_cost(const struct dealer *d, uint32_t w)
{
	uint32_t begin[N_RANKS + 1] = { 0 };
	uint32_t *order = d->order + w * d->n;

	for (size_t i = 0; i < d->n; i++)
		if (*cost_at(d, w, i) != ODM_COST_LACKS)
			begin[rank_of(d, w, i) + 1]++;
	for (size_t c = 1; c <= N_RANKS; c++)
		begin[c] += begin[c - 1];
	for (size_t i = begin[N_RANKS]; i < d->n; i++)
		order[i] = ODM_NOBODY;
	for (size_t i = 0; i < d->n; i++)
		if (*cost_at(d, w, i) != ODM_COST_LACKS)
			order[begin[rank_of(d, w, i)]++] = (uint32_t)i;
	d->next[w] = 0;
}

/* Rank among equal workers; the smallest is dealt the expert: its home, or the group by turns, then the others. */
static uint32_t turn(const struct dealer *d, uint32_t w, size_t i)
{
	const uint32_t size = odm_group_size(d->g, d->group), begin = d->m / d->g->n_groups;

	if (d->home[i] == w)
		return 0;
	return 1 + (is_member(d, w) ? (w / d->g->n_groups + size - begin % size) % size : size + w);
}

/* Finds the undealt expert that costs worker w least, among those that it may run; ODM_NOBODY: there is none. */
static uint32_t cheapest(const struct dealer *d, uint32_t w, const uint32_t *worker)
{
	const uint32_t *order = d->order + w * d->n;

	while (d->next[w] < d->n && order[d->next[w]] != ODM_NOBODY && worker[order[d->next[w]]] != ODM_NOBODY)
		d->next[w]++;
	return d->next[w] < d->n ? order[d->next[w]] : ODM_NOBODY;
}

/* A worker's pick and its rank hold until that expert is dealt. If the worker is dealt one, it is that. */
static bool is_ranked(const struct dealer *d, uint32_t w, const uint32_t *worker)
{
	return d->pick[w] != ODM_NOBODY && worker[d->pick[w]] == ODM_NOBODY;
}

/* Deals one more expert: the one that will be ready first. False: none is left that can be dealt. */
static bool deal_one(const struct dealer *d, uint32_t *worker)
{
	uint32_t best = ODM_NOBODY, best_load = 0, best_i = 0;

	for (uint32_t w = 0; w < d->g->n_workers; w++) {
		const bool ranked = is_ranked(d, w, worker);
		const uint32_t i = ranked ? d->pick[w] : cheapest(d, w, worker);
		uint32_t load;

		if (i == ODM_NOBODY)
			continue;
		if (!ranked) {
			if (best != ODM_NOBODY && least_end(d, w, *cost_at(d, w, i)) > best_load)
				continue;
			d->key[w] = key_of(d, w, i, end_with(d, w, i, *cost_at(d, w, i)).load);
			d->pick[w] = i;
		}
		load = d->key[w];
		if (best != ODM_NOBODY && load > best_load)
			continue;
		if (best != ODM_NOBODY && load == best_load &&
		    (i > best_i || (i == best_i && turn(d, w, i) > turn(d, best, i))))
			continue;
		best = w;
		best_i = i;
		best_load = load;
	}
	if (best == ODM_NOBODY)
		return false;
	worker[best_i] = best;
	give(d, best, best_i, *cost_at(d, best, best_i));
	return true;
}

/* An expert that is cached, but not at its home, counts as cached nowhere in one of MOVES_ONE_OF layers: so in the end
 * it is loaded at home. */
static void send_home(const struct dealer *d, size_t i)
{
	if (d->home[i] == ODM_NOBODY || *cost_at(d, d->home[i], i) != ODM_COST_LOAD || d->drawn[i] * MOVES_ONE_OF > 1)
		return;
	for (uint32_t w = 0; w < d->g->n_workers; w++)
		if (*cost_at(d, w, i) < ODM_COST_LOAD)
			*cost_at(d, w, i) = ODM_COST_LOAD;
}

static void deal_few(struct dealer *d, uint32_t (*keep)(void *arg, uint16_t expert), void *arg, uint32_t *worker)
{
	ask_all(d);
	deal_again(d, keep, arg, worker);
	for (size_t i = 0; i < d->n; i++)
		send_home(d, i);
	for (uint32_t w = 0; w < d->g->n_workers; w++) {
		sort_by_cost(d, w);
		d->pick[w] = ODM_NOBODY;
	}
	while (deal_one(d, worker))
		;
}

/* ---- Many ---- */

/* To the worker that would end first. Of equal ones the first counts, from the expert's home on, or from e mod N. */
static void deal_to_least(const struct dealer *d, size_t i, uint32_t *worker)
{
	const uint32_t n = d->g->n_workers, first = d->home[i] != ODM_NOBODY ? d->home[i] : d->expert[i];
	uint32_t best = ODM_NOBODY, best_load = 0;

	for (uint32_t j = 0, w = first % n; j < n; j++, w = w + 1 < n ? w + 1 : 0) {
		const uint8_t cost = *cost_at(d, w, i);
		uint32_t load;

		if (cost == ODM_COST_LACKS || (best != ODM_NOBODY && least_end(d, w, cost) >= best_load))
			continue;
		load = key_of(d, w, i, end_with(d, w, i, cost).load);
		if (best != ODM_NOBODY && load >= best_load)
			continue;
		best = w;
		best_load = load;
	}
	worker[i] = best;
	give(d, best, i, *cost_at(d, best, i));
}

/* Has expert a more rows than b? Of equal ones the first comes first. */
static bool has_more(const struct dealer *d, uint32_t a, uint32_t b)
{
	const uint32_t x = d->rows != NULL ? d->rows[a] : 1, y = d->rows != NULL ? d->rows[b] : 1;

	return x > y || (x == y && a < b);
}

/* by_rows [n] is a heap, the fewest rows on top, except for the entry `at`. */
static void sift(const struct dealer *d, size_t at, size_t n)
{
	const uint32_t i = d->by_rows[at];
	size_t child;

	while ((child = 2 * at + 1) < n) {
		child += child + 1 < n && has_more(d, d->by_rows[child], d->by_rows[child + 1]);
		if (!has_more(d, i, d->by_rows[child]))
			break;
		d->by_rows[at] = d->by_rows[child];
		at = child;
	}
	d->by_rows[at] = i;
}

static void sort_by_rows(const struct dealer *d)
{
	for (size_t i = 0; i < d->n; i++)
		d->by_rows[i] = (uint32_t)i;
	for (size_t i = d->n / 2; i-- > 0;)
		sift(d, i, d->n);
	for (size_t n = d->n; n-- > 1;) {
		const uint32_t least = d->by_rows[0];

		d->by_rows[0] = d->by_rows[n];
		d->by_rows[n] = least;
		sift(d, 0, n);
	}
}

static void leave_to(const struct dealer *d, uint32_t worker, size_t i)
{
	for (uint32_t w = 0; w < d->g->n_workers; w++)
		*cost_at(d, w, i) = w == worker ? 0 : ODM_COST_LACKS;
}

/* A worker that loads an expert already has it for nothing when RUNs are dealt; it may still lose it, because only now
 * the number of rows is known: but not between two halves of a step's rows, or the layer would load it twice. When
 * WANTs are dealt, that worker counts as the expert's home. */
static void ask_kept(const struct dealer *d, uint32_t (*keep)(void *arg, uint16_t expert), void *arg)
{
	for (size_t i = 0; i < d->n; i++) {
		const uint32_t w = keep != NULL ? keep(arg, d->expert[i]) : ODM_NOBODY;

		if (w >= d->g->n_workers || *cost_at(d, w, i) == ODM_COST_LACKS)
			continue;
		if (d->g->ahead)
			d->home[i] = w;
		else if (d->g->second)
			leave_to(d, w, i);
		else
			*cost_at(d, w, i) = 0;
	}
}

static bool is_cached(const struct dealer *d, size_t i)
{
	uint32_t w = 0;

	while (w < d->g->n_workers && *cost_at(d, w, i) >= ODM_COST_LOAD)
		w++;
	return w < d->g->n_workers;
}

static void deal_many(struct dealer *d, uint32_t (*keep)(void *arg, uint16_t expert), void *arg, uint32_t *worker)
{
	ask_all(d);
	ask_kept(d, keep, arg);
	sort_by_rows(d);
	begin_loads(d);
	for (size_t i = 0; i < d->n; i++)
		worker[i] = ODM_NOBODY;
	for (int cached = 1; cached >= 0; cached--)
		for (size_t j = 0; j < d->n; j++) {
			const size_t i = d->by_rows[j];

			if (worker[i] == ODM_NOBODY && (cached == 0 || is_cached(d, i)))
				deal_to_least(d, i, worker);
		}
}

void odm_deal(const struct odm_groups *g, uint64_t step, uint32_t m, const uint16_t *expert, const uint32_t *rows,
	      size_t n_experts, uint32_t (*keep)(void *arg, uint16_t expert), void *arg, uint32_t *worker,
	      uint32_t *scratch)
{
	const bool few = n_experts <= g->few;
	struct odm_groups all = *g; /* everybody is one group */
	struct dealer d = { .g = g, .step = step, .m = m, .expert = expert, .rows = rows, .n = n_experts };

	all.n_groups = 1;
	all.n_workers = g->n_many;
	d.g = few ? g : &all;
	d.group = few ? odm_group_of_layer(g, step, m) : 0;
	make_dealer(&d, scratch);
	if (few)
		deal_few(&d, keep, arg, worker);
	else
		deal_many(&d, keep, arg, worker);
}
