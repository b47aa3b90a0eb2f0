/* Python's two ways to format a string: s % values, and s.format(...). */
#include "common/text/jinja/jinja_format.h"

#include "common/text/jinja/jinja_ops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/text/jinja/jinja_show.h"
#include "common/text/jinja/jinja_strings.h"
#include "common/text/jinja/jinja_unicode.h"

#define MAX_WIDTH 1000000
#define MAX_PRECISION 1000
#define NUMBER_CHARS 2048 /* 309 digits, MAX_PRECISION more, separators */
#define MAX_SPEC_DEPTH 2 /* a width in braces within a specification */

/* Options that %-formats and format() share. */
struct spec {
	const char *fill; /* one character */
	size_t fill_len;
	char align; /* < > ^ =; 0: as the type likes it */
	char sign; /* + - or space; 0: - */
	char group; /* , _ or 0: between thousands */
	char type; /* d f s ...; 0: none */
	bool alternate, zero;
	int64_t width, precision; /* -1: none */
};

struct format_reader {
	struct jinja_job *j;
	const char *p, *end;
	const struct jinja_call *call;
	size_t next; /* positional argument */
	bool automatic, numbered;
};

static int64_t read_number(struct format_reader *r, int64_t fallback, int64_t max)
{
	int64_t n = 0;

	if (r->p == r->end || *r->p < '0' || *r->p > '9')
		return fallback;
	for (; r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++) {
		n = n * 10 + (*r->p - '0');
		if (n > max)
			jinja_fail(r->j, OD_ERR_RANGE, "a format: expected numbers up to %lld", (long long)max);
	}
	return n;
}

/* ---- one value ---- */

/* body, with its sign or prefix (the first n_prefix bytes, behind which zeros go), to the width of the
 * specification. */
static void add_padded(struct jinja_job *j, struct jinja_text *t, const struct jinja_text *body, size_t n_prefix,
		       const struct spec *s, char default_align)
{
	const size_t n = jinja_count_chars(body->p, body->len);
	const size_t total = s->width > (int64_t)n ? (size_t)s->width - n : 0;
	const char align = s->align != 0 ? s->align : default_align;
	const size_t left = align == '>' ? total : align == '^' ? total / 2 : 0;

	if (align == '=') {
		jinja_add(j, t, body->p, n_prefix);
		jinja_add_times(j, t, s->fill, s->fill_len, total);
		jinja_add(j, t, body->p + n_prefix, body->len - n_prefix);
		return;
	}
	jinja_add_times(j, t, s->fill, s->fill_len, left);
	jinja_add(j, t, body->p, body->len);
	jinja_add_times(j, t, s->fill, s->fill_len, total - left);
}

static void add_sign(struct jinja_job *j, struct jinja_text *t, bool negative, char sign)
{
	if (negative)
		jinja_lit(j, t, "-");
	else if (sign == '+' || sign == ' ')
		jinja_add_own(j, t, &sign, 1);
}

/* digits: the whole part first, of n_whole digits. With zeros in front that fill width, the separators reach into
 * them. */
static void add_grouped(struct jinja_job *j, struct jinja_text *t, const char *digits, size_t n_whole, char group,
			size_t each, int64_t min_width)
{
	size_t n = n_whole;

	if (group == 0) {
		jinja_add_own(j, t, digits, n_whole);
		return;
	}
	while (min_width > (int64_t)(n + (n - 1) / each))
		n++;
	for (size_t i = 0; i < n; i++) {
		if (i > 0 && (n - i) % each == 0)
			jinja_add_own(j, t, &group, 1);
		jinja_add_own(j, t, i < n - n_whole ? "0" : &digits[i - (n - n_whole)], 1);
	}
}

