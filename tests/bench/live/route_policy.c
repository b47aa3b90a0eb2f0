#include "tests/bench/live/route_policy.h"

#include "common/compute/rank.h"
#include "tests/bench/bench_draw.h"
#include "tests/bench/sim/cache_rule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const route_way_names[] = { "router", "prune", "swap", "max-rank", "cumulative", "cache-prior", NULL };

/* rank [n]: all experts, the best first; the first `most` of them that are cached go before all others, and the first
 * `keep` before these. */
static void promote(uint16_t *rank, uint32_t n, uint32_t most, uint32_t keep, const struct route_cache *c)
{
	uint16_t out[OD_MAX_EXPERTS];
	uint32_t at = keep;

	memcpy(out, rank, keep * sizeof(*out));
	for (uint32_t i = keep; i < most; i++)
		if (od_is_among(c->expert, c->n, rank[i]))
			out[at++] = rank[i];
	for (uint32_t i = keep; i < n; i++)
		if (i >= most || !od_is_among(c->expert, c->n, rank[i]))
			out[at++] = rank[i];
	memcpy(rank, out, n * sizeof(*out));
}

/* How many of the best have the probability together. */
static uint32_t rank_of_sum(const uint16_t *rank, const float *probability, uint32_t n, double sum)
{
	double have = 0;
	uint32_t i = 0;

	while (i < n && have < sum)
		have += (double)probability[rank[i++]];
	return i;
}

/* Logarithms of probabilities are logits, up to a constant. */
static void prefer(const struct route_policy *p, struct route_cache *c, const float *probability, uint32_t n,
		   uint16_t *rank)
{
	float logit[OD_MAX_EXPERTS], most = -INFINITY, least = INFINITY;

	for (uint32_t e = 0; e < n; e++) {
		logit[e] = logf(fmaxf(probability[e], 1e-30f));
		most = fmaxf(most, logit[e]);
		least = fminf(least, logit[e]);
	}
	c->range += ((double)(most - least) - c->range) / (double)(c->count.n_rows + 1);
	for (uint32_t e = 0; e < n; e++)
		if (od_is_among(c->expert, c->n, (uint16_t)e) || od_is_among(rank, p->keep, (uint16_t)e))
			logit[e] += (float)(p->value * c->range);
	od_rank(logit, n, rank, n);
}

uint32_t route_choose(const struct route_policy *p, struct route_cache *c, const float *probability, uint32_t n,
		      uint32_t k, uint64_t row, uint16_t *expert)
{
	uint16_t rank[OD_MAX_EXPERTS];
	uint32_t n_weighted = k, most;

	od_rank(probability, n, rank, n);
	switch (p->way) {
	case ROUTE_ROUTER:
	case N_ROUTE_WAYS: break;
	case ROUTE_PRUNE: n_weighted = (uint32_t)p->value; break;
	case ROUTE_SWAP:
		if (n > k)
			rank[(uint32_t)p->value] = rank[k + od_draw_mix(row) % (n - k)];
		break;
	case ROUTE_MAX_RANK:
		most = (uint32_t)p->value;
		promote(rank, n, most < n ? most : n, p->keep, c);
		break;
	case ROUTE_CUMULATIVE: promote(rank, n, rank_of_sum(rank, probability, n, p->value), p->keep, c); break;
	case ROUTE_CACHE_PRIOR: prefer(p, c, probability, n, rank); break;
	}
	memcpy(expert, rank, k * sizeof(*expert));
	return n_weighted;
}

void route_fill(struct route_cache *c, uint32_t n, uint64_t seed)
{
	while (c->n < c->room) {
		const uint16_t expert = (uint16_t)(od_draw(&seed) % n);

		if (!od_is_among(c->expert, c->n, expert))
			c->expert[c->n++] = expert;
	}
	c->count.n_came += c->n;
}

void route_used(struct route_cache *c, const uint16_t *expert, const float *weight, uint32_t n_weighted, uint32_t k)
{
	uint16_t order[OD_MAX_CHOICE], out[OD_MAX_EXPERTS + OD_MAX_CHOICE];
	uint32_t n = 0, n_misses = 0;

	for (uint32_t i = 0; i < n_weighted; i++) {
		uint32_t at = i;

		n_misses += !od_is_among(c->expert, c->n, expert[i]);
		for (; at > 0 && weight[order[at - 1]] < weight[i]; at--)
			order[at] = order[at - 1];
		order[at] = (uint16_t)i;
	}
	/* order: the largest weight first, which is evicted first */
	for (uint32_t i = n_weighted; i > 0; i--)
		out[n++] = expert[order[i - 1]];
	for (uint32_t i = 0; i < c->n; i++)
		if (!od_is_among(expert, n_weighted, c->expert[i]))
			out[n++] = c->expert[i];
	c->n = n < c->room ? n : c->room;
	memcpy(c->expert, out, c->n * sizeof(*out));
	c->count.n_rows++;
	c->count.n_uses += k;
	c->count.n_misses += n_misses;
	c->count.n_came += n_misses;
	c->count.stay_rows += c->n;
}

/* next [n_uses]: as cache_rule_foretell takes it. */
static void find_next(const uint16_t *used, size_t n_uses, uint64_t *next)
{
	uint64_t at[OD_MAX_EXPERTS];

	for (uint32_t e = 0; e < OD_MAX_EXPERTS; e++)
		at[e] = CACHE_NEVER;
	for (size_t i = n_uses; i-- > 0;) {
		if (used[i] == OD_NO_EXPERT)
			continue;
		next[i] = at[used[i]];
		at[used[i]] = i;
	}
}

int route_oracle_misses(const uint16_t *used, size_t n_uses, uint32_t n, uint32_t room, uint64_t *n_misses,
			struct od_err *err)
{
	const struct sim_cache_opts o = {
		.n_moe = 1, .n_experts = n, .budget_bytes = room, .expert_bytes = 1, .state = SIM_CACHE_F
	};
	uint64_t *next = malloc((n_uses + 1) * sizeof(*next));
	struct sim_cache *c = NULL;
	int rc = next != NULL ? cache_rule_new(&c, CACHE_BELADY, &o, 1, err) : od_fail(err, OD_ERR_NOMEM, "routes");

	*n_misses = 0;
	if (rc == OD_OK)
		find_next(used, n_uses, next);
	for (size_t i = 0; rc == OD_OK && i < n_uses; i++) {
		if (used[i] == OD_NO_EXPERT)
			continue;
		*n_misses += sim_cache_look(c, 0, used[i]) == SIM_CACHE_NONE;
		cache_rule_foretell(c, next[i]);
		(void)sim_cache_use(c, 0, used[i]);
	}
	sim_cache_free(c);
	free(next);
	return rc;
}
