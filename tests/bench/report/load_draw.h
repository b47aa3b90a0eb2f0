/* load_draw.h - chance, and how long experts run, for benchmarks of loading.
 *
 * Thread: any; a state has one user. */
#ifndef OD_BENCH_LOAD_DRAW_H
#define OD_BENCH_LOAD_DRAW_H

#include <stdint.h>

uint64_t od_load_draw(uint64_t *state); /* splitmix64 (Steele, Lea, Flood 2014) */

/* Of an expert in prefill: 1 to 512, equally often by their logarithm. */
double od_load_draw_rows(uint64_t *state);

/* Few rows take as long as reading the weights from memory, where they are so many bytes, many as long as their
 * arithmetic. */
double od_load_run_ns(double weights, double bytes, double rows);

#endif
