#include "common/residency/residency.h"

#include "common/base/log.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct od_residency {
	struct od_residency_opts o;
	struct od_expert_bufs *bufs;
	struct od_expert_cache *cache; /* NULL: none */
	struct od_schedule *schedule;
	struct od_loaders *loaders;

	pthread_mutex_t lock; /* taken before the locks of schedule and buffers */
	uint64_t cache_bytes, more_bytes; /* od_residency_divide */
	_Atomic uint64_t lack_bytes; /* changes under the lock */
	unsigned n_calm; /* loads and steps since memory was missing, or looked for */
};

#define CALM 64 /* a look at free memory is short beside so many loads or steps */
#define FREE_DIVISOR 2 /* the other program may be about to take more */

/* ---- Sizes ---- */

static void sum_up(struct od_residency_sizes *s, uint32_t n_moe)
{
	s->least_bytes = UINT64_MAX;
	for (uint32_t m = 0; m < n_moe; m++) {
		const uint64_t bytes = s->slot_bytes[m];

		s->largest = bytes > s->most_bytes ? m : s->largest;
		s->most_bytes = bytes > s->most_bytes ? bytes : s->most_bytes;
		s->least_bytes = bytes < s->least_bytes ? bytes : s->least_bytes;
		s->mean_bytes += bytes;
	}
	s->mean_bytes /= n_moe;
}

int od_residency_measure(struct od_residency_sizes *s, const struct od_pack *pack, const struct od_device *d,
			 enum od_form form, struct od_err *err)
{
	const struct od_buf_sizes *used = od_pack_layer_sizes(pack);
	const uint32_t n_moe = od_pack_config(pack)->n_moe;

	*s = (struct od_residency_sizes){ 0 };
	s->slot_bytes = calloc(n_moe, sizeof(*s->slot_bytes));
	if (s->slot_bytes == NULL)
		return od_fail(err, OD_ERR_NOMEM, "sizes of %u layers", n_moe);
	for (int i = 0; i < OD_N_EXPERT_BUFS; i++)
		s->buf_bytes[i] = od_pack_buf_bytes(pack, (enum od_expert_buf)i);
	s->lends = od_expert_bufs_lend(d, od_form_bufs(form), s->buf_bytes);
	for (uint32_t m = 0; m < n_moe; m++)
		s->slot_bytes[m] = od_expert_bufs_memory(d, od_form_bufs(form), s->buf_bytes, used[m].bytes);
	sum_up(s, n_moe);
	return OD_OK;
}

void od_residency_sizes_fini(struct od_residency_sizes *s)
{
	free(s->slot_bytes);
	*s = (struct od_residency_sizes){ 0 };
}

/* ---- The store ---- */

/* Experts that the cache can keep in slots, in addition to n_slots. */
static uint32_t most_kept(const struct od_residency_opts *o)
{
	const struct od_config *cfg = od_pack_config(o->pack);
	const uint64_t all = (uint64_t)cfg->n_moe * cfg->n_experts, fit = o->cache_bytes / o->sizes->least_bytes;

	return (uint32_t)(fit < all ? fit : all);
}

static int make_bufs(struct od_residency *r, struct od_err *err)
{
	const struct od_residency_opts *o = &r->o;
	struct od_expert_bufs_opts bo = { .device = o->device,
					  .slot = od_form_bufs(o->form),
					  .n = o->n_slots + most_kept(o),
					  .layer = od_pack_layer_sizes(o->pack),
					  .n_moe = od_pack_config(o->pack)->n_moe,
					  .together = o->together,
					  .limit_bytes = o->slots_bytes + o->cache_bytes };

	memcpy(bo.bytes, o->sizes->buf_bytes, sizeof(bo.bytes));
	return od_expert_bufs_new(&r->bufs, &bo, err);
}

/* Where memory is committed, that of the slots is there from the beginning, and stays: so an expert can always be
 * loaded, whatever other programs and texts take. */
