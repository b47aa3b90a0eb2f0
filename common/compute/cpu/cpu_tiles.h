/* cpu_tiles.h - how the matmuls of a CPU table walk over outputs, rows and columns, over the 16 lanes of a vec_*.h
 * that is included before. What a tile computes is an od_dots_fn. Blocking decides which dots run side by side, never
 * the order of a sum. Only for cpu*.c and what they include. */
#ifndef OD_COMPUTE_CPU_TILES_H
#define OD_COMPUTE_CPU_TILES_H

#include "common/compute/cpu/cpu_tables.h"
#include "common/compute/quant.h"

/* A copy of the kernels for every shape, unrolled, is what keeps sums in registers. The oracle gains nothing by it. */
#ifdef OD_SMALL_KERNELS
#define ALWAYS_INLINE inline
#define V16_UNROLL(n)
#else
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define V16_PRAGMA(x) _Pragma(#x)
#define V16_UNROLL(n) V16_PRAGMA(GCC unroll n)
#endif

/* Fetches a line that will be read, into the L2 cache: a core has few buffers for lines on their way to L1, and
 * presumably waits while they are taken. On Zen 4, from memory, plain BF16 is 1.7 times as fast by it as with fetching
 * to L1, and planes 1.8 times; Zen 5 did not care (planes a twentieth slower). */
static ALWAYS_INLINE void od_prefetch(uintptr_t at)
{
	__builtin_prefetch((const void *)at, 0, 2);
}

/* How far ahead of its reads each row of weights is fetched. The hardware's own prefetcher stops at page
 * ends and loses track of several rows read at once. With four rows 1 to 2 KiB are alike on Zen 5 (4 KiB is a tenth
 * slower), 2 to 4 KiB on Zen 4 (1 KiB is a twelfth slower). */
#define OD_PREFETCH_BYTES 2048u

/* Outputs that all row tiles visit before the next ones, so that their weights stay in the L2 cache. */
#define BLOCK_WEIGHTS 131072u
#define MAX_BLOCK_OUTS 64u
#define COLUMNS 1024u /* a multiple of every step over k: 4 rows of f32 take 16 KiB */

/* Some columns of some rows of weights, times some rows of x: y[r * y_stride + o] = row o of w times row r of the
 * tile's. How many rows of each, the kernel knows. */
struct od_tile {
	const struct od_mat *mat; /* for what has scales */
	const unsigned char *w; /* in mat: output out, column col */
	size_t w_stride_bytes, out;
	size_t col, n; /* columns [col, col + n) */
	size_t ahead; /* tiles_ahead of its rows */
	const float *x; /* row 0, column 0; or */
	const struct od_act8 *act8;
	size_t x_stride, row; /* row: the tile's first */
	float *y;
	size_t y_stride;
	/* [no][nr][16], the lanes of sums that are cut into columns. */
	const float *from; /* NULL: the sums start at 0 */
	float *to; /* NULL: they end, and are folded to y */
};

/* no rows of w of type t with nr rows of x; the three are constants at every call, and so is the function wherever it
 * is an argument: all is inlined. */
typedef void od_dots_fn(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a);

/* How many tiles ahead of its reads a tile of rows of so many bytes fetches; 0: long rows, the end of the same. */
static inline size_t tiles_ahead(size_t row_bytes)
{
	return row_bytes <= OD_PREFETCH_BYTES ? OD_PREFETCH_BYTES / (row_bytes + 1) + 1 : 0;
}

/* Fetch what no rows will read OD_PREFETCH_BYTES after offset at; at a row's end that is in the next tile. */
static ALWAYS_INLINE void prefetch_rows(const struct od_tile *a, const size_t no, size_t at, size_t row_bytes)
{
	if (a->ahead > 0) {
		at += a->ahead * no * a->w_stride_bytes;
	} else {
		at += OD_PREFETCH_BYTES;
		at += at < row_bytes ? 0 : no * a->w_stride_bytes - row_bytes;
	}
	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++)
		od_prefetch((uintptr_t)a->w + o * a->w_stride_bytes + at);
}

/* Rows of at least LONG_ROW_BYTES come from memory: a model of such rows is larger than a cache. A core drops a fetch
 * when it has no buffer for it, and a dropped line is read late, so each line is fetched several times, from further
 * and further near. With one row of x and BF16 weights on Zen 4, a core reads them at 0.72 (f32) and 0.82 (bf16) of the
 * speed of plain reading with one fetch, at 0.97 to 1.0 with these. From the last-level cache it is slower with them
 * (41 GB/s instead of 57), so short rows, which may stay there, have one.
 *
 * Fetches the lines of STEPS steps from column at on. */
