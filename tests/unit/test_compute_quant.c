/* Products with quantised weights: the bits that quant.h promises, from every table; over threads and batches of
 * rows. */
#include "common/compute/cpu/matmul.h"
#include "common/compute/quant.h"
#include "tests/unit/compute_util.h"
#include "tests/unit/quant_table.h"

BARE_TABLES;

enum format { INT8, NF4, N_FORMATS };
static const char *const format_names[] = { "INT8", "NF4" };

struct compute_quant_data {
	struct od_mat w;
	void *weights;
	float *scale, *x, *y, *want;
	size_t n_rows, y_len;
};

/* --- the definition once more, in the plainest way --- */

static size_t n_groups(size_t n_in)
{
	return n_in / 64 + (n_in % 64 != 0);
}

static unsigned nf4_code(const struct od_mat *w, size_t o, size_t k)
{
	const uint8_t *row = (const uint8_t *)w->data + o * ((w->n_in + 127) / 128 * 64);
	size_t in_piece = k % 128, word = in_piece % 16, j = in_piece % 64 / 16 * 2 + in_piece / 64;

	return row[k / 128 * 64 + 4 * word + j / 2] >> 4 * (j % 2) & 15;
}

static float value_at(const struct od_mat *w, size_t o, size_t k)
{
	return w->dtype == OD_NF4 ? od_nf4_values[nf4_code(w, o, k)] :
				    (float)((const int8_t *)w->data)[o * w->n_in + k];
}

static float scale_at(const struct od_mat *w, size_t o, size_t g)
{
	return w->scale[w->dtype == OD_NF4 ? o * n_groups(w->n_in) + g : o];
}

static float plain_dot(const struct od_mat *w, size_t o, const float *x)
{
	float lane[16] = { 0 };

	if (w->dtype == OD_INT8)
		return one_nan(lanes_dot(OD_INT8, w->data, o * w->n_in, x, w->n_in) * w->scale[o]);
	for (size_t g = 0; g < n_groups(w->n_in); g++) {
		float partial[16] = { 0 };

		for (size_t k = 64 * g; k < w->n_in && k < 64 * g + 64; k++)
			partial[k % 16] = fmaf(od_nf4_values[nf4_code(w, o, k)], x[k], partial[k % 16]);
		for (int i = 0; i < 16; i++)
			lane[i] = fmaf(partial[i], scale_at(w, o, g), lane[i]);
	}
	return one_nan(fold16(lane));
}

/* Block b of x: its scale, and its numbers in order. */
static float plain_round(const float *x, size_t n, size_t b, int q[64])
{
	float most = 0, scale;
	bool finite = true;

	memset(q, 0, 64 * sizeof(*q));
	for (size_t k = 64 * b; k < n && k < 64 * b + 64; k++) {
		finite = finite && isfinite(x[k]);
		most = fabsf(x[k]) > most ? fabsf(x[k]) : most;
	}
	scale = most / 127.0f;
	for (size_t k = 64 * b; finite && scale > 0 && k < n && k < 64 * b + 64; k++) {
		float quotient = x[k] / scale;

		q[k % 64] = quotient > 127 ? 127 : quotient < -127 ? -127 : (int)nearbyint((double)quotient);
	}
	return finite ? scale : NAN;
}

static float plain_dot_int8(const struct od_mat *w, size_t o, const float *x)
{
	float lane[16] = { 0 };

	for (size_t g = 0; g < n_groups(w->n_in); g++) {
		int q[64], sum[16] = { 0 };
		float scale = plain_round(x, w->n_in, g, q);

		for (size_t k = 64 * g; k < w->n_in && k < 64 * g + 64; k++) {
			if (w->dtype == OD_NF4)
				sum[k % 16] += od_nf4_int8[nf4_code(w, o, k)] * q[k % 64];
			else
				sum[k % 64 / 4] += ((const int8_t *)w->data)[o * w->n_in + k] * q[k % 64];
		}
		scale = w->dtype == OD_NF4 ? scale / 127.0f : scale;
		for (int i = 0; i < 16; i++)
			lane[i] = fmaf((float)sum[i], scale * scale_at(w, o, g), lane[i]);
	}
	return one_nan(fold16(lane));
}

