/* ops_bench.h - for tests of a device's operations (ops.h): memory as it is before one, what it must be afterwards, and
 * weights of all kinds in it. An operation is run on all rows at once and on some of them at a time, and may change
 * nothing but its results. */
#ifndef OD_TESTS_OPS_BENCH_H
#define OD_TESTS_OPS_BENCH_H

#include <string.h>

#include "common/base/mem.h"
#include "common/compute/formats/format.h"
#include "common/compute/quant.h"
#include "tests/unit/compute_util.h"
#include "tests/unit/device_util.h"

/* ---- memory before an operation, and what it must be afterwards ---- */

#define ARENA_BYTES ((size_t)ROWS << 18)
#define MAX_ROW_REFS 10
#ifndef ROWS /* some tests are compiled again with more */
#define ROWS 16u /* more than one piece for each of three threads */
#endif

struct row_ref {
	struct od_ref *at; /* in the operation */
	size_t bytes; /* one row */
};

struct ops_bench {
	struct od_device *d, *scalar; /* scalar: of the same memory, by the table that all others are measured by */
	const struct od_backend *be;
	enum od_profile profile;
	uint64_t seed;
	struct od_buf *arena, *scratch;
	unsigned char *image; /* [ARENA_BYTES]: the contents before the operations run */
	unsigned char *want; /* and afterwards: all of it */
	size_t used;
	struct row_ref row[MAX_ROW_REFS];
	size_t n_row_refs;
	struct od_ffn_segment *segment; /* the operation's only one, which has all of its rows; NULL: none */
};

static inline void bench_open(struct ops_bench *b, void **state, enum od_profile profile)
{
	const struct od_backend *table = table_of(state);
	int cpu = OD_CPU_SCALAR;

	while (strcmp(od_cpu_names[cpu], table->name) != 0)
		cpu++;
	*b = (struct ops_bench){ .d = device_new((enum od_cpu)cpu, 3),
				 .scalar = device_new(OD_CPU_SCALAR, 1),
				 .profile = profile,
				 .seed = 77 };
	assert_int_equal(od_backend_cpu(&b->be, (enum od_cpu)cpu, profile, NULL), OD_OK);
	b->arena = buf_new(b->d, ARENA_BYTES);
	b->image = od_alloc(ARENA_BYTES);
	b->want = od_alloc(ARENA_BYTES);
	assert_true(b->image != NULL && b->want != NULL);
}

static inline void bench_close(struct ops_bench *b)
{
	od_buf_free(b->arena);
	od_buf_free(b->scratch);
	od_free(b->image);
	od_free(b->want);
	od_device_free(b->scalar);
	od_device_free(b->d);
}

/* Empty again, for another operation. */
static inline void bench_reset(struct ops_bench *b)
{
	memset(b->image, 0, b->used);
	b->used = 0;
	b->n_row_refs = 0;
	b->segment = NULL;
	od_buf_free(b->scratch);
	b->scratch = NULL;
}

/* A place of n bytes, in both images; padding follows. */
static inline struct od_ref lay(struct ops_bench *b, const void *from, size_t n)
{
	const struct od_ref at = od_buf_ref(b->arena, b->used);

	b->used = od_round_up(b->used + n + OD_PAD_BYTES, 64);
	assert_true(b->used <= ARENA_BYTES);
	if (from != NULL)
		memcpy(b->image + at.at, from, n);
	return at;
}

static inline struct od_ref lay_floats(struct ops_bench *b, size_t n)
{
	const struct od_ref at = lay(b, NULL, n * sizeof(float));

	for (size_t i = 0; i < n; i++)
		((float *)(void *)(b->image + at.at))[i] = random_unit(&b->seed);
	return at;
}

/* Where an operation's result is: something else stands there before. */
static inline struct od_ref lay_dirt(struct ops_bench *b, size_t n)
{
	const struct od_ref at = lay(b, NULL, n);

	memset(b->image + at.at, 0xa5, n);
	return at;
}

