/* backend.h - the table of arithmetic kernels that all other code calls.
 *
 * Results are specified to the bit (docs/ARCHITECTURE.md). Profile f32: a dot product has 16 lanes; lane i takes the
 * elements k = i (mod 16) in order with fused multiply-add, and the lanes are folded by a fixed tree (i += i+8, then
 * +4, +2, +1). Every CPU table gives the same bits; the scalar one is the oracle. Profile bf16: the same accumulation
 * over rows rounded to BF16; a CPU with BF16 dot instructions may use them and is then another kernel class. In both
 * profiles FP8 weights give the results of the same values in BF16, weights with scales those of the same values in
 * F32.
 *
 * A row's result never depends on the other rows of the call, on the split over threads, or on the order of calls.
 * Thread: the functions are pure; any thread. Owner: the caller owns every buffer; every weight buffer is
 * followed by OD_PAD_BYTES readable bytes. */
#ifndef OD_COMPUTE_BACKEND_H
#define OD_COMPUTE_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/compute/act.h"
#include "common/compute/formats/format.h"
#include "common/compute/planes.h"

/* Kernel classes, pinned: on the wire and in files. The number is that of the rules of sums; 2: attention folds blocks
 * that do not depend on each other. */
#define OD_CLASS_FMA16 "fma16-2"
#define OD_CLASS_BF16DOT "bf16dot-2"

enum od_profile { OD_PROFILE_F32 = 1, OD_PROFILE_BF16 = 2 }; /* pinned: on the wire */
enum od_cpu { OD_CPU_AUTO, OD_CPU_SCALAR, OD_CPU_AVX2, OD_CPU_AVX512, OD_CPU_AVX512_BF16, OD_CPU_NEON };
extern const char *const od_cpu_names[]; /* "auto", "scalar", "avx2", "avx512", "avx512bf16", "neon", NULL */
extern const char *const od_profile_names[]; /* index profile - 1: "f32", "bf16", NULL */

/* How od_matmul rounds rows for a product with a quantised matrix: not at all, to INT8, or whichever is faster by the
 * table. Rows of more than OD_ACT8_MAX_IN inputs are not rounded, because a rounded row would not fit on the stack. */
enum od_activations { OD_ACT_F32, OD_ACT_INT8, OD_ACT_FASTER };
#define OD_ACT8_MAX_IN 122880u

/* Rows rounded to INT8 by blocks of 64, for weights of one dtype (quant.h). */
struct od_act8 {
	const int8_t *q; /* [n_rows][od_quant_groups(n_in)][64] */
	const float *scale; /* [n_rows][od_quant_groups(n_in)] */
};

/* Scales of weights as published: s = scale, or f32(scale / *divisor); quant.h. Each row of weights has its own row of
 * scales, even if the checkpoint shares one among several rows. */
struct od_scales {
	enum od_dtype dtype; /* OD_F32, OD_BF16, OD_F16, OD_F8_E4M3 or OD_F8_E8M0 */
	size_t group; /* weights of a row per scale: a multiple of 16, or at least n_in */
	const void *at; /* [n_out][n_in / group, rounded up] of dtype; NULL: no scales */
	const float *divisor; /* NULL: 1 */
};

static inline size_t od_scale_groups(const struct od_scales *s, size_t n_in) /* per row; the last one may be short */
{
	return n_in / s->group + (n_in % s->group != 0);
}

/* The coded exponents of a BF16 matrix, as stored: chunks that od_planes_check has accepted, of chunk_rows rows each
 * (the last one may have fewer). Chunk i begins at base + at[i]. */
struct od_planes {
	size_t chunk_rows;
	const uint8_t *base;
	const uint64_t *at; /* [n_out / chunk_rows, rounded up] */
};

static inline const uint8_t *od_planes_chunk(const struct od_planes *p, size_t i)
{
	return p->base + p->at[i];
}

