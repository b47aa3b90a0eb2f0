#include "main-node/engine/engine_report.h"

#include "common/base/clock.h"
#include "main-node/engine/engine_internal.h"
#include "main-node/engine/state_plan.h"

#include <string.h>

#define REPORT_NS (500 * OD_NS_PER_MS)

/* Adds a running text's counters. They only grow, so the report never goes back. */
static void add_running(const struct odm_sequence *q, uint64_t *c)
{
	uint64_t own[OD_N_COUNTERS];

	memcpy(own, q->own, sizeof(own));
	own[OD_C_TOKENS] = q->r.n_tokens;
	if (q->r.n_tokens > 0) /* also while it is computed anew */
		own[OD_C_PROMPT_TOKENS] = q->req.n_prompt;
	else if (q->state != NULL)
		own[OD_C_PROMPT_TOKENS] = od_seq_state_length(q->state);
	od_counters_add(c, own);
}

static void fill(const struct odm_engine *e, struct odm_report *r)
{
	const struct odm_batch *b = &e->batch;
	const struct odm_pass *const pass[] = { &b->prefill, &b->decode };
	struct odm_snapshot_counts n = { 0 };

	if (e->model->reuse.snapshots != NULL)
		odm_snapshots_count(e->model->reuse.snapshots, &n);
	memcpy(r->c, e->counters, sizeof(r->c));
	for (size_t i = 0; i < 2; i++)
		if (pass[i]->open)
			od_counters_add(r->c, pass[i]->counters);
	for (const struct odm_sequence *q = b->first; q != NULL; q = q->next)
		add_running(q, r->c);
	if (e->service->count_open != NULL)
		e->service->count_open(e->service, r->c);
	memcpy(r->batch, b->steps_of, sizeof(r->batch));
	r->decode_texts = b->decode_texts;
	r->kv_bytes = e->model->n_pages * odm_state_plan_page_bytes(e->model);
	r->kv_free_bytes = od_state_pool_free_pages(e->model->state) * odm_state_plan_page_bytes(e->model);
	r->prefix_cache_bytes = od_state_pool_idle_pages(e->model->state) * odm_state_plan_page_bytes(e->model);
	r->snapshot_bytes = n.kept * od_state_pool_fixed_bytes(e->model->state);
	r->snapshots_written = n.written;
	r->snapshots_used = n.used;
	r->snapshots_dropped = n.dropped;
}

void odm_engine_report_make(struct odm_engine *e, bool now)
{
	const uint64_t now_ns = od_now_ns();
	struct odm_report r;

	if (!now && now_ns < e->reported_ns + REPORT_NS)
		return;
	e->reported_ns = now_ns;
	fill(e, &r);
	pthread_mutex_lock(&e->report_lock);
	e->report = r;
	pthread_mutex_unlock(&e->report_lock);
}
