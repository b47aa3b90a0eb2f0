/* Gated delta rules (OD_OP_DELTA_IN, OD_OP_DELTA), as cpu_delta.c has them.
 *
 * A column of a head's state needs only itself, so a thread has a column, in registers if k_dim is GPU_DELTA_FIXED, and
 * all rows go by. Sums over k_dim have one order: then the two sums of successive rows, of the query and of the next
 * key, run side by side. */
#include <assert.h>

#include "common/base/same_math.h"
#include "common/compute/cuda/gpu_rows.h"

#define THREADS GPU_DELTA_THREADS
#define ROWS GPU_DELTA_ROWS
#define K GPU_DELTA_FIXED
#define L2_EPS 1e-6f

/* ---- before the recurrence ---- */

/* log(1 + exp(x)) */
GPU_FN float softplus(float x)
{
	const float e = gpu_exp(x);

	if (x > 20)
		return x; /* f32 has no other value there */
	/* Below 2^-23 the logarithm is e itself. NaN stays. */
	return e > 0x1p-23f ? (float)od_log_same(1 + (double)e) : e;
}

/* decay and beta of head g. */
GPU_FN void gates(const struct gpu_delta_in *a, float *row, unsigned g)
{
	const size_t r = gpu_block_y(), n = a->n_heads;
	const unsigned group = a->n_heads / a->n_key_heads, first = g / group * group;
	const float *b = a->by_key_head ? a->b + r * 2 * n + 2 * first : a->b + r * n;
	const float *of_a = a->by_key_head ? b + group : a->a + r * n;
	const unsigned i = a->by_key_head ? g - first : g;

	row[a->channels + g] = gpu_exp(-gpu_exp(a->a_log[g]) * softplus(of_a[i] + a->dt_bias[g]));
	row[a->channels + n + g] = gpu_canonical(gpu_sigmoid(b[i]));
}

GPU_KERNEL(gpu_delta_in, struct gpu_delta_in, GPU_ROW_THREADS)
{
	const unsigned k = a.k_dim, v = a.n_heads / a.n_key_heads * a.v_dim, keys = a.n_key_heads * k,
		       values = a.n_heads * a.v_dim;
	const unsigned width = a.channels + (a.by_key_head ? values : 0),
		       i = gpu_block_x() * GPU_ROW_THREADS + gpu_thread();
	const float *from = a.qkv + (size_t)gpu_block_y() * width;
	float *row = a.row + (size_t)gpu_block_y() * (a.channels + 2 * a.n_heads);

	if (i >= width) {
		if (i - width < a.n_heads)
			gates(&a, row, i - width);
	} else if (!a.by_key_head) {
		row[i] = from[i];
	} else { /* from q, k, v, z of each key head in turn */
		const unsigned h = i / (2 * k + 2 * v), at = i % (2 * k + 2 * v);

		if (at < k)
			row[h * k + at] = from[i];
		else if (at < 2 * k)
			row[keys + h * k + at - k] = from[i];
		else if (at < 2 * k + v)
			row[2 * keys + h * v + at - 2 * k] = from[i];
		else
			a.z[(size_t)gpu_block_y() * values + h * v + at - 2 * k - v] = from[i];
	}
}

/* ---- Rows of the sequence ---- */

/* In shared memory; lines follow: of a row queries, keys and values of a block's channels. */
struct delta_room {
	float gate[2][ROWS]; /* decay, beta */
	float by[2 * ROWS]; /* factors that give queries and keys their length */
	uint32_t index[ROWS];
	uint32_t count[GPU_DELTA_FIND_THREADS / GPU_WARP];
};
static_assert(sizeof(struct delta_room) == GPU_DELTA_ROOM, "lines are aligned");

GPU_FN float *lines_of(struct delta_room *m)
{
	return (float *)(void *)(m + 1);
}

/* A block's channels: a key head, and values of some heads. */
struct delta_channels {
	unsigned key, first_value, values;
	bool keys; /* queries and keys are written by this block */
};

