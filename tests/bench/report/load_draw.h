/* load_draw.h - random numbers and expert run times for benchmarks of loading.
 *
 * Thread: any; a state has one user. */
#ifndef OD_BENCH_LOAD_DRAW_H
#define OD_BENCH_LOAD_DRAW_H

#include <stdint.h>

uint64_t od_load_draw(uint64_t *state); /* splitmix64 (Steele, Lea, Flood 2014) */

/* Rows of an expert in prefill: 1 to 512, log-uniform. */
double od_load_draw_rows(uint64_t *state);

/* Run time of an expert: for few rows the time to read its weights (bytes) from memory, for many rows the time of their
 * arithmetic. */
double od_load_run_ns(double weights, double bytes, double rows);

#endif
