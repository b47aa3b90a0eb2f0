/* OD_OP_FFN against plain double arithmetic, OD_OP_EXPERTS and the resident runner against one expert at a time. */
#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/compute/scratch.h"
#include "common/model/resident.h"
#include "tests/unit/device_util.h"
#include "tests/unit/tiny_model.h"

#define ROWS 9
#define WIDEST 64 /* the tiny models' longest row */

struct expert_ffn_bench {
	struct tiny_model t;
	struct od_device *device;
	struct tiny_weights w;
	struct od_buf *x_at, *y_at, *scratch;
	float *x, *y; /* [ROWS][hidden] */
	bool not_routed; /* run_ffn runs a dense layer's network, or shared experts */
};

static void setup(struct expert_ffn_bench *b, const char *name, enum od_profile profile, unsigned threads)
{
	size_t n;

	b->not_routed = false;
	tiny_load_named(&b->t, name);
	b->t.profile = profile;
	b->device = device_new(OD_CPU_AUTO, threads);
	tiny_put(&b->w, &b->t, b->device);
	n = ROWS * b->t.cfg.hidden;
	assert_true(b->t.cfg.hidden <= WIDEST && b->t.cfg.intermediate <= WIDEST);
	b->x = od_alloc_array(n, sizeof(float));
	b->y = od_alloc_array(n, sizeof(float));
	assert_true(b->x != NULL && b->y != NULL);
	for (size_t i = 0; i < n; i++)
		b->x[i] = od_bf16_f32(od_f32_bf16((float)tiny_draw(3, 99, i, 1000) / 300.0f));
	b->x_at = buf_of(b->device, b->x, n * sizeof(float));
	b->y_at = buf_new(b->device, n * sizeof(float));
	b->scratch = buf_new(b->device, od_ffn_scratch_bytes(b->t.cfg.intermediate, ROWS));
}

static void teardown(struct expert_ffn_bench *b)
{
	od_free(b->x);
	od_free(b->y);
	od_buf_free(b->x_at);
	od_buf_free(b->y_at);
	od_buf_free(b->scratch);
	tiny_weights_free(&b->w);
	od_device_free(b->device);
	tiny_unload(&b->t);
}

/* Rows [first, first + n) of x through an expert. */
static void run_ffn(struct expert_ffn_bench *b, const struct od_expert *e, size_t first, uint32_t n, float *y)
{
	const size_t row = b->t.cfg.hidden * sizeof(float);
	const struct od_ffn_segment segment = od_expert_segment(e, n);
	const struct od_op op = { .kind = OD_OP_FFN,
				  .profile = b->t.profile,
				  .n_rows = n,
				  .ffn = { .segment = &segment,
					   .n_segments = 1,
					   .routed = !b->not_routed,
					   .x = od_buf_ref(b->x_at, first * row),
					   .y = od_buf_ref(b->y_at, 0),
					   .scratch = od_buf_ref(b->scratch, 0) } };

	run_op(b->device, &op);
	get_at(b->device, y, od_buf_ref(b->y_at, 0), n * row);
}

static double weight_at(const struct od_mat *w, size_t o, size_t i)
{
	size_t at = o * w->n_in + i;

	if (w->dtype == OD_BF16)
		return (double)od_bf16_f32(((const uint16_t *)w->data)[at]);
	if (w->dtype == OD_F16)
		return (double)od_f16_f32(((const uint16_t *)w->data)[at]);
	if (w->dtype == OD_F32)
		return (double)((const float *)w->data)[at];
	assert_int_equal(w->dtype, OD_INT8);
	return (double)((const int8_t *)w->data)[at] * (double)w->scale[o];
}

/* The matrix on the host; free data and scale. */
static struct od_mat host_mat(struct od_device *d, const struct od_weight *w)
{
	return (struct od_mat){
		.dtype = w->dtype,
		.n_out = w->n_out,
		.n_in = w->n_in,
		.data = copy_at(d, w->data, w->n_out * w->n_in * od_dtype_bytes(w->dtype)),
		.scale = w->scale.buf != NULL ? copy_at(d, w->scale, w->n_out * sizeof(float)) : NULL,
	};
}

static double project(const struct od_mat *w, size_t o, const double *x)
{
	double sum = 0;

	for (size_t i = 0; i < w->n_in; i++)
		sum += weight_at(w, o, i) * x[i];
	return sum;
}

