/* Loads of experts of which a cache has some buffers: through the real readers and inflaters, to the bit, and with
 * damaged files. */
#include "common/base/mem.h"
#include "common/compute/device_internal.h"
#include "common/pack/write/pack_write.h"
#include "tests/unit/device_util.h"
#include "tests/unit/temp_dir.h"
#include "common/residency/cache_planner.h"
#include "common/residency/loader.h"

#include <fcntl.h>
#include <sched.h>
#include <semaphore.h>
#include <string.h>
#include <unistd.h>

#define SESSION 3
#define LAYER 2
#define SLOTS 1
#define EXPERTS 8

static struct od_pack *pack; /* the demo checkpoint's */
static struct od_device *device;
static struct od_expert_store *plain;
static int fd; /* experts.bin, */
static uint8_t *file; /* and what was in it at first */

static int setup(void **state)
{
	struct od_pack_job job = { .checkpoint = "deploy/models/talebook", .codec = OD_CODEC_PLANES, .n_threads = 2 };
	struct od_err err;

	if (temp_dir_make(state) != 0)
		return -1;
	device = device_new(OD_CPU_AUTO, 1);
	job.pack = temp_path("pack");
	if (od_pack_write(&job, &err) != OD_OK || od_pack_open(&pack, temp_path("pack"), &err) != OD_OK ||
	    od_experts_load_all(&plain, pack, device, OD_FORM_PLAIN, 2, NULL, NULL, &err) != OD_OK) {
		fprintf(stderr, "%s\n", err.msg);
		return -1;
	}
	fd = open(temp_path("pack/experts.bin"), O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -1;
	file = malloc((size_t)lseek(fd, 0, SEEK_END));
	return pread(fd, file, (size_t)lseek(fd, 0, SEEK_END), 0) == lseek(fd, 0, SEEK_END) ? 0 : -1;
}

static int teardown(void **state)
{
	free(file);
	close(fd);
	od_experts_free(plain);
	od_pack_close(pack);
	od_device_free(device);
	return temp_dir_remove(state);
}

/* ---- A worker without a network ---- */

struct loader_cache_world {
	enum od_form form;
	struct od_expert_bufs *bufs;
	struct od_expert_cache *cache;
	struct od_schedule *s;
	struct od_loaders *loaders;
	sem_t ready;
	uint64_t step;
	atomic_int n_missed;
};

static int count_missed(void *arg, uint32_t m, uint32_t expert, uint64_t begin_ns, int code, struct od_err *err)
{
	struct loader_cache_world *w = arg;

	(void)m, (void)expert, (void)begin_ns, (void)err;
	w->n_missed++;
	return code;
}

static void wake(void *arg)
{
	sem_post(arg);
}

/* Rank dispatch with room for one in each pool, for a layer of which the first experts are used most. */
static void begin_cache(struct loader_cache_world *w, const struct od_cache_plan *plan)
{
	const struct od_share share = { 1, 0, 1 };
	double inclusion[EXPERTS];
	struct od_expert_cache_uses u = { .inclusion = inclusion };
	struct od_cache_opts o = { .policy = OD_CACHE_RANK,
				   .n_moe = od_pack_config(pack)->n_moe,
				   .n_experts = EXPERTS,
				   .plan = *plan,
				   .full_is_stored = w->form == OD_FORM_PLANES };
	struct od_cache *policy;

	od_schedule_place(w->s, &share);
	assert_true(od_schedule_next_plan(w->s, &u));
	assert_int_equal(u.n_moe, o.n_moe);
	assert_int_equal(od_cache_new(&policy, &o, NULL), OD_OK);
	assert_true(od_schedule_begin_cache(w->s, u.place, policy));
}

static void open_world(struct loader_cache_world *w, enum od_form form)
{
	const struct od_config *cfg = od_pack_config(pack);
	const uint32_t n = cfg->n_moe, c = form == OD_FORM_PLAIN ? n : 0;
	const struct od_cache_plan plan = { .n_moe = n, .experts = { n, c, n, n } };
	const struct od_cache_planner_opts po = { .slot = od_form_bufs(form) | OD_SET_STORED, .n_slots = SLOTS };
	struct od_schedule_opts so = { .n_moe = n,
				       .n_experts = EXPERTS,
				       .n_slots = SLOTS,
				       .n_stages = od_loader_stages(2, 2),
				       .n_slices = od_slices(od_pack_expert(pack, 0, 0)->n_shards),
				       .max_pinned = n };
	struct od_loader_opts lo = { .pack = pack,
				     .device = device,
				     .form = form,
				     .slot = po.slot,
				     .n_readers = 2,
				     .n_inflaters = 2,
				     .wake = wake,
				     .wake_arg = &w->ready,
				     .missed = count_missed,
				     .missed_arg = w };
	struct od_expert_bufs_opts bo = {
		.device = device, .slot = po.slot, .layer = od_pack_layer_sizes(pack), .n_moe = n
	};
	size_t n_bufs[OD_N_EXPERT_BUFS];

	*w = (struct loader_cache_world){ .form = form };
	sem_init(&w->ready, 0, 0);
	for (int i = 0; i < OD_N_EXPERT_BUFS; i++)
		bo.bytes[i] = od_pack_buf_bytes(pack, (enum od_expert_buf)i);
	assert_int_equal(od_expert_bufs_new(&w->bufs, &bo, NULL), OD_OK);
	od_cache_planner_bufs(&po, &plan, n_bufs);
	assert_int_equal(od_expert_bufs_grow(w->bufs, n_bufs, NULL), OD_OK);
	assert_int_equal(od_expert_cache_new(&w->cache, n, EXPERTS, w->bufs, NULL), OD_OK);
	so.bufs = w->bufs;
	so.cache = w->cache;
	assert_int_equal(od_schedule_new(&w->s, &so, NULL), OD_OK);
	od_schedule_begin(w->s, SESSION);
	begin_cache(w, &plan);
	lo.schedule = w->s;
	assert_int_equal(od_loaders_start(&w->loaders, &lo, NULL), OD_OK);
}

static void close_world(struct loader_cache_world *w)
{
	od_schedule_end(w->s, SESSION);
	od_loaders_stop(w->loaders);
	od_schedule_free(w->s);
	od_expert_cache_free(w->cache);
	od_expert_bufs_free(w->bufs);
	sem_destroy(&w->ready);
}

static uint64_t stored_bytes(uint32_t expert, unsigned which)
{
	const struct od_pack_expert *x = od_pack_expert(pack, LAYER, expert);
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < x->n_shards; i++) {
		bytes += which & OD_SET_SM ? x->shard[i].sm.stored_bytes : 0;
		bytes += which & OD_SET_E ? x->shard[i].e.stored_bytes : 0;
	}
	return bytes;
}

