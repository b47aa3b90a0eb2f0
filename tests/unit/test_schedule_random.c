/* The worker's schedule, with and without a cache: random messages against a plain model of who asks for what, buffers
 * that are written and looked at as loaders and engine would; and real threads. */
#include "tests/unit/device_util.h"
#include "tests/unit/schedule_world.h"

#include <pthread.h>
#include <sched.h>

#define STEPS 3
#define MAX_ITEMS 400
#define MAX_GROUP 3
#define MAX_KEPT 6
#define BUF_BYTES (64u << 10) /* SHARDS words of them are used */
#define MOST_SLOTS 9 /* more of the smallest layers' experts fit than of the largest: three */

/* Everything by (step, m, expert), as the rules say it. */
struct schedule_random_model {
	bool wanted[STEPS][LAYERS][EXPERTS], kept[STEPS][LAYERS][EXPERTS];
	int pending[STEPS][LAYERS][EXPERTS]; /* items, the one being computed included */
	uint32_t rank[STEPS][LAYERS][EXPERTS];
	int64_t version[STEPS][LAYERS];
	uint32_t closed_below[STEPS];
};

static struct od_device *device;

struct sim {
	struct od_schedule *s;
	struct od_expert_bufs *bufs;
	struct od_expert_cache *cache; /* NULL: none */
	unsigned slot; /* buffers of a slot */
	uint64_t budget; /* the cache has so much */
	uint32_t at_place; /* index of the place */
	bool recent; /* as in od_schedule_favour_recent */
	size_t n_more; /* quiet moments with more experts in slots than would fit, were all of the largest size */
	size_t n_kept; /* RUNs of what is kept */
	uint64_t session, seed;
	unsigned least_sure, n_sure, n_slots, n_table, n_loaders; /* n_sure: slots for experts of any layer, now */
	uint64_t slot_bytes[LAYERS], slots_bytes;
	/* In slots, ever: RUNs keep theirs when memory is divided anew. */
	unsigned most_slots;
	uint64_t most_bytes;
	bool mixed; /* layers differ in size */
	bool has_job[2];
	struct od_load_job job[2];
	struct od_schedule_item item[MAX_ITEMS], *computing[MAX_GROUP];
	size_t n_computing, n_groups; /* n_groups: of more than one item */
	bool out[MAX_ITEMS]; /* with the schedule */
	size_t n_items;
	struct schedule_random_model mo;
	struct { /* data that our loaders put into each slot */
		uint32_t m, expert, read, shards; /* bits */
	} content[MOST_SLOTS + 3 * MAX_KEPT];
};

static uint32_t pick(struct sim *x, uint32_t n)
{
	x->seed = x->seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(x->seed >> 33) % n;
}

static unsigned computes_in(const struct sim *x, int slot)
{
	unsigned n = 0;

	for (size_t i = 0; i < x->n_computing; i++)
		n += x->computing[i]->slot == slot;
	return n;
}

static bool asked(const struct sim *x, uint32_t m, uint32_t e, bool with_kept)
{
	for (int t = 0; t < STEPS; t++) {
		if (x->mo.wanted[t][m][e] || x->mo.pending[t][m][e] > 0 || (with_kept && x->mo.kept[t][m][e]))
			return true;
	}
	return false;
}

static bool resident(struct sim *x, uint32_t m, uint32_t e)
{
	return is(x->s, x->n_table, m, e, OD_SLOT_RESIDENT);
}

/* ---- What is in the buffers ---- */

static uint32_t tag_of(uint32_t m, uint32_t expert)
{
	return 1 + m * EXPERTS + expert;
}

static void write_tag(const struct od_load_job *job, enum od_expert_buf buf)
{
	const uint32_t tag = tag_of(job->m, job->expert);

	if (job->mem.at[buf].buf != NULL)
		put_at(device, od_ref_at(job->mem.at[buf], job->slice * sizeof(tag)), &tag, sizeof(tag));
}

