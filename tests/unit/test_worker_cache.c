/* od-worker with a cache of experts: right answers, nothing read that is there, memory within its limit. */
#include "tests/unit/worker_world.h"

#include "common/pack/pack.h"

#include <fcntl.h>
#include <inttypes.h>

#define RUNS 600
#define LIMIT "80MiB"

static struct od_pack *pack;

static int setup(void **state)
{
	struct od_err err;

	if (make_worker_pack(state) != 0)
		return -1;
	return od_pack_open(&pack, worker_pack_dir, &err) == OD_OK ? 0 : -1;
}

static int teardown(void **state)
{
	od_pack_close(pack);
	return remove_worker_pack(state);
}

static void place(struct worker *w, uint32_t n_workers, uint32_t worker, uint32_t n_groups)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Place b = OD__PLACE__INIT;

	b.n_workers = n_workers;
	b.worker = worker;
	b.n_groups = n_groups;
	h.body_case = OD__HEADER__BODY_PLACE;
	h.place = &b;
	put(w, w->control, &h, NULL, 0);
}

static uint64_t stored_bytes(uint32_t m, uint32_t expert)
{
	const struct od_pack_expert *x = od_pack_expert(pack, m, expert);
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < x->n_shards; i++)
		bytes += x->shard[i].sm.stored_bytes + x->shard[i].e.stored_bytes;
	return bytes;
}

/* One RUN of one expert alone: had it been kept? */
static bool run_one(struct worker *w, uint32_t m, uint32_t expert, bool prompt)
{
	static struct request q;
	static uint64_t step;
	const Od__ExpertResult *r;
	struct answer a;

	step++;
	init_request(&q, step, m, 2, (uint32_t)step);
	add_expert(&q, expert, 0, 1, 2, true);
	q.run.closes = true;
	q.run.prompt = prompt;
	send_request(w, &q);
	get_result(w, &q, &a);
	r = a.x;
	assert_int_equal(r->code, OD_OK);
	check_output(w, &q, &q.expert[0], &a);
	assert_true(r->cached <= 1);
	assert_int_equal(r->loaded_bytes, r->cached ? 0 : stored_bytes(m, expert));
	assert_int_equal(r->ready, r->cached);
	return r->cached;
}

static uint32_t draw(uint64_t *seed, uint32_t n)
{
	*seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*seed >> 33) % n;
}

/* Low numbers more often. */
static void run_many(struct worker *w)
{
	unsigned kept = 0;
	uint64_t seed = 7;

	for (int i = 0; i < RUNS; i++)
		kept += run_one(w, draw(&seed, LAYERS), draw(&seed, 1 + draw(&seed, EXPERTS)), draw(&seed, 9) == 0);
	assert_in_range(kept, RUNS / 10, RUNS * 9 / 10);
}

static void answers_are_right(void **state)
{
	static const char *const form[] = { "planes", "bf16" };

	(void)state;
	for (int i = 0; i < 2; i++) {
		const char *args[] = {
			"--slots", "2", "--memory-limit", LIMIT, "--resident-form", form[i], "--cache-mib", "9", NULL
		};
		struct worker w;

		open_session(&w, F32, args);
		place(&w, 1, 0, 1);
		run_many(&w);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* their own memory is many times larger */
		assert_true(ping(&w).c[OD_C_PEAK_RSS_BYTES] < 80u << 20);
#endif
		end_worker_session(&w);
		begin_worker_session(&w, BF16); /* the cache stays */
		place(&w, 1, 0, 1);
		run_many(&w);
		close_worker(&w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(answers_are_right),
	};

	return cmocka_run_group_tests_name("worker_cache", tests, setup, teardown);
}
