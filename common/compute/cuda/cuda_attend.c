/* Attention: how it is cut into launches. */
#include "common/compute/cuda/cuda_attend.h"

#include "common/compute/cuda/cuda_exec.h"
#include "common/compute/cuda/cuda_products.h"

_Static_assert(GPU_ATTEND_BLOCK == OD_ATTN_BLOCK, "backend.h");

#define MOST_SHARED (48u << 10)
/* blocks of a multiprocessor, at most, so that wide ones pay: with more, some compute while others wait */
#define WIDE_BLOCKS 2u
#define UNIT 16u /* bytes: kernels copy as many at a time, if rows are aligned to them */
/* Results of blocks of positions for the fold, at a time: they should still be in the L2 cache then. Every GPU has more
 * of that. */
#define PARTS_BYTES_A_SM (128u << 10)

/* The vectors of all kv heads. */
static bool aligned(const struct gpu_kv *s, uint32_t n_kv_heads, uint32_t dim)
{
	return (uintptr_t)s->pages % UNIT == 0 && s->page_bytes % UNIT == 0 && s->row_bytes % UNIT == 0 &&
	       (n_kv_heads == 1 || dim * od_dtype_bytes((enum od_dtype)s->dtype) % UNIT == 0);
}

/* Blocks that a row can have: those of a window that begins in the middle of one. */
static uint32_t blocks_of(const struct od_op_attend *o)
{
	const uint32_t all = o->max_position / OD_ATTN_BLOCK + 1;
	const uint32_t before = o->window - 1, seen = before / OD_ATTN_BLOCK + (before % OD_ATTN_BLOCK != 0) + 1;

	return o->window != 0 && seen < all ? seen : all;
}

/* How the work is cut. */
struct cut {
	uint32_t heads; /* heads of a kv head at a time: a power of 2 */
	uint32_t groups; /* groups of heads */
	bool wide; /* GPU_ATTEND_WIDE */
	size_t shared;
};

/* Eight heads, so that keys and values are read once for them, unless fours waste less of the last ones, or
 * multiprocessors would be without work. If they have few blocks all the same, these have more threads. */
static struct cut cut_of(const struct od_cuda_device *c, const struct od_op_attend *o, uint64_t n_blocks)
{
	const uint32_t group = o->n_heads / o->n_kv_heads;
	struct cut t = { .heads = 1 };

	while (t.heads < group && t.heads < GPU_ATTEND_HEADS)
		t.heads *= 2;
	if (t.heads == 8 &&
	    ((group % 8 != 0 && group % 8 <= 4) || n_blocks * o->n_kv_heads * od_cuda_blocks(group, 8) < c->n_sm))
		t.heads = 4;
	while (t.heads > 1 && gpu_attend_shared(GPU_ATTEND_THREADS, t.heads, o->k_dim) > MOST_SHARED)
		t.heads /= 2;
	t.groups = o->n_kv_heads * od_cuda_blocks(group, t.heads);
	t.wide = t.heads < 8 && n_blocks * t.groups <= WIDE_BLOCKS * c->n_sm &&
		 gpu_attend_shared(GPU_ATTEND_WIDE, t.heads, o->k_dim) <= MOST_SHARED;
	t.shared = gpu_attend_shared(t.wide ? GPU_ATTEND_WIDE : GPU_ATTEND_THREADS, t.heads, o->k_dim);
	return t;
}

/* Some blocks of some rows. */
struct piece {
	struct od_cuda_device *c;
	const struct od_op_attend *o;
	struct gpu_attend_splits splits;
	const float *before;
	float *after;
	uint32_t first_row, n_rows;
};

static void run_piece(const struct piece *p)
{
	const struct od_op_attend *o = p->o;
	const struct cut t = cut_of(p->c, o, (uint64_t)p->n_rows * p->splits.n);
	const struct gpu_row *rows = (const struct gpu_row *)od_cuda_at(o->rows) + p->first_row;
	struct gpu_attend a = {
		.rows = rows,
		.q = (const float *)od_cuda_at(o->q) + (size_t)p->first_row * o->n_heads * o->k_dim,
		.keys = od_cuda_kv(&o->keys),
		.values = od_cuda_kv(&o->values),
		.splits = p->splits,
		.n_heads = o->n_heads,
		.k_dim = o->k_dim,
		.v_dim = o->v_dim,
		.window = o->window,
		.group = o->n_heads / o->n_kv_heads,
		.groups = t.groups / o->n_kv_heads,
		.scale = o->scale,
	};
	const struct gpu_attend_fold f = {
		.rows = rows,
		.splits = p->splits,
		.sinks = od_cuda_at(o->sinks),
		.before = p->before,
		.after = p->after,
		.out = (float *)od_cuda_at(o->out) + (size_t)p->first_row * o->n_heads * o->v_dim,
		.n_heads = o->n_heads,
		.v_dim = o->v_dim,
		.window = o->window,
	};
	const struct gpu_grid blocks = { t.groups, p->splits.n, p->n_rows };
	const struct gpu_grid elements = { od_cuda_blocks(o->v_dim, GPU_FOLD_THREADS), o->n_heads, p->n_rows };

	a.aligned_queries = (uintptr_t)a.q % UNIT == 0 && o->k_dim * sizeof(float) % UNIT == 0;
	a.aligned_keys = aligned(&a.keys, o->n_kv_heads, o->k_dim);
	a.aligned_values = aligned(&a.values, o->n_kv_heads, o->v_dim);
	od_cuda_launched(p->c,
			 gpu_attend[t.wide][o->keys.dtype == OD_BF16][t.heads == 8 ? 3 : t.heads / 2](
				 od_cuda_stream(p->c), blocks, t.shared, &a),
			 "attend");
	od_cuda_launched(p->c, gpu_attend_fold(od_cuda_stream(p->c), elements, GPU_FOLD_SHARED, &f), "fold of attend");
}

