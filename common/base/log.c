#include "common/base/log.h"

#include "common/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PROGRAM_MAX 64 /* bytes; argv[0] may be anything */
#define TEXT_MAX 1022 /* label and message of a line of text, without its newline */
#define MESSAGE_MAX 1000
#define VALUE_MAX 200
#define LINE_MAX_BYTES 8192
#define LIMIT_WINDOW_NS (10 * OD_NS_PER_S)

const char *const od_log_level_names[] = { "error", "warn", "info", "debug", NULL };
const char *const od_log_format_names[] = { "text", "kv", "json", NULL };

static const char *log_program = "od";
static enum od_log_level log_level = OD_LOG_INFO;
static enum od_log_format log_format = OD_LOG_TEXT;
static __thread const struct od_log_about *log_about;

/* A line while it is put together. What does not fit is left out as a whole. */
struct log_line {
	char text[LINE_MAX_BYTES];
	size_t len;
};

/* ---- Set-up ---- */

/* In the mode that makes each use fail, as it does with a closed one: output that goes nowhere must not count as
 * written. */
static void fill_standard_descriptors(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
		if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
		    open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
			return; /* no /dev/null: nothing better is left */
	}
}

void od_log_init(const char *program, enum od_log_level level)
{
	const char *slash = strrchr(program, '/');

	fill_standard_descriptors();
	log_program = slash != NULL ? slash + 1 : program;
	log_level = level;
}

void od_log_set_format(int format)
{
	if (format == OD_LOG_AUTO)
		format = isatty(STDERR_FILENO) ? OD_LOG_TEXT : OD_LOG_KV;
	log_format = (enum od_log_format)format;
}

enum od_log_format od_log_format(void)
{
	return log_format;
}

/* ---- Text that may be anybody's ---- */

/* Bytes of the UTF-8 character at s, of n bytes at most; 0: it is none, or a control character. */
static size_t good_char(const unsigned char *s, size_t n)
{
	const size_t len = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;

	if (len <= 1)
		return s[0] < ' ' || s[0] == 0x7f ? 0 : len;
	for (size_t i = 1; i < len; i++)
		if (i >= n || (s[i] & 0xc0) != 0x80)
			return 0;
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90)) /* longer than it need be */
		return 0;
	if ((s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf4 && s[1] >= 0x90)) /* half a pair; beyond Unicode */
		return 0;
	return s[0] == 0xc2 && s[1] < 0xa0 ? 0 : len; /* U+0080 to U+009F steer terminals, too */
}

static void put(struct log_line *l, const char *text, size_t n)
{
	if (n >= sizeof(l->text) - l->len) /* a byte is kept for the newline */
		return;
	memcpy(l->text + l->len, text, n);
	l->len += n;
}

static void put_string(struct log_line *l, const char *text)
{
	put(l, text, strlen(text));
}

/* At most `most` bytes of the text, made harmless. */
static void put_foreign(struct log_line *l, const char *text, size_t most, bool escape)
{
	const size_t all = strlen(text), n = all > most ? most - strlen("...") : all;

	for (size_t i = 0, len; i<n; i += len> 0 ? len : 1) {
		len = good_char((const unsigned char *)text + i, n - i);
		if (escape && (text[i] == '"' || text[i] == '\\'))
			put(l, "\\", 1);
		put(l, len > 0 ? text + i : "?", len > 0 ? len : 1);
	}
	if (n < all)
		put_string(l, "...");
}

static void put_quoted(struct log_line *l, const char *text, size_t most)
{
	put(l, "\"", 1);
	put_foreign(l, text, most, true);
	put(l, "\"", 1);
}

/* ---- Fields ---- */

static bool is_plain(const char *text)
{
	for (const char *c = text; *c != '\0'; c++)
		if (*c <= ' ' || *c > '~' || strchr("\"'\\=`{}", *c) != NULL)
			return false;
	return text[0] != '\0';
}

static void put_value(struct log_line *l, const struct od_log_field *f)
{
	char number[40];

	if (f->text != NULL && (log_format == OD_LOG_JSON || !is_plain(f->text))) {
		put_quoted(l, f->text, VALUE_MAX);
	} else if (f->text != NULL) {
		put_foreign(l, f->text, VALUE_MAX, false);
	} else {
		snprintf(number, sizeof(number), floor(f->number) == f->number ? "%.0f" : "%.6f", f->number);
		put_string(l, isfinite(f->number) ? number : "null");
	}
}

static void put_field(struct log_line *l, const struct od_log_field *f)
{
	if (sizeof(l->text) - l->len < 2 * VALUE_MAX + 100) /* a whole field, or none of it */
		return;
	if (log_format == OD_LOG_JSON)
		put_string(l, l->len > 1 ? ",\"" : "\"");
	else
		put_string(l, l->len > 0 ? " " : "");
	put_string(l, f->key);
	put_string(l, log_format == OD_LOG_JSON ? "\":" : "=");
	put_value(l, f);
}

const struct od_log_about *od_log_swap_about(const struct od_log_about *about)
{
	const struct od_log_about *before = log_about;

	log_about = about;
	return before;
}

