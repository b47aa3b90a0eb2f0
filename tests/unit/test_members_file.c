/* Members are written into hosts.txt and peers: which line changes, and all others stay. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/net/members_file.h"

#define KEY_A "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6" /* ZeroMQ RFC 26's examples have valid Z85 */
#define KEY_B "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
#define KEY_C "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
#define KEY_D "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"

static char dir[] = "/tmp/od-members-XXXXXX", path[100];

static void put_text(const char *text)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static void expect_text(const char *text)
{
	char got[8192] = "";
	FILE *f = fopen(path, "r");
	size_t n;

	assert_non_null(f);
	n = fread(got, 1, sizeof(got) - 1, f);
	got[n] = '\0';
	fclose(f);
	assert_string_equal(got, text);
}

/* host: as od_host_parse takes it. */
static int put_host(enum od_node_kind role, const char *host, const char *key, enum od_member_change *change,
		    struct od_err *err)
{
	struct od_host h;

	assert_int_equal(
		od_host_parse(&h, host, role == OD_NODE_WORKER ? OD_DEFAULT_WORKER_PORT : OD_DEFAULT_SHADOW_PORT, err),
		OD_OK);
	h.role = role;
	h.has_key = true;
	assert_int_equal(od_key_parse(h.key, key, err), OD_OK);
	return od_hosts_put(path, &h, "box", change, err);
}

struct host_case {
	const char *before;
	enum od_node_kind role;
	const char *host;
	enum od_member_change change;
	const char *after;
};

