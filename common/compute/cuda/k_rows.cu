/* Kernels that take each row by itself: embedding, angles, norms, activations, and the steps before and behind
 * attention. */
#include "common/base/same_math.h"
#include "common/compute/cuda/gpu_math.h"
#include "common/compute/cuda/gpu_rows.h"
#include "common/compute/cuda/kernels.h"

GPU_FN unsigned element(void)
{
	return gpu_block_x() * GPU_ROW_THREADS + gpu_thread();
}

GPU_KERNEL(gpu_add_bias, struct gpu_bias, GPU_ROW_THREADS)
{
	float *y = a.y + (size_t)gpu_block_y() * a.n + element();

	if (element() >= a.n)
		return;
	if (a.bias != NULL)
		*y += a.bias[element()];
	if (a.cap != 0)
		*y = gpu_soft_cap(*y, a.cap);
}

GPU_KERNEL(gpu_act, struct gpu_act, GPU_ROW_THREADS)
{
	const size_t at = (size_t)gpu_block_y() * a.n + element(), up = (size_t)gpu_block_y() * a.stride + element();
	float g, u;

	if (element() >= a.n)
		return;
	g = a.gate[at];
	u = a.up[up];
	if (a.gate_bias.at != NULL) {
		g += gpu_vector_at(&a.gate_bias, element());
		u += gpu_vector_at(&a.up_bias, element());
	}
	a.gate[at] = gpu_activation(a.act, g, u, a.limit);
}

/* q and the group's scale by quant.h; each thread has a lane of a group. */
GPU_KERNEL(gpu_round_rows, struct gpu_round_rows, GPU_ROUND_THREADS)
{
	const unsigned group = gpu_thread() / GPU_LANES, lane = gpu_thread() % GPU_LANES, each = 4 * GPU_LANES;
	const unsigned first = gpu_block_x() * GPU_ROUNDED_COLUMNS + group * each + lane;
	const float *x = a.x + (size_t)gpu_block_y() * a.n;
	float *to = a.to + ((size_t)gpu_block_y() * gpu_grid_x() + gpu_block_x()) * (GPU_ROUNDED_BYTES / sizeof(float));
	uint32_t most = 0, q = 0;
	float v[4], scale;

	GPU_UNROLL
	for (unsigned m = 0; m < 4; m++) {
		const unsigned i = first + m * GPU_LANES;
		uint32_t size;

		v[m] = i < a.n ? x[i] : 0;
		size = gpu_float_bits(v[m]) & 0x7fffffffu; /* in the order of |x|; infinities and NaN come last */
		most = size > most ? size : most;
	}
	GPU_UNROLL
	for (unsigned half = GPU_LANES / 2; half > 0; half /= 2) {
		const uint32_t other = gpu_shuffle_xor_u32(most, half);

		most = other > most ? other : most;
	}
	scale = most < gpu_float_bits(INFINITY) ? gpu_bits_float(most) / 127 : NAN;
	GPU_UNROLL
	/* a quotient by a subnormal scale may pass 127; with 0 or NaN any number does */
	for (unsigned m = 0; m < 4; m++) {
		const float rounded = fminf(fmaxf(v[m] / scale, -127), 127) + 0x1.8p23f;

		q |= (gpu_float_bits(rounded) & 255u) << 8 * m;
	}
	((uint32_t *)(void *)to)[group / 2 * 2 * GPU_LANES + 2 * lane + group % 2] = q;
	if (lane == 0)
		to[GPU_ROUNDED_COLUMNS / sizeof(float) + group] = gpu_canonical(scale / 127);
}

GPU_KERNEL(gpu_expert_end, struct gpu_expert_end, GPU_ROW_THREADS)
{
	float *y = a.y + (size_t)gpu_block_y() * a.n + element();

	if (element() >= a.n)
		return;
	if (a.bias.at != NULL)
		*y += gpu_vector_at(&a.bias, element());
	if (a.round)
		*y = gpu_round_bf16(*y);
}

GPU_KERNEL(gpu_embed, struct gpu_embed, GPU_ROW_THREADS)
{
	const size_t row = a.in_order ? gpu_block_y() : (size_t)a.rows[gpu_block_y()].token,
		     from = row * a.hidden + element();
	float v;

	if (element() >= a.hidden)
		return;
	if (a.dtype == OD_F32)
		v = ((const float *)(const void *)a.table)[from];
	else if (a.dtype == OD_BF16)
		v = gpu_bf16(((const uint16_t *)(const void *)a.table)[from]);
	else
		v = gpu_f16(((const uint16_t *)(const void *)a.table)[from]);
	a.x[(size_t)gpu_block_y() * a.hidden + element()] = a.scale != 0 ? v * a.scale : v;
}

