#include "main-node/terminal/line_input.h"

#include <errno.h>
#include <histedit.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <wchar.h>

#define HISTORY_LINES 1000
#define MAX_LINE_BYTES (64u << 20)

struct odm_line_input {
	EditLine *edit; /* NULL: not a terminal */
	History *history;
	const char *file, *prompt;
	FILE *echo, *nowhere;
	odm_complete_fn *complete;
	bool cleared;
	char *line; /* getline's */
	size_t cap;
};

static char *show_prompt(EditLine *edit)
{
	struct odm_line_input *in;

	el_get(edit, EL_CLIENTDATA, &in);
	return (char *)(uintptr_t)in->prompt;
}

/* Bound to Ctrl-C: empties the line and ends it. */
static unsigned char clear_line(EditLine *edit, int key)
{
	const LineInfoW *line = el_wline(edit);
	const int after = (int)(line->lastchar - line->cursor), all = (int)(line->lastchar - line->buffer);
	struct odm_line_input *in;

	(void)key;
	el_get(edit, EL_CLIENTDATA, &in);
	in->cleared = true;
	el_cursor(edit, after);
	el_deletestr(edit, all);
	el_push(edit, "\n");
	return CC_REFRESH;
}

/* As the terminal's driver does it. libedit's handler restores the terminal, and takes it back afterwards. */
static unsigned char suspend(EditLine *edit, int key)
{
	(void)edit;
	(void)key;
	kill(0, SIGTSTP);
	return CC_REDISPLAY; /* the shell has written between */
}

/* ---- Tab ---- */

static size_t common_length(char *const *words)
{
	size_t len = strlen(words[0]);

	for (size_t k = 1; words[k] != NULL; k++) {
		size_t i = 0;

		while (i < len && words[k][i] == words[0][i])
			i++;
		len = i;
	}
	return len;
}

/* Text up to the cursor in the terminal's encoding; NULL: it cannot be had. */
static char *before_cursor(EditLine *edit)
{
	const LineInfo *line = el_line(edit);

	return strndup(line->buffer, (size_t)(line->cursor - line->buffer));
}

/* Bound to Tab: puts what all that is possible has in common, or lists it. */
static unsigned char complete(EditLine *edit, int key)
{
	struct odm_line_input *in;
	char *text = before_cursor(edit), **words;
	unsigned char result = CC_ERROR;
	size_t begin = 0, typed, same;

	(void)key;
	el_get(edit, EL_CLIENTDATA, &in);
	words = text != NULL ? in->complete(text, &begin) : NULL;
	if (words != NULL) {
		typed = strlen(text + begin);
		same = common_length(words);
		if (words[1] == NULL || same > typed) {
			const char *rest = words[1] == NULL && words[0][same - 1] != '/' ? " " : "";
			char *whole = NULL;

			if (asprintf(&whole, "%.*s%s", (int)(same - typed), words[0] + typed, rest) >= 0 &&
			    el_insertstr(edit, whole) == 0)
				result = CC_REFRESH;
			free(whole);
		} else {
			for (size_t i = 0; words[i] != NULL; i++)
				fprintf(in->echo, "%s%s", i == 0 ? "\n" : "  ", words[i]);
			fputc('\n', in->echo);
			result = CC_REDISPLAY;
		}
	}
	if (words != NULL)
		for (size_t i = 0; words[i] != NULL; i++)
			free(words[i]);
	free(words);
	free(text);
	return result;
}

/* ---- The size of the window ---- */

static struct odm_line_input *reading; /* for on_resize; NULL: no line is being edited */

struct input_cursor {
	unsigned row, column;
};

/* Where the terminal has the character that follows the prompt and text, up to `past`, in rows of so many columns. */
static struct input_cursor cursor_of(const char *prompt, const wchar_t *text, const wchar_t *past, unsigned columns)
{
	struct input_cursor p = { 0, (unsigned)strlen(prompt) };

	for (; text < past; text++) {
		const int width = wcwidth(*text);

		p.column += width > 0 ? (unsigned)width : 0;
		if (p.column > columns) { /* one that is two wide does not fit */
			p.row++;
			p.column = (unsigned)width;
		}
		if (p.column == columns)
			p = (struct input_cursor){ p.row + 1, 0 };
	}
	return p;
}

