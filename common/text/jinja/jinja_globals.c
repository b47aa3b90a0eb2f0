/* Functions that every template has. */
#include "common/text/jinja/jinja_globals.h"

#include "common/text/jinja/jinja_calls.h"
#include "common/text/jinja/jinja_show.h"

#include <string.h>

#define MAX_RANGE 100000u /* the sandbox's */
#define MAX_TIME_CHARS 4096u

#define GLOBAL(name) \
	static struct jinja_value name(struct jinja_job *j, struct jinja_value self, const struct jinja_value *arg, \
				       const struct jinja_call *call)

GLOBAL(g_range)
{
	struct jinja_range *r = jinja_alloc(j, sizeof(*r));
	uint64_t span, by;

	(void)self;
	(void)arg;
	jinja_check_count(j, "range", call, 1, 3);
	r->begin = call->n_pos > 1 ? jinja_arg_int(j, call->pos[0], 0, "range") : 0;
	r->end = jinja_arg_int(j, call->pos[call->n_pos > 1], 0, "range");
	r->step = call->n_pos > 2 ? jinja_arg_int(j, call->pos[2], 1, "range") : 1;
	if (r->step == 0)
		jinja_fail(j, OD_ERR_FORMAT, "range: the step is zero");
	if (r->step > 0 ? r->begin < r->end : r->begin > r->end) {
		span = r->step > 0 ? (uint64_t)r->end - (uint64_t)r->begin : (uint64_t)r->begin - (uint64_t)r->end;
		by = r->step > 0 ? (uint64_t)r->step : 0 - (uint64_t)r->step;
		r->n = (span - 1) / by + 1;
	}
	if (r->n > MAX_RANGE)
		jinja_fail(j, OD_ERR_RANGE, "range: expected at most %u items, found %zu", MAX_RANGE, r->n);
	return (struct jinja_value){ .kind = JINJA_RANGE, .range = r };
}

static void add_pairs(struct jinja_job *j, struct jinja_dict *d, struct jinja_value pairs)
{
	const struct jinja_seq *s = jinja_items(j, pairs);

	for (size_t i = 0; i < s->n; i++) {
		const struct jinja_seq *pair = jinja_items(j, s->v[i]);

		if (pair->n != 2)
			jinja_fail(j, OD_ERR_FORMAT, "dict: expected pairs, found %zu values", pair->n);
		jinja_dict_set(j, d, pair->v[0], pair->v[1]);
	}
}

static struct jinja_dict *make_dict(struct jinja_job *j, const struct jinja_call *call, const char *what)
{
	const struct jinja_call positional = { .pos = call->pos, .n_pos = call->n_pos };
	struct jinja_dict *d = jinja_dict_new(j);

	jinja_check_count(j, what, &positional, 0, 1);
	if (call->n_pos > 0 && call->pos[0].kind == JINJA_DICT) {
		for (size_t i = 0; i < call->pos[0].dict->n; i++)
			jinja_dict_set(j, d, call->pos[0].dict->e[i].key, call->pos[0].dict->e[i].value);
	} else if (call->n_pos > 0) {
		add_pairs(j, d, call->pos[0]);
	}
	if (call->kw != NULL)
		for (size_t i = 0; i < call->kw->n; i++)
			jinja_dict_set(j, d, call->kw->e[i].key, call->kw->e[i].value);
	return d;
}

GLOBAL(g_dict)
{
	(void)self;
	(void)arg;
	return jinja_of_dict(make_dict(j, call, "dict"));
}

GLOBAL(g_namespace)
{
	(void)self;
	(void)arg;
	return (struct jinja_value){ .kind = JINJA_NAMESPACE, .dict = make_dict(j, call, "namespace") };
}

GLOBAL(g_cycler)
{
	struct jinja_cycler *c = jinja_alloc(j, sizeof(*c));
	struct jinja_seq *items = jinja_seq_new(j, call->n_pos);

	(void)self;
	(void)arg;
	jinja_check_count(j, "cycler", call, 1, SIZE_MAX);
	for (size_t i = 0; i < call->n_pos; i++)
		jinja_push(j, items, call->pos[i]);
	c->items = items;
	return (struct jinja_value){ .kind = JINJA_CYCLER, .cycler = c };
}

GLOBAL(g_joiner)
{
	struct jinja_joiner *o = jinja_alloc(j, sizeof(*o));

	(void)self;
	(void)call;
	o->separator = arg[0].kind != JINJA_ABSENT ? jinja_str_of(j, arg[0]) : jinja_str_z(j, ", ");
	return (struct jinja_value){ .kind = JINJA_JOINER, .joiner = o };
}

GLOBAL(g_raise_exception)
{
	const struct jinja_str *why = jinja_str_of(j, arg[0]);

	(void)self;
	(void)call;
	jinja_fail(j, OD_ERR_ARG, "%.*s", (int)(why->len < 600 ? why->len : 600), why->p);
}

/* datetime.now().strftime(format): no time zone, and %f is the microsecond. */
GLOBAL(g_strftime_now)
{
	const struct jinja_str *format = jinja_arg_str(j, arg[0], "strftime_now");
	struct jinja_text t = { 0 }, out = { 0 };
	struct tm now = j->now;

	(void)self;
	(void)call;
	jinja_lit(j, &t, "|"); /* so that no result is empty: an empty one would look like a failure */
	for (size_t i = 0; i < format->len; i++) {
		const char next = i + 1 < format->len ? format->p[i + 1] : '\0';

		if (format->p[i] != '%' || next == '\0') {
			jinja_add(j, &t, format->p + i, 1);
			continue;
		}
		i++;
		if (next == 'f')
			jinja_lit(j, &t, "000000");
		else if (next != 'z' && next != 'Z')
			jinja_add(j, &t, format->p + i - 1, 2);
	}
	jinja_add(j, &t, "", 1);
	if (memchr(t.p, '\0', t.len - 1) != NULL)
		jinja_fail(j, OD_ERR_FORMAT, "strftime_now: the format contains a zero byte");
	out.p = jinja_alloc(j, MAX_TIME_CHARS);
	out.len = strftime(out.p, MAX_TIME_CHARS, t.p, &now);
	if (out.len == 0)
		jinja_fail(j, OD_ERR_RANGE, "strftime_now: the result has more than %u bytes", MAX_TIME_CHARS);
	return jinja_of_str(jinja_str_copy(j, out.p + 1, out.len - 1));
}

const struct jinja_function *jinja_find_global(const struct jinja_str *name)
{
	static const struct jinja_function globals[] = {
		{ "cycler", "*", g_cycler },
		{ "dict", "*", g_dict },
		{ "joiner", "sep?", g_joiner },
		{ "namespace", "*", g_namespace },
		{ "raise_exception", "message", g_raise_exception },
		{ "range", "*", g_range },
		{ "strftime_now", "format", g_strftime_now },
		{ NULL, NULL, NULL },
	};

	return jinja_find_in(globals, name);
}
