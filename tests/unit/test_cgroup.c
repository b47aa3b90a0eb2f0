/* Limits of both versions' controllers, as files: which of them count, and what page cache is worth. */
#include "common/base/cgroup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static char top[] = "/tmp/od-cgroup-XXXXXX";

static void write_file(const char *name, const char *text)
{
	char path[256];
	FILE *f;

	for (const char *at = strchr(name, '/'); at != NULL; at = strchr(at + 1, '/')) {
		snprintf(path, sizeof(path), "%s/%.*s", top, (int)(at - name), name);
		mkdir(path, 0700);
	}
	snprintf(path, sizeof(path), "%s/%s", top, name);
	f = fopen(path, "w");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static uint64_t available(const char *groups)
{
	char path[256];

	write_file("groups", groups);
	snprintf(path, sizeof(path), "%s/groups", top);
	return od_cgroup_available_bytes(path, top);
}

static void a_limit_of_version_1(void **state)
{
	(void)state;
	write_file("memory/a/b/memory.limit_in_bytes", "1000\n");
	write_file("memory/a/b/memory.usage_in_bytes", "700\n");
	write_file("memory/a/b/memory.stat",
		   "cache 500\ninactive_file 1\ntotal_inactive_file 150\ntotal_active_file 50\n");
	write_file("memory/a/memory.limit_in_bytes", "9223372036854771712\n");
	write_file("memory/a/memory.usage_in_bytes", "5000\n");
	assert_int_equal(available("5:cpu,cpuacct:/c\n4:memory:/a/b\n1:name=systemd:/a\n"), 500);
	assert_int_equal(available("4:hugetlb,memory:/a/b\n"), 500);
	assert_true(available("4:memoryless:/a/b\n") == UINT64_MAX);
	assert_true(available("4:memory:/a\n") > 1ull << 60); /* this is how version 1 says "none" */
}

static void a_limit_of_version_2(void **state)
{
	(void)state;
	write_file("x/y/memory.max", "max\n");
	write_file("x/y/memory.current", "100\n");
	write_file("x/y/memory.stat", "anon 60\nfile 40\ninactive_file 30\nactive_file 10\n");
	assert_true(available("0::/x/y\n") == UINT64_MAX);
	write_file("x/memory.max", "800\n"); /* limit of a group around it */
	write_file("x/memory.current", "300\n");
	write_file("x/memory.stat", "inactive_file 30\nactive_file 70\n");
	assert_int_equal(available("0::/x/y\n"), 600);
	write_file("x/y/memory.max", "350\n");
	assert_int_equal(available("0::/x/y\n"), 290);
	write_file("x/y/memory.current", "500\n"); /* the limit was lowered meanwhile */
	assert_int_equal(available("0::/x/y\n"), 0);
}

/* A container sees its own group as the mount, but perhaps the path that the host knows. */
static void the_mount_is_a_group_itself(void **state)
{
	(void)state;
	write_file("memory.max", "2000\n");
	write_file("memory.current", "500\n");
	write_file("memory.stat", "");
	assert_int_equal(available("0::/\n"), 1500);
	assert_int_equal(available("0::/docker/123\n"), 1500);
}

static void nothing_to_read(void **state)
{
	(void)state;
	assert_true(available("") == UINT64_MAX);
	assert_true(available("no colons\n0:one\n") == UINT64_MAX);
	assert_true(available("4:memory:/none\n") == UINT64_MAX);
	assert_true(od_cgroup_available_bytes("/nonexistent", top) == UINT64_MAX);
}

static int make_top(void **state)
{
	(void)state;
	return mkdtemp(top) != NULL ? 0 : -1;
}

static int remove_top(void **state)
{
	static const char *const names[] = { "groups",
					     "memory.max",
					     "memory.current",
					     "memory.stat",
					     "x/memory.max",
					     "x/memory.current",
					     "x/memory.stat",
					     "x/y/memory.max",
					     "x/y/memory.current",
					     "x/y/memory.stat",
					     "x/y",
					     "x",
					     "memory/a/memory.limit_in_bytes",
					     "memory/a/memory.usage_in_bytes",
					     "memory/a/b/memory.limit_in_bytes",
					     "memory/a/b/memory.usage_in_bytes",
					     "memory/a/b/memory.stat",
					     "memory/a/b",
					     "memory/a",
					     "memory",
					     "" };
	char path[256];

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", top, names[i]);
		if (remove(path) != 0)
			return -1;
	}
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* nothing_to_read before the mount has a limit */
		cmocka_unit_test(nothing_to_read),
		cmocka_unit_test(a_limit_of_version_1),
		cmocka_unit_test(a_limit_of_version_2),
		cmocka_unit_test(the_mount_is_a_group_itself),
	};

	return cmocka_run_group_tests(tests, make_top, remove_top);
}
