#include "common/text/tok_scan.h"

#include "common/text/tok_patterns.h"
#include "common/text/tok_unicode.h"

#include <string.h>

#define OLD_CL100K(digits) /* takes the same, in other words */ \
	"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|" digits \
	"| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"

const char tok_gpt2_pattern[] = TOK_GPT2;
const char tok_kimi_pattern[] = TOK_KIMI;

/* Newlines are escapes in most published patterns; DeepSeek-V3's has the characters themselves. */
static bool is_pattern(const char *known, const char *pattern, size_t len)
{
	size_t at = 0;

	for (; *known != 0 && at < len; known++, at++) {
		if (known[0] == '\\' && (known[1] == 'r' || known[1] == 'n') &&
		    pattern[at] == (known[1] == 'r' ? '\r' : '\n'))
			known++;
		else if (*known != pattern[at])
			return false;
	}
	return *known == 0 && at == len;
}

enum tok_scan_kind tok_scan_find(const char *pattern, size_t len, unsigned *stage)
{
	static const struct {
		const char *pattern;
		enum tok_scan_kind kind;
		unsigned stage;
	} known[] = {
		{ tok_gpt2_pattern, TOK_SCAN_GPT2, 0 },
		{ TOK_LLAMA3, TOK_SCAN_LLAMA3, 0 },
		{ TOK_QWEN2, TOK_SCAN_QWEN2, 0 },
		{ OLD_CL100K("\\p{N}{1,3}"), TOK_SCAN_LLAMA3, 0 },
		{ OLD_CL100K("\\p{N}"), TOK_SCAN_QWEN2, 0 },
		{ TOK_QWEN3_5, TOK_SCAN_QWEN3_5, 0 },
		{ TOK_TEKKEN, TOK_SCAN_TEKKEN, 0 },
		{ TOK_O200K, TOK_SCAN_O200K, 0 },
		{ tok_kimi_pattern, TOK_SCAN_KIMI, 0 },
		{ TOK_DEEPSEEK_V3_DIGITS, TOK_SCAN_DEEPSEEK_V3, 1 },
		{ TOK_DEEPSEEK_V3_HAN, TOK_SCAN_DEEPSEEK_V3, 2 },
		{ TOK_DEEPSEEK_V3_WORDS, TOK_SCAN_DEEPSEEK_V3, 3 },
	};

	*stage = 0;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (is_pattern(known[i].pattern, pattern, len)) {
			*stage = known[i].stage;
			return known[i].kind;
		}
	}
	return TOK_SCAN_NONE;
}

/* ---- characters ---- */

/* The character at s + at, of valid UTF-8: its bytes, and *cp. */
static inline size_t char_at(const char *s, size_t at, int32_t *cp)
{
	const unsigned char *p = (const unsigned char *)s + at;

	if (p[0] < 0x80) {
		*cp = p[0];
		return 1;
	}
	if (p[0] < 0xe0) {
		*cp = (p[0] & 31) << 6 | (p[1] & 63);
		return 2;
	}
	if (p[0] < 0xf0) {
		*cp = (p[0] & 15) << 12 | (p[1] & 63) << 6 | (p[2] & 63);
		return 3;
	}
	*cp = (p[0] & 7) << 18 | (p[1] & 63) << 12 | (p[2] & 63) << 6 | (p[3] & 63);
	return 4;
}

static inline unsigned class_at(const char *s, size_t at, size_t *n)
{
	int32_t cp;

	*n = char_at(s, at, &cp);
	return tok_class[cp];
}

/* The end of the run of characters that have one of the bits. */
static inline size_t run_of(const char *s, size_t at, size_t len, unsigned bits)
{
	size_t n;

	while (at < len && (class_at(s, at, &n) & bits) != 0)
		at += n;
	return at;
}

/* Like run_of, for characters that have none of the bits. */
static inline size_t run_without(const char *s, size_t at, size_t len, unsigned bits)
{
	size_t n;

	while (at < len && (class_at(s, at, &n) & bits) == 0)
		at += n;
	return at;
}

static inline bool is_newline(char c)
{
	return c == '\r' || c == '\n';
}

static inline size_t newlines(const char *s, size_t at, size_t len)
{
	while (at < len && is_newline(s[at]))
		at++;
	return at;
}

static size_t digits(const char *s, size_t at, size_t len, unsigned most)
{
	size_t n;

	for (; most > 0 && at < len && (class_at(s, at, &n) & TOK_C_NUMBER) != 0; most--)
		at += n;
	return at;
}

/* Bytes of 's 't 're 've 'm 'll 'd at s + at; 0: none. Without regard to case a long s is an s. */
static size_t contraction(const char *s, size_t at, size_t len, bool any_case)
{
	const unsigned low = any_case ? 0x20 : 0;
	unsigned a, b;

	if (at + 1 >= len || s[at] != '\'')
		return 0;
	a = (unsigned char)s[at + 1] | low;
	if (a == 's' || a == 't' || a == 'm' || a == 'd')
		return 2;
	if (at + 2 >= len)
		return 0;
	b = (unsigned char)s[at + 2] | low;
	if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
		return 3;
	return any_case && memcmp(s + at + 1, "\xc5\xbf", 2) == 0 ? 3 : 0;
}

