#include "common/base/log.h"

#include "common/base/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LIMIT_LINES 10
#define LIMIT_WINDOW_NS (10 * OD_NS_PER_S)

static const char *log_program = "od";
static enum od_log_level log_level = OD_LOG_INFO;

void od_log_init(const char *program, enum od_log_level level)
{
	const char *slash = strrchr(program, '/');

	log_program = slash != NULL ? slash + 1 : program;
	log_level = level;
}

static void write_line(enum od_log_level level, const char *fmt, va_list ap)
{
	static const char *const label[] = { "error: ", "warning: ", "", "debug: " };
	char line[1024];
	int n = snprintf(line, sizeof(line), "%s: %s", log_program, label[level]);
	int m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
	size_t len = strnlen(line, sizeof(line) - 2);

	(void)m; /* a cut line is better than none */
	line[len++] = '\n';
	if (write(STDERR_FILENO, line, len) < 0)
		return; /* nowhere left to complain */
}

void od_log(enum od_log_level level, const char *fmt, ...)
{
	va_list ap;

	if (level > log_level)
		return;
	va_start(ap, fmt);
	write_line(level, fmt, ap);
	va_end(ap);
}

/* True when a line may be written now; *left_out counts those that were not. */
static bool take_permit(unsigned *left_out)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static uint64_t window_start;
	static unsigned used, dropped;
	uint64_t now = od_now_ns();
	bool ok;

	pthread_mutex_lock(&lock);
	if (window_start == 0 || now - window_start > LIMIT_WINDOW_NS) {
		window_start = now;
		used = 0;
	}
	ok = used < LIMIT_LINES;
	if (ok) {
		used++;
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
	write_line(level, fmt, ap);
	va_end(ap);
	if (left_out > 0)
		od_log(level, "(%u more such messages were left out)", left_out);
}
