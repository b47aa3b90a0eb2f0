/* mat_sums.h - one SHA-256 over a published matrix, which consists of up to three tensors (docs/PACK-FORMAT.md).
 *
 * Thread: one at a time per object. */
#ifndef OD_PACK_MAT_SUMS_H
#define OD_PACK_MAT_SUMS_H

#include <sodium.h>

#include "common/pack/mat_type.h"
#include "common/pack/sums.h"

struct od_mat_sums {
	crypto_hash_sha256_state weights, scales, divisor; /* update each with its tensor's bytes, in order */
};

static inline void od_mat_sums_init(struct od_mat_sums *s)
{
	crypto_hash_sha256_init(&s->weights);
	s->scales = s->divisor = s->weights;
}

/* Without scales the sum of the weights; else the sum of the two or three sums. */
static inline void od_mat_sums_final(struct od_mat_sums *s, const struct od_mat_type *t,
				     uint8_t sha256[OD_SHA256_BYTES])
{
	crypto_hash_sha256_state all;

	crypto_hash_sha256_final(&s->weights, sha256);
	if (t->scale == 0)
		return;
	crypto_hash_sha256_init(&all);
	crypto_hash_sha256_update(&all, sha256, OD_SHA256_BYTES);
	crypto_hash_sha256_final(&s->scales, sha256);
	crypto_hash_sha256_update(&all, sha256, OD_SHA256_BYTES);
	if (od_mat_divisor_bytes(t) > 0) {
		crypto_hash_sha256_final(&s->divisor, sha256);
		crypto_hash_sha256_update(&all, sha256, OD_SHA256_BYTES);
	}
	crypto_hash_sha256_final(&all, sha256);
}

#endif
