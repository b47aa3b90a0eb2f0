#include "common/base/file.h"

#include "common/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_LINKS 40 /* as the kernel has it */
#define DIRECT_FROM_BYTES (64u << 10) /* smaller reads gain nothing */

int od_file_open(const char *path, int *fd, uint64_t *size_bytes, struct od_err *err)
{
	struct stat st;
	int f;

	*fd = -1;
	*size_bytes = 0;
	f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a FIFO must not hang us */
	if (f < 0 && errno == ENOENT && od_file_there(path))
		return od_fail(err, OD_ERR_MISSING, "%s is a symbolic link to a file that does not exist", path);
	if (f < 0)
		return od_fail_errno(err, errno == ENOENT ? OD_ERR_MISSING : OD_ERR_IO, "cannot open %s", path);
	if (fstat(f, &st) != 0) {
		int rc = od_fail_errno(err, OD_ERR_IO, "cannot stat %s", path);

		close(f);
		return rc;
	}
	if (!S_ISREG(st.st_mode)) {
		close(f);
		return od_fail(err, OD_ERR_FORMAT,
			       S_ISDIR(st.st_mode) ? "%s is a folder, expected a file" : "%s is not a regular file",
			       path);
	}
	*fd = f;
	*size_bytes = (uint64_t)st.st_size;
	return OD_OK;
}

