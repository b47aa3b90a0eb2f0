/* cache_state.h - in which states an expert can be kept in a worker's cache, and what loading it from one costs
 * (ZipMoE, arXiv 2601.21198, sections 3.2 and 3.4).
 *
 * Thread: plain data, pure functions. */
#ifndef OD_CACHE_STATE_H
#define OD_CACHE_STATE_H

#include <stdbool.h>
#include <stdint.h>

/* In the order of the hierarchy: what is used most is kept readiest. */
enum od_cache_state {
	OD_CACHE_F,	 /* full: as the backend computes on it, nothing to do */
	OD_CACHE_C,	 /* compressed: its SM bytes and its coded exponents, nothing to read */
	OD_CACHE_S,	 /* its SM bytes */
	OD_CACHE_E,	 /* its coded exponents */
	OD_CACHE_STATES, /* so many */
	OD_CACHE_NONE = OD_CACHE_STATES,
};

extern const char *const od_cache_state_names[]; /* "F", "C", "S", "E", "none", then NULL */

/* As it travels: 0 is nothing, then the states in their order. */
static inline uint8_t od_cache_to_wire(enum od_cache_state s)
{
	return s == OD_CACHE_NONE ? 0 : (uint8_t)(1 + s);
}
static inline enum od_cache_state od_cache_from_wire(uint32_t wire) /* what is no state: OD_CACHE_NONE */
{
	return wire >= 1 && wire <= OD_CACHE_STATES ? (enum od_cache_state)(wire - 1) : OD_CACHE_NONE;
}

#define OD_CACHE_POOL(state) (1u << (state))

/* What an expert takes in each state, and which states are worth a pool (a set of OD_CACHE_POOL). */
struct od_cache_sizes {
	uint64_t bytes[OD_CACHE_STATES];
	unsigned pools;
};

/* Of an expert with so many bytes of SM-chunks, of E-chunks, and plain (as published, in a slot). A worker that computes
 * on planes has them as they are stored: then F and C are one and the same, and there is no pool C. Without SM bytes (weights
 * of 8 bits or less) S is nothing, E is C, and neither is a pool. */
struct od_cache_sizes od_cache_sizes_of(uint64_t sm_bytes, uint64_t e_bytes, uint64_t plain_bytes, bool planes);

/* Profiled at start, on an average expert. */
struct od_cache_cost {
	double u_ns;	  /* to read one matrix's SM-chunks */
	double rho;	  /* coded over plain bytes of exponents: its E-chunks take rho * u_ns to read */
	double c_ns;	  /* to inflate one E-chunk, or only to check it */
	uint32_t tensors; /* matrices of an expert */
	uint32_t chunks;  /* E-chunks of a matrix */
	uint32_t inflaters;
};

/* How long the loads of a layer take that needs k experts at once, of which hits[state] are in the cache; their sum is
 * at most k (Algorithm 3). The longer of the reads, one after the other, and of the inflaters' work shared evenly, where
 * an exponent chunk that has to be read is waited for. Computing the experts is not in it: that takes the same time
 * whatever is cached. */
double od_cache_makespan_ns(const struct od_cache_cost *cost, uint32_t k, const uint32_t hits[OD_CACHE_STATES]);

#endif
