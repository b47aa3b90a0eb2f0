#include "worker-node/memory_plan.h"

#include "common/base/args.h"
#include "common/base/mem.h"
#include "worker-node/worker_engine.h"

#include <inttypes.h>

#define DEFAULT_SLOTS 64 /* at most, unless more are asked for */
/* Memory of a worker beside its slots: row buffers (scratch, RUNs, outputs and one more of each: 40 MiB), program,
 * libraries and the pack's tables. Staging of the load threads comes on top. */
#define FIXED_BYTES (52u << 20)
#define PROGRAM_BYTES (9u << 20) /* program, libraries and tables, as measured: a part of FIXED_BYTES */
#define PULL_BYTES (20u << 20) /* with a spool: what was asked for, ZeroMQ's buffers, a piece of the spool's */

int odw_fit_slots(unsigned *n, uint64_t limit_bytes, uint64_t fixed_bytes, uint64_t slot_bytes, uint64_t asked,
		  struct od_err *err)
{
	uint64_t least = asked > 0 ? asked : 1, need, fit;
	char text[32], found[32];

	*n = 0;
	if (asked > OD_MAX_SLOTS)
		return od_fail(err, OD_ERR_ARG, "slots: expected at most %d, found %" PRIu64, OD_MAX_SLOTS, asked);
	if (!od_mul(least, slot_bytes, &need) || !od_add(need, fixed_bytes, &need))
		return od_fail(err, OD_ERR_RANGE, "an expert of %" PRIu64 " bytes exceeds any memory size", slot_bytes);
	if (need > limit_bytes)
		return od_fail(err, OD_ERR_NOMEM,
			       "memory limit: %" PRIu64 " slot%s of one expert and the fixed costs need %" PRIu64
			       " bytes (%s), found a limit of %" PRIu64 " bytes (%s); see --memory-limit",
			       least, least > 1 ? "s" : "", need, od_format_bytes(need, text, sizeof(text)),
			       limit_bytes, od_format_bytes(limit_bytes, found, sizeof(found)));
	fit = asked > 0 ? asked : (limit_bytes - fixed_bytes) / slot_bytes;
	*n = (unsigned)(asked > 0 || fit < DEFAULT_SLOTS ? fit : DEFAULT_SLOTS);
	return OD_OK;
}

static int plan_slots(struct odw_memory_plan *p, const struct odw_memory_opts *o, uint64_t fixed, struct od_err *err)
{
	const uint64_t cache_bytes = o->cache_mib << 20;
	int rc = odw_fit_slots(&p->n_slots, o->limit_bytes, fixed + cache_bytes, o->sizes->most_bytes, o->slots, err);

	if (rc == OD_ERR_NOMEM && cache_bytes > 0)
		return od_fail_within(err, "--cache-mib %" PRIu64, o->cache_mib);
	return rc;
}

unsigned odw_free_slots(unsigned n, uint64_t free_bytes, uint64_t beside_bytes, uint64_t slot_bytes)
{
	const uint64_t fit = free_bytes > beside_bytes ? (free_bytes - beside_bytes) / slot_bytes : 0;

	if (free_bytes == 0 || fit >= n)
		return n;
	return fit > 0 ? (unsigned)fit : 1;
}

/* A layer's rows come in, and a row goes out for each expert that it uses. */
uint64_t odw_memory_unused(const struct od_config *config, uint32_t step_rows, uint64_t row_bytes)
{
	const uint64_t in = step_rows * row_bytes, out = in * config->top_k, most = ODW_OUTPUT_BYTES + OD_MAX_RUN_BYTES,
		       work = PROGRAM_BYTES + odw_engine_scratch_bytes(config) +
			      (in < OD_MAX_RUN_BYTES ? 2 * in : OD_MAX_HELD_BYTES) + (out < most ? out : most);

	return work < FIXED_BYTES ? FIXED_BYTES - work : 0;
}

/* There may be less free than the limit: on the host, where `fixed` comes on top; or on a GPU with memory of its own,
 * where the rows of a step do, and `loads`, what of the load threads' memory it has. A GPU says itself what it has no
 * room for, if that is the first slot or what was asked for. */
static void fit_free(struct odw_memory_plan *p, const struct odw_memory_opts *o, uint64_t fixed, uint64_t loads)
{
	const uint64_t have = od_device_free_bytes(o->device), cache = o->cache_mib << 20;

	p->beside_bytes = ODW_SCRATCH_BYTES + loads;
	if (o->slots == 0 && od_device_has_memory(o->device))
		p->n_slots = odw_free_slots(p->n_slots, have, od_device_own_bytes(o->device) + p->beside_bytes + cache,
					    o->sizes->most_bytes);
	else if (o->slots == 0)
		p->n_slots = odw_free_slots(p->n_slots, have, fixed + cache, o->sizes->most_bytes);
	p->need_bytes = fixed + cache + p->n_slots * o->sizes->most_bytes;
}

static int plan_cache(struct odw_memory_plan *p, const struct odw_memory_opts *o, struct od_err *err)
{
	const uint64_t cache_bytes = o->cache_mib << 20, least = o->sizes->most_bytes;

	if (cache_bytes < least)
		return od_fail(err, OD_ERR_NOMEM,
			       "--cache-mib %" PRIu64 ": one expert of this form takes %" PRIu64 " MiB", o->cache_mib,
			       (least + (1u << 20) - 1) >> 20);
	p->cache_bytes = cache_bytes;
	return OD_OK;
}

/* Where layers differ in size, more slots hold smaller experts, unless their number was asked for, or a cache keeps
 * what a worker has memory for. */
static void add_slots(struct odw_memory_plan *p, const struct odw_memory_opts *o)
{
	p->slots_bytes = p->n_slots * o->sizes->most_bytes;
	if (o->slots == 0 && o->cache_mib == 0) {
		const uint64_t most = p->slots_bytes / o->sizes->least_bytes;

		p->n_slots = (unsigned)(most < DEFAULT_SLOTS ? most : DEFAULT_SLOTS);
	}
}

int odw_memory_plan(struct odw_memory_plan *p, const struct odw_memory_opts *o, struct od_err *err)
{
	struct od_loader_memory loads;
	uint64_t fixed;
	int rc = od_loader_bytes(&loads, o->pack, o->device, o->form, o->n_readers, o->n_inflaters, err);

	*p = (struct odw_memory_plan){ 0 };
	fixed = loads.bytes + FIXED_BYTES + od_device_own_bytes(o->device) + (o->pulls ? PULL_BYTES : 0);
	if (rc == OD_OK)
		rc = plan_slots(p, o, fixed, err);
	if (rc != OD_OK)
		return rc;
	fit_free(p, o, fixed, loads.card_bytes);
	add_slots(p, o);
	return o->cache_mib > 0 ? plan_cache(p, o, err) : OD_OK;
}
