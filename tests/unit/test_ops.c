/* Operations of a device (ops.h) on rows: embedding, norms, products, routers, combining. Each against the kernels'
 * table called directly, bit for bit over all memory that it could touch: with several rows, and with each row alone.
 * Attention's, experts' and those of loads have files of their own. */
#include <float.h>

#include "common/compute/cpu/cpu_scalar.h"
#include "common/compute/cpu/matmul.h"
#include "common/compute/rank.h"
#include "common/compute/sincos.h"
#include "tests/unit/ops_bench.h"

static const enum od_dtype block_formats[] = {
#define FORMAT(NAME, ...) OD_##NAME,
	OD_BLOCK_FORMATS(FORMAT)
#undef FORMAT
};
#define N_BLOCK_FORMATS (sizeof(block_formats) / sizeof(block_formats[0]))

/* ---- rows in, rows out ---- */

/* in_order: the table has the step's rows. */
static void check_embed(struct ops_bench *b, enum weight_kind kind, bool in_order)
{
	enum { VOCAB = 50, HIDDEN = 37 };
	struct weight table;
	struct od_op op = { .kind = OD_OP_EMBED, .n_rows = ROWS };
	const struct od_row_info *rows;

	bench_reset(b);
	lay_weight(b, &table, kind, in_order ? ROWS : VOCAB, HIDDEN);
	op.embed = (struct od_op_embed){ .table = &table.w,
					 .rows = lay_rows(b, VOCAB, 1, 9),
					 .x = lay_dirt(b, ROWS * HIDDEN * sizeof(float)),
					 .in_order = in_order };
	expect(b);
	rows = wanted(b, op.embed.rows);
	for (size_t r = 0; r < ROWS; r++)
		for (size_t i = 0; i < HIDDEN; i++)
			wanted_f32(b, op.embed.x)[r * HIDDEN + i] = weight_at(
				table.w.dtype, table.m.data, (in_order ? r : (size_t)rows[r].token) * HIDDEN + i);
	by_row(b, &op.embed.rows, sizeof(struct od_row_info));
	by_row(b, &op.embed.x, HIDDEN * sizeof(float));
	check_op(b, &op, in_order ? "embed in order" : "embed");
}

static void op_embed(void **state)
{
	FOR_PROFILES(p)
	{
		struct ops_bench b;

		bench_open(&b, state, p);
		for (enum weight_kind kind = W_BF16; kind <= W_F32; kind++)
			for (int in_order = 0; in_order < 2; in_order++)
				check_embed(&b, kind, in_order != 0);
		bench_close(&b);
	}
}

/* Each weight of a format of blocks, as it is and multiplied, of both kinds of tables. */
static void op_embed_blocks(void **state)
{
	enum { VOCAB = 5, HIDDEN = 2 * OD_MOST_BLOCK };
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	for (size_t t = 0; t < 2 * N_BLOCK_FORMATS; t++) {
		const bool in_order = t >= N_BLOCK_FORMATS;
		const enum od_dtype format = block_formats[t % N_BLOCK_FORMATS];
		const size_t n = od_block_of(format).weights;
		struct od_weight table = { .dtype = format, .n_out = in_order ? ROWS : VOCAB, .n_in = HIDDEN };
		struct od_op op = { .kind = OD_OP_EMBED, .n_rows = ROWS };
		const struct od_row_info *rows;

		bench_reset(&b);
		table.data = lay_blocks(&b, table.dtype, table.n_out * HIDDEN / n);
		op.embed = (struct od_op_embed){ .table = &table,
						 .rows = lay_rows(&b, VOCAB, 1, 9),
						 .x = lay_dirt(&b, ROWS * HIDDEN * sizeof(float)),
						 .scale = t % 2 == 0 ? 0 : 1.3f,
						 .in_order = in_order };
		expect(&b);
		rows = wanted(&b, op.embed.rows);
		for (size_t r = 0; r < ROWS; r++) {
			float *x = wanted_f32(&b, op.embed.x) + r * HIDDEN;

			od_format(table.dtype)
				->decode((const char *)wanted(&b, table.data) +
						 (in_order ? r : (size_t)rows[r].token) *
							 od_row_bytes(table.dtype, HIDDEN),
					 HIDDEN, x);
			for (size_t i = 0; t % 2 != 0 && i < HIDDEN; i++)
				x[i] *= 1.3f;
		}
		by_row(&b, &op.embed.rows, sizeof(struct od_row_info));
		by_row(&b, &op.embed.x, HIDDEN * sizeof(float));
		check_op(&b, &op, od_dtype_name(table.dtype));
	}
	bench_close(&b);
}

