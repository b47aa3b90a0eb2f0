/* Ranges of numbers as regular expressions over their decimal digits. */
#include "common/grammar/json_schema_internal.h"

#include "common/base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DIGITS 40u /* before and behind the point, if nothing says more */
#define MAX_DOUBLE_DIGITS 15u /* numbers of so many digits stay apart as doubles */
#define MAX_BOUND_DIGITS 60u
#define MAX_MULTIPLE 100000
#define RANGE_WORK 300u /* beside that of the expressions */

/* A bound: its sign, the digits before the point (without leading zeros; "0") and behind it (without trailing ones). */
struct bound {
	bool set, exclusive, negative;
	char whole[MAX_BOUND_DIGITS + 2], part[MAX_BOUND_DIGITS + 2];
};

struct number_range {
	struct bound low, high;
	int64_t multiple; /* 0: none */
};

/* ---- Bounds ---- */

/* Splits "123.45e-6"; false: it has too many digits. */
static bool split(const char *text, struct bound *b)
{
	char digits[2 * MAX_BOUND_DIGITS + 8] = { 0 };
	const char *at = text + (*text == '-'), *e = strpbrk(text, "eE");
	long exponent = e != NULL ? strtol(e + 1, NULL, 10) : 0, point;
	size_t n = 0, skip = 0;
	bool behind = false;

	point = 0;
	for (; *at != '\0' && at != e; at++) {
		if (*at == '.') {
			behind = true;
			continue;
		}
		if (n == MAX_BOUND_DIGITS)
			return false;
		digits[n++] = *at;
		point += !behind;
	}
	point += exponent;
	while (skip < n && digits[skip] == '0')
		skip++, point--;
	while (n > skip && digits[n - 1] == '0')
		n--;
	if (n == skip)
		point = 0;
	if (point > (long)MAX_BOUND_DIGITS || point < -(long)MAX_BOUND_DIGITS ||
	    (long)(n - skip) - point > (long)MAX_BOUND_DIGITS)
		return false;
	b->negative = *text == '-' && n > skip;
	b->whole[0] = '0';
	b->whole[1] = '\0';
	b->part[0] = '\0';
	for (long i = 0; i < point; i++) {
		b->whole[i] = skip + (size_t)i < n ? digits[skip + (size_t)i] : '0';
		b->whole[i + 1] = '\0';
	}
	for (long i = point; i < (long)(n - skip); i++) {
		b->part[i - point] = i < 0 ? '0' : digits[skip + (size_t)i];
		b->part[i - point + 1] = '\0';
	}
	return true;
}

static int compare_size(const struct bound *a, const struct bound *b)
{
	const size_t n = strlen(a->whole), m = strlen(b->whole);
	int c = n != m ? (n < m ? -1 : 1) : strcmp(a->whole, b->whole);

	return c != 0 ? c : strcmp(a->part, b->part);
}

static int compare(const struct bound *a, const struct bound *b)
{
	if (a->negative != b->negative)
		return a->negative ? -1 : 1;
	return a->negative ? -compare_size(a, b) : compare_size(a, b);
}

/* Takes in a bound from a keyword, if it is narrower. */
static void narrow(struct schema *s, const json_t *schema, const char *keyword, bool exclusive, bool is_low,
		   struct bound *to)
{
	const json_t *v = json_object_get(schema, keyword);
	struct bound b = { .set = true, .exclusive = exclusive };
	char text[64];
	int c;

	if (v == NULL || (exclusive && json_is_boolean(v)))
		return;
	if (json_is_integer(v))
		snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT, json_integer_value(v));
	else if (od_json_digits(v) != NULL)
		snprintf(text, sizeof(text), "%s", od_json_digits(v));
	else if (json_is_real(v))
		for (int digits = 1; digits <= 17; digits++) {
			snprintf(text, sizeof(text), "%.*g", digits, json_real_value(v));
			if (strtod(text, NULL) == json_real_value(v))
				break;
		}
	else {
		schema_refuse(s, schema, keyword, OD_ERR_FORMAT, "expected a number");
		return;
	}
	if (!split(text, &b)) {
		schema_refuse(s, schema, keyword, OD_ERR_UNSUPPORTED,
			      "numbers of more than %u digits are not supported here", MAX_BOUND_DIGITS);
		return;
	}
	c = to->set ? compare(&b, to) : 0;
	if (!to->set || (is_low ? c > 0 : c < 0) || (c == 0 && exclusive))
		*to = b;
}

