/* cpu_planes_dots.h - matmul with weights that stay planes (planes.h): some of their rows are merged to BF16 in a
 * buffer that stays in the cache, and meet all rows of x there, in the table's own dots. Included by cpu_kernels.h. */

#include "common/base/mem.h"

#define MERGED_BLOCKS 4u /* in the buffer: 128 KiB */

/* A row of more than one block: its sums are cut where the buffer ends, and their lanes carried over. */
static __attribute__((noinline)) void long_row(const struct od_mat *w, const float *x, size_t x_stride, float *y,
					       size_t y_stride, size_t n_rows, size_t o, uint16_t *merged)
{
	const size_t i = o / w->planes->chunk_rows, first = i * w->planes->chunk_rows, row = w->n_in;
	const size_t left = w->n_out - first, n = (left < w->planes->chunk_rows ? left : w->planes->chunk_rows) * row;
	const size_t blocks = (row + OD_PLANES_BLOCK - 1) / OD_PLANES_BLOCK;
	const uint8_t *sm = (const uint8_t *)w->data + first * row;
	float carry[MAX_BLOCK_OUTS * 16];

	for (size_t r = 0, nr; r < n_rows; r += nr) {
		nr = n_rows - r < MAX_BLOCK_OUTS ? n_rows - r : MAX_BLOCK_OUTS;
		for (size_t b = 0, nb; b < blocks; b += nb) {
			size_t col = b * OD_PLANES_BLOCK, end;

			nb = blocks - b < MERGED_BLOCKS ? blocks - b : MERGED_BLOCKS;
			end = b + nb < blocks ? (b + nb) * OD_PLANES_BLOCK : row;
			for (size_t k = 0; k < nb; k++)
				OD_PLANES_MERGE(w->planes->chunk[i], n, row, (o - first) * blocks + b + k,
						sm + (o - first) * row + col + k * OD_PLANES_BLOCK, merged + k * OD_PLANES_BLOCK);
			for (size_t k = 0; k < nr; k++)
				OD_BF16_DOTS(OD_BF16, 1, 1,
					     &(struct od_tile){ .w = (const unsigned char *)merged,
								.x = x,
								.x_stride = x_stride,
								.row = r + k,
								.col = col,
								.n = end - col,
								.y = y + (r + k) * y_stride + o,
								.carry = carry + 16 * k,
								.first = b == 0,
								.last = end == row });
		}
	}
}

/* Rows [o, o + *n) of w, as many as fit, at most up to end, merged; returns the first one. Blocks are merged whole. */
static const uint16_t *merge_rows(const struct od_mat *w, size_t o, size_t end, uint16_t *merged, size_t *n)
{
	const size_t i = o / w->planes->chunk_rows, first = i * w->planes->chunk_rows, row = w->n_in;
	const size_t left = w->n_out - first, rows = left < w->planes->chunk_rows ? left : w->planes->chunk_rows;
	const size_t each = OD_PLANES_BLOCK / row, b = (o - first) / each, begin = first + b * each;
	const uint8_t *sm = (const uint8_t *)w->data + first * row;
	size_t last = begin + MERGED_BLOCKS * each;

	last = last < first + rows ? last : first + rows;
	last = last < end ? last : end;
	for (size_t k = 0; begin + k * each < last; k++)
		OD_PLANES_MERGE(w->planes->chunk[i], rows * row, row, b + k, sm + (b + k) * each * row, merged + k * each * row);
	*n = last - o;
	return merged + (o - begin) * row;
}

static void matmul_planes(const struct od_mat *w, const float *x, size_t x_stride, float *y, size_t y_stride,
			  size_t n_rows, size_t o_begin, size_t o_end)
{
	_Alignas(OD_LINE_BYTES) uint16_t merged[MERGED_BLOCKS * OD_PLANES_BLOCK + OD_PAD_BYTES];

	for (size_t o = o_begin, n; o < o_end; o += n) {
		struct od_tile a = { .x = x, .x_stride = x_stride, .n = w->n_in, .y = y + o, .y_stride = y_stride,
				     .w_stride_bytes = 2 * w->n_in, .first = true, .last = true };

		n = 1;
		if (w->n_in > OD_PLANES_BLOCK) {
			long_row(w, x, x_stride, y, y_stride, n_rows, o, merged);
			continue;
		}
		a.w = (const unsigned char *)merge_rows(w, o, o_end, merged, &n);
		matmul_of(OD_BF16_DOTS, OD_BF16, a, n_rows, n);
	}
}
