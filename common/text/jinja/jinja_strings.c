#include "common/text/jinja/jinja_strings.h"

#include <stdlib.h>
#include <string.h>

#include "common/text/jinja/jinja_unicode.h"

static const struct jinja_str *substring(struct jinja_job *j, const struct jinja_str *s, size_t begin, size_t end)
{
	return jinja_str_borrow(j, s->p + begin, end - begin);
}

static bool has_char(const struct jinja_str *set, const char *p, size_t n)
{
	return memmem(set->p, set->len, p, n) != NULL; /* no character's bytes are within another's */
}

static bool is_stripped(const struct jinja_str *chars, const char *p, size_t n)
{
	size_t ignored;

	return chars != NULL ? has_char(chars, p, n) : jinja_is_space(jinja_char_at(p, &ignored));
}

const struct jinja_str *jinja_strip(struct jinja_job *j, const struct jinja_str *s, const struct jinja_str *chars,
				    enum jinja_side side)
{
	size_t begin = 0, end = s->len;

	while ((side & JINJA_LEFT) != 0 && begin < end) {
		size_t n = jinja_char_bytes(s->p + begin);

		if (!is_stripped(chars, s->p + begin, n))
			break;
		begin += n;
	}
	while ((side & JINJA_RIGHT) != 0 && begin < end) {
		size_t last = begin + jinja_last_char(s->p + begin, end - begin);

		if (!is_stripped(chars, s->p + last, end - last))
			break;
		end = last;
	}
	jinja_charge(j, (s->len - (end - begin)) * (chars != NULL ? chars->len / 16 + 1 : 1) / 8);
	return begin == 0 && end == s->len ? s : substring(j, s, begin, end);
}

static void push_substring(struct jinja_job *j, struct jinja_seq *out, const struct jinja_str *s, size_t begin,
			   size_t end)
{
	jinja_push(j, out, jinja_of_str(substring(j, s, begin, end)));
}

static void reverse(struct jinja_seq *s)
{
	for (size_t i = 0; i < s->n / 2; i++) {
		struct jinja_value v = s->v[i];

		s->v[i] = s->v[s->n - 1 - i];
		s->v[s->n - 1 - i] = v;
	}
}

static size_t skip_class(const struct jinja_str *s, size_t at, bool space)
{
	size_t n;

	while (at < s->len && jinja_is_space(jinja_char_at(s->p + at, &n)) == space)
		at += n;
	return at;
}

static size_t skip_class_back(const struct jinja_str *s, size_t end, bool space)
{
	while (end > 0) {
		size_t last = jinja_last_char(s->p, end), n;

		if (jinja_is_space(jinja_char_at(s->p + last, &n)) != space)
			break;
		end = last;
	}
	return end;
}

static void split_words(struct jinja_job *j, struct jinja_seq *out, const struct jinja_str *s, int64_t max)
{
	size_t at = skip_class(s, 0, true);

	for (; at < s->len; max--) {
		size_t end = max == 0 ? s->len : skip_class(s, at, false);

		push_substring(j, out, s, at, end);
		at = skip_class(s, end, true);
	}
}

static void split_words_back(struct jinja_job *j, struct jinja_seq *out, const struct jinja_str *s, int64_t max)
{
	size_t end = skip_class_back(s, s->len, true);

	for (; end > 0; max--) {
		size_t begin = max == 0 ? 0 : skip_class_back(s, end, false);

		push_substring(j, out, s, begin, end);
		end = skip_class_back(s, begin, true);
	}
	reverse(out);
}

static const char *find_last(struct jinja_job *j, const char *p, size_t len, const struct jinja_str *sub)
{
	if (len < sub->len)
		return NULL;
	/* the worst case compares almost all of sub at each place */
	jinja_charge(j, (len - sub->len) / 1024 * sub->len);
	for (size_t at = len - sub->len + 1; at-- > 0;)
		if (memcmp(p + at, sub->p, sub->len) == 0)
			return p + at;
	return NULL;
}

