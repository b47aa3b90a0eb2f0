/* checksum.h - XXH3 with the widest vector instructions of this CPU. The library's plain functions use baseline x86-64,
 * where the checksum would take most of a chunk's load time. Its dispatching functions select by CPU and give the same
 * sums.
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

/* OD_ERR_CORRUPT, "WHAT: expected ..., found ...", if the sums differ. */
OD_MUST_CHECK int od_check_xxh3(uint64_t found, uint64_t expected, struct od_err *err, const char *what, ...)
	OD_PRINTF(4, 5);

#endif
