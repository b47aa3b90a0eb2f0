/* file.h - whole reads and writes, and files that appear complete or not at all.
 *
 * Thread: any. Every error names the path. */
#ifndef OD_BASE_FILE_H
#define OD_BASE_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* Read-only descriptor and the file's size. *fd is -1 unless OD_OK. Refuses what is not a regular file. */
OD_MUST_CHECK int od_file_open(const char *path, int *fd, uint64_t *size_bytes, struct od_err *err);

/* Something has this name, whether or not it can be opened: opening says why. So an optional file that is a symbolic link to
 * nothing (a download that was cut short, a disk that is not mounted) is not taken for one that was never meant to be. */
bool od_file_there(const char *path);

/* Exactly len bytes, or an error that says how many there were; name is for the message. */
OD_MUST_CHECK int od_file_pread(int fd, void *buf, size_t len, uint64_t offset, const char *name, struct od_err *err);
OD_MUST_CHECK int od_file_pwrite(int fd, const void *buf, size_t len, uint64_t offset, const char *name,
				 struct od_err *err);

/* The file once more, past the page cache (O_DIRECT); -1: its file system has no such thing. */
int od_file_open_direct(const char *path);
/* As od_file_pread, by a descriptor of od_file_open_direct. Whole pages go straight to buf if it lies in its page as
 * offset does; what cannot be read like that is read from fd. */
OD_MUST_CHECK int od_file_pread_direct(int direct_fd, int fd, void *buf, size_t len, uint64_t offset, const char *name,
				       struct od_err *err);

/* The whole file, as long as it was when it was opened, in malloc'd memory with a NUL behind it (not counted). Refuses
 * files above max_bytes. *out is NULL and *len 0 unless OD_OK. */
OD_MUST_CHECK int od_file_read(const char *path, size_t max_bytes, char **out, size_t *len, struct od_err *err);

/* path.tmp, fsync, rename, fsync of the folder. One writer of a path at a time: that name is not unique. */
OD_MUST_CHECK int od_file_write_atomic(const char *path, const void *buf, size_t len, struct od_err *err);

/* The folder that path stands for, whether it exists or not: symbolic links, "." and ".." at its end are followed, slashes
 * there go. So a folder can be renamed, or made where a link leads to. Refuses a link into a folder that does not exist
 * (a disk that is not mounted, as a rule). */
OD_MUST_CHECK int od_dir_resolve(char out[PATH_MAX], const char *path, struct od_err *err);
/* The folder and its parents; fine when it exists. */
OD_MUST_CHECK int od_mkdir_p(const char *path, struct od_err *err);
OD_MUST_CHECK int od_fsync_dir(const char *path, struct od_err *err);
bool od_is_dir(const char *path);

/* dir + "/" + name in buf (size bytes), cut off never: OD_ERR_RANGE when it does not fit. */
OD_MUST_CHECK int od_path(char *buf, size_t size, const char *dir, const char *name, struct od_err *err);

#endif
