/* Each operation of a device (ops.h) against the kernels' table called directly, bit for bit over all memory that it could
 * touch: with several rows, and with each row alone. And how a failure shows. */
#include <string.h>

#include "common/base/mem.h"
#include "common/compute/quant.h"
#include "common/compute/rank.h"
#include "tests/unit/compute_util.h"
#include "tests/unit/device_util.h"

/* ---- memory before an operation, and what it must be afterwards ---- */

#define ARENA_BYTES (1u << 20)
#define MAX_ROW_REFS 8
#define ROWS 13u /* more than one piece for each of three threads */

struct row_ref {
	struct od_ref *at; /* in the operation */
	size_t bytes;	   /* of a row */
};

struct bench {
	struct od_device *d;
	const struct od_backend *be;
	enum od_profile profile;
	uint64_t seed;
	struct od_buf *arena, *scratch;
	unsigned char *image; /* [ARENA_BYTES]: what is there before */
	unsigned char *want;  /* and afterwards: all of it */
	size_t used;
	struct row_ref row[MAX_ROW_REFS];
	size_t n_row_refs;
};

static void bench_open(struct bench *b, void **state, enum od_profile profile)
{
	const struct od_backend *table = table_of(state);
	int cpu = OD_CPU_SCALAR;

	while (strcmp(od_cpu_names[cpu], table->name) != 0)
		cpu++;
	*b = (struct bench){ .d = device_new((enum od_cpu)cpu, 3), .profile = profile, .seed = 77 };
	assert_int_equal(od_backend_cpu(&b->be, (enum od_cpu)cpu, profile, NULL), OD_OK);
	b->arena = buf_new(b->d, ARENA_BYTES);
	b->image = od_alloc(ARENA_BYTES);
	b->want = od_alloc(ARENA_BYTES);
	assert_true(b->image != NULL && b->want != NULL);
}

static void bench_close(struct bench *b)
{
	od_buf_free(b->arena);
	od_buf_free(b->scratch);
	od_free(b->image);
	od_free(b->want);
	od_device_free(b->d);
}

/* Empty again, for another operation. */
static void bench_reset(struct bench *b)
{
	memset(b->image, 0, b->used);
	b->used = 0;
	b->n_row_refs = 0;
	od_buf_free(b->scratch);
	b->scratch = NULL;
}

/* A place of n bytes, in both images; padding follows. */
static struct od_ref lay(struct bench *b, const void *from, size_t n)
{
	const struct od_ref at = od_buf_ref(b->arena, b->used);

	b->used = od_round_up(b->used + n + OD_PAD_BYTES, 64);
	assert_true(b->used <= ARENA_BYTES);
	if (from != NULL)
		memcpy(b->image + at.at, from, n);
	return at;
}

static struct od_ref lay_floats(struct bench *b, size_t n)
{
	const struct od_ref at = lay(b, NULL, n * sizeof(float));

	for (size_t i = 0; i < n; i++)
		((float *)(void *)(b->image + at.at))[i] = random_unit(&b->seed);
	return at;
}

/* Where an operation's result is: something else stands there before. */
static struct od_ref lay_dirt(struct bench *b, size_t n)
{
	const struct od_ref at = lay(b, NULL, n);

	memset(b->image + at.at, 0xa5, n);
	return at;
}

static struct od_ref scratch_of(struct bench *b, uint64_t bytes)
{
	b->scratch = buf_new(b->d, bytes);
	return od_buf_ref(b->scratch, 0);
}

/* Everything is laid; from here on the test makes of want what the operation should make of it. */
static void expect(struct bench *b)
{
	memcpy(b->want, b->image, b->used);
}

static void *wanted(const struct bench *b, struct od_ref at)
{
	assert_true(at.buf == b->arena);
	return b->want + at.at;
}

static float *wanted_f32(const struct bench *b, struct od_ref at)
{
	return wanted(b, at);
}

/* An operand of the operation that has so many bytes for each row. */
static void by_row(struct bench *b, struct od_ref *at, size_t bytes)
{
	assert_true(b->n_row_refs < MAX_ROW_REFS);
	b->row[b->n_row_refs++] = (struct row_ref){ at, bytes };
}

static void assert_arena(struct bench *b, const char *what)
{
	unsigned char *got = copy_at(b->d, od_buf_ref(b->arena, 0), b->used);

	for (size_t i = 0; i < b->used; i++)
		if (got[i] != b->want[i])
			fail_msg("%s, %s, profile %s: byte %zu of %zu differs", b->be->name, what,
				 od_profile_names[b->profile - 1], i, b->used);
	free(got);
}

