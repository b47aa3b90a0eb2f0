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

/* used: the bytes in each buffer. no_sm: of any expert. */
static struct od_cache_sizes sizes_of(const struct od_pack *pack, const struct od_device *d, enum od_form form,
				      const uint64_t used[OD_N_EXPERT_BUFS], bool no_sm)
{
	uint64_t bytes[OD_N_EXPERT_BUFS];

	for (int i = 0; i < OD_N_EXPERT_BUFS; i++)
		bytes[i] = od_expert_buf_memory(d, od_form_bufs(form), (enum od_expert_buf)i,
						od_pack_buf_bytes(pack, (enum od_expert_buf)i), used[i]);
	if (od_pack_buf_bytes(pack, OD_BUF_E) == 0)
		bytes[OD_BUF_SM] = bytes[OD_BUF_E] = 0; /* there are no chunks: no buffer is made for them */
	if (no_sm) { /* the empty buffer is there, and goes wherever the other one does */
		bytes[OD_BUF_E] += bytes[OD_BUF_SM];
		bytes[OD_BUF_SM] = 0;
	}
	return od_cache_sizes_of(bytes[OD_BUF_SM], bytes[OD_BUF_E], bytes[OD_BUF_PLAIN], form == OD_FORM_PLANES);
}

void od_expert_cache_sizes(const struct od_pack *pack, const struct od_device *d, enum od_form form,
			   struct od_cache_sizes *layer)
{
	const struct od_buf_sizes *used = od_pack_layer_sizes(pack);
	uint64_t largest[OD_N_EXPERT_BUFS];
	double sm, e;
	unsigned pools;

	stored_bytes(pack, &sm, &e);
	for (int i = 0; i < OD_N_EXPERT_BUFS; i++)
		largest[i] = od_pack_buf_bytes(pack, (enum od_expert_buf)i);
	pools = sizes_of(pack, d, form, largest, sm == 0).pools;
	for (uint32_t m = 0; m < od_pack_config(pack)->n_moe; m++) {
		layer[m] = sizes_of(pack, d, form, used[m].bytes, sm == 0);
		layer[m].pools = pools;
	}
}

struct od_cache_sizes od_cache_sizes_mean(const struct od_cache_sizes *layer, uint32_t n, uint32_t step)
{
	struct od_cache_sizes mean = { .pools = layer->pools };

	for (unsigned i = 0; i < OD_CACHE_STATES; i++) {
		for (uint32_t at = 0; at < n; at++)
			mean.bytes[i] += layer[(size_t)at * step].bytes[i];
		mean.bytes[i] = (mean.bytes[i] + n - 1) / n;
	}
	return mean;
}
