/* quant_rows.h - weights as published to the precisions of a shadow; docs/PACK-FORMAT.md says it to the bit.
 * Thread: pure. */
#ifndef OD_PACK_QUANT_ROWS_H
#define OD_PACK_QUANT_ROWS_H

#include "common/pack/shadow/shadow_layout.h"

/* All rows, as published, to data [n_out][od_shadow_row_bytes] and scale [n_out][od_shadow_row_scales]; scratch
 * [n_in]. OD_ERR_RANGE: a weight is infinite or no number; OD_ERR_UNSUPPORTED: it would be infinite as FP16. *bad_row
 * says where. */
OD_MUST_CHECK int od_quant_rows(enum od_precision precision, const struct od_mat *rows, void *data, float *scale,
				float *scratch, size_t *bad_row);

#endif
