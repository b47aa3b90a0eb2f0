#include "common/compute/cpu/cpu_exec.h"

#include "common/base/mem.h"
#include "common/compute/cpu/cpu.h"
#include "common/compute/cpu/cpu_delta.h"
#include "common/compute/cpu/cpu_route.h"
#include "common/compute/cpu/cpu_scalar.h"
#include "common/compute/cpu/cpu_tables.h"
#include "common/compute/cpu/matmul.h"
#include "common/compute/device_internal.h"
#include "common/compute/quant.h"
#include "common/compute/scratch.h"
#include "common/compute/sincos.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define ROWS_A_PIECE 4u /* rows of row by row work: some microseconds */
#define MIN_PIECE_ELEMENTS 4096u /* exponentials: some microseconds, well above handing them to another thread */
#define MIN_PIECE_TERMS 32768u /* multiply-adds of attention: the same */
#define ROWS_AHEAD 4u /* rows of kv_b, fetched before they are read */

/* An operation while it is carried out: what every piece of it needs. */
struct cpu_job {
	const struct od_cpu_exec *x;
	const struct od_backend *be;
	const struct od_op *op;
};

/* Most optional operands are nowhere. */
static void *at_or_null(const struct cpu_job *j, struct od_ref r)
{
	return r.buf == NULL ? NULL : j->x->address(r);
}

static float *f32_at(const struct cpu_job *j, struct od_ref r)
{
	return at_or_null(j, r);
}

static struct od_mat mat_of(const struct cpu_job *j, const struct od_weight *w, struct od_planes *planes)
{
	struct od_mat m = {
		.dtype = w->dtype,
		.n_out = w->n_out,
		.n_in = w->n_in,
		.data = j->x->address(w->data),
		.scales = { .dtype = w->scales.dtype,
			    .group = w->scales.group,
			    .at = at_or_null(j, w->scales.at),
			    .divisor = at_or_null(j, w->scales.divisor) },
		.scale = at_or_null(j, w->scale),
		.act = w->act,
	};

	if (w->chunk_at != NULL) {
		*planes = (struct od_planes){ .chunk_rows = w->chunk_rows,
					      .base = j->x->address(w->coded),
					      .at = w->chunk_at };
		m.planes = planes;
	}
	return m;
}

struct products {
	struct od_product p[2 * OD_MAX_SEGMENTS];
	struct od_planes planes[2 * OD_MAX_SEGMENTS];
	size_t n;
};

static void add_product(const struct cpu_job *j, struct products *l, const struct od_weight *w, const float *x,
			float *y, size_t n_rows)
{
	l->p[l->n] = (struct od_product){ .w = mat_of(j, w, &l->planes[l->n]), .x = x, .y = y, .n_rows = n_rows };
	l->n++;
}

static void multiply(const struct cpu_job *j, struct products *l)
{
	od_matmul_all(j->be, j->x->pool, l->p, l->n);
	l->n = 0;
}

/* ---- rows in, rows out ---- */

static void embed_row(const struct od_backend *be, const struct od_mat *e, size_t row, float *x)
{
	if (e->dtype == OD_BF16)
		be->bf16_to_f32(x, (const uint16_t *)e->data + row * e->n_in, e->n_in);
	else
		od_dequant_row(e, row, x);
}

static void embed(const struct cpu_job *j)
{
	const struct od_op_embed *o = &j->op->embed;
	const struct od_row_info *row = j->x->address(o->rows);
	struct od_planes planes;
	const struct od_mat table = mat_of(j, o->table, &planes);
	float *x = f32_at(j, o->x);

	for (size_t r = 0; r < j->op->n_rows; r++, x += table.n_in) {
		embed_row(j->be, &table, o->in_order ? r : (size_t)row[r].token, x);
		if (o->scale != 0)
			for (size_t i = 0; i < table.n_in; i++)
				x[i] *= o->scale;
	}
}

static void angles(const struct cpu_job *j)
{
	const struct od_op_angles *o = &j->op->angles;
	const struct od_row_info *row = j->x->address(o->rows);
	float *cos_sin = f32_at(j, o->angles);

	for (size_t r = 0; r < j->op->n_rows; r++, cos_sin += 2 * o->half) {
		const size_t set = row[r].is_long != 0;
		const float *inv_freq = f32_at(j, o->inv_freq) + set * o->half, magnitude = o->magnitude[set];

		for (size_t i = 0; i < o->half; i++) {
			float angle = (float)row[r].position * inv_freq[i];
			double sine, cosine;

			od_sincos(angle, &sine, &cosine);
			cos_sin[i] = (float)cosine * magnitude;
			cos_sin[o->half + i] = (float)sine * magnitude;
		}
	}
}

static void add_row(float *x, const float *y, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] += y[i];
}

/* A product's outputs on their way through a cap. */
struct cap_job {
	const struct od_backend *be;
	float *y, cap;
	size_t n;
};

