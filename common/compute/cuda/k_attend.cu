/* Attention over blocks of positions that do not depend on each other (OD_OP_ATTEND), as Flash-Decoding splits it; and
 * the queries of latent attention (OD_OP_LATENT_QUERY).
 *
 * A block of threads has a block of positions and some heads that share its keys and values, which come through a ring
 * in shared memory: the memory always has requests, also while threads compute. Scores: four neighbours eight lanes
 * apart share a key, each has 4 of the 16 lanes of its sums (backend.h); a thread has some keys and all heads, so that
 * what it reads of queries and keys meets in registers. Values: a thread has some elements of some heads, because their
 * sums have an order. */
#include "common/compute/cuda/gpu_blocks.h"
#include "common/compute/cuda/gpu_math.h"
#include "common/compute/cuda/gpu_weights.h"
#include "common/compute/cuda/kernels.h"

#define BLOCK GPU_ATTEND_BLOCK
#define PAGE GPU_KV_PAGE
#define PAGES (BLOCK / PAGE)
#define STEP GPU_LANES /* elements of a key that its four threads read together */
#define QUAD 4u /* positions whose weights are read together */
#define QUADS 4u /* between two jumps */
#define FOLD_AHEAD 64u /* blocks whose vectors the fold reads before it needs them; divides GPU_FOLD_THREADS */
#define FOLD_EACH 16u /* blocks at a time, so that a row of few blocks does not pay for all */
#define ABSORB_AHEAD 16u
#define LOWEST (-FLT_MAX) /* as ATTN_LOWEST of cpu_kernels.h */

/* The ring, at the beginning of shared memory: [SLOTS][warps] stages. A warp copies keys for itself: a stage is a piece
 * of each of KEYS * 8 keys. A stage of values is a whole slot: a piece of each of successive positions' values, of
 * which each warp copies a share to its own range. So values are on their way as soon as the warp has read its last
 * keys, whatever the others do. */
#define SLOTS 2u
#define UNIT 16u /* bytes that a thread copies at a time */
#define KEY_PIECE 128u
#define VALUE_PIECE 256u
#define KEY_UNITS (KEY_PIECE / UNIT)
#define VALUE_UNITS (VALUE_PIECE / UNIT)
/* keys of a thread; by registers, and by room */
#define KEYS(threads, heads) ((threads) == GPU_ATTEND_THREADS && (heads) < 8 ? 4u : 2u)
#define STAGE(threads, heads) (KEYS(threads, heads) * (GPU_WARP / 4) * KEY_PIECE) /* bytes */
#define SLOT(threads, heads) ((threads) / GPU_WARP * STAGE(threads, heads))
#define RING(threads, heads) (SLOTS * SLOT(threads, heads))

#define MAX_KEYS 4u
#define MAX_SUMS 64u /* a thread's: keys, heads and lanes */
#define MAX_VALUES 16u /* a thread's: elements and heads */

GPU_FN unsigned coding_of(const bool bf16) /* coding of keys and values */
{
	return bf16 ? GPU_BF16 : GPU_F32;
}

GPU_FN unsigned bytes_of(const bool bf16, const unsigned n)
{
	return (unsigned)gpu_codes_bytes(coding_of(bf16), n);
}

/* ---- A block's work ---- */

struct attend_work {
	const struct gpu_attend *a;
	uint32_t from, to; /* positions [from, to) of the block */
	uint32_t n_heads, head; /* head: the first one, of all rows' */
	uint32_t kv_head, page; /* page: the thread's one of the block's */
	uint32_t q_stride;
};

/* Shared memory behind the ring. Where something is, takes no registers. */
GPU_FN float *score_at(const unsigned T, const unsigned H) /* [H][BLOCK], then their exponentials */
{
	return (float *)(void *)(gpu_shared() + RING(T, H));
}

GPU_FN const unsigned char **key_pages(const unsigned T, const unsigned H) /* [PAGES]: where the kv head's are */
{
	return (const unsigned char **)(void *)(score_at(T, H) + BLOCK * H);
}

GPU_FN const unsigned char **value_pages(const unsigned T, const unsigned H)
{
	return key_pages(T, H) + PAGES;
}

GPU_FN float *query_at(const unsigned T, const unsigned H) /* [H][q_stride] */
{
	return (float *)(void *)(value_pages(T, H) + PAGES);
}

GPU_FN uint32_t first_seen(uint32_t position, uint32_t window)
{
	return window != 0 && position >= window ? position + 1 - window : 0;
}

/* Page i of the block has positions that the row sees. */
GPU_FN bool has_page(const struct attend_work *w, unsigned i)
{
	return i >= w->from / PAGE && i <= (w->to - 1) / PAGE;
}

/* False: the row has no such block. */
GPU_FN bool begin_work(const unsigned H, const struct gpu_attend *a, struct attend_work *w)
{
	const struct gpu_row *row = &a->rows[gpu_block_z()];
	const uint32_t begin = first_seen(row->position, a->window),
		       block = begin / BLOCK + a->splits.first + gpu_block_y();
	const uint32_t kv_head = gpu_block_x() / a->groups, first = gpu_block_x() % a->groups * H;

	if (block > row->position / BLOCK)
		return false;
	w->a = a;
	w->from = begin > block * BLOCK ? begin - block * BLOCK : 0;
	w->to = row->position - block * BLOCK < BLOCK ? row->position - block * BLOCK + 1 : BLOCK;
	w->n_heads = a->group - first < H ? a->group - first : H;
	w->head = gpu_block_z() * a->n_heads + kv_head * a->group + first;
	w->q_stride = (a->k_dim + STEP - 1) / STEP * STEP;
	w->kv_head = kv_head;
	w->page = 0;
	if (has_page(w, gpu_thread()))
		w->page = a->keys.tables[(size_t)row->table * a->keys.table_pages + block * PAGES + gpu_thread()];
	return true;
}