static void hosts(void **state)
{
	static const struct host_case cases[] = {
		{ "", OD_NODE_WORKER, "10.0.0.1", OD_MEMBER_ADDED, "worker 10.0.0.1 key=" KEY_A " # box\n" },
		{ "# mine\n\nworker 10.0.0.2", OD_NODE_SHADOW, "10.0.0.1", OD_MEMBER_ADDED,
		  "# mine\n\nworker 10.0.0.2\nshadow 10.0.0.1 key=" KEY_A " # box\n" },
		{ "", OD_NODE_WORKER, "10.0.0.1:5801", OD_MEMBER_ADDED, "worker 10.0.0.1:5801 key=" KEY_A " # box\n" },
		{ "worker localhost # mine\nworker localhost:5801\n", OD_NODE_WORKER, "127.0.0.1", OD_MEMBER_NEW_KEY,
		  "worker localhost key=" KEY_A " # mine\nworker localhost:5801\n" },
		{ "worker localhost key=" KEY_A "\n", OD_NODE_WORKER, "127.0.0.1", OD_MEMBER_SAME,
		  "worker localhost key=" KEY_A "\n" },
		{ "worker localhost\n", OD_NODE_WORKER, "127.0.0.9", OD_MEMBER_ADDED,
		  "worker localhost\nworker 127.0.0.9 key=" KEY_A " # box\n" },
		{ "", OD_NODE_WORKER, "[fe80::1%eth0]:5801", OD_MEMBER_ADDED,
		  "worker [fe80::1%eth0]:5801 key=" KEY_A " # box\n" },
		{ "", OD_NODE_WORKER, "fd00::1", OD_MEMBER_ADDED, "worker fd00::1 key=" KEY_A " # box\n" },
		/* a member already, whatever the line looks like */
		{ "  10.0.0.1:5701\tkey=" KEY_A "\r\n", OD_NODE_WORKER, "10.0.0.1", OD_MEMBER_SAME, NULL },
		{ "worker rack1 key=" KEY_A "\n", OD_NODE_WORKER, "10.0.0.1", OD_MEMBER_SAME, NULL },
		/* another key, or none */
		{ "a\n10.0.0.1 # left\nb\n", OD_NODE_WORKER, "10.0.0.1", OD_MEMBER_NEW_KEY,
		  "a\nworker 10.0.0.1 key=" KEY_A " # left\nb\n" },
		{ "worker 10.0.0.1 key=" KEY_B " # left\r\n", OD_NODE_WORKER, "10.0.0.1", OD_MEMBER_NEW_KEY,
		  "worker 10.0.0.1 key=" KEY_A " # left\n" },
		/* another address */
		{ "worker 10.0.0.9 key=" KEY_A " # left\nb # c\n", OD_NODE_WORKER, "10.0.0.1", OD_MEMBER_NEW_ADDRESS,
		  "worker 10.0.0.1 key=" KEY_A " # left\nb # c\n" },
		/* another address, which was another host's */
		{ "worker 10.0.0.9 key=" KEY_A "\nx\n10.0.0.1 key=" KEY_B "\ny\n", OD_NODE_WORKER, "10.0.0.1",
		  OD_MEMBER_NEW_ADDRESS, "worker 10.0.0.1 key=" KEY_A "\nx\ny\n" },
		/* the words of a machine stay */
		{ "10.0.0.1 link=1G  key=" KEY_B "\tmemory=2G# left\n", OD_NODE_WORKER, "10.0.0.1", OD_MEMBER_NEW_KEY,
		  "worker 10.0.0.1 key=" KEY_A " link=1G\tmemory=2G # left\n" },
		/* the other daemon of a machine has its line */
		{ "worker 10.0.0.1 key=" KEY_A "\n", OD_NODE_SHADOW, "10.0.0.1", OD_MEMBER_ADDED,
		  "worker 10.0.0.1 key=" KEY_A "\nshadow 10.0.0.1 key=" KEY_A " # box\n" },
		{ "worker 10.0.0.1 key=" KEY_A "\n", OD_NODE_WORKER, "10.0.0.1:5801", OD_MEMBER_ADDED,
		  "worker 10.0.0.1 key=" KEY_A "\nworker 10.0.0.1:5801 key=" KEY_A " # box\n" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct host_case *c = &cases[i];
		enum od_member_change change;
		struct od_hosts all;
		struct od_err err;

		put_text(c->before);
		if (put_host(c->role, c->host, KEY_A, &change, &err) != OD_OK)
			fail_msg("case %zu: %s", i, err.msg);
		assert_int_equal(change, c->change);
		expect_text(c->after != NULL ? c->after : c->before);
		assert_int_equal(put_host(c->role, c->host, KEY_A, &change, &err), OD_OK);
		assert_int_equal(change, OD_MEMBER_SAME);
		if (c->role == OD_NODE_WORKER) {
			assert_int_equal(od_hosts_load(&all, path, &err), OD_OK);
			od_hosts_fini(&all);
		}
	}
}

static void words(void **state)
{
	static const struct {
		const char *before;
		struct od_host_words words;
		const char *after;
	} cases[] = {
		{ "a\n", { .link_bits = 1e9 }, "a link=1G\n" },
		{ "a", { .link_bits = 0 }, "a" },
		{ "b\n  worker\ta:5701 # left\r\nc\n",
		  { .memory_bytes = 1.5 * 1073741824, .latency_ms = 0.25 },
		  "b\n  worker\ta:5701 memory=1.5G latency=0.25 # left\nc\n" },
		{ "a link=1G  speed=2 key=" KEY_A " read=1M\t# speed=3\n",
		  { .speed = 0.123456, .read_rate = 3 * 1048576 },
		  "a link=1G key=" KEY_A " read=3M speed=0.1235\t# speed=3\n" },
		{ "main a link=1G\nshadow a:5701 # s\n",
		  { .many = 12 },
		  "main a link=1G\nshadow a:5701 many=12 # s\n" },
		{ "main a link=1G\nb\n", { .link_bits = 2.5e9 }, "main a link=2.5G\nb\n" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct od_hosts all;
		struct od_err err;
		struct od_host h = { .host = "a", .port = OD_DEFAULT_WORKER_PORT };

		put_text(cases[i].before);
		assert_int_equal(od_hosts_parse_some(&all, cases[i].before, strlen(cases[i].before), path, &err),
				 OD_OK);
		for (size_t k = 0; k < all.n; k++)
			h = strcmp(all.host[k].host, "a") == 0 ? all.host[k] : h;
		if (h.line == 0)
			h = all.main;
		if (od_hosts_set_words(path, &h, &cases[i].words, &err) != OD_OK)
			fail_msg("case %zu: %s", i, err.msg);
		expect_text(cases[i].after);
		od_hosts_fini(&all);
	}
}

static void words_of_main(void **state)
{
	const struct od_host here = { .is_main = true, .host = "box0" };
	const struct od_host_words w = { .speed = 2, .fixed_ms = 0.05 };
	struct od_err err;

	(void)state;
	put_text("a # one\n");
	assert_int_equal(od_hosts_set_words(path, &here, &w, &err), OD_OK);
	expect_text("a # one\nmain box0 speed=2 fixed=0.05\n");
	put_text("main box1 speed=3\na\n"); /* another name: it is not this machine's line */
	assert_int_equal(od_hosts_set_words(path, &here, &w, &err), OD_ERR_MISSING);
	expect_text("main box1 speed=3\na\n");
}

static void refused_words(void **state)
{
	const struct od_host gone = { .host = "b", .port = OD_DEFAULT_WORKER_PORT };
	const struct od_host here = { .host = "a", .port = OD_DEFAULT_WORKER_PORT };
	const struct od_host_words w = { .speed = 1 };
	char text[5000] = "a #";
	struct od_err err;

	(void)state;
	put_text("a\nmain b\n");
	assert_int_equal(od_hosts_set_words(path, &gone, &w, &err), OD_ERR_MISSING);
	assert_non_null(strstr(err.msg, "no longer lists host b"));
	expect_text("a\nmain b\n");
	memset(text + 3, 'x', sizeof(text) - 4);
	put_text(text);
	assert_int_equal(od_hosts_set_words(path, &here, &w, &err), OD_ERR_ARG);
	assert_non_null(strstr(err.msg, "line 1 is too long"));
	expect_text(text);
}

static void refused_hosts(void **state)
{
	enum od_member_change change;
	struct od_err err;

	(void)state;
	put_text("worker 10.0.0.2\nleader 10.0.0.3\n");
	assert_int_equal(put_host(OD_NODE_WORKER, "10.0.0.1", KEY_A, &change, &err), OD_ERR_ARG);
	assert_non_null(strstr(err.msg, "line 2"));
	expect_text("worker 10.0.0.2\nleader 10.0.0.3\n");
	put_text("");
	for (unsigned i = 0; i < OD_MAX_SHADOWS; i++) {
		char host[40];

		snprintf(host, sizeof(host), "10.0.1.%u", i);
		assert_int_equal(put_host(OD_NODE_SHADOW, host, i % 2 ? KEY_B : KEY_C, &change, &err), OD_OK);
		/* one key moves from one address to the next */
		assert_int_equal(change, i < 2 ? OD_MEMBER_ADDED : OD_MEMBER_NEW_ADDRESS);
	}
}

static int put_peer(const char *key, const char *address, bool alone, bool try, enum od_member_change *change,
		    struct od_err *err)
{
	const struct od_peers_put_opts opts = { .alone = alone, .try = try };
	uint8_t bytes[OD_KEY_BYTES];

	assert_int_equal(od_key_parse(bytes, key, err), OD_OK);
	return od_peers_put(path, bytes, address, &opts, change, err);
}

static void peers(void **state)
{
	enum od_member_change change;
	struct od_err err;

	(void)state;
	put_text("# main\n");
	assert_int_equal(put_peer(KEY_A, "10.0.0.1", true, true, &change, &err), OD_OK);
	assert_int_equal(change, OD_MEMBER_ADDED);
	expect_text("# main\n"); /* it was only tried */
	assert_int_equal(put_peer(KEY_A, "10.0.0.1", true, false, &change, &err), OD_OK);
	expect_text("# main\n" KEY_A " 10.0.0.1\n");
	assert_int_equal(put_peer(KEY_A, "10.0.0.1", true, false, &change, &err), OD_OK);
	assert_int_equal(change, OD_MEMBER_SAME);
	assert_int_equal(put_peer(KEY_A, "10.0.0.2", true, false, &change, &err), OD_OK);
	assert_int_equal(change, OD_MEMBER_NEW_ADDRESS);
	expect_text("# main\n" KEY_A " 10.0.0.2\n");
	assert_int_equal(put_peer(KEY_B, "10.0.0.2", true, false, &change, &err), OD_OK);
	assert_int_equal(change, OD_MEMBER_NEW_KEY);
	expect_text("# main\n" KEY_B " 10.0.0.2\n");
	assert_int_equal(put_peer(KEY_C, "10.0.0.3", true, true, &change, &err), OD_ERR_ARG);
	assert_non_null(strstr(err.msg, "line 2 names another main, 10.0.0.2"));
	expect_text("# main\n" KEY_B " 10.0.0.2\n");
	assert_int_equal(put_peer(KEY_C, "10.0.0.3", false, false, &change, &err), OD_OK);
	expect_text("# main\n" KEY_B " 10.0.0.2\n" KEY_C " 10.0.0.3\n");
}

static void modes_and_links_stay(void **state)
{
	const mode_t umask_before = umask(077);
	enum od_member_change change;
	char link[120], real[100];
	struct od_err err;
	struct stat st;

	(void)state;
	unlink(path);
	assert_int_equal(put_host(OD_NODE_WORKER, "10.0.0.1", KEY_A, &change, &err), OD_OK);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0644); /* the service's user reads it, whatever root's umask */
	assert_int_equal(chmod(path, 0640), 0);
	assert_int_equal(geteuid() == 0 ? chown(path, 1, 2) : 0, 0);
	assert_int_equal(put_host(OD_NODE_WORKER, "10.0.0.2", KEY_B, &change, &err), OD_OK);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0640);
	assert_true(geteuid() != 0 || (st.st_uid == 1 && st.st_gid == 2));
	snprintf(link, sizeof(link), "%s.link", path);
	memcpy(real, path, sizeof(real));
	assert_int_equal(symlink(path, link), 0);
	memcpy(path, link, sizeof(path));
	assert_int_equal(put_host(OD_NODE_WORKER, "10.0.0.3", KEY_C, &change, &err), OD_OK);
	assert_true(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));
	memcpy(path, real, sizeof(path));
	expect_text("worker 10.0.0.1 key=" KEY_A " # box\nworker 10.0.0.2 key=" KEY_B
		    " # box\nworker 10.0.0.3 key=" KEY_C " # box\n");
	unlink(link);
	umask(umask_before);
}

