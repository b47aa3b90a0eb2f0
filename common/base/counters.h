/* counters.h - all statistics counters: one table of names, units and meanings. The figures after a prompt, --json,
 * PONG, od-bench and docs/COUNTERS.md use it.
 *
 * An array of counters is a uint64_t [OD_N_COUNTERS]. Each process has one for its lifetime; each request has its own.
 * Times are counted in ns and shown in seconds.
 * Thread: plain data; only the owner of an array accesses it. */
#ifndef OD_BASE_COUNTERS_H
#define OD_BASE_COUNTERS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* In the order of the table in counters.c, which documents them. Messages carry names, not these numbers. */
enum od_counter {
	OD_C_PROMPT_TOKENS,
	OD_C_SHARED_TOKENS,
	OD_C_RESTORED_TOKENS,
	OD_C_TOKENS,
	OD_C_PREFILL_NS,
	OD_C_TTFT_NS,
	OD_C_DECODE_NS,
	OD_C_DRAFTED,
	OD_C_ACCEPTED,
	OD_C_DEVICE_WAITS,
	OD_C_SIDE_WAITS,
	OD_C_EXPERT_USES,
	OD_C_PREDICTED_USES,
	OD_C_RECALLED_USES,
	OD_C_STOOD_IN_USES,
	OD_C_STOOD_IN_RECALLED,
	OD_C_UNDONE_USES,
	OD_C_UNDONE_RECALLED,
	OD_C_LATE_PREDICTIONS,
	OD_C_MISSING_PREDICTIONS,
	OD_C_VOIDED_PREDICTIONS,
	OD_C_UNKNOWN_PREDICTIONS,
	OD_C_DROPPED_PREDICTS,
	OD_C_FIRST_PREDICTIONS,
	OD_C_LEAD_SUM,
	OD_C_LEAD_ROUTERS,
	OD_C_HEDGED,
	OD_C_HEDGE_USES,
	OD_C_WASTED_WANTS,
	OD_C_SERVED_IN_TIME,
	OD_C_UNDONE_SERVED,
	OD_C_UNDONE_LOADS,
	OD_C_STALLS,
	OD_C_STALL_NS,
	OD_C_DECODE_LAYERS,
	OD_C_EXPERTS_NS,
	OD_C_CACHE_USES,
	OD_C_CACHE_HITS,
	OD_C_LOADS,
	OD_C_LOADED_BYTES,
	OD_C_HOST_BYTES,
	OD_C_HOST_EXPERTS,
	OD_C_DENSE_BYTES,
	OD_C_DENSE_WAIT_NS,
	OD_C_LOAD_NS,
	OD_C_DECODE_LOADS,
	OD_C_BEGUN_LOADS,
	OD_C_EXTRA_LOADS,
	OD_C_WORKER_RUNS,
	OD_C_WORKER_ROWS,
	OD_C_WORKER_COMPUTE_NS,
	OD_C_RECOVERED_RUNS,
	OD_C_RUN_BYTES,
	OD_C_RESULT_BYTES,
	OD_C_STATE_BYTES,
	OD_C_ALIGN_BYTES,
	OD_C_ASKED_BYTES,
	OD_C_ALIGN_NS,
	OD_C_WORKERS,
	OD_C_GROUPS,
	OD_C_SLOTS,
	OD_C_RSS_BYTES,
	OD_C_PEAK_RSS_BYTES,
	OD_C_REFUSED_CONNECTIONS,
	OD_C_CANCELLED_LOADS,
	OD_C_UNUSED_LOADS,
	OD_C_PROMPT_EXTRA_LOADS,
	OD_C_READS,
	OD_C_READ_NS,
	OD_C_FINISHES,
	OD_C_FINISH_NS,
	OD_C_PULLED_BYTES,
	OD_C_SPOOL_BYTES,
	OD_C_SPOOL_GOAL_BYTES,
	OD_C_SHADOW_STEPS,
	OD_C_SHADOW_CONFIRMED,
	OD_C_SHADOW_MISTAKEN,
	OD_C_SHADOW_OVERTAKEN,
	OD_C_SHADOW_PREDICTIONS,
	OD_C_SHADOW_LOST,
	OD_C_SHADOW_STATE_ROWS,
	OD_C_SHADOW_ASKED,
	OD_C_SHADOW_CHOSEN,
	OD_C_SHADOW_FILLED,
	OD_C_SHADOW_DROPPED,
	OD_N_COUNTERS
};

enum od_counter_kind { OD_COUNTER, OD_GAUGE, OD_PEAK }; /* only grows; current value; maximum so far */

/* Bits that say which arrays have the counter. */
#define OD_OF_REQUEST 1u
#define OD_OF_WORKER 2u
#define OD_OF_SHADOW 4u

struct od_counter_info {
	const char *name, *unit; /* as in --json; unit "ns": shown in seconds */
	enum od_counter_kind kind;
	unsigned of;
	const char *meaning;
};
extern const struct od_counter_info od_counter_info[OD_N_COUNTERS];

int od_counter_find(const char *name); /* enum od_counter; -1: unknown */

/* Adds counters, takes gauges from c, keeps the larger peaks. */
void od_counters_add(uint64_t *to, const uint64_t *c);
/* to = now - before. A counter that is smaller than before was restarted from 0. Gauges and peaks are taken from
 * now. */
void od_counters_since(uint64_t *to, const uint64_t *now, const uint64_t *before);

/* The counters of these owners (OD_OF_*). json: as fields of an object. text: those that are not 0, as "name value,
 * name value", cut to size; returns buf. */
void od_counters_json(const uint64_t *c, unsigned of, json_t *into);
const char *od_counters_text(const uint64_t *c, unsigned of, char *buf, size_t size);

#endif
