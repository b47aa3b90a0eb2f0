/* cpu_kernels.h - the kernels of a CPU table that are written once over the 16 lanes of a vec_*.h.
 *
 * A cpu_*.c includes its vector header, then this one, and calls lane_kernels for its table. The order of every sum is
 * fixed here, so the tables agree in every bit; blocking only decides which dots run side by side. Every NaN that is
 * written has the bits 0x7fc00000, because which NaN an instruction passes on depends on the CPU. */
#ifndef OD_COMPUTE_CPU_KERNELS_H
#define OD_COMPUTE_CPU_KERNELS_H

#include "common/compute/cpu/cpu_quant_dots.h"
#include "common/compute/cpu/cpu_tiles.h"

#include <float.h>

/* 16 weights of a format that dots knows; t is a constant at every call. */
static ALWAYS_INLINE v16 load_any(enum od_dtype t, const unsigned char *p)
{
	return t == OD_BF16    ? v16_load_bf16(p) :
	       t == OD_F16     ? v16_load_f16(p) :
	       t == OD_INT8    ? v16_load_i8(p) :
	       t == OD_F8_E4M3 ? v16_load_e4m3(p) :
	       t == OD_F8_E5M2 ? v16_load_e5m2(p) :
				 v16_load((const float *)(const void *)p);
}

static ALWAYS_INLINE v16 load_any_n(enum od_dtype t, const unsigned char *p, size_t n)
{
	return t == OD_BF16    ? v16_load_bf16_n(p, n) :
	       t == OD_F16     ? v16_load_f16_n(p, n) :
	       t == OD_INT8    ? v16_load_i8_n(p, n) :
	       t == OD_F8_E4M3 ? v16_load_e4m3_n(p, n) :
	       t == OD_F8_E5M2 ? v16_load_e5m2_n(p, n) :
				 v16_load_n((const float *)(const void *)p, n);
}

/* An od_add_n_fn of steps of 16 columns. */
static ALWAYS_INLINE void add_16_n(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a,
				   const float *x, size_t k, size_t n, v16 (*sum)[4])
{
	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++) {
		const v16 w = load_any_n(t, a->w + o * a->w_stride_bytes + k * od_dtype_bytes(t), n);

		V16_UNROLL(4)
		for (size_t r = 0; r < nr; r++)
			sum[o][r] = v16_fma_n(w, v16_load_n(x + r * a->x_stride + k, n), sum[o][r], n);
	}
}

/* An od_dots_fn. */
static ALWAYS_INLINE void dots(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a)
{
	const size_t each = od_dtype_bytes(t), step = OD_LINE_BYTES / each, row_bytes = a->n * each;
	const unsigned char *w = a->w;
	const float *x = a->x + a->row * a->x_stride + a->col;
	size_t k = 0;
	v16 sum[4][4];

	begin_sums(no, nr, a, sum);
	for (; k + step <= a->n; k += step) {
		prefetch_rows(a, no, k * each, row_bytes);
		V16_UNROLL(4)
		for (size_t j = 0; j < step; j += 16) {
			v16 wv[4];

			V16_UNROLL(4)
			for (size_t o = 0; o < no; o++)
				wv[o] = load_any(t, w + o * a->w_stride_bytes + (k + j) * each);
			V16_UNROLL(4)
			for (size_t r = 0; r < nr; r++) {
				v16 xv = v16_load(x + r * a->x_stride + k + j);

				V16_UNROLL(4)
				for (size_t o = 0; o < no; o++)
					sum[o][r] = v16_fma(wv[o], xv, sum[o][r]);
			}
		}
	}
	while (k < a->n) {
		size_t left = a->n - k < 16 ? a->n - k : 16;

		V16_UNROLL(4)
		for (size_t o = 0; o < no; o++) {
			v16 wv = load_any_n(t, w + o * a->w_stride_bytes + k * each, left);

			V16_UNROLL(4)
			for (size_t r = 0; r < nr; r++)
				sum[o][r] = v16_fma_n(wv, v16_load_n(x + r * a->x_stride + k, left), sum[o][r], left);
		}
		k += left;
	}
	end_sums(no, nr, a, t == OD_INT8 && a->mat->scale != NULL ? a->mat->scale + a->out : NULL, sum);
}