#define LONG_ROW_BYTES 2048u
#define STEPS 4u
static ALWAYS_INLINE void prefetch_steps(const struct od_tile *a, const size_t no, size_t at, size_t row_bytes)
{
	static const size_t ahead[] = { 6144, 4096, 2048, 1024 };

	V16_UNROLL(4)
	for (size_t i = 0; i < sizeof(ahead) / sizeof(ahead[0]); i++) {
		size_t far = at + ahead[i];

		far += far < row_bytes ? 0 : no * a->w_stride_bytes - row_bytes;
		V16_UNROLL(16)
		for (size_t j = 0; j < STEPS * no; j++)
			od_prefetch((uintptr_t)a->w + j % no * a->w_stride_bytes + far + j / no * OD_LINE_BYTES);
	}
}

static inline float canonical(float a)
{
	return a != a ? od_bits_f32(0x7fc00000u) : a;
}

/* All rows of x (NULL: they are elsewhere) with the outputs of w from o_begin on: what a matmul cuts into tiles. */
static ALWAYS_INLINE struct od_tile tile_of(const struct od_mat *w, const float *x, size_t x_stride, float *y,
					    size_t y_stride, size_t o_begin)
{
	const size_t row_bytes = od_row_bytes(w->dtype, w->n_in);

	return (struct od_tile){
		.w = (const unsigned char *)w->data + o_begin * row_bytes,
		.w_stride_bytes = row_bytes,
		.x = x,
		.x_stride = x_stride,
		.n = w->n_in,
		.mat = w,
		.out = o_begin,
		.y = y + o_begin,
		.y_stride = y_stride,
	};
}

/* The sums of a tile: where they start, and where they go. scale: of each row of w, or NULL. */
static ALWAYS_INLINE void begin_sums(const size_t no, const size_t nr, const struct od_tile *a, v16 (*sum)[4])
{
	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++)
		V16_UNROLL(4)
	for (size_t r = 0; r < nr; r++)
		sum[o][r] = a->from == NULL ? v16_set1(0) : v16_load(a->from + 16 * (o * nr + r));
}

static ALWAYS_INLINE void end_sums(const size_t no, const size_t nr, const struct od_tile *a, const float *scale,
				   v16 (*sum)[4])
{
	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++) {
		V16_UNROLL(4)
		for (size_t r = 0; r < nr; r++) {
			float d;

			if (a->to != NULL) {
				v16_store(a->to + 16 * (o * nr + r), sum[o][r]);
				continue;
			}
			d = v16_fold_add(sum[o][r]);
			a->y[r * a->y_stride + o] = canonical(scale != NULL ? d * scale[o] : d);
		}
	}
}

/* sum: += 32 columns of BF16 weights and rows of x, the ones at column k. */
typedef void od_add_fn(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a, const float *x,
		       size_t k, v16 (*sum)[4]);
/* od_add_fn with n columns, at most those of a step. */
typedef void od_add_n_fn(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a,
			 const float *x, size_t k, size_t n, v16 (*sum)[4]);

/* An od_dots_fn for long rows and few of x: as few instructions as can be, because the fewer, the more lines the
 * processor has under way. The last columns go by steps of last_step. */
static ALWAYS_INLINE void long_dots_of(od_add_fn *const add, od_add_n_fn *const add_n, const size_t last_step,
				       const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a)
{
	size_t k = 0;
	v16 sum[4][4];

	begin_sums(no, nr, a, sum);
	for (; k + STEPS * 32 <= a->n; k += STEPS * 32) {
		V16_UNROLL(4)
		for (size_t i = k; i < k + STEPS * 32; i += 32)
			add(t, no, nr, a, a->x, i, sum);
		prefetch_steps(a, no, k * 2, a->n * 2);
	}
	for (; k < a->n; k += last_step)
		add_n(t, no, nr, a, a->x, k, a->n - k < last_step ? a->n - k : last_step, sum);
	end_sums(no, nr, a, NULL, sum);
}

/* n_out outputs of nr rows. */
static ALWAYS_INLINE void row_tile(od_dots_fn *const f, const enum od_dtype t, const size_t no, const size_t nr,
				   struct od_tile a, size_t n_out)
{
	a.ahead = tiles_ahead(od_row_bytes(t, a.n));
	for (size_t o = 0, n; o < n_out; o += n) {
		n = o + no <= n_out ? no : 1;
		if (n == no)
			f(t, no, nr, &a);
		else
			f(t, 1, nr, &a);
		a.from = a.from != NULL ? a.from + 16 * nr * n : NULL;
		a.to = a.to != NULL ? a.to + 16 * nr * n : NULL;
		a.w += n * a.w_stride_bytes;
		a.out += n;
		a.y += n;
	}
}