/* All rows at once, then row by row: nothing in memory is other than it should be. Afterwards op is used up. */
static void check_op(struct bench *b, struct od_op *op, const char *what)
{
	const uint32_t n_rows = op->n_rows;

	assert_memory_not_equal(b->image, b->want, b->used);
	op->profile = b->profile;
	put_at(b->d, od_buf_ref(b->arena, 0), b->image, b->used);
	run_op(b->d, op);
	assert_arena(b, what);
	put_at(b->d, od_buf_ref(b->arena, 0), b->image, b->used);
	op->n_rows = 1;
	for (uint32_t r = 0; r < n_rows; r++) {
		run_op(b->d, op);
		for (size_t i = 0; i < b->n_row_refs; i++)
			b->row[i].at->at += b->row[i].bytes;
	}
	assert_arena(b, what);
}

#define FOR_PROFILES(p) for (enum od_profile p = OD_PROFILE_F32; p <= OD_PROFILE_BF16; p++)

/* ---- weights ---- */

enum weight_kind {
	W_BF16,
	W_F16,
	W_F32,
	W_PLANES,	/* BF16, in chunks of 9 rows */
	W_INT8,		/* a scale for each row */
	W_INT8_GROUPED, /* for each 64 weights */
	W_INT8_INT8,	/* and rows are rounded */
	W_E4M3,		/* published, f32 scales and a divisor */
	W_U4B8,		/* published, BF16 scales */
	W_NF4,		/* rows are rounded; n_in is a multiple of 128 */
	N_WEIGHT_KINDS
};

#define CHUNK_ROWS 9u
#define MAX_CHUNKS 16u

struct weight {
	struct od_weight w;
	struct od_mat m; /* the same in the wanted image */
	struct od_planes planes;
	uint64_t chunk_at[MAX_CHUNKS];
};

static struct od_ref lay_random(struct bench *b, enum od_dtype t, size_t n)
{
	void *data = random_weights(&b->seed, t, n, PLAIN);
	struct od_ref at = lay(b, data, n * od_dtype_bytes(t));

	free(data);
	return at;
}

static void lay_planes(struct bench *b, struct weight *w)
{
	const size_t n_in = w->w.n_in, n = w->w.n_out * n_in;
	uint16_t *bf16 = random_weights(&b->seed, OD_BF16, n, PLAIN);
	uint8_t *e = exact(n, 1), *sm = exact(n, 1), *room = exact(od_planes_bound(CHUNK_ROWS * n_in, n_in), 1);

	for (size_t i = 0; i < n; i++) {
		e[i] = (uint8_t)(bf16[i] >> 7);
		sm[i] = (uint8_t)(bf16[i] << 1 | bf16[i] >> 15);
	}
	w->w.data = lay(b, sm, n);
	w->w.chunk_at = w->chunk_at;
	w->w.chunk_rows = CHUNK_ROWS;
	assert_true(w->w.n_out <= MAX_CHUNKS * CHUNK_ROWS);
	for (size_t row = 0; row < w->w.n_out; row += CHUNK_ROWS) {
		const size_t left = w->w.n_out - row, weights = (left < CHUNK_ROWS ? left : CHUNK_ROWS) * n_in;
		const struct od_ref at = lay(b, room, od_planes_encode(e + row * n_in, weights, n_in, room));

		if (row == 0)
			w->w.coded = at;
		w->chunk_at[row / CHUNK_ROWS] = at.at - w->w.coded.at;
	}
	free(bf16), free(e), free(sm), free(room);
}

static enum od_dtype dtype_of(enum weight_kind kind)
{
	static const enum od_dtype dtypes[N_WEIGHT_KINDS] = {
		OD_BF16, OD_F16, OD_F32, OD_BF16, OD_INT8, OD_INT8, OD_INT8, OD_F8_E4M3, OD_U4B8, OD_NF4,
	};

	return dtypes[kind];
}

