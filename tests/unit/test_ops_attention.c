/* Attention's operations (ops.h) against the kernels' table called directly, as test_ops.c has the others. What they
 * mean is checked in test_mixers.c. */
#include "common/compute/cpu/matmul.h"
#include "tests/unit/ops_bench.h"

/* ---- streams ---- */

/* Sequences, and pages of a pool. */
struct texts {
	uint32_t tables, ctx, table_pages, pool_pages;
};

enum { TABLES = 3, CTX = 300, TABLE_PAGES = 6, POOL_PAGES = 19, MAX_POOL_PAGES = 600 };
static const struct texts short_texts = { TABLES, CTX, TABLE_PAGES, POOL_PAGES };

static char *row_of(const struct ops_bench *b, const struct od_stream *s, const struct od_row_info *row)
{
	const uint32_t *table = (const uint32_t *)wanted(b, s->tables) + row->table * s->table_pages;

	return (char *)wanted(b, s->pages) + table[row->position / OD_KV_PAGE] * s->page_bytes +
	       row->position % OD_KV_PAGE * s->row_bytes;
}

/* Pages of the sequences in any order among others. */
static struct od_ref lay_tables(struct ops_bench *b, const struct texts *of)
{
	uint32_t page[MAX_POOL_PAGES];

	assert_true(of->tables * of->table_pages <= of->pool_pages && of->pool_pages <= MAX_POOL_PAGES);
	for (uint32_t i = 0; i < of->pool_pages; i++) {
		uint32_t j = (uint32_t)random_below(&b->seed, i + 1);

		page[i] = page[j];
		page[j] = i;
	}
	return lay(b, page, of->tables * of->table_pages * sizeof(*page));
}

/* n elements of each position; NaN everywhere. There is room between rows and between pages. */
static struct od_stream lay_stream(struct ops_bench *b, const struct texts *of, struct od_ref tables, enum od_dtype t,
				   size_t n, size_t between)
{
	struct od_stream s = { .tables = tables, .table_pages = of->table_pages, .dtype = t };

	s.row_bytes = n * od_dtype_bytes(t) + between;
	s.page_bytes = OD_KV_PAGE * s.row_bytes + 64;
	s.pages = lay(b, NULL, of->pool_pages * s.page_bytes);
	memset(b->image + s.pages.at, 0xff, of->pool_pages * s.page_bytes);
	return s;
}

/* n elements of every position of the texts. */
static void fill_stream(struct ops_bench *b, const struct texts *of, const struct od_stream *s, size_t n)
{
	expect(b);
	for (uint32_t i = 0; i < of->tables * of->ctx; i++) {
		const struct od_row_info row = { .position = i % of->ctx, .table = i / of->ctx };
		void *data = random_weights(&b->seed, s->dtype, n, PLAIN);

		memcpy(b->image + (row_of(b, s, &row) - (char *)b->want), data, n * od_dtype_bytes(s->dtype));
		free(data);
	}
	expect(b);
}

/* Each at a position of its own, on both sides of a page's end. */
static struct od_ref lay_rows_at(struct ops_bench *b, struct od_row_info rows[ROWS])
{
	for (uint32_t r = 0; r < ROWS; r++)
		rows[r] = (struct od_row_info){ .position = r % 2 ? 60 + r / 2 : r * 17 % CTX, .table = r % TABLES };
	return lay(b, rows, ROWS * sizeof(*rows));
}

static void store_by_hand(enum od_dtype t, char *to, const float *from, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const uint16_t h = od_f32_bf16(from[i]);

		if (t == OD_BF16)
			memcpy(to + 2 * i, &h, sizeof(h));
		else
			memcpy(to + 4 * i, &from[i], sizeof(from[i]));
	}
}

static struct od_turn lay_turn(struct ops_bench *b, uint32_t dims, bool neighbours)
{
	return (struct od_turn){ .angles = dims > 0 ? lay_floats(b, ROWS * dims) : (struct od_ref){ 0 },
				 .dims = dims,
				 .neighbours = neighbours };
}

