/* Weights published with scales: every value from its definition, as rows, and in products of every table. */
#include "common/compute/cpu/matmul.h"
#include "common/compute/quant.h"
#include "tests/unit/compute_util.h"

BARE_TABLES;

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const enum od_dtype code_types[] = { OD_INT8, OD_U8B128, OD_U4B8, OD_F4_E2M1, OD_F8_E4M3, OD_F8_E5M2 };
static const enum od_dtype scale_types[] = { OD_F32, OD_BF16, OD_F16, OD_F8_E4M3, OD_F8_E8M0 };
static const size_t groups_of[] = { 16, 32, 48, 128, SIZE_MAX }; /* the last one: a whole row */

/* --- the definitions once more, in double --- */

/* A small float of so many bits of exponent and mantissa; the caller knows the codes without number. */
static double small_float(unsigned bits, unsigned exp_bits, unsigned mant_bits)
{
	int bias = (1 << (exp_bits - 1)) - 1, e = (int)(bits >> mant_bits & ((1u << exp_bits) - 1));
	double m = bits & ((1u << mant_bits) - 1), one = 1u << mant_bits;
	double v = e == 0 ? ldexp(m / one, 1 - bias) : ldexp(1 + m / one, e - bias);

	return bits >> (exp_bits + mant_bits) & 1u ? -v : v;
}

static double e4m3(unsigned b)
{
	return (b & 127u) == 127u ? (double)NAN : small_float(b, 4, 3);
}

static double float_of_5_bits(unsigned bits, unsigned mant_bits) /* F16, and E5M2 */
{
	unsigned mant = bits & ((1u << mant_bits) - 1);

	if ((bits >> mant_bits & 31u) != 31u)
		return small_float(bits, 5, mant_bits);
	return mant != 0 ? (double)NAN : bits >> (5 + mant_bits) != 0 ? -HUGE_VAL : HUGE_VAL;
}

static double code_value(enum od_dtype t, const uint8_t *row, size_t k)
{
	unsigned half = k % 2 == 0 ? row[k / 2] % 16u : row[k / 2] / 16u;

	if (t == OD_U4B8)
		return (double)half - 8;
	if (t == OD_F4_E2M1)
		return small_float(half, 2, 1);
	if (t == OD_U8B128)
		return (double)row[k] - 128;
	if (t == OD_INT8)
		return row[k] < 128 ? row[k] : (double)row[k] - 256;
	return t == OD_F8_E4M3 ? e4m3(row[k]) : float_of_5_bits(row[k], 2);
}

static double scale_value(enum od_dtype t, const void *at, size_t i)
{
	const uint8_t *b = at;
	uint32_t bits = 0;
	float f;

	if (t == OD_F8_E4M3)
		return e4m3(b[i]);
	if (t == OD_F8_E8M0)
		return b[i] == 255 ? (double)NAN : ldexp(1, b[i] - 127);
	if (t == OD_F16)
		return float_of_5_bits(((const uint16_t *)at)[i], 10);
	if (t == OD_BF16)
		memcpy((char *)&bits + 2, b + 2 * i, 2); /* the upper half: little-endian */
	else
		memcpy(&bits, b + 4 * i, 4);
	memcpy(&f, &bits, 4);
	return (double)f;
}

/* Each step rounded once: a double holds a product of two f32 and more than enough of a quotient. */
static float plain_weight(const struct od_mat *w, size_t o, size_t k)
{
	size_t bytes = w->dtype == OD_U4B8 || w->dtype == OD_F4_E2M1 ? (w->n_in + 1) / 2 : w->n_in;
	size_t group = w->scales.group < w->n_in ? w->scales.group : w->n_in;
	double code = code_value(w->dtype, (const uint8_t *)w->data + o * bytes, k);
	float s;

	if (w->scales.at == NULL)
		return (float)code;
	s = (float)scale_value(w->scales.dtype, w->scales.at, o * ((w->n_in + group - 1) / group) + k / group);
	if (w->scales.divisor != NULL)
		s = (float)((double)s / (double)*w->scales.divisor);
	return (float)(code * (double)s);
}

/* --- matrices --- */

struct compute_scaled_data {
	struct od_mat w;
	void *codes, *scales;
	float divisor, *f32; /* f32: the weights from their definition */
};