/* An od_add_fn: first all rows with the 16 columns at k, then with the next 16. */
static ALWAYS_INLINE void add_32(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a,
				 const float *x, size_t k, v16 (*sum)[4])
{
	v16 first[4], second[4];

	(void)t;
	V16_UNROLL(4)
	for (size_t o = 0; o < no; o++)
		v16_load_32_bf16(a->w + o * a->w_stride_bytes + k * 2, &first[o], &second[o]);
	V16_UNROLL(4)
	for (size_t r = 0; r < nr; r++)
		V16_UNROLL(4)
	for (size_t o = 0; o < no; o++)
		sum[o][r] = v16_fma(first[o], v16_load(x + r * a->x_stride + k), sum[o][r]);
	V16_UNROLL(4)
	for (size_t r = 0; r < nr; r++)
		V16_UNROLL(4)
	for (size_t o = 0; o < no; o++)
		sum[o][r] = v16_fma(second[o], v16_load(x + r * a->x_stride + k + 16), sum[o][r]);
}

/* An od_dots_fn for long rows and few of x. */
static ALWAYS_INLINE void long_dots(const enum od_dtype t, const size_t no, const size_t nr, const struct od_tile *a)
{
	long_dots_of(add_32, add_16_n, 16, t, no, nr, a);
}

static void matmul(const struct od_mat *w, const float *x, size_t x_stride, float *y, size_t y_stride, size_t n_rows,
		   size_t o_begin, size_t o_end)
{
	const struct od_tile a = tile_of(w, x, x_stride, y, y_stride, o_begin);
	const size_t n_out = o_end - o_begin;

	if (w->dtype == OD_F16)
		matmul_of(dots, OD_F16, a, n_rows, n_out);
	else if (w->dtype == OD_INT8)
		matmul_of(dots, OD_INT8, a, n_rows, n_out);
	else if (w->dtype == OD_NF4)
		matmul_of(nf4_dots, OD_NF4, a, n_rows, n_out);
	else
		matmul_of(dots, OD_F32, a, n_rows, n_out);
}

static void matmul_bf16(const struct od_mat *w, const float *x, size_t x_stride, float *y, size_t y_stride,
			size_t n_rows, size_t o_begin, size_t o_end)
{
	matmul_bf16_of(dots, long_dots, w, x, x_stride, y, y_stride, n_rows, o_begin, o_end);
}

static void add_bf16(float *lanes, const uint16_t *w, const float *x, size_t n)
{
	dots(OD_BF16, 1, 1,
	     &(struct od_tile){ .w = (const unsigned char *)w, .x = x, .n = n, .from = lanes, .to = lanes });
}

/* One block of at most 64: what quant.h says. */
static ALWAYS_INLINE float round_block(int8_t *q, const float *x, size_t n, bool interleave)
{
	v16 a[4], most = v16_set1(0), poison = v16_set1(0);
	float scale;

	V16_UNROLL(4)
	for (size_t m = 0; m < 4; m++) {
		size_t left = n <= 16 * m ? 0 : n - 16 * m < 16 ? n - 16 * m : 16;

		a[m] = left == 16 ? v16_load(x + 16 * m) : v16_load_n(x + 16 * m, left);
		most = v16_max(v16_max(a[m], v16_sub(v16_set1(0), a[m])), most);
		poison = v16_fma(a[m], v16_set1(0), poison); /* NaN when one is infinite or NaN, else zeros */
	}
	scale = v16_fold_max(most) / 127.0f + v16_fold_add(poison);
	if (!(scale > 0)) {
		memset(q, 0, OD_QUANT_GROUP);
		return canonical(scale);
	}
	V16_UNROLL(4)
	for (size_t m = 0; m < 4; m++) {
		/* A subnormal scale is coarse: a quotient may pass 127. */
		a[m] = v16_min(v16_max(v16_div(a[m], v16_set1(scale)), v16_set1(-127)), v16_set1(127));
		if (!interleave)
			v16_store_i8(q + 16 * m, a[m]);
	}
	if (interleave)
		v16_store_i8x4(q, a);
	return scale;
}