static void split_at(struct jinja_job *j, struct jinja_seq *out, const struct jinja_str *s, const struct jinja_str *sep,
		     int64_t max)
{
	size_t at = 0;

	for (; max != 0 && at < s->len; max--) {
		const char *hit = memmem(s->p + at, s->len - at, sep->p, sep->len);

		if (hit == NULL)
			break;
		push_substring(j, out, s, at, (size_t)(hit - s->p));
		at = (size_t)(hit - s->p) + sep->len;
	}
	push_substring(j, out, s, at, s->len);
}

static void split_at_back(struct jinja_job *j, struct jinja_seq *out, const struct jinja_str *s,
			  const struct jinja_str *sep, int64_t max)
{
	size_t end = s->len;

	for (; max != 0; max--) {
		const char *hit = find_last(j, s->p, end, sep);

		if (hit == NULL)
			break;
		push_substring(j, out, s, (size_t)(hit - s->p) + sep->len, end);
		end = (size_t)(hit - s->p);
	}
	push_substring(j, out, s, 0, end);
	reverse(out);
}

struct jinja_seq *jinja_split(struct jinja_job *j, const struct jinja_str *s, const struct jinja_str *sep, int64_t max,
			      enum jinja_side side)
{
	struct jinja_seq *out = jinja_seq_new(j, 0);

	if (sep != NULL && sep->len == 0)
		jinja_fail(j, OD_ERR_FORMAT, "split: the separator is empty");
	jinja_charge(j, s->len / (side == JINJA_LEFT ? 16 : 4));
	max = max < 0 ? -1 : max;
	if (sep != NULL && side == JINJA_LEFT)
		split_at(j, out, s, sep, max);
	else if (sep != NULL)
		split_at_back(j, out, s, sep, max);
	else if (side == JINJA_LEFT)
		split_words(j, out, s, max);
	else
		split_words_back(j, out, s, max);
	return out;
}

struct jinja_seq *jinja_splitlines(struct jinja_job *j, const struct jinja_str *s, bool keep_ends)
{
	struct jinja_seq *out = jinja_seq_new(j, 0);
	size_t begin = 0, n;

	jinja_charge(j, s->len / 8);
	for (size_t at = 0; at < s->len;) {
		size_t end = at;

		if (!jinja_is_line_break(jinja_char_at(s->p + at, &n))) {
			at += n;
			continue;
		}
		at += n;
		if (s->p[end] == '\r' && at < s->len && s->p[at] == '\n')
			at++;
		push_substring(j, out, s, begin, keep_ends ? at : end);
		begin = at;
	}
	if (begin < s->len)
		push_substring(j, out, s, begin, s->len);
	return out;
}

/* An empty `old` is found before each character and at the end. */
static const struct jinja_str *insert_between(struct jinja_job *j, const struct jinja_str *s,
					      const struct jinja_str *new, int64_t count)
{
	struct jinja_text t = { 0 };
	size_t at = 0;

	for (; count != 0 && at < s->len; count--) {
		size_t n = jinja_char_bytes(s->p + at);

		jinja_charge(j, 1);
		jinja_add(j, &t, new->p, new->len);
		jinja_add(j, &t, s->p + at, n);
		at += n;
	}
	if (at == s->len && count != 0)
		jinja_add(j, &t, new->p, new->len);
	jinja_add(j, &t, s->p + at, s->len - at);
	return jinja_str_take(j, &t);
}

const struct jinja_str *jinja_replace(struct jinja_job *j, const struct jinja_str *s, const struct jinja_str *old,
				      const struct jinja_str *new, int64_t count)
{
	struct jinja_text t = { 0 };
	size_t at = 0;

	if (old->len == 0)
		return insert_between(j, s, new, count);
	jinja_charge(j, s->len / 16);
	for (; count != 0 && at < s->len; count--) {
		const char *hit = memmem(s->p + at, s->len - at, old->p, old->len);

		if (hit == NULL)
			break;
		jinja_charge(j, 1);
		jinja_add(j, &t, s->p + at, (size_t)(hit - s->p) - at);
		jinja_add(j, &t, new->p, new->len);
		at = (size_t)(hit - s->p) + old->len;
	}
	if (at == 0)
		return s;
	jinja_add(j, &t, s->p + at, s->len - at);
	return jinja_str_take(j, &t);
}