static void check_tag(const struct od_expert_mem *mem, enum od_expert_buf buf, uint32_t slice, uint32_t m,
		      uint32_t expert)
{
	uint32_t tag;

	if (mem->at[buf].buf == NULL)
		return;
	get_at(device, &tag, od_ref_at(mem->at[buf], slice * sizeof(tag)), sizeof(tag));
	assert_int_equal(tag, tag_of(m, expert));
}

/* ---- What the cache must have ---- */

static void check_cache(struct sim *x)
{
	uint64_t bytes = 0;

	for (uint32_t m = 0; m < LAYERS; m++) {
		for (uint32_t e = 0; e < EXPERTS; e++) {
			if (!od_expert_cache_keeps(x->cache, m, e))
				continue;
			bytes += x->slot_bytes[m];
			assert_true(is(x->s, x->n_table, m, e, OD_SLOT_LOADING) || resident(x, m, e) ||
				    is(x->s, x->n_table, 0, 0, OD_SLOT_DRAINING));
		}
	}
	assert_true(bytes <= x->budget);
}

static void check_buffers_apart(struct sim *x)
{
	for (unsigned i = 0; i < x->n_table; i++) {
		struct od_slot_view v = od_schedule_look(x->s, i);

		for (int k = 0; k < OD_N_EXPERT_BUFS; k++) {
			const struct od_buf *buf = v.mem.at[k].buf;

			assert_true(buf == NULL || (x->slot & 1u << k) != 0);
			assert_false(v.state == OD_SLOT_FREE && buf != NULL);
			for (unsigned j = 0; j < i; j++)
				assert_false(buf != NULL && od_schedule_look(x->s, j).mem.at[k].buf == buf);
		}
	}
}

static void check(struct sim *x)
{
	size_t least = 0, most = 0, n = od_schedule_entries(x->s);
	unsigned n_loading = 0;
	uint64_t bytes = 0;

	check_cache(x);
	check_buffers_apart(x);
	for (unsigned i = 0; i < x->n_table; i++) {
		struct od_slot_view v = od_schedule_look(x->s, i), w;
		unsigned users = computes_in(x, (int)i);

		for (int j = 0; j < 2; j++)
			users += x->has_job[j] && x->job[j].slot == (int)i;
		assert_int_equal(v.n_users, users);
		if (v.state == OD_SLOT_FREE || v.state == OD_SLOT_DRAINING)
			continue;
		n_loading += v.state == OD_SLOT_LOADING;
		bytes += x->slot_bytes[v.m];
		assert_int_equal(v.pinned,
				 v.state == OD_SLOT_RESIDENT && od_expert_cache_keeps(x->cache, v.m, v.expert));
		assert_true(v.pinned || v.entries > 0);
		assert_true(v.pinned || asked(x, v.m, v.expert, true)); /* nothing is held that nobody asked for */
		for (unsigned j = 0; j < i; j++) {
			w = od_schedule_look(x->s, j);
			assert_false((w.state == OD_SLOT_LOADING || w.state == OD_SLOT_RESIDENT) && w.m == v.m &&
				     w.expert == v.expert);
		}
	}
	assert_true(n_loading <= x->most_slots);
	assert_true(bytes <= x->most_bytes);
	assert_true(x->cache != NULL || od_expert_bufs_taken(x->bufs) <= x->slots_bytes);
	for (int t = 0; t < STEPS; t++) {
		for (int m = 0; m < LAYERS; m++) {
			for (int e = 0; e < EXPERTS; e++) {
				bool sure = x->mo.pending[t][m][e] > 0 || x->mo.wanted[t][m][e];

				least += sure;
				most += sure || x->mo.kept[t][m][e];
			}
		}
	}
	assert_in_range(n, least, most);
}

static void model_close(struct sim *x, uint32_t t, uint32_t below)
{
	if (below > x->mo.closed_below[t])
		x->mo.closed_below[t] = below;
	for (uint32_t m = 0; m < below; m++) {
		memset(x->mo.wanted[t][m], 0, sizeof(x->mo.wanted[t][m]));
		memset(x->mo.kept[t][m], 0, sizeof(x->mo.kept[t][m]));
	}
}

