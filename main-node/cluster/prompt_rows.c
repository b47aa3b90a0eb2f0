#include "main-node/cluster/prompt_rows.h"

#include "common/base/clock.h"
#include "main-node/cluster/members_times.h"

#include <stdlib.h>
#include <string.h>

int odm_prompt_rows_init(struct odm_prompt_rows *p, const struct odm_links *net, const struct od_config *config,
			 size_t row_bytes, struct od_err *err)
{
	*p = (struct odm_prompt_rows){
		.net = net, .n_experts = config->n_experts, .top_k = config->top_k, .row_bytes = row_bytes
	};
	p->n_dealt = calloc(OD_MAX_HOSTS, sizeof(*p->n_dealt));
	return p->n_dealt != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "cluster: no memory for %d hosts", OD_MAX_HOSTS);
}

void odm_prompt_rows_fini(struct odm_prompt_rows *p)
{
	free(p->n_dealt);
	p->n_dealt = NULL;
}

void odm_prompt_rows_begin(struct odm_prompt_rows *p, const struct odm_pieces *work)
{
	p->measured = work;
	odm_port_begin(&p->port);
}

void odm_prompt_rows_end(struct odm_prompt_rows *p, const struct odm_pieces *work)
{
	p->ended_ns = od_now_ns();
	if (p->measured != work)
		return;
	p->measured = NULL;
	odm_port_end(&p->port);
}

/* Counts each worker's experts in this layer, and returns the number of workers that have any. 0: a worker's do not fit
 * into its slots together, so that it would load some of them for every batch. */
static uint32_t count_dealt(struct odm_prompt_rows *p, const struct odm_pieces *work)
{
	const struct odm_view *v = &p->net->view;
	uint32_t n_workers = 0;
	bool fit = true;

	memset(p->n_dealt, 0, v->n_workers * sizeof(*p->n_dealt));
	for (size_t i = 0; i < work->n_chosen; i++) {
		const uint32_t w = work->worker_of[i];

		n_workers += p->n_dealt[w] == 0;
		fit = fit && ++p->n_dealt[w] <= v->worker[w].slots;
	}
	return fit ? n_workers : 0;
}

uint32_t odm_prompt_rows_batch(struct odm_prompt_rows *p, const struct odm_pieces *work, bool half, uint32_t most)
{
	const struct odm_view *v = &p->net->view;
	const uint32_t n = count_dealt(p, work), all = n > 0 ? n : p->net->groups.n_many;
	const size_t bytes = p->row_bytes * (p->top_k < all ? p->top_k : all); /* a row goes to so many workers */
	uint32_t rows = most;

	if (n > 0) {
		const struct odm_many_times t =
			odm_members_many(odm_cluster_members(p->net->cluster), v->worker, p->n_dealt, v->n_workers);
		const size_t n_rows = work->call->n_rows;

		rows = odm_batch_rows(&p->port, &(struct odm_batch_work){
							.n_rows = n_rows,
							.row_bytes = (double)bytes,
							.run = t.run,
							.rows = t.row * (double)(n_rows * p->top_k) / n,
							.half = half,
							.main = (double)(od_now_ns() - p->ended_ns),
						});
		rows = rows < most ? rows : most;
	}
	p->batch_bytes = (uint64_t)rows * bytes;
	return rows;
}

bool odm_prompt_rows_halves(const struct odm_prompt_rows *p, size_t n_rows)
{
	const uint32_t n = p->net->groups.n_many;
	bool fit = odm_port_binds(&p->port) && n_rows / 2 * p->top_k >= 4 * (size_t)p->n_experts;

	for (uint32_t w = 0; fit && w < n; w++)
		fit = p->net->view.worker[w].slots >= (p->n_experts + n - 1) / n;
	return fit;
}

bool odm_prompt_rows_few(const struct odm_prompt_rows *p)
{
	uint64_t bytes = 0;

	for (uint32_t w = 0; w < p->net->view.n_workers; w++)
		bytes += p->net->link[w].held_bytes;
	return bytes < p->batch_bytes;
}
