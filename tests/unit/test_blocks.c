/* GGUF's formats of blocks: their values, and products with them in every table. */
#include "common/compute/cpu/matmul.h"
#include "common/compute/quant.h"
#include "tests/unit/compute_util.h"

static const enum od_dtype formats[] = {
#define FORMAT(NAME, ...) OD_##NAME,
	OD_BLOCK_FORMATS(FORMAT)
};
#define N_FORMATS (sizeof(formats) / sizeof(formats[0]))

static void format_numbers(void **state)
{
	(void)state;
	assert_int_equal(N_FORMATS, 23);
	assert_true(OD_Q4_0 == 64 + 2 && OD_Q8_0 == 64 + 8 && OD_Q4_K == 64 + 12 &&
		    OD_IQ2_XXS == 64 + 16); /* in packs */
	assert_true(OD_IQ1_M == 64 + 29 && OD_TQ1_0 == 64 + 34 && OD_MXFP4 == 64 + 39 && OD_NVFP4 == 64 + 40);
	for (size_t t = 0; t < N_FORMATS; t++) {
		const struct od_block b = od_block_of(formats[t]);

		assert_int_equal(od_dtype_parse(od_dtype_name(formats[t])), formats[t]);
		assert_int_equal(od_dtype_bytes(formats[t]), 0);
		assert_int_equal(od_row_bytes(formats[t], 3 * b.weights), 3 * b.bytes);
		assert_int_equal(OD_MOST_BLOCK % b.weights, 0);
	}
}

/* make_blocks.py has written the values; NaNs are alike. */
static void values_are_those_of_gguf(void **state)
{
	(void)state;
	for (size_t t = 0; t < N_FORMATS; t++) {
		const struct od_block b = od_block_of(formats[t]);
		const size_t each = b.bytes + b.weights * sizeof(float);
		float got[8 * OD_MOST_BLOCK], want[8 * OD_MOST_BLOCK];
		uint8_t bytes[8 * OD_MOST_BLOCK];
		char path[64];
		size_t n;
		FILE *f;

		snprintf(path, sizeof(path), "tests/golden/formats/%s.bin", od_dtype_name(formats[t]));
		f = fopen(path, "rb");
		assert_non_null(f);
		fseek(f, 0, SEEK_END);
		n = (size_t)ftell(f) / each;
		assert_true(n >= 4 && n <= 8 && (size_t)ftell(f) == n * each);
		rewind(f);
		assert_int_equal(fread(bytes, b.bytes, n, f), n);
		assert_int_equal(fread(want, sizeof(float), n * b.weights, f), n * b.weights);
		fclose(f);
		for (size_t part = 1; part <= n * b.weights; part += 37) { /* a row may end within a block */
			od_format(formats[t])->decode(bytes, part, got);
			for (size_t i = 0; i < part; i++) {
				float g = one_nan(got[i]), w = one_nan(want[i]);

				assert_bits(od_dtype_name(formats[t]), &g, &w, 1);
			}
		}
	}
}

/* Blocks of random bytes, in which most scales are finite. */
static uint8_t *random_blocks(uint64_t *seed, enum od_dtype t, size_t n, bool tame)
{
	const struct od_block b = od_block_of(t);
	uint8_t *w = exact(n, b.bytes);
	float values[OD_MOST_BLOCK];

	for (size_t i = 0; i < n; i++) {
		bool good = false;

		while (!good) {
			for (size_t k = 0; k < b.bytes; k++)
				w[i * b.bytes + k] = (uint8_t)random_u64(seed);
			od_format(t)->decode(w + i * b.bytes, b.weights, values);
			good = true;
			for (size_t k = 0; tame && k < b.weights; k++)
				good = good && isfinite(values[k]);
		}
	}
	return w;
}

