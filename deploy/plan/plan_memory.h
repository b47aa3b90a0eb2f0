/* plan_memory.h - the memory of od-main, od-worker and od-shadow on a machine, by what takes it. The daemons' own
 * functions count it, with the memory of that machine in place of this one's.
 *
 * Thread: any. Owner: the caller; plain data. */
#ifndef ODP_PLAN_MEMORY_H
#define ODP_PLAN_MEMORY_H

#include "common/compute/device.h"
#include "deploy/plan/model_cost.h"

#define ODP_MAX_SHARES 6

/* A daemon's memory; need_bytes is the sum of its shares. */
struct odp_memory {
	struct odp_memory_share {
		const char *what; /* "experts kept" */
		uint64_t bytes;
	} share[ODP_MAX_SHARES];
	size_t n;
	uint64_t need_bytes, limit_bytes;
};

static inline bool odp_memory_fits(const struct odp_memory *m)
{
	return m->need_bytes <= m->limit_bytes;
}

/* Texts that main may write at once, with ctx_tokens of context each, and those that it writes. */
struct odp_texts {
	uint32_t parallel, writing, prefill_rows;
	uint64_t ctx_tokens;
};

/* Main of a cluster: no experts. d: of any machine. */
OD_MUST_CHECK int odp_memory_main(struct odp_memory *out, const struct odp_model *m, struct od_device *d,
				  const struct odp_texts *texts, uint64_t limit_bytes, struct od_err *err);

/* Main of a cluster whose steps read dense weights: a ring, and those that stay. OD_OK, also where the ring does not
 * fit. */
struct odp_streamed {
	struct odp_memory memory;
	double *layer_bytes; /* [n_layers]: the caller's; a step reads them */
	double head_bytes, step_bytes; /* step_bytes: of all */
};
OD_MUST_CHECK int odp_memory_streamed(struct odp_streamed *out, const struct odp_model *m, struct od_device *d,
				      const struct odp_texts *texts, uint64_t limit_bytes, struct od_err *err);

/* Finds the bytes that steps read, with so much room for the ring and for weights that stay. memory is not set. */
OD_MUST_CHECK int odp_memory_reads(struct odp_streamed *out, const struct odp_model *m, uint64_t room_bytes,
				   struct od_err *err);

/* Main without a cluster: what the texts that it writes leave is for experts. */
struct odp_alone {
	struct odp_memory memory;
	enum od_form form;
	unsigned n_slots;
	uint64_t cache_bytes; /* for kept experts */
	uint64_t ctx_tokens; /* a text's: as asked, or fewer */
	bool holds_all; /* all experts are kept */
	/* Steps read dense weights: so much is for those that stay and for a ring; with all_bytes of memory all would
	 * stay. 0: they do. */
	uint64_t dense_bytes, all_bytes;
};
/* OD_OK, also where it does not fit: then only memory is set, to the least with which one text would. */
OD_MUST_CHECK int odp_memory_alone(struct odp_alone *out, const struct odp_model *m, struct od_device *d,
				   const struct odp_texts *texts, uint64_t limit_bytes, struct od_err *err);

/* A worker with at least so many slots, if they fit, and a cache of at most so many experts, for steps of step_rows
 * rows at most. */
struct odp_worker_plan {
	struct odp_memory memory;
	enum od_form form;
	unsigned n_slots; /* 0: not even one fits */
	uint64_t cache_bytes;
};
OD_MUST_CHECK int odp_memory_worker(struct odp_worker_plan *out, const struct odp_model *m, struct od_device *d,
				    unsigned slots, uint64_t kept_experts, uint32_t step_rows, uint64_t limit_bytes,
				    struct od_err *err);

/* A shadow of this precision. */
OD_MUST_CHECK int odp_memory_shadow(struct odp_memory *out, const struct odp_model *m, struct od_device *d,
				    enum od_precision precision, const struct odp_texts *texts, uint64_t limit_bytes,
				    struct od_err *err);

#endif
