/* od-worker: loads, decompresses, runs and evicts experts on main's requests. This file connects the parts: command
 * line, memory budget, the daemon's callbacks. */
#include "common/base/clock.h"
#include "common/base/hangup.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/compute/cards.h"
#include "common/compute/cpu/cpu.h"
#include "common/compute/device.h"
#include "common/compute/open_device.h"
#include "common/daemon/daemon.h"
#include "common/daemon/daemon_args.h"
#include "common/net/endpoint.h"
#include "common/net/hosts.h"
#include "common/pack/load/expert_form.h"
#include "common/pack/pack_layout.h"
#include "common/pair/pair_join.h"
#include "common/residency/residency.h"
#include "worker-node/paced_reader.h"
#include "worker-node/memory_plan.h"
#include "worker-node/pull/spool_begin.h"
#include "worker-node/run_check.h"
#include "worker-node/sum_reports.h"
#include "worker-node/worker_engine.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_MEMORY_BYTES 1000000000u
#define MAX_PACE_MS 60000
#define USUAL_SPOOL "/var/lib/od-moe/spool"
#define MAX_CACHE_MIB (1u << 30)

static struct od_daemon_about about = {
	.role = "worker",
	.port = OD_DEFAULT_WORKER_PORT,
	.usage = "Usage: od-worker [--pack MODEL | --store ADDR --spool DIR] [--listen ADDR]\n"
		 "       od-worker join [--enable] WORDS [ADDRESS]   (od-worker join --help)\n"
		 "Loads and runs the experts that od-main asks for, within a fixed amount of memory.\n",
};

struct worker_options {
	struct od_daemon_args common;
	uint64_t memory_bytes, slots, read_threads, load_threads;
	int form; /* enum od_form, OD_FORM_AUTO */
	int read_mode; /* enum od_read_mode */
	uint64_t cache_mib; /* 0: none */
	double load_time_ms, run_time_ms; /* paced, for experiments; 0: as fast as it goes */
	const char *store, *spool; /* NULL: the pack is here */
	uint64_t spool_limit_bytes; /* UINT64_MAX: none */
};

struct worker_daemon {
	struct worker_options opt;
	struct od_device *device;
	struct od_pack *pack;
	const struct od_config *cfg;
	struct odw_puller *puller; /* NULL: nothing is pulled */
	enum od_form form;
	struct od_residency_sizes sizes;
	struct odw_memory_plan memory;
	struct od_residency *residency;
	struct od_schedule *schedule; /* the residency's */
	struct odw_engine *engine;
	struct odw_paced_reader paced; /* --load-time */
	struct od_keys *keys; /* NULL: none */
	struct od_daemon *daemon;
	struct odw_session session; /* loop thread: accepted, then begun */
	bool recent; /* with it: texts prefer the experts that they used last */
	uint8_t *holds; /* with a spool: a bit per expert, as in PONG */
	uint64_t holds_sent; /* the change count that was last sent to main; UINT64_MAX: none */
	uint8_t *cached; /* with a cache: a byte per expert */
	uint64_t cached_sent; /* the change count that was last sent to main */
	struct odw_sum_reports *sums; /* NULL: none are sent */
	struct od_load_figures watched; /* as the watchdog's last look found them */
};

/* ---- Messages of main ---- */

static struct odw_run_limits limits_of(const struct worker_daemon *w)
{
	return (struct odw_run_limits){ .n_moe = w->cfg->n_moe,
					.n_experts = w->cfg->n_experts,
					.hidden = w->cfg->hidden,
					.max_rows = w->session.max_rows,
					.profile = w->session.profile };
}

static int accept_profile(struct worker_daemon *w, const Od__Hello *hello, const char **field, struct od_err *err)
{
	const char *own_class;
	char class[32];
	int rc;

	*field = "profile";
	if (hello->profile != OD_PROFILE_F32 && hello->profile != OD_PROFILE_BF16)
		return od_fail(err, OD_ERR_MISMATCH, "profile: expected %d (f32) or %d (bf16), found %u",
			       OD_PROFILE_F32, OD_PROFILE_BF16, hello->profile);
	w->session.profile = (enum od_profile)hello->profile;
	rc = od_backend_cpu(&w->session.host, (enum od_cpu)w->opt.common.cpu, w->session.profile, err);
	if (rc != OD_OK)
		return rc;
	own_class = od_device_kernel_class(w->device, w->session.profile);
	*field = "kernel_class";
	if (strcmp(own_class, hello->kernel_class) != 0 && !hello->mixed)
		return od_fail(
			err, OD_ERR_MISMATCH,
			"kernel_class: expected %s, found %s (%s kernels on this worker): results would differ in "
			"their last bits; choose kernels of one class with --cpu, of od-main or here, or allow it with od-main's --mixed",
			od_peer_text(hello->kernel_class, class, sizeof(class)), own_class,
			od_device_kernels(w->device, w->session.profile));
	return OD_OK;
}