/* --- matrices and rows --- */

static struct compute_quant_data data_new(uint64_t *seed, enum format f, size_t n_in, size_t n_out, size_t n_rows,
					  enum kind kind)
{
	size_t groups = n_groups(n_in), n_scales = f == INT8 ? n_out : n_out * groups;
	struct compute_quant_data d = { .w = { .dtype = f == INT8 ? OD_INT8 : OD_NF4, .n_out = n_out, .n_in = n_in },
					.n_rows = n_rows,
					.y_len = n_rows * n_out };

	/* Bytes at random are codes of either kind; NF4's beyond n_in are not the zeros of quant.h, and do not
	 * count. */
	d.weights = random_weights(seed, OD_INT8, n_out * od_row_bytes(d.w.dtype, n_in), kind);
	d.w.data = d.weights;
	d.w.scale = d.scale = random_row(seed, n_scales, kind);
	d.x = random_row(seed, n_rows * n_in, kind);
	d.y = exact(d.y_len, sizeof(float));
	d.want = exact(d.y_len, sizeof(float));
	for (size_t i = 0; i < d.y_len; i++)
		d.y[i] = d.want[i] = 7777;
	return d;
}

static void data_free(struct compute_quant_data *d)
{
	free(d->weights), free(d->scale), free(d->x), free(d->y), free(d->want);
}

static void run(const struct od_backend *be, struct compute_quant_data *d, enum od_activations act)
{
	d->w.act = act;
	od_matmul(be, NULL, &d->w, d->x, d->y, d->n_rows);
}

static void check_plain(const struct od_backend *be, struct compute_quant_data *d, enum format f,
			enum od_activations act)
{
	char what[64];

	for (size_t r = 0; r < d->n_rows; r++)
		for (size_t o = 0; o < d->w.n_out; o++)
			d->want[r * d->w.n_out + o] = act == OD_ACT_INT8 ?
							      plain_dot_int8(&d->w, o, d->x + r * d->w.n_in) :
							      plain_dot(&d->w, o, d->x + r * d->w.n_in);
	run(be, d, act);
	snprintf(what, sizeof(what), "%s, %s rows of %zu", format_names[f], act == OD_ACT_INT8 ? "INT8" : "f32",
		 d->w.n_in);
	assert_bits(what, d->y, d->want, d->y_len);
}

/* --- tests --- */

static void golden(void **state)
{
	static const float *const want[2][N_FORMATS] = { { NULL, qt_y_nf4 }, { qt_y8_row, qt_y8_nf4 } };
	const struct od_backend *be = table_of(state);
	float y[QT_ROWS * QT_OUT];

	for (int act = 0; act < 2; act++) {
		for (int f = 0; f < N_FORMATS; f++) {
			struct od_mat w = { .dtype = f == INT8 ? OD_INT8 : OD_NF4,
					    .n_out = QT_OUT,
					    .n_in = QT_IN,
					    .data = f == INT8 ? (const void *)qt_int8 : qt_nf4,
					    .scale = qt_scale,
					    .act = (enum od_activations)act };

			if (want[act][f] == NULL)
				continue;
			od_matmul(be, NULL, &w, qt_x, y, QT_ROWS);
			assert_bits(format_names[f], y, want[act][f], QT_ROWS * QT_OUT);
		}
	}
}

static void any_shape(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 21;

	for (size_t n_in = 1; n_in <= 700; n_in += n_in < 20 ? 1 : n_in < 300 ? 13 : 71) {
		for (int f = 0; f < N_FORMATS; f++) {
			for (int kind = 0; kind < N_KINDS; kind++) {
				struct compute_quant_data d =
					data_new(&seed, (enum format)f, n_in, 1 + random_below(&seed, 9),
						 1 + random_below(&seed, 9), (enum kind)kind);

				check_plain(be, &d, (enum format)f, OD_ACT_F32);
				check_plain(be, &d, (enum format)f, OD_ACT_INT8);
				data_free(&d);
			}
		}
	}
}

