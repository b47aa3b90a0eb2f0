/* load_crowd.h - inflaters that always have something to do: round and round they finish one expert whose stored bytes
 * are in memory. What readers lose beside them is what inflating costs reading; that readers also wait for slow
 * inflaters, in a worker, is another matter and not in it.
 *
 * Thread: one; it starts and ends its own. */
#ifndef OD_BENCH_LOAD_CROWD_H
#define OD_BENCH_LOAD_CROWD_H

#include "tests/bench/live/load_source.h"

struct load_crowd;

/* e->stored is there; mem is theirs. */
OD_MUST_CHECK int load_crowd_start(struct load_crowd **out, unsigned n, const struct od_pack *pack, enum od_form form,
				   const struct load_expert *e, const struct od_expert_mem *mem, struct od_err *err);
/* An error that they met, if any. NULL ok. */
OD_MUST_CHECK int load_crowd_stop(struct load_crowd *c, struct od_err *err);

#endif
