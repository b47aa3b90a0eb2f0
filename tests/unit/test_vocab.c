/* The tree of a vocabulary: each token is found by its bytes, and nothing else is. */
#include "common/grammar/vocab.h"
#include "tests/unit/token_vocab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const char *const tokens[] = { "a",	"b",  "abc", "\xc3", "\xc3\xa9", "ab",	    "\n",	 " a",
				      "abcabc", "\"", "c",   "bc",   "<s",	 "\xff<s>", "\xff<tool>" };
#define N_TOKENS (sizeof(tokens) / sizeof(tokens[0]))
#define EXTRA 60u

/* In preorder: a child is deeper by one, its bytes are its parent's and one more, and skip is behind all below it. */
static void check_tree(const struct od_vocab *v)
{
	char path[16];
	unsigned depth = 0;

	for (uint32_t i = 0; i < v->n_nodes; i++) {
		assert_true(v->depth[i] >= 1 && v->depth[i] <= depth + 1 && v->depth[i] <= v->max_depth);
		depth = v->depth[i];
		path[depth - 1] = (char)v->byte[i];
		assert_true(v->skip[i] > i && v->skip[i] <= v->n_nodes);
		for (uint32_t k = i + 1; k < v->skip[i]; k++)
			assert_true(v->depth[k] > depth);
		if (v->skip[i] < v->n_nodes)
			assert_true(v->depth[v->skip[i]] <= depth);
		for (uint32_t k = v->tokens[i]; k < v->tokens[i + 1]; k++) {
			const char *want = tokens[v->sorted[k]];

			assert_int_equal(strlen(want), depth);
			assert_memory_equal(want, path, depth);
		}
	}
	assert_int_equal(v->tokens[v->n_nodes], N_TOKENS);
	assert_int_equal(v->max_depth, 7);
}

static void it_holds_all_tokens(void **state)
{
	struct od_vocab *v = token_vocab_new(tokens, N_TOKENS, EXTRA);
	bool seen[N_TOKENS] = { false };

	(void)state;
	assert_non_null(v);
	assert_int_equal(v->n_tokens, N_TOKENS + EXTRA);
	for (uint32_t i = 0; i < v->n_tokens; i++) {
		const char *bytes, *want = i < N_TOKENS ? tokens[i] : "";

		assert_int_equal(od_vocab_bytes(v, (int32_t)i, &bytes), strlen(want));
		assert_memory_equal(bytes, want, strlen(want));
	}
	check_tree(v);
	for (size_t i = 0; i < N_TOKENS; i++) {
		assert_false(seen[v->sorted[i]]);
		seen[v->sorted[i]] = true;
	}
	od_vocab_free(v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_holds_all_tokens),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
