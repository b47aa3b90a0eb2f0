/* load_profile.h - what loading an expert costs on this machine, found when a worker starts (ZipMoE, arXiv 2601.21198,
 * section 3.2: u, rho, c): as many threads as will read read a few parts of some experts that are there, and one
 * finishes them. That takes a fraction of a second and never more than ODW_PROFILE_BYTES. It is a first word: from the
 * first load on the schedule goes by what its own threads need.
 *
 * How long an expert runs (p) is learnt by the engine: it depends on the session's profile and kernels.
 * Thread: one, before there are loaders. Owner: the caller. */
#ifndef ODW_LOAD_PROFILE_H
#define ODW_LOAD_PROFILE_H

#include "common/cache/cache_state.h"
#include "worker-node/load/loader.h"

#define ODW_PROFILE_BYTES (64u << 20)

/* Through the page cache, which keeps what fits into free memory, or past it, which is faster where that is not much. */
enum odw_read_mode { ODW_READ_AUTO, ODW_READ_BUFFERED, ODW_READ_DIRECT };
extern const char *const odw_read_mode_names[]; /* "auto", "buffered", "direct", NULL */

struct odw_profile_opts {
	struct od_pack *pack;
	struct od_device *device;
	enum od_form form;
	const struct od_expert_mem *mem; /* of one expert, which is written */
	unsigned n_readers;
	odw_read_fn *read; /* NULL: from the pack */
	void *read_arg;
	uint64_t (*now_ns)(void); /* NULL: od_now_ns; tests have their own */
};

/* What cannot be read is left out: a damaged expert is found by the load that needs it. All zero when nothing could be. */
OD_MUST_CHECK int odw_profile_loads(struct odw_part_times *out, const struct odw_profile_opts *o, struct od_err *err);

/* The same, and how the pack is read from now on: as asked, if its file system can; left to us, whatever takes less time
 * on average when the page cache has free_bytes to keep experts in. Only SM bytes and coded exponents that have
 * buffers of their own are read past it. */
OD_MUST_CHECK int odw_profile_read_mode(struct odw_part_times *out, bool *direct, const struct odw_profile_opts *o,
					enum odw_read_mode asked, uint64_t free_bytes, struct od_err *err);

/* The same costs as the planner of a cache has them, of an average expert of the pack. */
struct od_cache_cost odw_cache_cost(const struct od_pack *pack, const struct odw_expert_costs *costs);
/* What an expert takes in each state in a worker's memory. */
struct od_cache_sizes odw_cache_sizes(const struct od_pack *pack, enum od_form form);

#endif
