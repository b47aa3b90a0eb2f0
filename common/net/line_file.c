#include "common/net/line_file.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/strbuf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define MAX_FILE_BYTES (1024 * 1024)
#define LOCK_LIMIT_NS (5 * OD_NS_PER_S) /* a joiner waits longer for main's answer */
#define LOCK_LOOK_NS (5 * OD_NS_PER_MS)

/* Whoever may read the folder can hold such a lock, other users too, so the wait has an end. */
static int take_lock(int fd, const char *dir, struct od_err *err)
{
	const uint64_t end = od_now_ns() + LOCK_LIMIT_NS;

	while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
		if (errno != EINTR && errno != EWOULDBLOCK)
			return od_fail_errno(err, OD_ERR_IO, "cannot lock the folder %s", dir);
		if (od_now_ns() >= end)
			return od_fail(
				err, OD_ERR_BUSY,
				"another process has locked the folder %s for %u s (lslocks names it): end it, then try again",
				dir, (unsigned)(LOCK_LIMIT_NS / OD_NS_PER_S));
		od_sleep_until(od_now_ns() + LOCK_LOOK_NS);
	}
	return OD_OK;
}

static int lock_folder(int *fd, const char *path, struct od_err *err)
{
	const char *slash = strrchr(path, '/');
	char dir[PATH_MAX];

	snprintf(dir, sizeof(dir), "%.*s",
		 slash == NULL ? 1 :
		 slash == path ? 1 :
				 (int)(slash - path),
		 slash == NULL ? "." : path);
	*fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (*fd < 0 && errno == ENOENT)
		return OD_OK;
	if (*fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot open the folder %s", dir);
	return take_lock(*fd, dir, err);
}

int od_line_file_open(struct od_line_file *f, const char *path, struct od_err *err)
{
	int rc;

	*f = (struct od_line_file){ .lock_fd = -1 };
	if (strlen(path) >= sizeof(f->path))
		return od_fail(err, OD_ERR_RANGE, "path too long: %s", path);
	memcpy(f->path, path, strlen(path) + 1);
	rc = lock_folder(&f->lock_fd, path, err);
	if (rc == OD_OK && od_file_there(path))
		rc = od_file_read_text(path, MAX_FILE_BYTES, &f->text, &f->len, err);
	else if (rc == OD_OK && (f->text = calloc(1, 1)) == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "%s", path);
	if (rc != OD_OK)
		od_line_file_close(f);
	return rc;
}

static const struct od_line_change *change_of(const struct od_line_change *change, size_t n, unsigned line)
{
	for (size_t i = 0; i < n; i++) {
		if (change[i].line == line)
			return &change[i];
	}
	return NULL;
}

int od_line_file_change(const struct od_line_file *f, const struct od_line_change *change, size_t n, struct od_err *err)
{
	struct od_strbuf out = { 0 };
	unsigned number = 0;
	int rc;

	for (size_t at = 0; at < f->len;) {
		const char *end = memchr(f->text + at, '\n', f->len - at);
		const size_t len = end != NULL ? (size_t)(end - f->text) - at : f->len - at;
		const struct od_line_change *c = change_of(change, n, ++number);

		if (c == NULL)
			od_strbuf_append(&out, f->text + at, len);
		else if (c->text != NULL)
			od_strbuf_append(&out, c->text, strlen(c->text));
		if (c == NULL || c->text != NULL)
			od_strbuf_append(&out, "\n", 1);
		at += len + 1;
	}
	for (size_t i = 0; i < n; i++) {
		if (change[i].line == 0)
			od_strbuf_printf(&out, "%s\n", change[i].text);
	}
	rc = out.failed ? od_fail(err, OD_ERR_NOMEM, "%s", f->path) :
			  od_file_replace(f->path, od_strbuf_text(&out), out.len, err);
	od_strbuf_fini(&out);
	return rc;
}

void od_line_file_close(struct od_line_file *f)
{
	free(f->text);
	if (f->lock_fd >= 0)
		close(f->lock_fd); /* and with it the lock */
	*f = (struct od_line_file){ .lock_fd = -1 };
}
