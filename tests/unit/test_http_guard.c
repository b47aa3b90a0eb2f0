/* Admission of requests: addresses, Host headers, API keys, content types. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "main-node/serve/http/http_guard.h"
#include "tests/unit/temp_dir.h"

static void addresses_are_parsed(void **state)
{
	static const struct {
		const char *text, *host;
		uint16_t port;
	} good[] = {
		{ "127.0.0.1:80", "127.0.0.1", 80 },
		{ "localhost", "localhost", 8080 },
		{ "[::1]:9", "::1", 9 },
		{ "[::1]", "::1", 8080 },
		{ ":0", "::", 0 },
		{ "*:80", "::", 80 },
		{ "::1", "::1", 8080 },
		{ "a.example:65535", "a.example", 65535 },
		{ "fe80::1%eth0", "fe80::1%eth0", 8080 },
		{ "1:2:3:4:5:6:7:8080", "1:2:3:4:5:6:7:8080", 8080 },
	};
	static const struct {
		const char *text, *says;
	} bad[] = {
		{ "", "127.0.0.1:8080" },
		{ "a:65536", "port: " },
		{ "a:70000", "port: " },
		{ "a:-1", "port: " },
		{ "a:x", "port: " },
		{ "a:1x", "port: " },
		{ "[::1", "[::1]:8080" },
		{ "[::1]x", "[::1]:8080" },
		{ "::1:8080", "needs brackets" },
		{ "2001:db8::1:80", "needs brackets" },
		{ "18299", "in front of the port" },
		{ "8080:8080", "in front of the port" },
		{ "http://127.0.0.1:8080", "without http://" },
		{ "https://a", "without http://" },
		{ "127.0.0.1 8080", "127.0.0.1:8080" },
		{ "a/b:1", "127.0.0.1:8080" },
	};
	struct odm_address a;
	struct od_err err;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(odm_address_parse(&a, good[i].text, 8080, &err), OD_OK);
		assert_string_equal(a.host, good[i].host);
		assert_int_equal(a.port, good[i].port);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(odm_address_parse(&a, bad[i].text, 8080, &err), OD_ERR_ARG);
		if (strstr(err.msg, bad[i].says) == NULL)
			fail_msg("%s: %s", bad[i].text, err.msg);
	}
}

static void a_port_can_be_taken_once(void **state)
{
	struct odm_listening l, other;
	struct odm_address a;
	struct od_err err;

	(void)state;
	assert_int_equal(odm_address_parse(&a, "127.0.0.1:0", 1, &err), OD_OK);
	assert_int_equal(odm_listen(&a, &l, &err), OD_OK);
	assert_true(l.n == 1 && l.fd[0] >= 0 && l.port > 0);
	a.port = l.port;
	assert_int_equal(odm_listen(&a, &other, &err), OD_ERR_IO);
	assert_non_null(strstr(err.msg, "another program uses this port"));
	assert_int_equal(other.n, 0);
	/* A name is not taken at one address if it is not free at the other. */
	snprintf(a.host, sizeof(a.host), "localhost");
	assert_int_equal(odm_listen(&a, &other, &err), OD_ERR_IO);
	assert_int_equal(other.n, 0);
	odm_listening_close(&l);
	assert_int_equal(l.n, 0);
	snprintf(a.host, sizeof(a.host), "192.0.2.1"); /* RFC 5737: nobody's */
	assert_int_equal(odm_listen(&a, &other, &err), OD_ERR_IO);
	assert_non_null(strstr(err.msg, "this machine has no such address"));
}

static void hosts_of_pages_are_refused(void **state)
{
	static const char *const good[] = { "localhost",     "LocalHost:80", "localhost.",   "127.0.0.1",
					    "10.1.2.3:8080", "[::1]:80",     "[fe80::1]",    "x.localhost:1",
					    "node7",	     "NODE7:8080",   "tales.example" };
	static const char *const bad[] = { "evil.example",
					   "localhost.evil.example",
					   "127.0.0.1.evil.example",
					   "",
					   ":80",
					   "node70",
					   "[::1",
					   "tales.example.evil",
					   "1.2.3",
					   "localhost:80:80" };
	static const char *const also[] = { "host.docker.internal", "HOST.Docker.internal.:8080", "box.lan" };
	const struct odm_address a = { .host = "tales.example", .port = 8080 };
	const struct od_arg_list none = { .n = 0 }, some = { .value = { "host.docker.internal", "Box.LAN." }, .n = 2 };

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		if (!odm_host_allowed(good[i], &a, "node7", &none))
			fail_msg("%s is refused", good[i]);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (odm_host_allowed(bad[i], &a, "node7", &none))
			fail_msg("%s is allowed", bad[i]);
	assert_true(odm_host_allowed(NULL, &a, "node7", &none));
	assert_false(odm_host_allowed("", &a, "", &none));
	for (size_t i = 0; i < sizeof(also) / sizeof(also[0]); i++) {
		assert_false(odm_host_allowed(also[i], &a, "node7", &none));
		assert_true(odm_host_allowed(also[i], &a, "node7", &some));
	}
	assert_false(odm_host_allowed("docker.internal", &a, "", &some));
	assert_false(odm_host_allowed("x.host.docker.internal", &a, "", &some));
	assert_false(odm_host_allowed("", &a, "", &some));
}

