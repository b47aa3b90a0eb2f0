/* cuda_delta.h - gated delta rules on a GPU. Only for cuda/. Thread: as cuda_exec.h. */
#ifndef OD_COMPUTE_CUDA_DELTA_H
#define OD_COMPUTE_CUDA_DELTA_H

#include "common/compute/cuda/cuda_device.h"

void od_cuda_delta_in(struct od_cuda_device *c, const struct od_op *op);
void od_cuda_delta(struct od_cuda_device *c, const struct od_op *op);

#endif