/* *w is where the operation finds it: it stays there. */
static void lay_weight(struct bench *b, struct weight *w, enum weight_kind kind, size_t n_out, size_t n_in)
{
	const enum od_dtype t = dtype_of(kind);

	*w = (struct weight){ .w = { .dtype = t, .n_out = n_out, .n_in = n_in } };
	if (kind == W_PLANES)
		lay_planes(b, w);
	else
		w->w.data = lay_random(b, t == OD_NF4 || t == OD_U4B8 ? OD_INT8 : t,
				       n_out * od_row_bytes(t, n_in) / (od_dtype_bytes(t) > 1 ? od_dtype_bytes(t) : 1));
	w->w.grouped = kind == W_INT8_GROUPED || kind == W_INT8_INT8 || kind == W_NF4;
	w->w.act = kind == W_INT8_INT8 || kind == W_NF4 ? OD_ACT_INT8 : OD_ACT_F32;
	if (kind == W_INT8 || w->w.grouped)
		w->w.scale = lay_floats(b, n_out * (w->w.grouped ? od_quant_groups(n_in) : 1));
	if (kind == W_E4M3 || kind == W_U4B8) {
		w->w.scales.dtype = kind == W_E4M3 ? OD_F32 : OD_BF16;
		w->w.scales.group = 32;
		w->w.scales.at = lay_random(b, w->w.scales.dtype, n_out * ((n_in + 31) / 32));
	}
	if (kind == W_E4M3)
		w->w.scales.divisor = lay_floats(b, 1);
	w->m = (struct od_mat){
		.dtype = t,
		.n_out = n_out,
		.n_in = n_in,
		.data = b->want + w->w.data.at,
		.scales = { .dtype = w->w.scales.dtype, .group = w->w.scales.group,
			    .at = w->w.scales.at.buf != NULL ? b->want + w->w.scales.at.at : NULL,
			    .divisor = w->w.scales.divisor.buf != NULL ? wanted(b, w->w.scales.divisor) : NULL },
		.scale = w->w.scale.buf != NULL ? wanted(b, w->w.scale) : NULL,
		.grouped = w->w.grouped,
		.act = w->w.act,
	};
	if (kind == W_PLANES) {
		w->planes = (struct od_planes){ .chunk_rows = CHUNK_ROWS, .base = wanted(b, w->w.coded), .at = w->chunk_at };
		w->m.planes = &w->planes;
	}
}

/* ---- rows in, rows out ---- */

static struct od_ref lay_rows(struct bench *b, uint32_t vocab, uint32_t n_tables, uint32_t ctx)
{
	struct od_row_info rows[ROWS];

	for (uint32_t r = 0; r < ROWS; r++)
		rows[r] = (struct od_row_info){ .token = r == 0 ? (int32_t)vocab - 1 : (int32_t)random_below(&b->seed, vocab),
						.position = r == 1 ? ctx - 1 : (uint32_t)random_below(&b->seed, ctx),
						.table = (uint32_t)random_below(&b->seed, n_tables) };
	return lay(b, rows, sizeof(rows));
}

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

static void op_angles(void **state)
{
	enum { HALF = 19 };
	struct od_op op = { .kind = OD_OP_ANGLES, .n_rows = ROWS };
	const struct od_row_info *rows;
	struct bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	op.angles = (struct od_op_angles){ .rows = lay_rows(&b, 9, 1, 30000), .inv_freq = lay_floats(&b, HALF),
					   .angles = lay_dirt(&b, ROWS * 2 * HALF * sizeof(float)), .half = HALF };
	expect(&b);
	rows = wanted(&b, op.angles.rows);
	for (size_t r = 0; r < ROWS; r++) {
		for (size_t i = 0; i < HALF; i++) {
			float angle = (float)rows[r].position * wanted_f32(&b, op.angles.inv_freq)[i];
			double sine, cosine;

			od_sincos(angle, &sine, &cosine);
			wanted_f32(&b, op.angles.angles)[(2 * r) * HALF + i] = (float)cosine;
			wanted_f32(&b, op.angles.angles)[(2 * r + 1) * HALF + i] = (float)sine;
		}
	}
	by_row(&b, &op.angles.rows, sizeof(struct od_row_info));
	by_row(&b, &op.angles.angles, 2 * HALF * sizeof(float));
	check_op(&b, &op, "angles");
	bench_close(&b);
}

static void op_norm(void **state)
{
	enum { N = 131 };

	for (int with_add = 0; with_add < 2; with_add++) {
		struct od_op op = { .kind = OD_OP_NORM, .n_rows = ROWS };
		struct bench b;

		bench_open(&b, state, OD_PROFILE_F32);
		op.norm = (struct od_op_norm){ .x = lay_floats(&b, ROWS * N), .weight = lay_floats(&b, N),
					       .y = lay_dirt(&b, ROWS * N * sizeof(float)), .n = N, .eps = 1e-5f };
		if (with_add)
			op.norm.add = lay_floats(&b, ROWS * N);
		expect(&b);
		for (size_t r = 0; r < ROWS; r++) {
			float *x = wanted_f32(&b, op.norm.x) + r * N;

			for (size_t i = 0; with_add && i < N; i++)
				x[i] += wanted_f32(&b, op.norm.add)[r * N + i];
			b.be->rmsnorm(wanted_f32(&b, op.norm.y) + r * N, x, wanted(&b, op.norm.weight), N, 1e-5f);
		}
		by_row(&b, &op.norm.x, N * sizeof(float));
		by_row(&b, &op.norm.y, N * sizeof(float));
		if (with_add)
			by_row(&b, &op.norm.add, N * sizeof(float));
		check_op(&b, &op, "norm");
		bench_close(&b);
	}
}

