/* matmul and dot of every table: the bits of the contract, any shape, rows independent of each other. */
#include "common/compute/cpu/matmul.h"
#include "tests/unit/compute_util.h"
#include "tests/unit/f8_table.h"

static const enum od_dtype dtypes[] = { OD_BF16, OD_F16, OD_F32, OD_INT8, OD_F8_E4M3, OD_F8_E5M2 };
#define N_DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

/* Types that a table may multiply in pairs as BF16. */
static bool becomes_bf16(enum od_dtype t)
{
	return t == OD_BF16 || t == OD_F8_E4M3 || t == OD_F8_E5M2;
}
#define UNTOUCHED 0x1.6dp+11f

struct compute_matmul_shape {
	size_t n_in, n_out, n_rows, x_stride, y_stride, o_begin, o_end;
};

struct compute_matmul_data {
	struct od_mat w;
	void *weights;
	float *scale, *x, *y, *want;
	size_t y_len;
};

static void data_new(struct compute_matmul_data *d, uint64_t *seed, enum od_dtype t,
		     const struct compute_matmul_shape *s, enum kind kind)
{
	size_t x_len = (s->n_rows - 1) * s->x_stride + s->n_in;

	d->weights = random_weights(seed, t, s->n_out * s->n_in, kind);
	d->scale = t == OD_INT8 ? random_row(seed, s->n_out, kind) : NULL;
	d->w = (struct od_mat){ .dtype = t, .n_out = s->n_out, .n_in = s->n_in, .data = d->weights, .scale = d->scale };
	d->x = random_row(seed, x_len, kind);
	d->y_len = (s->n_rows - 1) * s->y_stride + s->n_out;
	d->y = exact(d->y_len, sizeof(float));
	d->want = exact(d->y_len, sizeof(float));
	for (size_t i = 0; i < d->y_len; i++)
		d->y[i] = d->want[i] = UNTOUCHED;
}

static void data_free(struct compute_matmul_data *d)
{
	free(d->weights), free(d->scale), free(d->x), free(d->y), free(d->want);
}

static struct compute_matmul_shape random_shape(uint64_t *seed, size_t n_in)
{
	struct compute_matmul_shape s = { .n_in = n_in,
					  .n_out = 1 + random_below(seed, 21),
					  .n_rows = 1 + random_below(seed, 9) };

	s.x_stride = n_in + random_below(seed, 3);
	s.y_stride = s.n_out + random_below(seed, 3);
	s.o_begin = random_below(seed, s.n_out);
	s.o_end = s.o_begin + random_below(seed, s.n_out - s.o_begin + 1);
	return s;
}

static void run(const struct od_backend *be, struct compute_matmul_data *d, const struct compute_matmul_shape *s)
{
	od_matmul_range(be, &d->w, d->x, s->x_stride, d->y, s->y_stride, s->n_rows, s->o_begin, s->o_end);
}

static void check_lanes(const struct od_backend *be, uint64_t *seed, enum od_dtype t, size_t n_in, enum kind kind)
{
	struct compute_matmul_shape s = random_shape(seed, n_in);
	struct compute_matmul_data d;

	data_new(&d, seed, t, &s, kind);
	for (size_t r = 0; r < s.n_rows; r++) {
		for (size_t o = s.o_begin; o < s.o_end; o++) {
			float sum = lanes_dot(t, d.weights, o * n_in, d.x + r * s.x_stride, n_in);

			d.want[r * s.y_stride + o] = one_nan(d.scale != NULL ? sum * d.scale[o] : sum);
		}
	}
	run(be, &d, &s);
	assert_bits(od_dtype_name(t), d.y, d.want, d.y_len);
	data_free(&d);
}

static void matmul_bits(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 11;

	for (size_t n_in = 1; n_in <= 400; n_in += n_in < 67 ? 1 : 37)
		for (size_t t = 0; t < N_DTYPES; t++)
			for (int kind = 0; kind < N_KINDS; kind++)
				if (!becomes_bf16(dtypes[t]) || strcmp(be->kernel_class, OD_CLASS_FMA16) == 0)
					check_lanes(be, &seed, dtypes[t], n_in, (enum kind)kind);
}

