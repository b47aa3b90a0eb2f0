/* jinja_format.h - formats strings as Python does; only for common/text/jinja.
 *
 * Thread: as the job. */
#ifndef OD_TEXT_JINJA_FORMAT_H
#define OD_TEXT_JINJA_FORMAT_H

#include "common/text/jinja/jinja_calls.h"

/* s % value and s.format(...). */
struct jinja_value jinja_percent(struct jinja_job *j, const struct jinja_str *s, struct jinja_value value);
struct jinja_value jinja_format(struct jinja_job *j, const struct jinja_str *s, const struct jinja_call *call);

#endif
