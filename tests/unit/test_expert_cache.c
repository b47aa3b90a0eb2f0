/* Buffers of experts; which experts stay after their use, against sums over all uses; and what a schedule makes of it:
 * by hand, one rule after the other. What random messages make of it is in test_schedule_random. */
#include "tests/unit/device_util.h"
#include "tests/unit/schedule_world.h"
#include "common/base/mem.h"

#include <math.h>

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

static void commit_bytes(struct od_ref at, uint64_t n)
{
	struct od_err err = { 0 };

	must(od_ref_commit(at, n + OD_PAD_BYTES, "a test", &err), &err);
}

static uint8_t byte_at(struct od_ref r, uint64_t at)
{
	uint8_t byte;

	get_at(device, &byte, od_ref_at(r, at), 1);
	return byte;
}

static void buffers_are_apart(void **state)
{
	const struct od_expert_bufs_opts o = {
		.device = device, .slot = OD_SET_STORED, .n = 3, .bytes = { 5000, 300, 70000 }
	};
	const uint64_t *bytes = o.bytes, page[] = { 0, 0, 4096 };
	struct od_expert_mem mem[3] = { 0 };
	struct od_expert_bufs *b;

	(void)state;
	assert_int_equal(od_expert_bufs_memory(NULL, OD_SET_STORED, bytes, bytes), 8192 + 4096);
	assert_int_equal(od_expert_bufs_memory(NULL, OD_SET_PLAIN, page, page), 8192); /* with zeros behind it */
	assert_int_equal(od_expert_bufs_new(&b, &o, NULL), OD_OK);
	for (int i = 0; i < 3; i++) {
		od_expert_bufs_fill(b, 0, &mem[i]);
		assert_null(mem[i].at[OD_BUF_PLAIN].buf);
		for (int k = 0; k < OD_BUF_PLAIN; k++) {
			assert_int_equal(mem[i].at[k].at, 0);
			assert_int_equal(od_buf_bytes(mem[i].at[k].buf), bytes[k]);
			commit_bytes(mem[i].at[k], bytes[k]);
			set_bytes(mem[i].at[k], (uint8_t)(10 * i + k + 1), bytes[k]);
		}
	}
	for (int i = 0; i < 3; i++) {
		for (int k = 0; k < OD_BUF_PLAIN; k++) {
			assert_int_equal(byte_at(mem[i].at[k], 0), 10 * i + k + 1);
			assert_int_equal(byte_at(mem[i].at[k], bytes[k] - 1), 10 * i + k + 1);
		}
	}
	od_expert_bufs_put(b, 0, &mem[0]);
	assert_null(mem[0].at[OD_BUF_SM].buf);
	assert_null(mem[0].at[OD_BUF_E].buf);
	od_expert_bufs_fill(b, 0, &mem[0]);
	assert_true(mem[0].at[OD_BUF_SM].buf != mem[2].at[OD_BUF_SM].buf &&
		    mem[0].at[OD_BUF_E].buf != mem[2].at[OD_BUF_E].buf);
	od_expert_bufs_free(b); /* frees used ones, too */
}

static void no_memory_is_said(void **state)
{
	const struct od_expert_bufs_opts o = {
		.device = device, .slot = OD_SET_STORED, .n = 1, .bytes = { UINT64_MAX / 2 }
	};
	struct od_expert_bufs *b;
	struct od_err err;

	(void)state;
	assert_int_equal(od_expert_bufs_new(&b, &o, &err), OD_ERR_NOMEM);
	assert_null(b);
	assert_non_null(strstr(err.msg, "buffer 1 of 1"));
}

#define LARGE (256u << 10)
#define SMALL (100u << 10)

