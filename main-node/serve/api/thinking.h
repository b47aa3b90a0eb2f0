/* thinking.h - whether a chat's model shall think before it answers, and how much: the fields by which clients say so,
 * and the variables by which templates are told.
 *
 * chat_template_kwargs wins, then enable_thinking, thinking, think, reasoning.enabled, an effort of "none" or
 * "minimal", and a budget of 0.
 * Thread: any. Owner: strings are borrowed from the request. */
#ifndef ODM_THINKING_H
#define ODM_THINKING_H

#include <jansson.h>
#include <stdbool.h>

#include "main-node/serve/http/api_error.h"

enum odm_thinking_wish { ODM_THINK_AS_EVER, ODM_THINK_NOT, ODM_THINK_ALWAYS, ODM_THINK_ADAPTIVE };

struct odm_thinking {
	enum odm_thinking_wish wish;
	const char *effort; /* NULL: not given */
};

/* Reads the fields of a request in the format of chat completions. */
OD_MUST_CHECK int odm_thinking_read(struct odm_thinking *t, const json_t *request, struct odm_api_error *e);
/* Sets what vars, the variables of a template, does not have yet. harmony: of a template that writes any effort, for a
 * model that knows three. False: out of memory. */
bool odm_thinking_set(json_t *vars, const struct odm_thinking *t, bool harmony);
/* Replaces an effort that odm_thinking_set has set by the i-th nearest, i from 0 on: for templates that refuse it.
 * False: there are no more. */
bool odm_thinking_set_near(json_t *vars, const struct odm_thinking *t, size_t i);

#endif
