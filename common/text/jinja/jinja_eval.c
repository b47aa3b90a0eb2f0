#include "common/text/jinja/jinja_eval.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/text/jinja/jinja.h"
#include "common/text/jinja/jinja_expr.h"
#include "common/text/jinja/jinja_from_json.h"
#include "common/text/jinja/jinja_globals.h"
#include "common/text/jinja/jinja_loop.h"
#include "common/text/jinja/jinja_show.h"

#define OPERATIONS ((uint64_t)20000000)
#define MEMORY_BYTES ((size_t)512 << 20)
#define OUTPUT_BYTES ((size_t)64 << 20)
#define DEPTH 1200u

/* ---- names ---- */

struct jinja_scope *jinja_scope_new(struct jinja_run *r, struct jinja_scope *parent)
{
	struct jinja_scope *s = jinja_alloc(&r->job, sizeof(*s));

	s->parent = parent;
	return s;
}

void jinja_assign_name(struct jinja_run *r, struct jinja_scope *scope, uint32_t name, struct jinja_value v)
{
	for (size_t i = 0; i < scope->n; i++) {
		if (scope->v[i].name == name) {
			scope->v[i].value = v;
			return;
		}
	}
	jinja_charge(&r->job, scope->n / 4);
	jinja_grow(&r->job, &scope->v, scope->n, &scope->cap, sizeof(*scope->v));
	scope->v[scope->n++] = (struct jinja_variable){ .name = name, .value = v };
}

struct jinja_value jinja_look_up(struct jinja_run *r, uint32_t name)
{
	for (const struct jinja_scope *s = r->scope; s != NULL; s = s->parent) {
		jinja_charge(&r->job, s->n / 16);
		for (size_t i = 0; i < s->n; i++)
			if (s->v[i].name == name)
				return s->v[i].value;
	}
	if (r->globals[name].kind != JINJA_ABSENT)
		return r->globals[name];
	return jinja_undefined_name(&r->job, r->t->names[name].s, NULL);
}

static void assign_member(struct jinja_run *r, const struct jinja_node *target, struct jinja_value v)
{
	struct jinja_value of = jinja_look_up(r, target->member.name);

	if (of.kind != JINJA_NAMESPACE)
		jinja_fail(&r->job, OD_ERR_FORMAT, "expected a namespace to assign an attribute of, found %s",
			   jinja_type_name(of));
	jinja_dict_set(&r->job, of.dict, jinja_of_str(target->member.attribute), v);
}

void jinja_assign(struct jinja_run *r, struct jinja_scope *scope, const struct jinja_node *target, struct jinja_value v)
{
	const struct jinja_seq *s;

	if (target->kind == N_NAME) {
		jinja_assign_name(r, scope, target->name, v);
		return;
	}
	if (target->kind == N_MEMBER) {
		assign_member(r, target, v);
		return;
	}
	s = jinja_items(&r->job, v);
	if (s->n != target->items.n)
		jinja_fail(&r->job, OD_ERR_FORMAT, "expected %zu values to assign, found %zu", target->items.n, s->n);
	for (size_t i = 0; i < s->n; i++)
		jinja_assign(r, scope, target->items.v[i], s->v[i]);
}

/* ---- statements ---- */

const struct jinja_str *jinja_capture(struct jinja_run *r, struct jinja_scope *scope, const struct jinja_nodes *body,
				      enum jinja_flow *flow)
{
	struct jinja_scope *saved = r->scope;
	struct jinja_text text = { .max = r->out->max }, *out = r->out;

	r->scope = scope;
	r->out = &text;
	*flow = jinja_execute(r, body);
	r->out = out;
	r->scope = saved;
	return jinja_str_take(&r->job, &text);
}

struct jinja_value jinja_macro_of(struct jinja_run *r, const struct jinja_signature *s)
{
	struct jinja_macro *m = jinja_alloc(&r->job, sizeof(*m));

	m->signature = s;
	m->scope = r->scope;
	return (struct jinja_value){ .kind = JINJA_MACRO, .macro = m };
}

static void output(struct jinja_run *r, const struct jinja_node *n)
{
	for (size_t i = 0; i < n->items.n; i++)
		jinja_add_str(&r->job, r->out, jinja_eval(r, n->items.v[i]));
}

static enum jinja_flow set_block(struct jinja_run *r, const struct jinja_node *n)
{
	struct jinja_scope *scope = jinja_scope_new(r, r->scope), *outer = r->scope;
	struct jinja_value saved = r->block_text, v;
	enum jinja_flow flow;

