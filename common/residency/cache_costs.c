#include "common/residency/cache_costs.h"

/* Sums over all experts. */
static void stored_bytes(const struct od_pack *pack, double *sm, double *e)
{
	const struct od_config *cfg = od_pack_config(pack);
	const uint32_t n_shards = od_pack_expert(pack, 0, 0)->n_shards;

	*sm = *e = 0;
	for (uint32_t m = 0; m < cfg->n_moe; m++)
		for (uint32_t i = 0; i < cfg->n_experts; i++)
			for (uint32_t s = 0; s < n_shards; s++) {
				*sm += od_pack_expert(pack, m, i)->shard[s].sm.stored_bytes;
				*e += od_pack_expert(pack, m, i)->shard[s].e.stored_bytes;
			}
}

/* All experts are read in one piece after the other, so time goes by bytes: u is the SM-chunks' share of it. */
struct od_cache_cost od_expert_cache_cost(const struct od_pack *pack, const struct od_expert_costs *costs)
{
	const uint32_t n_shards = od_pack_expert(pack, 0, 0)->n_shards;
	double sm, e, u_ns, e_ns;

	stored_bytes(pack, &sm, &e);
	u_ns = (double)costs->read_ns * sm / (sm + e) / OD_N_EXPERT_MATS;
	e_ns = (double)costs->read_ns * e / (sm + e) / OD_N_EXPERT_MATS;
	if (u_ns < 1) /* weights of 8 bits have no SM bytes; rho is relative to their time */
		u_ns = 1;
	return (struct od_cache_cost){ .u_ns = u_ns,
				       .rho = e_ns / u_ns,
				       .c_ns = (double)costs->finish_ns / n_shards,
				       .tensors = OD_N_EXPERT_MATS,
				       .chunks = (n_shards + OD_N_EXPERT_MATS - 1) / OD_N_EXPERT_MATS,
				       .inflaters = costs->n_inflaters };
}

struct od_cache_sizes od_expert_cache_sizes(const struct od_pack *pack, const struct od_device *d, enum od_form form)
{
	uint64_t bytes[OD_N_EXPERT_BUFS];
	double sm, e;

	for (int i = 0; i < OD_N_EXPERT_BUFS; i++)
		bytes[i] = od_expert_buf_memory(d, od_form_bufs(form), (enum od_expert_buf)i,
						od_pack_buf_bytes(pack, (enum od_expert_buf)i));
	stored_bytes(pack, &sm, &e);
	if (od_pack_buf_bytes(pack, OD_BUF_E) == 0)
		bytes[OD_BUF_SM] = bytes[OD_BUF_E] = 0; /* there are no chunks: no buffer is made for them */
	if (sm == 0) { /* the empty buffer is there, and goes wherever the other one does */
		bytes[OD_BUF_E] += bytes[OD_BUF_SM];
		bytes[OD_BUF_SM] = 0;
	}
	return od_cache_sizes_of(bytes[OD_BUF_SM], bytes[OD_BUF_E], bytes[OD_BUF_PLAIN], form == OD_FORM_PLANES);
}