static void do_want(struct sim *x)
{
	uint32_t t = pick(x, STEPS), m = pick(x, LAYERS), version = pick(x, 8), n = pick(x, EXPERTS + 1), list[EXPERTS];
	bool in[EXPERTS] = { false };

	for (uint32_t i = 0; i < n; i++) {
		do
			list[i] = pick(x, EXPERTS);
		while (in[list[i]]);
		in[list[i]] = true;
	}
	assert_int_equal(od_schedule_want(x->s, x->session, t, m, version, list, n, false), 0);
	if (m < x->mo.closed_below[t] || version <= x->mo.version[t][m])
		return;
	x->mo.version[t][m] = version;
	for (int e = 0; e < EXPERTS; e++)
		x->mo.wanted[t][m][e] = in[e] && x->mo.pending[t][m][e] == 0 && !x->mo.kept[t][m][e];
}

static void do_run(struct sim *x)
{
	/* Some are used more than others. */
	uint32_t t = pick(x, STEPS), m = pick(x, 1 + pick(x, LAYERS)), n = 1 + pick(x, 3), first = (uint32_t)x->n_items;
	bool closes = pick(x, 3) == 0, prompt = pick(x, 5) == 0;

	if (x->n_items + n > MAX_ITEMS)
		return;
	for (uint32_t i = 0, e = pick(x, 1 + pick(x, EXPERTS)); i < n; i++, e = (e + 1) % EXPERTS) {
		if (x->mo.pending[t][m][e] == 0)
			x->mo.rank[t][m][e] = pick(x, 4);
		x->item[x->n_items++] = (struct od_schedule_item){ .expert = e,
								   .rank = x->mo.rank[t][m][e],
								   .last = pick(x, 2),
								   .n_rows = 1 + pick(x, 3),
								   .prompt = prompt,
								   .run = &x->item[first] };
		x->mo.pending[t][m][e]++;
		x->mo.wanted[t][m][e] = x->mo.kept[t][m][e] = false;
	}
	assert_int_equal(od_schedule_run(x->s, x->session, t, m, closes, &x->item[first], n), OD_OK);
	for (size_t i = first; i < x->n_items; i++) {
		x->out[i] = true;
		/* A use of one may have let go of another. */
		assert_true(x->item[i].ready == resident(x, m, x->item[i].expert) || x->cache != NULL);
		x->n_kept += x->item[i].ready && x->item[i].kept;
	}
	model_close(x, t, closes ? m + 1 : m);
}

static void do_close(struct sim *x)
{
	uint32_t t = pick(x, STEPS), m = pick(x, LAYERS);

	od_schedule_close(x->s, x->session, t, m);
	model_close(x, t, m + 1);
}

/* Items that failed or were cancelled leave the model when they are taken. */
static void do_end(struct sim *x)
{
	od_schedule_end(x->s, x->session);
	for (unsigned i = 0; i < x->n_table; i++) {
		struct od_slot_view v = od_schedule_look(x->s, i);

		assert_true(v.state == OD_SLOT_FREE || v.state == OD_SLOT_DRAINING || v.pinned);
	}
	memset(&x->mo, 0, sizeof(x->mo));
	memset(x->mo.version, 0xff, sizeof(x->mo.version)); /* -1: none came */
	for (size_t i = 0; i < x->n_items; i++)
		x->item[i].rank = UINT32_MAX; /* left by an earlier session */
	od_schedule_begin(x->s, ++x->session);
}

/* ---- The cache ---- */

/* Some of the cache's memory may be for slots. */
static void do_divide(struct sim *x)
{
	const unsigned n = pick(x, MAX_KEPT + 1), more = pick(x, n + 1);

	x->budget = (n - more) * x->slot_bytes[0];
	x->n_sure = x->least_sure + more;
	x->slots_bytes = x->n_sure * x->slot_bytes[0];
	x->n_slots = (unsigned)(x->slots_bytes / x->slot_bytes[1]);
	od_schedule_divide(x->s, x->budget, x->n_slots, x->slots_bytes);
}

