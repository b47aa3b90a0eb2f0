/* Names of models, of files on a hub, and of files here: what is taken, and what it becomes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "deploy/hub/hub_name.h"

static void expect_name(const char *text, const char *org, const char *name, const char *revision, const char *quant)
{
	struct odp_hub_name n;
	struct od_err err = { 0 };

	if (odp_hub_name_parse(&n, text, &err) != OD_OK)
		fail_msg("%s: %s", text, err.msg);
	assert_string_equal(n.org, org);
	assert_string_equal(n.name, name);
	assert_string_equal(n.revision, revision);
	assert_string_equal(n.quant, quant);
}

static void test_models(void **state)
{
	static const char *const bad[] = {
		"hf://",	 "hf://a",	    "hf://a/",		"hf:///b",    "hf://a/b/c",
		"hf://a/b@",	 "hf://a/b:",	    "hf://../b",	"hf://a/..",  "hf://a/.b",
		"hf://a/b@..",	 "hf://a/b@x/../y", "hf://a/b:Q4/../x", "hf://a b/c", "hf://a/b\n",
		"hf://a/b:Q4 K", "hf://-a/b",	    "hf://a/b?x",	"hf://a/b#x", "hf://a/b%2e",
		"hf://a/b@@x",	 "hf://a/b:x:y",    "hf://a@x/b",
	};
	struct odp_hub_name n;
	struct od_err err;

	(void)state;
	expect_name("hf://Qwen/Qwen3-30B-A3B", "Qwen", "Qwen3-30B-A3B", "main", "");
	expect_name("hf://a/b.c_d@v1.0", "a", "b.c_d", "v1.0", "");
	expect_name("hf://a/b@refs/pr/3:UD-Q4_K_XL", "a", "b", "refs/pr/3", "UD-Q4_K_XL");
	expect_name("hf://a/b:Q8_0", "a", "b", "main", "Q8_0");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		if (odp_hub_name_parse(&n, bad[i], &err) != OD_ERR_ARG)
			fail_msg("%s is taken", bad[i]);
		assert_non_null(strstr(err.msg, "hf://ORGANISATION/NAME"));
	}
	assert_true(odp_is_address("hf://x") && odp_is_address("https://x") && odp_is_address("http://x"));
	assert_false(odp_is_address("hf:/x") || odp_is_address("ftp://x") || odp_is_address("folder"));
}

static void test_paths(void **state)
{
	static const char *const good[] = { "a", "a/b", "a.b/..c", "...", "a b/\xc3\xa4", ".gitattributes" };
	static const char *const bad[] = { "",	   "/",	  "/a",	 "a/",	 "a//b", ".",	  "..",	     "../a",
					   "a/..", "./a", "a/.", "a\\b", "a\nb", "a\x7f", "\x1b[2J", "a/../b" };

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		if (!odp_is_safe_path(good[i], strlen(good[i])))
			fail_msg("%s is refused", good[i]);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (odp_is_safe_path(bad[i], strlen(bad[i])))
			fail_msg("\"%s\" is taken", bad[i]);
	assert_false(odp_is_safe_path("a\0b", 3));
}

static void expect_file(const char *url, const char *name)
{
	char out[64];

	odp_url_file_name(url, out, sizeof(out));
	assert_string_equal(out, name);
}

static void test_shown_addresses(void **state)
{
	static const char *const cases[][2] = {
		{ "https://a/b.gguf?Signature=s#f", "https://a/b.gguf" },
		{ "https://user:p@ss@a:80/b@c", "https://a:80/b@c" },
		{ "https://token@a?x", "https://a" },
		{ "https://a#user@b", "https://a" },
		{ "https://a/\x1b[2J\xc3\xa4 ", "https://a/?[2J???" },
		{ "user:pass@a/b", "a/b" },
		{ "a?b#c://d", "a" },
		{ "", "" },
	};
	char out[64], small[9];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		odp_url_shown(cases[i][0], out, sizeof(out));
		assert_string_equal(out, cases[i][1]);
	}
	odp_url_shown("https://abc/d", small, sizeof(small));
	assert_string_equal(small, "https://");
}

static void test_files_here(void **state)
{
	char url[64] = "x/", out[16];

	(void)state;
	expect_file("https://a/b/c.gguf", "c.gguf");
	expect_file("https://a/c%20d.gguf?x=/e.gguf#f/g", "c_d.gguf");
	expect_file("https://a/..%2f..%2fetc%2fpasswd", "_._.._etc_passwd");
	expect_file("https://a/%2e%2e", "_.");
	expect_file("https://a/b%0ac%00d%zz%4", "b_c_d_zz_4");
	expect_file("https://a/", "");
	expect_file("https://a/-rf.gguf", "_rf.gguf");
	odp_local_name("a/.\xc3\xa4 b", out, sizeof(out));
	assert_string_equal(out, "____b");
	odp_local_name("0123456789abcdefg", out, sizeof(out));
	assert_string_equal(out, "0123456789abcde");
	odp_url_append(url, sizeof(url), "a b/\xc3\xa4?", true);
	assert_string_equal(url, "x/a%20b/%C3%A4%3F");
	odp_url_append(url, sizeof(url), "r/1", false);
	assert_string_equal(url, "x/a%20b/%C3%A4%3Fr%2F1");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_models),
		cmocka_unit_test(test_paths),
		cmocka_unit_test(test_files_here),
		cmocka_unit_test(test_shown_addresses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
