/* jinja_eval.h - what executing statements (jinja_eval.c), expressions (jinja_expr.c) and loops (jinja_loop.c) share.
 *
 * Thread: as the job. */
#ifndef OD_TEXT_JINJA_EVAL_H
#define OD_TEXT_JINJA_EVAL_H

#include "common/text/jinja/jinja_ast.h"

/* Names set in a block, a loop's body or a macro. Lookups go outwards along parents: scopes nest as they are written,
 * and a macro's parent is the scope that it was defined in. */
struct jinja_scope {
	struct jinja_scope *parent;
	struct jinja_variable {
		uint32_t name;
		struct jinja_value value;
	} * v;
	size_t n, cap;
};

struct jinja_run {
	struct jinja_job job; /* first: functions written in C only see this */
	const struct od_jinja *t;
	struct jinja_value *globals; /* by id of a name: what was given, else built in, else absent */
	struct jinja_scope *scope;
	struct jinja_text *out;
	struct jinja_value block_text; /* the filters of a block begin with it */
};

struct jinja_macro {
	const struct jinja_signature *signature;
	struct jinja_scope *scope; /* the scope of its definition */
};

struct jinja_loop {
	const struct jinja_node *node;
	struct jinja_scope *outer;
	const struct jinja_seq *items; /* items from next on have not passed the loop's condition yet */
	size_t next;
	bool tested; /* all items have passed */
	struct jinja_value before, current, after;
	bool has_after; /* one item was read ahead */
	int64_t index0;
	int64_t depth0;
	const struct jinja_seq *last_changed; /* NULL: never asked */
};

/* The statement after this one, or a loop's next turn. */
enum jinja_flow { JINJA_GO_ON, JINJA_BREAK, JINJA_CONTINUE };

enum jinja_flow jinja_execute(struct jinja_run *r, const struct jinja_nodes *body);

struct jinja_scope *jinja_scope_new(struct jinja_run *r, struct jinja_scope *parent);
void jinja_assign_name(struct jinja_run *r, struct jinja_scope *scope, uint32_t name, struct jinja_value v);
void jinja_assign(struct jinja_run *r, struct jinja_scope *scope, const struct jinja_node *target,
		  struct jinja_value v);
struct jinja_value jinja_look_up(struct jinja_run *r, uint32_t name); /* undefined where there is none */

/* The text that body makes in a new scope below parent. */
const struct jinja_str *jinja_capture(struct jinja_run *r, struct jinja_scope *scope, const struct jinja_nodes *body,
				      enum jinja_flow *flow);
struct jinja_value jinja_macro_of(struct jinja_run *r, const struct jinja_signature *s);

#endif
