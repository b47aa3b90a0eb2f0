/* slots.h - how many experts a worker can have in memory at once. What is in a slot is load_schedule's business, of what
 * memory it is made expert_bufs'.
 *
 * Thread: pure functions. */
#ifndef ODW_SLOTS_H
#define ODW_SLOTS_H

#include <stdint.h>

#include "common/base/status.h"

#define ODW_MAX_SLOTS 64

/* How many slots of slot_bytes of memory fit into limit_bytes beside fixed_bytes: asked, or all that fit when asked is 0, at
 * most ODW_MAX_SLOTS. OD_ERR_NOMEM says how many bytes would be needed. */
OD_MUST_CHECK int odw_slots_plan(unsigned *n, uint64_t limit_bytes, uint64_t fixed_bytes, uint64_t slot_bytes,
				 uint64_t asked, struct od_err *err);

#endif
