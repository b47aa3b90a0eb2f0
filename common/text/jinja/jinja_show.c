#include "common/text/jinja/jinja_show.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/jinja/jinja_ops.h"
#include "common/text/jinja/jinja_unicode.h"

#define FLOAT_CHARS 40

static void add_z(struct jinja_job *j, struct jinja_text *t, const char *z)
{
	jinja_add_own(j, t, z, strlen(z));
}

/* The fewest digits of which the nearest double is f: 17 always do. digits: without sign and point, not terminated. */
static size_t shortest(double f, char digits[FLOAT_CHARS], int *exponent)
{
	char text[FLOAT_CHARS];
	size_t n = 0;

	for (int precision = 0; precision < 17; precision++) {
		snprintf(text, sizeof(text), "%.*e", precision, f);
		if (strtod(text, NULL) == f)
			break;
	}
	for (const char *p = text; *p != 'e'; p++)
		if (*p >= '0' && *p <= '9')
			digits[n++] = *p;
	while (n > 1 && digits[n - 1] == '0')
		n--;
	*exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
	return n;
}

static void add_zeros(struct jinja_job *j, struct jinja_text *t, size_t n)
{
	for (; n > 0; n--) /* not many: a number is a double */
		jinja_lit(j, t, "0");
}

void jinja_add_float(struct jinja_job *j, struct jinja_text *t, double f)
{
	char digits[FLOAT_CHARS];
	int exponent;
	size_t n;

	if (isnan(f) || isinf(f)) {
		add_z(j, t, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
		return;
	}
	if (signbit(f))
		add_z(j, t, "-");
	n = shortest(fabs(f), digits, &exponent);
	if (exponent < -4 || exponent >= 16) {
		jinja_add_own(j, t, digits, 1);
		if (n > 1) {
			add_z(j, t, ".");
			jinja_add_own(j, t, digits + 1, n - 1);
		}
		jinja_addf(j, t, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
	} else if (exponent < 0) {
		add_z(j, t, "0.");
		add_zeros(j, t, (size_t)(-exponent - 1));
		jinja_add_own(j, t, digits, n);
	} else {
		size_t whole = (size_t)exponent + 1, given = n < whole ? n : whole;

		jinja_add_own(j, t, digits, given);
		add_zeros(j, t, whole - given);
		add_z(j, t, ".");
		jinja_add_own(j, t, n > whole ? digits + whole : "0", n > whole ? n - whole : 1);
	}
}

/* The character at p. */
static void add_repr_char(struct jinja_job *j, struct jinja_text *t, const char *p, char quote, bool ascii_only)
{
	size_t n;
	const uint32_t c = jinja_char_at(p, &n);

	if (c == (uint32_t)quote || c == '\\')
		jinja_addf_of(j, t, p, "\\%c", (char)c);
	else if (c == '\n' || c == '\r' || c == '\t')
		jinja_addf_of(j, t, p, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
	else if (c < 0x80 ? jinja_is_printable(c) : !ascii_only && jinja_is_printable(c))
		jinja_add(j, t, p, n);
	else if (c < 0x100)
		jinja_addf_of(j, t, p, "\\x%02x", c);
	else if (c < 0x10000)
		jinja_addf_of(j, t, p, "\\u%04x", c);
	else
		jinja_addf_of(j, t, p, "\\U%08x", c);
}

void jinja_add_repr_str(struct jinja_job *j, struct jinja_text *t, const struct jinja_str *s, bool ascii_only)
{
	const bool single = s->len > 0 && memchr(s->p, '\'', s->len) != NULL;
	const char quote = single && memchr(s->p, '"', s->len) == NULL ? '"' : '\'';

	jinja_add_own(j, t, &quote, 1);
	for (size_t at = 0; at < s->len; at += jinja_char_bytes(s->p + at))
		add_repr_char(j, t, s->p + at, quote, ascii_only);
	jinja_add_own(j, t, &quote, 1);
}

static void add_repr_seq(struct jinja_job *j, struct jinja_text *t, const struct jinja_seq *s, const char *open,
			 const char *close)
{
	add_z(j, t, open);
	for (size_t i = 0; i < s->n; i++) {
		if (i > 0)
			add_z(j, t, ", ");
		jinja_add_repr(j, t, s->v[i]);
	}
	add_z(j, t, close);
}

static void add_repr_dict(struct jinja_job *j, struct jinja_text *t, const struct jinja_dict *d)
{
	add_z(j, t, "{");
	for (size_t i = 0; i < d->n; i++) {
		if (i > 0)
			add_z(j, t, ", ");
		jinja_add_repr(j, t, d->e[i].key);
		add_z(j, t, ": ");
		jinja_add_repr(j, t, d->e[i].value);
	}
	add_z(j, t, "}");
}

static void add_repr_range(struct jinja_job *j, struct jinja_text *t, const struct jinja_range *r)
{
	jinja_addf(j, t, "range(%lld, %lld", (long long)r->begin, (long long)r->end);
	if (r->step != 1)
		jinja_addf(j, t, ", %lld", (long long)r->step);
	add_z(j, t, ")");
}

/* Python shows an address where there is nothing better to show: no text of a prompt can depend on that. */
static void add_repr_object(struct jinja_job *j, struct jinja_text *t, struct jinja_value v)
{
	if (v.kind == JINJA_LOOP) {
		add_z(j, t, "<LoopContext ");
		jinja_add_repr(j, t, jinja_get_attribute(j, v, jinja_str_z(j, "index")));
		add_z(j, t, "/");
		jinja_add_repr(j, t, jinja_get_attribute(j, v, jinja_str_z(j, "length")));
		add_z(j, t, ">");
	} else {
		jinja_addf(j, t, "<%s object>", jinja_type_name(v));
	}
}

/* All that are not simple. */
static void add_repr_other(struct jinja_job *j, struct jinja_text *t, struct jinja_value v)
{
	static const char *const view[] = { "dict_keys([", "dict_values([", "dict_items([" };

	if (v.kind == JINJA_LIST) {
		add_repr_seq(j, t, v.seq, "[", "]");
	} else if (v.kind == JINJA_TUPLE) {
		add_repr_seq(j, t, v.seq, "(", v.seq->n == 1 ? ",)" : ")");
	} else if (v.kind == JINJA_DICT) {
		add_repr_dict(j, t, v.dict);
	} else if (v.kind == JINJA_NAMESPACE) {
		add_z(j, t, "<Namespace ");
		add_repr_dict(j, t, v.dict);
		add_z(j, t, ">");
	} else if (v.kind == JINJA_VIEW) {
		add_repr_seq(j, t, jinja_items(j, v), view[v.view->of], "])");
	} else if (v.kind == JINJA_RANGE) {
		add_repr_range(j, t, v.range);
	} else {
		add_repr_object(j, t, v);
	}
}

void jinja_add_repr(struct jinja_job *j, struct jinja_text *t, struct jinja_value v)
{
	jinja_charge(j, 1);
	jinja_enter(j);
	if (v.kind == JINJA_UNDEFINED) {
		add_z(j, t, "Undefined");
	} else if (v.kind == JINJA_STR && v.s->markup) {
		add_z(j, t, "Markup(");
		jinja_add_repr_str(j, t, v.s, false);
		add_z(j, t, ")");
	} else if (v.kind == JINJA_STR) {
		jinja_add_repr_str(j, t, v.s, false);
	} else if (v.kind == JINJA_INT) {
		jinja_addf(j, t, "%lld", (long long)v.i);
	} else if (v.kind == JINJA_BIG) {
		jinja_add(j, t, v.big->digits->p, v.big->digits->len);
	} else if (v.kind == JINJA_FLOAT) {
		jinja_add_float(j, t, v.f);
	} else if (v.kind == JINJA_BOOL) {
		add_z(j, t, v.b ? "True" : "False");
	} else if (v.kind == JINJA_NONE) {
		add_z(j, t, "None");
	} else {
		add_repr_other(j, t, v);
	}
	jinja_leave(j);
}

void jinja_add_str(struct jinja_job *j, struct jinja_text *t, struct jinja_value v)
{
	if (v.kind == JINJA_STR)
		jinja_add(j, t, v.s->p, v.s->len);
	else if (v.kind != JINJA_UNDEFINED)
		jinja_add_repr(j, t, v);
}

const struct jinja_str *jinja_str_of(struct jinja_job *j, struct jinja_value v)
{
	struct jinja_text t = { 0 };

	if (v.kind == JINJA_STR)
		return v.s;
	jinja_add_str(j, &t, v);
	return jinja_str_take(j, &t);
}

const struct jinja_str *jinja_escape(struct jinja_job *j, const struct jinja_str *s)
{
	static const char special[] = "&<>'\"";
	static const char *const entity[] = { "&amp;", "&lt;", "&gt;", "&#39;", "&#34;" };
	struct jinja_text t = { 0 };

	if (s->markup)
		return s;
	for (size_t i = 0; i < s->len; i++) {
		const char *p = s->p[i] != '\0' ? strchr(special, s->p[i]) : NULL;

		if (p != NULL)
			jinja_addf_of(j, &t, s->p + i, "%s", entity[p - special]);
		else
			jinja_add(j, &t, s->p + i, 1);
	}
	return jinja_str_markup(j, jinja_str_take(j, &t), true);
}

/* ---- JSON, as Python's json.dumps writes it ---- */

static void add_json_str(struct jinja_job *j, struct jinja_text *t, const struct jinja_str *s, bool ascii_only)
{
	static const char special[] = "\"\\\n\r\t\f\b", shown[] = "\"\\nrtfb";
	size_t n, plain = 0, at;

	add_z(j, t, "\"");
	for (at = 0; at < s->len; at += n) {
		const uint32_t c = jinja_char_at(s->p + at, &n);
		const char *p = c != 0 && c < 0x80 ? strchr(special, (int)c) : NULL;

		if (p == NULL && c >= 32 && (!ascii_only || c < 0x7f))
			continue;
		jinja_add(j, t, s->p + plain, at - plain);
		plain = at + n;
		if (p != NULL)
			jinja_addf_of(j, t, s->p + at, "\\%c", shown[p - special]);
		else if (c < 0x10000)
			jinja_addf_of(j, t, s->p + at, "\\u%04x", c);
		else
			jinja_addf_of(j, t, s->p + at, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
				      0xdc00 + (c & 0x3ff));
	}
	jinja_add(j, t, s->p + plain, at - plain);
	add_z(j, t, "\"");
}

static void add_json_float(struct jinja_job *j, struct jinja_text *t, double f)
{
	if (isnan(f))
		add_z(j, t, "NaN");
	else if (isinf(f))
		add_z(j, t, f < 0 ? "-Infinity" : "Infinity");
	else
		jinja_add_float(j, t, f);
}

struct json_writer {
	struct jinja_job *j;
	struct jinja_text *t;
	const struct jinja_json_style *style;
	size_t level;
};

static void add_json(struct json_writer *w, struct jinja_value v);

static void new_line(struct json_writer *w)
{
	if (w->style->indent == NULL)
		return;
	add_z(w->j, w->t, "\n");
	jinja_add_times(w->j, w->t, w->style->indent->p, w->style->indent->len, w->level);
}

static void add_json_list(struct json_writer *w, const struct jinja_seq *s)
{
	if (s->n == 0) {
		add_z(w->j, w->t, "[]");
		return;
	}
	add_z(w->j, w->t, "[");
	w->level++;
	for (size_t i = 0; i < s->n; i++) {
		if (i > 0)
			jinja_add(w->j, w->t, w->style->item_separator->p, w->style->item_separator->len);
		new_line(w);
		add_json(w, s->v[i]);
	}
	w->level--;
	new_line(w);
	add_z(w->j, w->t, "]");
}

static void add_json_key(struct json_writer *w, struct jinja_value key)
{
	struct jinja_text t = { 0 };

	if (key.kind == JINJA_STR) {
		add_json_str(w->j, w->t, key.s, w->style->ascii_only);
		return;
	}
	if (key.kind == JINJA_BOOL)
		add_z(w->j, &t, key.b ? "true" : "false");
	else if (key.kind == JINJA_NONE)
		add_z(w->j, &t, "null");
	else if (key.kind == JINJA_FLOAT)
		add_json_float(w->j, &t, key.f);
	else if (key.kind == JINJA_INT)
		jinja_addf(w->j, &t, "%lld", (long long)key.i);
	else if (key.kind == JINJA_BIG)
		jinja_add(w->j, &t, key.big->digits->p, key.big->digits->len);
	else
		jinja_fail(w->j, OD_ERR_FORMAT, "tojson: expected a string as key, found %s", jinja_type_name(key));
	add_json_str(w->j, w->t, jinja_str_take(w->j, &t), w->style->ascii_only);
}

static void add_json_dict(struct json_writer *w, const struct jinja_dict *d)
{
	struct jinja_entry *item = d->e;

	if (d->source != NULL) {
		jinja_add(w->j, w->t, d->source, strlen(d->source)); /* the caller's */
		return;
	}
	if (d->n == 0) {
		add_z(w->j, w->t, "{}");
		return;
	}
	if (w->style->sort_keys) {
		item = jinja_alloc_array(w->j, d->n, sizeof(*item));
		memcpy(item, d->e, d->n * sizeof(*item));
		jinja_sort(w->j, item, d->n, false);
	}
	add_z(w->j, w->t, "{");
	w->level++;
	for (size_t i = 0; i < d->n; i++) {
		if (i > 0)
			jinja_add(w->j, w->t, w->style->item_separator->p, w->style->item_separator->len);
		new_line(w);
		add_json_key(w, item[i].key);
		jinja_add(w->j, w->t, w->style->key_separator->p, w->style->key_separator->len);
		add_json(w, item[i].value);
	}
	w->level--;
	new_line(w);
	add_z(w->j, w->t, "}");
}

static void add_json(struct json_writer *w, struct jinja_value v)
{
	jinja_charge(w->j, 1);
	jinja_enter(w->j);
	if (v.kind == JINJA_STR)
		add_json_str(w->j, w->t, v.s, w->style->ascii_only);
	else if (v.kind == JINJA_NONE)
		add_z(w->j, w->t, "null");
	else if (v.kind == JINJA_BOOL)
		add_z(w->j, w->t, v.b ? "true" : "false");
	else if (v.kind == JINJA_INT)
		jinja_addf(w->j, w->t, "%lld", (long long)v.i);
	else if (v.kind == JINJA_BIG)
		jinja_add(w->j, w->t, v.big->digits->p, v.big->digits->len);
	else if (v.kind == JINJA_FLOAT)
		add_json_float(w->j, w->t, v.f);
	else if (v.kind == JINJA_LIST || v.kind == JINJA_TUPLE)
		add_json_list(w, v.seq);
	else if (v.kind == JINJA_DICT)
		add_json_dict(w, v.dict);
	else
		jinja_fail(w->j, OD_ERR_FORMAT, "tojson: a value of type %s cannot be written as JSON",
			   jinja_type_name(v));
	jinja_leave(w->j);
}

void jinja_add_json(struct jinja_job *j, struct jinja_text *t, struct jinja_value v,
		    const struct jinja_json_style *style)
{
	struct json_writer w = { .j = j, .t = t, .style = style };

	add_json(&w, v);
}
