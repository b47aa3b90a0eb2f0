/* jinja_ops.h - operators, subscripts and attributes, as Python and jinja2's sandbox have them; only for
 * common/text/jinja.
 *
 * Thread: as the job. */
#ifndef OD_TEXT_JINJA_OPS_H
#define OD_TEXT_JINJA_OPS_H

#include "common/text/jinja/jinja_ast.h"

struct jinja_value jinja_binary(struct jinja_job *j, enum jinja_token_type op, struct jinja_value a,
				struct jinja_value b);
struct jinja_value jinja_negate(struct jinja_job *j, struct jinja_value a);
struct jinja_value jinja_plus(struct jinja_job *j, struct jinja_value a);
bool jinja_contains(struct jinja_job *j, struct jinja_value container, struct jinja_value v); /* v in container */
bool jinja_compare_by(struct jinja_job *j, enum jinja_compare_op op, struct jinja_value a, struct jinja_value b);

/* of.name, of[index]: undefined where there is none. */
struct jinja_value jinja_get_attribute(struct jinja_job *j, struct jinja_value of, const struct jinja_str *name);
struct jinja_value jinja_get_item(struct jinja_job *j, struct jinja_value of, struct jinja_value index);
/* of[begin:end:step]; absent and none: left out. */
struct jinja_value jinja_slice(struct jinja_job *j, struct jinja_value of, struct jinja_value begin,
			       struct jinja_value end, struct jinja_value step);

#endif
