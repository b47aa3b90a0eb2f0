/* part_text.h - the text of a part of a message, in all chat APIs: parts of OpenAI's chat completions and responses,
 * blocks of Anthropic's messages. What is no text (a picture, a recording, a PDF) becomes a placeholder that says so,
 * because the rest of the conversation still makes sense.
 *
 * Thread: any. */
#ifndef ODM_PART_TEXT_H
#define ODM_PART_TEXT_H

#include <jansson.h>

#include "common/base/strbuf.h"

/* Appends the part's text to out. part: an object; or a string, or an object with a text and no type, which vLLM takes
 * too. NULL: good; else the name of the field that is not a string, as it should be: "type", or the one that has the
 * text of a part of this type. */
const char *odm_part_text(struct od_strbuf *out, const json_t *part);

/* Returns whether it is an assistant's thought, which is no text of the message. */
bool odm_part_is_thought(const json_t *part);
/* Appends its text, which may be a list of parts (Mistral's); nothing if it is hidden. */
void odm_part_thought(struct od_strbuf *out, const json_t *part);

/* Appends the texts of content, each on a new line: a string, or a list of strings and parts; what is neither has no
 * text, and thoughts have none. */
void odm_parts_join(struct od_strbuf *out, const json_t *content);

#endif
