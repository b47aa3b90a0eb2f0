/* expert_bufs.h - the memory of a worker: buffers of a device for experts (pack.h), of each kind so many as was agreed, and
 * nothing else that grows.
 *
 * Taking one and giving it back is a moment's work. Making and unmaking them asks the device, and is for a thread that has
 * time. On a CPU they are address space: memory is taken when a buffer is first written, and stays taken.
 * Thread: a monitor; nothing is waited for under its lock. Owner: a buffer belongs to whom it was given. */
#ifndef ODW_EXPERT_BUFS_H
#define ODW_EXPERT_BUFS_H

#include "common/pack/pack.h"

struct odw_bufs;

/* None yet. slot: a set (1 << enum od_expert_buf) of what an expert has while it is loaded and run; bytes: of each kind. */
OD_MUST_CHECK int odw_bufs_new(struct odw_bufs **out, struct od_device *d, unsigned slot,
			       const uint64_t bytes[OD_N_EXPERT_BUFS], struct od_err *err);
void odw_bufs_free(struct odw_bufs *b); /* all of them, wherever they are; NULL ok */

/* What a slot takes: the kinds that it has, with what stands around them. */
uint64_t odw_bufs_memory(unsigned slot, const uint64_t bytes[OD_N_EXPERT_BUFS]);

/* As many of each kind as n says. odw_bufs_shrink gives back to the device what is more and not in use; true: no more
 * than n are left (else call it again when some have been put back). odw_bufs_grow makes what is lacking. */
OD_MUST_CHECK bool odw_bufs_shrink(struct odw_bufs *b, const size_t n[OD_N_EXPERT_BUFS]);
OD_MUST_CHECK int odw_bufs_grow(struct odw_bufs *b, const size_t n[OD_N_EXPERT_BUFS], struct od_err *err);

/* mem gets the buffers of a slot that it lacks: there are such. Like the next, nothing without b. */
void odw_bufs_fill(struct odw_bufs *b, struct od_expert_mem *mem);
/* Those of the set `which` leave mem. */
void odw_bufs_put(struct odw_bufs *b, struct od_expert_mem *mem, unsigned which);

#endif
