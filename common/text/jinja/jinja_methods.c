/* Methods and attributes of strings, dicts, lists, tuples and numbers, as far as the sandbox gives them to
 * templates. */
#include "common/text/jinja/jinja_methods.h"

#include "common/text/jinja/jinja_format.h"
#include "common/text/jinja/jinja_ops.h"

#include <math.h>
#include <string.h>

#include "common/text/jinja/jinja_strings.h"
#include "common/text/jinja/jinja_unicode.h"

#define METHOD(name) \
	static struct jinja_value name(struct jinja_job *j, struct jinja_value self, const struct jinja_value *arg, \
				       const struct jinja_call *call)

/* A method without arguments. */
#define SIMPLE_METHOD(name, expression) \
	METHOD(name) \
	{ \
		(void)arg; \
		(void)call; \
		(void)j; \
		return expression; \
	}

/* ---- str ---- */

static const struct jinja_str *chars_or_null(struct jinja_job *j, struct jinja_value arg, const char *what)
{
	return jinja_given(arg) ? jinja_arg_str(j, arg, what) : NULL;
}

METHOD(s_strip)
{
	(void)call;
	return jinja_of_str(jinja_strip(j, self.s, chars_or_null(j, arg[0], "strip"), JINJA_BOTH));
}

METHOD(s_lstrip)
{
	(void)call;
	return jinja_of_str(jinja_strip(j, self.s, chars_or_null(j, arg[0], "lstrip"), JINJA_LEFT));
}

METHOD(s_rstrip)
{
	(void)call;
	return jinja_of_str(jinja_strip(j, self.s, chars_or_null(j, arg[0], "rstrip"), JINJA_RIGHT));
}

METHOD(s_split)
{
	(void)call;
	return jinja_list(jinja_split(j, self.s, chars_or_null(j, arg[0], "split"),
				      jinja_arg_int(j, arg[1], -1, "split"), JINJA_LEFT));
}

METHOD(s_rsplit)
{
	(void)call;
	return jinja_list(jinja_split(j, self.s, chars_or_null(j, arg[0], "rsplit"),
				      jinja_arg_int(j, arg[1], -1, "rsplit"), JINJA_RIGHT));
}

METHOD(s_splitlines)
{
	(void)call;
	return jinja_list(jinja_splitlines(j, self.s, jinja_truth(j, arg[0])));
}

METHOD(s_replace)
{
	(void)call;
	return jinja_of_str(jinja_replace(j, self.s, jinja_arg_str(j, arg[0], "replace"),
					  jinja_arg_str(j, arg[1], "replace"),
					  jinja_arg_int(j, arg[2], -1, "replace")));
}

SIMPLE_METHOD(s_upper, jinja_of_str(jinja_upper(j, self.s)))
SIMPLE_METHOD(s_lower, jinja_of_str(jinja_lower(j, self.s)))
SIMPLE_METHOD(s_title, jinja_of_str(jinja_title(j, self.s)))
SIMPLE_METHOD(s_capitalize, jinja_of_str(jinja_capitalize(j, self.s)))
SIMPLE_METHOD(s_swapcase, jinja_of_str(jinja_swapcase(j, self.s)))
SIMPLE_METHOD(s_islower, jinja_bool(jinja_str_is_lower(self.s)))
SIMPLE_METHOD(s_isupper, jinja_bool(jinja_str_is_upper(self.s)))

static bool all_chars(const struct jinja_str *s, bool (*is)(uint32_t), bool if_empty)
{
	size_t n;

	for (size_t at = 0; at < s->len; at += n)
		if (!is(jinja_char_at(s->p + at, &n)))
			return false;
	return s->len > 0 || if_empty;
}

static bool is_alnum(uint32_t c)
{
	return jinja_is_alpha(c) || jinja_is_decimal(c) || jinja_is_digit(c) || jinja_is_numeric(c);
}

static bool is_ascii(uint32_t c)
{
	return c < 0x80;
}

