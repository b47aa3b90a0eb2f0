/* jinja_methods.h - methods and attributes of strings, lists, dicts and other values; only for common/text/jinja.
 *
 * Thread: as the job. */
#ifndef OD_TEXT_JINJA_METHODS_H
#define OD_TEXT_JINJA_METHODS_H

#include "common/text/jinja/jinja_calls.h"

/* False: the value has no such method or attribute. */
bool jinja_value_attribute(struct jinja_job *j, struct jinja_value of, const struct jinja_str *name,
			   struct jinja_value *out);

#endif