static void add_int(struct jinja_job *j, struct jinja_text *t, int64_t i, const struct spec *s)
{
	const uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
	struct jinja_text body = { 0 };
	char digits[80];
	size_t n = 0, n_prefix;

	if (s->type == 'b')
		for (int bit = 63; bit >= 0; bit--) {
			if (n > 0 || bit == 0 || (u >> bit & 1) != 0)
				digits[n++] = (char)('0' + (u >> bit & 1));
		}
	else
		n = (size_t)snprintf(digits, sizeof(digits),
				     s->type == 'x' ? "%llx" :
				     s->type == 'X' ? "%llX" :
				     s->type == 'o' ? "%llo" :
						      "%llu",
				     (unsigned long long)u);
	add_sign(j, &body, i < 0, s->sign);
	if (s->alternate && (s->type == 'b' || s->type == 'o' || (s->type | 32) == 'x')) {
		jinja_lit(j, &body, "0");
		jinja_add_own(j, &body, &s->type, 1);
	}
	n_prefix = body.len;
	jinja_add_times(j, &body, jinja_str_z(j, "0")->p, 1, s->precision > (int64_t)n ? (size_t)s->precision - n : 0);
	add_grouped(j, &body, digits, n, s->group, s->type == 'd' || s->type == 0 || s->type == 'n' ? 3 : 4,
		    s->align == '=' && s->fill[0] == '0' ? s->width - (int64_t)n_prefix : 0);
	add_padded(j, t, &body, n_prefix, s, '>');
}

/* The digits of |d| by a type of printf; repr where there is none. */
static void float_digits(struct jinja_job *j, struct jinja_text *digits, double d, const struct spec *s)
{
	char text[NUMBER_CHARS], fmt[16];
	const char type = s->type == '%' ? 'f' : s->type == 'n' ? 'g' : s->type;

	if (s->type == 0 && s->precision < 0) {
		jinja_add_float(j, digits, fabs(d));
		return;
	}
	snprintf(fmt, sizeof(fmt), "%%%s.*%c", s->alternate ? "#" : "", type == 0 ? 'g' : type);
	snprintf(text, sizeof(text), fmt, (int)(s->precision < 0 ? 6 : s->precision),
		 fabs(s->type == '%' ? d * 100 : d));
	jinja_add_own(j, digits, text, strlen(text));
	if (type == 0 && strpbrk(text, ".en") == NULL) /* a float without a type shows that it is one */
		jinja_lit(j, digits, ".0");
}

static void add_float(struct jinja_job *j, struct jinja_text *t, double d, const struct spec *s)
{
	struct jinja_text body = { 0 }, digits = { 0 };
	size_t n_whole = 0, n_prefix;

	add_sign(j, &body, signbit(d) && !isnan(d), s->sign);
	n_prefix = body.len;
	if (isfinite(d)) {
		float_digits(j, &digits, d, s);
		while (n_whole < digits.len && digits.p[n_whole] >= '0' && digits.p[n_whole] <= '9')
			n_whole++;
		add_grouped(j, &body, digits.p, n_whole, s->group, 3,
			    s->align == '=' && s->fill[0] == '0' ?
				    s->width - (int64_t)(n_prefix + digits.len - n_whole) - (s->type == '%') :
				    0);
		jinja_add(j, &body, digits.p + n_whole, digits.len - n_whole);
	} else {
		const bool capital = s->type == 'F' || s->type == 'E' || s->type == 'G';

		jinja_add_own(j, &body, isnan(d) ? (capital ? "NAN" : "nan") : (capital ? "INF" : "inf"), 3);
	}
	if (s->type == '%')
		jinja_lit(j, &body, "%");
	add_padded(j, t, &body, n_prefix, s, '>');
}

static void add_text(struct jinja_job *j, struct jinja_text *t, const struct jinja_str *text, const struct spec *s,
		     char align)
{
	struct jinja_text body = { 0 };

	if (s->precision >= 0 && (size_t)s->precision < text->n_chars)
		text = jinja_str_chars(j, text, 0, (size_t)s->precision);
	jinja_add(j, &body, text->p, text->len);
	add_padded(j, t, &body, 0, s, align);
}

static bool is_int(struct jinja_value v)
{
	return v.kind == JINJA_INT || v.kind == JINJA_BOOL;
}

static const struct jinja_str *ascii_repr(struct jinja_job *j, struct jinja_value v)
{
	struct jinja_text t = { 0 }, ascii = { 0 };
	size_t n;

	jinja_add_repr(j, &t, v);
	for (size_t at = 0; at < t.len; at += n) {
		uint32_t c = jinja_char_at(t.p + at, &n);

		if (c < 0x80)
			jinja_add(j, &ascii, t.p + at, 1);
		else
			jinja_addf_of(j, &ascii, t.p + at,
				      c < 0x100	  ? "\\x%02x" :
				      c < 0x10000 ? "\\u%04x" :
						    "\\U%08x",
				      c);
	}
	return jinja_str_take(j, &ascii);
}

