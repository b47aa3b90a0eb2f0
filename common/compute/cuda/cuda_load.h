/* cuda_load.h - merges, the copies before and after them, and decoded planes on a GPU. Only for cuda/.
 *
 * Thread: as cuda_exec.h; the load queue has many threads. */
#ifndef OD_COMPUTE_CUDA_LOAD_H
#define OD_COMPUTE_CUDA_LOAD_H

#include "common/compute/cuda/cuda_device.h"

void od_cuda_merge(struct od_cuda_device *c, enum od_queue q, const struct od_op *op);
/* Before the queue's stream is given a copy from or to these n bytes. */
void od_cuda_before_copy(struct od_cuda_device *c, enum od_queue q, const void *at, uint64_t n);
/* The queue's last stream, behind all that the queue was given. */
struct gpu_stream *od_cuda_last(struct od_cuda_device *c, enum od_queue q);

/* Chunks of a matrix with planes, at most GPU_MAX_CHUNKS, to BF16. */
void od_cuda_decode(struct od_cuda_device *c, const struct od_weight *w, uint32_t first_chunk, uint32_t n_chunks,
		    uint16_t *to);

#endif
