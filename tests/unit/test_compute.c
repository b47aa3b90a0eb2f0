/* dtype conversions, the values of NF4, od_sincos, od_exp, the choice of a table, and od_matmul over threads. */
#include "common/compute/cpu/cpu_scalar.h"
#include "common/compute/cpu/matmul.h"
#include "common/compute/quant.h"
#include "common/compute/sincos.h"
#include "tests/unit/compute_util.h"
#include "tests/unit/trig_table.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void dtype_names(void **state)
{
	static const enum od_dtype all[] = { OD_BF16,	 OD_F16,  OD_F32,    OD_INT8,	 OD_F8_E4M3,
					     OD_F8_E5M2, OD_U4B8, OD_U8B128, OD_F4_E2M1, OD_F8_E8M0 };

	(void)state;
	for (size_t i = 0; i < COUNT(all); i++)
		assert_int_equal(od_dtype_parse(od_dtype_name(all[i])), all[i]);
	assert_string_equal(od_dtype_name(OD_BF16), "BF16");
	assert_string_equal(od_dtype_name(OD_INT8), "I8");
	assert_string_equal(od_dtype_name(OD_F8_E4M3), "F8_E4M3");
	assert_string_equal(od_dtype_name(OD_F8_E5M2), "F8_E5M2");
	assert_string_equal(od_dtype_name(OD_U4B8), "U4B8");
	assert_string_equal(od_dtype_name(OD_U8B128), "U8B128");
	assert_string_equal(od_dtype_name(OD_F4_E2M1), "F4_E2M1");
	assert_string_equal(od_dtype_name(OD_F8_E8M0), "F8_E8M0");
	assert_true(OD_F8_E4M3 == 6 && OD_F8_E5M2 == 7); /* in packs */
	assert_true(OD_U4B8 == 8 && OD_U8B128 == 9 && OD_F4_E2M1 == 10 && OD_F8_E8M0 == 11);
	/* GGUF's are 64 more than there. */
	assert_true(OD_Q4_0 == 66 && OD_Q8_0 == 72 && OD_Q4_K == 76 && OD_IQ1_M == 93 && OD_MXFP4 == 103 &&
		    OD_NVFP4 == 104);
	assert_int_equal(OD_DTYPE_LAST, 104);
	assert_string_equal(od_dtype_name((enum od_dtype)12), "unknown");
	assert_int_equal(od_dtype_parse("unknown"), 0);
	assert_int_equal(od_dtype_parse("F64"), 0);
	assert_int_equal(od_dtype_bytes((enum od_dtype)0), 0);
	assert_string_equal(od_dtype_name(OD_NF4), "unknown"); /* no checkpoint has it */
	assert_int_equal(od_dtype_bytes(OD_NF4), 0);
	assert_true(od_dtype_bytes(OD_U4B8) == 0 && od_dtype_bytes(OD_F4_E2M1) == 0); /* two in a byte */
	assert_true(od_dtype_bytes(OD_U8B128) == 1 && od_dtype_bytes(OD_F8_E8M0) == 1);
	for (size_t n = 0; n < 9; n++) {
		assert_int_equal(od_row_bytes(OD_U4B8, n), (n + 1) / 2);
		assert_int_equal(od_row_bytes(OD_F4_E2M1, n), (n + 1) / 2);
		assert_int_equal(od_row_bytes(OD_U8B128, n), n);
	}
}

/* The value of a half float from its definition, in double. */
static double f16_value(uint16_t h)
{
	int e = h >> 10 & 31, m = h & 1023;
	double v = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);

	return h & 0x8000 ? -v : v;
}

static void f16_every_value(void **state)
{
	(void)state;
	for (uint32_t h = 0; h < 0x10000; h++) {
		float f = od_f16_f32((uint16_t)h);

		if ((h >> 10 & 31) < 31) {
			assert_true((double)f == f16_value((uint16_t)h));
			assert_int_equal(signbit(f) != 0, h >> 15);
		} else {
			assert_true((h & 1023) != 0 ? isnan(f) : isinf(f) && (f < 0) == (h >> 15 != 0));
		}
	}
}