GPU_FN struct delta_channels channels_of(const struct gpu_delta *a, unsigned head)
{
	const unsigned group = a->n_heads / a->n_key_heads;
	struct delta_channels p;

	p.key = a->tiled ? head % a->n_key_heads : head / group;
	p.first_value = head * a->v_dim;
	p.values = a->v_dim;
	p.keys = a->tiled ? head < a->n_key_heads : head % group == 0;
	return p;
}

GPU_FN unsigned width_of(const struct gpu_delta *a, const struct delta_channels *p)
{
	return 2 * a->k_dim + p->values;
}

GPU_FN unsigned line_of(const struct gpu_delta *a, const struct delta_channels *p)
{
	return (width_of(a, p) + 3) / 4 * 4;
}

/* Channel of element i of a line. */
GPU_FN unsigned channel_of(const struct gpu_delta *a, const struct delta_channels *p, unsigned i)
{
	const unsigned k = a->k_dim, keys = a->n_key_heads * k;

	if (i < k)
		return p->key * k + i;
	return i < 2 * k ? keys + p->key * k + i - k : 2 * keys + p->first_value + i - 2 * k;
}

/* The sequence's row t as OD_OP_DELTA_IN made it; a negative one, of which there are only channels, is in the state: -1
 * is the row before. */
GPU_FN const float *row_of(const struct gpu_delta *a, const uint32_t *index, int t)
{
	const size_t before = t < 0 ? (size_t)(t + (int)a->taps - 1) * a->channels : 0;
	const size_t own = (size_t)index[t < 0 ? 0 : t] * (a->channels + 2 * a->n_heads);

	return t < 0 ? a->from + before : a->row + own;
}

GPU_FN float gate_of(const struct gpu_delta *a, uint32_t row, unsigned which, unsigned head)
{
	return a->row[(size_t)row * (a->channels + 2 * a->n_heads) + a->channels + which * a->n_heads + head];
}

/* index [n]: the rows of the step; returns n. All threads; it ends with a barrier. count: a word for each warp. */
GPU_FN unsigned find_rows(const struct gpu_delta *a, uint32_t *index, uint32_t *count)
{
	const uint64_t end = (uint64_t)a->first + a->n_take;
	uint32_t seen = 0;

	for (uint32_t begin = 0; begin < a->n_rows && seen < end; begin += gpu_threads()) {
		const uint32_t r = begin + gpu_thread();
		const bool mine = r < a->n_rows && a->rows[r].table == a->table;
		const uint32_t all = gpu_ballot(mine);
		uint32_t before = seen;

		if (gpu_lane() == 0)
			count[gpu_warp()] = gpu_popcount(all);
		gpu_sync(); /* all warps' counts are there */
		for (unsigned w = 0; w < gpu_threads() / GPU_WARP; w++) {
			before += w < gpu_warp() ? count[w] : 0;
			seen += count[w];
		}
		before += gpu_popcount(all & ((1u << gpu_lane()) - 1));
		if (mine && before >= a->first && before < end)
			index[before - a->first] = r;
		gpu_sync(); /* all have read the counts; after the last round, the index is complete */
	}
	return seen <= a->first ? 0 : (uint32_t)((seen < end ? seen : end) - a->first);
}

#define EACH 4u /* elements of a thread at a time, whose loads are under way together */

/* Element i of n lines. */
struct delta_element {
	unsigned row, at, channel;
};

GPU_FN struct delta_element element_of(const struct gpu_delta *a, const struct delta_channels *p, unsigned i)
{
	const unsigned width = width_of(a, p);
	struct delta_element x;

	x.row = i / width;
	x.at = i % width;
	x.channel = channel_of(a, p, x.at);
	return x;
}

/* silu of the convolution, the oldest tap first. */
GPU_FN void convolve(const struct gpu_delta *a, const struct delta_channels *p, const uint32_t *index, unsigned t,
		     unsigned n, float *lines)
{
	const unsigned all = n * width_of(a, p), line = line_of(a, p);
	const int before = (int)a->taps - 1;

	for (unsigned begin = gpu_thread(); begin < all; begin += EACH * THREADS) {
		struct delta_element x[EACH];
		float sum[EACH];

		GPU_UNROLL
		for (unsigned e = 0; e < EACH; e++) {
			const unsigned i = begin + e * THREADS;

			x[e] = element_of(a, p, i < all ? i : begin);
			sum[e] = 0;
		}
		GPU_UNROLL_N(2)
		for (unsigned i = 0; i < a->taps; i++) {
			GPU_UNROLL
			for (unsigned e = 0; e < EACH; e++)
				sum[e] += a->conv[(size_t)i * a->channels + x[e].channel] *
					  row_of(a, index, (int)(t + x[e].row + i) - before)[x[e].channel];
		}
		GPU_UNROLL
		for (unsigned e = 0; e < EACH; e++)
			if (begin + e * THREADS < all)
				lines[x[e].row * line + x[e].at] = gpu_canonical(sum[e] / (1 + gpu_exp(-sum[e])));
	}
}

