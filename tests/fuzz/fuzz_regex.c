/* Any text at all as a pattern: it is refused with a reason, or fuzz_grammar.h holds.
 * Input: 1 to search, and 2 to write JSON; the pattern, a zero byte, choices of bytes. */
#include "common/grammar/regex.h"
#include "tests/fuzz/fuzz_grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const unsigned how = size > 0 ? data[0] : 0;
	const char *pattern = (const char *)data + (size > 0);
	const size_t left = size > 0 ? size - 1 : 0;
	const char *end = left > 0 ? memchr(pattern, 0, left) : NULL;
	const size_t len = end != NULL ? (size_t)(end - pattern) : left;
	struct od_grammar *g[2];
	struct od_err err = { 0 };
	int rc[2];

	for (int i = 0; i < 2; i++) {
		uint32_t re;

		check(od_grammar_new(&g[i], &err) == OD_OK);
		od_re_allow(od_grammar_res(g[i]), FUZZ_WORK);
		rc[i] = od_regex_compile(od_grammar_res(g[i]), pattern, len, how & 2 ? OD_WRITE_JSON : OD_WRITE_PLAIN,
					 how & 1, &re, &err);
		if (rc[i] == OD_OK)
			rc[i] = od_grammar_finish(g[i], od_syntax_re(g[i], re), &err);
	}
	check(rc[0] == rc[1]);
	if (rc[0] == OD_OK) {
		fuzz_grammar(g, (const uint8_t *)pattern + len, left - len);
		return 0;
	}
	check(err.msg[0] != '\0');
	od_grammar_free(g[0]);
	od_grammar_free(g[1]);
	return 0;
}
