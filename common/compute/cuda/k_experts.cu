/* Sorts rows by expert, and does all beside products for them (OD_OP_EXPERTS). */
#include "common/compute/cuda/gpu_rows.h"
#include "common/compute/cuda/gpu_tiles.h"

#define CHUNK 2048u /* choices in shared memory at a time; a multiple of 8 */
#define SUMS (GPU_SORT_THREADS / GPU_WARP) /* a multiple of 4: choices follow */

/* Sum of v of the threads before this one; *all: of all. shared: [SUMS]. */
GPU_FN uint32_t sum_before(uint32_t v, uint32_t *shared, uint32_t *all)
{
	const uint32_t sum = gpu_sum_up(v);
	uint32_t base = 0;

	if (gpu_lane() == GPU_WARP - 1)
		shared[gpu_warp()] = sum;
	gpu_sync(); /* all warps' sums are there */
	*all = 0;
	for (unsigned w = 0; w < GPU_SORT_THREADS / GPU_WARP; w++) {
		base += w < gpu_warp() ? shared[w] : 0;
		*all += shared[w];
	}
	gpu_sync(); /* all have read them: the caller uses shared again */
	return base + sum - v;
}

GPU_FN void tell_fault(const struct gpu_sort *a)
{
	gpu_tell_fault(a->choice, a->top_k, a->n_experts, a->fault);
}

GPU_FN bool choices_are_valid(const struct gpu_sort *a, uint32_t *shared)
{
	uint32_t bad = 0;

	for (uint32_t i = gpu_thread(); i < a->n_rows * a->top_k; i += GPU_SORT_THREADS)
		bad |= gpu_fault_of(a->choice, a->top_k, a->n_experts, i) != 0;
	(void)sum_before(bad, shared, &bad);
	if (bad > 0 && gpu_thread() == 0)
		tell_fault(a);
	return bad == 0;
}

/* Tiles of an expert's run [begin, end): cut at multiples of together, counted from pair 0, and then every `rows`. */
GPU_FN uint32_t tiles_in(const struct gpu_sort *a, uint32_t begin, uint32_t end)
{
	uint32_t n = 0;

	for (uint32_t at = begin, cut; at < end; at = cut) {
		cut = (at / a->together + 1) * a->together;
		cut = cut < end ? cut : end;
		n += (cut - at + a->rows - 1) / a->rows;
	}
	return n;
}

GPU_FN void put_tiles(const struct gpu_sort *a, uint32_t expert, uint32_t begin, uint32_t end, struct gpu_tile *tile)
{
	for (uint32_t at = begin, cut; at < end; at = cut) {
		cut = (at / a->together + 1) * a->together;
		cut = cut < end ? cut : end;
		for (uint32_t i = at; i < cut; i += a->rows, tile++) {
			tile->expert = expert;
			tile->first = i;
			tile->n = cut - i < a->rows ? cut - i : a->rows;
		}
	}
}

/* No round has tiles. */
GPU_FN void begin_rounds(const struct gpu_sort *a)
{
	for (uint32_t i = gpu_thread(); i <= (a->n_rows * a->top_k + a->together - 1) / a->together; i += gpu_threads())
		a->tiles_before[i] = 0;
}

/* Choices in shared memory: [CHUNK] of them at a time. */
struct experts_chunk {
	uint32_t *at; /* two in a word */
	uint32_t first, n;
};

/* The chunk that begins with choice `first`; it is there already if it is the only one. All threads. */
GPU_FN void read_chunk(const struct gpu_sort *a, struct experts_chunk *c, uint32_t first)
{
	const uint32_t pairs = a->n_rows * a->top_k;
	uint16_t *to = (uint16_t *)(void *)c->at;

	if (c->n == pairs)
		return;
	c->first = first;
	c->n = pairs - first < CHUNK ? pairs - first : CHUNK;
	gpu_sync(); /* all have read the chunk before */
	for (uint32_t i = gpu_thread(); i < (c->n + 7) / 8 * 8; i += GPU_SORT_THREADS)
		to[i] = i < c->n ? a->choice[first + i] : GPU_NO_EXPERT;
	gpu_sync(); /* the choices are there */
}

/* A bit for each of choices [i, i + 8) of the chunk that is expert e. */
GPU_FN uint32_t found_in(const struct experts_chunk *c, uint32_t i, uint32_t e)
{
	const gpu_u4 v = gpu_shared_16(c->at + i / 2);
	const uint32_t word[4] = { v.x, v.y, v.z, v.w };
	uint32_t found = 0;

	GPU_UNROLL
	for (unsigned j = 0; j < 4; j++) {
		found |= (word[j] & 0xffffu) == e ? 1u << 2 * j : 0;
		found |= word[j] >> 16 == e ? 2u << 2 * j : 0;
	}
	return found;
}

GPU_FN uint32_t count_pairs(const struct gpu_sort *a, struct experts_chunk *c, uint32_t e)
{
	uint32_t n = 0;

	for (uint32_t first = 0; first < a->n_rows * a->top_k; first += CHUNK) {
		read_chunk(a, c, first);
		GPU_UNROLL_N(2)
		for (uint32_t i = 0; e < a->n_experts && i < c->n; i += 8)
			n += gpu_popcount(found_in(c, i, e));
	}
	return n;
}

