/* Operations that are products: how they are cut into launches. */
#include "common/compute/cuda/cuda_products.h"

#include "common/compute/cuda/cuda_load.h"
#include "common/compute/formats/format.h"
#include "common/compute/quant.h"
#include "common/compute/scratch.h"

#include <assert.h>
#include <string.h>

/* By format, but for those of blocks: 1 + the coding without scales, and with; 0: none. */
static const int8_t codings[OD_DTYPE_LAST + 1][2] = {
	[OD_BF16] = { 1 + GPU_BF16, 0 },
	[OD_F16] = { 1 + GPU_F16, 0 },
	[OD_F32] = { 1 + GPU_F32, 0 },
	[OD_INT8] = { 1 + GPU_INT8, 1 + GPU_SCALED_I8 },
	[OD_NF4] = { 1 + GPU_NF4, 0 },
	[OD_F8_E4M3] = { 1 + GPU_E4M3, 1 + GPU_SCALED_E4M3 },
	[OD_F8_E5M2] = { 1 + GPU_E5M2, 1 + GPU_SCALED_E5M2 },
	[OD_U4B8] = { 0, 1 + GPU_SCALED_U4 },
	[OD_U8B128] = { 0, 1 + GPU_SCALED_U8 },
	[OD_F4_E2M1] = { 0, 1 + GPU_SCALED_E2M1 },
};

static bool is_of_blocks(enum od_dtype t)
{
	return (od_format(t)->uses & OD_USE_BLOCKS) != 0;
}

bool od_cuda_supports(const struct od_device *d, enum od_op_kind op, enum od_dtype t)
{
	(void)d;
	(void)op;
	return is_of_blocks(t) || codings[t][0] != 0 || codings[t][1] != 0;
}

static enum gpu_coding coding_of(const struct od_weight *w)
{
	const int8_t f = is_of_blocks(w->dtype) ? 1 + GPU_BLOCKS : codings[w->dtype][w->scales.at.buf != NULL];

	assert(f > 0); /* od_cuda_supports, and od_mat_type_ok: with scales or without */
	return (enum gpu_coding)(f - 1);
}

struct gpu_mat od_cuda_mat(const struct od_weight *w)
{
	return (struct gpu_mat){
		.data = od_cuda_at(w->data),
		.scales = od_cuda_at(w->scales.at),
		.divisor = od_cuda_at(w->scales.divisor),
		.scale = od_cuda_at(w->scale),
		.coded = od_cuda_at(w->coded),
		.row_bytes = od_row_bytes(w->dtype, w->n_in),
		.n_out = (uint32_t)w->n_out,
		.n_in = (uint32_t)w->n_in,
		.group = w->scales.group < w->n_in ? (uint32_t)w->scales.group :
						     (uint32_t)w->n_in, /* not used without scales */
		.chunks = gpu_planes_chunks((uint32_t)w->n_in, (uint32_t)w->chunk_rows),
		.coding = (uint8_t)(w->chunk_at != NULL ? GPU_PLANES : coding_of(w)),
		.scale_dtype = (uint8_t)w->scales.dtype,
		.format = (uint8_t)w->dtype,
	};
}

/* ---- A list of products ---- */

struct products_list {
	struct od_cuda_device *c;
	struct gpu_products args;
	uint32_t most_rows;
	bool many; /* args: of gpu_many_products */
	struct gpu_planes_products planes;
	uint32_t planes_rows, n_chunks, n_blocks; /* for planes */
};

/* Index of the launcher (for 1, 2, 4 and GPU_PRODUCT_ROWS rows) with the fewest rows that are enough, or of the
 * last. */
static unsigned launcher_of(uint32_t n_rows, unsigned *rows)
{
	unsigned index = 0;

	for (*rows = 1; *rows < GPU_PRODUCT_ROWS && *rows < n_rows; *rows *= 2)
		index++;
	return index;
}

static void flush_planes(struct products_list *l)
{
	unsigned rows;
	const unsigned index = launcher_of(l->planes_rows, &rows);

	if (l->planes.n == 0)
		return;
	od_cuda_launched(l->c,
			 gpu_planes_products[index](od_cuda_stream(l->c), (struct gpu_grid){ 1, l->n_blocks, 1 },
						    GPU_PLANES_PRODUCT_SHARED, &l->planes),
			 "products of planes");
	l->planes.n = l->planes_rows = l->n_chunks = l->n_blocks = 0;
}

static uint32_t blocks_of(bool many, const struct gpu_product *p)
{
	return od_cuda_blocks(p->w.n_out, many ? GPU_MANY_OUTS : GPU_PRODUCT_OUTS);
}

/* Blocks of all products in the list. */
static uint32_t blocks_before(const struct products_list *l)
{
	const uint32_t n = l->args.n;

	return n > 0 ? l->args.p[n - 1].first_block + blocks_of(l->many, &l->args.p[n - 1]) : 0;
}

