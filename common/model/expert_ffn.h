/* expert_ffn.h - down(silu(gate x) * (up x)) for some rows: what a worker is for. */
#ifndef OD_MODEL_EXPERT_FFN_H
#define OD_MODEL_EXPERT_FFN_H

#include "common/model/weights.h"

/* Bytes of scratch for up to n_rows rows. */
size_t od_expert_ffn_scratch_bytes(const struct od_config *cfg, size_t n_rows);

/* y [n_rows][hidden] = expert(x [n_rows][hidden]). Rows are independent. In profile bf16 x must already be
 * rounded to BF16 (the wire does that) and y is rounded here. Thread: one at a time per pool and scratch. */
void od_expert_ffn(const struct od_backend *be, struct od_pool *pool, enum od_profile profile,
		   const struct od_config *cfg, const struct od_expert *w, const float *x, size_t n_rows, float *y,
		   void *scratch);

#endif