static void round_int8(int8_t *q, float *scale, const float *x, size_t n, enum od_dtype weights)
{
	for (size_t k = 0; k < n; k += OD_QUANT_GROUP) {
		float s = round_block(q + k, x + k, n - k < OD_QUANT_GROUP ? n - k : OD_QUANT_GROUP, weights == OD_NF4);

		scale[k / OD_QUANT_GROUP] = weights == OD_NF4 ? canonical(s / 127.0f) : s;
	}
}

static float dot(const float *a, const float *b, size_t n)
{
	float y;

	dots(OD_F32, 1, 1, &(struct od_tile){ .w = (const unsigned char *)a, .x = b, .n = n, .y = &y });
	return y;
}

/* exp(x) to 1 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, and the Taylor series of exp(r) up to r^7 (the next term
 * is below 6e-9). Beyond the bounds the result is 0 or infinity anyway. */
static ALWAYS_INLINE v16 exp16(v16 x)
{
	const v16 magic = v16_set1(0x1.8p23f);
	v16 c = v16_max(v16_min(x, v16_set1(90.0f)), v16_set1(-110.0f));
	v16 t = v16_fma(c, v16_set1(0x1.715476p+0f), magic), n = v16_sub(t, magic), r, p;

	r = v16_fma(n, v16_set1(-0x1.62e43p-1f), c);
	r = v16_fma(n, v16_set1(0x1.05c61p-29f), r); /* the rest of ln 2: ln2_hi was rounded up */
	p = v16_set1(1.0f / 5040);
	p = v16_fma(p, r, v16_set1(1.0f / 720));
	p = v16_fma(p, r, v16_set1(1.0f / 120));
	p = v16_fma(p, r, v16_set1(1.0f / 24));
	p = v16_fma(p, r, v16_set1(1.0f / 6));
	p = v16_fma(p, r, v16_set1(0.5f));
	p = v16_fma(p, r, v16_set1(1.0f));
	p = v16_fma(p, r, v16_set1(1.0f));
	return v16_nan_where(x, v16_scale_pow2(p, t));
}

static void rmsnorm(float *y, const float *x, const float *w, size_t n, float eps)
{
	float r = 1.0f / sqrtf(dot(x, x, n) / (float)n + eps);
	size_t i = 0;

	for (; i + 16 <= n; i += 16) {
		v16 a = v16_mul(v16_load(x + i), v16_set1(r));

		a = w != NULL ? v16_mul(a, v16_load(w + i)) : a;
		v16_store(y + i, v16_nan_where(a, a));
	}
	if (i < n) {
		v16 a = v16_mul(v16_load_n(x + i, n - i), v16_set1(r));

		a = w != NULL ? v16_mul(a, v16_load_n(w + i, n - i)) : a;
		v16_store_n(y + i, v16_nan_where(a, a), n - i);
	}
}

/* The sum of x in the order of a dot product: its lanes, then their tree. */
static float sum_of(const float *x, size_t n)
{
	v16 sum = v16_set1(0);
	size_t i = 0;

	for (; i + 16 <= n; i += 16)
		sum = v16_add(sum, v16_load(x + i));
	if (i < n)
		sum = v16_add(sum, v16_load_n(x + i, n - i));
	return v16_fold_add(sum);
}

static ALWAYS_INLINE v16 layernorm16(v16 x, v16 mean, v16 by, v16 w, v16 b)
{
	v16 a = v16_add(v16_mul(v16_mul(v16_sub(x, mean), by), w), b);

	return v16_nan_where(a, a);
}

static void layernorm(float *y, const float *x, const float *w, const float *b, size_t n, float eps)
{
	const v16 mean = v16_set1(sum_of(x, n) / (float)n);
	v16 sum = v16_set1(0), by;
	size_t i = 0;

	for (; i + 16 <= n; i += 16) {
		v16 d = v16_sub(v16_load(x + i), mean);

		sum = v16_fma(d, d, sum);
	}
	if (i < n) { /* beyond n nothing is added */
		v16 d = v16_sub(v16_load_n(x + i, n - i), mean);

		sum = v16_fma_n(d, d, sum, n - i);
	}
	by = v16_set1(1.0f / sqrtf(v16_fold_add(sum) / (float)n + eps));
	for (i = 0; i + 16 <= n; i += 16)
		v16_store(y + i, layernorm16(v16_load(x + i), mean, by, v16_load(w + i), v16_load(b + i)));
	if (i < n)
		v16_store_n(y + i,
			    layernorm16(v16_load_n(x + i, n - i), mean, by, v16_load_n(w + i, n - i),
					v16_load_n(b + i, n - i)),
			    n - i);
}