struct od_log_field od_log_about_field(char *buf, size_t size)
{
	const char *text = log_about != NULL ? log_about->text(log_about->arg, buf, size) : NULL;

	return text != NULL && text[0] != '\0' ? od_log_text(log_about->key, text) : (struct od_log_field){ 0 };
}

/* fields may be NULL. What the thread works on comes last, unless a field says it already. */
static void put_fields(struct log_line *l, const struct od_log_field *fields)
{
	char buf[VALUE_MAX + 2];
	const struct od_log_field about = od_log_about_field(buf, sizeof(buf));
	bool said = about.key == NULL;

	for (const struct od_log_field *f = fields; f != NULL && f->key != NULL; f++) {
		put_field(l, f);
		said = said || strcmp(f->key, about.key) == 0;
	}
	if (!said)
		put_field(l, &about);
}

/* ---- Lines ---- */

static void put_time(struct log_line *l)
{
	char text[40], whole[48];
	struct timespec now;
	struct tm tm;

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(whole, sizeof(whole), "%s.%03ldZ", text, now.tv_nsec / 1000000);
	put_field(l, &(struct od_log_field){ .key = "ts", .text = whole });
}

static void begin_text(struct log_line *l, enum od_log_level level, unsigned left_out, const char *message)
{
	static const char *const label[] = { "error: ", "warning: ", "", "debug: " };
	char head[PROGRAM_MAX + 80], note[40] = "";

	if (left_out > 0)
		snprintf(note, sizeof(note), "(%u messages left out) ", left_out);
	snprintf(head, sizeof(head), "%.*s: %s%s", PROGRAM_MAX, log_program, label[level], note);
	put_foreign(l, head, sizeof(head), false);
	put_foreign(l, message, TEXT_MAX - l->len, false);
}

static void begin_fields(struct log_line *l, enum od_log_level level, unsigned left_out, const char *message)
{
	static const char *const name[] = { "error", "warning", "info", "debug" };
	char program[PROGRAM_MAX + 1];

	snprintf(program, sizeof(program), "%s", log_program);
	if (log_format == OD_LOG_JSON)
		put(l, "{", 1);
	put_time(l);
	put_field(l, &(struct od_log_field){ .key = "level", .text = name[level] });
	put_field(l, &(struct od_log_field){ .key = "component", .text = program });
	put_string(l, log_format == OD_LOG_JSON ? ",\"msg\":" : " msg=");
	put_quoted(l, message, MESSAGE_MAX);
	if (left_out > 0)
		put_field(l, &(struct od_log_field){ .key = "left_out", .number = left_out });
}

/* left_out: messages that were dropped before this one. */
static void write_line(enum od_log_level level, unsigned left_out, const char *message,
		       const struct od_log_field *fields)
{
	struct log_line l;

	l.len = 0;
	(log_format == OD_LOG_TEXT ? begin_text : begin_fields)(&l, level, left_out, message);
	put_fields(&l, fields);
	if (log_format == OD_LOG_JSON)
		put(&l, "}", 1);
	l.text[l.len++] = '\n';
	/* any other error: nowhere left to complain */
	while (write(STDERR_FILENO, l.text, l.len) < 0 && errno == EINTR)
		;
}

static void OD_PRINTF(3, 0) write_formatted(enum od_log_level level, unsigned left_out, const char *fmt, va_list ap)
{
	char message[TEXT_MAX + 2]; /* longer than any format shows, so that a cut is seen */

	vsnprintf(message, sizeof(message), fmt, ap);
	write_line(level, left_out, message, NULL);
}

void od_log(enum od_log_level level, const char *fmt, ...)
{
	va_list ap;

	if (level > log_level)
		return;
	va_start(ap, fmt);
	write_formatted(level, 0, fmt, ap);
	va_end(ap);
}

void od_log_event(enum od_log_level level, const char *message, const struct od_log_field *fields)
{
	if (level <= log_level)
		write_line(level, 0, message, fields);
}

/* ---- Limits ---- */

bool od_log_permit(struct od_log_limit *l, unsigned *left_out)
{
	const uint64_t now = od_now_ns();
	bool ok;

	*left_out = 0;
	pthread_mutex_lock(&l->lock);
	ok = l->taken_ns[l->oldest] == 0 || now >= l->taken_ns[l->oldest] + LIMIT_WINDOW_NS;
	if (ok) {
		l->taken_ns[l->oldest] = now;
		l->oldest = (l->oldest + 1) % (sizeof(l->taken_ns) / sizeof(l->taken_ns[0]));
		*left_out = l->dropped;
		l->dropped = 0;
	} else {
		l->dropped++;
	}
	pthread_mutex_unlock(&l->lock);
	return ok;
}

void od_log_within(struct od_log_limit *l, enum od_log_level level, const char *fmt, ...)
{
	unsigned left_out;
	va_list ap;

	if (level > log_level || !od_log_permit(l, &left_out))
		return;
	va_start(ap, fmt);
	write_formatted(level, left_out, fmt, ap);
	va_end(ap);
}
