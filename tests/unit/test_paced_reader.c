/* Paced reads, by the real clock: how long they take, that they queue up, and that nobody waits for a load that is
 * cancelled. Bounds from above are only such that hold on a machine that does much else. */
#include "worker-node/paced_reader.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/pack/write/pack_write.h"
#include "tests/unit/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

#define SESSION 5
#define LAYER 3
#define EXPERT 2
#define LOAD_NS (30 * OD_NS_PER_MS + 1)
#define FOREVER_NS (3600 * OD_NS_PER_S)
#define TIMES 100
#define SOON_NS (60 * OD_NS_PER_S) /* for all of them; a look now and then would take half a second each */

static struct od_pack *pack; /* the demo checkpoint's */
static uint32_t n_shards;

static int setup(void **state)
{
	struct od_pack_job job = { .checkpoint = "deploy/models/talebook", .codec = OD_CODEC_PLANES, .n_threads = 2 };
	struct od_err err;

	if (temp_dir_make(state) != 0)
		return -1;
	job.pack = temp_path("pack");
	if (od_pack_write(&job, &err) != OD_OK || od_pack_open(&pack, temp_path("pack"), &err) != OD_OK) {
		fprintf(stderr, "%s\n", err.msg);
		return -1;
	}
	n_shards = od_pack_expert(pack, LAYER, EXPERT)->n_shards;
	return n_shards > 1 ? 0 : -1;
}

static int teardown(void **state)
{
	od_pack_close(pack);
	return temp_dir_remove(state);
}

/* ---- The reader by itself ---- */

static _Atomic unsigned n_reads;

static int read_nothing(void *arg, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
			const struct od_expert_mem *mem, struct od_ref staging, struct od_shard_bytes *b,
			struct od_err *err)
{
	assert_true(m == LAYER && first + n <= n_shards);
	(void)expert;
	(void)mem;
	(void)staging;
	(void)b;
	n_reads++;
	return arg == NULL ? OD_OK : od_fail(err, OD_ERR_IO, "no such luck");
}

static struct odw_paced_reader reader_of(uint64_t load_ns)
{
	return (struct odw_paced_reader){
		.pack = pack, .read = read_nothing, .load_ns = load_ns, .lock = PTHREAD_MUTEX_INITIALIZER
	};
}

static int read_slice(struct odw_paced_reader *p, uint32_t expert, uint32_t first, uint32_t n)
{
	struct od_err err;

	return odw_paced_read(p, LAYER, expert, first, n, NULL, (struct od_ref){ 0 }, NULL, &err);
}

static uint64_t stored_bytes(uint32_t first, uint32_t n)
{
	const struct od_shard *s = od_pack_expert(pack, LAYER, EXPERT)->shard;
	uint64_t bytes = 0;

	for (uint32_t i = first; i < first + n; i++)
		bytes += s[i].sm.stored_bytes + s[i].e.stored_bytes;
	return bytes;
}

static void the_slices_of_a_load_take_its_time(void **state)
{
	struct odw_paced_reader p = reader_of(LOAD_NS);
	uint64_t begin_ns;

	(void)state;
	n_reads = 0;
	begin_ns = p.free_ns = od_now_ns() + 200 * OD_NS_PER_MS; /* the path serves somebody else until then */
	for (uint32_t i = 0; i < n_shards; i++) {
		const uint64_t share_ns = LOAD_NS * stored_bytes(0, i + 1) / stored_bytes(0, n_shards);

		assert_int_equal(read_slice(&p, EXPERT, i, 1), OD_OK);
		assert_true(od_now_ns() >= begin_ns + share_ns);
	}
	assert_true(p.free_ns >= begin_ns + LOAD_NS && p.free_ns <= begin_ns + LOAD_NS + n_shards);
	assert_int_equal(n_reads, n_shards);
	/* The first slice of another load waits its turn, and begins when it comes. */
	begin_ns = p.free_ns;
	assert_int_equal(read_slice(&p, EXPERT + 1, 0, n_shards), OD_OK);
	assert_true(p.free_ns - begin_ns >= LOAD_NS && od_now_ns() >= p.free_ns);
	od_sleep_until(od_now_ns() + LOAD_NS);
	begin_ns = od_now_ns();
	assert_int_equal(read_slice(&p, EXPERT, 0, 1), OD_OK);
	assert_true(p.free_ns >= begin_ns + LOAD_NS * stored_bytes(0, 1) / stored_bytes(0, n_shards));
	/* A later one makes up for the delay. */
	od_sleep_until(p.free_ns + 10 * LOAD_NS);
	begin_ns = p.free_ns;
	assert_int_equal(read_slice(&p, EXPERT, 1, n_shards - 1), OD_OK);
	assert_true(p.free_ns <= begin_ns + LOAD_NS && od_now_ns() > p.free_ns);
}

