#include "common/predict/recent_experts.h"

#include "common/base/id_table.h"
#include "common/base/mem.h"
#include "common/compute/ops.h"
#include "common/compute/rank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_SCORE 1e-30f /* logarithms are finite */

struct layer_range {
	double mean;
	uint64_t n;
};

struct od_recent_experts {
	const struct od_config *config;
	struct od_id_table ids;
	uint16_t *recent; /* [max_sequences][n_moe][prior.recent], newest first */
	struct layer_range *range; /* [n_moe]: of all texts */
};

static uint16_t *recent_of(const struct od_recent_experts *r, uint32_t number, uint32_t m)
{
	return r->recent + ((size_t)number * r->config->n_moe + m) * r->config->prior.recent;
}

static size_t list_bytes(const struct od_recent_experts *r)
{
	return (size_t)r->config->n_moe * r->config->prior.recent * sizeof(uint16_t);
}

/* OD_NO_NUMBER: there are more texts than were said. */
static uint32_t number_of(struct od_recent_experts *r, uint64_t sequence)
{
	uint32_t number = od_id_table_find(&r->ids, sequence);

	if (number != OD_NO_NUMBER)
		return number;
	number = od_id_table_add(&r->ids, sequence);
	if (number != OD_NO_NUMBER)
		memset(recent_of(r, number, 0), 0xff, list_bytes(r)); /* OD_NO_EXPERT */
	return number;
}

void od_recent_experts_routed(struct od_recent_experts *r, uint64_t sequence, uint32_t m, const uint16_t *expert)
{
	const uint32_t most = r->config->prior.recent, k = r->config->top_k, number = number_of(r, sequence);
	uint16_t old[OD_MAX_EXPERTS], *list;
	uint32_t n = 0;

	if (number == OD_NO_NUMBER)
		return;
	list = recent_of(r, number, m);
	memcpy(old, list, most * sizeof(*old));
	for (; n < k && n < most; n++) /* the best of the row is its oldest */
		list[n] = expert[k - 1 - n];
	for (uint32_t i = 0; n < most; i++)
		if (!od_is_among(expert, k, old[i]))
			list[n++] = old[i];
}

/* Logarithms of probabilities are what decides, up to a constant; an expert outside the best groups has none. */
static double range_of(const float *score, uint32_t n)
{
	float most = 0, least = INFINITY;

	for (uint32_t e = 0; e < n; e++) {
		most = fmaxf(most, score[e]);
		least = score[e] > 0 ? fminf(least, score[e]) : least;
	}
	return most > 0 ? log((double)most / (double)fmaxf(least, LEAST_SCORE)) : 0;
}

void od_recent_experts_raise(struct od_recent_experts *r, uint64_t sequence, uint32_t m, float *score)
{
	const struct od_cache_prior *p = &r->config->prior;
	const uint32_t n = r->config->n_experts, number = number_of(r, sequence);
	struct layer_range *range = &r->range[m];
	uint16_t best[OD_MAX_CHOICE];
	const uint16_t *list;
	float by;

	range->mean += (range_of(score, n) - range->mean) / (double)++range->n;
	if (number == OD_NO_NUMBER)
		return;
	by = (float)exp((double)p->lambda * range->mean);
	list = recent_of(r, number, m);
	if (p->keep > 0)
		od_rank(score, n, best, p->keep);
	for (uint32_t i = 0; i < p->recent; i++)
		if (list[i] < n && !od_is_among(best, p->keep, list[i]))
			score[list[i]] *= by;
	for (uint32_t i = 0; i < p->keep; i++)
		score[best[i]] *= by;
}

void od_recent_experts_end(struct od_recent_experts *r, uint64_t sequence)
{
	od_id_table_remove(&r->ids, sequence);
}

void od_recent_experts_free(struct od_recent_experts *r)
{
	if (r == NULL)
		return;
	od_id_table_fini(&r->ids);
	od_free(r->recent);
	free(r->range);
	free(r);
}

int od_recent_experts_new(struct od_recent_experts **out, const struct od_config *config, size_t max_sequences,
			  struct od_err *err)
{
	struct od_recent_experts *r = calloc(1, sizeof(*r));
	int rc;

	*out = NULL;
	if (r == NULL)
		return od_fail(err, OD_ERR_NOMEM, "recent experts");
	r->config = config;
	r->recent = od_alloc_array(max_sequences, list_bytes(r));
	r->range = calloc(config->n_moe, sizeof(*r->range));
	rc = r->recent != NULL && r->range != NULL ? od_id_table_init(&r->ids, (uint32_t)max_sequences, err) :
						     od_fail(err, OD_ERR_NOMEM, "recent experts");
	if (rc != OD_OK) {
		od_recent_experts_free(r);
		return rc;
	}
	*out = r;
	return OD_OK;
}