/* The first elements of each head, of row r. */
static void turn_by_hand(const struct ops_bench *b, const struct od_turn *t, size_t r, float *u, size_t n_heads,
			 size_t head_dim)
{
	const float *angles = t->dims > 0 ? wanted_f32(b, t->angles) + r * t->dims : NULL;
	const size_t half = t->dims / 2;

	for (size_t h = 0; h < n_heads; h++, u += head_dim) {
		for (size_t i = 0; i < half; i++) {
			float *first = t->neighbours ? &u[2 * i] : &u[i],
			      *second = t->neighbours ? &u[2 * i + 1] : &u[half + i];
			const float x = *first, y = *second;

			*first = x * angles[i] - y * angles[half + i];
			*second = y * angles[i] + x * angles[half + i];
		}
	}
}

/* ---- grouped-query attention ---- */

enum { HEADS = 6, KV_HEADS = 2, STORE_HEADS = 18, STORE_KV_HEADS = 9, NONE = 0, EACH_HEAD, ALL_HEADS };

struct store {
	uint32_t k_dim, v_dim, dims;
	bool neighbours;
	int norm;
	float clip;
	bool q_alone;
};

static void norm_by_hand(const struct ops_bench *b, const struct store *s, float *u, struct od_ref norm, size_t n_heads)
{
	const size_t n = s->norm == ALL_HEADS ? n_heads * s->k_dim : s->k_dim;

	for (size_t at = 0; s->norm != NONE && at < n_heads * s->k_dim; at += n)
		b->be->rmsnorm(u + at, u + at, wanted(b, norm), n, 1e-4f);
}

static void clip_by_hand(float *u, size_t n, float most)
{
	for (size_t i = 0; most > 0 && i < n; i++) {
		if (u[i] > most)
			u[i] = most;
		if (u[i] < -most)
			u[i] = -most;
	}
}

static void store_row_by_hand(const struct ops_bench *b, const struct store *s, const struct od_op_rope_store *o,
			      size_t r)
{
	const size_t q_n = (size_t)STORE_HEADS * s->k_dim, k_n = (size_t)STORE_KV_HEADS * s->k_dim,
		     v_n = (size_t)STORE_KV_HEADS * s->v_dim;
	const struct od_row_info *row = (const struct od_row_info *)wanted(b, o->rows) + r;
	float *q = wanted_f32(b, o->q) + r * q_n, *k, *v;

	norm_by_hand(b, s, q, o->q_norm, STORE_HEADS);
	clip_by_hand(q, q_n, s->clip);
	turn_by_hand(b, &o->turn, r, q, STORE_HEADS, s->k_dim);
	if (s->q_alone)
		return;
	k = wanted_f32(b, o->k) + r * k_n;
	v = wanted_f32(b, o->v) + r * v_n;
	norm_by_hand(b, s, k, o->k_norm, STORE_KV_HEADS);
	clip_by_hand(k, k_n, s->clip);
	clip_by_hand(v, v_n, s->clip);
	turn_by_hand(b, &o->turn, r, k, STORE_KV_HEADS, s->k_dim);
	store_by_hand(o->keys.dtype, row_of(b, &o->keys, row), k, k_n);
	store_by_hand(o->values.dtype, row_of(b, &o->values, row), v, v_n);
}