/* tanh(z) = (1 - exp(-2 z)) / (1 + exp(-2 z)); beyond 20 it is 1 to more digits than there are. */
static ALWAYS_INLINE v16 soft_cap16(v16 x, v16 cap)
{
	v16 z = v16_max(v16_min(v16_div(x, cap), v16_set1(20)), v16_set1(-20));
	v16 e = exp16(v16_mul(z, v16_set1(-2)));
	v16 a = v16_mul(cap, v16_div(v16_sub(v16_set1(1), e), v16_add(v16_set1(1), e)));

	return v16_nan_where(x, a); /* v16_min and v16_max lose a NaN */
}

static void soft_cap(float *x, size_t n, float cap)
{
	for (size_t i = 0; i < n; i += 16) {
		size_t left = n - i < 16 ? n - i : 16;

		v16_store_n(x + i, soft_cap16(v16_load_n(x + i, left), v16_set1(cap)), left);
	}
}

static ALWAYS_INLINE v16 silu_mul16(v16 g, v16 u)
{
	v16 e = exp16(v16_sub(v16_set1(0), g));
	v16 a = v16_mul(v16_div(g, v16_add(v16_set1(1), e)), u);

	return v16_nan_where(a, a);
}

static void silu_mul(float *g, const float *u, size_t n)
{
	size_t i = 0;

	for (; i + 16 <= n; i += 16)
		v16_store(g + i, silu_mul16(v16_load(g + i), v16_load(u + i)));
	if (i < n)
		v16_store_n(g + i, silu_mul16(v16_load_n(g + i, n - i), v16_load_n(u + i, n - i)), n - i);
}

/* 0.5 (1 + tanh(z)) is sigmoid(2 z). */
static ALWAYS_INLINE v16 gelu_mul16(v16 g, v16 u)
{
	const v16 two_z = v16_mul(g, v16_fma(v16_mul(g, g), v16_set1(0x1.2444f2p-4f), v16_set1(0x1.988454p+0f)));
	v16 e = exp16(v16_sub(v16_set1(0), two_z));
	v16 a = v16_mul(v16_div(g, v16_add(v16_set1(1), e)), u);

	return v16_nan_where(a, a);
}

static void gelu_mul(float *g, const float *u, size_t n)
{
	size_t i = 0;

	for (; i + 16 <= n; i += 16)
		v16_store(g + i, gelu_mul16(v16_load(g + i), v16_load(u + i)));
	if (i < n)
		v16_store_n(g + i, gelu_mul16(v16_load_n(g + i, n - i), v16_load_n(u + i, n - i)), n - i);
}

static ALWAYS_INLINE v16 clamped_mul16(v16 g, v16 u, v16 limit)
{
	const v16 low = v16_min(g, limit), mid = v16_max(v16_min(u, limit), v16_sub(v16_set1(0), limit));
	v16 e = exp16(v16_mul(low, v16_set1(-1.702f)));
	v16 a = v16_mul(v16_add(mid, v16_set1(1)), v16_div(low, v16_add(v16_set1(1), e)));

	/* A NaN does not get past v16_min and v16_max in the same way everywhere. */
	return v16_nan_where(g, v16_nan_where(u, v16_nan_where(a, a)));
}

static void clamped_mul(float *g, const float *u, size_t n, float limit)
{
	const v16 most = v16_set1(limit);
	size_t i = 0;

	for (; i + 16 <= n; i += 16)
		v16_store(g + i, clamped_mul16(v16_load(g + i), v16_load(u + i), most));
	if (i < n)
		v16_store_n(g + i, clamped_mul16(v16_load_n(g + i, n - i), v16_load_n(u + i, n - i), most), n - i);
}

/* Lanes without an element hold -infinity: they never win the maximum, and their exp adds 0 to a sum that
 * is not negative. */
