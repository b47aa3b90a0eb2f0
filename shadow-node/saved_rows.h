/* saved_rows.h - main's keys and values of a run's rows, kept aside while the shadow's own attention overwrites them.
 *
 * Thread: the one of the device's compute queue. Owner: the caller. */
#ifndef ODS_SAVED_ROWS_H
#define ODS_SAVED_ROWS_H

#include "common/compute/cards.h"
#include "common/model/forward.h"
#include "common/model/forward_open.h"

struct ods_saved {
	struct od_device *device;
	enum od_profile profile;
	struct od_buf *buf[OD_MAX_CARDS]; /* each card's [max_rows], of each_bytes */
	size_t each_bytes;
};

OD_MUST_CHECK int ods_saved_init(struct ods_saved *s, const struct od_forward_opts *o, struct od_err *err);
void ods_saved_fini(struct ods_saved *s); /* zeroed ok */
/* Queues copying row i, the one of this layer at a position of seq, there or back. */
void ods_saved_copy(struct ods_saved *s, size_t i, const struct od_seq_state *seq, uint32_t layer, uint32_t position,
		    bool save);

#endif
