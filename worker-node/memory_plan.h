/* memory_plan.h - splits a worker's memory limit: fixed costs (program, threads, tables), slots, and a cache.
 *
 * Thread: pure functions. Owner: the caller; plain data. */
#ifndef ODW_MEMORY_PLAN_H
#define ODW_MEMORY_PLAN_H

#include "common/residency/residency.h"

struct odw_memory_opts {
	const struct od_pack *pack;
	const struct od_device *device; /* holds the slots */
	enum od_form form;
	const struct od_residency_sizes *sizes; /* measured for this form */
	uint64_t limit_bytes;
	uint64_t slots; /* --slots; 0: as many as fit */
	uint64_t cache_mib; /* 0: no cache */
	unsigned n_readers, n_inflaters;
	bool pulls; /* the worker pulls experts from a store */
};

struct odw_memory_plan {
	/* As many slots as there can be: so many of the largest experts fit into slots_bytes, and more of smaller ones
	 * (odw_memory_slots, n_slots). */
	unsigned n_slots;
	uint64_t slots_bytes; /* all slots together take so much at most */
	uint64_t cache_bytes; /* budget for cached data outside slots */
	uint64_t need_bytes; /* the whole plan, by the limit's count */
	/* Memory taken beside slots and cache, on a device with memory of its own. */
	uint64_t beside_bytes;
};

/* Slots that there are for experts of any layer. */
static inline unsigned odw_memory_slots(const struct odw_memory_plan *p, const struct od_residency_sizes *s)
{
	const uint64_t n = p->slots_bytes / s->most_bytes;

	return n < p->n_slots ? (unsigned)n : p->n_slots;
}

/* OD_ERR_NOMEM: the limit is too small; err names the bytes needed. */
OD_MUST_CHECK int odw_memory_plan(struct odw_memory_plan *p, const struct odw_memory_opts *o, struct od_err *err);

/* Bytes of the plan that stay unused where main's steps have at most step_rows rows of row_bytes each: the plan has
 * room for the largest RUNs that any main may send. */
uint64_t odw_memory_unused(const struct od_config *config, uint32_t step_rows, uint64_t row_bytes);

/* *n: the number of slots of slot_bytes that fit into limit_bytes beside fixed_bytes: `asked`, or with asked 0 as many
 * as fit, at most 64. */
OD_MUST_CHECK int odw_fit_slots(unsigned *n, uint64_t limit_bytes, uint64_t fixed_bytes, uint64_t slot_bytes,
				uint64_t asked, struct od_err *err);
/* As many of n slots as there is room for beside beside_bytes, at least one. free_bytes 0: it is not known. */
unsigned odw_free_slots(unsigned n, uint64_t free_bytes, uint64_t beside_bytes, uint64_t slot_bytes);

#endif