/* Larger blocks pay if half of the multiprocessors have one. */
static bool is_many(const struct od_cuda_device *c, const struct gpu_product *p)
{
	return p->n_rows >= GPU_MANY_FROM && gpu_many_takes(p->w.coding) &&
	       2 * (uint64_t)od_cuda_blocks(p->n_rows, GPU_MANY_ROWS) * blocks_of(true, p) >= c->n_sm;
}

static int launch_plain(const struct products_list *l)
{
	const struct gpu_products *a = &l->args;
	const enum gpu_coding coding = (enum gpu_coding)a->p[0].w.coding;
	struct gpu_grid grid = { .y = blocks_before(l), .z = 1 };
	unsigned rows, index;

	if (l->many) {
		grid.x = od_cuda_blocks(l->most_rows, GPU_MANY_ROWS);
		return gpu_many_products(od_cuda_stream(l->c), grid, gpu_many_shared(), a);
	}
	index = launcher_of(l->most_rows, &rows);
	grid.x = od_cuda_blocks(l->most_rows, rows);
	return gpu_products[coding][index](od_cuda_stream(l->c), grid, gpu_product_shared(coding, index), a);
}

static void flush_plain(struct products_list *l)
{
	if (l->args.n == 0)
		return;
	od_cuda_launched(l->c, launch_plain(l), "products");
	l->args.n = 0;
	l->most_rows = 0;
}

/* Launches what the list has. */
static void flush(struct products_list *l)
{
	flush_plain(l);
	flush_planes(l);
}

static void add(struct products_list *l, const struct gpu_product *p)
{
	const bool many = is_many(l->c, p);
	struct gpu_products *a = &l->args;
	uint32_t first;

	if (a->n == GPU_MAX_PRODUCTS || (a->n > 0 && (many != l->many || (!many && a->p[0].w.coding != p->w.coding))) ||
	    blocks_before(l) + blocks_of(many, p) > GPU_MAX_GRID_Y)
		flush_plain(l);
	l->many = many;
	first = blocks_before(l);
	a->p[a->n] = *p;
	a->p[a->n].first_block = first;
	a->n++;
	l->most_rows = p->n_rows > l->most_rows ? p->n_rows : l->most_rows;
}

static uint32_t chunks_of(const struct od_weight *w)
{
	return (uint32_t)((w->n_out + w->chunk_rows - 1) / w->chunk_rows);
}

/* For up to GPU_PRODUCT_ROWS rows. Each launch takes as many chunks as fit, so a matrix may be cut into several. */
static void add_planes(struct products_list *l, const struct od_weight *w, const float *x, float *y, uint32_t n_rows)
{
	const struct gpu_chunks c = gpu_planes_chunks((uint32_t)w->n_in, (uint32_t)w->chunk_rows);
	struct gpu_planes_products *a = &l->planes;
	const uint32_t all = chunks_of(w);

	for (uint32_t i = 0, n; i < all; i += n) {
		const uint64_t first = (uint64_t)i * w->chunk_rows;
		uint64_t rows;

		if (a->n == GPU_MAX_PLANES_PRODUCTS || l->n_chunks == GPU_MAX_PLANES_CHUNKS)
			flush_planes(l);
		n = all - i < GPU_MAX_PLANES_CHUNKS - l->n_chunks ? all - i : GPU_MAX_PLANES_CHUNKS - l->n_chunks;
		rows = w->n_out - first < n * w->chunk_rows ? w->n_out - first : n * w->chunk_rows;
		a->p[a->n++] =
			(struct gpu_planes_product){ .sm = (const uint8_t *)od_cuda_at(w->data) + first * w->n_in,
						     .coded = od_cuda_at(w->coded),
						     .x = x,
						     .y = y + first,
						     .y_stride = w->n_out,
						     .n_out = (uint32_t)rows,
						     .n_in = (uint32_t)w->n_in,
						     .chunks = c,
						     .n_rows = n_rows,
						     .first_chunk = l->n_chunks,
						     .first_block = l->n_blocks };
		memcpy(a->chunk_at + l->n_chunks, w->chunk_at + i, n * sizeof(a->chunk_at[0]));
		l->planes_rows = n_rows > l->planes_rows ? n_rows : l->planes_rows;
		l->n_chunks += n;
		l->n_blocks += gpu_planes_blocks((uint32_t)rows, &c);
	}
}

/* For more rows: a product of planes would decode again for each GPU_PRODUCT_ROWS of them. So some chunks at a time are
 * decoded to the scratch, which the products before them have read by then, and multiplied from there. */
