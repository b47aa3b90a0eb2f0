/* residency.h - a store of experts that are loaded when they are wanted: slots, a cache of experts, the schedule over
 * both, and the threads that load (OD-MoE, arXiv 2512.03927, section 3.2; ZipMoE, arXiv 2601.21198, section 3).
 *
 * Its owner asks through the schedule (schedule.h): od-worker for od-main, over the network, and od-main for itself.
 * Thread: the owner's, except that the schedule is for any. Owner: od_residency_new's caller; pack and device are
 * borrowed. */
#ifndef OD_RESIDENCY_RESIDENCY_H
#define OD_RESIDENCY_RESIDENCY_H

#include "common/pack/load/expert_form.h"
#include "common/residency/expert_bufs.h"
#include "common/residency/loader.h"
#include "common/residency/read_mode.h"
#include "common/residency/schedule.h"

/* Memory of a pack's experts on a device. */
struct od_residency_sizes {
	uint64_t *slot_bytes; /* [n_moe]: an expert of the layer */
	uint64_t most_bytes, least_bytes; /* the largest and the smallest of these */
	uint64_t mean_bytes;
	uint32_t largest; /* a layer with the largest */
	uint64_t buf_bytes[OD_N_EXPERT_BUFS]; /* one buffer of each kind */
	bool lends; /* the store gives back memory that it does not use (od_expert_bufs_lend) */
};

/* *s is all zero unless OD_OK. */
OD_MUST_CHECK int od_residency_measure(struct od_residency_sizes *s, const struct od_pack *pack,
				       const struct od_device *d, enum od_form form, struct od_err *err);
void od_residency_sizes_fini(struct od_residency_sizes *s); /* all zero is fine */

/* Enough for a disk that wants several requests at once; a second costs nothing where the first suffices. */
#define OD_DEFAULT_READERS 2
#define OD_DEFAULT_INFLATERS 4 /* or one per CPU, if those are fewer */

struct od_residency_opts {
	struct od_pack *pack; /* od_residency_choose_read_mode sets its read mode */
	struct od_device *device;
	enum od_form form;
	const struct od_residency_sizes *sizes; /* borrowed */
	unsigned n_slots; /* and these limits: */
	uint64_t slots_bytes; /* at least sizes->most_bytes */
	uint64_t cache_bytes; /* kept experts beside the n_slots slots; 0: no cache */
	unsigned n_readers, n_inflaters;
	bool together; /* as in od_expert_bufs_opts */
};

struct od_residency;

OD_MUST_CHECK int od_residency_new(struct od_residency **out, const struct od_residency_opts *o, struct od_err *err);
void od_residency_free(struct od_residency *r); /* stops the threads if they run; NULL ok */

/* od_read_mode_choose for this store's pack, with the buffers of a slot; before the threads start. free_bytes: page
 * cache for experts. */
OD_MUST_CHECK int od_residency_choose_read_mode(struct od_residency *r, enum od_read_mode asked, uint64_t free_bytes,
						bool *direct, struct od_err *err);

/* Called on load threads; all but wake may be NULL (loader.h). */
struct od_residency_calls {
	od_read_fn *read;
	void *read_arg;
	int (*missed)(void *arg, uint32_t m, uint32_t expert, uint64_t begin_ns, int code, struct od_err *err);
	void *missed_arg;
	void (*wake)(void *arg);
	void *wake_arg;
};

/* Starts the threads that load. Once. */
OD_MUST_CHECK int od_residency_start(struct od_residency *r, const struct od_residency_calls *calls,
				     struct od_err *err);

/* Stops and joins them: nothing is called any more. NULL ok. */
void od_residency_stop(struct od_residency *r);

/* From now on cache_bytes are for experts that are kept, less what the device lacks, and more_bytes for slots beside
 * slots_bytes of the options, which must allow as many slots as fit. Kept experts take no more than cache_bytes of the
 * options, less more_bytes. Any thread. */
void od_residency_divide(struct od_residency *r, uint64_t cache_bytes, uint64_t more_bytes);

/* Gives back so many bytes of kept experts, or what they have; the slots keep theirs. False: there is none to give.
 * Experts that a load or the engine uses give their memory back later. The store does this for its own loads by
 * itself. */
bool od_residency_give_way(struct od_residency *r, uint64_t bytes);

/* Bytes that the device lacks, of those that od_residency_divide or the options gave to experts: another program has
 * them. When experts give way, all that their buffers do not have is lacking; before, 0. Kept experts have so much
 * less, or each later page and expert would be refused first. Any thread. */
uint64_t od_residency_lack_bytes(const struct od_residency *r);
/* Once a step. Every 64 calls and loads, the device is asked what it has free; half of that is lacking no longer. Any
 * thread. */
void od_residency_regain(struct od_residency *r);

struct od_schedule *od_residency_schedule(const struct od_residency *r); /* NULL: r is */
struct od_expert_bufs *od_residency_bufs(const struct od_residency *r);

#endif
