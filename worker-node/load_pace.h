/* load_pace.h - loads that take a stated time (od-worker --load-time), so that a few cores can stand for a cluster of
 * slower machines.
 *
 * It stands for one path to the storage (a disk, a PCIe link), whose time the loads of a worker share one after another:
 * a load is complete when it has had the path for its time (load_ns, or a share of it), however fast its bytes came. The most urgent load
 * has the path; one that must wait for another keeps what it has had already.
 * Thread: load_schedule's, under its lock. Owner: the caller; plain data. */
#ifndef ODW_LOAD_PACE_H
#define ODW_LOAD_PACE_H

#include <pthread.h>
#include <stdint.h>

#define ODW_PACE_NEVER UINT64_MAX

struct odw_pace {
	uint64_t load_ns; /* 0: loads take as long as they take */
	int slot;	  /* whose load has the path; -1: none */
	uint64_t since_ns;
	uint64_t *left_ns; /* [slots], the owner's: what each load lacked then */
};

void odw_pace_init(struct odw_pace *p, uint64_t load_ns);
/* A load begins in this slot, which is to have the path for so long. */
void odw_pace_begin(struct odw_pace *p, int slot, uint64_t load_ns);
/* The load in this slot has the path from now on. */
void odw_pace_turn(struct odw_pace *p, int slot, uint64_t now_ns);
/* Its load is complete, or will never be. */
void odw_pace_leave(struct odw_pace *p, int slot);
/* When the load that has the path will have had its time, ODW_PACE_NEVER if none has it. */
uint64_t odw_pace_due_ns(const struct odw_pace *p);

/* Sleeps on work, made by odw_pace_cond_init, until it is signalled or that time comes. */
void odw_pace_cond_init(pthread_cond_t *work);
void odw_pace_wait(const struct odw_pace *p, pthread_cond_t *work, pthread_mutex_t *lock);

#endif