/* More rows and outputs than a block of weights holds. */
static void large_shapes(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 22;

	for (size_t n_rows = 1; n_rows <= 7; n_rows += 6) {
		for (int f = 0; f < N_FORMATS; f++) {
			struct compute_quant_data d = data_new(&seed, (enum format)f, 9001, 21, n_rows, PLAIN);

			check_plain(be, &d, (enum format)f, OD_ACT_F32);
			check_plain(be, &d, (enum format)f, OD_ACT_INT8);
			data_free(&d);
		}
	}
}

/* Against sums in double of dequantised weights. Rounding the rows to INT8 costs half a step for each number, rounding
 * NF4's values half a 127th more. */
static void accuracy(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 23;

	for (int f = 0; f < N_FORMATS; f++) {
		for (int act = 0; act < 2; act++) {
			struct compute_quant_data d = data_new(&seed, (enum format)f, 1777, 13, 3, PLAIN);

			run(be, &d, (enum od_activations)act);
			for (size_t i = 0; i < d.y_len; i++) {
				const float *x = d.x + i / 13 * 1777;
				double sum = 0, size = 0, bound;

				for (size_t k = 0; k < 1777; k++) {
					double s = (double)scale_at(&d.w, i % 13, k / 64);

					sum += (double)value_at(&d.w, i % 13, k) * s * (double)x[k];
					size += fabs((double)value_at(&d.w, i % 13, k) * s);
					size += f == NF4 ? fabs(s) : 0;
				}
				bound = size * (act == OD_ACT_INT8 ? 0.5 / 127 : 0x1p-24 * 120);
				if (!(fabs((double)d.y[i] - sum) <= bound))
					fail_msg("%s, output %zu: expected %.9g, found %.9g", format_names[f], i, sum,
						 (double)d.y[i]);
			}
			data_free(&d);
		}
	}
}

/* Every weight alone: y is value * scale, rounded once. */
static void every_weight(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 24;

	for (int f = 0; f < N_FORMATS; f++) {
		struct compute_quant_data d = data_new(&seed, (enum format)f, 300, 3, 300, PLAIN);

		for (size_t i = 0; i < 300 * 300; i++)
			d.x[i] = i / 300 == i % 300;
		run(be, &d, OD_ACT_F32);
		for (size_t k = 0; k < 300; k++)
			for (size_t o = 0; o < 3; o++)
				d.want[3 * k + o] = value_at(&d.w, o, k) * scale_at(&d.w, o, k / 64) +
						    (f == INT8 ? -0.0f : 0.0f); /* the sum began with +0 */
		assert_bits(format_names[f], d.y, d.want, d.y_len);
		data_free(&d);
	}
}

/* Inputs beyond the end add nothing to a group's sum: not even +0 to one that is -0. */
static void short_group_negative_zero(void **state)
{
	const struct od_backend *be = table_of(state);
	const float scale[2] = { 0x1p-100f, 1 };
	uint8_t pieces[64];
	float x[64 + 24], y;
	struct od_mat w = { .dtype = OD_NF4, .n_out = 1, .n_in = 64 + 24, .data = pieces, .scale = scale };

	memset(pieces, 0x8f, sizeof(pieces)); /* 1 in the first group, 0.08 in the second */
	for (size_t k = 0; k < w.n_in; k++)
		x[k] = k < 64 ? -0x1p-100f : -0x1p-149f;
	od_matmul(be, NULL, &w, x, &y, 1);
	assert_int_equal(od_f32_bits(y), 0x80000000u);
}