static void check_angles(struct ops_bench *b, uint32_t half, float magnitude)
{
	struct od_op op = { .kind = OD_OP_ANGLES, .n_rows = ROWS };
	const struct od_row_info *rows;

	bench_reset(b);
	op.angles = (struct od_op_angles){ .rows = lay_rows(b, 9, 1, 30000),
					   .inv_freq = lay_floats(b, 2 * half),
					   .angles = lay_dirt(b, ROWS * 2 * half * sizeof(float)),
					   .half = half,
					   .magnitude = { magnitude, 0.75f } };
	expect(b);
	rows = wanted(b, op.angles.rows);
	for (size_t r = 0; r < ROWS; r++) {
		const size_t set = rows[r].is_long;
		const float by = set ? 0.75f : magnitude;

		for (size_t i = 0; i < half; i++) {
			float angle = (float)rows[r].position * wanted_f32(b, op.angles.inv_freq)[set * half + i];
			double sine, cosine;

			od_sincos(angle, &sine, &cosine);
			wanted_f32(b, op.angles.angles)[(2 * r) * half + i] = (float)cosine * by;
			wanted_f32(b, op.angles.angles)[(2 * r + 1) * half + i] = (float)sine * by;
		}
	}
	by_row(b, &op.angles.rows, sizeof(struct od_row_info));
	by_row(b, &op.angles.angles, 2 * half * sizeof(float));
	check_op(b, &op, "angles");
}

static void op_angles(void **state)
{
	enum { HALF = 19 };
	static const float magnitudes[] = { 1, 1.2079442f, 0.5f };
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	for (size_t i = 0; i < sizeof(magnitudes) / sizeof(magnitudes[0]); i++)
		check_angles(&b, HALF, magnitudes[i]);
	bench_close(&b);
}

/* The longer rows are more than a GPU's block holds at once. */
static void op_norm(void **state)
{
	static const uint32_t lengths[] = { 131, 8192 + 37, 384, 9 };

	for (int way = 0; way < 16; way++) {
		const bool with_add = way % 2 == 1, layer = way / 2 % 2 == 1;
		const uint32_t N = lengths[way / 4];
		struct od_op op = { .kind = OD_OP_NORM, .n_rows = ROWS };
		struct ops_bench b;

		bench_open(&b, state, OD_PROFILE_F32);
		op.norm = (struct od_op_norm){ .x = lay_floats(&b, ROWS * N),
					       .weight = lay_floats(&b, N),
					       .y = lay_dirt(&b, ROWS * N * sizeof(float)),
					       .kind = layer ? OD_NORM_LAYER : OD_NORM_RMS,
					       .n = N,
					       .eps = 1e-5f };
		if (layer)
			op.norm.bias = lay_floats(&b, N);
		if (with_add)
			op.norm.add = lay_floats(&b, ROWS * N);
		expect(&b);
		for (size_t r = 0; r < ROWS; r++) {
			float *x = wanted_f32(&b, op.norm.x) + r * N, *y = wanted_f32(&b, op.norm.y) + r * N;

			for (size_t i = 0; with_add && i < N; i++)
				x[i] += wanted_f32(&b, op.norm.add)[r * N + i];
			if (layer)
				b.be->layernorm(y, x, wanted(&b, op.norm.weight), wanted(&b, op.norm.bias), N, 1e-5f);
			else
				b.be->rmsnorm(y, x, wanted(&b, op.norm.weight), N, 1e-5f);
		}
		by_row(&b, &op.norm.x, N * sizeof(float));
		by_row(&b, &op.norm.y, N * sizeof(float));
		if (with_add)
			by_row(&b, &op.norm.add, N * sizeof(float));
		check_op(&b, &op, "norm");
		bench_close(&b);
	}
}

/* One to three matrices of any kinds: what each of them gives alone. Bit i of biased: matrix i has a bias. */
static void check_linear(struct ops_bench *b, const enum weight_kind *kind, size_t n, size_t n_in, unsigned biased)
{
	struct od_op op = { .kind = OD_OP_LINEAR, .n_rows = ROWS }, alone;
	struct weight w[OD_MAX_LINEAR];

	bench_reset(b);
	for (size_t i = 0; i < n; i++)
		n_in = whole_row(kind[i], n_in);
	op.linear.x = lay_floats(b, ROWS * n_in);
	for (size_t i = 0; i < n; i++) {
		lay_weight(b, &w[i], kind_for(kind[i], n_in), 20 + 11 * i, n_in);
		op.linear.w[i] = &w[i].w;
		op.linear.y[i] = lay_dirt(b, ROWS * w[i].w.n_out * sizeof(float));
		if (biased >> i & 1)
			op.linear.bias[i] = lay_floats(b, w[i].w.n_out);
		by_row(b, &op.linear.y[i], w[i].w.n_out * sizeof(float));
	}
	by_row(b, &op.linear.x, n_in * sizeof(float));
	expect(b);
	for (size_t i = 0; i < n; i++) {
		const size_t n_out = w[i].w.n_out;
		float *y = wanted(b, op.linear.y[i]);

		od_matmul(b->be, NULL, &w[i].m, wanted(b, op.linear.x), y, ROWS);
		for (size_t k = 0; (biased >> i & 1) && k < ROWS * n_out; k++)
			y[k] += wanted_f32(b, op.linear.bias[i])[k % n_out];
	}
	alone = op;
	check_op(b, &op, "linear");
	put_at(b->d, od_buf_ref(b->arena, 0), b->image, b->used);
	for (size_t i = 0; i < n; i++) {
		alone.profile = b->profile;
		alone.linear.w[0] = &w[i].w;
		alone.linear.w[1] = NULL;
		alone.linear.y[0] = op.linear.y[i];
		alone.linear.bias[0] = op.linear.bias[i];
		run_op(b->d, &alone);
	}
	assert_arena(b, "linear, one after the other");
}

