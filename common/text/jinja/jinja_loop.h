/* jinja_loop.h - runs loops, and answers for the variable `loop`; only for common/text/jinja.
 *
 * Thread: as the job. */
#ifndef OD_TEXT_JINJA_LOOP_H
#define OD_TEXT_JINJA_LOOP_H

#include "common/text/jinja/jinja_eval.h"

void jinja_run_loop(struct jinja_run *r, const struct jinja_node *n, struct jinja_value iterable, int64_t depth0);
struct jinja_value jinja_call_loop(struct jinja_run *r, struct jinja_loop *loop, const struct jinja_call *call);
/* False: the loop has no such attribute. */
bool jinja_loop_attribute(struct jinja_job *j, struct jinja_loop *loop, const struct jinja_str *name,
			  struct jinja_value *out);

#endif
