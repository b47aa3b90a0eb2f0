/* dense_plan.h - which dense weights stay in memory, and where the others go when each step reads them again.
 *
 * A step needs its stages (layers, then pieces of the head) in the same order each time. A cache that keeps what was
 * used last would keep nothing of such a cycle that is used next. So the same weights always stay, about as much of
 * each stage, and the others pass through a ring. A weight always has the same address in the ring, which is cut so
 * that a stage can be read while the one before it is computed.
 * Thread: pure functions. Owner: the caller has the arrays. */
#ifndef OD_PACK_DENSE_PLAN_H
#define OD_PACK_DENSE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Weights that are read together. The first two fields are given, the plan sets the others. */
struct od_dense_part {
	uint32_t stage; /* ascending */
	uint64_t bytes;
	bool stays;
	uint64_t at; /* in the ring */
	/* It may be read when all but the last `behind` - 1 of the parts that were read before are used no more. */
	uint32_t behind;
};

struct od_dense_plan {
	uint64_t ring_bytes, kept_bytes;
	uint64_t streamed_bytes; /* a step reads so many */
};

/* Parts that stay and the ring take at most most_bytes; but for a few parts, steps read as little as they can then.
 * False: it is too little even if nothing stays; the plan is that one then. */
bool od_dense_plan_make(struct od_dense_plan *plan, struct od_dense_part *part, size_t n, uint64_t most_bytes);

#endif
