/* pack_data.h - the bytes that a pack's offsets count: those of one file, or of several as if they stood one behind the
 * other.
 *
 * Thread: any (reads are pread); od_data_direct: no thread may read meanwhile. Owner: the caller of init. */
#ifndef OD_PACK_DATA_H
#define OD_PACK_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct od_data_file {
	char *path;
	int fd, direct_fd; /* direct_fd: O_DIRECT; -1: none */
	uint64_t begin, bytes; /* begin: the offset of its first byte, a multiple of a page */
};

struct od_pack_data {
	struct od_data_file *file; /* [n]; sorted by begin */
	size_t n;
};

/* Opens a file and appends it. */
OD_MUST_CHECK int od_data_add(struct od_pack_data *d, const char *path, struct od_err *err);
void od_data_fini(struct od_pack_data *d);

/* The file that has this byte, or the last one. */
const struct od_data_file *od_data_file(const struct od_pack_data *d, uint64_t offset);
/* Its path, for messages. */
static inline const char *od_data_path(const struct od_pack_data *d, uint64_t offset)
{
	return od_data_file(d, offset)->path;
}
uint64_t od_data_bytes(const struct od_pack_data *d);

/* len bytes, which are in one file. direct: past the page cache, if the data is open that way (od_data_direct). */
OD_MUST_CHECK int od_data_read(const struct od_pack_data *d, bool direct, void *buf, size_t len, uint64_t offset,
			       struct od_err *err);
bool od_data_is_direct(const struct od_pack_data *d, uint64_t offset);
/* Switches reading past the page cache on or off; returns the resulting mode: not every file system supports it. */
bool od_data_direct(struct od_pack_data *d, bool direct);

#endif
