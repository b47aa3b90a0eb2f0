/* jinja_value.h - the values of a template: Python's, as far as templates can tell; only for common/text/jinja.
 *
 * Values live in the arena of their job. Strings, lists, tuples and dicts never change once they are made: the sandbox
 * lets templates change only namespaces.
 * Thread: as the job. Owner: the job. */
#ifndef OD_TEXT_JINJA_VALUE_H
#define OD_TEXT_JINJA_VALUE_H

#include "common/text/jinja/jinja_job.h"

enum jinja_kind {
	JINJA_ABSENT, /* an argument that was not given; never seen by templates */
	JINJA_UNDEFINED,
	JINJA_NONE,
	JINJA_BOOL,
	JINJA_INT,
	JINJA_BIG, /* an int of more than 64 bits: the caller's; whatever is calculated with it is a float */
	JINJA_FLOAT,
	JINJA_STR,
	JINJA_LIST,
	JINJA_TUPLE,
	JINJA_DICT,
	JINJA_VIEW, /* keys(), values() or items() of a dict */
	JINJA_RANGE,
	JINJA_ITERATOR, /* result of filters such as map and select: can be read once */
	JINJA_NAMESPACE,
	JINJA_LOOP,
	JINJA_MACRO,
	JINJA_METHOD, /* a value's method that is not called yet */
	JINJA_FUNCTION, /* a global */
	JINJA_CYCLER,
	JINJA_JOINER,
};

struct jinja_loop; /* jinja_eval.h */
struct jinja_macro; /* jinja_eval.h */
struct jinja_undefined;
struct jinja_str;
struct jinja_big;
struct jinja_seq;
struct jinja_dict;
struct jinja_view;
struct jinja_range;
struct jinja_iterator;
struct jinja_method;
struct jinja_function; /* jinja_calls.h */
struct jinja_cycler;
struct jinja_joiner;

struct jinja_value {
	enum jinja_kind kind;
	union {
		bool b;
		int64_t i;
		double f;
		const struct jinja_undefined *undefined;
		const struct jinja_str *s;
		const struct jinja_big *big;
		const struct jinja_seq *seq; /* JINJA_LIST, JINJA_TUPLE */
		struct jinja_dict *dict; /* JINJA_DICT, JINJA_NAMESPACE */
		const struct jinja_view *view;
		const struct jinja_range *range;
		struct jinja_iterator *iterator;
		struct jinja_loop *loop;
		const struct jinja_macro *macro;
		const struct jinja_method *method;
		const struct jinja_function *function;
		struct jinja_cycler *cycler;
		struct jinja_joiner *joiner;
	};
};

/* Why a value is undefined: hint, or the name of a variable, or of an attribute of a value. */
struct jinja_undefined {
	const char *hint; /* NULL: */
	const char *owner; /* type of the value that has no such attribute; NULL: a variable */
	const struct jinja_str *name; /* NULL with a hint */
};

/* Room behind a string that concatenation filled, so that adding to the same string again and again costs what is
 * added. */
struct jinja_tail {
	size_t used, cap;
	char data[];
};

struct jinja_str {
	const char *p; /* valid UTF-8, not terminated */
	size_t len, n_chars;
	struct jinja_tail *tail; /* holds p; may be NULL */
	bool markup; /* Python's Markup: `+` escapes the other side */
};

struct jinja_big {
	const struct jinja_str *digits; /* with its sign */
	double f; /* about what it is */
};

struct jinja_seq {
	struct jinja_value *v;
	size_t n, cap;
	bool group; /* element of groupby: a tuple with the attributes grouper and list */
};

struct jinja_entry {
	struct jinja_value key, value;
	uint64_t hash;
};

struct jinja_dict { /* in order of insertion */
	struct jinja_entry *e;
	size_t n, cap;
	const char *source; /* its JSON text, for tojson; NULL: none */
	uint32_t *index; /* NULL while it is small; entry + 1, 0: free */
	size_t n_index; /* a power of two */
};

enum jinja_view_of { JINJA_KEYS, JINJA_VALUES, JINJA_ITEMS };

struct jinja_view {
	enum jinja_view_of of;
	struct jinja_dict *dict;
};

struct jinja_range {
	int64_t begin, step;
	size_t n;
	int64_t end; /* as given, for repr */
};

struct jinja_iterator {
	const struct jinja_seq *seq;
	size_t next;
	const char *type; /* "generator" */
	/* not NULL: what the filter expected; a generator fails when it is read, not when it is made */
	const char *expected;
};

struct jinja_method {
	struct jinja_value self;
	const struct jinja_function *function;
};

struct jinja_cycler {
	const struct jinja_seq *items;
	size_t next;
};

struct jinja_joiner {
	const struct jinja_str *separator;
	bool used;
};

#define JINJA_NONE_VALUE ((struct jinja_value){ .kind = JINJA_NONE })
#define JINJA_ABSENT_VALUE ((struct jinja_value){ .kind = JINJA_ABSENT })

