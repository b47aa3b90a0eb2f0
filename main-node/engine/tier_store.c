#include "main-node/engine/tier_store.h"

#include "common/base/args.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/compute/open_device.h"
#include "common/residency/host_tier.h"
#include "main-node/engine/state_plan.h"
#include "main-node/engine/tier_pressure.h"

#include <pthread.h>
#include <stdlib.h>

#define LOOK_STEPS 64

struct odm_tier_store {
	const struct odm_model *model;
	const struct od_config *config;
	struct od_device *device;
	struct od_host_tier *host; /* NULL: none */
	struct od_device *host_cpu; /* NULL: none */
	struct od_residency *residency;
	struct od_schedule *schedule;
	struct odm_tier_pressure *pressure;
	uint64_t slots_bytes;

	pthread_mutex_t lock;
	pthread_cond_t left; /* all has become NULL */
	const struct od_expert *all; /* odm_tier_store_all() */
	struct od_expert *table; /* stays when all is NULL, because a GPU has its own for it; NULL: not needed yet */
	bool leave; /* memory is needed: the engine gives up the table as soon as it can */
	bool may_hold_all; /* all experts fit into the cache's budget */
	unsigned n_open, n_looks; /* open steps; steps that looked whether all experts are back */

	/* Memory of kept experts and of pages in use. */
	pthread_mutex_t budget_lock; /* taken before lock */
	uint64_t shared_bytes, cache_bytes; /* their sum, as free host memory allows now; most for experts */
	bool streams; /* whole layers are loaded; changed by the engine thread alone */
	uint64_t page_bytes, n_pages; /* bytes; pages in use */
};

struct od_schedule *odm_tier_store_schedule(const struct odm_tier_store *s)
{
	return s->schedule;
}

const struct od_host_tier *odm_tier_store_host(const struct odm_tier_store *s)
{
	return s->host;
}

struct od_device *odm_tier_store_host_cpu(const struct odm_tier_store *s)
{
	return s->host_cpu;
}

/* ---- All experts in memory, until it is needed ---- */

const struct od_expert *odm_tier_store_all(const struct odm_tier_store *s)
{
	return s->all;
}

/* Under the lock. */
static void leave_all(struct odm_tier_store *s)
{
	s->all = NULL;
	s->leave = false;
	pthread_cond_signal(&s->left);
}

/* On the engine thread. Operations that read the experts are waited for; an error is left for the next wait to
 * report. */
static void leave_all_now(struct odm_tier_store *s)
{
	struct od_device *d = s->device;

	if (od_device_wait(d, OD_QUEUE_COMPUTE, od_device_ticket(d, OD_QUEUE_COMPUTE), NULL) != OD_OK)
		od_log(OD_LOG_DEBUG, "the device failed before its experts left memory");
	pthread_mutex_lock(&s->lock);
	leave_all(s);
	pthread_mutex_unlock(&s->lock);
}

void odm_tier_store_leave_all(struct odm_tier_store *s)
{
	bool leave;

	if (s->all == NULL)
		return;
	pthread_mutex_lock(&s->lock);
	leave = s->leave;
	pthread_mutex_unlock(&s->lock);
	if (leave)
		leave_all_now(s);
}

/* With all experts pinned, a step is as with --resident. Too little memory for the table: it stays as it is. */
void odm_tier_store_enter_all(struct odm_tier_store *s)
{
	const size_t n_experts = s->config->n_experts, n = s->config->n_moe * n_experts;
	struct od_expert_mem *mem = calloc(n, sizeof(*mem));

	if (s->table == NULL)
		s->table = calloc(n, sizeof(*s->table));
	if (mem != NULL && s->table != NULL && od_schedule_all_pinned(s->schedule, mem)) {
		for (size_t i = 0; i < n; i++)
			od_pack_bind(s->model->pack, (uint32_t)(i / n_experts), (uint32_t)(i % n_experts), &mem[i],
				     &s->table[i]);
		s->all = s->table;
	}
	free(mem);
}

/* Under the lock, before the only open step: now and then, whether all experts are back. */
static void look_for_all(struct odm_tier_store *s)
{
	if (s->all == NULL && s->may_hold_all && s->n_open == 1 && ++s->n_looks % LOOK_STEPS == 0)
		odm_tier_store_enter_all(s);
}

