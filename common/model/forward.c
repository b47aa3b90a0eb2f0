#include "common/model/forward.h"

#include "common/base/mem.h"
#include "common/model/attention.h"
#include "common/model/router.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Buffers of max_rows rows each, allocated once. */
enum buffer {
	BUF_ROWS, BUF_X, BUF_H, BUF_Q, BUF_A, BUF_K, BUF_V, BUF_COS_SIN, BUF_PROBABILITY, BUF_EXPERT, BUF_WEIGHT,
	BUF_MARGIN, BUF_Y, N_BUFFERS
};

enum phase { PHASE_IDLE, PHASE_ATTENTION, PHASE_EXPERTS, PHASE_LOGITS };

struct od_forward {
	struct od_forward_opts o;
	enum phase phase;
	uint64_t step;
	uint32_t layer;
	size_t n_rows;
	void *mem[N_BUFFERS]; /* the same pointers as below, [max_rows][what the comment says] */
	struct od_row *rows;
	float *x;	    /* [hidden]: the residual stream */
	float *h;	    /* [hidden]: normed rows; between times the output of a projection */
	float *q, *a;	    /* [n_heads * head_dim]: queries, attention's output */
	float *k, *v;	    /* [kv_dim] */
	float *cos_sin;	    /* [head_dim]: of the row's position */
	float *probability; /* [n_experts] */
	uint16_t *expert;   /* [top_k] */
	float *weight;	    /* [top_k] */
	float *margin;	    /* [1] */
	float *y;	    /* [top_k][hidden]: what the experts gave */
	float *inv_freq;    /* [head_dim / 2], once */
};

/* The one list of buffers, from which they are counted and allocated. */
static void list_row_bytes(const struct od_config *c, uint64_t bytes[N_BUFFERS])
{
	uint64_t hidden = c->hidden * sizeof(float), q_dim = (uint64_t)c->n_heads * c->head_dim * sizeof(float);
	uint64_t kv_dim = od_config_kv_dim(c) * sizeof(float);
	const uint64_t all[N_BUFFERS] = {
		[BUF_ROWS] = sizeof(struct od_row),
		[BUF_X] = hidden,
		[BUF_H] = hidden,
		[BUF_Q] = q_dim,
		[BUF_A] = q_dim,
		[BUF_K] = kv_dim,
		[BUF_V] = kv_dim,
		[BUF_COS_SIN] = c->head_dim * sizeof(float),
		[BUF_PROBABILITY] = c->n_experts * sizeof(float),
		[BUF_EXPERT] = c->top_k * sizeof(uint16_t),
		[BUF_WEIGHT] = c->top_k * sizeof(float),
		[BUF_MARGIN] = sizeof(float),
		[BUF_Y] = c->top_k * hidden,
	};

	memcpy(bytes, all, sizeof(all));
}

static void name_buffers(struct od_forward *f)
{
	f->rows = f->mem[BUF_ROWS];
	f->x = f->mem[BUF_X];
	f->h = f->mem[BUF_H];
	f->q = f->mem[BUF_Q];
	f->a = f->mem[BUF_A];
	f->k = f->mem[BUF_K];
	f->v = f->mem[BUF_V];
	f->cos_sin = f->mem[BUF_COS_SIN];
	f->probability = f->mem[BUF_PROBABILITY];
	f->expert = f->mem[BUF_EXPERT];
	f->weight = f->mem[BUF_WEIGHT];
	f->margin = f->mem[BUF_MARGIN];
	f->y = f->mem[BUF_Y];
}

uint64_t od_forward_bytes(const struct od_forward_opts *opts)
{
	uint64_t sum = sizeof(struct od_forward) + opts->config->head_dim / 2 * sizeof(float);
	uint64_t row_bytes[N_BUFFERS], bytes;

	list_row_bytes(opts->config, row_bytes);
	for (size_t i = 0; i < N_BUFFERS; i++)
		if (!od_mul(opts->max_rows, row_bytes[i], &bytes) || !od_add(sum, bytes, &sum))
			return UINT64_MAX;
	return sum;
}

