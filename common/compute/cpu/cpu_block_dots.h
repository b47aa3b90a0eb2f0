/* cpu_block_dots.h - products with GGUF's formats of blocks. A product is that of the same weights as F32
 * (OD_RULE_F32): weights are decoded to a buffer that stays in a cache, once for all rows of x, and the dots of F32
 * weights do the rest. Only for cpu*.c, behind cpu_kernels.h and a decoder_of. */
#ifndef OD_COMPUTE_CPU_BLOCK_DOTS_H
#define OD_COMPUTE_CPU_BLOCK_DOTS_H

#include "common/compute/cpu/cpu_kernels.h"

#define DECODED_OUTS 16u /* rows of weights that are decoded for several rows of x: 64 KiB, which an L2 cache keeps */
#define DECODED_ROWS 32u /* rows of x that they meet: as many sums have room */

/* no rows of decoded weights with nr rows of x. Sums go on in lanes [row of x][no][16]. */
static void dots_of_decoded(struct od_tile a, size_t no, size_t nr, float *lanes, bool begins, bool ends)
{
	for (size_t r = 0, n; r < nr; r += n) {
		struct od_tile t = a;

		n = nr - r >= 4 ? 4 : nr - r >= 2 ? 2 : 1;
		t.row = r;
		t.y += r * a.y_stride;
		t.from = begins ? NULL : lanes + r * no * 16;
		t.to = ends ? NULL : lanes + r * no * 16;
		if (n == 4)
			row_tile(dots, OD_F32, V16_OUTS_OF_4, 4, t, no);
		else if (n == 2)
			row_tile(dots, OD_F32, V16_OUTS_OF_2, 2, t, no);
		else
			row_tile(dots, OD_F32, V16_OUTS_OF_1, 1, t, no);
	}
}

static void matmul_blocks(const struct od_mat *w, const float *x, size_t x_stride, float *y, size_t y_stride,
			  size_t n_rows, size_t o_begin, size_t o_end)
{
	_Alignas(OD_LINE_BYTES) float weights[DECODED_OUTS * COLUMNS], lanes[DECODED_OUTS * DECODED_ROWS * 16];
	const size_t row_bytes = od_row_bytes(w->dtype, w->n_in), most = n_rows <= 2 ? 4 : DECODED_OUTS;
	od_decode_fn *const decode = decoder_of(w->dtype);

	for (size_t r = 0, nr; r < n_rows; r += nr) {
		nr = n_rows - r < DECODED_ROWS ? n_rows - r : DECODED_ROWS;
		for (size_t o = o_begin, no; o < o_end; o += no) {
			no = o_end - o < most ? o_end - o : most;
			for (size_t col = 0, n; col < w->n_in; col += n) {
				const unsigned char *at =
					(const unsigned char *)w->data + o * row_bytes + od_row_bytes(w->dtype, col);

				n = w->n_in - col < COLUMNS ? w->n_in - col : COLUMNS;
				for (size_t i = 0; i < no; i++)
					decode(at + i * row_bytes, n, weights + i * COLUMNS);
				dots_of_decoded((struct od_tile){ .w = (const unsigned char *)weights,
								  .w_stride_bytes = COLUMNS * sizeof(float),
								  .x = x + r * x_stride,
								  .x_stride = x_stride,
								  .col = col,
								  .n = n,
								  .mat = w,
								  .y = y + r * y_stride + o,
								  .y_stride = y_stride },
						no, nr, lanes, col == 0, col + n == w->n_in);
			}
		}
	}
}

static void block_kernels(struct od_backend *t)
{
	t->matmul_blocks = matmul_blocks;
}

#endif
