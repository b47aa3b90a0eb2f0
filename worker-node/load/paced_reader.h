/* paced_reader.h - reads that take a stated time, so that a few cores can stand for slower machines (od-worker --load-time,
 * od-bench load).
 *
 * It stands for one path to the storage (a disk, a PCIe link). Reads queue up in the order in which they come: each takes
 * the path for its share of load_ns, or for its bytes at the given rate, and returns no earlier than that. The bytes
 * themselves are read at once, by the reader behind it.
 * With load_ns an expert is complete no earlier than load_ns after its first part was taken: what later parts lose by
 * waking up late or waiting for a stage is made up for. At a rate idle time of the path is lost.
 * A read of a load that is cancelled meanwhile returns at once, and leaves the path to others.
 *
 * Thread: odw_paced_read from any; the rest by the owner while nobody reads. Owner: the caller; plain data. */
#ifndef ODW_PACED_READER_H
#define ODW_PACED_READER_H

#include <pthread.h>

#include "worker-node/load/loader.h"

struct odw_paced_reader {
	const struct od_pack *pack;
	odw_read_fn *read; /* where the bytes come from; NULL: the pack */
	void *read_arg;
	struct odw_schedule *schedule; /* whose loads they are; NULL: nothing is cancelled */
	uint64_t load_ns;	       /* of the path, for a whole expert; 0: */
	double bytes_per_ns;	       /* of the path */

	pthread_mutex_t lock; /* its own: PTHREAD_MUTEX_INITIALIZER, */
	uint64_t free_ns;     /* and when the path will have served all reads so far, at first 0 */
};

odw_read_fn odw_paced_read; /* arg: the paced reader */
void odw_sleep_until(uint64_t ns); /* of od_now_ns */

#endif
