/* Operations of a device (ops.h) that make weights of a pack's chunks, on queues of several threads. */
#include "tests/unit/ops_bench.h"

#include <pthread.h>

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
struct ops_loads_bytes {
	uint16_t *w;
	uint8_t *sm, *e;
};

static struct ops_loads_bytes random_bytes(uint64_t *seed, size_t n, size_t wild_period)
{
	struct ops_loads_bytes p = { exact(n, sizeof(*p.w)), exact(n, 1), exact(n, 1) };

	for (size_t i = 0; i < n; i++) {
		p.w[i] = random_bf16(seed, wild_period > 0 && i / wild_period % 3 == 1);
		p.sm[i] = (uint8_t)((p.w[i] & 0x7f) << 1 | p.w[i] >> 15);
		p.e[i] = (uint8_t)(p.w[i] >> 7 & 0xff);
	}
	return p;
}

static void weights_free(struct ops_loads_bytes *p)
{
	free(p->w), free(p->sm), free(p->e);
}

/* Exponents as they are, or as the one chunk of planes that all rows are. */
static struct od_ref lay_exponents(struct ops_bench *b, const struct ops_loads_bytes *p, size_t n, size_t row,
				   bool planes)
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

static void check_merge(struct ops_bench *b, uint32_t row, size_t wild_period, bool planes, bool in_place)
{
	const size_t n = (size_t)ROWS * row;
	struct ops_loads_bytes p = random_bytes(&b->seed, n, wild_period);
	struct od_op op = { .kind = OD_OP_MERGE, .n_rows = ROWS };
	struct od_op_merge *o = &op.merge;

	bench_reset(b);
	*o = (struct od_op_merge){
		.e = lay_exponents(b, &p, n, row, planes), .to = lay_dirt(b, 2 * n), .n = row, .planes = planes
	};
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
	weights_free(&p);
}

/* Rows of which several are a block of planes, not a multiple of what kernels do at a time, and rows of several
 * blocks. */
static void op_merge(void **state)
{
	static const uint32_t rows[] = { 64, 173, 4096, 17000 };
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		for (int way = 0; way < 8; way++)
			check_merge(&b, rows[i], way & 4 ? 2 * rows[i] : 0, way & 1, way & 2);
	bench_close(&b);
}

enum { MERGED_ROWS = 22, MERGED_AT_ONCE = 6, MERGED_CHUNKS = 4 };

/* Chunks of several rows each, the last one shorter, in one operation; they lie anywhere behind e. */
static void merges_of_chunks(void **state)
{
	static const uint32_t rows[] = { 64, 173, 4096, 17000 };
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const size_t row = rows[i], n = MERGED_ROWS * row;
		struct ops_loads_bytes p = random_bytes(&b.seed, n, 2 * row);
		const size_t bound = od_planes_bound(MERGED_AT_ONCE * row, row) + 5;
		uint8_t *coded = exact(MERGED_CHUNKS * bound, 1);
		struct od_op op = { .kind = OD_OP_MERGE, .profile = OD_PROFILE_F32, .n_rows = MERGED_ROWS };
		struct od_op_merge *o = &op.merge;

		bench_reset(&b);
		*o = (struct od_op_merge){ .sm = lay(&b, p.sm, n),
					   .to = lay_dirt(&b, 2 * n),
					   .n = (uint32_t)row,
					   .planes = true,
					   .chunk_rows = MERGED_AT_ONCE };
		for (uint32_t c = 0; c < MERGED_CHUNKS; c++) {
			const size_t first = c * MERGED_AT_ONCE, left = MERGED_ROWS - first;
			const size_t weights = (left < MERGED_AT_ONCE ? left : MERGED_AT_ONCE) * row;

			o->e_bytes += c % 2 * 5;
			o->chunk_at[c] = (uint32_t)o->e_bytes;
			o->e_bytes += od_planes_encode(p.e + first * row, weights, row, coded + o->e_bytes);
		}
		o->e = lay(&b, coded, o->e_bytes);
		expect(&b);
		memcpy(wanted(&b, o->to), p.w, 2 * n);
		run_in_steps(&b, b.d, &op, MERGED_ROWS, "merge of chunks");
		run_in_steps(&b, b.scalar, &op, MERGED_ROWS, "merge of chunks");
		free(coded);
		weights_free(&p);
	}
	bench_close(&b);
}

/* Changes a chunk of planes to one that od-pack would not write, but that the check of a pack lets through: other
 * codes, other bits behind a level's last code, other symbols, some twice. Returns how many bits. */
static unsigned damage(uint64_t *seed, uint8_t *chunk, size_t bytes, size_t n, size_t row)
{
	enum { TRIES = 100, SYMBOLS = 9 };
	unsigned n_changed = 0;

	for (unsigned i = 0; i < TRIES; i++) {
		uint8_t *at = chunk + random_below(seed, i % 4 == 0 ? SYMBOLS : bytes), was = *at;

		*at ^= (uint8_t)(1u << random_below(seed, 8));
		if (od_planes_check(chunk, bytes, n, row, NULL) == OD_OK)
			n_changed++;
		else
			*at = was;
	}
	return n_changed;
}

