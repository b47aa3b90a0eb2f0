/* gguf_sums.h - checksums of what is read of a GGUF file that is used where it lies. The file has none, so each is
 * computed when its bytes are read first, and kept beside: a file that changes, or a disk that returns other bytes, is
 * found out from then on.
 *
 * The file of sums is mapped and shared by all processes of the machine that use the model. It belongs to the GGUF
 * file's sizes and times of change. For another state of the file a new one replaces it; processes that use the model
 * meanwhile keep theirs.
 * Thread: any. Owner: the caller of open. */
#ifndef OD_PACK_GGUF_SUMS_H
#define OD_PACK_GGUF_SUMS_H

#include "common/pack/gguf/gguf.h"

struct od_gguf_sums;

/* path: of the file of n sums; NULL: they are kept in memory alone. */
OD_MUST_CHECK int od_gguf_sums_open(struct od_gguf_sums **out, const char *path, const struct od_gguf *g, size_t n,
				    struct od_err *err);
void od_gguf_sums_close(struct od_gguf_sums *s); /* NULL ok */

/* The sum that was found for item i (a dense tensor, or a chunk of an expert) now: the first one is kept, and a later
 * one must be the same, else OD_ERR_CORRUPT, whose message the caller completes with the place. */
OD_MUST_CHECK int od_gguf_sums_check(struct od_gguf_sums *s, size_t i, uint64_t found, struct od_err *err);
/* The sum of item i; 0: it is not known yet. */
uint64_t od_gguf_sums_known(const struct od_gguf_sums *s, size_t i);
/* How many items' sums are known. */
size_t od_gguf_sums_n_known(const struct od_gguf_sums *s);
/* Grows with each sum that this process learns. */
uint64_t od_gguf_sums_learned(const struct od_gguf_sums *s);

#endif