static void assert_at(struct od_ref at, const void *want, size_t bytes)
{
	void *found = copy_at(device, at, bytes);

	assert_memory_equal(found, want, bytes);
	free(found);
}

/* The chunks of a matrix in planes are those of the file. */
static void check_planes(const struct od_expert *w, uint32_t expert)
{
	const struct od_pack_expert *x = od_pack_expert(pack, LAYER, expert);
	uint32_t chunk[OD_N_EXPERT_MATS] = { 0 };

	for (uint32_t i = 0; i < x->n_shards; i++) {
		const struct od_shard *s = &x->shard[i];
		const struct od_weight *mat = &w->mat[s->mat];

		assert_at(od_ref_at(mat->data, s->row_begin * mat->n_in), file + s->sm.offset, s->sm.stored_bytes);
		assert_at(od_ref_at(mat->coded, mat->chunk_at[chunk[s->mat]++]), file + s->e.offset, s->e.stored_bytes);
	}
}

static void check_weights(const struct loader_cache_world *w, const struct od_schedule_item *item)
{
	const struct od_expert *want = &od_experts_get(plain)[LAYER * EXPERTS + item->expert];
	struct od_expert got;

	od_pack_bind(pack, LAYER, item->expert, &item->mem, &got);
	if (w->form == OD_FORM_PLANES) {
		check_planes(&got, item->expert);
		return;
	}
	for (int i = 0; i < OD_N_EXPERT_MATS; i++) {
		const size_t bytes = 2 * got.mat[i].n_out * got.mat[i].n_in;
		void *weights = copy_at(device, want->mat[i].data, bytes);

		assert_at(got.mat[i].data, weights, bytes);
		free(weights);
	}
}

