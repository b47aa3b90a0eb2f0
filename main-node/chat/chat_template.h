/* chat_template.h - a checkpoint's chat template: finds it, knows the special tokens, and renders messages to a prompt.
 *
 * A folder is a checkpoint or a pack. The template comes from chat_template.jinja, else chat_template.json, else the field
 * chat_template of tokenizer_config.json, as in transformers; the tokens (bos_token, eos_token, ...) from
 * tokenizer_config.json and special_tokens_map.json.
 * Thread: immutable once it is open; any number of threads may render. Owner: the caller. */
#ifndef ODM_CHAT_TEMPLATE_H
#define ODM_CHAT_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>
#include <time.h>

#include "common/base/status.h"
#include "common/text/jinja/jinja.h"

struct odm_chat_template;

/* OD_ERR_MISSING: the folder has no chat template. *out is NULL unless OD_OK. */
OD_MUST_CHECK int odm_chat_template_open(struct odm_chat_template **out, const char *dir, struct od_err *err);
void odm_chat_template_close(struct odm_chat_template *t); /* NULL ok */

/* The template for requests with or without tools: tokenizer_config.json may name one of each. */
const struct od_jinja *odm_chat_template_for(const struct odm_chat_template *t, bool with_tools);
/* Its text. Borrowed. */
const char *odm_chat_template_text(const struct odm_chat_template *t, bool with_tools);
/* The text of a special token such as "eos_token"; NULL: there is none. Borrowed. */
const char *odm_chat_template_token(const struct odm_chat_template *t, const char *name);

/* vars: messages, tools, add_generation_prompt, documents, and whatever else the template may read; what is missing of these
 * four is none, false or no messages. *text as od_jinja_render makes it; so are the errors. now: NULL, the local time. */
OD_MUST_CHECK int odm_chat_template_render(const struct odm_chat_template *t, const json_t *vars, const struct tm *now,
					   char **text, size_t *len, struct od_err *err);

/* Gives vars (an object, changed) the fields that templates always see: messages, tools, documents, add_generation_prompt. */
OD_MUST_CHECK int odm_chat_defaults(json_t *vars, struct od_err *err);

#endif