static void cap_pieces(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct cap_job *c = arg;
	const size_t first = begin * MIN_PIECE_ELEMENTS, last = end * MIN_PIECE_ELEMENTS;

	(void)thread;
	c->be->soft_cap(c->y + first, (last < c->n ? last : c->n) - first, c->cap);
}

static void cap(const struct cpu_job *j, float *y, size_t n)
{
	struct cap_job c = { .be = j->be, .y = y, .cap = j->op->linear.cap, .n = n };

	if (c.cap != 0)
		od_pool_for(j->x->pool, (n + MIN_PIECE_ELEMENTS - 1) / MIN_PIECE_ELEMENTS, 1, cap_pieces, &c);
}

static void linear(const struct cpu_job *j)
{
	const struct od_op_linear *o = &j->op->linear;
	struct products l;

	l.n = 0;
	for (size_t i = 0; i < OD_MAX_LINEAR && o->w[i] != NULL; i++)
		add_product(j, &l, o->w[i], f32_at(j, o->x), f32_at(j, o->y[i]), j->op->n_rows);
	multiply(j, &l);
	for (size_t i = 0; i < OD_MAX_LINEAR && o->w[i] != NULL; i++) {
		const float *bias = f32_at(j, o->bias[i]);
		const size_t n = o->w[i]->n_out;

		/* The bias comes after the whole sum and before the cap: another order would change bits. */
		if (bias != NULL)
			for (size_t r = 0; r < j->op->n_rows; r++)
				add_row(f32_at(j, o->y[i]) + r * n, bias, n);
		cap(j, f32_at(j, o->y[i]), n * j->op->n_rows);
	}
}

static void norm_rows(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct cpu_job *j = arg;
	const struct od_op_norm *o = &j->op->norm;
	const float *weight = f32_at(j, o->weight), *bias = f32_at(j, o->bias), *add = f32_at(j, o->add);

	(void)thread;
	for (size_t r = begin; r < end; r++) {
		float *x = f32_at(j, o->x) + r * o->n, *y = f32_at(j, o->y) + r * o->n;

		/* The sum stays in x: it is the residual that the next layers add to. */
		if (add != NULL)
			add_row(x, add + r * o->n, o->n);
		switch (o->kind) {
		case OD_NORM_RMS: j->be->rmsnorm(y, x, weight, o->n, o->eps); break;
		case OD_NORM_LAYER: j->be->layernorm(y, x, weight, bias, o->n, o->eps); break;
		}
	}
}

/* ---- attention ---- */

static char *stream_row(const struct cpu_job *j, const struct od_stream *s, const struct od_row_info *row)
{
	const uint32_t *table = (const uint32_t *)j->x->address(s->tables) + (size_t)row->table * s->table_pages;
	char *pages = j->x->address(s->pages);

	return pages + table[row->position / OD_KV_PAGE] * s->page_bytes + row->position % OD_KV_PAGE * s->row_bytes;
}

/* cos_sin: of the row. */
static void turn(float *u, const struct od_turn *t, const float *cos_sin)
{
	const size_t half = t->dims / 2;

	if (t->neighbours)
		for (size_t i = 0; i < half; i++) {
			float a = u[2 * i], b = u[2 * i + 1], c = cos_sin[i], s = cos_sin[half + i];

			u[2 * i] = a * c - b * s;
			u[2 * i + 1] = b * c + a * s;
		}
	if (!t->neighbours)
		for (size_t i = 0; i < half; i++) {
			float a = u[i], b = u[half + i], c = cos_sin[i], s = cos_sin[half + i];

			u[i] = a * c - b * s;
			u[half + i] = b * c + a * s;
		}
}

static void turn_heads(float *u, size_t n_heads, size_t head_dim, const struct od_turn *t, const float *cos_sin)
{
	for (size_t h = 0; h < n_heads; h++, u += head_dim)
		turn(u, t, cos_sin);
}

static void store_row(const struct od_backend *be, enum od_dtype dtype, void *to, const float *from, size_t n)
{
	if (dtype == OD_BF16)
		be->f32_to_bf16(to, from, n);
	else
		memcpy(to, from, n * sizeof(*from));
}

static void norm_heads(const struct cpu_job *j, float *u, size_t n_heads, size_t head_dim, const float *norm)
{
	const struct od_op_rope_store *o = &j->op->rope_store;
	const size_t each = o->norm_row ? n_heads * head_dim : head_dim;

	if (norm != NULL)
		for (size_t at = 0; at < n_heads * head_dim; at += each)
			j->be->rmsnorm(u + at, u + at, norm, each, o->eps);
}

/* NaN stays. */
static void clip(float *u, size_t n, float most)
{
	if (most != 0)
		for (size_t i = 0; i < n; i++)
			u[i] = u[i] > most ? most : u[i] < -most ? -most : u[i];
}