/* A RUN of one expert: what the answer's code is. When it is good, so are the weights. */
static int use(struct loader_cache_world *w, uint32_t expert, struct od_schedule_item *item)
{
	struct od_schedule_item *got;

	*item = (struct od_schedule_item){ .expert = expert, .last = true };
	assert_int_equal(od_schedule_run(w->s, SESSION, ++w->step, LAYER, true, item, 1), OD_OK);
	while ((got = od_schedule_take(w->s)) == NULL)
		sem_wait(&w->ready);
	assert_ptr_equal(got, item);
	if (item->code != OD_OK)
		return item->code;
	check_weights(w, item);
	od_schedule_done(w->s, item);
	return OD_OK;
}

/* Experts 0 to 3 (without pool C: 2) fill the pools in their order, for good. */
static uint32_t fill_pools(struct loader_cache_world *w)
{
	const uint32_t n = w->form == OD_FORM_PLAIN ? 4 : 3;
	struct od_schedule_item item;

	for (uint32_t e = 0; e < n; e++) {
		for (uint32_t i = 0; i < 2 * n - e; i++)
			assert_int_equal(use(w, e, &item), OD_OK);
	}
	return n;
}

/* OD_FORM_PLAIN */
static const enum od_cache_state states[2][4] = { { OD_CACHE_F, OD_CACHE_C, OD_CACHE_S, OD_CACHE_E },
						  { OD_CACHE_F, OD_CACHE_S, OD_CACHE_E } };

static const unsigned missing[] = { 0, 0, OD_SET_E, OD_SET_SM, OD_SET_STORED }; /* by state */

static void only_what_is_missing_is_read(void **state)
{
	struct od_schedule_item item;
	struct loader_cache_world w;

	(void)state;
	for (int form = 0; form < OD_N_FORMS; form++) {
		open_world(&w, (enum od_form)form);
		for (uint32_t round = 0, n = fill_pools(&w); round < 3; round++) {
			for (uint32_t e = 0; e < n; e++) {
				assert_int_equal(use(&w, e, &item), OD_OK);
				assert_int_equal(item.cached, states[form][e]);
				assert_int_equal(item.loaded_bytes, stored_bytes(e, missing[item.cached]));
				assert_int_equal(item.ready, item.cached == OD_CACHE_F);
			}
			assert_int_equal(use(&w, n + round, &item), OD_OK); /* seldom used: it leaves no trace */
			assert_int_equal(item.cached, OD_CACHE_NONE);
			assert_int_equal(item.loaded_bytes, stored_bytes(n + round, OD_SET_STORED));
			assert_int_equal(od_expert_cache_has(w.cache, LAYER, n + round), 0);
		}
		close_world(&w);
	}
}

static void flip(uint64_t offset)
{
	uint8_t b;

	assert_int_equal(pread(fd, &b, 1, (off_t)offset), 1);
	b ^= 0x10;
	assert_int_equal(pwrite(fd, &b, 1, (off_t)offset), 1);
}