static const struct jinja_str *repr_of(struct jinja_job *j, struct jinja_value v)
{
	struct jinja_text t = { 0 };

	jinja_add_repr(j, &t, v);
	return jinja_str_take(j, &t);
}

/* ---- s % values ---- */

struct percent {
	struct format_reader r;
	struct jinja_value values;
	size_t next; /* index into a tuple */
	bool used; /* a single value */
};

static struct jinja_value next_value(struct percent *q)
{
	const bool tuple = q->values.kind == JINJA_TUPLE;

	if (tuple ? q->next >= q->values.seq->n : q->used)
		jinja_fail(q->r.j, OD_ERR_FORMAT, "'%%': there are not enough values for the format");
	q->used = true;
	return tuple ? q->values.seq->v[q->next++] : q->values;
}

static struct jinja_value named_value(struct percent *q)
{
	const char *begin = ++q->r.p;
	const struct jinja_value *v;
	int depth = 1;

	for (; q->r.p < q->r.end; q->r.p++) {
		depth += *q->r.p == '(' ? 1 : *q->r.p == ')' ? -1 : 0;
		if (depth == 0)
			break;
	}
	if (q->r.p == q->r.end)
		jinja_fail(q->r.j, OD_ERR_FORMAT, "'%%': expected ')' after a name in the format");
	if (q->values.kind != JINJA_DICT)
		jinja_fail(q->r.j, OD_ERR_FORMAT, "'%%': expected a dict, found %s", jinja_type_name(q->values));
	v = jinja_dict_get(q->r.j, q->values.dict,
			   jinja_of_str(jinja_str_borrow(q->r.j, begin, (size_t)(q->r.p - begin))));
	if (v == NULL)
		jinja_fail(q->r.j, OD_ERR_FORMAT, "'%%': the dict has no key '%.*s'",
			   (int)(q->r.p - begin < 60 ? q->r.p - begin : 60), begin);
	q->r.p++;
	q->used = true;
	return *v;
}

static int64_t read_size(struct percent *q, int64_t fallback, int64_t max)
{
	struct jinja_value v;
	int64_t n;

	if (q->r.p == q->r.end || *q->r.p != '*')
		return read_number(&q->r, fallback, max);
	q->r.p++;
	v = next_value(q);
	n = jinja_arg_int(q->r.j, v, 0, "'*' in a format");
	if (n > max || n < -max)
		jinja_fail(q->r.j, OD_ERR_RANGE, "a format: expected numbers up to %lld", (long long)max);
	return n;
}

static void read_flags(struct percent *q, struct spec *s)
{
	for (; q->r.p < q->r.end && *q->r.p != '\0' && strchr("-+ #0", *q->r.p) != NULL; q->r.p++) {
		if (*q->r.p == '-')
			s->align = '<';
		else if (*q->r.p == '#')
			s->alternate = true;
		else if (*q->r.p == '0')
			s->zero = true;
		else if (s->sign != '+')
			s->sign = *q->r.p;
	}
}

static int64_t to_integer(struct jinja_job *j, struct jinja_value v, char type)
{
	if (v.kind == JINJA_FLOAT && (type == 'd' || type == 'i' || type == 'u')) {
		if (!(v.f < 0x1p63 && v.f >= -0x1p63))
			jinja_fail(j, OD_ERR_RANGE, "an integer has more than 64 bits");
		return (int64_t)v.f;
	}
	return jinja_arg_int(j, v, 0, "a format");
}

