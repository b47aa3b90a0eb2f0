/* first_time.h - what is said once in the log, however many requests are the cause.
 *
 * Thread: any; a monitor. */
#ifndef ODM_FIRST_TIME_H
#define ODM_FIRST_TIME_H

#include <stdbool.h>

/* Returns whether the process asks for this pair of texts for the first time. `what` may come from a client, so both
 * are cut and their number is bounded: beyond that, none is new. kind: the kind of thing that `what` names. */
bool odm_first_time(const char *kind, const char *what);

#endif