/* A place with other layers: what is kept of layers that are served before and after stays. Another worth of uses:
 * nothing is kept. */
static void do_place(struct sim *x)
{
	static const struct od_share places[] = { { 7, 1, 1 }, { 8, 2, 2 }, { 9, 3, 2 } };
	const struct od_share *to = NULL;
	bool kept[LAYERS * EXPERTS];

	for (uint32_t i = 0; i < LAYERS * EXPERTS; i++)
		kept[i] = od_expert_cache_keeps(x->cache, i / EXPERTS, i % EXPERTS);
	if (pick(x, 3) == 0) {
		x->recent = !x->recent;
		od_schedule_favour_recent(x->s, x->recent);
	} else {
		x->at_place = (x->at_place + 1 + pick(x, 2)) % 3;
		to = &places[x->at_place];
		od_schedule_place(x->s, to);
	}
	for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) {
		const bool own = to != NULL && i / EXPERTS % to->n_groups == to->worker % to->n_groups;

		assert_int_equal(od_expert_cache_keeps(x->cache, i / EXPERTS, i % EXPERTS), kept[i] && own);
	}
}

static void open_memory(struct sim *x)
{
	static const struct od_buf_sizes layer[LAYERS] = {
		{ { BUF_BYTES, BUF_BYTES, BUF_BYTES } },
		{ { 24u << 10, 24u << 10, 24u << 10 } },
		{ { 40u << 10, 40u << 10, 40u << 10 } },
		{ { BUF_BYTES, BUF_BYTES, BUF_BYTES } },
	};
	struct od_expert_bufs_opts o = { .device = device,
					 .bytes = { BUF_BYTES, BUF_BYTES, BUF_BYTES },
					 .layer = x->mixed ? layer : NULL,
					 .n_moe = LAYERS };
	const unsigned kind = (unsigned)(x->seed / 7 % 4); /* no cache in either form, or one in either */
	struct od_err err;

	x->slot = o.slot = kind & 1 ? OD_SET_PLAIN : OD_SET_STORED;
	for (int m = 0; m < LAYERS; m++)
		x->slot_bytes[m] = od_expert_bufs_memory(device, o.slot, o.bytes, x->mixed ? layer[m].bytes : o.bytes);
	x->slots_bytes = x->n_sure * x->slot_bytes[0];
	x->n_slots = (unsigned)(x->slots_bytes / x->slot_bytes[1]);
	o.limit_bytes = kind & 2 ? 0 : x->slots_bytes;
	if (kind & 2) {
		x->budget = pick(x, MAX_KEPT + 1) * x->slot_bytes[0];
		assert_int_equal(od_expert_cache_new(&x->cache, LAYERS, EXPERTS, x->slot_bytes, x->budget, &err),
				 OD_OK);
	}
	x->most_bytes = x->slots_bytes + (x->cache != NULL ? MAX_KEPT * x->slot_bytes[0] : 0);
	x->most_slots = (unsigned)(x->most_bytes / x->slot_bytes[1]);
	x->n_table =
		x->n_slots + (x->cache != NULL ? MAX_KEPT * (unsigned)(x->slot_bytes[0] / x->slot_bytes[1] + 1) : 0);
	assert_true(x->n_table <= sizeof(x->content) / sizeof(x->content[0]));
	o.n = x->n_table;
	assert_int_equal(od_expert_bufs_new(&x->bufs, &o, &err), OD_OK);
}

