/* interrupt.h - Ctrl-C as something to wait for: SIGINT makes a descriptor readable instead of ending the program.
 *
 * Thread: main(). Owner: the process. */
#ifndef ODM_INTERRUPT_H
#define ODM_INTERRUPT_H

#include <stdbool.h>

#include "common/base/status.h"

/* From now on. Without it SIGINT ends the program, and the descriptor is -1. */
OD_MUST_CHECK int odm_interrupt_catch(struct od_err *err);
int odm_interrupt_fd(void); /* readable after a SIGINT, until odm_interrupt_take */
bool odm_interrupt_take(void); /* true: there was one since the last call */

#endif
