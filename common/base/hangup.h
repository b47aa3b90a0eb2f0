/* hangup.h - SIGHUP while a program starts: it makes a program read files again, so one that comes before there is a
 * loop that listens to it must neither end the program nor be lost.
 *
 * Thread: main(), before others exist; od_hangup_listened: any. */
#ifndef OD_BASE_HANGUP_H
#define OD_BASE_HANGUP_H

#include <stdbool.h>

/* The first call of main(): until od_hangup_begin SIGHUP waits. */
void od_hangup_hold(void);
/* Once it is known whether a loop will listen. reads: it will, and until then SIGHUP is only noted. Else it does what
 * it would have done without od_hangup_hold. */
void od_hangup_begin(bool reads);
/* The loop's handler is in place: one that was noted is raised again. */
void od_hangup_listened(void);

#endif