static int on_hello(void *arg, const Od__Hello *hello, Od__Welcome *welcome, const char **field, struct od_err *err)
{
	struct worker_daemon *w = arg;
	uint32_t most;
	int rc = accept_profile(w, hello, field, err);

	if (rc != OD_OK)
		return rc;
	most = odw_max_rows(w->cfg->hidden, w->session.profile);
	*field = "max_rows";
	if (hello->max_rows == 0)
		return od_fail(err, OD_ERR_RANGE, "max_rows: expected at least 1, found 0");
	/* Main's steps may be larger than one RUN. */
	w->session.max_rows = hello->max_rows < most ? hello->max_rows : most;
	w->recent = hello->recent_experts > 0;
	welcome->kernel_class = (char *)od_device_kernel_class(w->device, w->session.profile);
	welcome->backend = (char *)od_device_name(w->device);
	welcome->slots = odw_memory_slots(&w->memory, &w->sizes);
	welcome->memory_bytes = w->opt.memory_bytes;
	welcome->threads = (uint32_t)w->opt.common.threads;
	welcome->spool = od_pack_is_spool(w->pack);
	welcome->sealed = welcome->spool && w->opt.spool == NULL;
	welcome->cache_bytes = w->opt.cache_mib << 20;
	welcome->cache_experts = welcome->cache_bytes / w->sizes.mean_bytes;
	return OD_OK;
}

static void on_begin(void *arg, uint64_t session)
{
	struct worker_daemon *w = arg;

	w->session.id = session;
	w->holds_sent = w->cached_sent = UINT64_MAX;
	odw_sum_reports_restart(w->sums);
	od_schedule_begin(w->schedule, session);
	od_schedule_favour_recent(w->schedule, w->recent);
	odw_engine_begin(w->engine, &w->session);
	od_log(OD_LOG_INFO, "profile %s, %s kernels (class %s)", od_profile_names[w->session.profile - 1],
	       od_device_kernels(w->device, w->session.profile), od_device_kernel_class(w->device, w->session.profile));
}

static void on_end(void *arg, uint64_t session)
{
	struct worker_daemon *w = arg;
	struct od_load_figures f;
	const uint64_t *c = f.c;

	od_schedule_end(w->schedule, session);
	odw_engine_end(w->engine);
	od_schedule_figures(w->schedule, &f);
	if (c[OD_C_LOADS] > 0 && c[OD_C_READS] > 0 && c[OD_C_FINISHES] > 0)
		od_log(OD_LOG_INFO, "%" PRIu64 " loads; mean per part: %.2f ms to read, %.2f ms to check and inflate",
		       c[OD_C_LOADS], (double)c[OD_C_READ_NS] / (double)c[OD_C_READS] / OD_NS_PER_MS,
		       (double)c[OD_C_FINISH_NS] / (double)c[OD_C_FINISHES] / OD_NS_PER_MS);
}

static int on_want(struct worker_daemon *w, uint64_t session, const Od__Want *want, struct od_err *err)
{
	const struct odw_run_limits limits = limits_of(w);
	size_t n_dropped;
	int rc = odw_check_want(want, &limits, err);

	if (rc != OD_OK)
		return rc;
	n_dropped = od_schedule_want(w->schedule, session, want->step, want->m, want->version, want->experts,
				     want->n_experts, want->prompt);
	if (n_dropped > 0)
		od_log_limited(OD_LOG_WARN, "dropped %zu experts of a WANT: the queue is full (%u)", n_dropped,
			       OD_MAX_ENTRIES);
	return OD_OK;
}

static int on_close(struct worker_daemon *w, uint64_t session, const Od__Close *close, struct od_err *err)
{
	const struct odw_run_limits limits = limits_of(w);
	int rc = odw_check_close(close, &limits, err);

	if (rc == OD_OK)
		od_schedule_close(w->schedule, session, close->step, close->m);
	return rc;
}

static int on_place(struct worker_daemon *w, const Od__Place *place, struct od_err *err)
{
	const struct od_share share = { place->n_workers, place->worker, place->n_groups };

	if (!od_share_good(&share))
		return od_fail(err, OD_ERR_RANGE, "PLACE: impossible worker %u of %u in %u groups", place->worker,
			       place->n_workers, place->n_groups);
	if (w->puller != NULL)
		odw_puller_place(w->puller, &share);
	od_schedule_place(w->schedule, &share);
	return OD_OK;
}