static void turn_and_store(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct cpu_job *j = arg;
	const struct od_op_rope_store *o = &j->op->rope_store;
	const struct od_row_info *rows = j->x->address(o->rows);
	const size_t q_n = (size_t)o->n_heads * o->k_dim, k_n = (size_t)o->n_kv_heads * o->k_dim;
	const size_t v_n = (size_t)o->n_kv_heads * o->v_dim;
	const float *q_norm = f32_at(j, o->q_norm), *k_norm = f32_at(j, o->k_norm);

	(void)thread;
	for (size_t r = begin; r < end; r++) {
		const float *cos_sin = f32_at(j, o->turn.angles) + r * o->turn.dims;
		float *q = f32_at(j, o->q) + r * q_n, *k, *v;

		norm_heads(j, q, o->n_heads, o->k_dim, q_norm);
		clip(q, q_n, o->clip);
		turn_heads(q, o->n_heads, o->k_dim, &o->turn, cos_sin);
		if (o->k.buf == NULL)
			continue;
		k = f32_at(j, o->k) + r * k_n;
		v = f32_at(j, o->v) + r * v_n;
		norm_heads(j, k, o->n_kv_heads, o->k_dim, k_norm);
		if (o->v_norm)
			for (size_t h = 0; h < o->n_kv_heads; h++)
				j->be->rmsnorm(v + h * o->v_dim, v + h * o->v_dim, NULL, o->v_dim, o->eps);
		clip(k, k_n, o->clip);
		clip(v, v_n, o->clip);
		turn_heads(k, o->n_kv_heads, o->k_dim, &o->turn, cos_sin);
		/* Rows of a step attend to each other, so all of them store their keys and values before OD_OP_ATTEND
		 * begins. */
		store_row(j->be, o->keys.dtype, stream_row(j, &o->keys, &rows[r]), k, k_n);
		store_row(j->be, o->values.dtype, stream_row(j, &o->values, &rows[r]), v, v_n);
	}
}

static void store_latents(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct cpu_job *j = arg;
	const struct od_op_latent_store *o = &j->op->latent_store;
	const struct od_row_info *rows = j->x->address(o->rows);
	const size_t n = o->rank + o->turn.dims;
	const float *norm = f32_at(j, o->norm);

	(void)thread;
	for (size_t r = begin; r < end; r++) {
		float *u = f32_at(j, o->latent_key) + r * n;

		j->be->rmsnorm(u, u, norm, o->rank, o->eps);
		turn(u + o->rank, &o->turn, f32_at(j, o->turn.angles) + r * o->turn.dims);
		store_row(j->be, o->stream.dtype, stream_row(j, &o->stream, &rows[r]), u, n);
	}
}

/* Rows [begin, begin + n) of a matrix that has no planes. */
static struct od_mat rows_of(const struct od_mat *w, size_t begin, size_t n)
{
	struct od_mat rows = *w;

	rows.n_out = n;
	rows.data = (const char *)w->data + begin * od_row_bytes(w->dtype, w->n_in);
	if (w->scales.at != NULL)
		rows.scales.at = (const char *)w->scales.at +
				 begin * od_scale_groups(&w->scales, w->n_in) * od_dtype_bytes(w->scales.dtype);
	return rows;
}

#define TURNED_ROWS 16u /* rows of a transposed kv_b that are decoded together */

/* out [n_rows][rank]: += q times the head's rows of a transposed kv_b, each sum in the order of nope_dim. */
static void absorb_turned(const struct cpu_job *j, const struct od_mat *kv_b, size_t h, const float *q, float *out)
{
	const struct od_op_latent_query *o = &j->op->latent_query;
	const size_t q_stride = (size_t)o->n_heads * (o->nope_dim + o->turn.dims),
		     out_stride = (size_t)o->n_heads * (o->rank + o->turn.dims);
	float row[OD_MAX_RANK], tile[OD_MAX_RANK * TURNED_ROWS];

	for (size_t k = 0, n; k < o->rank; k += n) {
		n = o->rank - k < TURNED_ROWS ? o->rank - k : TURNED_ROWS;
		for (size_t i = 0; i < n; i++) {
			od_dequant_row(kv_b, h * o->rank + k + i, row);
			for (size_t c = 0; c < o->nope_dim; c++)
				tile[c * TURNED_ROWS + i] = row[c];
		}
		for (size_t r = 0; r < j->op->n_rows; r++)
			for (size_t c = 0; c < o->nope_dim; c++)
				j->be->axpy(out + r * out_stride + k, q[r * q_stride + c], tile + c * TURNED_ROWS, n);
	}
}

/* Item i is a head. A query's first elements times the head's rows of kv_b, transposed: each row of it is read once for
 * all rows, in order, so that a row's sum has one order. */
