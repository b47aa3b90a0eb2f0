#include "worker-node/slots.h"

#include "common/base/args.h"
#include "common/base/mem.h"

#include <inttypes.h>
#include <stdlib.h>

/* od_alloc's alignment and padding, rounded to pages. */
#define SLOT_EXTRA_BYTES (2u * OD_PAGE_BYTES)

struct odw_slots {
	unsigned n;
	void *at[ODW_MAX_SLOTS];
};

int odw_slots_plan(unsigned *n, uint64_t limit_bytes, uint64_t fixed_bytes, uint64_t slot_bytes, uint64_t asked,
		   struct od_err *err)
{
	uint64_t least = asked > 0 ? asked : 1, each, need, fit;
	char text[32], found[32];

	*n = 0;
	if (asked > ODW_MAX_SLOTS)
		return od_fail(err, OD_ERR_ARG, "slots: expected at most %d, found %" PRIu64, ODW_MAX_SLOTS, asked);
	if (!od_add(slot_bytes, SLOT_EXTRA_BYTES, &each) || !od_mul(least, each, &need) ||
	    !od_add(need, fixed_bytes, &need))
		return od_fail(err, OD_ERR_RANGE, "an expert of %" PRIu64 " bytes is beyond any memory", slot_bytes);
	if (need > limit_bytes)
		return od_fail(err, OD_ERR_NOMEM,
			       "memory limit: %" PRIu64 " slot%s of one expert and what stands beside need %" PRIu64
			       " bytes (%s), found a limit of %" PRIu64 " bytes (%s); see --memory-limit",
			       least, least > 1 ? "s" : "", need, od_format_bytes(need, text, sizeof(text)),
			       limit_bytes, od_format_bytes(limit_bytes, found, sizeof(found)));
	fit = asked > 0 ? asked : (limit_bytes - fixed_bytes) / each;
	*n = (unsigned)(fit < ODW_MAX_SLOTS ? fit : ODW_MAX_SLOTS);
	return OD_OK;
}

int odw_slots_new(struct odw_slots **out, unsigned n, uint64_t slot_bytes, struct od_err *err)
{
	struct odw_slots *s;

	*out = NULL;
	if (n == 0 || n > ODW_MAX_SLOTS)
		return od_fail(err, OD_ERR_ARG, "slots: expected 1 to %d, found %u", ODW_MAX_SLOTS, n);
	s = calloc(1, sizeof(*s));
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "slots");
	for (; s->n < n; s->n++) {
		s->at[s->n] = od_alloc(slot_bytes);
		if (s->at[s->n] == NULL) {
			od_fail(err, OD_ERR_NOMEM, "slot %u of %u: no %" PRIu64 " bytes of memory", s->n + 1, n,
				slot_bytes);
			odw_slots_free(s);
			return OD_ERR_NOMEM;
		}
	}
	*out = s;
	return OD_OK;
}

void odw_slots_free(struct odw_slots *s)
{
	if (s == NULL)
		return;
	for (unsigned i = 0; i < s->n; i++)
		od_free(s->at[i]);
	free(s);
}

void *odw_slots_at(const struct odw_slots *s, unsigned i)
{
	return s->at[i];
}