/* Where the kv head's keys and values are in the block's pages. */
GPU_FN void share_pages(const unsigned T, const bool bf16, const unsigned H, const struct attend_work *w)
{
	const size_t vector = (size_t)w->kv_head * bytes_of(bf16, 1);

	if (!has_page(w, gpu_thread()))
		return;
	key_pages(T, H)[gpu_thread()] = w->a->keys.pages + w->page * w->a->keys.page_bytes + vector * w->a->k_dim;
	value_pages(T, H)[gpu_thread()] = w->a->values.pages + w->page * w->a->values.page_bytes + vector * w->a->v_dim;
}

/* ---- Copies to shared memory ---- */

/* A unit: n bytes, which are whole elements of any alignment, and zeros behind them. */
GPU_FN void copy_slowly(const bool bf16, unsigned char *to, const unsigned char *from, uint32_t n)
{
	const unsigned each = bytes_of(bf16, 1);
	uint32_t word[UNIT / 4] = { 0, 0, 0, 0 };
	gpu_u4 v;

	GPU_UNROLL
	for (unsigned i = 0; i < UNIT / each; i++)
		if (i * each < n)
			word[i * each / 4] |= gpu_read_raw(each, from + i * each).w[0] << 8 * (i * each % 4);
	v.x = word[0], v.y = word[1], v.z = word[2], v.w = word[3];
	gpu_store_16(to, v);
}

/* The thread's unit of a row, from byte `at` of `bytes` on; aligned: to UNIT. */
GPU_FN void copy_unit(const bool bf16, bool aligned, unsigned char *to, const unsigned char *from, uint32_t at,
		      uint32_t bytes)
{
	if (aligned && at + UNIT <= bytes)
		gpu_copy_16(gpu_shared_address(to), from);
	else
		copy_slowly(bf16, to, from, at < bytes ? bytes - at : 0);
}

/* The queries, with zeros up to whole steps; heads behind the last one are as it, and not stored. */
GPU_FN void copy_queries(const unsigned T, const unsigned H, const struct attend_work *w)
{
	GPU_NO_UNROLL
	for (unsigned h = gpu_warp(); h < H; h += T / GPU_WARP) {
		const float *q = w->a->q + (size_t)(w->head + (h < w->n_heads ? h : w->n_heads - 1)) * w->a->k_dim;

		GPU_NO_UNROLL
		for (uint32_t i = gpu_lane() * (UNIT / 4); i < w->q_stride; i += GPU_WARP * (UNIT / 4))
			copy_unit(false, w->a->aligned_queries,
				  (unsigned char *)(void *)(query_at(T, H) + h * w->q_stride + i),
				  (const unsigned char *)(const void *)(q + i), i * 4, w->a->k_dim * 4);
	}
	gpu_end_copies();
}

/* A stage: positions [first, ...) of the block and a piece of columns. */
struct attend_stage {
	uint32_t first, piece;
};

/* Positions whose keys a warp has. */
GPU_FN uint32_t warp_keys(const unsigned T)
{
	return BLOCK / (T / GPU_WARP);
}

/* Keys of a stage; they are in one page. */
GPU_FN uint32_t stage_keys(const unsigned T, const unsigned H)
{
	return KEYS(T, H) * (GPU_WARP / 4);
}

GPU_FN uint32_t key_pieces(const bool bf16, const struct attend_work *w)
{
	return (bytes_of(bf16, 1) * w->a->k_dim + KEY_PIECE - 1) / KEY_PIECE;
}

/* By pieces, then by positions. */
GPU_FN struct attend_stage next_keys(const unsigned T, const bool bf16, const unsigned H, const struct attend_work *w,
				     struct attend_stage s)
{
	s.piece++;
	if (s.piece == key_pieces(bf16, w)) {
		s.piece = 0;
		s.first += stage_keys(T, H);
	}
	return s;
}

/* The row sees keys of the stage. */
GPU_FN bool has_keys(const unsigned T, const unsigned H, const struct attend_work *w, uint32_t first)
{
	return first < w->to && first + stage_keys(T, H) > w->from;
}

/* All of a stage, also those that the row does not see. The units of key i are in an order of its own: so what eight
 * lanes read of eight keys is in different banks. */
GPU_FN void copy_keys(const unsigned T, const bool bf16, const unsigned H, const struct attend_work *w, unsigned slot,
		      struct attend_stage s)
{
	const unsigned row = gpu_lane() / KEY_UNITS, ROWS = GPU_WARP / KEY_UNITS, N = stage_keys(T, H) / ROWS;
	const uint32_t row_bytes = (uint32_t)w->a->keys.row_bytes, bytes = bytes_of(bf16, 1) * w->a->k_dim;
	const uint32_t at = s.piece * KEY_PIECE + gpu_lane() % KEY_UNITS * UNIT;
	const uint32_t even = slot * SLOT(T, H) + gpu_warp() * STAGE(T, H) + (gpu_lane() ^ row) * UNIT,
		       odd = even ^ ROWS * UNIT;
	const unsigned char *from;

	if (!has_keys(T, H, w, s.first))
		return;
	from = key_pages(T, H)[s.first / PAGE] + ((s.first % PAGE + row) * row_bytes + at);
	if (w->a->aligned_keys && s.piece < bytes / KEY_PIECE) {
		GPU_UNROLL
		for (unsigned i = 0; i < N; i++)
			gpu_copy_16(gpu_shared_address(gpu_shared()) + (i % 2 ? odd : even) + i * ROWS * KEY_PIECE,
				    from + (size_t)(i * ROWS) * row_bytes);
		return;
	}
	GPU_NO_UNROLL
	for (unsigned i = 0; i < N && at < bytes_of(bf16, 1) * w->q_stride; i++)
		copy_unit(bf16, w->a->aligned_keys, gpu_shared() + (i % 2 ? odd : even) + i * ROWS * KEY_PIECE,
			  from + (size_t)(i * ROWS) * row_bytes, at, bytes);
}

