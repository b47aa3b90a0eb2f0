#include "main-node/terminal/screen.h"

#include "main-node/terminal/plain_text.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DIM "\033[2m"
#define PLAIN "\033[0m"
#define ERASE "\r\033[K"
#define PROGRESS_BYTES 72 /* fits a line of 80 columns */

void odm_screen_init(struct odm_screen *s)
{
	const char *type = getenv("TERM");

	*s = (struct odm_screen){ .out = stdout, .terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) };
	s->styled = s->terminal && type != NULL && type[0] != '\0' && strcmp(type, "dumb") != 0;
}

static void style(const struct odm_screen *s, const char *sequence)
{
	if (s->styled)
		fputs(sequence, s->out);
}

static void clear_progress(struct odm_screen *s)
{
	if (s->progress)
		fputs(ERASE, s->out);
	s->progress = false;
}

static void new_line(struct odm_screen *s)
{
	if (s->mid_line)
		fputc('\n', s->out);
	s->mid_line = false;
}

static void end_thought(struct odm_screen *s)
{
	if (!s->thinking)
		return;
	new_line(s);
	fputs("...done thinking.\n", s->out);
	style(s, PLAIN);
	fputc('\n', s->out);
	s->thinking = false;
}

void odm_screen_text(struct odm_screen *s, bool thought, const char *text, size_t len)
{
	struct od_strbuf plain = { 0 };

	if (thought && !s->terminal)
		return;
	clear_progress(s);
	if (!thought)
		end_thought(s);
	if (thought && !s->thinking) {
		new_line(s);
		style(s, DIM);
		fputs("Thinking...\n", s->out);
		s->thinking = true;
	}
	odm_plain_text(&plain, text, len);
	if (plain.len > 0) {
		fwrite(plain.text, 1, plain.len, s->out);
		s->mid_line = plain.text[plain.len - 1] != '\n';
	}
	fflush(s->out);
	od_strbuf_fini(&plain);
}

void odm_screen_progress(struct odm_screen *s, const char *text, size_t len)
{
	char line[PROGRESS_BYTES + 1];

	if (!s->styled || s->mid_line || s->thinking)
		return;
	fprintf(s->out, ERASE DIM "%s" PLAIN, odm_plain_line(line, sizeof(line), text, len));
	s->progress = true;
	fflush(s->out);
}

void odm_screen_end(struct odm_screen *s)
{
	clear_progress(s);
	end_thought(s);
	new_line(s);
	fflush(s->out);
}

static void put_note(struct odm_screen *s, bool dim, const char *fmt, va_list ap)
{
	if (!s->terminal)
		return;
	style(s, dim ? DIM : "");
	vfprintf(s->out, fmt, ap);
	style(s, dim ? PLAIN : "");
	fputc('\n', s->out);
	fflush(s->out);
}

void odm_screen_note(struct odm_screen *s, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put_note(s, false, fmt, ap);
	va_end(ap);
}

void odm_screen_dim_note(struct odm_screen *s, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put_note(s, true, fmt, ap);
	va_end(ap);
}
