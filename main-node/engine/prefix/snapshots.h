/* snapshots.h - which snapshots of fixed state there are: each belongs to a page of the prefix cache, and is the state
 * behind that page's last token. A text can begin there if it begins with the tokens of that page and of all before it.
 *
 * When there is no room the one goes that is worth least: the tokens that would be computed again without it, and how
 * long ago it was used, count alike (GreedyDual: Young, "The k-server dual and loose competitiveness for paging",
 * Algorithmica 11, 1994). Of equal worth the least recently used one goes. A page that leaves the prefix cache takes
 * its snapshot along, so a snapshot never outlives its pages.
 * Thread: the engine thread. Owner: the engine; the states themselves are the pool's (seq_state.h). Nothing is
 * allocated after odm_snapshots_new. */
#ifndef ODM_SNAPSHOTS_H
#define ODM_SNAPSHOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

#define ODM_NO_SNAPSHOT UINT32_MAX

struct odm_snapshots;

/* n: how many there may be, at least 1. n_pages: of the pool. dropped (NULL ok): the snapshot may soon hold something
 * else. */
OD_MUST_CHECK int odm_snapshots_new(struct odm_snapshots **out, uint32_t n, uint32_t n_pages,
				    void (*dropped)(void *arg, uint32_t snapshot), void *arg, struct od_err *err);
void odm_snapshots_free(struct odm_snapshots *s); /* NULL ok */

/* One to write to, until it is kept or given back: a free one, else the one that this text wrote for page `old`, if it
 * is there, else the one that is worth least. old may be ODM_NO_PAGE. ODM_NO_SNAPSHOT: all are being written. */
#define ODM_NO_PAGE UINT32_MAX
uint32_t odm_snapshots_take(struct odm_snapshots *s, uint32_t old, uint64_t text);
void odm_snapshots_give_back(struct odm_snapshots *s, uint32_t snapshot);
/* A snapshot that was taken has been written by this text (any number): it becomes that of the page, and saves so many
 * tokens. False: the page has one, and this one is given back. */
bool odm_snapshots_keep(struct odm_snapshots *s, uint32_t snapshot, uint32_t page, uint64_t text, uint32_t tokens);
/* The page's. */
uint32_t odm_snapshots_of(const struct odm_snapshots *s, uint32_t page);
/* A text begins from it. */
void odm_snapshots_use(struct odm_snapshots *s, uint32_t snapshot);
/* Number of texts that began from it. */
uint32_t odm_snapshots_uses(const struct odm_snapshots *s, uint32_t snapshot);
/* It counts as used now, and saves so many tokens. */
void odm_snapshots_value(struct odm_snapshots *s, uint32_t snapshot, uint32_t tokens);
/* Its text has gone on behind it, so it is not likely to be used again: that it saves so many tokens counts for little.
 * Without effect if that was said already, and it has not been used since. */
void odm_snapshots_pass(struct odm_snapshots *s, uint32_t snapshot, uint32_t tokens);
/* The page leaves the cache: drops its snapshot, if it has one. */
void odm_snapshots_drop(struct odm_snapshots *s, uint32_t page);
/* Snapshots that this text wrote are of no more use: for this page, or all. */
void odm_snapshots_forget(struct odm_snapshots *s, uint32_t page, uint64_t text);
void odm_snapshots_forget_all(struct odm_snapshots *s, uint64_t text);

struct odm_snapshot_counts {
	uint32_t kept; /* now */
	uint64_t written, used;
	uint64_t dropped; /* for want of room: of snapshots, or of pages */
};
void odm_snapshots_count(const struct odm_snapshots *s, struct odm_snapshot_counts *c);

#endif