static void op_linear(void **state)
{
	FOR_PROFILES(p)
	{
		struct ops_bench b;

		bench_open(&b, state, p);
		for (int i = 0; i < (ROWS > 16 ? 1 : 3) * N_WEIGHT_KINDS; i++) {
			const enum weight_kind kind[] = { (enum weight_kind)(i % N_WEIGHT_KINDS),
							  (enum weight_kind)((i + 3) % N_WEIGHT_KINDS),
							  (enum weight_kind)((i * 7 + 1) % N_WEIGHT_KINDS) };

			check_linear(&b, kind, 1 + (size_t)i / N_WEIGHT_KINDS, 256, i % 3 == 0 ? 0 : (unsigned)i % 8);
		}
		for (int i = 0; i < (ROWS > 16 ? 0 : N_WEIGHT_KINDS); i++) {
			const enum weight_kind kind[] = { (enum weight_kind)i, W_BF16,
							  (enum weight_kind)((i + 5) % N_WEIGHT_KINDS) };

			check_linear(&b, kind, 3, 70, (unsigned)i);
		}
		/* Longer than what a GPU has on its way at a time, with an even and an odd number of its pieces; and
		 * one piece. */
		for (int i = 0; i < (ROWS > 16 ? 0 : 3 * N_WEIGHT_KINDS); i++) {
			static const size_t n_in[] = { 3344, 3312, 240 };

			check_linear(&b, &(enum weight_kind){ (enum weight_kind)(i % N_WEIGHT_KINDS) }, 1,
				     n_in[i / N_WEIGHT_KINDS], 0);
		}
		bench_close(&b);
	}
}

#ifdef FEW_TESTS
/* So many outputs that a GPU multiplies all rows at once by the kernel for many rows (is_many of cuda_products.c),
 * unless it has more than 192 multiprocessors. Which forms it takes, other tests show; here are some in one launch. */
static void op_linear_wide(void **state)
{
	static const enum weight_kind kind[OD_MAX_LINEAR] = { W_BF16, W_INT8, W_U4B8, W_E4M3 };
	enum { N = 46, N_OUT = 47 * 64 + 5 };
	struct od_op op = { .kind = OD_OP_LINEAR, .n_rows = ROWS, .profile = OD_PROFILE_F32 };
	struct weight w[OD_MAX_LINEAR];
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	op.linear.x = lay_floats(&b, ROWS * N);
	for (size_t i = 0; i < OD_MAX_LINEAR; i++) {
		lay_weight(&b, &w[i], kind[i], N_OUT, N);
		op.linear.w[i] = &w[i].w;
		op.linear.y[i] = lay_dirt(&b, ROWS * N_OUT * sizeof(float));
	}
	expect(&b);
	for (size_t i = 0; i < OD_MAX_LINEAR; i++)
		od_matmul(b.be, NULL, &w[i].m, wanted(&b, op.linear.x), wanted(&b, op.linear.y[i]), ROWS);
	run_in_steps(&b, b.d, &op, ROWS, "linear of many outputs");
	bench_close(&b);
}
#endif

/* Each format of blocks: the products of the same weights as F32. The second matrix has any bytes, with scales that are
 * infinite or no number; x is aligned to no more than a float. */
