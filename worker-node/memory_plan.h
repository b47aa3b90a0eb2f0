/* memory_plan.h - what a worker's memory limit is used for: slots, a cache, and what is always there.
 *
 * Thread: pure functions. */
#ifndef ODW_MEMORY_PLAN_H
#define ODW_MEMORY_PLAN_H

#include "common/cache/pool_policy.h"
#include "common/pack/pack.h"

struct odw_memory_opts {
	const struct od_pack *pack;
	const struct od_device *device; /* of the slots' memory */
	enum od_form form;
	uint64_t limit_bytes;
	uint64_t slots;	    /* asked for; 0: as many as fit */
	uint64_t cache_mib; /* 0: no cache */
	enum od_cache_policy policy;
	unsigned n_readers, n_inflaters;
	bool pulls; /* experts from a store */
};

struct odw_memory_plan {
	unsigned n_slots;
	unsigned slot;			      /* the buffers of a slot, a set of 1 << enum od_expert_buf, */
	uint64_t buf_bytes[OD_N_EXPERT_BUFS]; /* of each kind, */
	uint64_t slot_bytes;		      /* and their memory, without what is there for a cache */
	struct od_cache_sizes sizes;	      /* of an expert in a cache */
	uint64_t cache_bytes;		      /* for what a cache keeps in no slot */
	uint32_t max_pinned;		      /* slots that a cache can pin besides n_slots */
};

/* OD_ERR_NOMEM says how many bytes would be needed. */
OD_MUST_CHECK int odw_memory_plan(struct odw_memory_plan *p, const struct odw_memory_opts *o, struct od_err *err);

/* How many slots of slot_bytes fit into limit_bytes beside fixed_bytes: asked, or all that fit when asked is 0, at most
 * ODW_MAX_SLOTS. */
OD_MUST_CHECK int odw_fit_slots(unsigned *n, uint64_t limit_bytes, uint64_t fixed_bytes, uint64_t slot_bytes,
				uint64_t asked, struct od_err *err);

#endif
