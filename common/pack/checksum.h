/* checksum.h - XXH3 with the widest vectors that this CPU has. The library's plain functions are compiled for the
 * oldest x86-64, where a chunk's checksum takes longer than everything else that is done to it; its dispatching ones
 * ask the CPU. The sums are the same.
 *
 * Thread: any. */
#ifndef OD_PACK_CHECKSUM_H
#define OD_PACK_CHECKSUM_H

#include <stdint.h>
#include <xxhash.h>

#if defined(__x86_64__)
#include <xxh_x86dispatch.h> /* renames XXH3_64bits and XXH3_64bits_update */
#endif

#include "common/base/status.h"

/* OD_ERR_CORRUPT, "WHAT: expected ..., found ...", unless both sums are the same. */
OD_MUST_CHECK int od_check_xxh3(uint64_t found, uint64_t expected, struct od_err *err, const char *what, ...) OD_PRINTF(4, 5);

#endif