static void bf16_rounding(void **state)
{
	static const struct {
		uint32_t f32;
		uint16_t bf16;
	} known[] = {
		{ 0x3f800000, 0x3f80 }, { 0x3f808000, 0x3f80 }, { 0x3f818000, 0x3f82 }, { 0x3f808001, 0x3f81 },
		{ 0x7f7fffff, 0x7f80 }, { 0x7f800000, 0x7f80 }, { 0xff800000, 0xff80 }, { 0x80000000, 0x8000 },
		{ 0x00008000, 0x0000 }, { 0x00008001, 0x0001 }, { 0x7f800001, 0x7fc0 }, { 0xffffffff, 0xffff },
	};
	uint64_t seed = 1;

	(void)state;
	for (size_t i = 0; i < COUNT(known); i++)
		assert_int_equal(od_f32_bf16(od_bits_f32(known[i].f32)), known[i].bf16);
	for (int i = 0; i < 20000; i++) { /* nothing nearer: neither neighbour is closer to the number */
		float f = od_bits_f32((uint32_t)random_u64(&seed) & 0xbfffffffu);
		uint16_t h = od_f32_bf16(f);
		double off = fabs((double)od_bf16_f32(h) - (double)f);

		assert_true(off <= fabs((double)od_bf16_f32((uint16_t)(h + 1)) - (double)f));
		assert_true((h & 0x7fff) == 0 || off <= fabs((double)od_bf16_f32((uint16_t)(h - 1)) - (double)f));
	}
}

/* The quantile p of the normal distribution, by bisection. */
static double normal_quantile(double p)
{
	double low = -10, high = 10;

	for (int i = 0; i < 200; i++) {
		double mid = (low + high) / 2;

		if (0.5 * erfc(-mid / sqrt(2.0)) < p)
			low = mid;
		else
			high = mid;
	}
	return low;
}

/* QLoRA, appendix E: quantiles at equal steps of probability, eight above the median and seven below, beginning so that
 * the outermost ones are in the middle of their bins; scaled to 1. */
static void nf4_values(void **state)
{
	double most = 0.5 * ((1 - 1.0 / 32) + (1 - 1.0 / 30)), top = normal_quantile(most);

	(void)state;
	assert_true(od_nf4_values[OD_NF4_ZERO] == 0);
	for (unsigned i = 0; i < 8; i++) {
		double p = most + (0.5 - most) * i / 8, n = most + (0.5 - most) * i / 7;

		assert_true(fabs((double)od_nf4_values[15 - i] - normal_quantile(p) / top) < 3e-7);
		if (i < 7)
			assert_true(fabs((double)od_nf4_values[i] + normal_quantile(n) / top) < 3e-7);
	}
	for (unsigned i = 0; i < 16; i++)
		assert_true((double)od_nf4_int8[i] == nearbyint(127 * (double)od_nf4_values[i]));
}

static void sincos_against_table(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(trig_table); i++) {
		double s, c;

		od_sincos(trig_table[i].x, &s, &c);
		if (!(fabs(s - trig_table[i].sin_x) < 2.5e-16) || !(fabs(c - trig_table[i].cos_x) < 2.5e-16))
			fail_msg("x = %a: sin expected %a, found %a; cos expected %a, found %a", trig_table[i].x,
				 trig_table[i].sin_x, s, trig_table[i].cos_x, c);
	}
}

/* Distance in units of the last place that an f32 has at want. */
static double ulps(float got, double want)
{
	int e;

	frexp(want, &e);
	return fabs((double)got - want) / ldexp(1.0, e - 24 < -149 ? -149 : e - 24);
}

static void exp_against_table(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(exp_table); i++)
		if (!(ulps(od_exp(exp_table[i].x), exp_table[i].exp_x) <= 1.0))
			fail_msg("exp(%a): expected %a, found %a", (double)exp_table[i].x, exp_table[i].exp_x,
				 (double)od_exp(exp_table[i].x));
}

static void exp_everywhere(void **state)
{
	(void)state;
	for (uint64_t u = 0; u <= UINT32_MAX; u += 50021) { /* odd, so all exponents and both signs */
		float x = od_bits_f32((uint32_t)u), y = od_exp(x);

		if (isnan(x))
			assert_int_equal(od_f32_bits(y), 0x7fc00000u);
		else if (x > 88.72284f)
			assert_true(isinf(y) && y > 0);
		else if (!(ulps(y, exp((double)x)) <= 1.0))
			fail_msg("exp(%a): expected %a, found %a", (double)x, exp((double)x), (double)y);
	}
	assert_true(od_exp(0.0f) == 1.0f && od_exp(-0.0f) == 1.0f);
	assert_int_equal(od_f32_bits(od_exp(-INFINITY)), 0);
	assert_int_equal(od_f32_bits(od_exp(-1e30f)), 0);
	assert_int_equal(od_f32_bits(od_exp(-104.5f)), 0);
	assert_true(isinf(od_exp(INFINITY)) && isinf(od_exp(88.73f)) && isinf(od_exp(1e30f)));
	assert_true(od_exp(-103.9f) == 0x1p-149f);
}

