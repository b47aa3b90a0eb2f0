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

/* Until the time ns of od_now_ns. */
static inline void od_sleep_until(uint64_t ns)
{
	const struct timespec until = { .tv_sec = (time_t)(ns / OD_NS_PER_S), .tv_nsec = (long)(ns % OD_NS_PER_S) };

	while (od_now_ns() < ns) /* a signal ends a sleep early */
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

static inline double od_seconds(uint64_t ns)
{
	return (double)ns * 1e-9;
}

#endif