void odm_tier_store_open_step(struct odm_tier_store *s)
{
	od_residency_regain(s->residency);
	pthread_mutex_lock(&s->lock);
	s->n_open++;
	look_for_all(s);
	pthread_mutex_unlock(&s->lock);
}

void odm_tier_store_close_step(struct odm_tier_store *s)
{
	pthread_mutex_lock(&s->lock);
	s->n_open--;
	if (s->n_open == 0 && s->leave)
		leave_all(s);
	pthread_mutex_unlock(&s->lock);
}

/* ---- Memory of experts and pages ---- */

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Under budget_lock, as the next two: memory that pages leave. */
static uint64_t room(const struct odm_tier_store *s)
{
	return s->shared_bytes - min_u64(s->n_pages * s->page_bytes, s->shared_bytes);
}

/* Without what another program has of a card's memory. */
static uint64_t less_lack(const struct odm_tier_store *s, uint64_t bytes)
{
	return bytes - min_u64(od_residency_lack_bytes(s->residency), bytes);
}

static uint64_t cache_budget(const struct odm_tier_store *s)
{
	return min_u64(less_lack(s, room(s)), s->cache_bytes);
}

/* Under budget_lock: what slots take from the budget while whole layers are loaded ahead, one for each expert that a
 * layer lacks. */
static uint64_t stream_bytes(const struct odm_tier_store *s, uint64_t budget)
{
	const struct odm_tier_plan *p = &s->model->tiers;
	const uint64_t all = odm_tier_plan_all_bytes(p, s->config), lacks = all > budget ? all - budget : 0,
		       layer = lacks / s->config->n_moe;

	if (!s->streams || layer <= s->slots_bytes)
		return 0;
	return min_u64(layer - s->slots_bytes, budget / 2) / p->sizes.most_bytes * p->sizes.most_bytes;
}

/* Under budget_lock. */
static void divide_memory(struct odm_tier_store *s)
{
	const uint64_t more = stream_bytes(s, cache_budget(s)), bytes = room(s) - more;

	od_residency_divide(s->residency, bytes, more);
	pthread_mutex_lock(&s->lock);
	s->may_hold_all = min_u64(bytes, s->cache_bytes) >= odm_tier_plan_all_bytes(&s->model->tiers, s->config);
	pthread_mutex_unlock(&s->lock);
}

/* On the thread that follows free memory. */
static void resize(void *arg, uint64_t bytes)
{
	struct odm_tier_store *s = arg;

	pthread_mutex_lock(&s->lock);
	s->may_hold_all = false;
	s->leave = s->all != NULL;
	if (s->leave && s->n_open == 0)
		leave_all(s);
	while (s->all != NULL && s->leave)
		pthread_cond_wait(&s->left, &s->lock);
	pthread_mutex_unlock(&s->lock);
	pthread_mutex_lock(&s->budget_lock);
	s->shared_bytes = bytes;
	divide_memory(s);
	pthread_mutex_unlock(&s->budget_lock);
}

static uint64_t shared_bytes_in_use(void *arg)
{
	struct odm_tier_store *s = arg;
	const uint64_t taken = od_expert_bufs_taken(od_residency_bufs(s->residency));
	uint64_t bytes;

	pthread_mutex_lock(&s->budget_lock);
	bytes = s->n_pages * s->page_bytes + (taken > s->slots_bytes ? taken - s->slots_bytes : 0);
	pthread_mutex_unlock(&s->budget_lock);
	return bytes;
}

void odm_tier_store_stream(struct odm_tier_store *s, bool streams)
{
	if (s->streams == streams)
		return;
	pthread_mutex_lock(&s->budget_lock);
	s->streams = streams;
	divide_memory(s);
	pthread_mutex_unlock(&s->budget_lock);
}

uint64_t odm_tier_store_shared_bytes(struct odm_tier_store *s)
{
	uint64_t bytes;

	pthread_mutex_lock(&s->budget_lock);
	bytes = less_lack(s, s->shared_bytes);
	pthread_mutex_unlock(&s->budget_lock);
	return bytes;
}