static void absorb_queries(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct cpu_job *j = arg;
	const struct od_op_latent_query *o = &j->op->latent_query;
	const size_t q_dim = o->nope_dim + o->turn.dims, out_dim = o->rank + o->turn.dims, n_rows = j->op->n_rows;
	float weight[OD_MAX_RANK];
	struct od_planes planes;
	const struct od_mat kv_b = mat_of(j, o->kv_b, &planes);
	const size_t row_bytes = od_row_bytes(kv_b.dtype, o->rank);

	(void)thread;
	for (size_t h = begin; h < end; h++) {
		const float *q = f32_at(j, o->q) + h * q_dim;
		float *out = f32_at(j, o->out) + h * out_dim;

		for (size_t r = 0; r < n_rows; r++) {
			float *to = out + r * o->n_heads * out_dim;

			memset(to, 0, o->rank * sizeof(*to));
			memcpy(to + o->rank, q + r * o->n_heads * q_dim + o->nope_dim, o->turn.dims * sizeof(*to));
			turn(to + o->rank, &o->turn, f32_at(j, o->turn.angles) + r * o->turn.dims);
		}
		if (o->turned) {
			absorb_turned(j, &kv_b, h, q, out);
			continue;
		}
		for (size_t i = 0; i < o->nope_dim; i++) {
			size_t row = h * (o->nope_dim + o->v_dim) + i;

			/* Rows are short, and the hardware's prefetcher stops between them: 5 % of a token of
			 * GLM-4.7-Flash. */
			for (size_t at = 0; at < row_bytes; at += OD_LINE_BYTES)
				__builtin_prefetch(
					(const void *)((uintptr_t)kv_b.data + (row + ROWS_AHEAD) * row_bytes + at));
			od_dequant_row(&kv_b, row, weight);
			for (size_t r = 0; r < n_rows; r++)
				j->be->axpy(out + r * o->n_heads * out_dim, q[r * o->n_heads * q_dim + i], weight,
					    o->rank);
		}
	}
}

/* Item i is a head. */
static void expand_values(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct cpu_job *j = arg;
	const struct od_op_latent_value *o = &j->op->latent_value;
	const size_t in_stride = (size_t)o->n_heads * o->rank, out_stride = (size_t)o->n_heads * o->v_dim;
	struct od_planes planes;
	const struct od_mat kv_b = mat_of(j, o->kv_b, &planes);

	(void)thread;
	for (size_t h = begin; h < end; h++) {
		const struct od_mat w = rows_of(&kv_b, h * (o->nope_dim + o->v_dim) + o->nope_dim, o->v_dim);

		od_matmul_range(j->be, &w, f32_at(j, o->in) + h * o->rank, in_stride, f32_at(j, o->out) + h * o->v_dim,
				out_stride, j->op->n_rows, 0, o->v_dim);
	}
}

/* Heads of one row that share a kv head go together, so that keys and values are read once for all of them; four, so
 * that there is work for more threads. */
#define HEADS_TOGETHER 4u

static size_t heads_together(const struct od_op_attend *o)
{
	const size_t group = o->n_heads / o->n_kv_heads;

	return group < HEADS_TOGETHER ? group : HEADS_TOGETHER;
}

static size_t heads_items(const struct od_op_attend *o)
{
	const size_t group = o->n_heads / o->n_kv_heads, each = heads_together(o);

	return o->n_kv_heads * ((group + each - 1) / each);
}

/* Items of a row are its kv heads, each with heads_together of its heads after the other: neighbours share a kv head,
 * so it is still in the cache. */
static void attend_heads(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct cpu_job *j = arg;
	const struct od_op_attend *o = &j->op->attend;
	const struct od_row_info *rows = j->x->address(o->rows);
	const size_t group = o->n_heads / o->n_kv_heads, window = o->window, kv_bytes = od_dtype_bytes(o->keys.dtype);
	const size_t together = heads_together(o), items = heads_items(o), per_kv_head = items / o->n_kv_heads;
	const uint32_t *tables = j->x->address(o->keys.tables);
	const char *keys = j->x->address(o->keys.pages), *values = j->x->address(o->values.pages);
	const float *q = f32_at(j, o->q), *sinks = f32_at(j, o->sinks);
	float *out = f32_at(j, o->out);

	(void)thread;
	for (size_t i = begin; i < end; i++) {
		const struct od_row_info *row = &rows[i / items];
		/* All rows of the step are in the streams by now, later ones of the same text too: a row sees no
		 * further than itself. */
		const size_t seen = (size_t)row->position + 1, kv_head = i % items / per_kv_head;
		const size_t first = i % per_kv_head * together, left = group - first; /* heads of the group */
		const size_t head = i / items * o->n_heads + kv_head * group + first; /* among the heads of all rows */
		struct od_attn a = {
			.n_heads = left < together ? left : together,
			.q = q + head * o->k_dim,
			.k = keys + kv_head * o->k_dim * kv_bytes,
			.v = values + kv_head * o->v_dim * kv_bytes,
			.table = tables + (size_t)row->table * o->keys.table_pages,
			.k_page_bytes = o->keys.page_bytes,
			.v_page_bytes = o->values.page_bytes,
			.k_row_bytes = o->keys.row_bytes,
			.v_row_bytes = o->values.row_bytes,
			.kv_dtype = o->keys.dtype,
			.k_dim = o->k_dim,
			.v_dim = o->v_dim,
			.begin = window != 0 && seen > window ? seen - window : 0,
			.end = seen,
			.scale = o->scale,
			.sinks = sinks != NULL ? sinks + kv_head * group + first : NULL,
			.out = out + head * o->v_dim,
		};

		j->be->attend(&a);
	}
}

