#include "common/text/jinja/jinja_value.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "common/text/jinja/jinja_unicode.h"

#define SMALL_DICT 8 /* entries that are searched one by one */

struct jinja_value jinja_undefined_hint(struct jinja_job *j, const char *hint)
{
	struct jinja_undefined *u = jinja_alloc(j, sizeof(*u));

	u->hint = hint;
	return (struct jinja_value){ .kind = JINJA_UNDEFINED, .undefined = u };
}

struct jinja_value jinja_undefined_name(struct jinja_job *j, const struct jinja_str *name, const char *owner)
{
	struct jinja_undefined *u = jinja_alloc(j, sizeof(*u));

	u->name = name;
	u->owner = owner;
	return (struct jinja_value){ .kind = JINJA_UNDEFINED, .undefined = u };
}

_Noreturn void jinja_fail_undefined(struct jinja_job *j, const struct jinja_undefined *u)
{
	int len;

	if (u->hint != NULL)
		jinja_fail(j, OD_ERR_FORMAT, "%s", u->hint);
	len = u->name->len < 200 ? (int)u->name->len : 200;
	if (u->owner == NULL)
		jinja_fail(j, OD_ERR_FORMAT, "'%.*s' is undefined", len, u->name->p);
	jinja_fail(j, OD_ERR_FORMAT, "'%s' object has no attribute '%.*s'", u->owner, len, u->name->p);
}

/* ---- strings ---- */

static struct jinja_str *new_str(struct jinja_job *j, const char *p, size_t len)
{
	struct jinja_str *s = jinja_alloc(j, sizeof(*s));

	s->p = p != NULL ? p : ""; /* so that positions in it can be computed */
	s->len = len;
	s->n_chars = jinja_count_chars(p, len);
	return s;
}

const struct jinja_str *jinja_str_borrow(struct jinja_job *j, const char *p, size_t len)
{
	return new_str(j, p, len);
}

const struct jinja_str *jinja_str_copy(struct jinja_job *j, const char *p, size_t len)
{
	struct jinja_text t = { 0 };

	jinja_add(j, &t, p, len);
	return new_str(j, t.p, len);
}

const struct jinja_str *jinja_str_z(struct jinja_job *j, const char *text)
{
	struct jinja_text t = { 0 };

	jinja_add_own(j, &t, text, strlen(text));
	return new_str(j, t.p, t.len);
}

const struct jinja_str *jinja_str_markup(struct jinja_job *j, const struct jinja_str *s, bool markup)
{
	struct jinja_str *m;

	if (s->markup == markup)
		return s;
	m = jinja_alloc(j, sizeof(*m));
	*m = *s;
	m->markup = markup;
	return m;
}

const struct jinja_str *jinja_str_take(struct jinja_job *j, struct jinja_text *t)
{
	return new_str(j, t->p, t->len);
}

struct jinja_value jinja_text_value(struct jinja_job *j, struct jinja_text *t)
{
	return jinja_of_str(jinja_str_take(j, t));
}

struct jinja_value jinja_z(struct jinja_job *j, const char *text)
{
	return jinja_of_str(jinja_str_z(j, text));
}

/* The bytes of a stay where they are when nothing but room is behind them. */
const struct jinja_str *jinja_concat(struct jinja_job *j, const struct jinja_str *a, const struct jinja_str *b)
{
	struct jinja_tail *t = a->tail;
	struct jinja_str *s;

	if (b->len == 0)
		return a;
	if (a->len == 0)
		return b;
	jinja_charge(j, b->len / JINJA_BYTES_PER_OPERATION);
	if (t == NULL || a->p + a->len != t->data + t->used || b->len > t->cap - t->used) {
		size_t cap = 2 * (a->len + b->len);

		t = jinja_alloc(j, sizeof(*t) + cap);
		jinja_copy(j, t->data, a->p, a->len);
		t->used = a->len;
		t->cap = cap;
	}
	s = jinja_alloc(j, sizeof(*s));
	*s = (struct jinja_str){ .p = t->data + t->used - a->len,
				 .len = a->len + b->len,
				 .n_chars = a->n_chars + b->n_chars,
				 .tail = t,
				 .markup = a->markup };
	jinja_copy(j, t->data + t->used, b->p, b->len);
	t->used += b->len;
	return s;
}

