/* Errors of a device's operations (ops.h) against float64: at most twice those of the scalar kernels, which other tests
 * compare bits with. So a device whose sums have another order is measured by what that costs, not by its bits. */
#include <math.h>

#include "common/compute/cpu/matmul.h"
#include "common/compute/scratch.h"
#include "tests/unit/ops_bench.h"

#define MANY 2048u /* long rows: their sums have errors */

static const struct od_backend *scalar(void)
{
	const struct od_backend *be;

	assert_int_equal(od_backend_cpu(&be, OD_CPU_SCALAR, OD_PROFILE_F32, NULL), OD_OK);
	return be;
}

static double most_error(const float *y, const double *want, size_t n)
{
	double most = 0;

	for (size_t i = 0; i < n; i++)
		most = fmax(most, fabs((double)y[i] - want[i]));
	return most;
}

/* The operation's y [n] and what the scalar kernels made of the same operands (in b->want), against want [n]. */
static void compare(struct ops_bench *b, struct od_op *op, struct od_ref y, const double *want, size_t n,
		    const char *what)
{
	const double allowed = 2 * most_error(wanted(b, y), want, n);
	double found;
	float *got;

	op->profile = OD_PROFILE_F32;
	put_at(b->d, od_buf_ref(b->arena, 0), b->image, b->used);
	run_op(b->d, op);
	got = copy_at(b->d, y, n * sizeof(*got));
	found = most_error(got, want, n);
	free(got);
	if (!(allowed > 0))
		fail_msg("%s: the scalar kernels have no error: this tests nothing", what);
	if (!(found <= allowed))
		fail_msg("%s: error against float64: expected at most %g, found %g", what, allowed, found);
}

static double *doubles(size_t n)
{
	return exact(n, sizeof(double));
}

static const float *image_f32(const struct ops_bench *b, struct od_ref at)
{
	return (const float *)(const void *)(b->image + at.at);
}

/* y [n_out] += the matrix times x. */
static void times(const struct weight *w, const double *x, double *y)
{
	float *row = exact(w->w.n_in, sizeof(*row));

	for (size_t o = 0; o < w->w.n_out; o++) {
		y[o] = 0;
		od_dequant_row(&w->m, o, row);
		for (size_t i = 0; i < w->w.n_in; i++)
			y[o] += (double)row[i] * x[i];
	}
	free(row);
}

static void linear(void **state)
{
	static const enum weight_kind kinds[] = { W_BF16, W_F16, W_F32, W_E4M3, W_U4B8 };

	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		enum { OUT = 24 };
		struct od_op op = { .kind = OD_OP_LINEAR, .n_rows = ROWS };
		double *want = doubles(ROWS * OUT), *x = doubles(MANY);
		struct weight w;
		struct ops_bench b;

		bench_open(&b, state, OD_PROFILE_F32);
		lay_weight(&b, &w, kinds[k], OUT, MANY);
		op.linear = (struct od_op_linear){ .w = { &w.w },
						   .x = lay_floats(&b, ROWS * MANY),
						   .y = { lay_dirt(&b, ROWS * OUT * sizeof(float)) } };
		expect(&b);
		for (size_t r = 0; r < ROWS; r++) {
			for (size_t i = 0; i < MANY; i++)
				x[i] = (double)image_f32(&b, op.linear.x)[r * MANY + i];
			times(&w, x, want + r * OUT);
		}
		od_matmul(scalar(), NULL, &w.m, wanted(&b, op.linear.x), wanted(&b, op.linear.y[0]), ROWS);
		compare(&b, &op, op.linear.y[0], want, ROWS * OUT, "linear");
		free(want), free(x);
		bench_close(&b);
	}
}

static void norm(void **state)
{
	struct od_op op = { .kind = OD_OP_NORM, .n_rows = ROWS };
	double *want = doubles(ROWS * MANY);
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	op.norm = (struct od_op_norm){ .x = lay_floats(&b, ROWS * MANY),
				       .weight = lay_floats(&b, MANY),
				       .y = lay_dirt(&b, ROWS * MANY * sizeof(float)),
				       .kind = OD_NORM_RMS,
				       .n = MANY,
				       .eps = 1e-5f };
	expect(&b);
	for (size_t r = 0; r < ROWS; r++) {
		const float *x = image_f32(&b, op.norm.x) + r * MANY;
		double squares = 0;

		for (size_t i = 0; i < MANY; i++)
			squares += (double)x[i] * (double)x[i];
		for (size_t i = 0; i < MANY; i++)
			want[r * MANY + i] = (double)x[i] / sqrt(squares / MANY + (double)1e-5f) *
					     (double)image_f32(&b, op.norm.weight)[i];
		scalar()->rmsnorm(wanted_f32(&b, op.norm.y) + r * MANY, x, wanted(&b, op.norm.weight), MANY, 1e-5f);
	}
	compare(&b, &op, op.norm.y, want, ROWS * MANY, "norm");
	free(want);
	bench_close(&b);
}

enum { HIDDEN = 384, MID = 96 };

static void ffn_scalar(const struct ops_bench *b, const struct weight *w, struct od_ref x, struct od_ref y)
{
	static float gate[ROWS * MID], up[ROWS * MID];

	od_matmul(scalar(), NULL, &w[OD_MAT_GATE].m, wanted(b, x), gate, ROWS);
	od_matmul(scalar(), NULL, &w[OD_MAT_UP].m, wanted(b, x), up, ROWS);
	scalar()->silu_mul(gate, up, ROWS * MID);
	od_matmul(scalar(), NULL, &w[OD_MAT_DOWN].m, gate, wanted(b, y), ROWS);
}