static void take_shard(struct sim *x, int j)
{
	struct od_load_job *job = &x->job[j];
	struct od_slot_view v;

	x->has_job[j] =
		pick(x, 2) == 0 ? od_schedule_next_finish(x->s, job, false) : od_schedule_next_read(x->s, job, false);
	if (!x->has_job[j]) /* the other, if there is one */
		x->has_job[j] = od_schedule_next_read(x->s, job, false) || od_schedule_next_finish(x->s, job, false);
	if (!x->has_job[j])
		return;
	v = od_schedule_look(x->s, (unsigned)job->slot);
	assert_int_equal(v.state, OD_SLOT_LOADING);
	assert_true(v.m == job->m && v.expert == job->expert && job->slice < SHARDS);
	assert_int_equal(computes_in(x, job->slot), 0);
	if (x->has_job[!j]) {
		assert_false(x->job[!j].slot == job->slot && x->job[!j].slice == job->slice);
		assert_int_not_equal(x->job[!j].stage, job->stage);
	}
	if (job->slice == 0 && job->kind == OD_LOAD_READ) {
		x->content[job->slot].m = job->m;
		x->content[job->slot].expert = job->expert;
		x->content[job->slot].read = x->content[job->slot].shards = 0;
	}
	assert_true(x->content[job->slot].m == job->m && x->content[job->slot].expert == job->expert);
}

static void put_shard(struct sim *x, int j, int rc)
{
	struct od_err err = { rc, "no such luck" };
	struct od_load_job *job = &x->job[j];
	bool counts = od_schedule_look(x->s, (unsigned)job->slot).state == OD_SLOT_LOADING;

	x->has_job[j] = false;
	if (job->kind == OD_LOAD_READ) {
		x->content[job->slot].read |= 1u << job->slice;
		write_tag(job, OD_BUF_SM);
		write_tag(job, OD_BUF_E);
	}
	if (job->kind == OD_LOAD_FINISH) {
		assert_true(x->content[job->slot].read & 1u << job->slice);
		assert_false(x->content[job->slot].shards & 1u << job->slice);
		x->content[job->slot].shards |= 1u << job->slice;
		check_tag(&job->mem, OD_BUF_SM, job->slice, job->m, job->expert);
		check_tag(&job->mem, OD_BUF_E, job->slice, job->m, job->expert);
		write_tag(job, OD_BUF_PLAIN);
	}
	(void)!od_schedule_end_job(x->s, job, job->kind == OD_LOAD_READ, rc, &err);
	if (rc == OD_OK || !counts)
		return;
	for (int t = 0; t < STEPS; t++) {
		x->mo.wanted[t][job->m][job->expert] = x->mo.kept[t][job->m][job->expert] = false;
		x->mo.pending[t][job->m][job->expert] = 0;
	}
}

static bool key_less(const struct od_schedule_item *a, const struct od_schedule_item *b)
{
	if (a->step != b->step)
		return a->step < b->step;
	if (a->m != b->m)
		return a->m < b->m;
	return a->rank != b->rank ? a->rank < b->rank : a->expert < b->expert;
}

/* The slot holds the expert that the item asks for. */
static void check_taken(struct sim *x, const struct od_schedule_item *item)
{
	assert_true(item->code == OD_OK && item->rank != UINT32_MAX);
	assert_int_equal(x->content[item->slot].m, item->m);
	assert_int_equal(x->content[item->slot].expert, item->expert);
	assert_int_equal(x->content[item->slot].shards, (1u << SHARDS) - 1);
	for (int k = 0; k < OD_N_EXPERT_BUFS; k++) {
		assert_true(item->mem.at[k].buf != NULL ||
			    (x->slot & OD_SET_PLAIN ? k != OD_BUF_PLAIN : k == OD_BUF_PLAIN));
		for (uint32_t slice = 0; slice < SHARDS; slice++)
			check_tag(&item->mem, (enum od_expert_buf)k, slice, item->m, item->expert);
	}
}

/* Its turn has come, and its expert is there. */
static bool could_be_taken(struct sim *x, const struct od_schedule_item *item)
{
	if (!x->out[item - x->item] || item->code != OD_OK || item->rank == UINT32_MAX ||
	    !resident(x, item->m, item->expert))
		return false;
	for (const struct od_schedule_item *i = x->item; i < item; i++)
		if (x->out[i - x->item] && i->step == item->step && i->m == item->m && i->expert == item->expert)
			return false;
	return true;
}