static void check_store(struct ops_bench *b, const struct store *s, enum od_dtype t)
{
	const size_t q_n = (size_t)STORE_HEADS * s->k_dim, k_n = (size_t)STORE_KV_HEADS * s->k_dim,
		     v_n = (size_t)STORE_KV_HEADS * s->v_dim;
	struct od_op op = { .kind = OD_OP_ROPE_STORE, .n_rows = ROWS };
	struct od_op_rope_store *o = &op.rope_store;
	struct od_row_info rows[ROWS];
	struct od_ref tables;

	bench_reset(b);
	tables = lay_tables(b, &short_texts);
	*o = (struct od_op_rope_store){ .rows = lay_rows_at(b, rows),
					.q = lay_floats(b, ROWS * q_n),
					.k = lay_floats(b, ROWS * k_n),
					.v = lay_floats(b, ROWS * v_n),
					.turn = lay_turn(b, s->dims, s->neighbours),
					.norm_row = s->norm == ALL_HEADS,
					.eps = 1e-4f,
					.clip = s->clip,
					.keys = lay_stream(b, &short_texts, tables, t, k_n, 16),
					.values = lay_stream(b, &short_texts, tables, t, v_n, 32),
					.n_heads = STORE_HEADS,
					.n_kv_heads = STORE_KV_HEADS,
					.k_dim = s->k_dim,
					.v_dim = s->v_dim };
	if (s->norm != NONE) {
		o->q_norm = lay_floats(b, s->norm == ALL_HEADS ? q_n : s->k_dim);
		o->k_norm = lay_floats(b, s->norm == ALL_HEADS ? k_n : s->k_dim);
	}
	if (s->clip > 0) { /* clipping leaves what is no number, and makes numbers of infinities */
		((float *)(void *)(b->image + o->v.at))[3] = NAN;
		((float *)(void *)(b->image + o->v.at))[5] = -INFINITY;
	}
	if (s->q_alone)
		o->k = o->v = o->k_norm = (struct od_ref){ 0 };
	expect(b);
	for (size_t r = 0; r < ROWS; r++)
		store_row_by_hand(b, s, o, r);
	by_row(b, &o->rows, sizeof(*rows));
	by_row(b, &o->q, q_n * sizeof(float));
	if (!s->q_alone) {
		by_row(b, &o->k, k_n * sizeof(float));
		by_row(b, &o->v, v_n * sizeof(float));
	}
	if (s->dims > 0)
		by_row(b, &o->turn.angles, s->dims * sizeof(float));
	check_op(b, &op, "rope and store");
}

static void op_rope_store(void **state)
{
	static const struct store ways[] = {
		{ 20, 20, 20, false, NONE, 0, false },	      { 20, 28, 20, false, EACH_HEAD, 0, false },
		{ 20, 12, 8, false, ALL_HEADS, 0.5f, false }, { 16, 16, 16, false, ALL_HEADS, 0, false },
		{ 20, 20, 12, true, NONE, 0.3f, false },      { 12, 20, 12, true, EACH_HEAD, 0.75f, false },
		{ 20, 20, 2, false, EACH_HEAD, 1.5f, false }, { 20, 4, 0, false, ALL_HEADS, 0.25f, false },
		{ 20, 12, 8, false, EACH_HEAD, 0.5f, true },  { 16, 16, 16, true, NONE, 0, true },
	};

	FOR_PROFILES(p)
	{
		struct ops_bench b;

		bench_open(&b, state, p);
		for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
			check_store(&b, &ways[i], p == OD_PROFILE_BF16 ? OD_BF16 : OD_F32);
		bench_close(&b);
	}
}

struct ops_attention_seen {
	uint32_t window, kv_heads, k_dim, v_dim;
	bool shared; /* keys and values are one stream */
	float scale;
	bool sinks;
};

/* The rows of a step and their texts. */
struct ops_attention_step {
	uint32_t heads, rows;
	struct texts texts;
	uint32_t between; /* bytes between two positions of a stream */
};
static const struct ops_attention_step short_step = { HEADS, ROWS, { TABLES, CTX, TABLE_PAGES, POOL_PAGES }, 16 };