static int on_message(void *arg, const struct od_msg *m, struct od_err *err)
{
	struct worker_daemon *w = arg;

	switch (m->header->body_case) {
	case OD__HEADER__BODY_WANT: return on_want(w, m->header->session, m->header->want, err);
	case OD__HEADER__BODY_CLOSE: return on_close(w, m->header->session, m->header->close, err);
	case OD__HEADER__BODY_PLACE: return on_place(w, m->header->place, err);
	case OD__HEADER__BODY__NOT_SET:
	case OD__HEADER__BODY_HELLO: /* these four are the daemon's */
	case OD__HEADER__BODY_PING:
	case OD__HEADER__BODY_BYE:
	case OD__HEADER__BODY_WELCOME:
	case OD__HEADER__BODY_REFUSE:
	case OD__HEADER__BODY_PONG:
	case OD__HEADER__BODY_PREDICT:
	case OD__HEADER__BODY_ATTACH:
	case OD__HEADER__BODY_ATTACHED:
	case OD__HEADER__BODY_RUN:
	case OD__HEADER__BODY_RESULT:
	case OD__HEADER__BODY_STEP:
	case OD__HEADER__BODY_STATE:
	case OD__HEADER__BODY_STATE_REQUEST:
	case OD__HEADER__BODY_SEQ_TRUNCATE:
	case OD__HEADER__BODY_SEQ_CLOSE:
	case OD__HEADER__BODY_SEQ_OPEN:
	case OD__HEADER__BODY_TOKENS:
	case OD__HEADER__BODY_TOKENS_REQUEST:
	case OD__HEADER__BODY_PARTS:
	case OD__HEADER__BODY_PART_OPEN:
	case OD__HEADER__BODY_PART_READY:
	case OD__HEADER__BODY_PART_RUN:
	case OD__HEADER__BODY_PART_LAYER:
	case OD__HEADER__BODY_PART_RESULT:
	case OD__HEADER__BODY_PART_STATE:
	case OD__HEADER__BODY_PART_COMMIT:
	case OD__HEADER__BODY_STORE_HELLO:
	case OD__HEADER__BODY_STORE_WELCOME:
	case OD__HEADER__BODY_FETCH:
	case OD__HEADER__BODY_CHUNK:
	case _OD__HEADER__BODY__CASE_IS_INT_SIZE: break;
	}
	return od_fail(err, OD_ERR_PROTOCOL, "expected WANT, CLOSE or PLACE on a worker's control socket");
}

/* This bounds the PONG's bit map of all experts: model.json has an object of five fields, one of 16 digits, per
 * expert. */
#define MIN_TABLE_BYTES_PER_EXPERT 64
_Static_assert(OD_MODEL_MAX_BYTES / MIN_TABLE_BYTES_PER_EXPERT / 8 <= OD_MAX_HEADER_BYTES / 2,
	       "holds must fit into a PONG");

/* Adds the set of experts on disk, if it has changed since it was last sent. */
static void send_holds(struct worker_daemon *w, Od__Pong *p, uint64_t changes)
{
	const size_t n = (size_t)w->cfg->n_moe * w->cfg->n_experts;

	if (changes == w->holds_sent)
		return;
	w->holds_sent = changes; /* read before the set: a change in between is sent again */
	p->holds.data = w->holds;
	p->holds.len = (n + 7) / 8;
	memset(w->holds, 0, p->holds.len);
	for (size_t i = 0; i < n; i++) {
		if (od_pack_has_expert(w->pack, (uint32_t)(i / w->cfg->n_experts), (uint32_t)(i % w->cfg->n_experts)))
			w->holds[i / 8] |= (uint8_t)(1u << i % 8);
	}
}

/* Adds which experts the cache keeps, if that has changed since it was last sent. */
static void send_cached(struct worker_daemon *w, Od__Pong *p)
{
	const size_t n = (size_t)w->cfg->n_moe * w->cfg->n_experts;

	if (!od_schedule_cached(w->schedule, &w->cached_sent, w->cached))
		return;
	p->cached.data = w->cached;
	p->cached.len = n;
}