static inline struct jinja_value jinja_bool(bool b)
{
	return (struct jinja_value){ .kind = JINJA_BOOL, .b = b };
}
static inline struct jinja_value jinja_int(int64_t i)
{
	return (struct jinja_value){ .kind = JINJA_INT, .i = i };
}
static inline struct jinja_value jinja_float(double f)
{
	return (struct jinja_value){ .kind = JINJA_FLOAT, .f = f };
}
static inline struct jinja_value jinja_of_str(const struct jinja_str *s)
{
	return (struct jinja_value){ .kind = JINJA_STR, .s = s };
}
static inline struct jinja_value jinja_list(const struct jinja_seq *s)
{
	return (struct jinja_value){ .kind = JINJA_LIST, .seq = s };
}
static inline struct jinja_value jinja_tuple(const struct jinja_seq *s)
{
	return (struct jinja_value){ .kind = JINJA_TUPLE, .seq = s };
}
static inline struct jinja_value jinja_of_dict(struct jinja_dict *d)
{
	return (struct jinja_value){ .kind = JINJA_DICT, .dict = d };
}
static inline bool jinja_given(struct jinja_value v) /* an optional argument: neither left out nor none */
{
	return v.kind != JINJA_ABSENT && v.kind != JINJA_NONE;
}

struct jinja_value jinja_undefined_hint(struct jinja_job *j, const char *hint);
struct jinja_value jinja_undefined_name(struct jinja_job *j, const struct jinja_str *name, const char *owner);
/* Ends the job with what jinja2 says when an undefined value is used. */
_Noreturn void jinja_fail_undefined(struct jinja_job *j, const struct jinja_undefined *u);

/* ---- strings ---- */
/* p lives as long as the job */
const struct jinja_str *jinja_str_borrow(struct jinja_job *j, const char *p, size_t len);
const struct jinja_str *jinja_str_copy(struct jinja_job *j, const char *p, size_t len);
/* a text of this program: as if the template had it */
const struct jinja_str *jinja_str_z(struct jinja_job *j, const char *text);
const struct jinja_str *jinja_str_markup(struct jinja_job *j, const struct jinja_str *s, bool markup);
/* Makes a string of t's text; t must not be added to afterwards. */
const struct jinja_str *jinja_str_take(struct jinja_job *j, struct jinja_text *t);
struct jinja_value jinja_text_value(struct jinja_job *j, struct jinja_text *t);
struct jinja_value jinja_z(struct jinja_job *j, const char *text);
const struct jinja_str *jinja_concat(struct jinja_job *j, const struct jinja_str *a, const struct jinja_str *b);
/* Characters [begin, end), both at most n_chars. */
const struct jinja_str *jinja_str_chars(struct jinja_job *j, const struct jinja_str *s, size_t begin, size_t end);
size_t jinja_str_offset(struct jinja_job *j, const struct jinja_str *s, size_t n_chars); /* in bytes */
bool jinja_str_is(const struct jinja_str *s, const char *z);
int jinja_str_compare(const struct jinja_str *a, const struct jinja_str *b); /* as Python: by code point */

/* ---- sequences, dicts ---- */
struct jinja_seq *jinja_seq_new(struct jinja_job *j, size_t room);
void jinja_push(struct jinja_job *j, struct jinja_seq *s, struct jinja_value v);
struct jinja_value jinja_pair(struct jinja_job *j, struct jinja_value a, struct jinja_value b); /* a tuple */
struct jinja_dict *jinja_dict_new(struct jinja_job *j);
void jinja_dict_set(struct jinja_job *j, struct jinja_dict *d, struct jinja_value key, struct jinja_value value);
/* NULL: no such key. A key that cannot be hashed ends the job. */
const struct jinja_value *jinja_dict_get(struct jinja_job *j, const struct jinja_dict *d, struct jinja_value key);
const struct jinja_value *jinja_dict_get_z(struct jinja_job *j, const struct jinja_dict *d, const char *key);
bool jinja_hashable(struct jinja_value v);
/* By key; equal keys keep their order, with reverse too, as Python's sorted. */
void jinja_sort(struct jinja_job *j, struct jinja_entry *item, size_t n, bool reverse);
struct jinja_value jinja_iterator_of(struct jinja_job *j, const struct jinja_seq *s, const char *type);

/* ---- what Python's built-in functions ask ---- */
const char *jinja_type_name(struct jinja_value v); /* "str" */
bool jinja_truth(struct jinja_job *j, struct jinja_value v);
bool jinja_has_len(struct jinja_value v);
size_t jinja_len(struct jinja_job *j, struct jinja_value v);
bool jinja_iterable(struct jinja_value v);
/* All items, in order; not a copy where v is a sequence. Reads an iterator to its end. */
const struct jinja_seq *jinja_items(struct jinja_job *j, struct jinja_value v);
struct jinja_value jinja_big(struct jinja_job *j, const struct jinja_str *digits, double f);
bool jinja_is_number(struct jinja_value v); /* bool, int, float */
double jinja_to_double(struct jinja_value number);
int64_t jinja_to_int(struct jinja_value bool_or_int);
bool jinja_same(struct jinja_value a, struct jinja_value b); /* Python's `is` */
bool jinja_equal(struct jinja_job *j, struct jinja_value a, struct jinja_value b);
/* Below, at or above 0. Values that have no order end the job; op names the operator for the message. */
int jinja_compare(struct jinja_job *j, struct jinja_value a, struct jinja_value b, const char *op);
bool jinja_less(struct jinja_job *j, struct jinja_value a, struct jinja_value b);

#endif
