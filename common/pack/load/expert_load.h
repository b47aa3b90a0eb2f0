/* expert_load.h - loads experts shard by shard from experts.bin into an expert's memory (expert_form.h): reads the
 * SM-chunk and the E-chunk, then checks, inflates and merges them (ZipMoE, arXiv 2601.21198, sections 2 and 3.2).
 * OD_FORM_PLANES is only read and checked. Experts are read with pread, never mapped, so a worker's memory is its
 * slots.
 *
 * Reading and finishing can run on different threads. Chunks are read to host-writable memory (od_ref_stage): to their
 * own buffer if the expert has one, else to staging; if the device maps memory, SM bytes go to the upper half of their
 * weights' memory, without a copy. If it does not, an expert that stays as stored is read to staging, so that its
 * buffers need no stages. The host checks them; the device merges BF16 (OD_OP_MERGE, load queue), the host other types.
 *
 * Where the device maps nothing, chunks that are neighbours in the file are neighbours in staging, and are read, copied
 * and merged together: a card has room for some 500 blocks of planes at once, and one shard has 32.
 * Thread: od_shards_read from any; an od_inflater belongs to one; several threads may fill different shards of an
 * expert.
 * Owner: the caller of new and load. */
#ifndef OD_PACK_EXPERT_LOAD_H
#define OD_PACK_EXPERT_LOAD_H

#include "common/compute/card_split.h"
#include "common/compute/ops.h"
#include "common/pack/load/expert_form.h"
#include "common/pack/pack.h"

struct od_inflater;

struct od_load_stats {
	uint64_t read_bytes, read_ns, inflate_ns; /* added to, never reset */
};

/* form: of the experts to fill, in memory of d; od_pack_can_form has accepted it. */
OD_MUST_CHECK int od_inflater_new(struct od_inflater **out, const struct od_pack *p, struct od_device *d,
				  enum od_form form, struct od_err *err);
void od_inflater_free(struct od_inflater *inf); /* NULL ok */
/* One inflater for each of n threads. */
OD_MUST_CHECK int od_inflaters_new(struct od_inflater ***out, unsigned n, const struct od_pack *p, struct od_device *d,
				   enum od_form form, struct od_err *err);
void od_inflaters_free(struct od_inflater **inf, unsigned n); /* NULL ok */
/* Memory of one inflater, host and device together. */
uint64_t od_inflater_bytes(const struct od_pack *p, const struct od_device *d, enum od_form form);
/* The part of it that lies in memory of the device's own; 0: the device has the host's. */
uint64_t od_inflater_card_bytes(const struct od_pack *p, const struct od_device *d, enum od_form form);

/* A shard as stored, each chunk followed by OD_PAD_BYTES readable bytes; in host memory (od_ref_stage). */
struct od_shard_bytes {
	struct od_ref sm, e;
	/* The matrix or bias with plain weights that has the shard's rows (od_shards_at): they are only copied.
	 * Nowhere: the shard is as stored. */
	struct od_ref plain;
	bool checked; /* they have been found good */
};

/* Shards that are finished together, at most. */
#define OD_SLICE_SHARDS OD_MERGE_CHUNKS

/* Staging memory of a shard between reading and finishing, in addition to the buffers of its form. For OD_FORM_PLANES
 * it can be on the host alone (od_buf_new_on_host). */
uint64_t od_staging_bytes(const struct od_pack *p, const struct od_device *d, enum od_form form);
/* Reads shards [first, first + n), unchecked, into mem and, for chunks without a buffer there, into staging (n *
 * od_staging_bytes). b[i]: where the chunks of shard first + i are. Adjacent chunks are read with one call. n is at
 * most OD_SLICE_SHARDS if the slice is to be finished. */
OD_MUST_CHECK int od_shards_read(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
				 const struct od_expert_mem *mem, struct od_ref staging, struct od_shard_bytes *b,
				 struct od_err *err);
/* Checks the shards read to b[i], and notes that in b[i]. For who keeps them: an inflater checks what is not. */
OD_MUST_CHECK int od_shards_check(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
				  struct od_shard_bytes *b, struct od_err *err);
/* Where the chunks of a slice lie in memory that begins at `at`, a page, as od_shards_read lays them in staging if the
 * device's memory is not the host's. Returns how many bytes they take, with the readable ones behind them. */
uint64_t od_slice_layout(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
			 struct od_ref at, struct od_shard_bytes *b);
/* True: an expert's chunks are rows of weights, and scales behind them, without a code. */
bool od_expert_is_raw(const struct od_pack *p, uint32_t m, uint32_t expert);
/* The shards of such an expert, read to b and checked, to an expert's memory for plain weights, which the host can
 * write. */
void od_shards_put_raw(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
		       const struct od_expert_mem *mem, const struct od_shard_bytes *b);
/* Where shards lie in memory that holds their expert, as stored or plain, and good. */
void od_shards_at(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
		  const struct od_expert_mem *mem, struct od_shard_bytes *b);
/* Checks the shards read to b[i] and, if mem has a buffer for plain weights, merges them there. staging: as for
 * reading, also if b[i] are elsewhere. Returns when the device is done, usually after one wait for all shards.
 * OD_ERR_CORRUPT (checksum or length) names file, expert and offset; the expert's memory is then undefined. */
OD_MUST_CHECK int od_inflater_finish(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
				     const struct od_expert_mem *mem, struct od_ref staging,
				     const struct od_shard_bytes *b, struct od_err *err);

/* Reads and finishes one shard. */
OD_MUST_CHECK int od_inflater_load(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t shard,
				   const struct od_expert_mem *mem, struct od_load_stats *stats, struct od_err *err);

/* As od_inflater_load with OD_FORM_PLAIN, but writes only the shard's rows to `to`, as a matrix of that many rows
 * (mat_type.h); od_shard_max_memory bytes are enough for any shard. */
OD_MUST_CHECK int od_inflater_rows(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t shard,
				   struct od_ref to, struct od_err *err);

/* An expert's bias as published to `to`, checked. For who has the matrices from elsewhere (a shadow). */
OD_MUST_CHECK int od_expert_bias_read(const struct od_pack *p, uint32_t m, uint32_t expert, enum od_expert_mat bias,
				      uint8_t *to, struct od_err *err);

/* Loads all experts, for resident mode and the BF16 shadow; od_pack_can_form has accepted form. n_threads is at least
 * 1; progress (NULL ok) is called on the calling thread. */
struct od_expert_store;
typedef void od_progress_fn(void *arg, uint64_t done_bytes, uint64_t all_bytes);
OD_MUST_CHECK int od_experts_load_all(struct od_expert_store **out, const struct od_pack *p, struct od_device *d,
				      enum od_form form, unsigned n_threads, od_progress_fn *progress, void *arg,
				      struct od_err *err);
void od_experts_free(struct od_expert_store *s); /* NULL ok */
const struct od_expert *od_experts_get(const struct od_expert_store *s); /* [n_moe][n_experts] */
uint64_t od_experts_need_bytes(const struct od_pack *p, enum od_form form);
void od_experts_split(const struct od_pack *p, enum od_form form, struct od_split *s); /* adds them where they belong */

#endif
