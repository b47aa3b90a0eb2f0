/* od-worker with a cache of experts: right answers from every state, nothing read that is there, memory within its
 * limit. */
#include "tests/unit/worker_world.h"

#include "common/cache/cache_state.h"
#include "common/pack/pack.h"

#include <fcntl.h>
#include <inttypes.h>

#define RUNS 3000 /* at most, until all states have been seen */
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

/* Bytes that a load from a state must read. */
static uint64_t bytes_to_read(uint32_t m, uint32_t expert, enum od_cache_state state)
{
	const struct od_pack_expert *x = od_pack_expert(pack, m, expert);
	uint64_t sm = 0, e = 0;

	for (uint32_t i = 0; i < x->n_shards; i++) {
		sm += x->shard[i].sm.stored_bytes;
		e += x->shard[i].e.stored_bytes;
	}
	switch (state) {
	case OD_CACHE_F:
	case OD_CACHE_C: return 0;
	case OD_CACHE_S: return e;
	case OD_CACHE_E: return sm;
	case OD_CACHE_NONE: break;
	}
	return sm + e;
}

/* One RUN of one expert alone: in which state it was found. code: as answered; when it is good, so is the answer. */
static enum od_cache_state run_one(struct worker *w, uint32_t m, uint32_t expert, bool prompt, int *code)
{
	static struct request q;
	static uint64_t step;
	enum od_cache_state state;
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
	*code = r->code;
	state = od_cache_from_wire(r->cached);
	if (r->code == OD_OK) {
		check_output(w, &q, &q.expert[0], &a);
		assert_int_equal(r->loaded_bytes, bytes_to_read(m, expert, state));
		assert_int_equal(r->ready, state == OD_CACHE_F);
	}
	return state;
}

static uint32_t draw(uint64_t *seed, uint32_t n)
{
	*seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*seed >> 33) % n;
}

/* Low numbers more often, until every state of the set has been found some times. The rest of the RUNs once the plans
 * have settled. */
static void find_states(struct worker *w, unsigned set)
{
	unsigned found[OD_CACHE_STATES + 1] = { 0 };
	uint64_t seed = 7;
	unsigned lacking = set;
	int code;

	for (int i = 0; i < RUNS && lacking != 0; i++) {
		const uint32_t m = draw(&seed, LAYERS), expert = draw(&seed, 1 + draw(&seed, EXPERTS));
		const enum od_cache_state s = run_one(w, m, expert, draw(&seed, 9) == 0, &code);

		assert_int_equal(code, OD_OK);
		assert_true(s == OD_CACHE_NONE || (set & OD_CACHE_POOL(s)) != 0);
		if (++found[s] == 5)
			lacking &= ~OD_CACHE_POOL(s);
	}
	if (lacking != 0)
		fail_msg("found %u in F, %u in C, %u in S, %u in E, %u nowhere\n%s", found[0], found[1], found[2],
			 found[3], found[4], read_log(w->log));
}

#define POOL OD_CACHE_POOL
static const struct {
	const char *args[9];
	unsigned set; /* set of states that are to be seen */
} caches[] = {
	/* Policies of one pool. */
	{ { "--resident-form", "planes", "--cache-mib", "8", "--cache-policy", "lru", NULL }, POOL(OD_CACHE_F) },
	{ { "--resident-form", "bf16", "--cache-mib", "9", "--cache-policy", "lfu", NULL }, POOL(OD_CACHE_F) },
	{ { "--resident-form", "bf16", "--cache-mib", "9", "--cache-policy", "lru", NULL }, POOL(OD_CACHE_F) },
};

static void answers_are_right_from_one_pool(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(caches) / sizeof(caches[0]); i++) {
		const char *args[16] = { "--slots", "2", "--memory-limit", LIMIT };
		struct worker w;

		memcpy(args + 4, caches[i].args, sizeof(caches[i].args));
		open_session(&w, F32, args);
		place(&w, 1, 0, 1);
		find_states(&w, caches[i].set);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* their own memory is many times larger */
		assert_true(ping(&w).c[OD_C_PEAK_RSS_BYTES] < 80u << 20);
#endif
		end_worker_session(&w);
		begin_worker_session(&w, BF16); /* the cache stays */
		place(&w, 1, 0, 1);
		find_states(&w, caches[i].set);
		close_worker(&w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(answers_are_right_from_one_pool),
	};

	return cmocka_run_group_tests_name("worker_cache", tests, setup, teardown);
}