/* Lines of rows [t, t + n), n from 1 to ROWS, after convolution and with lengths; and mixed. All threads; it ends with
 * a barrier. */
GPU_FN void mix_rows(const struct gpu_delta *a, struct delta_room *m, const struct delta_channels *p,
		     const uint32_t *index, unsigned t, unsigned n)
{
	const unsigned line = line_of(a, p), k = a->k_dim, half = gpu_thread() / GPU_LANES;
	float *lines = lines_of(m), sum;

	convolve(a, p, index, t, n, lines);
	gpu_sync(); /* a line is the work of many threads */
	/* Halves of warps have the queries and the keys of each row; those without a row go along. */
	sum = gpu_lanes_sum(GPU_SQUARES, lines + (half / 2 < n ? half / 2 : 0) * line + half % 2 * k, k, 0);
	if (gpu_thread() % GPU_LANES == 0)
		m->by[half] = (half % 2 == 0 ? 1 / sqrtf((float)k) : 1) / sqrtf(gpu_canonical(sum) + L2_EPS);
	gpu_sync(); /* lengths are known, and lines have been read: only now may they change */
	for (unsigned i = gpu_thread(); i < n * width_of(a, p); i += THREADS) {
		const struct delta_element x = element_of(a, p, i);
		float *u = &lines[x.row * line + x.at];

		if (x.at < 2 * k)
			*u = gpu_canonical(*u * m->by[2 * x.row + (x.at >= k)]);
		if (x.at >= 2 * k || p->keys)
			a->mixed[(size_t)(t + x.row) * a->channels + x.channel] = *u;
	}
	gpu_sync(); /* the caller reads whole lines */
}
static_assert(THREADS / GPU_LANES == 2 * ROWS, "mix_rows");

/* The channels that the next rows' convolutions will see. `to` is not `from` (ops.h), which other threads and blocks
 * still read: so no barrier is needed. */
GPU_FN void keep_channels(const struct gpu_delta *a, const struct delta_channels *p, const uint32_t *index, unsigned n)
{
	const unsigned kept = a->taps - 1, all = kept * width_of(a, p);

	for (unsigned begin = gpu_thread(); begin < all; begin += EACH * THREADS) {
		struct delta_element x[EACH];
		float u[EACH];

		GPU_UNROLL
		for (unsigned e = 0; e < EACH; e++) {
			const unsigned i = begin + e * THREADS;

			x[e] = element_of(a, p, i < all ? i : begin);
			u[e] = row_of(a, index, (int)(n + x[e].row) - (int)kept)[x[e].channel];
		}
		GPU_UNROLL
		for (unsigned e = 0; e < EACH; e++)
			if (begin + e * THREADS < all && (x[e].at >= 2 * a->k_dim || p->keys))
				a->to[(size_t)x[e].row * a->channels + x[e].channel] = u[e];
	}
}

/* ---- The recurrence, of a column in registers ---- */

GPU_FN size_t state_at(const struct gpu_delta *a, unsigned head)
{
	return a->state_at + (size_t)head * a->k_dim * a->v_dim;
}

/* Neighbours have neighbouring columns, so what a warp reads at once lies together. */
GPU_FN void load_column(const struct gpu_delta *a, unsigned head, unsigned column, float *s)
{
	const float *from = a->from + state_at(a, head) + column;
	const size_t stride = a->v_dim;

	if (column < a->v_dim) {
		GPU_UNROLL
		for (unsigned i = 0; i < K; i++, from += stride)
			s[i] = *from;
	} else {
		GPU_UNROLL
		for (unsigned i = 0; i < K; i++)
			s[i] = 0;
	}
}

