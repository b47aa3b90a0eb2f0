#include "main-node/engine/state_plan.h"

#include "common/base/args.h"
#include "common/base/log.h"
#include "common/compute/cards.h"
#include "common/compute/open_device.h"
#include "common/model/resident.h"
#include "common/pack/load/expert_form.h"
#include "common/pack/load/expert_load.h"
#include "main-node/engine/pass_size.h"

#include <inttypes.h>

/* the prefix cache, and its snapshots, when it is not said how large; at most one in so many bytes of what is free */
#define AUTO_CACHE_BYTES (1ull << 30)
#define AUTO_SNAPSHOT_BYTES (4ull << 30) /* 50 of Qwen3-Next-80B: enough for two agents with sub-agents at once */
#define AUTO_CACHE_DIVISOR 4
#define AUTO_CTX_DIVISOR 2
#define TIERED_DIVISOR 16 /* in place of these two, where the rest is for experts */
#define MIB (1ull << 20)

struct dense_room {
	uint64_t least, most; /* od_dense_stream_room */
};

/* The process has a limit of its own, instead of all that is free. */
static bool has_limit(const struct odm_model *m)
{
	return m->opts.tiered || m->tiers.memory_bytes > 0;
}

/* Memory of main itself, without sequences' pages. */
static int open_split(struct odm_model *m, struct od_split *s, struct od_err *err)
{
	const struct od_forward_opts fo = odm_model_forward_opts(m);
	struct od_forward_opts chunk = fo;
	const uint64_t have = od_device_free_bytes(m->device);
	/* Each of several cards has its own limit. */
	const uint64_t limit = has_limit(m)				   ? m->tiers.limit_bytes :
			       have > 0 && od_device_cards(m->device) == 1 ? have :
									     UINT64_MAX;
	int rc = od_split_init(s, m->device, m->config->n_layers, 0, m->config->n_layers, limit, err);

	if (rc != OD_OK)
		return rc;
	od_dense_split(m->pack, m->dense_choice, s);
	chunk.max_rows = m->opts.prefill_rows;
	odm_pass_size_split(&chunk, (uint32_t)m->opts.parallel, s);
	if (m->opts.resident) {
		od_experts_split(m->pack, m->form, s);
		od_split_add(&s->each.bytes, od_resident_bytes(&fo));
	}
	if (m->opts.tiered) {
		od_split_add(&s->each.bytes, od_resident_bytes(&fo));
		od_split_add(&s->each.bytes, odm_tier_plan_least(&m->tiers, m->config->top_k));
	}
	od_state_split(m->config, m->opts.profile, s);
	od_split_add(&s->each.page,
		     odm_state_plan_page_bytes(m) - od_state_page_bytes(m->config, m->opts.profile, NULL));
	return OD_OK;
}

/* Experts, or dense weights, get the memory that texts leave. */
static bool fills_memory(const struct odm_model *m)
{
	return m->opts.tiered || m->dense_choice == OD_DENSE_STREAMED;
}

