/* step_marks.h - what is already known about the latest steps: up to which layer WANTs are closed, and the newest
 * version of a WANT per layer. Messages of the two sockets overtake each other, so this outlives the entries.
 *
 * Bounded: the step that was touched least recently is forgotten, and a WANT of it that is later still is believed
 * (advice: it costs a load, never a token).
 * Thread: its owner's (the schedule, under its lock). */
#ifndef ODW_STEP_MARKS_H
#define ODW_STEP_MARKS_H

#include <stdbool.h>
#include <stdint.h>

#define ODW_MAX_STEPS 64

struct odw_step_marks;

struct odw_step_marks *odw_step_marks_new(uint32_t n_moe); /* NULL: out of memory */
void odw_step_marks_free(struct odw_step_marks *t);	      /* NULL ok */
void odw_step_marks_clear(struct odw_step_marks *t);

/* WANTs of the step for m < below come too late. */
void odw_step_marks_close(struct odw_step_marks *t, uint64_t step, uint32_t below);
bool odw_step_marks_closed(struct odw_step_marks *t, uint64_t step, uint32_t m);
/* True, and remembered, when this version is newer than all before for (step, m), and m is not closed. */
bool odw_step_marks_newer(struct odw_step_marks *t, uint64_t step, uint32_t m, uint32_t version);

#endif