static void attend(struct cpu_job *j)
{
	const struct od_op_attend *o = &j->op->attend;
	size_t seen = (size_t)o->max_position + 1, terms;

	if (o->window != 0 && seen > o->window)
		seen = o->window;
	terms = seen * (o->k_dim + o->v_dim) * heads_together(o);
	/* Near the start of a text all heads are one small piece. */
	od_pool_for(j->x->pool, j->op->n_rows * heads_items(o), 1 + MIN_PIECE_TERMS / terms, attend_heads, j);
}

static void split_rows(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct cpu_job *j = arg;
	const struct od_op_split *o = &j->op->split;
	const float *in = f32_at(j, o->in);
	float *first = f32_at(j, o->first), *second = f32_at(j, o->second);
	const size_t bytes = o->dim * sizeof(*in);

	(void)thread;
	for (size_t h = begin * o->n_heads; h < end * o->n_heads; h++) {
		memcpy(first + h * o->dim, in + 2 * h * o->dim, bytes);
		memcpy(second + h * o->dim, in + (2 * h + 1) * o->dim, bytes);
	}
}

static void gate_rows(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct cpu_job *j = arg;
	const struct od_op_gate *o = &j->op->gate;

	(void)thread;
	for (size_t r = begin; r < end; r++)
		od_cpu_gate(j->be, f32_at(j, o->y) + r * o->n, f32_at(j, o->gate) + r * o->n, o->n);
}

/* ---- experts ---- */

static void route_row(const struct cpu_job *j, size_t r, const struct od_cpu_recent *recent)
{
	const struct od_op_route *o = &j->op->route;
	const size_t k = o->top_k;
	float *round = f32_at(j, o->round);

	od_cpu_route_row(j->be, o, f32_at(j, o->bias), f32_at(j, o->factor), recent,
			 f32_at(j, o->logits) + r * o->n_experts, (uint16_t *)j->x->address(o->choice) + r * k,
			 f32_at(j, o->weight) + r * k, f32_at(j, o->margin) + r);
	/* The router saw the row as it is; the experts get it as it travels. */
	if (round != NULL)
		j->be->round_bf16(round + r * o->hidden, o->hidden);
}

static void route_rows(void *arg, size_t begin, size_t end, unsigned thread)
{
	(void)thread;
	for (size_t r = begin; r < end; r++)
		route_row(arg, r, &(struct od_cpu_recent){ 0 });
}

static bool begins_text(const struct od_row_info *rows, size_t r)
{
	for (size_t i = r; i > 0; i--)
		if (rows[i - 1].table == rows[r].table)
			return false;
	return true;
}

/* The rows of a text, one after the other, by the piece that has the first of them. */
static void route_texts(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct cpu_job *j = arg;
	const struct od_op_route *o = &j->op->route;
	const struct od_row_info *rows = (const struct od_row_info *)j->x->address(o->rows);

	(void)thread;
	for (size_t first = begin; first < end; first++) {
		if (!begins_text(rows, first))
			continue;
		for (size_t r = first; r < j->op->n_rows; r++) {
			struct od_cpu_recent recent = { .position = rows[r].position };
			struct od_row_info before = rows[r];

			if (rows[r].table != rows[first].table)
				continue;
			recent.after = (struct od_recent *)(void *)stream_row(j, &o->recent, &rows[r]);
			before.position--;
			if (rows[r].position > 0)
				recent.before = (const struct od_recent *)(void *)stream_row(j, &o->recent, &before);
			route_row(j, r, &recent);
		}
	}
}

static void activate(const struct od_backend *be, const struct od_act_spec *act, float *gate, const float *up, size_t n)
{
	switch (act->kind) {
	case OD_ACT_SILU: be->silu_mul(gate, up, n); break;
	case OD_ACT_GELU: be->gelu_mul(gate, up, n); break;
	case OD_ACT_CLAMPED: be->clamped_mul(gate, up, n, act->limit); break;
	}
}

static void activate_rows(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct cpu_job *j = arg;
	const struct od_op_act *o = &j->op->act;

	(void)thread;
	for (size_t r = begin; r < end; r++)
		activate(j->be, &o->act, f32_at(j, o->gate) + r * o->n, f32_at(j, o->up) + r * o->stride, o->n);
}

/* The rows of all segments: what gate and up gave, n each, and what down gave, hidden. */
struct ffn_job {
	const struct cpu_job *j;
	const struct od_ffn_segment *segment;
	struct od_act_spec act;
	float *gate, *up, *y;
	size_t n, hidden;
};