size_t jinja_str_offset(struct jinja_job *j, const struct jinja_str *s, size_t n_chars)
{
	if (s->n_chars == s->len)
		return n_chars;
	if (n_chars >= s->n_chars)
		return s->len;
	jinja_charge(j, n_chars / JINJA_BYTES_PER_OPERATION);
	return jinja_skip_chars(s->p, s->len, n_chars);
}

const struct jinja_str *jinja_str_chars(struct jinja_job *j, const struct jinja_str *s, size_t begin, size_t end)
{
	size_t from = jinja_str_offset(j, s, begin), to = jinja_str_offset(j, s, end);
	struct jinja_str *borrowed = jinja_alloc(j, sizeof(*borrowed));

	*borrowed = (struct jinja_str){
		.p = s->p + from, .len = to - from, .n_chars = end - begin, .tail = s->tail, .markup = s->markup
	};
	return borrowed;
}

bool jinja_str_is(const struct jinja_str *s, const char *z)
{
	return s->len == strlen(z) && memcmp(s->p, z, s->len) == 0;
}

/* In UTF-8 the order of bytes is that of code points. */
int jinja_str_compare(const struct jinja_str *a, const struct jinja_str *b)
{
	size_t n = a->len < b->len ? a->len : b->len;
	int order = n > 0 ? memcmp(a->p, b->p, n) : 0;

	if (order != 0)
		return order;
	return a->len < b->len ? -1 : a->len > b->len;
}

/* ---- sequences, dicts ---- */

struct jinja_seq *jinja_seq_new(struct jinja_job *j, size_t room)
{
	struct jinja_seq *s = jinja_alloc(j, sizeof(*s));

	if (room > 0)
		s->v = jinja_alloc_array(j, room, sizeof(*s->v));
	s->cap = room;
	return s;
}

void jinja_push(struct jinja_job *j, struct jinja_seq *s, struct jinja_value v)
{
	jinja_charge(j, 1);
	jinja_grow(j, &s->v, s->n, &s->cap, sizeof(*s->v));
	s->v[s->n++] = v;
}

struct jinja_value jinja_pair(struct jinja_job *j, struct jinja_value a, struct jinja_value b)
{
	struct jinja_seq *s = jinja_seq_new(j, 2);

	jinja_push(j, s, a);
	jinja_push(j, s, b);
	return jinja_tuple(s);
}

struct jinja_dict *jinja_dict_new(struct jinja_job *j)
{
	return jinja_alloc(j, sizeof(struct jinja_dict));
}

bool jinja_hashable(struct jinja_value v)
{
	if (v.kind == JINJA_LIST || v.kind == JINJA_DICT || v.kind == JINJA_VIEW)
		return false;
	if (v.kind != JINJA_TUPLE)
		return true;
	for (size_t i = 0; i < v.seq->n; i++)
		/* as deep as a tuple was written or built: bounded by whoever made it */
		if (!jinja_hashable(v.seq->v[i]))
			return false;
	return true;
}

/* Equal values have equal hashes: 1, 1.0 and true are one key. */
static uint64_t hash(struct jinja_job *j, struct jinja_value v)
{
	uint64_t h = 0;

	if (v.kind == JINJA_STR) {
		jinja_charge(j, v.s->len / 128);
		return XXH3_64bits(v.s->p, v.s->len);
	}
	if (jinja_is_number(v)) {
		double d = jinja_to_double(v);

		d = d == 0 ? 0 : d; /* -0.0 */
		return XXH3_64bits(&d, sizeof(d));
	}
	if (v.kind != JINJA_TUPLE)
		return v.kind;
	jinja_enter(j);
	for (size_t i = 0; i < v.seq->n; i++) {
		jinja_charge(j, 1);
		h = h * 1000003 + hash(j, v.seq->v[i]);
	}
	jinja_leave(j);
	return h;
}

static size_t find(struct jinja_job *j, const struct jinja_dict *d, struct jinja_value key, uint64_t h)
{
	if (d->index == NULL) {
		for (size_t i = 0; i < d->n; i++)
			if (d->e[i].hash == h && jinja_equal(j, d->e[i].key, key))
				return i;
		return SIZE_MAX;
	}
	for (size_t at = h & (d->n_index - 1); d->index[at] != 0; at = (at + 1) & (d->n_index - 1)) {
		const struct jinja_entry *e = &d->e[d->index[at] - 1];

		jinja_charge(j, 1); /* so keys chosen to collide cost their sender, not us */
		if (e->hash == h && jinja_equal(j, e->key, key))
			return d->index[at] - 1;
	}
	return SIZE_MAX;
}

