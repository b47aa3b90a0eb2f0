/* cuda_products.h - products with weights of every kind on a GPU. Only for cuda/. Thread: as cuda_exec.h. */
#ifndef OD_COMPUTE_CUDA_PRODUCTS_H
#define OD_COMPUTE_CUDA_PRODUCTS_H

#include "common/compute/cuda/cuda_device.h"

void od_cuda_linear(struct od_cuda_device *c, const struct od_op *op);
void od_cuda_latent_value(struct od_cuda_device *c, const struct od_op *op);
void od_cuda_ffn(struct od_cuda_device *c, const struct od_op *op);

/* Rounds rows of n that meet NF4 (kernels.h) to `to`. False: they take more bytes than there is room, which is
 * noted. */
bool od_cuda_round(struct od_cuda_device *c, const float *x, uint32_t n, uint32_t n_rows, float *to, uint64_t room);
bool od_cuda_supports(const struct od_device *d, enum od_op_kind op, enum od_dtype t);
/* A matrix for a kernel; with planes, its chunk_at is the caller's to set. */
struct gpu_mat od_cuda_mat(const struct od_weight *w);

#endif