/* The one of the RUN that comes next; NULL: none. */
static struct od_schedule_item *next_of_run(struct sim *x, const struct od_schedule_item *before)
{
	struct od_schedule_item *best = NULL;

	for (size_t i = 0; i < x->n_items; i++) {
		struct od_schedule_item *item = &x->item[i];

		if (item->run == before->run && could_be_taken(x, item) && key_less(before, item) &&
		    (best == NULL || key_less(item, best)))
			best = item;
	}
	return best;
}

/* item[0] was taken; what comes with it is what the model says. */
static size_t take_more(struct sim *x, struct od_schedule_item **item)
{
	const size_t max = 1 + pick(x, MAX_GROUP);
	const uint64_t max_rows = pick(x, 3 * MAX_GROUP + 1);
	struct od_schedule_item *expected[MAX_GROUP] = { item[0] };
	uint64_t rows = item[0]->n_rows;
	size_t n = 1;

	for (struct od_schedule_item *at = item[0]; n < max && (at = next_of_run(x, at)) != NULL; expected[n++] = at) {
		rows += at->n_rows;
		if (rows > max_rows)
			break;
	}
	assert_int_equal(od_schedule_take_more(x->s, item, max, max_rows), n);
	assert_memory_equal(item, expected, n * sizeof(*item));
	return n;
}

/* Ended items of the RUN come with it. */
static void take_failed(struct sim *x, struct od_schedule_item *first)
{
	struct od_schedule_item *item[MAX_ITEMS] = { first };
	const size_t n = od_schedule_take_more(x->s, item, MAX_ITEMS, 0);

	for (size_t i = 0; i < n; i++) {
		assert_true(i == 0 || x->out[item[i] - x->item]);
		x->out[item[i] - x->item] = false;
		assert_ptr_equal(item[i]->run, first->run);
		assert_true(item[i]->code == OD_ERR_IO ||
			    (item[i]->code == OD_ERR_CANCELLED && item[i]->rank == UINT32_MAX));
	}
	for (size_t i = 0; i < x->n_items; i++)
		assert_false(x->out[i] && x->item[i].run == first->run && x->item[i].code != OD_OK);
}

/* False: there was nothing to take. */
static bool begin_compute(struct sim *x)
{
	struct od_schedule_item *item = od_schedule_take(x->s);

	if (item == NULL)
		return false;
	assert_true(x->out[item - x->item]);
	x->out[item - x->item] = false;
	if (item->code != OD_OK) {
		take_failed(x, item);
		return true;
	}
	for (size_t i = 0; i < x->n_items; i++) /* nothing that is ready has a smaller key */
		assert_false(x->out[i] && x->item[i].code == OD_OK && x->item[i].rank != UINT32_MAX &&
			     key_less(&x->item[i], item) && resident(x, x->item[i].m, x->item[i].expert));
	x->computing[0] = item;
	x->n_computing = take_more(x, x->computing);
	x->n_groups += x->n_computing > 1;
	for (size_t i = 0; i < x->n_computing; i++) {
		x->out[x->computing[i] - x->item] = false;
		check_taken(x, x->computing[i]);
	}
	return true;
}

/* Ends one of the group. */
static void end_compute(struct sim *x)
{
	const uint32_t which = pick(x, (uint32_t)x->n_computing);
	struct od_schedule_item *item = x->computing[which];
	int *pending = &x->mo.pending[item->step][item->m][item->expert];

	x->computing[which] = x->computing[--x->n_computing];
	if (item->rank != UINT32_MAX && --*pending == 0 && !item->last && item->m >= x->mo.closed_below[item->step])
		x->mo.kept[item->step][item->m][item->expert] = true;
	od_schedule_done(x->s, item);
}