/* Merges a chunk that ends as far behind in its memory as it may; on the emulated GPU it can read no further. */
static uint16_t *merged(struct od_device *d, const struct ops_loads_bytes *p, const uint8_t *chunk, size_t bytes,
			uint32_t n_rows, uint32_t row)
{
	const size_t n = (size_t)n_rows * row, room = (size_t)od_round_up(bytes + OD_PAD_BYTES, 256) - OD_PAD_BYTES;
	struct od_buf *coded = buf_new(d, room), *sm = buf_new(d, n), *to = buf_new(d, 2 * n);
	const struct od_op op = { .kind = OD_OP_MERGE,
				  .profile = OD_PROFILE_F32,
				  .n_rows = n_rows,
				  .merge = { .sm = od_buf_ref(sm, 0),
					     .e = od_buf_ref(coded, room - bytes),
					     .e_bytes = bytes,
					     .to = od_buf_ref(to, 0),
					     .n = row,
					     .planes = true } };
	uint16_t *w;

	put_at(d, op.merge.e, chunk, bytes);
	put_at(d, op.merge.sm, p->sm, n);
	run_op(d, &op);
	w = copy_at(d, op.merge.to, 2 * n);
	od_buf_free(coded), od_buf_free(sm), od_buf_free(to);
	return w;
}

/* Hostile packs: whatever the check lets through is decoded as the scalar code does, and nothing behind the chunk is
 * read. */
static void merges_of_damaged_chunks(void **state)
{
	static const uint32_t rows[] = { 37, 173, 4096, 17000 };
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	for (size_t i = 0; i < 60; i++) {
		const uint32_t row = rows[i % 4], n_rows = 1 + (uint32_t)random_below(&b.seed, 5);
		const size_t n = (size_t)n_rows * row;
		struct ops_loads_bytes p = random_bytes(&b.seed, n, i % 3 == 2 ? row : 0);
		uint8_t *chunk = exact(od_planes_bound(n, row), 1);
		const size_t bytes = od_planes_encode(p.e, n, row, chunk);
		uint16_t *got, *want;

		assert_true(damage(&b.seed, chunk, bytes, n, row) >= 20);
		got = merged(b.d, &p, chunk, bytes, n_rows, row);
		want = merged(b.scalar, &p, chunk, bytes, n_rows, row);
		assert_memory_equal(got, want, 2 * n);
		free(got), free(want), free(chunk);
		weights_free(&p);
	}
	bench_close(&b);
}

/* A merge alone, without a copy before it, that overwrites what another queue reads. */
static void merges_follow_other_queues(void **state)
{
	enum { ROW = 512, N_ROWS = 4, N = ROW * N_ROWS, ROUNDS = 8 };
	uint16_t *got = exact(ROUNDS * N, sizeof(*got));
	struct od_buf *stage, *slot, *seen;
	struct ops_loads_bytes p[ROUNDS];
	struct ops_bench b;

	bench_open(&b, state, OD_PROFILE_F32);
	stage = buf_new(b.d, ROUNDS * 2 * N);
	slot = buf_new(b.d, 2 * N);
	seen = buf_new(b.d, ROUNDS * 2 * N);
	for (size_t i = 0; i < ROUNDS; i++) {
		p[i] = random_bytes(&b.seed, N, 0);
		od_device_put(b.d, OD_QUEUE_LOADS, od_buf_ref(stage, i * 2 * N), p[i].sm, N);
		od_device_put(b.d, OD_QUEUE_LOADS, od_buf_ref(stage, i * 2 * N + N), p[i].e, N);
	}
	for (size_t i = 0; i < ROUNDS; i++) {
		const struct od_op merge = { .kind = OD_OP_MERGE,
					     .profile = OD_PROFILE_F32,
					     .n_rows = N_ROWS,
					     .merge = { .sm = od_buf_ref(stage, i * 2 * N),
							.e = od_buf_ref(stage, i * 2 * N + N),
							.to = od_buf_ref(slot, 0),
							.n = ROW } };
		const struct od_op copy = {
			.kind = OD_OP_COPY,
			.profile = OD_PROFILE_F32,
			.n_rows = 1,
			.copy = { .from = od_buf_ref(slot, 0), .to = od_buf_ref(seen, i * 2 * N), .n = 2 * N }
		};

		od_device_run(b.d, OD_QUEUE_LOADS, &merge);
		od_device_after(b.d, OD_QUEUE_COMPUTE, OD_QUEUE_LOADS, od_device_ticket(b.d, OD_QUEUE_LOADS));
		od_device_run(b.d, OD_QUEUE_COMPUTE, &copy);
		od_device_after(b.d, OD_QUEUE_LOADS, OD_QUEUE_COMPUTE, od_device_ticket(b.d, OD_QUEUE_COMPUTE));
	}
	od_device_get(b.d, OD_QUEUE_COMPUTE, got, od_buf_ref(seen, 0), ROUNDS * 2 * N);
	assert_int_equal(od_device_wait(b.d, OD_QUEUE_COMPUTE, od_device_ticket(b.d, OD_QUEUE_COMPUTE), NULL), OD_OK);
	for (size_t i = 0; i < ROUNDS; i++) {
		assert_memory_equal(got + i * N, p[i].w, 2 * N);
		weights_free(&p[i]);
	}
	free(got);
	od_buf_free(stage);
	od_buf_free(slot);
	od_buf_free(seen);
	bench_close(&b);
}

