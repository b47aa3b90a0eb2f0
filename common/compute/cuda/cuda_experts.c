/* OD_OP_EXPERTS: the GPU sorts rows by expert, and runs those that have any. The host does not know which they are. */
#include "common/compute/cuda/cuda_experts.h"

#include "common/base/mem.h"
#include "common/compute/cuda/cuda_products.h"
#include "common/compute/scratch.h"

#include <stdlib.h>
#include <string.h>

/* The experts of a layer, as kernels need them: kept on the GPU as long as they stay what they are. */
struct od_cuda_table {
	struct od_cuda_table *next;
	const struct od_expert *of;
	uint32_t n;
	struct od_expert *was; /* [n]: what the table was made of */
	uint64_t n_freed; /* the device's buffers until then */
	struct gpu_expert *host, *gpu; /* [n], and chunks [n_chunks] behind them */
	size_t bytes; /* both together */
	uint32_t codings[2]; /* a bit for each coding: of gate and up, of down */
	uint32_t blocks[2]; /* the most that a matrix with planes has */
	bool biases;
	bool many; /* gpu_many_takes all matrices */
	bool there; /* on the GPU */
};

static size_t chunks_of(const struct od_weight *w)
{
	return w->chunk_at != NULL ? (w->n_out + w->chunk_rows - 1) / w->chunk_rows : 0;
}

static size_t expert_chunks(const struct od_expert *e)
{
	size_t n = 0;

	for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++)
		n += chunks_of(&e->mat[mat]);
	return n;
}

static size_t table_bytes(const struct od_expert *of, uint32_t n)
{
	size_t chunks = 0;

	for (uint32_t e = 0; e < n; e++)
		chunks += expert_chunks(&of[e]);
	return n * sizeof(struct gpu_expert) + chunks * sizeof(uint64_t);
}

static void free_table(struct od_cuda_device *c, struct od_cuda_table *t)
{
	if (t == NULL)
		return;
	gpu_free(c->gpu, t->gpu);
	free(t->host);
	free(t->was);
	free(t);
}

void od_cuda_free_tables(struct od_cuda_device *c)
{
	for (struct od_cuda_table *t = c->tables, *next; t != NULL; t = next) {
		next = t->next;
		free_table(c, t);
	}
}

static struct od_cuda_table *new_table(struct od_cuda_device *c, const struct od_expert *of, uint32_t n, size_t bytes)
{
	struct od_cuda_table *t = calloc(1, sizeof(*t));

	if (t != NULL) {
		*t = (struct od_cuda_table){ .next = c->tables,
					     .of = of,
					     .n = n,
					     .bytes = bytes,
					     .host = calloc(1, bytes),
					     .was = calloc(n, sizeof(*t->was)),
					     .gpu = gpu_alloc(c->gpu, bytes) };
	}
	if (t == NULL || t->host == NULL || t->was == NULL || t->gpu == NULL) {
		free_table(c, t);
		return NULL;
	}
	c->tables = t;
	return t;
}

static uint64_t *host_chunks(const struct od_cuda_table *t)
{
	return (uint64_t *)(void *)(t->host + t->n);
}

static struct gpu_expert describe_expert(const struct od_expert *e, const uint64_t *on_gpu)
{
	struct gpu_expert g;

	for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
		const size_t n = chunks_of(&e->mat[mat]);

		g.mat[mat] = od_cuda_mat(&e->mat[mat]);
		g.mat[mat].chunk_at = n > 0 ? on_gpu : NULL;
		g.bias[mat] = (struct gpu_vector){ .at = od_cuda_at(e->bias[mat].data), .dtype = e->bias[mat].dtype };
		on_gpu += n;
	}
	return g;
}

_Static_assert(sizeof(struct gpu_mat) == 6 * sizeof(void *) + sizeof(uint64_t) + 3 * sizeof(uint32_t) +
						 sizeof(struct gpu_chunks) + 8 &&
		       sizeof(struct gpu_vector) == sizeof(void *) + 2 * sizeof(uint32_t) &&
		       sizeof(struct gpu_expert) == GPU_N_MATS * (sizeof(struct gpu_mat) + sizeof(struct gpu_vector)),
	       "memcmp needs structs without padding");

