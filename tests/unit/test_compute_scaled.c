/* Weights published with scales: every value from its definition, as rows, and in products of every table. */
#include "common/compute/quant.h"
#include "tests/unit/compute_util.h"

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

struct data {
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

		switch (t) {
		case OD_F32: bits = u; break;
		case OD_BF16: bits = u >> 16; break;
		case OD_F16: bits = kind == TINY ? any & 0x87ffu : 0x1c00u + any % 0x2000u; break;
		case OD_F8_E4M3: bits = kind == TINY ? any & 0x83u : any % 0x38u; break;
		case OD_F8_E8M0: bits = kind == TINY ? any % 9u : 119u + any % 9u; break;
		case OD_INT8:
		case OD_NF4:
		case OD_F8_E5M2:
		case OD_U4B8:
		case OD_U8B128:
		case OD_F4_E2M1: fail();
		}
		if (kind == WILD && random_below(seed, 9) == 0)
			bits = any;
		memcpy(s + i * od_dtype_bytes(t), &bits, od_dtype_bytes(t));
	}
	return s;
}

static void data_new(struct data *d, uint64_t *seed, enum od_dtype t, enum od_dtype scales, size_t group, size_t n_out,
		     size_t n_in, enum kind kind)
{
	size_t n_groups = group > n_in ? 1 : (n_in + group - 1) / group;

	d->codes = random_weights(seed, OD_INT8, n_out * (t == OD_U4B8 || t == OD_F4_E2M1 ? (n_in + 1) / 2 : n_in), kind);
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

static void data_free(struct data *d)
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
	assert_true(od_u8b128_f32(0) == -128 && od_u8b128_f32(128) == 0 && od_u8b128_f32(255) == 127);
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
		struct data d;

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
			want[i] = od_dtype_bytes(plain[t]) == 1 ? plain_weight(&w, 0, i)
								: (float)scale_value(plain[t], weights, i);
		check_rows(&w, want);
		free(weights);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_ALL_TABLES(every_code),
		cmocka_unit_test(known_values),
		cmocka_unit_test(rows_with_scales),
		cmocka_unit_test(rows_without_scales),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
