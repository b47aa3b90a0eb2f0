#include "main-node/engine/prefix_reuse.h"

#include "main-node/engine/engine_internal.h"

#include <stdlib.h>
#include <string.h>

/* Files take so many times the memory of the cache: they are to hold the texts of days, not of minutes. */
#define FILES_PER_MEMORY 16

static void forget_page(void *arg, uint32_t page)
{
	const struct odm_engine *e = arg;

	if (e->reuse.store != NULL)
		odm_prefix_store_forget(e->reuse.store, page);
}

static int open_files(struct odm_engine *e, struct od_err *err)
{
	struct odm_prefix_store_opts o = {
		.dir = e->opts.prefix_cache_dir,
		.kind = { .profile = e->opts.profile, .kernel_class = od_device_kernel_class(e->device, e->opts.profile),
			  .mixed = e->opts.mixed, .config = e->config },
		.pool = e->state,
		.limit_bytes = FILES_PER_MEMORY * (od_state_pool_bytes(e->config, e->opts.profile, e->cache_pages, 0) -
						   od_state_pool_bytes(e->config, e->opts.profile, 0, 0)),
	};

	if (!od_state_pool_mapped(e->state))
		return od_fail(err, OD_ERR_UNSUPPORTED, "--prefix-cache: the KV cache is in the memory of device %s, where files cannot be "
			       "read to; leave it out", od_device_name(e->device));
	od_pack_fingerprint_bytes(e->pack, o.kind.fingerprint);
	return odm_prefix_store_open(&e->reuse.store, &o, err);
}

int odm_reuse_open(struct odm_engine *e, struct od_err *err)
{
	struct odm_reuse *u = &e->reuse;
	int rc;

	if (e->cache_pages == 0)
		return OD_OK;
	od_state_pool_set_aside(e->state, e->cache_pages);
	u->page = calloc(od_state_pages((uint32_t)e->opts.ctx_tokens), sizeof(*u->page));
	if (u->page == NULL)
		return od_fail(err, OD_ERR_NOMEM, "prefix cache");
	rc = odm_prefix_cache_new(&u->cache, e->state, e->n_pages + e->cache_pages, e->cache_pages, forget_page, e, err);
	return rc == OD_OK && e->opts.prefix_cache_dir != NULL ? open_files(e, err) : rc;
}

void odm_reuse_close(struct odm_engine *e)
{
	odm_prefix_store_close(e->reuse.store);
	odm_prefix_cache_free(e->reuse.cache);
	free(e->reuse.page);
}

/* ---- At the begin of a text ---- */

/* Whole pages of a text's prompt without its last token. */
static uint32_t most_pages(const struct odm_sequence *q)
{
	return (uint32_t)((q->req.n_prompt - 1) / OD_KV_PAGE);
}

/* Of these, how many the other text begins with. */
static uint32_t common_pages(const struct odm_sequence *q, const struct odm_sequence *with)
{
	const size_t prompt = (size_t)most_pages(q) * OD_KV_PAGE, most = prompt < with->n_text ? prompt : with->n_text;
	size_t n = 0;

	while (n < most && q->req.prompt[n] == with->text[n])
		n++;
	return (uint32_t)(n / OD_KV_PAGE);
}

/* Returns how many pages the best donor will have, if it is still in prefill. */
static uint32_t find_donor(const struct odm_sequence *q, struct odm_reuse_pages *r)
{
	uint32_t coming = 0;

	for (const struct odm_sequence *with = q->engine->batch.first; with != NULL; with = with->next) {
		uint32_t common, there;

		if (with->state == NULL || atomic_load(&with->cancelled))
			continue;
		common = common_pages(q, with);
		there = od_seq_state_length(with->state) / OD_KV_PAGE;
		if ((with->phase == ODM_IN_RESTORE || with->phase == ODM_IN_PREFILL) && common > coming)
			coming = common;
		if (common > there)
			common = there;
		if (common > r->n_donor) {
			r->n_donor = common;
			r->donor = with;
		}
	}
	return coming;
}

bool odm_reuse_find(const struct odm_sequence *q, struct odm_reuse_pages *r)
{
	const struct odm_reuse *u = &q->engine->reuse;
	uint32_t coming;

	*r = (struct odm_reuse_pages){ 0 };
	/* Rows of a shared prefix are not computed, so they have no logits. */
	if (od_state_pool_fixed_bytes(q->engine->state) > 0 || odm_sequence_shows_prompt(q))
		return true;
	coming = find_donor(q, r);
	if (u->cache != NULL) {
		r->page = u->page;
		r->n = odm_prefix_cache_find(u->cache, q->req.prompt, most_pages(q), u->page);
	}
	if (r->n_donor > r->n) {
		r->page = od_seq_state_pages(r->donor->state);
		r->n = r->n_donor;
	}
	return coming <= r->n;
}

/* ---- Files ---- */

bool odm_reuse_restore(struct odm_sequence *q, uint32_t n)
{
	struct odm_prefix_store *store = q->engine->reuse.store;
	uint32_t end;

	if (store == NULL || odm_sequence_shows_prompt(q))
		return false;
	end = odm_prefix_store_find(store, q->req.prompt, n, most_pages(q));
	if (end <= n)
		return false;
	od_seq_state_reserve(q->state, end * OD_KV_PAGE);
	q->restore = odm_prefix_store_read(store, q->req.prompt, n, end, od_seq_state_pages(q->state));
	return q->restore != NULL;
}

/* False: all that will come is there. */
static bool take_restored(struct odm_sequence *q)
{
	const struct odm_observer *o = &q->req.observer;
	const uint32_t before = od_seq_state_length(q->state);
	uint32_t end;
	const bool more = odm_prefix_read_goes_on(q->restore, &end);

	od_seq_state_set_length(q->state, end * OD_KV_PAGE);
	q->own[OD_C_RESTORED_TOKENS] += end * OD_KV_PAGE - before;
	q->own[OD_C_SHARED_TOKENS] = end * OD_KV_PAGE;
	if (end * OD_KV_PAGE > before && o->progress != NULL)
		o->progress(o->arg, end * OD_KV_PAGE, (uint32_t)q->req.n_prompt);
	return more;
}

size_t odm_reuse_poll(struct odm_engine *e)
{
	size_t n = 0;

	for (struct odm_sequence *q = e->batch.first; q != NULL; q = q->next) {
		if (q->phase != ODM_IN_RESTORE)
			continue;
		if (take_restored(q)) {
			n++;
			continue;
		}
		odm_prefix_read_close(q->restore);
		q->restore = NULL;
		q->phase = ODM_IN_PREFILL;
	}
	return n;
}

void odm_reuse_wait(const struct odm_engine *e)
{
	odm_prefix_store_wait(e->reuse.store);
}

/* ---- At its end ---- */

void odm_reuse_keep(const struct odm_sequence *q)
{
	const struct odm_reuse *u = &q->engine->reuse;
	uint32_t n;

	/* After an error the rows may hold what is no number. */
	if (u->cache == NULL || q->state == NULL || (q->err.code != OD_OK && q->err.code != OD_ERR_CANCELLED))
		return;
	n = od_seq_state_length(q->state) / OD_KV_PAGE; /* tokens of committed rows are in the text */
	memcpy(u->page, od_seq_state_pages(q->state), n * sizeof(*u->page));
	odm_prefix_cache_add(u->cache, q->text, n, u->page);
	if (u->store != NULL)
		odm_prefix_store_save(u->store, q->text, n, u->page);
}

void odm_reuse_trim(struct odm_engine *e)
{
	if (e->reuse.cache != NULL)
		odm_prefix_cache_trim(e->reuse.cache);
}