/* Scales of type t. PLAIN: positive, between 2^-8 and 1; WILD ones are any bits now and then. */
static void *random_scales(uint64_t *seed, enum od_dtype t, size_t n, enum kind kind)
{
	unsigned char *s = exact(n, od_dtype_bytes(t));

	for (size_t i = 0; i < n; i++) {
		uint64_t any = random_u64(seed), bits = 0;
		float f = random_f32(seed, kind == TINY ? TINY : PLAIN);
		uint32_t u = od_f32_bits(kind == TINY ? f : fabsf(f) + 0x1p-8f);

		if (t == OD_F32)
			bits = u;
		else if (t == OD_BF16)
			bits = u >> 16;
		else if (t == OD_F16)
			bits = kind == TINY ? any & 0x87ffu : 0x1c00u + any % 0x2000u;
		else if (t == OD_F8_E4M3)
			bits = kind == TINY ? any & 0x83u : any % 0x38u;
		else if (t == OD_F8_E8M0)
			bits = kind == TINY ? any % 9u : 119u + any % 9u;
		else
			fail();
		if (kind == WILD && random_below(seed, 9) == 0)
			bits = any;
		memcpy(s + i * od_dtype_bytes(t), &bits, od_dtype_bytes(t));
	}
	return s;
}

static void data_new(struct compute_scaled_data *d, uint64_t *seed, enum od_dtype t, enum od_dtype scales, size_t group,
		     size_t n_out, size_t n_in, enum kind kind)
{
	size_t n_groups = group > n_in ? 1 : (n_in + group - 1) / group;

	d->codes =
		random_weights(seed, OD_INT8, n_out * (t == OD_U4B8 || t == OD_F4_E2M1 ? (n_in + 1) / 2 : n_in), kind);
	if (kind != WILD && (t == OD_F8_E4M3 || t == OD_F8_E5M2)) /* below 2: numbers, and sums stay small */
		for (size_t i = 0; i < n_out * n_in; i++)
			((uint8_t *)d->codes)[i] &= 0xbfu;
	d->scales = random_scales(seed, scales, n_out * n_groups, kind);
	d->divisor = 0x1.94p+6f + random_unit(seed);
	d->w = (struct od_mat){ .dtype = t, .n_out = n_out, .n_in = n_in, .data = d->codes };
	d->w.scales = (struct od_scales){ scales, group, d->scales, scales == OD_F8_E4M3 ? &d->divisor : NULL };
	d->f32 = exact(n_out * n_in, sizeof(float));
	for (size_t i = 0; i < n_out * n_in; i++)
		d->f32[i] = plain_weight(&d->w, i / n_in, i % n_in);
}

static void data_free(struct compute_scaled_data *d)
{
	free(d->codes), free(d->scales), free(d->f32);
}

static const char *name_of(const struct od_mat *w)
{
	static char name[96];

	snprintf(name, sizeof(name), "%s * %s[%zu], %zu x %zu", od_dtype_name(w->dtype), od_dtype_name(w->scales.dtype),
		 w->scales.group, w->n_out, w->n_in);
	return name;
}

/* --- tests --- */

/* Every code under a scale of 1, with its sign of zero, and every scale of a byte or two. */
static void every_code(void **state)
{
	uint8_t b[256];
	uint16_t h[0x10000];
	float one = 1, out[512];

	(void)state;
	for (size_t i = 0; i < 256; i++)
		b[i] = (uint8_t)i;
	for (size_t t = 0; t < COUNT(code_types); t++) {
		bool halves = code_types[t] == OD_U4B8 || code_types[t] == OD_F4_E2M1;
		struct od_mat w = { .dtype = code_types[t], .n_out = 1, .n_in = halves ? 512 : 256, .data = b };

		w.scales = (struct od_scales){ OD_F32, SIZE_MAX, &one, NULL };
		od_dequant_row(&w, 0, out);
		for (size_t k = 0; k < w.n_in; k++) {
			float want = one_nan((float)code_value(w.dtype, b, k));

			out[k] = one_nan(out[k]);
			assert_bits(name_of(&w), out + k, &want, 1);
		}
	}
	for (size_t i = 0; i < 0x10000; i++)
		h[i] = (uint16_t)i;
	for (size_t t = 1; t < COUNT(scale_types); t++) {
		const void *at = od_dtype_bytes(scale_types[t]) == 1 ? (const void *)b : h;

		for (size_t i = 0; i < (at == b ? 256 : 0x10000); i++) {
			float want = one_nan((float)scale_value(scale_types[t], at, i));
			float got = one_nan(od_scale_f32(scale_types[t], at, i));

			assert_bits(od_dtype_name(scale_types[t]), &got, &want, 1);
		}
	}
	assert_true(isnan(od_scale_f32(OD_F8_E5M2, b, 1)));
}