GPU_FN void store_column(const struct gpu_delta *a, unsigned head, unsigned column, const float *s)
{
	float *to = a->to + state_at(a, head) + column;
	const size_t stride = a->v_dim;

	if (column >= a->v_dim)
		return;
	GPU_UNROLL
	for (unsigned i = 0; i < K; i++, to += stride)
		*to = gpu_canonical(s[i]);
}

/* s *= decay; returns its product with key [K]. */
GPU_FN float meet_first(float *s, const float *key, float decay)
{
	float sum = 0;

	GPU_UNROLL
	for (unsigned i = 0; i < K; i += 4) {
		const gpu_f4 k = gpu_load_f4(key + i);

		s[i] *= decay, sum = fmaf(s[i], k.x, sum);
		s[i + 1] *= decay, sum = fmaf(s[i + 1], k.y, sum);
		s[i + 2] *= decay, sum = fmaf(s[i + 2], k.z, sum);
		s[i + 3] *= decay, sum = fmaf(s[i + 3], k.w, sum);
	}
	return sum;
}

/* s += key * step; *out: its product with the query. */
GPU_FN void correct(float *s, const float *query, const float *key, float step, float *out)
{
	float sum = 0;

	GPU_UNROLL
	for (unsigned i = 0; i < K; i += 4) {
		const gpu_f4 q = gpu_load_f4(query + i), k = gpu_load_f4(key + i);

		s[i] = fmaf(k.x, step, s[i]), sum = fmaf(s[i], q.x, sum);
		s[i + 1] = fmaf(k.y, step, s[i + 1]), sum = fmaf(s[i + 1], q.y, sum);
		s[i + 2] = fmaf(k.z, step, s[i + 2]), sum = fmaf(s[i + 2], q.z, sum);
		s[i + 3] = fmaf(k.w, step, s[i + 3]), sum = fmaf(s[i + 3], q.w, sum);
	}
	*out = sum;
}

GPU_FN float correct_one(float s, float k, float step, float q, float decay, float next, float *out, float *sum)
{
	s = fmaf(k, step, s);
	*out = fmaf(s, q, *out);
	s *= decay;
	*sum = fmaf(s, next, *sum);
	return s;
}

/* correct(), then meet_first() with the next row's key and decay; returns what that does. */
GPU_FN float correct_and_meet(float *s, const float *query, const float *key, float step, const float *next,
			      float decay, float *out)
{
	float of_query = 0, sum = 0;

	GPU_UNROLL
	for (unsigned i = 0; i < K; i += 4) {
		const gpu_f4 q = gpu_load_f4(query + i), k = gpu_load_f4(key + i), x = gpu_load_f4(next + i);

		s[i] = correct_one(s[i], k.x, step, q.x, decay, x.x, &of_query, &sum);
		s[i + 1] = correct_one(s[i + 1], k.y, step, q.y, decay, x.y, &of_query, &sum);
		s[i + 2] = correct_one(s[i + 2], k.z, step, q.z, decay, x.z, &of_query, &sum);
		s[i + 3] = correct_one(s[i + 3], k.w, step, q.w, decay, x.w, &of_query, &sum);
	}
	*out = of_query;
	return sum;
}

/* The lines' rows; values become outputs. */
GPU_FN void few_rows(const struct delta_room *m, float *lines, unsigned line, unsigned n, unsigned column, bool is_one,
		     float *s)
{
	float sum = meet_first(s, lines + K, m->gate[0][0]);

	GPU_NO_UNROLL
	for (unsigned t = 0; t < n; t++, lines += line) {
		const float v = is_one ? lines[2 * K + column] : 0, step = (v - sum) * m->gate[1][t];
		float out;

		if (t + 1 < n)
			sum = correct_and_meet(s, lines, lines + K, step, lines + line + K, m->gate[0][t + 1], &out);
		else
			correct(s, lines, lines + K, step, &out);
		if (is_one)
			lines[2 * K + column] = gpu_canonical(out);
	}
}

/* ---- The recurrence, of any k_dim: the state is read twice ---- */

