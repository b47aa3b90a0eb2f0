/* bandwidth.h - how fast this machine reads memory: the ceiling of every kernel that streams weights once.
 *
 * Readings are short chunks, so that a benchmark can interleave them with its own work and compare like with
 * like on a machine whose neighbours change: open once, od_membw_read between the chunks of the other work.
 * Thread: one at a time, the opener's; it takes part in the reading. Owner: the caller. */
#ifndef OD_BENCH_BANDWIDTH_H
#define OD_BENCH_BANDWIDTH_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct od_membw;

/* bytes: the buffer, filled here; several times the last-level cache, or the cache is measured. Rounded down to
 * whole readings. n_threads counts the caller. loads: "avx512", "avx2", "scalar", or NULL for the widest that
 * this CPU has. OD_ERR_NOMEM says how much is free. */
OD_MUST_CHECK int od_membw_open(struct od_membw **out, uint64_t bytes, unsigned n_threads, const char *loads,
				struct od_err *err);
void od_membw_close(struct od_membw *m); /* NULL ok */

/* Reads the next chunk (about a millisecond's worth) with all threads, round and round the buffer so that a
 * chunk has left the cache when its turn comes again: GB/s (10^9 bytes). */
double od_membw_read(struct od_membw *m);

const char *od_membw_loads(const struct od_membw *m);
void od_membw_sizes(const struct od_membw *m, uint64_t *buffer_bytes, uint64_t *reading_bytes);

#endif
