/* Filters of text and numbers. */
#include "common/text/jinja/jinja_calls.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/jinja/jinja_format.h"
#include "common/text/jinja/jinja_loop.h"
#include "common/text/jinja/jinja_methods.h"
#include "common/text/jinja/jinja_ops.h"
#include "common/text/jinja/jinja_show.h"
#include "common/text/jinja/jinja_strings.h"
#include "common/text/jinja/jinja_unicode.h"

FILTER(f_abs)
{
	UNUSED2(arg, call);
	if (self.kind == JINJA_FLOAT)
		return jinja_float(fabs(self.f));
	if (self.kind == JINJA_BIG)
		return self.big->f < 0 ? jinja_negate(j, self) : self;
	if (self.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(j, self.undefined);
	if (self.kind != JINJA_INT && self.kind != JINJA_BOOL)
		jinja_fail(j, OD_ERR_FORMAT, "abs: expected a number, found %s", jinja_type_name(self));
	return jinja_to_int(self) < 0 ? jinja_negate(j, self) : jinja_int(jinja_to_int(self));
}

FILTER(f_attr)
{
	const struct jinja_str *name = jinja_arg_str(j, arg[0], "attr");
	struct jinja_value out;

	(void)call;
	if (self.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(j, self.undefined);
	if (self.kind == JINJA_LOOP && jinja_loop_attribute(j, self.loop, name, &out))
		return out;
	if (jinja_value_attribute(j, self, name, &out))
		return out;
	if (self.kind == JINJA_NAMESPACE)
		return jinja_get_attribute(j, self, name);
	return jinja_undefined_name(j, name, jinja_type_name(self));
}

FILTER(f_capitalize)
{
	UNUSED2(arg, call);
	return jinja_of_str(jinja_capitalize(j, jinja_str_of(j, self)));
}

FILTER(f_center)
{
	(void)call;
	return jinja_of_str(jinja_pad(j, jinja_str_of(j, self), jinja_arg_int(j, arg[0], 80, "center"),
				      jinja_str_z(j, " "), JINJA_BOTH));
}

FILTER(f_default)
{
	(void)call;
	if (self.kind == JINJA_UNDEFINED || (jinja_truth(j, arg[1]) && !jinja_truth(j, self)))
		return arg[0].kind != JINJA_ABSENT ? arg[0] : jinja_z(j, "");
	return self;
}

FILTER(f_escape)
{
	UNUSED2(arg, call);
	return jinja_of_str(jinja_escape(j, jinja_str_of(j, self)));
}

FILTER(f_forceescape)
{
	UNUSED2(arg, call);
	return jinja_of_str(jinja_escape(j, jinja_str_markup(j, jinja_str_of(j, self), false)));
}

FILTER(f_safe)
{
	UNUSED2(arg, call);
	return jinja_of_str(jinja_str_markup(j, jinja_str_of(j, self), true));
}

FILTER(f_string)
{
	UNUSED2(arg, call);
	return jinja_of_str(jinja_str_of(j, self));
}

static double number_of(struct jinja_job *j, struct jinja_value v, const char *what)
{
	double d;

	if (jinja_is_number(v))
		return jinja_to_double(v);
	if (v.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(j, v.undefined);
	if (v.kind != JINJA_STR || !jinja_parse_float(j, v.s, &d))
		jinja_fail(j, OD_ERR_FORMAT, "%s: expected a number, found %s", what, jinja_type_name(v));
	return d;
}

FILTER(f_filesizeformat)
{
	static const char *const prefix[2][8] = { { "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB" },
						  { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB" } };
	const double bytes = number_of(j, self, "filesizeformat");
	const bool binary = jinja_truth(j, arg[0]);
	const double base = binary ? 1024 : 1000;
	struct jinja_text t = { 0 };
	double unit = base;
	size_t i = 0;

	(void)call;
	if (bytes == 1)
		return jinja_z(j, "1 Byte");
	if (bytes < base) {
		jinja_addf(j, &t, "%lld Bytes", (long long)bytes);
		return jinja_text_value(j, &t);
	}
	for (; i < 8; i++) {
		unit *= base;
		if (bytes < unit)
			break;
	}
	jinja_addf(j, &t, "%.1f %s", base * bytes / unit, prefix[binary][i < 8 ? i : 7]);
	return jinja_text_value(j, &t);
}

FILTER(f_float)
{
	double d;

	(void)call;
	if (jinja_is_number(self))
		return jinja_float(jinja_to_double(self));
	if (self.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(j, self.undefined);
	if (self.kind == JINJA_STR && jinja_parse_float(j, self.s, &d))
		return jinja_float(d);
	return arg[0].kind != JINJA_ABSENT ? arg[0] : jinja_float(0);
}

static struct jinja_value truncate_float(struct jinja_job *j, double d)
{
	if (d >= 0x1p63 || d < -0x1p63)
		jinja_fail(j, OD_ERR_RANGE, "an integer has more than 64 bits");
	return jinja_int((int64_t)d);
}

FILTER(f_int)
{
	const int64_t base = jinja_arg_int(j, arg[1], 10, "int");
	struct jinja_value fallback = arg[0].kind != JINJA_ABSENT ? arg[0] : jinja_int(0);
	int64_t i;
	double d;

	(void)call;
	if (self.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(j, self.undefined);
	if (self.kind == JINJA_INT || self.kind == JINJA_BOOL)
		return jinja_int(jinja_to_int(self));
	if (self.kind == JINJA_BIG)
		return self;
	if (self.kind == JINJA_FLOAT && isinf(self.f))
		jinja_fail(j, OD_ERR_FORMAT, "int: infinity is no integer");
	if (self.kind == JINJA_FLOAT)
		return isnan(self.f) ? fallback : truncate_float(j, self.f);
	if (self.kind != JINJA_STR)
		return fallback;
	if (base >= 0 && base <= 36 && base != 1 && jinja_parse_int(j, self.s, (int)base, &i))
		return jinja_int(i);
	if (!jinja_parse_float(j, self.s, &d) || isnan(d) || isinf(d)) /* "42.23" is 42 */
		return fallback;
	return truncate_float(j, d);
}

FILTER(f_format)
{
	struct jinja_seq *pos;

	(void)arg;
	if (call->kw != NULL && call->kw->n > 0) {
		if (call->n_pos > 0)
			jinja_fail(j, OD_ERR_FORMAT, "format: expected positional or keyword arguments, found both");
		return jinja_percent(j, jinja_str_of(j, self), jinja_of_dict((struct jinja_dict *)call->kw));
	}
	pos = jinja_seq_new(j, call->n_pos);
	for (size_t i = 0; i < call->n_pos; i++)
		jinja_push(j, pos, call->pos[i]);
	return jinja_percent(j, jinja_str_of(j, self), jinja_tuple(pos));
}

/* Whatever ends a line, it is "\n" afterwards. */
FILTER(f_indent)
{
	struct jinja_text t = { 0 }, text = { 0 };
	const struct jinja_str *s = jinja_arg_str(j, self, "indent"), *in;
	const bool first = jinja_truth(j, arg[1]), blank = jinja_truth(j, arg[2]);
	const struct jinja_seq *lines;

	(void)call;
	if (arg[0].kind == JINJA_STR) {
		in = arg[0].s;
	} else {
		int64_t width = jinja_arg_int(j, arg[0], 4, "indent");

		jinja_add_times(j, &t, jinja_str_z(j, " ")->p, 1, width > 0 ? (size_t)width : 0);
		in = jinja_str_take(j, &t);
	}
	jinja_add(j, &text, s->p, s->len);
	jinja_lit(j, &text, "\n"); /* so an empty last line counts */
	lines = jinja_splitlines(j, jinja_str_take(j, &text), false);
	t = (struct jinja_text){ 0 };
	for (size_t i = 0; i < lines->n; i++) {
		const struct jinja_str *line = lines->v[i].s;

		if (i > 0)
			jinja_lit(j, &t, "\n");
		if (i > 0 ? blank || line->len > 0 : first)
			jinja_add(j, &t, in->p, in->len);
		jinja_add(j, &t, line->p, line->len);
	}
	return jinja_of_str(jinja_str_markup(j, jinja_str_take(j, &t), s->markup));
}

FILTER(f_length)
{
	UNUSED2(arg, call);
	return jinja_int((int64_t)jinja_len(j, self));
}

FILTER(f_lower)
{
	UNUSED2(arg, call);
	return jinja_of_str(jinja_lower(j, jinja_str_of(j, self)));
}

FILTER(f_upper)
{
	UNUSED2(arg, call);
	return jinja_of_str(jinja_upper(j, jinja_str_of(j, self)));
}

FILTER(f_replace)
{
	const int64_t count = jinja_given(arg[2]) ? jinja_arg_int(j, arg[2], -1, "replace") : -1;

	(void)call;
	return jinja_of_str(jinja_str_markup(
		j, jinja_replace(j, jinja_str_of(j, self), jinja_str_of(j, arg[0]), jinja_str_of(j, arg[1]), count),
		false));
}

static double round_to(double d, int64_t precision)
{
	char text[700]; /* 309 digits before the point, 320 behind it */
	double scale;

	if (!isfinite(d) || precision > 320)
		return d;
	if (precision >= 0) { /* printf rounds the exact value, half to even, as Python does */
		snprintf(text, sizeof(text), "%.*f", (int)precision, d);
		return strtod(text, NULL);
	}
	if (precision < -310)
		return copysign(0, d);
	scale = pow(10, (double)-precision);
	return nearbyint(d / scale) * scale;
}

static struct jinja_value round_int(struct jinja_job *j, int64_t i, int64_t precision)
{
	int64_t scale = 1, rest;

	if (precision >= 0)
		return jinja_int(i);
	if (precision < -18)
		return jinja_int(0);
	for (; precision < 0; precision++)
		scale *= 10;
	rest = i % scale;
	i -= rest;
	if (2 * (rest < 0 ? -rest : rest) > scale || (2 * (rest < 0 ? -rest : rest) == scale && (i / scale) % 2 != 0))
		return jinja_binary(j, rest < 0 ? T_SUB : T_ADD, jinja_int(i), jinja_int(scale));
	return jinja_int(i);
}

FILTER(f_round)
{
	const int64_t precision = jinja_arg_int(j, arg[0], 0, "round");
	const struct jinja_str *method = jinja_str_z(j, "common");
	struct jinja_value scale, scaled;

	(void)call;
	if (arg[1].kind != JINJA_ABSENT)
		method = jinja_arg_str(j, arg[1], "round");
	if (self.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(j, self.undefined);
	if (!jinja_is_number(self))
		jinja_fail(j, OD_ERR_FORMAT, "round: expected a number, found %s", jinja_type_name(self));
	if (jinja_str_is(method, "common") && self.kind == JINJA_BIG && precision >= 0)
		return self;
	if (jinja_str_is(method, "common"))
		return self.kind == JINJA_FLOAT || self.kind == JINJA_BIG ?
			       jinja_float(round_to(jinja_to_double(self), precision)) :
			       round_int(j, jinja_to_int(self), precision);
	if (!jinja_str_is(method, "ceil") && !jinja_str_is(method, "floor"))
		jinja_fail(j, OD_ERR_FORMAT, "round: expected the method common, ceil or floor, found another one");
	scale = jinja_binary(j, T_POW, jinja_int(10), jinja_int(precision));
	scaled = jinja_binary(j, T_MUL, self, scale);
	if (scaled.kind == JINJA_FLOAT)
		scaled = truncate_float(j, jinja_str_is(method, "ceil") ? ceil(scaled.f) : floor(scaled.f));
	return jinja_binary(j, T_DIV, scaled, scale);
}

static bool splits_title(uint32_t c)
{
	return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || jinja_is_space(c);
}

/* Words are what stands between whitespace and opening brackets: it's stays It's. */
FILTER(f_title)
{
	const struct jinja_str *s = jinja_str_of(j, self);
	struct jinja_text t = { 0 };
	size_t n;

	UNUSED2(arg, call);
	for (size_t at = 0; at < s->len;) {
		const bool splits = splits_title(jinja_char_at(s->p + at, &n));
		size_t end = at + n;
		const struct jinja_str *first = jinja_upper(j, jinja_str_borrow(j, s->p + at, n)), *rest;

		while (end < s->len && splits_title(jinja_char_at(s->p + end, &n)) == splits)
			end += n;
		n = jinja_char_bytes(s->p + at);
		rest = jinja_lower(j, jinja_str_borrow(j, s->p + at + n, end - at - n));
		jinja_add(j, &t, first->p, first->len);
		jinja_add(j, &t, rest->p, rest->len);
		at = end;
	}
	return jinja_text_value(j, &t);
}

FILTER(f_trim)
{
	const struct jinja_str *chars = jinja_given(arg[0]) ? jinja_arg_str(j, arg[0], "trim") : NULL;
	const struct jinja_str *s = jinja_str_of(j, self);

	(void)call;
	return jinja_of_str(jinja_str_markup(j, jinja_strip(j, s, chars, JINJA_BOTH), s->markup));
}

FILTER(f_truncate)
{
	const struct jinja_str *s, *cut, *end;
	const int64_t length = jinja_arg_int(j, arg[0], 255, "truncate");
	const int64_t leeway = jinja_given(arg[3]) ? jinja_arg_int(j, arg[3], 5, "truncate") : 5;
	int64_t keep;

	(void)call;
	end = arg[2].kind != JINJA_ABSENT ? jinja_arg_str(j, arg[2], "truncate") : jinja_str_z(j, "...");
	keep = length - (int64_t)end->n_chars;
	if (keep < 0 || leeway < 0)
		jinja_fail(j, OD_ERR_FORMAT, "truncate: expected a length of at least %zu and a leeway of at least 0",
			   end->n_chars);
	if ((int64_t)jinja_len(j, self) - leeway <= length)
		return self;
	s = jinja_arg_str(j, self, "truncate");
	cut = jinja_str_chars(j, s, 0, (size_t)keep < s->n_chars ? (size_t)keep : s->n_chars);
	if (!jinja_truth(j, arg[1]))
		cut = jinja_split(j, cut, jinja_str_z(j, " "), 1, JINJA_RIGHT)->v[0].s;
	return jinja_of_str(jinja_concat(j, cut, end));
}

static void add_quoted(struct jinja_job *j, struct jinja_text *t, struct jinja_value v, bool query)
{
	const struct jinja_str *s = jinja_str_of(j, v);

	for (size_t i = 0; i < s->len; i++) {
		const unsigned char c = (unsigned char)s->p[i];
		const bool plain =
			c < 0x80 && (c == '_' || c == '.' || c == '-' || c == '~' || (c >= '0' && c <= '9') ||
				     ((c | 32) >= 'a' && (c | 32) <= 'z') || (c == '/' && !query));

		if (plain)
			jinja_add(j, t, s->p + i, 1);
		else if (c == ' ' && query)
			jinja_addf_of(j, t, s->p + i, "+");
		else
			jinja_addf_of(j, t, s->p + i, "%%%02X", c);
	}
}

FILTER(f_urlencode)
{
	struct jinja_text t = { 0 };
	const struct jinja_seq *pairs;

	UNUSED2(arg, call);
	if (self.kind == JINJA_STR || !jinja_iterable(self)) {
		add_quoted(j, &t, self, false);
		return jinja_text_value(j, &t);
	}
	if (self.kind == JINJA_DICT) {
		const struct jinja_view view = { .of = JINJA_ITEMS, .dict = self.dict };

		pairs = jinja_items(j, (struct jinja_value){ .kind = JINJA_VIEW, .view = &view });
	} else {
		pairs = jinja_items(j, self);
	}
	for (size_t i = 0; i < pairs->n; i++) {
		const struct jinja_seq *pair = jinja_items(j, pairs->v[i]);

		if (pair->n != 2)
			jinja_fail(j, OD_ERR_FORMAT, "urlencode: expected pairs, found %zu values", pair->n);
		if (i > 0)
			jinja_lit(j, &t, "&");
		add_quoted(j, &t, pair->v[0], true);
		jinja_lit(j, &t, "=");
		add_quoted(j, &t, pair->v[1], true);
	}
	return jinja_text_value(j, &t);
}

FILTER(f_wordcount)
{
	const struct jinja_str *s = jinja_str_of(j, self);
	bool in_word = false;
	int64_t words = 0;
	size_t n;

	UNUSED2(arg, call);
	jinja_charge(j, s->len / 4);
	for (size_t at = 0; at < s->len; at += n) {
		uint32_t c = jinja_char_at(s->p + at, &n);
		bool word = c == '_' || jinja_is_alpha(c) || jinja_is_digit(c) || jinja_is_numeric(c);

		words += word && !in_word;
		in_word = word;
	}
	return jinja_int(words);
}

static const struct jinja_str *separator(struct jinja_job *j, struct jinja_value pair, size_t i, const char *fallback)
{
	const struct jinja_seq *s;

	if (!jinja_given(pair))
		return jinja_str_z(j, fallback);
	s = jinja_items(j, pair);
	if (s->n != 2)
		jinja_fail(j, OD_ERR_FORMAT, "tojson: expected two separators, found %zu", s->n);
	return jinja_arg_str(j, s->v[i], "tojson");
}

/* transformers' tojson: nothing is escaped for HTML. */
FILTER(f_tojson)
{
	struct jinja_json_style style = { .ascii_only = jinja_truth(j, arg[0]), .sort_keys = jinja_truth(j, arg[3]) };
	struct jinja_text t = { 0 }, in = { 0 };

	(void)call;
	if (arg[1].kind == JINJA_STR) {
		style.indent = arg[1].s;
	} else if (jinja_given(arg[1])) {
		int64_t width = jinja_arg_int(j, arg[1], 0, "tojson");

		jinja_add_times(j, &in, jinja_str_z(j, " ")->p, 1, width > 0 ? (size_t)width : 0);
		style.indent = jinja_str_take(j, &in);
	}
	style.item_separator = separator(j, arg[2], 0, style.indent != NULL ? "," : ", ");
	style.key_separator = separator(j, arg[2], 1, ": ");
	jinja_add_json(j, &t, self, &style);
	return jinja_text_value(j, &t);
}

const struct jinja_function jinja_text_filters[] = {
	{ "abs", "", f_abs },
	{ "attr", "name", f_attr },
	{ "capitalize", "", f_capitalize },
	{ "center", "width?", f_center },
	{ "count", "", f_length },
	{ "d", "default_value? boolean?", f_default },
	{ "default", "default_value? boolean?", f_default },
	{ "e", "", f_escape },
	{ "escape", "", f_escape },
	{ "filesizeformat", "binary?", f_filesizeformat },
	{ "float", "default?", f_float },
	{ "forceescape", "", f_forceescape },
	{ "format", "*", f_format },
	{ "indent", "width? first? blank?", f_indent },
	{ "int", "default? base?", f_int },
	{ "length", "", f_length },
	{ "lower", "", f_lower },
	{ "replace", "old new count?", f_replace },
	{ "round", "precision? method?", f_round },
	{ "safe", "", f_safe },
	{ "string", "", f_string },
	{ "title", "", f_title },
	{ "tojson", "ensure_ascii? indent? separators? sort_keys?", f_tojson },
	{ "trim", "chars?", f_trim },
	{ "truncate", "length? killwords? end? leeway?", f_truncate },
	{ "upper", "", f_upper },
	{ "urlencode", "", f_urlencode },
	{ "wordcount", "", f_wordcount },
	{ NULL, NULL, NULL },
};
