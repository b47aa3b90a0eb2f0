/* load_order.h - rules for the order in which the experts of one (step, m) are read and inflated, for comparison:
 * ZipMoE's cache-affinity blocks (arXiv 2601.21198, section 3.3, Algorithm 1), Johnson's rule, which the worker uses
 * (run_order.h), and FIFO.
 *
 * A task is one tensor of an expert: one reader reads the uncached part of its SM-chunk and its n_chunks E-chunks,
 * n_inflaters threads inflate the E-chunks, and a complete expert runs, one at a time. An order is a list of tasks
 * split into blocks. Within a block all E-chunks are read before the SM-chunks. The inflaters follow the list too, but
 * never wait: they take the first task of the list whose chunk has been read.
 *
 * - fifo: by rank, each tensor's E-chunks, then its SM-chunk.
 * - johnson: one expert after another, all its E-chunks before its SM-chunks.
 * - blocks: load_order.c documents how it fills the gaps in Algorithm 1.
 * Thread: any. Owner: the caller; no allocation and no state. Time: O(n^2 + n * n_inflaters). */
#ifndef OD_BENCH_LOAD_ORDER_H
#define OD_BENCH_LOAD_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/model/family.h"
#include "worker-node/load/run_order.h"
#include "worker-node/schedule.h"

#define OD_ORDER_TASKS (ODW_MAX_SLOTS * OD_N_EXPERT_MATS)
_Static_assert(OD_ORDER_TASKS <= ODW_MAX_ORDERED, "the worker's rule can have them");
#define OD_ORDER_INFLATERS 64u
/* Bounds, so that no sum overflows. */
#define OD_ORDER_CHUNKS 4096u
#define OD_ORDER_COST_NS (UINT64_C(1) << 36)

struct od_load_task {
	uint32_t expert;
	bool has_e, has_sm; /* cached */
	uint64_t run_ns; /* p_n: of the whole expert, the same in all its tasks */
};

struct od_load_costs {
	uint64_t sm_read_ns; /* u, of a tensor's SM-chunk */
	uint64_t e_read_ns; /* rho * u / K, of one E-chunk */
	uint64_t inflate_ns; /* c, of one E-chunk */
	uint16_t n_chunks; /* K */
	unsigned n_inflaters; /* L */
};

struct od_load_read {
	uint16_t task;
	uint16_t n_chunks; /* the task's next E-chunks; 0: its SM-chunk */
};

struct od_load_order {
	size_t n_tasks, n_reads;
	uint16_t task[OD_ORDER_TASKS]; /* all tasks, in order */
	uint16_t block[OD_ORDER_TASKS]; /* of task[i]; begins with 0, never decreases */
	struct od_load_read read[2 * OD_ORDER_TASKS];
};

enum od_load_rule { OD_LOAD_FIFO, OD_LOAD_BLOCKS, OD_LOAD_JOHNSON };

/* task: [n] in order of rank. OD_ERR_RANGE and an empty order: more than OD_ORDER_TASKS tasks, or a cost out of
 * range. */
OD_MUST_CHECK int od_load_order(struct od_load_order *o, enum od_load_rule rule, const struct od_load_task *task,
				size_t n, const struct od_load_costs *costs);

/* Computes o->read from o->task and o->block. */
void od_load_order_reads(struct od_load_order *o, const struct od_load_task *task, uint16_t n_chunks);

#endif
