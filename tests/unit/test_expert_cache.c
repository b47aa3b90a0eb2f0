/* A worker's buffers, and what its schedule makes of a cache of experts: by hand, one rule after the other. What random
 * messages make of it is in test_schedule_random, what real files do in test_loader_cache. */
#include "tests/unit/device_util.h"
#include "tests/unit/schedule_world.h"
#include "common/base/mem.h"
#include "common/residency/cache_planner.h"

static struct od_device *device;

/* ---- Buffers ---- */

static void set_bytes(struct od_ref at, uint8_t value, size_t n)
{
	uint8_t *bytes = malloc(n);

	assert_non_null(bytes);
	memset(bytes, value, n);
	put_at(device, at, bytes, n);
	free(bytes);
}

static uint8_t byte_at(struct od_ref r, uint64_t at)
{
	uint8_t byte;

	get_at(device, &byte, od_ref_at(r, at), 1);
	return byte;
}

static void buffers_are_apart_and_as_many_as_agreed(void **state)
{
	const struct od_expert_bufs_opts o = { .device = device, .slot = OD_SET_STORED, .bytes = { 5000, 300, 70000 } };
	const uint64_t *bytes = o.bytes, page[] = { 0, 0, 4096 };
	struct od_expert_mem mem[3] = { 0 };
	struct od_expert_bufs *b;

	(void)state;
	assert_int_equal(od_expert_bufs_memory(NULL, OD_SET_STORED, OD_SET_STORED, bytes, bytes), 8192 + 4096);
	/* with zeros behind it */
	assert_int_equal(od_expert_bufs_memory(NULL, OD_SET_PLAIN, OD_SET_PLAIN, page, page), 8192);
	assert_int_equal(od_expert_bufs_new(&b, &o, NULL), OD_OK);
	assert_int_equal(od_expert_bufs_grow(b, (size_t[]){ 3, 3, 0 }, NULL), OD_OK);
	for (int i = 0; i < 3; i++) {
		od_expert_bufs_fill(b, 0, &mem[i]);
		assert_null(mem[i].at[OD_BUF_PLAIN].buf);
		for (int k = 0; k < OD_BUF_PLAIN; k++) {
			assert_int_equal(mem[i].at[k].at, 0);
			assert_int_equal(od_buf_bytes(mem[i].at[k].buf), bytes[k]);
			set_bytes(mem[i].at[k], (uint8_t)(10 * i + k + 1), bytes[k]);
		}
	}
	for (int i = 0; i < 3; i++) {
		for (int k = 0; k < OD_BUF_PLAIN; k++) {
			assert_int_equal(byte_at(mem[i].at[k], 0), 10 * i + k + 1);
			assert_int_equal(byte_at(mem[i].at[k], bytes[k] - 1), 10 * i + k + 1);
		}
	}
	assert_false(od_expert_bufs_shrink(b, (size_t[]){ 1, 2, 0 }));
	od_expert_bufs_put(b, 0, &mem[0], OD_SET_SM);
	assert_null(mem[0].at[OD_BUF_SM].buf);
	assert_non_null(mem[0].at[OD_BUF_E].buf);
	od_expert_bufs_put(b, 0, &mem[1], ~0u);
	assert_true(od_expert_bufs_shrink(b, (size_t[]){ 1, 2, 0 }));
	assert_int_equal(byte_at(mem[2].at[OD_BUF_SM], 0), 21);
	assert_int_equal(od_expert_bufs_grow(b, (size_t[]){ 2, 2, 0 }, NULL), OD_OK);
	od_expert_bufs_put(b, 0, &mem[0], OD_SET_E);
	od_expert_bufs_fill(b, 0, &mem[1]);
	assert_true(mem[1].at[OD_BUF_SM].buf != mem[2].at[OD_BUF_SM].buf &&
		    mem[1].at[OD_BUF_E].buf != mem[2].at[OD_BUF_E].buf);
	od_expert_bufs_free(b); /* frees used ones, too */
}

