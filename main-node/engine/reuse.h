/* reuse.h - the begin of a text that need not be computed, because another text has had it: a text in progress,
 * or an ended one, in the prefix cache or in the files of an earlier process. Where the model has fixed state, a text
 * begins behind a page that has a snapshot.
 *
 * Thread: the engine thread. Owner: the model. */
#ifndef ODM_REUSE_H
#define ODM_REUSE_H

#include "main-node/engine/prefix/prefix_cache.h"
#include "main-node/engine/prefix/prefix_store.h"
#include "main-node/engine/prefix/snapshots.h"
#include "main-node/engine/sequence.h"

struct odm_reuse_opts {
	struct od_state_pool *pool;
	struct od_device *device; /* the pool's */
	uint32_t text_pages; /* pages of the longest text */
	/* the pool's pages: for texts in progress; for ended ones, 0: there is no cache */
	uint32_t n_pages, cache_pages;
	bool uses_free; /* the cache also has what texts in progress do not need */
	uint32_t n_snapshots; /* with fixed state */
	uint64_t page_bytes;
	const char *dir; /* folder of files; NULL: none */
	struct odm_prefix_kind kind; /* kind of the files' rows */
};

struct odm_reuse {
	struct od_state_pool *pool;
	struct od_device *device;
	struct odm_prefix_cache *cache; /* NULL: ended texts leave nothing */
	struct odm_prefix_store *store; /* NULL: no files */
	struct odm_snapshots *snapshots; /* NULL: the model has no fixed state, or there is no cache */
	uint32_t *page, *snapshot; /* [pages of the context]: scratch */
};

/* u is zeros, and stays where it is until odm_reuse_close, also after an error. */
OD_MUST_CHECK int odm_reuse_open(struct odm_reuse *u, const struct odm_reuse_opts *o, struct od_err *err);
void odm_reuse_close(struct odm_reuse *u);

/* Pages that a text can begin with. Its last token is always computed. */
struct odm_reuse_pages {
	const uint32_t *page; /* [n]; until the next call about the cache, or the end of a text */
	uint32_t n;
	const struct odm_sequence *donor; /* the text in progress that begins most like it; NULL: none */
	uint32_t n_donor; /* pages that both begin with */
	uint32_t snapshot; /* snapshot of the last page; ODM_NO_SNAPSHOT: n is 0, or there is no fixed state */
	uint32_t known; /* with fixed state: pages that other texts began with */
};

/* first: all texts, in order. False: it is better to wait, because a prompt that is under way will have more. */
bool odm_reuse_find(const struct odm_reuse *u, struct odm_sequence *first, struct odm_sequence *q,
		    struct odm_reuse_pages *r);
/* The text has these pages, and its promise: gives it the fixed state behind them. */
OD_MUST_CHECK int odm_reuse_begin(const struct odm_reuse *u, struct odm_sequence *q, const struct odm_reuse_pages *r,
				  struct od_err *err);
/* The text has its promise: begins to read what files have behind the first n pages. False: they have nothing. */
bool odm_reuse_restore(const struct odm_reuse *u, struct odm_sequence *q, uint32_t n);
/* Takes what was read for the texts from `first` on. Returns how many are being restored. */
size_t odm_reuse_poll(const struct odm_reuse *u, struct odm_sequence *first);
/* Waits for a page, a short time at most. */
void odm_reuse_wait(const struct odm_reuse *u);

/* A step with rows of the text up to `end` is about to begin: takes snapshots where they are wanted. */
void odm_reuse_step(const struct odm_reuse *u, struct odm_sequence *q, uint32_t end);
/* The step has ended: keeps the snapshots of what it has committed. */
void odm_reuse_stepped(const struct odm_reuse *u, struct odm_sequence *q);
/* The text has ended, or is computed anew: its complete pages stay for others. Before its state is freed; trim: after
 * that, and when a text has got its promise. */
void odm_reuse_keep(const struct odm_reuse *u, struct odm_sequence *q);
void odm_reuse_trim(const struct odm_reuse *u);

#endif