/* An expert has only the address of its chunks' offsets: equal experts may have others there by now. */
static bool has_chunks(const struct od_cuda_table *t, const struct od_expert *of)
{
	const uint64_t *chunk = host_chunks(t);

	for (uint32_t e = 0; e < t->n; e++) {
		for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
			const size_t n = chunks_of(&of[e].mat[mat]);

			if (n > 0 && memcmp(chunk, of[e].mat[mat].chunk_at, n * sizeof(*chunk)) != 0)
				return false;
			chunk += n;
		}
	}
	return true;
}

static bool is_in_place(const struct od_cuda_table *t, const struct od_expert *of)
{
	const uint64_t *on_gpu = (const uint64_t *)(const void *)(t->gpu + t->n);

	for (uint32_t e = 0; e < t->n; on_gpu += expert_chunks(&of[e]), e++) {
		const struct gpu_expert now = describe_expert(&of[e], on_gpu);

		if (memcmp(&now, &t->host[e], sizeof(now)) != 0)
			return false;
	}
	return true;
}

/* The table still says what kernels need: where the experts are on the GPU. As long as no buffer was freed, whose
 * handle another one could have, their handles say so in a fifth of the time. Every step asks, so this allocates
 * nothing. */
static bool is_current(const struct od_cuda_device *c, struct od_cuda_table *t, const struct od_expert *of)
{
	const uint64_t n_freed = atomic_load(&c->n_freed);

	if (!has_chunks(t, of))
		return false;
	if (t->n_freed == n_freed && memcmp(t->was, of, t->n * sizeof(*of)) == 0)
		return true;
	if (!is_in_place(t, of))
		return false;
	memcpy(t->was, of, t->n * sizeof(*of));
	t->n_freed = n_freed;
	return true;
}

static void describe(const struct od_cuda_device *c, const struct od_expert *of, struct od_cuda_table *t)
{
	uint64_t *chunk = host_chunks(t), *on_gpu = (uint64_t *)(void *)(t->gpu + t->n);

	memcpy(t->was, of, t->n * sizeof(*of));
	t->n_freed = atomic_load(&c->n_freed);
	t->codings[0] = t->codings[1] = t->blocks[0] = t->blocks[1] = 0;
	t->biases = false;
	t->many = true;
	for (uint32_t e = 0; e < t->n; on_gpu += expert_chunks(&of[e]), e++) {
		t->host[e] = describe_expert(&of[e], on_gpu);
		for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
			const struct od_weight *w = &of[e].mat[mat];
			const struct gpu_mat *m = &t->host[e].mat[mat];
			const size_t n = chunks_of(w);
			const bool down = mat == OD_MAT_DOWN;

			if (n > 0)
				memcpy(chunk, w->chunk_at, n * sizeof(*chunk));
			chunk += n;
			t->codings[down] |= 1u << m->coding;
			if (n > 0 && gpu_planes_blocks(m->n_out, &m->chunks) > t->blocks[down])
				t->blocks[down] = gpu_planes_blocks(m->n_out, &m->chunks);
			t->biases = t->biases || t->host[e].bias[mat].at != NULL;
			t->many = t->many && gpu_many_takes(m->coding);
		}
	}
}

/* NULL: an error, which is noted. */
static const struct od_cuda_table *table_of(struct od_cuda_device *c, const struct od_op_experts *o)
{
	const size_t bytes = table_bytes(o->expert, o->n_experts);
	struct od_cuda_table *t = c->tables;
	int error;

	while (t != NULL && (t->of != o->expert || t->n != o->n_experts || t->bytes != bytes))
		t = t->next;
	if (t == NULL)
		t = new_table(c, o->expert, o->n_experts, bytes);
	if (t == NULL) {
		od_cuda_no_memory(c, "a table of experts", bytes);
	} else if (!t->there || !is_current(c, t, o->expert)) {
		/* Work that was queued before may still need what was there. */
		od_cuda_finish(c);
		describe(c, o->expert, t);
		error = gpu_copy(od_cuda_stream(c), t->gpu, t->host, bytes, GPU_TO);
		od_cuda_launched(c, error, "table of experts");
		t->there = error == 0;
		if (!t->there)
			return NULL;
	}
	return t;
}

