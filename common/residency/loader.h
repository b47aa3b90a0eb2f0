/* loader.h - the threads that load experts into slots: readers read the most urgent slice into its slot and a stage;
 * inflaters check and merge slices that have been read. So reading and inflating overlap (ZipMoE, arXiv 2601.21198,
 * section 3.2).
 *
 * Thread: start and stop by the owner. Owner: the options' objects are borrowed until od_loaders_stop. */
#ifndef OD_RESIDENCY_LOADER_H
#define OD_RESIDENCY_LOADER_H

#include "common/pack/load/expert_form.h"
#include "common/pack/load/expert_load.h"
#include "common/residency/load_stages.h"
#include "common/residency/schedule.h"

#define OD_MAX_LOADERS 64 /* threads of a kind */

struct od_loaders;

/* As od_shards_read, from any source. Called on reader threads. */
typedef int od_read_fn(void *arg, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
		       const struct od_expert_mem *mem, struct od_ref staging, struct od_shard_bytes *b,
		       struct od_err *err);

struct od_loader_opts {
	const struct od_pack *pack;
	struct od_device *device; /* holds the slots */
	enum od_form form; /* the slots' */
	struct od_schedule *schedule; /* made with od_slices() and od_loader_stages() */
	unsigned n_readers, n_inflaters;
	/* Memory for a job's expert, before a slice is read to it. NULL: od_expert_mem_commit. Any thread. */
	int (*commit)(void *arg, const struct od_load_job *job, struct od_err *err);
	void *commit_arg;
	od_read_fn *read; /* NULL: from the pack */
	void *read_arg;
	/* Called when a load fails with code, unless it is the device that failed; begin_ns: when that slice of it
	 * began to be read. Returns the code to report, and err. NULL: code is reported. Any thread. */
	int (*missed)(void *arg, uint32_t m, uint32_t expert, uint64_t begin_ns, int code, struct od_err *err);
	void *missed_arg;
	void (*wake)(void *arg); /* an expert that a RUN waits for has been loaded, or failed to load. Any thread */
	void *wake_arg;
};

/* An expert is read in slices of several shards: enough to make the hand-over between threads cheap, few enough that an
 * expert with few shards still uses several threads. The last slice may be shorter. A device whose memory is not the
 * host's has larger ones: it merges the rows of a slice and a matrix at once, while the next slice is copied. */
uint32_t od_slice_shards(const struct od_device *d, uint32_t n_shards);
uint32_t od_slices(const struct od_device *d, uint32_t n_shards);
/* Shards of a slice of an expert with n_shards, where a slice has at most slice_shards. */
uint32_t od_shards_in_slice(uint32_t slice, uint32_t slice_shards, uint32_t n_shards);
/* The number of stages: one per thread, and one waiting per inflater. */
unsigned od_loader_stages(unsigned n_readers, unsigned n_inflaters);
/* Memory of threads and stages, without the slots. */
struct od_loader_memory {
	uint64_t bytes; /* host and device together */
	uint64_t card_bytes; /* in memory of the device's own; 0: it has the host's */
};
/* *m is all zero unless OD_OK. OD_ERR_RANGE: too many threads. */
OD_MUST_CHECK int od_loader_bytes(struct od_loader_memory *m, const struct od_pack *pack, const struct od_device *d,
				  enum od_form form, unsigned n_readers, unsigned n_inflaters, struct od_err *err);

OD_MUST_CHECK int od_loaders_start(struct od_loaders **out, const struct od_loader_opts *opts, struct od_err *err);
/* Stops the schedule, joins, frees. NULL ok. */
void od_loaders_stop(struct od_loaders *l);

#endif
