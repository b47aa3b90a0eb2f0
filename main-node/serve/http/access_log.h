/* access_log.h - a log line for each HTTP request that is over: who asked what, how it was answered, how long it took.
 *
 * Never a prompt, an answer, a header or a key. Refusals that strangers can cause are limited (od_log_permit).
 * Thread: the HTTP thread. */
#ifndef ODM_ACCESS_LOG_H
#define ODM_ACCESS_LOG_H

#include <stdbool.h>

struct odm_exchange;

/* Call it before the connection forgets the exchange. whole: the client got all of the answer. */
void odm_access_log(const struct odm_exchange *x, bool whole);
/* Logs a connection that is closed before a request: its client speaks another protocol. */
void odm_access_log_stranger(int fd, const char *why);

#endif