/* Runs rows [t, t + n) of the sequence. From the second row on a thread reads of the state what it has itself written:
 * so no barrier is needed between rows. */
GPU_FN void any_rows(const struct gpu_delta *a, const struct delta_room *m, float *lines, unsigned line, unsigned head,
		     unsigned t, unsigned n)
{
	const unsigned k = a->k_dim, v = a->v_dim;

	for (unsigned column = gpu_thread(); column < v; column += THREADS) {
		float *to = a->to + state_at(a, head) + column;

		for (unsigned r = 0; r < n; r++) {
			const float *query = lines + r * line, *key = query + k, decay = m->gate[0][r];
			const float *from = t + r == 0 ? a->from + state_at(a, head) + column : to;
			float *value = lines + r * line + 2 * k + column, sum = 0, out = 0, step;

			GPU_UNROLL_N(8)
			for (unsigned i = 0; i < k; i++)
				sum = fmaf(from[(size_t)i * v] * decay, key[i], sum);
			step = (*value - sum) * m->gate[1][r];
			GPU_UNROLL_N(4)
			for (unsigned i = 0; i < k; i++) {
				const float now = fmaf(key[i], step, from[(size_t)i * v] * decay);

				to[(size_t)i * v] = gpu_canonical(now);
				out = fmaf(now, query[i], out);
			}
			*value = gpu_canonical(out);
		}
	}
}

/* ---- Few rows: all of it by a block for each head ---- */

/* y and z of row r from what the recurrence gave, x [v_dim]. */
GPU_FN void end_row(const struct gpu_delta *a, unsigned head, uint32_t r, const float *x)
{
	const unsigned n = a->v_dim;
	const size_t at = ((size_t)r * a->n_heads + head) * n;
	float by = 1;

	if (a->z != NULL)
		by = 1.0f / sqrtf(gpu_canonical(gpu_lanes_sum(GPU_SQUARES, x, n, 0)) / (float)n + a->eps);
	for (unsigned i = gpu_thread(); i < n; i += THREADS) {
		const float y = a->z != NULL ? gpu_canonical(x[i] * by * a->norm[i]) : x[i];

		a->y[at + i] = y;
		if (a->z != NULL)
			a->z[at + i] = gpu_silu_mul(a->z[at + i], y);
	}
}

GPU_FN void few(const struct gpu_delta *a, const bool fixed)
{
	struct delta_room *m = (struct delta_room *)(void *)gpu_shared();
	const unsigned head = gpu_block_x(), t = gpu_thread() % ROWS, which = gpu_thread() / ROWS;
	const struct delta_channels p = channels_of(a, head);
	const unsigned line = line_of(a, &p);
	float s[K];
	unsigned n;

	if (fixed) /* first of all: these bytes take longest */
		load_column(a, head, gpu_thread(), s);
	n = find_rows(a, m->index, m->count);
	if (head == 0 && gpu_thread() < n)
		a->index[gpu_thread()] = m->index[gpu_thread()];
	if (n > 0) {
		if (which < 2 && t < n)
			m->gate[which][t] = gate_of(a, m->index[t], which, head);
		mix_rows(a, m, &p, m->index, 0, n);
		if (fixed)
			for (unsigned c = gpu_thread(); c < (a->v_dim + THREADS - 1) / THREADS * THREADS;
			     c += THREADS) {
				if (c >= THREADS)
					load_column(a, head, c, s);
				few_rows(m, lines_of(m), line, n, c, c < a->v_dim, s);
				store_column(a, head, c, s);
			}
		else
			any_rows(a, m, lines_of(m), line, head, 0, n);
		gpu_sync(); /* a row's outputs come from all columns, and end_row norms them together */
		for (unsigned r = 0; r < n; r++)
			end_row(a, head, m->index[r], lines_of(m) + r * line + 2 * a->k_dim);
	}
	keep_channels(a, &p, m->index, n);
}

GPU_ROOMY_KERNEL(gpu_delta_few_any, struct gpu_delta, GPU_DELTA_THREADS)
{
	few(&a, false);
}

GPU_KERNEL(gpu_delta_few_fixed, struct gpu_delta, GPU_DELTA_THREADS)
{
	few(&a, true);
}