static void backend_choice(void **state)
{
	const struct od_backend *be;
	struct od_err err;

	(void)state;
	assert_int_equal(od_backend_cpu(&be, OD_CPU_SCALAR, OD_PROFILE_F32, &err), OD_OK);
	assert_string_equal(be->name, "scalar");
	assert_int_equal(od_backend_cpu(&be, (enum od_cpu)77, OD_PROFILE_F32, &err), OD_ERR_ARG);
	assert_null(be);
	for (int cpu = OD_CPU_AUTO; cpu <= OD_CPU_NEON; cpu++) {
		int rc = od_backend_cpu(&be, (enum od_cpu)cpu, OD_PROFILE_F32, &err);

		if (rc == OD_OK) {
			assert_string_equal(be->kernel_class, OD_CLASS_FMA16);
			continue;
		}
		assert_int_equal(rc, OD_ERR_UNSUPPORTED);
		assert_null(be);
		assert_non_null(strstr(err.msg, od_cpu_names[cpu]));
	}
	assert_int_equal(od_backend_cpu(&be, OD_CPU_AUTO, OD_PROFILE_BF16, &err), OD_OK);
#ifdef __aarch64__
	assert_string_equal(be->name, "neon");
	assert_int_equal(od_backend_cpu(&be, OD_CPU_AVX2, OD_PROFILE_F32, &err), OD_ERR_UNSUPPORTED);
	assert_non_null(strstr(err.msg, "lacks some of AVX2, FMA and F16C"));
#else
	assert_int_equal(od_backend_cpu(&be, OD_CPU_NEON, OD_PROFILE_F32, &err), OD_ERR_UNSUPPORTED);
	assert_non_null(strstr(err.msg, "lacks some of aarch64 and NEON"));
#endif
	assert_null(od_cpu_names[OD_CPU_NEON + 1]);
	assert_string_equal(od_profile_names[OD_PROFILE_BF16 - 1], "bf16");
	assert_null(od_profile_names[OD_PROFILE_BF16]);
}

/* Composed tables lack no kernel. */
static void tables_are_whole(void **state)
{
	const size_t first = offsetof(struct od_backend, matmul),
		     n = (sizeof(struct od_backend) - first) / sizeof(void (*)(void));
	const struct od_cpu_features f = od_cpu_features();

	(void)state;
	for (enum od_cpu cpu = OD_CPU_SCALAR; cpu <= OD_CPU_NEON; cpu++) {
		const struct od_backend *be;
		void (*kernel[sizeof(struct od_backend) / sizeof(void *)])(void);

		if (od_backend_cpu(&be, cpu, OD_PROFILE_BF16, NULL) != OD_OK)
			continue;
		assert_true(od_cpu_has(&f, cpu));
		assert_string_equal(be->name, od_cpu_names[cpu]);
		assert_string_equal(be->kernel_class, cpu == OD_CPU_AVX512_BF16 ? OD_CLASS_BF16DOT : OD_CLASS_FMA16);
		assert_int_equal(be->nf4_likes_int8, cpu == OD_CPU_AVX2);
		memcpy(kernel, (const char *)be + first, n * sizeof(*kernel));
		for (size_t i = 0; i < n; i++)
			assert_true(kernel[i] != NULL);
	}
}

