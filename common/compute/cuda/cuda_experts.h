/* cuda_experts.h - experts of a step on a GPU. Only for cuda/. Thread: as cuda_exec.h. */
#ifndef OD_COMPUTE_CUDA_EXPERTS_H
#define OD_COMPUTE_CUDA_EXPERTS_H

#include "common/compute/cuda/cuda_device.h"

void od_cuda_experts(struct od_cuda_device *c, const struct od_op *op);
void od_cuda_free_tables(struct od_cuda_device *c);

#endif