static void a_full_disk_changes_nothing(void **state)
{
	const struct rlimit small = { 64, RLIM_INFINITY };
	enum od_member_change change;
	struct rlimit before;
	struct od_err err;
	char tmp[120];
	int rc;

	(void)state;
	unlink(path);
	assert_int_equal(put_host(OD_NODE_WORKER, "10.0.0.1", KEY_A, &change, &err), OD_OK);
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &before);
	setrlimit(RLIMIT_FSIZE, &small);
	rc = put_host(OD_NODE_WORKER, "10.0.0.2", KEY_B, &change, &err);
	setrlimit(RLIMIT_FSIZE, &before);
	assert_int_equal(rc, OD_ERR_IO);
	assert_non_null(strstr(err.msg, strerror(EFBIG)));
	expect_text("worker 10.0.0.1 key=" KEY_A " # box\n");
	snprintf(tmp, sizeof(tmp), "%s.tmp", path);
	assert_int_not_equal(access(tmp, F_OK), 0);
	assert_int_equal(put_host(OD_NODE_WORKER, "10.0.0.2", KEY_B, &change, &err), OD_OK);
}

static void *add_one(void *number)
{
	static const char *const key[] = { KEY_A, KEY_B, KEY_C, KEY_D };
	enum od_member_change change;
	struct od_err err;
	char host[40];

	for (int i = 0; i < 10; i++) {
		snprintf(host, sizeof(host), "10.0.%d.1:%d", *(int *)number, 6000 + i);
		if (put_host(OD_NODE_WORKER, host, key[*(int *)number], &change, &err) != OD_OK)
			return number;
	}
	return NULL;
}