GPU_KERNEL(gpu_angles, struct gpu_angles, GPU_ROW_THREADS)
{
	const struct gpu_row *row = &a.rows[gpu_block_y()];
	const unsigned set = row->is_long != 0, i = element();
	float *to = a.angles + (size_t)gpu_block_y() * 2 * a.half;
	double sine, cosine;

	if (i >= a.half)
		return;
	/* not CUDA's functions, which do not give the CPU's bits */
	od_sincos_same((double)((float)row->position * a.inv_freq[set * a.half + i]), &sine, &cosine);
	to[i] = (float)cosine * a.magnitude[set];
	to[a.half + i] = (float)sine * a.magnitude[set];
}

GPU_FN void norm_scales(const struct gpu_norm *a, struct gpu_scales *s)
{
	gpu_block_scales(a->weight, a->layer ? a->bias : NULL, a->n, s);
}

GPU_FN void norm_row(const struct gpu_norm *a, struct gpu_scales *s)
{
	const size_t at = (size_t)gpu_block_y() * a->n;
	const float *add = a->add != NULL ? a->add + at : NULL;

	if (a->layer)
		gpu_block_layernorm_by(a->y + at, a->x + at, add, a->weight, a->bias, a->n, a->eps, s);
	else
		gpu_block_rmsnorm_by(a->y + at, a->x + at, add, a->weight, a->n, a->eps, s);
}

GPU_KERNEL(gpu_norm, struct gpu_norm, GPU_NORM_THREADS)
{
	struct gpu_scales s;

	norm_scales(&a, &s);
	norm_row(&a, &s);
}

/* ---- before attention ---- */

GPU_FN float clip(float u, float most)
{
	return u > most ? most : u < -most ? -most : u;
}

GPU_FN void clip_all(float *u, unsigned n, float most)
{
	for (unsigned i = gpu_thread(); i < n; i += gpu_threads())
		u[i] = clip(u[i], most);
}

#define TURN_EACH 4u /* pairs of a thread, whose loads are under way together */

/* The first pair of a head's that thread i of n turns, and so on. */
GPU_FN void turn_heads(float *u, unsigned n_heads, unsigned head_dim, const struct gpu_turn *t, const float *cos_sin)
{
	const unsigned half = t->dims / 2, n = n_heads * half;

	GPU_NO_UNROLL
	for (unsigned begin = gpu_thread(); begin < n; begin += TURN_EACH * gpu_threads()) {
		float *first[TURN_EACH], *second[TURN_EACH], x[TURN_EACH], y[TURN_EACH], c[TURN_EACH], s[TURN_EACH];

		GPU_UNROLL
		for (unsigned e = 0; e < TURN_EACH; e++) {
			const unsigned at = begin + e * gpu_threads() < n ? begin + e * gpu_threads() : begin,
				       i = at % half;
			float *head = u + (size_t)(at / half) * head_dim;

			first[e] = head + (t->neighbours ? 2 * i : i);
			second[e] = head + (t->neighbours ? 2 * i + 1 : half + i);
			x[e] = *first[e];
			y[e] = *second[e];
			c[e] = cos_sin[i];
			s[e] = cos_sin[half + i];
		}
		GPU_UNROLL
		for (unsigned e = 0; e < TURN_EACH; e++) {
			if (begin + e * gpu_threads() >= n)
				continue;
			*first[e] = x[e] * c[e] - y[e] * s[e];
			*second[e] = y[e] * c[e] + x[e] * s[e];
		}
	}
}

/* Elements of the row [first, first + n). */
GPU_FN void store_row(uint32_t dtype, unsigned char *row, unsigned first, const float *from, unsigned n)
{
	GPU_UNROLL_N(4)
	for (unsigned i = gpu_thread(); i < n; i += gpu_threads()) {
		if (dtype == OD_BF16)
			((uint16_t *)(void *)row)[first + i] = gpu_to_bf16(from[i]);
		else
			((float *)(void *)row)[first + i] = from[i];
	}
}

/* Heads, each by a group of 16 threads, or all together by the block. */
GPU_FN void norm_heads(float *u, unsigned n_heads, unsigned head_dim, const float *norm, bool together, float eps)
{
	if (together)
		gpu_block_rmsnorm(u, u, norm, n_heads * head_dim, eps);
	else
		gpu_groups_rmsnorm(u, n_heads, head_dim, norm, eps);
}