/* A weight matrix. quant.h specifies the layout of quantised ones, and their products to the bit. */
struct od_mat {
	enum od_dtype dtype;
	size_t n_out, n_in;
	const void *data; /* [n_out][n_in] of dtype; of less than a byte: [n_out][od_row_bytes(dtype, n_in)] */
	/* As published: OD_U4B8, OD_U8B128 and OD_F4_E2M1 always have scales, FP8 may. OD_INT8 with `scales` set is the
	 * checkpoint's own INT8; the fields below are then ignored. */
	struct od_scales scales;
	/* The shadow's OD_INT8 and OD_NF4: weight = value of its code * scale. */
	const float *scale; /* OD_INT8: [n_out]; OD_NF4: [n_out][od_quant_groups(n_in)] */
	const struct od_planes *planes; /* OD_BF16: data has SM bytes [n_out][n_in], mantissa << 1 | sign; else NULL */
	enum od_activations act; /* OD_INT8, OD_NF4 */
};

#define OD_ATTN_BLOCK 256 /* positions per attention block, counted from position 0 */

#define OD_KV_PAGE 64u /* positions per page of the KV cache */

/* Attention of one row's query heads that share a kv head. Keys and values are in pages: position p is row p %
 * OD_KV_PAGE of page table[p / OD_KV_PAGE]; k and v point to row 0 of page 0. */
struct od_attn {
	size_t n_heads;
	const float *q; /* [n_heads][k_dim] */
	const void *k, *v; /* this kv head's in page 0; [k_dim], [v_dim] */
	const uint32_t *table;
	uint64_t k_page_bytes, v_page_bytes; /* between pages */
	size_t k_row_bytes, v_row_bytes; /* between positions of a page */
	enum od_dtype kv_dtype; /* OD_F32 or OD_BF16 */
	size_t k_dim, v_dim;
	size_t begin, end; /* positions [begin, end), end > begin */
	float scale; /* usually 1/sqrt(k_dim) */
	/* [n_heads]: one more score in each head's softmax, whose value is zero; NULL: none */
	const float *sinks;
	float *out; /* [n_heads][v_dim] */
};

/* A row of a gated delta rule for one head (ops.h, OD_OP_DELTA), sums over k_dim in order:
 *   out = to^T q, with to = decay from + k (beta (v - (decay from)^T k))^T */
struct od_delta {
	const float *q, *k, *v; /* [k_dim], [k_dim], [v_dim] */
	float decay, beta;
	const float *from; /* [k_dim][v_dim] */
	float *to; /* may be from */
	float *out; /* [v_dim] */
	size_t k_dim, v_dim;
};

struct od_backend;

/* y[r * y_stride + o] = dot(row o of w, row r of x) for o in [o_begin, o_end), all n_rows rows; w->act is ignored. */
typedef void od_matmul_fn(const struct od_mat *w, const float *x, size_t x_stride, float *y, size_t y_stride,
			  size_t n_rows, size_t o_begin, size_t o_end);
/* od_matmul_fn with planes; be: the table, for the blocks that are merged to BF16 first. */
typedef void od_matmul_planes_fn(const struct od_backend *be, const struct od_mat *w, const float *x, size_t x_stride,
				 float *y, size_t y_stride, size_t n_rows, size_t o_begin, size_t o_end);

struct od_backend {
	const char *name; /* "scalar", "avx2", ... */
	const char *kernel_class; /* results are bit-identical within one: OD_CLASS_* */
	/* products with planes are faster than with plain BF16, when weights come from memory */
	bool likes_planes;
	bool nf4_likes_int8; /* products of NF4 are faster with rows rounded to INT8; those of INT8 never are */

