/* cache_state.h - the states of an expert in a worker's cache: hot experts ready to compute, warm ones compressed,
 * others only in part; the memory and load cost of each state (ZipMoE, arXiv 2601.21198, sections 3.2 and 3.4).
 *
 * Thread: plain data, pure functions. */
#ifndef OD_BENCH_STATE_H
#define OD_BENCH_STATE_H

#include <stdbool.h>
#include <stdint.h>

/* From hot to cold. */
enum sim_cache_state {
	SIM_CACHE_F, /* full: ready to compute, no load */
	SIM_CACHE_C, /* compressed: SM bytes and coded exponents, nothing to read */
	SIM_CACHE_S, /* SM bytes only */
	SIM_CACHE_E, /* coded exponents only */
	SIM_CACHE_STATES, /* the number of states */
	SIM_CACHE_NONE = SIM_CACHE_STATES,
};

#define SIM_CACHE_POOL(state) (1u << (state))

/* Bytes of an expert in each state, and the set of states that get a pool (SIM_CACHE_POOL). */
struct sim_cache_sizes {
	uint64_t bytes[SIM_CACHE_STATES];
	unsigned pools;
};

/* From the bytes of an expert's SM-chunks, its E-chunks, and its plain form (as published, in a slot). A worker that
 * computes on planes uses them as stored: F equals C, and there is no pool C. Without SM bytes (weights of 8 bits or
 * less) S is empty and E equals C; neither gets a pool. Without any chunks (a GGUF file: experts are stored as they are
 * used) F alone gets one. */
struct sim_cache_sizes sim_cache_sizes_of(uint64_t sm_bytes, uint64_t e_bytes, uint64_t plain_bytes, bool planes);

/* Load costs of an average expert, profiled at start. */
struct sim_cache_cost {
	double u_ns; /* time to read one matrix's SM-chunks */
	double rho; /* coded over plain bytes of exponents: reading its E-chunks takes rho * u_ns */
	double c_ns; /* time to inflate (planes: check) one E-chunk */
	uint32_t tensors; /* matrices of an expert */
	uint32_t chunks; /* E-chunks of a matrix */
	uint32_t inflaters;
};

/* Time to load the k experts of a layer when hits[state] of them are cached in each state (Algorithm 3); the hits sum
 * to at most k. The maximum of two times: the sequential reads, and the inflaters' evenly shared work, which waits for
 * exponent chunks that must be read. Compute time is not included: it does not depend on the cache. */
double sim_cache_makespan_ns(const struct sim_cache_cost *cost, uint32_t k, const uint32_t hits[SIM_CACHE_STATES]);

#endif