/* Positions of a stage of values; those of a warp's share are in one page. */
GPU_FN uint32_t stage_values(const unsigned T, const unsigned H)
{
	return SLOT(T, H) / VALUE_PIECE;
}

GPU_FN struct attend_stage first_values(const unsigned T, const unsigned H, const struct attend_work *w)
{
	struct attend_stage s;

	s.first = w->from / stage_values(T, H) * stage_values(T, H);
	s.piece = 0;
	return s;
}

/* By positions, then by pieces. */
GPU_FN struct attend_stage next_values(const unsigned T, const unsigned H, const struct attend_work *w,
				       struct attend_stage s)
{
	s.first += stage_values(T, H);
	if (s.first >= w->to) {
		s.first = w->from / stage_values(T, H) * stage_values(T, H);
		s.piece++;
	}
	return s;
}

/* The warp's share, if there is such a stage. */
GPU_FN void copy_values(const unsigned T, const bool bf16, const unsigned H, const struct attend_work *w, unsigned slot,
			struct attend_stage s)
{
	const unsigned ROWS = GPU_WARP / VALUE_UNITS, N = STAGE(T, H) / VALUE_PIECE / ROWS;
	const uint32_t row_bytes = (uint32_t)w->a->values.row_bytes, bytes = bytes_of(bf16, 1) * w->a->v_dim;
	const uint32_t at = s.piece * VALUE_PIECE + gpu_lane() % VALUE_UNITS * UNIT,
		       first = s.first + gpu_warp() * N * ROWS;
	unsigned char *to = gpu_shared() + slot * SLOT(T, H) + gpu_warp() * STAGE(T, H) + gpu_lane() * UNIT;
	const unsigned char *from;

	if (s.piece * VALUE_PIECE >= bytes)
		return;
	from = value_pages(T, H)[first / PAGE] + ((first % PAGE + gpu_lane() / VALUE_UNITS) * row_bytes + at);
	if (w->a->aligned_values && s.piece < bytes / VALUE_PIECE) {
		GPU_UNROLL
		for (unsigned i = 0; i < N; i++)
			gpu_copy_16(gpu_shared_address(to) + i * ROWS * VALUE_PIECE,
				    from + (size_t)(i * ROWS) * row_bytes);
		return;
	}
	GPU_NO_UNROLL
	for (unsigned i = 0; i < N && at < bytes; i++)
		copy_unit(bf16, w->a->aligned_values, to + i * ROWS * VALUE_PIECE,
			  from + (size_t)(i * ROWS) * row_bytes, at, bytes);
}

/* ---- Scores ---- */

/* sum[(j * H + h) * 4 + i]: of key j and head h, the thread's lane i. n steps of the ring's keys: the one at `at`, and
 * others that differ from it in some bits of the address. q: from the thread's element on. */
GPU_FN void add_keys(const bool bf16, const unsigned K, const unsigned H, const unsigned n, uint32_t at, const float *q,
		     uint32_t q_stride, float *sum)
{
	GPU_UNROLL
	for (unsigned s = 0; s < n; s++) {
		float x[MAX_KEYS * 4];

		GPU_UNROLL
		for (unsigned j = 0; j < K; j++) {
			const unsigned other = j * (GPU_WARP / 4) * KEY_PIECE + s * bytes_of(bf16, STEP);

			gpu_decode(coding_of(bf16), 4, gpu_read_raw(bytes_of(bf16, 4), gpu_shared() + (at ^ other)),
				   x + 4 * j);
		}
		GPU_UNROLL
		for (unsigned h = 0; h < H; h++) {
			const gpu_f4 v = gpu_load_f4(q + h * q_stride + s * STEP);

			GPU_UNROLL
			for (unsigned j = 0; j < K; j++) {
				float *to = sum + (j * H + h) * 4;

				to[0] = fmaf(x[4 * j], v.x, to[0]);
				to[1] = fmaf(x[4 * j + 1], v.y, to[1]);
				to[2] = fmaf(x[4 * j + 2], v.z, to[2]);
				to[3] = fmaf(x[4 * j + 3], v.w, to[3]);
			}
		}
	}
}

/* A stage has K groups of eight keys. A thread's key j is of group first_eight ^ j. So when neighbours exchange sums
 * (fold_keys), all give what is in the same registers. */
GPU_FN unsigned first_eight(const unsigned K)
{
	return gpu_lane() / (32 / K);
}

GPU_FN void add_piece(const unsigned T, const bool bf16, const unsigned H, const struct attend_work *w, uint32_t piece,
		      unsigned slot, float *sum)
{
	const unsigned COLUMNS = KEY_PIECE / bytes_of(bf16, 1), TOGETHER = H == 8 ? 1 : 2, row = gpu_lane() % 8;
	const unsigned byte = bytes_of(bf16, 4) * (gpu_lane() / 8);
	const uint32_t left = w->q_stride - piece * COLUMNS;
	const float *q = query_at(T, H) + piece * COLUMNS + 4 * (gpu_lane() / 8);
	uint32_t at = slot * SLOT(T, H) + gpu_warp() * STAGE(T, H) + (first_eight(KEYS(T, H)) * 8 + row) * KEY_PIECE +
		      (byte ^ row * UNIT);

	if (left >= COLUMNS) {
		GPU_NO_UNROLL
		for (uint32_t k = 0; k < COLUMNS; k += TOGETHER * STEP) /* all at once take too many registers */
			add_keys(bf16, KEYS(T, H), H, TOGETHER, at ^ bytes_of(bf16, 1) * k, q + k, w->q_stride, sum);
		return;
	}
	GPU_NO_UNROLL
	for (uint32_t k = 0; k < left; k += STEP)
		add_keys(bf16, KEYS(T, H), H, 1, at ^ bytes_of(bf16, 1) * k, q + k, w->q_stride, sum);
}