static void rounding_rows(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 25;

	for (int round = 0; round < 600; round++) {
		size_t n = 1 + random_below(&seed, 300), blocks = n_groups(n);
		float *x = random_row(&seed, n, (enum kind)(round % N_KINDS)), *scale = exact(blocks, sizeof(float));
		int8_t *q = exact(blocks, 64);

		for (size_t i = 0; i < n && round % 5 == 4; i++) /* scales of few bits: quotients pass 127 */
			x[i] = random_unit(&seed) * 0x1p-141f;
		for (int nf4 = 0; nf4 < 2; nf4++) {
			be->round_int8(q, scale, x, n, nf4 ? OD_NF4 : OD_INT8);
			for (size_t b = 0; b < blocks; b++) {
				int want[64];
				float s = one_nan(plain_round(x, n, b, want));

				s = nf4 ? one_nan(s / 127.0f) : s;
				assert_bits("scale", scale + b, &s, 1);
				for (size_t k = 0; k < 64; k++)
					assert_int_equal(q[64 * b + (nf4 ? k % 16 * 4 + k / 16 : k)], want[k]);
			}
		}
		free(x), free(scale), free(q);
	}
}

/* One infinity or NaN: a NaN of known bits in all of its row, nothing in the others. */
static void rows_without_number(void **state)
{
	static const uint32_t odd[] = { 0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc12345u, 0x7f812345u };
	const struct od_backend *be = table_of(state);
	uint64_t seed = 26;

	for (int f = 0; f < N_FORMATS; f++) {
		for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
			struct compute_quant_data d = data_new(&seed, (enum format)f, 197, 5, 3, PLAIN);

			run(be, &d, OD_ACT_INT8);
			memcpy(d.want, d.y, d.y_len * sizeof(float));
			d.x[197 + random_below(&seed, 197)] = od_bits_f32(odd[i]);
			for (size_t o = 0; o < 5; o++)
				d.want[5 + o] = od_bits_f32(0x7fc00000u);
			run(be, &d, OD_ACT_INT8);
			assert_bits(format_names[f], d.y, d.want, d.y_len);
			data_free(&d);
		}
	}
}

/* Any number of threads, and more rows than are rounded at a time, give the same bits. */
static void threads_and_batches(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 27;

	for (int f = 0; f < N_FORMATS; f++) {
		struct compute_quant_data d = data_new(&seed, (enum format)f, 33000, 9, 8, PLAIN), one;

		for (int act = 0; act < 2; act++) {
			d.w.act = (enum od_activations)act;
			for (size_t r = 0; r < d.n_rows; r++)
				od_matmul(be, NULL, &d.w, d.x + r * 33000, d.want + r * 9, 1);
			for (unsigned threads = 1; threads <= 3; threads++) {
				struct od_pool *pool;

				assert_int_equal(od_pool_new(&pool, threads, "test", NULL), OD_OK);
				memset(d.y, 0xff, d.y_len * sizeof(float));
				od_matmul(be, pool, &d.w, d.x, d.y, d.n_rows);
				assert_bits(format_names[f], d.y, d.want, d.y_len);
				od_pool_free(pool);
			}
		}
		one = d;
		one.n_rows = one.w.n_out = one.y_len = 1;
		check_plain(be, &one, (enum format)f, OD_ACT_INT8);
		data_free(&d);
	}
}

/* Rows are rounded where the table says so, for weights that it says it of. */
static void faster_rows(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 30;

	for (int f = 0; f < N_FORMATS; f++) {
		struct compute_quant_data d = data_new(&seed, (enum format)f, 300, 9, 2, PLAIN);

		run(be, &d, f == NF4 && be->nf4_likes_int8 ? OD_ACT_INT8 : OD_ACT_F32);
		memcpy(d.want, d.y, d.y_len * sizeof(float));
		run(be, &d, OD_ACT_FASTER);
		assert_bits(format_names[f], d.y, d.want, d.y_len);
		run(be, &d, f == NF4 && be->nf4_likes_int8 ? OD_ACT_F32 : OD_ACT_INT8);
		assert_true(memcmp(d.y, d.want, d.y_len * sizeof(float)) != 0);
		data_free(&d);
	}
}

