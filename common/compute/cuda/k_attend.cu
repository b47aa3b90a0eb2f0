/* Attention over blocks of positions that do not depend on each other (OD_OP_ATTEND), as Flash-Decoding splits it; and the queries
 * of latent attention (OD_OP_LATENT_QUERY).
 *
 * A block of threads has a block of positions and some heads that share its keys and values. Scores: four neighbours eight lanes
 * apart share a key, each has 4 of the 16 lanes of its sums (backend.h); a thread has four keys and all heads, so that what it reads
 * of queries and keys meets in registers. Values: a thread has some elements of some heads, because their sums have an order. */
#include "common/compute/cuda/gpu_math.h"
#include "common/compute/cuda/gpu_weights.h"
#include "common/compute/cuda/kernels.h"

#define BLOCK GPU_ATTEND_BLOCK
#define PAGE GPU_KV_PAGE
#define PAGES (BLOCK / PAGE)
#define KEYS 4u /* of a thread at a time */
#define WARP_KEYS (KEYS * GPU_WARP / 4)
#define MAX_STEPS 4u /* of 16 elements of keys, read before they are used */
#define MAX_AHEAD 64u /* values, the same */
#define FOLD_AHEAD 16u
#define ABSORB_AHEAD 16u
#define MAX_VALUES 32u /* sums of a thread */
#define LOWEST (-FLT_MAX) /* as ATTN_LOWEST of cpu_kernels.h */

GPU_FN unsigned form_of(const bool bf16) /* of keys and values */
{
	return bf16 ? GPU_BF16 : GPU_F32;
}

GPU_FN unsigned bytes_of(const bool bf16, const unsigned n)
{
	return (unsigned)gpu_codes_bytes(form_of(bf16), n);
}

/* ---- A block's work ---- */

struct work {
	const struct gpu_attend *a;
	const uint32_t *table;		    /* the block's pages */
	const unsigned char *keys, *values; /* the kv head's in page 0 */
	uint32_t from, to;		    /* positions [from, to) of the block */
	uint32_t n_heads;
	size_t head; /* the first one, of all rows' */
	/* Shared memory: [BLOCK][H] scores, then their exponentials; [16][H]; [H][q_stride]; [PAGES] */
	float *score, *fold, *q;
	uint32_t *page;
	uint32_t q_stride;
};

GPU_FN uint32_t first_seen(uint32_t position, uint32_t window)
{
	return window != 0 && position >= window ? position + 1 - window : 0;
}

GPU_FN uint32_t stride_of(uint32_t k_dim) /* so that four elements are aligned */
{
	return (k_dim + 3) / 4 * 4;
}

/* False: the row has no such block. */
GPU_FN bool begin_work(const bool bf16, const unsigned H, const struct gpu_attend *a, struct work *w)
{
	const struct gpu_row *row = &a->rows[gpu_block_z()];
	const uint32_t begin = first_seen(row->position, a->window), block = begin / BLOCK + a->parts.first + gpu_block_x();
	const uint32_t group = a->n_heads / a->n_kv_heads, per_kv_head = (group + H - 1) / H;
	const uint32_t kv_head = gpu_block_y() / per_kv_head, first = gpu_block_y() % per_kv_head * H;

	if (block > row->position / BLOCK)
		return false;
	w->a = a;
	w->table = a->keys.tables + (size_t)row->table * a->keys.table_pages + block * PAGES;
	w->keys = a->keys.pages + (size_t)kv_head * bytes_of(bf16, 1) * a->k_dim;
	w->values = a->values.pages + (size_t)kv_head * bytes_of(bf16, 1) * a->v_dim;
	w->from = begin > block * BLOCK ? begin - block * BLOCK : 0;
	w->to = row->position - block * BLOCK < BLOCK ? row->position - block * BLOCK + 1 : BLOCK;
	w->n_heads = group - first < H ? group - first : H;
	w->head = (size_t)gpu_block_z() * a->n_heads + kv_head * group + first;
	w->score = (float *)(void *)gpu_shared();
	w->fold = w->score + BLOCK * H;
	w->q = w->fold + GPU_LANES * H;
	w->q_stride = stride_of(a->k_dim);
	w->page = (uint32_t *)(void *)(w->q + w->q_stride * H);
	return true;
}

