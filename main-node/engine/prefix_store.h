/* prefix_store.h - the prefix cache's folder: pages of ended texts as files (prefix_file.h), so that they outlive the process.
 *
 * Two threads of its own read and write; the engine thread only hands over page numbers and never waits for a disk. A file that
 * cannot be written is not there later, and one that cannot be read, or is not what it should be, ends the reading: then the
 * rest is computed. Files are used like the cache's pages: the least recently used go when the folder has reached its limit.
 * The pool's memory must be mapped: the threads copy rows from and to it, under the lock.
 * Thread: the engine thread. Owner: the engine; closed when no read is open, and before the pool. */
#ifndef ODM_PREFIX_STORE_H
#define ODM_PREFIX_STORE_H

#include "main-node/engine/prefix_file.h"

struct odm_prefix_store;
struct odm_prefix_read;

struct odm_prefix_store_opts {
	const char *dir; /* made if it does not exist; else it must be its owner's alone */
	struct odm_prefix_kind kind;
	struct od_state_pool *pool;
	uint64_t limit_bytes; /* of all files; the store takes less if the disk is nearly full */
};

/* Finds out which files there are. Deletes those of another model, of other numbers, and incomplete ones. */
OD_MUST_CHECK int odm_prefix_store_open(struct odm_prefix_store **out, const struct odm_prefix_store_opts *o,
					struct od_err *err);
/* Writes what is waiting, for five seconds at most. NULL ok. */
void odm_prefix_store_close(struct odm_prefix_store *s);

/* Writes the pages of text [n_pages * OD_KV_PAGE] that have no file yet, some time later. Their rows stay as they are until
 * odm_prefix_store_forget. */
void odm_prefix_store_save(struct odm_prefix_store *s, const int32_t *text, uint32_t n_pages, const uint32_t *page);
/* The page will hold something else: it is not written. */
void odm_prefix_store_forget(struct odm_prefix_store *s, uint32_t page);

/* The end of the pages from `begin` on that the folder seems to have, of text [n_pages * OD_KV_PAGE]; begin: none. */
uint32_t odm_prefix_store_find(struct odm_prefix_store *s, const int32_t *text, uint32_t begin, uint32_t n_pages);
/* Reads the text's pages [begin, end) into these of the pool. NULL: out of memory. */
struct odm_prefix_read *odm_prefix_store_read(struct odm_prefix_store *s, const int32_t *text, uint32_t begin, uint32_t end,
					      const uint32_t *page);
/* The pages up to *end are there. False: no more will come, or none has come for two seconds. */
bool odm_prefix_read_goes_on(struct odm_prefix_read *r, uint32_t *end);
void odm_prefix_read_close(struct odm_prefix_read *r); /* nothing is written to its pages from now on; NULL ok */
/* Waits until a page was read, a short time at most. */
void odm_prefix_store_wait(struct odm_prefix_store *s);

#endif
