/* expert_load.h - one shard at a time from experts.bin into an expert's memory (pack.h): read its SM-chunk and its
 * E-chunk, then check, inflate and merge them (ZipMoE sections 2 and 3.2); for OD_FORM_PLANES only read and check.
 * Experts are read, never mapped, so a worker's memory is its slots.
 *
 * Reading and finishing can be two threads' work. What is read goes to where the host may write (od_ref_stage): to its own
 * buffer if it has one, else to staging; SM bytes, where the device maps memory, to the upper half of their weights' own place,
 * so that nothing is copied. The host checks it. BF16 is then put together by the device (OD_OP_MERGE), from what it is given
 * by the queue of loads; the few other types by the host.
 * Thread: od_shards_read from any; an od_inflater belongs to one; several may fill different shards of one expert. */
#ifndef OD_PACK_EXPERT_LOAD_H
#define OD_PACK_EXPERT_LOAD_H

#include "common/pack/pack.h"

struct od_inflater;

struct od_load_stats {
	uint64_t read_bytes, read_ns, inflate_ns; /* added to, never reset */
};

/* form: of the experts that it fills, in memory of d; the pack can have it (od_pack_can_form). */
OD_MUST_CHECK int od_inflater_new(struct od_inflater **out, const struct od_pack *p, struct od_device *d, enum od_form form,
				  struct od_err *err);
void od_inflater_free(struct od_inflater *inf); /* NULL ok */
/* Memory of one: the host's and the device's. */
uint64_t od_inflater_bytes(const struct od_pack *p, const struct od_device *d, enum od_form form);

/* A shard as it is stored, each chunk followed by OD_PAD_BYTES readable bytes. */
struct od_shard_bytes {
	struct od_ref sm, e; /* what was read is on the host's side (od_ref_stage) */
	unsigned checked;    /* of OD_SET_STORED: what was read, and found good, another time; so it is on the device too */
};

/* What one shard takes of a buffer between being read and being finished, beside the buffers of its form. */
uint64_t od_staging_bytes(const struct od_pack *p, const struct od_device *d, enum od_form form);
/* Shards [first, first + n) into mem and, what has no place there, into staging (n * od_staging_bytes of a buffer), unchecked;
 * b[i] says where the chunks of shard first + i are. which: what of them is read, of OD_SET_STORED; the rest is in its buffers
 * already, and good. What lies together is read at once. */
OD_MUST_CHECK int od_shards_read(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
				 unsigned which, const struct od_expert_mem *mem, struct od_ref staging,
				 struct od_shard_bytes *b, struct od_err *err);
/* What was read of these shards, wherever b[i] says that it is, is checked and, if mem has a place for weights, put together
 * there. Returns when the device has done it: as a rule that is one wait for all of them. A checksum or length that does not
 * hold is OD_ERR_CORRUPT and names file, expert and offset; the expert is then garbage. */
OD_MUST_CHECK int od_inflater_finish(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
				     const struct od_shard_bytes *b, const struct od_expert_mem *mem, struct od_err *err);

/* Both, one after the other, of one shard. */
OD_MUST_CHECK int od_inflater_load(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t shard,
				   const struct od_expert_mem *mem, struct od_load_stats *stats, struct od_err *err);

/* All experts into memory, for resident mode and the BF16 shadow; the pack can have the form. n_threads at least 1;
 * progress (NULL ok) is called from the calling thread with bytes done and in all. */
struct od_expert_store;
typedef void od_progress_fn(void *arg, uint64_t done_bytes, uint64_t all_bytes);
OD_MUST_CHECK int od_experts_load_all(struct od_expert_store **out, const struct od_pack *p, struct od_device *d,
				      enum od_form form, unsigned n_threads, od_progress_fn *progress, void *arg, struct od_err *err);
void od_experts_free(struct od_expert_store *s);			       /* NULL ok */
const struct od_expert *od_experts_get(const struct od_expert_store *s); /* [n_moe][n_experts] */
uint64_t od_experts_need_bytes(const struct od_pack *p, enum od_form form);

#endif
