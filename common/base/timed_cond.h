/* timed_cond.h - condition variables that are waited for until a time of od_now_ns, which no change of the date moves.
 *
 * Thread: as pthread_cond_t. Owner: the caller, by pthread_cond_destroy. */
#ifndef OD_BASE_TIMED_COND_H
#define OD_BASE_TIMED_COND_H

#include <pthread.h>

#include "common/base/clock.h"

static inline void od_timed_cond_init(pthread_cond_t *c)
{
	pthread_condattr_t monotonic; /* the clock that od_now_ns reads */

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(c, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

/* False: the time has come. */
static inline bool od_timed_cond_wait(pthread_cond_t *c, pthread_mutex_t *lock, uint64_t until_ns)
{
	const struct timespec until = { .tv_sec = (time_t)(until_ns / OD_NS_PER_S),
					.tv_nsec = (long)(until_ns % OD_NS_PER_S) };

	return pthread_cond_timedwait(c, lock, &until) == 0;
}

#endif
