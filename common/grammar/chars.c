#include "common/grammar/chars.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_SURROGATE 0xd800u
#define LAST_SURROGATE 0xdfffu

/* ---- Sets ---- */

void od_chars_add(struct od_chars *c, uint32_t first, uint32_t last)
{
	if (c->n == c->cap) {
		const size_t cap = c->cap == 0 ? 8 : 2 * c->cap;
		struct od_char_range *v = realloc(c->range, cap * sizeof(*v));

		if (v == NULL) {
			c->failed = true;
			return;
		}
		c->range = v;
		c->cap = cap;
	}
	c->range[c->n++] = (struct od_char_range){ first, last };
}

void od_chars_add_all(struct od_chars *c, const struct od_chars *other)
{
	for (size_t i = 0; i < other->n; i++)
		od_chars_add(c, other->range[i].first, other->range[i].last);
	c->failed |= other->failed;
}

static int by_first(const void *a, const void *b)
{
	const struct od_char_range *x = a, *y = b;

	return x->first < y->first ? -1 : x->first > y->first;
}

void od_chars_sort(struct od_chars *c)
{
	size_t n = 0;

	if (c->n > 1)
		qsort(c->range, c->n, sizeof(*c->range), by_first);
	for (size_t i = 0; i < c->n; i++)
		if (n > 0 && c->range[i].first <= c->range[n - 1].last + 1)
			c->range[n - 1].last =
				c->range[i].last > c->range[n - 1].last ? c->range[i].last : c->range[n - 1].last;
		else
			c->range[n++] = c->range[i];
	c->n = n;
}

void od_chars_negate(struct od_chars *c)
{
	struct od_chars out = { .failed = c->failed };
	uint32_t next = 0;

	od_chars_sort(c);
	for (size_t i = 0; i < c->n; i++) {
		if (c->range[i].first > next)
			od_chars_add(&out, next, c->range[i].first - 1);
		next = c->range[i].last + 1;
	}
	if (next <= OD_MAX_CHAR)
		od_chars_add(&out, next, OD_MAX_CHAR);
	od_chars_fini(c);
	*c = out;
}

void od_chars_fini(struct od_chars *c)
{
	free(c->range);
	*c = (struct od_chars){ 0 };
}

/* ---- UTF-8 ---- */

size_t od_char_write(uint32_t c, char out[4])
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		out[0] = (char)(0xc0 | c >> 6);
		out[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		out[0] = (char)(0xe0 | c >> 12);
		out[1] = (char)(0x80 | (c >> 6 & 0x3f));
		out[2] = (char)(0x80 | (c & 0x3f));
		return 3;
	}
	out[0] = (char)(0xf0 | c >> 18);
	out[1] = (char)(0x80 | (c >> 12 & 0x3f));
	out[2] = (char)(0x80 | (c >> 6 & 0x3f));
	out[3] = (char)(0x80 | (c & 0x3f));
	return 4;
}

uint32_t od_char_at(const char *text, size_t size, size_t *len)
{
	static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
	const uint8_t *b = (const uint8_t *)text;
	const unsigned n = size == 0 ? 0 : b[0] < 0x80 ? 1 : b[0] < 0xc2 ? 0 : b[0] < 0xe0 ? 2 : b[0] < 0xf0 ? 3 : 4;
	uint32_t c;

	*len = 1;
	if (n == 0 || n > size || b[0] > 0xf4)
		return UINT32_MAX;
	c = n == 1 ? b[0] : b[0] & (0x7fu >> n);
	for (unsigned i = 1; i < n; i++) {
		if ((b[i] & 0xc0) != 0x80)
			return UINT32_MAX;
		c = c << 6 | (b[i] & 0x3f);
	}
	if (c < least[n] || c > OD_MAX_CHAR || (c >= FIRST_SURROGATE && c <= LAST_SURROGATE))
		return UINT32_MAX;
	*len = n;
	return c;
}

