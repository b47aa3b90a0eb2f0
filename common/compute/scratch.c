#include "common/compute/scratch.h"

#include "common/base/mem.h"

#define MIN_TOGETHER_ROWS 16u /* rows of x for the experts of a round */

/* Padded as vector loads like it. What is more than anybody has stays so small that sums of it do not wrap. */
uint64_t od_ffn_half_bytes(size_t intermediate, size_t n_rows)
{
	uint64_t n;

	if (!od_mul(n_rows, intermediate * sizeof(float), &n) || n > UINT64_MAX / 8)
		return UINT64_MAX / 4;
	return od_round_up(n + OD_PAD_BYTES, 64);
}

uint64_t od_ffn_scratch_bytes(uint32_t intermediate, size_t n_rows)
{
	return 2 * od_ffn_half_bytes(intermediate, n_rows);
}

uint64_t od_experts_together(uint32_t top_k, size_t n_rows)
{
	uint64_t all;

	if (n_rows >= MIN_TOGETHER_ROWS)
		return n_rows;
	all = (uint64_t)n_rows * top_k;
	return all < MIN_TOGETHER_ROWS ? all : MIN_TOGETHER_ROWS;
}

struct od_experts_layout od_experts_layout(uint32_t hidden, uint32_t intermediate, uint32_t n_experts, uint32_t top_k,
					   size_t n_rows)
{
	const uint64_t most = od_experts_together(top_k, n_rows);
	struct od_experts_layout p = { 0 };
	uint64_t pairs, rows;

	if (!od_mul(n_rows, (uint64_t)top_k * sizeof(uint32_t), &pairs) || pairs > UINT64_MAX / 8 ||
	    !od_mul(most, (uint64_t)hidden * sizeof(float), &rows) || rows > UINT64_MAX / 8) {
		p.bytes = UINT64_MAX / 2;
		return p;
	}
	rows = od_round_up(rows + OD_PAD_BYTES, 64);
	p.pair = od_round_up((uint64_t)n_experts * sizeof(uint32_t), 64);
	p.x = p.pair + od_round_up(pairs, 64);
	p.y = p.x + rows;
	p.ffn = p.y + rows;
	p.bytes = p.ffn + od_ffn_scratch_bytes(intermediate, most);
	return p;
}

uint64_t od_experts_scratch_bytes(uint32_t hidden, uint32_t intermediate, uint32_t n_experts, uint32_t top_k,
				  size_t n_rows)
{
	return od_experts_layout(hidden, intermediate, n_experts, top_k, n_rows).bytes;
}
