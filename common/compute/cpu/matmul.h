/* matmul.h - products with weights of every kind, by the kernels of a table (backend.h).
 *
 * Thread: any; od_matmul and od_matmul_all as their pool. Owner: the caller owns every buffer. */
#ifndef OD_COMPUTE_MATMUL_H
#define OD_COMPUTE_MATMUL_H

#include "common/base/pool.h"
#include "common/compute/backend.h"

/* A range of a product's outputs, for any kind of weights; parameters as in od_matmul_fn. */
void od_matmul_range(const struct od_backend *be, const struct od_mat *w, const float *x, size_t x_stride, float *y,
		     size_t y_stride, size_t n_rows, size_t o_begin, size_t o_end);

/* All outputs, split over the pool; honours w->act. y: [n_rows][w->n_out]; x: [n_rows][w->n_in]. */
void od_matmul(const struct od_backend *be, struct od_pool *pool, const struct od_mat *w, const float *x, float *y,
	       size_t n_rows);

/* Several independent products in one round of the pool, because a round costs about a microsecond, as much as a small
 * matrix. Products whose rows are rounded to INT8 take separate rounds. */
struct od_product {
	struct od_mat w;
	const float *x;
	float *y;
	size_t n_rows;
};
void od_matmul_all(const struct od_backend *be, struct od_pool *pool, const struct od_product *p, size_t n);

/* An od_matmul_planes_fn for any table: some rows of w at a time are merged to BF16, in the cache, and meet all rows of
 * x there. */
void od_matmul_merged(const struct od_backend *be, const struct od_mat *w, const float *x, size_t x_stride, float *y,
		      size_t y_stride, size_t n_rows, size_t o_begin, size_t o_end);

#endif
