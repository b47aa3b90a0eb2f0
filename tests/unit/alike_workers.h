/* alike_workers.h - times of workers that are alike (placement.h): a load takes 64 units of 100 ns, a run 4. */
#ifndef OD_TEST_ALIKE_WORKERS_H
#define OD_TEST_ALIKE_WORKERS_H

#include "main-node/cluster/placement.h"

#define ALIKE_UNIT_NS 100.0
#define ALIKE_LOAD 64
#define ALIKE_RUN 4
#define ALIKE_MOST 64

/* [n]; the next call changes them. */
static inline const struct odm_deal_times *alike_workers(uint32_t n)
{
	static struct odm_deal_times times[ALIKE_MOST];

	for (uint32_t i = 0; i < n; i++)
		times[i] = (struct odm_deal_times){ .id = i,
						    .expert = { .load = ALIKE_LOAD * ALIKE_UNIT_NS,
								.run = ALIKE_RUN * ALIKE_UNIT_NS,
								.row = ALIKE_RUN * ALIKE_UNIT_NS / 8 },
						    .home = 1.0 / n,
						    .homes_from = (double)i / n };
	return times;
}

#endif