/* The scratch memory: [2][n_heads][2] for a row whose blocks take several pieces; then the splits of a piece. */
void od_cuda_attend(struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_attend *o = &op->attend;
	const uint64_t state_bytes = 2 * 2 * sizeof(float) * (uint64_t)o->n_heads;
	const uint64_t block_bytes = ((uint64_t)o->v_dim + 2) * sizeof(float) * o->n_heads,
		       wanted = (uint64_t)c->n_sm * PARTS_BYTES_A_SM;
	const uint32_t all = blocks_of(o);
	uint64_t room = OD_CUDA_SCRATCH_BYTES - state_bytes, blocks, rows;
	float *state = c->scratch, *at = state + 4 * (size_t)o->n_heads;

	if (state_bytes + block_bytes > OD_CUDA_SCRATCH_BYTES ||
	    gpu_attend_shared(GPU_ATTEND_THREADS, 1, o->k_dim) > MOST_SHARED) {
		od_cuda_fail(c, "attention: the heads are too large for the GPU's scratch memory");
		return;
	}
	room = wanted < block_bytes ? block_bytes : wanted < room ? wanted : room;
	blocks = room / block_bytes < all ? room / block_bytes : all;
	blocks = blocks < GPU_MAX_GRID_Y ? blocks : GPU_MAX_GRID_Y;
	rows = room / block_bytes / blocks;
	rows = blocks < all ? 1 : rows < GPU_MAX_GRID_Y ? rows : GPU_MAX_GRID_Y;
	for (uint32_t r = 0; r < op->n_rows; r += (uint32_t)rows) {
		struct piece p = { .c = c,
				   .o = o,
				   .first_row = r,
				   .n_rows = op->n_rows - r < rows ? op->n_rows - r : (uint32_t)rows };
		size_t n;

		for (uint32_t first = 0, i = 0; first < all; first += (uint32_t)blocks, i++) {
			/* The next piece uses the same memory: its kernel begins after this one's fold, in the same
			 * stream. There are two states: a block of a fold may still read one when another writes
			 * the other. */
			p.splits.first = first;
			p.splits.n = all - first < blocks ? all - first : (uint32_t)blocks;
			n = (size_t)p.n_rows * o->n_heads * p.splits.n;
			p.splits.max = at;
			p.splits.sum = at + n;
			p.splits.vector = at + 2 * n;
			p.before = first > 0 ? state + i % 2 * 2 * (size_t)o->n_heads : NULL;
			p.after = all - first > blocks ? state + (i + 1) % 2 * 2 * (size_t)o->n_heads : NULL;
			run_piece(&p);
		}
	}
}

void od_cuda_latent_query(struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_latent_query *o = &op->latent_query;
	const struct gpu_absorb a = {
		.q = od_cuda_at(o->q),
		.out = od_cuda_at(o->out),
		.turn = { .angles = od_cuda_at(o->turn.angles),
			  .dims = o->turn.dims,
			  .neighbours = o->turn.neighbours },
		.kv_b = od_cuda_mat(o->kv_b),
		.n_heads = o->n_heads,
		.nope_dim = o->nope_dim,
		.v_dim = o->v_dim,
		.rank = o->rank,
		.n_rows = op->n_rows,
		.turned = o->turned,
	};
	const uint32_t rows = op->n_rows > 1 ? GPU_PRODUCT_ROWS : 1;
	gpu_absorb_fn *run = gpu_absorb[a.kv_b.coding][op->n_rows > 1];

	if (run == NULL) {
		od_cuda_fail(c, "latent query: weights that are not as published");
		return;
	}
	od_cuda_launched(c,
			 run(od_cuda_stream(c),
			     (struct gpu_grid){ od_cuda_blocks(o->rank, GPU_ABSORB_THREADS), o->n_heads,
						od_cuda_blocks(op->n_rows, rows) },
			     gpu_absorb_shared(a.kv_b.coding, o->turned, rows), &a),
			 "latent query");
}
