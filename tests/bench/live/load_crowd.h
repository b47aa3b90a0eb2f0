/* load_crowd.h - inflaters that are always busy: they inflate one expert, whose stored bytes are in memory, again and
 * again. The slowdown of readers that run at the same time is the cost of inflating for reading. It does not include
 * the time that readers of a worker wait for slow inflaters.
 *
 * Thread: one; it starts and ends its own. */
#ifndef OD_BENCH_LOAD_CROWD_H
#define OD_BENCH_LOAD_CROWD_H

#include "tests/bench/live/load_source.h"

struct load_crowd;

/* e->stored is read already; the inflaters own mem. */
OD_MUST_CHECK int load_crowd_start(struct load_crowd **out, unsigned n, const struct od_pack *pack, enum od_form form,
				   const struct load_expert *e, const struct od_expert_mem *mem, struct od_err *err);
/* Returns an error of the inflaters, if any. NULL ok. */
OD_MUST_CHECK int load_crowd_stop(struct load_crowd *c, struct od_err *err);

#endif
