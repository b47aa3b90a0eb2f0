#include "common/model/mixer.h"

#include "common/base/mem.h"

void od_mix_run(const struct od_mix_call *c, struct od_op *op)
{
	op->profile = c->profile;
	op->n_rows = c->n_rows;
	od_device_run(c->device, OD_QUEUE_COMPUTE, op);
}

/* A product that overflows becomes so large that it is refused, yet so small that sums of it do not wrap. */
struct od_ref od_mix_cut(struct od_ref *scratch, size_t max_rows, uint64_t row_bytes)
{
	const struct od_ref piece = *scratch;
	uint64_t bytes;

	if (row_bytes == 0)
		return piece;
	if (!od_mul(max_rows, row_bytes, &bytes) || bytes > UINT64_MAX / 64)
		bytes = UINT64_MAX / 64;
	scratch->at += od_round_up(bytes + OD_PAD_BYTES, 64);
	return piece;
}