/* Every 16-bit pattern as a weight, subnormals, infinities and NaNs among them. */
static void matmul_every_half(void **state)
{
	const struct od_backend *be = table_of(state);
	uint16_t *h = exact(0x10000, sizeof(*h));
	float *y = exact(0x10000, sizeof(float)), *want = exact(0x10000, sizeof(float)), one = -3.0f;

	for (size_t t = 0; t < 2; t++) {
		struct od_mat w = { .dtype = dtypes[t], .n_out = 0x10000, .n_in = 1, .data = h };

		if (dtypes[t] == OD_BF16 && strcmp(be->kernel_class, OD_CLASS_FMA16) != 0)
			continue;
		for (size_t i = 0; i < 0x10000; i++) {
			h[i] = (uint16_t)i;
			want[i] = one_nan(fmaf(weight_at(dtypes[t], h, i), one, 0));
		}
		od_matmul_range(be, &w, &one, 1, y, 0x10000, 1, 0, 0x10000);
		assert_bits(od_dtype_name(dtypes[t]), y, want, 0x10000);
	}
	free(h), free(y), free(want);
}

/* Every 8-bit pattern, in every place of a row, where it meets another number. */
static void matmul_every_byte(void **state)
{
	enum { N = 71 };
	static const uint32_t *const bits[] = { e4m3_bits, e5m2_bits };
	const struct od_backend *be = table_of(state);
	uint8_t *b = exact(256 * N, 1);
	float y[256], want[256], x[N];

	for (int k = 0; k < N; k++)
		x[k] = ldexpf(k % 3 == 0 ? -1.5f : 1, k - N / 2);
	for (int t = 0; t < 2; t++) {
		struct od_mat w = { .dtype = t == 0 ? OD_F8_E4M3 : OD_F8_E5M2, .n_out = 256, .n_in = N, .data = b };

		for (size_t index = 0; index < N; index++) {
			memset(b, 0, 256 * N);
			for (size_t i = 0; i < 256; i++) {
				b[i * N + index] = (uint8_t)i;
				want[i] = one_nan(od_bits_f32(bits[t][i]) * x[index] + 0.0f);
			}
			od_matmul_range(be, &w, x, N, y, 256, 1, 0, 256);
			assert_bits(od_dtype_name(w.dtype), y, want, 256);
		}
	}
	free(b);
}

/* Equal values as BF16 give equal bits in every class. */
static void matmul_of_bytes_is_of_bf16(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 17;

	for (int round = 0; round < 400; round++) {
		struct compute_matmul_shape s =
			random_shape(&seed, 1 + random_below(&seed, round % 8 == 0 ? 2500 : 200));
		enum od_dtype t = round % 2 == 0 ? OD_F8_E4M3 : OD_F8_E5M2;
		uint16_t *same = exact(s.n_out * s.n_in, sizeof(*same));
		struct compute_matmul_data d;

		data_new(&d, &seed, t, &s, (enum kind)(round % N_KINDS));
		for (size_t i = 0; i < s.n_out * s.n_in; i++) {
			uint32_t bits = (t == OD_F8_E4M3 ? e4m3_bits : e5m2_bits)[((uint8_t *)d.weights)[i]];

			assert_int_equal(bits & 0xffffu, 0);
			same[i] = (uint16_t)(bits >> 16);
		}
		run(be, &d, &s);
		d.w.dtype = OD_BF16;
		d.w.data = same;
		od_matmul_range(be, &d.w, d.x, s.x_stride, d.want, s.y_stride, s.n_rows, s.o_begin, s.o_end);
		assert_bits(od_dtype_name(t), d.y, d.want, d.y_len);
		data_free(&d);
		free(same);
	}
}