static void add_percent_value(struct percent *q, struct jinja_text *t, struct jinja_value v, struct spec *s)
{
	struct jinja_job *j = q->r.j;
	const bool number = strchr("diuoxXeEfFgG", s->type) != NULL;

	if (number && s->zero && s->align == 0) {
		s->align = '=';
		s->fill = jinja_str_z(j, "0")->p;
	}
	if (strchr("diuoxX", s->type) != NULL) {
		int64_t i = to_integer(j, v, s->type);

		s->type = strchr("diu", s->type) != NULL ? 'd' : s->type;
		add_int(j, t, i, s);
	} else if (number) {
		if (!jinja_is_number(v))
			jinja_fail(j, OD_ERR_FORMAT, "a format: expected a number, found %s", jinja_type_name(v));
		add_float(j, t, jinja_to_double(v), s);
	} else if (s->type == 'c') {
		struct jinja_text c = { 0 };

		if (v.kind == JINJA_STR && v.s->n_chars == 1)
			jinja_add(j, &c, v.s->p, v.s->len);
		else if (is_int(v) && jinja_to_int(v) >= 0 && jinja_to_int(v) <= 0x10ffff &&
			 jinja_to_int(v) >> 11 != 0x1b)
			jinja_add_char(j, &c, (uint32_t)jinja_to_int(v), NULL);
		else
			jinja_fail(j, OD_ERR_FORMAT, "a format: expected a character for %%c, found %s",
				   jinja_type_name(v));
		s->precision = -1;
		add_text(j, t, jinja_str_take(j, &c), s, '>');
	} else {
		add_text(j, t,
			 s->type == 's' ? jinja_str_of(j, v) :
			 s->type == 'r' ? repr_of(j, v) :
					  ascii_repr(j, v),
			 s, '>');
	}
}

static void add_conversion(struct percent *q, struct jinja_text *t)
{
	struct spec s = { .fill = jinja_str_z(q->r.j, " ")->p, .fill_len = 1, .width = 0, .precision = -1 };
	struct jinja_value v = JINJA_ABSENT_VALUE;
	struct jinja_job *j = q->r.j;

	if (q->r.p < q->r.end && *q->r.p == '(')
		v = named_value(q);
	read_flags(q, &s);
	s.width = read_size(q, 0, MAX_WIDTH);
	if (s.width < 0) {
		s.align = '<';
		s.width = -s.width;
	}
	if (q->r.p < q->r.end && *q->r.p == '.') {
		q->r.p++;
		s.precision = read_size(q, 0, MAX_PRECISION);
		s.precision = s.precision < 0 ? 0 : s.precision;
	}
	while (q->r.p < q->r.end && (*q->r.p == 'l' || *q->r.p == 'h' || *q->r.p == 'L'))
		q->r.p++;
	if (q->r.p == q->r.end)
		jinja_fail(j, OD_ERR_FORMAT, "'%%': a format ends within a conversion");
	s.type = *q->r.p++;
	if (s.type == '%') {
		jinja_lit(j, t, "%");
		return;
	}
	if (s.type == '\0' || strchr("diuoxXeEfFgGcsra", s.type) == NULL)
		jinja_fail(j, OD_ERR_FORMAT, "'%%': a conversion '%c' does not exist",
			   s.type >= 32 && s.type < 127 ? s.type : '?');
	add_percent_value(q, t, v.kind != JINJA_ABSENT ? v : next_value(q), &s);
}

struct jinja_value jinja_percent(struct jinja_job *j, const struct jinja_str *s, struct jinja_value values)
{
	struct percent q = { .r = { .j = j, .p = s->p, .end = s->p + s->len }, .values = values };
	struct jinja_text t = { 0 };

	while (q.r.p < q.r.end) {
		const char *percent = memchr(q.r.p, '%', (size_t)(q.r.end - q.r.p));

		if (percent == NULL)
			percent = q.r.end;
		jinja_charge(j, 1);
		jinja_add(j, &t, q.r.p, (size_t)(percent - q.r.p));
		q.r.p = percent;
		if (q.r.p < q.r.end) {
			q.r.p++;
			add_conversion(&q, &t);
		}
	}
	if (values.kind == JINJA_TUPLE ? q.next < values.seq->n :
					 !q.used && values.kind != JINJA_DICT && values.kind != JINJA_LIST &&
						 values.kind != JINJA_RANGE && values.kind != JINJA_UNDEFINED)
		jinja_fail(j, OD_ERR_FORMAT, "'%%': there are more values than the format takes");
	return jinja_of_str(jinja_str_markup(j, jinja_str_take(j, &t), s->markup));
}

/* ---- s.format(...) ---- */

static void add_format(struct format_reader *r, struct jinja_text *t, unsigned depth);