static void no_memory_is_said(void **state)
{
	const struct od_expert_bufs_opts o = { .device = device, .slot = OD_SET_STORED, .bytes = { UINT64_MAX / 2 } };
	struct od_expert_bufs *b;
	struct od_err err;

	(void)state;
	assert_int_equal(od_expert_bufs_new(&b, &o, &err), OD_OK);
	assert_int_equal(od_expert_bufs_grow(b, (size_t[]){ 1, 0, 0 }, &err), OD_ERR_NOMEM);
	assert_non_null(strstr(err.msg, "buffer 1 of 1"));
	od_expert_bufs_free(b);
}

#define LARGE (256u << 10)
#define SMALL (100u << 10)

static void sizes(bool together)
{
	const struct od_buf_sizes layer[] = { { { 0, 0, LARGE } }, { { 0, 0, SMALL } }, { { 0, 0, LARGE - 4096 } } };
	const uint64_t large = od_expert_bufs_memory(device, OD_SET_PLAIN, OD_SET_PLAIN, layer[0].bytes,
						     layer[0].bytes),
		       small = od_expert_bufs_memory(device, OD_SET_PLAIN, OD_SET_PLAIN, layer[0].bytes,
						     layer[1].bytes);
	const struct od_expert_bufs_opts o = { .device = device,
					       .slot = OD_SET_PLAIN,
					       .bytes = { 0, 0, LARGE },
					       .layer = layer,
					       .n_moe = 3,
					       .together = together,
					       .limit_bytes = large + 2 * small };
	struct od_expert_mem mem[4] = { 0 };
	struct od_buf *first;
	struct od_expert_bufs *b;

	if (!od_device_releases(device)) {
		assert_int_equal(small, large);
		return;
	}
	assert_true(small < large / 2 && small > SMALL);
	assert_int_equal(od_expert_bufs_new(&b, &o, NULL), OD_OK);
	assert_int_equal(od_expert_bufs_grow(b, (size_t[]){ 0, 0, 4 }, NULL), OD_OK);
	assert_int_equal(od_expert_bufs_taken(b), 0);
	for (uint32_t i = 0; i < 3; i++) {
		od_expert_bufs_fill(b, i > 0, &mem[i]);
		set_bytes(mem[i].at[OD_BUF_PLAIN], (uint8_t)(i + 1), i > 0 ? SMALL : LARGE);
	}
	assert_int_equal(od_expert_bufs_taken(b), large + 2 * small);
	/* the one that held an expert of the same size, whichever was returned last */
	first = mem[0].at[OD_BUF_PLAIN].buf;
	od_expert_bufs_put(b, 0, &mem[0], ~0u);
	od_expert_bufs_put(b, 1, &mem[1], ~0u);
	od_expert_bufs_fill(b, 2, &mem[0]); /* nearly the same size */
	assert_ptr_equal(mem[0].at[OD_BUF_PLAIN].buf, first);
	assert_int_equal(byte_at(mem[0].at[OD_BUF_PLAIN], LARGE - 1), 1); /* nothing was released */
	assert_int_equal(od_expert_bufs_taken(b), large + 2 * small);
	/* two small ones in place of a large one: its buffer gives memory back */
	od_expert_bufs_fill(b, 1, &mem[1]);
	od_expert_bufs_put(b, 2, &mem[0], ~0u);
	od_expert_bufs_fill(b, 1, &mem[0]);
	od_expert_bufs_fill(b, 1, &mem[3]);
	assert_int_equal(od_expert_bufs_taken(b), 4 * small);
	assert_int_equal(byte_at(mem[2].at[OD_BUF_PLAIN], SMALL - 1), 3);
	/* and a large one again, for which a small one that is not in use gives up all */
	od_expert_bufs_put(b, 1, &mem[3], ~0u);
	od_expert_bufs_put(b, 1, &mem[1], ~0u);
	od_expert_bufs_fill(b, 0, &mem[1]);
	assert_int_equal(od_expert_bufs_taken(b), large + 2 * small);
	assert_int_equal(byte_at(mem[2].at[OD_BUF_PLAIN], SMALL - 1), 3);
	/* a lower limit is kept when buffers come back */
	od_expert_bufs_set_limit(b, small);
	assert_int_equal(od_expert_bufs_taken(b), large + 2 * small);
	od_expert_bufs_put(b, 0, &mem[1], ~0u);
	assert_int_equal(od_expert_bufs_taken(b), 2 * small);
	od_expert_bufs_put(b, 1, &mem[0], ~0u);
	assert_int_equal(od_expert_bufs_taken(b), small);
	assert_int_equal(byte_at(mem[2].at[OD_BUF_PLAIN], SMALL - 1), 3);
	od_expert_bufs_free(b);
}