static void a_slice_takes_its_share_of_a_load(void **state)
{
	const double all = (double)stored_bytes(0, n_shards);
	const uint32_t slices[] = { 1, 2, n_shards };

	(void)state;
	for (int i = 0; i < 3; i++) {
		struct odw_paced_reader p = reader_of(LOAD_NS);
		const uint32_t n = slices[i];
		const double share_ns = LOAD_NS * (double)stored_bytes(0, n) / all;
		const uint64_t begin_ns = od_now_ns();

		p.free_ns = begin_ns + 1000 * OD_NS_PER_S; /* so that the difference is the path's */
		p.schedule = NULL;
		p.read_arg = &p; /* fails: nothing is waited for */
		assert_int_equal(read_slice(&p, EXPERT, 0, n), OD_ERR_IO);
		assert_true(p.free_ns == begin_ns + 1000 * OD_NS_PER_S); /* and the path has its time back */
		p.free_ns = 0;
		p.read_arg = NULL;
		assert_int_equal(read_slice(&p, EXPERT, 0, n), OD_OK);
		assert_true(od_now_ns() - begin_ns >= (uint64_t)share_ns);
		assert_true(p.free_ns >= begin_ns + (uint64_t)share_ns);
		p.free_ns = begin_ns;
		assert_int_equal(read_slice(&p, EXPERT, 1, 1), OD_OK); /* from free_ns on */
		assert_true(p.free_ns <= begin_ns + (uint64_t)(LOAD_NS * (double)stored_bytes(1, 1) / all) + 1);
	}
}

static void *read_one(void *arg)
{
	assert_int_equal(read_slice(arg, EXPERT, 0, n_shards), OD_OK);
	return NULL;
}

/* Four readers at once have no more of a path than one. */
static void reads_at_a_rate_queue_up(void **state)
{
	struct odw_paced_reader p = reader_of(0);
	uint64_t begin_ns;
	pthread_t reader[4];

	(void)state;
	p.bytes_per_ns = (double)stored_bytes(0, n_shards) / (double)LOAD_NS;
	begin_ns = od_now_ns();
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&reader[i], NULL, read_one, &p), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(reader[i], NULL);
	assert_true(od_now_ns() - begin_ns >= 4 * LOAD_NS - 4);
	/* Idle time is lost, to any slice. */
	od_sleep_until(od_now_ns() + LOAD_NS);
	begin_ns = od_now_ns();
	assert_int_equal(read_slice(&p, EXPERT, 1, 1), OD_OK);
	assert_true(p.free_ns > begin_ns);
}

/* ---- With a schedule ---- */

struct paced_reader_world {
	struct odw_paced_reader paced;
	struct od_schedule *s;
	pthread_t thread;
	_Atomic unsigned n_read; /* slices */
};

static void *read_slices(void *arg)
{
	struct paced_reader_world *w = arg;
	struct od_load_job job;
	struct od_err err;

	while (od_schedule_next_read(w->s, &job, true)) {
		const int rc = odw_paced_read(&w->paced, job.m, job.expert, job.slice, 1, &job.mem,
					      (struct od_ref){ 0 }, NULL, &err);

		w->n_read++;
		(void)!od_schedule_end_job(w->s, &job, 1, rc, &err);
		while (od_schedule_next_finish(w->s, &job, false))
			(void)!od_schedule_end_job(w->s, &job, 0, OD_OK, &err);
	}
	return NULL;
}

static void open_world(struct paced_reader_world *w, uint64_t load_ns)
{
	const struct od_schedule_opts opts = {
		.n_moe = LAYER + 1, .n_experts = EXPERT + 2, .n_slices = n_shards, .n_slots = 1, .n_stages = 2
	};

	*w = (struct paced_reader_world){ .paced = reader_of(load_ns) };
	assert_int_equal(od_schedule_new(&w->s, &opts, NULL), OD_OK);
	w->paced.schedule = w->s;
	od_schedule_begin(w->s, SESSION);
	assert_int_equal(pthread_create(&w->thread, NULL, read_slices, w), 0);
}