static uint32_t byte_range(struct od_re_pool *p, unsigned first, unsigned last)
{
	struct od_byte_set set = { { 0 } };

	od_byte_set_add_range(&set, first, last);
	return od_re_byte(p, &set);
}

/* Texts of n bytes from first to last, whose bytes behind the leading one are 0x80 to 0xbf. */
static uint32_t between(struct od_re_pool *p, const uint8_t *first, const uint8_t *last, int n)
{
	static const uint8_t low[3] = { 0x80, 0x80, 0x80 }, high[3] = { 0xbf, 0xbf, 0xbf };
	unsigned from = first[0], to = last[0];
	uint32_t r = OD_RE_NONE;

	if (n == 1)
		return byte_range(p, from, to);
	if (from == to)
		return od_re_cat(p, byte_range(p, from, from), between(p, first + 1, last + 1, n - 1));
	if (memcmp(first + 1, low, (size_t)n - 1) != 0)
		r = od_re_cat(p, byte_range(p, from, from), between(p, first + 1, high, n - 1)), from++;
	if (memcmp(last + 1, high, (size_t)n - 1) != 0)
		r = od_re_or(p, r, od_re_cat(p, byte_range(p, to, to), between(p, low, last + 1, n - 1))), to--;
	if (from <= to)
		r = od_re_or(p, r, od_re_cat(p, byte_range(p, from, to), between(p, low, high, n - 1)));
	return r;
}

static uint32_t utf8_range(struct od_re_pool *p, uint32_t first, uint32_t last)
{
	/* last characters of one length, and those around the surrogates, which are no characters */
	static const uint32_t ends[] = { 0x7f, 0x7ff, FIRST_SURROGATE - 1, LAST_SURROGATE, 0xffff, OD_MAX_CHAR };
	uint32_t r = OD_RE_NONE;

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]) && first <= last; i++) {
		const uint32_t end = last < ends[i] ? last : ends[i];
		uint8_t a[4], b[4];

		if (first > ends[i])
			continue;
		if (ends[i] != LAST_SURROGATE) {
			const size_t n = od_char_write(first, (char *)a);

			(void)od_char_write(end, (char *)b);
			r = od_re_or(p, r, between(p, a, b, (int)n));
		}
		first = end + 1;
	}
	return r;
}

/* ---- JSON ---- */

static uint32_t hex_digit(struct od_re_pool *p, const char *digits)
{
	struct od_byte_set set = { { 0 } };

	for (; *digits != '\0'; digits++)
		od_byte_set_add(&set, (uint8_t)*digits);
	return od_re_byte(p, &set);
}

/* The escape of a character that JSON does not take as it is. */
static uint32_t escape(struct od_re_pool *p, uint32_t c)
{
	static const char short_of[] = "\"\"\\\\\bb\ff\nn\rr\tt"; /* pairs */
	char text[8], other[8];

	for (size_t i = 0; i + 1 < sizeof(short_of); i += 2)
		if (c == (uint8_t)short_of[i])
			return od_re_text(p, (const char[]){ '\\', short_of[i + 1] }, 2);
	snprintf(text, sizeof(text), "\\u%04x", (unsigned)c);
	snprintf(other, sizeof(other), "\\u%04X", (unsigned)c);
	return od_re_or(p, od_re_text(p, text, 6), od_re_text(p, other, 6));
}

static uint32_t json_range(struct od_re_pool *p, uint32_t first, uint32_t last)
{
	uint32_t r = OD_RE_NONE;

	while (first <= last) {
		uint32_t end = last;

		if (first < ' ' || first == '"' || first == '\\') {
			r = od_re_or(p, r, escape(p, first++));
			continue;
		}
		if (first < '"' && end >= '"')
			end = '"' - 1;
		else if (first < '\\' && end >= '\\')
			end = '\\' - 1;
		r = od_re_or(p, r, utf8_range(p, first, end));
		first = end + 1;
	}
	return r;
}

