#include "common/text/jinja/jinja_eval.h"

#include "common/base/json.h"

/* Strings stay where they are: the caller keeps its JSON while it renders. */
static struct jinja_value convert(struct jinja_job *j, const json_t *v)
{
	struct jinja_seq *s;
	struct jinja_dict *d;
	const char *key;
	json_t *item;

	if (json_is_string(v))
		return jinja_of_str(jinja_str_borrow(j, json_string_value(v), json_string_length(v)));
	if (json_is_boolean(v))
		return jinja_bool(json_is_true(v));
	if (json_is_integer(v))
		return jinja_int(json_integer_value(v));
	if (json_is_real(v))
		return jinja_float(json_real_value(v));
	if (json_is_array(v)) {
		s = jinja_seq_new(j, json_array_size(v));
		for (size_t i = 0; i < json_array_size(v); i++)
			jinja_push(j, s, jinja_from_json(j, json_array_get(v, i)));
		return jinja_list(s);
	}
	if (!json_is_object(v))
		return JINJA_NONE_VALUE;
	d = jinja_dict_new(j);
	d->source = j->source != NULL ? j->source(j->source_arg, v) : NULL;
	for (void *it = json_object_iter((json_t *)v); it != NULL; it = json_object_iter_next((json_t *)v, it)) {
		key = json_object_iter_key(it);
		item = json_object_iter_value(it);
		jinja_dict_set(j, d, jinja_of_str(jinja_str_borrow(j, key, od_json_key_len(it))),
			       jinja_from_json(j, item));
	}
	return jinja_of_dict(d);
}

struct jinja_value jinja_from_json(struct jinja_job *j, const json_t *v)
{
	struct jinja_value out;

	jinja_enter(j);
	out = convert(j, v);
	jinja_leave(j);
	return out;
}
