#include "common/text/jinja/jinja_expr.h"

#include "common/text/jinja/jinja_eval.h"
#include "common/text/jinja/jinja_loop.h"
#include "common/text/jinja/jinja_ops.h"
#include "common/text/jinja/jinja_show.h"

static struct jinja_value eval_items(struct jinja_run *r, const struct jinja_nodes *items, bool is_list)
{
	struct jinja_seq *s = jinja_seq_new(&r->job, items->n);

	for (size_t i = 0; i < items->n; i++)
		jinja_push(&r->job, s, jinja_eval(r, items->v[i]));
	return is_list ? jinja_list(s) : jinja_tuple(s);
}

static struct jinja_value eval_dict(struct jinja_run *r, const struct jinja_node *n)
{
	struct jinja_dict *d = jinja_dict_new(&r->job);

	for (size_t i = 0; i < n->dict.keys.n; i++) {
		struct jinja_value key = jinja_eval(r, n->dict.keys.v[i]);

		jinja_dict_set(&r->job, d, key, jinja_eval(r, n->dict.values.v[i]));
	}
	return jinja_of_dict(d);
}

static struct jinja_value eval_concat(struct jinja_run *r, const struct jinja_node *n)
{
	const struct jinja_str *s = jinja_str_of(&r->job, jinja_eval(r, n->items.v[0]));

	s = jinja_str_markup(&r->job, s, false);
	for (size_t i = 1; i < n->items.n; i++)
		s = jinja_concat(&r->job, s, jinja_str_of(&r->job, jinja_eval(r, n->items.v[i])));
	return jinja_of_str(jinja_str_markup(&r->job, s, false));
}

/* a < b < c is a < b and b < c, with b computed once. */
static struct jinja_value eval_compare(struct jinja_run *r, const struct jinja_node *n)
{
	struct jinja_value left = jinja_eval(r, n->compare.first);

	for (size_t i = 0; i < n->compare.rest.n; i++) {
		struct jinja_value right = jinja_eval(r, n->compare.rest.v[i]);

		r->job.line = n->line;
		if (!jinja_compare_by(&r->job, n->compare.ops[i], left, right))
			return jinja_bool(false);
		left = right;
	}
	return jinja_bool(true);
}

static struct jinja_value eval_choice(struct jinja_run *r, const struct jinja_node *n)
{
	if (jinja_truth(&r->job, jinja_eval(r, n->choice.test)))
		return jinja_eval(r, n->choice.yes);
	if (n->choice.no != NULL)
		return jinja_eval(r, n->choice.no);
	return jinja_undefined_hint(&r->job, "an inline 'if' was false and has no 'else'");
}

static struct jinja_value eval_item(struct jinja_run *r, const struct jinja_node *n)
{
	struct jinja_value of = jinja_eval(r, n->item.of), operand[3];
	const struct jinja_node *index = n->item.index;

	if (index->kind == N_SLICE) {
		const struct jinja_node *const from[] = { index->slice.begin, index->slice.end, index->slice.step };

		for (size_t i = 0; i < 3; i++)
			operand[i] = from[i] != NULL ? jinja_eval(r, from[i]) : JINJA_ABSENT_VALUE;
		r->job.line = n->line;
		return jinja_slice(&r->job, of, operand[0], operand[1], operand[2]);
	}
	operand[0] = jinja_eval(r, index);
	r->job.line = n->line;
	return jinja_get_item(&r->job, of, operand[0]);
}

/* ---- calls ---- */

static void eval_more_kw(struct jinja_run *r, const struct jinja_arguments *a, struct jinja_dict *kw)
{
	struct jinja_value more = jinja_eval(r, a->more_kw);

	if (more.kind != JINJA_DICT)
		jinja_fail(&r->job, OD_ERR_FORMAT, "expected a dict after **, found %s", jinja_type_name(more));
	for (size_t i = 0; i < more.dict->n; i++) {
		if (more.dict->e[i].key.kind != JINJA_STR)
			jinja_fail(&r->job, OD_ERR_FORMAT, "expected strings as keys after **, found %s",
				   jinja_type_name(more.dict->e[i].key));
		if (jinja_dict_get(&r->job, kw, more.dict->e[i].key) != NULL)
			jinja_fail(&r->job, OD_ERR_FORMAT, "a keyword argument is given twice");
		jinja_dict_set(&r->job, kw, more.dict->e[i].key, more.dict->e[i].value);
	}
}

static struct jinja_call eval_arguments(struct jinja_run *r, const struct jinja_arguments *a)
{
	struct jinja_call call = { 0 };
	struct jinja_dict *kw;
	struct jinja_seq *pos;