/* "[[fill]align][sign][#][0][width][group][.precision][type]" */
static void read_spec(struct jinja_job *j, const struct jinja_str *text, struct spec *s)
{
	struct format_reader r = { .j = j, .p = text->p, .end = text->p + text->len };
	const size_t first = text->len > 0 ? jinja_char_bytes(text->p) : 0;

	*s = (struct spec){ .fill = jinja_str_z(j, " ")->p, .fill_len = 1, .width = 0, .precision = -1 };
	if (text->len > first && text->p[first] != '\0' && strchr("<>^=", text->p[first]) != NULL) {
		s->fill = text->p;
		s->fill_len = first;
		s->align = text->p[first];
		r.p += first + 1;
	} else if (text->len > 0 && text->p[0] != '\0' && strchr("<>^=", text->p[0]) != NULL) {
		s->align = *r.p++;
	}
	if (r.p < r.end && (*r.p == '+' || *r.p == '-' || *r.p == ' '))
		s->sign = *r.p++;
	if (r.p < r.end && *r.p == '#') {
		s->alternate = true;
		r.p++;
	}
	if (r.p < r.end && *r.p == '0') {
		s->zero = true;
		if (s->align == 0) {
			s->align = '=';
			s->fill = jinja_str_z(j, "0")->p;
			s->fill_len = 1;
		}
	}
	s->width = read_number(&r, 0, MAX_WIDTH);
	if (r.p < r.end && (*r.p == ',' || *r.p == '_'))
		s->group = *r.p++;
	if (r.p < r.end && *r.p == '.') {
		r.p++;
		s->precision = read_number(&r, -1, MAX_PRECISION);
		if (s->precision < 0)
			jinja_fail(j, OD_ERR_FORMAT, "format: expected a precision after '.'");
	}
	if (r.p < r.end)
		s->type = *r.p++;
	if (r.p < r.end)
		jinja_fail(j, OD_ERR_FORMAT, "format: the specification '%.*s' is not valid",
			   (int)(text->len < 60 ? text->len : 60), text->p);
}

_Noreturn static void bad_type(struct jinja_job *j, const struct spec *s, struct jinja_value v)
{
	jinja_fail(j, OD_ERR_FORMAT, "format: a specification with '%c' does not fit %s",
		   s->type >= 32 && s->type < 127 ? s->type : '?', jinja_type_name(v));
}

static void add_by_spec(struct jinja_job *j, struct jinja_text *t, struct jinja_value v, const struct jinja_str *text)
{
	struct spec s;

	if (text->len == 0) {
		jinja_add_str(j, t, v);
		return;
	}
	read_spec(j, text, &s);
	if (v.kind == JINJA_STR) {
		if (s.zero && s.align == '=')
			s.align = '<'; /* since Python 3.10 zeros are a fill like another */
		if ((s.type != 0 && s.type != 's') || s.align == '=' || s.sign != 0 || s.alternate || s.group != 0)
			bad_type(j, &s, v);
		add_text(j, t, v.s, &s, '<');
	} else if (v.kind == JINJA_FLOAT ||
		   ((is_int(v) || v.kind == JINJA_BIG) && s.type != 0 && strchr("eEfFgG%", s.type) != NULL)) {
		if (s.type != 0 && strchr("eEfFgGn%", s.type) == NULL)
			bad_type(j, &s, v);
		add_float(j, t, jinja_to_double(v), &s);
	} else if (is_int(v) || v.kind == JINJA_BIG) {
		if ((s.type != 0 && strchr("bdoxXn", s.type) == NULL) || s.precision >= 0 ||
		    (s.group == ',' && s.type != 0 && s.type != 'd'))
			bad_type(j, &s, v);
		add_int(j, t, jinja_arg_int(j, v, 0, "format"), &s);
	} else {
		bad_type(j, &s, v);
	}
}

static struct jinja_value positional(struct format_reader *r, size_t i)
{
	if (i >= r->call->n_pos)
		jinja_fail(r->j, OD_ERR_FORMAT, "format: there is no argument %zu", i);
	return r->call->pos[i];
}

/* The argument that a field begins with: nothing, a number, or a name. */
static struct jinja_value first_value(struct format_reader *r)
{
	const char *begin = r->p;
	const struct jinja_value *v;
	bool digits = true;
	size_t len;

