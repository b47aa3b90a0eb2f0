/* hosts.txt: what it may say, and what is said about what it may not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/net/hosts.h"

#define FOUR(x) "shadow a" x "\nshadow b" x "\nshadow c" x "\nshadow d" x "\n"
#define MANY_SHADOWS "box1\n" FOUR("1") FOUR("2") FOUR("3") FOUR("4") "shadow e\nshadow f\n"

static void parse(struct od_hosts *h, const char *text)
{
	struct od_err err = { 0 };

	if (od_hosts_parse(h, text, strlen(text), "hosts.txt", &err) != OD_OK)
		fail_msg("%s", err.msg);
}

static void expect_host(const struct od_hosts *h, size_t i, enum od_node_kind role, const char *host, int port,
			int line)
{
	assert_true(i < h->n);
	assert_int_equal(h->host[i].role, role);
	assert_string_equal(h->host[i].host, host);
	assert_int_equal(h->host[i].port, port);
	assert_int_equal(h->host[i].line, line);
}

static void test_what_it_may_say(void **state)
{
	static const char text[] = "# our boxes\n"
				   "\n"
				   "shadow box0            # the big one\n"
				   "  worker\tbox1:7000\r\n"
				   "box2\n"
				   "192.168.1.20\n"
				   "192.168.1.20:5800#no blank needed\n"
				   "fe80::1%eth0\n"
				   "[2001:DB8:0:0::2]:65535\n"
				   "worker [::1]\n"
				   "shadow:1\n"
				   "worker worker\n"
				   "a_b-c.example.org:1";
	struct od_hosts h;

	(void)state;
	parse(&h, text);
	assert_int_equal(h.n, 11);
	expect_host(&h, 0, OD_NODE_SHADOW, "box0", 5700, 3);
	expect_host(&h, 1, OD_NODE_WORKER, "box1", 7000, 4);
	expect_host(&h, 2, OD_NODE_WORKER, "box2", 5701, 5);
	expect_host(&h, 3, OD_NODE_WORKER, "192.168.1.20", 5701, 6);
	expect_host(&h, 4, OD_NODE_WORKER, "192.168.1.20", 5800, 7);
	expect_host(&h, 5, OD_NODE_WORKER, "fe80::1%eth0", 5701, 8);
	expect_host(&h, 6, OD_NODE_WORKER, "2001:db8::2", 65535, 9);
	expect_host(&h, 7, OD_NODE_WORKER, "::1", 5701, 10);
	expect_host(&h, 8, OD_NODE_WORKER, "shadow", 1, 11); /* a host of that name */
	expect_host(&h, 9, OD_NODE_WORKER, "worker", 5701, 12);
	expect_host(&h, 10, OD_NODE_WORKER, "a_b-c.example.org", 1, 13);
	od_hosts_without_shadow(&h);
	assert_int_equal(h.n, 10);
	for (size_t i = 0; i < h.n; i++)
		assert_int_equal(h.host[i].role, OD_NODE_WORKER);
	expect_host(&h, 9, OD_NODE_WORKER, "a_b-c.example.org", 1, 13);
	od_hosts_fini(&h);
	assert_int_equal(h.n, 0);
	assert_null(h.host);
	od_hosts_fini(&h);
}

static void expect_near(double found, double expected)
{
	if (!(found > expected * (1 - 1e-9) && found < expected * (1 + 1e-9)))
		fail_msg("expected %g, found %g", expected, found);
}

static void test_words_of_a_machine(void **state)
{
	static const char text[] =
		"main box0:9 latency=0.2 memory=900MiB fixed=0.015 # here\n"
		"box1 link=2.5G speed=0.4 memory=12G read=3.5g many=3 latency=0.05 accept=0.9 recall=1\n"
		"shadow box2 link=100M\n"
		"box3 link=64e6 # link=1G\n"
		"main:7000\n";
	struct od_host_words w;
	struct od_hosts h;
	char buf[256];

	(void)state;
	parse(&h, text);
	assert_int_equal(h.n, 4);
	assert_true(h.has_main && h.main.is_main && h.main.line == 1);
	assert_string_equal(h.main.host, "box0");
	expect_near(h.main.words.latency_ms, 0.2);
	expect_near(h.main.words.fixed_ms, 0.015);
	expect_near(h.main.words.memory_bytes, 900 * 1048576.0);
	assert_true(h.main.words.speed == 0 && h.main.words.link_bits == 0);
	expect_host(&h, 0, OD_NODE_WORKER, "box1", 5701, 2);
	expect_near(h.host[0].words.link_bits, 2.5e9);
	expect_near(h.host[0].words.speed, 0.4);
	expect_near(h.host[0].words.memory_bytes, 12 * 1073741824.0);
	expect_near(h.host[0].words.read_rate, 3.5 * 1073741824.0);
	expect_near(h.host[0].words.many, 3);
	expect_near(h.host[0].words.latency_ms, 0.05);
	expect_near(h.host[1].words.link_bits, 1e8);
	expect_near(h.host[2].words.link_bits, 6.4e7);
	expect_host(&h, 3, OD_NODE_WORKER, "main", 7000, 5); /* a host of that name */
	assert_string_equal(od_host_words_text(&h.host[0].words, buf, sizeof(buf)),
			    " memory=12G read=3.5G speed=0.4 many=3 link=2.5G latency=0.05 recall=1 accept=0.9");
	w = (struct od_host_words){ .memory_bytes = 1.23456e9, .speed = 1234567 };
	assert_string_equal(od_host_words_text(&w, buf, sizeof(buf)), " memory=1.15G speed=1234567");
	w = (struct od_host_words){ 0 };
	assert_string_equal(od_host_words_text(&w, buf, sizeof(buf)), "");
	od_hosts_fini(&h);
}

