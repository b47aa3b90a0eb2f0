/* prefix_store.h - the prefix cache's files: pages of ended texts, and snapshots of their fixed state (prefix_file.h),
 * so that they outlive the process.
 *
 * Two threads of its own read and write; the engine thread only hands over page numbers and never waits for a disk. A
 * file that cannot be written is not there later, and one that cannot be read, or is not what it should be, ends the
 * reading: then the rest is computed. Files are used like the cache's pages: the least recently used go when the folder
 * has reached its limit (prefix_folder.h). Snapshots count as used a second before their pages, so they go first.
 * is_long: of od_seq_state_is_long. state: snapshots of the pool, by page; ODM_NO_SNAPSHOT where there is none.
 * The threads copy rows and snapshots from and to the pool's memory under the lock, on the device's load queue.
 * Thread: the engine thread. Owner: the engine; closed when no read is open, and before the pool. */
#ifndef ODM_PREFIX_STORE_H
#define ODM_PREFIX_STORE_H

#include "main-node/engine/prefix/prefix_folder.h"
#include "main-node/engine/prefix/snapshots.h"

struct odm_prefix_store;
struct odm_prefix_read;

struct odm_prefix_store_opts {
	const char *dir;
	struct odm_prefix_kind kind; /* with fixed state, the pool has room for snapshots */
	struct od_state_pool *pool;
	struct od_device *device; /* the pool's */
	uint64_t limit_bytes; /* sum over all files; the store takes less if the disk is nearly full */
};

/* Finds out which files there are. */
OD_MUST_CHECK int odm_prefix_store_open(struct odm_prefix_store **out, const struct odm_prefix_store_opts *o,
					struct od_err *err);
/* Writes what is waiting, for five seconds at most. NULL ok. */
void odm_prefix_store_close(struct odm_prefix_store *s);

const char *odm_prefix_store_dir(const struct odm_prefix_store *s); /* this model's folder */

/* Writes the pages of text [n_pages * OD_KV_PAGE] and their snapshots [n_pages] that have no file yet, some time later.
 * They stay as they are until odm_prefix_store_forget. state NULL: the model has none. */
void odm_prefix_store_save(struct odm_prefix_store *s, bool is_long, const int32_t *text, uint32_t n_pages,
			   const uint32_t *page, const uint32_t *state);
/* The page, or the snapshot, will hold something else: it is not written. */
void odm_prefix_store_forget(struct odm_prefix_store *s, enum odm_prefix_what what, uint32_t i);

/* The end of the pages from `begin` on that the folder seems to have, of text [n_pages * OD_KV_PAGE]; begin: none. With
 * fixed state, the last of them has a snapshot. */
uint32_t odm_prefix_store_find(struct odm_prefix_store *s, bool is_long, const int32_t *text, uint32_t begin,
			       uint32_t n_pages);
/* Reads the text's pages [begin, end) into these of the pool, and with fixed state the last one's snapshot into this
 * one. NULL: out of memory. */
struct odm_prefix_read *odm_prefix_store_read(struct odm_prefix_store *s, bool is_long, const int32_t *text,
					      uint32_t begin, uint32_t end, const uint32_t *page, uint32_t state);
/* The pages up to *end are there; *state: the snapshot too. False: no more will come, or none has come for two
 * seconds. */
bool odm_prefix_read_goes_on(struct odm_prefix_read *r, uint32_t *end, bool *state);
void odm_prefix_read_close(struct odm_prefix_read *r); /* nothing is written to its pages from now on; NULL ok */
/* Waits until a page was read, a short time at most. */
void odm_prefix_store_wait(struct odm_prefix_store *s);

#endif
