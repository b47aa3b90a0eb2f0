/* Filters of sequences, and those that apply another filter or a test to each item. */
#include "common/text/jinja/jinja_calls.h"

#include <string.h>

#include "common/text/jinja/jinja_ops.h"
#include "common/text/jinja/jinja_show.h"
#include "common/text/jinja/jinja_strings.h"
#include "common/text/jinja/jinja_tests.h"
#include "common/text/jinja/jinja_unicode.h"

static struct jinja_value generator(struct jinja_job *j, const struct jinja_seq *s)
{
	return jinja_iterator_of(j, s, "generator");
}

static struct jinja_value failing(struct jinja_job *j, const char *expected)
{
	struct jinja_value v = generator(j, jinja_seq_new(j, 0));

	v.iterator->expected = expected;
	return v;
}

#define SOMETHING_TO_ITERATE "something to iterate over"

/* ---- keys: "a.b.0" of an item, strings in lower case ---- */

static bool is_number(const struct jinja_str *s)
{
	size_t n;

	for (size_t at = 0; at < s->len; at += n)
		if (!jinja_is_digit(jinja_char_at(s->p + at, &n)))
			return false;
	return s->len > 0;
}

/* fallback: absent or none for no such thing. */
static struct jinja_value attribute_of(struct jinja_job *j, struct jinja_value item, struct jinja_value attribute,
				       struct jinja_value fallback)
{
	const struct jinja_seq *path;
	int64_t i;

	if (!jinja_given(attribute))
		return item;
	if (attribute.kind != JINJA_STR) {
		item = jinja_get_item(j, item, attribute);
		return item.kind == JINJA_UNDEFINED && jinja_given(fallback) ? fallback : item;
	}
	path = jinja_split(j, attribute.s, jinja_str_z(j, "."), -1, JINJA_LEFT);
	for (size_t k = 0; k < path->n; k++) {
		struct jinja_value step = path->v[k];

		if (is_number(step.s) && jinja_parse_int(j, step.s, 10, &i))
			step = jinja_int(i);
		item = jinja_get_item(j, item, step);
		if (item.kind == JINJA_UNDEFINED && jinja_given(fallback))
			item = fallback;
	}
	return item;
}

static struct jinja_value ignore_case(struct jinja_job *j, struct jinja_value v, struct jinja_value case_sensitive)
{
	if (v.kind != JINJA_STR || jinja_truth(j, case_sensitive))
		return v;
	return jinja_of_str(jinja_lower(j, v.s));
}

static struct jinja_value key_of(struct jinja_job *j, struct jinja_value item, struct jinja_value attribute,
				 struct jinja_value case_sensitive)
{
	return ignore_case(j, attribute_of(j, item, attribute, JINJA_ABSENT_VALUE), case_sensitive);
}

/* ---- sequences ---- */

FILTER(f_batch)
{
	const struct jinja_seq *s;
	const int64_t count = jinja_arg_int(j, arg[0], 0, "batch");
	struct jinja_seq *out = jinja_seq_new(j, 0), *row = jinja_seq_new(j, 0);

	(void)call;
	if (!jinja_iterable(self))
		return failing(j, SOMETHING_TO_ITERATE);
	s = jinja_items(j, self);
	for (size_t i = 0; i < s->n; i++) {
		if ((int64_t)row->n == count) {
			jinja_push(j, out, jinja_list(row));
			row = jinja_seq_new(j, 0);
		}
		jinja_push(j, row, s->v[i]);
	}
	while (row->n > 0 && jinja_given(arg[1]) && (int64_t)row->n < count)
		jinja_push(j, row, arg[1]);
	if (row->n > 0)
		jinja_push(j, out, jinja_list(row));
	return generator(j, out);
}