static void op_linear_blocks(void **state)
{
	enum { N_OUT = 21, N_IN = OD_MOST_BLOCK + 64 };

	FOR_PROFILES(p)
	{
		struct ops_bench b;

		bench_open(&b, state, p);
		for (size_t t = 0; t < N_BLOCK_FORMATS; t++) {
			const enum od_dtype f = block_formats[t];
			const size_t n_in = od_round_up(N_IN, od_block_of(f).weights),
				     n = N_OUT * n_in / od_block_of(f).weights;
			struct od_weight w[] = { { .dtype = f, .n_out = N_OUT, .n_in = n_in },
						 { .dtype = f, .n_out = N_OUT, .n_in = n_in } };
			struct od_op op = { .kind = OD_OP_LINEAR, .n_rows = ROWS };
			float *same = exact(N_OUT * n_in, sizeof(float));

			bench_reset(&b);
			w[0].data = lay_blocks(&b, f, n);
			w[1].data = lay_random(&b, OD_INT8, n * od_block_of(f).bytes);
			op.linear.x = od_ref_at(lay_floats(&b, 1 + ROWS * n_in), t % 2 * sizeof(float));
			for (size_t i = 0; i < 2; i++) {
				op.linear.w[i] = &w[i];
				op.linear.y[i] = lay_dirt(&b, ROWS * N_OUT * sizeof(float));
				by_row(&b, &op.linear.y[i], N_OUT * sizeof(float));
			}
			by_row(&b, &op.linear.x, n_in * sizeof(float));
			expect(&b);
			for (size_t i = 0; i < 2; i++) {
				for (size_t o = 0; o < N_OUT; o++)
					od_format(f)->decode((const char *)wanted(&b, w[i].data) +
								     o * od_row_bytes(f, n_in),
							     n_in, same + o * n_in);
				od_matmul(
					b.be, NULL,
					&(struct od_mat){ .dtype = OD_F32, .n_out = N_OUT, .n_in = n_in, .data = same },
					wanted(&b, op.linear.x), wanted(&b, op.linear.y[i]), ROWS);
			}
			check_op(&b, &op, od_dtype_name(f));
			free(same);
		}
		bench_close(&b);
	}
}

/* Rows that are rounded: groups of zeros, of what is too small for a scale, of what is large, with infinities and NaN,
 * ties. */
static void op_linear_rounded(void **state)
{
	enum { N = 64 * 4 + 7, N_OUT = 19 };

	FOR_PROFILES(p)
	{
		struct od_op op = { .kind = OD_OP_LINEAR, .n_rows = ROWS };
		struct weight w;
		struct ops_bench b;
		float *x;

		bench_open(&b, state, p);
		op.linear.x = lay_floats(&b, ROWS * N);
		lay_weight(&b, &w, W_NF4, N_OUT, N);
		op.linear.w[0] = &w.w;
		op.linear.y[0] = lay_dirt(&b, ROWS * N_OUT * sizeof(float));
		x = (float *)(void *)(b.image + op.linear.x.at);
		for (size_t i = 0; i < ROWS * N; i++) {
			const size_t r = i / N, k = i % N;

			switch ((r + k / 64) % 8) {
			case 0: x[i] = k % 2 ? 0 : -0.0f; break;
			case 1: x[i] *= 0x1p-149f * 60; break;
			case 3: x[i] = (float)k - 63.5f; break; /* times 127 over the group's greatest */
			case 4: x[i] = k % 64 == 0 ? 127 : (float)(k % 64) - 31.5f; break;
			case 5: x[i] *= FLT_MAX; break;
			case 6: /* r 1 and 2 have no number */
				if (r < 3 && k % 64 == 5)
					x[i] = r == 1 ? NAN : -INFINITY;
				break;
			default: break;
			}
			if (r == 5) /* a scale so small that a quotient is above 127 */
				x[i] = 0x1p-149f * (k % 3 == 0 ? 8190 : (float)(k * 37 % 8190));
		}
		/* Only output 3 has no number: nothing that stands behind another one's scales is read. */
		((float *)(void *)(b.image + w.w.scale.at))[3 * od_quant_groups(N)] = NAN;
		expect(&b);
		od_matmul(b.be, NULL, &w.m, wanted(&b, op.linear.x), wanted(&b, op.linear.y[0]), ROWS);
		by_row(&b, &op.linear.x, N * sizeof(float));
		by_row(&b, &op.linear.y[0], N_OUT * sizeof(float));
		check_op(&b, &op, "linear of rounded rows");
		bench_close(&b);
	}
}

/* Products so small that they are -0, as is their sum: whatever a kernel takes for what is behind a row does not make 0
 * of it. */
