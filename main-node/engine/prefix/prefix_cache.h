/* prefix_cache.h - finds pages of the KV cache by the tokens that they hold, so that a text does not compute again what
 * an earlier text began with.
 *
 * The rows of a page depend on all tokens up to its end. So pages form a tree: a page is found behind the page before
 * it, by its own tokens. With long RoPE rows of long texts differ from those of short ones: there is a tree of each
 * kind. Tokens are compared; a hash only finds where to look. Pages of ended texts stay in the pool until more are idle
 * than it has set aside, and perhaps than no text needs now. Then the least recently used ones go, the ends of texts
 * before their beginnings.
 * Thread: the engine thread. Owner: the engine; freed before the pool. Nothing is allocated after
 * odm_prefix_cache_new. */
#ifndef ODM_PREFIX_CACHE_H
#define ODM_PREFIX_CACHE_H

#include "common/model/seq_state.h"

struct odm_prefix_cache;

/* For the pool of n_pages pages, of which max_idle are set aside. dropped (NULL ok): the page may soon hold something
 * else. */
OD_MUST_CHECK int odm_prefix_cache_new(struct odm_prefix_cache **out, struct od_state_pool *pool, uint32_t n_pages,
				       uint32_t max_idle, void (*dropped)(void *arg, uint32_t page), void *arg,
				       struct od_err *err);
void odm_prefix_cache_free(struct odm_prefix_cache *c); /* NULL ok */
/* From now on, pages that are neither used nor promised count as set aside too. */
void odm_prefix_cache_use_free(struct odm_prefix_cache *c);

/* The pages of text [n_pages * OD_KV_PAGE] from its begin on, as far as they are there, to page [n_pages]; returns how
 * many. They count as used now. They stay until the next odm_prefix_cache_trim, or as long as a sequence has them. */
uint32_t odm_prefix_cache_find(struct odm_prefix_cache *c, bool is_long, const int32_t *text, uint32_t n_pages,
			       uint32_t *page);
/* A sequence has these committed pages of a text [n_pages * OD_KV_PAGE]: keeps them, except where the same tokens are
 * there already; page[i] then becomes the one that is there. */
void odm_prefix_cache_add(struct odm_prefix_cache *c, bool is_long, const int32_t *text, uint32_t n_pages,
			  uint32_t *page);
/* A sequence has these pages of a text [end * OD_KV_PAGE], and computed those from `begin` on, with rows that must not
 * be used: where they are kept they are dropped, with all that is behind them. */
void odm_prefix_cache_forget(struct odm_prefix_cache *c, bool is_long, const int32_t *text, uint32_t begin,
			     uint32_t end, const uint32_t *page);
/* Drops pages until no more are idle than may be. Call it when a sequence was freed, or has got a promise. */
void odm_prefix_cache_trim(struct odm_prefix_cache *c);

#endif