static void attend_by_hand(const struct ops_bench *b, const struct ops_attention_seen *s,
			   const struct ops_attention_step *step, const struct od_op_attend *o, size_t i)
{
	const uint32_t heads = step->heads;
	const struct od_row_info *row = (const struct od_row_info *)wanted(b, o->rows) + i / heads;
	const size_t end = (size_t)row->position + 1, kv_head = i % heads / (heads / s->kv_heads);
	const size_t each = od_dtype_bytes(o->keys.dtype);
	const struct od_attn a = {
		/* each head alone */
		.n_heads = 1,
		.q = wanted_f32(b, o->q) + i * s->k_dim,
		.k = (char *)wanted(b, o->keys.pages) + kv_head * s->k_dim * each,
		.v = (char *)wanted(b, o->values.pages) + kv_head * s->v_dim * each,
		.table = (const uint32_t *)wanted(b, o->keys.tables) + row->table * o->keys.table_pages,
		.k_page_bytes = o->keys.page_bytes,
		.v_page_bytes = o->values.page_bytes,
		.k_row_bytes = o->keys.row_bytes,
		.v_row_bytes = o->values.row_bytes,
		.kv_dtype = o->keys.dtype,
		.k_dim = s->k_dim,
		.v_dim = s->v_dim,
		.begin = s->window != 0 && end > s->window ? end - s->window : 0,
		.end = end,
		.scale = s->scale,
		.sinks = s->sinks ? wanted_f32(b, o->sinks) + i % heads : NULL,
		.out = wanted_f32(b, o->out) + i * s->v_dim,
	};

	b->be->attend(&a);
	assert_true(!isnan(a.out[0])); /* nothing that is not there was read */
}

/* At the ends of blocks of positions, at the end of the text, and anywhere. */
static struct od_ref lay_positions(struct ops_bench *b, const struct ops_attention_step *step)
{
	struct od_row_info rows[64];

	assert_true(step->rows <= sizeof(rows) / sizeof(rows[0]));
	for (uint32_t r = 0; r < step->rows; r++) {
		const uint32_t any = (uint32_t)random_below(&b->seed, step->texts.ctx),
			       edge = any / OD_ATTN_BLOCK * OD_ATTN_BLOCK;

		rows[r] = (struct od_row_info){ .position = r % 4 == 0		   ? step->texts.ctx - 1 :
							    r % 4 == 1		   ? edge :
							    r % 4 == 2 && edge > 0 ? edge - 1 :
										     any,
						.table = (uint32_t)random_below(&b->seed, step->texts.tables) };
	}
	return lay(b, rows, step->rows * sizeof(*rows));
}

static void check_attend(struct ops_bench *b, const struct ops_attention_seen *s, const struct ops_attention_step *step,
			 enum od_dtype t)
{
	const size_t q_n = (size_t)step->heads * s->k_dim, out_n = (size_t)step->heads * s->v_dim, n = step->rows;
	const struct texts *of = &step->texts;
	struct od_op op = { .kind = OD_OP_ATTEND, .n_rows = step->rows };
	struct od_op_attend *o = &op.attend;
	struct od_ref tables;

	bench_reset(b);
	tables = lay_tables(b, of);
	*o = (struct od_op_attend){ .rows = of == &short_step.texts ? lay_rows(b, 9, TABLES, CTX) :
								      lay_positions(b, step),
				    .q = lay_floats(b, n * q_n),
				    .out = lay_dirt(b, n * out_n * sizeof(float)),
				    .keys = lay_stream(b, of, tables, t, s->kv_heads * s->k_dim, step->between),
				    .n_heads = step->heads,
				    .n_kv_heads = s->kv_heads,
				    .k_dim = s->k_dim,
				    .v_dim = s->v_dim,
				    .window = s->window,
				    .scale = s->scale,
				    .max_position = of->ctx - 1 };
	o->values = s->shared ? o->keys : lay_stream(b, of, tables, t, s->kv_heads * s->v_dim, 2 * step->between);
	if (s->sinks)
		o->sinks = lay_floats(b, step->heads);
	fill_stream(b, of, &o->keys, s->kv_heads * s->k_dim);
	if (!s->shared)
		fill_stream(b, of, &o->values, s->kv_heads * s->v_dim);
	for (size_t i = 0; i < n * step->heads; i++)
		attend_by_hand(b, s, step, o, i);
	by_row(b, &o->rows, sizeof(struct od_row_info));
	by_row(b, &o->q, q_n * sizeof(float));
	by_row(b, &o->out, out_n * sizeof(float));
	check_op(b, &op, "attend");
}