static void op_linear_minus_zero(void **state)
{
	enum { N = 40, N_OUT = 21, TINY_BF16 = (127 - 100) << 7 };
	struct od_op op = { .kind = OD_OP_LINEAR, .n_rows = ROWS };
	struct weight w;
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	op.linear.x = lay_floats(&b, ROWS * N);
	lay_weight(&b, &w, W_BF16, N_OUT, N);
	op.linear.w[0] = &w.w;
	op.linear.y[0] = lay_dirt(&b, ROWS * N_OUT * sizeof(float));
	for (size_t i = 0; i < ROWS * N; i++)
		((float *)(void *)(b.image + op.linear.x.at))[i] = -0x1p-100f;
	for (size_t i = 0; i < N_OUT * N; i++)
		((uint16_t *)(void *)(b.image + w.w.data.at))[i] = TINY_BF16;
	expect(&b);
	od_matmul(b.be, NULL, &w.m, wanted(&b, op.linear.x), wanted(&b, op.linear.y[0]), ROWS);
	assert_true(signbit(*wanted_f32(&b, op.linear.y[0])));
	by_row(&b, &op.linear.x, N * sizeof(float));
	by_row(&b, &op.linear.y[0], N_OUT * sizeof(float));
	check_op(&b, &op, "linear of -0");
	bench_close(&b);
}

/* ---- routers ---- */

enum { ROUTE_N = 24, ROUTE_K = 5, ROUTE_HIDDEN = 45 };

/* Sets the deciding scores of experts outside of the best groups to `out`; returns the gap to the best group that is
 * out. */
static float leave_groups(float *decides, const struct od_router_spec *way, float out)
{
	const size_t size = ROUTE_N / way->n_groups, top = way->top_groups;
	float best[ROUTE_N], second[ROUTE_N];
	uint16_t order[ROUTE_N];

	for (size_t g = 0; g < way->n_groups; g++) {
		best[g] = second[g] = -INFINITY;
		for (size_t i = 0; i < size; i++) {
			const float x = decides[g * size + i];

			second[g] = fmaxf(second[g], fminf(best[g], x));
			best[g] = fmaxf(best[g], x);
		}
		best[g] += way->group_two ? second[g] : 0;
	}
	od_rank(best, way->n_groups, order, way->n_groups);
	for (size_t g = top; g < way->n_groups; g++)
		for (size_t i = 0; i < size; i++)
			decides[order[g] * size + i] = out;
	return best[order[top - 1]] - best[order[top]];
}

/* Phi-3.5-MoE's, without ties. */
static void mix_by_hand(const struct ops_bench *b, const struct od_op_route *o, size_t r)
{
	float *logits = wanted_f32(b, o->logits) + r * ROUTE_N, left[ROUTE_N], *margin = wanted_f32(b, o->margin) + r;
	uint16_t best[ROUTE_K + 1];

	memcpy(left, logits, sizeof(left));
	od_rank(logits, ROUTE_N, best, ROUTE_K + 1);
	memcpy((uint16_t *)wanted(b, o->choice) + r * ROUTE_K, best, ROUTE_K * sizeof(*best));
	*margin = 1;
	for (size_t i = 0; i < ROUTE_K; i++) {
		const float most = logits[best[i]];
		float share[ROUTE_N];

		*margin = fminf(*margin, most - logits[best[i + 1]]);
		for (size_t e = 0; e < ROUTE_N; e++) {
			const float away = (most - logits[e]) / fmaxf(fabsf(logits[e]), most);

			share[e] = away <= o->router.band ? left[e] : -INFINITY;
			if (e != best[i] && left[e] != -INFINITY)
				*margin = fminf(*margin, fabsf(away - o->router.band));
		}
		b->be->softmax(share, ROUTE_N);
		wanted_f32(b, o->weight)[r * ROUTE_K + i] = share[best[i]];
		left[best[i]] = -INFINITY;
	}
	b->be->softmax(logits, ROUTE_N);
}

static void route_by_hand(const struct ops_bench *b, const struct od_op_route *o, size_t r)
{
	const bool sigmoid = o->router.score == OD_SCORE_SIGMOID, logit = o->router.score == OD_SCORE_LOGIT;
	float *decides = wanted_f32(b, o->logits) + r * ROUTE_N, score[ROUTE_N], sum = 0, gap = 1, margin,
	      of_k[ROUTE_K];
	uint16_t best[ROUTE_K + 1];

	for (size_t e = 0; sigmoid && e < ROUTE_N; e++)
		decides[e] = 1 / (1 + od_exp(-decides[e]));
	if (!sigmoid && !logit)
		b->be->softmax(decides, ROUTE_N);
	memcpy(score, decides, sizeof(score));
	for (size_t e = 0; o->router.bias && e < ROUTE_N; e++)
		decides[e] += wanted_f32(b, o->bias)[e];
	if (o->router.n_groups > 0)
		gap = leave_groups(decides, &o->router, sigmoid ? -INFINITY : 0);
	od_rank(decides, ROUTE_N, best, ROUTE_K + 1);
	memcpy((uint16_t *)wanted(b, o->choice) + r * ROUTE_K, best, ROUTE_K * sizeof(*best));
	for (size_t i = 0; i < ROUTE_K; i++)
		of_k[i] = score[best[i]];
	if (logit)
		b->be->softmax(of_k, ROUTE_K);
	for (size_t i = 0; i < ROUTE_K; i++)
		sum += of_k[i];
	sum = o->router.renormalise ? sum + o->router.sum_eps : 1;
	for (size_t i = 0; i < ROUTE_K; i++)
		wanted_f32(b, o->weight)[r * ROUTE_K + i] = of_k[i] / sum * o->router.scale;
	margin = decides[best[ROUTE_K - 1]] - decides[best[ROUTE_K]];
	if (sigmoid || logit)
		b->be->softmax(decides, ROUTE_N);
	wanted_f32(b, o->margin)[r] = margin < gap ? margin : gap; /* 1 at most, whatever the logits */
}

