#include "worker-node/slots.h"

#include "common/base/args.h"
#include "common/base/mem.h"

#include <inttypes.h>

int odw_slots_plan(unsigned *n, uint64_t limit_bytes, uint64_t fixed_bytes, uint64_t slot_bytes, uint64_t asked,
		   struct od_err *err)
{
	uint64_t least = asked > 0 ? asked : 1, need, fit;
	char text[32], found[32];

	*n = 0;
	if (asked > ODW_MAX_SLOTS)
		return od_fail(err, OD_ERR_ARG, "slots: expected at most %d, found %" PRIu64, ODW_MAX_SLOTS, asked);
	if (!od_mul(least, slot_bytes, &need) || !od_add(need, fixed_bytes, &need))
		return od_fail(err, OD_ERR_RANGE, "an expert of %" PRIu64 " bytes is beyond any memory", slot_bytes);
	if (need > limit_bytes)
		return od_fail(err, OD_ERR_NOMEM,
			       "memory limit: %" PRIu64 " slot%s of one expert and what stands beside need %" PRIu64
			       " bytes (%s), found a limit of %" PRIu64 " bytes (%s); see --memory-limit",
			       least, least > 1 ? "s" : "", need, od_format_bytes(need, text, sizeof(text)),
			       limit_bytes, od_format_bytes(limit_bytes, found, sizeof(found)));
	fit = asked > 0 ? asked : (limit_bytes - fixed_bytes) / slot_bytes;
	*n = (unsigned)(fit < ODW_MAX_SLOTS ? fit : ODW_MAX_SLOTS);
	return OD_OK;
}
