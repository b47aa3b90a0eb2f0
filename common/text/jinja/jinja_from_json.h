/* jinja_from_json.h - makes values of JSON; only for common/text/jinja.
 *
 * Thread: as the job. */
#ifndef OD_TEXT_JINJA_FROM_JSON_H
#define OD_TEXT_JINJA_FROM_JSON_H

#include <jansson.h>
#include "common/text/jinja/jinja_job.h"
#include "common/text/jinja/jinja_value.h"

/* From JSON: the caller's text, but for what od_jinja_opts says is the template's. */
struct jinja_value jinja_from_json(struct jinja_job *j, const json_t *v);
struct jinja_value jinja_member_from_json(struct jinja_job *j, const json_t *object, const char *key, const json_t *v);

#endif
