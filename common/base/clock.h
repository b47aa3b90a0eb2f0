/* clock.h - monotonic time in nanoseconds. Thread: any. */
#ifndef OD_BASE_CLOCK_H
#define OD_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define OD_NS_PER_S 1000000000ull
#define OD_NS_PER_MS 1000000ull

static inline uint64_t od_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * OD_NS_PER_S + (uint64_t)t.tv_nsec;
}

static inline double od_seconds(uint64_t ns)
{
	return (double)ns * 1e-9;
}

#endif
