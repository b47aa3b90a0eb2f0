#include "common/base/pulse.h"

#include <stddef.h>

static _Thread_local struct od_pulse *mine;

void od_pulse_of_thread(struct od_pulse *p)
{
	mine = p;
}

void od_pulse_beat(void)
{
	if (mine != NULL)
		atomic_fetch_add_explicit(&mine->beats, 1, memory_order_relaxed);
}

bool od_pulse_moved(struct od_pulse *p)
{
	const uint64_t beats = atomic_load(&p->beats);
	const bool moved = beats != p->seen;

	p->seen = beats;
	return moved;
}