static void buffers_of_smaller_experts_take_less(void **state)
{
	(void)state;
	sizes(false);
	sizes(true);
}

/* The kernel has it. */
static void released_memory_goes_back(void **state)
{
	const uint64_t bytes = 64u << 20;
	struct od_buf *b;
	uint64_t before, full;

	(void)state;
	if (!od_device_maps(device) || !od_device_releases(device))
		return;
	assert_int_equal(od_buf_new_shared(&b, device, bytes, "a test", NULL), OD_OK);
	before = od_rss_bytes();
	memset(od_ref_map(od_buf_ref(b, 0)), 1, bytes);
	full = od_rss_bytes();
	assert_true(full > before + bytes / 4 * 3);
	od_ref_release(od_buf_ref(b, bytes / 2), bytes / 2);
	assert_true(od_rss_bytes() < full - bytes / 8 * 3);
	assert_int_equal(byte_at(od_buf_ref(b, 0), bytes / 2 - 1), 1);
	assert_int_equal(byte_at(od_buf_ref(b, 0), bytes - OD_PAGE_BYTES - 1), 0);
	od_buf_free(b);
}

/* ---- A schedule with a cache ---- */

struct expert_cache_world {
	struct od_expert_bufs *bufs;
	struct od_expert_cache *cache;
	struct od_schedule *s;
	uint64_t place, step;
};

static struct od_cache_opts policy_of(enum od_cache_policy policy, const struct od_cache_plan *plan, bool planes)
{
	return (struct od_cache_opts){ .policy = policy,
				       .n_moe = LAYERS,
				       .n_experts = EXPERTS,
				       .plan = *plan,
				       .full_is_stored = planes,
				       .budget_bytes = plan->experts[OD_CACHE_F],
				       .expert_bytes = 1,
				       .state = OD_CACHE_F };
}

static void begin(struct expert_cache_world *w, const struct od_cache_opts *o)
{
	const struct od_share share = { 1, 0, 1 };
	double inclusion[EXPERTS];
	struct od_expert_cache_uses u = { .inclusion = inclusion };
	struct od_cache *policy;

	od_schedule_place(w->s, &share);
	assert_true(od_schedule_next_plan(w->s, &u));
	assert_int_equal(od_cache_new(&policy, o, NULL), OD_OK);
	assert_true(od_schedule_begin_cache(w->s, u.place, policy));
	w->place = u.place;
}

static void open_world(struct expert_cache_world *w, unsigned n_slots, enum od_cache_policy policy, bool planes,
		       const struct od_cache_plan *plan)
{
	const struct od_cache_planner_opts po = { .slot = planes ? OD_SET_STORED : OD_SET_STORED | OD_SET_PLAIN,
						  .n_slots = n_slots };
	const struct od_cache_opts o = policy_of(policy, plan, planes);
	const struct od_expert_bufs_opts bo = { .device = device, .slot = po.slot, .bytes = { 1, 1, 1 } };
	struct od_schedule_opts more = { .max_pinned = plan->experts[OD_CACHE_F] };
	size_t n[OD_N_EXPERT_BUFS];

	*w = (struct expert_cache_world){ 0 };
	assert_int_equal(od_expert_bufs_new(&w->bufs, &bo, NULL), OD_OK);
	od_cache_planner_bufs(&po, plan, n);
	assert_int_equal(od_expert_bufs_grow(w->bufs, n, NULL), OD_OK);
	assert_int_equal(od_expert_cache_new(&w->cache, LAYERS, EXPERTS, w->bufs, NULL), OD_OK);
	more.bufs = w->bufs;
	more.cache = w->cache;
	w->s = new_schedule_with(n_slots, &more);
	begin(w, &o);
}

static void close_world(struct expert_cache_world *w)
{
	od_schedule_end(w->s, SESSION);
	od_schedule_free(w->s);
	od_expert_cache_free(w->cache);
	od_expert_bufs_free(w->bufs);
}