static inline struct od_ref scratch_of(struct ops_bench *b, uint64_t bytes)
{
	b->scratch = buf_new(b->d, bytes);
	return od_buf_ref(b->scratch, 0);
}

/* Everything is laid; from here on the test makes of want what the operation should make of it. */
static inline void expect(struct ops_bench *b)
{
	memcpy(b->want, b->image, b->used);
}

static inline void *wanted(const struct ops_bench *b, struct od_ref at)
{
	assert_true(at.buf == b->arena);
	return b->want + at.at;
}

static inline float *wanted_f32(const struct ops_bench *b, struct od_ref at)
{
	return wanted(b, at);
}

/* An operand of the operation that has so many bytes for each row. */
static inline void by_row(struct ops_bench *b, struct od_ref *at, size_t bytes)
{
	assert_true(b->n_row_refs < MAX_ROW_REFS);
	b->row[b->n_row_refs++] = (struct row_ref){ at, bytes };
}

static inline void assert_arena(struct ops_bench *b, const char *what)
{
	unsigned char *got = copy_at(b->d, od_buf_ref(b->arena, 0), b->used);

	for (size_t i = 0; i < b->used; i++)
		if (got[i] != b->want[i])
			fail_msg("%s, %s, profile %s: byte %zu of %zu differs", b->be->name, what,
				 od_profile_names[b->profile - 1], i, b->used);
	free(got);
}

/* Sanitizers are so slow that they do some runs only, which tests/gpu/gpu_sample.sh chooses: $OD_TEST_RUNS has a '1' or
 * a '0' for each run of the program. Before that it notes in a file, $OD_TEST_MARKS, where each run begins among the
 * names of kernels that are launched first. */
static inline bool is_chosen(void)
{
	static size_t n_runs;
	const char *marks = getenv("OD_TEST_MARKS"), *runs = getenv("OD_TEST_RUNS");

	if (marks != NULL) {
		FILE *f = fopen(marks, "a");

		assert_non_null(f);
		fputs("run\n", f);
		fclose(f);
	}
	if (runs == NULL)
		return true;
	assert_true(n_runs < strlen(runs)); /* it was made for this test */
	return runs[n_runs++] == '1';
}

/* n rows at a time, from the first on. */
static inline void run_in_steps(struct ops_bench *b, struct od_device *d, const struct od_op *op, uint32_t n,
				const char *what)
{
	struct od_ref first[MAX_ROW_REFS];
	struct od_op step = *op;
	struct od_weight table;

	if (!is_chosen())
		return;
	for (size_t i = 0; i < b->n_row_refs; i++)
		first[i] = *b->row[i].at;
	put_at(b->d, od_buf_ref(b->arena, 0), b->image, b->used);
	for (uint32_t r = 0; r < op->n_rows; r += n) {
		for (size_t i = 0; i < b->n_row_refs; i++) {
			const ptrdiff_t in_op = (const char *)b->row[i].at - (const char *)op;

			*(struct od_ref *)(void *)((char *)&step + in_op) = od_ref_at(first[i], r * b->row[i].bytes);
		}
		step.n_rows = op->n_rows - r < n ? op->n_rows - r : n;
		if (b->segment != NULL)
			b->segment->n_rows = step.n_rows;
		if (op->kind == OD_OP_EMBED && op->embed.in_order) { /* the table's rows are the step's */
			table = *op->embed.table;
			table.data = od_ref_at(table.data, r * od_row_bytes(table.dtype, table.n_in));
			step.embed.table = &table;
		}
		run_op(d, &step);
	}
	assert_arena(b, what);
}

/* All rows at once, three at a time, all but two and these, then row by row, and in profile f32 by the scalar table
 * too: nothing in memory is other than it should be. Of many rows sixteen at a time instead: what a row alone gives is
 * known. by_row's places are in *op. */