/* The four are called on the engine thread, between layers. */
static uint32_t most_pages(void *arg)
{
	struct odm_tier_store *s = arg;

	return (uint32_t)min_u64(odm_tier_store_shared_bytes(s) / s->page_bytes, UINT32_MAX);
}

static bool holds_all(struct odm_tier_store *s)
{
	bool all;

	pthread_mutex_lock(&s->lock);
	all = s->all != NULL;
	pthread_mutex_unlock(&s->lock);
	return all;
}

static void take_pages(void *arg, uint32_t n)
{
	struct odm_tier_store *s = arg;

	pthread_mutex_lock(&s->budget_lock);
	s->n_pages += n;
	if (holds_all(s) && s->n_pages * s->page_bytes + odm_tier_plan_all_bytes(&s->model->tiers, s->config) >
				    less_lack(s, s->shared_bytes))
		leave_all_now(s);
	divide_memory(s);
	pthread_mutex_unlock(&s->budget_lock);
}

static void give_pages(void *arg, uint32_t n)
{
	struct odm_tier_store *s = arg;

	pthread_mutex_lock(&s->budget_lock);
	s->n_pages -= n;
	divide_memory(s);
	pthread_mutex_unlock(&s->budget_lock);
}

/* The card has less memory than was planned: experts and pages get less of it (od_residency_lack_bytes). */
static bool give_way(void *arg, uint64_t bytes)
{
	struct odm_tier_store *s = arg;

	od_log_limited(OD_LOG_WARN, "%s has less free memory than when this program started: fewer experts are kept",
		       od_device_name(s->device));
	if (holds_all(s))
		leave_all_now(s);
	return od_residency_give_way(s->residency, bytes);
}

int odm_tier_store_share(struct odm_tier_store *s, struct od_err *err)
{
	const struct od_state_sharing sharing = {
		.most = most_pages, .take = take_pages, .give = give_pages, .give_way = give_way, .arg = s
	};
	/* The plan left more, so that small changes of free memory change no budget. */
	const struct odm_tier_pressure_opts po = { .most_bytes = s->shared_bytes,
						   .reserve_bytes = s->model->tiers.reserve_bytes / 4 * 3,
						   .kept = shared_bytes_in_use,
						   .resize = resize,
						   .arg = s };

	if (s->model->shares_memory && s->page_bytes > 0)
		od_state_pool_share(s->model->state, &sharing);
	/* Memory that other programs take of a card is not followed. */
	if (s->shared_bytes == 0 || od_device_has_memory(s->device))
		return OD_OK;
	return odm_tier_pressure_start(&s->pressure, &po, err);
}

/* ---- Open and free ---- */

static int read_stored(void *arg, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
		       const struct od_expert_mem *mem, struct od_ref staging, struct od_shard_bytes *b,
		       struct od_err *err)
{
	const struct odm_tier_store *s = arg;

	if (s->host != NULL)
		return od_host_tier_read(s->host, m, expert, first, n, mem, staging, b, err);
	return od_shards_read(s->model->pack, m, expert, first, n, mem, staging, b, err);
}

static int choose_read_mode(struct odm_tier_store *s, struct od_err *err)
{
	const uint64_t free_bytes = od_available_ram_bytes(), taken = od_device_has_memory(s->device) ?
									      odm_tier_plan_host_bytes() :
									      s->model->tiers.expert_bytes;
	bool direct;

	return od_residency_choose_read_mode(s->residency, (enum od_read_mode)s->model->opts.read_mode,
					     free_bytes > taken ? free_bytes - taken : 0, &direct, err);
}