/* Draft 4 has exclusiveMinimum: true beside minimum. */
static bool is_exclusive(const json_t *schema, const char *keyword)
{
	return json_is_true(json_object_get(schema, keyword));
}

static int64_t gcd(int64_t a, int64_t b)
{
	return b == 0 ? a : gcd(b, a % b);
}

static void take_multiple(struct schema *s, const json_t *schema, struct number_range *r)
{
	const json_t *v = json_object_get(schema, "multipleOf");
	const double x = json_number_value(v);

	if (v == NULL)
		return;
	if (!json_is_number(v) || x <= 0)
		schema_refuse(s, schema, "multipleOf", OD_ERR_FORMAT, "expected a number above 0");
	else if (x != floor(x) || x > MAX_MULTIPLE)
		schema_refuse(s, schema, "multipleOf", OD_ERR_UNSUPPORTED,
			      "only whole numbers up to %d are supported here", MAX_MULTIPLE);
	else
		r->multiple = r->multiple == 0 ? (int64_t)x : r->multiple / gcd(r->multiple, (int64_t)x) * (int64_t)x;
	if (r->multiple > MAX_MULTIPLE)
		schema_refuse(s, schema, "multipleOf", OD_ERR_UNSUPPORTED,
			      "together with others it is above %d, which is not supported here", MAX_MULTIPLE);
}

static void read_range(struct schema *s, const struct schema_parts *leaf, struct number_range *r)
{
	for (size_t i = 0; i < leaf->n; i++) {
		const json_t *schema = leaf->v[i];

		narrow(s, schema, "minimum", is_exclusive(schema, "exclusiveMinimum"), true, &r->low);
		narrow(s, schema, "maximum", is_exclusive(schema, "exclusiveMaximum"), false, &r->high);
		narrow(s, schema, "exclusiveMinimum", true, true, &r->low);
		narrow(s, schema, "exclusiveMaximum", true, false, &r->high);
		take_multiple(s, schema, r);
	}
}

static bool within(const struct number_range *r, const struct bound *v)
{
	int64_t rest = 0;

	if (r->low.set && compare(v, &r->low) < (r->low.exclusive ? 1 : 0))
		return false;
	if (r->high.set && compare(v, &r->high) > (r->high.exclusive ? -1 : 0))
		return false;
	if (r->multiple == 0)
		return true;
	for (const char *c = v->whole; *c != '\0'; c++)
		rest = (rest * 10 + (*c - '0')) % r->multiple;
	return rest == 0 && v->part[0] == '\0';
}

bool schema_allows_number(struct schema *s, const struct schema_parts *leaf, bool integer, const char *text)
{
	struct number_range r = { 0 };
	struct bound v = { 0 };

	read_range(s, leaf, &r);
	if (!integer && !r.low.set && !r.high.set && r.multiple == 0)
		return true;
	if (!split(text, &v)) {
		schema_refuse(
			s, leaf->v[0], NULL, OD_ERR_UNSUPPORTED,
			"values of more than %u digits, beside other keywords about numbers, are not supported here",
			MAX_BOUND_DIGITS);
		return false;
	}
	return within(&r, &v) && (!integer || v.part[0] == '\0');
}

/* ---- Expressions ---- */

static uint32_t digit(struct od_re_pool *p, char first, char last)
{
	struct od_byte_set set = { { 0 } };

	if (first > last)
		return OD_RE_NONE;
	od_byte_set_add_range(&set, (unsigned char)first, (unsigned char)last);
	return od_re_byte(p, &set);
}

static uint32_t digits(struct od_re_pool *p, uint32_t min, uint32_t max)
{
	return od_re_repeat(p, digit(p, '0', '9'), min, max);
}

/* Behind a whole number: a point and digits, or nothing. */
static uint32_t any_part(struct od_re_pool *p)
{
	return od_re_or(p, OD_RE_EMPTY, od_re_cat(p, od_re_text(p, ".", 1), digits(p, 1, OD_RE_NO_LIMIT)));
}

/* Whole numbers of as many digits as `whole` that are less (or more) than it, with any digits behind the point; and
 * `whole` itself, followed by equal. */