/* Copies queries and page numbers to shared memory; many loads at a time. Heads behind the last one are as it, and not stored. */
GPU_FN void share(const unsigned T, const unsigned H, const struct work *w)
{
	const uint32_t n = w->a->k_dim;
	const float *q[GPU_ATTEND_HEADS];

	if (gpu_thread() >= w->from / PAGE && gpu_thread() <= (w->to - 1) / PAGE)
		w->page[gpu_thread()] = w->table[gpu_thread()];
	GPU_UNROLL
	for (unsigned h = 0; h < H; h++)
		q[h] = w->a->q + (w->head + (h < w->n_heads ? h : w->n_heads - 1)) * n;
	GPU_NO_UNROLL
	for (uint32_t i = gpu_thread(); i < n; i += 4 * T) {
		float v[4 * GPU_ATTEND_HEADS];

		GPU_UNROLL
		for (unsigned at = 0; at < 4 * H; at++)
			v[at] = i + at / H * T < n ? q[at % H][i + at / H * T] : 0;
		GPU_UNROLL
		for (unsigned at = 0; at < 4 * H; at++)
			if (i + at / H * T < n)
				w->q[at % H * w->q_stride + i + at / H * T] = v[at];
	}
	gpu_sync();
}

/* ---- Scores ---- */

/* sum[(j * H + h) * 4 + i]: of key j and head h, the thread's lane i. n steps from byte at of the keys on; q: from its element on. */
GPU_FN void add_keys(const bool bf16, const unsigned H, const unsigned n, const unsigned char *const *key, size_t at, const float *q,
		     uint32_t q_stride, float *sum)
{
	struct gpu_raw raw[MAX_STEPS * KEYS];

	GPU_UNROLL
	for (unsigned s = 0; s < n; s++) {
		GPU_UNROLL
		for (unsigned j = 0; j < KEYS; j++)
			raw[s * KEYS + j] = gpu_load_raw(bytes_of(bf16, 4), key[j] + at + bytes_of(bf16, 16) * s);
	}
	gpu_sync_warp(); /* or else the compiler moves loads behind what waits for others */
	GPU_UNROLL
	for (unsigned s = 0; s < n; s++) {
		float x[KEYS * 4];

		GPU_UNROLL
		for (unsigned j = 0; j < KEYS; j++)
			gpu_decode(form_of(bf16), 4, raw[s * KEYS + j], x + 4 * j);
		GPU_UNROLL
		for (unsigned h = 0; h < H; h++) {
			const gpu_f4 v = gpu_load_f4(q + h * q_stride + 16 * s);

			GPU_UNROLL
			for (unsigned j = 0; j < KEYS; j++) {
				float *to = sum + (j * H + h) * 4;

				to[0] = fmaf(x[4 * j], v.x, to[0]);
				to[1] = fmaf(x[4 * j + 1], v.y, to[1]);
				to[2] = fmaf(x[4 * j + 2], v.z, to[2]);
				to[3] = fmaf(x[4 * j + 3], v.w, to[3]);
			}
		}
	}
}

/* Element by element, of any alignment, from k on; lane: the thread's first one. */
GPU_FN void add_keys_slowly(const bool bf16, const unsigned H, const unsigned char *const *key, uint32_t k, unsigned lane,
			    const struct work *w, float *sum)
{
	GPU_NO_UNROLL
	for (; k < w->a->k_dim; k += 16) {
		GPU_UNROLL
		for (unsigned i = 0; i < 4; i++) {
			if (k + lane + i >= w->a->k_dim)
				continue;
			GPU_UNROLL
			for (unsigned j = 0; j < KEYS; j++) {
				float x;

				gpu_decode(form_of(bf16), 1, gpu_load_raw(bytes_of(bf16, 1), key[j] + (size_t)(k + i) * bytes_of(bf16, 1)), &x);
				GPU_UNROLL
				for (unsigned h = 0; h < H; h++) {
					float *to = sum + (j * H + h) * 4 + i;

					*to = fmaf(x, w->q[h * w->q_stride + k + lane + i], *to);
				}
			}
		}
	}
}