static inline void check_op(struct ops_bench *b, struct od_op *op, const char *what)
{
	assert_memory_not_equal(b->image, b->want, b->used);
	op->profile = b->profile;
	run_in_steps(b, b->d, op, op->n_rows, what);
	if (ROWS > 16) {
		run_in_steps(b, b->d, op, 16, what);
	} else {
		run_in_steps(b, b->d, op, 3, what);
		run_in_steps(b, b->d, op, op->n_rows > 2 ? op->n_rows - 2 : 1, what);
		run_in_steps(b, b->d, op, 1, what);
	}
	if (b->profile == OD_PROFILE_F32)
		run_in_steps(b, b->scalar, op, op->n_rows, what);
}

#define FOR_PROFILES(p) for (enum od_profile p = OD_PROFILE_F32; p <= OD_PROFILE_BF16; p++)

/* ---- weights ---- */

enum weight_kind {
	W_BF16,
	W_F16,
	W_F32,
	W_PLANES, /* BF16, in chunks of 9 rows */
	W_INT8, /* a scale for each row */
	W_INT8_INT8, /* and rows are rounded */
	W_E4M3, /* published, f32 scales and a divisor */
	W_U4B8, /* published, with scales of some type */
	W_I8,
	W_U8B128,
	W_E2M1,
	W_E5M2,
	W_E4M3_ALONE, /* published, without scales */
	W_E5M2_ALONE,
	W_NF4, /* rows are rounded */
	W_Q4_0, /* in blocks of 32; the next ones of 64 and of 256 */
	W_NVFP4,
	W_Q4_K,
	W_IQ3_S,
	N_WEIGHT_KINDS
};

#define CHUNK_ROWS 9u
#define MAX_CHUNKS 320u

struct weight {
	struct od_weight w;
	struct od_mat m; /* w in the wanted image */
	struct od_planes planes;
	uint64_t chunk_at[MAX_CHUNKS];
};

static inline struct od_ref lay_random(struct ops_bench *b, enum od_dtype t, size_t n)
{
	void *data = random_weights(&b->seed, t, n, PLAIN);
	struct od_ref at = lay(b, data, n * od_dtype_bytes(t));

	free(data);
	return at;
}

/* A matrix in chunks, at addresses that are aligned to nothing. bf16: freed. */
static inline void lay_planes(struct ops_bench *b, struct weight *w, size_t chunk_rows, uint16_t *bf16)
{
	enum { TURNS = 5 };
	const size_t n_in = w->w.n_in, n = w->w.n_out * n_in;
	uint8_t *e = exact(n, 1), *sm = exact(n, 1), *room = exact(TURNS + od_planes_bound(chunk_rows * n_in, n_in), 1);

	for (size_t i = 0; i < n; i++) {
		e[i] = (uint8_t)(bf16[i] >> 7);
		sm[i] = (uint8_t)(bf16[i] << 1 | bf16[i] >> 15);
	}
	w->w.data = lay(b, sm, n);
	w->w.chunk_at = w->chunk_at;
	w->w.chunk_rows = chunk_rows;
	assert_true(w->w.n_out <= MAX_CHUNKS * chunk_rows);
	memset(room, 0xa5, TURNS);
	for (size_t row = 0; row < w->w.n_out; row += chunk_rows) {
		const size_t left = w->w.n_out - row, weights = (left < chunk_rows ? left : chunk_rows) * n_in;
		const size_t skip = row / chunk_rows % TURNS;
		const struct od_ref at = od_ref_at(
			lay(b, room, skip + od_planes_encode(e + row * n_in, weights, n_in, room + skip)), skip);

		if (row == 0)
			w->w.coded = at;
		w->chunk_at[row / chunk_rows] = at.at - w->w.coded.at;
	}
	w->planes = (struct od_planes){ .chunk_rows = chunk_rows, .base = wanted(b, w->w.coded), .at = w->chunk_at };
	free(bf16), free(e), free(sm), free(room);
}