bool od_file_there(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

static int check_span(uint64_t offset, size_t len, const char *name, struct od_err *err)
{
	if (od_within(offset, len, INT64_MAX))
		return OD_OK;
	return od_fail(err, OD_ERR_RANGE, "%s: %zu bytes at offset %llu are out of range", name, len,
		       (unsigned long long)offset);
}

int od_file_pread(int fd, void *buf, size_t len, uint64_t offset, const char *name, struct od_err *err)
{
	char *p = buf;
	size_t done = 0;
	int rc = check_span(offset, len, name, err);

	if (rc != OD_OK)
		return rc;
	while (done < len) {
		ssize_t n = pread(fd, p + done, len - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return od_fail_errno(err, OD_ERR_IO, "reading %s", name);
		if (n == 0)
			return od_fail(err, OD_ERR_FORMAT,
				       "%s ends too early: wanted %zu bytes at offset %llu, got %zu", name, len,
				       (unsigned long long)offset, done);
		done += (size_t)n;
	}
	return OD_OK;
}

int od_file_open_direct(const char *path)
{
	return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
}

/* The first and the last page, where only a part of them is asked for, go by way of edge. */
static bool pread_pages(int fd, uint8_t *buf, size_t len, uint64_t offset, uint8_t edge[2][OD_PAGE_BYTES])
{
	const size_t skip = offset % OD_PAGE_BYTES, head = skip > 0 ? OD_PAGE_BYTES - skip : 0;
	const size_t tail = (offset + len) % OD_PAGE_BYTES, inner = len - head - tail;
	struct iovec io[3];
	size_t n = 0;

	if (head > 0)
		io[n++] = (struct iovec){ edge[0], OD_PAGE_BYTES };
	io[n++] = (struct iovec){ buf + head, inner };
	if (tail > 0)
		io[n++] = (struct iovec){ edge[1], OD_PAGE_BYTES };
	if (preadv(fd, io, (int)n, (off_t)(offset - skip)) !=
	    (ssize_t)(inner + (head > 0 ? OD_PAGE_BYTES : 0) + (tail > 0 ? OD_PAGE_BYTES : 0)))
		return false;
	memcpy(buf, edge[0] + skip, head);
	memcpy(buf + head + inner, edge[1], tail);
	return true;
}

int od_file_pread_direct(int direct_fd, int fd, void *buf, size_t len, uint64_t offset, const char *name,
			 struct od_err *err)
{
	_Alignas(OD_PAGE_BYTES) uint8_t edge[2][OD_PAGE_BYTES];

	/* Whatever goes wrong, the other way goes the same way wrong, and says so. */
	if (len >= DIRECT_FROM_BYTES && (uintptr_t)buf % OD_PAGE_BYTES == offset % OD_PAGE_BYTES &&
	    od_within(offset, len, INT64_MAX - OD_PAGE_BYTES) && pread_pages(direct_fd, buf, len, offset, edge))
		return OD_OK;
	return od_file_pread(fd, buf, len, offset, name, err);
}

int od_file_pwrite(int fd, const void *buf, size_t len, uint64_t offset, const char *name, struct od_err *err)
{
	const char *p = buf;
	size_t done = 0;
	int rc = check_span(offset, len, name, err);

	if (rc != OD_OK)
		return rc;
	while (done < len) {
		ssize_t n = pwrite(fd, p + done, len - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return od_fail_errno(err, OD_ERR_IO, "writing %s", name);
		if (n == 0) /* some devices do; going on would never end */
			return od_fail(err, OD_ERR_IO, "writing %s: %zu of %zu bytes were taken", name, done, len);
		done += (size_t)n;
	}
	return OD_OK;
}

int od_file_read(const char *path, size_t max_bytes, char **out, size_t *len, struct od_err *err)
{
	uint64_t size;
	char *buf;
	int fd, rc;

	*out = NULL;
	*len = 0;
	rc = od_file_open(path, &fd, &size, err);
	if (rc != OD_OK)
		return rc;
	if (size > max_bytes) {
		close(fd);
		return od_fail(err, OD_ERR_FORMAT, "%s has %llu bytes, more than the %zu expected at most", path,
			       (unsigned long long)size, max_bytes);
	}
	buf = malloc(size + 1);
	if (buf == NULL) {
		close(fd);
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for %llu bytes", path, (unsigned long long)size);
	}
	rc = od_file_pread(fd, buf, size, 0, path, err);
	close(fd);
	if (rc != OD_OK) {
		free(buf);
		return rc;
	}
	buf[size] = '\0';
	*out = buf;
	*len = size;
	return OD_OK;
}

size_t od_byte_order_mark(const char *text, size_t len)
{
	static const char mark[] = "\xef\xbb\xbf";
	const size_t n = sizeof(mark) - 1;

	return len >= n && memcmp(text, mark, n) == 0 ? n : 0;
}

int od_check_text(const char *text, size_t len, const char *path, struct od_err *err)
{
	if (len >= 2 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0))
		return od_fail(err, OD_ERR_FORMAT, "%s: expected a text in UTF-8, found UTF-16: save it as UTF-8",
			       path);
	if (memchr(text, '\0', len) != NULL)
		return od_fail(err, OD_ERR_FORMAT, "%s: expected a text file, found a byte that is 0", path);
	return OD_OK;
}

int od_file_read_text(const char *path, size_t max_bytes, char **out, size_t *len, struct od_err *err)
{
	int rc = od_file_read(path, max_bytes, out, len, err);
	size_t mark;

	if (rc != OD_OK)
		return rc;
	rc = od_check_text(*out, *len, path, err);
	if (rc != OD_OK) {
		free(*out);
		*out = NULL;
		*len = 0;
		return rc;
	}
	mark = od_byte_order_mark(*out, *len);
	*len -= mark;
	memmove(*out, *out + mark, *len + 1);
	return OD_OK;
}

bool od_is_dir(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int od_fsync_dir(const char *path, struct od_err *err)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int rc = OD_OK;

	if (fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot open folder %s", path);
	if (fsync(fd) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot sync folder %s", path);
	close(fd);
	return rc;
}

static void parent_of(const char *path, char *buf, size_t size)
{
	char *slash;

	snprintf(buf, size, "%s", path);
	slash = strrchr(buf, '/');
	if (slash == NULL)
		snprintf(buf, size, ".");
	else if (slash == buf)
		buf[1] = '\0';
	else
		*slash = '\0';
}

static int hand_down(int fd, const struct stat *old)
{
	if ((old->st_uid != geteuid() || old->st_gid != getegid()) && fchown(fd, old->st_uid, old->st_gid) != 0)
		return -1;
	return fchmod(fd, old->st_mode & 07777);
}

/* old: whose mode and owner the file gets; NULL: mode, as the umask leaves it. */
static int write_atomic(const char *path, const void *buf, size_t len, mode_t mode, const struct stat *old,
			struct od_err *err)
{
	char tmp[PATH_MAX], dir[PATH_MAX];
	int fd, rc;

	if ((size_t)snprintf(tmp, sizeof(tmp), "%s.tmp", path) >= sizeof(tmp))
		return od_fail(err, OD_ERR_RANGE, "path too long: %s", path);
	fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
	if (fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot create %s", tmp);
	rc = od_file_pwrite(fd, buf, len, 0, tmp, err);
	if (rc == OD_OK && old != NULL && hand_down(fd, old) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot give %s the mode and owner of %s", tmp, path);
	if (rc == OD_OK && fsync(fd) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot sync %s", tmp);
	if (close(fd) != 0 && rc == OD_OK)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot close %s", tmp);
	if (rc == OD_OK && rename(tmp, path) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot rename %s to %s", tmp, path);
	if (rc != OD_OK) {
		unlink(tmp);
		return rc;
	}
	parent_of(path, dir, sizeof(dir));
	return od_fsync_dir(dir, err);
}

int od_file_write_atomic(const char *path, const void *buf, size_t len, struct od_err *err)
{
	return write_atomic(path, buf, len, 0644, NULL, err);
}

int od_file_replace(const char *path, const void *buf, size_t len, struct od_err *err)
{
	struct stat old = { .st_mode = 0644, .st_uid = geteuid(), .st_gid = getegid() };
	char real[PATH_MAX];

	if (realpath(path, real) == NULL || stat(real, &old) != 0)
		return write_atomic(path, buf, len, 0644, &old, err);
	return write_atomic(real, buf, len, 0600, &old, err);
}

int od_file_write_private(const char *path, const void *buf, size_t len, struct od_err *err)
{
	return write_atomic(path, buf, len, 0600, NULL, err);
}

/* path without the slashes at its end, in out from at on. */
static int put_path(char out[PATH_MAX], size_t at, const char *path, struct od_err *err)
{
	size_t len = strlen(path);

	while (len > 1 && path[len - 1] == '/')
		len--;
	if (len == 0 || at + len >= PATH_MAX) {
		out[0] = '\0';
		return od_fail(err, OD_ERR_ARG, "bad folder name \"%s\"", path);
	}
	memcpy(out + at, path, len);
	out[at + len] = '\0';
	return OD_OK;
}

/* Where the name behind the last slash begins. */
static size_t base_at(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash != NULL ? (size_t)(slash + 1 - path) : 0;
}

int od_dir_resolve(char out[PATH_MAX], const char *path, struct od_err *err)
{
	char to[PATH_MAX], parent[PATH_MAX + 1];
	int links = 0, rc = put_path(out, 0, path, err);
	ssize_t n;

	while (rc == OD_OK && (n = readlink(out, to, sizeof(to) - 1)) >= 0) {
		if (++links > MAX_LINKS)
			return od_fail(err, OD_ERR_ARG, "%s: too many symbolic links", path);
		to[n] = '\0';
		rc = put_path(out, to[0] == '/' ? 0 : base_at(out), to, err);
	}
	if (rc != OD_OK)
		return rc;
	if (realpath(out, to) != NULL)
		return put_path(out, 0, to, err);
	if (links == 0)
		return OD_OK;
	snprintf(parent, sizeof(parent), "%.*s.", (int)base_at(out), out);
	if (realpath(parent, to) == NULL)
		return od_fail(err, OD_ERR_MISSING,
			       "%s is a symbolic link to %s, and the folder that this lies in does not "
			       "exist",
			       path, out);
	snprintf(parent, sizeof(parent), "%s", out + base_at(out));
	return od_path(out, PATH_MAX, to, parent, err);
}

int od_mkdir_p(const char *path, struct od_err *err)
{
	char buf[PATH_MAX];
	size_t len = strlen(path);

	if (len == 0 || len >= sizeof(buf))
		return od_fail(err, OD_ERR_ARG, "bad folder name \"%s\"", path);
	memcpy(buf, path, len + 1);
	for (char *p = buf + 1;; p++) {
		char c = *p;

		if (c != '/' && c != '\0')
			continue;
		*p = '\0';
		if (mkdir(buf, 0755) != 0 && errno != EEXIST)
			return od_fail_errno(err, OD_ERR_IO, "cannot create folder %s", buf);
		*p = c;
		if (c == '\0')
			break;
	}
	if (!od_is_dir(path))
		return od_fail(err, OD_ERR_IO, "%s exists and is not a folder", path);
	return OD_OK;
}

int od_path(char *buf, size_t size, const char *dir, const char *name, struct od_err *err)
{
	if ((size_t)snprintf(buf, size, "%s/%s", dir, name) >= size)
		return od_fail(err, OD_ERR_RANGE, "path too long: %s/%s", dir, name);
	return OD_OK;
}

int od_program_beside(char path[PATH_MAX], const char *name, struct od_err *err)
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	path[0] = '\0';
	if (n < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot find the path of this program");
	self[n] = '\0';
	*strrchr(self, '/') = '\0';
	return od_path(path, PATH_MAX, self, name, err);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)type;
	(void)at;
	return remove(path) != 0 && errno != ENOENT ? -1 : 0;
}

int od_remove_tree(const char *path, struct od_err *err)
{
	if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
		return od_fail_errno(err, OD_ERR_IO, "cannot remove all of %s", path);
	return OD_OK;
}

int od_free_bytes(const char *dir, uint64_t *bytes, struct od_err *err)
{
	struct statvfs v;

	*bytes = 0;
	if (statvfs(dir, &v) != 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot ask for the free space of %s", dir);
	if (!od_mul(v.f_bavail, v.f_frsize, bytes))
		*bytes = UINT64_MAX;
	return OD_OK;
}

const char *od_boot_id(char buf[OD_BOOT_ID])
{
	const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	const ssize_t n = fd >= 0 ? read(fd, buf, OD_BOOT_ID - 1) : 0;

	buf[n == OD_BOOT_ID - 1 ? n : 0] = '\0';
	if (fd >= 0)
		close(fd);
	return buf;
}
