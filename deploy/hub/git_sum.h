/* git_sum.h - the SHA-1 by which git knows the content of a file: of "blob SIZE", a NUL and the content. It is the only
 * checksum that the hub has of small files. It shows damage, not malice; the files of weights have SHA-256.
 *
 * FIPS 180-4, section 6.1. Thread: one at a time. Owner: the caller's storage. */
#ifndef OD_PACK_GIT_SUM_H
#define OD_PACK_GIT_SUM_H

#include <stddef.h>
#include <stdint.h>

#define ODP_GIT_SUM_BYTES 20

struct odp_git_sum {
	uint32_t state[5];
	uint64_t n_bytes;
	uint8_t block[64];
};

void odp_git_sum_init(struct odp_git_sum *s, uint64_t file_bytes);
void odp_git_sum_update(struct odp_git_sum *s, const void *bytes, size_t n);
void odp_git_sum_final(struct odp_git_sum *s, uint8_t out[ODP_GIT_SUM_BYTES]);

#endif