	if (a->pos.n > 0 || a->more_pos != NULL) {
		pos = jinja_seq_new(&r->job, a->pos.n);
		for (size_t i = 0; i < a->pos.n; i++)
			jinja_push(&r->job, pos, jinja_eval(r, a->pos.v[i]));
		if (a->more_pos != NULL) {
			const struct jinja_seq *more = jinja_items(&r->job, jinja_eval(r, a->more_pos));

			for (size_t i = 0; i < more->n; i++)
				jinja_push(&r->job, pos, more->v[i]);
		}
		call.pos = pos->v;
		call.n_pos = pos->n;
	}
	if (a->value.n > 0 || a->more_kw != NULL) {
		kw = jinja_dict_new(&r->job);
		for (size_t i = 0; i < a->value.n; i++)
			jinja_dict_set(&r->job, kw, a->keyword[i], jinja_eval(r, a->value.v[i]));
		if (a->more_kw != NULL)
			eval_more_kw(r, a, kw);
		call.kw = kw;
	}
	return call;
}

/* Keyword arguments that no parameter took: for `kwargs`, or an error. */
static void bind_rest(struct jinja_run *r, const struct jinja_signature *s, struct jinja_scope *scope,
		      const struct jinja_call *call)
{
	struct jinja_dict *rest = jinja_dict_new(&r->job);
	struct jinja_value caller = JINJA_ABSENT_VALUE;

	for (size_t i = 0; call->kw != NULL && i < call->kw->n; i++) {
		const struct jinja_entry *e = &call->kw->e[i];
		bool taken = false;

		for (size_t k = call->n_pos; k < s->n_params; k++)
			taken = taken || jinja_str_compare(r->t->names[s->param[k]].s, e->key.s) == 0;
		if (!taken && s->takes_caller && jinja_str_is(e->key.s, "caller"))
			caller = e->value;
		else if (!taken)
			jinja_dict_set(&r->job, rest, e->key, e->value);
	}
	if (s->takes_caller)
		jinja_assign_name(r, scope, JINJA_NAME_CALLER,
				  jinja_given(caller) ? caller : jinja_undefined_hint(&r->job, "No caller defined"));
	if (s->takes_kwargs)
		jinja_assign_name(r, scope, JINJA_NAME_KWARGS, jinja_of_dict(rest));
	else if (rest->n > 0)
		jinja_fail(&r->job, OD_ERR_FORMAT, "a macro takes no keyword argument '%.*s'",
			   (int)(rest->e[0].key.s->len < 60 ? rest->e[0].key.s->len : 60), rest->e[0].key.s->p);
}

static void bind_varargs(struct jinja_run *r, const struct jinja_signature *s, struct jinja_scope *scope,
			 const struct jinja_call *call)
{
	struct jinja_seq *rest = jinja_seq_new(&r->job, 0);

	if (call->n_pos > s->n_params && !s->takes_varargs)
		jinja_fail(&r->job, OD_ERR_FORMAT, "a macro takes not more than %zu arguments, found %zu", s->n_params,
			   call->n_pos);
	for (size_t i = s->n_params; i < call->n_pos; i++)
		jinja_push(&r->job, rest, call->pos[i]);
	if (s->takes_varargs)
		jinja_assign_name(r, scope, JINJA_NAME_VARARGS, jinja_tuple(rest));
}

/* Defaults are computed at each call, left to right, and see the parameters before them. */
static void bind_params(struct jinja_run *r, const struct jinja_signature *s, const struct jinja_call *call)
{
	const size_t first_fallback = s->n_params - s->fallback.n;

	for (size_t i = 0; i < s->n_params; i++) {
		const struct jinja_str *name = r->t->names[s->param[i]].s;
		const struct jinja_value *kw = NULL;
		struct jinja_value v;

		if (i >= call->n_pos && call->kw != NULL)
			kw = jinja_dict_get(&r->job, call->kw, jinja_of_str(name));
		if (i < call->n_pos)
			v = call->pos[i];
		else if (kw != NULL)
			v = *kw;
		else if (i >= first_fallback)
			v = jinja_eval(r, s->fallback.v[i - first_fallback]);
		else
			v = jinja_undefined_hint(&r->job, "a macro's parameter was not provided");
		jinja_assign_name(r, r->scope, s->param[i], v);
	}
}

static struct jinja_value call_macro(struct jinja_run *r, const struct jinja_macro *m, const struct jinja_call *call)
{
	struct jinja_scope *saved = r->scope, *scope = jinja_scope_new(r, m->scope);
	const struct jinja_str *text;
	enum jinja_flow flow;

	bind_rest(r, m->signature, scope, call);
	bind_varargs(r, m->signature, scope, call);
	r->scope = scope;
	bind_params(r, m->signature, call);
	r->scope = saved;
	text = jinja_capture(r, scope, &m->signature->body, &flow);
	return jinja_of_str(text);
}

static struct jinja_value call_joiner(struct jinja_run *r, struct jinja_joiner *o, const struct jinja_call *call)
{
	bool first = !o->used;

	jinja_check_count(&r->job, "joiner", call, 0, 0);
	o->used = true;
	return first ? jinja_z(&r->job, "") : jinja_of_str(o->separator);
}

/* A method of markup returns markup. */
static struct jinja_value call_method(struct jinja_run *r, const struct jinja_method *m, const struct jinja_call *call)
{
	struct jinja_value v = jinja_call_function(&r->job, m->function, m->self, call);

