/* expert_bufs.h - memory of experts: a number of device buffers of each kind that a form has (expert_form.h), and a
 * limit in bytes for what they take together.
 *
 * A buffer is address space for the largest expert; it takes memory only for the expert that it holds, or held last.
 * In a model whose layers differ in size (GGUF) one that is given out is preferably one that held an expert of the same
 * size; else it gives memory back, or others that are not in use do, so that the limit is kept. Where memory is not
 * lent (od_expert_bufs_lend) every buffer counts as the largest. Where it must be committed, whoever loads an expert
 * does so (od_expert_mem_commit), because that may fail and takes time; a buffer that is in use counts as if it had
 * been. One that comes back without (od_expert_bufs_put_unused) counts no longer.
 *
 * Taking and returning a buffer is fast, but for one that gives memory back: a system call.
 * Thread: any (a monitor; it never waits under its lock). Owner: a buffer belongs to the expert memory that has it. */
#ifndef OD_RESIDENCY_EXPERT_BUFS_H
#define OD_RESIDENCY_EXPERT_BUFS_H

#include "common/pack/load/expert_form.h"

struct od_expert_bufs;

struct od_expert_bufs_opts {
	struct od_device *device;
	unsigned slot; /* the set (1 << enum od_expert_buf) that an expert has */
	size_t n; /* buffers of each kind in slot */
	uint64_t bytes[OD_N_EXPERT_BUFS]; /* one buffer of each kind has so many */
	const struct od_buf_sizes *layer; /* [n_moe]: what an expert of each layer needs. NULL: bytes, in all. Copied */
	uint32_t n_moe;
	/* Where all layers need the same, the buffers of a kind lie one behind the other, in huge pages if they are
	 * large together. Else each has pages of its own, and takes no memory before it is used. */
	bool together;
	uint64_t limit_bytes; /* 0: the numbers of buffers alone limit the memory */
};

OD_MUST_CHECK int od_expert_bufs_new(struct od_expert_bufs **out, const struct od_expert_bufs_opts *o,
				     struct od_err *err);
void od_expert_bufs_free(struct od_expert_bufs *b); /* frees all buffers, also those in use; NULL ok */

/* True: buffers of these sizes give back the memory that they do not use (od_device_lends). */
bool od_expert_bufs_lend(const struct od_device *d, unsigned slot, const uint64_t bytes[OD_N_EXPERT_BUFS]);
/* Memory that one buffer of each kind of the set `slot` takes when it holds `used` of its bytes. d NULL: a device that
 * maps all buffers. */
uint64_t od_expert_bufs_memory(const struct od_device *d, unsigned slot, const uint64_t bytes[OD_N_EXPERT_BUFS],
			       const uint64_t used[OD_N_EXPERT_BUFS]);

/* Gives mem, for an expert of layer m, the buffers of a slot. Enough are free, and those in use, these included, need
 * no more than the limit. Returns what of its memory each has already. Does nothing if b is NULL, as do the next
 * two. */
struct od_buf_sizes od_expert_bufs_fill(struct od_expert_bufs *b, uint32_t m, struct od_expert_mem *mem);
/* Takes them back from mem, which has them for layer m. */
void od_expert_bufs_put(struct od_expert_bufs *b, uint32_t m, struct od_expert_mem *mem);
/* As od_expert_bufs_put, where they were not committed, or not as a whole: they keep what they had. */
void od_expert_bufs_put_unused(struct od_expert_bufs *b, uint32_t m, struct od_expert_mem *mem,
			       const struct od_buf_sizes *had);

/* Another limit (limit_bytes): buffers that are not in use give their memory back until it is kept. Those in use keep
 * theirs. */
void od_expert_bufs_set_limit(struct od_expert_bufs *b, uint64_t limit_bytes);
/* Buffers that are not in use give back so many bytes, or what they have, as long as all together keep `least` bytes.
 * False: they gave none. */
bool od_expert_bufs_give_back(struct od_expert_bufs *b, uint64_t bytes, uint64_t least);
/* Memory that all buffers take, as they are counted against the limit. */
uint64_t od_expert_bufs_taken(struct od_expert_bufs *b);

#endif