static inline enum od_dtype dtype_of(enum weight_kind kind)
{
	static const enum od_dtype dtypes[N_WEIGHT_KINDS] = {
		OD_BF16, OD_F16,  OD_F32,    OD_BF16,	 OD_INT8,    OD_INT8,	 OD_F8_E4M3,
		OD_U4B8, OD_INT8, OD_U8B128, OD_F4_E2M1, OD_F8_E5M2, OD_F8_E4M3, OD_F8_E5M2,
		OD_NF4,	 OD_Q4_0, OD_NVFP4,  OD_Q4_K,	 OD_IQ3_S,
	};

	return dtypes[kind];
}

static inline enum od_dtype scales_of(enum weight_kind kind) /* 0: it has none */
{
	static const enum od_dtype dtypes[N_WEIGHT_KINDS] = {
		[W_E4M3] = OD_F32,    [W_U4B8] = OD_BF16,    [W_I8] = OD_F32,
		[W_U8B128] = OD_BF16, [W_E2M1] = OD_F8_E4M3, [W_E5M2] = OD_F16
	};

	return dtypes[kind];
}

static inline bool is_of_blocks(enum od_dtype t)
{
	return (od_format(t)->uses & OD_USE_BLOCKS) != 0;
}

/* Rows of this kind that are at least so long: whole blocks. */
static inline size_t whole_row(enum weight_kind kind, size_t n_in)
{
	return is_of_blocks(dtype_of(kind)) ? od_round_up(n_in, od_block_of(dtype_of(kind)).weights) : n_in;
}

/* A kind that has rows of this length: blocks that are small enough, else BF16. */
static inline enum weight_kind kind_for(enum weight_kind kind, size_t n_in)
{
	if (whole_row(kind, n_in) == n_in)
		return kind;
	return whole_row(W_Q4_0, n_in) == n_in ? W_Q4_0 : W_BF16;
}

/* A block of random bytes whose largest weights are neither small nor large: so those of all blocks count in a sum. */
static inline void make_block(struct ops_bench *b, enum od_dtype t, unsigned char *to)
{
	const struct od_block block = od_block_of(t);
	float w[OD_MOST_BLOCK], most;

	do {
		for (size_t k = 0; k < block.bytes; k++)
			to[k] = (unsigned char)random_u64(&b->seed);
		od_format(t)->decode(to, block.weights, w);
		most = 0;
		for (size_t k = 0; k < block.weights; k++)
			most = fabsf(w[k]) <= most ? most : fabsf(w[k]); /* NaN stays */
	} while (!(most >= 0.0625f && most <= 4));
}

/* n blocks; few are so, and making them takes long: from some on, they are any of those before. */
static inline struct od_ref lay_blocks(struct ops_bench *b, enum od_dtype t, size_t n)
{
	enum { SOME = 40 };
	const size_t bytes = od_block_of(t).bytes;
	const struct od_ref at = lay(b, NULL, n * bytes);
	unsigned char *first = b->image + at.at;

	for (size_t i = 0; i < n && i < SOME; i++)
		make_block(b, t, first + i * bytes);
	for (size_t i = SOME; i < n; i++)
		memcpy(first + i * bytes, first + random_below(&b->seed, SOME) * bytes, bytes);
	return at;
}

