/* expert_bufs.h - memory of experts: a number of device buffers of each kind (expert_form.h), and a limit in bytes for
 * what they take together.
 *
 * A buffer is address space for the largest expert; it takes memory only for the expert that it holds, or held last.
 * In a model whose layers differ in size (GGUF) one that is given out is preferably one that held an expert of the same
 * size; else it gives memory back, or others that are not in use do, so that the limit is kept. On a device that does
 * not release memory (od_device_releases) every buffer counts as the largest.
 *
 * Taking and returning a buffer is fast, but for one that gives memory back: a system call. Making and freeing buffers
 * calls the device, so keep that off the token path.
 * Thread: any (a monitor; it never waits under its lock). Owner: a buffer belongs to the expert memory that has it. */
#ifndef OD_RESIDENCY_EXPERT_BUFS_H
#define OD_RESIDENCY_EXPERT_BUFS_H

#include "common/pack/load/expert_form.h"

struct od_expert_bufs;

struct od_expert_bufs_opts {
	struct od_device *device;
	unsigned slot; /* the set (1 << enum od_expert_buf) that an expert has while it is loaded and run */
	uint64_t bytes[OD_N_EXPERT_BUFS]; /* one buffer of each kind has so many */
	const struct od_buf_sizes *layer; /* [n_moe]: what an expert of each layer needs. NULL: bytes, in all. Copied */
	uint32_t n_moe;
	/* Where all layers need the same, buffers that are made at the same time lie one behind the other, in huge
	 * pages if they are large together. Else each has pages of its own, and takes no memory before it is used. */
	bool together;
	uint64_t limit_bytes; /* 0: the numbers of buffers alone limit the memory */
};

/* Starts without buffers. */
OD_MUST_CHECK int od_expert_bufs_new(struct od_expert_bufs **out, const struct od_expert_bufs_opts *o,
				     struct od_err *err);
void od_expert_bufs_free(struct od_expert_bufs *b); /* frees all buffers, also those in use; NULL ok */

/* True: where the device maps nothing, buffers of the kind have stages for good, because the host decodes what a cache
 * has kept. */
static inline bool od_expert_bufs_staged(unsigned slot, enum od_expert_buf kind)
{
	return (slot & OD_SET_PLAIN) != 0 && kind != OD_BUF_PLAIN;
}

/* Memory that a buffer of the kind takes, with its stage if it has one, when it holds `used` of its bytes; and one of
 * each kind of the set `which`. slot, bytes: as in od_expert_bufs_opts. d NULL: a device that maps all buffers. */
uint64_t od_expert_buf_memory(const struct od_device *d, unsigned slot, enum od_expert_buf kind, uint64_t bytes,
			      uint64_t used);
uint64_t od_expert_bufs_memory(const struct od_device *d, unsigned slot, unsigned which,
			       const uint64_t bytes[OD_N_EXPERT_BUFS], const uint64_t used[OD_N_EXPERT_BUFS]);

/* Set the number of buffers of each kind to n. od_expert_bufs_shrink frees surplus buffers that are not in use;
 * true: at most n are left (false: call it again when some have been returned). od_expert_bufs_grow makes the
 * missing ones. */
OD_MUST_CHECK bool od_expert_bufs_shrink(struct od_expert_bufs *b, const size_t n[OD_N_EXPERT_BUFS]);
OD_MUST_CHECK int od_expert_bufs_grow(struct od_expert_bufs *b, const size_t n[OD_N_EXPERT_BUFS], struct od_err *err);

/* Gives mem, for an expert of layer m, the buffers of a slot that it lacks; enough are free, and those in use, these
 * included, need no more than the limit. Does nothing if b is NULL, as does od_expert_bufs_put. */
void od_expert_bufs_fill(struct od_expert_bufs *b, uint32_t m, struct od_expert_mem *mem);
/* Takes the buffers of the set `which` back from mem, which has them for layer m. */
void od_expert_bufs_put(struct od_expert_bufs *b, uint32_t m, struct od_expert_mem *mem, unsigned which);

/* Another limit (limit_bytes): buffers that are not in use give their memory back until it is kept. Those in use keep
 * theirs. */
void od_expert_bufs_set_limit(struct od_expert_bufs *b, uint64_t limit_bytes);
/* Memory that all buffers take, as they are counted against the limit. */
uint64_t od_expert_bufs_taken(struct od_expert_bufs *b);

#endif
