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

#define OD_MAX_CARDS 8

/* A device of several cards; any other is its own only card. Card i holds layers [od_device_card_begin,
 * od_device_card_end): none or many, the last also those behind. od_device_split sets the ends [cards], in ascending
 * order, before anything of a layer is made (od_split_deal); until then all layers are the first card's. Thread: no
 * other one may use d meanwhile. */
unsigned od_device_cards(const struct od_device *d);
struct od_device *od_device_card(struct od_device *d, unsigned i);
void od_device_split(struct od_device *d, const uint32_t *end);
uint32_t od_device_card_begin(const struct od_device *d, unsigned i);
uint32_t od_device_card_end(const struct od_device *d, unsigned i);
unsigned od_device_card_of(const struct od_device *d, uint32_t layer);

/* Takes the cards [n], 2 to OD_MAX_CARDS of one kernel class; on an error they stay the caller's. */
OD_MUST_CHECK int od_device_cards_new(struct od_device **out, struct od_device *const *card, unsigned n,
				      struct od_err *err);

#endif
