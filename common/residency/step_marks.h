/* step_marks.h - for the latest steps: the layers whose WANTs are closed, and the newest version of a WANT per layer.
 * Messages of the two sockets can overtake each other, so this outlives the schedule's entries.
 *
 * Bounded: the least recently used step is dropped. A late WANT of a dropped step is accepted, which costs a load but
 * never changes a token.
 * Thread: the schedule's, under its lock. Owner: the schedule. */
#ifndef OD_RESIDENCY_STEP_MARKS_H
#define OD_RESIDENCY_STEP_MARKS_H

#include <stdbool.h>
#include <stdint.h>

#define OD_MAX_STEPS 64

struct od_step_marks;

struct od_step_marks *od_step_marks_new(uint32_t n_moe); /* NULL: out of memory */
void od_step_marks_free(struct od_step_marks *t); /* NULL ok */
void od_step_marks_clear(struct od_step_marks *t);

/* Closes the step's WANTs for m < below: from now on they are too late. */
void od_step_marks_close(struct od_step_marks *t, uint64_t step, uint32_t below);
bool od_step_marks_closed(struct od_step_marks *t, uint64_t step, uint32_t m);
/* True, and recorded, if the version is newer than all earlier ones of (step, m) and m is not closed. */
bool od_step_marks_newer(struct od_step_marks *t, uint64_t step, uint32_t m, uint32_t version);

#endif
