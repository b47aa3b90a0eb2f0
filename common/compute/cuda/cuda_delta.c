#include "common/compute/cuda/cuda_delta.h"

#define MOST_SHARED (48u << 10)

static void launched(struct od_cuda_device *c, int error)
{
	od_cuda_launched(c, error, "delta rule");
}

void od_cuda_delta_in(struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_delta_in *o = &op->delta_in;
	const struct od_delta_shape *s = &o->shape;
	const struct gpu_delta_in a = {
		.qkv = od_cuda_at(o->qkv),
		.b = od_cuda_at(o->b),
		.a = od_cuda_at(o->a),
		.z = od_cuda_at(o->z),
		.row = od_cuda_at(o->row),
		.a_log = od_cuda_at(o->a_log),
		.dt_bias = od_cuda_at(o->dt_bias),
		.n_heads = s->n_heads,
		.n_key_heads = s->n_key_heads,
		.k_dim = s->k_dim,
		.v_dim = s->v_dim,
		.channels = (uint32_t)od_delta_channels(s),
		.by_key_head = o->by_key_head,
	};
	const uint64_t n = od_delta_channels(s) + (o->by_key_head ? od_delta_values(s) : 0) + s->n_heads;

	launched(c, gpu_delta_in(od_cuda_stream(c),
				 (struct gpu_grid){ od_cuda_blocks(n, GPU_ROW_THREADS), op->n_rows, 1 }, 0, &a));
}

/* Bytes of a line with so many values. */
static size_t line_bytes(const struct od_delta_shape *s, size_t values)
{
	return (2 * (size_t)s->k_dim + values + 3) / 4 * 4 * sizeof(float);
}

/* Lines that a block has room for. */
static uint32_t lines_at_once(const struct od_delta_shape *s, size_t values)
{
	const size_t n = (MOST_SHARED - GPU_DELTA_ROOM) / line_bytes(s, values);

	return n < GPU_DELTA_ROWS ? (uint32_t)n : GPU_DELTA_ROWS;
}

static struct gpu_delta arguments(const struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_delta *o = &op->delta;
	const struct od_delta_shape *s = &o->shape;

	return (struct gpu_delta){
		.rows = od_cuda_at(o->rows),
		.row = od_cuda_at(o->row),
		.conv = od_cuda_at(o->conv),
		.norm = od_cuda_at(o->norm),
		.from = od_cuda_at(o->from),
		.to = od_cuda_at(o->to),
		.z = od_cuda_at(o->z),
		.mixed = od_cuda_at(o->mixed),
		.y = od_cuda_at(o->y),
		.index = od_cuda_at(o->index),
		.n_found = c->scratch,
		.state_at = od_delta_state_at(s),
		.n_rows = op->n_rows,
		.table = o->table,
		.first = o->first,
		.n_take = o->n_take,
		.n_heads = s->n_heads,
		.n_key_heads = s->n_key_heads,
		.k_dim = s->k_dim,
		.v_dim = s->v_dim,
		.taps = s->taps,
		.channels = (uint32_t)od_delta_channels(s),
		.eps = o->eps,
		.tiled = s->tiled,
	};
}

/* n: rows of the sequence, at most. lines, all_lines: that a block has room for, with values of a head or of all of a
 * key head. Each launch reads what all blocks of the one before have written: within one, blocks cannot wait for each
 * other. */
static void many(struct od_cuda_device *c, struct gpu_delta *a, const struct od_delta_shape *s, uint32_t n,
		 uint32_t lines, uint32_t all_lines)
{
	struct gpu_stream *stream = od_cuda_stream(c);
	const size_t group = (size_t)s->n_heads / s->n_key_heads * s->v_dim;
	const bool fixed = s->k_dim == GPU_DELTA_FIXED;
	const struct gpu_grid heads = { s->n_heads, fixed ? od_cuda_blocks(s->v_dim, GPU_DELTA_THREADS) : 1, 1 };

	launched(c, gpu_delta_find(stream, (struct gpu_grid){ 1, 1, 1 }, GPU_DELTA_ROOM, a));
	a->at_once = all_lines;
	launched(c, gpu_delta_mix(stream, (struct gpu_grid){ s->n_key_heads, od_cuda_blocks(n, all_lines), 1 },
				  GPU_DELTA_ROOM + all_lines * line_bytes(s, group), a));
	a->at_once = lines;
	launched(c,
		 gpu_delta_recur[fixed](stream, heads,
					fixed ? GPU_DELTA_RING : GPU_DELTA_ROOM + lines * line_bytes(s, s->v_dim), a));
	if (a->z != NULL)
		launched(c, gpu_delta_end(stream, (struct gpu_grid){ 1, n, 1 }, 0, a));
}

void od_cuda_delta(struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_delta *o = &op->delta;
	const struct od_delta_shape *s = &o->shape;
	const uint32_t n = o->n_take < op->n_rows ? o->n_take : op->n_rows, lines = lines_at_once(s, s->v_dim);
	const uint32_t all_lines = lines_at_once(s, (size_t)s->n_heads / s->n_key_heads * s->v_dim);
	struct gpu_delta a = arguments(c, op);

	if (all_lines == 0) {
		od_cuda_fail(c, "delta rule: the values of a key head are too many");
		return;
	}
	if (n > lines) {
		many(c, &a, s, n, lines, all_lines);
		return;
	}
	a.at_once = lines;
	launched(c, gpu_delta_few[s->k_dim == GPU_DELTA_FIXED](od_cuda_stream(c), (struct gpu_grid){ s->n_heads, 1, 1 },
							       GPU_DELTA_ROOM + n * line_bytes(s, s->v_dim), &a));
}