/* A RUN from its arrival to its end. */
static struct od_schedule_item use(struct expert_cache_world *w, uint32_t m, uint32_t expert, bool prompt)
{
	struct od_schedule_item item = { .expert = expert, .last = true, .prompt = prompt };

	assert_int_equal(od_schedule_run(w->s, SESSION, ++w->step, m, false, &item, 1), OD_OK);
	for (struct od_load_job job;
	     od_schedule_next_read(w->s, &job, false) || od_schedule_next_finish(w->s, &job, false);)
		(void)!od_schedule_end_job(w->s, &job, job.kind == OD_LOAD_READ, OD_OK, NULL);
	compute(w->s, &item);
	return item;
}

static const struct od_cache_plan two_full = { .n_moe = LAYERS, .experts = { 2 } };

/* Equal uses give equal decisions: a replay of recorded routes knows what a worker will do. */
static void it_decides_as_the_policy_alone_does(void **state)
{
	const struct od_cache_plan pools = { .n_moe = LAYERS, .experts = { 5, 0, 6, 3 } };
	uint64_t seed = 3;

	(void)state;
	for (int policy = OD_CACHE_RANK; policy <= OD_CACHE_LFU; policy++) {
		const struct od_cache_plan *plan = policy == OD_CACHE_RANK ? &pools : &two_full;
		const struct od_cache_opts o = policy_of((enum od_cache_policy)policy, plan, true);
		struct od_cache *alone;
		struct expert_cache_world w;

		open_world(&w, 1, (enum od_cache_policy)policy, true, plan);
		assert_int_equal(od_cache_new(&alone, &o, NULL), OD_OK);
		for (int i = 0; i < 500; i++) {
			const uint32_t m =
				(uint32_t)((seed = seed * 6364136223846793005ull + 1442695040888963407ull) >> 40) %
				LAYERS;
			const uint32_t expert = (uint32_t)(seed >> 33) % (1 + (uint32_t)(seed >> 50) % EXPERTS);
			const enum od_cache_state was = od_cache_look(alone, m, expert);
			const struct od_schedule_item item = use(&w, m, expert, false);

			(void)od_cache_use(alone, m, expert);
			assert_int_equal(item.cached, was);
			assert_int_equal(item.ready, was == OD_CACHE_F);
			for (uint32_t id = 0; id < LAYERS * EXPERTS; id++)
				assert_int_equal(od_expert_cache_look(w.cache, id / EXPERTS, id % EXPERTS),
						 od_cache_look(alone, id / EXPERTS, id % EXPERTS));
		}
		od_cache_free(alone);
		close_world(&w);
	}
}

static void prompts_leave_no_trace(void **state)
{
	struct expert_cache_world w;

	(void)state;
	open_world(&w, 1, OD_CACHE_LRU, true, &two_full);
	use(&w, 0, 1, true);
	assert_int_equal(od_expert_cache_look(w.cache, 0, 1), OD_CACHE_NONE);
	use(&w, 0, 1, false);
	use(&w, 0, 2, false);
	assert_int_equal(use(&w, 0, 1, true).cached, OD_CACHE_F); /* served, */
	use(&w, 0, 3, false);
	assert_int_equal(od_expert_cache_look(w.cache, 0, 1), OD_CACHE_NONE); /* but the oldest all the same */
	assert_int_equal(od_expert_cache_look(w.cache, 0, 2), OD_CACHE_F);
	close_world(&w);
}

static void a_use_is_heard_once_and_wants_are_not(void **state)
{
	struct od_schedule_item item;
	uint64_t before;
	struct expert_cache_world w;

	(void)state;
	open_world(&w, 2, OD_CACHE_LRU, true, &two_full);
	before = od_expert_cache_changes(w.cache);
	WANT(w.s, 1, 0, 1, 3);
	load_all(w.s);
	assert_int_equal(od_expert_cache_changes(w.cache), before);
	for (int i = 0; i < 3; i++) { /* three RUNs of one (step, m) */
		run(w.s, 1, 0, false, &item, 3, i == 2);
		assert_int_equal(od_expert_cache_changes(w.cache), before + 1);
		compute(w.s, &item);
	}
	run(w.s, 2, 0, false, &item, 3, true);
	assert_int_equal(od_expert_cache_changes(w.cache), before + 2);
	compute(w.s, &item);
	close_world(&w);
}

