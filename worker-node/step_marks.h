/* step_marks.h - for the latest steps: the layers whose WANTs are closed, and the newest version of a WANT per layer.
 * Messages of the two sockets can overtake each other, so this outlives the schedule's entries.
 *
 * Bounded: the least recently used step is dropped. A late WANT of a dropped step is accepted, which costs a load but
 * never changes a token.
 * Thread: the schedule's, under its lock. Owner: the schedule. */
#ifndef ODW_STEP_MARKS_H
#define ODW_STEP_MARKS_H

#include <stdbool.h>
#include <stdint.h>

#define ODW_MAX_STEPS 64

struct odw_step_marks;

struct odw_step_marks *odw_step_marks_new(uint32_t n_moe); /* NULL: out of memory */
void odw_step_marks_free(struct odw_step_marks *t); /* NULL ok */
void odw_step_marks_clear(struct odw_step_marks *t);

/* Closes the step's WANTs for m < below: from now on they are too late. */
void odw_step_marks_close(struct odw_step_marks *t, uint64_t step, uint32_t below);
bool odw_step_marks_closed(struct odw_step_marks *t, uint64_t step, uint32_t m);
/* True, and recorded, if the version is newer than all earlier ones of (step, m) and m is not closed. */
bool odw_step_marks_newer(struct odw_step_marks *t, uint64_t step, uint32_t m, uint32_t version);

#endif