/* One to three matrices of any kinds: what each of them gives alone. */
static void check_linear(struct bench *b, const enum weight_kind *kind, size_t n, size_t n_in)
{
	struct od_op op = { .kind = OD_OP_LINEAR, .n_rows = ROWS }, alone;
	struct weight w[OD_MAX_LINEAR];

	bench_reset(b);
	op.linear.x = lay_floats(b, ROWS * n_in);
	for (size_t i = 0; i < n; i++) {
		lay_weight(b, &w[i], kind[i], 20 + 11 * i, n_in);
		op.linear.w[i] = &w[i].w;
		op.linear.y[i] = lay_dirt(b, ROWS * w[i].w.n_out * sizeof(float));
		by_row(b, &op.linear.y[i], w[i].w.n_out * sizeof(float));
	}
	by_row(b, &op.linear.x, n_in * sizeof(float));
	expect(b);
	for (size_t i = 0; i < n; i++)
		od_matmul(b->be, NULL, &w[i].m, wanted(b, op.linear.x), wanted(b, op.linear.y[i]), ROWS);
	alone = op;
	check_op(b, &op, "linear");
	put_at(b->d, od_buf_ref(b->arena, 0), b->image, b->used);
	for (size_t i = 0; i < n; i++) {
		alone.profile = b->profile;
		alone.linear.w[0] = &w[i].w;
		alone.linear.w[1] = NULL;
		alone.linear.y[0] = alone.linear.y[i];
		run_op(b->d, &alone);
	}
	assert_arena(b, "linear, one after the other");
}

static void op_linear(void **state)
{
	FOR_PROFILES(p) {
		struct bench b;

		bench_open(&b, state, p);
		for (int i = 0; i < 3 * N_WEIGHT_KINDS; i++) {
			const enum weight_kind kind[] = { (enum weight_kind)(i % N_WEIGHT_KINDS),
							  (enum weight_kind)((i + 3) % N_WEIGHT_KINDS),
							  (enum weight_kind)((i * 7 + 1) % N_WEIGHT_KINDS) };

			check_linear(&b, kind, 1 + (size_t)i / N_WEIGHT_KINDS, 256);
		}
		for (int i = 0; i < W_NF4; i++) {
			const enum weight_kind kind[] = { (enum weight_kind)i, W_BF16, (enum weight_kind)((i + 5) % W_NF4) };

			check_linear(&b, kind, 3, 70);
		}
		bench_close(&b);
	}
}

/* ---- attention ---- */

enum { HEADS = 6, KV_HEADS = 2, HEAD_DIM = 20, TABLES = 3, CTX = 300, TABLE_PAGES = 6, PLACES = 19 };

static char *kv_row(const struct bench *b, const struct od_kv *kv, uint64_t at, uint64_t row_bytes,
		    const struct od_row_info *row)
{
	const uint32_t *table = (const uint32_t *)wanted(b, kv->tables) + row->table * kv->table_pages;

	return (char *)wanted(b, kv->pages) + table[row->position / OD_KV_PAGE] * kv->page_bytes + at +
	       row->position % OD_KV_PAGE * row_bytes;
}

/* Pages of three sequences in any order among others; NaN everywhere. Rows of keys and values have widths of their own,
 * and other layers' stand before them. */
static struct od_kv lay_kv(struct bench *b, enum od_dtype t)
{
	const size_t row = KV_HEADS * HEAD_DIM * od_dtype_bytes(t);
	struct od_kv kv = { .table_pages = TABLE_PAGES, .k_row_bytes = row + 16, .v_row_bytes = row + 32, .dtype = t };
	uint32_t page[PLACES], table[TABLES * TABLE_PAGES] = { 0 };