/* Runs the tiles in columns, so that what they read of the rows stays in the L1 cache. */
static ALWAYS_INLINE void column_tiles(od_dots_fn *const f, const enum od_dtype t, const size_t no, const size_t nr,
				       struct od_tile a, size_t n_out)
{
	float lanes[MAX_BLOCK_OUTS * 4 * 16];
	size_t n = a.n;

	do {
		a.n = n < COLUMNS ? n : COLUMNS;
		n -= a.n;
		a.to = n > 0 ? lanes : NULL;
		row_tile(f, t, no, nr, a, n_out);
		a.from = lanes;
		a.w += od_row_bytes(t, COLUMNS);
		a.col += COLUMNS;
	} while (n > 0);
}

/* Blocks of outputs; within one, four rows at a time, then two, then one. */
static ALWAYS_INLINE void matmul_of(od_dots_fn *const f, const enum od_dtype t, struct od_tile a, size_t n_rows,
				    size_t n_out)
{
	size_t block = BLOCK_WEIGHTS / (a.n + 1) / 4 * 4 + 4, n;

	block = n_rows == 1 ? n_out : block < MAX_BLOCK_OUTS ? block : MAX_BLOCK_OUTS;
	for (size_t o = 0; o < n_out; o += n) {
		struct od_tile b = a;
		size_t r = 0;

		n = n_out - o < block ? n_out - o : block;
		b.w += o * a.w_stride_bytes;
		b.out += o;
		for (size_t nr; r < n_rows; r += nr) {
			nr = n_rows - r >= 4 ? 4 : n_rows - r >= 2 ? 2 : 1;
			b.row = r;
			b.y = a.y + r * a.y_stride + o;
			if (nr == 4)
				column_tiles(f, t, V16_OUTS_OF_4, 4, b, n);
			else if (nr == 2)
				column_tiles(f, t, V16_OUTS_OF_2, 2, b, n);
			else
				row_tile(f, t, od_dtype_bytes(t) == 0 ? V16_4BIT_OUTS_OF_1 : V16_OUTS_OF_1, 1, b, n);
		}
	}
}

/* Long rows of weights and few of x: memory sets the pace, so the first rows of x read a block of weights with
 * long_row, whole rows at a time, and the others find it in the L2 cache. */
#define FEW_ROWS 8u
static ALWAYS_INLINE void long_matmul_of(od_dots_fn *const f, od_dots_fn *const long_row, struct od_tile a,
					 size_t n_rows, size_t n_out)
{
	const bool one_sweep = n_rows == 1 || n_rows == 2 || n_rows == 4;
	size_t first = n_rows >= 4 ? 4 : n_rows >= 2 ? 2 : 1, n;

	for (size_t o = 0; o < n_out; o += n) {
		struct od_tile b = a;

		n = one_sweep || n_out - o < MAX_BLOCK_OUTS ? n_out - o : MAX_BLOCK_OUTS;
		b.w += o * a.w_stride_bytes;
		b.out += o;
		b.y += o;
		if (first == 4)
			row_tile(long_row, OD_BF16, V16_OUTS_OF_4, 4, b, n);
		else if (first == 2)
			row_tile(long_row, OD_BF16, V16_OUTS_OF_2, 2, b, n);
		else
			row_tile(long_row, OD_BF16, V16_OUTS_OF_1, 1, b, n);
		if (one_sweep)
			continue;
		b.x += first * a.x_stride;
		b.y += first * a.y_stride;
		matmul_of(f, OD_BF16, b, n_rows - first, n);
	}
}

/* Weights that are BF16 or become it exactly; long_row: for long rows of BF16 and few of x. */
static ALWAYS_INLINE void matmul_bf16_of(od_dots_fn *const f, od_dots_fn *const long_row, const struct od_mat *w,
					 const float *x, size_t x_stride, float *y, size_t y_stride, size_t n_rows,
					 size_t o_begin, size_t o_end)
{
	const struct od_tile a = tile_of(w, x, x_stride, y, y_stride, o_begin);
	const size_t n_out = o_end - o_begin;

	if (w->dtype == OD_BF16 && n_rows <= FEW_ROWS && a.w_stride_bytes >= LONG_ROW_BYTES)
		long_matmul_of(f, long_row, a, n_rows, n_out);
	else if (w->dtype == OD_BF16)
		matmul_of(f, OD_BF16, a, n_rows, n_out);
	else if (w->dtype == OD_F8_E4M3)
		matmul_of(f, OD_F8_E4M3, a, n_rows, n_out);
	else
		matmul_of(f, OD_F8_E5M2, a, n_rows, n_out);
}

#endif
