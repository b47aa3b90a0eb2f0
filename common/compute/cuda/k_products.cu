/* Products of weights with rows: OD_OP_LINEAR, and the matrices of OD_OP_FFN and OD_OP_EXPERTS.
 *
 * A dot product has 16 lanes (backend.h), which are independent chains of multiply-adds: some neighbouring threads share an output,
 * each with some of its lanes, and fold them at the end. The lanes of 16 successive weights are read by neighbours together, so that
 * a row of weights is read in whole sectors. Rows of x are read from the first cache. */
#include "common/compute/cuda/gpu_weights.h"

#define STEPS 8u /* of 16 weights, read before they are used */

GPU_FN unsigned threads_of(const unsigned form) /* of an output */
{
	return gpu_code_bits(form) == 4 ? 2 : 4;
}

GPU_FN bool is_grouped(const unsigned form)
{
	return form == GPU_INT8_GROUP || form == GPU_NF4;
}

#define GROUP 64u /* weights of a group of those */
#define NF4_PIECE 128u

GPU_CONSTANT const float nf4_values[16] = { /* od_nf4_values (quant.h) */
	-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
	-0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
	0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
	0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f,
};

/* From shared memory: other than constants, different elements are read by the lanes of a warp at once. */
GPU_FN float nf4_value(uint32_t code)
{
	return ((const float *)(const void *)gpu_shared())[code & 15u];
}

GPU_FN void share_nf4(void)
{
	if (gpu_thread() < 16)
		((float *)(void *)gpu_shared())[gpu_thread()] = nf4_values[gpu_thread()];
	gpu_sync();
}

/* The code of weight i of a row, without scale. */
GPU_FN float code_at(const unsigned form, const unsigned char *row, size_t i)
{
	/* quant.h: word i of 16 has the codes of eight weights of its lane. */
	const size_t in = i % NF4_PIECE, lane = in % 16, j = in % GROUP / 16 * 2 + in / GROUP;
	const unsigned char *word = row + i / NF4_PIECE * (NF4_PIECE / 2) + lane * 4;

	if (form == GPU_NF4)
		return nf4_value(word[j / 2] >> 4 * (j % 2));
	return gpu_code_at(form, row, i);
}

#define MAX_C 8u /* lanes of a thread */

/* ---- A tile: a block's outputs with some rows ---- */

/* What a thread has of it. */
struct tile {
	const struct gpu_mat *m;
	const unsigned char *row; /* of weights */
	const float *x[GPU_PRODUCT_ROWS]; /* those behind the last row are as the last one, and not stored */
	uint32_t out, lane; /* its output; the first of its lanes */
	bool aligned;	    /* all x */
};

/* sum[r * C + i] += w[i] * x[i]; x: of row r from the thread's lane on. */
GPU_FN void add(const unsigned R, const unsigned C, const struct tile *t, size_t k, const float *w, float *sum)
{
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++) {
		const float *x = t->x[r] + k + t->lane;

		GPU_UNROLL
		for (unsigned i = 0; i < C; i += 4) {
			const gpu_f4 v = gpu_load_f4(x + i);

			sum[r * C + i] = fmaf(w[i], v.x, sum[r * C + i]);
			sum[r * C + i + 1] = fmaf(w[i + 1], v.y, sum[r * C + i + 1]);
			sum[r * C + i + 2] = fmaf(w[i + 2], v.z, sum[r * C + i + 2]);
			sum[r * C + i + 3] = fmaf(w[i + 3], v.w, sum[r * C + i + 3]);
		}
	}
}

/* Groups of 64 end: lane = fma(the group's sum, scale, lane). */
GPU_FN void end_group(const unsigned n, float scale, float *part, float *sum)
{
	GPU_UNROLL
	for (unsigned i = 0; i < n; i++) {
		sum[i] = fmaf(part[i], scale, sum[i]);
		part[i] = 0;
	}
}