const struct jinja_str *jinja_pad(struct jinja_job *j, const struct jinja_str *s, int64_t width,
				  const struct jinja_str *fill, enum jinja_side side)
{
	struct jinja_text t = { 0 };
	uint64_t total, left;

	if (fill->n_chars != 1)
		jinja_fail(j, OD_ERR_FORMAT, "expected one character to fill with, found %zu", fill->n_chars);
	if (width <= (int64_t)s->n_chars)
		return s;
	total = (uint64_t)width - s->n_chars;
	left = side == JINJA_LEFT ? total : 0;
	if (side == JINJA_BOTH)
		left = total / 2 + (total & (uint64_t)width & 1); /* as CPython */
	jinja_add_times(j, &t, fill->p, fill->len, left);
	jinja_add(j, &t, s->p, s->len);
	jinja_add_times(j, &t, fill->p, fill->len, total - left);
	return jinja_str_take(j, &t);
}

/* Python's clipping of a range; false: nothing can be in it. */
static bool clip(const struct jinja_str *s, int64_t *begin, int64_t *end)
{
	const int64_t n = (int64_t)s->n_chars;

	if (*end > n)
		*end = n;
	else if (*end < 0)
		*end = *end + n < 0 ? 0 : *end + n;
	if (*begin < 0)
		*begin = *begin + n < 0 ? 0 : *begin + n;
	return *begin <= *end && *begin <= n;
}

int64_t jinja_find(struct jinja_job *j, const struct jinja_str *s, const struct jinja_str *sub, int64_t begin,
		   int64_t end, enum jinja_side side)
{
	size_t from, to;
	const char *hit;

	if (!clip(s, &begin, &end))
		return -1;
	from = jinja_str_offset(j, s, (size_t)begin);
	to = jinja_str_offset(j, s, (size_t)end);
	jinja_charge(j, (to - from) / (side == JINJA_LEFT ? 16 : 4));
	if (sub->len == 0)
		return side == JINJA_LEFT ? begin : end;
	if (from == to)
		return -1;
	hit = side == JINJA_LEFT ? memmem(s->p + from, to - from, sub->p, sub->len) :
				   find_last(j, s->p + from, to - from, sub);
	return hit == NULL ? -1 : (int64_t)jinja_count_chars(s->p, (size_t)(hit - s->p));
}

int64_t jinja_count(struct jinja_job *j, const struct jinja_str *s, const struct jinja_str *sub, int64_t begin,
		    int64_t end)
{
	size_t from, to;
	int64_t n = 0;

	if (!clip(s, &begin, &end))
		return 0;
	if (sub->len == 0)
		return end - begin + 1;
	from = jinja_str_offset(j, s, (size_t)begin);
	to = jinja_str_offset(j, s, (size_t)end);
	jinja_charge(j, (to - from) / 8);
	while (from < to) {
		const char *hit = memmem(s->p + from, to - from, sub->p, sub->len);

		if (hit == NULL)
			break;
		n++;
		from = (size_t)(hit - s->p) + sub->len;
	}
	return n;
}

/* ---- case ---- */

/* Adds the characters c [n] that the one at `of` became. */
static void add_mapped(struct jinja_job *j, struct jinja_text *t, const char *of, const uint32_t *c, size_t n)
{
	for (size_t i = 0; i < n; i++)
		jinja_add_char(j, t, c[i], of);
}

static bool before_is_cased(const char *p, size_t at)
{
	while (at > 0) {
		size_t last = jinja_last_char(p, at), n;
		uint32_t c = jinja_char_at(p + last, &n);

		if (!jinja_is_case_ignorable(c))
			return jinja_is_cased(c);
		at = last;
	}
	return false;
}