/* \s+(?!\S)|\s+ at a space: the last of several is left to the word behind. */
static size_t spaces(const char *s, size_t at, size_t len)
{
	size_t last = at, end = at, n;

	while (end < len && (class_at(s, end, &n) & TOK_C_SPACE) != 0) {
		last = end;
		end += n;
	}
	return end < len && last > at ? last : end;
}

/* \s*[\r\n]+ before that. */
static size_t spaces_and_lines(const char *s, size_t at, size_t len)
{
	size_t last = at, end = at, behind_line = 0, n;

	while (end < len && (class_at(s, end, &n) & TOK_C_SPACE) != 0) {
		if (is_newline(s[end]))
			behind_line = end + 1;
		last = end;
		end += n;
	}
	if (behind_line > 0)
		return behind_line;
	return end < len && last > at ? last : end;
}

/* ---- one word ---- */

static size_t next_gpt2(const char *s, size_t at, size_t len)
{
	size_t n, next;
	unsigned c = class_at(s, at, &n);

	next = contraction(s, at, len, false);
	if (next > 0)
		return at + next;
	next = at;
	if (s[at] == ' ' && at + 1 < len) {
		next = at + 1;
		c = class_at(s, next, &n);
	}
	if ((c & TOK_C_LETTERS) != 0)
		return run_of(s, next, len, TOK_C_LETTERS);
	if ((c & TOK_C_NUMBER) != 0)
		return run_of(s, next, len, TOK_C_NUMBER);
	if ((c & TOK_C_SPACE) != 0)
		return spaces(s, at, len);
	return run_without(s, next, len, TOK_C_SPACE | TOK_C_LETTERS | TOK_C_NUMBER);
}

/* letters: the bits of what makes words. */
static inline size_t next_cl100k(const char *s, size_t at, size_t len, unsigned letters, unsigned n_digits)
{
	const unsigned not_other = TOK_C_SPACE | TOK_C_NUMBER | letters;
	size_t n, n2 = 0, next;
	unsigned c = class_at(s, at, &n), c2 = TOK_C_SPACE;

	if ((c & letters) != 0)
		return run_of(s, at + n, len, letters);
	next = contraction(s, at, len, true);
	if (next > 0)
		return at + next;
	if ((c & TOK_C_NUMBER) != 0)
		return digits(s, at, len, n_digits);
	if (at + n < len)
		c2 = class_at(s, at + n, &n2);
	if ((c2 & letters) != 0 && !is_newline(s[at]))
		return run_of(s, at + n + n2, len, letters);
	if ((c & TOK_C_SPACE) != 0 && (s[at] != ' ' || (c2 & not_other) != 0))
		return spaces_and_lines(s, at, len);
	return newlines(s, run_without(s, at + n, len, not_other), len);
}

/* [U]*[W]+, or else [U]+, where U has upper case, W lower, and both the letters without case and the marks; 0:
 * neither. */
static size_t cased_word(const char *s, size_t at, size_t len, bool no_han)
{
	const unsigned both = TOK_C_LETTER | TOK_C_MARK;
	size_t end = at, behind_both = 0, n;
	unsigned c = 0;
	int32_t cp;

	for (; end < len; end += n) {
		n = char_at(s, end, &cp);
		c = tok_class[cp];
		if ((c & (TOK_C_UPPER | both)) == 0 || (no_han && (c & both) != 0 && tok_is_han(cp)))
			break;
		if ((c & both) != 0)
			behind_both = end + n;
	}
	if (end < len && (c & TOK_C_LOWER) != 0) {
		for (; end < len; end += n) {
			n = char_at(s, end, &cp);
			c = tok_class[cp];
			if ((c & (TOK_C_LOWER | both)) == 0 || (no_han && (c & both) != 0 && tok_is_han(cp)))
				break;
		}
		return end;
	}
	if (behind_both > 0)
		return behind_both;
	return end > at ? end : 0;
}

