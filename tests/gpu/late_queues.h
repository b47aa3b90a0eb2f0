/* late_queues.h - in-order queues whose work is done by a thread of their own, and only when a wait needs it: as late
 * as a device may do it, or in a random order. For devices that find mistakes (far_device.h, gpu_host.c).
 *
 * Thread: any. Owner: the caller; what was given and never waited for is dropped. */
#ifndef OD_TESTS_LATE_QUEUES_H
#define OD_TESTS_LATE_QUEUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define OD_MAX_LATE 8u

struct od_late;

/* seed 0: all work is done as late as may be. Else it is still done when a wait needs some, but then the queues take
 * turns at random: so work also comes before work of other queues that it should follow. */
OD_MUST_CHECK int od_late_new(struct od_late **out, uint64_t seed, struct od_err *err);
void od_late_free(struct od_late *l); /* NULL ok */

/* work(arg) with a copy of arg [n]; an error is kept for the queue's next wait. Queues are 0 to OD_MAX_LATE - 1. */
void od_late_give(struct od_late *l, unsigned q, int (*work)(void *arg, struct od_err *err), const void *arg, size_t n);
/* Work that q is given from now on begins after the other queue's ticket. */
void od_late_after(struct od_late *l, unsigned q, unsigned other, uint64_t ticket);
uint64_t od_late_ticket(struct od_late *l, unsigned q); /* ticket of all work that q has been given */
/* Until the ticket's work is done. The queue's first error since the last report; err NULL: the next wait reports it
 * again. */
OD_MUST_CHECK int od_late_wait(struct od_late *l, unsigned q, uint64_t ticket, struct od_err *err);
/* True: work that is not done has an arg for which uses says so. */
bool od_late_any(struct od_late *l, bool (*uses)(const void *arg, const void *what), const void *what);

#endif