/* The thread's and its three neighbours' lanes of one head's sums with four keys: each gets the sum of another key. */
GPU_FN float fold_keys(const unsigned H, const float *sum, bool upper, bool odd)
{
	float four[4];

	GPU_UNROLL
	for (unsigned i = 0; i < 4; i++) {
		const float a = sum[i], b = sum[H * 4 + i], c = sum[2 * H * 4 + i], d = sum[3 * H * 4 + i];
		/* Lanes + 8 are two neighbours on. */
		const float even_key = (upper ? c : a) + gpu_shuffle_xor(upper ? a : c, 16);
		const float odd_key = (upper ? d : b) + gpu_shuffle_xor(upper ? b : d, 16);

		four[i] = (odd ? odd_key : even_key) + gpu_shuffle_xor(odd ? even_key : odd_key, 8);
	}
	return (four[0] + four[2]) + (four[1] + four[3]);
}

/* Of positions [first, first + WARP_KEYS) of the block, which are in one page; those of a thread are eight apart. */
GPU_FN void scores_of(const unsigned T, const bool bf16, const unsigned H, const struct work *w, uint32_t first, const unsigned char *page)
{
	const unsigned STEPS = bf16 ? MAX_STEPS : T == GPU_ATTEND_WIDE && H == 4 ? 1 : MAX_STEPS / 2; /* by registers */
	const unsigned part = gpu_lane() / 8, p = first + gpu_lane();
	float sum[KEYS * GPU_ATTEND_HEADS * 4], *score = w->score + p * H;
	const unsigned char *key[KEYS];
	uint32_t k = 0;

	GPU_UNROLL
	for (unsigned i = 0; i < KEYS * H * 4; i++)
		sum[i] = 0;
	GPU_UNROLL
	for (unsigned j = 0; j < KEYS; j++) { /* those that are not there are as others */
		const unsigned at = first + 8 * j + gpu_lane() % 8, low = at > w->from ? at : w->from;

		key[j] = page + (low < w->to ? low : w->to - 1) % PAGE * w->a->keys.row_bytes + bytes_of(bf16, 4) * part;
	}
	if (w->a->wide_keys) {
		const float *q = w->q + 4 * part;

		GPU_NO_UNROLL
		for (; k + 16 * STEPS <= w->a->k_dim; k += 16 * STEPS)
			add_keys(bf16, H, STEPS, key, (size_t)bytes_of(bf16, 1) * k, q + k, w->q_stride, sum);
		GPU_NO_UNROLL
		for (; STEPS > 1 && k + 16 <= w->a->k_dim; k += 16)
			add_keys(bf16, H, 1, key, (size_t)bytes_of(bf16, 1) * k, q + k, w->q_stride, sum);
	}
	add_keys_slowly(bf16, H, key, k, 4 * part, w, sum);
	GPU_UNROLL
	for (unsigned h = 0; h < H; h++) {
		/* Of key `part`, which is position p. */
		const float s = fold_keys(H, sum + h * 4, (part & 2) != 0, (part & 1) != 0);

		score[h] = p >= w->from && p < w->to ? s * w->a->scale : -INFINITY;
	}
}

GPU_FN void scores(const unsigned T, const bool bf16, const unsigned H, const struct work *w)
{
	const uint32_t each = BLOCK / (T / GPU_WARP), begin = gpu_warp() * each;

	GPU_NO_UNROLL
	for (uint32_t first = begin; first < begin + each; first += WARP_KEYS) {
		if (first < w->to && first + WARP_KEYS > w->from) {
			scores_of(T, bf16, H, w, first, w->keys + w->page[first / PAGE] * w->a->keys.page_bytes);
			continue;
		}
		GPU_UNROLL
		for (unsigned h = 0; h < H; h++)
			w->score[(first + gpu_lane()) * H + h] = -INFINITY;
	}
}