static void round_by_hand(const struct ops_bench *b, const struct od_op_route *o, size_t r)
{
	for (size_t i = 0; o->round.buf != NULL && i < ROUTE_HIDDEN; i++) {
		float *x = &wanted_f32(b, o->round)[r * ROUTE_HIDDEN + i];

		*x = od_bf16_f32(od_f32_bf16(*x));
	}
}

#define SIGMOID(n, top, by_sum, by, with_bias, two, eps) WAY(OD_SCORE_SIGMOID, n, top, by_sum, by, with_bias, two, eps)

static void op_route(void **state)
{
	static const struct od_router_spec ways[] = { SOFTMAX(0, 0, true, 1),
						      SOFTMAX(0, 0, false, 1),
						      SOFTMAX(6, 2, false, 16),
						      SOFTMAX(12, 7, true, 0.75f),
						      SIGMOID(6, 2, true, 2.5f, true, true, 1e-20f),
						      SIGMOID(0, 0, true, 1, true, false, 0.5f),
						      WAY(OD_SCORE_LOGIT, 0, 0, false, 1, false, false, 0),
						      WAY(OD_SCORE_LOGIT, 0, 0, false, 0.5f, true, false, 0),
						      { .score = OD_SCORE_MIXER, .band = 0.3f } };

	FOR_PROFILES(p)
	{
		struct ops_bench b;

		bench_open(&b, state, p);
		for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
			struct od_op op = { .kind = OD_OP_ROUTE, .n_rows = ROWS };
			struct od_op_route *o = &op.route;

			bench_reset(&b);
			*o = (struct od_op_route){ .logits = lay_floats(&b, ROWS * ROUTE_N),
						   .choice = lay_dirt(&b, ROWS * ROUTE_K * sizeof(uint16_t)),
						   .weight = lay_dirt(&b, ROWS * ROUTE_K * sizeof(float)),
						   .margin = lay_dirt(&b, ROWS * sizeof(float)),
						   .n_experts = ROUTE_N,
						   .top_k = ROUTE_K,
						   .hidden = ROUTE_HIDDEN,
						   .router = ways[w] };
			if (ways[w].bias)
				o->bias = lay_floats(&b, ROUTE_N);
			if (p == OD_PROFILE_BF16)
				o->round = lay_floats(&b, ROWS * ROUTE_HIDDEN);
			expect(&b);
			for (size_t r = 0; r < ROWS; r++) {
				(ways[w].score == OD_SCORE_MIXER ? mix_by_hand : route_by_hand)(&b, o, r);
				round_by_hand(&b, o, r);
			}
			by_row(&b, &o->logits, ROUTE_N * sizeof(float));
			by_row(&b, &o->choice, ROUTE_K * sizeof(uint16_t));
			by_row(&b, &o->weight, ROUTE_K * sizeof(float));
			by_row(&b, &o->margin, sizeof(float));
			if (p == OD_PROFILE_BF16)
				by_row(&b, &o->round, ROUTE_HIDDEN * sizeof(float));
			check_op(&b, &op, "route");
		}
		bench_close(&b);
	}
}

static void op_gate(void **state)
{
	enum { N = 301 };
	struct od_op op = { .kind = OD_OP_GATE, .n_rows = ROWS };
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	op.gate = (struct od_op_gate){ .y = lay_floats(&b, ROWS * N), .gate = lay_floats(&b, ROWS * N), .n = N };
	expect(&b);
	for (size_t i = 0; i < ROWS * N; i++)
		wanted_f32(&b, op.gate.y)[i] *= 1 / (1 + od_exp(-wanted_f32(&b, op.gate.gate)[i]));
	by_row(&b, &op.gate.y, N * sizeof(float));
	by_row(&b, &op.gate.gate, N * sizeof(float));
	check_op(&b, &op, "gate");
	bench_close(&b);
}

