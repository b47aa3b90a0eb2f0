/* disk_rate.h - how fast the disk of a pack is read past the page cache, by as many threads as a store of experts has.
 *
 * Thread: any. */
#ifndef ODP_DISK_RATE_H
#define ODP_DISK_RATE_H

#include "common/base/status.h"

/* pack: a folder, or a GGUF file. *gbps: GB/s; NAN: a small file, or a file system without O_DIRECT. */
OD_MUST_CHECK int odp_disk_rate(const char *pack, double *gbps, struct od_err *err);

#endif