static void reference(const struct od_mat *mat, const float *x, double *y)
{
	const struct od_mat *gate = &mat[OD_MAT_GATE], *up = &mat[OD_MAT_UP], *down = &mat[OD_MAT_DOWN];
	double in[WIDEST], mid[WIDEST];

	for (size_t i = 0; i < gate->n_in; i++)
		in[i] = (double)x[i];
	for (size_t o = 0; o < gate->n_out; o++) {
		double g = project(gate, o, in);

		mid[o] = g / (1 + exp(-g)) * project(up, o, in);
	}
	for (size_t o = 0; o < down->n_out; o++)
		y[o] = project(down, o, mid);
}

/* Largest error over largest value. */
static double ffn_error(struct expert_ffn_bench *b, const struct od_expert *e)
{
	size_t hidden = b->t.cfg.hidden;
	double worst = 0, largest = 0, y[WIDEST];
	struct od_mat mat[OD_N_EXPERT_MATS];

	for (int i = 0; i < OD_N_EXPERT_MATS; i++)
		mat[i] = host_mat(b->device, &e->mat[i]);
	run_ffn(b, e, 0, ROWS, b->y);
	for (size_t r = 0; r < ROWS; r++) {
		reference(mat, b->x + r * hidden, y);
		for (size_t i = 0; i < hidden; i++) {
			double d = fabs(y[i] - (double)b->y[r * hidden + i]);

			worst = d > worst || isnan(d) ? d : worst;
			largest = fabs(y[i]) > largest ? fabs(y[i]) : largest;
		}
	}
	for (int i = 0; i < OD_N_EXPERT_MATS; i++) {
		free((void *)(uintptr_t)mat[i].data);
		free((void *)(uintptr_t)mat[i].scale);
	}
	assert_true(largest > 0.1);
	return worst / largest;
}

static void test_formats(void **state)
{
	/* BF16, F16, F32, INT8 experts. */
	static const char *const cases[] = { "grouped_queries", "wide_heads_window_tied", "all_experts", "quantised" };

	(void)state;
	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		struct expert_ffn_bench b;

		setup(&b, cases[c], OD_PROFILE_F32, 1);
		for (uint32_t e = 0; e < b.t.cfg.n_experts; e++)
			assert_true(ffn_error(&b, &b.w.experts[e]) < 1e-5);
		teardown(&b);
	}
}

static void test_profile_bf16_rounds_outputs(void **state)
{
	struct expert_ffn_bench b;
	double error;

	(void)state;
	setup(&b, "grouped_queries", OD_PROFILE_BF16, 1);
	error = ffn_error(&b, &b.w.experts[1]);
	assert_true(error < 0x1p-8 && error > 1e-5);
	for (size_t i = 0; i < ROWS * b.t.cfg.hidden; i++)
		assert_int_equal(od_f32_bits(b.y[i]) & 0xffff, 0);
	teardown(&b);
}

/* Only what a worker would send is rounded. */
static void test_not_routed_keeps_f32(void **state)
{
	static const enum od_profile profiles[] = { OD_PROFILE_F32, OD_PROFILE_BF16 };

	(void)state;
	for (size_t p = 0; p < 2; p++) {
		struct expert_ffn_bench b;
		size_t n, rounded = 0;
		float *plain;

		setup(&b, "grouped_queries", profiles[p], 1);
		n = ROWS * b.t.cfg.hidden;
		plain = od_alloc_array(n, sizeof(*plain));
		assert_non_null(plain);
		b.not_routed = true;
		assert_true(ffn_error(&b, &b.w.experts[1]) < (profiles[p] == OD_PROFILE_F32 ? 1e-5 : 0x1p-8));
		memcpy(plain, b.y, n * sizeof(*plain));
		b.not_routed = false;
		run_ffn(&b, &b.w.experts[1], 0, ROWS, b.y);
		for (size_t i = 0; i < n; i++) {
			assert_true(b.y[i] ==
				    (profiles[p] == OD_PROFILE_F32 ? plain[i] : od_bf16_f32(od_f32_bf16(plain[i]))));
			rounded += b.y[i] != plain[i];
		}
		assert_true(profiles[p] == OD_PROFILE_F32 ? rounded == 0 : rounded > n / 2);
		od_free(plain);
		teardown(&b);
	}
}