static bool is_identifier(const struct jinja_str *s)
{
	size_t n = 0;

	return s->len > 0 && jinja_is_name_start(jinja_char_at(s->p, &n)) && all_chars(s, jinja_is_name, false);
}

static bool is_title(const struct jinja_str *s)
{
	bool after_cased = false, any = false;
	size_t n;

	for (size_t at = 0; at < s->len; at += n) {
		uint32_t c = jinja_char_at(s->p + at, &n);
		bool capital = jinja_is_upper(c) || jinja_is_title(c);

		if (capital ? after_cased : jinja_is_lower(c) && !after_cased)
			return false;
		after_cased = jinja_is_cased(c);
		any = any || after_cased;
	}
	return any;
}

SIMPLE_METHOD(s_isalpha, jinja_bool(all_chars(self.s, jinja_is_alpha, false)))
SIMPLE_METHOD(s_isalnum, jinja_bool(all_chars(self.s, is_alnum, false)))
SIMPLE_METHOD(s_isascii, jinja_bool(all_chars(self.s, is_ascii, true)))
SIMPLE_METHOD(s_isdecimal, jinja_bool(all_chars(self.s, jinja_is_decimal, false)))
SIMPLE_METHOD(s_isdigit, jinja_bool(all_chars(self.s, jinja_is_digit, false)))
SIMPLE_METHOD(s_isnumeric, jinja_bool(all_chars(self.s, jinja_is_numeric, false)))
SIMPLE_METHOD(s_isspace, jinja_bool(all_chars(self.s, jinja_is_space, false)))
SIMPLE_METHOD(s_isprintable, jinja_bool(all_chars(self.s, jinja_is_printable, true)))
SIMPLE_METHOD(s_isidentifier, jinja_bool(is_identifier(self.s)))
SIMPLE_METHOD(s_istitle, jinja_bool(is_title(self.s)))

/* Characters [begin, end) of arg[1] and arg[2]; false: no text begins there, not even an empty one. */
static bool clip(struct jinja_job *j, struct jinja_value self, const struct jinja_value *arg,
		 const struct jinja_str **out)
{
	const int64_t n = (int64_t)self.s->n_chars;
	int64_t begin = jinja_given(arg[1]) ? jinja_arg_int(j, arg[1], 0, "a position") : 0;
	int64_t end = jinja_given(arg[2]) ? jinja_arg_int(j, arg[2], n, "a position") : n;

	begin = begin < 0 ? (begin + n < 0 ? 0 : begin + n) : begin;
	end = end > n ? n : end < 0 ? (end + n < 0 ? 0 : end + n) : end;
	if (begin > end)
		return false;
	*out = jinja_str_chars(j, self.s, (size_t)begin, (size_t)end);
	return true;
}

static bool has_affix(const struct jinja_str *s, const struct jinja_str *affix, enum jinja_side side)
{
	if (affix->len > s->len)
		return false;
	return affix->len == 0 ||
	       memcmp(side == JINJA_LEFT ? s->p : s->p + s->len - affix->len, affix->p, affix->len) == 0;
}

static struct jinja_value has_any_affix(struct jinja_job *j, struct jinja_value self, const struct jinja_value *arg,
					enum jinja_side side)
{
	const char *what = side == JINJA_LEFT ? "startswith" : "endswith";
	const struct jinja_str *s;
	bool any = false;

	if (arg[0].kind != JINJA_TUPLE)
		jinja_arg_str(j, arg[0], what);
	if (!clip(j, self, arg, &s))
		return jinja_bool(false);
	if (arg[0].kind == JINJA_STR)
		return jinja_bool(has_affix(s, arg[0].s, side));
	for (size_t i = 0; i < arg[0].seq->n && !any; i++)
		any = has_affix(s, jinja_arg_str(j, arg[0].seq->v[i], what), side);
	return jinja_bool(any);
}

METHOD(s_startswith)
{
	(void)call;
	return has_any_affix(j, self, arg, JINJA_LEFT);
}

METHOD(s_endswith)
{
	(void)call;
	return has_any_affix(j, self, arg, JINJA_RIGHT);
}

