/* quant_int8.h - symmetric INT8 per output row, for the shadow: scale = absmax / 127 in f32,
 * q = w / scale in f32, rounded to nearest even and held to -127..127. A row whose scale is zero is all zeros.
 * Thread: pure. */
#ifndef OD_PACK_QUANT_INT8_H
#define OD_PACK_QUANT_INT8_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/compute/dtype.h"

/* rows [n_rows][n_in] of dtype to q [n_rows][n_in] and scale [n_rows]; scratch [n_in]. OD_ERR_RANGE when a weight
 * is infinite or no number: *bad_row says where. */
OD_MUST_CHECK int od_quant_int8(enum od_dtype dtype, const void *rows, size_t n_rows, size_t n_in, int8_t *q,
				float *scale, float *scratch, size_t *bad_row);

#endif
