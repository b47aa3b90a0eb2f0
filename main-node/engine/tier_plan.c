#include "main-node/engine/tier_plan.h"

#include "common/base/args.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/compute/device.h"

/* The tokeniser, threads, requests, and tables, which are made after the plan. */
#define BESIDE_BYTES (24u << 20)
/* Left to others if no limit was given: so much, or one in so many bytes of what is free. */
#define RESERVE_BYTES (256u << 20)
#define RESERVE_DIVISOR 33
#define LEAST_RESERVE_BYTES (32u << 20)

static uint64_t less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static uint64_t clamp(uint64_t v, uint64_t least, uint64_t most)
{
	return v < least ? least : v > most ? most : v;
}

/* Left to others of so much free memory. */
static uint64_t reserve_of(uint64_t have)
{
	const uint64_t part = have / RESERVE_DIVISOR;

	return part > RESERVE_BYTES ? part : RESERVE_BYTES;
}

/* The bytes of --memory, or of what is free. With --memory others have what it leaves: half of that is kept free. */
static int choose_limit(struct odm_tier_plan *p, const struct od_device *d, uint64_t memory_bytes, struct od_err *err)
{
	const bool card = od_device_has_memory(d);
	const uint64_t have = od_device_free_bytes(d), own = card ? 0 : od_rss_bytes();
	char a[32], b[32], memory[64];

	if (card) {
		p->memory_bytes = memory_bytes > 0 ? memory_bytes : have;
		if (p->memory_bytes > have)
			return od_fail(err, OD_ERR_ARG, "--memory %s: expected at most what is free %s, which is %s",
				       od_format_bytes(memory_bytes, a, sizeof(a)),
				       od_device_memory_name(d, memory, sizeof(memory)),
				       od_format_bytes(have, b, sizeof(b)));
		return OD_OK;
	}
	p->reserve_bytes = reserve_of(have);
	p->memory_bytes = memory_bytes > 0 ? memory_bytes : less(have + own, p->reserve_bytes);
	if (memory_bytes > 0)
		p->reserve_bytes = clamp(less(have + own, memory_bytes) / 2, LEAST_RESERVE_BYTES, p->reserve_bytes);
	if (have == 0 || p->memory_bytes <= have + own)
		return OD_OK;
	return od_fail(err, OD_ERR_ARG, "--memory %s: expected at most what is free on this machine, which is %s",
		       od_format_bytes(memory_bytes, a, sizeof(a)), od_format_bytes(have + own, b, sizeof(b)));
}

uint64_t odm_tier_plan_beside(const struct od_device *d)
{
	return od_device_has_memory(d) ? 0 : od_rss_bytes() + BESIDE_BYTES;
}

uint64_t odm_tier_plan_host_bytes(void)
{
	const uint64_t have = od_available_ram_bytes();

	return less(have, reserve_of(have) + BESIDE_BYTES);
}

int odm_tier_plan_limit(struct odm_tier_plan *p, const struct od_device *d, uint64_t memory_bytes, struct od_err *err)
{
	const int rc = choose_limit(p, d, memory_bytes, err);

	p->limit_bytes = less(p->memory_bytes, odm_tier_plan_beside(d));
	return rc;
}

int odm_tier_plan_open(struct odm_tier_plan *p, const struct od_pack *pack, const struct od_device *d,
		       enum od_form form, uint64_t memory_bytes, struct od_err *err)
{
	const unsigned cpus = od_cpu_count();
	struct od_loader_memory loads = { 0 };
	int rc;

	odm_tier_plan_close(p);
	rc = odm_tier_plan_limit(p, d, memory_bytes, err);
	p->n_readers = OD_DEFAULT_READERS;
	p->n_inflaters = cpus < OD_DEFAULT_INFLATERS ? cpus : OD_DEFAULT_INFLATERS;
	if (rc == OD_OK)
		rc = od_residency_measure(&p->sizes, pack, d, form, err);
	if (rc == OD_OK)
		rc = od_loader_bytes(&loads, pack, d, form, p->n_readers, p->n_inflaters, err);
	p->load_bytes = od_device_has_memory(d) ? loads.card_bytes : loads.bytes;
	return rc;
}

void odm_tier_plan_close(struct odm_tier_plan *p)
{
	od_residency_sizes_fini(&p->sizes);
	*p = (struct odm_tier_plan){ 0 };
}

/* A slot for each expert that a token uses in a layer. More would take memory from the cache, which admits what is
 * loaded, so that its slot is free for the next load at once. */
static uint64_t slots_bytes(const struct odm_tier_plan *p, uint32_t top_k)
{
	return top_k * p->sizes.most_bytes;
}

uint64_t odm_tier_plan_least(const struct odm_tier_plan *p, uint32_t top_k)
{
	return p->load_bytes + slots_bytes(p, top_k);
}

struct odm_tier_division odm_tier_plan_divide(const struct odm_tier_plan *p, uint32_t top_k)
{
	const uint64_t most = slots_bytes(p, top_k) / p->sizes.least_bytes;
	struct odm_tier_division d = { .slots_bytes = slots_bytes(p, top_k) };

	d.n_slots = (unsigned)(most < OD_MAX_SLOTS ? most : OD_MAX_SLOTS);
	d.cache_bytes = p->expert_bytes - d.slots_bytes;
	if (d.cache_bytes < p->sizes.most_bytes)
		d.cache_bytes = 0;
	return d;
}

uint64_t odm_tier_plan_all_bytes(const struct odm_tier_plan *p, const struct od_config *c)
{
	uint64_t bytes = 0;

	for (uint32_t m = 0; m < c->n_moe; m++)
		bytes += c->n_experts * p->sizes.slot_bytes[m];
	return bytes;
}

bool odm_tier_plan_holds_all(const struct odm_tier_plan *p, const struct od_config *c)
{
	return odm_tier_plan_all_bytes(p, c) <= odm_tier_plan_divide(p, c->top_k).cache_bytes;
}
