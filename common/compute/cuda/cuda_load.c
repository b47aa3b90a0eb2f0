/* OD_OP_MERGE, and coded weights for products. */
#include "common/compute/cuda/cuda_exec.h"

#include "common/compute/planes.h"

#include <string.h>

#define SHARED (2 * GPU_PLANES_BLOCK + GPU_PLANES_SCRATCH)
_Static_assert(GPU_PLANES_BLOCK == OD_PLANES_BLOCK, "planes.h");

/* True: merging writes over SM bytes that it has yet to read. */
static bool in_place(const uint8_t *sm, const uint16_t *to, uint64_t n)
{
	return (uintptr_t)sm >= (uintptr_t)to && (uintptr_t)sm < (uintptr_t)(to + n);
}

/* Where a launch that begins at `first` of n must end. */
static uint64_t end_of(uint64_t first, uint64_t n, bool overlaps)
{
	return overlaps ? first + (n - first) / 2 : n;
}

static void merge_plain(struct od_cuda_device *c, enum od_queue q, const struct od_op_merge *o, uint64_t n)
{
	struct gpu_merge a = { .sm = od_cuda_at(o->sm), .e = od_cuda_at(o->e), .to = od_cuda_at(o->to) };
	const bool overlaps = in_place(a.sm, a.to, n);

	for (; a.first < n; a.first = a.end) {
		unsigned blocks = od_cuda_blocks(n - a.first, GPU_MERGE_EACH);

		if (overlaps)
			blocks = (unsigned)((end_of(a.first, n, true) - a.first) / GPU_MERGE_EACH);
		blocks = blocks > 0 ? blocks : 1;
		a.end = a.first + (uint64_t)blocks * GPU_MERGE_EACH < n ? a.first + (uint64_t)blocks * GPU_MERGE_EACH : n;
		od_cuda_note(c, q, gpu_merge(c->queue[q].stream, (struct gpu_grid){ blocks, 1, 1 }, 0, &a), "merge");
	}
}

static void merge_chunk(struct od_cuda_device *c, enum od_queue q, const struct od_op_merge *o, uint32_t n_rows)
{
	const uint64_t n = (uint64_t)o->n * n_rows;
	struct gpu_merge_planes a = { .coded = od_cuda_at(o->e), .sm = od_cuda_at(o->sm), .to = od_cuda_at(o->to), .row = o->n,
				      .chunk_rows = n_rows, .n_rows = n_rows };
	const uint32_t all = (uint32_t)od_planes_blocks(n, o->n);
	const bool overlaps = in_place(a.sm, a.to, n);
	uint32_t end;

	for (; a.first_block < all; a.first_block = end) {
		size_t first, weights;

		od_planes_span(n, o->n, a.first_block, &first, &weights);
		for (end = a.first_block + 1; end < all; end++) {
			size_t at, more;

			od_planes_span(n, o->n, end, &at, &more);
			if (at + more > end_of(first, n, overlaps))
				break;
		}
		od_cuda_note(c, q, gpu_merge_planes(c->queue[q].stream, (struct gpu_grid){ end - a.first_block, 1, 1 }, SHARED, &a),
			     "merge of planes");
	}
}

void od_cuda_merge(struct od_cuda_device *c, enum od_queue q, const struct od_op *op)
{
	const struct od_op_merge *o = &op->merge;

	if (o->planes)
		merge_chunk(c, q, o, op->n_rows);
	else
		merge_plain(c, q, o, (uint64_t)o->n * op->n_rows);
}

void od_cuda_decode(struct od_cuda_device *c, const struct od_weight *w, uint32_t first_chunk, uint32_t n_chunks, uint16_t *to)
{
	const uint64_t row = first_chunk * (uint64_t)w->chunk_rows, left = w->n_out - row, rows = (uint64_t)n_chunks * w->chunk_rows;
	struct gpu_merge_planes a = { .coded = od_cuda_at(w->coded), .sm = (const uint8_t *)od_cuda_at(w->data) + row * w->n_in, .to = to,
				      .row = (uint32_t)w->n_in, .chunk_rows = (uint32_t)w->chunk_rows,
				      .n_rows = (uint32_t)(rows < left ? rows : left) };
	const unsigned blocks = (unsigned)od_planes_blocks((uint64_t)a.chunk_rows * a.row, a.row);

	memcpy(a.at, w->chunk_at + first_chunk, n_chunks * sizeof(a.at[0]));
	od_cuda_launched(c, gpu_merge_planes(od_cuda_stream(c), (struct gpu_grid){ blocks, n_chunks, 1 }, SHARED, &a), "planes");
}
