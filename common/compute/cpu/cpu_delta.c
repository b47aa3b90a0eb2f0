/* Gated delta rule (arXiv 2412.06464): rows are taken one after the other, so that a row's result does not depend on
 * how a text is cut into steps. Work is split over heads; a sum is never split. */
#include "common/compute/cpu/cpu_delta.h"

#include "common/base/pool.h"
#include "common/base/same_math.h"

#include <math.h>
#include <string.h>

#define L2_EPS 1e-6f
#define GATE_SPAN 64u /* elements of a gate at a time */
#define MIN_PIECE_CHANNELS 4096u
#define MIN_PIECE_STATE 16384u /* multiply-adds */

struct job {
	const struct od_cpu_exec *x;
	const struct od_backend *be;
	const struct od_op *op;
	size_t n; /* rows of the sequence */
};

static float *f32_at(const struct job *j, struct od_ref r)
{
	return r.buf == NULL ? NULL : j->x->address(r);
}

/* to = 1 / (1 + exp(-x)), n at most GATE_SPAN */
static void sigmoids(const struct od_backend *be, float *to, const float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = -x[i];
	be->exp(to, n);
	for (size_t i = 0; i < n; i++)
		to[i] = 1 / (1 + to[i]);
}

void od_cpu_gate(const struct od_backend *be, float *y, const float *gate, size_t n)
{
	float s[GATE_SPAN];

	for (size_t at = 0, count; at < n; at += count) {
		count = n - at < GATE_SPAN ? n - at : GATE_SPAN;
		sigmoids(be, s, gate + at, count);
		for (size_t i = 0; i < count; i++)
			y[at + i] *= s[i];
	}
}

/* ---- before the recurrence ---- */

/* x = log(1 + exp(x)) */
static void softplus(const struct od_backend *be, float *x, size_t n)
{
	float e[GATE_SPAN];

	memcpy(e, x, n * sizeof(*e));
	be->exp(e, n);
	for (size_t i = 0; i < n; i++) {
		if (x[i] > 20)
			continue; /* f32 has no other value there */
		/* Below 2^-23 the logarithm is e itself. NaN stays. */
		x[i] = e[i] > 0x1p-23f ? (float)od_log_same(1 + (double)e[i]) : e[i];
	}
}

/* decay and beta [n_heads] of a row; a and b: of heads [0, n), n at most GATE_SPAN. */
static void gates(const struct job *j, const float *a, const float *b, size_t first, size_t n, float *decay,
		  float *beta)
{
	const struct od_op_delta_in *o = &j->op->delta_in;
	const float *a_log = f32_at(j, o->a_log) + first, *dt_bias = f32_at(j, o->dt_bias) + first;
	float step[GATE_SPAN], speed[GATE_SPAN];

	for (size_t i = 0; i < n; i++)
		step[i] = a[i] + dt_bias[i];
	softplus(j->be, step, n);
	memcpy(speed, a_log, n * sizeof(*speed));
	j->be->exp(speed, n);
	for (size_t i = 0; i < n; i++)
		decay[first + i] = -speed[i] * step[i];
	j->be->exp(decay + first, n);
	sigmoids(j->be, beta + first, b, n);
}

/* From q, k, v, z of each key head in turn. */
static void sort_row(const struct od_delta_shape *s, const float *from, float *row, float *z)
{
	const size_t k = s->k_dim, v = (size_t)s->n_heads / s->n_key_heads * s->v_dim,
		     keys = (size_t)s->n_key_heads * k;

	for (size_t h = 0; h < s->n_key_heads; h++, from += 2 * k + 2 * v) {
		memcpy(row + h * k, from, k * sizeof(*row));
		memcpy(row + keys + h * k, from + k, k * sizeof(*row));
		memcpy(row + 2 * keys + h * v, from + 2 * k, v * sizeof(*row));
		memcpy(z + h * v, from + 2 * k + v, v * sizeof(*z));
	}
}

