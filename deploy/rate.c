#include "deploy/rate.h"

#include "common/base/clock.h"

#include <stdio.h>

#define WINDOW_NS (15 * OD_NS_PER_S)
#define MAX_LEFT_S (99 * 3600)

double odp_rate_add(struct odp_rate *r, uint64_t now_ns, uint64_t done)
{
	if (!r->begun || done < r->newer.done) {
		r->begun = true;
		r->older.ns = r->newer.ns = now_ns;
		r->older.done = r->newer.done = done;
	}
	if (now_ns - r->newer.ns >= WINDOW_NS) {
		r->older = r->newer;
		r->newer.ns = now_ns;
		r->newer.done = done;
	}
	return now_ns > r->older.ns ? (double)(done - r->older.done) / od_seconds(now_ns - r->older.ns) : 0;
}

void odp_rate_text(double bytes_per_s, char *out, size_t size)
{
	if (bytes_per_s < 1e6)
		snprintf(out, size, "%.0f kB/s", bytes_per_s / 1e3);
	else
		snprintf(out, size, "%.*f MB/s", bytes_per_s < 10e6 ? 1 : 0, bytes_per_s / 1e6);
}

void odp_rate_left(double bytes_per_s, uint64_t bytes, char *out, size_t size)
{
	const double left = bytes_per_s > 0 ? (double)bytes / bytes_per_s : MAX_LEFT_S + 1;
	const unsigned s = left <= MAX_LEFT_S ? (unsigned)left : 0;

	if (left > MAX_LEFT_S)
		snprintf(out, size, "?");
	else if (s >= 3600)
		snprintf(out, size, "%u:%02u:%02u", s / 3600, s / 60 % 60, s % 60);
	else
		snprintf(out, size, "%u:%02u", s / 60, s % 60);
}
