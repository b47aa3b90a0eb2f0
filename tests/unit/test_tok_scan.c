/* The pre-tokenisers that are cut by hand against PCRE2 on their patterns, and the classes of characters against
 * PCRE2's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <utf8proc.h>

#include "common/text/tok_internal.h"
#include "common/text/tok_unicode.h"
#include "tests/unit/random.h"

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define END "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define CASED(begin, upper, lower, end) begin upper "*" lower "+" end "|" begin upper "+" lower "*" end
#define FRONT "[^\\r\\n\\p{L}\\p{N}]?"
#define OTHER "| ?[^\\s\\p{L}\\p{N}]+"

#define OLD_CL100K(digits) \
	"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|" digits \
	"| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"

/* published: what a tokenizer.json says, if PCRE2 has to be asked in another way. */
static const struct pattern {
	enum tok_scan_kind kind;
	const char *pcre2[3], *published;
} patterns[] = {
	{ TOK_SCAN_GPT2,
	  { "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+" },
	  NULL },
	{ TOK_SCAN_LLAMA3, { CONTRACTION "|" FRONT "\\p{L}+|\\p{N}{1,3}" OTHER "[\\r\\n]*" END }, NULL },
	{ TOK_SCAN_QWEN2, { CONTRACTION "|" FRONT "\\p{L}+|\\p{N}" OTHER "[\\r\\n]*" END }, NULL },
	{ TOK_SCAN_LLAMA3, { OLD_CL100K("\\p{N}{1,3}") }, NULL },
	{ TOK_SCAN_QWEN2, { OLD_CL100K("\\p{N}") }, NULL },
	{ TOK_SCAN_QWEN3_5,
	  { CONTRACTION "|" FRONT "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" END },
	  NULL },
	{ TOK_SCAN_O200K,
	  { CASED(FRONT, "[" UPPER "]", "[" LOWER "]", CONTRACTION "?") "|\\p{N}{1,3}" OTHER "[\\r\\n/]*" END },
	  NULL },
	{ TOK_SCAN_TEKKEN, { CASED(FRONT, "[" UPPER "]", "[" LOWER "]", "") "|\\p{N}" OTHER "[\\r\\n/]*" END }, NULL },
	{ TOK_SCAN_KIMI,
	  { "[\\p{Han}]+|" CASED(FRONT, "(?:(?!\\p{Han})[" UPPER "])", "(?:(?!\\p{Han})[" LOWER "])",
				 CONTRACTION "?") "|\\p{N}{1,3}" OTHER "[\\r\\n]*" END },
	  "[\\p{Han}]+|" CASED(FRONT, "[" UPPER "&&[^\\p{Han}]]", "[" LOWER "&&[^\\p{Han}]]",
			       CONTRACTION "?") "|\\p{N}{1,3}" OTHER "[\\r\\n]*" END },
	{ TOK_SCAN_DEEPSEEK_V3,
	  { "\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
	    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
	    "| ?[\\p{P}\\p{S}]+[\\r\\n]*" END },
	  NULL },
};
#define N_PATTERNS (sizeof(patterns) / sizeof(patterns[0]))

static struct tok_regex *regex(const char *pattern)
{
	struct tok_regex *re;
	struct od_err err = { 0 };

	if (tok_regex_new(&re, pattern, strlen(pattern), false, "test", &err) != OD_OK)
		fail_msg("%s", err.msg);
	return re;
}

/* ---- classes ---- */

static char *all_characters(size_t *len)
{
	char *text = malloc(4 * 0x110000);
	size_t n = 0;

	assert_non_null(text);
	for (int32_t cp = 0; cp < 0x110000; cp++)
		if (cp < 0xd800 || cp > 0xdfff)
			n += (size_t)utf8proc_encode_char(cp, (utf8proc_uint8_t *)text + n);
	*len = n;
	return text;
}

/* Finds the characters that a pattern of one character takes. */
static void set_of(const char *pattern, const char *text, size_t len, bool *in)
{
	struct tok_regex *re = regex(pattern);
	struct tok_spans spans = { 0 };
	struct od_err err;
	int32_t cp;

	memset(in, 0, 0x110000 * sizeof(*in));
	assert_int_equal(tok_regex_spans(re, text, len, &spans, &err), OD_OK);
	for (size_t i = 0; i < spans.n; i++) {
		if (!spans.v[i].match)
			continue;
		assert_int_equal(tok_char(text + spans.v[i].begin, len - spans.v[i].begin, &cp),
				 spans.v[i].end - spans.v[i].begin);
		in[cp] = true;
	}
	free(spans.v);
	tok_regex_free(re);
}