/* The values that the definition prints, not computed here. */
static void known_values(void **state)
{
	static const float e2m1[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };

	(void)state;
	for (int i = 0; i < 8; i++) {
		assert_true(od_e2m1_values[i] == e2m1[i] && od_e2m1_values[i + 8] == -e2m1[i]);
		assert_true(od_u4b8_values[i] == (float)(i - 8) && od_u4b8_values[i + 8] == (float)i);
	}
	assert_true(signbit(od_e2m1_values[8]) && !signbit(od_e2m1_values[0]));
	assert_int_equal(od_f32_bits(od_e8m0_f32(127)), 0x3f800000u);
	assert_int_equal(od_f32_bits(od_e8m0_f32(0)), 0x00400000u);
	assert_int_equal(od_f32_bits(od_e8m0_f32(254)), 0x7f000000u);
	assert_true(isnan(od_e8m0_f32(255)));
}

static void check_rows(const struct od_mat *w, const float *want)
{
	float *got = exact(w->n_in, sizeof(float)), *row = exact(w->n_in, sizeof(float));

	for (size_t o = 0; o < w->n_out; o++) {
		od_dequant_row(w, o, got);
		for (size_t k = 0; k < w->n_in; k++) {
			got[k] = one_nan(got[k]);
			row[k] = one_nan(want[o * w->n_in + k]);
		}
		assert_bits(name_of(w), got, row, w->n_in);
	}
	free(got), free(row);
}

static void rows_with_scales(void **state)
{
	uint64_t seed = 31;

	(void)state;
	for (size_t i = 0; i < COUNT(code_types) * COUNT(scale_types) * COUNT(groups_of) * N_KINDS; i++) {
		enum od_dtype t = code_types[i / N_KINDS % COUNT(code_types)];
		size_t rest = i / N_KINDS / COUNT(code_types);
		struct compute_scaled_data d;

		data_new(&d, &seed, t, scale_types[rest % COUNT(scale_types)], groups_of[rest / COUNT(scale_types)],
			 1 + random_below(&seed, 5), 1 + random_below(&seed, 300), (enum kind)(i % N_KINDS));
		check_rows(&d.w, d.f32);
		data_free(&d);
	}
}

static void rows_without_scales(void **state)
{
	static const enum od_dtype plain[] = { OD_BF16, OD_F16, OD_F32, OD_F8_E4M3, OD_F8_E5M2 };
	enum { N_OUT = 3, N_IN = 37 };
	uint64_t seed = 32;

	(void)state;
	for (size_t t = 0; t < COUNT(plain); t++) {
		void *weights = random_weights(&seed, plain[t], N_OUT * N_IN, WILD);
		struct od_mat w = { .dtype = plain[t], .n_out = N_OUT, .n_in = N_IN, .data = weights };
		float want[N_OUT * N_IN];

		for (size_t i = 0; i < N_OUT * N_IN; i++)
			want[i] = od_dtype_bytes(plain[t]) == 1 ? plain_weight(&w, 0, i) :
								  (float)scale_value(plain[t], weights, i);
		check_rows(&w, want);
		free(weights);
	}
}

/* --- products: the bits of the same weights as F32 --- */

#define UNTOUCHED 0x1.6dp+11f

static void check_product(const struct od_backend *be, uint64_t *seed, const struct compute_scaled_data *d,
			  size_t n_rows, enum kind kind)
{
	struct od_mat plain = { .dtype = OD_F32, .n_out = d->w.n_out, .n_in = d->w.n_in, .data = d->f32 };
	size_t n_out = d->w.n_out, n_in = d->w.n_in, x_stride = n_in + random_below(seed, 3);
	size_t y_stride = n_out + random_below(seed, 3), y_len = (n_rows - 1) * y_stride + n_out;
	size_t begin = random_below(seed, 4) == 0 ? random_below(seed, n_out) : 0;
	float *x = random_row(seed, (n_rows - 1) * x_stride + n_in, kind);
	float *y = exact(y_len, sizeof(float)), *want = exact(y_len, sizeof(float));

	for (size_t i = 0; i < y_len; i++)
		y[i] = want[i] = UNTOUCHED;
	od_matmul_range(be, &plain, x, x_stride, want, y_stride, n_rows, begin, n_out);
	od_matmul_range(be, &d->w, x, x_stride, y, y_stride, n_rows, begin, n_out);
	assert_bits(name_of(&d->w), y, want, y_len);
	free(x), free(y), free(want);
}

static void check_shape(const struct od_backend *be, uint64_t *seed, size_t i, size_t n_out, size_t n_in, size_t n_rows)
{
	enum od_dtype t = code_types[i % COUNT(code_types)];
	enum od_dtype scales = scale_types[i / COUNT(code_types) % COUNT(scale_types)];
	enum kind kind = (enum kind)random_below(seed, N_KINDS);
	struct compute_scaled_data d;

	data_new(&d, seed, t, scales, groups_of[i / COUNT(code_types) / COUNT(scale_types)], n_out, n_in, kind);
	check_product(be, seed, &d, n_rows, kind);
	data_free(&d);
}