	v = jinja_of_str(jinja_capture(r, scope, &n->set.body, &flow));
	if (flow != JINJA_GO_ON)
		return flow;
	if (n->set.value != NULL) {
		r->block_text = v;
		r->scope = scope;
		v = jinja_eval(r, n->set.value);
		r->scope = outer;
		r->block_text = saved;
	}
	jinja_assign(r, r->scope, n->set.target, v);
	return flow;
}

static enum jinja_flow filter_block(struct jinja_run *r, const struct jinja_node *n)
{
	struct jinja_scope *scope = jinja_scope_new(r, r->scope), *outer = r->scope;
	struct jinja_value saved = r->block_text;
	enum jinja_flow flow;

	r->block_text = jinja_of_str(jinja_capture(r, scope, &n->filter_block.body, &flow));
	if (flow == JINJA_GO_ON) {
		r->scope = scope;
		jinja_add_str(&r->job, r->out, jinja_eval(r, n->filter_block.filter));
		r->scope = outer;
	}
	r->block_text = saved;
	return flow;
}

static void call_block(struct jinja_run *r, const struct jinja_node *n)
{
	struct jinja_value caller = jinja_macro_of(r, &n->macro.signature);

	jinja_add_str(&r->job, r->out, jinja_eval_call(r, n->macro.call, caller));
}

/* Values are computed outside, so that one does not see the other. */
static enum jinja_flow with(struct jinja_run *r, const struct jinja_node *n)
{
	struct jinja_scope *outer = r->scope, *scope = jinja_scope_new(r, outer);
	enum jinja_flow flow;

	for (size_t i = 0; i < n->with.targets.n; i++)
		jinja_assign(r, scope, n->with.targets.v[i], jinja_eval(r, n->with.values.v[i]));
	r->scope = scope;
	flow = jinja_execute(r, &n->with.body);
	r->scope = outer;
	return flow;
}

static enum jinja_flow scope_block(struct jinja_run *r, const struct jinja_node *n)
{
	struct jinja_scope *outer = r->scope;
	enum jinja_flow flow;

	r->scope = jinja_scope_new(r, outer);
	flow = jinja_execute(r, &n->items);
	r->scope = outer;
	return flow;
}

/* elif is an `if` that is alone in the other branch: a long chain of them is no deep nesting. */
static enum jinja_flow branch(struct jinja_run *r, const struct jinja_node *n)
{
	for (;;) {
		if (jinja_truth(&r->job, jinja_eval(r, n->branch.test)))
			return jinja_execute(r, &n->branch.yes);
		if (n->branch.no.n != 1 || n->branch.no.v[0]->kind != N_IF)
			return jinja_execute(r, &n->branch.no);
		n = n->branch.no.v[0];
	}
}

static enum jinja_flow execute_one(struct jinja_run *r, const struct jinja_node *n)
{
	r->job.line = n->line;
	jinja_charge(&r->job, 1);
	if (n->kind == N_TEXT)
		jinja_add(&r->job, r->out, n->text->p, n->text->len);
	else if (n->kind == N_OUTPUT)
		output(r, n);
	else if (n->kind == N_IF)
		return branch(r, n);
	else if (n->kind == N_SET)
		jinja_assign(r, r->scope, n->set.target, jinja_eval(r, n->set.value));
	else if (n->kind == N_FOR)
		jinja_run_loop(r, n, jinja_eval(r, n->loop.iterable), 0);
	else if (n->kind == N_MACRO)
		jinja_assign_name(r, r->scope, n->macro.name, jinja_macro_of(r, &n->macro.signature));
	else if (n->kind == N_SET_BLOCK)
		return set_block(r, n);
	else if (n->kind == N_CALL_BLOCK)
		call_block(r, n);
	else if (n->kind == N_FILTER_BLOCK)
		return filter_block(r, n);
	else if (n->kind == N_WITH)
		return with(r, n);
	else if (n->kind == N_SCOPE)
		return scope_block(r, n);
	else if (n->kind == N_BREAK)
		return JINJA_BREAK;
	else if (n->kind == N_CONTINUE)
		return JINJA_CONTINUE;
	return JINJA_GO_ON;
}

enum jinja_flow jinja_execute(struct jinja_run *r, const struct jinja_nodes *body)
{
	enum jinja_flow flow = JINJA_GO_ON;