static void add_decoded(struct products_list *l, const struct od_weight *w, const float *x, float *y, uint32_t n_rows)
{
	const uint64_t chunk_bytes = 2 * (uint64_t)w->chunk_rows * w->n_in, fit = OD_CUDA_SCRATCH_BYTES / chunk_bytes;
	const uint32_t all = chunks_of(w), most = fit < GPU_MAX_CHUNKS ? (uint32_t)fit : GPU_MAX_CHUNKS;
	struct gpu_product p = {
		.w = od_cuda_mat(w), .x = x, .x_stride = w->n_in, .y_stride = w->n_out, .n_rows = n_rows
	};

	assert(most > 0); /* a chunk has at most a shard's rows */
	flush_plain(l);
	p.w.data = l->c->scratch;
	p.w.coding = GPU_BF16;
	for (uint32_t i = 0; i < all; i += most) {
		const uint64_t first = (uint64_t)i * w->chunk_rows, left = w->n_out - first,
			       rows = (uint64_t)most * w->chunk_rows;

		od_cuda_decode(l->c, w, i, all - i < most ? all - i : most, l->c->scratch);
		p.w.n_out = (uint32_t)(left < rows ? left : rows);
		p.y = y + first;
		add(l, &p);
		flush_plain(l);
	}
}

bool od_cuda_round(struct od_cuda_device *c, const float *x, uint32_t n, uint32_t n_rows, float *to, uint64_t room)
{
	const struct gpu_round_rows a = { .x = x, .to = to, .n = n };

	if (GPU_ROUNDED_FLOATS(n) * sizeof(float) * n_rows > room) {
		od_cuda_fail(c, "too many rows at once for weights in NF4; use fewer --prefill-rows");
		return false;
	}
	od_cuda_launched(c,
			 gpu_round_rows(od_cuda_stream(c),
					(struct gpu_grid){ od_cuda_blocks(n, GPU_ROUNDED_COLUMNS), n_rows, 1 }, 0, &a),
			 "rounding");
	return true;
}

static bool meets_rounded(const struct od_weight *w)
{
	return w->dtype == OD_NF4;
}

/* Multiplies those of n matrices with the same rows that meet rounded ones. */
static void multiply_rounded(struct products_list *l, const struct od_weight *const *w, float *const *y, uint32_t n,
			     const float *x, uint32_t n_rows)
{
	flush(l); /* others may use the scratch, too */
	if (!od_cuda_round(l->c, x, (uint32_t)w[0]->n_in, n_rows, l->c->scratch, OD_CUDA_SCRATCH_BYTES))
		return;
	for (uint32_t i = 0; i < n; i++)
		if (meets_rounded(w[i]))
			add(l, &(struct gpu_product){ .w = od_cuda_mat(w[i]),
						      .x = l->c->scratch,
						      .y = y[i],
						      .x_stride = GPU_ROUNDED_FLOATS(w[i]->n_in),
						      .y_stride = w[i]->n_out,
						      .n_rows = n_rows });
	flush(l);
}

/* n matrices of the same rows. */
static void add_weights(struct products_list *l, const struct od_weight *const *w, float *const *y, uint32_t n,
			const float *x, uint32_t n_rows)
{
	bool rounded = false;

	for (uint32_t i = 0; i < n; i++) {
		if (meets_rounded(w[i]))
			rounded = true;
		else if (w[i]->chunk_at != NULL && n_rows <= GPU_PRODUCT_ROWS)
			add_planes(l, w[i], x, y[i], n_rows);
		else if (w[i]->chunk_at != NULL)
			add_decoded(l, w[i], x, y[i], n_rows);
		else
			add(l, &(struct gpu_product){ .w = od_cuda_mat(w[i]),
						      .x = x,
						      .y = y[i],
						      .x_stride = w[i]->n_in,
						      .y_stride = w[i]->n_out,
						      .n_rows = n_rows });
	}
	if (rounded)
		multiply_rounded(l, w, y, n, x, n_rows);
}

/* ---- Operations ---- */

void od_cuda_linear(struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_linear *o = &op->linear;
	struct products_list l = { .c = c };
	float *y[OD_MAX_LINEAR];
	uint32_t n;

	for (n = 0; n < OD_MAX_LINEAR && o->w[n] != NULL; n++)
		y[n] = od_cuda_at(o->y[n]);
	add_weights(&l, o->w, y, n, od_cuda_at(o->x), op->n_rows);
	flush(&l);
	for (size_t i = 0; i < OD_MAX_LINEAR && o->w[i] != NULL; i++) {
		const struct gpu_bias b = { .y = od_cuda_at(o->y[i]),
					    .bias = od_cuda_at(o->bias[i]),
					    .n = (uint32_t)o->w[i]->n_out,
					    .cap = o->cap };

		if (b.bias != NULL || b.cap != 0)
			od_cuda_launched(
				c,
				gpu_add_bias(od_cuda_stream(c),
					     (struct gpu_grid){ od_cuda_blocks(b.n, GPU_ROW_THREADS), op->n_rows, 1 },
					     0, &b),
				"bias");
	}
}

