/* Routing (OD_OP_ROUTE): a block for each row, its experts in shared memory. Sums and softmaxes are those of
 * cpu_kernels.h; other blocks round the row for the experts.
 *
 * The best experts are found by counting: an expert's rank is the number of those before it. Of many experts only
 * those count that are in a segment of successive ones whose best is among the best. */
#include <assert.h>

#include "common/compute/cuda/gpu_rows.h"
#include "common/compute/cuda/kernels.h"

#define THREADS GPU_ROUTE_THREADS
#define MAX_BEST (GPU_MAX_CHOICE + 1)
/* at most; if a segment has several experts there are more than half as many: at least MAX_BEST */
#define SEGMENTS THREADS
#define MAX_SEGMENT (OD_MAX_EXPERTS / SEGMENTS)

struct route_room {
	float top[SEGMENTS]; /* the best of each segment */
	float group[GPU_MAX_GROUPS], chosen[GPU_MAX_CHOICE];
	float left[MAX_BEST * MAX_SEGMENT]; /* scores of the best segments */
	uint32_t nan[THREADS / GPU_WARP];
	uint16_t left_of[MAX_BEST * MAX_SEGMENT];
	uint16_t segment[MAX_BEST], best[MAX_BEST], order[GPU_MAX_GROUPS];
};
static_assert(SEGMENTS / 2 + 1 >= MAX_BEST && THREADS >= GPU_MAX_GROUPS && THREADS >= MAX_BEST, "od_rank by a block");
static_assert(2 * OD_MAX_EXPERTS * sizeof(float) + sizeof(struct route_room) <= 48 << 10, "shared memory of a block");

size_t gpu_route_shared(uint32_t n_experts)
{
	return sizeof(struct route_room) + 2 * n_experts * sizeof(float);
}

struct route {
	const struct gpu_route *a;
	struct route_room *room;
	float *decides, *score; /* [n_experts]: what experts are chosen by, what weights are made of */
	unsigned n, k, want; /* want: the k best and the next, for the margin */
};

/* ---- The best ---- */

/* od_rank, for what has NaN: then the order depends on which comes first. By one thread. */
GPU_FN void insert_all(const float *score, unsigned n, uint16_t *best, unsigned want)
{
	unsigned have = 0;

	for (unsigned e = 0; e < n; e++) {
		unsigned at = have;

		while (at > 0 && score[e] > score[best[at - 1]])
			at--;
		if (at == want)
			continue;
		have += have < want;
		for (unsigned i = have - 1; i > at; i--)
			best[i] = best[i - 1];
		best[at] = (uint16_t)e;
	}
}

/* How many of x [n] come before i. */
GPU_FN unsigned rank_of(const float *x, unsigned n, unsigned i)
{
	const float mine = x[i];
	unsigned before = 0;

	GPU_UNROLL_N(8)
	for (unsigned j = 0; j < i; j++)
		before += x[j] >= mine;
	GPU_UNROLL_N(8)
	for (unsigned j = i + 1; j < n; j++)
		before += x[j] > mine;
	return before;
}

/* The best of the best segments, of `each` experts. */
GPU_FN void rank_segments(struct route_room *m, const float *score, unsigned n, unsigned each, uint16_t *best,
			  unsigned want)
{
	const unsigned n_left = want * each;

	for (unsigned c = gpu_thread(); c < n_left; c += THREADS) {
		const unsigned e = m->segment[c / each] * each + c % each;

		m->left[c] = e < n ? score[e] : -INFINITY; /* and later than all others */
		m->left_of[c] = (uint16_t)e;
	}
	gpu_sync(); /* each thread compares its experts with all others */
	for (unsigned c = gpu_thread(); c < n_left; c += THREADS) {
		const float mine = m->left[c];
		const unsigned e = m->left_of[c];
		unsigned before = 0;

		for (unsigned j = 0; j < n_left; j++)
			before += m->left[j] > mine || (m->left[j] == mine && m->left_of[j] < e);
		if (before < want)
			best[before] = (uint16_t)e;
	}
}

/* best [want] = od_rank of score [n], want at most MAX_BEST. All threads; it ends with a barrier. */
GPU_FN void rank(struct route_room *m, const float *score, unsigned n, uint16_t *best, unsigned want)
{
	const unsigned each = (n + SEGMENTS - 1) / SEGMENTS, begin = gpu_thread() * each;
	const unsigned end = begin + each < n ? begin + each : n, n_segments = (n + each - 1) / each;
	bool nan = false;
	uint32_t found = 0;

	if (begin < n) {
		float top = score[begin];

		for (unsigned e = begin; e < end; e++) {
			nan = nan || score[e] != score[e];
			top = score[e] > top ? score[e] : top;
		}
		m->top[gpu_thread()] = top;
	}
	found = gpu_ballot(nan);
	if (gpu_lane() == 0)
		m->nan[gpu_warp()] = found;
	gpu_sync(); /* all segments' best are there, and whether one had no number */
	for (unsigned w = 0; w < THREADS / GPU_WARP; w++)
		found |= m->nan[w];
	if (found != 0) {
		if (gpu_thread() == 0)
			insert_all(score, n, best, want);
	} else {
		/* Equal ones of two segments are in the order of the segments. */
		const unsigned before = begin < n ? rank_of(m->top, n_segments, gpu_thread()) : want;

		if (before < want)
			(each == 1 ? best : m->segment)[before] = (uint16_t)gpu_thread();
		if (each > 1) {
			gpu_sync(); /* the best segments are there */
			rank_segments(m, score, n, each, best, want);
		}
	}
	gpu_sync();
}