METHOD(s_removeprefix)
{
	const struct jinja_str *prefix = jinja_arg_str(j, arg[0], "removeprefix");

	(void)call;
	if (!has_affix(self.s, prefix, JINJA_LEFT))
		return self;
	return jinja_of_str(jinja_str_chars(j, self.s, prefix->n_chars, self.s->n_chars));
}

METHOD(s_removesuffix)
{
	const struct jinja_str *suffix = jinja_arg_str(j, arg[0], "removesuffix");

	(void)call;
	if (!has_affix(self.s, suffix, JINJA_RIGHT))
		return self;
	return jinja_of_str(jinja_str_chars(j, self.s, 0, self.s->n_chars - suffix->n_chars));
}

static int64_t position_of(struct jinja_job *j, struct jinja_value self, const struct jinja_value *arg,
			   enum jinja_side side)
{
	const int64_t begin = jinja_given(arg[1]) ? jinja_arg_int(j, arg[1], 0, "find") : 0;
	const int64_t end = jinja_given(arg[2]) ? jinja_arg_int(j, arg[2], 0, "find") : INT64_MAX;

	return jinja_find(j, self.s, jinja_arg_str(j, arg[0], "find"), begin, end, side);
}

static struct jinja_value must_be_found(struct jinja_job *j, int64_t at)
{
	if (at < 0)
		jinja_fail(j, OD_ERR_FORMAT, "index: the text was not found");
	return jinja_int(at);
}

METHOD(s_find)
{
	(void)call;
	return jinja_int(position_of(j, self, arg, JINJA_LEFT));
}

METHOD(s_rfind)
{
	(void)call;
	return jinja_int(position_of(j, self, arg, JINJA_RIGHT));
}

METHOD(s_index)
{
	(void)call;
	return must_be_found(j, position_of(j, self, arg, JINJA_LEFT));
}

METHOD(s_rindex)
{
	(void)call;
	return must_be_found(j, position_of(j, self, arg, JINJA_RIGHT));
}

METHOD(s_count)
{
	(void)call;
	return jinja_int(jinja_count(j, self.s, jinja_arg_str(j, arg[0], "count"),
				     jinja_given(arg[1]) ? jinja_arg_int(j, arg[1], 0, "count") : 0,
				     jinja_given(arg[2]) ? jinja_arg_int(j, arg[2], 0, "count") : INT64_MAX));
}

METHOD(s_join)
{
	const struct jinja_seq *s = jinja_items(j, arg[0]);
	struct jinja_text t = { 0 };

	(void)call;
	for (size_t i = 0; i < s->n; i++) {
		if (s->v[i].kind != JINJA_STR)
			jinja_fail(j, OD_ERR_FORMAT, "join: expected strings, found %s", jinja_type_name(s->v[i]));
		if (i > 0)
			jinja_add(j, &t, self.s->p, self.s->len);
		jinja_add(j, &t, s->v[i].s->p, s->v[i].s->len);
	}
	return jinja_text_value(j, &t);
}

static struct jinja_value partition(struct jinja_job *j, struct jinja_value self, struct jinja_value sep,
				    enum jinja_side side)
{
	const struct jinja_str *s = jinja_arg_str(j, sep, "partition"), *empty = jinja_str_z(j, "");
	const struct jinja_str *piece[3] = { self.s, empty, empty };
	struct jinja_seq *out = jinja_seq_new(j, 3);
	int64_t at;

	if (s->len == 0)
		jinja_fail(j, OD_ERR_FORMAT, "partition: the separator is empty");
	at = jinja_find(j, self.s, s, 0, INT64_MAX, side);
	if (at >= 0) {
		piece[0] = jinja_str_chars(j, self.s, 0, (size_t)at);
		piece[1] = s;
		piece[2] = jinja_str_chars(j, self.s, (size_t)at + s->n_chars, self.s->n_chars);
	} else if (side == JINJA_RIGHT) {
		piece[0] = empty;
		piece[2] = self.s;
	}
	for (size_t i = 0; i < 3; i++)
		jinja_push(j, out, jinja_of_str(piece[i]));
	return jinja_tuple(out);
}