static void op_attend(void **state)
{
	static const struct ops_attention_seen ways[] = {
		{ 0, 2, 20, 20, false, 0.2236068f, false }, { 1, 2, 20, 20, false, 0.2236068f, false },
		{ 7, 6, 12, 4, false, 0.5f, false },	    { 64, 1, 8, 36, false, 0.1f, false },
		{ 100, 2, 20, 24, false, -0.7f, false },    { 299, 3, 16, 8, false, 0.25f, false },
		{ 1000, 2, 20, 20, false, 1, false },	    { 0, 1, 52, 40, true, 0.3f, false },
		{ 70, 1, 52, 52, true, 0.05f, false },	    { 0, 1, 33, 1, true, 0.4f, false },
		{ 0, 2, 20, 20, false, 0.2236068f, true },  { 9, 1, 12, 4, false, 0.5f, true },
		{ 64, 6, 16, 16, false, 0.25f, true },
	};

	FOR_PROFILES(p)
	{
		struct ops_bench b;

		bench_open(&b, state, p);
		for (size_t i = 0; i < 2 * sizeof(ways) / sizeof(ways[0]); i++)
			check_attend(&b, &ways[i / 2], &short_step, i % 2 ? OD_BF16 : OD_F32);
		bench_close(&b);
	}
}

/* Contexts of many blocks, and shapes of models: a GPU cuts them into pieces. */
static void op_attend_long(void **state)
{
	static const struct {
		struct ops_attention_seen seen;
		struct ops_attention_step step;
	} ways[] = {
		{ { 300, 1, 33, 7, false, 0.3f, true }, { 3, 16, { 2, 1500, 24, 50 }, 16 } },
		{ { 1000, 1, 64, 64, false, 0.2f, false }, { 12, 5, { 1, 1400, 22, 22 }, 4 } },
		{ { 257, 1, 128, 128, false, 0.1f, true }, { 16, 5, { 1, 700, 11, 12 }, 16 } },
		{ { 0, 4, 48, 32, false, -0.3f, false }, { 8, 7, { 1, 800, 13, 13 }, 8 } },
		{ { 256, 2, 128, 128, false, 0.1f, false }, { 2, 4, { 1, 520, 9, 9 }, 16 } },
		{ { 0, 2, 80, 96, false, 0.1f, false }, { 8, 5, { 1, 900, 15, 15 }, 16 } },
		{ { 300, 1, 192, 264, false, 0.07f, true }, { 8, 5, { 1, 800, 13, 13 }, 32 } },
		{ { 0, 1, 128, 8, false, 0.1f, false }, { 128, 1, { 1, 1030, 17, 17 }, 16 } },
		/* MLA, and its like with other numbers of heads */
		{ { 0, 1, 576, 512, true, 0.05f, false }, { 16, 2, { 1, 300, 5, 5 }, 0 } },
		{ { 270, 1, 576, 512, true, 0.05f, false }, { 5, 3, { 1, 300, 5, 6 }, 2 * sizeof(float) } },
		{ { 0, 1, 576, 512, true, 0.05f, true }, { 2, 2, { 1, 400, 7, 7 }, 4 } },
		{ { 0, 1, 64, 512, false, 0.05f, true }, { 4, 2, { 1, 270, 5, 5 }, 16 } },
		{ { 0, 1, 520, 514, true, 0.05f, false }, { 1, 2, { 1, 300, 5, 5 }, 16 } },
		{ { 0, 1, 4160, 4096, true, 0.02f, false }, { 5, 2, { 1, 60, 1, 1 }, 0 } },
		/* more blocks than a GPU folds at a time */
		{ { 0, 1, 4, 4, true, 0.5f, true }, { 2, 2, { 1, 33500, 524, 524 }, 0 } },
		/* so many heads that one row's blocks are cut, too */
		{ { 0, 1, 4, 128, false, 0.25f, true }, { 200, 1, { 1, 1100, 18, 18 }, 16 } },
		{ { 700, 1, 4, 128, false, 0.25f, false }, { 201, 2, { 1, 900, 15, 15 }, 16 } },
		/* so many blocks that a GPU takes those of 64 threads, and eight heads of them at a time, or two if
		 * there are no more */
		{ { 0, 2, 20, 24, false, 0.25f, false }, { 10, 64, { 1, 800, 13, 14 }, 16 } },
		{ { 0, 8, 4, 8, false, 0.5f, true }, { 16, 64, { 1, 60, 1, 1 }, 16 } },
	};

	FOR_PROFILES(p)
	{
		struct ops_bench b;

		bench_open(&b, state, p);
		for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
			check_attend(&b, &ways[i].seen, &ways[i].step, p == OD_PROFILE_BF16 ? OD_BF16 : OD_F32);
		bench_close(&b);
	}
}