/* ---- Scores ---- */

/* x [n] = its softmax, in shared memory. All threads; it ends with a barrier. Each warp finds the maximum and the
 * sum. */
GPU_FN void softmax(float *x, unsigned n)
{
	float most = -INFINITY, total;

	for (unsigned i = gpu_lane(); i < n; i += GPU_WARP)
		most = gpu_max(x[i], most);
	most = gpu_max(gpu_shuffle_xor(most, 16), most);
	most = gpu_fold_max_each(most);
	gpu_sync(); /* all warps have read x, which changes now */
	for (unsigned i = gpu_thread(); i < n; i += THREADS)
		x[i] = gpu_exp(x[i] - most);
	gpu_sync(); /* the exponentials are there */
	total = gpu_lanes_sum(GPU_SUM, x, n, 0);
	gpu_sync(); /* all warps have read them, before they change */
	for (unsigned i = gpu_thread(); i < n; i += THREADS)
		x[i] = gpu_canonical(x[i] / total);
	gpu_sync();
}

/* A softmax without bias: what decides is a probability already. */
GPU_FN bool by_probability(const struct gpu_route *a)
{
	return a->router.score == OD_SCORE_SOFTMAX && !a->router.bias;
}

/* decides: from logits to what experts are chosen by. It ends with a barrier. */
GPU_FN void score_experts(const struct route *r)
{
	if (r->a->router.score == OD_SCORE_SOFTMAX)
		softmax(r->decides, r->n);
	for (unsigned e = gpu_thread(); e < r->n; e += THREADS) {
		float s = r->decides[e];

		if (r->a->router.score == OD_SCORE_SIGMOID)
			s = gpu_canonical(gpu_sigmoid(s));
		r->score[e] = s;
		r->decides[e] = r->a->bias != NULL ? s + r->a->bias[e] : s;
	}
	gpu_sync();
}

/* Score of a group: its best expert's, or the sum of its two best. */
GPU_FN float group_score(const float *x, unsigned size, bool two)
{
	float best = x[0], second = -INFINITY;

	if (!two || size == 1) {
		for (unsigned e = 1; e < size; e++)
			best = x[e] > best ? x[e] : best;
		return best;
	}
	second = x[1];
	if (second > best) {
		second = best;
		best = x[1];
	}
	GPU_UNROLL_N(4)
	for (unsigned e = 2; e < size; e++) {
		const float v = x[e];

		if (v > second) {
			second = v > best ? best : v;
			best = v > best ? v : best;
		}
	}
	return best + second;
}

/* No expert outside of the best groups will be chosen. Returns the gap between the last group that stays and the
 * next. */
GPU_FN float keep_groups(const struct route *r)
{
	const unsigned n_groups = r->a->router.n_groups, top = r->a->router.top_groups, size = r->n / n_groups;
	const float out = by_probability(r->a) ? 0 : -INFINITY;
	struct route_room *m = r->room;

	if (top >= n_groups)
		return 1;
	if (gpu_thread() < n_groups)
		m->group[gpu_thread()] = group_score(r->decides + gpu_thread() * size, size, r->a->router.group_two);
	/* No barrier: of at most THREADS groups each thread looks at its own, until rank has one. */
	rank(m, m->group, n_groups, m->order, n_groups);
	for (unsigned i = top * size + gpu_thread(); i < n_groups * size; i += THREADS)
		r->decides[m->order[i / size] * size + i % size] = out;
	gpu_sync(); /* all threads rank all experts next */
	return m->group[m->order[top - 1]] - m->group[m->order[top]];
}

/* ---- Weights ---- */

