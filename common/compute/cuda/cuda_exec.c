#include "common/compute/cuda/cuda_exec.h"

#include "common/compute/cuda/cuda_attend.h"
#include "common/compute/cuda/cuda_delta.h"
#include "common/compute/cuda/cuda_experts.h"
#include "common/compute/cuda/cuda_load.h"
#include "common/compute/cuda/cuda_products.h"
#include "common/compute/formats/format.h"

#include <string.h>

_Static_assert(GPU_MAX_CHOICE == OD_MAX_CHOICE && GPU_MAX_GROUPS == OD_MAX_GROUPS, "ops.h");
_Static_assert(sizeof(struct gpu_row) == sizeof(struct od_row_info) && GPU_KV_PAGE == OD_KV_PAGE, "ops.h");

/* Launches a kernel with so many blocks for each row, and notes what came of it. */
#define LAUNCH(c, kernel, blocks, rows, shared, ...) \
	od_cuda_launched(c, kernel(od_cuda_stream(c), (struct gpu_grid){ blocks, rows, 1 }, shared, &__VA_ARGS__), \
			 #kernel)

static unsigned row_blocks(uint64_t n)
{
	return od_cuda_blocks(n, GPU_ROW_THREADS);
}

struct gpu_kv od_cuda_kv(const struct od_stream *s)
{
	return (struct gpu_kv){ .pages = od_cuda_at(s->pages),
				.tables = od_cuda_at(s->tables),
				.page_bytes = s->page_bytes,
				.row_bytes = s->row_bytes,
				.table_pages = s->table_pages,
				.dtype = s->dtype };
}

static struct gpu_turn turn_of(const struct od_turn *t)
{
	return (struct gpu_turn){ .angles = od_cuda_at(t->angles), .dims = t->dims, .neighbours = t->neighbours };
}

static void embed(struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_embed *o = &op->embed;
	const struct gpu_embed a = { .table = od_cuda_at(o->table->data),
				     .rows = od_cuda_at(o->rows),
				     .x = od_cuda_at(o->x),
				     .row_bytes = od_row_bytes(o->table->dtype, o->table->n_in),
				     .hidden = (uint32_t)o->table->n_in,
				     .dtype = o->table->dtype,
				     .scale = o->scale,
				     .in_order = o->in_order };

	if ((od_format(o->table->dtype)->uses & OD_USE_BLOCKS) != 0)
		LAUNCH(c, gpu_embed_blocks, row_blocks(a.hidden), op->n_rows, 0, a);
	else
		LAUNCH(c, gpu_embed, row_blocks(a.hidden), op->n_rows, 0, a);
}

static void angles(struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_angles *o = &op->angles;
	const struct gpu_angles a = { .rows = od_cuda_at(o->rows),
				      .inv_freq = od_cuda_at(o->inv_freq),
				      .angles = od_cuda_at(o->angles),
				      .half = o->half,
				      .magnitude = { o->magnitude[0], o->magnitude[1] } };

	LAUNCH(c, gpu_angles, row_blocks(a.half), op->n_rows, 0, a);
}

#define MOST_COMBINED 32768u /* floats that one block can read sooner than another kernel begins */

/* Joins the kernel that has made x, if that is still there. It may not write what other rows' blocks read. */
static bool norm_in_combine(struct od_cuda_device *c, const struct gpu_norm *n, uint32_t n_rows)
{
	struct gpu_launch l;
	struct gpu_combine_norm a = { .norm = *n };

	if (n->add != NULL || !gpu_last_launch(od_cuda_stream(c), "gpu_combine", &l))
		return false;
	memcpy(&a.combine, l.args, sizeof(a.combine));
	if (l.grid.y != n_rows || a.combine.x != n->x || a.combine.hidden != n->n ||
	    (n_rows > 1 && n->y != a.combine.sum))
		return false;
	if (l.grid.x > 1 && ((uint64_t)a.combine.top_k + 2) * n->n > MOST_COMBINED)
		return false;
	gpu_take_back(od_cuda_stream(c));
	LAUNCH(c, gpu_combine_norm, 1, n_rows, gpu_row_shared(n->n), a);
	return true;
}

static void norm(struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_norm *o = &op->norm;
	const struct gpu_norm a = { .x = od_cuda_at(o->x),
				    .y = od_cuda_at(o->y),
				    .add = od_cuda_at(o->add),
				    .weight = od_cuda_at(o->weight),
				    .bias = od_cuda_at(o->bias),
				    .n = o->n,
				    .layer = o->kind == OD_NORM_LAYER,
				    .eps = o->eps };

	if (!norm_in_combine(c, &a, op->n_rows))
		LAUNCH(c, gpu_norm, 1, op->n_rows, gpu_row_shared(o->n), a);
}

static void rope_store(struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_rope_store *o = &op->rope_store;
	const uint32_t most = o->n_heads > o->n_kv_heads ? o->n_heads : o->n_kv_heads,
		       heads = o->norm_row ? most : GPU_ROPE_HEADS;
	const unsigned blocks =
		od_cuda_blocks(o->n_heads, heads) + (o->k.buf != NULL ? 2 * od_cuda_blocks(o->n_kv_heads, heads) : 0);
	const struct gpu_rope_store a = {
		.rows = od_cuda_at(o->rows),
		.q = od_cuda_at(o->q),
		.k = od_cuda_at(o->k),
		.v = od_cuda_at(o->v),
		.turn = turn_of(&o->turn),
		.q_norm = od_cuda_at(o->q_norm),
		.k_norm = od_cuda_at(o->k_norm),
		.norm_row = o->norm_row,
		.v_norm = o->v_norm,
		.eps = o->eps,
		.clip = o->clip,
		.keys = od_cuda_kv(&o->keys),
		.values = od_cuda_kv(&o->values),
		.n_heads = o->n_heads,
		.n_kv_heads = o->n_kv_heads,
		.k_dim = o->k_dim,
		.v_dim = o->v_dim,
		.heads = heads,
	};

	LAUNCH(c, gpu_rope_store, blocks, op->n_rows, gpu_row_shared(o->norm_row ? most * o->k_dim : 0), a);
}

static void latent_store(struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_latent_store *o = &op->latent_store;
	const struct gpu_latent_store a = { .rows = od_cuda_at(o->rows),
					    .latent_key = od_cuda_at(o->latent_key),
					    .turn = turn_of(&o->turn),
					    .norm = od_cuda_at(o->norm),
					    .eps = o->eps,
					    .stream = od_cuda_kv(&o->stream),
					    .rank = o->rank };

	LAUNCH(c, gpu_latent_store, 1, op->n_rows, gpu_row_shared(o->rank), a);
}

static void split(struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_split *o = &op->split;
	const struct gpu_split a = { .in = od_cuda_at(o->in),
				     .first = od_cuda_at(o->first),
				     .second = od_cuda_at(o->second),
				     .n_heads = o->n_heads,
				     .dim = o->dim };

	LAUNCH(c, gpu_split, row_blocks((uint64_t)a.n_heads * a.dim), op->n_rows, 0, a);
}

static void gate(struct od_cuda_device *c, const struct od_op *op)
{
	const struct gpu_gate a = { .y = od_cuda_at(op->gate.y), .gate = od_cuda_at(op->gate.gate), .n = op->gate.n };

	LAUNCH(c, gpu_gate, row_blocks(a.n), op->n_rows, 0, a);
}

static void route(struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_route *o = &op->route;
	const struct gpu_route a = {
		.logits = od_cuda_at(o->logits),
		.weight = od_cuda_at(o->weight),
		.margin = od_cuda_at(o->margin),
		.choice = od_cuda_at(o->choice),
		.bias = od_cuda_at(o->bias),
		.factor = od_cuda_at(o->factor),
		.round = od_cuda_at(o->round),
		.rows = od_cuda_at(o->rows),
		.recent = od_cuda_kv(&o->recent),
		.n_experts = o->n_experts,
		.top_k = o->top_k,
		.hidden = o->hidden,
		.n_rows = op->n_rows,
		.router = o->router,
		.prior = o->prior,
	};
	const unsigned blocks = a.round != NULL ? 1 + od_cuda_blocks(o->hidden, GPU_ROUTE_ROUND) : 1;

	od_cuda_launched(c,
			 gpu_route(od_cuda_stream(c), (struct gpu_grid){ blocks, op->n_rows, 1 },
				   gpu_route_shared(o->n_experts), &a),
			 "route");
}

static void act(struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_act *o = &op->act;
	const struct gpu_act a = { .gate = od_cuda_at(o->gate),
				   .up = od_cuda_at(o->up),
				   .n = o->n,
				   .stride = o->stride,
				   .act = o->act.kind,
				   .limit = o->act.limit };

	LAUNCH(c, gpu_act, row_blocks(a.n), op->n_rows, 0, a);
}

static void combine(struct od_cuda_device *c, const struct od_op *op)
{
	const struct od_op_combine *o = &op->combine;
	const struct gpu_combine a = {
		.y = od_cuda_at(o->y),
		.weight = od_cuda_at(o->weight),
		.gate = od_cuda_at(o->gate),
		.experts_norm = od_cuda_at(o->experts_norm),
		.shared_norm = od_cuda_at(o->shared_norm),
		.norm = od_cuda_at(o->norm),
		.scale = od_cuda_at(o->scale),
		.x = od_cuda_at(o->x),
		.sum = od_cuda_at(o->sum),
		.shared = od_cuda_at(o->shared),
		.top_k = o->top_k,
		.hidden = o->hidden,
		.eps = o->eps,
	};

	if (a.experts_norm != NULL || a.shared_norm != NULL || a.norm != NULL)
		LAUNCH(c, gpu_combine, 1, op->n_rows, gpu_row_shared(o->hidden), a);
	else
		LAUNCH(c, gpu_combine, od_cuda_blocks(o->hidden, GPU_NORM_THREADS), op->n_rows, 0, a);
}

static void copy(struct od_cuda_device *c, enum od_queue q, const struct od_op *op)
{
	const struct od_op_copy *o = &op->copy;

	/* A merge may still write what is read here, or read what is written. */
	od_cuda_before_copy(c, q, od_cuda_at(o->from), o->n * op->n_rows);
	od_cuda_before_copy(c, q, od_cuda_at(o->to), o->n * op->n_rows);
	od_cuda_note(
		c, q,
		gpu_copy(c->queue[q].stream, od_cuda_at(o->to), od_cuda_at(o->from), o->n * op->n_rows, GPU_WITHIN),
		"copy");
}

/* After an error kernels would compute with what others did not write: with old lists, even at addresses that do not
 * exist any more. So until the error is reported, the compute queue does copies only, which are safe, and which other
 * work may need. */
static bool may_run(struct od_cuda_device *c, enum od_queue q, const struct od_op *op)
{
	struct od_cuda_queue *u = &c->queue[q];
	bool fine;

	if (q != OD_QUEUE_COMPUTE || op->kind == OD_OP_COPY)
		return true;
	pthread_mutex_lock(&u->lock);
	fine = u->rc == OD_OK;
	pthread_mutex_unlock(&u->lock);
	if (fine)
		gpu_stream_resume(u->stream);
	return fine;
}

void od_cuda_run(struct od_cuda_device *c, enum od_queue q, const struct od_op *op)
{
	if (op->n_rows == 0 || !may_run(c, q, op))
		return;
	switch (op->kind) {
	case OD_OP_EMBED: embed(c, op); break;
	case OD_OP_ANGLES: angles(c, op); break;
	case OD_OP_NORM: norm(c, op); break;
	case OD_OP_LINEAR: od_cuda_linear(c, op); break;
	case OD_OP_ROPE_STORE: rope_store(c, op); break;
	case OD_OP_LATENT_STORE: latent_store(c, op); break;
	case OD_OP_LATENT_QUERY: od_cuda_latent_query(c, op); break;
	case OD_OP_LATENT_VALUE: od_cuda_latent_value(c, op); break;
	case OD_OP_ATTEND: od_cuda_attend(c, op); break;
	case OD_OP_SPLIT: split(c, op); break;
	case OD_OP_GATE: gate(c, op); break;
	case OD_OP_DELTA_IN: od_cuda_delta_in(c, op); break;
	case OD_OP_DELTA: od_cuda_delta(c, op); break;
	case OD_OP_ROUTE: route(c, op); break;
	case OD_OP_ACT: act(c, op); break;
	case OD_OP_FFN: od_cuda_ffn(c, op); break;
	case OD_OP_EXPERTS: od_cuda_experts(c, op); break;
	case OD_OP_COMBINE: combine(c, op); break;
	case OD_OP_COPY: copy(c, q, op); break;
	case OD_OP_MERGE: od_cuda_merge(c, q, op); break;
	}
}