/* ---- latent attention ---- */

enum { LATENT_HEADS = 5 };

struct latent {
	uint32_t rank, dims, nope_dim, v_dim;
	bool neighbours;
	bool apart; /* keys and values have a matrix each, that of the keys transposed */
};

static const struct latent latents[] = {
	{ 40, 12, 8, 20, true, false }, { 140, 6, 45, 7, false, true },	  { 70, 6, 13, 7, false, false },
	{ 17, 2, 1, 1, true, false },	{ 140, 4, 260, 3, false, false }, { 17, 4, 260, 3, false, true },
};
#define N_LATENTS (ROWS > 16 ? 2 : sizeof(latents) / sizeof(latents[0])) /* the others take long with many rows */

static void check_latent_store(struct ops_bench *b, const struct latent *l, enum od_dtype t)
{
	const size_t n = l->rank + l->dims;
	struct od_op op = { .kind = OD_OP_LATENT_STORE, .n_rows = ROWS };
	struct od_op_latent_store *o = &op.latent_store;
	struct od_row_info rows[ROWS];

	bench_reset(b);
	*o = (struct od_op_latent_store){ .rows = lay_rows_at(b, rows),
					  .latent_key = lay_floats(b, ROWS * n),
					  .turn = lay_turn(b, l->dims, l->neighbours),
					  .norm = lay_floats(b, l->rank),
					  .eps = 1e-3f,
					  .stream = lay_stream(b, &short_texts, lay_tables(b, &short_texts), t, n, 16),
					  .rank = l->rank };
	expect(b);
	for (size_t r = 0; r < ROWS; r++) {
		float *u = wanted_f32(b, o->latent_key) + r * n;

		b->be->rmsnorm(u, u, wanted(b, o->norm), l->rank, 1e-3f);
		turn_by_hand(b, &o->turn, r, u + l->rank, 1, l->dims);
		store_by_hand(t, row_of(b, &o->stream, &rows[r]), u, n);
	}
	by_row(b, &o->rows, sizeof(*rows));
	by_row(b, &o->latent_key, n * sizeof(float));
	by_row(b, &o->turn.angles, l->dims * sizeof(float));
	check_op(b, &op, "latent store");
}

static void op_latent_store(void **state)
{
	FOR_PROFILES(p)
	{
		struct ops_bench b;

		bench_open(&b, state, p);
		for (size_t i = 0; i < N_LATENTS; i++)
			check_latent_store(&b, &latents[i], p == OD_PROFILE_BF16 ? OD_BF16 : OD_F32);
		bench_close(&b);
	}
}