/* In whatever form an expert has it in memory, its bias may begin at any byte. */
static void add_bias(const struct ffn_job *f, size_t row, enum od_expert_mat mat, float *x, size_t n)
{
	const struct od_ffn_segment *segment = f->segment;
	const char *bias;

	for (; row >= segment->n_rows; segment++)
		row -= segment->n_rows;
	if (segment->bias == NULL)
		return;
	bias = f->j->x->address(segment->bias[mat].data);
	for (size_t i = 0; i < n; i++) {
		const enum od_dtype t = segment->bias[mat].dtype;
		uint16_t half;
		float whole;

		memcpy(&half, bias + i * sizeof(half), sizeof(half));
		if (t == OD_F32)
			memcpy(&whole, bias + i * sizeof(whole), sizeof(whole));
		else
			whole = t == OD_BF16 ? od_bf16_f32(half) : od_f16_f32(half);
		x[i] += whole;
	}
}

static void act_rows(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct ffn_job *f = arg;

	(void)thread;
	for (size_t r = begin; r < end; r++) {
		float *gate = f->gate + r * f->n, *up = f->up + r * f->n;

		add_bias(f, r, OD_MAT_GATE, gate, f->n);
		add_bias(f, r, OD_MAT_UP, up, f->n);
		activate(f->j->be, &f->act, gate, up, f->n);
	}
}

static void bias_rows(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct ffn_job *f = arg;

	(void)thread;
	for (size_t r = begin; r < end; r++)
		add_bias(f, r, OD_MAT_DOWN, f->y + r * f->hidden, f->hidden);
}

/* The rows of the segments stand one behind the other in x and y. */
static void ffn(const struct cpu_job *j, const struct od_ffn_segment *segment, size_t n_segments, const float *x,
		float *y, char *scratch, bool routed, struct od_act_spec act)
{
	const size_t n = segment[0].mat[OD_MAT_GATE].n_out, hidden = segment[0].mat[OD_MAT_DOWN].n_out;
	struct products l; /* large, so only what is used is written */
	float *gate = (float *)(void *)scratch, *up;
	struct ffn_job f;
	size_t rows = 0, at = 0;

	l.n = 0;
	for (size_t i = 0; i < n_segments; i++)
		rows += segment[i].n_rows;
	up = (float *)(void *)(scratch + od_ffn_half_bytes(n, rows));
	for (size_t i = 0; i < n_segments; at += segment[i].n_rows, i++) {
		add_product(j, &l, &segment[i].mat[OD_MAT_GATE], x + at * hidden, gate + at * n, segment[i].n_rows);
		add_product(j, &l, &segment[i].mat[OD_MAT_UP], x + at * hidden, up + at * n, segment[i].n_rows);
	}
	/* All gates and ups are one round of the pool, and all downs another: each round costs about a microsecond,
	 * as long as a small product. */
	multiply(j, &l);
	f = (struct ffn_job){
		.j = j, .segment = segment, .act = act, .gate = gate, .up = up, .y = y, .n = n, .hidden = hidden
	};
	od_pool_for(j->x->pool, rows, 1 + MIN_PIECE_ELEMENTS / n, act_rows, &f);
	at = 0;
	for (size_t i = 0; i < n_segments; at += segment[i].n_rows, i++)
		add_product(j, &l, &segment[i].mat[OD_MAT_DOWN], gate + at * n, y + at * hidden, segment[i].n_rows);
	multiply(j, &l);
	if (segment[0].bias != NULL)
		od_pool_for(j->x->pool, rows, 1 + MIN_PIECE_ELEMENTS / hidden, bias_rows, &f);
	/* Rounds as a worker does before it sends, in resident mode too, so that tokens do not depend on the
	 * cluster. */
	if (routed && j->op->profile == OD_PROFILE_BF16)
		j->be->round_bf16(y, rows * hidden);
}

static void segments_ffn(const struct cpu_job *j)
{
	const struct od_op_ffn *o = &j->op->ffn;

	assert(o->n_segments >= 1 && o->n_segments <= OD_MAX_SEGMENTS);
	ffn(j, o->segment, o->n_segments, f32_at(j, o->x), f32_at(j, o->y), j->x->address(o->scratch), o->routed,
	    o->act);
}

/* The scratch itself. */
struct grouping {
	uint32_t *end, *pair;
	float *x, *y;
	char *ffn;
};

/* Counting sort of the (row, rank) pairs by expert, so that each expert runs once over all of its rows. */
static int sort_pairs(const struct od_op_experts *o, size_t n_rows, const uint16_t *choice, const struct grouping *g,
		      struct od_err *err)
{
	size_t n = n_rows * o->top_k;
	uint32_t begin = 0;

	memset(g->end, 0, o->n_experts * sizeof(*g->end));
	for (size_t i = 0; i < n; i++) {
		if (choice[i] == OD_NO_EXPERT)
			continue;
		if (choice[i] >= o->n_experts)
			return od_fail(err, OD_ERR_RANGE, "expert: expected 0 to %u, found %u", o->n_experts - 1,
				       choice[i]);
		g->end[choice[i]]++;
	}
	for (size_t e = 0; e < o->n_experts; e++) {
		uint32_t count = g->end[e];

		/* This is a bound: scratch memory holds n_rows rows of one expert. An expert that a row names twice
		 * below it is computed twice, into two pairs, and does no harm. */
		if (count > n_rows)
			return od_fail(err, OD_ERR_RANGE, "a row has expert %zu twice", e);
		g->end[e] = begin;
		begin += count;
	}
	/* On the way each begin becomes the expert's end, by which experts() cuts the list. */
	for (size_t i = 0; i < n; i++)
		if (choice[i] != OD_NO_EXPERT)
			g->pair[g->end[choice[i]]++] = (uint32_t)i;
	return OD_OK;
}