static void random_event(struct sim *x)
{
	uint32_t what = pick(x, 100);
	int j = (int)pick(x, 2);

	clock_ns++;
	if (x->cache != NULL && pick(x, 100) == 0)
		do_divide(x);
	if (x->cache != NULL && pick(x, 300) == 0)
		do_place(x);
	if (what < 12)
		do_want(x);
	else if (what < 24)
		do_run(x);
	else if (what < 28)
		do_close(x);
	else if (what < 29)
		do_end(x);
	else if (what < 75 && x->has_job[j])
		put_shard(x, j, pick(x, 60) == 0 ? OD_ERR_IO : OD_OK);
	else if (what < 75 && (unsigned)j < x->n_loaders)
		take_shard(x, j);
	else if (what >= 75 && x->n_computing > 0)
		end_compute(x);
	else if (what >= 75)
		(void)begin_compute(x);
}

/* The first (step, m) that wants it; STEPS * LAYERS: none. */
static uint32_t first_layer(const struct sim *x, uint32_t m, uint32_t e)
{
	for (uint32_t t = 0; t < STEPS; t++) {
		if (x->mo.wanted[t][m][e])
			return t * LAYERS + m;
	}
	return STEPS * LAYERS;
}

/* When all is quiet, slots hold the WANTs of the earliest layers, as many as there are. */
static void check_quiet(struct sim *x)
{
	uint32_t worst_in = 0, best_out = STEPS * LAYERS;
	size_t n_in = 0, n_asked = 0;

	for (uint32_t m = 0; m < LAYERS; m++) {
		for (uint32_t e = 0; e < EXPERTS; e++) {
			uint32_t first = first_layer(x, m, e);

			if (od_expert_cache_keeps(x->cache, m, e))
				continue; /* it is there, and counts for nothing */
			n_asked += asked(x, m, e, false);
			if (resident(x, m, e)) {
				n_in++;
				if (first < STEPS * LAYERS && !asked(x, m, e, true))
					worst_in = first > worst_in ? first : worst_in;
			} else if (first < best_out) {
				best_out = first;
			}
		}
	}
	assert_true(n_in >= (n_asked < x->n_sure ? n_asked : x->n_sure));
	x->n_more += n_in > x->n_sure;
	assert_true(worst_in <= best_out);
}

/* Without new messages everything that was asked comes to its end. */
static void settle(struct sim *x)
{
	bool moved = true;

	for (int rounds = 0; moved; rounds++) {
		assert_true(rounds < 100000);
		moved = false;
		for (int j = 0; j < 2; j++) {
			if (!x->has_job[j] && x->n_loaders > 0)
				take_shard(x, j);
			if (x->has_job[j]) {
				put_shard(x, j, OD_OK);
				moved = true;
			}
		}
		if (x->n_computing > 0) {
			end_compute(x);
			moved = true;
		} else if (begin_compute(x)) {
			moved = true;
		}
		check(x);
	}
	if (x->n_loaders == 0)
		return;
	for (size_t i = 0; i < x->n_items; i++)
		assert_false(x->out[i]);
	check_quiet(x);
	assert_false(figures(x->s).busy);
}