static void take_rows(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct job *j = arg;
	const struct od_op_delta_in *o = &j->op->delta_in;
	const struct od_delta_shape *s = &o->shape;
	const size_t channels = od_delta_channels(s), values = od_delta_values(s), n = s->n_heads;
	/* Heads whose gates are neighbours. */
	const size_t group = o->by_key_head ? n / s->n_key_heads : n, step = group < GATE_SPAN ? group : GATE_SPAN;

	(void)thread;
	for (size_t r = begin; r < end; r++) {
		float *row = f32_at(j, o->row) + r * od_delta_row(s), *decay = row + channels, *beta = decay + n;
		const float *b = f32_at(j, o->b) + r * n * (o->by_key_head ? 2 : 1);
		const float *a = o->by_key_head ? b + group : f32_at(j, o->a) + r * n;

		if (o->by_key_head)
			sort_row(s, f32_at(j, o->qkv) + r * (channels + values), row, f32_at(j, o->z) + r * values);
		else
			memcpy(row, f32_at(j, o->qkv) + r * channels, channels * sizeof(*row));
		for (size_t g = 0; g < n; g += group) {
			const size_t at = o->by_key_head ? 2 * g : g;

			for (size_t i = 0, count; i < group; i += count) {
				count = group - i < step ? group - i : step;
				gates(j, a + at + i, b + at + i, g + i, count, decay, beta);
			}
		}
	}
}

void od_cpu_delta_in(const struct od_cpu_exec *x, const struct od_op *op)
{
	struct job j = { .x = x, .be = x->backend[op->profile - 1], .op = op };

	od_pool_for(x->pool, op->n_rows, 1 + MIN_PIECE_CHANNELS / od_delta_row(&op->delta_in.shape), take_rows, &j);
}

/* ---- the recurrence ---- */

/* Channels of the sequence's row t; a negative one is in the state: -1 is the row before. */
static const float *channels_of(const struct job *j, ptrdiff_t t)
{
	const struct od_op_delta *o = &j->op->delta;
	const uint32_t *index = j->x->address(o->index);

	if (t < 0)
		return f32_at(j, o->from) + (size_t)(t + (ptrdiff_t)o->shape.taps - 1) * od_delta_channels(&o->shape);
	return f32_at(j, o->row) + index[t] * od_delta_row(&o->shape);
}

/* n channels from c on: y = silu of the convolution at row t, the oldest tap first. */
static void convolve(const struct job *j, ptrdiff_t t, size_t c, size_t n, float *y)
{
	const struct od_op_delta *o = &j->op->delta;
	const size_t all = od_delta_channels(&o->shape), taps = o->shape.taps;
	const float *w = f32_at(j, o->conv) + c;

	memset(y, 0, n * sizeof(*y));
	for (size_t i = 0; i < taps; i++, w += all) {
		const float *x = channels_of(j, t - (ptrdiff_t)(taps - 1 - i)) + c;

		for (size_t k = 0; k < n; k++)
			y[k] += w[k] * x[k];
	}
	for (size_t at = 0, count; at < n; at += count) {
		float e[GATE_SPAN];

		count = n - at < GATE_SPAN ? n - at : GATE_SPAN;
		for (size_t k = 0; k < count; k++)
			e[k] = -y[at + k];
		j->be->exp(e, count);
		for (size_t k = 0; k < count; k++)
			y[at + k] /= 1 + e[k];
	}
}

/* To length 1 times scale. */
static void normalise(const struct job *j, float *u, size_t n, float scale)
{
	const float r = scale / sqrtf(j->be->dot(u, u, n) + L2_EPS);

	for (size_t i = 0; i < n; i++)
		u[i] *= r;
}