METHOD(s_partition)
{
	(void)call;
	return partition(j, self, arg[0], JINJA_LEFT);
}

METHOD(s_rpartition)
{
	(void)call;
	return partition(j, self, arg[0], JINJA_RIGHT);
}

static struct jinja_value pad(struct jinja_job *j, struct jinja_value self, const struct jinja_value *arg,
			      enum jinja_side side)
{
	const struct jinja_str *fill =
		arg[1].kind != JINJA_ABSENT ? jinja_arg_str(j, arg[1], "a fill") : jinja_str_z(j, " ");

	return jinja_of_str(jinja_pad(j, self.s, jinja_arg_int(j, arg[0], 0, "a width"), fill, side));
}

METHOD(s_center)
{
	(void)call;
	return pad(j, self, arg, JINJA_BOTH);
}

METHOD(s_ljust)
{
	(void)call;
	return pad(j, self, arg, JINJA_RIGHT);
}

METHOD(s_rjust)
{
	(void)call;
	return pad(j, self, arg, JINJA_LEFT);
}

METHOD(s_zfill)
{
	const int64_t width = jinja_arg_int(j, arg[0], 0, "zfill");
	const bool sign = self.s->len > 0 && (self.s->p[0] == '+' || self.s->p[0] == '-');
	const struct jinja_str *digits = sign ? jinja_str_chars(j, self.s, 1, self.s->n_chars) : self.s;

	(void)call;
	digits = jinja_pad(j, digits, width - sign, jinja_str_z(j, "0"), JINJA_LEFT);
	return jinja_of_str(sign ? jinja_concat(j, jinja_str_chars(j, self.s, 0, 1), digits) : digits);
}

METHOD(s_expandtabs)
{
	const int64_t size = jinja_arg_int(j, arg[0], 8, "expandtabs");
	struct jinja_text t = { 0 };
	int64_t column = 0;
	size_t n;

	(void)call;
	for (size_t at = 0; at < self.s->len; at += n) {
		n = jinja_char_bytes(self.s->p + at);
		if (self.s->p[at] == '\t') {
			int64_t spaces = size > 0 ? size - column % size : 0;

			for (int64_t i = 0; i < spaces; i++)
				jinja_addf_of(j, &t, self.s->p + at, " ");
			column += spaces;
			continue;
		}
		jinja_add(j, &t, self.s->p + at, n);
		column = self.s->p[at] == '\n' || self.s->p[at] == '\r' ? 0 : column + 1;
	}
	return jinja_text_value(j, &t);
}

METHOD(s_format)
{
	(void)arg;
	return jinja_format(j, self.s, call);
}

METHOD(s_format_map)
{
	struct jinja_call by_name = { 0 };

	(void)call;
	if (arg[0].kind != JINJA_DICT)
		jinja_fail(j, OD_ERR_FORMAT, "format_map: expected a dict, found %s", jinja_type_name(arg[0]));
	by_name.kw = arg[0].dict;
	return jinja_format(j, self.s, &by_name);
}

