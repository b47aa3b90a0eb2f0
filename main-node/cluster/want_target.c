#include "main-node/cluster/want_target.h"

#include <stdlib.h>
#include <string.h>

static bool make_lists(struct odm_want_lists *l, uint32_t n_experts, uint32_t max_workers)
{
	l->expert = calloc(n_experts, sizeof(*l->expert));
	l->begin = calloc((size_t)max_workers + 1, sizeof(*l->begin));
	return l->expert != NULL && l->begin != NULL;
}

int odm_want_target_init(struct odm_want_target *p, uint32_t n_experts, uint32_t max_workers, struct od_err *err)
{
	*p = (struct odm_want_target){ .max_workers = max_workers };
	p->want.expert = calloc(n_experts, sizeof(*p->want.expert));
	p->want.worker = calloc(n_experts, sizeof(*p->want.worker));
	p->want.expert_before = calloc(n_experts, sizeof(*p->want.expert_before));
	p->want.worker_before = calloc(n_experts, sizeof(*p->want.worker_before));
	p->sorted = calloc(n_experts, sizeof(*p->sorted));
	p->deal = calloc(n_experts, sizeof(*p->deal));
	p->rows = calloc(n_experts, sizeof(*p->rows));
	p->keep = calloc(n_experts, sizeof(*p->keep));
	p->scratch = calloc(ODM_DEAL_SCRATCH(n_experts, max_workers), sizeof(*p->scratch));
	p->n = calloc(max_workers, sizeof(*p->n));
	p->times = calloc(max_workers, sizeof(*p->times));
	if (make_lists(&p->list, n_experts, max_workers) && make_lists(&p->before, n_experts, max_workers) &&
	    p->want.expert != NULL && p->want.worker != NULL && p->want.expert_before != NULL &&
	    p->want.worker_before != NULL && p->sorted != NULL && p->deal != NULL && p->rows != NULL &&
	    p->keep != NULL && p->scratch != NULL && p->n != NULL && p->times != NULL &&
	    odm_backlog_init(&p->backlog, max_workers, err) == OD_OK)
		return OD_OK;
	odm_want_target_fini(p);
	return od_fail(err, OD_ERR_NOMEM, "places of WANTs");
}

void odm_want_target_fini(struct odm_want_target *p)
{
	free(p->want.expert);
	free(p->want.worker);
	free(p->want.expert_before);
	free(p->want.worker_before);
	free(p->sorted);
	free(p->deal);
	free(p->rows);
	free(p->keep);
	free(p->scratch);
	free(p->n);
	free(p->times);
	odm_backlog_fini(&p->backlog);
	free(p->list.expert);
	free(p->list.begin);
	free(p->before.expert);
	free(p->before.begin);
	*p = (struct odm_want_target){ 0 };
}

static uint32_t keep_worker(void *arg, uint16_t expert)
{
	const struct odm_want_target *p = arg;

	return p->keep[expert];
}

static int by_id(const void *a, const void *b)
{
	return (int)*(const uint16_t *)a - (int)*(const uint16_t *)b;
}

/* As main deals the layer's RUNs. */
static void deal_predicted(struct odm_want_target *p, const struct odm_groups *g)
{
	const struct odm_want *w = &p->want;
	const bool dealt = w->prompt && w->rows == 0; /* the RUNs are */

	for (size_t i = 0; i < w->n_predicted; i++)
		p->keep[w->expert[i]] = w->worker[i];
	memcpy(p->sorted, w->expert, w->n_predicted * sizeof(*p->sorted));
	qsort(p->sorted, w->n_predicted, sizeof(*p->sorted), by_id);
	for (size_t i = 0; i < w->n_predicted; i++)
		p->rows[i] = w->rows;
	odm_deal(g, w->step, w->m, p->sorted, w->rows > 0 ? p->rows : NULL, w->n_predicted, keep_worker, p, p->deal,
		 p->scratch);
	for (size_t i = 0; i < w->n_predicted; i++)
		p->keep[p->sorted[i]] = p->deal[i];
	memset(p->n, 0, g->n_workers * sizeof(*p->n));
	for (size_t i = 0; i < w->n_predicted; i++) {
		if (!dealt || w->worker[i] >= g->n_workers)
			w->worker[i] = p->keep[w->expert[i]];
		p->n[w->worker[i]]++;
	}
}

static void deal_ahead(struct odm_want_target *p, const struct odm_groups *g)
{
	struct odm_groups ahead = *g;

	ahead.ahead = true;
	deal_predicted(p, &ahead);
}

