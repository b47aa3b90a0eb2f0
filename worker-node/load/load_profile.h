/* load_profile.h - measures the cost of loading an expert when a worker starts (u, rho, c of ZipMoE, arXiv 2601.21198,
 * section 3.2). The read threads read a few parts of some experts and one thread finishes them. That takes a fraction
 * of a second and reads at most ODW_PROFILE_BYTES. The result is a first estimate: after the first load the schedule
 * uses its own measurements.
 *
 * The engine measures how long an expert runs (p), which depends on the session's profile and kernels.
 * Thread: one, before there are loaders. Owner: the caller. */
#ifndef ODW_LOAD_PROFILE_H
#define ODW_LOAD_PROFILE_H

#include "common/cache/cache_state.h"
#include "worker-node/load/loader.h"

#define ODW_PROFILE_BYTES (64u << 20)

/* Read through the page cache, which keeps data in free memory, or past it, which is faster when little of it fits. */
enum odw_read_mode { ODW_READ_AUTO, ODW_READ_BUFFERED, ODW_READ_DIRECT };
extern const char *const odw_read_mode_names[]; /* "auto", "buffered", "direct", NULL */

struct odw_profile_opts {
	struct od_pack *pack;
	struct od_device *device;
	enum od_form form;
	const struct od_expert_mem *mem; /* memory of one expert; overwritten */
	unsigned n_readers;
	odw_read_fn *read; /* NULL: from the pack */
	void *read_arg;
	uint64_t (*now_ns)(void); /* NULL: od_now_ns; for tests */
};

/* Skips experts that cannot be read: the load that needs one will report it. All zero when nothing could be read. */
OD_MUST_CHECK int odw_profile_loads(struct odw_part_times *out, const struct odw_profile_opts *o, struct od_err *err);

/* The same, and sets the pack's read mode: as asked, if the file system supports it. ODW_READ_AUTO: the mode with the
 * lower mean read time, given free_bytes of page cache for experts. Only SM bytes and coded exponents with buffers of
 * their own are read past the page cache. */
OD_MUST_CHECK int odw_profile_read_mode(struct odw_part_times *out, bool *direct, const struct odw_profile_opts *o,
					enum odw_read_mode asked, uint64_t free_bytes, struct od_err *err);

/* Converts the costs for the cache planner: of an average expert of the pack. */
struct od_cache_cost odw_cache_cost(const struct od_pack *pack, const struct odw_expert_costs *costs);
/* Memory of an expert in each cache state, in memory of d (NULL: of the host). */
struct od_cache_sizes odw_cache_sizes(const struct od_pack *pack, const struct od_device *d, enum od_form form);

#endif