/* Against sums in double. The bound is that of 16 chains and a tree; BF16 rows add their own rounding. */
static void matmul_accuracy(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 12;

	for (size_t t = 0; t < N_DTYPES; t++) {
		bool rounds = becomes_bf16(dtypes[t]) && strcmp(be->kernel_class, OD_CLASS_BF16DOT) == 0;
		struct compute_matmul_shape s = { 1777, 13, 6, 1777, 13, 0, 13 };
		struct compute_matmul_data d;

		data_new(&d, &seed, dtypes[t], &s, PLAIN);
		run(be, &d, &s);
		for (size_t i = 0; i < s.n_rows * s.n_out; i++) {
			size_t r = i / s.n_out, o = i % s.n_out;
			double sum = 0, size = 0, scale = d.scale != NULL ? (double)d.scale[o] : 1;

			for (size_t k = 0; k < s.n_in; k++) {
				float x = d.x[r * s.x_stride + k];
				double p = (double)weight_at(dtypes[t], d.weights, o * s.n_in + k);

				p *= rounds ? (double)od_bf16_f32(od_f32_bf16(x)) : (double)x;
				sum += p * scale;
				size += fabs(p * scale);
			}
			assert_true(sum != 0);
			if (!(fabs((double)d.y[i] - sum) <= size * 0x1p-24 * 120))
				fail_msg("%s row %zu output %zu: expected %.9g, found %.9g", od_dtype_name(dtypes[t]),
					 r, o, sum, (double)d.y[i]);
		}
		data_free(&d);
	}
}

/* A row alone, an output alone: the same bits as among others, in every class. */
static void matmul_independence(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 13;

	for (int round = 0; round < 120; round++) {
		struct compute_matmul_shape s = random_shape(&seed, 1 + random_below(&seed, 150)), one;
		enum od_dtype t = dtypes[round % N_DTYPES];
		struct compute_matmul_data d;

		s.n_rows += random_below(&seed, 12);
		s.o_begin = 0, s.o_end = s.n_out;
		data_new(&d, &seed, t, &s, round % 3 == 0 ? WILD : PLAIN);
		run(be, &d, &s);
		one = s;
		for (size_t r = 0; r < s.n_rows; r++) {
			const float *x = d.x + r * s.x_stride;
			float *want = d.want + r * s.y_stride;

			one.o_begin = random_below(&seed, s.n_out);
			od_matmul_range(be, &d.w, x, 7, want, 9, 1, 0, one.o_begin);
			for (size_t o = one.o_begin; o < s.n_out; o++)
				od_matmul_range(be, &d.w, x, 7, want, 9, 1, o, o + 1);
		}
		assert_bits("alone", d.y, d.want, d.y_len);
		data_free(&d);
	}
}

static void check_blocks(const struct od_backend *be, uint64_t *seed, size_t n_in, size_t n_rows)
{
	struct compute_matmul_shape s = { n_in, 131, n_rows, n_in, 131, 0, 131 };
	struct compute_matmul_data d;

	data_new(&d, seed, OD_BF16, &s, PLAIN);
	run(be, &d, &s);
	for (size_t r = 0; r < s.n_rows; r++)
		for (size_t o = 0; o < s.n_out; o++)
			od_matmul_range(be, &d.w, d.x + r * s.x_stride, 1, d.want + r * s.y_stride, 1, 1, o, o + 1);
	assert_bits("blocks", d.y, d.want, d.y_len);
	for (size_t i = 0; i < d.y_len && strcmp(be->kernel_class, OD_CLASS_FMA16) == 0; i++) {
		float want = lanes_dot(OD_BF16, d.weights, i % 131 * n_in, d.x + i / 131 * n_in, n_in);

		assert_bits("lanes", d.y + i, &want, 1);
	}
	data_free(&d);
}

/* More rows and outputs than one block of weights holds, and long rows, which are read in another way when they meet
 * few rows of x: whole steps of it, and every kind of rest. */
