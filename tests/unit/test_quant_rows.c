/* Quantisers against their definitions in double arithmetic; and the layout of shadow files where it is easily wrong.
 * tests/integ/test_pack.py holds whole files to docs/PACK-FORMAT.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/pack/shadow/quant_rows.h"
#include "tests/unit/f8_table.h"

#include <stdlib.h>

#define IN 333 /* not a multiple of anything */
#define ROWS 40

static uint64_t rnd_state = 88172645463325252u;

static uint32_t rnd(void)
{
	rnd_state ^= rnd_state << 13;
	rnd_state ^= rnd_state >> 7;
	rnd_state ^= rnd_state << 17;
	return (uint32_t)(rnd_state >> 32);
}

static float w[ROWS][IN], scratch[IN];

static void random_weights(void)
{
	for (int r = 0; r < ROWS; r++)
		for (int i = 0; i < IN; i++)
			w[r][i] = r == 3 ? 0.0f : ldexpf((float)(int32_t)rnd(), -31 - r * 3);
}

static int quant_some(enum od_precision p, enum od_dtype dtype, const void *rows, size_t n_rows, size_t n_in,
		      void *data, float *scale, size_t *bad)
{
	const struct od_mat m = { .dtype = dtype, .n_out = n_rows, .n_in = n_in, .data = rows };

	return od_quant_rows(p, &m, data, scale, scratch, bad);
}

static int quant(enum od_precision p, enum od_dtype dtype, void *data, float *scale, size_t *bad)
{
	return quant_some(p, dtype, w, ROWS, IN, data, scale, bad);
}

static double absmax(const float *x, size_t n)
{
	double most = 0;

	for (size_t i = 0; i < n; i++)
		most = fmax(most, fabs((double)x[i]));
	return most;
}

/* A double quotient rounded to f32 is the f32 quotient. */
static void assert_int8(const float *x, size_t n, float scale, const int8_t *q)
{
	float want = (float)(absmax(x, n) / 127);

	assert_true(want == scale);
	for (size_t i = 0; i < n; i++) {
		double v = want > 0 ? (double)(float)((double)x[i] / (double)want) : 0;

		assert_int_equal(q[i], (int)nearbyint(fmin(127, fmax(-127, v))));
	}
}

static void test_int8(void **state)
{
	static int8_t q[ROWS][IN];
	static float scale[ROWS];
	size_t bad;

	(void)state;
	random_weights();
	w[4][0] = 1e-45f;
	for (int i = 1; i < IN; i++)
		w[4][i] = i % 2 == 0 ? -1e-45f : 0.0f; /* absmax / 127 is zero */
	for (int i = 0; i < IN; i++)
		w[5][i] = i == 0 ? 127.0f : (float)(i % 250) - 124.5f; /* halves */
	w[6][7] = 3.4028235e38f;
	assert_int_equal(quant(OD_PRECISION_INT8, OD_F32, q, scale, &bad), OD_OK);
	for (int r = 0; r < ROWS; r++)
		assert_int8(w[r], IN, scale[r], q[r]);
	assert_true(scale[3] == 0 && scale[4] == 0 && scale[5] == 1.0f);
	assert_int_equal(q[5][1], -124); /* -123.5 to even */
	assert_int_equal(q[5][2], -122); /* -122.5 to even */
}

/* Every f16 is itself; halfway between two neighbours it is the even one, to either side of that the near one. */
static void test_fp16(void **state)
{
	static uint16_t h[ROWS][IN];
	size_t bad, n = 0;

	(void)state;
	for (uint32_t k = 0; k < 0x7c00u; k++) {
		float *x = w[0];
		float here = od_f16_f32((uint16_t)k), next = k + 1 < 0x7c00u ? od_f16_f32((uint16_t)(k + 1)) : 65536.0f;
		float middle = (here + next) / 2; /* exact */

		x[0] = here;
		x[1] = -here;
		x[2] = middle;
		x[3] = nextafterf(middle, 0);
		x[4] = nextafterf(middle, INFINITY);
		if (k == 0x7bffu) /* the middle is refused: below */
			x[2] = x[4] = here;
		assert_int_equal(quant_some(OD_PRECISION_FP16, OD_F32, w, 1, 5, h, NULL, &bad), OD_OK);
		assert_int_equal(h[0][0], k);
		assert_int_equal(h[0][1], k | 0x8000u);
		assert_int_equal(h[0][3], k);
		if (k == 0x7bffu)
			continue;
		assert_int_equal(h[0][2], k + (k & 1));
		assert_int_equal(h[0][4], k + 1);
		n++;
	}
	assert_int_equal(n, 0x7bff);
	random_weights();
	w[7][100] = -65519.996f;
	assert_int_equal(quant(OD_PRECISION_FP16, OD_F32, h, NULL, &bad), OD_OK);
	assert_int_equal(h[7][100], 0xfbff);
	w[7][100] = -65520.0f;
	assert_int_equal(quant(OD_PRECISION_FP16, OD_F32, h, NULL, &bad), OD_ERR_UNSUPPORTED);
	assert_int_equal(bad, 7);
	w[7][100] = 3.4028235e38f;
	assert_int_equal(quant(OD_PRECISION_FP16, OD_F32, h, NULL, &bad), OD_ERR_UNSUPPORTED);
}