static ALWAYS_INLINE v16 load_or_low(const float *x, size_t n)
{
	float pad[16];

	if (n >= 16)
		return v16_load(x);
	v16_store(pad, v16_set1(-INFINITY));
	memcpy(pad, x, n * sizeof(float));
	return v16_load(pad);
}

static void softmax(float *x, size_t n)
{
	v16 m = v16_set1(-INFINITY), sum = v16_set1(0), total;

	for (size_t i = 0; i < n; i += 16)
		m = v16_max(load_or_low(x + i, n - i), m);
	m = v16_set1(v16_fold_max(m));
	for (size_t i = 0; i < n; i += 16) {
		v16 e = exp16(v16_sub(load_or_low(x + i, n - i), m));

		sum = v16_add(sum, e);
		v16_store_n(x + i, e, n - i < 16 ? n - i : 16);
	}
	total = v16_set1(v16_fold_add(sum));
	for (size_t i = 0; i < n; i += 16) {
		size_t left = n - i < 16 ? n - i : 16;
		v16 a = v16_div(v16_load_n(x + i, left), total);

		v16_store_n(x + i, v16_nan_where(a, a), left);
	}
}

static ALWAYS_INLINE const unsigned char *key_of(const struct od_attn *a, size_t p)
{
	return (const unsigned char *)a->k + a->table[p / OD_KV_PAGE] * a->k_page_bytes +
	       p % OD_KV_PAGE * a->k_row_bytes;
}

static ALWAYS_INLINE const unsigned char *value_of(const struct od_attn *a, size_t p)
{
	return (const unsigned char *)a->v + a->table[p / OD_KV_PAGE] * a->v_page_bytes +
	       p % OD_KV_PAGE * a->v_row_bytes;
}

/* Positions lie one behind the other for a page; so few at a time because what is fetched ahead is fetched in
 * portions. */
#define ATTN_RUN 8u

/* The first position after p that lies in another run, at most end. */
static ALWAYS_INLINE size_t run_end(size_t p, size_t end)
{
	size_t next = (p / ATTN_RUN + 1) * ATTN_RUN;

	return next < end ? next : end;
}

/* The other of keys and values is what is read next: the values of a block after its keys, the keys of the next block
 * after its values. The hardware does not foresee either, nor a page. */
static ALWAYS_INLINE void prefetch_run(const unsigned char *at, size_t row_bytes, size_t bytes, size_t n)
{
	for (; n > 0; n--, at += row_bytes)
		for (size_t i = 0; i < bytes; i += OD_LINE_BYTES)
			od_prefetch((uintptr_t)at + i);
}

/* Up to 4 heads side by side: a block of positions, and all blocks before it. A block's own maximum, sum and values do
 * not depend on the blocks before it: a GPU computes them side by side. */
struct attn_fold {
	/* by position in the block: a position's lane does not depend on where attention begins */
	float score[4][OD_ATTN_BLOCK];
	/* vectors of lanes that have positions; those that have none are -infinity: their exp adds 0 */
	size_t from, to;
	float keep[4], add[4]; /* factors of what is before the block, and of the block */
	float max[4], sum[4]; /* over the blocks so far */
};

/* Below every score, so that scores of -infinity alone have weights of 0 instead of NaN. */
#define ATTN_LOWEST (-FLT_MAX)

/* Keys, or vectors of a value, that meet nh heads in registers. */
#define OUTS_OF(nh) ((nh) == 4 ? V16_OUTS_OF_4 : (nh) == 2 ? V16_OUTS_OF_2 : V16_OUTS_OF_1)