/* Batches and threads leave every bit as it is. */
static void test_rows_are_independent(void **state)
{
	static const enum od_profile profiles[] = { OD_PROFILE_F32, OD_PROFILE_BF16 };

	(void)state;
	for (size_t p = 0; p < 2; p++) {
		struct expert_ffn_bench b, many;
		float one[WIDEST];

		setup(&b, "grouped_queries", profiles[p], 1);
		setup(&many, "grouped_queries", profiles[p], 3);
		(void)ffn_error(&b, &b.w.experts[2]);
		(void)ffn_error(&many, &many.w.experts[2]);
		assert_memory_equal(b.y, many.y, ROWS * b.t.cfg.hidden * sizeof(float));
		for (size_t r = 0; r < ROWS; r++) {
			run_ffn(&b, &b.w.experts[2], r, 1, one);
			assert_memory_equal(one, b.y + r * b.t.cfg.hidden, b.t.cfg.hidden * sizeof(float));
		}
		teardown(&many);
		teardown(&b);
	}
}

/* Sizes that nobody has are large, not small. */
static void test_scratch_overflow(void **state)
{
	const uint64_t large = (uint64_t)1 << 60;

	(void)state;
	assert_true(od_ffn_scratch_bytes(1u << 20, 3) >= 2 * 3 * (size_t)(1u << 20) * sizeof(float));
	assert_true(od_ffn_scratch_bytes(1u << 20, SIZE_MAX / 2) >= large);
	assert_true(od_experts_scratch_bytes(8, 1u << 20, 4, 2, 3) >=
		    od_ffn_scratch_bytes(1u << 20, 3) + 2 * 3 * 8 * sizeof(float) + (4 + 3 * 2) * sizeof(uint32_t));
	assert_true(od_experts_scratch_bytes(1, 1u << 31, 1, 1, (size_t)1 << 31) >= large);
	assert_true(od_experts_scratch_bytes(1u << 31, 1, 1, 1, (size_t)1 << 31) >= large);
	assert_true(od_experts_scratch_bytes(1, 1, 1, 1u << 31, (size_t)1 << 31) >= large);
	for (uint32_t shift = 0; shift < 32; shift++) { /* up to there more rows need no less */
		uint64_t before = 0;

		for (uint32_t rows = 0; rows < 64; rows++) {
			uint64_t bytes = od_experts_scratch_bytes(1, 1u << shift, 1, 1, (size_t)1 << rows);

			assert_true(bytes >= before);
			before = bytes < large ? bytes : large;
		}
	}
}

/* A call of the resident runner: rows, choices and outputs are on the device. */
struct resident_bench {
	struct expert_ffn_bench b;
	struct od_forward_opts opts;
	struct od_expert_runner *runner;
	struct od_buf *choice, *y;
};

static void resident_setup(struct resident_bench *r)
{
	struct expert_ffn_bench *b = &r->b;
	struct od_err err = { 0 };

	setup(b, "top3_mixed_formats", OD_PROFILE_F32, 2);
	r->opts = (struct od_forward_opts){ .config = &b->t.cfg,
					    .dense = &b->w.dense,
					    .device = b->device,
					    .profile = b->t.profile,
					    .max_rows = ROWS };
	must(od_resident_new(&r->runner, &r->opts, b->w.experts, &err), &err);
	assert_true(r->runner->on_device);
	assert_true(od_resident_bytes(&r->opts) >= od_experts_scratch_bytes(b->t.cfg.hidden, b->t.cfg.intermediate,
									    b->t.cfg.n_experts, b->t.cfg.top_k, ROWS));
	r->choice = buf_new(b->device, ROWS * 3 * sizeof(uint16_t));
	r->y = buf_new(b->device, ROWS * 3 * b->t.cfg.hidden * sizeof(float));
}

static void resident_teardown(struct resident_bench *r)
{
	od_resident_free(r->runner);
	od_buf_free(r->choice);
	od_buf_free(r->y);
	teardown(&r->b);
}

static struct od_moe_call call_of(const struct resident_bench *r, uint32_t m, size_t n_rows)
{
	return (struct od_moe_call){ .m = m,
				     .n_rows = n_rows,
				     .x_at = od_buf_ref(r->b.x_at, 0),
				     .expert_at = od_buf_ref(r->choice, 0),
				     .y_at = od_buf_ref(r->y, 0) };
}