/* Weights that are not of the own kinds of a shadow. */
static const enum weight_kind kv_b_kinds[] = { W_BF16, W_F16,  W_F32,	     W_E4M3,	   W_U4B8, W_I8,  W_U8B128,
					       W_E2M1, W_E5M2, W_E4M3_ALONE, W_E5M2_ALONE, W_Q4_0, W_Q4_K };
#define ALL_SHAPES 5u /* with blocks; one shape is enough for the others */
#define N_KV_B_KINDS (ROWS > 16 ? ALL_SHAPES : sizeof(kv_b_kinds) / sizeof(kv_b_kinds[0]))

static bool has_shape(size_t shape, size_t kind)
{
	return shape < 2 || kind < ALL_SHAPES || is_of_blocks(dtype_of(kv_b_kinds[kind]));
}

static struct latent latent_of(const struct latent *shape, enum weight_kind kind)
{
	struct latent l = *shape;

	l.rank = (uint32_t)whole_row(kind, l.rank);
	if (l.apart)
		l.nope_dim = (uint32_t)whole_row(kind, l.nope_dim);
	return l;
}

/* Head h of all rows: += its first elements times its rows of kv_b, in their order. */
static void absorb_by_hand(const struct ops_bench *b, const struct od_op_latent_query *o, const struct od_mat *kv_b,
			   size_t h)
{
	const size_t q_dim = o->nope_dim + o->turn.dims, out_dim = o->rank + o->turn.dims;
	float weight[512];

	for (size_t i = 0; i < (o->turned ? o->rank : o->nope_dim); i++) {
		od_dequant_row(kv_b, o->turned ? h * o->rank + i : h * (o->nope_dim + o->v_dim) + i, weight);
		for (size_t r = 0; r < ROWS; r++) {
			const float *q = wanted_f32(b, o->q) + (r * LATENT_HEADS + h) * q_dim;
			float *out = wanted_f32(b, o->out) + (r * LATENT_HEADS + h) * out_dim;

			for (size_t e = 0; !o->turned && e < o->rank; e++)
				out[e] = fmaf(q[i], weight[e], out[e]);
			for (size_t k = 0; o->turned && k < o->nope_dim; k++)
				out[i] = fmaf(q[k], weight[k], out[i]);
		}
	}
}

static void check_latent_query(struct ops_bench *b, const struct latent *shape, enum weight_kind kind)
{
	const struct latent with_kind = latent_of(shape, kind), *l = &with_kind;
	const size_t q_dim = l->nope_dim + l->dims, out_dim = l->rank + l->dims;
	struct od_op op = { .kind = OD_OP_LATENT_QUERY, .n_rows = ROWS };
	struct od_op_latent_query *o = &op.latent_query;
	struct weight kv_b;

	bench_reset(b);
	lay_weight(b, &kv_b, kind, LATENT_HEADS * (l->apart ? l->rank : l->nope_dim + l->v_dim),
		   l->apart ? l->nope_dim : l->rank);
	*o = (struct od_op_latent_query){ .rows = lay_rows(b, 9, TABLES, CTX),
					  .q = lay_floats(b, ROWS * LATENT_HEADS * q_dim),
					  .out = lay_dirt(b, ROWS * LATENT_HEADS * out_dim * sizeof(float)),
					  .turn = lay_turn(b, l->dims, l->neighbours),
					  .kv_b = &kv_b.w,
					  .n_heads = LATENT_HEADS,
					  .nope_dim = l->nope_dim,
					  .v_dim = l->v_dim,
					  .rank = l->rank,
					  .turned = l->apart };
	expect(b);
	for (size_t i = 0; i < ROWS * LATENT_HEADS; i++) {
		float *out = wanted_f32(b, o->out) + i * out_dim;

		memset(out, 0, l->rank * sizeof(*out));
		memcpy(out + l->rank, wanted_f32(b, o->q) + i * q_dim + l->nope_dim, l->dims * sizeof(*out));
		turn_by_hand(b, &o->turn, i / LATENT_HEADS, out + l->rank, 1, l->dims);
	}
	for (size_t h = 0; h < LATENT_HEADS; h++)
		absorb_by_hand(b, o, &kv_b.m, h);
	by_row(b, &o->rows, sizeof(struct od_row_info));
	by_row(b, &o->q, LATENT_HEADS * q_dim * sizeof(float));
	by_row(b, &o->out, LATENT_HEADS * out_dim * sizeof(float));
	by_row(b, &o->turn.angles, l->dims * sizeof(float));
	check_op(b, &op, "latent query");
}