static const struct jinja_function str_methods[] = {
	{ "capitalize", "", s_capitalize },
	{ "center", "/width fill?", s_center },
	{ "count", "/sub start? end?", s_count },
	{ "endswith", "/suffix start? end?", s_endswith },
	{ "expandtabs", "tabsize?", s_expandtabs },
	{ "find", "/sub start? end?", s_find },
	{ "format", "*", s_format },
	{ "format_map", "/mapping", s_format_map },
	{ "index", "/sub start? end?", s_index },
	{ "isalnum", "", s_isalnum },
	{ "isalpha", "", s_isalpha },
	{ "isascii", "", s_isascii },
	{ "isdecimal", "", s_isdecimal },
	{ "isdigit", "", s_isdigit },
	{ "isidentifier", "", s_isidentifier },
	{ "islower", "", s_islower },
	{ "isnumeric", "", s_isnumeric },
	{ "isprintable", "", s_isprintable },
	{ "isspace", "", s_isspace },
	{ "istitle", "", s_istitle },
	{ "isupper", "", s_isupper },
	{ "join", "/items", s_join },
	{ "ljust", "/width fill?", s_ljust },
	{ "lower", "", s_lower },
	{ "lstrip", "/chars?", s_lstrip },
	{ "partition", "/sep", s_partition },
	{ "removeprefix", "/prefix", s_removeprefix },
	{ "removesuffix", "/suffix", s_removesuffix },
	{ "replace", "/old new count?", s_replace },
	{ "rfind", "/sub start? end?", s_rfind },
	{ "rindex", "/sub start? end?", s_rindex },
	{ "rjust", "/width fill?", s_rjust },
	{ "rpartition", "/sep", s_rpartition },
	{ "rsplit", "sep? maxsplit?", s_rsplit },
	{ "rstrip", "/chars?", s_rstrip },
	{ "split", "sep? maxsplit?", s_split },
	{ "splitlines", "keepends?", s_splitlines },
	{ "startswith", "/prefix start? end?", s_startswith },
	{ "strip", "/chars?", s_strip },
	{ "swapcase", "", s_swapcase },
	{ "title", "", s_title },
	{ "upper", "", s_upper },
	{ "zfill", "/width", s_zfill },
	{ NULL, NULL, NULL },
};

/* ---- dict, list, tuple, numbers, cycler ---- */

METHOD(d_get)
{
	const struct jinja_value *v = jinja_dict_get(j, self.dict, arg[0]);

	(void)call;
	if (v != NULL)
		return *v;
	return arg[1].kind != JINJA_ABSENT ? arg[1] : JINJA_NONE_VALUE;
}

static struct jinja_value view_of(struct jinja_job *j, struct jinja_value self, enum jinja_view_of of)
{
	struct jinja_view *v = jinja_alloc(j, sizeof(*v));

	v->of = of;
	v->dict = self.dict;
	return (struct jinja_value){ .kind = JINJA_VIEW, .view = v };
}

SIMPLE_METHOD(d_keys, view_of(j, self, JINJA_KEYS))
SIMPLE_METHOD(d_values, view_of(j, self, JINJA_VALUES))
SIMPLE_METHOD(d_items, view_of(j, self, JINJA_ITEMS))
SIMPLE_METHOD(copy, self) /* nothing changes the original */

METHOD(l_count)
{
	int64_t n = 0;

	(void)call;
	for (size_t i = 0; i < self.seq->n; i++)
		n += jinja_same(self.seq->v[i], arg[0]) || jinja_equal(j, self.seq->v[i], arg[0]);
	return jinja_int(n);
}

METHOD(l_index)
{
	const int64_t n = (int64_t)self.seq->n;
	int64_t begin = jinja_arg_int(j, arg[1], 0, "index"), end = jinja_arg_int(j, arg[2], INT64_MAX, "index");

	(void)call;
	begin = begin < 0 ? (begin + n < 0 ? 0 : begin + n) : begin;
	end = end < 0 ? (end + n < 0 ? 0 : end + n) : end;
	for (int64_t i = begin; i < n && i < end; i++)
		if (jinja_same(self.seq->v[i], arg[0]) || jinja_equal(j, self.seq->v[i], arg[0]))
			return jinja_int(i);
	jinja_fail(j, OD_ERR_FORMAT, "index: the value is not in the %s", jinja_type_name(self));
}

static int64_t bits(int64_t i)
{
	uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;

	return u == 0 ? 0 : 64 - __builtin_clzll(u);
}

SIMPLE_METHOD(i_bit_length, jinja_int(bits(jinja_to_int(self))))
SIMPLE_METHOD(n_is_integer, jinja_bool(isfinite(self.f) && floor(self.f) == self.f))

METHOD(c_next)
{
	struct jinja_value v = self.cycler->items->v[self.cycler->next];

	(void)j;
	(void)arg;
	(void)call;
	self.cycler->next = (self.cycler->next + 1) % self.cycler->items->n;
	return v;
}

