/* screen.h - what a chat shows: answers, thoughts apart from them, notes, and a line of progress that goes away again.
 *
 * All text goes through odm_plain_text. Elsewhere than on a terminal only answers are written.
 * Thread: main(). Owner: the caller; nothing here allocates for longer than a call. */
#ifndef ODM_SCREEN_H
#define ODM_SCREEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "common/base/status.h"

struct odm_screen {
	FILE *out;
	bool terminal, styled; /* styled: the terminal knows ANSI's sequences */
	/* Private. */
	bool thinking, progress, mid_line;
};

void odm_screen_init(struct odm_screen *s);

void odm_screen_text(struct odm_screen *s, bool thought, const char *text, size_t len);
/* Replaces the line of progress; only while nothing else of the answer is on the screen. */
void odm_screen_progress(struct odm_screen *s, const char *text, size_t len);
/* After an answer, or a piece of it: the next begins on a line of its own. */
void odm_screen_end(struct odm_screen *s);
/* A line of our own words; only on a terminal. Strings of a server in it have gone through odm_plain_line. */
void odm_screen_note(struct odm_screen *s, const char *fmt, ...) OD_PRINTF(2, 3);
void odm_screen_dim_note(struct odm_screen *s, const char *fmt, ...) OD_PRINTF(2, 3);

#endif
