#include "main-node/engine/prefix_reuse.h"

#include "main-node/engine/engine_internal.h"

#include <stdlib.h>
#include <string.h>

int odm_reuse_open(struct odm_engine *e, struct od_err *err)
{
	struct odm_reuse *u = &e->reuse;

	if (e->cache_pages == 0)
		return OD_OK;
	od_state_pool_set_aside(e->state, e->cache_pages);
	u->page = calloc(od_state_pages((uint32_t)e->opts.ctx_tokens), sizeof(*u->page));
	if (u->page == NULL)
		return od_fail(err, OD_ERR_NOMEM, "prefix cache");
	return odm_prefix_cache_new(&u->cache, e->state, e->n_pages + e->cache_pages, e->cache_pages, NULL, NULL, err);
}

void odm_reuse_close(struct odm_engine *e)
{
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
		if (with->phase == ODM_IN_PREFILL && common > coming)
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
}

void odm_reuse_trim(struct odm_engine *e)
{
	if (e->reuse.cache != NULL)
		odm_prefix_cache_trim(e->reuse.cache);
}