/* Weights with n_steps * 16 columns from k on; scales that change in between are read when they do. */
GPU_FN void steps_of(const unsigned form, const unsigned R, const struct tile *t, size_t k, const unsigned n_steps, float *part, float *sum)
{
	const unsigned C = GPU_LANES / threads_of(form);
	const struct gpu_mat *m = t->m;
	struct gpu_raw raw[STEPS];
	float w[MAX_C], scale = 1;

	GPU_UNROLL
	for (unsigned s = 0; s < n_steps; s++)
		raw[s] = gpu_load_raw((unsigned)gpu_codes_bytes(form, C), t->row + gpu_codes_bytes(form, k + 16 * s) + gpu_codes_bytes(form, C) * (t->lane / C));
	GPU_UNROLL
	for (unsigned s = 0; s < n_steps; s++) {
		const size_t at = k + 16 * s;

		gpu_decode(form, C, raw[s], w);
		if (gpu_is_scaled(form)) {
			if (s == 0 || at % m->group == 0)
				scale = gpu_scale_at(m, (size_t)t->out * ((m->n_in + m->group - 1) / m->group) + at / m->group);
			GPU_UNROLL
			for (unsigned i = 0; i < C; i++)
				w[i] *= scale;
		}
		add(R, C, t, at, w, form == GPU_INT8_GROUP ? part : sum);
		if (form == GPU_INT8_GROUP && (at + 16) % GROUP == 0)
			end_group(R * C, m->scale[(size_t)t->out * ((m->n_in + GROUP - 1) / GROUP) + at / GROUP], part, sum);
	}
}

/* A piece of 128 weights of NF4. */
GPU_FN void nf4_piece(const unsigned R, const struct tile *t, size_t k, float *part, float *sum)
{
	const struct gpu_mat *m = t->m;
	const float *scale = m->scale + (size_t)t->out * ((m->n_in + GROUP - 1) / GROUP) + k / GROUP;
	const gpu_u4 v = gpu_load_16(t->row + k / 2 + t->lane * 4);
	const uint32_t word[4] = { v.x, v.y, v.z, v.w };

	GPU_UNROLL
	for (unsigned g = 0; g < 2; g++) {
		GPU_UNROLL
		for (unsigned s = 0; s < 4; s++) {
			float w[4];

			GPU_UNROLL
			for (unsigned i = 0; i < 4; i++)
				w[i] = nf4_value(word[i] >> 4 * (2 * s + g));
			add(R, 4, t, k + GROUP * g + 16 * s, w, part);
		}
		end_group(R * 4, scale[g], part, sum);
	}
}

/* Column by column, of any alignment, from k on. */
GPU_FN void slow(const unsigned form, const unsigned R, const struct tile *t, size_t k, float *part, float *sum)
{
	const unsigned C = GPU_LANES / threads_of(form);
	const struct gpu_mat *m = t->m;
	const size_t group = is_grouped(form) ? GROUP : gpu_is_scaled(form) ? m->group : 0;
	const size_t groups = group > 0 ? (m->n_in + group - 1) / group : 0;

	GPU_NO_UNROLL
	for (; k < m->n_in; k += 16) {
		const float scale = gpu_is_scaled(form) ? gpu_scale_at(m, t->out * groups + k / group) : 1;

		GPU_UNROLL
		for (unsigned i = 0; i < C; i++) {
			const size_t at = k + t->lane + i;

			if (at >= m->n_in)
				continue;
			GPU_UNROLL
			for (unsigned r = 0; r < R; r++) {
				const float code = code_at(form, t->row, at);
				float *to = (is_grouped(form) ? part : sum) + r * C + i;

				*to = fmaf(gpu_is_scaled(form) ? code * scale : code, t->x[r][at], *to);
			}
		}
		if (is_grouped(form) && ((k + 16) % GROUP == 0 || k + 16 >= m->n_in))
			end_group(R * C, m->scale[t->out * groups + k / GROUP], part, sum);
	}
}

GPU_FN bool is_aligned(const unsigned form, const struct tile *t)
{
	const size_t each = form == GPU_NF4 ? 16 : gpu_codes_bytes(form, 16) / threads_of(form);

	return t->aligned && t->m->row_bytes % each == 0 && (uintptr_t)t->m->data % each == 0;
}

