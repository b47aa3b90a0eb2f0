/* load_together.h - od-bench load --together: loads the experts of one RUN in each rule's order through the real
 * loader; compute is simulated by waiting. Planes also run with a cache: pools F, S and E hold a quarter of the experts
 * each.
 *
 * Thread: one. */
#ifndef OD_BENCH_LOAD_TOGETHER_H
#define OD_BENCH_LOAD_TOGETHER_H

#include "tests/bench/live/load_run.h"

struct load_together_line {
	const char *source; /* its name */
	struct load_case c;
};

struct load_together_opts {
	size_t n; /* experts of a RUN: of every line's source, all of one layer */
	uint64_t rounds, seed;
	bool json;
};

/* Measures and reports. */
OD_MUST_CHECK int load_together_bench(const struct load_together_line *line, size_t n_lines,
				      const struct load_together_opts *o, struct od_err *err);

#endif