static void op_latent_query(void **state)
{
	FOR_PROFILES(p)
	{
		struct ops_bench b;

		bench_open(&b, state, p);
		for (size_t i = 0; i < N_LATENTS * N_KV_B_KINDS; i++)
			if (has_shape(i / N_KV_B_KINDS, i % N_KV_B_KINDS))
				check_latent_query(&b, &latents[i / N_KV_B_KINDS], kv_b_kinds[i % N_KV_B_KINDS]);
		bench_close(&b);
	}
}

/* The last v_dim rows of each head in kv_b; the whole matrix is multiplied here. */
static void check_latent_value(struct ops_bench *b, const struct latent *shape, enum weight_kind kind)
{
	const struct latent with_kind = latent_of(shape, kind), *l = &with_kind;
	const size_t before = l->apart ? 0 : l->nope_dim, each = before + l->v_dim;
	struct od_op op = { .kind = OD_OP_LATENT_VALUE, .n_rows = ROWS };
	struct od_op_latent_value *o = &op.latent_value;
	struct weight kv_b;
	float *all = exact(LATENT_HEADS * each, sizeof(*all));

	bench_reset(b);
	lay_weight(b, &kv_b, kind, LATENT_HEADS * each, l->rank);
	*o = (struct od_op_latent_value){ .in = lay_floats(b, ROWS * LATENT_HEADS * l->rank),
					  .out = lay_dirt(b, ROWS * LATENT_HEADS * l->v_dim * sizeof(float)),
					  .kv_b = &kv_b.w,
					  .n_heads = LATENT_HEADS,
					  .nope_dim = (uint32_t)before,
					  .v_dim = l->v_dim,
					  .rank = l->rank };
	expect(b);
	for (size_t i = 0; i < ROWS * LATENT_HEADS; i++) {
		od_matmul(b->be, NULL, &kv_b.m, wanted_f32(b, o->in) + i * l->rank, all, 1);
		memcpy(wanted_f32(b, o->out) + i * l->v_dim, all + i % LATENT_HEADS * each + before,
		       l->v_dim * sizeof(*all));
	}
	by_row(b, &o->in, LATENT_HEADS * l->rank * sizeof(float));
	by_row(b, &o->out, LATENT_HEADS * l->v_dim * sizeof(float));
	check_op(b, &op, "latent value");
	free(all);
}

static void op_latent_value(void **state)
{
	FOR_PROFILES(p)
	{
		struct ops_bench b;

		bench_open(&b, state, p);
		for (size_t i = 0; i < N_LATENTS * N_KV_B_KINDS; i++)
			if (has_shape(i / N_KV_B_KINDS, i % N_KV_B_KINDS))
				check_latent_value(&b, &latents[i / N_KV_B_KINDS], kv_b_kinds[i % N_KV_B_KINDS]);
		bench_close(&b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_ALL_TABLES(op_rope_store),	ON_ALL_TABLES(op_latent_store),
		ON_ALL_TABLES(op_latent_query), ON_ALL_TABLES(op_latent_value),
#ifndef FEW_TESTS /* steps of 64 rows are among these two's */
		ON_ALL_TABLES(op_attend),	ON_ALL_TABLES(op_attend_long),
#endif
	};

	choose_tables();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
