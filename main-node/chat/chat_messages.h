/* chat_messages.h - from the messages of a request (OpenAI's format) to what a chat template reads.
 *
 * A message stays as it is but for what templates cannot read, or would write otherwise than the model wrote it:
 * - tool_calls[].function.arguments, the text of a JSON object, becomes what the template takes (chat_format.h, enum
 *   odm_echo). So that the call is rendered byte for byte as the model wrote it, the arguments that answer.h gave must
 *   come back unchanged. As an object, its own text goes with it: odm_context_source(); tojson must write that text. As
 *   an object of values (XML formats), each value is a string, the text that the model wrote between the tags. As text,
 *   it is that text. Arguments that a request gives as an object stay one, without a text.
 * - Content that is a list keeps its texts; of what is no text, part_text.h makes one. The list becomes one string,
 *   joined with line breaks, or a string a list, if the template does not read the other for this role. Content that is
 *   missing or null is an empty text, but beside calls null if the template wants that.
 * - A tool's answer without a name gets its call's name, unless the template writes a name instead of the role;
 *   calls without a type are functions; a function's fields begin with name and arguments, as models write them;
 *   reasoning and thinking are other names of reasoning_content, and stand beside it where the template reads them;
 *   developer is system where the template does not know the role.
 * - Ids of calls become nine letters and digits, or functions.NAME:INDEX counted over the conversation, in the call and
 *   in its result, where the template's model has such ids.
 * - Messages that the template does not take in this order are changed as chat_order.h says.
 * - Fields that are null or of another type, as clients send them for what an answer did not have, are left out.
 *
 * Thread: one at a time. Owner: the caller; odm_context_fini frees. */
#ifndef ODM_CHAT_CHAT_MESSAGES_H
#define ODM_CHAT_CHAT_MESSAGES_H

#include "common/base/status.h"
#include "common/text/text_spans.h"
#include "main-node/chat/chat_format.h"

#include <jansson.h>

struct odm_context_source {
	const json_t *value;
	char *text;
};

/* Marks of the model's notation that stand in a string, between a user's texts. */
struct odm_context_marks {
	const json_t *value;
	struct od_text_spans spans;
};

struct odm_context {
	json_t *messages; /* value of the template's variable `messages` */
	struct odm_context_source *source; /* [n_sources], in order of value */
	size_t n_sources;
	struct odm_context_marks *marks; /* [n_marks], in order of value */
	size_t n_marks;
	unsigned changed; /* enum odm_need: changes of the order so far */
};

/* This field of a user's message counts the bytes of its content before the last of several parts that a client sent
 * apart. No template sees it. */
#define ODM_LAST_PART "od_last_part"

/* An error names the field: OD_ERR_FORMAT (wrong type). *out is empty unless OD_OK. */
OD_MUST_CHECK int odm_context_build(struct odm_context *out, const json_t *messages,
				    const struct odm_chat_format *format, struct od_err *err);
/* Changes c for further needs (enum odm_need). */
OD_MUST_CHECK int odm_context_arrange(struct odm_context *c, const struct odm_chat_format *format, unsigned needs,
				      struct od_err *err);
void odm_context_fini(struct odm_context *c);

/* Returns the JSON text from which value, an object within messages, was read; NULL: none, write it as Python's
 * json.dumps does. */
const char *odm_context_source(const struct odm_context *c, const json_t *value);
/* NULL: value, a string within messages, is a user's text as a whole. */
const struct od_text_spans *odm_context_marks_of(const struct odm_context *c, const json_t *value);

/* Makes the id of call number index (0, 1, ...) of a conversation, where ids are counted. NULL: out of memory. */
json_t *odm_counted_id(const char *name, size_t index);

#endif