/* pair: [rows], those of the segments. */
static void run_segments(const struct cpu_job *j, const struct grouping *g, const struct od_ffn_segment *segment,
			 size_t n_segments, const uint32_t *pair, size_t rows)
{
	const struct od_op_experts *o = &j->op->experts;
	const float *x = f32_at(j, o->x);
	float *y = f32_at(j, o->y);
	const size_t hidden = o->hidden, row_bytes = hidden * sizeof(float);

	/* Rows of an expert go side by side, so that its weights are read once for all of them. */
	for (size_t i = 0; i < rows; i++)
		memcpy(g->x + i * hidden, x + pair[i] / o->top_k * hidden, row_bytes);
	ffn(j, segment, n_segments, g->x, g->y, g->ffn, true, o->act);
	/* Each result goes to its row and rank, so that sum_row adds in router order, in whatever order experts ran. */
	for (size_t i = 0; i < rows; i++)
		memcpy(y + pair[i] * hidden, g->y + i * hidden, row_bytes);
}

static int experts(const struct cpu_job *j, struct od_err *err)
{
	const struct od_op_experts *o = &j->op->experts;
	const struct od_experts_layout p = od_experts_layout(o->hidden, (uint32_t)o->expert[0].mat[OD_MAT_GATE].n_out,
							     o->n_experts, o->top_k, j->op->n_rows);
	const size_t most = od_experts_together(o->top_k, j->op->n_rows);
	char *at = j->x->address(o->scratch);
	const struct grouping g = {
		.end = (uint32_t *)(void *)(at + p.end),
		.pair = (uint32_t *)(void *)(at + p.pair),
		.x = (float *)(void *)(at + p.x),
		.y = (float *)(void *)(at + p.y),
		.ffn = at + p.ffn,
	};
	struct od_ffn_segment segment[OD_MAX_SEGMENTS];
	size_t begin = 0, n_segments = 0, rows = 0;
	int rc = sort_pairs(o, j->op->n_rows, j->x->address(o->choice), &g, err);

	if (rc != OD_OK)
		return rc;
	for (size_t e = 0; e < o->n_experts; e++) {
		const size_t n = g.end[e] - begin - rows;

		if (n == 0)
			continue;
		/* Scratch memory has room for `most` rows, so the experts run in several rounds if need be. A round
		 * has whole experts: their weights are read once. */
		if (n_segments == OD_MAX_SEGMENTS || rows + n > most) {
			run_segments(j, &g, segment, n_segments, g.pair + begin, rows);
			begin += rows;
			n_segments = rows = 0;
		}
		segment[n_segments++] = od_expert_segment(&o->expert[e], (uint32_t)n);
		rows += n;
	}
	if (n_segments > 0)
		run_segments(j, &g, segment, n_segments, g.pair + begin, rows);
	return OD_OK;
}

/* sum = the sum of weight * y in router order, then what all rows share: the order decides the numbers. */
static void sum_row(const struct cpu_job *j, size_t r, float *sum, const float *weight, float *shared)
{
	const struct od_op_combine *o = &j->op->combine;
	const size_t n = o->hidden, k = o->top_k;
	const float *y = f32_at(j, o->y) + r * k * n, *gate = f32_at(j, o->gate);
	const float *experts_norm = f32_at(j, o->experts_norm), *shared_norm = f32_at(j, o->shared_norm),
		    *norm = f32_at(j, o->norm);

	for (size_t i = 0; i < n; i++)
		sum[i] = weight[0] * y[i];
	for (size_t rank = 1; rank < k; rank++)
		j->be->axpy(sum, weight[rank], y + rank * n, n);
	if (experts_norm != NULL)
		j->be->rmsnorm(sum, sum, experts_norm, n, o->eps);
	if (shared != NULL && shared_norm != NULL)
		j->be->rmsnorm(shared, shared, shared_norm, n, o->eps);
	if (shared != NULL)
		j->be->axpy(sum, gate != NULL ? 1 / (1 + od_exp(-gate[r])) : 1, shared, n);
	if (norm != NULL)
		j->be->rmsnorm(sum, sum, norm, n, o->eps);
}

static void combine_rows(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct cpu_job *j = arg;
	const struct od_op_combine *o = &j->op->combine;
	const size_t n = o->hidden;
	const float *scale = f32_at(j, o->scale);
	float *all_shared = f32_at(j, o->shared);

	(void)thread;
	for (size_t r = begin; r < end; r++) {
		float *x = f32_at(j, o->x) + r * n, *sum = f32_at(j, o->sum) + r * n;
		float *shared = all_shared != NULL ? all_shared + r * n : NULL;

		if (o->top_k > 0)
			sum_row(j, r, sum, f32_at(j, o->weight) + r * o->top_k, shared);
		add_row(x, o->top_k > 0 ? sum : shared, n);
		if (scale != NULL)
			for (size_t i = 0; i < n; i++)
				x[i] *= *scale;
	}
}