static void index_entry(struct jinja_dict *d, size_t i)
{
	size_t at = d->e[i].hash & (d->n_index - 1);

	while (d->index[at] != 0)
		at = (at + 1) & (d->n_index - 1);
	d->index[at] = (uint32_t)i + 1;
}

static void check_key(struct jinja_job *j, struct jinja_value key)
{
	if (!jinja_hashable(key))
		jinja_fail(j, OD_ERR_FORMAT, "a dict's key is expected to be hashable, found %s", jinja_type_name(key));
}

void jinja_dict_set(struct jinja_job *j, struct jinja_dict *d, struct jinja_value key, struct jinja_value value)
{
	uint64_t h;
	size_t at;

	check_key(j, key);
	h = hash(j, key);
	at = find(j, d, key, h);
	if (at != SIZE_MAX) {
		d->e[at].value = value;
		return;
	}
	jinja_charge(j, 1);
	jinja_grow(j, &d->e, d->n, &d->cap, sizeof(*d->e));
	d->e[d->n++] = (struct jinja_entry){ .key = key, .value = value, .hash = h };
	if (d->n <= SMALL_DICT)
		return;
	if (d->n * 2 <= d->n_index) {
		index_entry(d, d->n - 1);
		return;
	}
	if (d->n > UINT32_MAX / 8)
		jinja_fail(j, OD_ERR_RANGE, "a dict has too many entries");
	d->n_index = d->n_index > 0 ? 2 * d->n_index : 32;
	d->index = jinja_alloc_array(j, d->n_index, sizeof(*d->index));
	jinja_charge(j, d->n);
	for (size_t i = 0; i < d->n; i++)
		index_entry(d, i);
}

const struct jinja_value *jinja_dict_get(struct jinja_job *j, const struct jinja_dict *d, struct jinja_value key)
{
	size_t at;

	check_key(j, key);
	at = find(j, d, key, hash(j, key));
	return at != SIZE_MAX ? &d->e[at].value : NULL;
}

const struct jinja_value *jinja_dict_get_z(struct jinja_job *j, const struct jinja_dict *d, const char *key)
{
	const struct jinja_str s = { .p = key, .len = strlen(key) };

	return jinja_dict_get(j, d, jinja_of_str(&s));
}

/* Merges [0, half) and [half, n) of from into to. */
static void merge(struct jinja_job *j, const struct jinja_entry *from, struct jinja_entry *to, size_t half, size_t n,
		  bool reverse)
{
	size_t a = 0, b = half;

	for (size_t i = 0; i < n; i++) {
		bool second = a == half;

		if (a < half && b < n) /* only "<" is asked, as Python does: a NaN is not before anything */
			second = reverse ? jinja_less(j, from[a].key, from[b].key) :
					   jinja_less(j, from[b].key, from[a].key);
		to[i] = second ? from[b++] : from[a++];
	}
}

static void sort(struct jinja_job *j, struct jinja_entry *item, struct jinja_entry *room, size_t n, bool reverse)
{
	if (n < 2)
		return;
	sort(j, item, room, n / 2, reverse); /* as deep as n has bits */
	sort(j, item + n / 2, room, n - n / 2, reverse);
	memcpy(room, item, n * sizeof(*item));
	merge(j, room, item, n / 2, n, reverse);
}

void jinja_sort(struct jinja_job *j, struct jinja_entry *item, size_t n, bool reverse)
{
	sort(j, item, jinja_alloc_array(j, n, sizeof(*item)), n, reverse);
}

struct jinja_value jinja_iterator_of(struct jinja_job *j, const struct jinja_seq *s, const char *type)
{
	struct jinja_iterator *it = jinja_alloc(j, sizeof(*it));

	it->seq = s;
	it->type = type;
	return (struct jinja_value){ .kind = JINJA_ITERATOR, .iterator = it };
}

/* ---- what Python's built-in functions ask ---- */

