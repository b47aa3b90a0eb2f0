#include "common/text/jinja/jinja_loop.h"

#include "common/text/jinja/jinja_eval.h"
#include "common/text/jinja/jinja_expr.h"

/* Whether an item passes the condition `for x in y if z`. Only the target is visible in it, not `loop`. */
static bool passes(struct jinja_run *r, struct jinja_loop *l, struct jinja_value item)
{
	struct jinja_scope *saved = r->scope;
	bool good;

	if (l->tested || l->node->loop.test == NULL)
		return true;
	r->scope = jinja_scope_new(r, l->outer);
	jinja_assign(r, r->scope, l->node->loop.target, item);
	good = jinja_truth(&r->job, jinja_eval(r, l->node->loop.test));
	r->scope = saved;
	return good;
}

/* The condition is tested as late as Python's generators do it: a namespace that the body changes may be in it. */
static bool read_item(struct jinja_run *r, struct jinja_loop *l, struct jinja_value *item)
{
	while (l->next < l->items->n) {
		*item = l->items->v[l->next++];
		jinja_charge(&r->job, 1);
		if (passes(r, l, *item))
			return true;
	}
	return false;
}

static bool peek(struct jinja_run *r, struct jinja_loop *l)
{
	if (!l->has_after)
		l->has_after = read_item(r, l, &l->after);
	return l->has_after;
}

static bool advance(struct jinja_run *r, struct jinja_loop *l)
{
	struct jinja_value item;

	if (l->has_after) {
		item = l->after;
		l->has_after = false;
	} else if (!read_item(r, l, &item)) {
		return false;
	}
	l->index0++;
	l->before = l->current;
	l->current = item;
	return true;
}

static int64_t length(struct jinja_run *r, struct jinja_loop *l)
{
	if (!l->tested && l->node->loop.test != NULL) {
		struct jinja_seq *rest = jinja_seq_new(&r->job, 0);
		struct jinja_value item;

		while (read_item(r, l, &item))
			jinja_push(&r->job, rest, item);
		l->items = rest;
		l->next = 0;
		l->tested = true;
	}
	return l->index0 + 1 + l->has_after + (int64_t)(l->items->n - l->next);
}

/* A `for` without an iteration that went to its end, whether it broke or continued, executes its else. */
void jinja_run_loop(struct jinja_run *r, const struct jinja_node *n, struct jinja_value iterable, int64_t depth0)
{
	struct jinja_scope *outer = r->scope, *scope = jinja_scope_new(r, outer);
	struct jinja_loop *l = jinja_alloc(&r->job, sizeof(*l));
	bool any = false;

	*l = (struct jinja_loop){ .node = n, .outer = outer, .index0 = -1, .depth0 = depth0 };
	l->items = jinja_items(&r->job, iterable);
	while (advance(r, l)) {
		enum jinja_flow flow;

		scope->n = 0;
		jinja_assign_name(r, scope, JINJA_NAME_LOOP, (struct jinja_value){ .kind = JINJA_LOOP, .loop = l });
		jinja_assign(r, scope, n->loop.target, l->current);
		r->scope = scope;
		flow = jinja_execute(r, &n->loop.body);
		r->scope = outer;
		any = any || flow == JINJA_GO_ON;
		if (flow == JINJA_BREAK)
			break;
	}
	scope->n = 0;
	if (!any && n->loop.otherwise.n > 0) {
		r->scope = jinja_scope_new(r, outer);
		jinja_execute(r, &n->loop.otherwise);
		r->scope = outer;
	}
}

/* loop(children) in a loop that is `recursive`: the text of the same loop over other items. */
struct jinja_value jinja_call_loop(struct jinja_run *r, struct jinja_loop *l, const struct jinja_call *call)
{
	struct jinja_scope *scope = r->scope;
	struct jinja_text text = { .max = r->out->max }, *out = r->out;

	jinja_check_count(&r->job, "loop", call, 1, 1);
	if (!l->node->loop.recursive)
		jinja_fail(&r->job, OD_ERR_FORMAT, "a loop that calls itself must be marked 'recursive'");
	r->scope = l->outer;
	r->out = &text;
	jinja_run_loop(r, l->node, call->pos[0], l->depth0 + 1);
	r->out = out;
	r->scope = scope;
	return jinja_text_value(&r->job, &text);
}

static struct jinja_value loop_cycle(struct jinja_job *j, struct jinja_value self, const struct jinja_value *arg,
				     const struct jinja_call *call)
{
	(void)arg;
	jinja_check_count(j, "loop.cycle", call, 1, SIZE_MAX);
	return call->pos[(size_t)self.loop->index0 % call->n_pos];
}

static struct jinja_value loop_changed(struct jinja_job *j, struct jinja_value self, const struct jinja_value *arg,
				       const struct jinja_call *call)
{
	struct jinja_seq *now = jinja_seq_new(j, call->n_pos);
	struct jinja_loop *l = self.loop;
	bool same;

	(void)arg;
	jinja_check_count(j, "loop.changed", call, 0, SIZE_MAX);
	for (size_t i = 0; i < call->n_pos; i++)
		jinja_push(j, now, call->pos[i]);
	same = l->last_changed != NULL && jinja_equal(j, jinja_tuple(l->last_changed), jinja_tuple(now));
	if (!same)
		l->last_changed = now;
	return jinja_bool(!same);
}

static const struct jinja_function loop_methods[] = {
	{ "cycle", "*", loop_cycle },
	{ "changed", "*", loop_changed },
	{ NULL, NULL, NULL },
};

static bool loop_number(struct jinja_run *r, struct jinja_loop *l, const struct jinja_str *name, int64_t *out)
{
	if (jinja_str_is(name, "index0"))
		*out = l->index0;
	else if (jinja_str_is(name, "index"))
		*out = l->index0 + 1;
	else if (jinja_str_is(name, "depth0"))
		*out = l->depth0;
	else if (jinja_str_is(name, "depth"))
		*out = l->depth0 + 1;
	else if (jinja_str_is(name, "length"))
		*out = length(r, l);
	else if (jinja_str_is(name, "revindex0"))
		*out = length(r, l) - l->index0 - 1;
	else if (jinja_str_is(name, "revindex"))
		*out = length(r, l) - l->index0;
	else
		return false;
	return true;
}

bool jinja_loop_attribute(struct jinja_job *j, struct jinja_loop *l, const struct jinja_str *name,
			  struct jinja_value *out)
{
	/* loops exist only while rendering, and there the job is the run's */
	struct jinja_run *r = (struct jinja_run *)j;
	const struct jinja_function *method = jinja_find_in(loop_methods, name);
	int64_t i;

	if (method != NULL) {
		struct jinja_method *m = jinja_alloc(j, sizeof(*m));

		m->self = (struct jinja_value){ .kind = JINJA_LOOP, .loop = l };
		m->function = method;
		*out = (struct jinja_value){ .kind = JINJA_METHOD, .method = m };
	} else if (loop_number(r, l, name, &i)) {
		*out = jinja_int(i);
	} else if (jinja_str_is(name, "first")) {
		*out = jinja_bool(l->index0 == 0);
	} else if (jinja_str_is(name, "last")) {
		*out = jinja_bool(!peek(r, l));
	} else if (jinja_str_is(name, "previtem")) {
		*out = l->index0 > 0 ? l->before : jinja_undefined_hint(j, "there is no previous item");
	} else if (jinja_str_is(name, "nextitem")) {
		*out = peek(r, l) ? l->after : jinja_undefined_hint(j, "there is no next item");
	} else {
		return false;
	}
	return true;
}