/* score[h][i] = dot(q[h], k of position i of the block) * scale, for positions [begin, end). */
static ALWAYS_INLINE void attn_scores(const enum od_dtype t, const size_t nh, const struct od_attn *a, size_t begin,
				      size_t end, struct attn_fold *f)
{
	for (size_t p = begin, next; p < end; p = next) {
		next = run_end(p, end);
		if (a->v != a->k) /* as the latents of MLA do, which are both */
			prefetch_run(value_of(a, p), a->v_row_bytes, a->v_dim * od_dtype_bytes(t), next - p);
		row_tile(dots, t, OUTS_OF(nh), nh,
			 (struct od_tile){ .w = key_of(a, p),
					   .w_stride_bytes = a->k_row_bytes,
					   .x = a->q,
					   .x_stride = a->k_dim,
					   .n = a->k_dim,
					   .y = f->score[0] + p % OD_ATTN_BLOCK,
					   .y_stride = OD_ATTN_BLOCK },
			 next - p);
	}
	for (size_t h = 0; h < nh; h++) {
		float *score = f->score[h] + begin % OD_ATTN_BLOCK;

		for (size_t i = 0, n = end - begin; i < n; i += 16) {
			size_t left = n - i < 16 ? n - i : 16;

			v16_store_n(score + i, v16_mul(v16_load_n(score + i, left), v16_set1(a->scale)), left);
		}
	}
}

/* out[h] = out[h] * keep[h] + add[h] * the sum of e[h][i] * v[i], in order of position, for nv vectors of lanes from
 * element d on. */
static ALWAYS_INLINE void attn_values(const enum od_dtype t, const size_t nh, const size_t nv, const struct od_attn *a,
				      size_t begin, size_t end, const struct attn_fold *f, size_t d, size_t lanes)
{
	const size_t each = od_dtype_bytes(t);
	v16 acc[4][4], x[4];

	V16_UNROLL(4)
	for (size_t h = 0; h < nh; h++)
		V16_UNROLL(4)
	for (size_t i = 0; i < nv; i++)
		acc[h][i] = v16_set1(0);
	for (size_t p = begin, next; p < end; p = next) {
		const unsigned char *v = value_of(a, p) + d * each;

		next = run_end(p, end);
		if (d == 0 && p + OD_ATTN_BLOCK < a->end)
			prefetch_run(key_of(a, p + OD_ATTN_BLOCK), a->k_row_bytes, a->k_dim * each, next - p);
		for (const float *e = f->score[0] + p % OD_ATTN_BLOCK, *e_end = e + (next - p); e < e_end;
		     e++, v += a->v_row_bytes) {
			V16_UNROLL(4)
			for (size_t i = 0; i < nv; i++)
				x[i] = lanes == 16 ? load_any(t, v + 16 * i * each) : load_any_n(t, v, lanes);
			V16_UNROLL(4)
			for (size_t h = 0; h < nh; h++)
				V16_UNROLL(4)
			for (size_t i = 0; i < nv; i++)
				acc[h][i] = v16_fma(x[i], v16_set1(e[h * OD_ATTN_BLOCK]), acc[h][i]);
		}
	}
	V16_UNROLL(4)
	for (size_t h = 0; h < nh; h++) {
		float *out = a->out + h * a->v_dim + d;

		V16_UNROLL(4)
		for (size_t i = 0; i < nv; i++) {
			const v16 before = v16_mul(lanes == 16 ? v16_load(out + 16 * i) : v16_load_n(out, lanes),
						   v16_set1(f->keep[h]));

			v16_store_n(out + 16 * i, v16_fma(acc[h][i], v16_set1(f->add[h]), before), lanes);
		}
	}
}

/* score[h] becomes exp(score[h] - the block's largest). */
static ALWAYS_INLINE void attn_exp(struct attn_fold *f, size_t h)
{
	float *score = f->score[h], most, high;
	v16 m = v16_set1(ATTN_LOWEST), s = v16_set1(0);

	for (size_t i = f->from; i < f->to; i += 16)
		m = v16_max(v16_load(score + i), m);
	most = v16_fold_max(m);
	for (size_t i = f->from; i < f->to; i += 16) {
		v16 e = exp16(v16_sub(v16_load(score + i), v16_set1(most)));

		v16_store(score + i, e);
		s = v16_add(s, e);
	}
	high = f->max[h] > most ? f->max[h] : most;
	f->keep[h] = v16_fold_max(exp16(v16_set1(f->max[h] - high))); /* all lanes alike: takes one */
	f->add[h] = v16_fold_max(exp16(v16_set1(most - high)));
	f->max[h] = high;
	f->sum[h] = fmaf(v16_fold_add(s), f->add[h], f->sum[h] * f->keep[h]);
}

