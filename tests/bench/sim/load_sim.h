/* load_sim.h - simulates a load order in virtual time: one reader, L inflaters, one compute stream (ZipMoE, arXiv
 * 2601.21198, section 3.2); and lower bounds for any order.
 *
 * No unit idles while it has work. The reader follows the order; a free inflater takes a read E-chunk of the first task
 * in the order; the stream runs experts as they become ready. The cost of recovery is part of inflate_ns where an
 * inflater does it, else of run_ns.
 * Thread: any. Owner: the caller. */
#ifndef OD_BENCH_LOAD_SIM_H
#define OD_BENCH_LOAD_SIM_H

#include "tests/bench/sim/load_order.h"

#define OD_OPTIMUM_TASKS 4u
#define OD_OPTIMUM_CHUNKS 64u

struct od_load_times {
	uint64_t read_ns, inflated_ns; /* end of the last read, of the last inflation */
	uint64_t done_ns; /* end of the last expert's run: the makespan */
};

struct od_load_times od_load_sim(const struct od_load_task *task, const struct od_load_costs *costs,
				 const struct od_load_order *order);

/* The smallest makespan over all read orders and all inflater priorities, for at most OD_OPTIMUM_TASKS tasks of at most
 * OD_OPTIMUM_CHUNKS E-chunks; known_ns: a makespan that is known to be possible. */
uint64_t od_load_optimum(const struct od_load_task *task, size_t n, const struct od_load_costs *costs,
			 uint64_t known_ns);

/* A lower bound for any schedule (Lemma B.3 of the paper, made slightly tighter). */
uint64_t od_load_bound(const struct od_load_task *task, size_t n, const struct od_load_costs *costs);

#endif