/* ---- */

static void copy(const struct cpu_job *j)
{
	const struct od_op_copy *o = &j->op->copy;

	memcpy(j->x->address(o->to), j->x->address(o->from), (size_t)o->n * j->op->n_rows);
}

/* Without the team: loads have threads of their own, several at a time. */
static void merge(const struct cpu_job *j)
{
	const struct od_op_merge *o = &j->op->merge;
	const uint8_t *e = j->x->address(o->e), *sm = j->x->address(o->sm);
	const size_t n = (size_t)o->n * j->op->n_rows, chunk = o->chunk_rows > 0 ? (size_t)o->n * o->chunk_rows : n;
	uint16_t *to = j->x->address(o->to);

	for (size_t i = 0; o->planes && i * chunk < n; i++)
		od_planes_merge(j->be, e + o->chunk_at[i], n - i * chunk < chunk ? n - i * chunk : chunk, o->n,
				sm + i * chunk, to + i * chunk);
	if (!o->planes)
		j->be->merge_bf16(e, sm, n, to);
}

int od_cpu_exec_run(const struct od_cpu_exec *x, const struct od_op *op, struct od_err *err)
{
	struct cpu_job j = { .x = x, .be = x->backend[op->profile - 1], .op = op };

	switch (op->kind) {
	case OD_OP_EMBED: embed(&j); break;
	case OD_OP_ANGLES: angles(&j); break;
	case OD_OP_NORM: od_pool_for(x->pool, op->n_rows, ROWS_A_PIECE, norm_rows, &j); break;
	case OD_OP_LINEAR: linear(&j); break;
	case OD_OP_ROPE_STORE: od_pool_for(x->pool, op->n_rows, ROWS_A_PIECE, turn_and_store, &j); break;
	case OD_OP_LATENT_STORE: od_pool_for(x->pool, op->n_rows, ROWS_A_PIECE, store_latents, &j); break;
	case OD_OP_LATENT_QUERY: od_pool_for(x->pool, op->latent_query.n_heads, 1, absorb_queries, &j); break;
	case OD_OP_LATENT_VALUE: od_pool_for(x->pool, op->latent_value.n_heads, 1, expand_values, &j); break;
	case OD_OP_ATTEND: attend(&j); break;
	case OD_OP_SPLIT: od_pool_for(x->pool, op->n_rows, ROWS_A_PIECE, split_rows, &j); break;
	case OD_OP_GATE: od_pool_for(x->pool, op->n_rows, ROWS_A_PIECE, gate_rows, &j); break;
	case OD_OP_DELTA_IN: od_cpu_delta_in(x, op); break;
	case OD_OP_DELTA: od_cpu_delta(x, op); break;
	case OD_OP_ROUTE:
		od_pool_for(x->pool, op->n_rows, ROWS_A_PIECE, op->route.prior.recent > 0 ? route_texts : route_rows,
			    &j);
		break;
	case OD_OP_ACT: od_pool_for(x->pool, op->n_rows, ROWS_A_PIECE, activate_rows, &j); break;
	case OD_OP_FFN: segments_ffn(&j); break;
	case OD_OP_EXPERTS: return experts(&j, err);
	case OD_OP_COMBINE: od_pool_for(x->pool, op->n_rows, ROWS_A_PIECE, combine_rows, &j); break;
	case OD_OP_COPY: copy(&j); break;
	case OD_OP_MERGE: merge(&j); break;
	}
	return OD_OK;
}

int od_cpu_exec_init(struct od_cpu_exec *x, enum od_cpu cpu, unsigned n_threads, const char *name, struct od_err *err)
{
	int rc = od_backend_cpu(&x->backend[OD_PROFILE_F32 - 1], cpu, OD_PROFILE_F32, err);

	if (rc == OD_OK)
		rc = od_backend_cpu(&x->backend[OD_PROFILE_BF16 - 1], cpu, OD_PROFILE_BF16, err);
	return rc == OD_OK ? od_pool_new(&x->pool, n_threads, name, err) : rc;
}

void od_cpu_exec_describe(const struct od_cpu_exec *x, const char *kind, struct od_device *d)
{
	for (size_t i = 0; i < 2; i++) {
		d->kernels[i] = x->backend[i]->name;
		d->kernel_class[i] = x->backend[i]->kernel_class;
	}
	d->likes_planes = x->backend[0]->likes_planes;
	d->cache_bytes = od_cache_bytes();
	snprintf(d->name, sizeof(d->name), "%s %s", kind, x->backend[0]->name);
}

void od_cpu_exec_fini(struct od_cpu_exec *x)
{
	od_pool_free(x->pool);
	x->pool = NULL;
}
