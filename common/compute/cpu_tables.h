/* cpu_tables.h - what the files of the CPU tables share. Only for cpu*.c: callers go through od_backend_cpu,
 * which knows what the processor can run. OD_X86_TABLES and OD_ARM_TABLES come from rules.mk, which lists their
 * sources. */
#ifndef OD_COMPUTE_CPU_TABLES_H
#define OD_COMPUTE_CPU_TABLES_H

#include "common/compute/backend.h"
#include "common/compute/quant.h"

extern const struct od_backend od_cpu_table_scalar;
#ifdef OD_X86_TABLES
extern const struct od_backend od_cpu_table_avx2;
extern const struct od_backend od_cpu_table_avx512;
extern const struct od_backend od_cpu_table_avx512bf16;

/* matmul_int8 of the AVX-512 tables: with VNNI where the CPU has it, else AVX2's. */
void od_cpu_matmul_int8_avx512(const struct od_mat *w, const struct od_act8 *x, float *y, size_t y_stride,
			       size_t n_rows, size_t o_begin, size_t o_end);
void od_cpu_matmul_int8_vnni(const struct od_mat *w, const struct od_act8 *x, float *y, size_t y_stride, size_t n_rows,
			     size_t o_begin, size_t o_end);

/* Has the CPU VBMI2, which expands bytes, and VBMI and GFNI? Kernels with VBMI2_FLAGS (rules.mk) run only where this is so: a
 * virtual machine may hide one of the three. */
bool od_cpu_expands_bytes(void);

/* planes_decode, planes_merge and merge_bf16 of the AVX-512 tables: with VBMI2 where the CPU has it, else AVX2's. */
void od_cpu_planes_decode_avx512(const uint8_t *chunk, size_t n, size_t row, size_t b, uint8_t *e);
void od_cpu_planes_merge_avx512(const uint8_t *chunk, size_t n, size_t row, size_t b, const uint8_t *sm, uint16_t *w);
void od_cpu_merge_bf16_avx512(const uint8_t *e, const uint8_t *sm, size_t n, uint16_t *w);
void od_cpu_planes_decode_vbmi2(const uint8_t *chunk, size_t n, size_t row, size_t b, uint8_t *e);
void od_cpu_planes_merge_vbmi2(const uint8_t *chunk, size_t n, size_t row, size_t b, const uint8_t *sm, uint16_t *w);
void od_cpu_merge_bf16_vbmi2(const uint8_t *e, const uint8_t *sm, size_t n, uint16_t *w);

/* matmul of the AVX-512 tables with weights that have scales: with VBMI where the CPU has it, else AVX2's. */
void od_cpu_matmul_scaled_avx512(const struct od_mat *w, const float *x, size_t x_stride, float *y, size_t y_stride,
				 size_t n_rows, size_t o_begin, size_t o_end);
void od_cpu_matmul_scaled_vbmi2(const struct od_mat *w, const float *x, size_t x_stride, float *y, size_t y_stride,
				size_t n_rows, size_t o_begin, size_t o_end);

typedef void od_matmul_fn(const struct od_mat *w, const float *x, size_t x_stride, float *y, size_t y_stride,
			  size_t n_rows, size_t o_begin, size_t o_end);

/* matmul of at most OD_FUSED_ROWS rows with planes, their length a multiple of OD_FUSED_STEP, where od_cpu_expands_bytes;
 * rest does the same for some rows of w, of which a block lies raw. */
#define OD_FUSED_ROWS 8u
#define OD_FUSED_STEP 64u
void od_cpu_matmul_fused_avx512(const struct od_mat *w, const float *x, size_t x_stride, float *y, size_t y_stride,
				size_t n_rows, size_t o_begin, size_t o_end, od_matmul_fn *rest);
void od_cpu_matmul_fused_avx512bf16(const struct od_mat *w, const float *x, size_t x_stride, float *y, size_t y_stride,
				    size_t n_rows, size_t o_begin, size_t o_end, od_matmul_fn *rest);
#endif
#ifdef OD_ARM_TABLES
extern const struct od_backend od_cpu_table_neon;

void od_cpu_matmul_int8_neondot(const struct od_mat *w, const struct od_act8 *x, float *y, size_t y_stride,
				size_t n_rows, size_t o_begin, size_t o_end);
#endif

/* A copy of the kernels for every shape, unrolled, is what keeps sums in registers. The oracle gains nothing by it. */
#ifdef OD_SMALL_KERNELS
#define ALWAYS_INLINE inline
#define V16_UNROLL(n)
#else
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define V16_PRAGMA(x) _Pragma(#x)
#define V16_UNROLL(n) V16_PRAGMA(GCC unroll n)
#endif
#define OD_LINE_BYTES 64u

/* Fetches a line that will be read, into the L2 cache: a core has few places for lines on their way to L1, and presumably waits
 * while they are taken. On Zen 4, from memory, plain BF16 is 1.7 times as fast by it as with fetching to L1, and
 * planes 1.8 times; Zen 5 did not care (planes a twentieth slower). */
static ALWAYS_INLINE void od_prefetch(uintptr_t at)
{
	__builtin_prefetch((const void *)at, 0, 2);
}

/* How far ahead of its reads each row of weights is fetched. The hardware's own prefetcher stops at page
 * ends and loses track of several rows read at once. With four rows 1 to 2 KiB are alike on Zen 5 (4 KiB is a tenth
 * slower), 2 to 4 KiB on Zen 4 (1 KiB is a twelfth slower). */
#define OD_PREFETCH_BYTES 2048u

/* A tile of dots: y[r * y_stride + o] = row o of w times row row + r of x. The kernel knows how many of each. */
struct od_tile {
	const unsigned char *w;
	size_t w_stride_bytes;
	const float *x; /* of all rows and columns; NULL with INT8 activations */
	size_t x_stride;
	size_t row, col, n; /* the tile's first row of x, and its columns [col, col + n) */
	const float *scale; /* of each row of w, or NULL */
	const struct od_mat *mat;    /* for cpu_quant_dots.h and cpu_scaled_dots.h, */
	size_t out;		     /* with the output that w is of; */
	const struct od_act8 *act8; /* and for cpu_int8_dots.h */
	float *y;
	size_t y_stride;
	size_t ahead;	  /* tiles_ahead of its rows */
	float *carry;	  /* [no][nr][16]: lanes of sums that are cut into columns; NULL when they are not */
	bool first, last; /* columns: the sums start at 0, the results are written */
};

/* no rows of w of type t with nr rows of x; the three are constants at every call, so that all is inlined. */
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

#endif
