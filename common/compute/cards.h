/* cards.h - several devices of one kind as one ("cuda:0,1"), for a model that one cannot hold: layers are dealt over
 * them in order.
 *
 * Buffers belong to a card; od_buf_new without one takes the first. An operation runs on the card that has its
 * operands, which must all be there: who moves from layer to layer copies rows to the next card. A ticket and a wait
 * are for all cards.
 * Thread: as device.h. Owner: as a device. */
#ifndef OD_COMPUTE_CARDS_H
#define OD_COMPUTE_CARDS_H

#include "common/compute/device.h"

/* Takes the cards [n], 2 to OD_MAX_CARDS of one kernel class; on an error they stay the caller's. */
OD_MUST_CHECK int od_device_cards_new(struct od_device **out, struct od_device *const *card, unsigned n,
				      struct od_err *err);

#endif