/* *w is where the operation finds it: it stays there. */
static inline void lay_weight(struct ops_bench *b, struct weight *w, enum weight_kind kind, size_t n_out, size_t n_in)
{
	const enum od_dtype t = dtype_of(kind);

	assert_int_equal(whole_row(kind, n_in), n_in);
	*w = (struct weight){ .w = { .dtype = t, .n_out = n_out, .n_in = n_in } };
	if (kind == W_PLANES)
		lay_planes(b, w, CHUNK_ROWS, random_weights(&b->seed, OD_BF16, n_out * n_in, PLAIN));
	else if (is_of_blocks(t))
		w->w.data = lay_blocks(b, t, n_out * (n_in / od_block_of(t).weights));
	else
		w->w.data = lay_random(b, od_dtype_bytes(t) == 0 ? OD_INT8 : t,
				       n_out * od_row_bytes(t, n_in) / (od_dtype_bytes(t) > 1 ? od_dtype_bytes(t) : 1));
	w->w.act = kind == W_NF4 || (kind == W_INT8_INT8 && !on_gpu()) ? OD_ACT_INT8 : OD_ACT_F32;
	if (kind == W_INT8 || kind == W_INT8_INT8 || kind == W_NF4)
		w->w.scale = lay_floats(b, n_out * (kind == W_NF4 ? od_quant_groups(n_in) : 1));
	if (scales_of(kind) != 0) {
		const size_t groups[] = { 32, 16, 48, 128, n_in }, group = groups[random_below(&b->seed, 5)];

		w->w.scales.dtype = scales_of(kind);
		w->w.scales.group = group;
		w->w.scales.at = lay_random(b, w->w.scales.dtype, n_out * ((n_in + group - 1) / group));
	}
	if (kind == W_E4M3)
		w->w.scales.divisor = lay_floats(b, 1);
	w->m = (struct od_mat){
		.dtype = t,
		.n_out = n_out,
		.n_in = n_in,
		.data = b->want + w->w.data.at,
		.scales = { .dtype = w->w.scales.dtype,
			    .group = w->w.scales.group,
			    .at = w->w.scales.at.buf != NULL ? b->want + w->w.scales.at.at : NULL,
			    .divisor = w->w.scales.divisor.buf != NULL ? wanted(b, w->w.scales.divisor) : NULL },
		.scale = w->w.scale.buf != NULL ? wanted(b, w->w.scale) : NULL,
		.act = w->w.act,
	};
	if (kind == W_PLANES)
		w->m.planes = &w->planes;
}

static inline struct od_ref lay_rows(struct ops_bench *b, uint32_t vocab, uint32_t n_tables, uint32_t ctx)
{
	struct od_row_info rows[ROWS];

	for (uint32_t r = 0; r < ROWS; r++)
		rows[r] = (struct od_row_info){ .token = r == 0 ? (int32_t)vocab - 1 :
								  (int32_t)random_below(&b->seed, vocab),
						.position = r == 1 ? ctx - 1 : (uint32_t)random_below(&b->seed, ctx),
						.table = (uint32_t)random_below(&b->seed, n_tables),
						.is_long = r % 3 == 1 };
	return lay(b, rows, sizeof(rows));
}

/* ---- routers ---- */

/* Groups, top groups, renormalise, scale, bias, a group's two best, sum_eps. */
#define WAY(of, n, top, by_sum, by, with_bias, two, eps) \
	{ \
		.n_groups = n, .top_groups = top, .renormalise = by_sum, .scale = by, .score = of, .bias = with_bias, \
		.group_two = two, .sum_eps = eps \
	}
#define SOFTMAX(n, top, by_sum, by) WAY(OD_SCORE_SOFTMAX, n, top, by_sum, by, false, false, 0)

/* ---- operations that follow each other, which a GPU may run as one ---- */

/* The memory after both. apart: the second begins when the first is done. */
static inline unsigned char *after_both(struct ops_bench *b, struct od_op *first, struct od_op *second, bool apart)
{
	first->profile = second->profile = b->profile;
	put_at(b->d, od_buf_ref(b->arena, 0), b->image, b->used);
	od_device_run(b->d, OD_QUEUE_COMPUTE, first);
	if (apart)
		sync_device(b->d);
	run_op(b->d, second);
	return copy_at(b->d, od_buf_ref(b->arena, 0), b->used);
}

static inline void check_both(struct ops_bench *b, struct od_op *first, struct od_op *second, const char *what)
{
	/* before the other leaves the same in the device's own memory */
	unsigned char *got = after_both(b, first, second, false);
	unsigned char *want = after_both(b, first, second, true);

	assert_memory_not_equal(b->image, want, b->used);
	for (size_t i = 0; i < b->used; i++)
		if (got[i] != want[i])
			fail_msg("%s, %u and %u rows: byte %zu of %zu differs", what, first->n_rows, second->n_rows, i,
				 b->used);
	free(want), free(got);
}

#endif
