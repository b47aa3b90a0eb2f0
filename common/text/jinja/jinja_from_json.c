#include "common/text/jinja/jinja_from_json.h"

#include <string.h>

#include "common/base/json.h"
#include "common/text/jinja/jinja.h"

/* Strings are copied: only of what is in the job's memory is it known whose it is. */
static struct jinja_value convert_string(struct jinja_job *j, const json_t *v)
{
	return jinja_of_str(jinja_str_copy(j, json_string_value(v), json_string_length(v)));
}

struct jinja_value jinja_member_from_json(struct jinja_job *j, const json_t *object, const char *key, const json_t *v)
{
	const struct od_text_span *own;
	struct jinja_value out;
	size_t n;

	if (!json_is_string(v))
		return jinja_from_json(j, v);
	out = convert_string(j, v);
	n = j->opts->own != NULL ? j->opts->own(j->opts->arg, object, key, v, &own) : 0;
	for (size_t i = 0; i < n; i++)
		jinja_own(j, out.s->p + own[i].begin, own[i].end - own[i].begin);
	return out;
}

static struct jinja_value convert(struct jinja_job *j, const json_t *v)
{
	const char *digits = od_json_digits(v);
	struct jinja_seq *s;
	struct jinja_dict *d;
	const char *key;
	json_t *item;

	if (json_is_string(v))
		return convert_string(j, v);
	if (json_is_boolean(v))
		return jinja_bool(json_is_true(v));
	if (json_is_integer(v))
		return jinja_int(json_integer_value(v));
	if (digits != NULL)
		return jinja_big(j, jinja_str_copy(j, digits, strlen(digits)), json_real_value(v));
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
	d->source = j->opts->source != NULL ? j->opts->source(j->opts->arg, v) : NULL;
	for (void *it = json_object_iter((json_t *)v); it != NULL; it = json_object_iter_next((json_t *)v, it)) {
		key = json_object_iter_key(it);
		item = json_object_iter_value(it);
		jinja_dict_set(j, d, jinja_of_str(jinja_str_copy(j, key, od_json_key_len(it))),
			       jinja_member_from_json(j, v, key, item));
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
