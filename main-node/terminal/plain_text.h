/* plain_text.h - text of a stranger as it may be shown: without control characters, so that it cannot steer a terminal.
 *
 * Thread: any. Owner: the caller. */
#ifndef ODM_PLAIN_TEXT_H
#define ODM_PLAIN_TEXT_H

#include <stddef.h>

#include "common/base/strbuf.h"

/* Appends the text. Of control characters (C0, DEL, C1) newlines and tabs stay, carriage returns go, others become
 * U+FFFD; so does each byte that is not UTF-8. */
void odm_plain_text(struct od_strbuf *out, const char *text, size_t len);
/* odm_plain_text as one line for a message: newlines and tabs become spaces. Returns buf. */
const char *odm_plain_line(char *buf, size_t size, const char *text, size_t len);

#endif
