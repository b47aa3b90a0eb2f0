/* jinja_unicode.h - characters as Python's str sees them: UTF-8, classes, upper and lower case; only for
 * common/text/jinja.
 *
 * Classes come from utf8proc, whose Unicode version differs from Python's: recent characters may be classed
 * differently.
 * Thread: any. */
#ifndef OD_TEXT_JINJA_UNICODE_H
#define OD_TEXT_JINJA_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* p: valid UTF-8 in all but the first. */
bool jinja_utf8_valid(const char *p, size_t len, size_t *bad); /* *bad: offset of the first wrong byte */
size_t jinja_count_chars(const char *p, size_t len);
size_t jinja_skip_chars(const char *p, size_t len, size_t n_chars); /* bytes of the first n_chars */
size_t jinja_char_bytes(const char *p); /* length of the character at p */
uint32_t jinja_char_at(const char *p, size_t *bytes);
size_t jinja_last_char(const char *p, size_t len); /* offset of the last character; len > 0 */

bool jinja_is_space(uint32_t c); /* str.isspace */
bool jinja_is_line_break(uint32_t c); /* where str.splitlines splits */
bool jinja_is_printable(uint32_t c);
bool jinja_is_alpha(uint32_t c);
bool jinja_is_decimal(uint32_t c);
bool jinja_is_digit(uint32_t c);
bool jinja_is_numeric(uint32_t c);
bool jinja_is_upper(uint32_t c);
bool jinja_is_lower(uint32_t c);
bool jinja_is_title(uint32_t c);
bool jinja_is_cased(uint32_t c);
bool jinja_is_case_ignorable(uint32_t c);
bool jinja_is_name_start(uint32_t c); /* str.isidentifier */
bool jinja_is_name(uint32_t c);
int jinja_decimal_value(uint32_t c); /* -1: none */

/* Up to three characters of the full mapping to out; returns how many. */
#define JINJA_MAX_CASE 3
size_t jinja_to_upper(uint32_t c, uint32_t out[JINJA_MAX_CASE]);
size_t jinja_to_lower(uint32_t c, uint32_t out[JINJA_MAX_CASE]);
size_t jinja_to_title(uint32_t c, uint32_t out[JINJA_MAX_CASE]);

#endif
