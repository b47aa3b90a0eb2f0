/* Drafts from the text's own tokens, against a search of the whole text. */
#include "main-node/engine/lookup_draft.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/unit/random.h"

#define MAX_DRAFT 20
#define HANG_NS (300 * OD_NS_PER_S)

static struct odm_lookup *open_lookup(size_t max_tokens)
{
	struct odm_lookup *l;
	struct od_err err;

	if (odm_lookup_new(&l, max_tokens, &err) != OD_OK)
		fail_msg("%s", err.msg);
	return l;
}

/* ---- By hand ---- */

static void expect(const char *text, size_t max, const char *draft)
{
	const size_t n = strlen(text);
	struct odm_lookup *l = open_lookup(n);
	int32_t token[64], out[MAX_DRAFT];
	char found[MAX_DRAFT + 1] = "";
	size_t n_out;

	assert_true(n <= 64);
	for (size_t i = 0; i < n; i++)
		token[i] = text[i];
	n_out = odm_lookup_draft(l, token, n, out, max);
	for (size_t i = 0; i < n_out; i++)
		found[i] = (char)out[i];
	assert_string_equal(found, draft);
	odm_lookup_free(l);
}

static void by_hand(void **state)
{
	(void)state;
	expect("", 8, "");
	expect("a", 8, "");
	expect("aa", 8, "");
	expect("abcdef", 8, "");
	expect("abcdefa", 8, ""); /* one token is not enough */
	expect("abcdefab", 8, "cd"); /* as many as are repeated */
	expect("abcdefabc", 8, "def");
	expect("abcdefabc", 2, "de");
	expect("abcdefabc", 0, "");
	expect("abcdeabfgab", 8, "fg"); /* the latest */
	expect("xabcd.yabef.xab", 8, "cd."); /* three tokens before two */
	expect("abab", 8, "ab");
	expect("aaaa", 8, "aaa");
	expect("abcabcabc", 8, "abcabc");
	expect("abcabcabc", 4, "abca");
}

/* ---- Against a search ---- */

static bool ends_alike(const int32_t *text, size_t at, size_t n, size_t length)
{
	return at >= length && n >= length &&
	       memcmp(text + at - length, text + n - length, length * sizeof(*text)) == 0;
}

static size_t search(const int32_t *text, size_t n, int32_t *out, size_t max)
{
	for (size_t length = 3; length >= 2; length--)
		for (size_t at = n; at-- > 1;) {
			size_t same = length;

			if (!ends_alike(text, at, n, length))
				continue;
			while (ends_alike(text, at, n, same + 1))
				same++;
			for (size_t i = 0; i < same && i < max; i++)
				out[i] = text[at + i % (n - at)];
			return same < max ? same : max;
		}
	return 0;
}

/* A text with so many different tokens, of which some parts are repeated; it grows by as many tokens as a step may
 * bring. */
static unsigned check_text(uint64_t *seed, size_t n, size_t n_tokens)
{
	int32_t *text = calloc(n, sizeof(*text));
	struct odm_lookup *l = open_lookup(n);
	unsigned drafts = 0;

	assert_non_null(text);
	for (size_t i = 0; i < n; i++) {
		const size_t back = random_below(seed, 30) + 1;

		text[i] = i >= back && random_below(seed, 100) < 60 ? text[i - back] :
								      (int32_t)random_below(seed, n_tokens);
		for (size_t copies = random_below(seed, 12); i > 40 && copies > 0 && i + 1 < n; copies--, i++)
			text[i + 1] = text[i + 1 - back];
	}
	for (size_t now = random_below(seed, n); now <= n; now += 1 + random_below(seed, 3)) {
		const size_t max = random_below(seed, MAX_DRAFT + 1);
		int32_t expected[MAX_DRAFT], found[MAX_DRAFT];
		const size_t n_expected = search(text, now, expected, max);

		assert_int_equal(odm_lookup_draft(l, text, now, found, max), n_expected);
		assert_memory_equal(found, expected, n_expected * sizeof(*found));
		drafts += n_expected > 0;
	}
	odm_lookup_free(l);
	free(text);
	return drafts;
}

static void as_a_search_finds(void **state)
{
	static const size_t n_tokens[] = { 1, 2, 3, 10, 100, 32000 };
	uint64_t seed = 5;

	(void)state;
	for (size_t i = 0; i < sizeof(n_tokens) / sizeof(n_tokens[0]); i++)
		for (int j = 0; j < 50; j++)
			check_text(&seed, 1 + random_below(&seed, 400), n_tokens[i]);
	assert_true(check_text(&seed, 4000, 32000) > 100);
}

/* A search of the whole text at each token would take many minutes here; the limit only trips when something hangs. */
static void long_texts(void **state)
{
	const size_t n = 1u << 20;
	int32_t *text = calloc(n, sizeof(*text)), out[MAX_DRAFT];
	struct odm_lookup *l = open_lookup(n);
	const uint64_t begin_ns = od_now_ns();
	uint64_t seed = 6;
	size_t drafts = 0;

	(void)state;
	assert_non_null(text);
	for (size_t i = 0; i < n; i++) {
		text[i] = (int32_t)random_below(&seed, 32000);
		drafts += odm_lookup_draft(l, text, i + 1, out, MAX_DRAFT) > 0;
		if (i % 4096 == 0)
			assert_true(od_now_ns() - begin_ns < HANG_NS);
	}
	assert_true(drafts > 0);
	odm_lookup_free(l);
	free(text);
}

static void too_long(void **state)
{
	struct odm_lookup *l = (struct odm_lookup *)state; /* not NULL yet */
	struct od_err err;

	assert_int_equal(odm_lookup_new(&l, (size_t)UINT32_MAX + 1, &err), OD_ERR_RANGE);
	assert_null(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_hand),
		cmocka_unit_test(as_a_search_finds),
		cmocka_unit_test(long_texts),
		cmocka_unit_test(too_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