/* Scores become exp(score - the head's largest), which is stored with their sum; positions that are not there add 0. */
GPU_FN void exponentials(const unsigned T, const unsigned H, const struct work *w)
{
	const unsigned EACH = BLOCK / T * H, t = gpu_thread(), h = t % H;
	float v[BLOCK / GPU_ATTEND_THREADS * GPU_ATTEND_HEADS], most = LOWEST, s = 0;

	GPU_UNROLL
	for (unsigned i = 0; i < EACH; i++) { /* of head h: T is a multiple of H */
		v[i] = w->score[t + i * T];
		most = gpu_max(v[i], most);
	}
	GPU_UNROLL
	for (unsigned mask = GPU_WARP / 2; mask >= H; mask /= 2)
		most = gpu_max(gpu_shuffle_xor(most, mask), most);
	if (gpu_lane() < H)
		w->fold[gpu_warp() * H + h] = most;
	gpu_sync();
	GPU_UNROLL
	for (unsigned i = 0; i < T / GPU_WARP; i++)
		most = gpu_max(w->fold[i * H + h], most);
	GPU_UNROLL
	for (unsigned i = 0; i < EACH; i++)
		w->score[t + i * T] = gpu_exp(v[i] - most);
	gpu_sync();
	if (t < GPU_LANES * H) { /* lane t / H of head h */
		GPU_UNROLL
		for (unsigned i = 0; i < BLOCK / GPU_LANES; i++)
			s += w->score[i * GPU_LANES * H + t];
		w->fold[t] = s;
	}
	gpu_sync();
	if (t < w->n_heads) {
		const size_t to = (w->head + h) * w->a->parts.n + gpu_block_x();
		float lane[GPU_LANES];

		GPU_UNROLL
		for (unsigned i = 0; i < GPU_LANES; i++)
			lane[i] = w->fold[i * H + h];
		w->a->parts.max[to] = most;
		w->a->parts.sum[to] = gpu_fold(lane, GPU_LANES);
	}
}

/* ---- Values ---- */

/* acc[h * E + i] += x[i] * e[h], for the first n of AHEAD successive positions, in order; all: n is AHEAD. e: [positions][H] */
GPU_FN void add_values(const bool bf16, const unsigned H, const unsigned E, const unsigned N, const unsigned AHEAD, const bool all,
		       const unsigned char *value, uint32_t row_bytes, unsigned n, const float *e, float *acc)
{
	struct gpu_raw raw[MAX_AHEAD];

	GPU_UNROLL
	for (unsigned u = 0; u < AHEAD; u++)
		raw[u] = gpu_load_raw(bytes_of(bf16, E), value + (size_t)(all || u < n ? u : n - 1) * row_bytes);
	GPU_UNROLL
	for (unsigned u = 0; u < AHEAD; u++) {
		const float *weight = e + (all || u < n ? u : n - 1) * H;
		float x[4], by[GPU_ATTEND_HEADS];

		gpu_decode(form_of(bf16), E, raw[u], x);
		GPU_UNROLL
		for (unsigned h = 0; h < N; h += 4) {
			if (N % 4 == 0) {
				const gpu_f4 v = gpu_load_f4(weight + h);

				by[h] = v.x, by[h + 1] = v.y, by[h + 2] = v.z, by[h + 3] = v.w;
			} else {
				by[0] = weight[0];
				by[N - 1] = weight[N - 1];
			}
		}
		GPU_UNROLL
		for (unsigned i = 0; i < N * E; i++) {
			const float next = fmaf(x[i % E], by[i / E], acc[i]);

			acc[i] = all || u < n ? next : acc[i];
		}
	}
}

