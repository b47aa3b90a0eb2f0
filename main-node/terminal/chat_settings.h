/* chat_settings.h - how answers are sampled: fields of the request, by the names of options and of /set.
 *
 * Thread: any. Owner: the caller; the values are a JSON object of the request's fields. */
#ifndef ODM_CHAT_SETTINGS_H
#define ODM_CHAT_SETTINGS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

struct odm_chat_setting {
	const char *name; /* "top_k"; an option writes it --top-k */
	bool whole; /* an integer */
	double min, max;
	const char *help;
};

extern const struct odm_chat_setting odm_chat_settings[];
#define ODM_N_CHAT_SETTINGS 6

/* name: with - or _. value: a number, or "default": the server's. */
OD_MUST_CHECK int odm_chat_set(json_t *values, const char *name, const char *value, struct od_err *err);

#endif
