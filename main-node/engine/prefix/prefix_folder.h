/* prefix_folder.h - the folder of the prefix cache: which files there are (prefix_file.h), and how much they take
 * together.
 *
 * Of the folder that the user names each model has a folder within, kv-HASH, by all that its rows depend on. One
 * process at a time has it, by a lock on the file "lock" in it, which ends with the process and says its number.
 * Files are used like the cache's pages: the least recently used go when the folder has reached its limit (modification
 * times). What the list says is not more than a hint: somebody else may delete files.
 * Thread: has, note, path: any. The others: one at a time. Owner: the store; the list is under the folder's own
 * lock. */
#ifndef ODM_PREFIX_FOLDER_H
#define ODM_PREFIX_FOLDER_H

#include <limits.h>
#include <pthread.h>

#include "common/base/id_table.h"
#include "main-node/engine/prefix/prefix_file.h"

#define ODM_PREFIX_CALLS "calls" /* a file of the server's own, which goes with the others */

struct odm_prefix_folder {
	char dir[PATH_MAX]; /* this model's folder */
	int lock_fd; /* -1: none */
	struct odm_prefix_id id[ODM_N_PREFIX_WHAT]; /* the state's kinds: rows_bytes 0 if there is none */
	uint64_t limit_bytes, all_bytes; /* sums over all files */
	pthread_mutex_t lock;
	struct od_id_table files; /* under the lock */
};

/* Makes the folder dir if it does not exist; else it must be its owner's alone. Refuses one in which another process
 * has this model's folder. Deletes incomplete files, and those of other models that no process has: the least recently
 * used, until they take no more than limit_bytes. Files that lie in dir itself (as an older version had them) move to
 * the model's folder, or go if they are of another model. f is zeros; odm_prefix_folder_fini also after an error. */
OD_MUST_CHECK int odm_prefix_folder_init(struct odm_prefix_folder *f, const char *dir, uint64_t limit_bytes,
					 const struct odm_prefix_kind *kind, struct od_err *err);
void odm_prefix_folder_fini(struct odm_prefix_folder *f);

bool odm_prefix_folder_has(struct odm_prefix_folder *f, enum odm_prefix_what what, const struct odm_prefix_key *key);
void odm_prefix_folder_note(struct odm_prefix_folder *f, enum odm_prefix_what what, const struct odm_prefix_key *key,
			    bool there);
/* False: it is too long. */
bool odm_prefix_folder_path(const struct odm_prefix_folder *f, char path[PATH_MAX], enum odm_prefix_what what,
			    const struct odm_prefix_key *key);
/* Makes room for one more file of so many bytes; all_bytes does not have it yet. */
OD_MUST_CHECK int odm_prefix_folder_make_room(struct odm_prefix_folder *f, size_t bytes, struct od_err *err);

#endif
