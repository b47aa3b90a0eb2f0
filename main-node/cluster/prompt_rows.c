#include "main-node/cluster/prompt_rows.h"

#include <stdlib.h>
#include <string.h>

int odm_prompt_rows_init(struct odm_prompt_rows *p, const struct od_config *config, double row_bytes,
			 uint32_t max_workers, struct od_err *err)
{
	*p = (struct odm_prompt_rows){ .n_experts = config->n_experts, .top_k = config->top_k, .row_bytes = row_bytes };
	p->n_dealt = calloc(max_workers, sizeof(*p->n_dealt));
	return p->n_dealt != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "cluster: no memory for %u hosts", max_workers);
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

void odm_prompt_rows_end(struct odm_prompt_rows *p, const struct odm_pieces *work, uint64_t now)
{
	p->ended_ns = now;
	if (p->measured != work)
		return;
	p->measured = NULL;
	odm_port_end(&p->port);
}

uint32_t odm_prompt_rows_count(struct odm_prompt_rows *p, const struct odm_pieces *work,
			       const struct odm_deal_times *worker, uint32_t n_workers)
{
	uint32_t n = 0;
	bool fit = true;

	memset(p->n_dealt, 0, n_workers * sizeof(*p->n_dealt));
	for (size_t i = 0; i < work->n_chosen; i++) {
		const uint32_t w = work->worker_of[i];

		n += p->n_dealt[w] == 0;
		fit = ++p->n_dealt[w] <= worker[w].slots && fit;
	}
	return fit ? n : 0;
}

uint32_t odm_prompt_rows_batch(struct odm_prompt_rows *p, const struct odm_prompt_layer *layer, uint64_t now)
{
	const size_t n_rows = layer->work->call->n_rows;
	/* A row goes to so many workers. */
	const double bytes = p->row_bytes * (p->top_k < layer->n_with ? p->top_k : layer->n_with);
	uint32_t rows = odm_batch_rows(&p->port, &(struct odm_batch_work){
							 .n_rows = n_rows,
							 .row_bytes = bytes,
							 .run = layer->run_ns,
							 .rows = layer->row_ns * (double)(n_rows * p->top_k) /
								 (layer->n_with > 0 ? layer->n_with : 1),
							 .half = layer->half,
							 .main = (double)(now - p->ended_ns),
						 });

	rows = rows < layer->most ? rows : layer->most;
	p->batch_bytes = rows * bytes;
	return rows;
}

bool odm_prompt_rows_halves(const struct odm_prompt_rows *p, const struct odm_deal_times *worker, uint32_t n_many,
			    size_t n_rows)
{
	bool fit = odm_port_binds(&p->port) && n_rows / 2 * p->top_k >= 4 * (size_t)p->n_experts;

	for (uint32_t w = 0; fit && w < n_many; w++)
		fit = worker[w].slots >= (p->n_experts + n_many - 1) / n_many;
	return fit;
}

bool odm_prompt_rows_few(const struct odm_prompt_rows *p, uint64_t held_bytes)
{
	return (double)held_bytes < p->batch_bytes;
}

struct odm_pieces *odm_prompt_rows_turn(const struct odm_prompt_rows *p, struct odm_pieces *work, unsigned i,
					uint64_t held_bytes)
{
	struct odm_pieces *first = NULL, *second = NULL;

	for (unsigned k = 0; k < ODM_HALVES; k++) {
		struct odm_pieces *w = &work[k];

		if (!odm_pieces_under_way(w))
			continue;
		if (first == NULL || w->call->m < first->call->m) {
			second = first;
			first = w;
		} else {
			second = w;
		}
	}
	if (i == 0)
		return first;
	return i == 1 && odm_prompt_rows_few(p, held_bytes) ? second : NULL;
}
