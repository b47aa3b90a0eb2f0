/* Operations of a device (ops.h) on experts and on weights as planes, against the kernels' table called directly, as in
 * test_ops.c. And how a failure shows. */
#include "common/compute/cpu/matmul.h"
#include "common/compute/scratch.h"
#include "tests/unit/ops_bench.h"

enum { FFN_HIDDEN = 128, FFN_MID = 40 };

struct ops_experts_expert {
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

static void lay_bias(struct ops_bench *b, struct ops_experts_expert *e, int mat, size_t n)
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

static void lay_sized(struct ops_bench *b, struct ops_experts_expert *e, int i, enum weight_kind kind, bool biased,
		      size_t hidden, size_t mid)
{
	const size_t n_out = i == OD_MAT_DOWN ? hidden : mid, n_in = i == OD_MAT_DOWN ? mid : hidden;

	lay_weight(b, &e->mat[i], kind_for(kind, n_in), n_out, n_in);
	e->e.mat[i] = e->mat[i].w;
	e->e.bias[i] = (struct od_vector){ 0 };
	if (biased)
		lay_bias(b, e, i, n_out);
}

static void lay_matrix(struct ops_bench *b, struct ops_experts_expert *e, int i, enum weight_kind kind, bool biased)
{
	lay_sized(b, e, i, kind, biased, FFN_HIDDEN, FFN_MID);
}

static void lay_expert(struct ops_bench *b, struct ops_experts_expert *e, int turn)
{
	for (int i = 0; i < OD_N_EXPERT_MATS; i++)
		lay_matrix(b, e, i, (enum weight_kind)((turn + 3 * i) % N_WEIGHT_KINDS), has_bias(turn));
}

static void bias_by_hand(const struct ops_bench *b, const struct ops_experts_expert *e, int mat, float *y,
			 size_t n_rows, size_t n)
{
	for (size_t i = 0; e->e.bias[mat].data.buf != NULL && i < n_rows * n; i++)
		y[i] += wanted_f32(b, e->as_f32[mat])[i % n];
}

static void act_by_hand(const struct ops_bench *b, struct od_act_spec act, float *gate, const float *up, size_t n)
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

	FOR_PROFILES(p)
	{
		struct ops_bench b;

		bench_open(&b, state, p);
		for (int turn = 0; turn < 3; turn++) {
			struct od_op op = { .kind = OD_OP_ACT, .n_rows = ROWS };
			struct od_op_act *o = &op.act;
			const struct od_ref wide = (bench_reset(&b), lay_floats(&b, ROWS * STRIDE));

			*o = (struct od_op_act){ .gate = lay_floats(&b, ROWS * N),
						 .up = od_ref_at(wide, AT * sizeof(float)),
						 .n = N,
						 .stride = STRIDE,
						 .act = act_of(turn) };
			expect(&b);
			for (size_t r = 0; r < ROWS; r++)
				act_by_hand(&b, act_of(turn), wanted_f32(&b, o->gate) + r * N,
					    wanted_f32(&b, wide) + r * STRIDE + AT, N);
			by_row(&b, &o->gate, N * sizeof(float));
			by_row(&b, &o->up, STRIDE * sizeof(float));
			check_op(&b, &op, "act");
		}
		bench_close(&b);
	}
}