static void on_pong(void *arg, Od__Pong *p, uint64_t *c)
{
	struct odw_pull_figures pull = { 0 };
	struct worker_daemon *w = arg;
	struct od_load_figures f;

	od_schedule_figures(w->schedule, &f);
	p->progress = f.progress;
	p->busy = f.busy;
	od_counters_add(c, f.c);
	c[OD_C_DEVICE_WAITS] = od_device_waits(w->device);
	c[OD_C_WORKER_COMPUTE_NS] = odw_engine_compute_ns(w->engine);
	if (w->puller != NULL)
		odw_puller_figures(w->puller, &pull);
	c[OD_C_PULLED_BYTES] = pull.pulled_bytes;
	c[OD_C_SPOOL_BYTES] = pull.whole_bytes;
	c[OD_C_SPOOL_GOAL_BYTES] = pull.goal_bytes;
	if (w->holds != NULL)
		send_holds(w, p, pull.changes);
	if (w->cached != NULL)
		send_cached(w, p);
	if (p->holds.len + p->cached.len <= OD_MAX_HEADER_BYTES / 2) /* else there may be no room */
		odw_sum_reports_fill(w->sums, p);
}

static void on_unsent(void *arg)
{
	struct worker_daemon *w = arg;

	w->holds_sent = w->cached_sent = UINT64_MAX;
	odw_sum_reports_restart(w->sums);
}

/* The engine; and readers and inflaters, whose progress the schedule counts: they are stuck if there was work at both
 * looks, and nothing of it was done in between. */
static bool on_alive(void *arg)
{
	struct worker_daemon *w = arg;
	const bool engine = odw_engine_alive(w->engine), was_busy = w->watched.busy;
	const uint64_t before = w->watched.progress;

	od_schedule_figures(w->schedule, &w->watched);
	return engine && (!was_busy || !w->watched.busy || w->watched.progress != before);
}

static int on_failed(void *arg, struct od_err *why)
{
	return od_device_failed(((struct worker_daemon *)arg)->device, why);
}

static bool on_drained(void *arg)
{
	struct worker_daemon *w = arg;

	return odw_engine_drained(w->engine);
}

static const struct od_daemon_ops daemon_ops = { .accept = on_hello,
						 .begin = on_begin,
						 .end = on_end,
						 .message = on_message,
						 .pong = on_pong,
						 .unsent = on_unsent,
						 .alive = on_alive,
						 .failed = on_failed,
						 .drained = on_drained };

/* ---- Start and end ---- */

/* Memory is taken as it is used: a worker that needs more than there is starts, and the kernel ends it later. */
static void say_memory(const struct worker_daemon *w)
{
	const struct odw_memory_plan *m = &w->memory;
	const uint64_t have = od_device_free_bytes(w->device);
	char a[32], b[32];

	const unsigned n = odw_memory_slots(m, &w->sizes);
	char more[80] = "";

	if (m->n_slots > n)
		snprintf(more, sizeof(more), ", or %u of %s, the smallest layers' experts,", m->n_slots,
			 od_format_bytes(w->sizes.least_bytes, a, sizeof(a)));
	od_log(OD_LOG_INFO, "%u slot%s of %s (%s)%s within %s", n, n > 1 ? "s" : "",
	       od_format_bytes(w->sizes.most_bytes, a, sizeof(a)), od_form_names[w->form], more,
	       od_format_bytes(w->opt.memory_bytes, b, sizeof(b)));
	if (have > 0 && !od_device_has_memory(w->device) && m->need_bytes > have)
		od_log(OD_LOG_WARN,
		       "this worker needs %s of memory, and %s are available: the kernel may end it; free some, or see --slots "
		       "and --cache-mib",
		       od_format_bytes(m->need_bytes, a, sizeof(a)), od_format_bytes(have, b, sizeof(b)));
}

static int make_memory(struct worker_daemon *w, struct od_err *err)
{
	const uint64_t all = (uint64_t)w->cfg->n_moe * w->cfg->n_experts;
	const struct odw_memory_opts mo = { .pack = w->pack,
					    .device = w->device,
					    .form = w->form,
					    .sizes = &w->sizes,
					    .limit_bytes = w->opt.memory_bytes,
					    .slots = w->opt.slots,
					    .cache_mib = w->opt.cache_mib,
					    .n_readers = (unsigned)w->opt.read_threads,
					    .n_inflaters = (unsigned)w->opt.load_threads,
					    .pulls = w->puller != NULL };
	struct od_residency_opts o = { .pack = w->pack,
				       .device = w->device,
				       .form = w->form,
				       .sizes = &w->sizes,
				       .n_readers = mo.n_readers,
				       .n_inflaters = mo.n_inflaters };
	int rc = od_residency_measure(&w->sizes, w->pack, w->device, w->form, err);

	if (rc == OD_OK)
		rc = odw_memory_plan(&w->memory, &mo, err);
	if (rc != OD_OK)
		return rc;
	say_memory(w);
	o.n_slots = w->memory.n_slots;
	o.slots_bytes = w->memory.slots_bytes;
	o.cache_bytes = w->memory.cache_bytes;
	rc = od_residency_new(&w->residency, &o, err);
	if (rc != OD_OK)
		return od_fail_within(err, "%u slots do not fit (see --memory-limit and --slots)", w->memory.n_slots);
	w->schedule = od_residency_schedule(w->residency);
	/* else it would not fit into a PONG: main then places as without a cache */
	if (w->opt.cache_mib == 0 || all >= OD_MAX_HEADER_BYTES / 2)
		return OD_OK;
	w->cached = malloc(all);
	return w->cached != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "cache");
}