static void close_world(struct paced_reader_world *w)
{
	od_schedule_stop(w->s);
	pthread_join(w->thread, NULL);
	od_schedule_free(w->s);
}

static struct od_load_figures figures(struct od_schedule *s)
{
	struct od_load_figures f;

	od_schedule_figures(s, &f);
	return f;
}

/* Wants EXPERT, and returns when a slice of it is being read: what the path takes for that is settled. */
static void begin_read(struct paced_reader_world *w, uint64_t step)
{
	const unsigned before = n_reads;
	const uint32_t expert = EXPERT;

	assert_int_equal(od_schedule_want(w->s, SESSION, step, LAYER, 1, &expert, 1, false), 0);
	while (n_reads == before)
		od_sleep_until(od_now_ns() + OD_NS_PER_MS);
}

static void a_load_is_complete_no_earlier(void **state)
{
	struct od_schedule_item item = { .expert = EXPERT, .last = true }, *got;
	struct paced_reader_world w;

	(void)state;
	open_world(&w, LOAD_NS);
	assert_int_equal(od_schedule_run(w.s, SESSION, 1, LAYER, true, &item, 1), OD_OK);
	while ((got = od_schedule_take(w.s)) == NULL)
		od_sleep_until(od_now_ns() + OD_NS_PER_MS);
	assert_ptr_equal(got, &item);
	assert_true(item.code == OD_OK && item.load_ns >= LOAD_NS);
	od_schedule_done(w.s, &item);
	close_world(&w);
}

/* By a WANT that takes its place, the end of the session, the end of the worker. */
static void what_is_cancelled_ends_at_once(void **state)
{
	const uint64_t begin_ns = od_now_ns();
	struct od_schedule_item item = { .expert = EXPERT + 1, .last = true };
	struct paced_reader_world w;

	(void)state;
	open_world(&w, FOREVER_NS);
	begin_read(&w, 1);
	w.paced.load_ns = LOAD_NS; /* a load that finds the path free */
	assert_int_equal(od_schedule_run(w.s, SESSION, 1, LAYER, true, &item, 1), OD_OK);
	while (od_schedule_take(w.s) == NULL)
		od_sleep_until(od_now_ns() + OD_NS_PER_MS);
	od_schedule_done(w.s, &item);
	assert_int_equal(figures(w.s).c[OD_C_CANCELLED_LOADS], 1);
	assert_int_equal(w.n_read, 1 + n_shards);

	w.paced.load_ns = FOREVER_NS;
	for (int i = 0; i < TIMES; i++) {
		begin_read(&w, 2);
		od_schedule_end(w.s, SESSION);
		while (od_schedule_look(w.s, 0).state != OD_SLOT_FREE)
			od_sleep_until(od_now_ns() + OD_NS_PER_MS);
		od_schedule_begin(w.s, SESSION);
	}
	close_world(&w);
	for (int i = 0; i < TIMES; i++) {
		open_world(&w, FOREVER_NS);
		begin_read(&w, 3);
		close_world(&w);
	}
	assert_true(od_now_ns() - begin_ns < SOON_NS);
}

/* Else main would take a slow load for a worker that is stuck. */
static void waiting_is_progress(void **state)
{
	struct paced_reader_world w;
	uint64_t before;

	(void)state;
	open_world(&w, FOREVER_NS);
	begin_read(&w, 1);
	for (int i = 0; i < 2; i++) {
		before = figures(w.s).progress;
		while (figures(w.s).progress == before)
			od_sleep_until(od_now_ns() + OD_NS_PER_MS);
		assert_true(figures(w.s).busy);
	}
	close_world(&w);
	assert_int_equal(w.n_read, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_slices_of_a_load_take_its_time),
		cmocka_unit_test(a_slice_takes_its_share_of_a_load),
		cmocka_unit_test(reads_at_a_rate_queue_up),
		cmocka_unit_test(a_load_is_complete_no_earlier),
		cmocka_unit_test(what_is_cancelled_ends_at_once),
		cmocka_unit_test(waiting_is_progress),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