/* Bits of the products of the same weights as F32. */
static void check_products(const struct od_backend *be, uint64_t *seed, enum od_dtype t, size_t n_in, bool tame)
{
	const size_t n_out = 1 + random_below(seed, 40),
		     n_rows = 1 + random_below(seed, random_below(seed, 4) == 0 ? 70 : 6);
	const size_t x_stride = n_in + random_below(seed, 3), y_stride = n_out + random_below(seed, 3),
		     y_len = (n_rows - 1) * y_stride + n_out;
	const size_t begin = random_below(seed, n_out), end = begin + random_below(seed, n_out - begin + 1);
	uint8_t *blocks = random_blocks(seed, t, n_out * n_in / od_block_of(t).weights, tame);
	struct od_mat w = { .dtype = t, .n_out = n_out, .n_in = n_in, .data = blocks };
	float *x = random_row(seed, (n_rows - 1) * x_stride + n_in, tame ? PLAIN : WILD),
	      *same = exact(n_out * n_in, sizeof(float));
	float *y = exact(y_len, sizeof(float)), *want = exact(y_len, sizeof(float));

	for (size_t i = 0; i < y_len; i++)
		y[i] = want[i] = -7;
	for (size_t o = 0; o < n_out; o++)
		od_dequant_row(&w, o, same + o * n_in);
	od_matmul_range(be, &w, x, x_stride, y, y_stride, n_rows, begin, end);
	w.dtype = OD_F32;
	w.data = same;
	od_matmul_range(be, &w, x, x_stride, want, y_stride, n_rows, begin, end);
	assert_bits(od_dtype_name(t), y, want, y_len);
	free(blocks), free(x), free(same), free(y), free(want);
}

static void products_are_those_of_f32(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 21;

	for (size_t t = 0; t < N_FORMATS; t++) {
		const size_t n = od_block_of(formats[t]).weights;

		for (size_t round = 0; round < 24; round++) {
			const size_t most = (round % 6 == 0 ? 2500 : 600) / n;

			check_products(be, &seed, formats[t], n * (1 + random_below(&seed, most)), round % 3 != 0);
		}
	}
}

/* Each weight by itself: the other factors are 0. */
static void each_weight_counts(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 22;

	for (size_t t = 0; t < N_FORMATS; t++) {
		const size_t n = od_block_of(formats[t]).weights;
		uint8_t *blocks = random_blocks(&seed, formats[t], 5, true);
		struct od_mat w = { .dtype = formats[t], .n_out = 5, .n_in = n, .data = blocks };
		float x[OD_MOST_BLOCK] = { 0 }, y[5], want[5], row[OD_MOST_BLOCK];

		for (size_t i = 0; i < n; i++) {
			x[i] = 1;
			for (size_t o = 0; o < 5; o++) {
				od_dequant_row(&w, o, row);
				want[o] = row[i] + 0.0f;
			}
			od_matmul_range(be, &w, x, n, y, 5, 1, 0, 5);
			assert_bits(od_dtype_name(formats[t]), y, want, 5);
			x[i] = 0;
		}
		free(blocks);
	}
}

/* No byte behind the weights is read. */
static void products_stay_inside(void **state)
{
	const struct od_backend *be = table_of(state);

	for (size_t t = 0; t < N_FORMATS; t++) {
		const struct od_block b = od_block_of(formats[t]);
		struct fenced w = fenced_new(3u * b.bytes);
		struct od_mat m = { .dtype = formats[t], .n_out = 3, .n_in = b.weights, .data = w.p };
		float x[OD_MOST_BLOCK] = { 0 }, y[3];

		memset(w.p, 0, 3u * b.bytes);
		od_matmul_range(be, &m, x, b.weights, y, 3, 1, 0, 3);
		munmap(w.map, w.map_len);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(format_numbers),	  cmocka_unit_test(values_are_those_of_gguf),
		ON_ALL_TABLES(products_are_those_of_f32), ON_ALL_TABLES(each_weight_counts),
		ON_ALL_TABLES(products_stay_inside),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
