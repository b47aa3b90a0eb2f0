/* paced_reader.h - reads with a minimum duration, to emulate slower machines (od-worker --load-time, od-bench load).
 *
 * It emulates one path to the storage (a disk, a PCIe link). Reads are served in order of arrival. Each occupies the
 * path for its share of load_ns, or for its bytes at the given rate, and returns no earlier. The underlying reader
 * reads the bytes at once.
 * With load_ns an expert is complete no earlier than load_ns after its first slice began; later slices catch up on late
 * wake-ups and waits for a stage. With a rate, idle time of the path is lost. A read of a cancelled load returns at
 * once and frees the path.
 *
 * Thread: odw_paced_read from any; the rest by the owner while no thread reads. Owner: the caller; plain data. */
#ifndef ODW_PACED_READER_H
#define ODW_PACED_READER_H

#include <pthread.h>

#include "common/residency/loader.h"

struct odw_paced_reader {
	const struct od_pack *pack;
	od_read_fn *read; /* the underlying reader; NULL: the pack */
	void *read_arg;
	struct od_schedule *schedule; /* for cancelled loads; NULL: none are cancelled */
	uint64_t load_ns; /* path time of a whole expert; 0: use bytes_per_ns */
	double bytes_per_ns; /* rate of the path */

	/* Private; initialise to PTHREAD_MUTEX_INITIALIZER and 0. */
	pthread_mutex_t lock;
	uint64_t free_ns; /* when the path has served all reads so far */
};

od_read_fn odw_paced_read; /* arg: the paced reader */

#endif