static bool mat_fits(const struct od_mat *w, const struct od_config *c, enum od_role role)
{
	uint64_t n_out, n_in;

	od_role_shape(c, role, &n_out, &n_in);
	return w->data != NULL && w->n_out == n_out && w->n_in == n_in;
}

/* The loaders check files; this keeps a slip in one of them from becoming a read outside a buffer. */
static int check_dense(const struct od_dense *d, const struct od_config *c, struct od_err *err)
{
	bool ok = mat_fits(&d->embed, c, OD_ROLE_EMBED) &&
		  (d->embed.dtype == OD_BF16 || d->embed.dtype == OD_F16 || d->embed.dtype == OD_F32) && mat_fits(&d->head, c, OD_ROLE_HEAD) && d->final_norm != NULL;

	for (uint32_t i = 0; i < c->n_layers && ok; i++) {
		const struct od_layer_weights *w = &d->layer[i];

		ok = w->attn_norm != NULL && w->ffn_norm != NULL && mat_fits(&w->q, c, OD_ROLE_Q) &&
		     mat_fits(&w->k, c, OD_ROLE_K) && mat_fits(&w->v, c, OD_ROLE_V) && mat_fits(&w->o, c, OD_ROLE_O) &&
		     mat_fits(&w->router, c, OD_ROLE_ROUTER);
	}
	return ok ? OD_OK : od_fail(err, OD_ERR_SHAPE, "dense weights do not have the shapes of their configuration");
}

int od_forward_new(struct od_forward **out, const struct od_forward_opts *opts, struct od_err *err)
{
	uint64_t row_bytes[N_BUFFERS];
	struct od_forward *f;
	int rc;

	*out = NULL;
	if (opts->max_rows == 0 || od_forward_bytes(opts) > SIZE_MAX / 2)
		return od_fail(err, OD_ERR_RANGE, "rows of a step: %zu is none or too many", opts->max_rows);
	rc = check_dense(opts->dense, opts->config, err);
	if (rc != OD_OK)
		return rc;
	f = calloc(1, sizeof(*f));
	if (f == NULL)
		return od_fail(err, OD_ERR_NOMEM, "forward pass");
	f->o = *opts;
	list_row_bytes(opts->config, row_bytes);
	f->inv_freq = od_alloc(opts->config->head_dim / 2 * sizeof(float));
	for (size_t i = 0; i < N_BUFFERS; i++) {
		f->mem[i] = od_alloc_array(opts->max_rows, row_bytes[i]);
		if (f->mem[i] == NULL || f->inv_freq == NULL)
			goto fail;
	}
	name_buffers(f);
	od_rope_frequencies(opts->config, f->inv_freq);
	*out = f;
	return OD_OK;
fail:
	od_forward_free(f);
	return od_fail(err, OD_ERR_NOMEM, "row buffers: %zu rows need %llu bytes", opts->max_rows,
		       (unsigned long long)od_forward_bytes(opts));
}

void od_forward_free(struct od_forward *f)
{
	if (f == NULL)
		return;
	for (size_t i = 0; i < N_BUFFERS; i++)
		od_free(f->mem[i]);
	od_free(f->inv_freq);
	free(f);
}

/* Where the row must stand: behind the sequence's row before it, or at its committed length. */
static uint32_t expected_position(const struct od_row *rows, size_t r)
{
	for (size_t i = r; i-- > 0;)
		if (rows[i].seq == rows[r].seq)
			return rows[i].position + 1;
	return od_seq_state_length(rows[r].seq);
}

static int check_row(const struct od_forward *f, const struct od_row *rows, size_t r, struct od_err *err)
{
	const struct od_row *row = &rows[r];
	enum od_dtype dtype = f->o.profile == OD_PROFILE_BF16 ? OD_BF16 : OD_F32;
	uint32_t vocab = f->o.config->vocab;

	if ((uint32_t)row->token >= vocab) /* negative ones too */
		return od_fail(err, OD_ERR_RANGE, "row %zu: token: expected 0 to %u, found %d", r, vocab - 1,
			       row->token);
	if (od_seq_state_dtype(row->seq) != dtype)
		return od_fail(err, OD_ERR_MISMATCH, "row %zu: keys and values: expected %s, found %s", r,
			       od_dtype_name(dtype), od_dtype_name(od_seq_state_dtype(row->seq)));
	if (row->position >= od_seq_state_ctx(row->seq))
		return od_fail(err, OD_ERR_RANGE, "row %zu: position %u is outside the context of %u", r, row->position,
			       od_seq_state_ctx(row->seq));
	if (row->position != expected_position(rows, r))
		return od_fail(err, OD_ERR_RANGE, "row %zu: position: expected %u, found %u", r,
			       expected_position(rows, r), row->position);
	return OD_OK;
}

