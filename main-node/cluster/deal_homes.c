#include "main-node/cluster/deal_homes.h"

#include <math.h>

#define CHANGE 0.25
#define LEAST_CHANGE 0.01
#define DEVIATIONS 1.5 /* room that a cache has beyond its share */

static double run_rate(const struct odm_home_share *w)
{
	return 1 / fmax(w->times.run, 1);
}

/* Shares by rates, none above its capacity: workers that are full leave the rest to the others. */
static void share_within(struct odm_home_share *worker, uint32_t n)
{
	double left = 1, rates = 0;
	bool changed = true;

	for (uint32_t i = 0; i < n; i++) {
		worker[i].share = -1; /* not full */
		rates += run_rate(&worker[i]);
	}
	while (changed) {
		changed = false;
		for (uint32_t i = 0; i < n; i++) {
			if (worker[i].share >= 0 || left * run_rate(&worker[i]) / rates <= worker[i].capacity)
				continue;
			worker[i].share = worker[i].capacity;
			left -= worker[i].capacity;
			rates -= run_rate(&worker[i]);
			changed = true;
		}
	}
	for (uint32_t i = 0; i < n; i++)
		if (worker[i].share < 0)
			worker[i].share = left * run_rate(&worker[i]) / rates;
}

/* Largest share of which a cache still has room when more experts than on average fall to it. */
static double surely_held(const struct odm_home_share *w, size_t n_experts)
{
	return fmax(0, w->capacity - DEVIATIONS * sqrt(w->capacity / (double)n_experts));
}

void odm_share_homes(struct odm_home_share *worker, uint32_t n, size_t n_experts)
{
	double capacity = 0, sure = 0, rates = 0;

	for (uint32_t i = 0; i < n; i++) {
		capacity += worker[i].capacity;
		sure += surely_held(&worker[i], n_experts);
		rates += 1 / fmax(worker[i].times.load + worker[i].times.run, 1);
	}
	for (uint32_t i = 0; i < n && sure > 1; i++)
		worker[i].capacity = surely_held(&worker[i], n_experts);
	if (capacity > 1) {
		share_within(worker, n);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		worker[i].share = worker[i].capacity +
				  (1 - capacity) / fmax(worker[i].times.load + worker[i].times.run, 1) / rates;
}

bool odm_home_differs(double before, double now)
{
	return fabs(now - before) > LEAST_CHANGE + CHANGE * before;
}