/* Some heads of q, k or v. */
struct rows_heads {
	float *u;
	const float *norm;
	unsigned n, dim;
	bool normed, together, turned;
};

GPU_FN void norm_and_turn(const struct gpu_rope_store *a, const struct rows_heads *h)
{
	if (h->normed)
		norm_heads(h->u, h->n, h->dim, h->norm, h->together, a->eps);
	if (a->clip != 0) {
		gpu_sync(); /* a thread clips what others normed */
		clip_all(h->u, h->n * h->dim, a->clip);
	}
	gpu_sync(); /* and turns pairs of which others wrote one */
	if (h->turned)
		turn_heads(h->u, h->n, h->dim, &a->turn, a->turn.angles + (size_t)gpu_block_y() * a->turn.dims);
}

GPU_KERNEL(gpu_rope_store, struct gpu_rope_store, GPU_ROPE_THREADS)
{
	const unsigned of_q = (a.n_heads + a.heads - 1) / a.heads, of_k = (a.n_kv_heads + a.heads - 1) / a.heads;
	const bool is_q = gpu_block_x() < of_q, is_k = !is_q && gpu_block_x() - of_q < of_k;
	const unsigned first = (gpu_block_x() - (is_q ? 0 :
						 is_k ? of_q :
							of_q + of_k)) *
			       a.heads,
		       all = is_q ? a.n_heads : a.n_kv_heads;
	const struct gpu_kv *to = is_k ? &a.keys : &a.values;
	struct rows_heads h = { is_q ? a.q :
				is_k ? a.k :
				       a.v,
				is_q ? a.q_norm :
				is_k ? a.k_norm :
				       NULL,
				all - first < a.heads ? all - first : a.heads,
				is_q || is_k ? a.k_dim : a.v_dim,
				false,
				a.norm_row && (is_q || is_k),
				is_q || is_k };
	unsigned char *row = NULL;

	h.u += ((size_t)gpu_block_y() * all + first) * h.dim;
	h.normed = h.norm != NULL || (!h.turned && a.v_norm);
	if (!is_q) /* before the norms: it takes two reads, of which the second waits for the first */
		row = gpu_kv_row(to, a.rows[gpu_block_y()].table, a.rows[gpu_block_y()].position);
	norm_and_turn(&a, &h);
	if (is_q)
		return;
	gpu_sync(); /* a thread stores what others turned */
	store_row(to->dtype, row, first * h.dim, h.u, h.n * h.dim);
}

GPU_KERNEL(gpu_latent_store, struct gpu_latent_store, GPU_NORM_THREADS)
{
	const unsigned n = a.rank + a.turn.dims;
	float *u = a.latent_key + (size_t)gpu_block_y() * n;

	gpu_block_rmsnorm(u, u, a.norm, a.rank, a.eps);
	turn_heads(u + a.rank, 1, a.turn.dims, &a.turn, a.turn.angles + (size_t)gpu_block_y() * a.turn.dims);
	gpu_sync(); /* a thread stores what others turned */
	store_row(a.stream.dtype, gpu_kv_row(&a.stream, a.rows[gpu_block_y()].table, a.rows[gpu_block_y()].position), 0,
		  u, n);
}

/* ---- behind attention ---- */

GPU_KERNEL(gpu_split, struct gpu_split, GPU_ROW_THREADS)
{
	const unsigned n = a.n_heads * a.dim, i = element();
	const float *in = a.in + (size_t)gpu_block_y() * 2 * n;

	if (i >= n)
		return;
	a.first[(size_t)gpu_block_y() * n + i] = in[i / a.dim * 2 * a.dim + i % a.dim];
	a.second[(size_t)gpu_block_y() * n + i] = in[(i / a.dim * 2 + 1) * a.dim + i % a.dim];
}

GPU_KERNEL(gpu_gate, struct gpu_gate, GPU_ROW_THREADS)
{
	const size_t at = (size_t)gpu_block_y() * a.n + element();

	if (element() < a.n)
		a.y[at] *= gpu_sigmoid(a.gate[at]);
}