METHOD(c_reset)
{
	(void)j;
	(void)arg;
	(void)call;
	self.cycler->next = 0;
	return JINJA_NONE_VALUE;
}

/* Without a function: the sandbox keeps it from templates, because it changes the value. */
static const struct jinja_function dict_methods[] = {
	{ "copy", "", copy },	    { "get", "/key default?", d_get },
	{ "items", "", d_items },   { "keys", "", d_keys },
	{ "values", "", d_values }, { "clear", "", NULL },
	{ "pop", "", NULL },	    { "popitem", "", NULL },
	{ "setdefault", "", NULL }, { "update", "", NULL },
	{ NULL, NULL, NULL },
};
static const struct jinja_function list_methods[] = {
	{ "copy", "", copy },
	{ "count", "/value", l_count },
	{ "index", "/value start? end?", l_index },
	{ "append", "", NULL },
	{ "clear", "", NULL },
	{ "extend", "", NULL },
	{ "insert", "", NULL },
	{ "pop", "", NULL },
	{ "remove", "", NULL },
	{ "reverse", "", NULL },
	{ "sort", "", NULL },
	{ NULL, NULL, NULL },
};
static const struct jinja_function tuple_methods[] = {
	{ "count", "/value", l_count },
	{ "index", "/value start? end?", l_index },
	{ NULL, NULL, NULL },
};
static const struct jinja_function int_methods[] = { { "bit_length", "", i_bit_length }, { NULL, NULL, NULL } };
static const struct jinja_function float_methods[] = { { "is_integer", "", n_is_integer }, { NULL, NULL, NULL } };
static const struct jinja_function cycler_methods[] = {
	{ "next", "", c_next },
	{ "reset", "", c_reset },
	{ NULL, NULL, NULL },
};

static const struct jinja_function *const methods_of[] = {
	[JINJA_STR] = str_methods,     [JINJA_DICT] = dict_methods,	[JINJA_LIST] = list_methods,
	[JINJA_TUPLE] = tuple_methods, [JINJA_INT] = int_methods,	[JINJA_BOOL] = int_methods,
	[JINJA_FLOAT] = float_methods, [JINJA_CYCLER] = cycler_methods, [JINJA_JOINER] = NULL,
};

static bool plain_attribute(struct jinja_job *j, struct jinja_value of, const struct jinja_str *name,
			    struct jinja_value *out)
{
	if (of.kind == JINJA_TUPLE && of.seq->group && (jinja_str_is(name, "grouper") || jinja_str_is(name, "list")))
		*out = of.seq->v[jinja_str_is(name, "list")];
	else if (of.kind == JINJA_CYCLER && jinja_str_is(name, "current"))
		*out = of.cycler->items->v[of.cycler->next];
	else if (jinja_is_number(of) && jinja_str_is(name, "real"))
		*out = jinja_plus(j, of);
	else if (jinja_is_number(of) && jinja_str_is(name, "imag"))
		*out = of.kind == JINJA_FLOAT ? jinja_float(0) : jinja_int(0);
	else
		return false;
	return true;
}

bool jinja_value_attribute(struct jinja_job *j, struct jinja_value of, const struct jinja_str *name,
			   struct jinja_value *out)
{
	const struct jinja_function *table = methods_of[of.kind],
				    *f = table != NULL ? jinja_find_in(table, name) : NULL;
	struct jinja_method *m;
	struct jinja_text t = { 0 };

	if (f == NULL)
		return plain_attribute(j, of, name, out);
	if (f->fn == NULL) {
		jinja_addf(j, &t, "access to attribute '%s' of '%s' object is unsafe.", f->name, jinja_type_name(of));
		jinja_add(j, &t, "", 1);
		*out = jinja_undefined_hint(j, t.p);
		return true;
	}
	m = jinja_alloc(j, sizeof(*m));
	m->self = of;
	m->function = f;
	*out = (struct jinja_value){ .kind = JINJA_METHOD, .method = m };
	return true;
}
