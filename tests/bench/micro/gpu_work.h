/* gpu_work.h - what od-bench gpu measures: operations of a device (ops.h) on weights that outgrow its caches.
 *
 * A set has up to GPU_SET_WORKS works, which are measured in turns; the first one is what the others are compared with.
 * Weights are random from a seed, with exponents as trained ones have them; a set's matrices have the same contents at
 * different places.
 * Thread: one at a time. Owner: a set owns its buffers; the device is the caller's. */
#ifndef OD_BENCH_GPU_WORK_H
#define OD_BENCH_GPU_WORK_H

#include "common/compute/ops.h"

/* Sizes of everything. */
struct gpu_shapes {
	uint64_t bytes, seed; /* bytes: about what a pass of each work moves */
	uint32_t wide_in, wide_out; /* a matrix of Mixtral's experts: [wide_out][wide_in] */
	uint32_t fine_hidden, fine_mid, fine_top_k; /* fine-grained experts */
	uint32_t wide_top_k;
	uint32_t context, heads, kv_heads, head_dim;
	uint32_t shard_weights; /* weights of a chunk of planes, as packs have them */
	uint32_t large_weights; /* weights of an operation that fills a GPU */
};
extern const struct gpu_shapes gpu_shapes_real, gpu_shapes_tiny;

/* Something that is queued: a push of staged bytes, if push_bytes > 0, or an operation. */
struct gpu_step {
	struct od_ref push;
	size_t push_bytes;
	struct od_op op;
};

struct gpu_work {
	const char *key, *goal; /* goal NULL: none */
	uint64_t moved_bytes; /* bytes that a pass reads and writes in the device's memory, or carries to it */
	uint64_t bf16_bytes; /* its weights as BF16, for each row; 0: it has none */
	enum od_queue queue;
	struct gpu_step *step;
	size_t n_steps;
	struct od_ref result; /* the last step's: [result_bytes] */
	size_t result_bytes;
	const void *expect; /* [result_bytes]; NULL: anything but zeros */
	bool as_first; /* expects the bits of the first work of the set */
};

#define GPU_SET_WORKS 4
struct gpu_set {
	struct od_device *d;
	const struct gpu_shapes *shapes;
	struct gpu_work work[GPU_SET_WORKS];
	size_t n;
	struct gpu_owned *owned; /* buffers and host memory, freed by gpu_set_close */
	int rc;
	struct od_err *err;
};

enum gpu_set_kind {
	GPU_SET_COPY, /* within the device, half of shapes->bytes: the measure of all others */
	GPU_SET_RECOVERY,
	GPU_SET_WIDE, /* products, rows as long as Mixtral's hidden size */
	GPU_SET_WIDE_DOWN, /* as long as its intermediate size */
	GPU_SET_ROWS, /* products of rows as long as Mixtral's hidden size, of one and of many */
	GPU_SET_WIDE_EXPERTS,
	GPU_SET_FINE_EXPERTS,
	GPU_SET_ATTENTION,
	GPU_SET_LOADS, /* not of a device that maps its memory: there a load copies nothing */
	GPU_N_SETS
};

/* gpu_set_close is valid whatever it returns. */
OD_MUST_CHECK int gpu_set_open(struct gpu_set *s, enum gpu_set_kind kind, struct od_device *d,
			       const struct gpu_shapes *shapes, struct od_err *err);
void gpu_set_close(struct gpu_set *s);

#endif