static int use_device(struct worker_daemon *w, struct od_err *err)
{
	int rc = od_pack_choose_form(w->pack, w->device, w->opt.form, &w->form, err);

	return rc == OD_OK ? make_memory(w, err) : rc;
}

static void free_memory(struct worker_daemon *w)
{
	od_residency_free(w->residency);
	od_residency_sizes_fini(&w->sizes);
	free(w->cached);
	w->residency = NULL;
	w->schedule = NULL;
	w->cached = NULL;
}

/* Whether a GPU has room for what is made after the slots. */
static int check_room(const struct worker_daemon *w, struct od_err *err)
{
	struct od_buf *trial;
	int rc = od_buf_new(&trial, w->device, w->memory.beside_bytes, "rows and loads, beside the slots", err);

	od_buf_free(trial);
	return rc;
}

/* The form of experts in slots, and the slots, on the CPUs if --device auto finds no room on a GPU. */
static int choose_device(struct worker_daemon *w, struct od_err *err)
{
	int rc = use_device(w, err);

	if (rc == OD_OK && od_device_can_fall_back(w->device)) /* else it says itself what has no room */
		rc = check_room(w, err);
	if (rc == OD_OK)
		return rc;
	free_memory(w);
	rc = od_device_fall_back(&w->device, rc, (enum od_cpu)w->opt.common.cpu, (unsigned)w->opt.common.threads,
				 "od-compute", err);
	return rc == OD_OK ? use_device(w, err) : rc;
}

static uint64_t load_time_ns(const struct worker_daemon *w)
{
	return (uint64_t)(w->opt.load_time_ms * OD_NS_PER_MS);
}

static const char *why_not_direct(const struct worker_daemon *w)
{
	if (w->form == OD_FORM_PLAIN && w->opt.cache_mib == 0 && !od_pack_as_bytes(w->pack))
		return "direct reads need --resident-form planes or --cache-mib";
	if (w->form == OD_FORM_PLANES && !od_device_shares(w->device))
		return "the device has memory of its own, and experts as planes go there by way of a stage";
	return "the pack's file system does not support O_DIRECT";
}

static int choose_read_mode(const struct worker_daemon *w, struct od_err *err)
{
	const uint64_t ram = od_available_ram_bytes();
	bool direct;
	int rc = od_residency_choose_read_mode(w->residency, (enum od_read_mode)w->opt.read_mode,
					       ram > w->opt.memory_bytes ? ram - w->opt.memory_bytes : 0, &direct, err);

	if (rc == OD_OK && !direct && w->opt.read_mode == OD_READ_DIRECT)
		od_log(OD_LOG_WARN, "--read-mode direct: experts are read through the page cache: %s",
		       why_not_direct(w));
	return rc;
}

static int open_memory(struct worker_daemon *w, struct od_err *err)
{
	int rc = choose_device(w, err);

	return rc == OD_OK ? choose_read_mode(w, err) : rc;
}

static void wake_engine(void *port)
{
	od_data_port_wake(port);
}

static int ask_puller(void *puller, uint32_t m, uint32_t expert, uint64_t begin_ns, int code, struct od_err *err)
{
	return odw_puller_missed(puller, m, expert, begin_ns, code, err);
}

static int start_loads(struct worker_daemon *w, struct od_data_port *port, struct od_err *err)
{
	const bool is_paced = w->opt.load_time_ms > 0;
	const struct od_residency_calls calls = { .read = is_paced ? odw_paced_read : NULL,
						  .read_arg = &w->paced,
						  .missed = w->puller != NULL ? ask_puller : NULL,
						  .missed_arg = w->puller,
						  .wake = wake_engine,
						  .wake_arg = port };

	w->paced = (struct odw_paced_reader){
		.pack = w->pack, .schedule = w->schedule, .load_ns = load_time_ns(w), .lock = PTHREAD_MUTEX_INITIALIZER
	};
	return od_residency_start(w->residency, &calls, err);
}

