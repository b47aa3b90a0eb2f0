/* chat_template.h - a checkpoint's chat template: finds it, knows the special tokens, and renders messages to a prompt.
 *
 * A folder is a checkpoint or a pack. The template comes from chat_template.jinja, else chat_template.json, else the
 * field chat_template of tokenizer_config.json, as in transformers; that for requests with tools from
 * additional_chat_templates/tool_use.jinja (in a pack chat_template_tool_use.jinja) or the same field; the tokens
 * (bos_token, eos_token, ...) from tokenizer_config.json (also those in its extra_special_tokens and
 * model_specific_special_tokens) and, if that has no added_tokens_decoder, from special_tokens_map.json, which then
 * counts more.
 * Thread: immutable once it is open; any number of threads may render. Owner: the caller. */
#ifndef ODM_CHAT_TEMPLATE_H
#define ODM_CHAT_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>

#include "common/base/status.h"
#include "common/text/jinja/jinja.h"
#include "common/text/tokenizer.h"
#include "main-node/chat/chat_messages.h"

struct odm_chat_template;

/* OD_ERR_MISSING: the folder has no chat template. *out is NULL unless OD_OK. */
OD_MUST_CHECK int odm_chat_template_open(struct odm_chat_template **out, const char *dir, struct od_err *err);
void odm_chat_template_close(struct odm_chat_template *t); /* NULL ok */

const char *odm_chat_template_text(const struct odm_chat_template *t, bool with_tools); /* its source */
/* Returns how answers are written, by the template for requests with or without tools: tokenizer_config.json may name
 * one of each. */
const struct odm_chat_format *odm_chat_template_format(const struct odm_chat_template *t, bool with_tools);

/* The tokens that only the template writes, by the template for requests with or without tools: *out as od_controls_new
 * makes it. */
OD_MUST_CHECK int odm_chat_template_controls(const struct odm_chat_template *t, bool with_tools,
					     const struct od_tokenizer *tokenizer, struct od_controls **out,
					     struct od_err *err);

/* vars: messages, tools, add_generation_prompt, documents, and whatever else the template may read; what is missing of
 * these four is none, false or no messages. context: has the JSON texts of objects in vars; NULL: none has one. *text
 * as od_jinja_render makes it; so are the errors. users gets the bytes that are not the template's (NULL: not wanted);
 * its own are also the checkpoint's special tokens (bos_token ...), the roles that messages have everywhere, and the
 * marks of context. */
OD_MUST_CHECK int odm_chat_template_render(const struct odm_chat_template *t, const json_t *vars,
					   const struct odm_context *context, struct od_text_spans *users, char **text,
					   size_t *len, struct od_err *err);

/* Renders as odm_chat_template_render does, but the messages come from a request: chat_messages.h says how they are
 * changed, and which errors they may have. */
OD_MUST_CHECK int odm_chat_template_prompt(const struct odm_chat_template *t, const json_t *vars,
					   struct od_text_spans *users, char **text, size_t *len, struct od_err *err);

/* Gives vars (an object, changed) the fields that templates always see: messages, tools, documents,
 * add_generation_prompt. */
OD_MUST_CHECK int odm_chat_defaults(json_t *vars, struct od_err *err);

#endif
