/* OD_OP_MERGE, and coded weights for products. */
#include "common/compute/cuda/cuda_load.h"

#include "common/compute/planes.h"

#include <assert.h>
#include <string.h>

_Static_assert(GPU_PLANES_BLOCK == OD_PLANES_BLOCK, "planes.h");
_Static_assert(OD_MERGE_CHUNKS <= GPU_MAX_CHUNKS, "a launch has room for the chunks of a merge");

/* ---- The load queue's two streams ---- */

static bool uses(const struct od_cuda_merge *m, const char *at, uint64_t n)
{
	bool any = false;

	for (size_t i = 0; i < sizeof(m->use) / sizeof(m->use[0]); i++)
		any = any || (at < m->use[i].at + m->use[i].n && m->use[i].at < at + n);
	return any;
}

/* Later copies follow the first n merges, of which the last is known. */
static void await_merges(struct od_cuda_device *c, enum od_queue q, uint64_t n)
{
	struct od_cuda_queue *u = &c->queue[q];

	od_cuda_note(c, q, gpu_stream_after(u->stream, u->merge[(n - 1) % OD_CUDA_MERGES].done), "event");
	u->n_awaited = n;
}

void od_cuda_before_copy(struct od_cuda_device *c, enum od_queue q, const void *at, uint64_t n)
{
	struct od_cuda_queue *u = &c->queue[q];

	u->copies = true;
	/* the newest first: merges are done in order, so whoever follows it follows all before it */
	for (uint64_t i = u->n_merges; i > u->n_awaited; i--)
		if (uses(&u->merge[(i - 1) % OD_CUDA_MERGES], at, n)) {
			await_merges(c, q, i);
			return;
		}
}

struct gpu_stream *od_cuda_last(struct od_cuda_device *c, enum od_queue q)
{
	struct od_cuda_queue *u = &c->queue[q];

	if (u->merges == NULL)
		return u->stream;
	if (u->copies) { /* else nothing: between copies, events cost time */
		od_cuda_note(c, q, gpu_event_record(u->copied, u->stream), "event");
		od_cuda_note(c, q, gpu_stream_after(u->merges, u->copied), "event");
		u->copies = false;
	}
	return u->merges;
}

static void note_merge(struct od_cuda_device *c, enum od_queue q, const struct od_op *op)
{
	const struct od_op_merge *o = &op->merge;
	const uint64_t n = (uint64_t)o->n * op->n_rows;
	struct od_cuda_queue *u = &c->queue[q];
	struct od_cuda_merge *m = &u->merge[u->n_merges % OD_CUDA_MERGES];

	if (u->merges == NULL)
		return;
	/* The event recorded below was an older merge's, which later copies could then not follow any more. */
	if (u->n_merges - u->n_awaited == OD_CUDA_MERGES)
		await_merges(c, q, u->n_awaited + OD_CUDA_MERGES / 2);
	m->use[0] = (struct od_cuda_span){ od_cuda_at(o->sm), n };
	m->use[1] = (struct od_cuda_span){ od_cuda_at(o->e), !o->planes	    ? n :
							     o->e_bytes > 0 ? o->e_bytes :
									      od_planes_bound(n, o->n) };
	m->use[2] = (struct od_cuda_span){ od_cuda_at(o->to), 2 * n };
	od_cuda_note(c, q, gpu_event_record(m->done, u->merges), "event");
	u->n_merges++;
}

/* ---- Merges ---- */

/* True: merging writes over SM bytes that it has yet to read. */
static bool in_place(const uint8_t *sm, const uint16_t *to, uint64_t n)
{
	return (uintptr_t)sm >= (uintptr_t)to && (uintptr_t)sm < (uintptr_t)(to + n);
}

/* Where a launch that begins at weight `first` of n must end. In place, byte i of SM lies where weight (n + i) / 2
 * goes, so a launch may write half of the weights that are left. */
static uint64_t end_of(uint64_t first, uint64_t n, bool overlaps)
{
	return overlaps ? first + (n - first) / 2 : n;
}

