/* Any text at all as a grammar in GBNF: it is refused with a reason, or fuzz_grammar.h holds.
 * Input: the grammar, a zero byte, choices of bytes. */
#include "common/grammar/gbnf.h"
#include "tests/fuzz/fuzz_grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end = size > 0 ? memchr(data, 0, size) : NULL;
	const size_t len = end != NULL ? (size_t)(end - data) : size;
	struct od_grammar *g[2];
	struct od_err err = { 0 };
	int rc[2];

	for (int i = 0; i < 2; i++) {
		uint32_t root;

		check(od_grammar_new(&g[i], &err) == OD_OK);
		od_re_allow(od_grammar_res(g[i]), FUZZ_WORK);
		rc[i] = od_gbnf_compile(g[i], (const char *)data, len, &root, &err);
		if (rc[i] == OD_OK)
			rc[i] = od_grammar_finish(g[i], root, &err);
	}
	check(rc[0] == rc[1]);
	if (rc[0] == OD_OK) {
		fuzz_grammar(g, data + len, size - len);
		return 0;
	}
	check(err.msg[0] != '\0');
	od_grammar_free(g[0]);
	od_grammar_free(g[1]);
	return 0;
}