/* The n pairs of expert e, in order. */
GPU_FN void put_pairs(const struct gpu_sort *a, struct experts_chunk *c, uint32_t e, uint32_t n, uint32_t *pair)
{
	for (uint32_t first = 0; first < a->n_rows * a->top_k; first += CHUNK) {
		read_chunk(a, c, first);
		for (uint32_t i = 0; n > 0 && i < c->n; i += 8) {
			uint32_t found = found_in(c, i, e);

			for (uint32_t j = first + i; found != 0; j++, found >>= 1) {
				if ((found & 1) == 0)
					continue;
				*pair++ = j;
				n--;
			}
		}
	}
}

/* Many pairs: a thread for each expert puts all of its pairs, in order. With counters that threads share, the order
 * would be another at each run. */
GPU_ROOMY_KERNEL(gpu_sort, struct gpu_sort, GPU_SORT_THREADS)
{
	uint32_t *shared = (uint32_t *)(void *)gpu_shared(), done = 0, tiles = 0;
	struct experts_chunk c = { shared + SUMS, 0, 0 };

	begin_rounds(&a);
	if (!choices_are_valid(&a, shared))
		return;
	for (uint32_t first = 0; first < a.n_experts; first += GPU_SORT_THREADS) {
		const uint32_t e = first + gpu_thread(), n = count_pairs(&a, &c, e);
		uint32_t begin, all, mine, before;

		begin = done + sum_before(n, shared, &all);
		done += all;
		put_pairs(&a, &c, e, n, a.pair + begin);
		mine = tiles_in(&a, begin, begin + n);
		before = tiles + sum_before(mine, shared, &all);
		put_tiles(&a, e, begin, begin + n, a.tile + before);
		/* The thread that has the first pair of a round knows how many tiles come before the round. */
		for (uint32_t r = (begin + a.together - 1) / a.together; r * a.together < begin + n; r++)
			a.tiles_before[r] = before + tiles_in(&a, begin, r * a.together);
		tiles += all;
	}
	/* Rounds behind the last pair have none: choices were left out. begin_rounds' 0 there is older than the
	 * barriers since. */
	for (uint32_t r = (done + a.together - 1) / a.together + gpu_thread();
	     r <= (a.n_rows * a.top_k + a.together - 1) / a.together; r += gpu_threads())
		a.tiles_before[r] = tiles;
}

/* ---- Few pairs: a thread for each counts those that come before its own ---- */

/* All choices are in shared memory, so that no step waits for global memory. All threads of the block call what
 * follows. */

#define FEW_WARPS (GPU_SORT_FEW / GPU_WARP)

struct few_room { /* in shared memory, aligned to 16 */
	uint32_t key
		[GPU_SORT_FEW]; /* expert * GPU_SORT_FEW + pair: all are different, and their order is the result's */
	uint32_t starts[GPU_SORT_FEW]; /* by position: a tile begins there */
	uint32_t tiles[FEW_WARPS], faults[FEW_WARPS]; /* bits, of positions and of pairs */
};

/* Where a pair comes to stand; choices that are left out come last. */
struct sorted {
	uint32_t begin, position, end; /* its expert's run; its own position */
	bool twice; /* the row has chosen the expert before */
};

GPU_FN struct sorted sorted_of(const struct gpu_sort *a, const struct few_room *m, uint32_t expert, uint32_t pair)
{
	const uint32_t first = expert * GPU_SORT_FEW, mine = first + pair, row = first + pair / a->top_k * a->top_k;
	struct sorted s = { 0, 0, 0, false };
	uint32_t before_row = 0;

	for (uint32_t i = 0; i < a->n_rows * a->top_k; i += 4) { /* behind the last are keys that come after all */
		const gpu_u4 v = gpu_shared_16(m->key + i);
		const uint32_t key[4] = { v.x, v.y, v.z, v.w };

		GPU_UNROLL
		for (unsigned j = 0; j < 4; j++) {
			s.begin += key[j] < first;
			before_row += key[j] < row;
			s.position += key[j] < mine;
			s.end += key[j] < first + GPU_SORT_FEW;
		}
	}
	s.twice = s.position != before_row;
	return s;
}

/* Tiles that begin before a position. */
GPU_FN uint32_t tiles_before(const struct few_room *m, uint32_t position)
{
	uint32_t n = 0;

	GPU_UNROLL
	for (unsigned w = 0; w < FEW_WARPS; w++) {
		const uint32_t at = w * GPU_WARP, some = position < at ? 0 : position - at;

		n += gpu_popcount(some < GPU_WARP ? m->tiles[w] & ((1u << some) - 1) : m->tiles[w]);
	}
	return n;
}

/* expert: the choice of the thread's pair; of threads behind the last one any. false: a choice is out of range, or
 * there twice in a row; then nothing was written. */