	if (m->self.kind == JINJA_STR && m->self.s->markup && v.kind == JINJA_STR)
		v = jinja_of_str(jinja_str_markup(&r->job, v.s, true));
	return v;
}

static struct jinja_value call_value(struct jinja_run *r, struct jinja_value callee, const struct jinja_call *call)
{
	if (callee.kind == JINJA_MACRO)
		return call_macro(r, callee.macro, call);
	if (callee.kind == JINJA_METHOD)
		return call_method(r, callee.method, call);
	if (callee.kind == JINJA_FUNCTION)
		return jinja_call_function(&r->job, callee.function, JINJA_ABSENT_VALUE, call);
	if (callee.kind == JINJA_LOOP)
		return jinja_call_loop(r, callee.loop, call);
	if (callee.kind == JINJA_JOINER)
		return call_joiner(r, callee.joiner, call);
	if (callee.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(&r->job, callee.undefined);
	jinja_fail(&r->job, OD_ERR_FORMAT, "expected a function or macro to call, found %s", jinja_type_name(callee));
}

struct jinja_value jinja_eval_call(struct jinja_run *r, const struct jinja_node *n, struct jinja_value caller)
{
	struct jinja_value callee = jinja_eval(r, n->call.callee);
	struct jinja_call call = eval_arguments(r, &n->call.args);

	if (caller.kind != JINJA_ABSENT) {
		struct jinja_dict *kw = jinja_dict_new(&r->job);

		if (call.kw != NULL)
			for (size_t i = 0; i < call.kw->n; i++)
				jinja_dict_set(&r->job, kw, call.kw->e[i].key, call.kw->e[i].value);
		jinja_dict_set(&r->job, kw, jinja_z(&r->job, "caller"), caller);
		call.kw = kw;
	}
	r->job.line = n->line;
	return call_value(r, callee, &call);
}

static struct jinja_value eval_apply(struct jinja_run *r, const struct jinja_node *n)
{
	struct jinja_value of = n->apply.of != NULL ? jinja_eval(r, n->apply.of) : r->block_text;
	struct jinja_call call = eval_arguments(r, &n->apply.args);

	r->job.line = n->line;
	if (n->apply.function == NULL)
		jinja_fail_unknown(&r->job, n->kind == N_FILTER ? "filter" : "test", n->apply.name);
	return jinja_call_function(&r->job, n->apply.function, of, &call);
}

static struct jinja_value eval_op(struct jinja_run *r, const struct jinja_node *n)
{
	struct jinja_value a = jinja_eval(r, n->op.a), b;

	if (n->kind == N_AND)
		return jinja_truth(&r->job, a) ? jinja_eval(r, n->op.b) : a;
	if (n->kind == N_OR)
		return jinja_truth(&r->job, a) ? a : jinja_eval(r, n->op.b);
	b = n->op.b != NULL ? jinja_eval(r, n->op.b) : JINJA_ABSENT_VALUE;
	r->job.line = n->line;
	if (n->kind == N_BINARY)
		return jinja_binary(&r->job, n->op.op, a, b);
	if (n->kind == N_NOT)
		return jinja_bool(!jinja_truth(&r->job, a));
	return n->kind == N_NEGATE ? jinja_negate(&r->job, a) : jinja_plus(&r->job, a);
}

static struct jinja_value eval_inner(struct jinja_run *r, const struct jinja_node *n)
{
	if (n->kind == N_CONST)
		return n->constant;
	if (n->kind == N_NAME)
		return jinja_look_up(r, n->name);
	if (n->kind == N_ATTRIBUTE) {
		struct jinja_value of = jinja_eval(r, n->attribute.of);

		r->job.line = n->line;
		return jinja_get_attribute(&r->job, of, n->attribute.name);
	}
	if (n->kind == N_LIST || n->kind == N_TUPLE)
		return eval_items(r, &n->items, n->kind == N_LIST);
	if (n->kind == N_ITEM)
		return eval_item(r, n);
	if (n->kind == N_FILTER || n->kind == N_TEST)
		return eval_apply(r, n);
	if (n->kind == N_CALL)
		return jinja_eval_call(r, n, JINJA_ABSENT_VALUE);
	if (n->kind == N_COMPARE)
		return eval_compare(r, n);
	if (n->kind == N_CONCAT)
		return eval_concat(r, n);
	if (n->kind == N_CHOICE)
		return eval_choice(r, n);
	if (n->kind == N_DICT)
		return eval_dict(r, n);
	if (n->kind == N_SLICE)
		jinja_fail(&r->job, OD_ERR_UNSUPPORTED, "slices in a tuple of subscripts are not supported");
	return eval_op(r, n);
}

struct jinja_value jinja_eval(struct jinja_run *r, const struct jinja_node *n)
{
	struct jinja_value v;

	jinja_enter(&r->job);
	jinja_charge(&r->job, 1);
	r->job.line = n->line;
	v = eval_inner(r, n);
	jinja_leave(&r->job);
	return v;
}
