/* descriptors.h - how many files and connections this process may have open.
 *
 * Every connection is a descriptor, also a stranger's. When none is left, ZeroMQ tries to accept those that wait again
 * and again, at the cost of up to a core, and says nothing (docs/PROTOCOL.md, "Security").
 * Thread: any. */
#ifndef OD_BASE_DESCRIPTORS_H
#define OD_BASE_DESCRIPTORS_H

/* As many as the system lets this process have: the soft limit of 1024 is meant for programs that call select(). */
void od_descriptors_raise(void);
/* To be called now and then: says in the log when none are left, and when there are some again. */
void od_descriptors_watch(void);

#endif