static int open_daemon(struct worker_daemon *w, struct od_err *err)
{
	struct od_daemon_opts opts;
	struct odw_engine_opts engine = { .pack = w->pack,
					  .device = w->device,
					  .schedule = w->schedule,
					  .run_ns = (uint64_t)(w->opt.run_time_ms * OD_NS_PER_MS) };
	char where[400];
	int rc;

	od_daemon_args_fill(&w->opt.common, &about, w->keys, &opts);
	od_pack_fingerprint_bytes(w->pack, opts.fingerprint);
	opts.folder = od_pack_dir(w->pack);
	engine.puller = w->puller;
	rc = od_daemon_new(&w->daemon, &opts, &daemon_ops, w, &engine.port, err);
	if (rc == OD_OK)
		rc = odw_engine_start(&w->engine, &engine, err);
	if (rc == OD_OK)
		rc = start_loads(w, engine.port, err);
	if (rc != OD_OK)
		return rc;
	od_device_log_memory(w->device);
	od_log(OD_LOG_INFO, "listening on %s, port %u, data port %u",
	       od_daemon_args_where(&w->opt.common, w->keys, where, sizeof(where)), od_daemon_port(w->daemon),
	       od_data_port_number(engine.port));
	return OD_OK;
}

static int check_options(const struct worker_options *o, struct od_host *store, struct od_err *err)
{
	if (o->spool == NULL && o->common.pack != NULL && o->spool_limit_bytes != UINT64_MAX)
		return od_fail(err, OD_ERR_ARG, "--spool-limit needs --spool");
	if ((o->store == NULL) != (o->spool == NULL))
		return od_fail(err, OD_ERR_ARG,
			       "--store and --spool go together: --store ADDR is the source of the experts, "
			       "--spool DIR the folder to keep them in");
	if (o->spool == NULL)
		return OD_OK;
	if (o->common.pack != NULL)
		return od_fail(err, OD_ERR_ARG,
			       "--pack and --spool exclude each other: a spool is filled from the --store");
	return od_store_address(store, o->store, "--store", err);
}

static int open_keys(struct worker_daemon *w, const struct od_host *store, struct od_err *err)
{
	char far[300];

	snprintf(far, sizeof(far), "--store %s", w->opt.store != NULL ? w->opt.store : "");
	return od_daemon_args_keys(&w->opt.common, w->opt.store != NULL && !od_is_loopback(store->host) ? far : NULL,
				   &w->keys, err);
}

/* The store is main's, so its key is main's: the peer with the store's name, or the only peer. NULL: the store uses
 * none. */
static int choose_store_key(const struct worker_daemon *w, const struct od_host *store, const uint8_t **key,
			    struct od_err *err)
{
	int rc;

	*key = NULL;
	if (w->keys == NULL)
		return OD_OK;
	rc = od_keys_of_host(w->keys, store->host, store->port, key, err);
	if (rc == OD_OK && *key == NULL && w->keys->peers.n == 1)
		*key = w->keys->peers.peer[0].key;
	if (rc == OD_OK && *key == NULL)
		rc = od_fail(err, OD_ERR_ARG,
			     "%s lists %zu keys, and none of them has the name %s: write the store's host behind "
			     "its key there",
			     w->keys->peers_path, w->keys->peers.n, store->host);
	return rc;
}

/* Pulls now what the worker needs to serve; experts are pulled while it serves. */
static int open_spool(struct worker_daemon *w, const struct od_host *address, struct od_err *err)
{
	struct odw_puller_opts opts = { .dir = w->opt.spool, .limit_bytes = w->opt.spool_limit_bytes };
	struct od_curve curve = { .own = w->keys != NULL ? &w->keys->own : NULL };
	int rc = choose_store_key(w, address, &curve.server, err);

	if (rc == OD_OK)
		rc = od_spool_open(&opts.spool, w->opt.spool, err);
	if (rc == OD_OK)
		rc = odw_store_open(&opts.store, address, curve.server != NULL ? &curve : NULL, err);
	if (rc == OD_OK)
		rc = odw_spool_begin(opts.spool, opts.store, &w->pack, err);
	if (rc != OD_OK) {
		odw_store_close(opts.store);
		od_spool_close(opts.spool);
		return rc;
	}
	opts.pack = w->pack;
	return odw_puller_start(&w->puller, &opts, err);
}