	jinja_enter(&r->job);
	for (size_t i = 0; i < body->n && flow == JINJA_GO_ON; i++)
		flow = execute_one(r, body->v[i]);
	jinja_leave(&r->job);
	return flow;
}

/* ---- a rendering ---- */

static const char *z(struct jinja_run *r, const struct jinja_str *s)
{
	char *text = jinja_alloc(&r->job, s->len + 1);

	if (s->len > 0)
		memcpy(text, s->p, s->len);
	return text;
}

static void find_globals(struct jinja_run *r, const json_t *vars)
{
	r->globals = jinja_alloc_array(&r->job, r->t->n_names, sizeof(*r->globals));
	for (size_t i = 0; i < r->t->n_names; i++) {
		const struct jinja_str *name = r->t->names[i].s;
		const json_t *given = od_json_getn(vars, name->p, name->len);
		const struct jinja_function *f = jinja_find_global(name);

		if (given != NULL)
			r->globals[i] = jinja_member_from_json(&r->job, vars, z(r, name), given);
		else if (f != NULL)
			r->globals[i] = (struct jinja_value){ .kind = JINJA_FUNCTION, .function = f };
	}
}

/* No local changes between here and a longjmp. */
static int render_or_leave(struct jinja_run *r, const json_t *vars)
{
	if (setjmp(r->job.leave) != 0)
		return r->job.code;
	find_globals(r, vars);
	r->scope = jinja_scope_new(r, NULL);
	jinja_execute(r, &r->t->body);
	return OD_OK;
}

static void set_limits(struct jinja_run *r, const struct od_jinja_opts *opts)
{
	const struct od_jinja_limits *l = &opts->limits;
	const time_t now = time(NULL);

	r->job.operations_left = l->operations > 0 ? l->operations : OPERATIONS;
	r->job.max_bytes = l->memory_bytes > 0 ? l->memory_bytes : MEMORY_BYTES;
	r->job.max_depth = l->depth > 0 ? l->depth : DEPTH;
	r->out->max = l->output_bytes > 0 ? l->output_bytes : OUTPUT_BYTES;
	r->job.opts = opts;
	r->job.template = &r->t->job;
	if (opts->now != NULL)
		r->job.now = *opts->now;
	else
		localtime_r(&now, &r->job.now);
}

static int take_users(const struct jinja_run *r, struct od_text_spans *users)
{
	const unsigned char *own = jinja_owned(&r->job, r->out->p);
	const size_t len = r->out->len;
	int rc = OD_OK;

	for (size_t at = 0, n; at < len && rc == OD_OK; at += n) {
		const unsigned char *end = memchr(own + at, own[at] != 0 ? 0 : 1, len - at);

		n = end != NULL ? (size_t)(end - own) - at : len - at;
		if (own[at] == 0)
			rc = od_text_spans_add(users, at, at + n);
	}
	return rc;
}

static int take_output(const struct jinja_run *r, char **text, size_t *len, struct od_text_spans *users)
{
	const struct jinja_text *out = r->out;
	int rc = users != NULL ? take_users(r, users) : OD_OK;

	*text = rc == OD_OK ? malloc(out->len + 1) : NULL;
	if (*text == NULL)
		return od_fail(r->job.err, OD_ERR_NOMEM, "no memory for the text of %s", r->job.name);
	*len = out->len;
	if (out->len > 0)
		memcpy(*text, out->p, out->len);
	(*text)[out->len] = '\0';
	return OD_OK;
}

int od_jinja_render(const struct od_jinja *t, const json_t *vars, const struct od_jinja_opts *opts, char **text,
		    size_t *len, struct od_err *err)
{
	static const struct od_jinja_opts defaults;
	struct jinja_text out = { 0 };
	struct jinja_run r = { .t = t, .out = &out };
	struct od_err ignored;
	int rc;

	*text = NULL;
	*len = 0;
	if (opts == NULL)
		opts = &defaults;
	if (opts->users != NULL)
		opts->users->n = 0;
	r.job.err = err != NULL ? err : &ignored;
	r.job.name = t->job.name;
	set_limits(&r, opts);
	rc = render_or_leave(&r, vars);
	if (rc == OD_OK)
		rc = take_output(&r, text, len, opts->users);
	if (rc != OD_OK && opts->users != NULL)
		opts->users->n = 0;
	jinja_free_all(&r.job);
	return rc;
}
