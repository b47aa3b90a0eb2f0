/* Gated delta rules of a device (ops.h) against the kernels' table called directly, bit for bit over all memory that
 * they could touch. And routing against that of the CPU (cpu_route.h), for all numbers of experts, ties, and logits
 * that are no numbers. */
#include "common/base/same_math.h"
#include "common/compute/cpu/cpu_route.h"
#include "common/compute/cpu/cpu_scalar.h"
#include "tests/unit/ops_bench.h"

/* ---- gated delta rules ---- */

#define MAX_N 1700u /* rows */
#define MAX_TAPS 7u

struct ops_delta_variant {
	struct od_delta_shape shape;
	bool by_key_head;
};

/* Qwen3-Next's k_dim, with columns that fill a GPU's blocks once, partly, and more than once; and odd ones. */
static const struct ops_delta_variant variants[] = {
	{ { .n_heads = 4, .n_key_heads = 2, .k_dim = 128, .v_dim = 128, .taps = 4 }, true },
	{ { .n_heads = 6, .n_key_heads = 2, .k_dim = 9, .v_dim = 21, .taps = 4 }, true },
	{ { .n_heads = 4, .n_key_heads = 4, .k_dim = 16, .v_dim = 64, .taps = MAX_TAPS }, false },
	{ { .n_heads = 2, .n_key_heads = 1, .k_dim = 128, .v_dim = 37, .taps = 2 }, false },
	{ { .n_heads = 2, .n_key_heads = 2, .k_dim = 128, .v_dim = 201, .taps = 3 }, true },
	{ { .n_heads = 3, .n_key_heads = 1, .k_dim = 200, .v_dim = 150, .taps = 1 }, false },
	{ { .n_heads = 6, .n_key_heads = 3, .k_dim = 128, .v_dim = 69, .taps = 4, .tiled = true }, false },
	{ { .n_heads = 6, .n_key_heads = 2, .k_dim = 12, .v_dim = 30, .taps = 3, .tiled = true }, false },
};
#define N_VARIANTS (sizeof(variants) / sizeof(variants[0]))

/* Now and then more than 20, far less than 0, or no number. */
static struct od_ref lay_gates(struct ops_bench *b, size_t n)
{
	const struct od_ref at = lay(b, NULL, n * sizeof(float));

	for (size_t i = 0; i < n; i++)
		((float *)(void *)(b->image + at.at))[i] = random_f32(&b->seed, WILD) * (i % 3 == 0 ? 40 : 2);
	return at;
}

static void gates_by_hand(const struct ops_bench *b, const struct od_op_delta_in *o, size_t r)
{
	const size_t n = o->shape.n_heads, group = n / o->shape.n_key_heads;
	float *decay = wanted_f32(b, o->row) + r * od_delta_row(&o->shape) + od_delta_channels(&o->shape),
	      *beta = decay + n;

	for (size_t h = 0; h < n; h++) {
		const size_t in = h / group * 2 * group + h % group;
		const float *b_row = wanted_f32(b, o->b) + r * n * (o->by_key_head ? 2 : 1);
		const float by_b = b_row[o->by_key_head ? in : h];
		const float by_a = o->by_key_head ? b_row[in + group] : wanted_f32(b, o->a)[r * n + h];
		const float x = by_a + wanted_f32(b, o->dt_bias)[h], e = od_exp(x);
		float step = e > 0x1p-23f ? (float)od_log_same(1 + (double)e) : e;

		step = x > 20 ? x : step;
		decay[h] = od_exp(-od_exp(wanted_f32(b, o->a_log)[h]) * step);
		beta[h] = 1 / (1 + od_exp(-by_b));
	}
}