/* Each (row, rank) gets its own expert's output, whatever else is in the call. */
static void test_resident(void **state)
{
	struct resident_bench r;
	struct expert_ffn_bench *b = &r.b;
	uint16_t expert[ROWS][3];
	size_t hidden;
	float *y, one[WIDEST];

	(void)state;
	resident_setup(&r);
	hidden = b->t.cfg.hidden;
	for (uint32_t m = 0; m < b->t.cfg.n_layers; m++) {
		const struct od_moe_call call = call_of(&r, m, ROWS);

		for (size_t row = 0; row < ROWS; row++) /* expert 7 for all rows, expert 0 for one, 6 for none */
			for (size_t k = 0; k < 3; k++)
				expert[row][k] = (uint16_t)(k == row % 3       ? 7 :
							    row == 4 && k == 2 ? 0 :
										 1 + (row + k + m) % 5);
		put_at(b->device, call.expert_at, expert, sizeof(expert));
		assert_int_equal(r.runner->submit(r.runner, &call, NULL), OD_OK);
		sync_device(b->device);
		y = copy_at(b->device, call.y_at, ROWS * 3 * hidden * sizeof(*y));
		for (size_t row = 0; row < ROWS; row++) {
			for (size_t k = 0; k < 3; k++) {
				run_ffn(b, &b->w.experts[m * b->t.cfg.n_experts + expert[row][k]], row, 1, one);
				assert_memory_equal(one, y + (row * 3 + k) * hidden, hidden * sizeof(float));
			}
		}
		free(y);
	}
	resident_teardown(&r);
}

/* Bad choices show when the operation is done; other mistakes are known to the host at once. */
static void refuse_choices(struct resident_bench *r, size_t n_rows, const uint16_t *expert, const char *text)
{
	const struct od_moe_call call = call_of(r, 0, n_rows);
	struct od_err err = { 0 };

	put_at(r->b.device, call.expert_at, expert, n_rows * 3 * sizeof(*expert));
	assert_int_equal(r->runner->submit(r->runner, &call, NULL), OD_OK);
	if (text == NULL) {
		sync_device(r->b.device);
		return;
	}
	assert_int_equal(od_device_sync(r->b.device, &err), OD_ERR_RANGE);
	if (strstr(err.msg, text) == NULL)
		fail_msg("\"%s\" does not say \"%s\"", err.msg, text);
}

static void test_resident_refuses(void **state)
{
	struct resident_bench r;
	uint16_t expert[] = { 0, 1, 2, 3, 8, 5 }, twice[] = { 4, 4, 4 };
	struct od_moe_call call;
	struct od_err err;

	(void)state;
	resident_setup(&r);
	refuse_choices(&r, 2, expert, "0 to 7, found 8");
	expert[4] = 7;
	refuse_choices(&r, 2, expert, NULL);
	refuse_choices(&r, 1, twice, "expert 4 twice");
	call = call_of(&r, r.b.t.cfg.n_layers, 2);
	assert_int_equal(r.runner->submit(r.runner, &call, &err), OD_ERR_RANGE);
	call = call_of(&r, 0, ROWS + 1);
	assert_int_equal(r.runner->submit(r.runner, &call, &err), OD_ERR_RANGE);
	sync_device(r.b.device); /* refused calls have queued nothing */
	od_resident_free(r.runner);
	r.opts.max_rows = UINT32_MAX; /* three choices each */
	assert_int_equal(od_resident_new(&r.runner, &r.opts, r.b.w.experts, &err), OD_ERR_RANGE);
	assert_null(r.runner);
	resident_teardown(&r);
}

static int close_file(void **state)
{
	(void)state;
	tiny_close();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_formats),
		cmocka_unit_test(test_profile_bf16_rounds_outputs),
		cmocka_unit_test(test_not_routed_keeps_f32),
		cmocka_unit_test(test_rows_are_independent),
		cmocka_unit_test(test_scratch_overflow),
		cmocka_unit_test(test_resident),
		cmocka_unit_test(test_resident_refuses),
	};

	return cmocka_run_group_tests(tests, NULL, close_file);
}
