/* jinja_expr.h - evaluates expressions; only for common/text/jinja.
 *
 * Thread: as the job. */
#ifndef OD_TEXT_JINJA_EXPR_H
#define OD_TEXT_JINJA_EXPR_H

#include "common/text/jinja/jinja_eval.h"

struct jinja_value jinja_eval(struct jinja_run *r, const struct jinja_node *n);
/* caller: what `caller` is in the macro, absent outside of call blocks. */
struct jinja_value jinja_eval_call(struct jinja_run *r, const struct jinja_node *n, struct jinja_value caller);

#endif
