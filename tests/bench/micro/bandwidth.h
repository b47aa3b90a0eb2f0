/* bandwidth.h - memory read bandwidth of this machine: the upper bound of every kernel that streams weights once.
 *
 * Readings are short chunks, so that a benchmark can interleave them with its own work and both see the same load from
 * other processes: open once, then call od_membw_read between the chunks of the other work.
 * Thread: one at a time, the opener's; it takes part in the reading. Owner: the caller. */
#ifndef OD_BENCH_BANDWIDTH_H
#define OD_BENCH_BANDWIDTH_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct od_membw;

struct od_membw_sum {
	double bytes, ns;
};

/* A buffer size for od_membw_open: several times the last-level cache. */
uint64_t od_membw_bytes(void);

/* bytes: buffer size, rounded down to whole readings; use several times the last-level cache, or the cache is measured.
 * n_threads includes the caller. loads: "avx512", "avx2", "scalar", or NULL for the widest of this CPU. OD_ERR_NOMEM:
 * err has the free memory. */
OD_MUST_CHECK int od_membw_open(struct od_membw **out, uint64_t bytes, unsigned n_threads, const char *loads,
				struct od_err *err);
/* od_membw_open for a GPU, of which device is the name (od_device_open): copies within its memory, each byte counted as
 * read and as written. A device of several cards: the first one. */
OD_MUST_CHECK int od_membw_open_gpu(struct od_membw **out, uint64_t bytes, const char *device, struct od_err *err);
void od_membw_close(struct od_membw *m); /* NULL ok */

/* Reads the next chunk (about one millisecond) with all threads and returns GB/s (10^9 bytes). It cycles through the
 * buffer, so that a chunk has left the cache before it is read again. */
double od_membw_read(struct od_membw *m);
/* od_membw_read, whose bytes and time are added to *sum. */
void od_membw_add(struct od_membw *m, struct od_membw_sum *sum);
double od_membw_gbps(const struct od_membw_sum *sum); /* NAN: nothing was read */

const char *od_membw_loads(const struct od_membw *m); /* for reports */

#endif