static void writers_wait_for_each_other(void **state)
{
	int number[] = { 0, 1, 2, 3 };
	pthread_t thread[4];
	struct od_hosts all;
	struct od_err err;
	void *failed;

	(void)state;
	unlink(path);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, add_one, &number[i]), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(thread[i], &failed);
		assert_null(failed);
	}
	assert_int_equal(od_hosts_load(&all, path, &err), OD_OK);
	assert_int_equal(all.n, 40);
	od_hosts_fini(&all);
}

/* Another user can hold a lock of a folder that it may read. */
static void locks_that_stay(void **state)
{
	enum od_member_change change;
	struct od_err err;
	int fd = open(dir, O_RDONLY | O_DIRECTORY);

	(void)state;
	unlink(path);
	assert_true(fd >= 0);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(put_host(OD_NODE_WORKER, "10.0.0.1", KEY_A, &change, &err), OD_ERR_BUSY);
	assert_non_null(strstr(err.msg, "another process has locked the folder"));
	assert_int_not_equal(access(path, F_OK), 0);
	close(fd);
	assert_int_equal(put_host(OD_NODE_WORKER, "10.0.0.1", KEY_A, &change, &err), OD_OK);
	expect_text("worker 10.0.0.1 key=" KEY_A " # box\n");
}

/* A link in the way of the temporary file is no way to another file. */
static void links_are_not_followed(void **state)
{
	char temporary[sizeof(path) + 4], victim[sizeof(path) + 7];
	enum od_member_change change;
	struct od_err err;

	(void)state;
	snprintf(temporary, sizeof(temporary), "%s.tmp", path);
	snprintf(victim, sizeof(victim), "%s.victim", path);
	assert_int_equal(symlink(victim, temporary), 0);
	put_text("");
	assert_int_equal(put_host(OD_NODE_WORKER, "10.0.0.1", KEY_A, &change, &err), OD_ERR_IO);
	assert_int_not_equal(access(victim, F_OK), 0);
	unlink(temporary);
	assert_int_equal(put_host(OD_NODE_WORKER, "10.0.0.1", KEY_A, &change, &err), OD_OK);
}

static int make_folder(void **state)
{
	(void)state;
	if (mkdtemp(dir) == NULL)
		return -1;
	snprintf(path, sizeof(path), "%s/file", dir);
	return 0;
}

static int remove_folder(void **state)
{
	(void)state;
	unlink(path);
	return rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hosts),
		cmocka_unit_test(words),
		cmocka_unit_test(words_of_main),
		cmocka_unit_test(refused_words),
		cmocka_unit_test(refused_hosts),
		cmocka_unit_test(peers),
		cmocka_unit_test(modes_and_links_stay),
		cmocka_unit_test(a_full_disk_changes_nothing),
		cmocka_unit_test(writers_wait_for_each_other),
		cmocka_unit_test(locks_that_stay),
		cmocka_unit_test(links_are_not_followed),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
