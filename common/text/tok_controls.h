/* tok_controls.h - added tokens that are control tokens, which no text of a user may become.
 *
 * Thread: immutable after the last od_controls_add. Owner: the caller; the tokeniser outlives it. */
#ifndef OD_TEXT_TOK_CONTROLS_H
#define OD_TEXT_TOK_CONTROLS_H

#include "common/text/tokenizer.h"

/* The special ones, those that look like <|name|>, and marks that a chat template writes. */
struct od_controls;
OD_MUST_CHECK int od_controls_new(struct od_controls **out, const struct od_tokenizer *t, struct od_err *err);
/* Added tokens within text, a template's or a mark, that have brackets around them: <tool_response>, [ARGS]. Others
 * (runs of spaces, ```) stay ordinary: they are in users' texts, too. */
void od_controls_add(struct od_controls *c, const char *text, size_t len);
bool od_controls_has(const struct od_controls *c, int32_t id);
void od_controls_free(struct od_controls *c); /* NULL ok */

#endif