static bool after_is_cased(const char *p, size_t at, size_t len)
{
	size_t n;

	for (; at < len; at += n) {
		uint32_t c = jinja_char_at(p + at, &n);

		if (!jinja_is_case_ignorable(c))
			return jinja_is_cased(c);
	}
	return false;
}

/* Capital sigma at the end of a word has a small form of its own. */
static void add_lower(struct jinja_job *j, struct jinja_text *t, const char *p, size_t at, size_t len)
{
	uint32_t mapped[JINJA_MAX_CASE];
	size_t n;
	uint32_t c = jinja_char_at(p + at, &n);

	if (c == 0x3a3)
		jinja_add_char(j, t, before_is_cased(p, at) && !after_is_cased(p, at + n, len) ? 0x3c2 : 0x3c3, p + at);
	else
		add_mapped(j, t, p + at, mapped, jinja_to_lower(c, mapped));
}

const struct jinja_str *jinja_upper(struct jinja_job *j, const struct jinja_str *s)
{
	struct jinja_text t = { 0 };
	uint32_t mapped[JINJA_MAX_CASE];
	size_t n;

	jinja_charge(j, s->len / 4);
	for (size_t at = 0; at < s->len; at += n)
		add_mapped(j, &t, s->p + at, mapped, jinja_to_upper(jinja_char_at(s->p + at, &n), mapped));
	return jinja_str_take(j, &t);
}

const struct jinja_str *jinja_lower(struct jinja_job *j, const struct jinja_str *s)
{
	struct jinja_text t = { 0 };

	jinja_charge(j, s->len / 4);
	for (size_t at = 0; at < s->len; at += jinja_char_bytes(s->p + at))
		add_lower(j, &t, s->p, at, s->len);
	return jinja_str_take(j, &t);
}

const struct jinja_str *jinja_swapcase(struct jinja_job *j, const struct jinja_str *s)
{
	struct jinja_text t = { 0 };
	uint32_t mapped[JINJA_MAX_CASE];
	size_t n;

	jinja_charge(j, s->len / 4);
	for (size_t at = 0; at < s->len; at += n) {
		uint32_t c = jinja_char_at(s->p + at, &n);

		if (jinja_is_upper(c))
			add_lower(j, &t, s->p, at, s->len);
		else if (jinja_is_lower(c))
			add_mapped(j, &t, s->p + at, mapped, jinja_to_upper(c, mapped));
		else
			jinja_add(j, &t, s->p + at, n);
	}
	return jinja_str_take(j, &t);
}

const struct jinja_str *jinja_capitalize(struct jinja_job *j, const struct jinja_str *s)
{
	struct jinja_text t = { 0 };
	uint32_t mapped[JINJA_MAX_CASE];
	size_t n = 0;

	jinja_charge(j, s->len / 4);
	if (s->len > 0)
		add_mapped(j, &t, s->p, mapped, jinja_to_title(jinja_char_at(s->p, &n), mapped));
	for (size_t at = n; at < s->len; at += jinja_char_bytes(s->p + at))
		add_lower(j, &t, s->p, at, s->len);
	return jinja_str_take(j, &t);
}

const struct jinja_str *jinja_title(struct jinja_job *j, const struct jinja_str *s)
{
	struct jinja_text t = { 0 };
	uint32_t mapped[JINJA_MAX_CASE];
	bool in_word = false;
	size_t n;

	jinja_charge(j, s->len / 4);
	for (size_t at = 0; at < s->len; at += n) {
		uint32_t c = jinja_char_at(s->p + at, &n);

		if (in_word)
			add_lower(j, &t, s->p, at, s->len);
		else
			add_mapped(j, &t, s->p + at, mapped, jinja_to_title(c, mapped));
		in_word = jinja_is_cased(c);
	}
	return jinja_str_take(j, &t);
}

bool jinja_str_is_lower(const struct jinja_str *s)
{
	bool any = false;
	size_t n;

	for (size_t at = 0; at < s->len; at += n) {
		uint32_t c = jinja_char_at(s->p + at, &n);

		if (jinja_is_upper(c) || jinja_is_title(c))
			return false;
		any = any || jinja_is_lower(c);
	}
	return any;
}

