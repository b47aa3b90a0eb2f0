/* part.h - a shadow that holds a part of the layers, not the first one: computes them for the first shadow, which runs
 * the emulator (chain.h) and decides everything about sequences.
 *
 * It knows no sequences. Each run names its KV pages and its copies of fixed state, and every number is checked here
 * before it indexes anything. Messages are handled in their order; an error of one without an answer is told in the
 * next PART_RESULT.
 * Thread: the emulator thread, which owns the device's compute queue. Owner: the caller. */
#ifndef ODS_PART_H
#define ODS_PART_H

#include "shadow-node/emulator.h"

struct ods_part;

/* Sends to the first shadow; a message that cannot be sent is lost, and so is the run. */
typedef void ods_part_send_fn(void *arg, Od__Header *header, const struct od_out_frame *frames, size_t n_frames);

/* Its memory is at most that of an emulator with these options (ods_emulator_split). */
OD_MUST_CHECK int ods_part_new(struct ods_part **out, const struct ods_emulator_opts *o, ods_part_send_fn *send,
			       void *arg, struct od_err *err);
void ods_part_free(struct ods_part *p); /* NULL ok */

/* Handles a PART_ message. On an error the message was dropped, or the run is over; err has the reason. */
OD_MUST_CHECK int ods_part_message(struct ods_part *p, const struct od_msg *m, struct od_err *err);

#endif
