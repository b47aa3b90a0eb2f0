/* pulse.h - shows a watcher that a thread gets on with its work.
 *
 * A thread beats each time round its loop, and within long work before every piece (a layer, some rows). The watcher
 * asks now and then, with more time between two questions than a piece takes, and wakes the thread if it sleeps. So a
 * pulse that stands still from one question to the next is a stuck thread, whether it was at work or not.
 * Thread: od_pulse_of_thread and od_pulse_beat by the watched one, od_pulse_moved by the watcher. Owner: the caller. */
#ifndef OD_BASE_PULSE_H
#define OD_BASE_PULSE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct od_pulse {
	_Atomic uint64_t beats;
	uint64_t seen; /* the watcher's */
};

/* From now on the calling thread's beats are p's; NULL: none's. p outlives the thread. */
void od_pulse_of_thread(struct od_pulse *p);
/* On a thread without a pulse this does nothing, so code that several kinds of thread run may call it. */
void od_pulse_beat(void);
/* Has it beaten since the last call? */
bool od_pulse_moved(struct od_pulse *p);

#endif