/* The sum of one head and the thread's key 0, of its four lanes and its three neighbours'. */
GPU_FN float fold_keys(const unsigned K, const unsigned H, const float *sum)
{
	float four[4];

	GPU_UNROLL
	for (unsigned i = 0; i < 4; i++) {
		/* 16 threads on are the sum's lanes + 8; what is key K / 2 there, is key 0 here. With four keys, key 3
		 * there is key 1 here, and key 0 of the thread 8 on, which has the sum's lanes + 4. */
		const float mine = sum[i] + gpu_shuffle_xor(sum[K / 2 * H * 4 + i], 16);
		const float other = K == 4 ? sum[H * 4 + i] + gpu_shuffle_xor(sum[(K - 1) * H * 4 + i], 16) : mine;

		four[i] = mine + gpu_shuffle_xor(other, 8);
	}
	return (four[0] + four[2]) + (four[1] + four[3]);
}

GPU_FN void store_scores(const unsigned T, const unsigned H, const struct attend_work *w, uint32_t first,
			 const float *sum)
{
	const unsigned K = KEYS(T, H);
	const uint32_t p = first + first_eight(K) * 8 + gpu_lane() % 8;

	GPU_UNROLL
	for (unsigned h = 0; h < H; h++) {
		const float s = fold_keys(K, H, sum + h * 4);

		if (K == 4 || gpu_lane() / 8 % 2 == 0) /* or else two have the same key */
			score_at(T, H)[h * BLOCK + p] = p >= w->from && p < w->to ? s * w->a->scale : -INFINITY;
	}
}

/* The stage that is SLOTS after a stage of keys: keys, or values. Stages of keys are even in number, as those of a page
 * are: so the first of values goes to slot 0. */
GPU_FN void copy_ahead(const unsigned T, const bool bf16, const unsigned H, const struct attend_work *w, unsigned slot,
		       struct attend_stage s)
{
	s = next_keys(T, bf16, H, w, next_keys(T, bf16, H, w, s));
	if (s.first < (gpu_warp() + 1) * warp_keys(T)) {
		copy_keys(T, bf16, H, w, slot, s);
	} else {
		s = first_values(T, H, w);
		if (slot > 0)
			s = next_values(T, H, w, s);
		copy_values(T, bf16, H, w, slot, s);
	}
	gpu_end_copies();
}

/* Scores of the warp's positions. */
GPU_FN void scores(const unsigned T, const bool bf16, const unsigned H, const struct attend_work *w)
{
	const uint32_t begin = gpu_warp() * warp_keys(T);
	struct attend_stage s;
	unsigned slot = 0;

	GPU_NO_UNROLL
	for (s.first = begin; s.first < begin + warp_keys(T); s.first += stage_keys(T, H)) {
		float sum[MAX_SUMS];

		GPU_UNROLL
		for (unsigned i = 0; i < KEYS(T, H) * H * 4; i++)
			sum[i] = 0;
		GPU_NO_UNROLL
		for (s.piece = 0; s.piece < key_pieces(bf16, w); s.piece++) {
			gpu_wait_copies(1);
			gpu_sync_warp(); /* the other lanes' copies are there, too */
			if (has_keys(T, H, w, s.first))
				add_piece(T, bf16, H, w, s.piece, slot, sum);
			gpu_sync_warp(); /* they have been read */
			copy_ahead(T, bf16, H, w, slot, s);
			slot ^= 1;
		}
		store_scores(T, H, w, s.first, sum);
	}
}

/* Scores become exp(score - the head's largest), which is stored with their sum; positions that are not there add 0. A
 * warp has a head at a time. */
GPU_FN void exponentials(const unsigned T, const unsigned H, const struct attend_work *w)
{
	GPU_NO_UNROLL
	for (unsigned h = gpu_warp(); h < H; h += T / GPU_WARP) {
		float *score = score_at(T, H) + h * BLOCK, v[BLOCK / GPU_WARP], most = LOWEST, s = 0;

		GPU_UNROLL
		for (unsigned i = 0; i < BLOCK / GPU_WARP; i++) {
			v[i] = score[i * GPU_WARP + gpu_lane()];
			most = gpu_max(v[i], most);
		}
		GPU_UNROLL
		for (unsigned mask = GPU_WARP / 2; mask > 0; mask /= 2)
			most = gpu_max(gpu_shuffle_xor(most, mask), most);
		GPU_UNROLL
		for (unsigned i = 0; i < BLOCK / GPU_WARP; i++)
			score[i * GPU_WARP + gpu_lane()] = gpu_exp(v[i] - most);
		gpu_sync_warp(); /* the other lanes' are there, too */
		GPU_UNROLL
		for (unsigned i = 0; i < BLOCK / GPU_LANES; i++) /* a lane of the sum, twice */
			s += score[i * GPU_LANES + gpu_lane() % GPU_LANES];
		s = gpu_fold_each(s);
		if (gpu_lane() == 0 && h < w->n_heads) {
			const size_t to = (size_t)(w->head + h) * w->a->splits.n + gpu_block_y();

			w->a->splits.max[to] = most;
			w->a->splits.sum[to] = s;
		}
	}
}

/* ---- Values ---- */

/* acc[h * E + i] += value[i] * weight[h * BLOCK], for P successive positions in order. `at`: of the thread's elements
 * in the ring. */
