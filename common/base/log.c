#include "common/base/log.h"

#include "common/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM_MAX 64 /* of a line: argv[0] may be anything */
#define LIMIT_LINES 10
#define LIMIT_WINDOW_NS (10 * OD_NS_PER_S)

static const char *log_program = "od";
static enum od_log_level log_level = OD_LOG_INFO;

/* In the mode that makes each use fail, as it does with a closed one: output that goes nowhere must not count as written. */
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

/* left_out: messages that were dropped before this one. */
static void write_line(enum od_log_level level, unsigned left_out, const char *fmt, va_list ap)
{
	static const char *const label[] = { "error: ", "warning: ", "", "debug: " };
	static const char cut[] = "...";
	char line[1024], note[40] = "";
	size_t len;
	int n, m;

	if (left_out > 0)
		snprintf(note, sizeof(note), "(%u messages left out) ", left_out);
	n = snprintf(line, sizeof(line), "%.*s: %s%s", PROGRAM_MAX, log_program, label[level], note);
	m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap); /* one byte is kept for the newline */
	len = strlen(line);
	if (m > 0 && (size_t)(n + m) > len)
		memcpy(line + len - strlen(cut), cut, strlen(cut));
	/* A stranger's text must not look like a line of ours, nor steer a terminal. */
	for (size_t i = 0; i < len; i++) {
		if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
			line[i] = '?';
	}
	line[len++] = '\n';
	while (write(STDERR_FILENO, line, len) < 0 && errno == EINTR) /* any other error: nowhere left to complain */
		;
}

void od_log(enum od_log_level level, const char *fmt, ...)
{
	va_list ap;

	if (level > log_level)
		return;
	va_start(ap, fmt);
	write_line(level, 0, fmt, ap);
	va_end(ap);
}

/* True when a line may be written now; *left_out counts those that were not. */
static bool take_permit(unsigned *left_out)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static uint64_t taken_ns[LIMIT_LINES]; /* when the last permits were taken, a ring; 0: not yet */
	static unsigned oldest, dropped;
	uint64_t now = od_now_ns();
	bool ok;

	pthread_mutex_lock(&lock);
	ok = taken_ns[oldest] == 0 || now >= taken_ns[oldest] + LIMIT_WINDOW_NS;
	if (ok) {
		taken_ns[oldest] = now;
		oldest = (oldest + 1) % LIMIT_LINES;
		*left_out = dropped;
		dropped = 0;
	} else {
		dropped++;
	}
	pthread_mutex_unlock(&lock);
	return ok;
}

void od_log_limited(enum od_log_level level, const char *fmt, ...)
{
	unsigned left_out = 0;
	va_list ap;

	if (level > log_level || !take_permit(&left_out))
		return;
	va_start(ap, fmt);
	write_line(level, left_out, fmt, ap);
	va_end(ap);
}