static void matmul_blocks(void **state)
{
	static const size_t n_in[] = { 1024, 1039, 1151, 1185, 4100 };
	uint64_t seed = 14;

	for (size_t i = 0; i < sizeof(n_in) / sizeof(n_in[0]); i++)
		for (size_t n_rows = 1; n_rows <= 9; n_rows++)
			check_blocks(table_of(state), &seed, n_in[i], n_rows);
}

/* Lanes without an element add nothing: not even +0 to a sum that is -0. */
static void matmul_negative_zero(void **state)
{
	const struct od_backend *be = table_of(state);
	float x[80], w[80], y;
	struct od_mat m = { .dtype = OD_F32, .n_out = 1, .n_in = 0, .data = w };

	for (size_t i = 0; i < 80; i++)
		x[i] = -0x1p-100f, w[i] = 0x1p-100f;
	for (m.n_in = 1; m.n_in <= 80; m.n_in++) {
		od_matmul_range(be, &m, x, 0, &y, 0, 1, 0, 1);
		/* Under 16 elements some lanes hold the +0 that they began with. */
		assert_int_equal(od_f32_bits(y), m.n_in < 16 ? 0 : 0x80000000u);
	}
}

/* No byte behind the weights, the rows or the results is read or written, and nothing behind one's own row
 * counts: there are NaNs. */
static void matmul_stays_inside(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 16;

	for (size_t n_in = 1; n_in <= 100; n_in++) {
		enum od_dtype t = dtypes[n_in % N_DTYPES];
		size_t n_rows = 1 + n_in % 7, each = od_dtype_bytes(t);
		struct fenced w = fenced_new(5 * n_in * each),
			      x = fenced_new((n_rows * n_in + n_rows - 1) * sizeof(float));
		struct fenced y = fenced_new(n_rows * 5 * sizeof(float));
		float scale[5] = { 1, 2, 3, 4, 5 };
		void *row = random_weights(&seed, t, n_in, PLAIN);
		struct od_mat m = {
			.dtype = t, .n_out = 5, .n_in = n_in, .data = w.p, .scale = t == OD_INT8 ? scale : NULL
		};

		memset(w.p, 0xff, 5 * n_in * each);
		memset(x.p, 0xff, (n_rows * n_in + n_rows - 1) * sizeof(float));
		memcpy(w.p + 2 * n_in * each, row, n_in * each);
		for (size_t r = 0; r < n_rows; r++)
			for (size_t k = 0; k < n_in; k++)
				((float *)(void *)x.p)[r * (n_in + 1) + k] = random_unit(&seed);
		od_matmul_range(be, &m, (float *)(void *)x.p, n_in + 1, (float *)(void *)y.p, 5, n_rows, 0, 5);
		for (size_t r = 0; r < n_rows; r++)
			assert_true(isfinite(((float *)(void *)y.p)[r * 5 + 2]));
		munmap(w.map, w.map_len), munmap(x.map, x.map_len), munmap(y.map, y.map_len);
		free(row);
	}
}

static void dot_bits(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 15;

	for (size_t n = 0; n < 200; n++) {
		for (int kind = 0; kind < N_KINDS; kind++) {
			float *a = random_row(&seed, n, (enum kind)kind), *b = random_row(&seed, n, (enum kind)kind);
			float want = one_nan(lanes_dot(OD_F32, a, 0, b, n)), got = be->dot(a, b, n);

			assert_bits("dot", &got, &want, 1);
			free(a), free(b);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_ALL_TABLES(matmul_bits),	     ON_ALL_TABLES(matmul_every_half),
		ON_ALL_TABLES(matmul_accuracy),	     ON_ALL_TABLES(matmul_independence),
		ON_ALL_TABLES(matmul_blocks),	     ON_ALL_TABLES(dot_bits),
		ON_ALL_TABLES(matmul_negative_zero), ON_ALL_TABLES(matmul_stays_inside),
		ON_ALL_TABLES(matmul_every_byte),    ON_ALL_TABLES(matmul_of_bytes_is_of_bf16),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