gpu_delta_fn *const gpu_delta_few[2] = { gpu_delta_few_any, gpu_delta_few_fixed };

/* ---- Many rows ---- */

GPU_KERNEL(gpu_delta_find, struct gpu_delta, GPU_DELTA_FIND_THREADS)
{
	struct delta_room *m = (struct delta_room *)(void *)gpu_shared();
	const unsigned n = find_rows(&a, a.index, m->count);

	if (gpu_thread() == 0)
		*a.n_found = n;
}

GPU_KERNEL(gpu_delta_mix, struct gpu_delta, GPU_DELTA_THREADS)
{
	const unsigned n = *a.n_found, t = gpu_block_y() * a.at_once;
	struct delta_channels p;

	if (t >= n)
		return;
	p.key = gpu_block_x();
	p.values = a.n_heads / a.n_key_heads * a.v_dim; /* whichever heads': a convolution needs its channel only */
	p.first_value = p.key * p.values;
	p.keys = true;
	mix_rows(&a, (struct delta_room *)(void *)gpu_shared(), &p, a.index, t, n - t < a.at_once ? n - t : a.at_once);
}

GPU_ROOMY_KERNEL(gpu_delta_recur_any, struct gpu_delta, GPU_DELTA_THREADS)
{
	struct delta_room *m = (struct delta_room *)(void *)gpu_shared();
	const unsigned head = gpu_block_x(), n = *a.n_found, which = gpu_thread() / ROWS;
	const struct delta_channels p = channels_of(&a, head);
	const unsigned line = line_of(&a, &p), width = width_of(&a, &p);
	float *lines = lines_of(m);

	for (unsigned t = 0, some; t < n; t += some) {
		some = n - t < a.at_once ? n - t : a.at_once;
		if (which < 2 && gpu_thread() % ROWS < some)
			m->gate[which][gpu_thread() % ROWS] =
				gate_of(&a, a.index[t + gpu_thread() % ROWS], which, head);
		for (unsigned i = gpu_thread(); i < some * width; i += THREADS)
			lines[i / width * line + i % width] =
				a.mixed[(size_t)(t + i / width) * a.channels + channel_of(&a, &p, i % width)];
		gpu_sync(); /* lines and gates are there */
		any_rows(&a, m, lines, line, head, t, some);
		for (unsigned column = gpu_thread(); column < a.v_dim; column += THREADS)
			for (unsigned r = 0; r < some; r++)
				a.y[((size_t)a.index[t + r] * a.n_heads + head) * a.v_dim + column] =
					lines[r * line + 2 * a.k_dim + column];
		gpu_sync(); /* all have done with the lines, which the next rows overwrite */
	}
	keep_channels(&a, &p, a.index, n);
}

/* ROWS rows in shared memory, for the columns of a block; two of these take turns. */
struct ring {
	float query[ROWS][K], key[ROWS][K], value[ROWS][THREADS];
	float gate[2][ROWS];
	uint32_t index[ROWS];
};
static_assert(2 * sizeof(struct ring) == GPU_DELTA_RING && K == THREADS, "a thread has an element of each");

/* A thread's elements of a row on their way to shared memory. */
struct delta_ahead {
	float query[ROWS], key[ROWS], value[ROWS], gate;
	uint32_t index;
};

/* The row of the step whose gate this thread reads: of row t and the next. */
GPU_FN uint32_t index_ahead(const struct gpu_delta *a, unsigned t, unsigned n)
{
	const unsigned mine = t + gpu_thread() % ROWS;

	return gpu_thread() < 2 * ROWS && mine < n ? a->index[mine] : 0;
}

GPU_FN void read_ahead(const struct gpu_delta *a, unsigned head, unsigned column, unsigned t, unsigned n,
		       uint32_t index, struct delta_ahead *x)
{
	const struct delta_channels p = channels_of(a, head);
	const float *from = a->mixed + (size_t)t * a->channels;
	const unsigned q = channel_of(a, &p, gpu_thread()), k = channel_of(a, &p, K + gpu_thread());
	const unsigned v = column < a->v_dim ? channel_of(a, &p, 2 * K + column) : q;

	GPU_UNROLL
	for (unsigned r = 0; r < ROWS; r++, from += a->channels) {
		x->query[r] = t + r < n ? from[q] : 0;
		x->key[r] = t + r < n ? from[k] : 0;
		x->value[r] = t + r < n ? from[v] : 0;
	}
	x->index = index;
	x->gate = gpu_thread() < 2 * ROWS && t + gpu_thread() % ROWS < n ?
			  gate_of(a, index, gpu_thread() / ROWS, head) :
			  0;
}

