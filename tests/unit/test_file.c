/* Files: what is refused, short and interrupted system calls (ours stand in for libc's here), files that change while
 * they are read, and writes that appear complete or not at all. */
#include "common/base/file.h"
#include "common/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/temp_dir.h"

#define LEN 5000

/* Behaviour of the next calls. */
static struct {
	int interrupts, fail_errno;
	size_t piece; /* 0: all of it */
	bool nothing;
	off_t truncate_to; /* -1: no */
	const char *path;
	int calls;
} plan = { .truncate_to = -1 };

static bool disturbed(size_t *len)
{
	plan.calls++;
	if (plan.interrupts > 0) {
		plan.interrupts--;
		errno = EINTR;
		return true;
	}
	if (plan.fail_errno != 0) {
		errno = plan.fail_errno;
		return true;
	}
	if (plan.piece > 0 && *len > plan.piece)
		*len = plan.piece;
	return false;
}

ssize_t pread(int fd, void *buf, size_t len, off_t offset)
{
	if (disturbed(&len))
		return -1;
	if (plan.truncate_to >= 0 && truncate(plan.path, plan.truncate_to) != 0)
		return -1;
	return (ssize_t)syscall(SYS_pread64, fd, buf, len, offset);
}

/* As O_DIRECT would have it: whole pages into whole pages. */
static struct {
	int calls, errno_value; /* 0: as it should be */
	size_t most; /* bytes, 0: all */
} direct;

ssize_t preadv(int fd, const struct iovec *io, int n, off_t offset)
{
	size_t done = 0;

	direct.calls++;
	assert_int_equal(offset % OD_PAGE_BYTES, 0);
	for (int i = 0; i < n; i++) {
		assert_int_equal((uintptr_t)io[i].iov_base % OD_PAGE_BYTES, 0);
		assert_int_equal(io[i].iov_len % OD_PAGE_BYTES, 0);
		assert_true(io[i].iov_len > 0);
	}
	if (direct.errno_value != 0) {
		errno = direct.errno_value;
		return -1;
	}
	for (int i = 0; i < n && (direct.most == 0 || done < direct.most); i++)
		done += (size_t)syscall(SYS_pread64, fd, io[i].iov_base, io[i].iov_len, offset + (off_t)done);
	return (ssize_t)done;
}

ssize_t pwrite(int fd, const void *buf, size_t len, off_t offset)
{
	if (disturbed(&len))
		return -1;
	return plan.nothing ? 0 : (ssize_t)syscall(SYS_pwrite64, fd, buf, len, offset);
}

static void calm(void)
{
	memset(&plan, 0, sizeof(plan));
	plan.truncate_to = -1;
}

static void fill(char *buf, size_t len)
{
	for (size_t i = 0; i < len; i++)
		buf[i] = (char)(i * 7 + i / 251);
}

static int write_file(const char *path, const void *data, size_t len)
{
	struct od_err err = { 0 };
	int rc = od_file_write_atomic(path, data, len, &err);

	if (rc != OD_OK)
		fail_msg("%s", err.msg);
	return rc;
}

/* Read it back; the reason when it cannot be. */
static int read_back(const char *path, size_t max, const char *want, size_t want_len, struct od_err *err)
{
	char *text = (char *)"not touched";
	size_t len = 99;
	int rc = od_file_read(path, max, &text, &len, err);

	if (rc != OD_OK) {
		assert_null(text);
		assert_int_equal(len, 0);
		return rc;
	}
	assert_int_equal(len, want_len);
	assert_memory_equal(text, want, want_len);
	assert_int_equal(text[len], 0);
	free(text);
	return rc;
}

static void there_and_back(void **state)
{
	const char *path = temp_path("file");
	char data[LEN];
	struct od_err err;
	struct stat st;

	(void)state;
	fill(data, LEN);
	write_file(path, data, LEN);
	assert_int_equal(read_back(path, LEN, data, LEN, &err), OD_OK);
	assert_int_equal(read_back(path, SIZE_MAX, data, LEN, &err), OD_OK);
	assert_int_equal(read_back(path, LEN - 1, data, LEN, &err), OD_ERR_FORMAT);
	assert_non_null(strstr(err.msg, "file has 5000 bytes, more than the 4999 expected at most"));
	write_file(path, data + 1, 3); /* shorter than what was there */
	assert_int_equal(read_back(path, LEN, data + 1, 3, &err), OD_OK);
	write_file(path, "", 0);
	assert_int_equal(read_back(path, 0, "", 0, &err), OD_OK);
	assert_int_not_equal(stat(temp_path("file.tmp"), &st), 0);
}