/* Item i: a key head of a row, with its heads of values. */
static void convolve_items(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct job *j = arg;
	const struct od_op_delta *o = &j->op->delta;
	const struct od_delta_shape *s = &o->shape;
	const size_t k = s->k_dim, v = (size_t)s->n_heads / s->n_key_heads * s->v_dim,
		     keys = (size_t)s->n_key_heads * k;
	const float scale = 1 / sqrtf((float)k);

	(void)thread;
	for (size_t i = begin; i < end; i++) {
		const size_t t = i / s->n_key_heads, h = i % s->n_key_heads;
		float *to = f32_at(j, o->mixed) + t * od_delta_channels(s);

		convolve(j, (ptrdiff_t)t, h * k, k, to + h * k);
		convolve(j, (ptrdiff_t)t, keys + h * k, k, to + keys + h * k);
		convolve(j, (ptrdiff_t)t, 2 * keys + h * v, v, to + 2 * keys + h * v);
		normalise(j, to + h * k, k, scale);
		normalise(j, to + keys + h * k, k, 1);
	}
}

/* Item i: a head, over all rows. */
static void recur_items(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct job *j = arg;
	const struct od_op_delta *o = &j->op->delta;
	const struct od_delta_shape *s = &o->shape;
	const size_t channels = od_delta_channels(s), keys = (size_t)s->n_key_heads * s->k_dim;
	const size_t each = (size_t)s->k_dim * s->v_dim;
	const uint32_t *index = j->x->address(o->index);

	(void)thread;
	for (size_t h = begin; h < end; h++) {
		const size_t at = od_delta_state_at(s) + h * each, key = od_delta_key_head(s, h) * s->k_dim;
		float *to = f32_at(j, o->to) + at;

		for (size_t t = 0; t < j->n; t++) {
			const float *in = f32_at(j, o->mixed) + t * channels,
				    *gate = channels_of(j, (ptrdiff_t)t) + channels;
			const size_t out = (size_t)index[t] * od_delta_values(s) + h * s->v_dim;
			float *y = f32_at(j, o->y) + out;
			const struct od_delta d = {
				.q = in + key,
				.k = in + keys + key,
				.v = in + 2 * keys + h * s->v_dim,
				.decay = gate[h],
				.beta = gate[s->n_heads + h],
				.from = t == 0 ? f32_at(j, o->from) + at : to,
				.to = to,
				.out = y,
				.k_dim = s->k_dim,
				.v_dim = s->v_dim,
			};

			j->be->delta(&d);
			if (o->z.buf == NULL)
				continue;
			j->be->rmsnorm(y, y, f32_at(j, o->norm), s->v_dim, o->eps);
			j->be->silu_mul(f32_at(j, o->z) + out, y, s->v_dim);
		}
	}
}

/* The channels that the next rows' convolutions will see. */
static void keep_channels(const struct job *j)
{
	const struct od_op_delta *o = &j->op->delta;
	const size_t n = od_delta_channels(&o->shape), kept = o->shape.taps - 1;
	float *to = f32_at(j, o->to);

	for (size_t i = 0; i < kept; i++)
		memcpy(to + i * n, channels_of(j, (ptrdiff_t)j->n + (ptrdiff_t)i - (ptrdiff_t)kept), n * sizeof(*to));
}

void od_cpu_delta(const struct od_cpu_exec *x, const struct od_op *op)
{
	const struct od_op_delta *o = &op->delta;
	const struct od_delta_shape *s = &o->shape;
	const struct od_row_info *info = x->address(o->rows);
	struct job j = { .x = x, .be = x->backend[op->profile - 1], .op = op };
	uint32_t *index = x->address(o->index);
	const size_t head_channels = od_delta_channels(s) / s->n_key_heads, head_state = (size_t)s->k_dim * s->v_dim;

	for (uint32_t r = 0, n = 0; r < op->n_rows && j.n < o->n_take; r++)
		if (info[r].table == o->table && n++ >= o->first)
			index[j.n++] = r;
	od_pool_for(x->pool, j.n * s->n_key_heads, 1 + MIN_PIECE_CHANNELS / head_channels, convolve_items, &j);
	if (j.n > 0)
		od_pool_for(x->pool, s->n_heads, 1 + MIN_PIECE_STATE / (head_state * j.n), recur_items, &j);
	keep_channels(&j);
}