static int commit_slots(struct od_residency *r, struct od_err *err)
{
	const uint32_t m = r->o.sizes->largest;
	const uint64_t n = r->o.slots_bytes / r->o.sizes->most_bytes;
	struct od_expert_mem *mem = calloc(n, sizeof(*mem));
	int rc = mem != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "slots of experts");

	for (uint64_t i = 0; rc == OD_OK && i < n; i++) {
		od_expert_bufs_fill(r->bufs, m, &mem[i]);
		rc = od_expert_mem_commit(r->o.pack, m, &mem[i], err);
		if (rc != OD_OK)
			(void)od_fail_within(err, "buffer %" PRIu64 " of %" PRIu64, i + 1, n);
	}
	for (uint64_t i = 0; mem != NULL && i < n; i++)
		od_expert_bufs_put(r->bufs, m, &mem[i]);
	free(mem);
	return rc;
}

static int make_schedule(struct od_residency *r, struct od_err *err)
{
	const struct od_residency_opts *o = &r->o;
	const struct od_config *cfg = od_pack_config(o->pack);
	const struct od_schedule_opts so = { .n_moe = cfg->n_moe,
					     .n_experts = cfg->n_experts,
					     .n_slices = od_slices(o->device, od_pack_expert(o->pack, 0, 0)->n_shards),
					     .n_slots = o->n_slots,
					     .slot_bytes = o->sizes->slot_bytes,
					     .slots_bytes = o->slots_bytes,
					     .bufs = r->bufs,
					     .cache = r->cache,
					     .max_pinned = most_kept(o),
					     .n_stages = od_loader_stages(o->n_readers, o->n_inflaters) };

	return od_schedule_new(&r->schedule, &so, err);
}

int od_residency_new(struct od_residency **out, const struct od_residency_opts *o, struct od_err *err)
{
	const struct od_config *cfg = od_pack_config(o->pack);
	struct od_residency *r = calloc(1, sizeof(*r));
	int rc;

	*out = NULL;
	if (r == NULL)
		return od_fail(err, OD_ERR_NOMEM, "store of experts");
	pthread_mutex_init(&r->lock, NULL);
	r->o = *o;
	r->cache_bytes = o->cache_bytes;
	rc = make_bufs(r, err);
	if (rc == OD_OK && o->sizes->lends && od_device_commits(o->device))
		rc = commit_slots(r, err);
	if (rc == OD_OK && o->cache_bytes > 0)
		rc = od_expert_cache_new(&r->cache, cfg->n_moe, cfg->n_experts, o->sizes->slot_bytes, o->cache_bytes,
					 err);
	if (rc == OD_OK)
		rc = make_schedule(r, err);
	if (rc != OD_OK) {
		od_residency_free(r);
		return rc;
	}
	*out = r;
	return OD_OK;
}

int od_residency_choose_read_mode(struct od_residency *r, enum od_read_mode asked, uint64_t free_bytes, bool *direct,
				  struct od_err *err)
{
	const uint32_t m = r->o.sizes->largest; /* it reads experts of any layer */
	struct od_expert_mem mem = { 0 };
	const struct od_read_mode_opts o = { .pack = r->o.pack,
					     .device = r->o.device,
					     .form = r->o.form,
					     .mem = &mem,
					     .n_readers = r->o.n_readers,
					     .asked = asked,
					     .free_bytes = free_bytes };
	int rc;

	od_expert_bufs_fill(r->bufs, m, &mem);
	rc = od_expert_mem_commit(r->o.pack, m, &mem, err);
	if (rc == OD_OK)
		rc = od_read_mode_choose(direct, &o, err);
	od_expert_bufs_put(r->bufs, m, &mem);
	if (rc == OD_OK && (*direct || asked != OD_READ_DIRECT))
		od_log(OD_LOG_INFO, "experts are read %s the page cache", *direct ? "past" : "through");
	return rc;
}

/* ---- Memory that others have ---- */

static uint64_t less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Under the lock. */
static void divide(struct od_residency *r)
{
	const uint64_t bytes = r->o.slots_bytes + r->more_bytes, n = bytes / r->o.sizes->least_bytes,
		       cache = min_u64(less(r->cache_bytes, r->lack_bytes), less(r->o.cache_bytes, r->more_bytes));

	od_schedule_divide(r->schedule, cache, (unsigned)min_u64(n, OD_MAX_SLOTS), bytes);
	od_expert_bufs_set_limit(r->bufs, bytes + cache);
}

