#include "main-node/cluster/members_internal.h"

#include "common/base/log.h"
#include "common/model/config.h"
#include "main-node/cluster/deal_homes.h"
#include "main-node/cluster/members_times.h"

#include <math.h>
#include <string.h>

/* Decides whether workers are alike, and estimates their times. Times of busy machines scatter, so a difference counts
 * only beyond their spread, and beyond what scheduling costs. */

#define UNLIKE 1.2 /* times the quickest worker's */
#define ALIKE 1.1 /* workers that were unlike are alike again only below this */
#define SPREADS 2.0
#define SLACK_NS (0.3 * OD_NS_PER_MS) /* an expert's */
#define SLACK_ROWS 16
#define ALIKE_CHECKS 8 /* in a row: 2 s */
#define OTHER_CACHE 0.75 /* a cache below this share of the largest one makes its worker unlike */
#define TELL_RATIO 1.6 /* a ratio is logged when it has changed by this factor, */
#define TELL_CHECKS 4 /* in so many checks in a row */
#define ALL_HOMES (1 - 1e-6) /* shares that are all experts' together, but for rounding */
#define HEADER_BYTES 200.0
#define LEAST_BYTES 0.0625 /* a weight; a worker may say nonsense */
#define MOST_BYTES 8

/* The quickest worker's, by kind. */
struct best_times {
	double ns[ODM_N_TIMES], spread[ODM_N_TIMES], latency, byte;
	uint32_t n_workers, n_links, n_caches, most_cached;
};

/* Enough is known of it to say that it differs from others. */
static bool is_measured(const struct member *m, enum odm_time kind)
{
	return odm_time_known(&m->times.of[kind]) && (kind != ODM_TIME_ROW || odm_times_rows_bind(&m->times));
}

static bool counts(const struct member *m)
{
	return m->host.role == OD_NODE_WORKER && m->state == M_READY && !m->distrusted;
}

static void add_link(struct best_times *best, const struct odm_link_cost *c)
{
	const double latency = odm_link_cost_latency(c), byte = odm_link_cost_byte(c);

	best->latency = best->n_links == 0 ? latency : fmin(best->latency, latency);
	best->byte = best->n_links == 0 ? byte : fmin(best->byte, byte);
	best->n_links++;
}

static struct best_times find_best(const struct odm_members *ms)
{
	struct best_times best = { 0 };

	for (uint32_t i = 0; i < ms->n_listed; i++) {
		const struct member *m = ms->listed[i];

		if (!counts(m))
			continue;
		if (m->cost.measured)
			add_link(&best, &m->cost);
		best.n_workers++;
		best.n_caches += m->pub.cache;
		best.most_cached = m->cache_experts > best.most_cached ? m->cache_experts : best.most_cached;
		for (int kind = 0; kind < ODM_N_TIMES; kind++) {
			const struct odm_time_samples *s = &m->times.of[kind];
			const double ns = odm_time_median(s);

			if (odm_time_known(s) && (best.ns[kind] == 0 || ns < best.ns[kind])) {
				best.ns[kind] = ns;
				best.spread[kind] = odm_time_spread(s);
			}
		}
	}
	return best;
}

/* Time of one unit (byte, run or row). Workers that are alike all have the quickest one's. units: of an expert. */
static double one_time(const struct member *m, const struct best_times *best, enum odm_time kind, double units,
		       double guess, uint64_t now)
{
	if (m->ms->uneven && is_measured(m, kind))
		return odm_time_estimate(&m->times.of[kind], best->ns[kind], units, best->n_workers, now);
	return best->ns[kind] > 0 ? best->ns[kind] : guess;
}

static struct odm_expert_times times_of(const struct odm_members *ms, const struct member *m,
					const struct best_times *best, uint64_t now)
{
	const struct odm_expert_times guess = odm_expert_times_guess(ms->expert_weights);
	struct odm_expert_times t;

	t.load = one_time(m, best, ODM_TIME_LOAD, ms->load_bytes, guess.load / ms->load_bytes, now) * ms->load_bytes;
	t.run = one_time(m, best, ODM_TIME_RUN, 1, guess.run, now);
	t.row = one_time(m, best, ODM_TIME_ROW, SLACK_ROWS, t.run / (best->ns[ODM_TIME_RUN] > 0 ? ODM_ROWS_OF_RUN : 1),
			 now);
	return t;
}

