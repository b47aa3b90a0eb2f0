/* expert_bufs.h - memory of experts: a fixed number of device buffers of each kind (expert_form.h).
 *
 * Taking and returning a buffer is fast. Making and freeing buffers calls the device, so keep that off the token path.
 * On a CPU a buffer is address space: its memory is allocated at the first write, and stays allocated.
 * Thread: any (a monitor; it never waits under its lock). Owner: a buffer belongs to the expert memory that has it. */
#ifndef OD_RESIDENCY_EXPERT_BUFS_H
#define OD_RESIDENCY_EXPERT_BUFS_H

#include "common/pack/load/expert_form.h"

struct od_expert_bufs;

/* Starts without buffers. slot: the set (1 << enum od_expert_buf) that an expert has while it is loaded and run; bytes:
 * of one buffer of each kind. */
OD_MUST_CHECK int od_expert_bufs_new(struct od_expert_bufs **out, struct od_device *d, unsigned slot,
				     const uint64_t bytes[OD_N_EXPERT_BUFS], struct od_err *err);
void od_expert_bufs_free(struct od_expert_bufs *b); /* frees all buffers, also those in use; NULL ok */

/* True: where the device maps nothing, buffers of the kind have stages for good, because the host decodes what a cache
 * has kept. */
static inline bool od_expert_bufs_staged(unsigned slot, enum od_expert_buf kind)
{
	return (slot & OD_SET_PLAIN) != 0 && kind != OD_BUF_PLAIN;
}

/* Memory that a buffer of the kind takes, with its stage if it has one; and one of each kind of the set `which`. slot,
 * bytes: as in od_expert_bufs_new. d NULL: a device that maps all buffers. */
uint64_t od_expert_buf_memory(const struct od_device *d, unsigned slot, enum od_expert_buf kind, uint64_t bytes);
uint64_t od_expert_bufs_memory(const struct od_device *d, unsigned slot, unsigned which,
			       const uint64_t bytes[OD_N_EXPERT_BUFS]);

/* Set the number of buffers of each kind to n. od_expert_bufs_shrink frees surplus buffers that are not in use;
 * true: at most n are left (false: call it again when some have been returned). od_expert_bufs_grow makes the
 * missing ones. */
OD_MUST_CHECK bool od_expert_bufs_shrink(struct od_expert_bufs *b, const size_t n[OD_N_EXPERT_BUFS]);
OD_MUST_CHECK int od_expert_bufs_grow(struct od_expert_bufs *b, const size_t n[OD_N_EXPERT_BUFS], struct od_err *err);

/* Gives mem the buffers of a slot that it lacks; enough are free. Does nothing if b is NULL, as does
 * od_expert_bufs_put. */
void od_expert_bufs_fill(struct od_expert_bufs *b, struct od_expert_mem *mem);
/* Takes the buffers of the set `which` back from mem. */
void od_expert_bufs_put(struct od_expert_bufs *b, struct od_expert_mem *mem, unsigned which);

#endif