	for (; r->p < r->end && strchr(".[!:{}", *r->p) == NULL; r->p++)
		digits = digits && *r->p >= '0' && *r->p <= '9';
	len = (size_t)(r->p - begin);
	r->automatic = r->automatic || len == 0;
	r->numbered = r->numbered || (len > 0 && digits);
	if (r->automatic && r->numbered)
		jinja_fail(r->j, OD_ERR_FORMAT, "format: expected all fields with numbers or none");
	if (len == 0)
		return positional(r, r->next++);
	if (digits) {
		struct format_reader number = { .j = r->j, .p = begin, .end = r->p };

		return positional(r, (size_t)read_number(&number, 0, MAX_WIDTH));
	}
	v = r->call->kw != NULL ? jinja_dict_get(r->j, r->call->kw, jinja_of_str(jinja_str_borrow(r->j, begin, len))) :
				  NULL;
	if (v == NULL)
		jinja_fail(r->j, OD_ERR_FORMAT, "format: there is no argument '%.*s'", (int)(len < 60 ? len : 60),
			   begin);
	return *v;
}

static struct jinja_value field_value(struct format_reader *r)
{
	struct jinja_value v = first_value(r);
	int64_t i;

	while (r->p < r->end && (*r->p == '.' || *r->p == '[')) {
		const bool item = *r->p++ == '[';
		const char *begin = r->p;
		const struct jinja_str *name;

		while (r->p < r->end && (item ? *r->p != ']' : strchr(".[!:{}", *r->p) == NULL))
			r->p++;
		name = jinja_str_borrow(r->j, begin, (size_t)(r->p - begin));
		if (name->len == 0 || (item && r->p == r->end))
			jinja_fail(r->j, OD_ERR_FORMAT, "format: expected a name in a field, found none");
		r->p += item;
		if (!item)
			v = jinja_get_attribute(r->j, v, name);
		else if (name->p[0] >= '0' && name->p[0] <= '9' && jinja_parse_int(r->j, name, 10, &i))
			v = jinja_get_item(r->j, v, jinja_int(i));
		else
			v = jinja_get_item(r->j, v, jinja_of_str(name));
	}
	return v;
}

static void add_field(struct format_reader *r, struct jinja_text *t, unsigned depth)
{
	struct jinja_value v = field_value(r);
	struct jinja_text spec = { 0 };
	char conversion = 0;

	if (r->p < r->end && *r->p == '!') {
		r->p++;
		conversion = r->p < r->end ? *r->p++ : 0;
		if (conversion == 's')
			v = jinja_of_str(jinja_str_of(r->j, v));
		else if (conversion == 'r')
			v = jinja_of_str(repr_of(r->j, v));
		else if (conversion == 'a')
			v = jinja_of_str(ascii_repr(r->j, v));
		else
			jinja_fail(r->j, OD_ERR_FORMAT, "format: expected !s, !r or !a, found another conversion");
	}
	if (r->p < r->end && *r->p == ':') {
		r->p++;
		add_format(r, &spec, depth + 1);
	}
	if (r->p == r->end || *r->p != '}')
		jinja_fail(r->j, OD_ERR_FORMAT, "format: expected '}' at the end of a field");
	r->p++;
	add_by_spec(r->j, t, v, jinja_str_take(r->j, &spec));
}

/* Up to the end; of a specification (depth > 0) up to the '}' of its field. */
static void add_format(struct format_reader *r, struct jinja_text *t, unsigned depth)
{
	if (depth >= MAX_SPEC_DEPTH + 1)
		jinja_fail(r->j, OD_ERR_FORMAT, "format: fields are nested too deep");
	while (r->p < r->end) {
		jinja_charge(r->j, 1);
		if (depth > 0 && *r->p == '}')
			return;
		if (*r->p != '{' && *r->p != '}') {
			jinja_add(r->j, t, r->p++, 1);
		} else if (depth == 0 && r->end - r->p > 1 && r->p[1] == *r->p) {
			jinja_add(r->j, t, r->p, 1);
			r->p += 2;
		} else if (*r->p == '}') {
			jinja_fail(r->j, OD_ERR_FORMAT, "format: a single '}' in the text");
		} else {
			r->p++;
			add_field(r, t, depth);
		}
	}
}

struct jinja_value jinja_format(struct jinja_job *j, const struct jinja_str *s, const struct jinja_call *call)
{
	struct format_reader r = { .j = j, .p = s->p, .end = s->p + s->len, .call = call };
	struct jinja_text t = { 0 };

	add_format(&r, &t, 0);
	return jinja_text_value(j, &t);
}