static bool is_slower(const struct odm_members *ms, const struct member *m, const struct best_times *best,
		      enum odm_time kind)
{
	const double slack = kind == ODM_TIME_LOAD ? SLACK_NS / ms->load_bytes :
			     kind == ODM_TIME_RUN  ? SLACK_NS :
						     SLACK_NS / SLACK_ROWS;
	const struct odm_time_samples *s = &m->times.of[kind];
	const double more = odm_time_median(s) - best->ns[kind] * (ms->uneven ? ALIKE : UNLIKE),
		     noise = SPREADS * (odm_time_spread(s) + best->spread[kind]) + slack;

	return is_measured(m, kind) && more > (ms->uneven ? noise / 2 : noise);
}

static bool is_unlike(const struct odm_members *ms, const struct member *m, const struct best_times *best)
{
	bool slower = m->cost.unlike || m->cache_experts < OTHER_CACHE * best->most_cached;

	for (int kind = 0; kind < ODM_N_TIMES; kind++)
		slower = slower || is_slower(ms, m, best, (enum odm_time)kind);
	return slower;
}

/* A worker that is passed over caches nothing. Its homes would fall to one neighbour (odm_home). */
static bool has_home(const struct member *m)
{
	return counts(m) && !m->cost.passed[ODM_DEAL_FEW];
}

/* Homes change only if shares do clearly, so that noise moves no expert; or if a worker has left with its own. */
static bool homes_change(const struct odm_members *ms, const struct odm_home_share *share)
{
	double covered = 0;
	uint32_t n = 0;
	bool other = false;

	for (uint32_t i = 0; i < ms->n_listed; i++) {
		const struct member *m = ms->listed[i];

		if (!has_home(m))
			continue;
		other = odm_home_differs(m->home, share[n++].share) || other;
		covered += m->home;
	}
	return other || covered < ALL_HOMES;
}

static void choose_homes(struct odm_members *ms, const struct best_times *best)
{
	struct odm_home_share *h = ms->home;
	double from = 0;
	uint32_t n = 0;

	for (uint32_t i = 0; i < ms->n_listed; i++) {
		struct member *m = ms->listed[i];

		if (has_home(m))
			h[n++] = (struct odm_home_share){ .times = times_of(ms, m, best, od_now_ns()),
							  .capacity =
								  (double)m->cache_experts / (double)ms->cached_bytes };
		else
			m->home = 0;
	}
	odm_share_homes(h, n, ms->cached_bytes);
	if (!homes_change(ms, h))
		return;
	n = 0;
	for (uint32_t i = 0; i < ms->n_listed; i++)
		if (has_home(ms->listed[i])) {
			ms->listed[i]->home = h[n++].share;
			ms->listed[i]->homes_from = from;
			from += ms->listed[i]->home;
		}
}

void odm_members_compare(struct odm_members *ms)
{
	const bool was = ms->uneven;
	struct best_times best;
	bool unlike = false;

	best = find_best(ms);
	for (uint32_t i = 0; i < ms->n_listed; i++)
		unlike = unlike || (counts(ms->listed[i]) && is_unlike(ms, ms->listed[i], &best));
	ms->alike_checks = unlike ? 0 : ms->alike_checks + (ms->alike_checks < ALIKE_CHECKS);
	ms->uneven = best.n_workers > 1 && (unlike || (was && ms->alike_checks < ALIKE_CHECKS));
	ms->shape.expert = odm_expert_times_guess(ms->expert_weights);
	if (best.ns[ODM_TIME_LOAD] > 0)
		ms->shape.expert.load = best.ns[ODM_TIME_LOAD] * ms->load_bytes;
	if (best.ns[ODM_TIME_RUN] > 0)
		ms->shape.expert.run = best.ns[ODM_TIME_RUN];
	if (best.ns[ODM_TIME_ROW] > 0)
		ms->shape.expert.row = best.ns[ODM_TIME_ROW];
	if (best.n_caches > 0)
		choose_homes(ms, &best);
}

/* Its time over the quickest worker's, of the kind in which the two differ most. */
static double ratio_of(const struct odm_members *ms, const struct member *m, const struct best_times *best)
{
	double ratio = 1;

	for (enum odm_time kind = 0; kind < ODM_N_TIMES; kind++)
		if (is_measured(m, kind))
			ratio = fmax(ratio, odm_time_median(&m->times.of[kind]) / best->ns[kind]);
	return ms->uneven ? ratio : 1;
}