/* The service's folder for what it keeps, as systemd names it. */
static const char *usual_spool(void)
{
	const char *dir = getenv("STATE_DIRECTORY");

	return dir != NULL && dir[0] == '/' && strchr(dir, ':') == NULL ? dir : USUAL_SPOOL;
}

/* A worker without a pack pulls from its main, if that can only be one: the only peer, whose name is main's address
 * (od-worker join writes it). err: why there is no pack. */
static int choose_main(struct worker_daemon *w, struct od_host *store, struct od_err *err)
{
	const struct od_peers *peers = w->keys != NULL ? &w->keys->peers : NULL;

	if (peers == NULL || peers->n != 1 || peers->peer[0].name[0] == '\0')
		return od_fail_within(err, "%s, so this worker needs a pack, --store and --spool, or od-worker join",
				      peers == NULL ? "without keys it has no main to pull from" :
				      peers->n == 1 ? "its peers file has no address behind main's key" :
						      "its peers file has several keys");
	w->opt.store = peers->peer[0].name;
	w->opt.spool = usual_spool();
	od_log(OD_LOG_INFO, "no pack here: pulls its share from main, %s, and keeps it in %s", w->opt.store,
	       w->opt.spool);
	return od_store_address(store, w->opt.store, w->keys->peers_path, err);
}

static int open_own_pack(struct worker_daemon *w, struct od_host *store, struct od_err *err)
{
	const char *named = getenv("OD_PACK");
	int rc = od_pack_open_some(&w->pack, w->opt.common.pack, err);

	if (rc == OD_ERR_MISSING && w->opt.common.pack == NULL && (named == NULL || named[0] == '\0')) {
		rc = choose_main(w, store, err);
		return rc == OD_OK ? open_spool(w, store, err) : rc;
	}
	if (rc == OD_OK && w->opt.spool_limit_bytes != UINT64_MAX)
		rc = od_fail(err, OD_ERR_ARG, "--spool-limit: there is a pack, %s, so nothing is pulled",
			     od_pack_dir(w->pack));
	return rc;
}

static int open_pack(struct worker_daemon *w, struct od_host *store, struct od_err *err)
{
	int rc = open_keys(w, store, err);

	if (rc != OD_OK)
		return rc;
	signal(SIGXFSZ, SIG_IGN); /* a file size limit is treated like a full disk */
	rc = w->opt.spool != NULL ? open_spool(w, store, err) : open_own_pack(w, store, err);
	if (rc != OD_OK)
		return rc;
	w->cfg = od_pack_config(w->pack);
	rc = odw_sum_reports_new(&w->sums, w->pack, err);
	if (rc != OD_OK || !od_pack_is_spool(w->pack))
		return rc;
	w->holds = malloc(((size_t)w->cfg->n_moe * w->cfg->n_experts + 7) / 8);
	return w->holds != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "spool");
}

static int open_worker(struct worker_daemon *w, struct od_err *err)
{
	struct od_host store;
	char bytes[32];
	int rc = check_options(&w->opt, &store, err);

	if (w->opt.load_time_ms > 0)
		w->opt.read_threads = 1; /* one path, so an urgent load waits for one slice at most */
	/* Unsupported --cpu kernels are reported now, not at the first HELLO. */
	if (rc == OD_OK)
		rc = od_device_open(&w->device, w->opt.common.device, (enum od_cpu)w->opt.common.cpu,
				    (unsigned)w->opt.common.threads, "od-compute", err);
	if (rc == OD_OK && od_device_cards(w->device) > 1)
		rc = od_fail(err, OD_ERR_ARG, "%s: a worker uses one card: start a worker for each",
			     od_device_name(w->device));
	w->opt.common.parsed = rc != OD_ERR_ARG; /* these, too, stay wrong however often a service starts again */
	if (rc == OD_OK)
		rc = open_pack(w, &store, err);
	if (rc != OD_OK)
		return rc;
	od_log(OD_LOG_INFO, "pack %s: %s, %u MoE layers of %u experts, %s each on disk", od_pack_dir(w->pack),
	       w->cfg->family->name, w->cfg->n_moe, w->cfg->n_experts,
	       od_format_bytes(od_pack_expert_stored_bytes(w->pack), bytes, sizeof(bytes)));
	rc = open_memory(w, err);
	if (rc == OD_OK)
		rc = open_daemon(w, err);
	return rc;
}