/* Any number of threads gives the contract's bits. */
static void matmul_over_threads(void **state)
{
	const struct od_backend *be = table_of(state);
	const size_t n_in = 203, n_out = 1111, n_rows = 5;
	uint64_t seed = 5;
	struct od_mat w = { .dtype = OD_INT8, .n_out = n_out, .n_in = n_in };
	float *x = random_row(&seed, n_rows * n_in, PLAIN), *scale = random_row(&seed, n_out, PLAIN);
	float *want = exact(n_rows * n_out, sizeof(float)), *y = exact(n_rows * n_out, sizeof(float));
	void *data = random_weights(&seed, w.dtype, n_out * n_in, PLAIN);
	struct od_pool *pool;

	w.data = data;
	w.scale = scale;
	for (size_t r = 0; r < n_rows; r++)
		for (size_t o = 0; o < n_out; o++)
			want[r * n_out + o] = lanes_dot(w.dtype, w.data, o * n_in, x + r * n_in, n_in) * scale[o];
	od_matmul(be, NULL, &w, x, y, n_rows);
	assert_bits("no pool", y, want, n_rows * n_out);
	for (unsigned threads = 1; threads <= 5; threads++) {
		assert_int_equal(od_pool_new(&pool, threads, "test", NULL), OD_OK);
		for (size_t i = 0; i < n_rows * n_out; i++)
			y[i] = NAN;
		od_matmul(be, pool, &w, x, y, n_rows);
		assert_bits("pool", y, want, n_rows * n_out);
		y[0] = 4.5f;
		od_matmul(be, pool, &w, x, y, 0);
		assert_true(y[0] == 4.5f);
		od_pool_free(pool);
	}
	free(x), free(scale), free(want), free(y), free(data);
}

/* Products of several sizes in one call, among them one whose rows are rounded to INT8, are those that each gives
 * alone. */
static void products_together(void **state)
{
	static const struct {
		size_t n_out, n_in, n_rows;
		enum od_dtype dtype;
		enum od_activations act;
	} shape[] = { { 7, 64, 3, OD_BF16, OD_ACT_F32 },   { 700, 130, 5, OD_BF16, OD_ACT_F32 },
		      { 300, 256, 1, OD_F32, OD_ACT_F32 }, { 90, 192, 4, OD_INT8, OD_ACT_INT8 },
		      { 1, 33, 2, OD_F16, OD_ACT_F32 },	   { 513, 1030, 2, OD_BF16, OD_ACT_F32 } };
	enum { N = sizeof(shape) / sizeof(shape[0]) };
	const struct od_backend *be = table_of(state);
	struct od_product p[N];
	float *x[N], *y[N], *want[N], *scale;
	uint64_t seed = 11;
	void *data[N];

	scale = random_row(&seed, 90, PLAIN);
	for (size_t i = 0; i < N; i++) {
		const size_t outs = shape[i].n_out * shape[i].n_rows;

		x[i] = random_row(&seed, shape[i].n_rows * shape[i].n_in, PLAIN);
		data[i] = random_weights(&seed, shape[i].dtype, shape[i].n_out * shape[i].n_in, PLAIN);
		y[i] = exact(outs, sizeof(float));
		want[i] = exact(outs, sizeof(float));
		p[i] = (struct od_product){ .w = { .dtype = shape[i].dtype,
						   .n_out = shape[i].n_out,
						   .n_in = shape[i].n_in,
						   .data = data[i],
						   .act = shape[i].act,
						   .scale = shape[i].dtype == OD_INT8 ? scale : NULL },
					    .x = x[i],
					    .y = y[i],
					    .n_rows = shape[i].n_rows };
		od_matmul(be, NULL, &p[i].w, x[i], want[i], shape[i].n_rows);
	}
	for (unsigned threads = 1; threads <= 3; threads++) {
		struct od_pool *pool;

		assert_int_equal(od_pool_new(&pool, threads, "test", NULL), OD_OK);
		for (size_t first = 0; first < N; first++)
			for (size_t n = 0; n <= N - first; n++) {
				for (size_t i = 0; i < N; i++)
					for (size_t k = 0; k < shape[i].n_out * shape[i].n_rows; k++)
						y[i][k] = NAN;
				od_matmul_all(be, pool, p + first, n);
				for (size_t i = 0; i < N; i++) {
					const size_t outs = shape[i].n_out * shape[i].n_rows;

					for (size_t k = 0; (i < first || i >= first + n) && k < outs; k++)
						assert_true(isnan(y[i][k]));
					if (i >= first && i < first + n)
						assert_bits("together", y[i], want[i], outs);
				}
			}
		od_pool_free(pool);
	}
	for (size_t i = 0; i < N; i++)
		free(x[i]), free(y[i]), free(want[i]), free(data[i]);
	free(scale);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dtype_names),		cmocka_unit_test(f16_every_value),
		cmocka_unit_test(bf16_rounding),	cmocka_unit_test(nf4_values),
		cmocka_unit_test(sincos_against_table), cmocka_unit_test(exp_against_table),
		cmocka_unit_test(exp_everywhere),	cmocka_unit_test(backend_choice),
		cmocka_unit_test(tables_are_whole),	ON_ALL_TABLES(matmul_over_threads),
		ON_ALL_TABLES(products_together),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