#define BIG (70u << 10) /* bytes; a little more than is worth it */
#define PAGES (30u * OD_PAGE_BYTES)

/* Whole pages by the one descriptor, or everything by the other; never a byte beside what was asked for. */
static void straight_from_the_disk(void **state)
{
	static const struct {
		size_t at, len, shift;
		bool direct;
	} cases[] = {
		{ 0, 20 * OD_PAGE_BYTES, 0, true },
		{ OD_PAGE_BYTES, BIG, 0, true },
		{ OD_PAGE_BYTES - 1, BIG, OD_PAGE_BYTES - 1, true },
		{ 5000, 2 * OD_PAGE_BYTES + BIG - 5000 % OD_PAGE_BYTES, 5000 % OD_PAGE_BYTES, true },
		{ 77, 17 * OD_PAGE_BYTES - 77, 77, true }, /* ends with a page */
		{ 77, BIG, 76, false },
		{ 64, 60000, 64, false }, /* too little */
		{ PAGES - BIG, BIG - 100, (PAGES - BIG) % OD_PAGE_BYTES, true },
		{ PAGES - BIG, BIG + 50, (PAGES - BIG) % OD_PAGE_BYTES, false }, /* the last page is not whole */
	};
	static uint8_t data[PAGES + 50], buf[PAGES + 3 * OD_PAGE_BYTES];
	uint8_t *page = (uint8_t *)(((uintptr_t)buf + OD_PAGE_BYTES) & ~(uintptr_t)(OD_PAGE_BYTES - 1));
	const char *path = temp_path("big");
	struct od_err err;
	uint64_t size;
	int fd;

	(void)state;
	fill((char *)data, sizeof(data));
	write_file(path, data, sizeof(data));
	assert_int_equal(od_file_open(path, &fd, &size, &err), OD_OK);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		for (int bad = 0; bad < 3; bad++) {
			uint8_t *to = page + cases[i].shift;

			calm();
			direct.calls = 0;
			direct.errno_value = bad == 1 ? EINVAL : 0;
			direct.most = bad == 2 ? 1 : 0;
			memset(buf, 0x5a, sizeof(buf));
			assert_int_equal(od_file_pread_direct(fd, fd, to, cases[i].len, cases[i].at, path, &err),
					 OD_OK);
			assert_memory_equal(to, data + cases[i].at, cases[i].len);
			assert_true(to[-1] == 0x5a && to[cases[i].len] == 0x5a);
			if (bad == 0)
				assert_int_equal(plan.calls, cases[i].direct ? 0 : 1);
		}
	direct.errno_value = EIO;
	plan.fail_errno = EIO;
	assert_int_equal(od_file_pread_direct(fd, fd, page, BIG, 0, path, &err), OD_ERR_IO);
	calm();
	direct.errno_value = 0;
	assert_int_equal(od_file_pread_direct(fd, fd, page, BIG, PAGES, path, &err), OD_ERR_FORMAT);
	assert_int_equal(
		od_file_pread_direct(fd, fd, page, BIG, UINT64_MAX / OD_PAGE_BYTES * OD_PAGE_BYTES, path, &err),
		OD_ERR_RANGE);
	close(fd);
	fd = od_file_open_direct(temp_path("absent"));
	assert_int_equal(fd, -1);
}

