#include "common/text/jinja/jinja_calls.h"

#include <string.h>

const struct jinja_function *jinja_find_in(const struct jinja_function *table, const struct jinja_str *name)
{
	for (; table->name != NULL; table++)
		if (jinja_str_is(name, table->name))
			return table;
	return NULL;
}

const struct jinja_function *jinja_find_filter(const struct jinja_str *name)
{
	const struct jinja_function *f = jinja_find_in(jinja_text_filters, name);

	if (f == NULL)
		f = jinja_find_in(jinja_sequence_filters, name);
	return f != NULL ? f : jinja_find_in(jinja_select_filters, name);
}

_Noreturn void jinja_fail_unknown(struct jinja_job *j, const char *what, const struct jinja_str *name)
{
	static const char *const unsupported[] = { "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr" };
	const int len = (int)(name->len < 60 ? name->len : 60);

	for (size_t i = 0; i < sizeof(unsupported) / sizeof(unsupported[0]); i++)
		if (jinja_str_is(name, unsupported[i]))
			jinja_fail(j, OD_ERR_UNSUPPORTED, "the %s '%.*s' is not supported in chat templates", what, len,
				   name->p);
	jinja_fail(j, OD_ERR_FORMAT, "the %s '%.*s' does not exist", what, len, name->p);
}

struct params {
	struct {
		const char *name;
		size_t len;
		bool optional;
	} v[JINJA_MAX_PARAMS];
	size_t n;
	bool no_keywords;
};

static void read_params(struct params *p, const char *text)
{
	*p = (struct params){ .no_keywords = *text == '/' };
	text += *text == '/';
	while (*text != '\0') {
		size_t len = strcspn(text, " ");

		p->v[p->n].name = text;
		p->v[p->n].optional = text[len - 1] == '?';
		p->v[p->n].len = len - p->v[p->n].optional;
		p->n++;
		text += len + (text[len] == ' ');
	}
}

static size_t find_param(const struct params *p, const struct jinja_str *name)
{
	for (size_t i = 0; i < p->n; i++)
		if (p->v[i].len == name->len && memcmp(p->v[i].name, name->p, name->len) == 0)
			return i;
	return SIZE_MAX;
}

static void bind(struct jinja_job *j, const struct jinja_function *f, const struct jinja_call *call,
		 const struct params *p, struct jinja_value *arg)
{
	if (call->n_pos > p->n)
		jinja_fail(j, OD_ERR_FORMAT, "%s: expected at most %zu arguments, found %zu", f->name, p->n,
			   call->n_pos);
	for (size_t i = 0; i < call->n_pos; i++)
		arg[i] = call->pos[i];
	if (call->kw != NULL)
		for (size_t i = 0; i < call->kw->n; i++) {
			const struct jinja_str *name = call->kw->e[i].key.s;
			size_t at = p->no_keywords ? SIZE_MAX : find_param(p, name);

			if (at == SIZE_MAX)
				jinja_fail(j, OD_ERR_FORMAT, "%s: unexpected keyword argument '%.*s'", f->name,
					   (int)(name->len < 60 ? name->len : 60), name->p);
			if (arg[at].kind != JINJA_ABSENT)
				jinja_fail(j, OD_ERR_FORMAT, "%s: the argument '%.*s' is given twice", f->name,
					   (int)p->v[at].len, p->v[at].name);
			arg[at] = call->kw->e[i].value;
		}
	for (size_t i = 0; i < p->n; i++)
		if (arg[i].kind == JINJA_ABSENT && !p->v[i].optional)
			jinja_fail(j, OD_ERR_FORMAT, "%s: the argument '%.*s' is missing", f->name, (int)p->v[i].len,
				   p->v[i].name);
}

struct jinja_value jinja_call_function(struct jinja_job *j, const struct jinja_function *f, struct jinja_value self,
				       const struct jinja_call *call)
{
	struct jinja_value arg[JINJA_MAX_PARAMS] = { 0 }; /* zero is absent */
	struct params p;

	jinja_charge(j, 2);
	if (*f->params != '*') {
		read_params(&p, f->params);
		bind(j, f, call, &p, arg);
	}
	return f->fn(j, self, arg, call);
}

void jinja_check_count(struct jinja_job *j, const char *what, const struct jinja_call *call, size_t min, size_t max)
{
	if (call->kw != NULL && call->kw->n > 0)
		jinja_fail(j, OD_ERR_FORMAT, "%s takes no keyword arguments", what);
	if (call->n_pos < min || call->n_pos > max)
		jinja_fail(j, OD_ERR_FORMAT, "%s: expected %zu to %zu arguments, found %zu", what, min, max,
			   call->n_pos);
}

int64_t jinja_arg_int(struct jinja_job *j, struct jinja_value arg, int64_t fallback, const char *what)
{
	if (arg.kind == JINJA_ABSENT)
		return fallback;
	if (arg.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(j, arg.undefined);
	if (arg.kind == JINJA_BIG)
		jinja_fail(j, OD_ERR_RANGE, "%s: an integer has more than 64 bits", what);
	if (arg.kind != JINJA_INT && arg.kind != JINJA_BOOL)
		jinja_fail(j, OD_ERR_FORMAT, "%s: expected an integer, found %s", what, jinja_type_name(arg));
	return jinja_to_int(arg);
}

const struct jinja_str *jinja_arg_str(struct jinja_job *j, struct jinja_value arg, const char *what)
{
	if (arg.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(j, arg.undefined);
	if (arg.kind != JINJA_STR)
		jinja_fail(j, OD_ERR_FORMAT, "%s: expected a string, found %s", what, jinja_type_name(arg));
	return arg.s;
}