FILTER(f_slice)
{
	const struct jinja_seq *s;
	const int64_t slices = jinja_arg_int(j, arg[0], 0, "slice");
	struct jinja_seq *out = jinja_seq_new(j, 0);
	size_t each, extra, at = 0;

	(void)call;
	if (!jinja_iterable(self))
		return failing(j, SOMETHING_TO_ITERATE);
	s = jinja_items(j, self);
	if (slices == 0)
		jinja_fail(j, OD_ERR_FORMAT, "slice: division by zero");
	each = slices > 0 ? s->n / (size_t)slices : 0;
	extra = slices > 0 ? s->n % (size_t)slices : 0;
	if (slices > 0)
		for (size_t k = 0; k < (size_t)slices; k++) {
			struct jinja_seq *row = jinja_seq_new(j, 0);

			for (size_t i = 0; i < each + (k < extra); i++)
				jinja_push(j, row, s->v[at++]);
			if (jinja_given(arg[1]) && k >= extra)
				jinja_push(j, row, arg[1]);
			jinja_push(j, out, jinja_list(row));
		}
	return generator(j, out);
}

static void check_mapping(struct jinja_job *j, struct jinja_value v, const char *what)
{
	if (v.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(j, v.undefined);
	if (v.kind != JINJA_DICT)
		jinja_fail(j, OD_ERR_FORMAT, "%s: expected a dict, found %s", what, jinja_type_name(v));
}

FILTER(f_dictsort)
{
	const bool by_value = arg[1].kind == JINJA_STR && jinja_str_is(arg[1].s, "value");
	struct jinja_entry *item;
	struct jinja_seq *out;

	(void)call;
	if (!by_value && arg[1].kind != JINJA_ABSENT && !(arg[1].kind == JINJA_STR && jinja_str_is(arg[1].s, "key")))
		jinja_fail(j, OD_ERR_FORMAT, "dictsort: expected by='key' or by='value'");
	check_mapping(j, self, "dictsort");
	item = jinja_alloc_array(j, self.dict->n, sizeof(*item));
	out = jinja_seq_new(j, self.dict->n);
	for (size_t i = 0; i < self.dict->n; i++) {
		const struct jinja_entry *e = &self.dict->e[i];

		item[i].key = ignore_case(j, by_value ? e->value : e->key, arg[0]);
		item[i].value = jinja_pair(j, e->key, e->value);
	}
	jinja_sort(j, item, self.dict->n, jinja_truth(j, arg[2]));
	for (size_t i = 0; i < self.dict->n; i++)
		jinja_push(j, out, item[i].value);
	return jinja_list(out);
}

FILTER(f_first)
{
	const struct jinja_seq *s;

	UNUSED2(arg, call);
	if (self.kind == JINJA_ITERATOR && self.iterator->expected == NULL &&
	    self.iterator->next < self.iterator->seq->n)
		return self.iterator->seq->v[self.iterator->next++];
	s = jinja_items(j, self);
	return s->n > 0 ? s->v[0] : jinja_undefined_hint(j, "No first item, sequence was empty.");
}

FILTER(f_last)
{
	const struct jinja_seq *s;

	UNUSED2(arg, call);
	if (self.kind == JINJA_ITERATOR)
		jinja_fail(j, OD_ERR_FORMAT, "last: expected a sequence, found %s", jinja_type_name(self));
	s = jinja_items(j, self);
	return s->n > 0 ? s->v[s->n - 1] : jinja_undefined_hint(j, "No last item, sequence was empty.");
}

static struct jinja_entry *sorted(struct jinja_job *j, const struct jinja_seq *s, struct jinja_value attribute,
				  struct jinja_value case_sensitive, struct jinja_value fallback)
{
	struct jinja_entry *item = jinja_alloc_array(j, s->n, sizeof(*item));

	for (size_t i = 0; i < s->n; i++) {
		item[i].key = ignore_case(j, attribute_of(j, s->v[i], attribute, fallback), case_sensitive);
		item[i].value = s->v[i];
	}
	jinja_sort(j, item, s->n, false);
	return item;
}

FILTER(f_groupby)
{
	const struct jinja_seq *s = jinja_items(j, self);
	struct jinja_entry *item = sorted(j, s, arg[0], arg[2], arg[1]);
	struct jinja_seq *out = jinja_seq_new(j, 0);

	(void)call;
	for (size_t i = 0; i < s->n;) {
		struct jinja_seq *group = jinja_seq_new(j, 0), *pair = jinja_seq_new(j, 2);
		const size_t first = i;

		for (; i < s->n && jinja_equal(j, item[first].key, item[i].key); i++)
			jinja_push(j, group, item[i].value);
		if (group->n == 0) /* a NaN is not even equal to itself */
			jinja_push(j, group, item[i++].value);
		if (jinja_truth(j, arg[2]))
			jinja_push(j, pair, item[first].key);
		else
			jinja_push(j, pair, attribute_of(j, item[first].value, arg[0], arg[1]));
		jinja_push(j, pair, jinja_list(group));
		pair->group = true;
		jinja_push(j, out, jinja_tuple(pair));
	}
	return jinja_list(out);
}

FILTER(f_items)
{
	const struct jinja_view view = { .of = JINJA_ITEMS, .dict = self.dict };

	UNUSED2(arg, call);
	if (self.kind == JINJA_UNDEFINED)
		return generator(j, jinja_seq_new(j, 0));
	if (self.kind != JINJA_DICT)
		return failing(j, "a dict");
	return generator(j, jinja_items(j, (struct jinja_value){ .kind = JINJA_VIEW, .view = &view }));
}

FILTER(f_join)
{
	const struct jinja_seq *s = jinja_items(j, self);
	const struct jinja_str *d = arg[0].kind != JINJA_ABSENT ? jinja_str_of(j, arg[0]) : jinja_str_z(j, "");
	struct jinja_text t = { 0 };

	(void)call;
	for (size_t i = 0; i < s->n; i++) {
		if (i > 0)
			jinja_add(j, &t, d->p, d->len);
		jinja_charge(j, 1);
		jinja_add_str(j, &t, attribute_of(j, s->v[i], arg[1], JINJA_ABSENT_VALUE));
	}
	return jinja_text_value(j, &t);
}

FILTER(f_list)
{
	UNUSED2(arg, call);
	return jinja_list(jinja_items(j, self));
}

static struct jinja_value extreme(struct jinja_job *j, struct jinja_value self, const struct jinja_value *arg, bool max)
{
	const struct jinja_seq *s = jinja_items(j, self);
	struct jinja_value best_key;
	size_t best = 0;

	if (s->n == 0)
		return jinja_undefined_hint(j, "No aggregated item, sequence was empty.");
	best_key = key_of(j, s->v[0], arg[1], arg[0]);
	for (size_t i = 1; i < s->n; i++) {
		struct jinja_value key = key_of(j, s->v[i], arg[1], arg[0]);

		if (max ? jinja_less(j, best_key, key) : jinja_less(j, key, best_key)) {
			best = i;
			best_key = key;
		}
	}
	return s->v[best];
}

FILTER(f_max)
{
	(void)call;
	return extreme(j, self, arg, true);
}

FILTER(f_min)
{
	(void)call;
	return extreme(j, self, arg, false);
}

FILTER(f_reverse)
{
	const struct jinja_seq *s;
	struct jinja_seq *out;

	UNUSED2(arg, call);
	if (self.kind == JINJA_STR)
		return jinja_slice(j, self, JINJA_ABSENT_VALUE, JINJA_ABSENT_VALUE, jinja_int(-1));
	s = jinja_items(j, self);
	out = jinja_seq_new(j, s->n);
	for (size_t i = s->n; i-- > 0;)
		jinja_push(j, out, s->v[i]);
	return self.kind == JINJA_ITERATOR ? jinja_list(out) : jinja_iterator_of(j, out, "list_reverseiterator");
}

/* attribute "a,b": by a, then by b. */
FILTER(f_sort)
{
	const struct jinja_seq *s = jinja_items(j, self), *attributes;
	struct jinja_entry *item = jinja_alloc_array(j, s->n, sizeof(*item));
	struct jinja_seq *out = jinja_seq_new(j, s->n), *one = jinja_seq_new(j, 1);

	(void)call;
	jinja_push(j, one, arg[2]);
	attributes = arg[2].kind == JINJA_STR ? jinja_split(j, arg[2].s, jinja_str_z(j, ","), -1, JINJA_LEFT) : one;
	for (size_t i = 0; i < s->n; i++) {
		struct jinja_seq *key = jinja_seq_new(j, attributes->n);

		for (size_t k = 0; k < attributes->n; k++)
			jinja_push(j, key, key_of(j, s->v[i], attributes->v[k], arg[1]));
		item[i].key = jinja_list(key);
		item[i].value = s->v[i];
	}
	jinja_sort(j, item, s->n, jinja_truth(j, arg[0]));
	for (size_t i = 0; i < s->n; i++)
		jinja_push(j, out, item[i].value);
	return jinja_list(out);
}

FILTER(f_sum)
{
	const struct jinja_seq *s = jinja_items(j, self);
	struct jinja_value total = arg[1].kind != JINJA_ABSENT ? arg[1] : jinja_int(0);

	(void)call;
	if (total.kind == JINJA_STR)
		jinja_fail(j, OD_ERR_FORMAT, "sum: expected a number to start with, found a string (use join)");
	for (size_t i = 0; i < s->n; i++)
		total = jinja_binary(j, T_ADD, total, attribute_of(j, s->v[i], arg[0], JINJA_ABSENT_VALUE));
	return total;
}

FILTER(f_unique)
{
	const struct jinja_seq *s;
	struct jinja_seq *out = jinja_seq_new(j, 0);
	struct jinja_dict *seen = jinja_dict_new(j);

	(void)call;
	if (!jinja_iterable(self))
		return failing(j, SOMETHING_TO_ITERATE);
	s = jinja_items(j, self);
	for (size_t i = 0; i < s->n; i++) {
		struct jinja_value key = key_of(j, s->v[i], arg[1], arg[0]);

		if (jinja_dict_get(j, seen, key) != NULL)
			continue;
		jinja_dict_set(j, seen, key, JINJA_NONE_VALUE);
		jinja_push(j, out, s->v[i]);
	}
	return generator(j, out);
}

const struct jinja_function jinja_sequence_filters[] = {
	{ "batch", "linecount fill_with?", f_batch },
	{ "dictsort", "case_sensitive? by? reverse?", f_dictsort },
	{ "first", "", f_first },
	{ "groupby", "attribute default? case_sensitive?", f_groupby },
	{ "items", "", f_items },
	{ "join", "d? attribute?", f_join },
	{ "last", "", f_last },
	{ "list", "", f_list },
	{ "max", "case_sensitive? attribute?", f_max },
	{ "min", "case_sensitive? attribute?", f_min },
	{ "reverse", "", f_reverse },
	{ "slice", "slices fill_with?", f_slice },
	{ "sort", "reverse? case_sensitive? attribute?", f_sort },
	{ "sum", "attribute? start?", f_sum },
	{ "unique", "case_sensitive? attribute?", f_unique },
	{ NULL, NULL, NULL },
};

/* ---- map, select and their kind ---- */

static struct jinja_seq *map_attribute(struct jinja_job *j, struct jinja_value self, const struct jinja_dict *kw)
{
	const struct jinja_value *attribute = jinja_dict_get_z(j, kw, "attribute");
	const struct jinja_value *fallback = jinja_dict_get_z(j, kw, "default");
	const struct jinja_seq *s = jinja_items(j, self);
	struct jinja_seq *out = jinja_seq_new(j, s->n);

	if (kw->n > (fallback != NULL ? 2 : 1))
		jinja_fail(j, OD_ERR_FORMAT, "map: expected the keywords attribute and default, found another one");
	for (size_t i = 0; i < s->n; i++)
		jinja_push(j, out,
			   attribute_of(j, s->v[i], *attribute, fallback != NULL ? *fallback : JINJA_ABSENT_VALUE));
	return out;
}

FILTER(f_map)
{
	const struct jinja_function *filter;
	struct jinja_call rest = *call;
	const struct jinja_seq *s;
	struct jinja_seq *out;

	(void)arg;
	if (!jinja_truth(j, self))
		return generator(j, jinja_seq_new(j, 0));
	if (!jinja_iterable(self))
		return failing(j, SOMETHING_TO_ITERATE);
	if (call->n_pos == 0 && call->kw != NULL && jinja_dict_get_z(j, call->kw, "attribute") != NULL)
		return generator(j, map_attribute(j, self, call->kw));
	if (call->n_pos == 0)
		jinja_fail(j, OD_ERR_FORMAT, "map: expected the name of a filter");
	filter = jinja_find_filter(jinja_arg_str(j, call->pos[0], "map"));
	if (filter == NULL)
		jinja_fail_unknown(j, "filter", call->pos[0].s);
	rest.pos++;
	rest.n_pos--;
	s = jinja_items(j, self);
	out = jinja_seq_new(j, s->n);
	jinja_enter(j); /* map('map', 'map', ...) */
	for (size_t i = 0; i < s->n; i++)
		jinja_push(j, out, jinja_call_function(j, filter, s->v[i], &rest));
	jinja_leave(j);
	return generator(j, out);
}

/* Keeps the items of which the value (or its attribute, the first argument) passes a test, or fails it. */
static struct jinja_value pick(struct jinja_job *j, struct jinja_value self, const struct jinja_call *call, bool keep,
			       bool by_attribute)
{
	const struct jinja_function *test = NULL;
	struct jinja_seq *out = jinja_seq_new(j, 0);
	struct jinja_call rest = *call;
	const struct jinja_seq *s;

	if (!jinja_truth(j, self))
		return generator(j, out);
	if (!jinja_iterable(self))
		return failing(j, SOMETHING_TO_ITERATE);
	if (by_attribute && call->n_pos == 0)
		jinja_fail(j, OD_ERR_FORMAT, "expected the name of an attribute as first argument");
	if (by_attribute) {
		rest.pos++;
		rest.n_pos--;
	}
	if (rest.n_pos > 0) {
		test = jinja_find_test(jinja_arg_str(j, rest.pos[0], "the name of a test"));
		if (test == NULL)
			jinja_fail_unknown(j, "test", rest.pos[0].s);
		rest.pos++;
		rest.n_pos--;
	}
	s = jinja_items(j, self);
	for (size_t i = 0; i < s->n; i++) {
		struct jinja_value v =
			by_attribute ? attribute_of(j, s->v[i], call->pos[0], JINJA_ABSENT_VALUE) : s->v[i];

		if (jinja_truth(j, test != NULL ? jinja_call_function(j, test, v, &rest) : v) == keep)
			jinja_push(j, out, s->v[i]);
	}
	return generator(j, out);
}

FILTER(f_select)
{
	(void)arg;
	return pick(j, self, call, true, false);
}

FILTER(f_reject)
{
	(void)arg;
	return pick(j, self, call, false, false);
}

FILTER(f_selectattr)
{
	(void)arg;
	return pick(j, self, call, true, true);
}

FILTER(f_rejectattr)
{
	(void)arg;
	return pick(j, self, call, false, true);
}

const struct jinja_function jinja_select_filters[] = {
	{ "map", "*", f_map },	     { "reject", "*", f_reject },	  { "rejectattr", "*", f_rejectattr },
	{ "select", "*", f_select }, { "selectattr", "*", f_selectattr }, { NULL, NULL, NULL },
};