/* A thread has E elements of N heads. */
GPU_FN void values_of(const unsigned T, const bool bf16, const unsigned H, const unsigned E, const unsigned N, const struct work *w)
{
	const unsigned AHEAD = bytes_of(bf16, E) <= 4 ? MAX_AHEAD : MAX_AHEAD * 4 / bytes_of(bf16, E), groups = w->a->v_dim / E;
	const struct gpu_kv *s = &w->a->values;

	GPU_NO_UNROLL
	for (unsigned item = gpu_thread(); item < groups * (H / N); item += T) {
		const unsigned d = item % groups * E, head = item / groups * N;
		float acc[MAX_VALUES];

		if (head >= w->n_heads)
			continue;
		GPU_UNROLL
		for (unsigned i = 0; i < N * E; i++)
			acc[i] = 0;
		GPU_NO_UNROLL
		for (uint32_t p = w->from, next; p < w->to; p = next) {
			const unsigned char *value = w->values + w->page[p / PAGE] * s->page_bytes + p % PAGE * s->row_bytes +
						     (size_t)bytes_of(bf16, 1) * d;
			const uint32_t page_end = (p / PAGE + 1) * PAGE, row_bytes = (uint32_t)s->row_bytes;

			next = page_end < w->to ? page_end : w->to;
			GPU_NO_UNROLL
			for (; p + AHEAD <= next; p += AHEAD, value += (size_t)AHEAD * row_bytes)
				add_values(bf16, H, E, N, AHEAD, true, value, row_bytes, AHEAD, w->score + p * H + head, acc);
			GPU_NO_UNROLL
			for (; p < next; p += AHEAD / 2, value += (size_t)(AHEAD / 2) * row_bytes)
				add_values(bf16, H, E, N, AHEAD / 2, false, value, row_bytes, next - p, w->score + p * H + head, acc);
		}
		GPU_UNROLL
		for (unsigned h = 0; h < N; h++) {
			const size_t part = (w->head + head + h) * w->a->parts.n + gpu_block_x();

			GPU_UNROLL
			for (unsigned i = 0; i < E; i++)
				if (head + h < w->n_heads)
					w->a->parts.vector[part * w->a->v_dim + d + i] = acc[h * E + i];
		}
	}
}