static void delta_in_by_hand(const struct ops_bench *b, const struct od_op_delta_in *o, size_t r)
{
	const struct od_delta_shape *s = &o->shape;
	const size_t channels = od_delta_channels(s), values = od_delta_values(s), k = s->k_dim;
	const size_t v = (size_t)s->n_heads / s->n_key_heads * s->v_dim, keys = s->n_key_heads * k;
	const float *from = wanted_f32(b, o->qkv) + r * (channels + (o->by_key_head ? values : 0));
	float *row = wanted_f32(b, o->row) + r * od_delta_row(s);

	gates_by_hand(b, o, r);
	for (size_t i = 0; !o->by_key_head && i < channels; i++)
		row[i] = from[i];
	for (size_t h = 0; o->by_key_head && h < s->n_key_heads; h++) {
		for (size_t i = 0; i < k; i++) {
			row[h * k + i] = *from++;
			row[keys + h * k + i] = from[k - 1];
		}
		from += k;
		for (size_t i = 0; i < v; i++)
			row[2 * keys + h * v + i] = *from++;
		for (size_t i = 0; i < v; i++)
			wanted_f32(b, o->z)[r * values + h * v + i] = *from++;
	}
}

static void check_delta_in(struct ops_bench *b, const struct ops_delta_variant *t)
{
	const struct od_delta_shape *s = &t->shape;
	const size_t channels = od_delta_channels(s), values = od_delta_values(s), n = s->n_heads;
	const size_t width = channels + (t->by_key_head ? values : 0), b_width = n * (t->by_key_head ? 2 : 1);
	struct od_op op = { .kind = OD_OP_DELTA_IN, .n_rows = ROWS };
	struct od_op_delta_in *o = &op.delta_in;

	bench_reset(b);
	*o = (struct od_op_delta_in){ .qkv = lay_floats(b, ROWS * width),
				      .b = lay_gates(b, ROWS * b_width),
				      .row = lay_dirt(b, ROWS * od_delta_row(s) * sizeof(float)),
				      .a_log = lay_gates(b, n),
				      .dt_bias = lay_gates(b, n),
				      .shape = *s,
				      .by_key_head = t->by_key_head };
	if (t->by_key_head) {
		o->z = lay_dirt(b, ROWS * values * sizeof(float));
		by_row(b, &o->z, values * sizeof(float));
	} else {
		o->a = lay_gates(b, ROWS * n);
		by_row(b, &o->a, n * sizeof(float));
	}
	by_row(b, &o->qkv, width * sizeof(float));
	by_row(b, &o->b, b_width * sizeof(float));
	by_row(b, &o->row, od_delta_row(s) * sizeof(float));
	expect(b);
	for (size_t r = 0; r < ROWS; r++)
		delta_in_by_hand(b, o, r);
	check_op(b, &op, "delta in");
}

static void op_delta_in(void **state)
{
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	for (int seed = 0; seed < 3; seed++)
		for (size_t i = 0; i < N_VARIANTS; i++)
			check_delta_in(&b, &variants[i]);
	bench_close(&b);
}

/* The rows of the sequence; returns how many. */
static size_t rows_by_hand(const struct ops_bench *b, const struct od_op *op, uint32_t *index)
{
	const struct od_op_delta *o = &op->delta;
	const struct od_row_info *info = wanted(b, o->rows);
	size_t seen = 0, n = 0;

	for (uint32_t r = 0; r < op->n_rows; r++) {
		if (info[r].table != o->table)
			continue;
		if (seen >= o->first && seen - o->first < o->n_take)
			index[n++] = r;
		seen++;
	}
	return n;
}

/* Channel c of the sequence's rows: of those before it, then of its own. */
static void channel_by_hand(const struct ops_bench *b, const struct od_op_delta *o, const uint32_t *index, size_t n,
			    size_t c, float *x)
{
	const size_t channels = od_delta_channels(&o->shape), kept = o->shape.taps - 1;

	for (size_t t = 0; t < kept; t++)
		x[t] = wanted_f32(b, o->from)[t * channels + c];
	for (size_t t = 0; t < n; t++)
		x[kept + t] = wanted_f32(b, o->row)[index[t] * od_delta_row(&o->shape) + c];
}