#define N_FORMATS (COUNT(code_types) * COUNT(scale_types) * COUNT(groups_of))

static void any_shape(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 33;

	for (size_t i = 0; i < N_FORMATS; i++)
		for (size_t n_rows = 1; n_rows <= 9; n_rows++)
			for (int more = 0; more < 3; more++)
				check_shape(be, &seed, i, 1 + random_below(&seed, 11),
					    1 + random_below(&seed, more == 0 ? 40 : 500), n_rows);
}

/* More inputs than are walked over, and than have their scales decoded, at a time; the last ones end in the middle of
 * a group, of 16 and of a byte, or do not. */
static void long_rows(void **state)
{
	static const size_t lengths[] = { 1024, 1025, 2048, 2063, 3000, 4097 };
	const struct od_backend *be = table_of(state);
	uint64_t seed = 34;

	for (size_t i = 0; i < N_FORMATS; i++)
		for (size_t n_rows = 1; n_rows <= 4; n_rows += 1 + n_rows % 2)
			check_shape(be, &seed, i, 5, lengths[random_below(&seed, COUNT(lengths))], n_rows);
}

/* More outputs than stay in a cache while the rows pass. */
static void many_outputs(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 35;

	for (size_t i = 0; i < N_FORMATS; i += 7)
		check_shape(be, &seed, i, 133, 1100, 3 + 2 * (i % 2));
}

/* Every weight alone, against its definition and not the F32 kernel. */
static void every_weight(void **state)
{
	enum { N_OUT = 3, N_IN = 150 };
	const struct od_backend *be = table_of(state);
	uint64_t seed = 36;

	for (size_t i = 0; i < N_FORMATS; i++) {
		float *x = exact(N_IN * N_IN, sizeof(float)), y[N_OUT * N_IN], want[N_OUT * N_IN];
		struct compute_scaled_data d;

		data_new(&d, &seed, code_types[i % COUNT(code_types)],
			 scale_types[i / COUNT(code_types) % COUNT(scale_types)],
			 groups_of[i / COUNT(code_types) / COUNT(scale_types)], N_OUT, N_IN, i % 2 ? PLAIN : TINY);
		for (size_t k = 0; k < N_IN * N_IN; k++)
			x[k] = k / N_IN == k % N_IN;
		od_matmul_range(be, &d.w, x, N_IN, y, N_OUT, N_IN, 0, N_OUT);
		for (size_t k = 0; k < N_IN; k++)
			for (size_t o = 0; o < N_OUT; o++)
				want[N_OUT * k + o] = d.f32[o * N_IN + k] + 0.0f; /* the sum began with +0 */
		assert_bits(name_of(&d.w), y, want, N_OUT * N_IN);
		data_free(&d);
		free(x);
	}
}

/* Every scale of a byte. All weights of an output are its scale and no x is 0, so that sums are exact and an infinity
 * in NaN's place would show. */
static void every_scale(void **state)
{
	static const enum od_dtype types[] = { OD_F8_E4M3, OD_F8_E8M0 };
	enum { GROUPS = 17, N_IN = 16 * GROUPS }; /* 16 are decoded at once, and one is left */
	const struct od_backend *be = table_of(state);
	uint8_t *ones = exact(256, N_IN), *scales = exact(256, GROUPS);
	float x[N_IN], y[256], want[256];
	struct od_mat w = { .dtype = OD_INT8, .n_out = 256, .n_in = N_IN, .data = ones };

	memset(ones, 1, 256 * N_IN);
	for (size_t i = 0; i < 256 * GROUPS; i++)
		scales[i] = (uint8_t)(i / GROUPS);
	for (size_t i = 0; i < N_IN; i++)
		x[i] = 0x1p-9f; /* 2^127 times all of them is finite */
	for (size_t t = 0; t < COUNT(types); t++) {
		w.scales = (struct od_scales){ types[t], 16, scales, NULL };
		for (size_t i = 0; i < 256; i++) /* the sum began with +0 */
			want[i] = one_nan((float)(scale_value(types[t], scales, i * GROUPS) * N_IN * 0x1p-9) + 0.0f);
		od_matmul_range(be, &w, x, N_IN, y, 256, 1, 0, 256);
		assert_bits(od_dtype_name(types[t]), y, want, 256);
	}
	free(ones), free(scales);
}