GPU_FN void choose(const struct route *r)
{
	const struct gpu_route *a = r->a;
	const size_t at = (size_t)gpu_block_y() * r->k;
	const float of_groups = a->router.n_groups > 0 ? keep_groups(r) : 1;
	struct route_room *m = r->room;
	const unsigned i = gpu_thread();

	rank(m, r->decides, r->n, m->best, r->want);
	if (i < r->k)
		m->chosen[i] = r->score[m->best[i]];
	gpu_sync(); /* each thread adds up all chosen ones */
	if (a->router.score == OD_SCORE_LOGIT)
		softmax(m->chosen, r->k);
	if (i < r->k) { /* each adds up all, in one order: so all have the same bits, and need not wait for one */
		float sum = 0;

		for (unsigned j = 0; j < r->k; j++)
			sum += m->chosen[j];
		sum = a->router.renormalise ? sum + a->router.sum_eps : 1;
		a->choice[at + i] = m->best[i];
		a->weight[at + i] = gpu_canonical(m->chosen[i] / sum * a->router.scale *
						  (a->factor != NULL ? a->factor[m->best[i]] : 1));
	}
	if (i == 0) {
		const float gap = r->want > r->k ? r->decides[m->best[r->k - 1]] - r->decides[m->best[r->k]] : 1.0f;

		a->margin[gpu_block_y()] = fminf(gap < of_groups ? gap : of_groups, 1);
	}
	if (!by_probability(a))
		softmax(r->decides, r->n);
}

/* The share of expert e beside best[i] (OD_SCORE_MIXER), before the softmax. */
GPU_FN float mixer_share(const struct route *r, unsigned i, unsigned e, float *margin)
{
	const uint16_t *best = r->room->best;
	const float most = r->decides[best[i]], logit = r->decides[e];
	const float away = (most - logit) / fmaxf(fabsf(logit), most), band = r->a->router.band;
	float left = logit;

	for (unsigned j = 0; j < i; j++)
		left = best[j] == e ? -INFINITY : left;
	if (e != best[i] && left != -INFINITY)
		*margin = fminf(*margin, fabsf(away - band));
	return away > band ? -INFINITY : left;
}

GPU_FN void mix(const struct route *r)
{
	const struct gpu_route *a = r->a;
	const size_t at = (size_t)gpu_block_y() * r->k;
	struct route_room *m = r->room;
	float margin = 1;

	rank(m, r->decides, r->n, m->best, r->want);
	for (unsigned i = 0; i < r->k; i++) {
		const unsigned best = m->best[i];

		if (i + 1 < r->want)
			margin = fminf(margin, r->decides[best] - r->decides[m->best[i + 1]]);
		for (unsigned e = gpu_thread(); e < r->n; e += THREADS)
			r->score[e] = mixer_share(r, i, e, &margin);
		gpu_sync(); /* each warp's softmax reads all */
		softmax(r->score, r->n);
		if (best % THREADS == gpu_thread()) { /* this thread writes it next */
			a->choice[at + i] = (uint16_t)best;
			a->weight[at + i] = r->score[best];
		}
	}
	GPU_UNROLL
	for (unsigned half = GPU_WARP / 2; half > 0; half /= 2)
		margin = fminf(margin, gpu_shuffle_xor(margin, half));
	if (gpu_lane() == 0)
		m->chosen[gpu_warp()] = margin;
	gpu_sync(); /* all warps' margins are there */
	for (unsigned w = 0; w < THREADS / GPU_WARP; w++)
		margin = fminf(margin, m->chosen[w]);
	if (gpu_thread() == 0)
		a->margin[gpu_block_y()] = margin;
	softmax(r->decides, r->n);
}

/* Part of the row for the experts. */
GPU_FN void round_block(const struct gpu_route *a, unsigned block)
{
	float *x = a->round + (size_t)gpu_block_y() * a->hidden;

	for (unsigned i = block * GPU_ROUTE_ROUND + gpu_thread(); i < (block + 1) * GPU_ROUTE_ROUND && i < a->hidden;
	     i += THREADS)
		x[i] = gpu_round_bf16(x[i]);
}

GPU_KERNEL(gpu_route, struct gpu_route, GPU_ROUTE_THREADS)
{
	struct route_room *room = (struct route_room *)(void *)gpu_shared();
	float *logits = a.logits + (size_t)gpu_block_y() * a.n_experts;
	struct route r;

	if (gpu_block_x() > 0) {
		round_block(&a, gpu_block_x() - 1);
		return;
	}
	r.a = &a;
	r.room = room;
	r.decides = (float *)(void *)(room + 1);
	r.score = r.decides + a.n_experts;
	r.n = a.n_experts;
	r.k = a.top_k;
	r.want = r.k < r.n ? r.k + 1 : r.k;
	for (unsigned e = gpu_thread(); e < r.n; e += THREADS) {
		const float by = a.router.score != OD_SCORE_MIXER ? a.router.logit_scale : 0;

		r.decides[e] = by != 0 ? logits[e] * by : logits[e];
	}
	gpu_sync(); /* a thread looks at experts that others have read */
	if (a.router.score == OD_SCORE_MIXER) {
		mix(&r);
	} else {
		score_experts(&r);
		choose(&r);
	}
	for (unsigned e = gpu_thread(); e < r.n; e += THREADS)
		logits[e] = r.decides[e];
}