static void repeat(FILE *f, const char *text, unsigned n)
{
	while (n-- > 0)
		fputs(text, f);
}

/* Draws the line from where it began, and leaves the cursor where libedit has it. libedit would end rows itself, so
 * that the terminal would not join them again when it becomes wider; so the terminal wraps the line, and libedit draws
 * it elsewhere. */
static void draw_again(struct odm_line_input *in, unsigned columns)
{
	const LineInfoW *line = el_wline(in->edit);
	const struct input_cursor cursor = cursor_of(in->prompt, line->buffer, line->cursor, columns);
	const struct input_cursor end = cursor_of(in->prompt, line->buffer, line->lastchar, columns);

	fputs("\r\033[K", in->echo);
	/* tmux takes the screen's clearing from its first cell on as scrolling */
	repeat(in->echo, "\033[A\033[K", cursor.row);
	fputs(in->prompt, in->echo);
	for (const wchar_t *c = line->buffer; c < line->lastchar; c++)
		fprintf(in->echo, "%lc", (wint_t)*c);
	if (end.column == 0) /* it has wrapped only when something follows */
		fputc(' ', in->echo);
	fputs("\033[J\r", in->echo);
	repeat(in->echo, "\033[A", end.row - cursor.row);
	repeat(in->echo, "\033[C", cursor.column);
	fflush(in->echo);
	el_set(in->edit, EL_SETFP, 1, in->nowhere);
	el_set(in->edit, EL_REFRESH);
	el_set(in->edit, EL_SETFP, 1, in->echo);
}

/* Only while read_key waits: then libedit has drawn all that it knows, and is not drawing. The terminal has wrapped the
 * line anew. libedit hears of most changes first, and passes the signal on to here. */
