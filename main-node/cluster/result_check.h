/* result_check.h - validates a worker's RESULT before its bytes are used. cluster_service.c then compares each expert's
 * row count with the RUN.
 *
 * Thread: pure functions. */
#ifndef ODM_RESULT_CHECK_H
#define ODM_RESULT_CHECK_H

#include "common/net/wire.h"

/* OD_ERR_RANGE: an expert out of range (n_experts or more), or a duplicate; OD_ERR_SHAPE: no experts, rows for an
 * expert with an error code or none for one without, or frames that are not exactly the rows of the experts that ran,
 * row_bytes each. */
OD_MUST_CHECK int odm_check_result(const Od__Result *r, uint32_t n_experts, size_t row_bytes, size_t n_frames,
				   size_t frame_bytes, struct od_err *err);

/* True: no NaN, no infinity and none of 2^56 (7e16) or more among these F32 (little-endian) or BF16 numbers, aligned or
 * not. 17 GB/s on one core. No model gets near that number, and up to it the squares of a row of 2^15 have a finite
 * sum: so what one worker answers cannot make main's next rows infinite, and then another worker's outputs. */
bool odm_all_plausible(const void *bytes, size_t n_bytes, bool bf16);

#endif