static void mix_by_hand(const struct ops_bench *b, const struct od_op_delta *o, const uint32_t *index, size_t n)
{
	const struct od_delta_shape *s = &o->shape;
	const size_t channels = od_delta_channels(s), kept = s->taps - 1, keys = (size_t)s->n_key_heads * s->k_dim;
	float *mixed = wanted(b, o->mixed), *x = exact(n + kept, sizeof(float));

	for (size_t c = 0; c < channels; c++) {
		channel_by_hand(b, o, index, n, c, x);
		for (size_t t = 0; t < n; t++) {
			float y = 0;

			for (size_t i = 0; i < s->taps; i++)
				y += wanted_f32(b, o->conv)[i * channels + c] * x[t + i];
			mixed[t * channels + c] = y / (1 + od_exp(-y));
		}
		for (size_t t = 0; t < kept; t++)
			wanted_f32(b, o->to)[t * channels + c] = x[n + t];
	}
	free(x);
	for (size_t t = 0; t < n; t++)
		for (size_t h = 0; h < 2 * s->n_key_heads; h++) {
			float *u = mixed + t * channels + h * s->k_dim;
			const float r = (h * s->k_dim < keys ? 1 / sqrtf((float)s->k_dim) : 1) /
					sqrtf(b->be->dot(u, u, s->k_dim) + 1e-6f);

			for (size_t i = 0; i < s->k_dim; i++)
				u[i] *= r;
		}
}

static void head_by_hand(const struct ops_bench *b, const struct od_op_delta *o, const uint32_t *index, size_t n,
			 size_t h)
{
	const struct od_delta_shape *s = &o->shape;
	const size_t channels = od_delta_channels(s), k = s->k_dim, v = s->v_dim, keys = s->n_key_heads * k;
	const size_t group = s->n_heads / s->n_key_heads, key = (s->tiled ? h % s->n_key_heads : h / group) * k;
	const size_t state = od_delta_state_at(s) + h * k * v;

	for (size_t t = 0; t < n; t++) {
		const float *in = wanted_f32(b, o->mixed) + t * channels;
		const float *gate = wanted_f32(b, o->row) + index[t] * od_delta_row(s) + channels;
		const size_t at = index[t] * od_delta_values(s) + h * v;
		float *y = wanted_f32(b, o->y) + at;

		b->be->delta(&(struct od_delta){ .q = in + key,
						 .k = in + keys + key,
						 .v = in + 2 * keys + h * v,
						 .decay = gate[h],
						 .beta = gate[s->n_heads + h],
						 .from = wanted_f32(b, t == 0 ? o->from : o->to) + state,
						 .to = wanted_f32(b, o->to) + state,
						 .out = y,
						 .k_dim = k,
						 .v_dim = v });
		if (o->z.buf == NULL)
			continue;
		b->be->rmsnorm(y, y, wanted(b, o->norm), v, o->eps);
		b->be->silu_mul(wanted_f32(b, o->z) + at, y, v);
	}
}

/* A step of so many rows of n_tables sequences in turn, and of one of them the rows [first, first + n_take). */
struct ops_delta_step {
	uint32_t n_rows, n_tables, table, first, n_take;
	bool state_only;
};

static void check_delta(struct ops_bench *b, const struct od_delta_shape *s, const struct ops_delta_step *t)
{
	static struct od_row_info info[MAX_N];
	static uint32_t index[MAX_N];
	const size_t channels = od_delta_channels(s), values = od_delta_values(s), each = sizeof(float);
	struct od_op op = { .kind = OD_OP_DELTA, .profile = b->profile, .n_rows = t->n_rows };
	struct od_op_delta *o = &op.delta;
	size_t n;

	bench_reset(b);
	for (uint32_t r = 0; r < t->n_rows; r++)
		info[r] = (struct od_row_info){ .table = (uint32_t)random_below(&b->seed, t->n_tables) };
	*o = (struct od_op_delta){ .rows = lay(b, info, t->n_rows * sizeof(*info)),
				   .table = t->table,
				   .first = t->first,
				   .n_take = t->n_take,
				   .row = lay_floats(b, t->n_rows * od_delta_row(s)),
				   .conv = lay_floats(b, s->taps * channels),
				   .norm = lay_floats(b, s->v_dim),
				   .from = lay_floats(b, od_delta_state(s)),
				   .to = lay_dirt(b, od_delta_state(s) * each),
				   .mixed = lay_dirt(b, t->n_rows * channels * each),
				   .y = lay_dirt(b, t->n_rows * values * each),
				   .index = lay_dirt(b, t->n_rows * sizeof(uint32_t)),
				   .shape = *s,
				   .eps = 1e-6f };
	if (!t->state_only)
		o->z = lay_floats(b, t->n_rows * values);
	expect(b);
	n = rows_by_hand(b, &op, index);
	memcpy(wanted(b, o->index), index, n * sizeof(*index));
	mix_by_hand(b, o, index, n);
	for (size_t h = 0; n > 0 && h < s->n_heads; h++)
		head_by_hand(b, o, index, n, h);
	run_in_steps(b, b->d, &op, op.n_rows, "delta");
	if (b->profile == OD_PROFILE_F32)
		run_in_steps(b, b->scalar, &op, op.n_rows, "delta");
}

