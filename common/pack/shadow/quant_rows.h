/* quant_rows.h - quantises published weights to a shadow's precision; specified to the bit in docs/PACK-FORMAT.md.
 *
 * Thread: pure function. */
#ifndef OD_PACK_QUANT_ROWS_H
#define OD_PACK_QUANT_ROWS_H

#include "common/pack/shadow/shadow_layout.h"

/* Quantises all rows to data [n_out][od_shadow_row_bytes] and scale [n_out][od_shadow_row_scales]; scratch [n_in].
 * OD_ERR_RANGE: a weight is infinite or NaN; OD_ERR_UNSUPPORTED: it would be infinite as FP16; *bad_row is its row. */
OD_MUST_CHECK int od_quant_rows(enum od_precision precision, const struct od_mat *rows, void *data, float *scale,
				float *scratch, size_t *bad_row);

#endif