static void ffn_by_hand(const struct ops_bench *b, const struct ops_experts_expert *e, struct od_act_spec act,
			bool routed, const float *x, float *y, size_t n_rows)
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
	FOR_PROFILES(p)
	{
		struct ops_bench b;

		bench_open(&b, state, p);
		for (int turn = 0; turn < (ROWS > 16 ? 1 : 2) * N_WEIGHT_KINDS; turn++) {
			const bool routed = turn < N_WEIGHT_KINDS;
			struct od_op op = { .kind = OD_OP_FFN, .n_rows = ROWS };
			struct od_ffn_segment segment;
			struct ops_experts_expert e;

			bench_reset(&b);
			lay_expert(&b, &e, turn % N_WEIGHT_KINDS);
			segment = od_expert_segment(&e.e, 0);
			b.segment = &segment;
			op.ffn = (struct od_op_ffn){ .segment = &segment,
						     .n_segments = 1,
						     .routed = routed,
						     .act = act_of(turn),
						     .x = lay_floats(&b, ROWS * FFN_HIDDEN),
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

/* Each segment's rows are what they would be alone. */
static void check_segments(struct ops_bench *b, const struct ops_experts_expert *e, const uint32_t *n_rows,
			   uint32_t n_segments, const char *what)
{
	struct od_ffn_segment segment[OD_MAX_SEGMENTS];
	const uint32_t mid = (uint32_t)e->mat[OD_MAT_GATE].m.n_out, hidden = (uint32_t)e->mat[OD_MAT_DOWN].m.n_out;
	struct od_op op = { .kind = OD_OP_FFN, .profile = b->profile };
	uint32_t at = 0;

	op.ffn = (struct od_op_ffn){
		.segment = segment, .n_segments = n_segments, .routed = true, .act = act_of((int)n_rows[0])
	};
	for (uint32_t i = 0; i < n_segments; i++) {
		segment[i] = od_expert_segment(&e[i].e, n_rows[i]);
		op.n_rows += n_rows[i];
	}
	op.ffn.x = lay_floats(b, op.n_rows * hidden);
	op.ffn.y = lay_dirt(b, op.n_rows * hidden * sizeof(float));
	op.ffn.scratch = scratch_of(b, od_ffn_scratch_bytes(mid, op.n_rows));
	expect(b);
	for (uint32_t i = 0; i < n_segments; at += n_rows[i++])
		ffn_by_hand(b, &e[i], op.ffn.act, true, wanted_f32(b, op.ffn.x) + (size_t)at * hidden,
			    wanted_f32(b, op.ffn.y) + (size_t)at * hidden, n_rows[i]);
	run_in_steps(b, b->d, &op, op.n_rows, what);
	if (b->profile == OD_PROFILE_F32)
		run_in_steps(b, b->scalar, &op, op.n_rows, what);
}

/* As many segments as there may be, of a row each. */
static void check_most_segments(struct ops_bench *b, const struct ops_experts_expert e[OD_MAX_SEGMENTS],
				const char *what)
{
	uint32_t one[OD_MAX_SEGMENTS];

	for (size_t i = 0; i < OD_MAX_SEGMENTS; i++)
		one[i] = 1;
	check_segments(b, e, one, OD_MAX_SEGMENTS, what);
}

static void op_ffn_segments(void **state)
{
	static struct ops_experts_expert e[OD_MAX_SEGMENTS];
	static const uint32_t few[] = { 3, 1, 16, 2 };

	FOR_PROFILES(p)
	{
		struct ops_bench b;

		bench_open(&b, state, p);
		for (int kind = 0; kind < N_WEIGHT_KINDS; kind++) {
			bench_reset(&b);
			for (size_t i = 0; i < 4; i++)
				lay_expert(&b, &e[i], kind);
			check_segments(&b, e, few, 4, "four parts");
		}
		bench_reset(&b);
		for (size_t i = 0; i < OD_MAX_SEGMENTS; i++)
			lay_expert(&b, &e[i], W_INT8);
		check_most_segments(&b, e, "as many parts as there may be");
		bench_reset(&b);
		for (int m = 0; m < OD_N_EXPERT_MATS; m++) {
			lay_sized(&b, &e[0], m, m == OD_MAT_DOWN ? W_IQ3_S : W_Q4_K, true, 256, 256);
			lay_sized(&b, &e[1], m, m == OD_MAT_UP ? W_BF16 : W_NVFP4, true, 256, 256);
		}
		check_segments(&b, e, (const uint32_t[]){ 9, 2 }, 2, "parts in blocks");
		bench_close(&b);
	}
}

/* ---- products of planes, which a GPU multiplies as they are, or decodes first if there are many rows ---- */

/* Exponents as trained weights have them, in all levels of planes; or too many for symbols, so that blocks are raw; or
 * three in the first two thirds of a stretch and three others in the rest, which are all escapes. No sum is
 * infinite. */
static uint16_t *odd_weights(struct ops_bench *b, size_t n, size_t stretch)
{
	uint16_t *w = exact(n, sizeof(*w));

	for (size_t i = 0; i < n; i++) {
		unsigned exponent = 120;

		switch (i / stretch % 3) {
		case 1: exponent = 85 + (unsigned)random_below(&b->seed, 40); break;
		case 2:
			exponent = (i % stretch < stretch / 3 * 2 ? 100 : 103) + (unsigned)random_below(&b->seed, 3);
			break;
		default:
			while (exponent > 60 && random_below(&b->seed, 100) < 45)
				exponent--;
		}
		w[i] = (uint16_t)((random_u64(&b->seed) & 0x807fu) | exponent << 7);
	}
	return w;
}

static void lay_odd(struct ops_bench *b, struct weight *w, size_t n_out, size_t n_in, size_t chunk_rows)
{
	*w = (struct weight){ .w = { .dtype = OD_BF16, .n_out = n_out, .n_in = n_in } };
	lay_planes(b, w, chunk_rows, odd_weights(b, n_out * n_in, chunk_rows * n_in));
	w->m = (struct od_mat){
		.dtype = OD_BF16, .n_out = n_out, .n_in = n_in, .data = b->want + w->w.data.at, .planes = &w->planes
	};
}

struct odd {
	size_t n_in;
	struct {
		size_t n_out, chunk_rows; /* n_out 0: no such matrix; chunk_rows 0: BF16 */
	} mat[OD_MAX_LINEAR];
};

/* x begins so many floats behind a place that is aligned to all accesses. */
static void check_odd_linear(struct ops_bench *b, const struct odd *o, uint32_t askew)
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
	/* Blocks of rows: many; some, up to all that a GPU's block has threads for; one. Rows in two pieces and in
	 * three. Lines of 64 in eights, and some more. Last chunks are shorter, and there are more chunks than a launch
	 * of a GPU takes. */
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

	FOR_PROFILES(p)
	{
		struct ops_bench b;

		bench_open(&b, state, p);
		for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++)
			check_odd_linear(&b, &odd[i], odd[i].n_in == 576 ? 1 : odd[i].n_in == 2880 ? 2 : 0);
		bench_close(&b);
	}
}

static void lay_odd_expert(struct ops_bench *b, struct ops_experts_expert *e, size_t hidden, size_t mid,
			   size_t chunk_rows, bool biased)
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
	static struct ops_experts_expert e[OD_MAX_SEGMENTS];

	FOR_PROFILES(p)
	{
		struct ops_bench b;

		bench_open(&b, state, p);
		for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
			const uint32_t n_segments = odd[i].mid > 16384 ? 2 : 5;

			bench_reset(&b);
			for (uint32_t k = 0; k < n_segments; k++)
				lay_odd_expert(&b, &e[k], odd[i].hidden, odd[i].mid, odd[i].chunk_rows, i % 2 == 0);
			check_segments(&b, e, rows, n_segments, "parts with planes");
		}
		bench_reset(&b);
		for (size_t i = 0; i < OD_MAX_SEGMENTS; i++)
			lay_odd_expert(&b, &e[i], 70, 37, 4, false);
		check_most_segments(&b, e, "as many parts as there may be, with planes");
		bench_close(&b);
	}
}