/* Stages and slots that are used again at once: a merge sees what was copied before it and nothing that was copied
 * later, and a copy what was merged before it. Results are fetched at once, or all at the end, when nothing but merges
 * has kept copies back. */
static void merges_and_copies_take_turns(void **state)
{
	enum { ROW = 512, N_ROWS = 4, N = ROW * N_ROWS, SLOTS = 40, ROUNDS = 2 * SLOTS + 1 };
	struct od_buf *stage, *slot;
	struct od_device *d;
	struct ops_loads_bytes p[ROUNDS];
	struct ops_bench b;
	uint16_t *got = exact(ROUNDS * N, sizeof(*got));

	bench_open(&b, state, OD_PROFILE_F32);
	d = b.d;
	stage = buf_new(d, SLOTS * 2 * N);
	slot = buf_new(d, 2 * N * ROUNDS);
	for (size_t i = 0; i < ROUNDS; i++)
		p[i] = random_bytes(&b.seed, N, 0);
	for (size_t way = 0; way < 4; way++) {
		const bool at_once = way < 2, one_slot = way == 1;

		memset(got, 0, ROUNDS * N * sizeof(*got));
		for (size_t i = 0; i < ROUNDS; i++) {
			/* soon, or after more merges than a GPU remembers */
			const uint64_t offset = i % (way < 3 ? 2 : SLOTS) * 2 * N;
			const struct od_op op = { .kind = OD_OP_MERGE,
						  .profile = OD_PROFILE_F32,
						  .n_rows = N_ROWS,
						  .merge = { .sm = od_buf_ref(stage, offset),
							     .e = od_buf_ref(stage, offset + N),
							     .to = od_buf_ref(slot, one_slot ? 0 : i * 2 * N),
							     .n = ROW } };

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
		weights_free(&p[i]);
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
	const struct od_op op = { .kind = OD_OP_MERGE,
				  .profile = OD_PROFILE_F32,
				  .n_rows = LOAD_ROWS,
				  .merge = { .sm = od_buf_ref(l->stage, 0),
					     .e = od_buf_ref(l->stage, n),
					     .to = od_buf_ref(l->to, l->at),
					     .n = LOAD_ROW } };
	uint16_t *got = exact(n, sizeof(*got));
	int rc = OD_OK;

	l->ok = true;
	for (int i = 0; i < LOADS; i++) {
		struct ops_loads_bytes p = random_bytes(&l->seed, n, 0);

		od_device_put(l->d, OD_QUEUE_LOADS, op.merge.sm, p.sm, n);
		od_device_put(l->d, OD_QUEUE_LOADS, op.merge.e, p.e, n);
		od_device_run(l->d, OD_QUEUE_LOADS, &op);
		od_device_get(l->d, OD_QUEUE_LOADS, got, op.merge.to, 2 * n);
		rc |= od_device_wait(l->d, OD_QUEUE_LOADS, od_device_ticket(l->d, OD_QUEUE_LOADS), NULL);
		l->ok = l->ok && rc == OD_OK && memcmp(got, p.w, 2 * n) == 0;
		weights_free(&p);
	}
	free(got);
	return NULL;
}

/* While the compute queue has work for its whole team. */
static void several_threads_load(void **state)
{
	struct od_op op = { .kind = OD_OP_NORM, .profile = OD_PROFILE_F32, .n_rows = ROWS };
	struct loader l[LOADERS];
	struct ops_bench b;
	struct od_buf *to;

	bench_open(&b, state, OD_PROFILE_F32);
	to = buf_new(b.d, LOADERS * 2 * LOAD_ROW * LOAD_ROWS);
	op.norm = (struct od_op_norm){ .x = lay_floats(&b, ROWS * LOAD_ROW),
				       .weight = lay_floats(&b, LOAD_ROW),
				       .y = lay_dirt(&b, ROWS * LOAD_ROW * sizeof(float)),
				       .n = LOAD_ROW,
				       .eps = 1e-5f };
	put_at(b.d, od_buf_ref(b.arena, 0), b.image, b.used);
	for (int i = 0; i < LOADERS; i++) {
		l[i] = (struct loader){ .d = b.d,
					.to = to,
					.stage = buf_new(b.d, 2 * LOAD_ROW * LOAD_ROWS),
					.at = (uint64_t)i * 2 * LOAD_ROW * LOAD_ROWS,
					.seed = (uint64_t)i };
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_ALL_TABLES(op_merge),
		ON_ALL_TABLES(merges_of_chunks),
		ON_ALL_TABLES(merges_of_damaged_chunks),
		ON_ALL_TABLES(merges_follow_other_queues),
		ON_ALL_TABLES(merges_and_copies_take_turns),
		ON_ALL_TABLES(several_threads_load),
	};

	choose_tables();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
