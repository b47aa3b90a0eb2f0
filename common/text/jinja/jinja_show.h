/* jinja_show.h - values as text: Python's str and repr, JSON, HTML escapes; only for common/text/jinja.
 *
 * Thread: as the job. */
#ifndef OD_TEXT_JINJA_SHOW_H
#define OD_TEXT_JINJA_SHOW_H

#include "common/text/jinja/jinja_value.h"

void jinja_add_str(struct jinja_job *j, struct jinja_text *t, struct jinja_value v); /* str(v) */
void jinja_add_repr(struct jinja_job *j, struct jinja_text *t, struct jinja_value v); /* repr(v) */
void jinja_add_repr_str(struct jinja_job *j, struct jinja_text *t, const struct jinja_str *s, bool ascii_only);
/* repr: the shortest that reads back equal */
void jinja_add_float(struct jinja_job *j, struct jinja_text *t, double f);
/* str(v); v itself if it is a string */
const struct jinja_str *jinja_str_of(struct jinja_job *j, struct jinja_value v);
/* for HTML; the result is markup */
const struct jinja_str *jinja_escape(struct jinja_job *j, const struct jinja_str *s);

struct jinja_json_style {
	bool ascii_only, sort_keys;
	const struct jinja_str *indent; /* NULL: all on one line */
	const struct jinja_str *item_separator, *key_separator;
};

void jinja_add_json(struct jinja_job *j, struct jinja_text *t, struct jinja_value v,
		    const struct jinja_json_style *style);

#endif
