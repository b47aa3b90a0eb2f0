#include "worker-node/load_pace.h"

#include "common/base/clock.h"

void odw_pace_init(struct odw_pace *p, uint64_t load_ns)
{
	*p = (struct odw_pace){ .load_ns = load_ns, .slot = -1 };
}

void odw_pace_begin(struct odw_pace *p, int slot, uint64_t load_ns)
{
	p->left_ns[slot] = load_ns;
}

void odw_pace_turn(struct odw_pace *p, int slot, uint64_t now_ns)
{
	if (slot == p->slot)
		return;
	if (p->slot >= 0) {
		const uint64_t had = now_ns - p->since_ns, left = p->left_ns[p->slot];

		p->left_ns[p->slot] = had < left ? left - had : 0;
	}
	p->slot = slot;
	p->since_ns = now_ns;
}

void odw_pace_leave(struct odw_pace *p, int slot)
{
	if (p->slot == slot)
		p->slot = -1;
}

uint64_t odw_pace_due_ns(const struct odw_pace *p)
{
	return p->slot < 0 ? ODW_PACE_NEVER : p->since_ns + p->left_ns[p->slot];
}

void odw_pace_cond_init(pthread_cond_t *work)
{
	pthread_condattr_t monotonic;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC); /* as od_now_ns */
	pthread_cond_init(work, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

void odw_pace_wait(const struct odw_pace *p, pthread_cond_t *work, pthread_mutex_t *lock)
{
	uint64_t due_ns = odw_pace_due_ns(p);
	const struct timespec until = { .tv_sec = (time_t)(due_ns / OD_NS_PER_S), .tv_nsec = (long)(due_ns % OD_NS_PER_S) };

	if (due_ns == ODW_PACE_NEVER)
		pthread_cond_wait(work, lock);
	else
		pthread_cond_timedwait(work, lock, &until);
}
