/* Each operation of a device (ops.h) but attention's (test_ops_attention.c) against the kernels' table called directly, bit
 * for bit over all memory that it could touch: with several rows, and with each row alone. And how a failure shows. */
#include "common/compute/rank.h"
#include "tests/unit/ops_bench.h"

#include <pthread.h>

/* ---- rows in, rows out ---- */

static void op_embed(void **state)
{
	enum { VOCAB = 50, HIDDEN = 37 };

	FOR_PROFILES(p) {
		struct bench b;

		bench_open(&b, state, p);
		for (enum weight_kind kind = W_BF16; kind <= W_F32; kind++) {
			struct weight table;
			struct od_op op = { .kind = OD_OP_EMBED, .n_rows = ROWS };
			const struct od_row_info *rows;

			bench_reset(&b);
			lay_weight(&b, &table, kind, VOCAB, HIDDEN);
			op.embed = (struct od_op_embed){ .table = &table.w, .rows = lay_rows(&b, VOCAB, 1, 9),
							 .x = lay_dirt(&b, ROWS * HIDDEN * sizeof(float)) };
			expect(&b);
			rows = wanted(&b, op.embed.rows);
			for (size_t r = 0; r < ROWS; r++)
				for (size_t i = 0; i < HIDDEN; i++)
					wanted_f32(&b, op.embed.x)[r * HIDDEN + i] =
						weight_at(table.w.dtype, table.m.data, (size_t)rows[r].token * HIDDEN + i);
			by_row(&b, &op.embed.rows, sizeof(struct od_row_info));
			by_row(&b, &op.embed.x, HIDDEN * sizeof(float));
			check_op(&b, &op, "embed");
		}
		bench_close(&b);
	}
}