	kv.v_at = 128;
	kv.k_at = kv.v_at + OD_KV_PAGE * kv.v_row_bytes;
	kv.page_bytes = kv.k_at + OD_KV_PAGE * kv.k_row_bytes + 64;
	for (uint32_t i = 0; i < PLACES; i++) {
		uint32_t j = (uint32_t)random_below(&b->seed, i + 1);

		page[i] = page[j];
		page[j] = i;
	}
	memcpy(table, page, sizeof(table));
	kv.tables = lay(b, table, sizeof(table));
	kv.pages = lay(b, NULL, PLACES * kv.page_bytes);
	memset(b->image + kv.pages.at, 0xff, PLACES * kv.page_bytes);
	return kv;
}

static void turn_by_hand(float *u, size_t n_heads, const float *angles)
{
	const size_t half = HEAD_DIM / 2;

	for (size_t h = 0; h < n_heads; h++, u += HEAD_DIM) {
		for (size_t i = 0; i < half; i++) {
			const float a = u[i], b = u[half + i];

			u[i] = a * angles[i] - b * angles[half + i];
			u[half + i] = b * angles[i] + a * angles[half + i];
		}
	}
}

static void store_by_hand(enum od_dtype t, char *to, const float *from)
{
	for (size_t i = 0; i < KV_HEADS * HEAD_DIM; i++) {
		const uint16_t h = od_f32_bf16(from[i]);

		if (t == OD_BF16)
			memcpy(to + 2 * i, &h, sizeof(h));
		else
			memcpy(to + 4 * i, &from[i], sizeof(from[i]));
	}
}

static void op_rope_store(void **state)
{
	enum { Q = HEADS * HEAD_DIM, KV = KV_HEADS * HEAD_DIM };

	for (int bf16 = 0; bf16 < 2; bf16++) {
		struct od_op op = { .kind = OD_OP_ROPE_STORE, .n_rows = ROWS };
		struct od_op_rope_store *o = &op.rope_store;
		struct od_row_info rows[ROWS];
		struct bench b;

		bench_open(&b, state, bf16 ? OD_PROFILE_BF16 : OD_PROFILE_F32);
		for (uint32_t r = 0; r < ROWS; r++) /* each at a place of its own, on both sides of a page's end */
			rows[r] = (struct od_row_info){ .position = r % 2 ? 63 + r / 2 : r * 23, .table = r % TABLES };
		*o = (struct od_op_rope_store){ .rows = lay(&b, rows, sizeof(rows)), .angles = lay_floats(&b, ROWS * HEAD_DIM),
						.q = lay_floats(&b, ROWS * Q), .k = lay_floats(&b, ROWS * KV),
						.v = lay_floats(&b, ROWS * KV), .kv = lay_kv(&b, bf16 ? OD_BF16 : OD_F32),
						.n_heads = HEADS, .n_kv_heads = KV_HEADS, .head_dim = HEAD_DIM };
		expect(&b);
		for (size_t r = 0; r < ROWS; r++) {
			const float *angles = wanted_f32(&b, o->angles) + r * HEAD_DIM;
			float *k = wanted_f32(&b, o->k) + r * KV;

			turn_by_hand(wanted_f32(&b, o->q) + r * Q, HEADS, angles);
			turn_by_hand(k, KV_HEADS, angles);
			store_by_hand(o->kv.dtype, kv_row(&b, &o->kv, o->kv.k_at, o->kv.k_row_bytes, &rows[r]), k);
			store_by_hand(o->kv.dtype, kv_row(&b, &o->kv, o->kv.v_at, o->kv.v_row_bytes, &rows[r]),
				      wanted_f32(&b, o->v) + r * KV);
		}
		by_row(&b, &o->rows, sizeof(*rows));
		by_row(&b, &o->angles, HEAD_DIM * sizeof(float));
		by_row(&b, &o->q, Q * sizeof(float));
		by_row(&b, &o->k, KV * sizeof(float));
		by_row(&b, &o->v, KV * sizeof(float));
		check_op(&b, &op, "rope and store");
		bench_close(&b);
	}
}

/* Keys and values of every position below CTX. */
static void fill_kv(struct bench *b, const struct od_kv *kv)
{
	const size_t n = KV_HEADS * HEAD_DIM;

	expect(b);
	for (uint32_t i = 0; i < 2 * TABLES * CTX; i++) {
		const struct od_row_info row = { .position = i / 2 % CTX, .table = i / 2 / CTX };
		char *at = i % 2 ? kv_row(b, kv, kv->v_at, kv->v_row_bytes, &row) : kv_row(b, kv, kv->k_at, kv->k_row_bytes, &row);
		void *data = random_weights(&b->seed, kv->dtype, n, PLAIN);

		memcpy(b->image + (at - (char *)b->want), data, n * od_dtype_bytes(kv->dtype));
		free(data);
	}
	expect(b);
}

