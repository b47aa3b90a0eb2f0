#include "common/model/resident.h"

#include "common/base/mem.h"
#include "common/model/expert_ffn.h"

#include <stdlib.h>
#include <string.h>

struct resident {
	struct od_expert_runner runner; /* first: od_expert_runner * is this struct's address */
	struct od_forward_opts o;
	const struct od_expert *experts; /* [n_moe][n_experts] */
	uint32_t *end;			 /* [n_experts]: while sorting, the next free place; then the end of its run */
	uint32_t *pair;			 /* [max_rows * top_k]: row * top_k + rank, by expert, then by row */
	float *x, *y;			 /* [max_rows][hidden]: the rows of one expert, side by side */
	void *scratch;
};

/* Counting sort of the (row, rank) pairs by expert, so that each expert runs once over all of its rows. */
static int sort_pairs(struct resident *r, const struct od_moe_call *call, struct od_err *err)
{
	size_t n_experts = r->o.config->n_experts, n = call->n_rows * r->o.config->top_k;
	uint32_t begin = 0;

	memset(r->end, 0, n_experts * sizeof(*r->end));
	for (size_t i = 0; i < n; i++) {
		if (call->expert[i] >= n_experts)
			return od_fail(err, OD_ERR_RANGE, "layer %u: expert: expected 0 to %zu, found %u", call->m,
				       n_experts - 1, call->expert[i]);
		r->end[call->expert[i]]++;
	}
	for (size_t e = 0; e < n_experts; e++) {
		uint32_t count = r->end[e];

		if (count > call->n_rows)
			return od_fail(err, OD_ERR_RANGE, "layer %u: a row names expert %zu twice", call->m, e);
		r->end[e] = begin;
		begin += count;
	}
	for (size_t i = 0; i < n; i++)
		r->pair[r->end[call->expert[i]]++] = (uint32_t)i;
	return OD_OK;
}

static void run_one(struct resident *r, const struct od_moe_call *call, size_t e, size_t begin)
{
	const struct od_config *c = r->o.config;
	size_t n = r->end[e] - begin, hidden = c->hidden, row_bytes = hidden * sizeof(float);
	const struct od_expert *w = &r->experts[(size_t)call->m * c->n_experts + e];

	for (size_t i = 0; i < n; i++)
		memcpy(r->x + i * hidden, call->x + r->pair[begin + i] / c->top_k * hidden, row_bytes);
	od_expert_ffn(r->o.backend, r->o.pool, r->o.profile, c, w, r->x, n, r->y, r->scratch);
	for (size_t i = 0; i < n; i++)
		memcpy(call->y + r->pair[begin + i] * hidden, r->y + i * hidden, row_bytes);
}

static int run(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err)
{
	struct resident *r = (struct resident *)runner;
	const struct od_config *c = r->o.config;
	size_t begin = 0;
	int rc;

	if (call->n_rows > r->o.max_rows || call->m >= c->n_moe)
		return od_fail(err, OD_ERR_RANGE, "layer %u, %zu rows: expected below %u and at most %zu", call->m,
			       call->n_rows, c->n_moe, r->o.max_rows);
	rc = sort_pairs(r, call, err);
	if (rc != OD_OK)
		return rc;
	for (size_t e = 0; e < c->n_experts; begin = r->end[e], e++)
		if (r->end[e] > begin)
			run_one(r, call, e, begin);
	return OD_OK;
}

int od_resident_new(struct od_expert_runner **out, const struct od_forward_opts *opts,
		    const struct od_expert *experts, struct od_err *err)
{
	const struct od_config *c = opts->config;
	struct resident *r;
	uint64_t pairs;

	*out = NULL;
	if (!od_mul(opts->max_rows, c->top_k, &pairs) || pairs > UINT32_MAX)
		return od_fail(err, OD_ERR_RANGE, "rows of a step: %zu is too many", opts->max_rows);
	r = calloc(1, sizeof(*r));
	if (r == NULL)
		return od_fail(err, OD_ERR_NOMEM, "resident experts");
	r->runner.run = run;
	r->o = *opts;
	r->experts = experts;
	r->end = od_alloc_array(c->n_experts, sizeof(*r->end));
	r->pair = od_alloc_array(pairs, sizeof(*r->pair));
	r->x = od_alloc_array(opts->max_rows, c->hidden * sizeof(float));
	r->y = od_alloc_array(opts->max_rows, c->hidden * sizeof(float));
	r->scratch = od_alloc(od_expert_ffn_scratch_bytes(c, opts->max_rows));
	if (r->end == NULL || r->pair == NULL || r->x == NULL || r->y == NULL || r->scratch == NULL) {
		od_resident_free(&r->runner);
		return od_fail(err, OD_ERR_NOMEM, "resident experts: buffers for %zu rows", opts->max_rows);
	}
	*out = &r->runner;
	return OD_OK;
}

void od_resident_free(struct od_expert_runner *runner)
{
	struct resident *r = (struct resident *)runner;

	if (r == NULL)
		return;
	od_free(r->end);
	od_free(r->pair);
	od_free(r->x);
	od_free(r->y);
	od_free(r->scratch);
	free(r);
}
