/* slots.h - the memory of a worker: so many places, each with room for one expert, and nothing else that grows.
 *
 * Their number follows from the memory a worker may use. What is in a slot is load_schedule's business.
 * Thread: immutable after odw_slots_new; the bytes of a slot belong to whom load_schedule gave it.
 * Owner: the caller of odw_slots_new. */
#ifndef ODW_SLOTS_H
#define ODW_SLOTS_H

#include <stdint.h>

#include "common/base/status.h"

#define ODW_MAX_SLOTS 64

struct odw_slots;

/* How many slots of slot_bytes fit into limit_bytes beside fixed_bytes: asked, or all that fit when asked is 0, at
 * most ODW_MAX_SLOTS. OD_ERR_NOMEM says how many bytes would be needed. */
OD_MUST_CHECK int odw_slots_plan(unsigned *n, uint64_t limit_bytes, uint64_t fixed_bytes, uint64_t slot_bytes,
				 uint64_t asked, struct od_err *err);

/* Address space only: memory is taken when a slot is first written. */
OD_MUST_CHECK int odw_slots_new(struct odw_slots **out, unsigned n, uint64_t slot_bytes, struct od_err *err);
void odw_slots_free(struct odw_slots *s); /* NULL ok */
void *odw_slots_at(const struct odw_slots *s, unsigned i);

#endif