	/* Products, by kind of weights; od_matmul_range (cpu/matmul.h) chooses. */
	od_matmul_fn *matmul; /* F16, F32, INT8, NF4 */
	od_matmul_fn *matmul_bf16; /* BF16, and FP8, which becomes BF16 exactly */
	od_matmul_fn *matmul_scaled; /* published with scales */
	od_matmul_fn *matmul_blocks; /* formats of blocks (OD_USE_BLOCKS) */
	od_matmul_planes_fn *matmul_planes;
	/* INT8 or NF4 with rows that round_int8 made for weights of that dtype. */
	void (*matmul_int8)(const struct od_mat *w, const struct od_act8 *x, float *y, size_t y_stride, size_t n_rows,
			    size_t o_begin, size_t o_end);
	/* n more products of a dot with BF16 weights: lanes[16] is what the sum has so far. n is a multiple of 32 but
	 * for the last ones. */
	void (*add_bf16)(float *lanes, const uint16_t *w, const float *x, size_t n);
	/* Rounds one row x[n] to q[od_quant_groups(n)][64] (0 beyond n) and scale[od_quant_groups(n)]. */
	void (*round_int8)(int8_t *q, float *scale, const float *x, size_t n, enum od_dtype weights);
	/* Decodes block b of a checked chunk of n exponents in rows of row (planes.h) to e, which has room for the
	 * block's weights rounded up to 64. */
	void (*planes_decode)(const uint8_t *chunk, size_t n, size_t row, size_t b, uint8_t *e);
	/* planes_decode, merged with the block's SM bytes: BF16 to w. sm may be the upper half of the chunk's target
	 * memory if the blocks are merged in order. */
	void (*planes_merge)(const uint8_t *chunk, size_t n, size_t row, size_t b, const uint8_t *sm, uint16_t *w);
	/* Merges n exponents, followed by OD_PAD_BYTES readable bytes, with SM bytes; sm may be the upper half of w. */
	void (*merge_bf16)(const uint8_t *e, const uint8_t *sm, size_t n, uint16_t *w);

	float (*dot)(const float *a, const float *b, size_t n);
	/* y = x / sqrt(mean(x^2) + eps) * w; y may be x; w NULL: ones. */
	void (*rmsnorm)(float *y, const float *x, const float *w, size_t n, float eps);
	/* y = (x - mean) / sqrt(mean of the squared differences + eps) * w + b; y may be x. Both sums are dot's. */
	void (*layernorm)(float *y, const float *x, const float *w, const float *b, size_t n, float eps);
	/* g = silu(g) * u */
	void (*silu_mul)(float *g, const float *u, size_t n);
	/* silu_mul for OD_ACT_GELU and OD_ACT_CLAMPED (act.h). */
	void (*gelu_mul)(float *g, const float *u, size_t n);
	void (*clamped_mul)(float *g, const float *u, size_t n, float limit);
	/* x = cap * tanh(x / cap) */
	void (*soft_cap)(float *x, size_t n, float cap);
	/* x = softmax(x) in place; n > 0 */
	void (*softmax)(float *x, size_t n);
	/* Softmax over blocks of OD_ATTN_BLOCK positions, cut at multiples of it. Each block b has its maximum m (at
	 * least -FLT_MAX), sum s (position p in lane p mod 16) of e = exp(score - m), and vector v: the sum of e *
	 * value in order of position by fma. From M = the sink or -FLT_MAX, S = 1 with a sink, else 0, and V = 0,
	 * blocks are folded in order:
	 *   M' = max(M, m), keep = exp(M - M'), add = exp(m - M'), S = fma(s, add, S * keep), V = fma(v, add, V * keep)
	 * out = V / S. */
	void (*attend)(const struct od_attn *a);
	void (*delta)(const struct od_delta *d);
	/* x = exp(x) */
	void (*exp)(float *x, size_t n);
	/* y += a * x by fused multiply-add */
	void (*axpy)(float *y, float a, const float *x, size_t n);
	/* Round to BF16 and back, in place. */
	void (*round_bf16)(float *x, size_t n);
	void (*f32_to_bf16)(uint16_t *y, const float *x, size_t n);
	void (*bf16_to_f32)(float *y, const uint16_t *x, size_t n);
};

/* planes_merge of all blocks of a checked chunk. Block by block, so that exponents stay in the L1 cache. */
static inline void od_planes_merge(const struct od_backend *be, const uint8_t *chunk, size_t n, size_t row,
				   const uint8_t *sm, uint16_t *w)
{
	for (size_t b = 0; b < od_planes_blocks(n, row); b++) {
		size_t first, weights;

		od_planes_span(n, row, b, &first, &weights);
		be->planes_merge(chunk, n, row, b, sm + first, w + first);
	}
}

#endif