static void not_a_regular_file(void **state)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = 7, s = socket(AF_UNIX, SOCK_STREAM, 0);
	struct od_err err;
	uint64_t size = 7;

	(void)state;
	assert_int_equal(mkfifo(temp_path("fifo"), 0600), 0);
	assert_int_equal(read_back(temp_path("fifo"), 10, "", 0, &err), OD_ERR_FORMAT); /* and does not wait */
	assert_non_null(strstr(err.msg, "/fifo is not a regular file"));
	assert_int_equal(read_back(temp_dir, 10, "", 0, &err), OD_ERR_FORMAT);
	assert_int_equal(read_back("/dev/zero", 10, "", 0, &err), OD_ERR_FORMAT);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", temp_path("socket"));
	assert_int_equal(bind(s, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(read_back(temp_path("socket"), 10, "", 0, &err), OD_ERR_IO);
	close(s);
	assert_int_equal(read_back(temp_path("absent"), 10, "", 0, &err), OD_ERR_MISSING);
	assert_non_null(strstr(err.msg, "/absent: No such file or directory"));
	assert_int_equal(read_back("", 10, "", 0, &err), OD_ERR_MISSING);
	assert_int_equal(symlink(temp_path("loop"), temp_path("loop")), 0);
	assert_int_equal(read_back(temp_path("loop"), 10, "", 0, &err), OD_ERR_IO);
	assert_int_equal(od_file_open(temp_path("absent"), &fd, &size, NULL), OD_ERR_MISSING);
	assert_int_equal(fd, -1);
	assert_int_equal(size, 0);
}

static void interrupted_and_short_calls(void **state)
{
	const char *path = temp_path("pieces");
	char data[LEN];
	struct od_err err;

	(void)state;
	fill(data, LEN);
	calm();
	plan.interrupts = 3;
	plan.piece = 999;
	write_file(path, data, LEN);
	assert_int_equal(plan.calls, 3 + 6); /* 5000 bytes in pieces of 999 */
	plan.interrupts = 2;
	plan.calls = 0;
	assert_int_equal(read_back(path, LEN, data, LEN, &err), OD_OK);
	assert_int_equal(plan.calls, 2 + 6);
	calm();
}

static void read_errors(void **state)
{
	const char *path = temp_path("broken");
	char data[LEN], buf[64];
	struct od_err err;
	uint64_t size;
	int fd;

	(void)state;
	fill(data, LEN);
	write_file(path, data, LEN);
	plan.fail_errno = EIO;
	assert_int_equal(read_back(path, LEN, data, LEN, &err), OD_ERR_IO);
	assert_non_null(strstr(err.msg, "/broken: Input/output error"));
	calm();
	assert_int_equal(od_file_open(path, &fd, &size, NULL), OD_OK);
	assert_int_equal(size, LEN);
	assert_int_equal(od_file_pread(fd, buf, 64, LEN - 64, "f", &err), OD_OK);
	assert_memory_equal(buf, data + LEN - 64, 64);
	assert_int_equal(od_file_pread(fd, buf, 64, LEN - 63, "f", &err), OD_ERR_FORMAT);
	assert_string_equal(err.msg, "f ends too early: wanted 64 bytes at offset 4937, got 63");
	assert_int_equal(od_file_pread(fd, buf, 0, LEN + 5, "f", &err), OD_OK);
	assert_int_equal(od_file_pread(fd, buf, 64, (uint64_t)INT64_MAX - 63, "f", &err), OD_ERR_RANGE);
	assert_int_equal(od_file_pread(fd, buf, 64, UINT64_MAX, "f", &err), OD_ERR_RANGE);
	close(fd);
}

static void files_that_change_while_they_are_read(void **state)
{
	const char *path = temp_path("changing");
	char data[LEN], longer[LEN + 1] = { 0 };
	struct od_err err;

	(void)state;
	fill(data, LEN);
	memcpy(longer, data, LEN);
	write_file(path, data, LEN);
	plan.path = path;
	plan.piece = 1000;
	plan.truncate_to = 2 * LEN; /* grows after it was opened: what was there then is what we get */
	assert_int_equal(read_back(path, LEN, data, LEN, &err), OD_OK);
	write_file(path, data, LEN);
	plan.truncate_to = 1234;
	assert_int_equal(read_back(path, LEN, data, LEN, &err), OD_ERR_FORMAT);
	assert_non_null(strstr(err.msg, "ends too early: wanted 5000 bytes at offset 0, got 1234"));
	calm();
}

static void a_failed_write_leaves_what_was_there(void **state)
{
	const char *path = temp_path("kept");
	struct od_err err;
	struct stat st;

	(void)state;
	write_file(path, "old", 3);
	plan.fail_errno = ENOSPC;
	assert_int_equal(od_file_write_atomic(path, "newer", 5, &err), OD_ERR_IO);
	assert_non_null(strstr(err.msg, "/kept.tmp: No space left on device"));
	plan.fail_errno = 0;
	plan.nothing = true;
	assert_int_equal(od_file_write_atomic(path, "newer", 5, &err), OD_ERR_IO); /* and does not go round for ever */
	assert_non_null(strstr(err.msg, "0 of 5 bytes were taken"));
	calm();
	assert_int_equal(read_back(path, 10, "old", 3, &err), OD_OK);
	assert_int_not_equal(stat(temp_path("kept.tmp"), &st), 0);
}

static void writes_that_cannot_be(void **state)
{
	char long_path[PATH_MAX + 10];
	struct od_err err;
	struct stat st;

	(void)state;
	assert_int_equal(od_file_write_atomic(temp_path("no/such/folder"), "x", 1, &err), OD_ERR_IO);
	assert_non_null(strstr(err.msg, "cannot create "));
	assert_int_equal(od_mkdir_p(temp_path("folder"), NULL), OD_OK);
	assert_int_equal(od_file_write_atomic(temp_path("folder"), "x", 1, &err), OD_ERR_IO);
	assert_non_null(strstr(err.msg, "cannot rename "));
	assert_int_not_equal(stat(temp_path("folder.tmp"), &st), 0);
	assert_int_equal(od_file_write_atomic(temp_path("folder/"), "x", 1, &err), OD_ERR_IO);
	assert_int_not_equal(stat(temp_path("folder/.tmp"), &st), 0);
	memset(long_path, 'a', sizeof(long_path));
	long_path[PATH_MAX - 5] = '\0'; /* fits itself, but not with .tmp and a NUL behind it */
	assert_int_equal(od_file_write_atomic(long_path, "x", 1, &err), OD_ERR_IO); /* the system: name too long */
	long_path[PATH_MAX - 5] = 'a';
	long_path[PATH_MAX - 4] = '\0';
	assert_int_equal(od_file_write_atomic(long_path, "x", 1, &err), OD_ERR_RANGE);
	assert_int_equal(od_file_pwrite(-1, "x", 1, (uint64_t)INT64_MAX, "f", &err), OD_ERR_RANGE);
	assert_int_equal(od_file_pwrite(-1, "x", 1, 0, "f", &err), OD_ERR_IO);
}

static void a_name_without_a_folder(void **state)
{
	char here[PATH_MAX];
	struct od_err err;

	(void)state;
	assert_non_null(getcwd(here, sizeof(here)));
	assert_int_equal(chdir(temp_dir), 0);
	write_file("bare", "abc", 3);
	assert_int_equal(chdir(here), 0);
	assert_int_equal(read_back(temp_path("bare"), 3, "abc", 3, &err), OD_OK);
}

static void folders(void **state)
{
	char long_path[PATH_MAX + 10];
	struct od_err err;

	(void)state;
	assert_int_equal(od_mkdir_p(temp_path("a/b//c/"), &err), OD_OK);
	assert_true(od_is_dir(temp_path("a/b/c")));
	assert_int_equal(od_mkdir_p(temp_path("a/b/c"), &err), OD_OK);
	assert_int_equal(od_mkdir_p("/", &err), OD_OK);
	assert_int_equal(od_mkdir_p("", &err), OD_ERR_ARG);
	write_file(temp_path("plain"), "x", 1);
	assert_false(od_is_dir(temp_path("plain")));
	assert_false(od_is_dir(temp_path("absent")));
	assert_int_equal(od_mkdir_p(temp_path("plain"), &err), OD_ERR_IO);
	assert_non_null(strstr(err.msg, "/plain exists and is not a folder"));
	assert_int_equal(od_mkdir_p(temp_path("plain/sub"), &err), OD_ERR_IO);
	assert_non_null(strstr(err.msg, "/plain/sub: Not a directory"));
	memset(long_path, 'a', sizeof(long_path));
	long_path[PATH_MAX] = '\0';
	assert_int_equal(od_mkdir_p(long_path, &err), OD_ERR_ARG);
	assert_int_equal(od_fsync_dir(temp_dir, &err), OD_OK);
	assert_int_equal(od_fsync_dir(temp_path("plain"), &err), OD_ERR_IO);
	assert_int_equal(od_fsync_dir(temp_path("absent"), &err), OD_ERR_IO);
}

static void paths(void **state)
{
	char buf[8];
	struct od_err err;

	(void)state;
	assert_int_equal(od_path(buf, sizeof(buf), "abc", "def", &err), OD_OK);
	assert_string_equal(buf, "abc/def");
	assert_int_equal(od_path(buf, sizeof(buf), "abc", "defg", &err), OD_ERR_RANGE);
	assert_string_equal(err.msg, "path too long: abc/defg");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(there_and_back),
		cmocka_unit_test(straight_from_the_disk),
		cmocka_unit_test(not_a_regular_file),
		cmocka_unit_test(interrupted_and_short_calls),
		cmocka_unit_test(read_errors),
		cmocka_unit_test(files_that_change_while_they_are_read),
		cmocka_unit_test(a_failed_write_leaves_what_was_there),
		cmocka_unit_test(writes_that_cannot_be),
		cmocka_unit_test(a_name_without_a_folder),
		cmocka_unit_test(folders),
		cmocka_unit_test(paths),
	};

	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