GPU_FN unsigned less(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* By T threads. */
GPU_FN void attend_of(const unsigned T, const bool bf16, const unsigned H, const struct gpu_attend *a)
{
	struct work w;

	if (!begin_work(bf16, H, a, &w))
		return;
	share(T, H, &w);
	scores(T, bf16, H, &w);
	gpu_sync();
	exponentials(T, H, &w);
	/* gpu_attend_ways */
	if (a->v_each == 4)
		values_of(T, bf16, H, 4, H, &w);
	else if (a->v_each == 1)
		values_of(T, bf16, H, 1, less(H, 4), &w);
	else if (H == 1 || H == 8 || a->v_heads == H)
		values_of(T, bf16, H, 2, less(H, 4), &w);
	else
		values_of(T, bf16, H, 2, H / 2, &w);
}

#define ATTEND(kernel, name, threads, bf16, heads)   \
	kernel(name, struct gpu_attend, threads)     \
	{                                            \
		attend_of(threads, bf16, heads, &a); \
	}

ATTEND(GPU_KERNEL, gpu_attend_f32_1, 128, false, 1)
ATTEND(GPU_KERNEL, gpu_attend_f32_2, 128, false, 2)
ATTEND(GPU_KERNEL, gpu_attend_f32_4, 128, false, 4)
ATTEND(GPU_KERNEL, gpu_attend_f32_8, 128, false, 8)
ATTEND(GPU_KERNEL, gpu_attend_bf16_1, 128, true, 1)
ATTEND(GPU_KERNEL, gpu_attend_bf16_2, 128, true, 2)
ATTEND(GPU_KERNEL, gpu_attend_bf16_4, 128, true, 4)
ATTEND(GPU_KERNEL, gpu_attend_bf16_8, 128, true, 8)
ATTEND(GPU_ROOMY_KERNEL, gpu_attend_wide_f32_1, 256, false, 1)
ATTEND(GPU_ROOMY_KERNEL, gpu_attend_wide_f32_2, 256, false, 2)
ATTEND(GPU_ROOMY_KERNEL, gpu_attend_wide_f32_4, 256, false, 4)
ATTEND(GPU_ROOMY_KERNEL, gpu_attend_wide_bf16_1, 256, true, 1)
ATTEND(GPU_ROOMY_KERNEL, gpu_attend_wide_bf16_2, 256, true, 2)
ATTEND(GPU_ROOMY_KERNEL, gpu_attend_wide_bf16_4, 256, true, 4)

gpu_attend_fn *const gpu_attend[2][2][4] = {
	{ { gpu_attend_f32_1, gpu_attend_f32_2, gpu_attend_f32_4, gpu_attend_f32_8 },
	  { gpu_attend_bf16_1, gpu_attend_bf16_2, gpu_attend_bf16_4, gpu_attend_bf16_8 } },
	{ { gpu_attend_wide_f32_1, gpu_attend_wide_f32_2, gpu_attend_wide_f32_4, NULL },
	  { gpu_attend_wide_bf16_1, gpu_attend_wide_bf16_2, gpu_attend_wide_bf16_4, NULL } },
};

size_t gpu_attend_shared(uint32_t heads, uint32_t k_dim)
{
	return ((size_t)BLOCK + GPU_LANES + (k_dim + 3) / 4 * 4) * heads * sizeof(float) + PAGES * sizeof(uint32_t);
}

/* ---- The fold ---- */

/* What a head has so far. */
struct head {
	float max, sum, value;
};

/* Of up to GPU_FOLD_THREADS blocks; shared memory. */
struct factors {
	float *most, *keep, *add, *sum;
};

/* Thread i: block i of n. The head's maximum changes to what it is behind them; low and high are those around block i. */
GPU_FN void fold_factors(const struct factors *f, const float *max, const float *sum, unsigned n, struct head *h)
{
	const unsigned t = gpu_thread();
	const float mine = t < n ? max[t] : LOWEST;
	float low, high;

	f->most[t] = mine;
	gpu_sync();
	for (unsigned by = 1; by < n; by *= 2) { /* the greatest of blocks 0 to t */
		const float before = t >= by ? f->most[t - by] : LOWEST;

		gpu_sync();
		f->most[t] = gpu_max(before, f->most[t]);
		gpu_sync();
	}
	low = t > 0 ? gpu_max(h->max, f->most[t - 1]) : h->max;
	high = gpu_max(h->max, f->most[t]);
	f->keep[t] = gpu_exp(low - high);
	f->add[t] = gpu_exp(mine - high);
	f->sum[t] = t < n ? sum[t] : 0;
	h->max = gpu_max(h->max, f->most[n - 1]);
	gpu_sync();
}

/* Blocks [i, i + n); all: n is FOLD_AHEAD. */
GPU_FN void fold_blocks(const bool all, const struct factors *f, unsigned i, unsigned n, const float *vector, size_t stride, struct head *h)
{
	float x[FOLD_AHEAD];

	GPU_UNROLL
	for (unsigned u = 0; u < FOLD_AHEAD; u++)
		x[u] = vector[(i + (all || u < n ? u : n - 1)) * stride];
	gpu_sync_warp();
	GPU_UNROLL
	for (unsigned u = 0; u < FOLD_AHEAD; u++) {
		if (!all && u >= n)
			continue;
		h->sum = fmaf(f->sum[i + u], f->add[i + u], h->sum * f->keep[i + u]);
		h->value = fmaf(x[u], f->add[i + u], h->value * f->keep[i + u]);
	}
}

GPU_KERNEL(gpu_attend_fold, struct gpu_attend_fold, GPU_FOLD_THREADS)
{
	const uint32_t element = gpu_block_x() * GPU_FOLD_THREADS + gpu_thread(), d = element < a.v_dim ? element : a.v_dim - 1;
	const size_t head = (size_t)gpu_block_z() * a.n_heads + gpu_block_y(), part = head * a.parts.n;
	const uint32_t position = a.rows[gpu_block_z()].position;
	const uint32_t all = position / BLOCK - first_seen(position, a.window) / BLOCK + 1;
	const uint32_t left = all > a.parts.first ? all - a.parts.first : 0, n = left < a.parts.n ? left : a.parts.n;
	float *shared = (float *)(void *)gpu_shared(), *out = a.out + head * a.v_dim + d;
	const struct factors f = { shared, shared + GPU_FOLD_THREADS, shared + 2 * GPU_FOLD_THREADS, shared + 3 * GPU_FOLD_THREADS };
	struct head h = { LOWEST, 0, 0 };

	if (a.before != NULL) {
		h.max = a.before[2 * head], h.sum = a.before[2 * head + 1], h.value = *out;
	} else if (a.sinks != NULL) {
		h.max = a.sinks[gpu_block_y()], h.sum = 1;
	}
	for (uint32_t first = 0; first < n; first += GPU_FOLD_THREADS) {
		const unsigned here = n - first < GPU_FOLD_THREADS ? n - first : GPU_FOLD_THREADS;
		const float *vector = a.parts.vector + (part + first) * a.v_dim + d;
		unsigned i = 0;

		fold_factors(&f, a.parts.max + part + first, a.parts.sum + part + first, here, &h);
		GPU_NO_UNROLL
		for (; i + FOLD_AHEAD <= here; i += FOLD_AHEAD)
			fold_blocks(true, &f, i, FOLD_AHEAD, vector, a.v_dim, &h);
		if (i < here)
			fold_blocks(false, &f, i, here - i, vector, a.v_dim, &h);
		gpu_sync();
	}
	if (element < a.v_dim)
		*out = a.after != NULL ? h.value : gpu_canonical(h.value / h.sum);
	if (element == 0 && a.after != NULL)
		a.after[2 * head] = h.max, a.after[2 * head + 1] = h.sum;
}

/* ---- Queries of latent attention ---- */

/* Behind the absorbed part: the rotated one. */
GPU_FN void turn_query(const struct gpu_turn *t, const float *q, const float *cos_sin, float *to)
{
	const unsigned half = t->dims / 2;

	GPU_NO_UNROLL
	for (unsigned i = gpu_thread(); i < half; i += GPU_ABSORB_THREADS) {
		const unsigned first = t->neighbours ? 2 * i : i, second = t->neighbours ? 2 * i + 1 : half + i;
		const float x = q[first], y = q[second], c = cos_sin[i], s = cos_sin[half + i];

		to[first] = x * c - y * s;
		to[second] = y * c + x * s;
	}
	if (t->dims % 2 != 0 && gpu_thread() == 0)
		to[t->dims - 1] = q[t->dims - 1];
}

/* sum[r] += q[i][r] * element e of row `row + i` of kv_b, for i below AHEAD, in order. q: [][R] */
GPU_FN void add_weights(const unsigned form, const unsigned R, const unsigned AHEAD, const struct gpu_mat *m, size_t row, uint32_t e,
			const float *q, float *sum)
{
	float w[ABSORB_AHEAD], scale[ABSORB_AHEAD];

	GPU_UNROLL
	for (unsigned u = 0; u < AHEAD; u++)
		w[u] = gpu_code_at(form, m->data + (row + u) * m->row_bytes, e);
	if (gpu_is_scaled(form)) {
		const uint32_t groups = (m->n_in + m->group - 1) / m->group, group = e / m->group;

		GPU_UNROLL
		for (unsigned u = 0; u < AHEAD; u++)
			scale[u] = gpu_scale_at(m, (row + u) * groups + group);
	}
	gpu_sync_warp();
	GPU_UNROLL
	for (unsigned u = 0; u < AHEAD; u++) {
		const float weight = gpu_is_scaled(form) ? w[u] * scale[u] : w[u];

		GPU_UNROLL
		for (unsigned r = 0; r < R; r++)
			sum[r] = fmaf(q[u * R + r], weight, sum[r]);
	}
}

/* A thread has an element of the latent, of R rows. */
GPU_FN void absorb_of(const unsigned form, const unsigned R, const struct gpu_absorb *a)
{
	const unsigned AHEAD = gpu_is_scaled(form) ? ABSORB_AHEAD / 2 : ABSORB_AHEAD;
	const uint32_t head = gpu_block_y(), first = gpu_block_z() * R, n_rows = a->n_rows - first < R ? a->n_rows - first : R;
	const uint32_t q_dim = a->nope_dim + a->turn.dims, out_dim = a->rank + a->turn.dims;
	const uint32_t element = gpu_block_x() * GPU_ABSORB_THREADS + gpu_thread(), e = element < a->rank ? element : a->rank - 1;
	const size_t q_stride = (size_t)a->n_heads * q_dim, out_stride = (size_t)a->n_heads * out_dim;
	const float *q = a->q + first * q_stride + (size_t)head * q_dim;
	float *out = a->out + first * out_stride + (size_t)head * out_dim, *shared = (float *)(void *)gpu_shared();
	float sum[GPU_PRODUCT_ROWS];

	GPU_UNROLL
	for (unsigned r = 0; r < R; r++)
		sum[r] = 0;
	for (uint32_t begin = 0; begin < a->nope_dim; begin += GPU_ABSORB_EACH) {
		const uint32_t n = a->nope_dim - begin < GPU_ABSORB_EACH ? a->nope_dim - begin : GPU_ABSORB_EACH;
		const size_t row = (size_t)head * (a->nope_dim + a->v_dim) + begin;
		uint32_t i = 0;

		gpu_sync();
		GPU_NO_UNROLL
		for (uint32_t k = gpu_thread(); k < n; k += GPU_ABSORB_THREADS) {
			GPU_UNROLL
			for (unsigned r = 0; r < R; r++) /* those behind the last row are as it, and not stored */
				shared[k * R + r] = q[(r < n_rows ? r : n_rows - 1) * q_stride + begin + k];
		}
		gpu_sync();
		GPU_NO_UNROLL
		for (; i + AHEAD <= n; i += AHEAD)
			add_weights(form, R, AHEAD, &a->kv_b, row + i, e, shared + i * R, sum);
		GPU_NO_UNROLL
		for (; i < n; i++)
			add_weights(form, R, 1, &a->kv_b, row + i, e, shared + i * R, sum);
	}
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++)
		if (r < n_rows && element < a->rank)
			out[r * out_stride + e] = gpu_canonical(sum[r]);
	GPU_NO_UNROLL
	for (uint32_t r = 0; r < n_rows && gpu_block_x() == 0; r++)
		turn_query(&a->turn, q + r * q_stride + a->nope_dim, a->turn.angles + (size_t)(first + r) * a->turn.dims,
			   out + r * out_stride + a->rank);
}

