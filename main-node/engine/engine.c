#include "main-node/engine/engine_internal.h"

#include "common/base/args.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/trace.h"
#include "common/compute/device.h"
#include "common/model/generation_config.h"
#include "main-node/cluster/cluster_service.h"
#include "main-node/engine/resident_service.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_PREFILL_ROWS 256u
/* the prefix cache, when it is not said how large; and at most a part of what is free */
#define AUTO_CACHE_BYTES (1ull << 30)
#define AUTO_CACHE_PART 4
#define AUTO_CTX_PART 2
#define MIB (1ull << 20)
#define GENERATION_CONFIG "generation_config.json"
#define DEFAULT_HEDGE_PERCENT 5 /* docs/BENCHMARKS.md: nearly all that hedging can bring an INT8 shadow */

const char *const odm_predictor_names[] = { "shadow", "none", OD_PREDICTOR_NAMES, NULL };

void odm_engine_defaults(struct odm_engine_opts *o)
{
	*o = (struct odm_engine_opts){
		.profile = OD_PROFILE_F32,
		.cpu = OD_CPU_AUTO,
		.prefill_rows = DEFAULT_PREFILL_ROWS,
		.mode = ODM_LOCAL,
		.predictor = ODM_PREDICTOR_AUTO,
		.draft = ODM_DRAFT_SHADOW,
		.hedge_percent = DEFAULT_HEDGE_PERCENT,
		.form = OD_FORM_AUTO,
	};
}

/* Of a step. */
static size_t most_rows(const struct odm_engine *e)
{
	const size_t decode = odm_decode_rows(e->config, (uint32_t)e->opts.parallel);

	return e->opts.prefill_rows > decode ? e->opts.prefill_rows : decode;
}

static void show_progress(void *arg, uint64_t done, uint64_t all)
{
	const char *what = arg;
	char a[32], b[32];

	fprintf(stderr, "\r%s: %s of %s%s", what, od_format_bytes(done, a, sizeof(a)),
		od_format_bytes(all, b, sizeof(b)), done == all ? "\n" : "   ");
}

/* Memory of main itself, without sequences' pages. */
static int open_split(struct odm_engine *e, struct od_split *s, struct od_err *err)
{
	const struct od_forward_opts fo = {
		.config = e->config, .device = e->device, .profile = e->opts.profile, .max_rows = most_rows(e)
	};
	const struct od_forward_opts chunk = {
		.config = e->config, .device = e->device, .profile = e->opts.profile, .max_rows = e->opts.prefill_rows
	};
	const uint64_t have = od_device_free_bytes(e->device);
	/* Each of several cards has its own limit. */
	const uint64_t limit = have > 0 && od_device_cards(e->device) == 1 ? have : UINT64_MAX;
	int rc = od_split_init(s, e->device, e->config->n_layers, 0, e->config->n_layers, limit, err);

	if (rc != OD_OK)
		return rc;
	od_dense_split(e->pack, true, s);
	odm_batch_split(&chunk, (uint32_t)e->opts.parallel, s);
	if (e->opts.mode == ODM_RESIDENT) {
		od_experts_split(e->pack, e->form, s);
		od_split_add(&s->each.bytes, od_resident_bytes(&fo));
	}
	od_state_split(e->config, e->opts.profile, s);
	return OD_OK;
}