/* ---- experts whose rows the device sorts ---- */

enum { N_EXPERTS = 6, TOP_K = 3, MANY_EXPERTS = 48, MANY_K = 33 };

/* No row chooses expert 0, all but one choose 5, and some choose each of the others. */
static struct od_ref lay_choices(struct ops_bench *b)
{
	uint16_t choice[ROWS][TOP_K];

	for (size_t r = 0; r < ROWS; r++)
		for (size_t k = 0; k < TOP_K; k++)
			choice[r][k] = (uint16_t)(k == r % TOP_K && r != 4 ? 5 : 1 + (r + k) % 4);
	return lay(b, choice, sizeof(choice));
}

/* No row chooses expert 0; most rows choose each of the others. */
static struct od_ref lay_many_choices(struct ops_bench *b)
{
	uint16_t choice[ROWS][MANY_K];

	for (size_t r = 0; r < ROWS; r++)
		for (size_t k = 0; k < MANY_K; k++)
			choice[r][k] = (uint16_t)(1 + (7 * r + 11 * k) % (MANY_EXPERTS - 1));
	return lay(b, choice, sizeof(choice));
}

/* The operation on n_rows rows x of what e [n] and choice are; list [n] is filled. */
static struct od_op_experts experts_of(struct ops_bench *b, const struct ops_experts_expert *e, struct od_expert *list,
				       uint32_t n, uint32_t top_k, uint32_t n_rows, struct od_ref x,
				       struct od_ref choice)
{
	const uint32_t mid = (uint32_t)e->mat[OD_MAT_GATE].w.n_out, hidden = (uint32_t)e->mat[OD_MAT_DOWN].w.n_out;