/* The device's scratch: lists of several rows, then, in its second half, rows that meet NF4. */
#define ROUNDED_AT (OD_CUDA_SCRATCH_BYTES / 2)
#define ROUNDED_BYTES (OD_CUDA_SCRATCH_BYTES - ROUNDED_AT)

struct lists {
	struct gpu_tile *tile;
	uint32_t *tiles_before;
	uint32_t most_tiles; /* most of a round */
};

static bool find_lists(struct od_cuda_device *c, const struct gpu_sort *s, struct lists *l)
{
	const uint64_t pairs = (uint64_t)s->n_rows * s->top_k, rounds = (pairs + s->together - 1) / s->together;
	const uint64_t some = s->together < s->n_experts ? s->together : s->n_experts,
		       all = pairs / s->rows + s->n_experts + rounds;
	uint64_t before;

	l->most_tiles =
		(uint32_t)(s->together / s->rows + some < s->together ? s->together / s->rows + some : s->together);
	/* A kernel reads its tile before it knows whether there is one. */
	before = od_round_up((all + l->most_tiles) * sizeof(struct gpu_tile), 256);
	l->tile = c->scratch;
	l->tiles_before = (uint32_t *)(void *)((char *)c->scratch + before);
	return before + (rounds + 1) * sizeof(uint32_t) <= ROUNDED_AT && l->most_tiles * s->rows <= GPU_MAX_GRID_Y;
}

static float *rounded_rows(const struct od_cuda_device *c)
{
	return (float *)(void *)((char *)c->scratch + ROUNDED_AT);
}

static bool meets_rounded(const struct od_cuda_table *t, bool down)
{
	return (t->codings[down] >> GPU_NF4 & 1) != 0;
}

struct experts_round {
	struct od_cuda_device *c;
	const struct od_cuda_table *table;
	struct gpu_expert_products products;
	struct gpu_expert_rows rows;
	uint32_t n_rows; /* rows of x */
	uint32_t most_tiles;
	unsigned index; /* by the number of rows of a tile */
	bool many; /* a tile has GPU_MANY_ROWS */
};

/* All experts' gate and up are of one coding, and that can be multiplied together. */
static bool has_pairs(const struct od_cuda_table *t)
{
	const uint32_t codings = t->codings[0]; /* at least one */

	return t->blocks[0] == 0 && (codings & (codings - 1)) == 0 &&
	       gpu_products_pair((enum gpu_coding)__builtin_ctz(codings));
}

static uint32_t blocks_of(const struct experts_round *r, bool down)
{
	const uint32_t n_out = down ? r->products.hidden : r->products.intermediate;

	return od_cuda_blocks(n_out, r->many ? GPU_MANY_OUTS : GPU_PRODUCT_OUTS) * (down ? 1 : 2);
}

/* n: rows of x, or pairs of gate. */
static void multiply(struct experts_round *r, bool down, uint32_t n)
{
	const struct gpu_grid grid = { r->most_tiles, blocks_of(r, down), 1 };

	if (meets_rounded(r->table, down) &&
	    !od_cuda_round(r->c, down ? r->products.gate : r->products.x,
			   down ? r->products.intermediate : r->products.hidden, n, rounded_rows(r->c), ROUNDED_BYTES))
		return;
	r->products.down = down;
	r->products.pairs = !down && !r->many && has_pairs(r->table);
	r->products.ends = down && r->table->blocks[1] == 0;
	r->products.planes_blocks = r->table->blocks[down];
	if (r->table->blocks[down] > 0)
		od_cuda_launched(r->c,
				 gpu_expert_planes[r->index](
					 od_cuda_stream(r->c),
					 (struct gpu_grid){ r->most_tiles, r->table->blocks[down] * (down ? 1 : 2), 1 },
					 GPU_PLANES_PRODUCT_SHARED, &r->products),
				 "experts as planes");
	if (r->many)
		od_cuda_launched(r->c, gpu_many_experts(od_cuda_stream(r->c), grid, gpu_many_shared(), &r->products),
				 "experts");
	for (unsigned coding = 0; !r->many && coding < GPU_N_CODINGS; coding++)
		if ((r->table->codings[down] >> coding & 1) != 0)
			od_cuda_launched(r->c,
					 gpu_expert_products[coding][r->index](
						 od_cuda_stream(r->c), grid,
						 gpu_product_shared((enum gpu_coding)coding, r->index), &r->products),
					 "experts");
}

