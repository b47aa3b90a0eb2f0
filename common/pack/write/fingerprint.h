/* fingerprint.h - the fingerprint of a pack's model: a SHA-256 over the weights, the numbers of the configuration and
 * the tokenizer (docs/PACK-FORMAT.md). Codec and shadows are not part of it, so that all packs of a model agree.
 *
 * Thread: one at a time per object. Owner: od_fingerprint_new's caller. */
#ifndef OD_PACK_FINGERPRINT_H
#define OD_PACK_FINGERPRINT_H

#include "common/pack/pack_layout.h"

struct od_fingerprint;

OD_MUST_CHECK int od_fingerprint_new(struct od_fingerprint **out, struct od_err *err);
void od_fingerprint_free(struct od_fingerprint *f); /* NULL ok */

/* Adds a tensor, or a matrix with its scales; any order of calls. n_in 0: a vector. sha256: mat_sums.h. */
OD_MUST_CHECK int od_fingerprint_add(struct od_fingerprint *f, const char *name, const struct od_mat_type *type,
				     uint64_t n_out, uint64_t n_in, const uint8_t sha256[OD_SHA256_BYTES],
				     struct od_err *err);
/* Adds the three matrices of an expert. */
OD_MUST_CHECK int od_fingerprint_add_expert(struct od_fingerprint *f, const struct od_config *cfg, uint32_t m,
					    uint32_t expert, const struct od_expert_entry *e, struct od_err *err);

/* tokenizer: path of od_tokenizer_name's file, NULL when there is none. hex gets OD_FINGERPRINT_CHARS and a NUL. */
OD_MUST_CHECK int od_fingerprint_finish(struct od_fingerprint *f, const struct od_config *cfg, const char *tokenizer,
					char hex[OD_FINGERPRINT_CHARS + 1], struct od_err *err);

#endif