	for (uint32_t i = 0; i < n; i++)
		list[i] = e[i].e;
	return (struct od_op_experts){ .expert = list,
				       .x = x,
				       .choice = choice,
				       .y = lay_dirt(b, n_rows * top_k * hidden * sizeof(float)),
				       .scratch =
					       scratch_of(b, od_experts_scratch_bytes(hidden, mid, n, top_k, n_rows)),
				       .n_experts = n,
				       .top_k = top_k,
				       .hidden = hidden,
				       .act = act_of(1) };
}

/* e [n]: laid. */
static void check_experts(struct ops_bench *b, const struct ops_experts_expert *e, uint32_t n, uint32_t top_k,
			  struct od_ref choices)
{
	struct od_op op = { .kind = OD_OP_EXPERTS, .n_rows = ROWS };
	struct od_op_experts *o = &op.experts;
	struct od_expert list[MANY_EXPERTS];
	const size_t hidden = e->mat[OD_MAT_DOWN].w.n_out;
	const uint16_t *choice;

	*o = experts_of(b, e, list, n, top_k, ROWS, lay_floats(b, ROWS * hidden), choices);
	expect(b);
	choice = wanted(b, o->choice);
	for (size_t i = 0; i < (size_t)ROWS * top_k; i++)
		if (choice[i] != OD_NO_EXPERT)
			ffn_by_hand(b, &e[choice[i]], o->act, true, wanted_f32(b, o->x) + i / top_k * hidden,
				    wanted_f32(b, o->y) + i * hidden, 1);
	by_row(b, &o->x, hidden * sizeof(float));
	by_row(b, &o->choice, top_k * sizeof(uint16_t));
	by_row(b, &o->y, top_k * hidden * sizeof(float));
	check_op(b, &op, "experts");
}

/* Expert i has weights of kind first + 2 * i, and the next ones: together all kinds. Of the last ones one has planes
 * for down. */
static void op_experts(void **state)
{
	static const int first[] = { 1, 5, 25 };
	struct ops_experts_expert e[N_EXPERTS];
	struct ops_bench b;

	FOR_PROFILES(p)
	{
		for (size_t way = 0; way < sizeof(first) / sizeof(first[0]); way++) {
			bench_open(&b, state, p);
			for (int i = 0; i < N_EXPERTS; i++)
				lay_expert(&b, &e[i], first[way] + 2 * i);
			check_experts(&b, e, N_EXPERTS, TOP_K, lay_choices(&b));
			bench_close(&b);
		}
	}
}

/* Some choices are left out, in one row all: their outputs stay as they were. */
static void op_experts_left_out(void **state)
{
	struct ops_experts_expert e[N_EXPERTS];
	struct ops_bench b;

	FOR_PROFILES(p)
	{
		uint16_t choice[ROWS * TOP_K];
		struct od_ref choices;

		bench_open(&b, state, p);
		for (int i = 0; i < N_EXPERTS; i++)
			lay_expert(&b, &e[i], 1 + 2 * i);
		choices = lay_choices(&b);
		memcpy(choice, b.image + choices.at, sizeof(choice));
		for (size_t i = 0; i < ROWS * TOP_K; i++)
			if (i < TOP_K || choice[i] == 1 || i % 3 == 2)
				choice[i] = OD_NO_EXPERT;
		check_experts(&b, e, N_EXPERTS, TOP_K, lay(&b, choice, sizeof(choice)));
		bench_close(&b);
	}
}