/* -0 of E2M1 is a weight of its own: where sums are -0, +0 would show. */
static void negative_zero(void **state)
{
	const struct od_backend *be = table_of(state);
	uint8_t codes[16];
	float x[32], y, scale[2] = { 1, 0x1p-100f };
	struct od_mat w = { .dtype = OD_F4_E2M1, .n_out = 1, .n_in = 32, .data = codes };

	w.scales = (struct od_scales){ OD_F32, 16, scale + 1, NULL };
	scale[0] = scale[1];
	w.scales.at = scale;
	for (int plus = 0; plus < 2; plus++) {
		memset(codes, 0x22, 8); /* 1, which with x underflows to -0 */
		memset(codes + 8, plus ? 0x00 : 0x88, 8);
		for (size_t k = 0; k < 32; k++)
			x[k] = k < 16 ? -0x1p-100f : 1;
		od_matmul_range(be, &w, x, 32, &y, 1, 1, 0, 1);
		assert_int_equal(od_f32_bits(y), plus ? 0 : 0x80000000u);
	}
}

/* od_matmul with rows that would be rounded for a shadow's weights: not for published ones. And over threads. */
static void published_rows_stay(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 37;

	for (size_t i = 0; i < N_FORMATS; i += 5) {
		float *x = random_row(&seed, 3 * 900, PLAIN), y[3 * 77], want[3 * 77];
		struct od_pool *pool;
		struct compute_scaled_data d;

		data_new(&d, &seed, code_types[i % COUNT(code_types)],
			 scale_types[i / COUNT(code_types) % COUNT(scale_types)],
			 groups_of[i / COUNT(code_types) / COUNT(scale_types)], 77, 900, PLAIN);
		od_matmul_range(be, &(struct od_mat){ .dtype = OD_F32, .n_out = 77, .n_in = 900, .data = d.f32 }, x,
				900, want, 77, 3, 0, 77);
		d.w.act = OD_ACT_INT8;
		assert_int_equal(od_pool_new(&pool, 1 + i % 3, "test", NULL), OD_OK);
		od_matmul(be, pool, &d.w, x, y, 3);
		assert_bits(name_of(&d.w), y, want, 3 * 77);
		od_pool_free(pool);
		data_free(&d);
		free(x);
	}
}

static void *fence(struct fenced *f, void *data, size_t bytes)
{
	*f = fenced_new(bytes);
	memcpy(f->p, data, bytes);
	return f->p;
}

/* No byte behind codes, scales or rows is read. */
static void stays_inside(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 38;

	for (size_t i = 0; i < N_FORMATS; i++) {
		size_t n_in = 1 + random_below(&seed, 150), n_rows = 1 + i % 5,
		       group = groups_of[i / COUNT(code_types) / COUNT(scale_types)];
		enum od_dtype scales = scale_types[i / COUNT(code_types) % COUNT(scale_types)];
		size_t n_groups = group > n_in ? 1 : (n_in + group - 1) / group;
		float *x = random_row(&seed, n_rows * n_in, PLAIN), y[5 * 5], want[5 * 5];
		struct fenced at[3];
		struct compute_scaled_data d;
		struct od_mat w;

		data_new(&d, &seed, code_types[i % COUNT(code_types)], scales, group, 5, n_in, PLAIN);
		w = d.w;
		w.data = fence(&at[0], d.codes, 5 * od_row_bytes(w.dtype, n_in));
		w.scales.at = fence(&at[1], d.scales, 5 * n_groups * od_dtype_bytes(scales));
		fence(&at[2], x, n_rows * n_in * sizeof(float));
		od_matmul_range(be, &w, (float *)(void *)at[2].p, n_in, y, 5, n_rows, 0, 5);
		od_matmul_range(be, &d.w, x, n_in, want, 5, n_rows, 0, 5);
		assert_bits(name_of(&w), y, want, n_rows * 5);
		for (size_t k = 0; k < 3; k++)
			munmap(at[k].map, at[k].map_len);
		data_free(&d);
		free(x);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_code),	    cmocka_unit_test(known_values),
		cmocka_unit_test(rows_with_scales), cmocka_unit_test(rows_without_scales),
		ON_ALL_TABLES(any_shape),	    ON_ALL_TABLES(long_rows),
		ON_ALL_TABLES(many_outputs),	    ON_ALL_TABLES(every_weight),
		ON_ALL_TABLES(every_scale),	    ON_ALL_TABLES(negative_zero),
		ON_ALL_TABLES(published_rows_stay), ON_ALL_TABLES(stays_inside),
		ON_BARE_TABLES(any_shape),	    ON_BARE_TABLES(many_outputs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
