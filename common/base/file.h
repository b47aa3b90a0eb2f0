/* file.h - file access: complete reads and writes, atomic replacement, folders.
 *
 * Thread: any. Owner: the caller owns descriptors and buffers. Every error names the path. */
#ifndef OD_BASE_FILE_H
#define OD_BASE_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* Read-only descriptor and the file's size. *fd is -1 unless OD_OK. Refuses what is not a regular file. */
OD_MUST_CHECK int od_file_open(const char *path, int *fd, uint64_t *size_bytes, struct od_err *err);

/* True when the name exists, even if it cannot be opened. So an optional file that is a dangling symbolic link (an
 * incomplete download, an unmounted disk) is not treated as absent: opening it reports the error. */
bool od_file_there(const char *path);

/* Transfers exactly len bytes, or fails with the number of bytes found; name is for the message. */
OD_MUST_CHECK int od_file_pread(int fd, void *buf, size_t len, uint64_t offset, const char *name, struct od_err *err);
OD_MUST_CHECK int od_file_pwrite(int fd, const void *buf, size_t len, uint64_t offset, const char *name,
				 struct od_err *err);

/* Opens the file a second time, past the page cache (O_DIRECT); -1: the file system does not support that. */
int od_file_open_direct(const char *path);
/* As od_file_pread, with a descriptor of od_file_open_direct. Whole pages go directly to buf if buf and offset have the
 * same position within a page; the rest is read through fd. */
OD_MUST_CHECK int od_file_pread_direct(int direct_fd, int fd, void *buf, size_t len, uint64_t offset, const char *name,
				       struct od_err *err);

/* The whole file (its length at open) in malloc'd memory, with a NUL behind it that is not counted. Refuses files above
 * max_bytes. *out is NULL and *len 0 unless OD_OK. */
OD_MUST_CHECK int od_file_read(const char *path, size_t max_bytes, char **out, size_t *len, struct od_err *err);

/* Like od_file_read, for a text that a person wrote: skips the byte order mark of UTF-8 that editors of other systems
 * put in front. Refuses UTF-16, and NULs. */
OD_MUST_CHECK int od_file_read_text(const char *path, size_t max_bytes, char **out, size_t *len, struct od_err *err);
/* Bytes of a byte order mark of UTF-8 in front of text [len]: 3 or 0. */
size_t od_byte_order_mark(const char *text, size_t len);
/* OD_OK, or the refusal for od_file_read_text. */
OD_MUST_CHECK int od_check_text(const char *text, size_t len, const char *path, struct od_err *err);

/* Writes path.tmp, then fsync, rename, fsync of the folder. One writer per path at a time: the name path.tmp is
 * fixed. */
OD_MUST_CHECK int od_file_write_atomic(const char *path, const void *buf, size_t len, struct od_err *err);
/* Like od_file_write_atomic; a file that it replaces hands down its mode and owner, and a new one has mode 0644
 * whatever the umask. A symbolic link stays one. */
OD_MUST_CHECK int od_file_replace(const char *path, const void *buf, size_t len, struct od_err *err);
/* Like od_file_write_atomic, for a file that only its owner may read. */
OD_MUST_CHECK int od_file_write_private(const char *path, const void *buf, size_t len, struct od_err *err);

/* Resolves path to a folder that may not exist yet: follows symbolic links, "." and ".." at its end and removes
 * trailing slashes. So the folder can be renamed, or created at the target of a link. Refuses a link into a folder that
 * does not exist (usually an unmounted disk). */
OD_MUST_CHECK int od_dir_resolve(char out[PATH_MAX], const char *path, struct od_err *err);
/* Creates the folder and its parents; OD_OK when it exists. */
OD_MUST_CHECK int od_mkdir_p(const char *path, struct od_err *err);
OD_MUST_CHECK int od_fsync_dir(const char *path, struct od_err *err);
bool od_is_dir(const char *path);
/* Removes a file, or a folder with all that is in it; follows no symbolic link. OD_OK when there is nothing. */
OD_MUST_CHECK int od_remove_tree(const char *path, struct od_err *err);
/* Bytes that the file system of the folder still gives to this process. 0 unless OD_OK. */
OD_MUST_CHECK int od_free_bytes(const char *dir, uint64_t *bytes, struct od_err *err);

/* Linux's name of this boot: the same for all programs of a machine, in containers, too. Returns buf; "": not known. */
#define OD_BOOT_ID 37
const char *od_boot_id(char buf[OD_BOOT_ID]);

/* Writes dir + "/" + name to buf (size bytes). OD_ERR_RANGE when it does not fit. */
OD_MUST_CHECK int od_path(char *buf, size_t size, const char *dir, const char *name, struct od_err *err);

/* A program of this project, which lies beside this one. */
OD_MUST_CHECK int od_program_beside(char path[PATH_MAX], const char *name, struct od_err *err);

#endif