static void op_attend(void **state)
{
	enum { Q = HEADS * HEAD_DIM };
	static const uint32_t windows[] = { 0, 1, 7, 64, 100, 299, 1000 };

	FOR_PROFILES(p) {
		struct bench b;

		bench_open(&b, state, p);
		for (size_t w = 0; w < sizeof(windows) / sizeof(windows[0]); w++) {
			struct od_op op = { .kind = OD_OP_ATTEND, .n_rows = ROWS };
			struct od_op_attend *o = &op.attend;
			const struct od_row_info *rows;

			bench_reset(&b);
			*o = (struct od_op_attend){ .rows = lay_rows(&b, 9, TABLES, CTX), .q = lay_floats(&b, ROWS * Q),
						    .out = lay_dirt(&b, ROWS * Q * sizeof(float)),
						    .kv = lay_kv(&b, w % 2 ? OD_BF16 : OD_F32), .n_heads = HEADS,
						    .n_kv_heads = KV_HEADS, .head_dim = HEAD_DIM, .window = windows[w],
						    .max_position = CTX - 1 };
			fill_kv(&b, &o->kv);
			rows = wanted(&b, o->rows);
			for (size_t i = 0; i < ROWS * HEADS; i++) {
				const struct od_row_info *row = &rows[i / HEADS];
				const size_t end = (size_t)row->position + 1, kv_head = i % HEADS / (HEADS / KV_HEADS);
				const size_t in_row = kv_head * HEAD_DIM * od_dtype_bytes(o->kv.dtype);
				const struct od_attn a = {
					.q = wanted_f32(&b, o->q) + i * HEAD_DIM,
					.k = (char *)wanted(&b, o->kv.pages) + o->kv.k_at + in_row,
					.v = (char *)wanted(&b, o->kv.pages) + o->kv.v_at + in_row,
					.table = (const uint32_t *)wanted(&b, o->kv.tables) + row->table * TABLE_PAGES,
					.page_bytes = o->kv.page_bytes,
					.k_row_bytes = o->kv.k_row_bytes,
					.v_row_bytes = o->kv.v_row_bytes,
					.kv_dtype = o->kv.dtype,
					.head_dim = HEAD_DIM,
					.begin = windows[w] != 0 && end > windows[w] ? end - windows[w] : 0,
					.end = end,
					.scale = (float)(1.0 / sqrt(HEAD_DIM)),
					.out = wanted_f32(&b, o->out) + i * HEAD_DIM,
				};

				b.be->attend(&a);
				assert_true(!isnan(a.out[0])); /* nothing that is not there was read */
			}
			by_row(&b, &o->rows, sizeof(*rows));
			by_row(&b, &o->q, Q * sizeof(float));
			by_row(&b, &o->out, Q * sizeof(float));
			check_op(&b, &op, "attend");
		}
		bench_close(&b);
	}
}

/* ---- experts ---- */

static void op_route(void **state)
{
	enum { N = 21, K = 5, HIDDEN = 45 };

	FOR_PROFILES(p) {
		struct od_op op = { .kind = OD_OP_ROUTE, .n_rows = ROWS };
		struct od_op_route *o = &op.route;
		struct bench b;

		bench_open(&b, state, p);
		*o = (struct od_op_route){ .logits = lay_floats(&b, ROWS * N), .choice = lay_dirt(&b, ROWS * K * sizeof(uint16_t)),
					   .weight = lay_dirt(&b, ROWS * K * sizeof(float)),
					   .margin = lay_dirt(&b, ROWS * sizeof(float)), .n_experts = N, .top_k = K,
					   .hidden = HIDDEN };
		if (p == OD_PROFILE_BF16)
			o->round = lay_floats(&b, ROWS * HIDDEN);
		expect(&b);
		for (size_t r = 0; r < ROWS; r++) {
			float *prob = wanted_f32(&b, o->logits) + r * N, sum = 0;
			uint16_t best[K + 1], *choice = (uint16_t *)wanted(&b, o->choice) + r * K;

			b.be->softmax(prob, N);
			od_rank(prob, N, best, K + 1);
			memcpy(choice, best, K * sizeof(*best));
			for (size_t i = 0; i < K; i++)
				sum += prob[best[i]];
			for (size_t i = 0; i < K; i++)
				wanted_f32(&b, o->weight)[r * K + i] = prob[best[i]] / sum;
			wanted_f32(&b, o->margin)[r] = prob[best[K - 1]] - prob[best[K]];
			for (size_t i = 0; p == OD_PROFILE_BF16 && i < HIDDEN; i++) {
				float *x = &wanted_f32(&b, o->round)[r * HIDDEN + i];

				*x = od_bf16_f32(od_f32_bf16(*x));
			}
		}
		by_row(&b, &o->logits, N * sizeof(float));
		by_row(&b, &o->choice, K * sizeof(uint16_t));
		by_row(&b, &o->weight, K * sizeof(float));
		by_row(&b, &o->margin, sizeof(float));
		if (p == OD_PROFILE_BF16)
			by_row(&b, &o->round, HIDDEN * sizeof(float));
		check_op(&b, &op, "route");
		bench_close(&b);
	}
}

