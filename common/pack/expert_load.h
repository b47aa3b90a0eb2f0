/* expert_load.h - one shard at a time from experts.bin into a slot: read SM-chunk and E-chunk, check, inflate,
 * merge (ZipMoE sections 2 and 3.2); into a slot of OD_FORM_PLANES only read and check. Experts are read, never mapped,
 * so a worker's memory is its slots.
 *
 * Thread: an od_inflater belongs to one thread; several may fill different shards of one slot. */
#ifndef OD_PACK_EXPERT_LOAD_H
#define OD_PACK_EXPERT_LOAD_H

#include "common/pack/pack.h"

struct od_inflater;

struct od_load_stats {
	uint64_t read_bytes, read_ns, inflate_ns; /* added to, never reset */
};

/* form: of the slots that it fills; the pack can have it (od_pack_can_form). */
OD_MUST_CHECK int od_inflater_new(struct od_inflater **out, const struct od_pack *p, enum od_form form,
				  struct od_err *err);
void od_inflater_free(struct od_inflater *inf); /* NULL ok */
uint64_t od_inflater_bytes(const struct od_pack *p, enum od_form form); /* staging memory of one */

/* Shard number `shard` of the expert into slot (od_pack_slot_bytes, as od_pack_bind lays it out). A checksum
 * or length that does not hold is OD_ERR_CORRUPT and names file, expert and offset; the slot is then garbage. */
OD_MUST_CHECK int od_inflater_load(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t shard, void *slot,
				   struct od_load_stats *stats, struct od_err *err);

/* All experts into memory, for resident mode and the BF16 shadow; the pack can have the form. n_threads at least 1;
 * progress (NULL ok) is called from the calling thread with bytes done and in all. */
struct od_expert_store;
typedef void od_progress_fn(void *arg, uint64_t done_bytes, uint64_t all_bytes);
OD_MUST_CHECK int od_experts_load_all(struct od_expert_store **out, const struct od_pack *p, enum od_form form,
				      unsigned n_threads, od_progress_fn *progress, void *arg, struct od_err *err);
void od_experts_free(struct od_expert_store *s);			       /* NULL ok */
const struct od_expert *od_experts_get(const struct od_expert_store *s); /* [n_layers][n_experts] */
uint64_t od_experts_need_bytes(const struct od_pack *p, enum od_form form);

#endif