/* Behind the loads that workers have been sent before. Those of prompts do not count: workers are through with a
 * layer's at about the same time, since all wait for its last RUN. */
static void deal_by_backlog(struct odm_want_target *p, const struct odm_groups *g, const uint32_t *slots, uint64_t now)
{
	const struct odm_want *w = &p->want;
	struct odm_groups timed = *g;

	memcpy(p->times, g->times, g->n_workers * sizeof(*p->times));
	odm_backlog_begin(&p->backlog, w->step, w->m, slots, p->times, g->n_workers, now);
	timed.times = p->times;
	deal_ahead(p, &timed);
	odm_backlog_clear(&p->backlog, w->step, w->m);
	for (size_t i = 0; i < w->n_predicted; i++) {
		const struct odm_deal_times *t = &p->times[w->worker[i]];
		const uint8_t cost = odm_worker_cost(g, w->worker[i], w->m, w->expert[i]);

		if (cost > 0)
			odm_backlog_add(&p->backlog, w->step, w->m, t->id, t->expert.load);
	}
}

/* Where a hedge goes; ODM_NOBODY: nowhere. */
static uint32_t hedge_worker(const struct odm_want_target *p, const struct odm_groups *g, const uint32_t *slots,
			     uint16_t expert, uint32_t old)
{
	const struct odm_want *w = &p->want;
	const uint32_t group = odm_group_of_layer(g, w->step, w->m), size = odm_group_size(g, group);
	uint32_t best = w->n_predicted > 0 ? w->worker[w->n_predicted - 1] : ODM_NOBODY;

	if (old < g->n_workers && p->n[old] < slots[old])
		return old;
	if (best != ODM_NOBODY && (p->n[best] >= slots[best] || !odm_worker_has(g, best, w->m, expert)))
		best = ODM_NOBODY;
	for (uint32_t i = 0; i < size; i++) {
		const uint32_t at = odm_group_worker(g, group, i);

		if (p->n[at] < slots[at] && (best == ODM_NOBODY || p->n[at] < p->n[best]) &&
		    odm_worker_has(g, at, w->m, expert))
			best = at;
	}
	return best;
}

/* Experts with ODM_NOBODY, or with a worker out of range, are in no list. */
static void sort_out(struct odm_want_lists *l, uint32_t n_workers, const uint16_t *expert, const uint32_t *worker,
		     size_t n)
{
	memset(l->begin, 0, (n_workers + (size_t)1) * sizeof(*l->begin));
	for (size_t i = 0; i < n; i++)
		if (worker[i] < n_workers)
			l->begin[worker[i] + 1]++;
	for (uint32_t w = 0; w < n_workers; w++)
		l->begin[w + 1] += l->begin[w];
	for (size_t i = 0; i < n; i++) /* begin becomes the end */
		if (worker[i] < n_workers)
			l->expert[l->begin[worker[i]]++] = expert[i];
	memmove(l->begin + 1, l->begin, n_workers * sizeof(*l->begin));
	l->begin[0] = 0;
}

void odm_want_target_choose(struct odm_want_target *p, const struct odm_groups *g, const uint32_t *slots, uint64_t now)
{
	struct odm_want *w = &p->want;
	size_t n = w->n_predicted;

	if (w->prompt)
		deal_ahead(p, g);
	else
		deal_by_backlog(p, g, slots, now);
	for (size_t i = w->n_predicted; i < w->n; i++) {
		const uint32_t to = hedge_worker(p, g, slots, w->expert[i], w->worker[i]);

		if (to == ODM_NOBODY)
			continue;
		p->n[to]++;
		w->expert[n] = w->expert[i];
		w->worker[n++] = to;
	}
	w->n = n;
	/* Workers behind the group's get nothing more, and must hear that what they had is void. */
	sort_out(&p->list, p->max_workers, w->expert, w->worker, w->n);
	sort_out(&p->before, p->max_workers, w->expert_before, w->worker_before, w->n_before);
}

static uint32_t length(const struct odm_want_lists *l, uint32_t worker)
{
	return l->begin[worker + 1] - l->begin[worker];
}

bool odm_want_changed(const struct odm_want_target *p, uint32_t worker)
{
	return length(&p->list, worker) != length(&p->before, worker) ||
	       memcmp(p->list.expert + p->list.begin[worker], p->before.expert + p->before.begin[worker],
		      length(&p->list, worker) * sizeof(*p->list.expert)) != 0;
}

bool odm_want_concerns(const struct odm_want_target *p, uint32_t worker)
{
	return length(&p->list, worker) > 0 || length(&p->before, worker) > 0;
}