static void check_angles(struct bench *b, uint32_t half, float magnitude)
{
	struct od_op op = { .kind = OD_OP_ANGLES, .n_rows = ROWS };
	const struct od_row_info *rows;

	bench_reset(b);
	op.angles = (struct od_op_angles){ .rows = lay_rows(b, 9, 1, 30000), .inv_freq = lay_floats(b, 2 * half),
					   .angles = lay_dirt(b, ROWS * 2 * half * sizeof(float)), .half = half,
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
	struct bench b;

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
		struct bench b;

		bench_open(&b, state, OD_PROFILE_F32);
		op.norm = (struct od_op_norm){ .x = lay_floats(&b, ROWS * N), .weight = lay_floats(&b, N),
					       .y = lay_dirt(&b, ROWS * N * sizeof(float)),
					       .kind = layer ? OD_NORM_LAYER : OD_NORM_RMS, .n = N, .eps = 1e-5f };
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
static void check_linear(struct bench *b, const enum weight_kind *kind, size_t n, size_t n_in, unsigned biased)
{
	struct od_op op = { .kind = OD_OP_LINEAR, .n_rows = ROWS }, alone;
	struct weight w[OD_MAX_LINEAR];

	bench_reset(b);
	op.linear.x = lay_floats(b, ROWS * n_in);
	for (size_t i = 0; i < n; i++) {
		lay_weight(b, &w[i], kind[i], 20 + 11 * i, n_in);
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
	FOR_PROFILES(p) {
		struct bench b;

		bench_open(&b, state, p);
		for (int i = 0; i < (ROWS > 16 ? 1 : 3) * N_WEIGHT_KINDS; i++) {
			const enum weight_kind kind[] = { (enum weight_kind)(i % N_WEIGHT_KINDS),
							  (enum weight_kind)((i + 3) % N_WEIGHT_KINDS),
							  (enum weight_kind)((i * 7 + 1) % N_WEIGHT_KINDS) };

			check_linear(&b, kind, 1 + (size_t)i / N_WEIGHT_KINDS, 256, i % 3 == 0 ? 0 : (unsigned)i % 8);
		}
		for (int i = 0; i < (ROWS > 16 ? 0 : W_NF4); i++) {
			const enum weight_kind kind[] = { (enum weight_kind)i, W_BF16, (enum weight_kind)((i + 5) % W_NF4) };

			check_linear(&b, kind, 3, 70, (unsigned)i);
		}
		/* Longer than what a GPU has on its way at a time, with an even and an odd number of its pieces; and one piece. */
		for (int i = 0; i < (ROWS > 16 ? 0 : 3 * N_WEIGHT_KINDS); i++) {
			static const size_t n_in[] = { 3344, 3312, 240 };

			check_linear(&b, &(enum weight_kind){ (enum weight_kind)(i % N_WEIGHT_KINDS) }, 1, n_in[i / N_WEIGHT_KINDS], 0);
		}
		bench_close(&b);
	}
}

/* ---- experts ---- */

enum { ROUTE_N = 24, ROUTE_K = 5, ROUTE_HIDDEN = 45 };

/* What decides for experts outside of the best groups becomes `out`; returns the gap to the best group that is out. */
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
static void mix_by_hand(const struct bench *b, const struct od_op_route *o, size_t r)
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

static void route_by_hand(const struct bench *b, const struct od_op_route *o, size_t r)
{
	const bool sigmoid = o->router.score == OD_SCORE_SIGMOID, logit = o->router.score == OD_SCORE_LOGIT;
	float *decides = wanted_f32(b, o->logits) + r * ROUTE_N, score[ROUTE_N], sum = 0, gap = 1, margin, of_k[ROUTE_K];
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

static void round_by_hand(const struct bench *b, const struct od_op_route *o, size_t r)
{
	for (size_t i = 0; o->round.buf != NULL && i < ROUTE_HIDDEN; i++) {
		float *x = &wanted_f32(b, o->round)[r * ROUTE_HIDDEN + i];

		*x = od_bf16_f32(od_f32_bf16(*x));
	}
}

/* Groups, top groups, renormalise, scale, bias, a group's two best, sum_eps. */
#define WAY(of, n, top, by_sum, by, with_bias, two, eps)                                                                       \
	{ .n_groups = n, .top_groups = top, .renormalise = by_sum, .scale = by, .score = of, .bias = with_bias,                \
	  .group_two = two, .sum_eps = eps }
#define SOFTMAX(n, top, by_sum, by) WAY(OD_SCORE_SOFTMAX, n, top, by_sum, by, false, false, 0)
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

	FOR_PROFILES(p) {
		struct bench b;

		bench_open(&b, state, p);
		for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
			struct od_op op = { .kind = OD_OP_ROUTE, .n_rows = ROWS };
			struct od_op_route *o = &op.route;

			bench_reset(&b);
			*o = (struct od_op_route){ .logits = lay_floats(&b, ROWS * ROUTE_N),
						   .choice = lay_dirt(&b, ROWS * ROUTE_K * sizeof(uint16_t)),
						   .weight = lay_dirt(&b, ROWS * ROUTE_K * sizeof(float)),
						   .margin = lay_dirt(&b, ROWS * sizeof(float)), .n_experts = ROUTE_N,
						   .top_k = ROUTE_K, .hidden = ROUTE_HIDDEN, .router = ways[w] };
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

enum { FFN_HIDDEN = 128, FFN_MID = 40 };

struct expert {
	struct weight mat[OD_N_EXPERT_MATS];
	struct od_expert e;
	struct od_ref as_f32[OD_N_EXPERT_MATS]; /* its biases */
};

/* Every second expert kind has biases, of any type, and the activations take turns. */
static bool has_bias(int turn)
{
	return turn % 2 == 1;
}

static struct od_act_spec act_of(int turn)
{
	static const struct od_act_spec acts[] = { { OD_ACT_SILU, 0 }, { OD_ACT_CLAMPED, 0.75f }, { OD_ACT_GELU, 0 } };

	return acts[turn % 3];
}

static void lay_bias(struct bench *b, struct expert *e, int mat, size_t n)
{
	static const enum od_dtype types[] = { OD_BF16, OD_F32, OD_F16 };
	const enum od_dtype t = types[mat];
	char *at = random_weights(&b->seed, t, n, PLAIN);
	float *wide = exact(n, sizeof(float));
	char *odd = malloc(n * od_dtype_bytes(t) + 1);

	for (size_t i = 0; i < n; i++)
		wide[i] = weight_at(t, at, i);
	memcpy(odd + 1, at, n * od_dtype_bytes(t));
	odd[0] = 0;
	e->as_f32[mat] = lay(b, wide, n * sizeof(float));
	/* At an odd address, as it may lie behind coded exponents. */
	e->e.bias[mat] = (struct od_vector){ t, od_ref_at(lay(b, odd, n * od_dtype_bytes(t) + 1), 1) };
	free(at), free(wide), free(odd);
}

static void lay_matrix(struct bench *b, struct expert *e, int i, enum weight_kind kind, bool biased)
{
	const size_t n_out = i == OD_MAT_DOWN ? FFN_HIDDEN : FFN_MID, n_in = i == OD_MAT_DOWN ? FFN_MID : FFN_HIDDEN;

	lay_weight(b, &e->mat[i], kind, n_out, n_in);
	e->e.mat[i] = e->mat[i].w;
	e->e.bias[i] = (struct od_vector){ 0 };
	if (biased)
		lay_bias(b, e, i, n_out);
}

static void lay_expert(struct bench *b, struct expert *e, int turn)
{
	for (int i = 0; i < OD_N_EXPERT_MATS; i++) /* NF4 does not fit rows of FFN_MID */
		lay_matrix(b, e, i, (enum weight_kind)((turn + 3 * i) % (i == OD_MAT_DOWN ? W_NF4 : N_WEIGHT_KINDS)), has_bias(turn));
}

static void bias_by_hand(const struct bench *b, const struct expert *e, int mat, float *y, size_t n_rows, size_t n)
{
	for (size_t i = 0; e->e.bias[mat].data.buf != NULL && i < n_rows * n; i++)
		y[i] += wanted_f32(b, e->as_f32[mat])[i % n];
}

static void act_by_hand(const struct bench *b, struct od_act_spec act, float *gate, const float *up, size_t n)
{
	switch (act.kind) {
	case OD_ACT_SILU: b->be->silu_mul(gate, up, n); break;
	case OD_ACT_GELU: b->be->gelu_mul(gate, up, n); break;
	case OD_ACT_CLAMPED: b->be->clamped_mul(gate, up, n, act.limit); break;
	}
}

/* Against a part of wider rows, as of the inputs of several layers. */
static void op_act(void **state)
{
	enum { N = 37, STRIDE = 3 * N + 1, AT = N };

	FOR_PROFILES(p) {
		struct bench b;

		bench_open(&b, state, p);
		for (int turn = 0; turn < 3; turn++) {
			struct od_op op = { .kind = OD_OP_ACT, .n_rows = ROWS };
			struct od_op_act *o = &op.act;
			const struct od_ref wide = (bench_reset(&b), lay_floats(&b, ROWS * STRIDE));

			*o = (struct od_op_act){ .gate = lay_floats(&b, ROWS * N), .up = od_ref_at(wide, AT * sizeof(float)), .n = N,
						 .stride = STRIDE, .act = act_of(turn) };
			expect(&b);
			for (size_t r = 0; r < ROWS; r++)
				act_by_hand(&b, act_of(turn), wanted_f32(&b, o->gate) + r * N, wanted_f32(&b, wide) + r * STRIDE + AT, N);
			by_row(&b, &o->gate, N * sizeof(float));
			by_row(&b, &o->up, STRIDE * sizeof(float));
			check_op(&b, &op, "act");
		}
		bench_close(&b);
	}
}

static void op_gate(void **state)
{
	enum { N = 301 };
	struct od_op op = { .kind = OD_OP_GATE, .n_rows = ROWS };
	struct bench b;

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
	struct bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	*o = (struct od_op_split){ .in = lay_floats(&b, ROWS * 2 * N), .first = lay_dirt(&b, ROWS * N * sizeof(float)),
				   .second = lay_dirt(&b, ROWS * N * sizeof(float)), .n_heads = SPLIT_HEADS, .dim = DIM };
	expect(&b);
	for (size_t i = 0; i < ROWS * 2 * N; i++)
		wanted_f32(&b, i / DIM % 2 ? o->second : o->first)[i / (2 * DIM) * DIM + i % DIM] = wanted_f32(&b, o->in)[i];
	by_row(&b, &o->in, 2 * N * sizeof(float));
	by_row(&b, &o->first, N * sizeof(float));
	by_row(&b, &o->second, N * sizeof(float));
	check_op(&b, &op, "split");
	bench_close(&b);
}

static void ffn_by_hand(const struct bench *b, const struct expert *e, struct od_act_spec act, bool routed, const float *x,
			float *y, size_t n_rows)
{
	const size_t mid = e->mat[OD_MAT_GATE].m.n_out, hidden = e->mat[OD_MAT_DOWN].m.n_out;
	float *gate = exact(n_rows * mid, sizeof(*gate)), *up = exact(n_rows * mid, sizeof(*up));

	od_matmul(b->be, NULL, &e->mat[OD_MAT_GATE].m, x, gate, n_rows);
	od_matmul(b->be, NULL, &e->mat[OD_MAT_UP].m, x, up, n_rows);
	bias_by_hand(b, e, OD_MAT_GATE, gate, n_rows, mid);
	bias_by_hand(b, e, OD_MAT_UP, up, n_rows, mid);
	act_by_hand(b, act, gate, up, n_rows * mid);
	od_matmul(b->be, NULL, &e->mat[OD_MAT_DOWN].m, gate, y, n_rows);
	bias_by_hand(b, e, OD_MAT_DOWN, y, n_rows, hidden);
	for (size_t i = 0; routed && b->profile == OD_PROFILE_BF16 && i < n_rows * hidden; i++)
		y[i] = od_bf16_f32(od_f32_bf16(y[i]));
	free(gate), free(up);
}

static void op_ffn(void **state)
{
	FOR_PROFILES(p) {
		struct bench b;

		bench_open(&b, state, p);
		for (int turn = 0; turn < (ROWS > 16 ? 1 : 2) * N_WEIGHT_KINDS; turn++) {
			const bool routed = turn < N_WEIGHT_KINDS;
			struct od_op op = { .kind = OD_OP_FFN, .n_rows = ROWS };
			struct od_ffn_part part;
			struct expert e;

			bench_reset(&b);
			lay_expert(&b, &e, turn % N_WEIGHT_KINDS);
			part = od_expert_part(&e.e, 0);
			b.part = &part;
			op.ffn = (struct od_op_ffn){ .part = &part, .n_parts = 1, .routed = routed, .act = act_of(turn), .x = lay_floats(&b, ROWS * FFN_HIDDEN),
						     .y = lay_dirt(&b, ROWS * FFN_HIDDEN * sizeof(float)),
						     .scratch = scratch_of(&b, od_ffn_scratch_bytes(FFN_MID, ROWS)) };
			expect(&b);
			ffn_by_hand(&b, &e, act_of(turn), routed, wanted(&b, op.ffn.x), wanted(&b, op.ffn.y), ROWS);
			by_row(&b, &op.ffn.x, FFN_HIDDEN * sizeof(float));
			by_row(&b, &op.ffn.y, FFN_HIDDEN * sizeof(float));
			check_op(&b, &op, "ffn");
		}
		bench_close(&b);
	}
}

/* Each part's rows are what they would be alone. */
static void check_parts(struct bench *b, const struct expert *e, const uint32_t *n_rows, uint32_t n_parts, const char *what)
{
	struct od_ffn_part part[OD_MAX_PARTS];
	const uint32_t mid = (uint32_t)e->mat[OD_MAT_GATE].m.n_out, hidden = (uint32_t)e->mat[OD_MAT_DOWN].m.n_out;
	struct od_op op = { .kind = OD_OP_FFN, .profile = b->profile };
	uint32_t at = 0;

	op.ffn = (struct od_op_ffn){ .part = part, .n_parts = n_parts, .routed = true, .act = act_of((int)n_rows[0]) };
	for (uint32_t i = 0; i < n_parts; i++) {
		part[i] = od_expert_part(&e[i].e, n_rows[i]);
		op.n_rows += n_rows[i];
	}
	op.ffn.x = lay_floats(b, op.n_rows * hidden);
	op.ffn.y = lay_dirt(b, op.n_rows * hidden * sizeof(float));
	op.ffn.scratch = scratch_of(b, od_ffn_scratch_bytes(mid, op.n_rows));
	expect(b);
	for (uint32_t i = 0; i < n_parts; at += n_rows[i++])
		ffn_by_hand(b, &e[i], op.ffn.act, true, wanted_f32(b, op.ffn.x) + (size_t)at * hidden,
			    wanted_f32(b, op.ffn.y) + (size_t)at * hidden, n_rows[i]);
	run_in_steps(b, b->d, &op, op.n_rows, what);
	if (b->profile == OD_PROFILE_F32)
		run_in_steps(b, b->scalar, &op, op.n_rows, what);
}

static void op_ffn_parts(void **state)
{
	static struct expert e[OD_MAX_PARTS];
	static const uint32_t few[] = { 3, 1, 16, 2 };
	uint32_t one[OD_MAX_PARTS];

	for (size_t i = 0; i < OD_MAX_PARTS; i++)
		one[i] = 1;
	FOR_PROFILES(p) {
		struct bench b;

		bench_open(&b, state, p);
		for (int kind = 0; kind < N_WEIGHT_KINDS; kind++) {
			bench_reset(&b);
			for (size_t i = 0; i < 4; i++)
				lay_expert(&b, &e[i], kind);
			check_parts(&b, e, few, 4, "four parts");
		}
		bench_reset(&b);
		for (size_t i = 0; i < OD_MAX_PARTS; i++)
			lay_expert(&b, &e[i], W_INT8);
		check_parts(&b, e, one, OD_MAX_PARTS, "as many parts as there may be");
		bench_close(&b);
	}
}

/* ---- products of planes, which a GPU multiplies as they are, or decodes first if there are many rows ---- */

/* Exponents as trained weights have them, in all levels of planes; or too many for symbols, so that blocks are raw; or three in the
 * first two thirds of a stretch and three others in the rest, which are all escapes. No sum is infinite. */
static uint16_t *odd_weights(struct bench *b, size_t n, size_t stretch)
{
	uint16_t *w = exact(n, sizeof(*w));

	for (size_t i = 0; i < n; i++) {
		unsigned exponent = 120;

		switch (i / stretch % 3) {
		case 1: exponent = 85 + (unsigned)random_below(&b->seed, 40); break;
		case 2: exponent = (i % stretch < stretch / 3 * 2 ? 100 : 103) + (unsigned)random_below(&b->seed, 3); break;
		default:
			while (exponent > 60 && random_below(&b->seed, 100) < 45)
				exponent--;
		}
		w[i] = (uint16_t)((random_u64(&b->seed) & 0x807fu) | exponent << 7);
	}
	return w;
}

static void lay_odd(struct bench *b, struct weight *w, size_t n_out, size_t n_in, size_t chunk_rows)
{
	*w = (struct weight){ .w = { .dtype = OD_BF16, .n_out = n_out, .n_in = n_in } };
	lay_planes(b, w, chunk_rows, odd_weights(b, n_out * n_in, chunk_rows * n_in));
	w->m = (struct od_mat){ .dtype = OD_BF16, .n_out = n_out, .n_in = n_in, .data = b->want + w->w.data.at, .planes = &w->planes };
}

struct odd {
	size_t n_in;
	struct {
		size_t n_out, chunk_rows; /* n_out 0: no such matrix; chunk_rows 0: BF16 */
	} mat[OD_MAX_LINEAR];
};

/* x begins so many floats behind a place that is aligned to all accesses. */
static void check_odd_linear(struct bench *b, const struct odd *o, uint32_t askew)
{
	static const uint32_t n_rows[] = { 1, 2, 3, 8, 9, ROWS };
	static struct weight w[OD_MAX_LINEAR];
	struct od_op op = { .kind = OD_OP_LINEAR, .profile = b->profile };
	size_t n = 0;

	bench_reset(b);
	op.linear.x = lay_floats(b, ROWS * o->n_in + askew);
	op.linear.x = od_ref_at(op.linear.x, askew * sizeof(float));
	for (; n < OD_MAX_LINEAR && o->mat[n].n_out > 0; n++) {
		const size_t n_out = o->mat[n].n_out;

		if (o->mat[n].chunk_rows > 0)
			lay_odd(b, &w[n], n_out, o->n_in, o->mat[n].chunk_rows);
		else
			lay_weight(b, &w[n], W_BF16, n_out, o->n_in);
		op.linear.w[n] = &w[n].w;
		op.linear.y[n] = lay_dirt(b, ROWS * n_out * sizeof(float));
		if (n % 2 == 0)
			op.linear.bias[n] = lay_floats(b, n_out);
	}
	for (size_t k = 0; k < sizeof(n_rows) / sizeof(n_rows[0]); k++) {
		char what[64];

		expect(b);
		for (size_t i = 0; i < n; i++) {
			const size_t n_out = o->mat[i].n_out;
			float *y = wanted(b, op.linear.y[i]);

			od_matmul(b->be, NULL, &w[i].m, wanted(b, op.linear.x), y, n_rows[k]);
			for (size_t at = 0; i % 2 == 0 && at < n_rows[k] * n_out; at++)
				y[at] += wanted_f32(b, op.linear.bias[i])[at % n_out];
		}
		op.n_rows = n_rows[k];
		snprintf(what, sizeof(what), "linear of planes, rows of %zu, %u at a time", o->n_in, n_rows[k]);
		run_in_steps(b, b->d, &op, op.n_rows, what);
	}
}

static void op_linear_planes(void **state)
{
	/* Blocks of rows: many; some, up to all that a GPU's block has threads for; one. Rows in two pieces and in three. Lines of 64 in
	 * eights, and some more. Last chunks are shorter, and there are more chunks than a launch of a GPU takes. */
	static const struct odd odd[] = {
		{ 70, { { 37, 9 } } },
		{ 300, { { 150, 70 } } },
		{ 1000, { { 53, 40 } } },
		{ 1024, { { 40, 16 } } },
		{ 5000, { { 7, 3 } } },
		{ 576, { { 60, 29 }, { 20, 0 } } },
		{ 2880, { { 23, 11 }, { 20, 0 } } },
		{ 32768, { { 3, 2 } } },
		{ 4096, { { 40, 12 }, { 5, 0 } } },
		{ 16384, { { 3, 2 } } },
		{ 16421, { { 5, 2 } } },
		{ 16448, { { 5, 2 } } },
		{ 32787, { { 3, 2 } } },
		{ 37, { { 300, 1 } } },
		{ 24, { { 250, 1 }, { 20, 3 }, { 31, 0 }, { 280, 1 } } },
		{ 15, { { 1, 1 }, { 2, 7 }, { 301, 300 }, { 17, 16 } } },
	};

	FOR_PROFILES(p) {
		struct bench b;

		bench_open(&b, state, p);
		for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++)
			check_odd_linear(&b, &odd[i], odd[i].n_in == 576 ? 1 : odd[i].n_in == 2880 ? 2 : 0);
		bench_close(&b);
	}
}

static void lay_odd_expert(struct bench *b, struct expert *e, size_t hidden, size_t mid, size_t chunk_rows, bool biased)
{
	for (int i = 0; i < OD_N_EXPERT_MATS; i++) {
		const bool down = i == OD_MAT_DOWN;

		lay_odd(b, &e->mat[i], down ? hidden : mid, down ? mid : hidden, chunk_rows);
		e->e.mat[i] = e->mat[i].w;
		e->e.bias[i] = (struct od_vector){ 0 };
		if (biased)
			lay_bias(b, e, i, down ? hidden : mid);
	}
}

static void op_ffn_planes(void **state)
{
	static const struct {
		size_t hidden, mid, chunk_rows;
	} odd[] = { { 70, 37, 9 }, { 256, 64, 40 }, { 1500, 41, 12 }, { 5, 16421, 60 } };
	static const uint32_t rows[] = { 3, 1, 9, 2, 8 };
	static struct expert e[OD_MAX_PARTS];
	uint32_t one[OD_MAX_PARTS];

	for (size_t i = 0; i < OD_MAX_PARTS; i++)
		one[i] = 1;
	FOR_PROFILES(p) {
		struct bench b;

		bench_open(&b, state, p);
		for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
			const uint32_t n_parts = odd[i].mid > 16384 ? 2 : 5;

			bench_reset(&b);
			for (uint32_t k = 0; k < n_parts; k++)
				lay_odd_expert(&b, &e[k], odd[i].hidden, odd[i].mid, odd[i].chunk_rows, i % 2 == 0);
			check_parts(&b, e, rows, n_parts, "parts with planes");
		}
		bench_reset(&b);
		for (size_t i = 0; i < OD_MAX_PARTS; i++)
			lay_odd_expert(&b, &e[i], 70, 37, 4, false);
		check_parts(&b, e, one, OD_MAX_PARTS, "as many parts as there may be, with planes");
		bench_close(&b);
	}
}

/* ---- experts whose rows the device sorts ---- */

enum { N_EXPERTS = 6, TOP_K = 3, MANY_EXPERTS = 48, MANY_K = 33 };

/* No row chooses expert 0, all but one choose 5, and some choose each of the others. */
static struct od_ref lay_choices(struct bench *b)
{
	uint16_t choice[ROWS][TOP_K];

	for (size_t r = 0; r < ROWS; r++)
		for (size_t k = 0; k < TOP_K; k++)
			choice[r][k] = (uint16_t)(k == r % TOP_K && r != 4 ? 5 : 1 + (r + k) % 4);
	return lay(b, choice, sizeof(choice));
}

/* No row chooses expert 0; most rows choose each of the others. */
static struct od_ref lay_many_choices(struct bench *b)
{
	uint16_t choice[ROWS][MANY_K];

	for (size_t r = 0; r < ROWS; r++)
		for (size_t k = 0; k < MANY_K; k++)
			choice[r][k] = (uint16_t)(1 + (7 * r + 11 * k) % (MANY_EXPERTS - 1));
	return lay(b, choice, sizeof(choice));
}

/* e [n]: laid. */
static void check_experts(struct bench *b, const struct expert *e, uint32_t n, uint32_t top_k, struct od_ref choices)
{
	struct od_op op = { .kind = OD_OP_EXPERTS, .n_rows = ROWS };
	struct od_op_experts *o = &op.experts;
	struct od_expert list[MANY_EXPERTS];
	const uint16_t *choice;

	for (uint32_t i = 0; i < n; i++)
		list[i] = e[i].e;
	*o = (struct od_op_experts){ .expert = list, .x = lay_floats(b, ROWS * FFN_HIDDEN), .choice = choices,
				     .y = lay_dirt(b, ROWS * top_k * FFN_HIDDEN * sizeof(float)),
				     .scratch = scratch_of(b, od_experts_scratch_bytes(FFN_HIDDEN, FFN_MID, n, top_k, ROWS)),
				     .n_experts = n, .top_k = top_k, .hidden = FFN_HIDDEN, .act = act_of(1) };
	expect(b);
	choice = wanted(b, o->choice);
	for (size_t i = 0; i < (size_t)ROWS * top_k; i++)
		ffn_by_hand(b, &e[choice[i]], o->act, true, wanted_f32(b, o->x) + i / top_k * FFN_HIDDEN,
			    wanted_f32(b, o->y) + i * FFN_HIDDEN, 1);
	by_row(b, &o->x, FFN_HIDDEN * sizeof(float));
	by_row(b, &o->choice, top_k * sizeof(uint16_t));
	by_row(b, &o->y, top_k * FFN_HIDDEN * sizeof(float));
	check_op(b, &op, "experts");
}

/* Expert i has weights of kind first + 2 * i, and the next ones: together all kinds. Of the last ones one has planes for down. */
static void op_experts(void **state)
{
	static const int first[] = { 1, 5, 17 };
	struct expert e[N_EXPERTS];
	struct bench b;

	FOR_PROFILES(p) {
		for (size_t way = 0; way < sizeof(first) / sizeof(first[0]); way++) {
			bench_open(&b, state, p);
			for (int i = 0; i < N_EXPERTS; i++)
				lay_expert(&b, &e[i], first[way] + 2 * i);
			check_experts(&b, e, N_EXPERTS, TOP_K, lay_choices(&b));
			bench_close(&b);
		}
	}
}

/* All weights of one kind without scales: a GPU multiplies gate and up together. */
static void op_experts_of_a_kind(void **state)
{
	struct expert e[N_EXPERTS];
	struct bench b;

	FOR_PROFILES(p) {
		for (int turn = 0; turn < 2 * W_INT8; turn++) {
			bench_open(&b, state, p);
			for (int i = 0; i < N_EXPERTS; i++)
				for (int m = 0; m < OD_N_EXPERT_MATS; m++)
					lay_matrix(&b, &e[i], m, (enum weight_kind)(turn / 2), has_bias(turn));
			check_experts(&b, e, N_EXPERTS, TOP_K, lay_choices(&b));
			bench_close(&b);
		}
	}
}

/* As many pairs as a GPU sorts in several ways: of 64 rows more than its block holds at once. */
static void op_many_experts(void **state)
{
	static struct expert e[MANY_EXPERTS];
	struct bench b;

	for (int biased = 0; biased < 2; biased++) {
		bench_open(&b, state, OD_PROFILE_BF16);
		for (int i = 0; i < MANY_EXPERTS; i++)
			lay_expert(&b, &e[i], i % 2 * 2 + biased); /* all have biases, or none */
		check_experts(&b, e, MANY_EXPERTS, MANY_K, lay_many_choices(&b));
		bench_close(&b);
	}
}

/* k outputs of experts, and what all rows share: as it is, or through a gate; norms of them, and of both. */
struct combine_way {
	uint32_t k, n;
	bool shared, gate, norms;
};

/* What is added to x [n] of a row. */
static const float *combine_by_hand(struct bench *b, const struct od_op_combine *o, size_t r, float *sum)
{
	const float *y = wanted_f32(b, o->y) + r * o->top_k * o->hidden, *weight = wanted_f32(b, o->weight) + r * o->top_k;
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

static void check_combine(struct bench *b, const struct combine_way *w)
{
	const uint32_t n = w->n;
	struct od_op op = { .kind = OD_OP_COMBINE, .n_rows = ROWS };
	struct od_op_combine *o = &op.combine;
	float *sum = exact(n, sizeof(*sum));

	bench_reset(b);
	*o = (struct od_op_combine){ .y = lay_floats(b, ROWS * w->k * n), .weight = lay_floats(b, ROWS * w->k),
				     .x = lay_floats(b, ROWS * n), .sum = scratch_of(b, ROWS * n * sizeof(float)), .top_k = w->k,
				     .hidden = n, .eps = 1e-5f };
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
	struct bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		check_combine(&b, &ways[i]);
	bench_close(&b);
}

/* ---- operations that follow each other, which a GPU may run as one ---- */

/* The memory after both. apart: the second begins when the first is done. */
static unsigned char *after_both(struct bench *b, struct od_op *first, struct od_op *second, bool apart)
{
	first->profile = second->profile = b->profile;
	put_at(b->d, od_buf_ref(b->arena, 0), b->image, b->used);
	od_device_run(b->d, OD_QUEUE_COMPUTE, first);
	if (apart)
		sync_device(b->d);
	run_op(b->d, second);
	return copy_at(b->d, od_buf_ref(b->arena, 0), b->used);
}

static void check_both(struct bench *b, struct od_op *first, struct od_op *second, const char *what)
{
	unsigned char *got = after_both(b, first, second, false); /* before the other leaves the same in the device's own memory */
	unsigned char *want = after_both(b, first, second, true);

	assert_memory_not_equal(b->image, want, b->used);
	for (size_t i = 0; i < b->used; i++)
		if (got[i] != want[i])
			fail_msg("%s, %u and %u rows: byte %zu of %zu differs", what, first->n_rows, second->n_rows, i, b->used);
	free(want), free(got);
}

/* Where the norm that follows writes. */
enum norm_to { TO_OWN, TO_SUM, TO_Y };

static void check_combine_and_norm(struct bench *b, const struct combine_way *w, enum norm_to to, bool layer, uint32_t n_rows,
				   uint32_t normed)
{
	struct od_op combine = { .kind = OD_OP_COMBINE, .n_rows = n_rows }, norm = { .kind = OD_OP_NORM, .n_rows = normed };
	struct od_op_combine *o = &combine.combine;
	const uint32_t n = w->n;

	bench_reset(b);
	*o = (struct od_op_combine){ .y = lay_floats(b, n_rows * (w->k + 1) * n), .weight = lay_floats(b, n_rows * w->k),
				     .x = lay_floats(b, n_rows * n), .sum = scratch_of(b, n_rows * n * sizeof(float)), .top_k = w->k,
				     .hidden = n, .eps = 1e-5f };
	if (w->shared)
		o->shared = lay_floats(b, n_rows * n);
	if (w->gate)
		o->gate = lay_floats(b, n_rows);
	if (w->norms)
		o->experts_norm = o->norm = lay_floats(b, n);
	if (w->norms && w->shared)
		o->shared_norm = lay_floats(b, n);
	norm.norm = (struct od_op_norm){ .x = o->x, .weight = lay_floats(b, n), .y = lay_dirt(b, n_rows * n * sizeof(float)),
					 .kind = layer ? OD_NORM_LAYER : OD_NORM_RMS, .n = n, .eps = 1e-5f };
	if (layer)
		norm.norm.bias = lay_floats(b, n);
	if (to == TO_SUM) { /* in the arena, where it is compared */
		o->sum = norm.norm.y;
	} else if (to == TO_Y) {
		norm.norm.y = o->y;
	}
	check_both(b, &combine, &norm, "combine, then norm");
}

/* Also what may not be one: a norm of fewer rows, one that writes over what other rows still need, rows that are too long. */
static void combine_and_norm(void **state)
{
	static const struct combine_way ways[] = {
		{ 3, 53, false, false, false }, { 5, 601, true, true, false },	{ 0, 601, true, false, false },
		{ 2, 4301, true, false, true }, { 2, 8192 + 37, false, false, false }, { 1, 131, false, false, true },
	};
	struct bench b;

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

static void check_route_and_experts(struct bench *b, const struct expert *e, const struct od_router_spec *way, bool own, uint32_t n_rows,
				    uint32_t run)
{
	struct od_op route = { .kind = OD_OP_ROUTE, .n_rows = n_rows }, experts = { .kind = OD_OP_EXPERTS, .n_rows = run }, other;
	struct od_op_route *o = &route.route;
	struct od_expert list[N_EXPERTS];
	const struct od_ref choices = lay_choices(b), x = lay_floats(b, n_rows * FFN_HIDDEN);

	for (int i = 0; i < N_EXPERTS; i++)
		list[i] = e[i].e;
	*o = (struct od_op_route){ .logits = lay_floats(b, n_rows * N_EXPERTS), .choice = lay_dirt(b, n_rows * TOP_K * sizeof(uint16_t)),
				   .weight = lay_dirt(b, n_rows * TOP_K * sizeof(float)), .margin = lay_dirt(b, n_rows * sizeof(float)),
				   .round = b->profile == OD_PROFILE_BF16 ? x : (struct od_ref){ 0 }, .n_experts = N_EXPERTS, .top_k = TOP_K,
				   .hidden = FFN_HIDDEN, .router = *way };
	experts.experts = (struct od_op_experts){
		.expert = list, .x = x, .choice = own ? choices : o->choice, .y = lay_dirt(b, n_rows * TOP_K * FFN_HIDDEN * sizeof(float)),
		.scratch = scratch_of(b, od_experts_scratch_bytes(FFN_HIDDEN, FFN_MID, N_EXPERTS, TOP_K, n_rows)),
		.n_experts = N_EXPERTS, .top_k = TOP_K, .hidden = FFN_HIDDEN, .act = act_of(1) };
	/* Once before, with other choices: then the GPU knows the experts, and has lists that are wrong. */
	other = experts;
	other.profile = b->profile;
	other.experts.choice = choices;
	put_at(b->d, od_buf_ref(b->arena, 0), b->image, b->used);
	run_op(b->d, &other);
	check_both(b, &route, &experts, "route, then experts");
}

/* Of a row, of several, of fewer than were routed; and with other choices than those of the router. */
static void route_and_experts(void **state)
{
	static const struct od_router_spec ways[] = { SOFTMAX(0, 0, true, 1), WAY(OD_SCORE_LOGIT, 0, 0, false, 1, false, false, 0),
						      { .score = OD_SCORE_MIXER, .band = 0.3f } };
	static const uint32_t rows[][2] = { { 1, 1 }, { 3, 3 }, { 7, 1 } };
	struct expert e[N_EXPERTS];

	FOR_PROFILES(p) {
		for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
			for (size_t i = 0; i < 6; i++) {
				struct bench b;

				bench_open(&b, state, p);
				for (int k = 0; k < N_EXPERTS; k++)
					lay_expert(&b, &e[k], k);
				check_route_and_experts(&b, e, &ways[w], i >= 3, rows[i % 3][0], rows[i % 3][1]);
				bench_close(&b);
			}
		}
	}
}

/* Bytes as they are, whatever they mean, at places that are aligned to nothing. */
static void op_copy(void **state)
{
	enum { N = 77 };
	struct od_op op = { .kind = OD_OP_COPY, .n_rows = ROWS };
	struct bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	op.copy = (struct od_op_copy){ .from = od_ref_at(lay_random(&b, OD_INT8, ROWS * N + 3), 3),
				       .to = od_ref_at(lay_dirt(&b, ROWS * N + 5), 5), .n = N };
	expect(&b);
	memcpy(wanted(&b, op.copy.to), wanted(&b, op.copy.from), ROWS * N);
	by_row(&b, &op.copy.from, N);
	by_row(&b, &op.copy.to, N);
	check_op(&b, &op, "copy");
	bench_close(&b);
}

/* ---- loads ---- */

/* Exponents as trained weights have them, in all levels of planes; with wild ones, so that blocks are raw. */
static uint16_t random_bf16(uint64_t *seed, bool wild)
{
	unsigned exponent = 120;

	if (wild)
		return (uint16_t)random_u64(seed);
	while (exponent > 60 && random_below(seed, 100) < 45)
		exponent--;
	return (uint16_t)((random_u64(seed) & 0x807fu) | exponent << 7);
}

/* Weights and what a pack has of them: sm = mantissa << 1 | sign, e = exponent. */
struct parts {
	uint16_t *w;
	uint8_t *sm, *e;
};

static struct parts random_parts(uint64_t *seed, size_t n, size_t wild_period)
{
	struct parts p = { exact(n, sizeof(*p.w)), exact(n, 1), exact(n, 1) };

	for (size_t i = 0; i < n; i++) {
		p.w[i] = random_bf16(seed, wild_period > 0 && i / wild_period % 3 == 1);
		p.sm[i] = (uint8_t)((p.w[i] & 0x7f) << 1 | p.w[i] >> 15);
		p.e[i] = (uint8_t)(p.w[i] >> 7 & 0xff);
	}
	return p;
}

static void parts_free(struct parts *p)
{
	free(p->w), free(p->sm), free(p->e);
}

/* Exponents as they are, or as the one chunk of planes that all rows are. */
static struct od_ref lay_exponents(struct bench *b, const struct parts *p, size_t n, size_t row, bool planes)
{
	uint8_t *room = exact(od_planes_bound(n, row), 1);
	struct od_ref at;
	size_t bytes;

	if (!planes) {
		free(room);
		return lay(b, p->e, n);
	}
	bytes = od_planes_encode(p->e, n, row, room);
	assert_int_equal(od_planes_check(room, bytes, n, row, NULL), OD_OK);
	at = lay(b, room, bytes);
	free(room);
	return at;
}

static void check_merge(struct bench *b, uint32_t row, size_t wild_period, bool planes, bool in_place)
{
	const size_t n = (size_t)ROWS * row;
	struct parts p = random_parts(&b->seed, n, wild_period);
	struct od_op op = { .kind = OD_OP_MERGE, .n_rows = ROWS };
	struct od_op_merge *o = &op.merge;

	bench_reset(b);
	*o = (struct od_op_merge){ .e = lay_exponents(b, &p, n, row, planes), .to = lay_dirt(b, 2 * n), .n = row, .planes = planes };
	o->sm = in_place ? od_ref_at(o->to, n) : lay(b, NULL, n);
	memcpy(b->image + o->sm.at, p.sm, n);
	expect(b);
	memcpy(wanted(b, o->to), p.w, 2 * n);
	if (planes) { /* all rows or none */
		op.profile = b->profile;
		run_in_steps(b, b->d, &op, ROWS, in_place ? "merge of planes, in place" : "merge of planes");
		run_in_steps(b, b->scalar, &op, ROWS, "merge of planes");
	} else {
		by_row(b, &o->sm, row);
		by_row(b, &o->e, row);
		by_row(b, &o->to, 2 * row);
		check_op(b, &op, in_place ? "merge, in place" : "merge");
	}
	parts_free(&p);
}

/* Rows of which several are a block of planes, not a multiple of what kernels do at a time, and rows of several blocks. */
static void op_merge(void **state)
{
	static const uint32_t rows[] = { 64, 173, 4096, 17000 };
	struct bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		for (int way = 0; way < 8; way++)
			check_merge(&b, rows[i], way & 4 ? 2 * rows[i] : 0, way & 1, way & 2);
	bench_close(&b);
}

/* A merge alone, without a copy before it, that overwrites what another queue reads. */
static void merges_follow_other_queues(void **state)
{
	enum { ROW = 512, N_ROWS = 4, N = ROW * N_ROWS, ROUNDS = 8 };
	uint16_t *got = exact(ROUNDS * N, sizeof(*got));
	struct od_buf *stage, *slot, *seen;
	struct parts p[ROUNDS];
	struct bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	stage = buf_new(b.d, ROUNDS * 2 * N);
	slot = buf_new(b.d, 2 * N);
	seen = buf_new(b.d, ROUNDS * 2 * N);
	for (size_t i = 0; i < ROUNDS; i++) {
		p[i] = random_parts(&b.seed, N, 0);
		od_device_put(b.d, OD_QUEUE_LOADS, od_buf_ref(stage, i * 2 * N), p[i].sm, N);
		od_device_put(b.d, OD_QUEUE_LOADS, od_buf_ref(stage, i * 2 * N + N), p[i].e, N);
	}
	for (size_t i = 0; i < ROUNDS; i++) {
		const struct od_op merge = { .kind = OD_OP_MERGE, .profile = OD_PROFILE_F32, .n_rows = N_ROWS,
					     .merge = { .sm = od_buf_ref(stage, i * 2 * N), .e = od_buf_ref(stage, i * 2 * N + N),
							.to = od_buf_ref(slot, 0), .n = ROW } };
		const struct od_op copy = { .kind = OD_OP_COPY, .profile = OD_PROFILE_F32, .n_rows = 1,
					    .copy = { .from = od_buf_ref(slot, 0), .to = od_buf_ref(seen, i * 2 * N), .n = 2 * N } };

		od_device_run(b.d, OD_QUEUE_LOADS, &merge);
		od_device_after(b.d, OD_QUEUE_COMPUTE, OD_QUEUE_LOADS, od_device_ticket(b.d, OD_QUEUE_LOADS));
		od_device_run(b.d, OD_QUEUE_COMPUTE, &copy);
		od_device_after(b.d, OD_QUEUE_LOADS, OD_QUEUE_COMPUTE, od_device_ticket(b.d, OD_QUEUE_COMPUTE));
	}
	od_device_get(b.d, OD_QUEUE_COMPUTE, got, od_buf_ref(seen, 0), ROUNDS * 2 * N);
	assert_int_equal(od_device_wait(b.d, OD_QUEUE_COMPUTE, od_device_ticket(b.d, OD_QUEUE_COMPUTE), NULL), OD_OK);
	for (size_t i = 0; i < ROUNDS; i++) {
		assert_memory_equal(got + i * N, p[i].w, 2 * N);
		parts_free(&p[i]);
	}
	free(got);
	od_buf_free(stage);
	od_buf_free(slot);
	od_buf_free(seen);
	bench_close(&b);
}

/* Stages and slots that are used again at once: a merge sees what was copied before it and nothing that was copied later, and a copy
 * what was merged before it. Results are fetched at once, or all at the end, when nothing but merges has kept copies back. */
static void merges_and_copies_take_turns(void **state)
{
	enum { ROW = 512, N_ROWS = 4, N = ROW * N_ROWS, PLACES = 40, ROUNDS = 2 * PLACES + 1 };
	struct od_buf *stage, *slot;
	struct od_device *d;
	struct parts p[ROUNDS];
	struct bench b;
	uint16_t *got = exact(ROUNDS * N, sizeof(*got));

	bench_open(&b, state, OD_PROFILE_F32);
	d = b.d;
	stage = buf_new(d, PLACES * 2 * N);
	slot = buf_new(d, 2 * N * ROUNDS);
	for (size_t i = 0; i < ROUNDS; i++)
		p[i] = random_parts(&b.seed, N, 0);
	for (size_t way = 0; way < 4; way++) {
		const bool at_once = way < 2, one_slot = way == 1;

		memset(got, 0, ROUNDS * N * sizeof(*got));
		for (size_t i = 0; i < ROUNDS; i++) {
			const uint64_t place = i % (way < 3 ? 2 : PLACES) * 2 * N; /* soon, or after more merges than a GPU remembers */
			const struct od_op op = { .kind = OD_OP_MERGE, .profile = OD_PROFILE_F32, .n_rows = N_ROWS,
						  .merge = { .sm = od_buf_ref(stage, place), .e = od_buf_ref(stage, place + N),
							     .to = od_buf_ref(slot, one_slot ? 0 : i * 2 * N), .n = ROW } };

			od_device_put(d, OD_QUEUE_LOADS, op.merge.sm, p[i].sm, N);
			od_device_put(d, OD_QUEUE_LOADS, op.merge.e, p[i].e, N);
			od_device_run(d, OD_QUEUE_LOADS, &op);
			if (at_once)
				od_device_get(d, OD_QUEUE_LOADS, got + i * N, op.merge.to, 2 * N);
		}
		if (!at_once)
			od_device_get(d, OD_QUEUE_LOADS, got, od_buf_ref(slot, 0), ROUNDS * 2 * N);
		assert_int_equal(od_device_wait(d, OD_QUEUE_LOADS, od_device_ticket(d, OD_QUEUE_LOADS), NULL), OD_OK);
		for (size_t i = 0; i < ROUNDS; i++)
			assert_memory_equal(got + i * N, p[i].w, 2 * N);
	}
	for (size_t i = 0; i < ROUNDS; i++)
		parts_free(&p[i]);
	free(got);
	od_buf_free(stage);
	od_buf_free(slot);
	bench_close(&b);
}

/* One of several threads that load into one buffer. */
enum { LOAD_ROW = 512, LOAD_ROWS = 40, LOADERS = 4, LOADS = 30 };

struct loader {
	pthread_t thread;
	struct od_device *d;
	struct od_buf *to, *stage; /* stage: its own */
	uint64_t at, seed;
	bool ok;
};

static void *merge_again_and_again(void *arg)
{
	struct loader *l = arg;
	const size_t n = LOAD_ROW * LOAD_ROWS;
	const struct od_op op = { .kind = OD_OP_MERGE, .profile = OD_PROFILE_F32, .n_rows = LOAD_ROWS,
				  .merge = { .sm = od_buf_ref(l->stage, 0), .e = od_buf_ref(l->stage, n),
					     .to = od_buf_ref(l->to, l->at), .n = LOAD_ROW } };
	uint16_t *got = exact(n, sizeof(*got));
	int rc = OD_OK;

	l->ok = true;
	for (int i = 0; i < LOADS; i++) {
		struct parts p = random_parts(&l->seed, n, 0);

		od_device_put(l->d, OD_QUEUE_LOADS, op.merge.sm, p.sm, n);
		od_device_put(l->d, OD_QUEUE_LOADS, op.merge.e, p.e, n);
		od_device_run(l->d, OD_QUEUE_LOADS, &op);
		od_device_get(l->d, OD_QUEUE_LOADS, got, op.merge.to, 2 * n);
		rc |= od_device_wait(l->d, OD_QUEUE_LOADS, od_device_ticket(l->d, OD_QUEUE_LOADS), NULL);
		l->ok = l->ok && rc == OD_OK && memcmp(got, p.w, 2 * n) == 0;
		parts_free(&p);
	}
	free(got);
	return NULL;
}

/* While the compute queue has work for its whole team. */
static void several_threads_load(void **state)
{
	struct od_op op = { .kind = OD_OP_NORM, .profile = OD_PROFILE_F32, .n_rows = ROWS };
	struct loader l[LOADERS];
	struct bench b;
	struct od_buf *to;

	bench_open(&b, state, OD_PROFILE_F32);
	to = buf_new(b.d, LOADERS * 2 * LOAD_ROW * LOAD_ROWS);
	op.norm = (struct od_op_norm){ .x = lay_floats(&b, ROWS * LOAD_ROW), .weight = lay_floats(&b, LOAD_ROW),
				       .y = lay_dirt(&b, ROWS * LOAD_ROW * sizeof(float)), .n = LOAD_ROW, .eps = 1e-5f };
	put_at(b.d, od_buf_ref(b.arena, 0), b.image, b.used);
	for (int i = 0; i < LOADERS; i++) {
		l[i] = (struct loader){ .d = b.d, .to = to, .stage = buf_new(b.d, 2 * LOAD_ROW * LOAD_ROWS),
					.at = (uint64_t)i * 2 * LOAD_ROW * LOAD_ROWS, .seed = (uint64_t)i };
		assert_int_equal(pthread_create(&l[i].thread, NULL, merge_again_and_again, &l[i]), 0);
	}
	for (int i = 0; i < LOADS; i++)
		run_op(b.d, &op);
	for (int i = 0; i < LOADERS; i++)
		pthread_join(l[i].thread, NULL);
	for (int i = 0; i < LOADERS; i++) {
		assert_true(l[i].ok);
		od_buf_free(l[i].stage);
	}
	od_buf_free(to);
	bench_close(&b);
}

/* ---- failures ---- */

/* Experts of one row that has chosen this one: there are two. */
static void choose_one(struct bench *b, struct od_op *op, uint16_t expert)
{
	put_at(b->d, op->experts.choice, &expert, sizeof(expert));
	od_device_run(b->d, OD_QUEUE_COMPUTE, op);
}

/* It shows at the queue's next wait, the first of several, and once; what comes later is done as always. */
static void failures_show_once(void **state)
{
	struct od_op op = { .kind = OD_OP_EXPERTS, .profile = OD_PROFILE_F32, .n_rows = 1 };
	struct od_expert list[2];
	struct expert e[2];
	struct od_err err = { 0 };
	struct bench b;
	float *y;

	bench_open(&b, state, OD_PROFILE_F32);
	for (int i = 0; i < 2; i++) {
		lay_expert(&b, &e[i], 0);
		list[i] = e[i].e;
	}
	op.experts = (struct od_op_experts){ .expert = list, .x = lay_floats(&b, FFN_HIDDEN), .choice = lay(&b, NULL, 2),
					     .y = lay_dirt(&b, FFN_HIDDEN * sizeof(float)),
					     .scratch = scratch_of(&b, od_experts_scratch_bytes(FFN_HIDDEN, FFN_MID, 2, 1, 1)),
					     .n_experts = 2, .top_k = 1, .hidden = FFN_HIDDEN };
	expect(&b);
	ffn_by_hand(&b, &e[1], op.experts.act, true, wanted(&b, op.experts.x), wanted(&b, op.experts.y), 1);
	put_at(b.d, od_buf_ref(b.arena, 0), b.image, b.used);
	put_at(b.d, op.experts.choice, &(uint16_t){ 7 }, 2);
	od_device_run(b.d, OD_QUEUE_COMPUTE, &op);
	od_device_put(b.d, OD_QUEUE_COMPUTE, op.experts.choice, &(uint16_t){ 9 }, 2);
	od_device_run(b.d, OD_QUEUE_COMPUTE, &op);
	assert_int_equal(od_device_wait(b.d, OD_QUEUE_LOADS, od_device_ticket(b.d, OD_QUEUE_LOADS), &err), OD_OK);
	assert_int_equal(od_device_failures(b.d), 0);
	assert_int_equal(od_device_sync(b.d, &err), OD_ERR_RANGE);
	assert_non_null(strstr(err.msg, "expected 0 to 1, found 7"));
	assert_int_equal(od_device_sync(b.d, &err), OD_OK);
	assert_int_equal(od_device_failures(b.d), 1);
	choose_one(&b, &op, 8);
	for (int i = 0; i < 2; i++) /* who does not want to know why leaves it for the next */
		assert_int_equal(od_device_wait(b.d, OD_QUEUE_COMPUTE, od_device_ticket(b.d, OD_QUEUE_COMPUTE), NULL), OD_ERR_RANGE);
	assert_int_equal(od_device_sync(b.d, &err), OD_ERR_RANGE);
	assert_non_null(strstr(err.msg, "found 8"));
	assert_int_equal(od_device_failures(b.d), 4); /* each wait that said so */
	choose_one(&b, &op, 1);
	assert_int_equal(od_device_sync(b.d, &err), OD_OK);
	y = copy_at(b.d, op.experts.y, FFN_HIDDEN * sizeof(*y));
	assert_memory_equal(y, wanted(&b, op.experts.y), FFN_HIDDEN * sizeof(*y));
	free(y);
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_ALL_TABLES(op_norm),	   ON_ALL_TABLES(op_linear),	     ON_ALL_TABLES(op_route),
		ON_ALL_TABLES(op_ffn),	   ON_ALL_TABLES(op_experts),	     ON_ALL_TABLES(op_combine),
		ON_ALL_TABLES(op_many_experts), ON_ALL_TABLES(op_experts_of_a_kind),
#ifndef FEW_TESTS /* what else there is needs no other number of rows */
		ON_ALL_TABLES(op_embed),   ON_ALL_TABLES(op_angles),	     ON_ALL_TABLES(op_ffn_parts),
		ON_ALL_TABLES(op_act),	   ON_ALL_TABLES(op_copy),	     ON_ALL_TABLES(failures_show_once),
		ON_ALL_TABLES(op_merge),   ON_ALL_TABLES(several_threads_load), ON_ALL_TABLES(op_gate),
		ON_ALL_TABLES(op_split),   ON_ALL_TABLES(merges_and_copies_take_turns), ON_ALL_TABLES(op_linear_planes),
		ON_ALL_TABLES(op_ffn_planes), ON_ALL_TABLES(merges_follow_other_queues), ON_ALL_TABLES(combine_and_norm),
		ON_ALL_TABLES(route_and_experts),
#endif
	};

	choose_tables();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
