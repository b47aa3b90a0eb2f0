/* message_input.h - messages of one or several lines out of what is typed.
 *
 * A line that ends with a backslash goes on in the next. Lines between """ and """ are one message, too. "/system " may
 * stand before the quotes. Thread: any. Owner: the caller. */
#ifndef ODM_MESSAGE_INPUT_H
#define ODM_MESSAGE_INPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/strbuf.h"

/* typed: lines joined by newlines. False: another line belongs to it. */
bool odm_message_complete(const char *typed, size_t len);
/* Appends what it means: without the quotes and backslashes. typed may be incomplete, at the end of the input. */
void odm_message_text(struct od_strbuf *out, const char *typed, size_t len);

#endif
