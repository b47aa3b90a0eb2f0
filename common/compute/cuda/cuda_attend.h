/* cuda_attend.h - attention, and queries of latent attention, on a GPU. Only for cuda/. Thread: as cuda_exec.h. */
#ifndef OD_COMPUTE_CUDA_ATTEND_H
#define OD_COMPUTE_CUDA_ATTEND_H

#include "common/compute/cuda/cuda_device.h"

void od_cuda_attend(struct od_cuda_device *c, const struct od_op *op);
void od_cuda_latent_query(struct od_cuda_device *c, const struct od_op *op);

#endif
