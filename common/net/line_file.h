/* line_file.h - changes lines of a text file that people edit, too: the other lines, the file's mode and its owner
 * stay, and whoever reads it meanwhile sees all of the old text or all of the new one.
 *
 * Thread: any. Owner: the caller closes it. While one is open, others wait in od_line_file_open, by a lock on the
 * folder, for some seconds at most (OD_ERR_BUSY). */
#ifndef OD_NET_LINE_FILE_H
#define OD_NET_LINE_FILE_H

#include <limits.h>
#include <stddef.h>

#include "common/base/status.h"

struct od_line_file {
	char path[PATH_MAX];
	char *text; /* [len]; "" if there is no such file */
	size_t len;
	int lock_fd;
};

struct od_line_change {
	unsigned line; /* 1-based; 0: a new line at the end */
	const char *text; /* without a newline; NULL: the line goes */
};

/* Without its folder, too, the text is empty; then it cannot be changed. */
OD_MUST_CHECK int od_line_file_open(struct od_line_file *f, const char *path, struct od_err *err);
OD_MUST_CHECK int od_line_file_change(const struct od_line_file *f, const struct od_line_change *change, size_t n,
				      struct od_err *err);
void od_line_file_close(struct od_line_file *f);

#endif