/* All weights of one kind without scales: a GPU multiplies gate and up together. */
static void op_experts_of_a_kind(void **state)
{
	struct ops_experts_expert e[N_EXPERTS];
	struct ops_bench b;

	FOR_PROFILES(p)
	{
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

/* The only expert of a layer, whose rows are longer than what a GPU copies of them at a time, whatever its weights are,
 * with a rest. */
static void op_experts_of_long_rows(void **state)
{
	enum { HIDDEN = 592, MID = 280 };
	const uint16_t choice[ROWS] = { 0 };
	struct ops_experts_expert e;
	struct ops_bench b;

	for (int kind = 0; kind < N_WEIGHT_KINDS; kind++) {
		bench_open(&b, state, kind % 2 == 0 ? OD_PROFILE_F32 : OD_PROFILE_BF16);
		for (int m = 0; m < OD_N_EXPERT_MATS; m++)
			lay_sized(&b, &e, m, (enum weight_kind)kind, kind % 3 == 0,
				  whole_row((enum weight_kind)kind, HIDDEN), whole_row((enum weight_kind)kind, MID));
		check_experts(&b, &e, 1, 1, lay(&b, choice, sizeof(choice)));
		bench_close(&b);
	}
}

/* In blocks of several formats, as files mix them, with down of another coding in one expert. */
static void op_experts_of_blocks(void **state)
{
	static const enum weight_kind kinds[][OD_N_EXPERT_MATS] = { { W_Q4_K, W_Q4_K, W_IQ3_S },
								    { W_IQ3_S, W_Q4_0, W_NVFP4 },
								    { W_NVFP4, W_BF16, W_Q4_0 },
								    { W_Q4_0, W_IQ3_S, W_E4M3 } };
	enum { HIDDEN = 256, MID = 256 };
	struct ops_experts_expert e[N_EXPERTS];
	struct ops_bench b;

	for (int biased = 0; biased < 2; biased++) {
		bench_open(&b, state, biased == 0 ? OD_PROFILE_BF16 : OD_PROFILE_F32);
		for (int i = 0; i < N_EXPERTS; i++)
			for (int m = 0; m < OD_N_EXPERT_MATS; m++)
				lay_sized(&b, &e[i], m, kinds[i % 4][m], biased != 0, HIDDEN, MID);
		check_experts(&b, e, N_EXPERTS, TOP_K, lay_choices(&b));
		bench_close(&b);
	}
}

/* As many pairs as a GPU sorts in several ways: of 64 rows more than its block holds at once. */
static void op_many_experts(void **state)
{
	static struct ops_experts_expert e[MANY_EXPERTS];
	struct ops_bench b;

	for (int biased = 0; biased < 2; biased++) {
		bench_open(&b, state, OD_PROFILE_BF16);
		for (int i = 0; i < MANY_EXPERTS; i++)
			lay_expert(&b, &e[i], i % 2 * 2 + biased); /* all have biases, or none */
		check_experts(&b, e, MANY_EXPERTS, MANY_K, lay_many_choices(&b));
		bench_close(&b);
	}
}

/* ---- a router and its experts, which a GPU may run as one ---- */

static void check_route_and_experts(struct ops_bench *b, const struct ops_experts_expert *e,
				    const struct od_router_spec *way, bool own, uint32_t n_rows, uint32_t run)
{
	struct od_op route = { .kind = OD_OP_ROUTE, .n_rows = n_rows },
		     experts = { .kind = OD_OP_EXPERTS, .n_rows = run }, other;
	struct od_op_route *o = &route.route;
	struct od_expert list[N_EXPERTS];
	const struct od_ref choices = lay_choices(b), x = lay_floats(b, n_rows * FFN_HIDDEN);

	*o = (struct od_op_route){ .logits = lay_floats(b, n_rows * N_EXPERTS),
				   .choice = lay_dirt(b, n_rows * TOP_K * sizeof(uint16_t)),
				   .weight = lay_dirt(b, n_rows * TOP_K * sizeof(float)),
				   .margin = lay_dirt(b, n_rows * sizeof(float)),
				   .round = b->profile == OD_PROFILE_BF16 ? x : (struct od_ref){ 0 },
				   .n_experts = N_EXPERTS,
				   .top_k = TOP_K,
				   .hidden = FFN_HIDDEN,
				   .router = *way };
	experts.experts = experts_of(b, e, list, N_EXPERTS, TOP_K, n_rows, x, own ? choices : o->choice);
	/* Once before, with other choices: then the GPU knows the experts, and has lists that are wrong. */
	other = experts;
	other.profile = b->profile;
	other.experts.choice = choices;
	put_at(b->d, od_buf_ref(b->arena, 0), b->image, b->used);
	run_op(b->d, &other);
	check_both(b, &route, &experts, "route, then experts");
}

/* One row, several, fewer than were routed; and other choices than those of the router. */
static void route_and_experts(void **state)
{
	static const struct od_router_spec ways[] = { SOFTMAX(0, 0, true, 1),
						      WAY(OD_SCORE_LOGIT, 0, 0, false, 1, false, false, 0),
						      { .score = OD_SCORE_MIXER, .band = 0.3f } };
	static const uint32_t rows[][2] = { { 1, 1 }, { 3, 3 }, { 7, 1 } };
	struct ops_experts_expert e[N_EXPERTS];

	FOR_PROFILES(p)
	{
		for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
			for (size_t i = 0; i < 6; i++) {
				struct ops_bench b;

				bench_open(&b, state, p);
				for (int k = 0; k < N_EXPERTS; k++)
					lay_expert(&b, &e[k], k);
				check_route_and_experts(&b, e, &ways[w], i >= 3, rows[i % 3][0], rows[i % 3][1]);
				bench_close(&b);
			}
		}
	}
}

/* ---- failures ---- */

/* Experts of one row that has chosen this one: there are two. */
static void choose_one(struct ops_bench *b, struct od_op *op, uint16_t expert)
{
	put_at(b->d, op->experts.choice, &expert, sizeof(expert));
	od_device_run(b->d, OD_QUEUE_COMPUTE, op);
}

/* It shows at the queue's next wait, the first of several, and once; what comes later is done as always. */
static void failures_show_once(void **state)
{
	struct od_op op = { .kind = OD_OP_EXPERTS, .profile = OD_PROFILE_F32, .n_rows = 1 };
	struct od_expert list[2];
	struct ops_experts_expert e[2];
	struct od_err err = { 0 };
	struct ops_bench b;
	float *y;

	bench_open(&b, state, OD_PROFILE_F32);
	for (int i = 0; i < 2; i++)
		lay_expert(&b, &e[i], 0);
	op.experts = experts_of(&b, e, list, 2, 1, 1, lay_floats(&b, FFN_HIDDEN), lay(&b, NULL, 2));
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
	for (int i = 0; i < 2; i++) /* a caller without err leaves it for the next */
		assert_int_equal(od_device_wait(b.d, OD_QUEUE_COMPUTE, od_device_ticket(b.d, OD_QUEUE_COMPUTE), NULL),
				 OD_ERR_RANGE);
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
		ON_ALL_TABLES(op_ffn),
		ON_ALL_TABLES(op_experts),
		ON_ALL_TABLES(op_experts_left_out),
		ON_ALL_TABLES(op_many_experts),
		ON_ALL_TABLES(op_experts_of_a_kind),
#ifndef FEW_TESTS /* the other tests need no other number of rows */
		ON_ALL_TABLES(op_experts_of_long_rows),
		ON_ALL_TABLES(op_experts_of_blocks),
		ON_ALL_TABLES(op_act),
		ON_ALL_TABLES(op_ffn_segments),
		ON_ALL_TABLES(op_linear_planes),
		ON_ALL_TABLES(op_ffn_planes),
		ON_ALL_TABLES(route_and_experts),
		ON_ALL_TABLES(failures_show_once),
#endif
	};

	choose_tables();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
