/* run_check.h - validates the messages of main (RUN, WANT, CLOSE) before the worker uses them.
 *
 * Thread: pure functions. */
#ifndef ODW_RUN_CHECK_H
#define ODW_RUN_CHECK_H

#include "common/compute/backend.h"
#include "common/model/config.h"
#include "common/net/wire.h"

struct odw_run_limits {
	uint32_t n_moe, n_experts; /* MoE layers, experts of each */
	uint32_t hidden;
	uint32_t max_rows; /* limit of a RUN, as agreed in HELLO */
	enum od_profile profile;
};

/* Bytes of a row: f32 or BF16 by profile. */
static inline size_t odw_row_bytes(uint32_t hidden, enum od_profile profile)
{
	return hidden * od_dtype_bytes(profile == OD_PROFILE_BF16 ? OD_BF16 : OD_F32);
}

/* The limit of a RUN's rows in this profile, whatever HELLO asks for; at least 1. */
uint32_t odw_max_rows(uint32_t hidden, enum od_profile profile);

/* OD_ERR_RANGE: a layer, expert or row out of range, or a duplicate expert; OD_ERR_SHAPE: impossible row counts, or
 * frames that do not hold n_rows rows. */
OD_MUST_CHECK int odw_check_run(const Od__Run *run, const struct odw_run_limits *limits, size_t n_frames,
				size_t frame_bytes, struct od_err *err);
OD_MUST_CHECK int odw_check_want(const Od__Want *want, const struct odw_run_limits *limits, struct od_err *err);
OD_MUST_CHECK int odw_check_close(const Od__Close *close, const struct odw_run_limits *limits, struct od_err *err);

#endif