static void ffn(void **state)
{
	struct od_op op = { .kind = OD_OP_FFN, .n_rows = ROWS };
	double *want = doubles(ROWS * HIDDEN), x[HIDDEN], gate[MID], up[MID];
	struct weight w[OD_N_EXPERT_MATS];
	struct od_expert e = { 0 };
	struct od_ffn_segment segment;
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	for (int i = 0; i < OD_N_EXPERT_MATS; i++) {
		lay_weight(&b, &w[i], W_BF16, i == OD_MAT_DOWN ? HIDDEN : MID, i == OD_MAT_DOWN ? MID : HIDDEN);
		e.mat[i] = w[i].w;
	}
	segment = od_expert_segment(&e, ROWS);
	op.ffn = (struct od_op_ffn){ .segment = &segment,
				     .n_segments = 1,
				     .x = lay_floats(&b, ROWS * HIDDEN),
				     .y = lay_dirt(&b, ROWS * HIDDEN * sizeof(float)),
				     .scratch = scratch_of(&b, od_ffn_scratch_bytes(MID, ROWS)) };
	expect(&b);
	for (size_t r = 0; r < ROWS; r++) {
		for (size_t i = 0; i < HIDDEN; i++)
			x[i] = (double)image_f32(&b, op.ffn.x)[r * HIDDEN + i];
		times(&w[OD_MAT_GATE], x, gate);
		times(&w[OD_MAT_UP], x, up);
		for (size_t i = 0; i < MID; i++)
			gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
		times(&w[OD_MAT_DOWN], gate, want + r * HIDDEN);
	}
	ffn_scalar(&b, w, op.ffn.x, op.ffn.y);
	compare(&b, &op, op.ffn.y, want, ROWS * HIDDEN, "ffn");
	free(want);
	bench_close(&b);
}

/* One head of keys for HEADS heads of queries, in pages one behind the other. */
enum { HEADS = 3, DIM = 64, POSITIONS = 700, PAGES = (POSITIONS + OD_KV_PAGE - 1) / OD_KV_PAGE };

static void attend_f64(const float *q, const float *k, const float *v, double scale, double *out)
{
	double score[POSITIONS], most = -INFINITY, sum = 0;

	for (size_t p = 0; p < POSITIONS; p++) {
		score[p] = 0;
		for (size_t i = 0; i < DIM; i++)
			score[p] += (double)q[i] * (double)k[p * DIM + i];
		score[p] *= scale;
		most = fmax(most, score[p]);
	}
	for (size_t i = 0; i < DIM; i++)
		out[i] = 0;
	for (size_t p = 0; p < POSITIONS; p++) {
		const double share = exp(score[p] - most);

		sum += share;
		for (size_t i = 0; i < DIM; i++)
			out[i] += share * (double)v[p * DIM + i];
	}
	for (size_t i = 0; i < DIM; i++)
		out[i] /= sum;
}

static struct od_stream lay_stream(struct ops_bench *b, struct od_ref tables)
{
	return (struct od_stream){ .pages = lay_floats(b, PAGES * OD_KV_PAGE * DIM),
				   .tables = tables,
				   .table_pages = PAGES,
				   .page_bytes = OD_KV_PAGE * DIM * sizeof(float),
				   .row_bytes = DIM * sizeof(float),
				   .dtype = OD_F32 };
}

static void attend_scalar(const struct ops_bench *b, const struct od_op_attend *o)
{
	const struct od_attn a = { .n_heads = HEADS,
				   .q = wanted(b, o->q),
				   .k = wanted(b, o->keys.pages),
				   .v = wanted(b, o->values.pages),
				   .table = wanted(b, o->keys.tables),
				   .k_page_bytes = o->keys.page_bytes,
				   .v_page_bytes = o->values.page_bytes,
				   .k_row_bytes = o->keys.row_bytes,
				   .v_row_bytes = o->values.row_bytes,
				   .kv_dtype = OD_F32,
				   .k_dim = DIM,
				   .v_dim = DIM,
				   .end = POSITIONS,
				   .scale = o->scale,
				   .out = wanted(b, o->out) };

	scalar()->attend(&a);
}

static void attend(void **state)
{
	const struct od_row_info row = { .position = POSITIONS - 1 };
	struct od_op op = { .kind = OD_OP_ATTEND, .n_rows = 1 };
	struct od_op_attend *o = &op.attend;
	double want[HEADS * DIM];
	uint32_t page[PAGES];
	struct od_ref tables;
	struct ops_bench b;

	for (uint32_t i = 0; i < PAGES; i++)
		page[i] = i;
	bench_open(&b, state, OD_PROFILE_F32);
	tables = lay(&b, page, sizeof(page));
	*o = (struct od_op_attend){ .rows = lay(&b, &row, sizeof(row)),
				    .q = lay_floats(&b, HEADS * DIM),
				    .out = lay_dirt(&b, HEADS * DIM * sizeof(float)),
				    .keys = lay_stream(&b, tables),
				    .values = lay_stream(&b, tables),
				    .n_heads = HEADS,
				    .n_kv_heads = 1,
				    .k_dim = DIM,
				    .v_dim = DIM,
				    .scale = 0.5f,
				    .max_position = POSITIONS - 1 };
	expect(&b);
	attend_scalar(&b, o);
	for (size_t h = 0; h < HEADS; h++)
		attend_f64(image_f32(&b, o->q) + h * DIM, image_f32(&b, o->keys.pages), image_f32(&b, o->values.pages),
			   0.5, want + h * DIM);
	compare(&b, &op, o->out, want, HEADS * DIM, "attend");
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = { ON_ALL_TABLES(linear), ON_ALL_TABLES(norm), ON_ALL_TABLES(ffn),
					    ON_ALL_TABLES(attend) };

	choose_tables();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