GPU_FN void add_values(const bool bf16, const unsigned E, const unsigned N, const unsigned P, uint32_t at,
		       const float *weight, float *acc)
{
	float x[QUAD * 2], by[QUAD * GPU_ATTEND_HEADS];

	GPU_UNROLL
	for (unsigned u = 0; u < P; u++)
		gpu_decode(coding_of(bf16), E, gpu_read_raw(bytes_of(bf16, E), gpu_shared() + at + u * VALUE_PIECE),
			   x + u * E);
	GPU_UNROLL
	for (unsigned h = 0; h < N; h++) {
		if (P == QUAD) {
			const gpu_f4 v = gpu_load_f4(weight + h * BLOCK);

			by[h * P] = v.x, by[h * P + 1] = v.y, by[h * P + 2] = v.z, by[h * P + 3] = v.w;
		} else {
			by[h] = weight[h * BLOCK];
		}
	}
	GPU_UNROLL
	for (unsigned u = 0; u < P; u++) {
		GPU_UNROLL
		for (unsigned i = 0; i < N * E; i++)
			acc[i] = fmaf(x[u * E + i % E], by[i / E * P + u], acc[i]);
	}
}

/* Positions [p, end) of the block. `at`: of the thread's elements of p; weight: of head 0 and position 0. */
GPU_FN void add_positions(const bool bf16, const unsigned E, const unsigned N, uint32_t p, uint32_t end, uint32_t at,
			  const float *weight, float *acc)
{
	GPU_NO_UNROLL
	for (; p < end && p % QUAD != 0; p++, at += VALUE_PIECE)
		add_values(bf16, E, N, 1, at, weight + p, acc);
	GPU_NO_UNROLL
	for (; p + QUADS * QUAD <= end; p += QUADS * QUAD, at += QUADS * QUAD * VALUE_PIECE) {
		GPU_UNROLL
		for (unsigned i = 0; i < QUADS; i++)
			add_values(bf16, E, N, QUAD, at + i * QUAD * VALUE_PIECE, weight + p + i * QUAD, acc);
	}
	GPU_NO_UNROLL
	for (; p < end; p++, at += VALUE_PIECE)
		add_values(bf16, E, N, 1, at, weight + p, acc);
}

/* Elements [d, d + E) of heads [head, head + N), if they are there. */
GPU_FN void store_values(const unsigned E, const unsigned N, const struct attend_work *w, uint32_t d, unsigned head,
			 const float *acc)
{
	GPU_UNROLL
	for (unsigned h = 0; h < N; h++) {
		float *to = w->a->splits.vector +
			    ((size_t)(w->head + head + h) * w->a->splits.n + gpu_block_y()) * w->a->v_dim + d;

		GPU_UNROLL
		for (unsigned i = 0; i < E; i++)
			if (head + h < w->n_heads && d + i < w->a->v_dim)
				to[i] = acc[h * E + i];
	}
}

/* A thread has E elements of N heads of a piece. */
GPU_FN void values_of(const unsigned T, const bool bf16, const unsigned H, const unsigned E, const unsigned N,
		      const struct attend_work *w)
{
	const unsigned ITEMS = VALUE_PIECE / bytes_of(bf16, E), head = gpu_thread() / ITEMS * N,
		       POSITIONS = stage_values(T, H);
	struct attend_stage s = first_values(T, H, w), ahead = next_values(T, H, w, next_values(T, H, w, s));
	uint32_t d = gpu_thread() % ITEMS * E;
	unsigned slot = 0;
	float acc[MAX_VALUES];

	GPU_UNROLL
	for (unsigned i = 0; i < N * E; i++)
		acc[i] = 0;
	GPU_NO_UNROLL
	while (s.piece * ITEMS * E < w->a->v_dim) {
		const uint32_t p = s.first > w->from ? s.first : w->from,
			       end = s.first + POSITIONS < w->to ? s.first + POSITIONS : w->to;

		gpu_wait_copies(1);
		gpu_sync(); /* the other warps' copies are there, too, and the exponentials */
		if (head < w->n_heads && d < w->a->v_dim)
			add_positions(bf16, E, N, p, end,
				      slot * SLOT(T, H) + (p - s.first) * VALUE_PIECE +
					      gpu_thread() % ITEMS * bytes_of(bf16, E),
				      score_at(T, H) + head * BLOCK, acc);
		gpu_sync(); /* they have been read */
		copy_values(T, bf16, H, w, slot, ahead);
		gpu_end_copies();
		s = next_values(T, H, w, s);
		ahead = next_values(T, H, w, ahead);
		slot ^= 1;
		if (end < w->to)
			continue;
		store_values(E, N, w, d, head, acc);
		GPU_UNROLL
		for (unsigned i = 0; i < N * E; i++)
			acc[i] = 0;
		d += ITEMS * E;
	}
}

/* By T threads. */
GPU_FN void attend_of(const unsigned T, const bool bf16, const unsigned H, const struct gpu_attend *a)
{
	/* Sums of a thread in a piece of values: so that all threads have some, if there are enough. */
	const unsigned SUMS = VALUE_PIECE / bytes_of(bf16, 1) * H > T ? VALUE_PIECE / bytes_of(bf16, 1) * H / T : 1,
		       E = SUMS > 1 ? 2 : 1;
	struct attend_work w;
	struct attend_stage s;

	if (!begin_work(H, a, &w))
		return;
	copy_queries(T, H, &w);
	share_pages(T, bf16, H, &w);
	gpu_sync(); /* pages are there */
	s.first = gpu_warp() * warp_keys(T);
	s.piece = 0;
	GPU_NO_UNROLL
	for (unsigned slot = 0; slot < SLOTS; slot++) { /* a warp has at least as many stages of keys */
		copy_keys(T, bf16, H, &w, slot, s);
		gpu_end_copies();
		s = next_keys(T, bf16, H, &w, s);
	}
	gpu_wait_copies(SLOTS); /* the oldest group has the queries; keys may still be on their way */
	gpu_sync(); /* queries are there */
	scores(T, bf16, H, &w);
	gpu_sync(); /* all scores are there */
	exponentials(T, H, &w);
	values_of(T, bf16, H, E, SUMS / E, &w);
}