uint64_t odm_page_bytes(const struct odm_engine *e)
{
	return od_state_pool_bytes(e->config, e->opts.profile, 1, 0) -
	       od_state_pool_bytes(e->config, e->opts.profile, 0, 0);
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Of one snapshot. */
static uint64_t snapshot_bytes(const struct odm_engine *e)
{
	return od_state_fixed_bytes(e->config);
}

/* Pages of ended texts, or snapshots, of so many bytes each, where it was said how many bytes they may take. */
static uint64_t asked_items(uint64_t mib, uint64_t each)
{
	if (mib == ODM_PREFIX_CACHE_AUTO || each == 0)
		return 0;
	return mib < UINT64_MAX / MIB ? mib * MIB / each : UINT64_MAX / each;
}

/* The same if it was not said, by the memory that `pages` and `copies` leave; is_page: or snapshots. */
static uint64_t auto_items(const struct od_split *s, uint64_t pages, uint64_t copies, bool is_page)
{
	uint64_t most = UINT64_MAX;

	for (unsigned i = 0; i <= s->n_cards; i++) {
		const uint64_t each = is_page ? s->card[i].sum.page : s->card[i].sum.copy,
			       need = od_split_need(s, i, pages, copies);

		if (each > 0)
			most = min_u64(most,
				       min_u64((s->card[i].free - need) / AUTO_CACHE_PART, AUTO_CACHE_BYTES) / each);
	}
	return most != UINT64_MAX ? most : 0;
}

/* n: pages, or snapshots, that fit. */
static int check_items(const char *option, uint64_t mib, uint64_t n, const char *what, uint64_t each,
		       struct od_err *err)
{
	char a[32];

	if (n > 0 || mib == 0 || mib == ODM_PREFIX_CACHE_AUTO)
		return OD_OK;
	return od_fail(err, OD_ERR_ARG, "%s %llu is too small: one %s takes %s", option, (unsigned long long)mib, what,
		       od_format_bytes(each, a, sizeof(a)));
}

static int check_cache_pages(struct odm_engine *e, struct od_err *err)
{
	const struct odm_engine_opts *o = &e->opts;
	const bool fixed = snapshot_bytes(e) > 0;
	int rc = check_items("--prefix-cache-mib", o->prefix_cache_mib, e->cache_pages, "page of 64 tokens",
			     odm_page_bytes(e), err);

	if (rc == OD_OK && fixed)
		rc = check_items("--snapshot-mib", o->snapshot_mib, e->n_snapshots, "snapshot of the recurrent state",
				 snapshot_bytes(e), err);
	if (rc != OD_OK || (e->cache_pages > 0 && (!fixed || e->n_snapshots > 0)))
		return rc;
	e->cache_pages = e->n_snapshots = 0; /* the one is of no use without the other */
	if (o->prefix_cache_dir != NULL)
		od_log(OD_LOG_WARN,
		       "prefix cache: off, because no memory is free for it; --prefix-cache has no effect");
	return OD_OK;
}

static bool has_smaller_form(const struct odm_engine *e)
{
	return e->opts.mode == ODM_RESIDENT && e->form == OD_FORM_PLAIN &&
	       od_pack_can_form(e->pack, OD_FORM_PLANES, NULL) == OD_OK;
}

/* What may help if it does not fit. */
static const char *memory_advice(const struct odm_engine *e)
{
	if (e->opts.mode != ODM_RESIDENT)
		return "try a smaller --ctx-size, --parallel or --prefix-cache-mib";
	return has_smaller_form(e) ?
		       "--resident-form planes needs less; without --resident the experts stay on the workers" :
		       "without --resident the experts stay on the workers";
}

/* Of `most` pages that fit, with a context that was not asked for: what `parallel` small contexts take, and of the rest
 * a part, because the memory may be meant for other programs, and pages of ended texts need some. */
static uint64_t auto_pages(const struct odm_engine *e, uint64_t wanted, uint64_t most)
{
	const uint64_t few = min_u64(od_state_pages(od_config_least_ctx(e->config)) * e->opts.parallel, most);

	return min_u64(wanted, few + (most - few) / AUTO_CTX_PART);
}

/* Pages of sequences' state: for `parallel` contexts, or as many as fit beside so many pages and copies of other
 * things. */
static int choose_pages(struct odm_engine *e, struct od_split *s, uint64_t cache, uint64_t copies, struct od_err *err)
{
	const struct odm_engine_opts *o = &e->opts;
	const uint64_t one = od_state_pages((uint32_t)o->ctx_tokens), each = odm_page_bytes(e);
	uint64_t pages = one * o->parallel, least = e->auto_ctx ? od_state_pages(od_config_least_ctx(e->config)) : one,
		 most;
	char a[32], b[32], place[64], cards[OD_SPLIT_TEXT_BYTES];

	if (e->auto_ctx && e->any_ctx)
		least = 1;

	if (o->state_bytes > 0 && each > 0) {
		pages = min_u64(pages, o->state_bytes / each);
		least = pages;
	}
	if (o->state_bytes > 0 && pages == 0)
		return od_fail(err, OD_ERR_ARG, "--state-memory %s is too small: one page of 64 tokens takes %s",
			       od_format_bytes(o->state_bytes, a, sizeof(a)), od_format_bytes(each, b, sizeof(b)));
	od_split_add(&least, cache);
	od_split_deal(s, e->device, least, copies);
	most = od_split_most_pages(s, copies);
	if (e->auto_ctx && o->state_bytes == 0 && most >= least)
		pages = auto_pages(e, pages, most - cache);
	else if (pages + cache > most && most >= least)
		pages = most - cache;
	else if (most < least)
		pages = least - cache;
	e->n_pages = (uint32_t)min_u64(pages, UINT32_MAX);
	if (od_split_fits(s, e->n_pages + cache, copies))
		return OD_OK;
	return od_fail(err, OD_ERR_NOMEM, "%s needs %s of memory %s, %s are available (%s)%s", od_pack_dir(e->pack),
		       od_format_bytes(od_split_need(s, s->n_cards, e->n_pages + cache, copies), a, sizeof(a)),
		       od_device_memory_place(e->device, place, sizeof(place)),
		       od_format_bytes(od_device_free_bytes(e->device), b, sizeof(b)), memory_advice(e),
		       od_split_text(s, e->device, e->n_pages + cache, copies, cards, sizeof(cards)));
}

/* A model that does not fit with one context is refused before it is read, with the numbers. Then pages of ended
 * texts. */
static int plan_state(struct odm_engine *e, struct od_split *s, struct od_err *err)
{
	const struct odm_engine_opts *o = &e->opts;
	/* The pool has two copies for each sequence, and one of zeros. */
	const uint64_t copies = 2 * (uint64_t)o->parallel + 1;
	uint64_t cache = asked_items(o->prefix_cache_mib, odm_page_bytes(e)),
		 snapshots = asked_items(o->snapshot_mib, snapshot_bytes(e));
	int rc = choose_pages(e, s, cache, copies + snapshots, err);

	if (rc != OD_OK)
		return rc;
	if (o->prefix_cache_mib == ODM_PREFIX_CACHE_AUTO)
		cache = auto_items(s, e->n_pages, copies + snapshots, true);
	if (o->snapshot_mib == ODM_PREFIX_CACHE_AUTO && o->prefix_cache_mib > 0)
		snapshots =
			auto_items(s, e->n_pages + asked_items(o->prefix_cache_mib, odm_page_bytes(e)), copies, false);
	e->cache_pages = (uint32_t)min_u64(cache, UINT32_MAX - e->n_pages);
	e->n_snapshots = (uint32_t)min_u64(snapshots, UINT32_MAX - 1);
	rc = check_cache_pages(e, err);
	if (rc == OD_OK)
		od_split_log(s, e->device, (uint64_t)e->n_pages + e->cache_pages, copies + e->n_snapshots);
	return rc;
}

static int choose_split(struct odm_engine *e, struct od_err *err)
{
	struct od_split s;
	int rc = open_split(e, &s, err);

	if (rc == OD_OK)
		rc = plan_state(e, &s, err);
	od_split_fini(&s);
	return rc;
}

/* With a context that was not asked for: what fits. Only then is the number of pages known. */
static void fit_ctx(struct odm_engine *e)
{
	const uint64_t all = (uint64_t)e->n_pages * OD_KV_PAGE, least = od_config_least_ctx(e->config);

	e->fair_tokens = UINT64_MAX;
	if (!e->auto_ctx)
		return;
	e->opts.ctx_tokens = min_u64(e->config->ctx_max, e->opts.state_bytes > 0 && all < least ? least : all);
	e->fair_tokens = e->n_pages / e->opts.parallel * OD_KV_PAGE;
	if (e->opts.ctx_tokens < e->config->ctx_max)
		od_log(OD_LOG_INFO, "context: %llu tokens, as many as memory allows; the model was trained for %u",
		       (unsigned long long)e->opts.ctx_tokens, e->config->ctx_max);
}

/* The form of experts is the faster one only if the model fits with it. A context of a few pages is the last resort. */
static int choose_memory(struct odm_engine *e, struct od_err *err)
{
	int rc = choose_split(e, err);

	if (rc == OD_ERR_NOMEM && e->opts.form == OD_FORM_AUTO && has_smaller_form(e)) {
		e->form = OD_FORM_PLANES;
		rc = choose_split(e, err);
		if (rc == OD_OK)
			od_log(OD_LOG_INFO, "experts stay compressed in memory: as BF16 the model would not fit");
	}
	if (rc == OD_ERR_NOMEM && e->auto_ctx && !od_device_can_fall_back(e->device)) {
		e->any_ctx = true;
		rc = choose_split(e, err);
	}
	if (rc == OD_OK)
		fit_ctx(e);
	return rc;
}

int odm_state_fits(const struct odm_engine *e, uint32_t positions, struct od_err *err)
{
	const uint64_t pages = od_state_pages(positions);
	char a[32], b[32], c[32];

	if (pages <= e->n_pages)
		return OD_OK;
	return od_fail(err, OD_ERR_NOMEM,
		       "a text of up to %u tokens needs %s of KV cache, %s more than there is (%s); "
		       "ask for fewer tokens, or raise --state-memory",
		       positions, od_format_bytes(pages * odm_page_bytes(e), a, sizeof(a)),
		       od_format_bytes((pages - e->n_pages) * odm_page_bytes(e), b, sizeof(b)),
		       od_format_bytes(e->n_pages * odm_page_bytes(e), c, sizeof(c)));
}

int odm_engine_check(const struct odm_engine *e, const struct odm_request *req, struct od_err *err)
{
	int rc = odm_sequence_check(e, req, err);

	return rc == OD_OK ? odm_state_fits(e, (uint32_t)(req->n_prompt + odm_sequence_room(e, req) - 1), err) : rc;
}

/* Without snapshots of recurrent state, pages are of no use. */
static void check_cache(struct odm_engine *e)
{
	const bool fixed = odm_has_fixed_state(e->config);

	if (!fixed || e->opts.prefix_cache_mib == 0)
		e->opts.snapshot_mib = 0;
	if (!fixed || e->opts.snapshot_mib > 0 || e->opts.prefix_cache_mib == 0)
		return;
	od_log(OD_LOG_INFO, "prefix cache: off, because the model has recurrent state, and --snapshot-mib is 0");
	e->opts.prefix_cache_mib = 0;
	e->opts.prefix_cache_dir = NULL;
}

static int choose_ctx(struct odm_engine *e, struct od_err *err)
{
	uint32_t max = e->config->ctx_max;

	e->auto_ctx = e->opts.ctx_tokens == 0;
	if (e->auto_ctx)
		e->opts.ctx_tokens = max; /* until it is known what fits */
	if (e->opts.ctx_tokens > max)
		return od_fail(err, OD_ERR_ARG, "--ctx-size: expected at most %u (the model's context), found %llu",
			       max, (unsigned long long)e->opts.ctx_tokens);
	return OD_OK;
}

/* max_rows: as many as a step of either kind may have. */
static struct od_forward_opts forward_opts(const struct odm_engine *e)
{
	return (struct od_forward_opts){
		.config = e->config,
		.dense = od_dense_get(e->dense),
		.device = e->device,
		.state = e->state,
		.profile = e->opts.profile,
		.max_rows = most_rows(e),
	};
}

static int open_model(struct odm_engine *e, struct od_err *err)
{
	struct od_forward_opts fo;
	int rc;

	rc = od_dense_load(&e->dense, e->pack, e->device, err);
	if (rc == OD_OK)
		rc = od_state_pool_new(&e->state, e->device, e->config, e->opts.profile, (uint32_t)e->opts.ctx_tokens,
				       (uint32_t)e->opts.parallel, (uint64_t)e->n_pages + e->cache_pages, err);
	if (rc == OD_OK)
		rc = odm_reuse_open(e, err);
	if (rc != OD_OK)
		return rc;
	fo = forward_opts(e);
	fo.max_rows = e->opts.prefill_rows;
	return odm_batch_init(&e->batch, e, &fo, (uint32_t)e->opts.parallel, err);
}

static int open_resident(struct odm_engine *e, struct od_err *err)
{
	struct od_forward_opts fo = forward_opts(e);
	bool progress = !e->opts.quiet && isatty(STDERR_FILENO);
	static char what[] = "loading experts";
	int rc = od_experts_load_all(&e->experts, e->pack, e->device, e->form, (unsigned)e->opts.threads,
				     progress ? show_progress : NULL, what, err);

	return rc != OD_OK ? rc : odm_resident_service_new(&e->service, &fo, od_experts_get(e->experts), err);
}

static int choose_predictor(struct odm_engine *e, struct od_err *err)
{
	bool shadow = false;

	for (size_t i = 0; i < e->hosts.n; i++)
		shadow = shadow || e->hosts.host[i].role == OD_NODE_SHADOW;
	if (e->opts.predictor == ODM_PREDICTOR_AUTO)
		e->opts.predictor = shadow ? ODM_PREDICT_SHADOW : ODM_PREDICT_NONE;
	if (e->opts.predictor == ODM_PREDICT_SHADOW && !shadow)
		return od_fail(err, OD_ERR_ARG, "--predictor shadow: %s names no shadow (a line \"shadow host:port\")",
			       e->opts.hosts_path);
	if (e->opts.predictor != ODM_PREDICT_SHADOW)
		od_hosts_without_shadow(&e->hosts); /* it would not be used, so it need not run */
	if (e->opts.predictor != ODM_PREDICT_SHADOW && e->opts.draft == ODM_DRAFT_SHADOW && e->opts.draft_tokens > 0)
		return od_fail(err, OD_ERR_ARG,
			       "--draft %llu: there is no shadow to draft tokens; --draft lookup takes drafts from "
			       "the text itself",
			       (unsigned long long)e->opts.draft_tokens);
	if (e->opts.predictor != ODM_PREDICT_SHADOW && e->opts.draft == ODM_DRAFT_SHADOW)
		e->opts.draft = ODM_DRAFT_OFF;
	return OD_OK;
}

static const struct od_predictor_kind *own_predictor(const struct odm_engine_opts *o)
{
	if (o->own != NULL)
		return o->own;
	if (o->predictor >= ODM_PREDICT_OWN)
		return &od_predictor_kinds[o->predictor - ODM_PREDICT_OWN];
	/* Beside a shadow the one that costs least: it has no history, so it need not listen while the shadow
	 * speaks. */
	return o->predictor == ODM_PREDICT_SHADOW && !o->no_stand_in ? &od_predictor_kinds[OD_NEXT_GATE] : NULL;
}

static int open_cluster(struct odm_engine *e, struct od_err *err)
{
	struct od_forward_opts fo = forward_opts(e);
	struct odm_cluster *c;
	const uint32_t run_rows = odm_run_rows(e->config, e->opts.profile);
	int rc = e->opts.mode == ODM_LOCAL ? odm_local_start(&e->local, &e->opts, &e->hosts, err) : OD_OK;

	e->n_children = e->hosts.n;
	if (rc == OD_OK)
		rc = choose_predictor(e, err);
	if (rc == OD_OK) {
		struct odm_cluster_opts co = {
			.config = e->config,
			.profile = e->opts.profile,
			.kernel_class = od_device_kernel_class(e->device, e->opts.profile),
			.mixed = e->opts.mixed,
			.ctx_tokens = (uint32_t)e->opts.ctx_tokens,
			.max_sequences = (uint32_t)e->opts.parallel,
			.max_draft = e->opts.draft != ODM_DRAFT_OFF ? ODM_MAX_DRAFT : 0,
			.decode_rows = odm_decode_rows(e->config, (uint32_t)e->opts.parallel),
			.max_rows = fo.max_rows < run_rows ? (uint32_t)fo.max_rows : run_rows,
			.group_size = (uint32_t)e->opts.group_size,
			.align = e->opts.align,
			.shadow = e->opts.predictor == ODM_PREDICT_SHADOW,
			.own = own_predictor(&e->opts),
			.hedge = e->opts.hedge_percent / 100,
			.hosts = &e->hosts,
			.hosts_path = e->opts.mode == ODM_WORKERS ? e->opts.hosts_path : NULL,
			.own_keys = e->keys != NULL ? &e->keys->own : NULL,
			.rekey = odm_engine_rekey,
			.rekey_arg = e,
			.ended = e->local != NULL ? odm_local_ended : NULL,
			.ended_arg = e->local,
			.cancel = e->opts.cancel,
		};

		od_pack_fingerprint_bytes(e->pack, co.fingerprint);
		rc = odm_cluster_open(&c, &co, err);
	}
	return rc != OD_OK ? rc : odm_cluster_service_new(&e->service, c, &fo, err);
}

/* The form of experts, and how its memory is used. */
static int plan_device(struct odm_engine *e, struct od_err *err)
{
	int rc = OD_OK;

	if (e->opts.mode == ODM_RESIDENT || e->opts.form != OD_FORM_AUTO) /* else workers choose */
		rc = od_pack_choose_form(e->pack, e->device, OD_FORM_OF_LAYERS, e->opts.form, &e->form, err);
	return rc == OD_OK ? choose_memory(e, err) : rc;
}

static int open_device(struct odm_engine *e, struct od_err *err)
{
	const enum od_cpu cpu = (enum od_cpu)e->opts.cpu;
	const unsigned threads = (unsigned)e->opts.threads;
	int rc = od_device_open(&e->device, e->opts.device, cpu, threads, "od-compute", err);

	if (rc != OD_OK)
		return rc;
	rc = plan_device(e, err);
	if (rc == OD_OK)
		return rc;
	rc = od_device_fall_back(&e->device, rc, cpu, threads, "od-compute", err);
	return rc == OD_OK ? plan_device(e, err) : rc;
}

static int open_all(struct odm_engine *e, struct od_err *err)
{
	int rc;

	rc = od_pack_open(&e->pack, e->opts.pack, err);
	if (rc != OD_OK)
		return rc;
	e->config = od_pack_config(e->pack);
	od_generation_warn(od_pack_generation_config(e->pack), GENERATION_CONFIG);
	rc = od_generation_suppressed(&e->suppressed, &e->n_suppressed, od_pack_generation_config(e->pack),
				      e->config->vocab, GENERATION_CONFIG, err);
	if (rc != OD_OK)
		return rc;
	if (e->opts.mode != ODM_RESIDENT && e->opts.prefill_rows > odm_run_rows(e->config, e->opts.profile))
		e->opts.prefill_rows = odm_run_rows(e->config, e->opts.profile); /* a layer is one RUN for a worker */
	rc = odm_engine_open_keys(e, err);
	/* before the workers are waited for: they may have nothing yet */
	if (rc == OD_OK && e->opts.serve_store != NULL)
		rc = odm_store_open(&e->store, e->pack, e->opts.serve_store, e->keys, &e->hosts, err);
	if (rc == OD_OK)
		rc = choose_ctx(e, err);
	if (rc != OD_OK)
		return rc;
	check_cache(e);
	rc = open_device(e, err);
	if (rc != OD_OK)
		return rc;
	if (od_pack_tokenizer_path(e->pack) != NULL) {
		rc = od_tokenizer_load(&e->tokenizer, od_pack_tokenizer_path(e->pack), err);
		if (rc != OD_OK)
			return rc;
	}
	rc = open_model(e, err);
	if (rc != OD_OK)
		return rc;
	if (e->opts.mode == ODM_RESIDENT && e->opts.draft == ODM_DRAFT_SHADOW)
		e->opts.draft = ODM_DRAFT_OFF;
	return e->opts.mode == ODM_RESIDENT ? open_resident(e, err) : open_cluster(e, err);
}

/* The children's events go behind ours, and their files away. */
static int close_trace(struct odm_engine *e)
{
	char path[PATH_MAX];
	struct od_err err;

	int rc;

	if (!od_trace_on)
		return OD_OK;
	for (size_t i = 0; e->opts.mode == ODM_LOCAL && i < e->n_children; i++) {
		odm_local_trace_path(e->opts.trace, i, path, sizeof(path));
		if (od_trace_merge(path, &err) != OD_OK)
			od_log(OD_LOG_WARN, "%s", err.msg);
		unlink(path);
	}
	rc = od_trace_close(&err);
	if (rc != OD_OK)
		od_log(OD_LOG_ERROR, "%s", err.msg);
	return rc;
}

static const atomic_bool never;

int odm_engine_open(struct odm_engine **out, const struct odm_engine_opts *opts, struct od_err *err)
{
	struct odm_engine *e = calloc(1, sizeof(*e));
	int rc;

	*out = NULL;
	if (e == NULL)
		return od_fail(err, OD_ERR_NOMEM, "engine");
	pthread_mutex_init(&e->report_lock, NULL);
	e->opts = *opts;
	if (e->opts.cancel == NULL)
		e->opts.cancel = &never;
	if (e->opts.threads == 0)
		e->opts.threads = od_cpu_count();
	if (e->opts.parallel == 0)
		e->opts.parallel = 1;
	if (e->opts.prefill_rows == 0)
		e->opts.prefill_rows = DEFAULT_PREFILL_ROWS;
	rc = opts->trace == NULL ? OD_OK : od_trace_open(opts->trace, "main", err);
	if (rc == OD_OK)
		rc = open_all(e, err);
	if (rc != OD_OK) {
		odm_engine_close(e);
		return rc;
	}
	odm_engine_publish(e, true);
	if (!e->opts.quiet)
		od_device_log_memory(e->device);
	*out = e;
	return OD_OK;
}

int odm_engine_close(struct odm_engine *e)
{
	int rc;

	if (e == NULL)
		return OD_OK;
	if (e->device != NULL)
		/* what a step that was given up has queued uses what is freed here */
		(void)!od_device_sync(e->device, NULL);
	if (e->service != NULL)
		e->service->free(e->service);
	odm_local_stop(e->local);
	odm_store_close(e->store);
	rc = close_trace(e);
	od_hosts_fini(&e->hosts);
	od_keys_free(e->keys);
	odm_batch_fini(&e->batch);
	odm_reuse_close(e);
	od_state_pool_free(e->state);
	od_experts_free(e->experts);
	od_dense_free(e->dense);
	od_device_free(e->device);
	od_tokenizer_free(e->tokenizer);
	free(e->suppressed);
	od_pack_close(e->pack);
	pthread_mutex_destroy(&e->report_lock);
	free(e);
	return rc;
}

const struct od_pack *odm_engine_pack(const struct odm_engine *e)
{
	return e->pack;
}

const struct od_tokenizer *odm_engine_tokenizer(const struct odm_engine *e)
{
	return e->tokenizer;
}

uint32_t odm_engine_ctx(const struct odm_engine *e)
{
	return (uint32_t)e->opts.ctx_tokens;
}

uint32_t odm_engine_parallel(const struct odm_engine *e)
{
	return (uint32_t)e->opts.parallel;
}

enum od_form odm_engine_form(const struct odm_engine *e)
{
	return e->form;
}

const struct od_device *odm_engine_device(const struct odm_engine *e)
{
	return e->device;
}

int odm_engine_failed(const struct odm_engine *e, struct od_err *why)
{
	const int rc = od_device_failed(e->device, why);

	return rc == OD_OK && e->service->failed != NULL ? e->service->failed(e->service, why) : rc;
}

int odm_engine_ready(const struct odm_engine *e, struct od_err *why)
{
	return e->service->ready != NULL ? e->service->ready(e->service, why) : OD_OK;
}

uint64_t odm_engine_state_bytes(const struct odm_engine *e)
{
	return od_state_pool_bytes(e->config, e->opts.profile, e->n_pages, (uint32_t)e->opts.parallel);
}