GPU_FN void put_ahead(struct ring *ring, const struct delta_ahead *x)
{
	GPU_UNROLL
	for (unsigned r = 0; r < ROWS; r++) {
		ring->query[r][gpu_thread()] = x->query[r];
		ring->key[r][gpu_thread()] = x->key[r];
		ring->value[r][gpu_thread()] = x->value[r];
	}
	if (gpu_thread() < 2 * ROWS)
		ring->gate[gpu_thread() / ROWS][gpu_thread() % ROWS] = x->gate;
	if (gpu_thread() < ROWS)
		ring->index[gpu_thread()] = x->index;
}

/* While ROWS rows go by, the next ones are read. */
GPU_FN void all_rows(const struct gpu_delta *a, unsigned head, unsigned column, unsigned n, float *s)
{
	struct ring *ring = (struct ring *)(void *)gpu_shared();
	uint32_t index = index_ahead(a, 0, n);
	struct delta_ahead ahead;
	float sum;

	read_ahead(a, head, column, 0, n, index, &ahead);
	index = index_ahead(a, ROWS, n);
	put_ahead(&ring[0], &ahead);
	gpu_sync(); /* the first rows are there */
	sum = meet_first(s, ring[0].key[0], ring[0].gate[0][0]);
	GPU_NO_UNROLL
	for (unsigned t = 0; t < n; t++) {
		const unsigned at = t % ROWS, next = (t + 1) % ROWS;
		const struct ring *now = &ring[t / ROWS % 2], *then = &ring[(t + 1) / ROWS % 2];
		const float step = (now->value[at][gpu_thread()] - sum) * now->gate[1][at];
		float out;

		if (at == 0) {
			read_ahead(a, head, column, t + ROWS, n, index, &ahead);
			index = index_ahead(a, t + 2 * ROWS, n);
		}
		if (next == 0) {
			gpu_sync(); /* all have done with what is overwritten */
			put_ahead(&ring[(t + 1) / ROWS % 2], &ahead);
			gpu_sync(); /* the next rows are there */
		}
		if (t + 1 < n)
			sum = correct_and_meet(s, now->query[at], now->key[at], step, then->key[next],
					       then->gate[0][next], &out);
		else
			correct(s, now->query[at], now->key[at], step, &out);
		if (column < a->v_dim)
			a->y[((size_t)now->index[at] * a->n_heads + head) * a->v_dim + column] = gpu_canonical(out);
	}
}

GPU_KERNEL(gpu_delta_recur_fixed, struct gpu_delta, GPU_DELTA_THREADS)
{
	const unsigned head = gpu_block_x(), column = gpu_block_y() * THREADS + gpu_thread(), n = *a.n_found;
	const struct delta_channels p = channels_of(&a, head);
	float s[K];

	if (n > 0) {
		load_column(&a, head, column, s);
		all_rows(&a, head, column, n, s);
		store_column(&a, head, column, s);
	}
	if (gpu_block_y() == 0)
		keep_channels(&a, &p, a.index, n);
}

gpu_delta_fn *const gpu_delta_recur[2] = { gpu_delta_recur_any, gpu_delta_recur_fixed };

GPU_KERNEL(gpu_delta_end, struct gpu_delta, GPU_DELTA_THREADS)
{
	const unsigned values = a.n_heads * a.v_dim;
	size_t at;

	if (gpu_block_y() >= *a.n_found)
		return;
	at = (size_t)a.index[gpu_block_y()] * values;
	gpu_groups_rmsnorm(a.y + at, a.n_heads, a.v_dim, a.norm, a.eps);
	for (unsigned i = gpu_thread(); i < values; i += THREADS)
		a.z[at + i] = gpu_silu_mul(a.z[at + i], a.y[at + i]);
}