static void on_resize(int number)
{
	const int saved = errno;
	struct winsize size;

	(void)number;
	if (reading != NULL && ioctl(fileno(reading->echo), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
		el_resize(reading->edit);
		draw_again(reading, size.ws_col);
	}
	errno = saved;
}

static void let_resize(int how)
{
	sigset_t resize;

	sigemptyset(&resize);
	sigaddset(&resize, SIGWINCH);
	sigprocmask(how, &resize, NULL);
}

/* libedit's reader, the only place where a change of the window is let through: one that comes while keys are processed
 * is drawn before the next key is waited for. */
static int read_key(EditLine *edit, wchar_t *key)
{
	int n;

	el_set(edit, EL_GETCFN, EL_BUILTIN_GETCFN);
	let_resize(SIG_UNBLOCK);
	n = el_wgetc(edit, key);
	let_resize(SIG_BLOCK);
	el_set(edit, EL_GETCFN, read_key);
	return n;
}

/* Keys of common terminals that libedit leaves unbound. The user's ~/.editrc comes later and may change them. */
static void bind_keys(EditLine *edit)
{
	static const char *const keys[][2] = {
		{ "^R", "em-inc-search-prev" },
		{ "\\e[1;5D", "ed-prev-word" },
		{ "\\e[1;5C", "em-next-word" },
		{ "\\e[3~", "ed-delete-next-char" },
	};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		el_set(edit, EL_BIND, keys[i][0], keys[i][1], NULL);
}

static int open_editor(struct odm_line_input *in, FILE *echo, struct od_err *err)
{
	const struct sigaction resize = { .sa_handler = on_resize, .sa_flags = SA_RESTART };
	HistEvent event;

	in->echo = echo;
	in->edit = el_init("od-chat", stdin, echo, stderr);
	in->history = history_init();
	in->nowhere = fopen("/dev/null", "we");
	if (in->edit == NULL || in->history == NULL || in->nowhere == NULL)
		return od_fail(err, OD_ERR_IO, "the terminal cannot be used for editing; `cat | od-chat` does without");
	el_set(in->edit, EL_CLIENTDATA, in);
	el_set(in->edit, EL_PROMPT, show_prompt);
	el_set(in->edit, EL_EDITOR, "emacs");
	el_set(in->edit, EL_SIGNAL, 1); /* the terminal is restored when a signal stops or ends the program */
	history(in->history, &event, H_SETSIZE, HISTORY_LINES);
	history(in->history, &event, H_SETUNIQUE, 1);
	el_set(in->edit, EL_HIST, history, in->history);
	if (in->file != NULL)
		history(in->history, &event, H_LOAD, in->file); /* there may be none yet */
	bind_keys(in->edit);
	el_source(in->edit, NULL);
	/* While a line is edited Ctrl-C is a key, no signal. So is Ctrl-Z then. */
	el_set(in->edit, EL_SETTY, "-d", "-isig", NULL);
	/* el_set would copy these names and never free them. */
	el_wset(in->edit, EL_ADDFN, L"od-clear-line", L"Empty the line and begin anew", clear_line);
	el_wset(in->edit, EL_ADDFN, L"od-suspend", L"Stop the program until the shell continues it", suspend);
	el_set(in->edit, EL_BIND, "^C", "od-clear-line", NULL);
	el_set(in->edit, EL_BIND, "^Z", "od-suspend", NULL);
	el_wset(in->edit, EL_ADDFN, L"od-complete", L"Complete a command, or the name of a file", complete);
	el_set(in->edit, EL_BIND, "\t", "od-complete", NULL);
	el_set(in->edit, EL_GETCFN, read_key);
	let_resize(SIG_BLOCK);
	sigaction(SIGWINCH, &resize, NULL);
	return OD_OK;
}

int odm_line_input_open(struct odm_line_input **out, FILE *echo, const char *history_file,
			odm_complete_fn *complete_text, struct od_err *err)
{
	struct odm_line_input *in = calloc(1, sizeof(*in));
	int rc = OD_OK;

	*out = NULL;
	if (in == NULL)
		return od_fail(err, OD_ERR_NOMEM, "line input");
	in->file = history_file;
	in->complete = complete_text;
	if (echo != NULL)
		rc = open_editor(in, echo, err);
	if (rc != OD_OK) {
		odm_line_input_close(in);
		return rc;
	}
	*out = in;
	return OD_OK;
}

void odm_line_input_close(struct odm_line_input *in)
{
	if (in == NULL)
		return;
	if (in->edit != NULL)
		el_end(in->edit);
	if (in->history != NULL)
		history_end(in->history);
	if (in->nowhere != NULL)
		fclose(in->nowhere);
	free(in->line);
	free(in);
}

static enum odm_line append(struct od_strbuf *text, const char *line, size_t len, struct od_err *err)
{
	while (len > 0 && (line[len - 1] == '\n' || line[len - 1] == '\r'))
		len--;
	od_strbuf_append(text, line, len);
	if (text->failed) {
		od_fail(err, OD_ERR_NOMEM, "no memory for a line of standard input");
		return ODM_LINE_FAILED;
	}
	return ODM_LINE_READ;
}

static enum odm_line read_plain(struct odm_line_input *in, struct od_strbuf *text, struct od_err *err)
{
	const ssize_t n = getline(&in->line, &in->cap, stdin);

	if (n >= 0 && text->len + (size_t)n <= MAX_LINE_BYTES)
		return append(text, in->line, (size_t)n, err);
	if (n >= 0) {
		od_fail(err, OD_ERR_RANGE, "a text of standard input is longer than %u bytes", MAX_LINE_BYTES);
		return ODM_LINE_FAILED;
	}
	if (!ferror(stdin))
		return ODM_LINE_END;
	od_fail_errno(err, OD_ERR_IO, "reading standard input");
	return ODM_LINE_FAILED;
}

enum odm_line odm_line_input_read(struct odm_line_input *in, const char *prompt, struct od_strbuf *text,
				  struct od_err *err)
{
	const char *line;
	int n = 0;

	if (in->edit == NULL)
		return read_plain(in, text, err);
	in->prompt = prompt;
	in->cleared = false;
	reading = in;
	line = el_gets(in->edit, &n);
	reading = NULL;
	if (in->cleared)
		return ODM_LINE_CLEARED;
	if (line == NULL || n <= 0) /* a terminal that is gone is no error either */
		return ODM_LINE_END;
	return append(text, line, strlen(line), err);
}

int odm_line_input_remember(struct odm_line_input *in, const char *text, struct od_err *err)
{
	HistEvent event;

	if (in->edit == NULL)
		return OD_OK;
	history(in->history, &event, H_ENTER, text);
	if (in->file != NULL && history(in->history, &event, H_SAVE, in->file) < 0) /* with mode 0600 */
		return od_fail_errno(err, OD_ERR_IO, "cannot write the history, %s", in->file);
	return OD_OK;
}