static void random_messages_against_a_model(void **state)
{
	static struct sim x;
	size_t n_run = 0, n_loads = 0, n_cancelled = 0, n_kept = 0, n_groups = 0, n_more = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 600; seed++) {
		memset(&x, 0, sizeof(x));
		memset(x.mo.version, 0xff, sizeof(x.mo.version));
		x.seed = seed * 0x9e3779b97f4a7c15ull;
		x.least_sure = x.n_sure = 1 + (unsigned)(seed % 3);
		x.mixed = seed / 11 % 2 == 1;
		x.n_loaders = seed % 10 == 0 ? 0 : 1 + (unsigned)(seed / 3 % 2);
		open_memory(&x);
		x.s = new_schedule_with(x.n_slots, &(struct od_schedule_opts){ .bufs = x.bufs,
									       .cache = x.cache,
									       .slot_bytes = x.slot_bytes,
									       .slots_bytes = x.slots_bytes,
									       .max_pinned = x.n_table - x.n_slots });
		x.session = SESSION;
		if (x.cache != NULL)
			do_place(&x);
		for (int i = 0; i < 500; i++) {
			random_event(&x);
			check(&x);
			if (i % 100 == 99)
				settle(&x);
		}
		n_run += x.n_items;
		n_loads += figures(x.s).c[OD_C_LOADS];
		n_cancelled += figures(x.s).c[OD_C_CANCELLED_LOADS];
		n_kept += x.n_kept;
		n_groups += x.n_groups;
		n_more += x.n_more;
		do_end(&x);
		settle(&x);
		od_schedule_free(x.s);
		od_expert_cache_free(x.cache);
		od_expert_bufs_free(x.bufs);
	}
	printf("# %zu RUNs, %zu loads, %zu cancelled, %zu kept, %zu groups, %zu times more\n", n_run, n_loads,
	       n_cancelled, n_kept, n_groups, n_more);
	/* The cases were worth their time. */
	assert_true(n_run > 20000 && n_loads > 10000 && n_cancelled > 1000 && n_kept > 1000 && n_groups > 500 &&
		    n_more > 50);
}

/* ---- With real threads, for the sanitizer ---- */

static void *reader_thread(void *arg)
{
	struct od_load_job job;

	while (od_schedule_next_read(arg, &job, true))
		(void)!od_schedule_end_job(arg, &job, 1, OD_OK, NULL);
	return NULL;
}

static void *inflater_thread(void *arg)
{
	struct od_load_job job;

	while (od_schedule_next_finish(arg, &job, true))
		(void)!od_schedule_end_job(arg, &job, 0, OD_OK, NULL);
	return NULL;
}

#define THREAD_RUNS 2000
static void *engine_thread(void *arg)
{
	static struct od_schedule_item item[THREAD_RUNS];
	struct od_schedule_item *got;
	size_t n_sent = 0, n_done = 0;

	while (n_done < THREAD_RUNS) {
		if (n_sent < THREAD_RUNS && n_sent - n_done < 8) {
			item[n_sent] = (struct od_schedule_item){ .expert = n_sent % EXPERTS, .last = n_sent % 3 != 0 };
			assert_int_equal(od_schedule_run(arg, SESSION, n_sent / 7, n_sent % LAYERS, n_sent % 5 == 0,
							 &item[n_sent], 1),
					 OD_OK);
			n_sent++;
		}
		got = od_schedule_take(arg);
		if (got == NULL) {
			sched_yield();
			continue;
		}
		assert_int_equal(got->code, OD_OK);
		od_schedule_done(arg, got);
		n_done++;
	}
	return NULL;
}

static void threads_come_to_an_end(void **state)
{
	struct od_schedule *s = new_schedule(2);
	pthread_t loader[4], engine;
	uint32_t list[2];

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&loader[i], NULL, i % 2 == 0 ? reader_thread : inflater_thread, s), 0);
	assert_int_equal(pthread_create(&engine, NULL, engine_thread, s), 0);
	for (uint32_t i = 0; i < THREAD_RUNS; i++) {
		list[0] = i % EXPERTS;
		list[1] = (i + 1) % EXPERTS;
		(void)od_schedule_want(s, SESSION, i / 7, i % LAYERS, i % 4, list, 2, false);
		if (i % 9 == 0)
			od_schedule_close(s, SESSION, i / 8, LAYERS - 1);
		(void)figures(s);
	}
	pthread_join(engine, NULL);
	od_schedule_stop(s);
	for (int i = 0; i < 4; i++)
		pthread_join(loader[i], NULL);
	od_schedule_free(s);
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
		cmocka_unit_test(random_messages_against_a_model),
		cmocka_unit_test(threads_come_to_an_end),
	};

	return cmocka_run_group_tests_name("schedule_random", tests, setup, teardown);
}
