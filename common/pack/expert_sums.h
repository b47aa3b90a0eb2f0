/* expert_sums.h - checksums of the experts of a GGUF file, and of a worker's share of one, to compare copies: for each
 * tensor of an expert the XXH3-64 of its chunks, chained: from 0 on each is the XXH3-64 of the one before and that of
 * the next chunk. Two files with the same fingerprint may differ behind the bytes that it covers. Packs that od-pack
 * made have checksums in their index, which the fingerprint covers: none here.
 *
 * Thread: any. */
#ifndef OD_PACK_EXPERT_SUMS_H
#define OD_PACK_EXPERT_SUMS_H

#include "common/pack/pack.h"

struct od_expert_sums {
	uint64_t xxh3[OD_N_EXPERT_TENSORS]; /* [od_expert_tensors]; the rest 0 */
};

/* True: this pack's experts have such sums. */
bool od_expert_sums_apply(const struct od_pack *p);
/* False: not all chunks of the expert have been read (or pulled) yet. */
OD_MUST_CHECK bool od_expert_sums_get(const struct od_pack *p, uint32_t m, uint32_t expert, struct od_expert_sums *out);
/* Another number when the sums of more experts can be had. */
uint64_t od_expert_sums_state(const struct od_pack *p);

/* A chunk's XXH3-64, of a GGUF file that is used where it lies; the chunk is read if the sum is not known yet. */
OD_MUST_CHECK int od_expert_sums_chunk(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t shard,
				       uint64_t *xxh3, struct od_err *err);
/* The name of the GGUF file's tensor that has the matrix of all experts of the layer. */
const char *od_expert_sums_tensor(const struct od_pack *p, uint32_t m, enum od_expert_mat mat);

#endif