void od_cuda_latent_value(struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_latent_value *o = &op->latent_value;
	const struct gpu_mat w = od_cuda_mat(o->kv_b);
	struct products_list l = { .c = c };

	for (uint32_t h = 0; h < o->n_heads; h++) {
		const uint64_t row = (uint64_t)h * (o->nope_dim + o->v_dim) + o->nope_dim;
		struct gpu_product p = { .w = w,
					 .x = (const float *)od_cuda_at(o->in) + (size_t)h * o->rank,
					 .y = (float *)od_cuda_at(o->out) + (size_t)h * o->v_dim,
					 .x_stride = (uint64_t)o->n_heads * o->rank,
					 .y_stride = (uint64_t)o->n_heads * o->v_dim,
					 .n_rows = op->n_rows };

		p.w.n_out = o->v_dim;
		p.w.data += row * w.row_bytes;
		if (w.scales != NULL)
			p.w.scales = (const char *)w.scales +
				     row * od_scale_groups(&(struct od_scales){ .group = w.group }, w.n_in) *
					     od_dtype_bytes((enum od_dtype)w.scale_dtype);
		add(&l, &p);
	}
	flush(&l);
}

void od_cuda_ffn(struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_ffn *o = &op->ffn;
	const size_t n = o->segment[0].mat[OD_MAT_GATE].n_out, hidden = o->segment[0].mat[OD_MAT_DOWN].n_out;
	const float *x = od_cuda_at(o->x);
	float *y = od_cuda_at(o->y), *gate = od_cuda_at(o->scratch), *up;
	struct products_list l = { .c = c };
	size_t rows = 0, at = 0;

	for (uint32_t i = 0; i < o->n_segments; i++)
		rows += o->segment[i].n_rows;
	up = (float *)(void *)((char *)gate + od_ffn_half_bytes(n, rows));
	for (uint32_t i = 0; i < o->n_segments; at += o->segment[i].n_rows, i++) {
		const struct od_weight *const w[] = { &o->segment[i].mat[OD_MAT_GATE], &o->segment[i].mat[OD_MAT_UP] };
		float *const to[] = { gate + at * n, up + at * n };

		add_weights(&l, w, to, 2, x + at * hidden, o->segment[i].n_rows);
	}
	flush(&l); /* activation is launched directly, and reads what all of these write */
	at = 0;
	for (uint32_t i = 0; i < o->n_segments; at += o->segment[i].n_rows, i++) {
		const struct od_ffn_segment *segment = &o->segment[i];
		struct gpu_act a = { .gate = gate + at * n,
				     .up = up + at * n,
				     .n = (uint32_t)n,
				     .stride = (uint32_t)n,
				     .act = (uint32_t)o->act.kind,
				     .limit = o->act.limit };

		if (segment->bias != NULL) {
			a.gate_bias = (struct gpu_vector){ .at = od_cuda_at(segment->bias[OD_MAT_GATE].data),
							   .dtype = segment->bias[OD_MAT_GATE].dtype };
			a.up_bias = (struct gpu_vector){ .at = od_cuda_at(segment->bias[OD_MAT_UP].data),
							 .dtype = segment->bias[OD_MAT_UP].dtype };
		}
		od_cuda_launched(c,
				 gpu_act(od_cuda_stream(c),
					 (struct gpu_grid){ od_cuda_blocks(n, GPU_ROW_THREADS), segment->n_rows, 1 }, 0,
					 &a),
				 "activation");
	}
	at = 0;
	for (uint32_t i = 0; i < o->n_segments; at += o->segment[i].n_rows, i++) {
		const struct od_weight *const w = &o->segment[i].mat[OD_MAT_DOWN];
		float *const to = y + at * hidden;

		add_weights(&l, &w, &to, 1, gate + at * n, o->segment[i].n_rows);
	}
	flush(&l);
	at = 0;
	for (uint32_t i = 0; i < o->n_segments; at += o->segment[i].n_rows, i++) {
		const struct od_ffn_segment *segment = &o->segment[i];
		struct gpu_expert_end e = { .y = y + at * hidden,
					    .n = (uint32_t)hidden,
					    .round = o->routed && op->profile == OD_PROFILE_BF16 };

		if (segment->bias != NULL)
			e.bias = (struct gpu_vector){ .at = od_cuda_at(segment->bias[OD_MAT_DOWN].data),
						      .dtype = segment->bias[OD_MAT_DOWN].dtype };
		if (segment->bias != NULL || e.round)
			od_cuda_launched(c,
					 gpu_expert_end(od_cuda_stream(c),
							(struct gpu_grid){ od_cuda_blocks(hidden, GPU_ROW_THREADS),
									   segment->n_rows, 1 },
							0, &e),
					 "expert's end");
	}
}