static size_t next_cased(const char *s, size_t at, size_t len, enum tok_scan_kind kind)
{
	const bool kimi = kind == TOK_SCAN_KIMI, tekken = kind == TOK_SCAN_TEKKEN;
	const unsigned not_other = TOK_C_SPACE | TOK_C_NUMBER | TOK_C_LETTERS;
	size_t n, n2 = 0, end = 0;
	unsigned c, c2 = TOK_C_SPACE;
	int32_t cp;

	n = char_at(s, at, &cp);
	c = tok_class[cp];
	if (kimi && cp >= 0x2e80 && tok_is_han(cp)) {
		for (end = at + n; end < len; end += n) {
			n = char_at(s, end, &cp);
			if (!tok_is_han(cp))
				break;
		}
		return end;
	}
	if ((c & not_other) == 0 || ((c & TOK_C_SPACE) != 0 && !is_newline(s[at])))
		end = cased_word(s, at + n, len, kimi);
	/* A mark may be in front of a word, as well as in it. In front it needs more than capitals behind it. */
	if ((c & TOK_C_MARK) != 0 && end > 0) {
		size_t last = end;

		while (((unsigned char)s[--last] & 0xc0) == 0x80)
			;
		if ((class_at(s, last, &n2) & TOK_C_UPPER) != 0)
			end = 0;
	}
	if (end == 0 && (c & (TOK_C_LETTERS | TOK_C_MARK)) != 0)
		end = cased_word(s, at, len, kimi);
	if (end > 0)
		return tekken ? end : end + contraction(s, end, len, true);
	if ((c & TOK_C_NUMBER) != 0)
		return digits(s, at, len, tekken ? 1 : 3);
	if (at + n < len)
		c2 = class_at(s, at + n, &n2);
	if ((c & TOK_C_SPACE) != 0 && (s[at] != ' ' || (c2 & not_other) != 0))
		return spaces_and_lines(s, at, len);
	end = run_without(s, at + n, len, not_other);
	while (end < len && (is_newline(s[end]) || (s[end] == '/' && !kimi)))
		end++;
	return end;
}

static bool ascii_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* The third pattern. *found is false for a character that no alternative takes. */
static size_t next_deepseek(const char *s, size_t at, size_t len, bool *found)
{
	const unsigned word = TOK_C_LETTERS | TOK_C_MARK;
	size_t n, n2 = 0;
	unsigned c = class_at(s, at, &n), c2 = 0;

	*found = true;
	if (at + n < len)
		c2 = class_at(s, at + n, &n2);
	if (n == 1 && (c & TOK_C_SYMBOL) != 0 && n2 == 1 && ascii_letter(s[at + 1])) {
		for (at += 2; at < len && ascii_letter(s[at]);)
			at++;
		return at;
	}
	if ((c & word) != 0)
		return run_of(s, at + n, len, word);
	if ((c2 & word) != 0 && (c & TOK_C_SYMBOL) == 0 && !is_newline(s[at]))
		return run_of(s, at + n + n2, len, word);
	if ((c & TOK_C_SYMBOL) != 0 || (s[at] == ' ' && (c2 & TOK_C_SYMBOL) != 0))
		return newlines(s, run_of(s, at + n, len, TOK_C_SYMBOL), len);
	if ((c & TOK_C_SPACE) != 0)
		return spaces_and_lines(s, at, len);
	*found = false;
	return at + n;
}

static bool is_kana_or_han(int32_t cp)
{
	return (cp >= 0x4e00 && cp <= 0x9fa5) || (cp >= 0x3040 && cp <= 0x30ff);
}

/* A run without digits is cut again where kana and Han begin and end, and each of those by the third pattern, which
 * sees nothing beyond its run. */
static size_t deepseek_word(struct tok_scan *d)
{
	size_t n, end;
	bool found, east;
	int32_t cp;

	if (d->at == d->script_end) {
		if (d->at >= d->digits_at) /* behind a digit, or at the very beginning */
			d->digits_at = run_without(d->text, d->at, d->len, TOK_C_NUMBER);
		if (d->at == d->digits_at) {
			d->script_end = digits(d->text, d->at, d->len, 3);
			return d->script_end;
		}
		char_at(d->text, d->at, &cp);
		east = is_kana_or_han(cp);
		for (end = d->at; end < d->digits_at; end += n) {
			n = char_at(d->text, end, &cp);
			if (is_kana_or_han(cp) != east)
				break;
		}
		d->script_end = end;
	}
	end = next_deepseek(d->text, d->at, d->script_end, &found);
	while (!found && end < d->script_end) { /* all that stands between two matches is one word */
		size_t next = next_deepseek(d->text, end, d->script_end, &found);

		if (found)
			break;
		end = next;
	}
	return end;
}

bool tok_scan_next(struct tok_scan *s, size_t *begin, size_t *end)
{
	const size_t at = s->at;

	if (at >= s->len)
		return false;
	*begin = at;
	switch (s->kind) {
	case TOK_SCAN_GPT2: s->at = next_gpt2(s->text, at, s->len); break;
	case TOK_SCAN_LLAMA3: s->at = next_cl100k(s->text, at, s->len, TOK_C_LETTERS, 3); break;
	case TOK_SCAN_QWEN2: s->at = next_cl100k(s->text, at, s->len, TOK_C_LETTERS, 1); break;
	case TOK_SCAN_QWEN3_5: s->at = next_cl100k(s->text, at, s->len, TOK_C_LETTERS | TOK_C_MARK, 1); break;
	case TOK_SCAN_O200K:
	case TOK_SCAN_TEKKEN:
	case TOK_SCAN_KIMI: s->at = next_cased(s->text, at, s->len, s->kind); break;
	case TOK_SCAN_DEEPSEEK_V3: s->at = deepseek_word(s); break;
	case TOK_SCAN_NONE: s->at = s->len; break;
	}
	*end = s->at;
	return true;
}