void od_residency_divide(struct od_residency *r, uint64_t cache_bytes, uint64_t more_bytes)
{
	pthread_mutex_lock(&r->lock);
	r->cache_bytes = cache_bytes;
	r->more_bytes = more_bytes;
	divide(r);
	pthread_mutex_unlock(&r->lock);
}

uint64_t od_residency_lack_bytes(const struct od_residency *r)
{
	return r->lack_bytes;
}

/* Under the lock: the device has what the experts' buffers have, and so much more. */
static uint64_t lack(const struct od_residency *r, uint64_t more)
{
	return less(r->o.slots_bytes + r->more_bytes + r->cache_bytes, od_expert_bufs_taken(r->bufs) + more);
}

static void note_lack(struct od_residency *r)
{
	pthread_mutex_lock(&r->lock);
	r->lack_bytes = lack(r, 0);
	r->n_calm = 0;
	pthread_mutex_unlock(&r->lock);
}

void od_residency_regain(struct od_residency *r)
{
	if (r->lack_bytes == 0)
		return;
	pthread_mutex_lock(&r->lock);
	if (++r->n_calm >= CALM) {
		r->lack_bytes = min_u64(r->lack_bytes, lack(r, od_device_free_now_bytes(r->o.device) / FREE_DIVISOR));
		r->n_calm = 0;
		divide(r);
	}
	pthread_mutex_unlock(&r->lock);
}

/* job NULL: for others than experts. */
static bool give_way(struct od_residency *r, const struct od_load_job *job, uint64_t bytes, uint64_t least)
{
	bool any = od_schedule_keep_less(r->schedule, job, bytes);

	/* Also if none is kept: a load thread may have let the last ones go, and their memory is still here. */
	any = od_expert_bufs_give_back(r->bufs, bytes, least) || any;
	note_lack(r);
	return any;
}

bool od_residency_give_way(struct od_residency *r, uint64_t bytes)
{
	return give_way(r, NULL, bytes, r->o.slots_bytes);
}

/* On a load thread. */
static int commit(void *arg, const struct od_load_job *job, struct od_err *err)
{
	struct od_residency *r = arg;
	int rc;

	if (job->slice == 0)
		od_residency_regain(r);
	do
		rc = od_expert_mem_commit(r->o.pack, job->m, &job->mem, err);
	while (rc == OD_ERR_NOMEM && give_way(r, job, r->o.sizes->slot_bytes[job->m], 0));
	return rc == OD_ERR_NOMEM ? od_fail_within(err, OD_LACKS_MEMORY) : rc;
}

/* ---- Threads ---- */

int od_residency_start(struct od_residency *r, const struct od_residency_calls *calls, struct od_err *err)
{
	const struct od_loader_opts lo = { .pack = r->o.pack,
					   .device = r->o.device,
					   .form = r->o.form,
					   .schedule = r->schedule,
					   .n_readers = r->o.n_readers,
					   .n_inflaters = r->o.n_inflaters,
					   .commit = commit,
					   .commit_arg = r,
					   .read = calls->read,
					   .read_arg = calls->read_arg,
					   .missed = calls->missed,
					   .missed_arg = calls->missed_arg,
					   .wake = calls->wake,
					   .wake_arg = calls->wake_arg };

	return od_loaders_start(&r->loaders, &lo, err);
}

void od_residency_stop(struct od_residency *r)
{
	if (r == NULL)
		return;
	if (r->schedule != NULL)
		od_schedule_stop(r->schedule);
	od_loaders_stop(r->loaders);
	r->loaders = NULL;
}

void od_residency_free(struct od_residency *r)
{
	if (r == NULL)
		return;
	od_residency_stop(r);
	od_schedule_free(r->schedule);
	od_expert_cache_free(r->cache);
	od_expert_bufs_free(r->bufs);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

struct od_schedule *od_residency_schedule(const struct od_residency *r)
{
	return r != NULL ? r->schedule : NULL;
}

struct od_expert_bufs *od_residency_bufs(const struct od_residency *r)
{
	return r->bufs;
}