static void op_split(void **state)
{
	enum { SPLIT_HEADS = 5, DIM = 67, N = SPLIT_HEADS * DIM };
	struct od_op op = { .kind = OD_OP_SPLIT, .n_rows = ROWS };
	struct od_op_split *o = &op.split;
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	*o = (struct od_op_split){ .in = lay_floats(&b, ROWS * 2 * N),
				   .first = lay_dirt(&b, ROWS * N * sizeof(float)),
				   .second = lay_dirt(&b, ROWS * N * sizeof(float)),
				   .n_heads = SPLIT_HEADS,
				   .dim = DIM };
	expect(&b);
	for (size_t i = 0; i < ROWS * 2 * N; i++)
		wanted_f32(&b, i / DIM % 2 ? o->second : o->first)[i / (2 * DIM) * DIM + i % DIM] =
			wanted_f32(&b, o->in)[i];
	by_row(&b, &o->in, 2 * N * sizeof(float));
	by_row(&b, &o->first, N * sizeof(float));
	by_row(&b, &o->second, N * sizeof(float));
	check_op(&b, &op, "split");
	bench_close(&b);
}

/* ---- what comes back from experts ---- */

/* k outputs of experts, and what all rows share: as it is, or through a gate; norms of them, and of both. */
struct combine_way {
	uint32_t k, n;
	bool shared, gate, norms;
};

/* Adds to x [n] of a row. */
static const float *combine_by_hand(struct ops_bench *b, const struct od_op_combine *o, size_t r, float *sum)
{
	const float *y = wanted_f32(b, o->y) + r * o->top_k * o->hidden,
		    *weight = wanted_f32(b, o->weight) + r * o->top_k;
	const float open = o->gate.buf != NULL ? 1 / (1 + od_exp(-wanted_f32(b, o->gate)[r])) : 1;
	float *shared = o->shared.buf != NULL ? wanted_f32(b, o->shared) + r * o->hidden : NULL;

	for (size_t i = 0; i < o->hidden && o->top_k > 0; i++) {
		sum[i] = weight[0] * y[i];
		for (size_t rank = 1; rank < o->top_k; rank++)
			sum[i] = fmaf(weight[rank], y[rank * o->hidden + i], sum[i]);
	}
	if (o->experts_norm.buf != NULL)
		b->be->rmsnorm(sum, sum, wanted(b, o->experts_norm), o->hidden, o->eps);
	if (o->shared_norm.buf != NULL)
		b->be->rmsnorm(shared, shared, wanted(b, o->shared_norm), o->hidden, o->eps);
	for (size_t i = 0; i < o->hidden && shared != NULL; i++)
		sum[i] = o->top_k > 0 ? fmaf(open, shared[i], sum[i]) : shared[i];
	if (o->norm.buf != NULL)
		b->be->rmsnorm(sum, sum, wanted(b, o->norm), o->hidden, o->eps);
	return sum;
}

static void check_combine(struct ops_bench *b, const struct combine_way *w)
{
	const uint32_t n = w->n;
	struct od_op op = { .kind = OD_OP_COMBINE, .n_rows = ROWS };
	struct od_op_combine *o = &op.combine;
	float *sum = exact(n, sizeof(*sum));

	bench_reset(b);
	*o = (struct od_op_combine){ .y = lay_floats(b, ROWS * w->k * n),
				     .weight = lay_floats(b, ROWS * w->k),
				     .x = lay_floats(b, ROWS * n),
				     .sum = scratch_of(b, ROWS * n * sizeof(float)),
				     .top_k = w->k,
				     .hidden = n,
				     .eps = 1e-5f };
	if (w->shared)
		o->shared = lay_floats(b, ROWS * n);
	if (w->gate)
		o->gate = lay_floats(b, ROWS);
	if (w->norms) {
		o->experts_norm = lay_floats(b, n);
		o->norm = lay_floats(b, n);
	}
	if (w->norms && w->shared)
		o->shared_norm = lay_floats(b, n);
	expect(b);
	for (size_t r = 0; r < ROWS; r++) {
		const float *more = combine_by_hand(b, o, r, sum);

		for (size_t i = 0; i < n; i++)
			wanted_f32(b, o->x)[r * n + i] += more[i];
	}
	by_row(b, &o->y, w->k * n * sizeof(float));
	by_row(b, &o->weight, w->k * sizeof(float));
	by_row(b, &o->x, n * sizeof(float));
	if (w->shared)
		by_row(b, &o->shared, n * sizeof(float));
	if (w->gate)
		by_row(b, &o->gate, sizeof(float));
	check_op(b, &op, "combine");
	free(sum);
}