/* Positions [begin, end) of one block. */
static ALWAYS_INLINE void attn_block(const enum od_dtype t, const size_t nh, const struct od_attn *a, size_t begin,
				     size_t end, struct attn_fold *f)
{
	const size_t nv = OUTS_OF(nh);
	size_t d = 0;

	f->from = begin % OD_ATTN_BLOCK / 16 * 16;
	f->to = (end - 1) % OD_ATTN_BLOCK / 16 * 16 + 16;
	for (size_t h = 0; h < nh; h++) {
		v16_store(f->score[h] + f->from, v16_set1(-INFINITY));
		v16_store(f->score[h] + f->to - 16, v16_set1(-INFINITY));
	}
	attn_scores(t, nh, a, begin, end, f);
	for (size_t h = 0; h < nh; h++)
		attn_exp(f, h);
	for (; d + 16 * nv <= a->v_dim; d += 16 * nv)
		attn_values(t, nh, nv, a, begin, end, f, d, 16);
	for (; d + 16 <= a->v_dim; d += 16)
		attn_values(t, nh, 1, a, begin, end, f, d, 16);
	if (d < a->v_dim)
		attn_values(t, nh, 1, a, begin, end, f, d, a->v_dim - d);
}

/* The first nh heads of a. */
static ALWAYS_INLINE void attend_heads(const enum od_dtype t, const size_t nh, const struct od_attn *a)
{
	struct attn_fold f;

	memset(a->out, 0, nh * a->v_dim * sizeof(float));
	/* A sink is as if it had been folded before all positions, with a value of zero. */
	for (size_t h = 0; h < nh; h++) {
		f.max[h] = a->sinks != NULL ? a->sinks[h] : ATTN_LOWEST;
		f.sum[h] = a->sinks != NULL ? 1 : 0;
	}
	for (size_t p = a->begin, end; p < a->end; p = end) {
		end = (p / OD_ATTN_BLOCK + 1) * OD_ATTN_BLOCK;
		end = end < a->end ? end : a->end;
		attn_block(t, nh, a, p, end, &f);
	}
	for (size_t h = 0; h < nh; h++) {
		float *out = a->out + h * a->v_dim;

		for (size_t d = 0; d < a->v_dim; d += 16) {
			size_t left = a->v_dim - d < 16 ? a->v_dim - d : 16;
			v16 y = v16_div(v16_load_n(out + d, left), v16_set1(f.sum[h]));

			v16_store_n(out + d, v16_nan_where(y, y), left);
		}
	}
}

/* Heads by fours, twos and ones: what they read of the keys and values, they read once. */
static ALWAYS_INLINE void attend_of(const enum od_dtype t, struct od_attn a)
{
	for (size_t left = a.n_heads, n; left > 0; left -= n) {
		n = left >= 4 ? 4 : left >= 2 ? 2 : 1;
		if (n == 4)
			attend_heads(t, 4, &a);
		else if (n == 2)
			attend_heads(t, 2, &a);
		else
			attend_heads(t, 1, &a);
		a.q += n * a.k_dim;
		a.out += n * a.v_dim;
		a.sinks = a.sinks != NULL ? a.sinks + n : NULL;
	}
}

static void attend(const struct od_attn *a)
{
	if (a->kv_dtype == OD_BF16)
		attend_of(OD_BF16, *a);
	else
		attend_of(OD_F32, *a);
}

/* nv vectors of lanes of the values, from element i on; what of S they need stays in the first cache for the second
 * pass. */