const char *jinja_type_name(struct jinja_value v)
{
	static const char *const name[] = {
		[JINJA_ABSENT] = "nothing",
		[JINJA_UNDEFINED] = "Undefined",
		[JINJA_NONE] = "None",
		[JINJA_BOOL] = "bool",
		[JINJA_INT] = "int",
		[JINJA_BIG] = "int",
		[JINJA_FLOAT] = "float",
		[JINJA_STR] = "str",
		[JINJA_LIST] = "list",
		[JINJA_TUPLE] = "tuple",
		[JINJA_DICT] = "dict",
		[JINJA_RANGE] = "range",
		[JINJA_NAMESPACE] = "Namespace",
		[JINJA_LOOP] = "LoopContext",
		[JINJA_MACRO] = "Macro",
		[JINJA_METHOD] = "builtin_function_or_method",
		[JINJA_FUNCTION] = "function",
		[JINJA_CYCLER] = "Cycler",
		[JINJA_JOINER] = "Joiner",
	};
	static const char *const view_name[] = { "dict_keys", "dict_values", "dict_items" };

	if (v.kind == JINJA_VIEW)
		return view_name[v.view->of];
	if (v.kind == JINJA_ITERATOR)
		return v.iterator->type;
	if (v.kind == JINJA_STR && v.s->markup)
		return "Markup";
	return name[v.kind];
}

bool jinja_has_len(struct jinja_value v)
{
	return v.kind == JINJA_UNDEFINED || v.kind == JINJA_STR || v.kind == JINJA_LIST || v.kind == JINJA_TUPLE ||
	       v.kind == JINJA_DICT || v.kind == JINJA_VIEW || v.kind == JINJA_RANGE;
}

size_t jinja_len(struct jinja_job *j, struct jinja_value v)
{
	if (v.kind == JINJA_STR)
		return v.s->n_chars;
	if (v.kind == JINJA_LIST || v.kind == JINJA_TUPLE)
		return v.seq->n;
	if (v.kind == JINJA_DICT)
		return v.dict->n;
	if (v.kind == JINJA_VIEW)
		return v.view->dict->n;
	if (v.kind == JINJA_RANGE)
		return v.range->n;
	if (v.kind != JINJA_UNDEFINED)
		jinja_fail(j, OD_ERR_FORMAT, "expected a value with a length, found %s", jinja_type_name(v));
	return 0;
}

bool jinja_truth(struct jinja_job *j, struct jinja_value v)
{
	if (v.kind == JINJA_BOOL)
		return v.b;
	if (v.kind == JINJA_INT)
		return v.i != 0;
	if (v.kind == JINJA_FLOAT)
		return v.f != 0;
	if (v.kind == JINJA_NONE || v.kind == JINJA_ABSENT)
		return false;
	return jinja_has_len(v) ? jinja_len(j, v) > 0 : true;
}

bool jinja_iterable(struct jinja_value v)
{
	return jinja_has_len(v) || v.kind == JINJA_ITERATOR || v.kind == JINJA_LOOP;
}

static const struct jinja_seq *chars_of(struct jinja_job *j, const struct jinja_str *s)
{
	struct jinja_seq *seq = jinja_seq_new(j, s->n_chars);
	size_t at = 0;

	while (at < s->len) {
		size_t n = jinja_char_bytes(s->p + at);

		jinja_push(j, seq, jinja_of_str(jinja_str_borrow(j, s->p + at, n)));
		at += n;
	}
	return seq;
}

static const struct jinja_seq *entries_of(struct jinja_job *j, const struct jinja_dict *d, enum jinja_view_of of)
{
	struct jinja_seq *seq = jinja_seq_new(j, d->n);

	for (size_t i = 0; i < d->n; i++) {
		if (of == JINJA_ITEMS)
			jinja_push(j, seq, jinja_pair(j, d->e[i].key, d->e[i].value));
		else
			jinja_push(j, seq, of == JINJA_KEYS ? d->e[i].key : d->e[i].value);
	}
	return seq;
}

static const struct jinja_seq *rest_of(struct jinja_job *j, struct jinja_iterator *it)
{
	struct jinja_seq *rest = jinja_seq_new(j, 0);

	if (it->expected != NULL)
		jinja_fail(j, OD_ERR_FORMAT, "a filter expected %s, found something else", it->expected);
	if (it->next < it->seq->n)
		rest->v = it->seq->v + it->next;
	rest->n = rest->cap = it->seq->n - it->next;
	it->next = it->seq->n;
	return rest;
}