void od_embed_row(const struct od_backend *be, const struct od_mat *e, int32_t token, float *x)
{
	size_t n = e->n_in, at = (size_t)token * n;

	if (e->dtype == OD_BF16) {
		be->bf16_to_f32(x, (const uint16_t *)e->data + at, n);
	} else if (e->dtype == OD_F16) {
		for (size_t i = 0; i < n; i++)
			x[i] = od_f16_f32(((const uint16_t *)e->data)[at + i]);
	} else {
		memcpy(x, (const float *)e->data + at, n * sizeof(*x));
	}
}

int od_forward_begin(struct od_forward *f, uint64_t step, const struct od_row *rows, size_t n_rows,
		     struct od_err *err)
{
	const struct od_config *c = f->o.config;

	f->phase = PHASE_IDLE;
	if (n_rows == 0 || n_rows > f->o.max_rows)
		return od_fail(err, OD_ERR_RANGE, "rows of a step: expected 1 to %zu, found %zu", f->o.max_rows,
			       n_rows);
	for (size_t r = 0; r < n_rows; r++) {
		int rc = check_row(f, rows, r, err);

		if (rc != OD_OK)
			return rc;
	}
	memcpy(f->rows, rows, n_rows * sizeof(*rows));
	for (size_t r = 0; r < n_rows; r++) {
		od_embed_row(f->o.backend, &f->o.dense->embed, rows[r].token, f->x + r * c->hidden);
		od_rope_angles(c, f->inv_freq, rows[r].position, f->cos_sin + r * c->head_dim);
	}
	f->step = step;
	f->n_rows = n_rows;
	f->layer = 0;
	f->phase = PHASE_ATTENTION;
	return OD_OK;
}

static void norm_attn(void *arg, size_t begin, size_t end, unsigned thread)
{
	struct od_forward *f = arg;
	size_t n = f->o.config->hidden;

	(void)thread;
	for (size_t r = begin; r < end; r++)
		f->o.backend->rmsnorm(f->h + r * n, f->x + r * n, f->o.dense->layer[f->layer].attn_norm, n,
				      f->o.config->rms_eps);
}

static void add_row(float *x, const float *y, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] += y[i];
}

/* x += h (attention's projection), h = norm(x). */
static void add_and_norm_ffn(void *arg, size_t begin, size_t end, unsigned thread)
{
	struct od_forward *f = arg;
	size_t n = f->o.config->hidden;

	(void)thread;
	for (size_t r = begin; r < end; r++) {
		add_row(f->x + r * n, f->h + r * n, n);
		f->o.backend->rmsnorm(f->h + r * n, f->x + r * n, f->o.dense->layer[f->layer].ffn_norm, n,
				      f->o.config->rms_eps);
	}
}

static void choose_experts(void *arg, size_t begin, size_t end, unsigned thread)
{
	struct od_forward *f = arg;
	const struct od_config *c = f->o.config;

	(void)thread;
	for (size_t r = begin; r < end; r++) {
		od_router_choose(f->o.backend, c, f->probability + r * c->n_experts, f->expert + r * c->top_k,
				 f->weight + r * c->top_k, f->margin + r);
		/* The router saw the row as it is; the experts get it as it travels. */
		if (f->o.profile == OD_PROFILE_BF16)
			f->o.backend->round_bf16(f->h + r * c->hidden, c->hidden);
	}
}

