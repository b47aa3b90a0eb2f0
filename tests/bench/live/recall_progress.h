/* recall_progress.h - a progress bar with the time left, on stderr. Thread: any; a monitor. */
#ifndef OD_BENCH_RECALL_PROGRESS_H
#define OD_BENCH_RECALL_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct recall_progress {
	pthread_mutex_t lock;
	bool shown;
	uint64_t done, all; /* pieces of work of about the same size */
	uint64_t begin_ns, last_ns;
};

void recall_progress_begin(struct recall_progress *p, bool shown, uint64_t all);
void recall_progress_done(struct recall_progress *p, uint64_t n);
void recall_progress_end(struct recall_progress *p); /* clears the line */

/* Writes "[#####-----] 50 %, 1:20 left" to buf; elapsed_ns: time of the finished pieces. Pure. */
void recall_progress_text(char *buf, unsigned size, uint64_t done, uint64_t all, uint64_t elapsed_ns);

#endif