const struct jinja_seq *jinja_items(struct jinja_job *j, struct jinja_value v)
{
	struct jinja_seq *seq;

	if (v.kind == JINJA_LIST || v.kind == JINJA_TUPLE)
		return v.seq;
	if (v.kind == JINJA_STR)
		return chars_of(j, v.s);
	if (v.kind == JINJA_DICT)
		return entries_of(j, v.dict, JINJA_KEYS);
	if (v.kind == JINJA_VIEW)
		return entries_of(j, v.view->dict, v.view->of);
	if (v.kind == JINJA_ITERATOR)
		return rest_of(j, v.iterator);
	if (v.kind == JINJA_LOOP)
		jinja_fail(j, OD_ERR_UNSUPPORTED, "reading the items of `loop` itself is not supported");
	if (v.kind != JINJA_UNDEFINED && v.kind != JINJA_RANGE)
		jinja_fail(j, OD_ERR_FORMAT, "expected something to iterate over, found %s", jinja_type_name(v));
	seq = jinja_seq_new(j, 0);
	if (v.kind == JINJA_RANGE)
		for (size_t i = 0; i < v.range->n; i++)
			jinja_push(j, seq, jinja_int(v.range->begin + (int64_t)i * v.range->step));
	return seq;
}

struct jinja_value jinja_big(struct jinja_job *j, const struct jinja_str *digits, double f)
{
	struct jinja_big *big = jinja_alloc(j, sizeof(*big));

	*big = (struct jinja_big){ digits, f };
	return (struct jinja_value){ .kind = JINJA_BIG, .big = big };
}

bool jinja_is_number(struct jinja_value v)
{
	return v.kind == JINJA_BOOL || v.kind == JINJA_INT || v.kind == JINJA_BIG || v.kind == JINJA_FLOAT;
}

int64_t jinja_to_int(struct jinja_value v)
{
	return v.kind == JINJA_BOOL ? v.b : v.i;
}

double jinja_to_double(struct jinja_value v)
{
	if (v.kind == JINJA_BIG)
		return v.big->f;
	return v.kind == JINJA_FLOAT ? v.f : (double)jinja_to_int(v);
}

bool jinja_same(struct jinja_value a, struct jinja_value b)
{
	if (a.kind != b.kind)
		return false;
	if (a.kind == JINJA_NONE)
		return true;
	if (a.kind == JINJA_BOOL)
		return a.b == b.b;
	if (a.kind == JINJA_INT) /* CPython keeps one object of each small integer */
		return a.i == b.i && a.i >= -5 && a.i <= 256;
	if (a.kind == JINJA_STR && a.s->len <= 1)
		return a.s->len == b.s->len && (a.s->len == 0 || a.s->p[0] == b.s->p[0]);
	return a.kind != JINJA_FLOAT && a.dict == b.dict; /* any of the pointers */
}

/* Exact, as Python does it: above 2^53 a double is not what it was converted from. */
static int compare_numbers(struct jinja_value a, struct jinja_value b)
{
	a = a.kind == JINJA_BIG ? jinja_float(a.big->f) : a;
	b = b.kind == JINJA_BIG ? jinja_float(b.big->f) : b;
	if (a.kind != JINJA_FLOAT && b.kind != JINJA_FLOAT) {
		int64_t x = jinja_to_int(a), y = jinja_to_int(b);

		return x < y ? -1 : x > y;
	}
	if (a.kind == JINJA_FLOAT && b.kind == JINJA_FLOAT)
		return a.f < b.f ? -1 : a.f > b.f;
	if (a.kind == JINJA_FLOAT)
		return -compare_numbers(b, a);
	if (b.f >= 0x1p63)
		return -1;
	if (b.f < -0x1p63)
		return 1;
	if (jinja_to_int(a) != (int64_t)b.f) /* the fraction is cut off towards zero */
		return jinja_to_int(a) < (int64_t)b.f ? -1 : 1;
	return (double)(int64_t)b.f < b.f ? -1 : (double)(int64_t)b.f > b.f;
}

static bool is_nan(struct jinja_value v)
{
	return v.kind == JINJA_FLOAT && isnan(v.f);
}

