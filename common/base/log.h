/* log.h - one line per event on standard error: "od-worker: warning: text".
 *
 * A line has 1023 bytes at most, a cut one ends with "..."; control characters become '?', so that text from elsewhere
 * stays one line. Thread: any (one write per line). Messages that a stranger on the network can cause are rate-limited
 * by od_log_limited, so that nobody can fill a disk. */
#ifndef OD_BASE_LOG_H
#define OD_BASE_LOG_H

#include "common/base/status.h"

enum od_log_level { OD_LOG_ERROR, OD_LOG_WARN, OD_LOG_INFO, OD_LOG_DEBUG };

/* program must outlive the process (argv[0] or a literal). Default level: OD_LOG_INFO. The first thing that a program
 * does: descriptors 0 to 2 that are closed become /dev/null, or a file opened later would get what we say. */
void od_log_init(const char *program, enum od_log_level level);
void od_log(enum od_log_level level, const char *fmt, ...) OD_PRINTF(2, 3);

/* At most ten lines in any ten seconds from all callers together; what was left out is counted in the next. */
void od_log_limited(enum od_log_level level, const char *fmt, ...) OD_PRINTF(2, 3);

#endif