uint32_t od_chars_re(struct od_re_pool *p, struct od_chars *c, enum od_writing w)
{
	uint32_t *all, r;

	od_chars_sort(c);
	all = malloc((c->n + 1) * sizeof(*all));
	if (all == NULL || c->failed) {
		od_re_fail(p);
		free(all);
		return OD_RE_NONE;
	}
	for (size_t i = 0; i < c->n; i++)
		all[i] = w == OD_WRITE_PLAIN ? utf8_range(p, c->range[i].first, c->range[i].last) :
					       json_range(p, c->range[i].first, c->range[i].last);
	r = od_re_alt(p, all, c->n);
	free(all);
	return r;
}

/* \uXXXX: any but surrogates, and pairs of these. */
static uint32_t unicode_escape(struct od_re_pool *p)
{
	const uint32_t any = hex_digit(p, "0123456789abcdefABCDEF"), u = od_re_text(p, "\\u", 2);
	const uint32_t two = od_re_cat(p, any, any), three = od_re_cat(p, any, two), d = hex_digit(p, "dD");
	const uint32_t low = od_re_cat(p, d, od_re_cat(p, hex_digit(p, "01234567"), two));
	const uint32_t other = od_re_cat(p, hex_digit(p, "0123456789abcefABCEF"), three);
	const uint32_t high_half = od_re_cat(p, d, od_re_cat(p, hex_digit(p, "89abAB"), two));
	const uint32_t low_half = od_re_cat(p, d, od_re_cat(p, hex_digit(p, "cdefCDEF"), two));
	const uint32_t pair = od_re_cat(p, high_half, od_re_cat(p, u, low_half));

	return od_re_cat(p, u, od_re_or(p, od_re_or(p, low, other), pair));
}

uint32_t od_any_char(struct od_re_pool *p, enum od_writing w)
{
	uint32_t r = utf8_range(p, w == OD_WRITE_PLAIN ? 0 : ' ', w == OD_WRITE_PLAIN ? OD_MAX_CHAR : '"' - 1);

	if (w == OD_WRITE_PLAIN)
		return r;
	r = od_re_or(p, r, utf8_range(p, '"' + 1, '\\' - 1));
	r = od_re_or(p, r, utf8_range(p, '\\' + 1, OD_MAX_CHAR));
	r = od_re_or(p, r, od_re_cat(p, od_re_text(p, "\\", 1), hex_digit(p, "\"\\/bfnrt")));
	return od_re_or(p, r, unicode_escape(p));
}

uint32_t od_one_char(struct od_re_pool *p, enum od_writing w)
{
	struct od_chars all = { 0 };
	uint32_t re;

	od_chars_add(&all, 0, OD_MAX_CHAR);
	re = od_chars_re(p, &all, w);
	od_chars_fini(&all);
	return re;
}

void od_write_text(struct od_strbuf *out, const char *text, size_t len, enum od_writing w)
{
	static const char letters[] = "\"\"\\\\\bb\ff\nn\rr\tt"; /* pairs */

	if (w == OD_WRITE_PLAIN) {
		od_strbuf_append(out, text, len);
		return;
	}
	for (size_t i = 0; i < len; i++) {
		const char *pair = NULL;

		for (size_t k = 0; k + 1 < sizeof(letters) && pair == NULL; k += 2)
			pair = letters[k] == text[i] ? letters + k : NULL;
		if (pair != NULL)
			od_strbuf_append(out, (const char[]){ '\\', pair[1] }, 2);
		else if ((uint8_t)text[i] < ' ')
			od_strbuf_printf(out, "\\u%04x", (unsigned)(uint8_t)text[i]);
		else
			od_strbuf_append(out, text + i, 1);
	}
}

uint32_t od_written_text(struct od_re_pool *p, const char *text, size_t len, enum od_writing w)
{
	struct od_strbuf written = { 0 };
	uint32_t re;

	od_write_text(&written, text, len, w);
	re = written.failed ? OD_RE_NONE : od_re_text(p, od_strbuf_text(&written), written.len);
	od_strbuf_fini(&written);
	return re;
}