/* The store's parts, without its threads. */
static int make_residency(struct odm_tier_store *s, uint64_t session, struct od_err *err)
{
	const struct odm_tier_plan *p = &s->model->tiers;
	const struct odm_tier_division d = odm_tier_plan_divide(p, s->config->top_k);
	const struct od_residency_opts o = { .pack = s->model->pack,
					     .device = s->device,
					     .form = s->model->form,
					     .sizes = &p->sizes,
					     .n_slots = d.n_slots,
					     .slots_bytes = d.slots_bytes,
					     .cache_bytes = d.cache_bytes,
					     .together = true,
					     .n_readers = p->n_readers,
					     .n_inflaters = p->n_inflaters };
	const struct od_share whole = { .n_workers = 1, .worker = 0, .n_groups = 1 };
	char a[32], b[32];
	int rc = od_residency_new(&s->residency, &o, err);

	if (rc == OD_OK)
		rc = choose_read_mode(s, err);
	if (rc != OD_OK)
		return rc;
	s->schedule = od_residency_schedule(s->residency);
	od_schedule_begin(s->schedule, session);
	od_schedule_place(s->schedule, &whole);
	od_schedule_favour_recent(s->schedule, s->config->prior.recent > 0);
	od_log(OD_LOG_INFO, "experts: %s of memory to keep them (%s), %s for those that are loaded and computed%s",
	       od_format_bytes(d.cache_bytes, a, sizeof(a)), od_form_names[s->model->form],
	       od_format_bytes(d.slots_bytes, b, sizeof(b)),
	       s->model->dense_choice == OD_DENSE_WITHOUT_TABLES ? "; embeddings are read from the file" : "");
	s->slots_bytes = d.slots_bytes;
	s->cache_bytes = d.cache_bytes;
	s->shared_bytes = p->shared_bytes - d.slots_bytes;
	s->page_bytes = odm_state_plan_page_bytes(s->model);
	return OD_OK;
}

/* For a card that may lack experts, also if only while texts have its memory. Nothing has been loaded yet, but the load
 * threads have what they pin. */
static int open_host_tier(struct odm_tier_store *s, struct od_err *err)
{
	const struct odm_engine_opts *o = &s->model->opts;
	struct od_err why;
	int rc;

	if (!od_device_has_memory(s->device) ||
	    (odm_tier_plan_holds_all(&s->model->tiers, s->config) && !s->model->shares_memory))
		return OD_OK;
	if (od_device_open_beside(&s->host_cpu, s->device, o->profile, (enum od_cpu)o->cpu, (unsigned)o->threads,
				  "od-host", &why) != OD_OK)
		od_log(OD_LOG_INFO, "experts in host memory are not computed there: %s", why.msg);
	rc = od_host_tier_new(&s->host, s->model->pack, s->device, s->host_cpu, odm_tier_plan_host_bytes(), err);
	if (od_host_tier_form(s->host) < 0) { /* they would have nothing to compute on */
		od_device_free(s->host_cpu);
		s->host_cpu = NULL;
	}
	return rc;
}

void odm_tier_store_free(struct odm_tier_store *s)
{
	if (s == NULL)
		return;
	/* The thread that follows free memory ends first. A step may still be open, so it must not wait for its end. */
	pthread_mutex_lock(&s->lock);
	leave_all(s);
	pthread_mutex_unlock(&s->lock);
	odm_tier_pressure_stop(s->pressure);
	od_residency_free(s->residency);
	od_host_tier_free(s->host);
	od_device_free(s->host_cpu);
	pthread_mutex_destroy(&s->lock);
	pthread_mutex_destroy(&s->budget_lock);
	pthread_cond_destroy(&s->left);
	free(s->table);
	free(s);
}

int odm_tier_store_new(struct odm_tier_store **out, const struct odm_tier_store_opts *o, struct od_err *err)
{
	struct odm_tier_store *s = calloc(1, sizeof(*s));
	const struct od_residency_calls calls = {
		.read = read_stored, .read_arg = s, .wake = o->wake, .wake_arg = o->wake_arg
	};
	int rc;

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "store of experts");
	pthread_mutex_init(&s->lock, NULL);
	pthread_mutex_init(&s->budget_lock, NULL);
	pthread_cond_init(&s->left, NULL);
	s->model = o->model;
	s->config = o->model->config;
	s->device = o->device;
	rc = make_residency(s, o->session, err);
	if (rc == OD_OK)
		rc = od_residency_start(s->residency, &calls, err);
	if (rc == OD_OK)
		rc = open_host_tier(s, err);
	if (rc != OD_OK) {
		odm_tier_store_free(s);
		return rc;
	}
	*out = s;
	return OD_OK;
}