GPU_FN bool sort_few(const struct gpu_sort *a, struct few_room *m, uint32_t expert)
{
	const uint32_t pairs = a->n_rows * a->top_k, i = gpu_thread();
	struct sorted s = { 0, 0, 0, false };
	uint32_t cut, next_cut, bad, index;
	bool starts;

	m->key[i] = i < pairs ? expert * GPU_SORT_FEW + i : UINT32_MAX;
	gpu_sync(); /* each thread compares its key with all others */
	if (i < pairs)
		s = sorted_of(a, m, expert, i);
	/* A run is cut where a round of `together` pairs ends, and from there every `rows` pairs. */
	cut = s.position / a->together * a->together;
	next_cut = cut + a->together < s.end ? cut + a->together : s.end;
	cut = cut > s.begin ? cut : s.begin;
	starts = (s.position - cut) % a->rows == 0 && expert != GPU_NO_EXPERT;
	if (i < pairs)
		m->starts[s.position] = starts;
	bad = gpu_ballot(i < pairs && expert != GPU_NO_EXPERT && (expert >= a->n_experts || s.twice));
	gpu_sync(); /* starts is in sorted order: other threads wrote what this one reads */
	index = gpu_ballot(i < pairs && m->starts[i] != 0);
	if (gpu_lane() == 0) {
		m->tiles[gpu_warp()] = index;
		m->faults[gpu_warp()] = bad;
	}
	gpu_sync(); /* all warps' bits are there */
	bad = 0;
	GPU_UNROLL
	for (unsigned w = 0; w < FEW_WARPS; w++)
		bad |= m->faults[w];
	if (bad != 0)
		return false;
	index = tiles_before(m, s.position);
	if (i < pairs) {
		a->pair[s.position] = i;
		if (starts) {
			a->tile[index].expert = expert;
			a->tile[index].first = s.position;
			a->tile[index].n = next_cut - s.position < a->rows ? next_cut - s.position : a->rows;
		}
		if (s.position % a->together == 0)
			a->tiles_before[s.position / a->together] = index;
	}
	if (i == 0)
		a->tiles_before[(pairs + a->together - 1) / a->together] = tiles_before(m, pairs);
	return true;
}

GPU_KERNEL(gpu_sort_few, struct gpu_sort, GPU_SORT_FEW)
{
	struct few_room *room = (struct few_room *)(void *)gpu_shared();
	const uint32_t expert = gpu_thread() < a.n_rows * a.top_k ? a.choice[gpu_thread()] : 0;

	if (sort_few(&a, room, expert))
		return;
	begin_rounds(&a);
	if (gpu_thread() == 0)
		tell_fault(&a);
}

size_t gpu_sort_shared(bool few)
{
	return few ? sizeof(struct few_room) : SUMS * sizeof(uint32_t) + CHUNK * sizeof(uint16_t);
}

/* The pair that grid.y names. *at: its position among the sorted ones; *pair: row * top_k + rank. False: there is
 * none. */
GPU_FN bool find_pair(const struct gpu_expert_rows *a, uint32_t *at, uint32_t *pair, const struct gpu_expert **expert)
{
	uint32_t index, r, e;

	if (a->choice != NULL) {
		*at = *pair = a->first + gpu_block_y();
		e = *at < a->top_k ? a->choice[*at] : a->n_experts;
		*expert = &a->expert[e];
		return e < a->n_experts;
	}
	index = a->tiles_before[0] + gpu_block_y() / a->rows;
	r = gpu_block_y() % a->rows;
	if (index >= a->tiles_before[1] || r >= a->tile[index].n)
		return false;
	*at = a->tile[index].first + r;
	*pair = a->pair[*at];
	*expert = &a->expert[a->tile[index].expert];
	return true;
}

GPU_KERNEL(gpu_expert_act, struct gpu_expert_rows, GPU_ROW_THREADS)
{
	const uint32_t i = gpu_block_x() * GPU_ROW_THREADS + gpu_thread();
	const struct gpu_expert *e;
	uint32_t at, pair;
	float g, u;

	if (!find_pair(&a, &at, &pair, &e) || i >= a.n)
		return;
	g = a.gate[(size_t)(at - a.first) * a.n + i];
	u = a.up[(size_t)(at - a.first) * a.n + i];
	if (e->bias[GPU_GATE].at != NULL) {
		g += gpu_vector_at(&e->bias[GPU_GATE], i);
		u += gpu_vector_at(&e->bias[GPU_UP], i);
	}
	a.gate[(size_t)(at - a.first) * a.n + i] = gpu_activation(a.act, g, u, a.limit);
}

GPU_KERNEL(gpu_expert_down_end, struct gpu_expert_rows, GPU_ROW_THREADS)
{
	const uint32_t i = gpu_block_x() * GPU_ROW_THREADS + gpu_thread();
	const struct gpu_expert *e;
	uint32_t at, pair;
	float *y;

	if (!find_pair(&a, &at, &pair, &e) || i >= a.n)
		return;
	y = a.y + (size_t)pair * a.n + i;
	if (e->bias[GPU_DOWN].at != NULL)
		*y += gpu_vector_at(&e->bias[GPU_DOWN], i);
	if (a.round)
		*y = gpu_round_bf16(*y);
}
