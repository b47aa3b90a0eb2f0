#include "tests/bench/report/load_draw.h"

#include <math.h>

#define MEMORY_GBPS 37.0 /* GB/s are bytes per ns */
#define GFLOPS 100.0
#define MOST_ROWS 512.0

uint64_t od_load_draw(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

double od_load_draw_rows(uint64_t *state)
{
	return floor(pow(MOST_ROWS, (double)(od_load_draw(state) >> 11) * 0x1p-53));
}

double od_load_run_ns(double weights, double bytes, double rows)
{
	return fmax(bytes / MEMORY_GBPS, 2 * weights * rows / GFLOPS);
}
