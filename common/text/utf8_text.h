/* utf8_text.h - bytes that may not be UTF-8 as text that is: for JSON, whose strings must be.
 *
 * Thread: any. Owner: the caller. */
#ifndef ODM_UTF8_TEXT_H
#define ODM_UTF8_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Bytes of the character that text [len] begins with; 0: it does not begin with a whole, valid one. */
size_t odm_utf8_char(const char *text, size_t len);
bool odm_utf8_valid(const char *text, size_t len);
size_t odm_utf8_count(const char *text, size_t len); /* characters; each invalid byte counts as one */

/* A new JSON string; each byte that belongs to no character becomes U+FFFD. NULL: out of memory. */
json_t *odm_json_text(const char *text, size_t len);

#endif