/* Threads first, then the objects they use. ZeroMQ releases the engine's outputs while the daemon is freed. */
static void close_worker(struct worker_daemon *w)
{
	odw_engine_stop(w->engine);
	od_residency_stop(w->residency);
	od_daemon_free(w->daemon);
	odw_engine_free(w->engine);
	odw_puller_stop(w->puller);
	free_memory(w);
	od_device_free(w->device);
	od_pack_close(w->pack);
	od_keys_free(w->keys);
	odw_sum_reports_free(w->sums);
	free(w->holds);
}

int main(int argc, char **argv)
{
	unsigned cpus = od_cpu_count();
	struct worker_daemon w = { .opt = { .memory_bytes = DEFAULT_MEMORY_BYTES,
					    .form = OD_FORM_AUTO,
					    .spool_limit_bytes = UINT64_MAX,
					    .read_threads = OD_DEFAULT_READERS,
					    .load_threads =
						    cpus < OD_DEFAULT_INFLATERS ? cpus : OD_DEFAULT_INFLATERS } };
	const struct od_arg own[] = {
		{ .kind = OD_ARG_TITLE,
		  .help = "Without a pack: pull experts from main and keep them (default: from the only peer, to " USUAL_SPOOL
			  ")" },
		{ "store", OD_ARG_STRING, &w.opt.store, "ADDR",
		  "od-main's --serve-store: host[:port] (default port: 5702)", 0, 0, NULL },
		{ "spool", OD_ARG_STRING, &w.opt.spool, "DIR",
		  "folder for this worker's share of the experts, and nothing else", 0, 0, NULL },
		{ "spool-limit", OD_ARG_SIZE, &w.opt.spool_limit_bytes, "SIZE",
		  "disk space of the folder, all files together; other workers hold the rest (default: no limit)", 0, 0,
		  NULL },
		{ .kind = OD_ARG_TITLE, .help = "Memory and loading" },
		{ "memory-limit", OD_ARG_SIZE, &w.opt.memory_bytes, "SIZE",
		  "memory that this worker may use (default: 1GB)", 0, 0, NULL },
		{ "slots", OD_ARG_UINT, &w.opt.slots, "N",
		  "experts in memory at once (default: as many as the memory limit has room for, at most 64)", 1,
		  OD_MAX_SLOTS, NULL },
		{ "resident-form", OD_ARG_CHOICE, &w.opt.form, "bf16|planes",
		  "experts stay in memory as BF16, or compressed to about two thirds (default: planes where that is faster)",
		  0, 0, od_form_names },
		{ "read-mode", OD_ARG_CHOICE, &w.opt.read_mode, "auto|buffered|direct",
		  "read experts through the page cache, or past it (default: auto: through it if they fit, else whichever measures faster at the start)",
		  0, 0, od_read_mode_names },
		{ "read-threads", OD_ARG_UINT, &w.opt.read_threads, "N", "threads that read experts (default: 2)", 1,
		  OD_MAX_LOADERS, NULL },
		{ "load-threads", OD_ARG_UINT, &w.opt.load_threads, "N",
		  "threads that check and decompress them (default: the CPUs, at most 4)", 1, OD_MAX_LOADERS, NULL },
		{ "cache-mib", OD_ARG_UINT, &w.opt.cache_mib, "N",
		  "MiB of the memory limit for experts that stay after their use: those used most, and lately (default: none)",
		  1, MAX_CACHE_MIB, NULL },
		{ .kind = OD_ARG_TITLE, .help = "Experiments: emulate a slower machine" },
		{ "load-time", OD_ARG_REAL, &w.opt.load_time_ms, "MS",
		  "each load takes at least MS milliseconds, one at a time, one reader", 0, MAX_PACE_MS, NULL },
		{ "run-time", OD_ARG_REAL, &w.opt.run_time_ms, "MS", "running an expert takes at least MS milliseconds",
		  0, MAX_PACE_MS, NULL },
	};
	struct od_err err = { 0 };
	bool done;
	int rc;

	if (argc > 1 && strcmp(argv[1], "join") == 0)
		return od_pair_join_command(OD_NODE_WORKER, argc - 1, argv + 1);
	od_hangup_hold();
	about.own = own;
	about.n_own = sizeof(own) / sizeof(own[0]);
	rc = od_daemon_args_begin(&w.opt.common, &about, argc, argv, &done, &err);
	if (rc == OD_OK && done)
		return 0;
	if (rc == OD_OK)
		rc = open_worker(&w, &err);
	if (rc == OD_OK)
		rc = od_daemon_run(w.daemon, &err);
	close_worker(&w);
	return od_daemon_args_end(&w.opt.common, rc, &err);
}