/* All lanes of a tile. */
GPU_FN void dots(const unsigned form, const unsigned R, const struct tile *t, float *sum)
{
	const unsigned C = GPU_LANES / threads_of(form);
	const size_t n = t->m->n_in, step = form == GPU_NF4 ? NF4_PIECE : 16 * STEPS;
	float part[GPU_PRODUCT_ROWS * MAX_C];
	size_t k = 0;

	GPU_UNROLL
	for (unsigned i = 0; i < R * C; i++)
		sum[i] = part[i] = 0;
	if (is_aligned(form, t)) {
		GPU_NO_UNROLL
		for (; k + step <= n; k += step) {
			if (form == GPU_NF4)
				nf4_piece(R, t, k, part, sum);
			else
				steps_of(form, R, t, k, STEPS, part, sum);
		}
		GPU_NO_UNROLL
		for (; form != GPU_NF4 && k + 16 <= n; k += 16)
			steps_of(form, R, t, k, 1, part, sum);
	}
	/* A group that the steps have begun goes on in part. */
	if (k < n)
		slow(form, R, t, k, part, sum);
	else if (form == GPU_INT8_GROUP && n % GROUP != 0)
		end_group(R * C, t->m->scale[(size_t)t->out * ((n + GROUP - 1) / GROUP) + n / GROUP], part, sum);
}

/* The block's outputs begin with first_out. All threads go along; those without an output compute the last one. */
GPU_FN void begin_tile(const unsigned form, struct tile *t, const struct gpu_mat *m, uint32_t first_out, uint32_t *out)
{
	const unsigned T = threads_of(form);

	if (form == GPU_NF4)
		share_nf4();
	t->m = m;
	*out = first_out + gpu_thread() / T;
	t->out = *out < m->n_out ? *out : m->n_out - 1;
	t->row = m->data + t->out * m->row_bytes;
	t->lane = gpu_thread() % T * (GPU_LANES / T);
	t->aligned = true;
}

GPU_FN void set_x(struct tile *t, unsigned r, const float *x)
{
	t->x[r] = x;
	t->aligned = t->aligned && (uintptr_t)x % 16 == 0;
}

/* Of row r. */
GPU_FN float end_sum(const unsigned form, const struct tile *t, unsigned r, const float *sum)
{
	const unsigned C = GPU_LANES / threads_of(form);
	const float y = gpu_fold(sum + r * C, C);

	return gpu_canonical(form == GPU_INT8 ? y * t->m->scale[t->out] : y);
}

GPU_FN void products_of(const unsigned form, const unsigned R, const struct gpu_products *a)
{
	const unsigned first = gpu_block_y() * R;
	const struct gpu_product *p;
	float sum[GPU_PRODUCT_ROWS * MAX_C];
	struct tile t;
	uint32_t i = 0, out, n;

	while (i + 1 < a->n && a->p[i + 1].first_block <= gpu_block_x())
		i++;
	p = &a->p[i];
	if (first >= p->n_rows)
		return;
	n = p->n_rows - first < R ? p->n_rows - first : R;
	begin_tile(form, &t, &p->w, (gpu_block_x() - p->first_block) * (GPU_PRODUCT_THREADS / threads_of(form)), &out);
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++)
		set_x(&t, r, p->x + (first + (r < n ? r : n - 1)) * p->x_stride);
	dots(form, R, &t, sum);
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++) {
		const float y = end_sum(form, &t, r, sum);

		if (out < p->w.n_out && r < n && t.lane == 0)
			p->y[(first + r) * p->y_stride + out] = y;
	}
}

/* Experts of a round: which, the device has found out (k_experts.cu). */
GPU_FN void expert_products_of(const unsigned form, const unsigned R, const struct gpu_expert_products *a)
{
	const uint32_t outs = GPU_PRODUCT_THREADS / threads_of(form), n_out = a->down ? a->hidden : a->intermediate;
	const uint32_t blocks = (n_out + outs - 1) / outs, index = a->tiles_before[0] + gpu_block_y();
	const struct gpu_tile *tile;
	const struct gpu_mat *m;
	float sum[GPU_PRODUCT_ROWS * MAX_C];
	bool up;
	struct tile t;
	uint32_t out;

	if (index >= a->tiles_before[1])
		return;
	tile = &a->tile[index];
	up = !a->down && gpu_block_x() >= blocks;
	m = &a->expert[tile->expert].mat[a->down ? GPU_DOWN : up ? GPU_UP : GPU_GATE];
	if (m->form != form)
		return;
	begin_tile(form, &t, m, (gpu_block_x() - (up ? blocks : 0)) * outs, &out);
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++) {
		const uint32_t at = tile->first + (r < tile->n ? r : tile->n - 1);

		set_x(&t, r, a->down ? a->gate + (size_t)(at - a->first) * a->intermediate : a->x + (size_t)(a->pair[at] / a->top_k) * a->hidden);
	}
	dots(form, R, &t, sum);
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++) {
		const float y = end_sum(form, &t, r, sum);
		float *to;

		if (out >= m->n_out || r >= tile->n || t.lane != 0)
			continue;
		to = a->down ? a->y + (size_t)a->pair[tile->first + r] * a->hidden :
			       (up ? a->up : a->gate) + (size_t)(tile->first + r - a->first) * a->intermediate;
		to[out] = y;
	}
}