/* Few rows and many, all or some; none; and other sequences alone. */
static void op_delta(void **state)
{
	static const struct ops_delta_step steps[] = {
		{ 1, 1, 0, 0, 1, false },     { 1, 1, 0, 0, 1, true },	   { ROWS, 1, 0, 0, ROWS, false },
		{ ROWS, 3, 1, 0, 99, false }, { ROWS, 2, 1, 2, 3, false }, { 4, 1, 0, 0, 9, false },
		{ 5, 1, 0, 0, 9, true },      { 13, 1, 0, 1, 11, false },  { 3, 2, 5, 0, 3, false },
		{ 9, 2, 5, 0, 9, false },     { 8, 1, 0, 8, 3, false },	   { 8, 1, 0, 20, 8, true },
		{ 2, 1, 0, 0, 0, false },
	};

	FOR_PROFILES(p)
	{
		struct ops_bench b;

		bench_open(&b, state, p);
		for (size_t i = 0; i < N_VARIANTS; i++)
			for (size_t k = 0; k < sizeof(steps) / sizeof(steps[0]); k++)
				check_delta(&b, &variants[i].shape, &steps[k]);
		bench_close(&b);
	}
}

/* Rows that are far apart. */
static void op_delta_finds_rows(void **state)
{
	static const struct od_delta_shape small = {
		.n_heads = 2, .n_key_heads = 1, .k_dim = 3, .v_dim = 5, .taps = 4
	};
	static const struct ops_delta_step steps[] = {
		{ MAX_N, 1, 0, 0, MAX_N, false }, { MAX_N, 3, 2, 0, MAX_N, false }, { MAX_N, 2, 1, 500, 3, false },
		{ MAX_N, 400, 7, 0, 4, false },	  { MAX_N, 9, 8, 40, 100, true },   { 1024, 2, 0, 300, 9, false }
	};
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	for (size_t k = 0; k < sizeof(steps) / sizeof(steps[0]); k++)
		check_delta(&b, &small, &steps[k]);
	bench_close(&b);
}

/* ---- routing ---- */

enum logits { DISTINCT, TIED, EQUAL, NO_NUMBERS, N_LOGITS };

static float logit(struct ops_bench *b, enum logits kind)
{
	switch (kind) {
	case DISTINCT: return random_unit(&b->seed) * 4;
	case TIED: return (float)random_below(&b->seed, 5) - 2;
	case EQUAL: return 0.5f;
	case NO_NUMBERS:
	case N_LOGITS: break;
	}
	return random_below(&b->seed, 5) == 0 ? NAN : random_below(&b->seed, 9) == 0 ? INFINITY : random_unit(&b->seed);
}

#define RECENT_TEXTS 2

/* A row's text keeps this of its routes, in the memory that is expected. */
static struct od_recent *recent_of(struct ops_bench *b, const struct od_op_route *o, uint32_t table, uint32_t position)
{
	const uint32_t page = ((const uint32_t *)wanted(b, o->recent.tables))[table];

	return (struct od_recent *)(void *)((char *)wanted(b, o->recent.pages) + page * o->recent.page_bytes +
					    position * o->recent.row_bytes);
}