static bool equal_seq(struct jinja_job *j, const struct jinja_seq *a, const struct jinja_seq *b)
{
	bool same = a->n == b->n;

	jinja_enter(j);
	for (size_t i = 0; same && i < a->n; i++)
		same = jinja_equal(j, a->v[i], b->v[i]);
	jinja_leave(j);
	return same;
}

static bool equal_dict(struct jinja_job *j, const struct jinja_dict *a, const struct jinja_dict *b)
{
	bool same = a->n == b->n;

	jinja_enter(j);
	for (size_t i = 0; same && i < a->n; i++) {
		const struct jinja_value *v = jinja_dict_get(j, b, a->e[i].key);

		same = v != NULL && jinja_equal(j, a->e[i].value, *v);
	}
	jinja_leave(j);
	return same;
}

static bool equal_range(const struct jinja_range *a, const struct jinja_range *b)
{
	return a->n == b->n && (a->n == 0 || (a->begin == b->begin && (a->n == 1 || a->step == b->step)));
}

static struct jinja_dict *as_set(struct jinja_job *j, struct jinja_value view)
{
	const struct jinja_seq *s = jinja_items(j, view);
	struct jinja_dict *d = jinja_dict_new(j);

	for (size_t i = 0; i < s->n; i++)
		jinja_dict_set(j, d, s->v[i], JINJA_NONE_VALUE);
	return d;
}

bool jinja_equal(struct jinja_job *j, struct jinja_value a, struct jinja_value b)
{
	jinja_charge(j, 1);
	if (jinja_is_number(a) && jinja_is_number(b))
		return !is_nan(a) && !is_nan(b) && compare_numbers(a, b) == 0;
	if (a.kind != b.kind)
		return false;
	if (a.kind == JINJA_STR) {
		jinja_charge(j, (a.s->len == b.s->len ? a.s->len : 0) / JINJA_BYTES_PER_OPERATION);
		return a.s->len == b.s->len && (a.s->len == 0 || memcmp(a.s->p, b.s->p, a.s->len) == 0);
	}
	if (a.kind == JINJA_LIST || a.kind == JINJA_TUPLE)
		return equal_seq(j, a.seq, b.seq);
	if (a.kind == JINJA_DICT)
		return equal_dict(j, a.dict, b.dict);
	if (a.kind == JINJA_RANGE)
		return equal_range(a.range, b.range);
	if (a.kind == JINJA_VIEW && a.view->of == JINJA_KEYS && b.view->of == JINJA_KEYS)
		return equal_dict(j, as_set(j, a), as_set(j, b));
	if (a.kind == JINJA_METHOD)
		return a.method->function == b.method->function && jinja_same(a.method->self, b.method->self);
	return a.kind == JINJA_NONE || a.kind == JINJA_UNDEFINED || jinja_same(a, b);
}

static int compare_seq(struct jinja_job *j, const struct jinja_seq *a, const struct jinja_seq *b, const char *op)
{
	size_t n = a->n < b->n ? a->n : b->n;
	int order = a->n < b->n ? -1 : a->n > b->n;

	jinja_enter(j);
	for (size_t i = 0; i < n; i++) {
		if (!jinja_equal(j, a->v[i], b->v[i])) {
			order = jinja_compare(j, a->v[i], b->v[i], op);
			break;
		}
	}
	jinja_leave(j);
	return order;
}

int jinja_compare(struct jinja_job *j, struct jinja_value a, struct jinja_value b, const char *op)
{
	jinja_charge(j, 1);
	if (jinja_is_number(a) && jinja_is_number(b))
		return compare_numbers(a, b);
	if (a.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(j, a.undefined);
	if (b.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(j, b.undefined);
	if (a.kind == b.kind && a.kind == JINJA_STR) {
		jinja_charge(j, a.s->len / JINJA_BYTES_PER_OPERATION);
		return jinja_str_compare(a.s, b.s);
	}
	if (a.kind == b.kind && (a.kind == JINJA_LIST || a.kind == JINJA_TUPLE))
		return compare_seq(j, a.seq, b.seq, op);
	jinja_fail(j, OD_ERR_FORMAT, "'%s' is not supported between %s and %s", op, jinja_type_name(a),
		   jinja_type_name(b));
}

bool jinja_less(struct jinja_job *j, struct jinja_value a, struct jinja_value b)
{
	return !is_nan(a) && !is_nan(b) && jinja_compare(j, a, b, "<") < 0;
}