static void allowed_names_are_names(void **state)
{
	static const char *const bad[] = { "", "*", "a:80", "http://a", "a b", "[::1]", "a/b" };

	(void)state;
	assert_true(odm_is_host_name("host.docker.internal"));
	assert_true(odm_is_host_name("Node_7-b."));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_false(odm_is_host_name(bad[i]));
}

static int load(struct odm_api_keys **k, const char *text, size_t len, struct od_err *err)
{
	const char *path = temp_path("keys");
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, len, f), len);
	fclose(f);
	return odm_api_keys_load(k, path, err);
}

static void keys_are_compared_whole(void **state)
{
	static const char text[] = "\xef\xbb\xbf"
				   "# comment\n\none\r\n \ttwo words \n#three\nlast";
	static const char *const bad[] = { "",		"on",	  "one1",  "two", "two words ",
					   "# comment", "#three", "three", "ONE", "las" };
	struct odm_api_keys *k;
	struct od_err err;
	char header[64];

	(void)state;
	assert_int_equal(load(&k, text, strlen(text), &err), OD_OK);
	assert_true(odm_api_key_known(k, "Bearer one", NULL));
	assert_true(odm_api_key_known(k, "bearer two words", NULL));
	assert_true(odm_api_key_known(k, NULL, "last"));
	assert_true(odm_api_key_known(k, "Basic xyz", "one"));
	assert_false(odm_api_key_known(k, NULL, NULL));
	assert_false(odm_api_key_known(k, "one", NULL));
	assert_false(odm_api_key_known(k, "Bearer", NULL));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		snprintf(header, sizeof(header), "Bearer %s", bad[i]);
		assert_false(odm_api_key_known(k, header, NULL));
		assert_false(odm_api_key_known(k, NULL, bad[i]));
	}
	odm_api_keys_free(k);
}

static void files_without_keys_are_refused(void **state)
{
	struct odm_api_keys *k;
	struct od_err err;

	(void)state;
	assert_int_equal(load(&k, "", 0, &err), OD_ERR_FORMAT);
	assert_null(k);
	assert_int_equal(load(&k, "#a\n  \n", 6, &err), OD_ERR_FORMAT);
	assert_int_equal(load(&k, "a\0b\n", 4, &err), OD_ERR_FORMAT);
	assert_int_equal(load(&k,
			      "\xff\xfe"
			      "a\0\n\0",
			      6, &err),
			 OD_ERR_FORMAT);
	assert_non_null(strstr(err.msg, "UTF-16"));
	assert_int_equal(load(&k,
			      "\xef\xbb\xbf"
			      "one\r\n",
			      8, &err),
			 OD_OK); /* a byte order mark is none of a key */
	assert_true(odm_api_key_known(k, "Bearer one", NULL));
	odm_api_keys_free(k);
	assert_int_equal(odm_api_keys_load(&k, temp_path("none"), &err), OD_ERR_MISSING);
	odm_api_keys_free(NULL);
}

static void json_is_a_type(void **state)
{
	(void)state;
	assert_true(odm_is_json_type("application/json"));
	assert_true(odm_is_json_type("  Application/JSON ; charset=utf-8"));
	assert_true(odm_is_json_type("application/json;a"));
	assert_false(odm_is_json_type(NULL));
	assert_false(odm_is_json_type(""));
	assert_false(odm_is_json_type("application/jsonl"));
	assert_false(odm_is_json_type("text/plain; application/json"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(addresses_are_parsed),
		cmocka_unit_test(a_port_can_be_taken_once),
		cmocka_unit_test(hosts_of_pages_are_refused),
		cmocka_unit_test(allowed_names_are_names),
		cmocka_unit_test(keys_are_compared_whole),
		cmocka_unit_test(files_without_keys_are_refused),
		cmocka_unit_test(json_is_a_type),
	};

	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
