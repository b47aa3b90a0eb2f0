/* log.h - one line per event on standard error, in one of three formats:
 *   text  od-worker: warning: refused a RUN request=4f2a9c01-17
 *   kv    ts=2026-01-31T12:00:00.000Z level=warning component=od-worker msg="refused a RUN" request=4f2a9c01-17
 *   json  {"ts":"2026-01-31T12:00:00.000Z","level":"warning","component":"od-worker","msg":"refused a RUN",...}
 *
 * A message has at most about 1000 bytes, the value of a field 200; longer ones are cut and end with "...". Control
 * characters and bytes that are not UTF-8 become '?', and quotes are escaped, so untrusted text can neither begin a
 * line nor a field. Messages that any host on the network can cause go through od_log_limited or od_log_permit, so that
 * they cannot fill a disk.
 * Thread: any (one write per line); od_log_init and od_log_set_format before others exist. */
#ifndef OD_BASE_LOG_H
#define OD_BASE_LOG_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

enum od_log_level { OD_LOG_ERROR, OD_LOG_WARN, OD_LOG_INFO, OD_LOG_DEBUG };
extern const char *const od_log_level_names[]; /* "error", "warn", "info", "debug", NULL */

/* Call this first in main(). program must live as long as the process (argv[0] or a literal). Default level:
 * OD_LOG_INFO. Opens closed descriptors 0 to 2 as /dev/null; otherwise a file opened later would get one of these and
 * the log lines. */
void od_log_init(const char *program, enum od_log_level level);

enum od_log_format { OD_LOG_TEXT, OD_LOG_KV, OD_LOG_JSON };
#define OD_LOG_AUTO (-1) /* daemons: text on a terminal, else kv */
extern const char *const od_log_format_names[]; /* "text", "kv", "json", NULL */
#define OD_LOG_FORMAT_HELP \
	"lines on standard error: text, kv (key=value) or json (default: text on a terminal, else kv)"
/* Without it: text. */
void od_log_set_format(int format); /* enum od_log_format or OD_LOG_AUTO */
enum od_log_format od_log_format(void);

void od_log(enum od_log_level level, const char *fmt, ...) OD_PRINTF(2, 3);

/* ---- Fields ---- */

struct od_log_field {
	const char *key; /* a literal; NULL: the end of the list */
	const char *text; /* NULL: the number */
	double number;
};

static inline struct od_log_field od_log_text(const char *key, const char *text)
{
	return (struct od_log_field){ .key = key, .text = text != NULL ? text : "" };
}

static inline struct od_log_field od_log_number(const char *key, double number)
{
	return (struct od_log_field){ .key = key, .number = number };
}

/* A constant message with fields: OD_LOG_EVENT(OD_LOG_INFO, "ready", od_log_text("model", name), ...) */
#define OD_LOG_EVENT(level, message, ...) \
	od_log_event(level, message, (const struct od_log_field[]){ __VA_ARGS__, { 0 } })
void od_log_event(enum od_log_level level, const char *message, const struct od_log_field *fields);

/* ---- Limits ---- */

/* At most ten lines in ten seconds. */
struct od_log_limit {
	pthread_mutex_t lock;
	uint64_t taken_ns[10]; /* when the last permits were taken, a ring; 0: not yet */
	unsigned oldest, dropped;
};
#define OD_LOG_LIMIT_INIT \
	{ \
		.lock = PTHREAD_MUTEX_INITIALIZER \
	}
/* True: a line may be written now, *left_out were not before. */
bool od_log_permit(struct od_log_limit *l, unsigned *left_out);

/* Each call in the source has a limit of its own, so that a flood of one message hides no other. The next line from
 * there reports how many were dropped. */
#define od_log_limited(level, ...) \
	do { \
		static struct od_log_limit od_log_here = OD_LOG_LIMIT_INIT; \
		od_log_within(&od_log_here, level, __VA_ARGS__); \
	} while (0)
void od_log_within(struct od_log_limit *l, enum od_log_level level, const char *fmt, ...) OD_PRINTF(3, 4);

/* ---- What a thread works on ---- */

/* A field of all lines, and of the trace's spans, that the thread writes until this is replaced. It is read only then,
 * so to set it costs nothing. */
struct od_log_about {
	const char *key;
	const char *(*text)(void *arg, char *buf, size_t size); /* buf, or text that stays; NULL or "": no field */
	void *arg;
};
/* about must stay until it is replaced; NULL: nothing. Returns the one before. */
const struct od_log_about *od_log_swap_about(const struct od_log_about *about);
/* The field of the calling thread; .key NULL: none. */
struct od_log_field od_log_about_field(char *buf, size_t size);

#endif