static void refuse(const char *text, size_t len, const char *wanted)
{
	struct od_hosts h = { .n = 77 };
	struct od_err err = { 0 };

	assert_int_equal(od_hosts_parse(&h, text, len, "hosts.txt", &err), OD_ERR_ARG);
	assert_null(h.host);
	assert_int_equal(h.n, 0);
	if (strstr(err.msg, wanted) == NULL)
		fail_msg("for \"%s\": \"%s\" does not contain \"%s\"", text, err.msg, wanted);
}

static void test_what_it_may_not_say(void **state)
{
	static const struct {
		const char *text, *says;
	} bad[] = {
		{ "", "hosts.txt: expected at least one worker, found none" },
		{ "# nothing\n\n", "expected at least one worker" },
		{ "shadow box\n", "expected at least one worker" },
		{ "box1\nleader box2\n",
		  "hosts.txt line 2: expected main, worker or shadow in front of a host, found \"leader\"" },
		{ "main box2\n", "hosts.txt: expected at least one worker, found none" },
		{ "main\nbox1\n", "hosts.txt line 1: expected a host behind \"main\"" },
		{ "main a\nbox1\nmain b\n",
		  "hosts.txt line 3: expected one main, found a second: the first is on line 1" },
		{ "box1 memory=12\n", "hosts.txt line 1: memory=: expected 1M to 512T, found 12" },
		{ "box1 memory=\n", "memory=: " },
		{ "box1 memory=12G memory=12G\n", "expected memory= once, found it twice" },
		{ "box1 read=3.5\n", "read=: expected a size such as 900MiB or 1.5G, found \"3.5\"" },
		{ "box1 speed=0\n", "speed=: expected 1e-06 to 1000000, found 0" },
		{ "box1 speed=nan\n", "speed=: expected a number" },
		{ "box1 speed=1e308\n", "speed=: expected 1e-06 to 1000000, found 1e308" },
		{ "box1 latency=-2\n", "latency=: expected 0.0001 to 100000, found -2" },
		{ "box1 many=-1\n", "many=: " },
		{ "box1 link=100\n", "link=: expected 1K to 10000G, found 100" },
		{ "box1 link=G\n", "link=: expected bits a second such as 1G, found \"G\"" },
		{ "box1 link=1GiB\n", "expected bits a second" },
		{ "box1 recall=1.1\n", "recall=: expected 0.0001 to 1, found 1.1" },
		{ "box1 accept=98\n", "accept=: expected 0.0001 to 1, found 98" },
		{ "box1 latency=0\n", "latency=: expected 0.0001 to 100000, found 0" },
		{ "Worker box2\n", "found \"Worker\"" },
		{ "box1\n\nworker\n", "hosts.txt line 3: expected a host behind \"worker\"" },
		{ "shadow # box\n", "expected a host behind \"shadow\"" },
		{ "worker a=b\n", "expected a host, found \"a=b\"" },
		{ "box1 weight=2\n",
		  "expected key=, memory=, read=, speed=, many=, link=, latency=, fixed=, recall= or accept= after the host, found \"weight=2\"" },
		{ "worker box1 weight=2\n",
		  "expected key=, memory=, read=, speed=, many=, link=, latency=, fixed=, recall= or accept= after the host, found \"weight=2\"" },
		{ "worker box1 box2\n", "after the host, found \"box2\"" },
		{ "weight=2\n", "found \"weight=2\"" },
		{ "box1:0\n", "hosts.txt line 1: port: expected 1 to 65535, found 0" },
		{ "box1:65536\n", "found 65536" },
		{ "box1:\n", "port: expected a whole number" },
		{ "box1:57o1\n", "found \"57o1\"" },
		{ "box1:-1\n", "found \"-1\"" },
		{ "box1:99999999999999999999\n", "port" },
		{ ":5701\n", "expected a host name or address, found \"\"" },
		{ "box/1\n", "found \"box/1\"" },
		{ "tcp://box1:5701\n", "tcp" },
		{ "-box\n", "found \"-box\"" },
		{ ".\n", "found \".\"" },
		{ "192.168.1.300\n", "expected an IPv4 address such as 192.168.1.20, found \"192.168.1.300\"" },
		{ "10.0.1\n", "found \"10.0.1\"" },
		{ "1:2:3\n", "expected an IPv6 address, found \"1:2:3\"" },
		{ "fe80::12345\n", "expected an IPv6 address" },
		{ "fe80::1%\n", "expected an IPv6 address" },
		{ "fe80::1%an-interface-name-too-long\n", "expected an IPv6 address" },
		{ "[::1\n", "expected [IPv6 address]:port, found \"[::1\"" },
		{ "[::1]5701\n", "expected [IPv6 address]:port" },
		{ "[box1]:5701\n", "expected an IPv6 address, found \"box1\"" },
		{ "[::1]:\n", "port" },
		{ "box1\nBOX1:5701\n", "hosts.txt line 2: host BOX1 with port 5701 is on line 1 already" },
		{ "::1\n[0::1]\n", "host ::1 with port 5701 is on line 1 already" },
		{ "box1\nshadow box1:5701\n", "is on line 1 already" },
		{ MANY_SHADOWS, "hosts.txt line 19: more than 17 shadows" },
		{ "box1\x01\n", "found byte 0x01" },
		{ "b\xc3\xb6x\n", "found byte 0xc3" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		refuse(bad[i].text, strlen(bad[i].text), bad[i].says);
	refuse("box1\0box2\n", 10, "found byte 0x00");
}

static void test_too_much(void **state)
{
	size_t size = 64 * (OD_MAX_HOSTS + 2), len = 0;
	char *text = malloc(size), *words;
	struct od_hosts h;

	(void)state;
	assert_non_null(text);
	for (int i = 0; i < OD_MAX_HOSTS; i++)
		len += (size_t)snprintf(text + len, size - len, "10.0.%d.%d\n", i / 256, i % 256);
	parse(&h, text);
	assert_int_equal(h.n, OD_MAX_HOSTS);
	expect_host(&h, OD_MAX_HOSTS - 1, OD_NODE_WORKER, "10.0.3.255", 5701, OD_MAX_HOSTS);
	od_hosts_fini(&h);
	len += (size_t)snprintf(text + len, size - len, "box\n");
	refuse(text, len, "hosts.txt line 1025: more than 1024 hosts");
	free(text);

	words = malloc(5000);
	memset(words, 'a', 5000);
	refuse(words, 254, "expected a host name"); /* DNS allows 253 */
	refuse(words, 1024, "expected at most 1023 characters, found 1024");
	refuse(words, 5000, "expected at most 1023 characters, found 5000");
	words[300] = '#'; /* a comment may be long */
	memcpy(words, "box ", 4);
	memset(words + 4, ' ', 296);
	if (od_hosts_parse(&h, words, 5000, "hosts.txt", NULL) != OD_OK)
		fail();
	expect_host(&h, 0, OD_NODE_WORKER, "box", 5701, 1);
	od_hosts_fini(&h);
	for (size_t i = 0; i < 100; i++)
		memcpy(words + 2 * i, "a ", 2);
	refuse(words, 200, "more than 32 words");
	free(words);
}

static void test_load(void **state)
{
	char path[] = "/tmp/od-hosts-XXXXXX";
	int fd = mkstemp(path);
	struct od_hosts h = { .n = 5 };
	struct od_err err = { 0 };

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "shadow a\nb\n", 11), 11);
	assert_int_equal(od_hosts_load(&h, path, &err), OD_OK);
	assert_int_equal(h.n, 2);
	od_hosts_fini(&h);
	assert_int_equal(write(fd, "c:x\n", 4), 4);
	assert_int_equal(od_hosts_load(&h, path, &err), OD_ERR_ARG);
	assert_non_null(strstr(err.msg, path));
	assert_non_null(strstr(err.msg, "line 3: port"));
	close(fd);
	unlink(path);
	h.n = 5;
	assert_int_equal(od_hosts_load(&h, path, &err), OD_ERR_MISSING);
	assert_int_equal(h.n, 0);
	assert_non_null(strstr(err.msg, path));
}

static void test_one_address(void **state)
{
	static const char *const bad[] = { "", "host:0", "host:65536", "host:x", ":5", "a b", "[::1", "host:5 6" };
	struct od_host h;
	struct od_err err;

	(void)state;
	assert_int_equal(od_host_parse(&h, "main", 5702, &err), OD_OK);
	assert_string_equal(h.host, "main");
	assert_int_equal(h.port, 5702);
	assert_int_equal(od_host_parse(&h, "[::1]:99", 5702, &err), OD_OK);
	assert_string_equal(h.host, "::1");
	assert_int_equal(h.port, 99);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(od_host_parse(&h, bad[i], 5702, &err), OD_ERR_ARG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_it_may_say),
		cmocka_unit_test(test_words_of_a_machine),
		cmocka_unit_test(test_what_it_may_not_say),
		cmocka_unit_test(test_too_much),
		cmocka_unit_test(test_load),
		cmocka_unit_test(test_one_address),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