static uint32_t same_length(struct od_re_pool *p, const char *whole, bool less, uint32_t equal)
{
	uint32_t re = equal;

	for (size_t i = strlen(whole); i > 0; i--) {
		const char d = whole[i - 1];
		const char first = less ? (i == 1 && whole[1] != '\0' ? '1' : '0') : (char)(d + 1);
		const uint32_t other = digit(p, first, less ? (char)(d - 1) : '9');
		const uint32_t rest = (uint32_t)(strlen(whole) - i);

		re = od_re_or(p, od_re_cat(p, digit(p, d, d), re),
			      od_re_cat(p, other, od_re_cat(p, digits(p, rest, rest), any_part(p))));
	}
	return re;
}

/* Behind a whole number that is the bound's: the digits that make it at most (less: and not) the bound. */
static uint32_t part_below(struct od_re_pool *p, const struct bound *b)
{
	const size_t n = strlen(b->part);
	/* behind all digits of the bound only zeros follow, or nothing; and if it is excluded, not even that */
	uint32_t re = b->exclusive ? OD_RE_NONE : od_re_repeat(p, digit(p, '0', '0'), 0, OD_RE_NO_LIMIT);

	for (size_t i = n; i > 0; i--) {
		const char d = b->part[i - 1];
		const uint32_t lower = od_re_cat(p, digit(p, '0', (char)(d - 1)), digits(p, 0, OD_RE_NO_LIMIT));
		const uint32_t on = od_re_or(p, od_re_cat(p, digit(p, d, d), re), lower);

		/* The first digits of the bound are less than it, for its last digit is not 0. */
		re = i > 1 ? od_re_or(p, on, OD_RE_EMPTY) : on;
	}
	if (n == 0 && !b->exclusive)
		re = od_re_repeat(p, digit(p, '0', '0'), 1, OD_RE_NO_LIMIT);
	re = od_re_cat(p, od_re_text(p, ".", 1), re);
	return n > 0 || !b->exclusive ? od_re_or(p, re, OD_RE_EMPTY) : re;
}

/* The digits that make it at least (above) the bound. */
static uint32_t part_above(struct od_re_pool *p, const struct bound *b)
{
	const size_t n = strlen(b->part);
	const uint32_t zeros = od_re_repeat(p, digit(p, '0', '0'), 0, OD_RE_NO_LIMIT);
	const uint32_t some = od_re_cat(p, zeros, od_re_cat(p, digit(p, '1', '9'), digits(p, 0, OD_RE_NO_LIMIT)));
	uint32_t re = b->exclusive ? some : digits(p, n > 0 ? 0 : 1, OD_RE_NO_LIMIT);

	for (size_t i = n; i > 0; i--) {
		const char d = b->part[i - 1];
		const uint32_t higher = od_re_cat(p, digit(p, (char)(d + 1), '9'), digits(p, 0, OD_RE_NO_LIMIT));

		re = od_re_or(p, od_re_cat(p, digit(p, d, d), re), higher);
	}
	re = od_re_cat(p, od_re_text(p, ".", 1), re);
	return n == 0 && !b->exclusive ? od_re_or(p, re, OD_RE_EMPTY) : re;
}

/* Numbers without sign, of any length, that are at most (at least) the bound's size. */
static uint32_t sized(struct od_re_pool *p, const struct bound *b, bool at_most)
{
	const uint32_t n = (uint32_t)strlen(b->whole);
	uint32_t re = same_length(p, b->whole, at_most, at_most ? part_below(p, b) : part_above(p, b)), other;

	if (at_most && n == 1)
		return re;
	other = at_most ? od_re_or(p, digit(p, '0', '0'), od_re_cat(p, digit(p, '1', '9'), digits(p, 0, n - 2))) :
			  od_re_cat(p, digit(p, '1', '9'), digits(p, n, OD_RE_NO_LIMIT));
	return od_re_or(p, re, od_re_cat(p, other, any_part(p)));
}