/* All bits of a published f16 come back, those of NaN and infinity apart, which are refused. */
static void test_fp16_of_f16(void **state)
{
	uint16_t in, out;
	size_t bad;

	(void)state;
	for (uint32_t k = 0; k <= 0xffffu; k++) {
		in = (uint16_t)k;
		out = 0;
		if ((k & 0x7c00u) == 0x7c00u) {
			assert_int_equal(quant_some(OD_PRECISION_FP16, OD_F16, &in, 1, 1, &out, NULL, &bad),
					 OD_ERR_RANGE);
			continue;
		}
		assert_int_equal(quant_some(OD_PRECISION_FP16, OD_F16, &in, 1, 1, &out, NULL, &bad), OD_OK);
		assert_int_equal(out, k);
	}
}

/* Every pattern of 8 bits is quantised as the f32 that it stands for. */
static void test_of_f8(void **state)
{
	static const uint32_t *const bits[] = { e4m3_bits, e5m2_bits };
	size_t bad;

	(void)state;
	for (int t = 0; t < 2; t++)
		for (uint32_t k = 0; k < 256; k++) {
			const enum od_dtype dtype = t == 0 ? OD_F8_E4M3 : OD_F8_E5M2;
			uint8_t in[2] = { 0, (uint8_t)k };
			float same[2] = { 0, od_bits_f32(bits[t][k]) };
			uint16_t h[2] = { 0 }, want[2] = { 0 };
			int rc = quant_some(OD_PRECISION_FP16, OD_F32, same, 1, 2, want, NULL, &bad);

			assert_int_equal(rc, isfinite(same[1]) ? OD_OK : OD_ERR_RANGE);
			assert_int_equal(quant_some(OD_PRECISION_FP16, dtype, in, 1, 2, h, NULL, &bad), rc);
			assert_memory_equal(h, want, rc == OD_OK ? sizeof(h) : 0);
		}
}

/* By the words of quant.h, not by the quantiser's own way. */
static unsigned nf4_code(const uint8_t *row, size_t index)
{
	size_t piece = index / 128, in = index % 128, i = in % 16, j = in % 64 / 16 * 2 + in / 64;
	const uint8_t *at = row + piece * 64 + i * 4;
	uint32_t word = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;

	assert_int_equal(16 * (j / 2) + 64 * (j % 2) + i, in);
	return word >> (4 * j) & 15;
}

static void assert_nf4(const float *x, size_t n, float scale, const uint8_t *row, size_t first)
{
	assert_true((double)scale == absmax(x, n));
	for (size_t i = 0; i < n; i++) {
		double v = scale > 0 ? (double)(float)((double)x[i] / (double)scale) : 0;
		unsigned best = 0;

		for (unsigned k = 1; k < 16; k++) /* the lower one of two that are equally near */
			if (fabs(v - (double)od_nf4_values[k]) < fabs(v - (double)od_nf4_values[best]))
				best = k;
		assert_int_equal(nf4_code(row, first + i), best);
	}
}

static void test_nf4(void **state)
{
	static uint8_t q[ROWS][192];
	static float scale[ROWS][6];
	size_t bad, ties = 0;

	(void)state;
	random_weights();
	for (size_t k = 0; k < 15; k++) {
		double middle = ((double)od_nf4_values[k] + (double)od_nf4_values[k + 1]) / 2;

		ties += (double)(float)middle == middle;
		for (int d = 0; d < 3; d++)
			w[5][3 * k + d] = nextafterf((float)middle, d == 0 ? -2.0f : d == 1 ? (float)middle : 2.0f);
	}
	assert_true(ties > 3); /* some of those rows are exactly half-way */
	w[5][63] = -1.0f;
	for (int i = 64; i < 128; i++)
		w[5][i] = -0.0f;
	for (int i = 128; i < 192; i++)
		w[5][i] = 1e-45f;
	for (int i = 192; i < 256; i++)
		w[5][i] = i % 2 == 0 ? 3.4028235e38f : -1.0f;
	assert_int_equal(od_shadow_row_bytes(OD_PRECISION_NF4, IN), sizeof(q[0]));
	assert_int_equal(quant(OD_PRECISION_NF4, OD_F32, q, scale[0], &bad), OD_OK);
	for (int r = 0; r < ROWS; r++) {
		for (int g = 0; g < 6; g++)
			assert_nf4(w[r] + 64 * g, g < 5 ? 64 : IN - 320, scale[r][g], q[r], 64 * (size_t)g);
		for (size_t i = IN; i < 384; i++)
			assert_int_equal(nf4_code(q[r], i), OD_NF4_ZERO);
	}
	assert_true(scale[3][0] == 0 && scale[5][1] == 0 && scale[5][2] == 1e-45f);
	assert_int_equal(nf4_code(q[3], 0), OD_NF4_ZERO);
	assert_int_equal(nf4_code(q[5], 64), OD_NF4_ZERO);
	assert_int_equal(nf4_code(q[5], 128), 15);
}

