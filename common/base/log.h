/* log.h - one line per event on standard error: "od-worker: warning: text".
 *
 * A line has at most 1023 bytes; a longer one is cut and ends with "...". Control characters become '?', so that untrusted
 * text stays on one line. Messages that any host on the network can cause go through od_log_limited, so that they cannot
 * fill a disk.
 * Thread: any (one write per line). */
#ifndef OD_BASE_LOG_H
#define OD_BASE_LOG_H

#include "common/base/status.h"

enum od_log_level { OD_LOG_ERROR, OD_LOG_WARN, OD_LOG_INFO, OD_LOG_DEBUG };

/* Call this first in main(). program must live as long as the process (argv[0] or a literal). Default level: OD_LOG_INFO.
 * Opens closed descriptors 0 to 2 as /dev/null; otherwise a file opened later would get one of these and the log lines. */
void od_log_init(const char *program, enum od_log_level level);
void od_log(enum od_log_level level, const char *fmt, ...) OD_PRINTF(2, 3);

/* At most ten lines in ten seconds, for all callers together; the next line reports how many were dropped. */
void od_log_limited(enum od_log_level level, const char *fmt, ...) OD_PRINTF(2, 3);

#endif
