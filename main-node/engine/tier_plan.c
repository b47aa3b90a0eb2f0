#include "main-node/engine/tier_plan.h"

#include "common/base/args.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/compute/device.h"

/* Enough for a disk that wants several requests at once; a second costs nothing where the first suffices. */
#define READERS 2
#define MOST_INFLATERS 4
/* The tokeniser, threads, requests, and tables, which are made after the plan. */
#define BESIDE_BYTES (64u << 20)
/* Left to others if no limit was given: so much, or one in so many bytes of what is free. */
#define RESERVE_BYTES (256u << 20)
#define RESERVE_DIVISOR 33

static uint64_t less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

/* The bytes of --memory, or of what is free. */
static int choose_limit(const struct od_device *d, uint64_t memory_bytes, uint64_t *limit, struct od_err *err)
{
	const uint64_t have = od_device_free_bytes(d), own = od_rss_bytes(), part = have / RESERVE_DIVISOR,
		       reserve = part > RESERVE_BYTES ? part : RESERVE_BYTES;
	char a[32], b[32];

	*limit = memory_bytes > 0 ? memory_bytes : less(have + own, reserve);
	if (have == 0 || *limit <= have + own)
		return OD_OK;
	return od_fail(err, OD_ERR_ARG, "--memory %s: expected at most what is free on this machine, which is %s",
		       od_format_bytes(memory_bytes, a, sizeof(a)), od_format_bytes(have + own, b, sizeof(b)));
}

uint64_t odm_tier_plan_beside(void)
{
	return od_rss_bytes() + BESIDE_BYTES;
}

int odm_tier_plan_open(struct odm_tier_plan *p, const struct od_pack *pack, const struct od_device *d,
		       enum od_form form, uint64_t memory_bytes, struct od_err *err)
{
	const unsigned cpus = od_cpu_count();
	int rc;

	odm_tier_plan_close(p);
	rc = choose_limit(d, memory_bytes, &p->memory_bytes, err);
	p->n_readers = READERS;
	p->n_inflaters = cpus < MOST_INFLATERS ? cpus : MOST_INFLATERS;
	p->limit_bytes = less(p->memory_bytes, odm_tier_plan_beside());
	if (rc == OD_OK)
		rc = od_residency_measure(&p->sizes, pack, d, form, false, err);
	if (rc == OD_OK)
		rc = od_loader_bytes(&p->load_bytes, pack, d, form, p->sizes.slot, p->n_readers, p->n_inflaters, err);
	return rc;
}

void odm_tier_plan_close(struct odm_tier_plan *p)
{
	od_residency_sizes_fini(&p->sizes);
	*p = (struct odm_tier_plan){ 0 };
}

static uint64_t layer_bytes(const struct odm_tier_plan *p, uint32_t top_k)
{
	return top_k * p->sizes.most_bytes;
}

uint64_t odm_tier_plan_least(const struct odm_tier_plan *p, uint32_t top_k)
{
	return p->load_bytes + layer_bytes(p, top_k);
}

struct odm_tier_division odm_tier_plan_divide(const struct odm_tier_plan *p, uint32_t top_k)
{
	const uint64_t one = layer_bytes(p, top_k);
	uint64_t slots_bytes = 2 * one;
	struct odm_tier_division d;

	if (slots_bytes > p->expert_bytes / 2)
		slots_bytes = one > p->expert_bytes / 2 ? one : p->expert_bytes / 2;
	d.cache_bytes = p->expert_bytes - slots_bytes;
	d.slots_bytes = slots_bytes;
	d.n_slots = (unsigned)(slots_bytes / p->sizes.least_bytes);
	d.n_slots = d.n_slots < OD_MAX_SLOTS ? d.n_slots : OD_MAX_SLOTS;
	if (d.cache_bytes < p->sizes.most_bytes)
		d.cache_bytes = 0;
	return d;
}
