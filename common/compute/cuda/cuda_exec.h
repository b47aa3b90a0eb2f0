/* cuda_exec.h - turns operations (ops.h) into kernels: those of one launch in cuda_exec.c. Only for cuda/.
 *
 * Thread: between od_cuda_begin and od_cuda_end of the queue. */
#ifndef OD_COMPUTE_CUDA_EXEC_H
#define OD_COMPUTE_CUDA_EXEC_H

#include "common/compute/cuda/cuda_device.h"

void od_cuda_run(struct od_cuda_device *c, enum od_queue q, const struct od_op *op);
struct gpu_kv od_cuda_kv(const struct od_stream *s);

#endif