enum { FFN_HIDDEN = 128, FFN_MID = 40 };

struct expert {
	struct weight mat[OD_N_EXPERT_MATS];
	struct od_expert e;
};

static void lay_expert(struct bench *b, struct expert *e, int turn)
{
	for (int i = 0; i < OD_N_EXPERT_MATS; i++) {
		const bool down = i == OD_MAT_DOWN;
		/* NF4 does not fit rows of FFN_MID */
		const enum weight_kind kind = (enum weight_kind)((turn + 3 * i) % (down ? W_NF4 : N_WEIGHT_KINDS));

		lay_weight(b, &e->mat[i], kind, down ? FFN_HIDDEN : FFN_MID, down ? FFN_MID : FFN_HIDDEN);
		e->e.mat[i] = e->mat[i].w;
	}
}

static void ffn_by_hand(const struct bench *b, const struct expert *e, const float *x, float *y, size_t n_rows)
{
	float gate[ROWS * FFN_MID], up[ROWS * FFN_MID];

	od_matmul(b->be, NULL, &e->mat[OD_MAT_GATE].m, x, gate, n_rows);
	od_matmul(b->be, NULL, &e->mat[OD_MAT_UP].m, x, up, n_rows);
	b->be->silu_mul(gate, up, n_rows * FFN_MID);
	od_matmul(b->be, NULL, &e->mat[OD_MAT_DOWN].m, gate, y, n_rows);
	for (size_t i = 0; b->profile == OD_PROFILE_BF16 && i < n_rows * FFN_HIDDEN; i++)
		y[i] = od_bf16_f32(od_f32_bf16(y[i]));
}

static void op_ffn(void **state)
{
	FOR_PROFILES(p) {
		struct bench b;

		bench_open(&b, state, p);
		for (int turn = 0; turn < N_WEIGHT_KINDS; turn++) {
			struct od_op op = { .kind = OD_OP_FFN, .n_rows = ROWS };
			struct expert e;

			bench_reset(&b);
			lay_expert(&b, &e, turn);
			op.ffn = (struct od_op_ffn){ .w = &e.e, .x = lay_floats(&b, ROWS * FFN_HIDDEN),
						     .y = lay_dirt(&b, ROWS * FFN_HIDDEN * sizeof(float)),
						     .scratch = scratch_of(&b, od_ffn_scratch_bytes(FFN_MID, ROWS)) };
			expect(&b);
			ffn_by_hand(&b, &e, wanted(&b, op.ffn.x), wanted(&b, op.ffn.y), ROWS);
			by_row(&b, &op.ffn.x, FFN_HIDDEN * sizeof(float));
			by_row(&b, &op.ffn.y, FFN_HIDDEN * sizeof(float));
			check_op(&b, &op, "ffn");
		}
		bench_close(&b);
	}
}

enum { N_EXPERTS = 6, TOP_K = 3 };

/* Expert 0 for nobody, 5 for all but one row, the others for some. */
static struct od_ref lay_choices(struct bench *b)
{
	uint16_t choice[ROWS][TOP_K];

	for (size_t r = 0; r < ROWS; r++)
		for (size_t k = 0; k < TOP_K; k++)
			choice[r][k] = (uint16_t)(k == r % TOP_K && r != 4 ? 5 : 1 + (r + k) % 4);
	return lay(b, choice, sizeof(choice));
}