/* Rows of two texts, in any order; the one begins here, the other has rows already. */
static void lay_recent(struct ops_bench *b, struct od_op_route *o, struct od_row_info *rows, uint32_t n_rows)
{
	static const uint32_t table[RECENT_TEXTS] = { 1, 0 };
	uint32_t length[RECENT_TEXTS] = { 0, 7 };
	const size_t row = od_recent_bytes(o->prior.recent) + 8, page = OD_KV_PAGE * row + 64;
	struct od_recent *before;

	for (uint32_t r = 0; r < n_rows; r++) {
		const uint32_t t = (uint32_t)random_below(&b->seed, RECENT_TEXTS);

		rows[r] = (struct od_row_info){ .table = t, .position = length[t]++ };
	}
	o->rows = lay(b, rows, n_rows * sizeof(*rows));
	o->recent = (struct od_stream){ .pages = lay(b, NULL, RECENT_TEXTS * page),
					.tables = lay(b, table, sizeof(table)),
					.table_pages = 1,
					.page_bytes = page,
					.row_bytes = row,
					.dtype = OD_F32 };
	before = (struct od_recent *)(void *)(b->image + o->recent.pages.at + 6 * row);
	before->range = 3.25f;
	for (uint32_t i = 0; i < o->prior.recent; i++) /* the last ones of few are not there */
		before->expert[i] = i < o->n_experts * 3 / 4 ? (uint16_t)(o->n_experts - 1 - i) : OD_NO_EXPERT;
}

static void check_route(struct ops_bench *b, const struct od_router_spec *way, uint32_t n, uint32_t k, enum logits kind,
			const struct od_cache_prior *prior)
{
	struct od_row_info rows[8];

	const uint32_t n_rows = n > 300 ? 3 : 5, hidden = n % 2 == 0 ? 1030 : 7;
	struct od_op op = { .kind = OD_OP_ROUTE, .n_rows = n_rows };
	struct od_op_route *o = &op.route;

	bench_reset(b);
	*o = (struct od_op_route){ .logits = lay_floats(b, n_rows * n),
				   .choice = lay_dirt(b, n_rows * k * sizeof(uint16_t)),
				   .weight = lay_dirt(b, n_rows * k * sizeof(float)),
				   .margin = lay_dirt(b, n_rows * sizeof(float)),
				   .n_experts = n,
				   .top_k = k,
				   .hidden = hidden,
				   .router = *way,
				   .prior = *prior };
	if (prior->recent > 0)
		lay_recent(b, o, rows, n_rows);
	if (way->bias)
		o->bias = lay_floats(b, n);
	if (way->factors)
		o->factor = lay_floats(b, n);
	if (way->renormalise)
		o->round = lay_floats(b, n_rows * hidden);
	for (size_t i = 0; i < n_rows * n; i++)
		((float *)(void *)(b->image + o->logits.at))[i] = logit(b, kind);
	expect(b);
	for (size_t r = 0; r < n_rows; r++) {
		struct od_cpu_recent recent = { 0 };

		if (prior->recent > 0)
			recent = (struct od_cpu_recent){
				.before = rows[r].position > 0 ? recent_of(b, o, rows[r].table, rows[r].position - 1) :
								 NULL,
				.after = recent_of(b, o, rows[r].table, rows[r].position),
				.position = rows[r].position
			};
		od_cpu_route_row(b->be, o, way->bias ? wanted_f32(b, o->bias) : NULL,
				 way->factors ? wanted_f32(b, o->factor) : NULL, &recent,
				 wanted_f32(b, o->logits) + r * n, (uint16_t *)wanted(b, o->choice) + r * k,
				 wanted_f32(b, o->weight) + r * k, wanted_f32(b, o->margin) + r);
	}
	if (way->renormalise)
		b->be->round_bf16(wanted(b, o->round), n_rows * hidden);
	by_row(b, &o->logits, n * sizeof(float));
	by_row(b, &o->choice, k * sizeof(uint16_t));
	by_row(b, &o->weight, k * sizeof(float));
	by_row(b, &o->margin, sizeof(float));
	if (way->renormalise)
		by_row(b, &o->round, hidden * sizeof(float));
	if (prior->recent > 0)
		by_row(b, &o->rows, sizeof(struct od_row_info));
	check_op(b, &op, "route");
}

static const struct od_cache_prior no_prior;

