/* line_input.h - lines that a user types: edited by libedit on a terminal, as they come from anything else.
 *
 * Needs LC_CTYPE with UTF-8. On a terminal Ctrl-C clears the line, and Ctrl-D in an empty one ends the input.
 * Thread: main(). Owner: odm_line_input_open's caller; one at a time. */
#ifndef ODM_LINE_INPUT_H
#define ODM_LINE_INPUT_H

#include <stdio.h>

#include "common/base/strbuf.h"

struct odm_line_input;

enum odm_line { ODM_LINE_READ, ODM_LINE_CLEARED /* by Ctrl-C */, ODM_LINE_END, ODM_LINE_FAILED };

/* Returns the words that Tab offers behind this text, as odm_chat_completions gives them. */
typedef char **odm_complete_fn(const char *text, size_t *begin);

/* echo: the terminal, when standard input is one; NULL: it is not. history: its file, mode 0600; NULL: none. */
OD_MUST_CHECK int odm_line_input_open(struct odm_line_input **out, FILE *echo, const char *history,
				      odm_complete_fn *complete, struct od_err *err);
void odm_line_input_close(struct odm_line_input *in); /* NULL ok */

/* Appends the next line to text, without its newline. prompt is only shown on a terminal. */
enum odm_line odm_line_input_read(struct odm_line_input *in, const char *prompt, struct od_strbuf *text,
				  struct od_err *err);
/* Puts what was typed (NUL-terminated, may have newlines) into the history, and writes its file. */
OD_MUST_CHECK int odm_line_input_remember(struct odm_line_input *in, const char *text, struct od_err *err);

#endif