static void merge_plain(struct od_cuda_device *c, enum od_queue q, struct gpu_stream *s, const struct od_op_merge *o,
			uint64_t n)
{
	struct gpu_merge a = { .sm = od_cuda_at(o->sm), .e = od_cuda_at(o->e), .to = od_cuda_at(o->to) };
	const bool overlaps = in_place(a.sm, a.to, n);

	for (; a.first < n; a.first = a.end) {
		unsigned blocks = od_cuda_blocks(n - a.first, GPU_MERGE_EACH);

		if (overlaps)
			blocks = (unsigned)((end_of(a.first, n, true) - a.first) / GPU_MERGE_EACH);
		/* One block alone may write over what it reads: all its reads come first (k_load.cu). */
		blocks = blocks > 0 ? blocks : 1;
		a.end = a.first + (uint64_t)blocks * GPU_MERGE_EACH < n ? a.first + (uint64_t)blocks * GPU_MERGE_EACH :
									  n;
		od_cuda_note(c, q, gpu_merge(s, (struct gpu_grid){ blocks, 1, 1 }, 0, &a), "merge");
	}
}

/* All chunks in one launch, but for SM bytes in the way. */
static void merge_chunks(struct od_cuda_device *c, enum od_queue q, struct gpu_stream *s, const struct od_op_merge *o,
			 uint32_t n_rows)
{
	const uint32_t chunk_rows = o->chunk_rows > 0 ? o->chunk_rows : n_rows;
	const uint64_t n = (uint64_t)o->n * chunk_rows;
	struct gpu_merge_planes a = { .coded = od_cuda_at(o->e),
				      .sm = od_cuda_at(o->sm),
				      .to = od_cuda_at(o->to),
				      .row = o->n,
				      .chunk_rows = chunk_rows,
				      .n_rows = n_rows };
	const uint32_t all = (uint32_t)od_planes_blocks(n, o->n), chunks = od_cuda_blocks(n_rows, chunk_rows);
	const bool overlaps = in_place(a.sm, a.to, (uint64_t)o->n * n_rows);
	uint32_t end;

	assert(chunks == 1 || (chunks <= OD_MERGE_CHUNKS && !overlaps));
	for (uint32_t i = 0; i < chunks; i++)
		a.at[i] = o->chunk_at[i];
	for (; a.first_block < all; a.first_block = end) {
		size_t first, weights;

		od_planes_span(n, o->n, a.first_block, &first, &weights);
		for (end = a.first_block + 1; end < all; end++) {
			size_t at, more;

			od_planes_span(n, o->n, end, &at, &more);
			if (at + more > end_of(first, n, overlaps))
				break;
		}
		od_cuda_note(
			c, q,
			gpu_merge_planes(s, (struct gpu_grid){ end - a.first_block, chunks, 1 }, GPU_PLANES_SHARED, &a),
			"merge of planes");
	}
}

void od_cuda_merge(struct od_cuda_device *c, enum od_queue q, const struct od_op *op)
{
	const struct od_op_merge *o = &op->merge;
	struct gpu_stream *s = od_cuda_last(c, q);

	if (o->planes)
		merge_chunks(c, q, s, o, op->n_rows);
	else
		merge_plain(c, q, s, o, (uint64_t)o->n * op->n_rows);
	note_merge(c, q, op);
}

void od_cuda_decode(struct od_cuda_device *c, const struct od_weight *w, uint32_t first_chunk, uint32_t n_chunks,
		    uint16_t *to)
{
	const uint64_t row = first_chunk * (uint64_t)w->chunk_rows, left = w->n_out - row,
		       rows = (uint64_t)n_chunks * w->chunk_rows;
	struct gpu_merge_planes a = { .coded = od_cuda_at(w->coded),
				      .sm = (const uint8_t *)od_cuda_at(w->data) + row * w->n_in,
				      .to = to,
				      .row = (uint32_t)w->n_in,
				      .chunk_rows = (uint32_t)w->chunk_rows,
				      .n_rows = (uint32_t)(rows < left ? rows : left) };
	const unsigned blocks = (unsigned)od_planes_blocks((uint64_t)a.chunk_rows * a.row, a.row);

	memcpy(a.at, w->chunk_at + first_chunk, n_chunks * sizeof(a.at[0]));
	od_cuda_launched(
		c, gpu_merge_planes(od_cuda_stream(c), (struct gpu_grid){ blocks, n_chunks, 1 }, GPU_PLANES_SHARED, &a),
		"planes");
}