/* An expert that is kept full is resident at once, cannot be evicted, and takes no slot from others. */
static void what_is_full_does_not_count(void **state)
{
	struct od_schedule_item item;
	struct expert_cache_world w;

	(void)state;
	open_world(&w, 1, OD_CACHE_LRU, true, &two_full);
	use(&w, 1, 0, false);
	use(&w, 1, 4, false);
	WANT(w.s, 90, 2, 1, 0, 1);
	assert_true(is(w.s, 3, 2, 0, OD_SLOT_LOADING));
	assert_true(is(w.s, 3, 1, 0, OD_SLOT_RESIDENT) && is(w.s, 3, 1, 4, OD_SLOT_RESIDENT));
	run(w.s, 91, 3, false, &item, 2, true);
	assert_true(is(w.s, 3, 3, 2, OD_SLOT_LOADING)); /* the WANT's slot */
	assert_false(is(w.s, 3, 1, 0, OD_SLOT_RESIDENT)); /* the least lately used gives way to it */
	assert_true(is(w.s, 3, 1, 4, OD_SLOT_RESIDENT));
	load_all(w.s);
	assert_true(item.code == OD_OK && !item.ready);
	compute(w.s, &item);
	assert_true(is(w.s, 3, 1, 4, OD_SLOT_RESIDENT) && is(w.s, 3, 3, 2, OD_SLOT_RESIDENT));
	run(w.s, 92, 1, false, &item, 4, true);
	assert_true(item.ready);
	compute(w.s, &item);
	close_world(&w);
}

static void other_layers_begin_anew(void **state)
{
	const struct od_share same = { 1, 0, 1 }, joined = { 3, 2, 1 }, other = { 2, 1, 2 };
	uint8_t states[LAYERS * EXPERTS];
	uint64_t told = UINT64_MAX;
	struct expert_cache_world w;

	(void)state;
	open_world(&w, 1, OD_CACHE_LRU, true, &two_full);
	use(&w, 1, 0, false);
	assert_true(od_schedule_cached(w.s, &told, states));
	assert_int_equal(states[EXPERTS], OD_CACHE_F);
	assert_int_equal(states[0], OD_CACHE_NONE);
	assert_false(od_schedule_cached(w.s, &told, states));
	od_schedule_end(w.s, SESSION); /* the next session finds it */
	od_schedule_begin(w.s, SESSION);
	od_schedule_place(w.s, &same);
	od_schedule_place(w.s, &joined); /* others in its group, the same layers */
	assert_true(is(w.s, 3, 1, 0, OD_SLOT_RESIDENT));
	assert_false(od_schedule_cached(w.s, &told, states));
	od_schedule_place(w.s, &other);
	assert_false(is(w.s, 3, 1, 0, OD_SLOT_RESIDENT));
	assert_true(od_schedule_cached(w.s, &told, states));
	assert_int_equal(states[EXPERTS], OD_CACHE_NONE);
	use(&w, 1, 0, false); /* before there is a plan */
	assert_int_equal(od_expert_cache_look(w.cache, 1, 0), OD_CACHE_NONE);
	close_world(&w);
}

static int setup(void **state)
{
	(void)state;
	device = device_new(OD_CPU_SCALAR, 1);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	od_device_free(device);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(buffers_are_apart_and_as_many_as_agreed),
		cmocka_unit_test(no_memory_is_said),
		cmocka_unit_test(buffers_of_smaller_experts_take_less),
		cmocka_unit_test(released_memory_goes_back),
		cmocka_unit_test(it_decides_as_the_policy_alone_does),
		cmocka_unit_test(prompts_leave_no_trace),
		cmocka_unit_test(a_use_is_heard_once_and_wants_are_not),
		cmocka_unit_test(what_is_full_does_not_count),
		cmocka_unit_test(other_layers_begin_anew),
	};

	return cmocka_run_group_tests_name("expert_cache", tests, setup, teardown);
}
