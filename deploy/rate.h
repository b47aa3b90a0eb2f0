/* rate.h - bytes per second of the last half a minute, for the time that is left.
 *
 * A resumed download first reads what is there, a hundred times as fast as the line: an average of the whole run would
 * promise too much for hours.
 * Thread: one. Owner: the caller's storage, zeroed. */
#ifndef OD_PACK_RATE_H
#define OD_PACK_RATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct odp_rate {
	bool begun;
	struct {
		uint64_t ns, done;
	} older, newer; /* the rate is that since the older mark, which is one to two windows old */
};

/* done: bytes by now. Returns bytes per second; 0 at the beginning, and when bytes turn out to be missing after all. */
double odp_rate_add(struct odp_rate *r, uint64_t now_ns, uint64_t done);
/* "25 kB/s", "2.5 MB/s", "120 MB/s". */
void odp_rate_text(double bytes_per_s, char *out, size_t size);
/* "3:07", "12:00:05"; "?" for a rate of 0 and for more than 99 hours. */
void odp_rate_left(double bytes_per_s, uint64_t bytes, char *out, size_t size);

#endif