/* PCRE2's Unicode may be older: a character that it does not know is left out. */
static bool *unknown;

static void classes(void **state)
{
	static const struct {
		const char *pattern;
		unsigned bits;
		size_t at_least;
	} sets[] = {
		{ "\\s", TOK_C_SPACE, 25 },
		{ "\\p{N}", TOK_C_NUMBER, 1700 },
		{ "[\\p{Lu}\\p{Lt}]", TOK_C_UPPER, 1800 },
		{ "\\p{Ll}", TOK_C_LOWER, 2000 },
		{ "[\\p{Lm}\\p{Lo}]", TOK_C_LETTER, 120000 },
		{ "\\p{M}", TOK_C_MARK, 2300 },
		{ "[\\p{P}\\p{S}]", TOK_C_SYMBOL, 8000 },
		{ "\\p{Han}", 0, 90000 },
	};
	bool *in = malloc(0x110000 * sizeof(*in));
	size_t len, n;
	char *text = all_characters(&len);

	(void)state;
	assert_non_null(in);
	tok_classes_init();
	for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
		set_of(sets[i].pattern, text, len, in);
		n = 0;
		for (int32_t cp = 0; cp < 0x110000; cp++) {
			bool ours = sets[i].bits != 0 ? (tok_class[cp] & sets[i].bits) != 0 : tok_is_han(cp);

			if (!unknown[cp] && ours != in[cp])
				fail_msg("U+%04X: %s says %d", (unsigned)cp, sets[i].pattern, in[cp]);
			n += in[cp];
		}
		assert_true(n >= sets[i].at_least);
	}
	free(text);
	free(in);
}

/* ---- words ---- */

static int32_t pick[30][64]; /* some characters of each category */

/* A character of a category taken at random, or one that patterns care about. */
static int32_t random_character(uint64_t *seed, unsigned kind)
{
	static const int32_t special[] = { ' ',	   ' ',	   ' ',	   '\'',    '\r',    '\n',   '\t',  '/',   's',
					   'S',	   't',	   'r',	   'e',	    'V',     'l',    'L',   'D',   'm',
					   'a',	   'A',	   'x',	   'X',	    '1',     '2',    '.',   '-',   0x17f,
					   0x4e00, 0x9fa5, 0x9fa6, 0x3042,  0x3005,  0x30fc, 0x301, 0x2b0, 0x1c5,
					   0x3000, 0xa0,   0x85,   0x1d173, 0x20000, 0x661 };
	const uint32_t n = random_below(seed, 100);

	if (n < kind)
		return special[random_below(seed, sizeof(special) / sizeof(special[0]))];
	return pick[random_below(seed, 30)][random_below(seed, 64)];
}

static void fill_picks(uint64_t *seed)
{
	for (unsigned c = 0; c < 30; c++) {
		for (size_t i = 0; i < 64; i++) {
			int32_t cp;

			do /* categories of few characters all lie below U+3000 */
				cp = (int32_t)random_below(seed, random_below(seed, 2) ? 0x3000 : 0x110000);
			while ((cp >= 0xd800 && cp < 0xe000) || unknown[cp] ||
			       (c > 0 && c != UTF8PROC_CATEGORY_CS && (unsigned)utf8proc_category(cp) != c));
			pick[c][i] = cp;
		}
	}
}

static size_t random_text(uint64_t *seed, char *text, size_t max)
{
	const unsigned kind = random_below(seed, 101);
	size_t n = 0;

	while (n + 4 * 8 <= max) {
		int32_t cp = random_character(seed, kind);
		unsigned times = random_below(seed, 8) == 0 ? 1 + random_below(seed, 8) : 1;

		for (; times > 0; times--)
			n += (size_t)utf8proc_encode_char(cp, (utf8proc_uint8_t *)text + n);
	}
	return n;
}

/* Text cut at the matches of re and between them, each piece of pieces by itself. */
static void cut(const struct tok_regex *re, const char *text, struct tok_spans *pieces)
{
	struct tok_spans next = { 0 }, found = { 0 };
	struct od_err err;

	for (size_t i = 0; i < pieces->n; i++) {
		size_t at = pieces->v[i].begin;

		assert_int_equal(tok_regex_spans(re, text + at, pieces->v[i].end - at, &found, &err), OD_OK);
		for (size_t k = 0; k < found.n; k++)
			assert_int_equal(tok_spans_add(&next, at + found.v[k].begin, at + found.v[k].end, false),
					 OD_OK);
	}
	free(found.v);
	free(pieces->v);
	*pieces = next;
}