static void sizes(bool together)
{
	const struct od_buf_sizes layer[] = { { { 0, 0, LARGE } }, { { 0, 0, SMALL } }, { { 0, 0, LARGE - 4096 } } };
	const uint64_t large = od_expert_bufs_memory(device, OD_SET_PLAIN, layer[0].bytes, layer[0].bytes),
		       small = od_expert_bufs_memory(device, OD_SET_PLAIN, layer[0].bytes, layer[1].bytes);
	const struct od_expert_bufs_opts o = { .device = device,
					       .slot = OD_SET_PLAIN,
					       .n = 4,
					       .bytes = { 0, 0, LARGE },
					       .layer = layer,
					       .n_moe = 3,
					       .together = together,
					       .limit_bytes = large + 2 * small };
	struct od_expert_mem mem[4] = { 0 };
	struct od_buf *first;
	struct od_expert_bufs *b;

	if (!od_device_lends(device, SMALL)) {
		assert_int_equal(small, large);
		return;
	}
	assert_true(small < large / 2 && small > SMALL);
	assert_int_equal(od_expert_bufs_new(&b, &o, NULL), OD_OK);
	assert_int_equal(od_expert_bufs_taken(b), 0);
	for (uint32_t i = 0; i < 3; i++) {
		od_expert_bufs_fill(b, i > 0, &mem[i]);
		commit_bytes(mem[i].at[OD_BUF_PLAIN], i > 0 ? SMALL : LARGE);
		set_bytes(mem[i].at[OD_BUF_PLAIN], (uint8_t)(i + 1), i > 0 ? SMALL : LARGE);
	}
	assert_int_equal(od_expert_bufs_taken(b), large + 2 * small);
	/* the one that held an expert of the same size, whichever was returned last */
	first = mem[0].at[OD_BUF_PLAIN].buf;
	od_expert_bufs_put(b, 0, &mem[0]);
	od_expert_bufs_put(b, 1, &mem[1]);
	od_expert_bufs_fill(b, 2, &mem[0]); /* nearly the same size */
	assert_ptr_equal(mem[0].at[OD_BUF_PLAIN].buf, first);
	assert_int_equal(byte_at(mem[0].at[OD_BUF_PLAIN], LARGE - 1), 1); /* nothing was released */
	assert_int_equal(od_expert_bufs_taken(b), large + 2 * small);
	/* two small ones in place of a large one: its buffer gives memory back */
	od_expert_bufs_fill(b, 1, &mem[1]);
	od_expert_bufs_put(b, 2, &mem[0]);
	od_expert_bufs_fill(b, 1, &mem[0]);
	od_expert_bufs_fill(b, 1, &mem[3]);
	assert_int_equal(od_expert_bufs_taken(b), 4 * small);
	assert_int_equal(byte_at(mem[2].at[OD_BUF_PLAIN], SMALL - 1), 3);
	/* and a large one again, for which a small one that is not in use gives up all */
	od_expert_bufs_put(b, 1, &mem[3]);
	od_expert_bufs_put(b, 1, &mem[1]);
	od_expert_bufs_fill(b, 0, &mem[1]);
	assert_int_equal(od_expert_bufs_taken(b), large + 2 * small);
	assert_int_equal(byte_at(mem[2].at[OD_BUF_PLAIN], SMALL - 1), 3);
	/* a lower limit is kept when buffers come back */
	od_expert_bufs_set_limit(b, small);
	assert_int_equal(od_expert_bufs_taken(b), large + 2 * small);
	od_expert_bufs_put(b, 0, &mem[1]);
	assert_int_equal(od_expert_bufs_taken(b), 2 * small);
	od_expert_bufs_put(b, 1, &mem[0]);
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

/* Only buffers that are not in use give theirs. */
static void spare_memory_is_given_back(void **state)
{
	const struct od_expert_bufs_opts o = {
		.device = device, .slot = OD_SET_PLAIN, .n = 4, .bytes = { 0, 0, LARGE }, .limit_bytes = 10 * LARGE
	};
	const uint64_t each = od_expert_bufs_memory(device, OD_SET_PLAIN, o.bytes, o.bytes);
	struct od_expert_mem mem[4] = { 0 };
	struct od_expert_bufs *b;

	(void)state;
	if (!od_device_lends(device, LARGE))
		return;
	assert_int_equal(od_expert_bufs_new(&b, &o, NULL), OD_OK);
	for (int i = 0; i < 4; i++) {
		od_expert_bufs_fill(b, 0, &mem[i]);
		commit_bytes(mem[i].at[OD_BUF_PLAIN], LARGE);
		set_bytes(mem[i].at[OD_BUF_PLAIN], (uint8_t)(i + 1), LARGE);
	}
	assert_false(od_expert_bufs_give_back(b, 1, 0));
	for (int i = 1; i < 4; i++)
		od_expert_bufs_put(b, 0, &mem[i]);
	assert_int_equal(od_expert_bufs_taken(b), 4 * each);
	assert_true(od_expert_bufs_give_back(b, 1, 0));
	assert_int_equal(od_expert_bufs_taken(b), 3 * each);
	assert_true(od_expert_bufs_give_back(b, 100 * each, each + 1));
	assert_int_equal(od_expert_bufs_taken(b), 2 * each);
	assert_false(od_expert_bufs_give_back(b, 1, each + 1));
	assert_true(od_expert_bufs_give_back(b, 100 * each, 0));
	assert_int_equal(od_expert_bufs_taken(b), each);
	assert_false(od_expert_bufs_give_back(b, 1, 0));
	for (int i = 1; i < 4; i++) {
		od_expert_bufs_fill(b, 0, &mem[i]);
		commit_bytes(mem[i].at[OD_BUF_PLAIN], LARGE);
		set_bytes(mem[i].at[OD_BUF_PLAIN], (uint8_t)(i + 5), LARGE);
	}
	for (int i = 0; i < 4; i++)
		assert_int_equal(byte_at(mem[i].at[OD_BUF_PLAIN], LARGE - 1), i == 0 ? 1 : i + 5);
	od_expert_bufs_free(b);
}

/* A load that ends before its expert has memory, because it is cancelled or the device has too little, counts no more
 * than what its buffer had, and leaves no more there. */
static void loads_without_memory_do_not_count(void **state)
{
	const struct od_expert_bufs_opts o = {
		.device = device, .slot = OD_SET_PLAIN, .n = 2, .bytes = { 0, 0, LARGE }, .limit_bytes = 10 * LARGE
	};
	const uint64_t each = od_expert_bufs_memory(device, OD_SET_PLAIN, o.bytes, o.bytes),
		       before = atomic_load(&device->buffer_bytes);
	struct od_err err = { OD_ERR_NOMEM, "too little memory" };
	struct od_schedule_item item;
	struct od_expert_bufs *b;
	struct od_schedule *s;
	struct od_load_job job;

	(void)state;
	if (!od_device_lends(device, LARGE))
		return;
	assert_int_equal(od_expert_bufs_new(&b, &o, NULL), OD_OK);
	s = new_schedule_with(2, &(struct od_schedule_opts){ .bufs = b });
	WANT(s, 1, 0, 1, 0, 1);
	assert_int_equal(od_expert_bufs_taken(b), 2 * each);
	od_schedule_close(s, SESSION, 1, 0); /* they were not begun */
	assert_int_equal(od_expert_bufs_taken(b), 0);

	run(s, 2, 0, true, &item, 2, true);
	assert_true(od_schedule_next_read(s, &job, false));
	commit_bytes(job.mem.at[OD_BUF_PLAIN], LARGE / 2); /* as much as there was */
	assert_true(od_schedule_end_job(s, &job, 0, OD_ERR_NOMEM, &err));
	assert_ptr_equal(od_schedule_take(s), &item);
	assert_int_equal(item.code, OD_ERR_NOMEM);
	assert_int_equal(od_expert_bufs_taken(b), 0);
	if (od_device_commits(device))
		assert_int_equal(atomic_load(&device->buffer_bytes), before);

	run(s, 3, 0, true, &item, 2, true);
	assert_true(od_schedule_next_read(s, &job, false));
	commit_bytes(job.mem.at[OD_BUF_PLAIN], LARGE);
	set_bytes(job.mem.at[OD_BUF_PLAIN], 5, LARGE);
	(void)put(s, &job, 0);
	load_all(s);
	assert_ptr_equal(od_schedule_take(s), &item);
	od_schedule_done(s, &item);
	assert_int_equal(od_expert_bufs_taken(b), each);
	WANT(s, 4, 0, 1, 0, 1);
	assert_int_equal(od_expert_bufs_taken(b), 2 * each);
	od_schedule_close(s, SESSION, 4, 0);
	assert_int_equal(od_expert_bufs_taken(b), each); /* the one that has it */
	assert_int_equal(byte_at(job.mem.at[OD_BUF_PLAIN], LARGE - 1), 5);
	assert_true(od_expert_bufs_give_back(b, 1, 0));
	assert_false(od_expert_bufs_give_back(b, 1, 0));
	if (od_device_commits(device))
		assert_int_equal(atomic_load(&device->buffer_bytes), before);
	od_schedule_free(s);
	od_expert_bufs_free(b);
}

/* The kernel has it. */
static void released_memory_goes_back(void **state)
{
	const uint64_t bytes = 64u << 20;
	struct od_buf *b;
	uint64_t before, full;

	(void)state;
	if (!od_device_maps(device) || !od_device_lends(device, bytes))
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

/* ---- What stays ---- */

#define LRFU_LAYERS 3
#define LRFU_EXPERTS 6
#define LRFU_IDS (LRFU_LAYERS * LRFU_EXPERTS)
#define LRFU_USES 600

/* Every use of every expert; worth is summed anew each time. */
struct lrfu_model {
	double time[LRFU_IDS][LRFU_USES], half_life;
	uint64_t last[LRFU_IDS];
	size_t n[LRFU_IDS];
	bool kept[LRFU_IDS];
	uint64_t now[LRFU_LAYERS],
		step[LRFU_LAYERS]; /* time of each layer; the last step that it had, of all sessions */
	uint64_t n_uses, bytes, budget;
};

static const uint64_t lrfu_bytes[LRFU_LAYERS] = { 10, 10, 10 };

/* In steps: by so many the worth of a single use is younger. */
static double worth(const struct lrfu_model *mo, uint32_t id)
{
	double sum = 0;

	for (size_t i = 0; i < mo->n[id]; i++)
		sum += pow(0.5, ((double)mo->now[id / LRFU_EXPERTS] - mo->time[id][i]) / mo->half_life);
	return mo->half_life * log2(sum);
}

/* Worths that differ by less than rounding does are not equal by chance: all their uses are at the same times. */
static bool worth_less(const struct lrfu_model *mo, uint32_t a, uint32_t b)
{
	const double x = worth(mo, a), y = worth(mo, b);

	return fabs(x - y) > 1e-9 ? x < y : mo->last[a] < mo->last[b];
}

/* The least of each layer; then, of the layers whose least is worth as little as that of any, up to 2.5 steps, the one
 * that keeps most. LRFU_IDS: nothing is kept. */
static uint32_t model_least(const struct lrfu_model *mo)
{
	uint32_t least[LRFU_LAYERS], n[LRFU_LAYERS] = { 0 }, found = LRFU_IDS, most = 0;
	double worst = INFINITY;

	for (uint32_t i = 0; i < LRFU_IDS; i++) {
		const uint32_t m = i / LRFU_EXPERTS;

		if (!mo->kept[i])
			continue;
		if (n[m]++ == 0 || worth_less(mo, i, least[m]))
			least[m] = i;
	}
	for (uint32_t m = 0; m < LRFU_LAYERS; m++)
		if (n[m] > 0)
			worst = fmin(worst, worth(mo, least[m]));
	for (uint32_t m = 0; m < LRFU_LAYERS; m++) {
		if (n[m] <= most || worth(mo, least[m]) >= worst + 2.5)
			continue;
		most = n[m];
		found = least[m];
	}
	return found;
}

static unsigned model_kept(const struct lrfu_model *mo, uint32_t id)
{
	unsigned n = 0;

	for (uint32_t i = id / LRFU_EXPERTS * LRFU_EXPERTS; i < (id / LRFU_EXPERTS + 1) * LRFU_EXPERTS; i++)
		n += mo->kept[i];
	return n;
}

static void model_note(struct lrfu_model *mo, uint64_t step, uint32_t id)
{
	const uint32_t m = id / LRFU_EXPERTS;

	mo->now[m] += step > mo->step[m];
	mo->step[m] = step;
	mo->time[id][mo->n[id]++] = (double)mo->now[m];
	mo->last[id] = ++mo->n_uses;
}

/* A use in each step is worth as many with any half-life. */
static double model_horizon(const struct lrfu_model *mo)
{
	return (1 - pow(0.5, 1 / mo->half_life)) / (1 - pow(0.5, 1.0 / 32));
}

/* Uses by their age, of which the one that would leave has had fewer. */
static double model_gain(const struct lrfu_model *mo, uint32_t id)
{
	const uint32_t least = model_least(mo);

	if (mo->kept[id] || mo->bytes + 10 <= mo->budget)
		return INFINITY;
	return least == LRFU_IDS ? -INFINITY :
				   model_horizon(mo) * (pow(2, worth(mo, id) / mo->half_life) -
							pow(2, worth(mo, least) / mo->half_life));
}

static void model_favour_recent(struct lrfu_model *mo, bool recent)
{
	memset(mo->n, 0, sizeof(mo->n));
	memset(mo->kept, 0, sizeof(mo->kept));
	mo->bytes = 0;
	mo->half_life = recent ? 2 : 32;
}

/* Share of its layer's steps that used it, weighted by age. */
static double model_chance(const struct lrfu_model *mo, uint32_t id)
{
	double all = 0;

	for (uint64_t t = 1; t <= mo->now[id / LRFU_EXPERTS]; t++)
		all += pow(0.5, (double)(mo->now[id / LRFU_EXPERTS] - t) / mo->half_life);
	return all > 0 ? pow(2, worth(mo, id) / mo->half_life) / all : 0;
}

static void model_use(struct lrfu_model *mo, uint64_t step, uint32_t id)
{
	model_note(mo, step, id);
	while (!mo->kept[id]) {
		uint32_t least;
		double more;

		if (mo->bytes + 10 <= mo->budget) {
			mo->kept[id] = true;
			mo->bytes += 10;
			return;
		}
		least = model_least(mo);
		if (least == LRFU_IDS)
			return;
		more = worth(mo, id) - worth(mo, least);
		if (more <= 2.5 && (more <= -0.5 || model_kept(mo, least) <= model_kept(mo, id) + 1))
			return;
		mo->kept[least] = false;
		mo->bytes -= 10;
	}
}

static void what_is_worth_most_stays(void **state)
{
	const struct od_share whole = { 1, 0, 1 };
	uint64_t seed = 5, n_kept = 0, n_not = 0, n_elsewhere = 0;

	(void)state;
	for (uint64_t budget = 0; budget <= 80; budget += 27) { /* not a multiple of an expert's */
		static struct lrfu_model mo;
		struct od_expert_cache *c;
		uint64_t step = 0, all_steps = 0;

		mo = (struct lrfu_model){ .budget = budget, .half_life = 32 };
		assert_int_equal(od_expert_cache_new(&c, LRFU_LAYERS, LRFU_EXPERTS, lrfu_bytes, budget, NULL), OD_OK);
		(void)od_expert_cache_use(c, 1, 0, 0);
		assert_false(od_expert_cache_keeps(c, 0, 0)); /* no place yet */
		assert_true(od_expert_cache_place(c, &whole));
		for (int i = 0; i < LRFU_USES; i++) {
			uint32_t id;
			struct od_expert_changes changes;
			bool was[LRFU_IDS];
			double gain;

			seed = seed * 6364136223846793005ull + 1442695040888963407ull;
			id = (uint32_t)(seed >> 33) % (1 + (uint32_t)(seed >> 50) % LRFU_IDS);
			if (i % 200 == 150) { /* steps are numbered anew */
				od_expert_cache_new_session(c);
				step = 0;
			}
			if (i % 200 == 120 || i % 200 == 180) {
				assert_true(od_expert_cache_favour_recent(c, i % 200 == 120));
				assert_false(od_expert_cache_favour_recent(c, i % 200 == 120));
				model_favour_recent(&mo, i % 200 == 120);
			}
			if (seed >> 60 < 8 || step == 0) { /* some steps have several uses */
				step += 1 + (seed >> 59) % 2; /* the number does not matter */
				all_steps++;
			}
			gain = od_expert_cache_gain(c, id / LRFU_EXPERTS, id % LRFU_EXPERTS);
			assert_true(gain == model_gain(&mo, id) || fabs(gain - model_gain(&mo, id)) < 1e-6);
			assert_true(fabs(od_expert_cache_chance(c, id / LRFU_EXPERTS, id % LRFU_EXPERTS) -
					 model_chance(&mo, id)) < 1e-9);
			memcpy(was, mo.kept, sizeof(was));
			if ((seed >> 40) % 4 == 0 && !mo.kept[id]) {
				model_note(&mo, all_steps, id);
				od_expert_cache_used_elsewhere(c, step, id / LRFU_EXPERTS, id % LRFU_EXPERTS);
				n_elsewhere++;
				continue;
			}
			model_use(&mo, all_steps, id);
			changes = od_expert_cache_use(c, step, id / LRFU_EXPERTS, id % LRFU_EXPERTS);
			for (uint32_t k = 0; k < LRFU_IDS; k++) {
				bool told = false;

				for (size_t j = 0; j < changes.n; j++)
					told |= changes.change[j].m * LRFU_EXPERTS + changes.change[j].expert == k;
				assert_int_equal(od_expert_cache_keeps(c, k / LRFU_EXPERTS, k % LRFU_EXPERTS),
						 mo.kept[k]);
				assert_int_equal(told, was[k] != mo.kept[k]);
			}
			n_kept += mo.kept[id];
			n_not += !mo.kept[id];
		}
		od_expert_cache_free(c);
	}
	assert_true(n_kept > 500 && n_not > 300 && n_elsewhere > 300);
}

static void sizes_count_in_bytes(void **state)
{
	static const uint64_t bytes[] = { 10, 25 };
	const struct od_share whole = { 1, 0, 1 };
	struct od_expert_cache *c;

	(void)state;
	assert_int_equal(od_expert_cache_new(&c, 2, 4, bytes, 30, NULL), OD_OK);
	(void)od_expert_cache_place(c, &whole);
	for (uint32_t e = 0; e < 3; e++)
		(void)od_expert_cache_use(c, 1, 0, e);
	assert_int_equal(od_expert_cache_use(c, 2, 1, 0).n, 0); /* worth as much as what would have to go */
	assert_int_equal(od_expert_cache_use(c, 3, 1, 0).n, 4); /* three make room for one */
	assert_true(od_expert_cache_keeps(c, 1, 0));
	assert_int_equal(od_expert_cache_use(c, 4, 1, 0).n, 0);
	assert_int_equal(od_expert_cache_use(c, 4, 0, 3).n, 0); /* worth less */
	assert_false(od_expert_cache_keeps(c, 0, 3));
	assert_int_equal(od_expert_cache_set_budget(c, 24).n, 1);
	assert_false(od_expert_cache_keeps(c, 1, 0));
	assert_int_equal(od_expert_cache_use(c, 5, 1, 0).n, 0); /* larger than all */
	assert_int_equal(od_expert_cache_use(c, 6, 0, 3).n, 1);
	od_expert_cache_forget(c, 0, 3);
	assert_false(od_expert_cache_keeps(c, 0, 3));
	assert_int_equal(od_expert_cache_use(c, 6, 0, 3).n, 1);
	od_expert_cache_free(c);
}

/* Rows of many texts choose all experts of each layer in each step: those that are kept stay, so that they are found,
 * as many of each layer. */
static void all_in_turns(void **state)
{
	static const uint64_t bytes[] = { 1, 1, 1, 1 };
	const struct od_share whole = { 1, 0, 1 };
	unsigned n_found = 0, n_kept[4] = { 0 };
	struct od_expert_cache *c;

	(void)state;
	assert_int_equal(od_expert_cache_new(&c, 4, 8, bytes, 16, NULL), OD_OK);
	(void)od_expert_cache_place(c, &whole);
	for (uint64_t step = 1; step <= 100; step++)
		for (uint32_t i = 0; i < 32; i++) {
			/* texts choose in another order in each step */
			const uint32_t m = i / 8, e = (uint32_t)(i * (2 * step + 1) + step) % 8;

			n_found += step > 50 && od_expert_cache_keeps(c, m, e);
			(void)od_expert_cache_use(c, step, m, e);
		}
	assert_true(n_found >= 50 * 16 - 16); /* one is still exchanged now and then */
	assert_int_equal(od_expert_cache_set_budget(c, 8).n, 8);
	for (uint32_t i = 0; i < 32; i++)
		n_kept[i / 8] += od_expert_cache_keeps(c, i / 8, i % 8);
	for (uint32_t m = 0; m < 4; m++)
		assert_int_equal(n_kept[m], 2);
	od_expert_cache_free(c);
}

/* ---- A schedule with a cache ---- */

struct expert_cache_world {
	struct od_expert_bufs *bufs;
	struct od_expert_cache *cache;
	struct od_schedule *s;
	uint64_t step;
};

/* With room for two. */
static void open_world(struct expert_cache_world *w, unsigned n_slots)
{
	static const uint64_t bytes[LAYERS] = { 1, 1, 1, 1 };
	const struct od_expert_bufs_opts bo = {
		.device = device, .slot = OD_SET_STORED, .n = n_slots + 2, .bytes = { 1, 1, 1 }
	};
	const struct od_share share = { 1, 0, 1 };
	struct od_schedule_opts more = { .max_pinned = 2 };

	*w = (struct expert_cache_world){ 0 };
	assert_int_equal(od_expert_bufs_new(&w->bufs, &bo, NULL), OD_OK);
	assert_int_equal(od_expert_cache_new(&w->cache, LAYERS, EXPERTS, bytes, 2, NULL), OD_OK);
	more.bufs = w->bufs;
	more.cache = w->cache;
	w->s = new_schedule_with(n_slots, &more);
	od_schedule_place(w->s, &share);
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

/* An expert in a slot is used there. Uses elsewhere bring another one nearer to the kept ones. */
static void what_is_used_elsewhere_gains(void **state)
{
	const uint16_t experts[] = { 0, 1, 2, 3 };
	struct expert_cache_world w;
	uint32_t missing[EXPERTS];
	double gain[4], before;

	(void)state;
	open_world(&w, 1);
	for (uint32_t i = 0; i < 2; i++)
		for (int n = 0; n < 3; n++)
			(void)use(&w, 0, i, false);
	WANT(w.s, w.step + 1, 0, 1, 3);
	od_schedule_gains(w.s, 0, experts, 4, gain);
	assert_true(gain[0] == INFINITY && gain[1] == INFINITY && gain[3] == INFINITY);
	assert_true(gain[2] > -3 && gain[2] < -2);
	for (int n = 0; n < 4; n++) {
		before = gain[2];
		od_schedule_used_elsewhere(w.s, ++w.step, 0, &experts[2], 1);
		od_schedule_gains(w.s, 0, experts, 4, gain);
		assert_true(gain[2] > before + 0.9);
	}
	assert_true(gain[2] > 1);
	assert_false(od_expert_cache_keeps(w.cache, 0, 2));
	assert_int_equal(od_schedule_missing(w.s, 0, 0, missing), EXPERTS - 2);
	assert_int_equal(od_schedule_missing(w.s, 0, 0.3, missing), 1);
	assert_int_equal(missing[0], 2);
	assert_int_equal(od_schedule_missing(w.s, 0, 0.9, missing), 0);
	assert_false(use(&w, 0, 2, false).kept);
	assert_true(od_expert_cache_keeps(w.cache, 0, 2));
	close_world(&w);
}

/* Equal uses give equal decisions: a replay of recorded routes knows what a worker will do. */
static void it_decides_as_the_policy_alone_does(void **state)
{
	static const uint64_t bytes[LAYERS] = { 1, 1, 1, 1 };
	const struct od_share share = { 1, 0, 1 };
	struct od_expert_cache *alone;
	struct expert_cache_world w;
	uint64_t seed = 3;

	(void)state;
	open_world(&w, 1);
	assert_int_equal(od_expert_cache_new(&alone, LAYERS, EXPERTS, bytes, 2, NULL), OD_OK);
	(void)od_expert_cache_place(alone, &share);
	for (int i = 0; i < 500; i++) {
		const uint32_t m =
			(uint32_t)((seed = seed * 6364136223846793005ull + 1442695040888963407ull) >> 40) % LAYERS;
		const uint32_t expert = (uint32_t)(seed >> 33) % (1 + (uint32_t)(seed >> 50) % EXPERTS);
		const bool was = od_expert_cache_keeps(alone, m, expert);
		const struct od_schedule_item item = use(&w, m, expert, false);

		(void)od_expert_cache_use(alone, w.step, m, expert);
		assert_int_equal(item.kept, was);
		assert_int_equal(item.ready, was);
		for (uint32_t id = 0; id < LAYERS * EXPERTS; id++)
			assert_int_equal(od_expert_cache_keeps(w.cache, id / EXPERTS, id % EXPERTS),
					 od_expert_cache_keeps(alone, id / EXPERTS, id % EXPERTS));
	}
	od_expert_cache_free(alone);
	close_world(&w);
}

static void prompts_leave_no_trace(void **state)
{
	struct expert_cache_world w;

	(void)state;
	open_world(&w, 1);
	use(&w, 0, 1, true);
	assert_false(od_expert_cache_keeps(w.cache, 0, 1));
	use(&w, 0, 1, false);
	use(&w, 0, 2, false);
	use(&w, 0, 2, false);
	assert_true(use(&w, 0, 1, true).kept); /* served, */
	use(&w, 0, 3, false);
	assert_false(od_expert_cache_keeps(w.cache, 0, 1)); /* but the oldest all the same */
	assert_true(od_expert_cache_keeps(w.cache, 0, 2));
	close_world(&w);
}

static void a_use_is_heard_once_and_wants_are_not(void **state)
{
	struct od_schedule_item item;
	uint64_t before;
	struct expert_cache_world w;

	(void)state;
	open_world(&w, 2);
	use(&w, 0, 1, false);
	use(&w, 0, 2, false);
	use(&w, 0, 2, false);
	before = od_expert_cache_changes(w.cache);
	WANT(w.s, 4, 0, 1, 3);
	load_all(w.s);
	assert_int_equal(od_expert_cache_changes(w.cache), before);
	for (int i = 0; i < 3; i++) { /* three RUNs of one (step, m) */
		run(w.s, 4, 0, false, &item, 3, i == 2);
		assert_int_equal(od_expert_cache_changes(w.cache), before + 1);
		compute(w.s, &item);
	}
	w.step++;
	/* Worth one use and no more: two uses of another are worth more than it, though one of them is long past. */
	use(&w, 0, 1, false);
	assert_true(od_expert_cache_keeps(w.cache, 0, 1) && !od_expert_cache_keeps(w.cache, 0, 3));
	close_world(&w);
}

/* An expert that is kept is resident at once, cannot be evicted, and takes no slot from others. */
static void what_is_kept_does_not_count(void **state)
{
	struct od_schedule_item item;
	struct expert_cache_world w;

	(void)state;
	open_world(&w, 1);
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

static void a_failed_load_is_not_kept(void **state)
{
	struct od_schedule_item item;
	struct expert_cache_world w;
	struct od_load_job job;
	struct od_err err = { OD_ERR_IO, "no such luck" };

	(void)state;
	open_world(&w, 1);
	run(w.s, 1, 0, true, &item, 1, true);
	assert_true(od_expert_cache_keeps(w.cache, 0, 1)); /* once it is there */
	assert_true(od_schedule_next_read(w.s, &job, false));
	assert_true(od_schedule_end_job(w.s, &job, 0, OD_ERR_IO, &err));
	assert_ptr_equal(od_schedule_take(w.s), &item);
	assert_int_equal(item.code, OD_ERR_IO);
	assert_false(od_expert_cache_keeps(w.cache, 0, 1));
	close_world(&w);
}

static void what_is_kept_gives_way(void **state)
{
	struct od_schedule_item item;
	struct expert_cache_world w;
	struct od_load_job job;

	(void)state;
	open_world(&w, 1);
	assert_false(od_schedule_keep_less(w.s, NULL, 1)); /* nothing is kept */
	use(&w, 1, 0, false);
	use(&w, 1, 4, false);
	assert_true(od_schedule_keep_less(w.s, NULL, 1));
	assert_true(!is(w.s, 3, 1, 0, OD_SLOT_RESIDENT) && is(w.s, 3, 1, 4, OD_SLOT_RESIDENT));
	use(&w, 1, 4, false);
	od_schedule_divide(w.s, 2, 1, 0);
	use(&w, 1, 0, false);
	run(w.s, 90, 2, false, &item, 3, true);
	assert_true(od_schedule_next_read(w.s, &job, false));
	assert_true(od_schedule_keep_less(w.s, &job, 1));
	assert_true(is(w.s, 3, 1, 4, OD_SLOT_RESIDENT) != is(w.s, 3, 1, 0, OD_SLOT_RESIDENT));
	od_schedule_end(w.s, SESSION); /* its load is over: it needs nothing */
	assert_false(od_schedule_keep_less(w.s, &job, 1));
	assert_true(od_schedule_keep_less(w.s, NULL, 5));
	assert_false(is(w.s, 3, 1, 4, OD_SLOT_RESIDENT) || is(w.s, 3, 1, 0, OD_SLOT_RESIDENT));
	(void)!od_schedule_end_job(w.s, &job, 0, OD_OK, NULL);
	close_world(&w);
}

/* A WANT alone holds no memory that is asked for. */
static void what_is_only_wanted_gives_way(void **state)
{
	struct expert_cache_world w;

	(void)state;
	open_world(&w, 1);
	use(&w, 1, 0, false);
	use(&w, 1, 4, false);
	WANT(w.s, 90, 2, 1, 1);
	load_all(w.s);
	WANT(w.s, 90, 1, 1, 0, 4);
	assert_true(od_schedule_keep_less(w.s, NULL, 2));
	assert_int_equal(is(w.s, 3, 2, 1, OD_SLOT_RESIDENT) + is(w.s, 3, 1, 0, OD_SLOT_RESIDENT) +
				 is(w.s, 3, 1, 4, OD_SLOT_RESIDENT),
			 1); /* as there is one slot */
	close_world(&w);
}

/* The next layer waits for the slots, not for what is kept. */
static void slots_come_before_what_is_kept(void **state)
{
	struct od_schedule_item item[3];
	struct expert_cache_world w;

	(void)state;
	open_world(&w, 1);
	use(&w, 1, 0, false);
	use(&w, 1, 4, false);
	WANT(w.s, 90, 1, 1, 2);
	load_all(w.s);
	for (uint32_t i = 0; i < 3; i++)
		item[i] = (struct od_schedule_item){ .expert = 2 * i, .rank = i, .n_rows = 1, .last = true };
	assert_int_equal(od_schedule_run(w.s, SESSION, 90, 1, true, item, 3), OD_OK);
	assert_true(item[0].kept && !item[1].kept && item[1].ready && item[2].kept);
	compute(w.s, &item[1]);
	compute(w.s, &item[0]);
	compute(w.s, &item[2]);
	close_world(&w);
}

/* Slots get memory of the cache, and give it back: the WANT that comes last loses its slot at once. */
static void slots_become_more_and_fewer(void **state)
{
	struct expert_cache_world w;

	(void)state;
	open_world(&w, 1);
	WANT(w.s, 90, 1, 1, 2);
	WANT(w.s, 90, 2, 1, 3);
	load_all(w.s);
	assert_true(is(w.s, 3, 1, 2, OD_SLOT_RESIDENT) && !is(w.s, 3, 2, 3, OD_SLOT_RESIDENT));
	od_schedule_divide(w.s, 1, 2, 0);
	load_all(w.s);
	assert_true(is(w.s, 3, 1, 2, OD_SLOT_RESIDENT) && is(w.s, 3, 2, 3, OD_SLOT_RESIDENT));
	od_schedule_divide(w.s, 2, 1, 0);
	assert_true(is(w.s, 3, 1, 2, OD_SLOT_RESIDENT) && !is(w.s, 3, 2, 3, OD_SLOT_RESIDENT));
	close_world(&w);
}

static void other_layers_begin_anew(void **state)
{
	const struct od_share same = { 1, 0, 1 }, joined = { 3, 2, 1 }, other = { 2, 1, 2 };
	uint8_t kept[LAYERS * EXPERTS];
	uint64_t told = UINT64_MAX;
	struct expert_cache_world w;
	bool keeps[2];

	(void)state;
	open_world(&w, 1);
	use(&w, 2, 0, false);
	assert_true(od_schedule_cached(w.s, &told, kept));
	assert_int_equal(kept[2 * EXPERTS], 1);
	assert_int_equal(kept[0], 0);
	od_schedule_keeps(w.s, 2, (const uint16_t[]){ 1, 0 }, 2, keeps);
	assert_true(!keeps[0] && keeps[1]);
	assert_false(od_schedule_cached(w.s, &told, kept));
	od_schedule_end(w.s, SESSION); /* the next session finds it */
	od_schedule_begin(w.s, SESSION);
	od_schedule_place(w.s, &same);
	od_schedule_place(w.s, &joined); /* others in its group, the same layers */
	assert_true(is(w.s, 3, 2, 0, OD_SLOT_RESIDENT));
	assert_false(od_schedule_cached(w.s, &told, kept));
	od_schedule_place(w.s, &other);
	assert_false(is(w.s, 3, 2, 0, OD_SLOT_RESIDENT));
	assert_true(od_schedule_cached(w.s, &told, kept));
	assert_int_equal(kept[2 * EXPERTS], 0);
	use(&w, 2, 0, false); /* another group serves it */
	assert_false(od_expert_cache_keeps(w.cache, 2, 0));
	use(&w, 1, 0, false);
	assert_true(od_expert_cache_keeps(w.cache, 1, 0));
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
		cmocka_unit_test(buffers_are_apart),
		cmocka_unit_test(no_memory_is_said),
		cmocka_unit_test(buffers_of_smaller_experts_take_less),
		cmocka_unit_test(spare_memory_is_given_back),
		cmocka_unit_test(loads_without_memory_do_not_count),
		cmocka_unit_test(released_memory_goes_back),
		cmocka_unit_test(what_is_worth_most_stays),
		cmocka_unit_test(sizes_count_in_bytes),
		cmocka_unit_test(all_in_turns),
		cmocka_unit_test(what_is_used_elsewhere_gains),
		cmocka_unit_test(it_decides_as_the_policy_alone_does),
		cmocka_unit_test(prompts_leave_no_trace),
		cmocka_unit_test(a_use_is_heard_once_and_wants_are_not),
		cmocka_unit_test(what_is_kept_does_not_count),
		cmocka_unit_test(a_failed_load_is_not_kept),
		cmocka_unit_test(what_is_kept_gives_way),
		cmocka_unit_test(what_is_only_wanted_gives_way),
		cmocka_unit_test(slots_come_before_what_is_kept),
		cmocka_unit_test(slots_become_more_and_fewer),
		cmocka_unit_test(other_layers_begin_anew),
	};

	return cmocka_run_group_tests_name("expert_cache", tests, setup, teardown);
}