/* blocks: of a multiprocessor at a time, by registers; before sm_80 copies take some, too. */
#define ATTEND(name, bf16, heads, blocks) \
	GPU_DENSE_KERNEL(gpu_attend_##name, struct gpu_attend, GPU_ATTEND_THREADS, GPU_SINCE_80(blocks, blocks / 2)) \
	{ \
		attend_of(GPU_ATTEND_THREADS, bf16, heads, &a); \
	}
#define WIDE(name, bf16, heads) \
	GPU_ROOMY_KERNEL(gpu_attend_wide_##name, struct gpu_attend, GPU_ATTEND_WIDE) \
	{ \
		attend_of(GPU_ATTEND_WIDE, bf16, heads, &a); \
	}

ATTEND(f32_1, false, 1, 8)
ATTEND(f32_2, false, 2, 8)
ATTEND(f32_4, false, 4, 6)
ATTEND(f32_8, false, 8, 6)
ATTEND(bf16_1, true, 1, 8)
ATTEND(bf16_2, true, 2, 8)
ATTEND(bf16_4, true, 4, 8)
ATTEND(bf16_8, true, 8, 8)
WIDE(f32_1, false, 1)
WIDE(f32_2, false, 2)
WIDE(f32_4, false, 4)
WIDE(bf16_1, true, 1)
WIDE(bf16_2, true, 2)
WIDE(bf16_4, true, 4)

gpu_attend_fn *const gpu_attend[2][2][4] = {
	{ { gpu_attend_f32_1, gpu_attend_f32_2, gpu_attend_f32_4, gpu_attend_f32_8 },
	  { gpu_attend_bf16_1, gpu_attend_bf16_2, gpu_attend_bf16_4, gpu_attend_bf16_8 } },
	{ { gpu_attend_wide_f32_1, gpu_attend_wide_f32_2, gpu_attend_wide_f32_4, NULL },
	  { gpu_attend_wide_bf16_1, gpu_attend_wide_bf16_2, gpu_attend_wide_bf16_4, NULL } },
};

size_t gpu_attend_shared(uint32_t threads, uint32_t heads, uint32_t k_dim)
{
	const size_t floats = ((size_t)BLOCK + (k_dim + STEP - 1) / STEP * STEP) * heads;

	return RING(threads, heads) + floats * sizeof(float) + 2 * PAGES * sizeof(void *);
}

/* ---- The fold ---- */

#define FOLD_WARPS (GPU_FOLD_THREADS / GPU_WARP)

/* A head's state after some blocks. */
struct head {
	float max, sum, value;
};

/* n blocks, at most GPU_FOLD_THREADS. */
struct fold {
	const float *max, *sum;
	const unsigned char *vector; /* the thread's element */
	uint32_t stride, n; /* stride: bytes from a block's vector to the next one's */
	/* Shared memory: [GPU_FOLD_THREADS] what to keep of what is before a block, what to add of it, its sum;
	 * [FOLD_WARPS] */
	gpu_f4 *factor;
	float *greatest;
};

/* The greatest of the lanes up to this one. */
GPU_FN float greatest_so_far(float v)
{
	GPU_UNROLL
	for (unsigned by = 1; by < GPU_WARP; by *= 2)
		v = gpu_max(gpu_shuffle_from(v, gpu_lane() >= by ? gpu_lane() - by : gpu_lane()), v);
	return v;
}

/* Thread i: block i of n, which has max and sum. The head's maximum changes to what it is behind them; low and high are
 * those around block i. */
GPU_FN void fold_factors(const struct fold *f, float max, float sum, struct head *h)
{
	const float so_far = greatest_so_far(max),
		    before = gpu_shuffle_from(so_far, gpu_lane() > 0 ? gpu_lane() - 1 : 0);
	float low = h->max, high, all = h->max;
	gpu_f4 factor;

	if (gpu_lane() == GPU_WARP - 1)
		f->greatest[gpu_warp()] = so_far;
	gpu_sync(); /* all warps' greatest are there */
	GPU_UNROLL
	for (unsigned i = 0; i < FOLD_WARPS; i++) {
		const float most = f->greatest[i];

		all = gpu_max(all, most); /* a sink that is no number loses */
		low = i < gpu_warp() ? gpu_max(low, most) : low;
	}
	low = gpu_lane() > 0 ? gpu_max(low, before) : low;
	high = gpu_max(low, max);
	factor.x = gpu_exp(low - high), factor.y = gpu_exp(max - high), factor.z = sum, factor.w = 0;
	f->factor[gpu_thread()] = factor; /* behind a barrier that follows what read those of the blocks before */
	h->max = all;
	gpu_sync(); /* all factors are there */
}

/* x: the element of FOLD_EACH blocks from i on, if there are such; those behind the last one are as it. */
GPU_FN void read_vectors(const struct fold *f, unsigned i, float *x)
{
	if (i >= f->n)
		return;
	GPU_UNROLL
	for (unsigned u = 0; u < FOLD_EACH; u++)
		x[u] = *(const float *)(const void *)(f->vector +
						      (size_t)((i + u < f->n ? i + u : f->n - 1) * f->stride));
}

/* FOLD_EACH blocks from i on, in order. */
GPU_FN void fold_blocks(const struct fold *f, unsigned i, const float *x, struct head *h)
{
	if (i >= f->n)
		return;
	GPU_UNROLL
	for (unsigned u = 0; u < FOLD_EACH; u++) {
		const gpu_f4 by = f->factor[i + u]; /* all are there: so they can be read ahead */

		if (i + u < f->n) {
			h->sum = fmaf(by.z, by.y, h->sum * by.x);
			h->value = fmaf(x[u], by.y, h->value * by.x);
		}
	}
}

/* All loads of the first FOLD_AHEAD blocks begin before what waits for one of them. */
GPU_FN void fold_some(const struct fold *f, struct head *h)
{
	const unsigned t = gpu_thread();
	const float max = t < f->n ? f->max[t] : LOWEST, sum = t < f->n ? f->sum[t] : 0;
	float x[FOLD_AHEAD];

	GPU_UNROLL
	for (unsigned at = 0; at < FOLD_AHEAD; at += FOLD_EACH)
		read_vectors(f, at, x + at);
	fold_factors(f, max, sum, h);
	GPU_NO_UNROLL
	for (unsigned i = 0; i < f->n; i += FOLD_AHEAD) {
		GPU_UNROLL
		for (unsigned at = 0; at < FOLD_AHEAD; at += FOLD_EACH) {
			fold_blocks(f, i + at, x + at, h);
			read_vectors(f, i + at + FOLD_AHEAD, x + at);
		}
	}
}

GPU_KERNEL(gpu_attend_fold, struct gpu_attend_fold, GPU_FOLD_THREADS)
{
	const uint32_t element = gpu_block_x() * GPU_FOLD_THREADS + gpu_thread(),
		       d = element < a.v_dim ? element : a.v_dim - 1;
	const size_t head = (size_t)gpu_block_z() * a.n_heads + gpu_block_y(), split = head * a.splits.n;
	const uint32_t position = a.rows[gpu_block_z()].position;
	const uint32_t all = position / BLOCK - first_seen(position, a.window) / BLOCK + 1;
	const uint32_t left = all > a.splits.first ? all - a.splits.first : 0,
		       n = left < a.splits.n ? left : a.splits.n;
	float *out = a.out + head * a.v_dim + d;
	struct head h = { LOWEST, 0, 0 };

	if (a.before != NULL) {
		h.max = a.before[2 * head], h.sum = a.before[2 * head + 1], h.value = *out;
	} else if (a.sinks != NULL) {
		h.max = a.sinks[gpu_block_y()], h.sum = 1;
	}
	GPU_NO_UNROLL
	for (uint32_t first = 0; first < n; first += GPU_FOLD_THREADS) {
		struct fold f;

		f.max = a.splits.max + split + first;
		f.sum = a.splits.sum + split + first;
		f.vector = (const unsigned char *)(const void *)(a.splits.vector + (split + first) * a.v_dim + d);
		f.stride = a.v_dim * (uint32_t)sizeof(float);
		f.n = n - first < GPU_FOLD_THREADS ? n - first : GPU_FOLD_THREADS;
		f.factor = (gpu_f4 *)(void *)gpu_shared();
		f.greatest = (float *)(void *)(f.factor + GPU_FOLD_THREADS);
		fold_some(&f, &h);
	}
	if (element < a.v_dim)
		*out = a.after != NULL ? h.value : gpu_canonical(h.value / h.sum);
	if (element == 0 && a.after != NULL)
		a.after[2 * head] = h.max, a.after[2 * head + 1] = h.sum;
}

/* ---- Queries of latent attention ---- */

/* Behind the absorbed elements: the rotated ones. */
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
GPU_FN void add_weights(const unsigned coding, const unsigned R, const unsigned AHEAD, const struct gpu_mat *m,
			size_t row, uint32_t e, const float *q, float *sum)
{
	float w[ABSORB_AHEAD], scale[ABSORB_AHEAD];

	GPU_UNROLL
	for (unsigned u = 0; u < AHEAD; u++)
		w[u] = gpu_code_at(coding, m->data + (row + u) * m->row_bytes, e);
	if (gpu_is_scaled(coding)) {
		const uint32_t groups = (m->n_in + m->group - 1) / m->group, group = e / m->group;

		GPU_UNROLL
		for (unsigned u = 0; u < AHEAD; u++)
			scale[u] = gpu_scale_at(m, (row + u) * groups + group);
	}
	/* No data passes between lanes here. The barrier keeps the loads together: without it nvcc 13 puts each F32
	 * load right before its own sums. */
	gpu_sync_warp();
	GPU_UNROLL
	for (unsigned u = 0; u < AHEAD; u++) {
		const float weight = gpu_is_scaled(coding) ? w[u] * scale[u] : w[u];

		GPU_UNROLL
		for (unsigned r = 0; r < R; r++)
			sum[r] = fmaf(q[u * R + r], weight, sum[r]);
	}
}

static_assert(GPU_ABSORB_DECODED == GPU_WARP, "decode_piece");

/* Rows and columns of kv_b; weight (r, c) is decoded to r * stride + c. */
struct absorb_piece {
	size_t row;
	uint32_t rows, column, columns, stride;
};

/* All threads of the block. Columns of GPU_BLOCKS are whole runs; other codings have a column for each lane. */
GPU_FN void decode_piece(const unsigned coding, const struct gpu_mat *m, const struct absorb_piece *p, float *to)
{
	const uint32_t runs = p->columns / GPU_RUN, column = p->column + gpu_lane();
	const uint32_t groups = gpu_is_scaled(coding) ? (m->n_in + m->group - 1) / m->group : 0;

	if (coding == GPU_BLOCKS) {
		GPU_NO_UNROLL
		for (uint32_t i = gpu_thread(); i < p->rows * runs; i += GPU_ABSORB_THREADS) {
			const uint32_t r = i / runs, run = i % runs;
			float w[GPU_RUN];

			gpu_block_run(m->format, m->data + (p->row + r) * m->row_bytes, p->column / GPU_RUN + run, w);
			GPU_UNROLL
			for (unsigned u = 0; u < GPU_RUN; u++)
				to[r * p->stride + run * GPU_RUN + u] = w[u];
		}
		return;
	}
	if (gpu_lane() >= p->columns)
		return;
	GPU_UNROLL_N(8)
	for (uint32_t r = gpu_warp(); r < p->rows; r += GPU_ABSORB_THREADS / GPU_WARP) {
		const float w = gpu_code_at(coding, m->data + (p->row + r) * m->row_bytes, column);

		to[r * p->stride + gpu_lane()] =
			gpu_is_scaled(coding) ? w * gpu_scale_at(m, (p->row + r) * groups + column / m->group) : w;
	}
}

/* sum[r] += q[i][r] * weight `begin + i` of element e of the head, for all i below n, in order: of a row each, or,
 * turned, of the element's row. The weights are decoded to shared memory behind the queries. */
GPU_FN void add_decoded(const unsigned coding, const unsigned R, const struct gpu_absorb *a, uint32_t begin, uint32_t n,
			uint32_t e, const float *q, float *sum)
{
	const uint32_t first = gpu_block_x() * GPU_ABSORB_THREADS,
		       elements = a->rank - first < GPU_ABSORB_THREADS ? a->rank - first : GPU_ABSORB_THREADS;
	/* one more than the columns, so that neighbours read different banks */
	const uint32_t stride = a->turned ? GPU_ABSORB_DECODED + 1 : GPU_ABSORB_THREADS;
	float *weights = (float *)(void *)gpu_shared() + GPU_ABSORB_EACH * R;

	GPU_NO_UNROLL
	for (uint32_t i = 0; i < n; i += GPU_ABSORB_DECODED) {
		const uint32_t some = n - i < GPU_ABSORB_DECODED ? n - i : GPU_ABSORB_DECODED;
		const float *at = weights + (e - first) * (a->turned ? stride : 1);
		struct absorb_piece p;

		p.row = a->turned ? (size_t)gpu_block_y() * a->rank + first :
				    (size_t)gpu_block_y() * (a->nope_dim + a->v_dim) + begin + i;
		p.rows = a->turned ? elements : some;
		p.column = a->turned ? begin + i : first;
		p.columns = a->turned ? some : elements;
		p.stride = stride;
		gpu_sync(); /* all have done with the weights before */
		decode_piece(coding, &a->kv_b, &p, weights);
		gpu_sync(); /* the weights are there */
		GPU_UNROLL_N(4)
		for (uint32_t u = 0; u < some; u++) {
			const float weight = at[u * (a->turned ? 1 : stride)];

			GPU_UNROLL
			for (unsigned r = 0; r < R; r++)
				sum[r] = fmaf(q[(i + u) * R + r], weight, sum[r]);
		}
	}
}

/* A thread has an element of the latent, of R rows. */
GPU_FN void absorb_of(const unsigned coding, const unsigned R, const struct gpu_absorb *a)
{
	const unsigned AHEAD = gpu_is_scaled(coding) ? ABSORB_AHEAD / 2 : ABSORB_AHEAD;
	const uint32_t head = gpu_block_y(), first = gpu_block_z() * R,
		       n_rows = a->n_rows - first < R ? a->n_rows - first : R;
	const uint32_t q_dim = a->nope_dim + a->turn.dims, out_dim = a->rank + a->turn.dims;
	const uint32_t element = gpu_block_x() * GPU_ABSORB_THREADS + gpu_thread(),
		       e = element < a->rank ? element : a->rank - 1;
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

		gpu_sync(); /* all have done with the queries of the turn before */
		GPU_NO_UNROLL
		for (uint32_t k = gpu_thread(); k < n; k += GPU_ABSORB_THREADS) {
			GPU_UNROLL
			/* rows past the end repeat the last row; their results are discarded */
			for (unsigned r = 0; r < R; r++)
				shared[k * R + r] = q[(r < n_rows ? r : n_rows - 1) * q_stride + begin + k];
		}
		gpu_sync(); /* the queries are there */
		if (coding == GPU_BLOCKS || a->turned) {
			add_decoded(coding, R, a, begin, n, e, shared, sum);
			continue;
		}
		GPU_NO_UNROLL
		for (; i + AHEAD <= n; i += AHEAD)
			add_weights(coding, R, AHEAD, &a->kv_b, row + i, e, shared + i * R, sum);
		GPU_NO_UNROLL
		for (; i < n; i++)
			add_weights(coding, R, 1, &a->kv_b, row + i, e, shared + i * R, sum);
	}
	GPU_UNROLL
	for (unsigned r = 0; r < R; r++)
		if (r < n_rows && element < a->rank)
			out[r * out_stride + e] = gpu_canonical(sum[r]);
	GPU_NO_UNROLL
	for (uint32_t r = 0; r < n_rows && gpu_block_x() == 0; r++)
		turn_query(&a->turn, q + r * q_stride + a->nope_dim,
			   a->turn.angles + (size_t)(first + r) * a->turn.dims, out + r * out_stride + a->rank);
}

#define ABSORB(coding, rows) \
	GPU_ROOMY_KERNEL(gpu_absorb_##coding##_##rows, struct gpu_absorb, GPU_ABSORB_THREADS) \
	{ \
		absorb_of(coding, rows, &a); \
	}
#define CODING(coding) ABSORB(coding, 1) ABSORB(coding, 8)
#define NAMES(coding) \
	{ \
		gpu_absorb_##coding##_1, gpu_absorb_##coding##_8 \
	}

CODING(GPU_BF16)
CODING(GPU_F16)
CODING(GPU_F32)
CODING(GPU_E4M3)
CODING(GPU_E5M2)
CODING(GPU_BLOCKS)
CODING(GPU_SCALED_I8)
CODING(GPU_SCALED_U8)
CODING(GPU_SCALED_U4)
CODING(GPU_SCALED_E2M1)
CODING(GPU_SCALED_E4M3)
CODING(GPU_SCALED_E5M2)

gpu_absorb_fn *const gpu_absorb[GPU_N_CODINGS][2] = {
	NAMES(GPU_BF16),	NAMES(GPU_F16),		NAMES(GPU_F32),	      NAMES(GPU_E4M3),
	NAMES(GPU_E5M2),	{ NULL, NULL },		{ NULL, NULL },	      NAMES(GPU_BLOCKS),
	NAMES(GPU_SCALED_I8),	NAMES(GPU_SCALED_U8),	NAMES(GPU_SCALED_U4), NAMES(GPU_SCALED_E2M1),
	NAMES(GPU_SCALED_E4M3), NAMES(GPU_SCALED_E5M2),
};