static void check_text(const struct pattern *p, struct tok_regex *const *re, const char *text, size_t len,
		       size_t *n_words)
{
	struct tok_scan scan = { .kind = p->kind, .text = text, .len = len };
	struct tok_spans pieces = { 0 };
	size_t begin, end, i = 0;

	if (len > 0)
		assert_int_equal(tok_spans_add(&pieces, 0, len, false), OD_OK);
	for (int k = 0; k < 3 && re[k] != NULL; k++)
		cut(re[k], text, &pieces);
	for (; tok_scan_next(&scan, &begin, &end); i++)
		if (i >= pieces.n || begin != pieces.v[i].begin || end != pieces.v[i].end)
			fail_msg("%s: word %zu: %zu to %zu of \"%.*s\"", p->pcre2[0], i, begin, end, (int)len, text);
	assert_int_equal(i, pieces.n);
	*n_words += i;
	free(pieces.v);
}

static void words(void **state)
{
	const size_t max = 1u << 18;
	char *text = malloc(max);
	uint64_t seed = 5;

	(void)state;
	assert_non_null(text);
	tok_classes_init();
	fill_picks(&seed);
	for (size_t i = 0; i < N_PATTERNS; i++) {
		struct tok_regex *re[3] = { 0 };
		size_t n_words = 0;

		for (int k = 0; k < 3 && patterns[i].pcre2[k] != NULL; k++)
			re[k] = regex(patterns[i].pcre2[k]);
		for (size_t r = 0; r < 3000; r++) {
			size_t len = random_text(&seed, text, 33 + random_below(&seed, 100));

			check_text(&patterns[i], re, text, len, &n_words);
		}
		check_text(&patterns[i], re, text, 0, &n_words);
		check_text(&patterns[i], re, text, random_text(&seed, text, max), &n_words);
		assert_true(n_words > 60000);
		for (int k = 0; k < 3; k++)
			tok_regex_free(re[k]);
	}
	free(text);
}

/* Newlines in a pattern may be the characters themselves. */
static void check_newlines(const char *pattern, enum tok_scan_kind kind)
{
	char text[1024];
	size_t n = 0;
	unsigned stage;

	assert_true(strlen(pattern) < sizeof(text));
	for (; *pattern != 0; pattern++, n++) {
		text[n] = *pattern;
		if (pattern[0] == '\\' && (pattern[1] == 'r' || pattern[1] == 'n'))
			text[n] = *++pattern == 'r' ? '\r' : '\n';
	}
	assert_int_equal(tok_scan_find(text, n, &stage), kind);
}

/* A pattern is known as a tokenizer.json has it; any other goes to PCRE2. */
static void known_patterns(void **state)
{
	unsigned stage;

	(void)state;
	for (size_t i = 0; i < N_PATTERNS; i++) {
		const char *p = patterns[i].published != NULL ? patterns[i].published : patterns[i].pcre2[0];

		for (unsigned k = 0; k < 3 && patterns[i].pcre2[k] != NULL; k++) {
			if (k > 0)
				p = patterns[i].pcre2[k];
			assert_int_equal(tok_scan_find(p, strlen(p), &stage), patterns[i].kind);
			assert_int_equal(stage, patterns[i].kind == TOK_SCAN_DEEPSEEK_V3 ? k + 1 : 0);
			assert_int_equal(tok_scan_find(p, strlen(p) - 1, &stage), TOK_SCAN_NONE);
			check_newlines(p, patterns[i].kind);
		}
	}
}

static int find_unknown(void **state)
{
	size_t len;
	char *text = all_characters(&len);

	(void)state;
	unknown = malloc(0x110000 * sizeof(*unknown));
	assert_non_null(unknown);
	set_of("\\p{Cn}", text, len, unknown);
	free(text);
	return 0;
}

static int forget(void **state)
{
	(void)state;
	free(unknown);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(classes),
		cmocka_unit_test(words),
		cmocka_unit_test(known_patterns),
	};

	return cmocka_run_group_tests_name("tok_scan", tests, find_unknown, forget);
}
