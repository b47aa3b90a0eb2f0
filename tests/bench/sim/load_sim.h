/* load_sim.h - the machine that orders of loads are made for, in virtual time: one reader, L inflaters, one compute
 * stream (ZipMoE, arXiv 2601.21198, section 3.2); and what no order can beat on it.
 *
 * Nothing waits that has something to do. The reader reads in the order's sequence; an inflater that is free takes, of
 * the E-chunks that are there, one of the task that stands first; the stream runs experts as they become ready. What
 * recovery costs is part of inflate_ns where an inflater does it, else of run_ns.
 * Thread: any. Owner: the caller. */
#ifndef OD_BENCH_LOAD_SIM_H
#define OD_BENCH_LOAD_SIM_H

#include "tests/bench/sim/load_order.h"

#define OD_OPTIMUM_TASKS 4u
#define OD_OPTIMUM_CHUNKS 64u

struct od_load_times {
	uint64_t read_ns, inflated_ns; /* the last chunk is there, is inflated */
	uint64_t done_ns;	       /* the last expert has run: the makespan */
};

struct od_load_times od_load_sim(const struct od_load_task *task, const struct od_load_costs *costs,
				 const struct od_load_order *order);

/* The least makespan of all sequences of reads and all priorities of inflaters, for at most OD_OPTIMUM_TASKS tasks of
 * at most OD_OPTIMUM_CHUNKS E-chunks; known_ns: one that is known to be possible. */
uint64_t od_load_optimum(const struct od_load_task *task, size_t n, const struct od_load_costs *costs,
			 uint64_t known_ns);

/* No schedule at all is shorter (Lemma B.3 there, and a little sharper). */
uint64_t od_load_bound(const struct od_load_task *task, size_t n, const struct od_load_costs *costs);

#endif