static void op_experts(void **state)
{
	FOR_PROFILES(p) {
		struct od_op op = { .kind = OD_OP_EXPERTS, .n_rows = ROWS };
		struct od_op_experts *o = &op.experts;
		struct expert e[N_EXPERTS];
		struct od_expert list[N_EXPERTS];
		const uint16_t *choice;
		struct bench b;

		bench_open(&b, state, p);
		for (int i = 0; i < N_EXPERTS; i++) {
			lay_expert(&b, &e[i], 2 * i);
			list[i] = e[i].e;
		}
		*o = (struct od_op_experts){ .expert = list, .x = lay_floats(&b, ROWS * FFN_HIDDEN), .choice = lay_choices(&b),
					     .y = lay_dirt(&b, ROWS * TOP_K * FFN_HIDDEN * sizeof(float)),
					     .scratch = scratch_of(&b, od_experts_scratch_bytes(FFN_HIDDEN, FFN_MID, N_EXPERTS,
											        TOP_K, ROWS)),
					     .n_experts = N_EXPERTS, .top_k = TOP_K, .hidden = FFN_HIDDEN };
		expect(&b);
		choice = wanted(&b, o->choice);
		for (size_t i = 0; i < ROWS * TOP_K; i++)
			ffn_by_hand(&b, &e[choice[i]], wanted_f32(&b, o->x) + i / TOP_K * FFN_HIDDEN,
				    wanted_f32(&b, o->y) + i * FFN_HIDDEN, 1);
		by_row(&b, &o->x, FFN_HIDDEN * sizeof(float));
		by_row(&b, &o->choice, TOP_K * sizeof(uint16_t));
		by_row(&b, &o->y, TOP_K * FFN_HIDDEN * sizeof(float));
		check_op(&b, &op, "experts");
		bench_close(&b);
	}
}

static void op_combine(void **state)
{
	enum { N = 53 };

	for (uint32_t k = 1; k <= 5; k += 2) {
		struct od_op op = { .kind = OD_OP_COMBINE, .n_rows = ROWS };
		struct od_op_combine *o = &op.combine;
		struct bench b;

		bench_open(&b, state, OD_PROFILE_F32);
		*o = (struct od_op_combine){ .y = lay_floats(&b, ROWS * k * N), .weight = lay_floats(&b, ROWS * k),
					     .x = lay_floats(&b, ROWS * N), .sum = scratch_of(&b, ROWS * N * sizeof(float)),
					     .top_k = k, .hidden = N };
		expect(&b);
		for (size_t i = 0; i < ROWS * N; i++) {
			const float *y = wanted_f32(&b, o->y) + i / N * k * N + i % N, *weight = wanted_f32(&b, o->weight) + i / N * k;
			float sum = weight[0] * y[0];

			for (size_t rank = 1; rank < k; rank++)
				sum = fmaf(weight[rank], y[rank * N], sum);
			wanted_f32(&b, o->x)[i] += sum;
		}
		by_row(&b, &o->y, k * N * sizeof(float));
		by_row(&b, &o->weight, k * sizeof(float));
		by_row(&b, &o->x, N * sizeof(float));
		check_op(&b, &op, "combine");
		bench_close(&b);
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
	ffn_by_hand(&b, &e[1], wanted(&b, op.experts.x), wanted(&b, op.experts.y), 1);
	put_at(b.d, od_buf_ref(b.arena, 0), b.image, b.used);
	put_at(b.d, op.experts.choice, &(uint16_t){ 7 }, 2);
	od_device_run(b.d, OD_QUEUE_COMPUTE, &op);
	od_device_put(b.d, OD_QUEUE_COMPUTE, op.experts.choice, &(uint16_t){ 9 }, 2);
	od_device_run(b.d, OD_QUEUE_COMPUTE, &op);
	assert_int_equal(od_device_wait(b.d, OD_QUEUE_LOADS, od_device_ticket(b.d, OD_QUEUE_LOADS), &err), OD_OK);
	assert_int_equal(od_device_sync(b.d, &err), OD_ERR_RANGE);
	assert_non_null(strstr(err.msg, "expected 0 to 1, found 7"));
	assert_int_equal(od_device_sync(b.d, &err), OD_OK);
	choose_one(&b, &op, 8);
	assert_int_equal(od_device_wait(b.d, OD_QUEUE_COMPUTE, od_device_ticket(b.d, OD_QUEUE_COMPUTE), NULL), OD_ERR_RANGE);
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
		ON_ALL_TABLES(op_embed),   ON_ALL_TABLES(op_angles),     ON_ALL_TABLES(op_norm),
		ON_ALL_TABLES(op_linear),  ON_ALL_TABLES(op_rope_store), ON_ALL_TABLES(op_attend),
		ON_ALL_TABLES(op_route),   ON_ALL_TABLES(op_ffn),	 ON_ALL_TABLES(op_experts),
		ON_ALL_TABLES(op_combine), ON_ALL_TABLES(op_copy),	 ON_ALL_TABLES(failures_show_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
