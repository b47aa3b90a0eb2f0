#include "main-node/cluster/result_check.h"

#include "common/model/config.h"

#include <string.h>

int odm_check_result(const Od__Result *r, uint32_t n_experts, size_t row_bytes, size_t n_frames, size_t frame_bytes,
		     struct od_err *err)
{
	uint64_t seen[OD_MAX_EXPERTS / 64] = { 0 };
	size_t left = frame_bytes / row_bytes; /* rows that no expert has named yet */
	bool any = false;

	if (r->n_experts == 0)
		return od_fail(err, OD_ERR_SHAPE, "experts: expected at least 1, found none");
	for (size_t i = 0; i < r->n_experts; i++) {
		const Od__ExpertResult *x = r->experts[i];
		const uint64_t bit = 1ull << (x->expert % 64);

		if (x->expert >= n_experts)
			return od_fail(err, OD_ERR_RANGE, "expert: expected less than %u, found %u", n_experts,
				       x->expert);
		if (seen[x->expert / 64] & bit)
			return od_fail(err, OD_ERR_RANGE, "expert %u: expected once, found twice", x->expert);
		seen[x->expert / 64] |= bit;
		if ((x->rows > 0) != (x->code == OD_OK))
			return od_fail(err, OD_ERR_SHAPE, "expert %u: found %u rows with code %d", x->expert, x->rows,
				       x->code);
		if (x->rows > left)
			return od_fail(err, OD_ERR_SHAPE, "expert %u: expected %u rows of %zu bytes, found %zu",
				       x->expert, x->rows, row_bytes, left);
		left -= x->rows;
		any = any || x->rows > 0;
	}
	if (left > 0 || frame_bytes % row_bytes != 0 || n_frames != any)
		return od_fail(err, OD_ERR_SHAPE,
			       "frames: expected %d, found %zu; beyond its rows of %zu bytes there are %zu bytes", any,
			       n_frames, row_bytes, left * row_bytes + frame_bytes % row_bytes);
	return OD_OK;
}

/* A value that is too large has an exponent of 127 + 56 or more (255: no finite number). 256 less that, added to the
 * exponent, then reaches the sign bit, and never a neighbour. */
bool odm_all_plausible(const void *bytes, size_t n_bytes, bool bf16)
{
	const uint64_t exponent = bf16 ? 0x7f807f807f807f80 : 0x7f8000007f800000;
	const uint64_t over = bf16 ? 0x2480248024802480 : 0x2480000024800000; /* 256 - (127 + 56) = 73 */
	const uint64_t sign = bf16 ? 0x8000800080008000 : 0x8000000080000000;
	const uint8_t *at = bytes;
	uint64_t found = 0, x;

	for (; n_bytes >= sizeof(x); n_bytes -= sizeof(x), at += sizeof(x)) {
		memcpy(&x, at, sizeof(x));
		found |= (x & exponent) + over;
	}
	x = 0;
	memcpy(&x, at, n_bytes);
	found |= (x & exponent) + over;
	return (found & sign) == 0;
}
