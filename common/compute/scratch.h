/* scratch.h - the scratch memory of OD_OP_FFN and OD_OP_EXPERTS (ops.h): how much an operation needs, and, for devices,
 * where things lie in it.
 *
 * Thread: any; pure functions. */
#ifndef OD_COMPUTE_SCRATCH_H
#define OD_COMPUTE_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

/* Scratch memory for n_rows rows; the same on every device. */
uint64_t od_ffn_scratch_bytes(uint32_t intermediate, size_t n_rows);
uint64_t od_experts_scratch_bytes(uint32_t hidden, uint32_t intermediate, uint32_t n_experts, uint32_t top_k,
				  size_t n_rows);

/* One of the two halves of a feed-forward network's scratch: what gate, or up, gave for n_rows rows. */
uint64_t od_ffn_half_bytes(size_t intermediate, size_t n_rows);

/* Rows that go through the experts of a round: one expert may have all n_rows; few rows take several experts
 * together. */
uint64_t od_experts_together(uint32_t top_k, size_t n_rows);

/* As CPUs use it. A GPU uses pair, and halves what is from x on. */
struct od_experts_layout {
	uint64_t end; /* uint32_t [n_experts]: while sorting, the next free index; then the end of its run */
	uint64_t pair; /* uint32_t [n_rows * top_k]: row * top_k + rank, by expert, then by row */
	uint64_t x, y; /* [together][hidden]: the rows of the experts of a round, one expert behind the other */
	uint64_t ffn, bytes;
};
struct od_experts_layout od_experts_layout(uint32_t hidden, uint32_t intermediate, uint32_t n_experts, uint32_t top_k,
					   size_t n_rows);

#endif
