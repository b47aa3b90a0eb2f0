/* The beginning of GGUF files: files of llama.cpp's converter, cut at every byte, and some that are damaged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/file.h"
#include "deploy/hub/gguf_begin.h"

/* A cut file never seems to be of a model without experts. */
static void expect_arch(const char *path, const char *arch, bool has_experts)
{
	struct odp_gguf_begin b;
	struct od_err err = { 0 };
	char *bytes, *cut;
	size_t len;

	assert_int_equal(od_file_read(path, 1 << 20, &bytes, &len, &err), OD_OK);
	assert_int_equal(odp_gguf_begin_read(&b, (uint8_t *)bytes, len, path, &err), OD_OK);
	assert_true(b.complete);
	assert_string_equal(b.arch, arch);
	assert_true(b.has_experts == has_experts);
	for (size_t n = 0; n < len; n++) {
		cut = malloc(n + 1); /* so that a sanitizer sees what is read behind it */
		assert_non_null(cut);
		memcpy(cut, bytes, n);
		if (odp_gguf_begin_read(&b, (uint8_t *)cut, n, path, &err) == OD_OK && has_experts)
			assert_true(!b.complete || b.has_experts);
		free(cut);
	}
	free(bytes);
}

static void test_files(void **state)
{
	(void)state;
	expect_arch("tests/golden/gguf/mixtral.gguf", "llama", true);
	expect_arch("tests/golden/gguf/gpt_oss.gguf", "gpt-oss", true);
	expect_arch("tests/golden/gguf/deepseek_v2.gguf", "deepseek2", true);
	expect_arch("tests/golden/gguf/mmproj.gguf", "clip", false);
}

static void expect_refusal(const char *bytes, size_t n, int rc, const char *says)
{
	struct odp_gguf_begin b;
	struct od_err err;

	assert_int_equal(odp_gguf_begin_read(&b, (const uint8_t *)bytes, n, "x.gguf", &err), rc);
	assert_non_null(strstr(err.msg, says));
	assert_false(b.complete || b.has_experts);
}

static void test_what_is_no_file(void **state)
{
	static const char huge[] = "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\377\377\377\377\377\377\377\377"
				   "\377\377\377\377\377\377\377\177a";
	struct odp_gguf_begin b;
	struct od_err err;

	(void)state;
	expect_refusal("<!DOCTYPE html>", 15, OD_ERR_FORMAT, "does not begin with \"GGUF\"");
	expect_refusal("GG", 2, OD_ERR_FORMAT, "does not begin");
	expect_refusal("GGUF\3\0\0\0", 8, OD_ERR_FORMAT, "only 8 bytes");
	expect_refusal("GGUF\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24, OD_ERR_UNSUPPORTED, "version 1");
	assert_int_equal(odp_gguf_begin_read(&b, (const uint8_t *)huge, sizeof(huge) - 1, "x", &err), OD_OK);
	assert_false(b.complete);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_files), cmocka_unit_test(test_what_is_no_file) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