uint64_t odm_state_plan_page_bytes(const struct odm_model *m)
{
	return od_state_page_bytes(m->config, m->opts.profile, m->shares_memory ? m->device : NULL);
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Bytes of one snapshot. */
static uint64_t snapshot_bytes(const struct odm_model *m)
{
	return od_state_fixed_bytes(m->config);
}

/* Pages of ended texts, or snapshots, of so many bytes each, where it was said how many bytes they may take. */
static uint64_t asked_items(uint64_t mib, uint64_t each)
{
	if (mib == ODM_PREFIX_CACHE_AUTO || each == 0)
		return 0;
	return mib < UINT64_MAX / MIB ? mib * MIB / each : UINT64_MAX / each;
}

/* Items if their number was not given, by the memory that `pages` and `copies` leave; is_page: or snapshots. */
static uint64_t auto_items(const struct odm_model *m, const struct od_split *s, uint64_t pages, uint64_t copies,
			   bool is_page)
{
	const uint64_t divisor = fills_memory(m) ? TIERED_DIVISOR : AUTO_CACHE_DIVISOR;
	const uint64_t limit = is_page || fills_memory(m) ? AUTO_CACHE_BYTES : AUTO_SNAPSHOT_BYTES;
	uint64_t most = UINT64_MAX;

	for (unsigned i = 0; i <= s->n_cards; i++) {
		const uint64_t each = is_page ? s->card[i].sum.page : s->card[i].sum.copy,
			       need = od_split_need(s, i, pages, copies);

		if (each > 0)
			most = min_u64(most, min_u64((s->card[i].free - need) / divisor, limit) / each);
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

static int check_cache_pages(struct odm_model *m, struct od_err *err)
{
	const struct odm_engine_opts *o = &m->opts;
	const bool fixed = snapshot_bytes(m) > 0;
	int rc = check_items("--prefix-cache-mib", o->prefix_cache_mib, m->cache_pages, "page of 64 tokens",
			     odm_state_plan_page_bytes(m), err);

	if (rc == OD_OK && fixed)
		rc = check_items("--snapshot-mib", o->snapshot_mib, m->n_snapshots, "snapshot of the recurrent state",
				 snapshot_bytes(m), err);
	if (rc != OD_OK || (m->cache_pages > 0 && (!fixed || m->n_snapshots > 0)))
		return rc;
	m->cache_pages = m->n_snapshots = 0; /* the one is of no use without the other */
	if (o->prefix_cache_dir != NULL)
		od_log(OD_LOG_WARN,
		       "prefix cache: off, because no memory is free for it; --prefix-cache has no effect");
	return OD_OK;
}

static bool has_smaller_form(const struct odm_model *m)
{
	return m->opts.resident && m->form == OD_FORM_PLAIN && od_pack_can_form(m->pack, OD_FORM_PLANES, NULL) == OD_OK;
}

/* Advice for a model that does not fit. */
static const char *memory_advice(const struct odm_model *m)
{
	if (!m->opts.resident)
		return "try a smaller --ctx-size, --parallel or --prefix-cache-mib";
	return has_smaller_form(m) ?
		       "--resident-form planes needs less; without --resident the experts stay on the workers" :
		       "without --resident the experts stay on the workers";
}

/* Chooses among `most` pages that fit, with a context that was not asked for: as many as `parallel` small contexts
 * take, and a part of the rest, because the memory may be meant for other programs, and pages of ended texts need
 * some. */
static uint64_t auto_pages(const struct odm_model *m, uint64_t wanted, uint64_t most)
{
	const uint64_t few = min_u64(od_state_pages(od_config_least_ctx(m->config)) * m->opts.parallel, most);

	if (m->shares_memory) /* unused pages cost nothing */
		return min_u64(wanted, most);
	return min_u64(wanted, few + (most - few) / (fills_memory(m) ? TIERED_DIVISOR : AUTO_CTX_DIVISOR));
}

static int too_little_memory(const struct odm_model *m, uint64_t need, struct od_err *err)
{
	const struct odm_tier_plan *t = &m->tiers;
	const uint64_t least = need + odm_tier_plan_beside(m->device);
	char a[32], b[32];

	return od_fail(err, OD_ERR_NOMEM,
		       "%s: at least %s of memory (%" PRIu64
		       " bytes) are needed for %s, one context%s; %s %s; see --memory, --ctx-size, --parallel and "
		       "--prefill-rows",
		       od_pack_dir(m->pack), od_format_bytes(least, a, sizeof(a)), least,
		       m->dense_choice == OD_DENSE_STREAMED ? "two layers of the dense weights at a time" :
							      "the dense weights",
		       m->opts.tiered ? " and the experts of one layer" : "",
		       m->opts.memory_bytes > 0 ? "found --memory" : "free are",
		       od_format_bytes(t->memory_bytes, b, sizeof(b)));
}

/* Pages of sequences' state: for `parallel` contexts, or as many as fit beside so many pages and copies of other
 * things. */
static int choose_pages(struct odm_model *m, struct od_split *s, uint64_t cache, uint64_t copies, struct od_err *err)
{
	const struct odm_engine_opts *o = &m->opts;
	const uint64_t one = od_state_pages((uint32_t)o->ctx_tokens), each = odm_state_plan_page_bytes(m);
	uint64_t pages = one * o->parallel, least = m->auto_ctx ? od_state_pages(od_config_least_ctx(m->config)) : one,
		 most;
	char a[32], b[32], memory[64], cards[OD_SPLIT_TEXT_BYTES];

	if (m->auto_ctx && m->any_ctx)
		least = 1;

	if (o->state_bytes > 0 && each > 0) {
		pages = min_u64(pages, o->state_bytes / each);
		least = pages;
	}
	if (o->state_bytes > 0 && pages == 0)
		return od_fail(err, OD_ERR_ARG, "--state-memory %s is too small: one page of 64 tokens takes %s",
			       od_format_bytes(o->state_bytes, a, sizeof(a)), od_format_bytes(each, b, sizeof(b)));
	od_split_add(&least, cache);
	od_split_deal(s, m->device, least, copies);
	most = od_split_most_pages(s, copies);
	if (o->shared_bytes > 0 && each > 0)
		most = min_u64(most, o->shared_bytes / each);
	if (m->auto_ctx && o->state_bytes == 0 && most >= least)
		pages = auto_pages(m, pages, most - cache);
	else if (pages + cache > most && most >= least)
		pages = most - cache;
	else if (most < least)
		pages = least - cache;
	m->n_pages = (uint32_t)min_u64(pages, UINT32_MAX);
	if (od_split_fits(s, m->n_pages + cache, copies))
		return OD_OK;
	if (m->dense_choice != OD_DENSE_STREAMED)
		m->dense_all_bytes =
			od_split_need(s, s->n_cards, m->n_pages + cache, copies) + odm_tier_plan_beside(m->device);
	if (has_limit(m))
		return too_little_memory(m, od_split_need(s, s->n_cards, m->n_pages + cache, copies), err);
	return od_fail(err, OD_ERR_NOMEM, "%s needs %s of memory %s, %s are available (%s)%s", od_pack_dir(m->pack),
		       od_format_bytes(od_split_need(s, s->n_cards, m->n_pages + cache, copies), a, sizeof(a)),
		       od_device_memory_name(m->device, memory, sizeof(memory)),
		       od_format_bytes(od_device_free_bytes(m->device), b, sizeof(b)), memory_advice(m),
		       od_split_text(s, m->device, m->n_pages + cache, copies, cards, sizeof(cards)));
}

/* The ring is in the plan; weights that stay have what is left. Returns how much that is. */
static uint64_t give_rest_to_dense(struct odm_model *m, const struct od_split *s, uint64_t copies,
				   const struct dense_room *room)
{
	const uint64_t need = od_split_need(s, s->n_cards, (uint64_t)m->n_pages + m->cache_pages,
					    copies + m->n_snapshots),
		       rest = s->card[s->n_cards].free - need;

	m->dense_bytes = min_u64(room->least + rest, room->most);
	return m->dense_bytes > room->least ? m->dense_bytes - room->least : 0;
}

/* The least that experts take is in the plan; they have what is left, too, and what texts do not use. */
static void give_rest_to_experts(struct odm_model *m, const struct od_split *s, uint64_t copies, uint64_t dense)
{
	struct odm_tier_plan *t = &m->tiers;
	const uint64_t slots = odm_tier_plan_least(t, m->config->top_k) - t->load_bytes,
		       pages = (uint64_t)m->n_pages + m->cache_pages,
		       need = od_split_need(s, s->n_cards, m->shares_memory ? 0 : pages, copies + m->n_snapshots),
		       rest = m->opts.shared_bytes > 0 ? m->opts.shared_bytes : s->card[s->n_cards].free - need - dense,
		       kv = pages * odm_state_plan_page_bytes(m), all = odm_tier_plan_all_bytes(t, m->config);

	t->expert_bytes = slots + min_u64(m->opts.expert_bytes > 0 ? m->opts.expert_bytes : rest, all);
	t->shared_bytes = m->shares_memory ? min_u64(slots + rest, t->expert_bytes + kv) : t->expert_bytes + kv;
}

/* Pages of ended texts come before those of texts, if memory is shared: these may have all of it. */
static void leave_cache_pages(struct odm_model *m, const struct od_split *s, uint64_t copies, uint64_t *cache)
{
	const uint64_t most = od_split_most_pages(s, copies), one = od_state_pages((uint32_t)m->opts.ctx_tokens),
		       least = m->auto_ctx ? 1 : one;

	if (!m->shares_memory || m->n_pages + *cache <= most)
		return;
	*cache = min_u64(*cache, most > least ? most - least : 0);
	m->n_pages = (uint32_t)min_u64(m->n_pages, most - *cache);
}

/* A model that does not fit with one context is refused before it is read, with the numbers. Then pages of ended
 * texts. */
static int plan_state(struct odm_model *m, struct od_split *s, struct od_err *err)
{
	const struct odm_engine_opts *o = &m->opts;
	/* The pool has two copies for each sequence, and one of zeros. */
	const uint64_t copies = 2 * (uint64_t)o->parallel + 1;
	uint64_t cache = asked_items(o->prefix_cache_mib, odm_state_plan_page_bytes(m)),
		 snapshots = asked_items(o->snapshot_mib, snapshot_bytes(m)), dense = 0;
	struct dense_room room;
	int rc = choose_pages(m, s, cache, copies + snapshots, err);

	if (rc != OD_OK)
		return rc;
	if (o->prefix_cache_mib == ODM_PREFIX_CACHE_AUTO)
		cache = auto_items(m, s, m->shares_memory ? 0 : m->n_pages, copies + snapshots, true);
	if (o->snapshot_mib == ODM_PREFIX_CACHE_AUTO && o->prefix_cache_mib > 0)
		snapshots = auto_items(m, s,
				       (m->shares_memory ? 0 : m->n_pages) +
					       asked_items(o->prefix_cache_mib, odm_state_plan_page_bytes(m)),
				       copies, false);
	leave_cache_pages(m, s, copies + snapshots, &cache);
	m->cache_pages = (uint32_t)min_u64(cache, UINT32_MAX - m->n_pages);
	m->n_snapshots = (uint32_t)min_u64(snapshots, UINT32_MAX - 1);
	rc = check_cache_pages(m, err);
	if (rc == OD_OK && m->dense_choice == OD_DENSE_STREAMED) {
		rc = od_dense_stream_room(m->pack, &room.least, &room.most, err);
		if (rc == OD_OK)
			dense = give_rest_to_dense(m, s, copies, &room);
	}
	if (rc == OD_OK && m->opts.tiered)
		give_rest_to_experts(m, s, copies, dense);
	if (rc == OD_OK)
		od_split_log(s, m->device, (uint64_t)m->n_pages + m->cache_pages, copies + m->n_snapshots);
	return rc;
}

static int choose_split(struct odm_model *m, struct od_err *err)
{
	struct od_split s;
	int rc = open_split(m, &s, err);

	if (rc == OD_OK)
		rc = plan_state(m, &s, err);
	od_split_fini(&s);
	return rc;
}

/* With a context that was not asked for: what fits. Only then is the number of pages known. */
static void fit_ctx(struct odm_model *m)
{
	const uint64_t all = (uint64_t)m->n_pages * OD_KV_PAGE, least = od_config_least_ctx(m->config);

	m->fair_tokens = UINT64_MAX;
	if (!m->auto_ctx)
		return;
	m->opts.ctx_tokens = min_u64(m->config->ctx_max, m->opts.state_bytes > 0 && all < least ? least : all);
	m->fair_tokens = m->n_pages / m->opts.parallel * OD_KV_PAGE;
	if (m->opts.ctx_tokens < m->config->ctx_max)
		od_log(OD_LOG_INFO, "context: %llu tokens, as many as memory allows; the model was trained for %u",
		       (unsigned long long)m->opts.ctx_tokens, m->config->ctx_max);
}

/* All experts stay beside texts of all contexts, or of small ones where a context was not asked for. */
static bool holds_all(const struct odm_model *m)
{
	const uint64_t each = od_state_pages(m->auto_ctx ? od_config_least_ctx(m->config) :
							   (uint32_t)m->opts.ctx_tokens),
		       pages = min_u64(each * m->opts.parallel, m->n_pages) + m->cache_pages,
		       least = odm_tier_plan_all_bytes(&m->tiers, m->config) + pages * odm_state_plan_page_bytes(m);

	return odm_tier_plan_holds_all(&m->tiers, m->config) && least <= m->tiers.shared_bytes;
}

static int split_tiers(struct odm_model *m, struct od_err *err)
{
	int rc = odm_tier_plan_open(&m->tiers, m->pack, m->device, m->form, m->opts.memory_bytes, err);

	m->shares_memory = m->tiers.sizes.lends && m->dense_choice != OD_DENSE_STREAMED &&
			   od_device_cards(m->device) == 1 &&
			   od_device_lends(m->device, od_state_page_bytes(m->config, m->opts.profile, NULL));
	return rc == OD_OK ? choose_split(m, err) : rc;
}

static bool has_tables(const struct odm_model *m)
{
	return od_dense_row_bytes(m->pack, OD_DENSE_WITHOUT_TABLES, OD_ROLE_EMBED) > 0 ||
	       od_dense_row_bytes(m->pack, OD_DENSE_WITHOUT_TABLES, OD_ROLE_LAYER_EMBED) > 0;
}

/* If not all experts fit, more do when they are compressed, and loads are shorter because nothing is inflated. If that
 * is not enough either, embedding tables leave their memory to experts: a token reads one row of a table. */
static int choose_tiers(struct odm_model *m, struct od_err *err)
{
	int rc;

	m->dense_choice = OD_DENSE_ALL;
	rc = split_tiers(m, err);
	if (rc == OD_OK && holds_all(m))
		return rc;
	if (m->opts.form == OD_FORM_AUTO && m->form != OD_FORM_PLANES &&
	    od_pack_can_form(m->pack, OD_FORM_PLANES, NULL) == OD_OK) {
		m->form = OD_FORM_PLANES;
		rc = split_tiers(m, err);
	}
	if ((rc == OD_OK && holds_all(m)) || !has_tables(m))
		return rc;
	m->dense_choice = OD_DENSE_WITHOUT_TABLES;
	return split_tiers(m, err);
}

/* A cluster's experts are elsewhere. */
static int choose_beside_cluster(struct odm_model *m, struct od_err *err)
{
	int rc = OD_OK;

	odm_tier_plan_close(&m->tiers);
	if (m->opts.memory_bytes > 0 || m->dense_choice == OD_DENSE_STREAMED)
		rc = odm_tier_plan_limit(&m->tiers, m->device, m->opts.memory_bytes, err);
	return rc == OD_OK ? choose_split(m, err) : rc;
}

/* Steps can read dense weights that do not fit; not if the model is to be in memory, or has several GPUs. What reading
 * needs may be more than small models save. */
static bool can_stream(const struct odm_model *m)
{
	return !m->opts.resident && od_device_cards(m->device) == 1 && !od_device_can_fall_back(m->device) &&
	       od_dense_need_bytes(m->pack, OD_DENSE_STREAMED) < od_dense_need_bytes(m->pack, m->dense_choice);
}

static int choose_streamed(struct odm_model *m, struct od_err *err)
{
	int rc;

	m->dense_choice = OD_DENSE_STREAMED;
	m->any_ctx = false;
	rc = m->opts.tiered ? split_tiers(m, err) : choose_beside_cluster(m, err);
	if (rc != OD_ERR_NOMEM || !m->auto_ctx)
		return rc;
	m->any_ctx = true;
	return m->opts.tiered ? split_tiers(m, err) : choose_beside_cluster(m, err);
}

/* The form of experts is the faster one only if the model fits with it. A context of a few pages is the last resort. */
static int choose_memory(struct odm_model *m, struct od_err *err)
{
	int rc;

	m->dense_choice = OD_DENSE_ALL;
	rc = m->opts.tiered ? choose_tiers(m, err) : choose_beside_cluster(m, err);
	if (rc == OD_ERR_NOMEM && m->opts.form == OD_FORM_AUTO && has_smaller_form(m)) {
		m->form = OD_FORM_PLANES;
		rc = choose_split(m, err);
		if (rc == OD_OK)
			od_log(OD_LOG_INFO, "experts stay compressed in memory: as BF16 the model would not fit");
	}
	if (rc == OD_ERR_NOMEM && m->auto_ctx && !od_device_can_fall_back(m->device)) {
		m->any_ctx = true;
		rc = m->opts.tiered ? choose_tiers(m, err) : choose_beside_cluster(m, err);
	}
	if (rc == OD_ERR_NOMEM && can_stream(m))
		rc = choose_streamed(m, err);
	if (rc == OD_OK)
		fit_ctx(m);
	return rc;
}

/* Without snapshots of recurrent state, pages are of no use. */
void odm_state_plan_cache(struct odm_model *m)
{
	const bool fixed = odm_pass_size_fixed(m->config);

	if (!fixed || m->opts.prefix_cache_mib == 0)
		m->opts.snapshot_mib = 0;
	if (!fixed || m->opts.snapshot_mib > 0 || m->opts.prefix_cache_mib == 0)
		return;
	od_log(OD_LOG_INFO, "prefix cache: off, because the model has recurrent state, and --snapshot-mib is 0");
	m->opts.prefix_cache_mib = 0;
	m->opts.prefix_cache_dir = NULL;
}

int odm_state_plan_ctx(struct odm_model *m, struct od_err *err)
{
	uint32_t max = m->config->ctx_max;

	m->auto_ctx = m->opts.ctx_tokens == 0;
	if (m->auto_ctx)
		m->opts.ctx_tokens = max; /* until it is known what fits */
	if (m->opts.ctx_tokens > max)
		return od_fail(err, OD_ERR_ARG, "--ctx-size: expected at most %u (the model's context), found %llu",
			       max, (unsigned long long)m->opts.ctx_tokens);
	return OD_OK;
}

/* The form of experts, and how its memory is used. */
int odm_state_plan_make(struct odm_model *m, struct od_err *err)
{
	int rc = OD_OK;

	if (m->opts.resident || m->opts.tiered || m->opts.form != OD_FORM_AUTO) /* else workers choose */
		rc = od_pack_choose_form(m->pack, m->device, m->opts.form, &m->form, err);
	return rc == OD_OK ? choose_memory(m, err) : rc;
}

int odm_state_plan_fits(const struct odm_model *m, uint32_t positions, struct od_err *err)
{
	const uint64_t pages = od_state_pages(positions);
	char a[32], b[32], c[32];

	if (pages <= m->n_pages)
		return OD_OK;
	return od_fail(err, OD_ERR_NOMEM,
		       "a text of up to %u tokens needs %s of KV cache, %s more than there is (%s); "
		       "ask for fewer tokens, or raise --state-memory",
		       positions, od_format_bytes(pages * odm_state_plan_page_bytes(m), a, sizeof(a)),
		       od_format_bytes((pages - m->n_pages) * odm_state_plan_page_bytes(m), b, sizeof(b)),
		       od_format_bytes(m->n_pages * odm_state_plan_page_bytes(m), c, sizeof(c)));
}