/* How many rows a tile has. */
static void choose_tiles(struct experts_round *r, const struct od_op_experts *o, struct gpu_sort *sort)
{
	r->many = r->table->many && (uint64_t)sort->n_rows * o->top_k >= (uint64_t)o->n_experts * GPU_MANY_FROM;
	sort->rows = r->many ? GPU_MANY_ROWS : 1;
	for (r->index = 0; sort->rows < GPU_PRODUCT_ROWS && sort->rows < sort->n_rows; r->index++)
		sort->rows *= 2;
}

/* Activates the round's n pairs, if products have not done it. Only for biases a kernel needs to know the experts, and
 * waits for three reads more. */
static void activate(struct experts_round *r, uint32_t n)
{
	const unsigned blocks = od_cuda_blocks(r->products.intermediate, GPU_ROW_THREADS);
	const struct gpu_act a = { .gate = r->products.gate,
				   .up = r->products.up,
				   .n = r->products.intermediate,
				   .stride = r->products.intermediate,
				   .act = r->rows.act,
				   .limit = r->rows.limit };

	r->rows.n = r->products.intermediate;
	if (r->products.pairs)
		return;
	if (r->table->biases)
		od_cuda_launched(r->c,
				 gpu_expert_act(od_cuda_stream(r->c),
						(struct gpu_grid){ blocks, r->most_tiles * r->rows.rows, 1 }, 0,
						&r->rows),
				 "activation");
	else
		od_cuda_launched(r->c, gpu_act(od_cuda_stream(r->c), (struct gpu_grid){ blocks, n, 1 }, 0, &a),
				 "activation");
}

static void run_round(struct experts_round *r, uint32_t n)
{
	multiply(r, false, r->n_rows);
	activate(r, n);
	multiply(r, true, n);
	r->rows.n = r->products.hidden;
	if (!r->products.ends && r->table->biases)
		od_cuda_launched(
			r->c,
			gpu_expert_down_end(od_cuda_stream(r->c),
					    (struct gpu_grid){ od_cuda_blocks(r->products.hidden, GPU_ROW_THREADS),
							       r->most_tiles * r->rows.rows, 1 },
					    0, &r->rows),
			"expert's end");
}

/* All of y, after the last round of experts without biases. */
static void round_all(struct od_cuda_device *c, const struct od_op *op)
{
	const struct gpu_expert_end e = { .y = od_cuda_at(op->experts.y),
					  .n = op->experts.top_k * op->experts.hidden,
					  .round = true };

	od_cuda_launched(c,
			 gpu_expert_end(od_cuda_stream(c),
					(struct gpu_grid){ od_cuda_blocks(e.n, GPU_ROW_THREADS), op->n_rows, 1 }, 0,
					&e),
			 "expert's end");
}

static void sort_pairs(struct od_cuda_device *c, const struct gpu_sort *sort)
{
	const bool few = (uint64_t)sort->n_rows * sort->top_k <= GPU_SORT_FEW;

	od_cuda_launched(c,
			 (few ? gpu_sort_few : gpu_sort)(od_cuda_stream(c), (struct gpu_grid){ 1, 1, 1 },
							 gpu_sort_shared(few), sort),
			 "sort by expert");
}

static uint32_t rounded_fit(uint32_t n) /* rows of n */
{
	return (uint32_t)(ROUNDED_BYTES / (GPU_ROUNDED_FLOATS(n) * sizeof(float)));
}