static void test_refused(void **state)
{
	static const float bad_values[] = { INFINITY, -INFINITY, NAN };
	static char data[ROWS * IN * 2];
	static float scale[ROWS * 6];
	size_t bad;

	(void)state;
	for (int p = OD_PRECISION_INT8; p <= OD_N_PRECISIONS; p++)
		for (int i = 0; i < 3; i++) {
			random_weights();
			w[17][IN - 1] = bad_values[i];
			assert_int_equal(quant((enum od_precision)p, OD_F32, data, scale, &bad), OD_ERR_RANGE);
			assert_int_equal(bad, 17);
		}
}

static void test_sets(void **state)
{
	static const struct {
		const char *text;
		unsigned set;
		const char *back;
	} good[] = {
		{ "none", 0, "" },
		{ "int8", OD_SHADOW_BIT(OD_PRECISION_INT8), "int8" },
		{ "nf4,int8,nf4", OD_SHADOW_BIT(OD_PRECISION_INT8) | OD_SHADOW_BIT(OD_PRECISION_NF4), "int8,nf4" },
		{ "fp16,nf4,int8", OD_SHADOW_ALL, "int8,fp16,nf4" },
	};
	static const char *const bad[] = { "",	    ",",    "int8,",	 ",int8",    "bf16",   "int",
					   "int88", "INT8", "none,int8", "int8 nf4", "nf4-dq", "int8-g64" };
	struct od_err err;
	char text[64];
	unsigned set;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(od_shadow_set_parse(good[i].text, &set, &err), OD_OK);
		assert_int_equal(set, good[i].set);
		assert_string_equal(od_shadow_set_text(set, text, sizeof(text)), good[i].back);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(od_shadow_set_parse(bad[i], &set, &err), OD_ERR_ARG);
		assert_int_equal(set, 0);
		assert_non_null(strstr(err.msg, "some of int8, fp16, nf4 with"));
	}
}

static void assert_sections(enum od_precision p, uint64_t n_out, uint64_t n_in, const struct od_shadow_sections *want)
{
	const struct od_shadow_sections got = od_shadow_sections(p, n_out, n_in);

	assert_int_equal(got.data_bytes, want->data_bytes);
	assert_int_equal(got.n_scales, want->n_scales);
	if (want->n_scales > 0)
		assert_int_equal(got.scale_at, want->scale_at);
	assert_int_equal(got.bytes, want->bytes);
}

/* Counted by hand. */
static void test_sections(void **state)
{
	(void)state;
	assert_sections(OD_PRECISION_FP16, 3, 100, &(struct od_shadow_sections){ .data_bytes = 600, .bytes = 4096 });
	assert_sections(OD_PRECISION_FP16, 1, 2016, &(struct od_shadow_sections){ .data_bytes = 4032, .bytes = 4096 });
	assert_sections(OD_PRECISION_FP16, 1, 2017, &(struct od_shadow_sections){ .data_bytes = 4034, .bytes = 8192 });
	assert_sections(
		OD_PRECISION_INT8, 3, 100,
		&(struct od_shadow_sections){ .data_bytes = 300, .scale_at = 384, .n_scales = 3, .bytes = 4096 });
	assert_sections(
		OD_PRECISION_NF4, 3, 130,
		&(struct od_shadow_sections){ .data_bytes = 384, .scale_at = 448, .n_scales = 9, .bytes = 4096 });
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_int8),  cmocka_unit_test(test_fp16),     cmocka_unit_test(test_fp16_of_f16),
		cmocka_unit_test(test_of_f8), cmocka_unit_test(test_nf4),      cmocka_unit_test(test_refused),
		cmocka_unit_test(test_sets),  cmocka_unit_test(test_sections),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