#define ABSORB(form, rows)                                                                   \
	GPU_ROOMY_KERNEL(gpu_absorb_##form##_##rows, struct gpu_absorb, GPU_ABSORB_THREADS) \
	{                                                                                   \
		absorb_of(form, rows, &a);                                                  \
	}
#define FORM(form) ABSORB(form, 1) ABSORB(form, 8)
#define NAMES(form) { gpu_absorb_##form##_1, gpu_absorb_##form##_8 }

FORM(GPU_BF16)
FORM(GPU_F16)
FORM(GPU_F32)
FORM(GPU_E4M3)
FORM(GPU_E5M2)
FORM(GPU_SCALED_I8)
FORM(GPU_SCALED_U8)
FORM(GPU_SCALED_U4)
FORM(GPU_SCALED_E2M1)
FORM(GPU_SCALED_E4M3)
FORM(GPU_SCALED_E5M2)

gpu_absorb_fn *const gpu_absorb[GPU_N_FORMS][2] = {
	NAMES(GPU_BF16), NAMES(GPU_F16), NAMES(GPU_F32), NAMES(GPU_E4M3), NAMES(GPU_E5M2), { NULL, NULL }, { NULL, NULL },
	{ NULL, NULL }, NAMES(GPU_SCALED_I8), NAMES(GPU_SCALED_U8), NAMES(GPU_SCALED_U4), NAMES(GPU_SCALED_E2M1),
	NAMES(GPU_SCALED_E4M3), NAMES(GPU_SCALED_E5M2),
};