/* Pairs of a round: as many as half of the scratch has room for. Each round takes three launches or four, and reads
 * again the weights of an expert that is in several. */
static uint32_t pairs_together(size_t half_bytes, uint32_t intermediate, uint32_t pairs)
{
	const uint64_t fit = (half_bytes - OD_PAD_BYTES) / (intermediate * sizeof(float));

	return fit < pairs ? (uint32_t)fit : pairs;
}

void od_cuda_experts(struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_experts *o = &op->experts;
	const uint32_t n = (uint32_t)o->expert[0].mat[OD_MAT_GATE].n_out, pairs = op->n_rows * o->top_k;
	const bool round = op->profile == OD_PROFILE_BF16;
	const struct od_experts_layout p = od_experts_layout(o->hidden, n, o->n_experts, o->top_k, op->n_rows);
	const size_t half = (size_t)(p.bytes - p.x) / 2; /* x and y are not used here */
	const struct od_cuda_table *table;
	char *at = od_cuda_at(o->scratch);
	struct gpu_sort sort = { .choice = od_cuda_at(o->choice),
				 .pair = (uint32_t *)(void *)(at + p.pair),
				 .fault = c->fault,
				 .n_rows = op->n_rows,
				 .top_k = o->top_k,
				 .n_experts = o->n_experts,
				 .together = pairs_together(half, n, pairs) };
	struct experts_round r = { .c = c, .n_rows = op->n_rows };
	struct lists l = { NULL, NULL, 0 };

	table = table_of(c, o);
	if (table == NULL)
		return;
	r.table = table;
	choose_tiles(&r, o, &sort);
	if (meets_rounded(table, true) && rounded_fit(n) < sort.together)
		sort.together = rounded_fit(n);
	l.most_tiles = sort.together; /* tiles of one row */
	if (op->n_rows > 1) {
		const uint32_t fewer = (uint32_t)od_experts_together(o->top_k, op->n_rows);

		if (!find_lists(c, &sort, &l) && fewer < sort.together)
			sort.together = fewer;
		if (!find_lists(c, &sort, &l)) {
			od_cuda_fail(c, "too many rows at once for this number of experts; use fewer --prefill-rows");
			return;
		}
		sort.tile = l.tile;
		sort.tiles_before = l.tiles_before;
		sort_pairs(c, &sort);
	}
	r.most_tiles = l.most_tiles;
	r.products = (struct gpu_expert_products){ .expert = table->gpu,
						   .tile = l.tile,
						   .pair = sort.pair,
						   .choice = sort.choice,
						   .fault = c->fault,
						   .x = od_cuda_at(o->x),
						   .rounded = rounded_rows(c),
						   .gate = (float *)(void *)(at + p.x),
						   .up = (float *)(void *)(at + p.x + half),
						   .y = od_cuda_at(o->y),
						   .top_k = o->top_k,
						   .n_experts = o->n_experts,
						   .hidden = o->hidden,
						   .intermediate = n,
						   .act = (uint32_t)o->act.kind,
						   .limit = o->act.limit,
						   .round = round };
	r.rows = (struct gpu_expert_rows){ .expert = table->gpu,
					   .tile = l.tile,
					   .pair = sort.pair,
					   .choice = op->n_rows > 1 ? NULL : sort.choice,
					   .gate = r.products.gate,
					   .up = r.products.up,
					   .y = r.products.y,
					   .rows = sort.rows,
					   .top_k = o->top_k,
					   .n_experts = o->n_experts,
					   .act = (uint32_t)o->act.kind,
					   .limit = o->act.limit,
					   .round = round };
	for (uint32_t first = 0, i = 0; first < pairs; first += sort.together, i++) {
		r.products.first = r.rows.first = first;
		if (op->n_rows > 1)
			r.products.tiles_before = r.rows.tiles_before = l.tiles_before + i;
		run_round(&r, pairs - first < sort.together ? pairs - first : sort.together);
	}
	if (round && !table->biases && !r.products.ends)
		round_all(c, op);
}