void odm_members_tell_times(struct odm_members *ms)
{
	for (uint32_t i = 0; i < ms->n_listed; i++) {
		struct member *m = ms->listed[i];
		struct odm_expert_times t;
		struct best_times best;
		char name[300];
		double ratio;

		if (m->host.role != OD_NODE_WORKER || m->state != M_READY)
			continue;
		pthread_mutex_lock(&ms->lock);
		best = find_best(ms);
		ratio = ratio_of(ms, m, &best);
		t = times_of(ms, m, &best, m->times.of[ODM_TIME_RUN].last_ns);
		pthread_mutex_unlock(&ms->lock);
		m->other_ratio = ratio < m->told_ratio * TELL_RATIO && ratio * TELL_RATIO > m->told_ratio ?
					 0 :
					 m->other_ratio + 1;
		if (m->other_ratio < TELL_CHECKS)
			continue;
		od_log(OD_LOG_INFO,
		       "%s takes %.1f times as long as the quickest worker (load of an expert %.1f ms, run %.2f ms): it gets %s work",
		       odm_member_name(m, name, sizeof(name)), ratio, t.load / OD_NS_PER_MS, t.run / OD_NS_PER_MS,
		       ratio > m->told_ratio ? "less" : "more");
		m->told_ratio = ratio;
		m->other_ratio = 0;
	}
}

/* ---- Any thread ---- */

double odm_members_expect(struct odm_members *ms, uint32_t id, uint32_t n, uint32_t n_loads, uint32_t pairs,
			  double bytes)
{
	struct odm_expert_times t;
	struct best_times best;
	double link_ns;

	pthread_mutex_lock(&ms->lock);
	best = find_best(ms);
	t = times_of(ms, ms->member[id], &best, 0);
	link_ns = odm_link_cost_latency(&ms->member[id]->cost) + bytes * odm_link_cost_byte(&ms->member[id]->cost);
	pthread_mutex_unlock(&ms->lock);
	return link_ns + n_loads * t.load + n * odm_expert_run_ns(&t, (double)pairs / n);
}

/* 0: the worker has not run an expert yet. */
static double run_of(const struct member *m)
{
	const struct odm_time_samples *run = &m->times.of[ODM_TIME_RUN], *row = &m->times.of[ODM_TIME_ROW];

	return odm_time_known(run) ? odm_time_median(run) : ODM_ROWS_OF_RUN * odm_time_median(row);
}

struct odm_many_times odm_members_many(struct odm_members *ms, const struct odm_member *worker,
				       const uint32_t *n_experts, uint32_t n)
{
	struct odm_many_times t = { 0 };
	bool known = true;

	pthread_mutex_lock(&ms->lock);
	for (uint32_t i = 0; i < n; i++) {
		const struct member *m = ms->member[worker[i].id];
		const double run = run_of(m);

		if (n_experts[i] == 0)
			continue;
		known = known && run > 0;
		t.run = fmax(t.run, odm_link_cost_latency(&m->cost) + n_experts[i] * run);
		if (is_measured(m, ODM_TIME_ROW))
			t.row = fmax(t.row, odm_time_median(&m->times.of[ODM_TIME_ROW]));
	}
	pthread_mutex_unlock(&ms->lock);
	t.run = known ? t.run : 0;
	return t;
}

void odm_members_worked(struct odm_members *ms, uint32_t id, const struct odm_layer_report *r)
{
	const double bytes = r->n_loads > 0 ? (double)r->loaded_bytes / r->n_loads : 0;

	pthread_mutex_lock(&ms->lock);
	odm_times_add(&ms->member[id]->times, r, od_now_ns());
	if (bytes > LEAST_BYTES * ms->expert_weights && bytes < MOST_BYTES * ms->expert_weights)
		ms->load_bytes += (bytes - ms->load_bytes) / 16;
	pthread_mutex_unlock(&ms->lock);
}

void odm_members_times(struct odm_members *ms, const struct odm_member *worker, uint32_t n,
		       struct odm_deal_times *times)
{
	const uint64_t now = od_now_ns();
	struct best_times best;

	pthread_mutex_lock(&ms->lock);
	best = find_best(ms);
	for (uint32_t i = 0; i < n; i++) {
		const struct member *m = ms->member[worker[i].id];
		/* Small differences between links are noise, and long beside a small expert's run. A link that is not
		 * measured yet, because a session has begun since the view was made, is not unlike either. */
		const bool own = m->cost.unlike;
		const double byte = own ? odm_link_cost_byte(&m->cost) : best.byte,
			     latency = own ? odm_link_cost_latency(&m->cost) : best.latency;

		times[i] = (struct odm_deal_times){
			.id = worker[i].id,
			.expert = times_of(ms, m, &best, now),
			.link = latency + 2 * HEADER_BYTES * byte,
			/* A quicker one may be distrusted, and is not the best then. */
			.row_link = 2 * fmax(0, byte - best.byte) * ms->shape.row_bytes,
			.home = m->home,
			.homes_from = m->homes_from,
			.slots = worker[i].slots,
		};
	}
	pthread_mutex_unlock(&ms->lock);
}