/* How numbers are written: digits before and behind the point, exponents. */
static uint32_t form(struct od_re_pool *p, bool integer, uint32_t whole, uint32_t part, bool exponent)
{
	static const char e[] = "eE", signs[] = "+-";
	struct od_byte_set set = { { 0 } }, sign = { { 0 } };
	uint32_t re = od_re_or(p, digit(p, '0', '0'), od_re_cat(p, digit(p, '1', '9'), digits(p, 0, whole - 1))), tail;

	if (integer)
		return re;
	tail = od_re_cat(p, od_re_text(p, ".", 1), digits(p, 1, part));
	re = od_re_cat(p, re, od_re_or(p, OD_RE_EMPTY, tail));
	if (!exponent)
		return re;
	for (int i = 0; i < 2; i++) {
		od_byte_set_add(&set, (uint8_t)e[i]);
		od_byte_set_add(&sign, (uint8_t)signs[i]);
	}
	tail = od_re_cat(p, od_re_byte(p, &set),
			 od_re_cat(p, od_re_or(p, OD_RE_EMPTY, od_re_byte(p, &sign)), digits(p, 1, 2)));
	return od_re_cat(p, re, od_re_or(p, OD_RE_EMPTY, tail));
}

static uint32_t longer(const struct bound *low, const struct bound *high, bool whole)
{
	const size_t a = low->set ? strlen(whole ? low->whole : low->part) : 0;
	const size_t b = high->set ? strlen(whole ? high->whole : high->part) : 0;

	return (uint32_t)(a > b ? a : b);
}

/* Numbers of one sign: sizes from low to high; where they are not set, any. */
static uint32_t between(struct od_re_pool *p, uint32_t form_re, const struct bound *low, const struct bound *high)
{
	uint32_t re = form_re;

	if (low->set)
		re = od_re_and(p, re, sized(p, low, false));
	return high->set ? od_re_and(p, re, sized(p, high, true)) : re;
}

/* An excluded bound, but for 0, that a number of many digits could be read as: a double has no more than so many. */
static bool is_delicate(const struct bound *b)
{
	return b->set && b->exclusive && (b->part[0] != '\0' || strcmp(b->whole, "0") != 0);
}

static uint32_t range(struct od_re_pool *p, const struct number_range *r, bool integer)
{
	static const struct bound zero = { .set = true, .exclusive = true, .whole = "0" }, none = { 0 };
	const struct bound *low = &r->low, *high = &r->high;
	const uint32_t n = longer(low, high, true), behind = longer(low, high, false);
	const uint32_t most = is_delicate(low) || is_delicate(high) ? MAX_DOUBLE_DIGITS : MAX_DIGITS;
	/* Where both ends are known, as many digits as they have are enough before the point. */
	const uint32_t whole = low->set && high->set ? n : n > most ? n : most;
	const uint32_t room = n < most ? most - n : 1;
	const uint32_t form_re = form(p, integer, whole, behind > room ? behind : room, false);
	const bool above = !high->set || !high->negative, below = low->set ? low->negative : true;
	uint32_t re = OD_RE_NONE, minus;

	if (above)
		re = between(p, form_re, low->set && !low->negative ? low : &none, high->set ? high : &none);
	if (below) {
		/* not -0, and sizes the other way round */
		minus = between(p, form_re, high->set && high->negative ? high : &zero, low->set ? low : &none);
		re = od_re_or(p, re, od_re_cat(p, od_re_text(p, "-", 1), minus));
	}
	return re;
}

uint32_t schema_number_re(struct schema *s, const struct schema_parts *leaf, bool integer)
{
	struct od_re_pool *p = od_grammar_res(schema_grammar(s));
	const uint32_t sign = od_re_or(p, OD_RE_EMPTY, od_re_text(p, "-", 1));
	struct number_range r = { 0 };
	uint32_t re;

	read_range(s, leaf, &r);
	if (schema_failed(s))
		return OD_RE_NONE;
	integer |= r.multiple > 0;
	if (r.low.set || r.high.set) {
		schema_spend(s, RANGE_WORK);
		re = range(p, &r, integer);
	} else {
		uint32_t *any = schema_any_number(s, integer);

		if (*any == OD_RE_NONE)
			*any = od_re_cat(p, sign, form(p, integer, MAX_DIGITS, MAX_DIGITS, true));
		re = *any;
	}
	if (r.multiple > 1)
		re = od_re_and(p, re, od_re_cat(p, sign, od_re_multiple(p, (uint32_t)r.multiple)));
	return re;
}