/* Kept data was checked once, and is not checked again; data that is read is. */
static void damage_is_found_where_it_is_read(void **state)
{
	struct od_schedule_item item;
	struct loader_cache_world w;

	(void)state;
	for (int form = 0; form < OD_N_FORMS; form++) {
		open_world(&w, (enum od_form)form);
		for (uint32_t e = 0, n = fill_pools(&w); e < n; e++) {
			const struct od_shard *s = &od_pack_expert(pack, LAYER, e)->shard[1];
			const enum od_cache_state kept = states[form][e];

			flip(s->sm.offset);
			assert_int_equal(use(&w, e, &item), kept == OD_CACHE_E ? OD_ERR_CORRUPT : OD_OK);
			flip(s->sm.offset);
			assert_int_equal(use(&w, e, &item), OD_OK);
			assert_int_equal(item.cached, kept); /* complete ones have come back */
			assert_int_equal(item.loaded_bytes, stored_bytes(e, missing[kept]));
			flip(s->e.offset + s->e.stored_bytes - 1);
			assert_int_equal(use(&w, e, &item), kept == OD_CACHE_S ? OD_ERR_CORRUPT : OD_OK);
			flip(s->e.offset + s->e.stored_bytes - 1);
			assert_int_equal(use(&w, e, &item), OD_OK);
			assert_int_equal(item.cached, kept);
		}
		close_world(&w);
	}
}

/* An expert that fails before it was ever whole is not kept, whatever the policy wants. */
static void what_never_was_whole_is_forgotten(void **state)
{
	struct od_schedule_item item;
	struct loader_cache_world w;

	(void)state;
	for (int form = 0; form < OD_N_FORMS; form++) {
		const struct od_shard *s = &od_pack_expert(pack, LAYER, 5)->shard[0];

		open_world(&w, (enum od_form)form);
		flip(s->sm.offset);
		assert_int_equal(use(&w, 5, &item), OD_ERR_CORRUPT);
		while (od_schedule_look(w.s, 0).state != OD_SLOT_FREE) /* other slices are still under way */
			sched_yield();
		assert_int_equal(od_expert_cache_look(w.cache, LAYER, 5), OD_CACHE_NONE);
		flip(s->sm.offset);
		assert_int_equal(use(&w, 5, &item), OD_OK);
		assert_int_equal(item.loaded_bytes, stored_bytes(5, OD_SET_STORED));
		assert_int_equal(use(&w, 5, &item), OD_OK);
		assert_int_equal(item.cached, OD_CACHE_F);
		close_world(&w);
	}
}

/* As a launch that a GPU refuses. */
static void refuse(struct od_device *d, enum od_queue q, const struct od_op *op)
{
	(void)q, (void)op;
	atomic_fetch_add(&d->load_errors, 1);
}

/* A puller, which is asked when a load fails, would pull again what is damaged. */
static void a_device_that_fails_is_no_damage(void **state)
{
	const struct od_device_ops *ops = device->ops;
	struct od_device_ops refusing = *ops;
	const struct od_shard *s = &od_pack_expert(pack, LAYER, 5)->shard[0];
	struct od_schedule_item item;
	struct loader_cache_world w;

	(void)state;
	refusing.run = refuse;
	device->ops = &refusing;
	open_world(&w, OD_FORM_PLAIN);
	assert_int_equal(use(&w, 5, &item), OD_ERR_IO);
	close_world(&w);
	assert_int_equal(w.n_missed, 0);
	device->ops = ops;
	open_world(&w, OD_FORM_PLAIN);
	flip(s->sm.offset);
	assert_int_equal(use(&w, 5, &item), OD_ERR_CORRUPT);
	close_world(&w);
	assert_true(w.n_missed > 0);
	flip(s->sm.offset);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_what_is_missing_is_read),
		cmocka_unit_test(damage_is_found_where_it_is_read),
		cmocka_unit_test(what_never_was_whole_is_forgotten),
		cmocka_unit_test(a_device_that_fails_is_no_damage),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