#define PRODUCTS(kernel, form, rows)                                                          \
	kernel(gpu_products_##form##_##rows, struct gpu_products, GPU_PRODUCT_THREADS)        \
	{                                                                                     \
		products_of(form, rows, &a);                                                  \
	}                                                                                     \
	kernel(gpu_experts_##form##_##rows, struct gpu_expert_products, GPU_PRODUCT_THREADS)  \
	{                                                                                     \
		expert_products_of(form, rows, &a);                                           \
	}
#define FORM(kernel, form) PRODUCTS(kernel, form, 1) PRODUCTS(kernel, form, 2) PRODUCTS(kernel, form, 4) PRODUCTS(kernel, form, 8)
#define NAMES(form) \
	{ gpu_products_##form##_1, gpu_products_##form##_2, gpu_products_##form##_4, gpu_products_##form##_8 }

FORM(GPU_KERNEL, GPU_BF16)
FORM(GPU_KERNEL, GPU_F16)
FORM(GPU_KERNEL, GPU_F32)
FORM(GPU_KERNEL, GPU_E4M3)
FORM(GPU_KERNEL, GPU_E5M2)
FORM(GPU_KERNEL, GPU_INT8)
FORM(GPU_KERNEL, GPU_INT8_GROUP)
FORM(GPU_KERNEL, GPU_NF4)
/* Weights of a step, their scales and all sums: with fewer registers some of them are spilled. */
FORM(GPU_ROOMY_KERNEL, GPU_SCALED_I8)
FORM(GPU_ROOMY_KERNEL, GPU_SCALED_U8)
FORM(GPU_ROOMY_KERNEL, GPU_SCALED_U4)
FORM(GPU_ROOMY_KERNEL, GPU_SCALED_E2M1)
FORM(GPU_ROOMY_KERNEL, GPU_SCALED_E4M3)
FORM(GPU_ROOMY_KERNEL, GPU_SCALED_E5M2)

gpu_products_fn *const gpu_products[GPU_N_FORMS][4] = {
	NAMES(GPU_BF16), NAMES(GPU_F16), NAMES(GPU_F32), NAMES(GPU_E4M3), NAMES(GPU_E5M2), NAMES(GPU_INT8), NAMES(GPU_INT8_GROUP),
	NAMES(GPU_NF4), NAMES(GPU_SCALED_I8), NAMES(GPU_SCALED_U8), NAMES(GPU_SCALED_U4), NAMES(GPU_SCALED_E2M1),
	NAMES(GPU_SCALED_E4M3), NAMES(GPU_SCALED_E5M2),
};

#define EXPERTS(form) \
	{ gpu_experts_##form##_1, gpu_experts_##form##_2, gpu_experts_##form##_4, gpu_experts_##form##_8 }

gpu_expert_products_fn *const gpu_expert_products[GPU_N_FORMS][4] = {
	EXPERTS(GPU_BF16), EXPERTS(GPU_F16), EXPERTS(GPU_F32), EXPERTS(GPU_E4M3), EXPERTS(GPU_E5M2), EXPERTS(GPU_INT8),
	EXPERTS(GPU_INT8_GROUP), EXPERTS(GPU_NF4), EXPERTS(GPU_SCALED_I8), EXPERTS(GPU_SCALED_U8), EXPERTS(GPU_SCALED_U4),
	EXPERTS(GPU_SCALED_E2M1), EXPERTS(GPU_SCALED_E4M3), EXPERTS(GPU_SCALED_E5M2),
};

size_t gpu_product_shared(enum gpu_form form)
{
	return form == GPU_NF4 ? sizeof(nf4_values) : 0;
}

unsigned gpu_product_outs(enum gpu_form form)
{
	return GPU_PRODUCT_THREADS / (form == GPU_SCALED_U4 || form == GPU_SCALED_E2M1 ? 2 : 4);
}