/* The sums of weight * y, in the order of choice, of `each` elements: at[e] of each y [n]. */
GPU_FN void weigh(const struct gpu_combine *a, const unsigned each, const unsigned *at, float *sum)
{
	const float *weight = a->weight + (size_t)gpu_block_y() * a->top_k,
		    *y = a->y + (size_t)gpu_block_y() * a->top_k * a->hidden;

	GPU_UNROLL
	for (unsigned e = 0; e < each; e++)
		sum[e] = weight[0] * y[at[e]];
	GPU_UNROLL_N(4)
	for (unsigned k = 1; k < a->top_k; k++) {
		y += a->hidden;
		GPU_UNROLL
		for (unsigned e = 0; e < each; e++)
			sum[e] = gpu_canonical(fmaf(weight[k], y[at[e]], sum[e]));
	}
}

/* x += what it gets without norms, `each` elements of a thread at a time: all that they need is under way together. */
GPU_FN void add_combined(const struct gpu_combine *a, const unsigned each)
{
	const unsigned n = a->hidden, r = gpu_block_y(), step = gpu_grid_x() * GPU_NORM_THREADS;
	const float *shared = a->shared != NULL ? a->shared + (size_t)r * n : NULL;
	const float scale = a->scale != NULL ? *a->scale : 1, gate = a->gate != NULL ? a->gate[r] : 0;
	float *x = a->x + (size_t)r * n;

	GPU_NO_UNROLL
	for (unsigned begin = gpu_block_x() * GPU_NORM_THREADS + gpu_thread(); begin < n; begin += each * step) {
		float before[GPU_EACH], beside[GPU_EACH], sum[GPU_EACH];
		unsigned at[GPU_EACH];

		GPU_UNROLL
		for (unsigned e = 0; e < each; e++) {
			at[e] = begin + e * step < n ? begin + e * step : begin;
			before[e] = x[at[e]];
			beside[e] = shared != NULL ? shared[at[e]] : 0;
		}
		if (a->top_k > 0)
			weigh(a, each, at, sum);
		GPU_UNROLL
		for (unsigned e = 0; e < each; e++) {
			if (a->top_k == 0)
				sum[e] = beside[e];
			else if (shared != NULL)
				sum[e] =
					gpu_canonical(fmaf(a->gate != NULL ? gpu_sigmoid(gate) : 1, beside[e], sum[e]));
			if (begin + e * step < n)
				x[at[e]] = a->scale != NULL ? (before[e] + sum[e]) * scale : before[e] + sum[e];
		}
	}
}

GPU_FN void add_normed(const struct gpu_combine *a)
{
	const unsigned n = a->hidden, r = gpu_block_y();
	float *x = a->x + (size_t)r * n, *sum = a->sum + (size_t)r * n,
	      *shared = a->shared != NULL ? a->shared + (size_t)r * n : NULL;

	for (unsigned i = gpu_thread(); i < n; i += GPU_NORM_THREADS)
		weigh(a, 1, &i, sum + i);
	gpu_sync(); /* a norm reads the whole sum */
	if (a->experts_norm != NULL)
		gpu_block_rmsnorm(sum, sum, a->experts_norm, n, a->eps);
	if (shared != NULL && a->shared_norm != NULL)
		gpu_block_rmsnorm(shared, shared, a->shared_norm, n, a->eps);
	if (shared != NULL) {
		const float gate = a->gate != NULL ? gpu_sigmoid(a->gate[r]) : 1;

		for (unsigned i = gpu_thread(); i < n; i += GPU_NORM_THREADS)
			sum[i] = gpu_canonical(fmaf(gate, shared[i], sum[i]));
	}
	gpu_sync(); /* and so does the last one */
	if (a->norm != NULL)
		gpu_block_rmsnorm(sum, sum, a->norm, n, a->eps);
	for (unsigned i = gpu_thread(); i < n; i += GPU_NORM_THREADS) {
		const float to = x[i] + sum[i];

		x[i] = a->scale != NULL ? to * *a->scale : to;
	}
}

GPU_FN bool has_norms(const struct gpu_combine *a)
{
	return a->top_k > 0 && (a->experts_norm != NULL || a->shared_norm != NULL || a->norm != NULL);
}

GPU_KERNEL(gpu_combine, struct gpu_combine, GPU_NORM_THREADS)
{
	if (has_norms(&a))
		add_normed(&a);
	else
		add_combined(&a, 1);
}

GPU_KERNEL(gpu_combine_norm, struct gpu_combine_norm, GPU_NORM_THREADS)
{
	struct gpu_scales s;

	norm_scales(&a.norm, &s);
	if (has_norms(&a.combine))
		add_normed(&a.combine);
	else
		add_combined(&a.combine, GPU_EACH);
	norm_row(&a.norm, &s); /* begins with a barrier */
}
