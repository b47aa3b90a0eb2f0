#include "tests/bench/sim/cache_state.h"

struct sim_cache_sizes sim_cache_sizes_of(uint64_t sm_bytes, uint64_t e_bytes, uint64_t plain_bytes, bool planes)
{
	const unsigned halves = sm_bytes > 0 ? SIM_CACHE_POOL(SIM_CACHE_S) | SIM_CACHE_POOL(SIM_CACHE_E) : 0;

	if (sm_bytes + e_bytes == 0)
		return (struct sim_cache_sizes){ .bytes = { plain_bytes, plain_bytes, 0, plain_bytes },
						 .pools = SIM_CACHE_POOL(SIM_CACHE_F) };
	return (struct sim_cache_sizes){
		.bytes = { planes ? sm_bytes + e_bytes : plain_bytes, sm_bytes + e_bytes, sm_bytes, e_bytes },
		.pools = SIM_CACHE_POOL(SIM_CACHE_F) | (planes ? 0 : SIM_CACHE_POOL(SIM_CACHE_C)) | halves,
	};
}

double sim_cache_makespan_ns(const struct sim_cache_cost *cost, uint32_t k, const uint32_t hits[SIM_CACHE_STATES])
{
	const uint32_t full = hits[SIM_CACHE_F], whole = full + hits[SIM_CACHE_C];
	const double n = cost->tensors, v_ns = cost->rho * cost->u_ns / cost->chunks;
	const double sm_reads = n * (k - whole - hits[SIM_CACHE_S]);
	const double e_reads = n * cost->chunks * (k - whole - hits[SIM_CACHE_E]);
	const double inflates = n * cost->chunks * (k - full);
	const double reading_ns = sm_reads * cost->u_ns + e_reads * v_ns;
	const double inflating_ns = (e_reads * v_ns + inflates * cost->c_ns) / cost->inflaters;

	return reading_ns > inflating_ns ? reading_ns : inflating_ns;
}