bool jinja_str_is_upper(const struct jinja_str *s)
{
	bool any = false;
	size_t n;

	for (size_t at = 0; at < s->len; at += n) {
		uint32_t c = jinja_char_at(s->p + at, &n);

		if (jinja_is_lower(c) || jinja_is_title(c))
			return false;
		any = any || jinja_is_upper(c);
	}
	return any;
}

/* ---- numbers ---- */

/* Without the whitespace around it, with ASCII digits; '_' is dropped between two digits. NULL: a '_' elsewhere. */
static const char *plain_number(struct jinja_job *j, const struct jinja_str *s, bool letters_too)
{
	struct jinja_text t = { 0 };
	bool after_digit = false;
	size_t n;

	s = jinja_strip(j, s, NULL, JINJA_BOTH);
	for (size_t at = 0; at < s->len; at += n) {
		uint32_t c = jinja_char_at(s->p + at, &n);
		int digit = jinja_decimal_value(c);

		if (c == '_') {
			size_t m;
			uint32_t next = at + 1 < s->len ? jinja_char_at(s->p + at + 1, &m) : 0;

			if (!after_digit || !(jinja_decimal_value(next) >= 0 || (letters_too && jinja_is_alpha(next))))
				return NULL;
			after_digit = false;
			continue;
		}
		if (c == 0 || c > 127)
			c = digit >= 0 ? (uint32_t)('0' + digit) : '?';
		after_digit = digit >= 0 || (letters_too && jinja_is_alpha(c));
		jinja_add_char(j, &t, c, NULL);
	}
	jinja_add(j, &t, "", 1);
	return t.p;
}

static int prefix_base(const char *p, int base)
{
	const char c = (char)(p[0] == '0' && p[1] != '\0' ? p[1] | 32 : 0);
	const int named = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;

	return named != 0 && (base == 0 || base == named) ? named : 0;
}

bool jinja_parse_int(struct jinja_job *j, const struct jinja_str *s, int base, int64_t *out)
{
	const char *p = plain_number(j, s, true);
	bool negative, any = false, large = false;
	uint64_t v = 0;
	int named;

	*out = 0;
	if (p == NULL)
		return false;
	negative = *p == '-';
	p += *p == '-' || *p == '+';
	named = prefix_base(p, base);
	if (named != 0)
		p += 2;
	else if (base == 0 && p[0] == '0' && strspn(p, "0") != strlen(p))
		return false; /* 012 */
	base = named != 0 ? named : base == 0 ? 10 : base;
	for (; *p != '\0'; p++, any = true) {
		const int letter = *p | 32;
		int digit = *p >= '0' && *p <= '9' ? *p - '0' : letter >= 'a' && letter <= 'z' ? letter - 'a' + 10 : 99;

		if (digit >= base)
			return false;
		large = large || __builtin_mul_overflow(v, (uint64_t)base, &v) ||
			__builtin_add_overflow(v, (uint64_t)digit, &v);
	}
	if (large || v > (uint64_t)INT64_MAX + negative)
		jinja_fail(j, OD_ERR_RANGE, "an integer has more than 64 bits");
	*out = negative ? (int64_t)(0 - v) : (int64_t)v;
	return any;
}

bool jinja_parse_float(struct jinja_job *j, const struct jinja_str *s, double *out)
{
	const char *p = plain_number(j, s, false), *digits;
	char *end;

	*out = 0;
	if (p == NULL || *p == '\0')
		return false;
	digits = p + (*p == '-' || *p == '+');
	if (digits[0] == '0' && (digits[1] | 32) == 'x') /* strtod knows more than Python */
		return false;
	if (strncasecmp(digits, "nan", 3) == 0 && digits[3] != '\0')
		return false;
	if (*digits == '-' || *digits == '+' || jinja_is_space((unsigned char)*digits))
		return false;
	*out = strtod(p, &end);
	return *end == '\0' && end != p;
}