void od_forward_attention(struct od_forward *f)
{
	const struct od_layer_weights *w = &f->o.dense->layer[f->layer];
	const struct od_backend *be = f->o.backend;
	struct od_pool *pool = f->o.pool;
	struct od_attention attention = {
		.backend = be, .pool = pool, .config = f->o.config, .layer = f->layer, .rows = f->rows,
		.n_rows = f->n_rows, .q = f->q, .k = f->k, .v = f->v, .cos_sin = f->cos_sin, .out = f->a,
	};

	assert(f->phase == PHASE_ATTENTION);
	od_pool_for(pool, f->n_rows, 4, norm_attn, f);
	od_matmul(be, pool, &w->q, f->h, f->q, f->n_rows);
	od_matmul(be, pool, &w->k, f->h, f->k, f->n_rows);
	od_matmul(be, pool, &w->v, f->h, f->v, f->n_rows);
	od_attention_run(&attention);
	od_matmul(be, pool, &w->o, f->a, f->h, f->n_rows);
	od_pool_for(pool, f->n_rows, 4, add_and_norm_ffn, f);
	od_matmul(be, pool, &w->router, f->h, f->probability, f->n_rows);
	od_pool_for(pool, f->n_rows, 4, choose_experts, f);
	f->phase = PHASE_EXPERTS;
}

/* x += sum of weight * y in router order: the order is part of the numbers. */
static void combine(void *arg, size_t begin, size_t end, unsigned thread)
{
	struct od_forward *f = arg;
	size_t n = f->o.config->hidden, k = f->o.config->top_k;

	(void)thread;
	for (size_t r = begin; r < end; r++) {
		float *sum = f->h + r * n;
		const float *y = f->y + r * k * n, *weight = f->weight + r * k;

		for (size_t i = 0; i < n; i++)
			sum[i] = weight[0] * y[i];
		for (size_t rank = 1; rank < k; rank++)
			f->o.backend->axpy(sum, weight[rank], y + rank * n, n);
		add_row(f->x + r * n, sum, n);
	}
}

int od_forward_experts(struct od_forward *f, struct od_expert_runner *runner, struct od_err *err)
{
	struct od_moe_call call = {
		.step = f->step, .m = f->layer, .n_rows = f->n_rows, .x = f->h, .expert = f->expert, .y = f->y,
	};
	int rc;

	assert(f->phase == PHASE_EXPERTS);
	rc = runner->run(runner, &call, err);
	if (rc != OD_OK)
		return rc;
	od_pool_for(f->o.pool, f->n_rows, 4, combine, f);
	f->layer++;
	f->phase = f->layer == f->o.config->n_layers ? PHASE_LOGITS : PHASE_ATTENTION;
	return OD_OK;
}

uint32_t od_forward_layer(const struct od_forward *f)
{
	return f->layer;
}

bool od_forward_done(const struct od_forward *f)
{
	return f->phase == PHASE_LOGITS;
}

const uint16_t *od_forward_experts_of(const struct od_forward *f, size_t row)
{
	return f->expert + row * f->o.config->top_k;
}

const float *od_forward_weights_of(const struct od_forward *f, size_t row)
{
	return f->weight + row * f->o.config->top_k;
}

const float *od_forward_probabilities_of(const struct od_forward *f, size_t row)
{
	return f->probability + row * f->o.config->n_experts;
}

const float *od_forward_residual_of(const struct od_forward *f, size_t row)
{
	return f->x + row * f->o.config->hidden;
}

float od_forward_margin_of(const struct od_forward *f, size_t row)
{
	return f->margin[row];
}

void od_forward_logits(struct od_forward *f, size_t row, float *logits)
{
	const struct od_config *c = f->o.config;

	assert(f->phase == PHASE_LOGITS && row < f->n_rows);
	/* h is free here: no layer is left that would want it. */
	f->o.backend->rmsnorm(f->h, f->x + row * c->hidden, f->o.dense->final_norm, c->hidden, c->rms_eps);
	od_matmul(f->o.backend, f->o.pool, &f->o.dense->head, f->h, logits, 1);
}

void od_forward_commit(struct od_forward *f)
{
	assert(f->phase == PHASE_LOGITS);
	for (size_t r = 0; r < f->n_rows; r++)
		od_seq_state_set_length(f->rows[r].seq, f->rows[r].position + 1);
}