/* Rows too long to be rounded on the stack are used as they are. */
static void longest_rows(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 28;

	for (size_t n_in = OD_ACT8_MAX_IN; n_in <= OD_ACT8_MAX_IN + 1; n_in++) {
		struct compute_quant_data d = data_new(&seed, NF4, n_in, 2, 2, PLAIN);

		run(be, &d, OD_ACT_F32);
		memcpy(d.want, d.y, d.y_len * sizeof(float));
		run(be, &d, OD_ACT_INT8);
		assert_true((memcmp(d.y, d.want, d.y_len * sizeof(float)) == 0) == (n_in > OD_ACT8_MAX_IN));
		data_free(&d);
	}
}

static void *fence(struct fenced *f, const void *data, size_t bytes)
{
	*f = fenced_new(bytes);
	memcpy(f->p, data, bytes);
	return f->p;
}

/* No byte behind weights, scales, rows or results is read or written. */
static void stays_inside(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 29;

	for (size_t n_in = 1; n_in <= 280; n_in += 3) {
		enum format f = (enum format)(n_in % N_FORMATS);
		size_t n_rows = 1 + n_in % 7, groups = n_groups(n_in);
		struct compute_quant_data d = data_new(&seed, f, n_in, 5, n_rows, PLAIN);
		struct fenced w, scale, x, y, q, q_scale;
		struct od_act8 act8;

		d.w.data = fence(&w, d.weights, 5 * od_row_bytes(d.w.dtype, n_in));
		d.w.scale = fence(&scale, d.scale, (f == INT8 ? 5 : 5 * groups) * sizeof(float));
		fence(&x, d.x, n_rows * n_in * sizeof(float));
		fence(&y, d.y, d.y_len * sizeof(float));
		q = fenced_new(n_rows * groups * 64), q_scale = fenced_new(n_rows * groups * sizeof(float));
		act8 = (struct od_act8){ (int8_t *)q.p, (float *)(void *)q_scale.p };
		od_matmul_range(be, &d.w, (float *)(void *)x.p, n_in, (float *)(void *)y.p, 5, n_rows, 0, 5);
		run(be, &d, OD_ACT_F32);
		assert_memory_equal(y.p, d.y, d.y_len * sizeof(float));
		for (size_t r = 0; r < n_rows; r++)
			be->round_int8((int8_t *)q.p + r * groups * 64, (float *)(void *)q_scale.p + r * groups,
				       (float *)(void *)x.p + r * n_in, n_in, d.w.dtype);
		be->matmul_int8(&d.w, &act8, (float *)(void *)y.p, 5, n_rows, 0, 5);
		run(be, &d, OD_ACT_INT8);
		assert_memory_equal(y.p, d.y, d.y_len * sizeof(float));
		munmap(w.map, w.map_len), munmap(scale.map, scale.map_len);
		munmap(x.map, x.map_len), munmap(y.map, y.map_len), munmap(q.map, q.map_len);
		munmap(q_scale.map, q_scale.map_len);
		data_free(&d);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_ALL_TABLES(golden),
		ON_ALL_TABLES(any_shape),
		ON_ALL_TABLES(large_shapes),
		ON_ALL_TABLES(accuracy),
		ON_ALL_TABLES(every_weight),
		ON_ALL_TABLES(rounding_rows),
		ON_ALL_TABLES(longest_rows),
		ON_ALL_TABLES(rows_without_number),
		ON_ALL_TABLES(stays_inside),
		ON_ALL_TABLES(threads_and_batches),
		ON_ALL_TABLES(short_group_negative_zero),
		ON_ALL_TABLES(faster_rows),
		ON_BARE_TABLES(golden),
		ON_BARE_TABLES(any_shape),
		ON_BARE_TABLES(stays_inside),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