static ALWAYS_INLINE void delta_lanes(const struct od_delta *d, const size_t nv, size_t i, size_t lanes)
{
	const v16 decay = v16_set1(d->decay), beta = v16_set1(d->beta);
	const size_t n = d->v_dim;
	v16 sum[4], step[4];

	V16_UNROLL(4)
	for (size_t j = 0; j < nv; j++)
		sum[j] = v16_set1(0);
	for (size_t k = 0; k < d->k_dim; k++) {
		const float *s = d->from + k * n + i;

		V16_UNROLL(4)
		for (size_t j = 0; j < nv; j++)
			sum[j] = v16_fma(v16_mul(lanes == 16 ? v16_load(s + 16 * j) : v16_load_n(s, lanes), decay),
					 v16_set1(d->k[k]), sum[j]);
	}
	V16_UNROLL(4)
	for (size_t j = 0; j < nv; j++) {
		const v16 v = lanes == 16 ? v16_load(d->v + i + 16 * j) : v16_load_n(d->v + i, lanes);

		step[j] = v16_mul(v16_sub(v, sum[j]), beta);
		sum[j] = v16_set1(0);
	}
	for (size_t k = 0; k < d->k_dim; k++) {
		const float *s = d->from + k * n + i;
		float *to = d->to + k * n + i;

		V16_UNROLL(4)
		for (size_t j = 0; j < nv; j++) {
			const v16 old = v16_mul(lanes == 16 ? v16_load(s + 16 * j) : v16_load_n(s, lanes), decay);
			const v16 now = v16_fma(v16_set1(d->k[k]), step[j], old);

			if (lanes == 16)
				v16_store(to + 16 * j, now);
			else
				v16_store_n(to, now, lanes);
			sum[j] = v16_fma(now, v16_set1(d->q[k]), sum[j]);
		}
	}
	V16_UNROLL(4)
	for (size_t j = 0; j < nv; j++)
		v16_store_n(d->out + i + 16 * j, v16_nan_where(sum[j], sum[j]), lanes);
}

static void delta(const struct od_delta *d)
{
	size_t i = 0;

	for (; i + 64 <= d->v_dim; i += 64)
		delta_lanes(d, 4, i, 16);
	for (; i + 16 <= d->v_dim; i += 16)
		delta_lanes(d, 1, i, 16);
	if (i < d->v_dim)
		delta_lanes(d, 1, i, d->v_dim - i);
}

static void exp_all(float *x, size_t n)
{
	size_t i = 0;

	for (; i + 16 <= n; i += 16)
		v16_store(x + i, exp16(v16_load(x + i)));
	if (i < n)
		v16_store_n(x + i, exp16(v16_load_n(x + i, n - i)), n - i);
}

static void axpy(float *y, float a, const float *x, size_t n)
{
	for (size_t i = 0; i < n; i += 16) {
		size_t left = n - i < 16 ? n - i : 16;
		v16 r = v16_fma(v16_set1(a), v16_load_n(x + i, left), v16_load_n(y + i, left));

		v16_store_n(y + i, v16_nan_where(r, r), left);
	}
}

static void round_bf16(float *x, size_t n)
{
	size_t i = 0;

	for (; i + 16 <= n; i += 16)
		v16_store(x + i, v16_round_bf16(v16_load(x + i)));
	if (i < n)
		v16_store_n(x + i, v16_round_bf16(v16_load_n(x + i, n - i)), n - i);
}

static void f32_to_bf16(uint16_t *y, const float *x, size_t n)
{
	size_t i = 0;

	for (; i + 16 <= n; i += 16)
		v16_store_bf16(y + i, v16_load(x + i));
	if (i < n)
		v16_store_bf16_n(y + i, v16_load_n(x + i, n - i), n - i);
}

static void bf16_to_f32(float *y, const uint16_t *x, size_t n)
{
	size_t i = 0;

	for (; i + 16 <= n; i += 16)
		v16_store(y + i, v16_load_bf16(x + i));
	if (i < n)
		v16_store_n(y + i, v16_load_bf16_n(x + i, n - i), n - i);
}

static void lane_kernels(struct od_backend *t)
{
	t->matmul = matmul;
	t->matmul_bf16 = matmul_bf16;
	t->add_bf16 = add_bf16;
	t->round_int8 = round_int8;
	t->dot = dot;
	t->rmsnorm = rmsnorm;
	t->layernorm = layernorm;
	t->silu_mul = silu_mul;
	t->gelu_mul = gelu_mul;
	t->clamped_mul = clamped_mul;
	t->soft_cap = soft_cap;
	t->softmax = softmax;
	t->attend = attend;
	t->delta = delta;
	t->exp = exp_all;
	t->axpy = axpy;
	t->round_bf16 = round_bf16;
	t->f32_to_bf16 = f32_to_bf16;
	t->bf16_to_f32 = bf16_to_f32;
}

#endif