static void op_combine(void **state)
{
	static const struct combine_way ways[] = {
		{ 1, 53, false, false, false }, { 3, 53, false, false, false }, { 5, 601, false, false, false },
		{ 1, 53, true, false, false },	{ 3, 601, true, false, false }, { 4, 53, true, true, false },
		{ 1, 601, true, true, false },	{ 0, 53, true, false, false },	{ 0, 601, true, false, false },
		{ 3, 53, false, false, true },	{ 2, 601, true, false, true },	{ 9, 53, true, true, true },
	};
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		check_combine(&b, &ways[i]);
	bench_close(&b);
}

/* Where the norm that follows writes. */
enum norm_to { TO_OWN, TO_SUM, TO_Y };

static void check_combine_and_norm(struct ops_bench *b, const struct combine_way *w, enum norm_to to, bool layer,
				   uint32_t n_rows, uint32_t normed)
{
	struct od_op combine = { .kind = OD_OP_COMBINE, .n_rows = n_rows },
		     norm = { .kind = OD_OP_NORM, .n_rows = normed };
	struct od_op_combine *o = &combine.combine;
	const uint32_t n = w->n;

	bench_reset(b);
	*o = (struct od_op_combine){ .y = lay_floats(b, n_rows * (w->k + 1) * n),
				     .weight = lay_floats(b, n_rows * w->k),
				     .x = lay_floats(b, n_rows * n),
				     .sum = scratch_of(b, n_rows * n * sizeof(float)),
				     .top_k = w->k,
				     .hidden = n,
				     .eps = 1e-5f };
	if (w->shared)
		o->shared = lay_floats(b, n_rows * n);
	if (w->gate)
		o->gate = lay_floats(b, n_rows);
	if (w->norms)
		o->experts_norm = o->norm = lay_floats(b, n);
	if (w->norms && w->shared)
		o->shared_norm = lay_floats(b, n);
	norm.norm = (struct od_op_norm){ .x = o->x,
					 .weight = lay_floats(b, n),
					 .y = lay_dirt(b, n_rows * n * sizeof(float)),
					 .kind = layer ? OD_NORM_LAYER : OD_NORM_RMS,
					 .n = n,
					 .eps = 1e-5f };
	if (layer)
		norm.norm.bias = lay_floats(b, n);
	if (to == TO_SUM) { /* in the arena, where it is compared */
		o->sum = norm.norm.y;
	} else if (to == TO_Y) {
		norm.norm.y = o->y;
	}
	check_both(b, &combine, &norm, "combine, then norm");
}

/* Also what may not be one: a norm of fewer rows, one that writes over what other rows still need, rows that are too
 * long. */
static void combine_and_norm(void **state)
{
	static const struct combine_way ways[] = {
		{ 3, 53, false, false, false }, { 5, 601, true, true, false },	       { 0, 601, true, false, false },
		{ 2, 4301, true, false, true }, { 2, 8192 + 37, false, false, false }, { 1, 131, false, false, true },
	};
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		for (int to = TO_OWN; to <= TO_Y; to++) {
			check_combine_and_norm(&b, &ways[i], (enum norm_to)to, i % 2 == 0, 1, 1);
			check_combine_and_norm(&b, &ways[i], (enum norm_to)to, i % 2 == 1, 5, 5);
			check_combine_and_norm(&b, &ways[i], (enum norm_to)to, false, 5, 2);
		}
	}
	bench_close(&b);
}

/* Bytes as they are, whatever they mean, at places that are aligned to nothing. */
static void op_copy(void **state)
{
	enum { N = 77 };
	struct od_op op = { .kind = OD_OP_COPY, .n_rows = ROWS };
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	op.copy = (struct od_op_copy){ .from = od_ref_at(lay_random(&b, OD_INT8, ROWS * N + 3), 3),
				       .to = od_ref_at(lay_dirt(&b, ROWS * N + 5), 5),
				       .n = N };
	expect(&b);
	memcpy(wanted(&b, op.copy.to), wanted(&b, op.copy.from), ROWS * N);
	by_row(&b, &op.copy.from, N);
	by_row(&b, &op.copy.to, N);
	check_op(&b, &op, "copy");
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_ALL_TABLES(op_norm),	       ON_ALL_TABLES(op_linear),
		ON_ALL_TABLES(op_route),       ON_ALL_TABLES(op_combine),
#ifdef FEW_TESTS
		ON_ALL_TABLES(op_linear_wide),
#else /* the other tests need no other number of rows */
		ON_ALL_TABLES(op_embed),	 ON_ALL_TABLES(op_embed_blocks),   ON_ALL_TABLES(op_angles),
		ON_ALL_TABLES(op_gate),		 ON_ALL_TABLES(op_split),	   ON_ALL_TABLES(op_copy),
		ON_ALL_TABLES(op_linear_blocks), ON_ALL_TABLES(op_linear_rounded), ON_ALL_TABLES(op_linear_minus_zero),
		ON_ALL_TABLES(combine_and_norm),
#endif
	};

	choose_tables();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
