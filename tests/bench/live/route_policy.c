#include "tests/bench/live/route_policy.h"

#include "common/compute/rank.h"

#include <math.h>
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
	c->range += ((double)(most - least) - c->range) / (double)(c->n_rows + 1);
	for (uint32_t e = 0; e < n; e++)
		if (od_is_among(c->expert, c->n, (uint16_t)e) || od_is_among(rank, p->keep, (uint16_t)e))
			logit[e] += (float)(p->value * c->range);
	od_rank(logit, n, rank, n);
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
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
			rank[(uint32_t)p->value] = rank[k + mix(row) % (n - k)];
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

void route_used(struct route_cache *c, const uint16_t *expert, const float *weight, uint32_t n_weighted, uint32_t k)
{
	uint16_t order[OD_MAX_CHOICE], out[OD_MAX_EXPERTS + OD_MAX_CHOICE];
	uint32_t n = 0;

	for (uint32_t i = 0; i < n_weighted; i++) {
		uint32_t at = i;

		c->n_misses += !od_is_among(c->expert, c->n, expert[i]);
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
	c->n_rows++;
	c->n_uses += k;
}