static void op_route_sizes(void **state)
{
	static const struct od_router_spec ways[] = {
		{ .renormalise = true, .scale = 1 },
		{ .scale = 16, .logit_scale = 0.7f, .factors = true },
		{ .score = OD_SCORE_SIGMOID, .bias = true, .renormalise = true, .scale = 2.5f, .sum_eps = 1e-20f },
		{ .score = OD_SCORE_LOGIT, .bias = true, .scale = 0.5f },
		{ .score = OD_SCORE_MIXER, .band = 0.3f },
	};
	static const uint32_t sizes[][2] = { { 1, 1 },	  { 2, 2 },   { 3, 1 },	   { 8, 2 },	 { 64, 8 },
					     { 127, 64 }, { 128, 8 }, { 129, 64 }, { 160, 6 },	 { 256, 8 },
					     { 257, 64 }, { 384, 8 }, { 512, 10 }, { 1000, 30 }, { 4096, 64 } };
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++)
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
			for (int kind = 0; kind < N_LOGITS; kind++)
				if (sizes[i][0] < 1000 || (ways[w].score != OD_SCORE_MIXER && kind % 3 == 0))
					check_route(&b, &ways[w], sizes[i][0], sizes[i][1], (enum logits)kind,
						    &no_prior);
	bench_close(&b);
}

static void op_route_prior(void **state)
{
	static const struct od_router_spec ways[] = {
		{ .renormalise = true, .scale = 1 },
		{ .scale = 16, .logit_scale = 0.7f, .factors = true },
		{ .score = OD_SCORE_SIGMOID, .bias = true, .renormalise = true, .scale = 2.5f, .sum_eps = 1e-20f },
		{ .score = OD_SCORE_LOGIT, .bias = true, .scale = 0.5f },
		{ .score = OD_SCORE_MIXER, .band = 0.3f },
		{ .score = OD_SCORE_SIGMOID, .n_groups = 4, .top_groups = 2, .group_two = true, .scale = 1 },
		{ .n_groups = 2, .top_groups = 1, .scale = 2.5f },
	};
	static const struct {
		uint32_t n, k;
		struct od_cache_prior prior;
	} t[] = { { 8, 2, { 4, 1, 0.2f } },   { 64, 8, { 32, 2, 0.1f } },     { 64, 6, { 3, 2, 0.5f } },
		  { 128, 8, { 128, 8, 1 } },  { 160, 6, { 200, 0, 0.3f } },   { 256, 64, { 300, 1, 0.2f } },
		  { 512, 10, { 256, 2, 0 } }, { 4096, 64, { 2048, 2, 0.2f } } };
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++)
		for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
			for (int kind = 0; kind < N_LOGITS; kind++)
				if (t[i].n < 1000 || (ways[w].score != OD_SCORE_MIXER && kind % 3 == 0))
					check_route(&b, &ways[w], t[i].n, t[i].k, (enum logits)kind, &t[i].prior);
	bench_close(&b);
}

/* Groups, top groups, and a group's best or its two best; all score kinds. */
static void op_route_groups(void **state)
{
	static const uint32_t sizes[][4] = { { 256, 8, 8, 4 }, { 160, 6, 8, 3 }, { 512, 12, 64, 20 }, { 384, 8, 1, 1 },
					     { 64, 6, 64, 9 }, { 60, 5, 2, 1 },	 { 1026, 11, 3, 2 } };
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]) * 8; i++) {
		const uint32_t *size = sizes[i / 8];
		const struct od_router_spec way = { .n_groups = size[2],
						    .top_groups = size[3],
						    .scale = 2.5f,
						    .sum_eps = 0.25f,
						    .score = i % 8 / 4 == 1 ? OD_SCORE_SIGMOID : OD_SCORE_SOFTMAX,
						    .bias = i / 2 % 2 == 1,
						    .group_two = i % 2 == 1,
						    .renormalise = i % 3 == 0 };

		for (int kind = 0; kind < N_LOGITS; kind++)
			check_route(&b, &way, size[0], size[1], (enum logits)kind, &no_prior);
	}
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_ALL_TABLES(op_delta_in),    ON_ALL_TABLES(op_delta),	       ON_ALL_TABLES(op_delta_finds_rows),
		ON_ALL_TABLES(op_route_sizes), ON_ALL_TABLES(op_route_groups), ON_ALL_TABLES(op_route_prior),
	};

	choose_tables();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
