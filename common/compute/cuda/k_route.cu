/* Routing (OD_OP_ROUTE): a block for each row, or with a prior for each text, the row's experts in shared memory. Sums
 * and softmaxes are those of cpu_kernels.h; other blocks round the row for the experts.
 *
 * The best experts are found by counting: an expert's rank is the number of those before it. Of many experts only
 * those count that are in a segment of successive ones whose best is among the best. */
#include <assert.h>
#include <float.h>

#include "common/compute/cuda/gpu_rows.h"
#include "common/compute/cuda/kernels.h"

#define THREADS GPU_ROUTE_THREADS
#define MAX_BEST (GPU_MAX_CHOICE + 1)
/* at most; if a segment has several experts there are more than half as many: at least MAX_BEST */
#define SEGMENTS THREADS
#define MAX_SEGMENT (OD_MAX_EXPERTS / SEGMENTS)

struct route_room {
	float top[SEGMENTS]; /* the best of each segment */
	float worth[GPU_MAX_GROUPS]; /* [groups] */
	float group[GPU_MAX_GROUPS], chosen[GPU_MAX_CHOICE];
	float left[MAX_BEST * MAX_SEGMENT]; /* scores of the best segments */
	uint32_t nan[THREADS / GPU_WARP];
	uint16_t left_of[MAX_BEST * MAX_SEGMENT];
	uint16_t segment[MAX_BEST], ranked[MAX_BEST], best[MAX_BEST], kept[MAX_BEST], order[GPU_MAX_GROUPS];
	uint16_t old[GPU_MAX_CHOICE]; /* where the row before has the chosen experts among its recent ones */
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
	float *logits; /* [n_experts]: of the row */
	size_t row;
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

GPU_FN float logit(const struct route *r, unsigned e)
{
	const float by = r->a->router.score != OD_SCORE_MIXER ? r->a->router.logit_scale : 0;

	return by != 0 ? r->logits[e] * by : r->logits[e];
}

/* An expert's score with its bias, before groups and prior; the logit if that is a probability. After
 * score_experts. */
GPU_FN float base(const struct route *r, unsigned e)
{
	if (by_probability(r->a))
		return logit(r, e);
	return r->a->bias != NULL ? r->score[e] + r->a->bias[e] : r->score[e];
}

/* decides: what experts are chosen by. It ends with a barrier. */
GPU_FN void score_experts(const struct route *r)
{
	for (unsigned e = gpu_thread(); e < r->n; e += THREADS)
		r->decides[e] = logit(r, e);
	gpu_sync(); /* a thread looks at experts that others have read */
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

GPU_FN bool is_among(const uint16_t *expert, unsigned n, unsigned e)
{
	for (unsigned i = 0; i < n; i++)
		if (expert[i] == e)
			return true;
	return false;
}

/* No expert outside of the best groups will be chosen; groups of the n_kept experts are among them. Returns the gap
 * between the worst group that stays and the best that leaves; 1 if it is less, because kept experts decided. */
GPU_FN float keep_groups(const struct route *r, unsigned n_kept)
{
	const unsigned n_groups = r->a->router.n_groups, top = r->a->router.top_groups, size = r->n / n_groups;
	const float out = by_probability(r->a) ? 0 : -INFINITY;
	struct route_room *m = r->room;
	float least = INFINITY;

	if (top >= n_groups)
		return 1;
	if (gpu_thread() < n_groups) {
		float score = group_score(r->decides + gpu_thread() * size, size, r->a->router.group_two);

		m->worth[gpu_thread()] = score;
		for (unsigned i = 0; i < n_kept; i++)
			score = m->kept[i] / size == gpu_thread() ? INFINITY : score;
		m->group[gpu_thread()] = score;
	}
	/* No barrier: of at most THREADS groups each thread looks at its own, until rank has one. */
	rank(m, m->group, n_groups, m->order, n_groups);
	for (unsigned i = top * size + gpu_thread(); i < n_groups * size; i += THREADS)
		r->decides[m->order[i / size] * size + i % size] = out;
	gpu_sync(); /* all threads rank all experts next */
	for (unsigned i = 0; i < top; i++)
		least = fminf(least, m->worth[m->order[i]]);
	return least >= m->worth[m->order[top]] ? least - m->worth[m->order[top]] : 1;
}

/* room->best [want]: first the n_kept, then the best of the others. Returns the margin, to the first thread. It ends
 * with a barrier. */
GPU_FN float decide(const struct route *r, unsigned n_kept)
{
	const bool groups = r->a->router.n_groups > 0 && r->a->router.score != OD_SCORE_MIXER;
	const float of_groups = groups ? keep_groups(r, n_kept) : 1;
	struct route_room *m = r->room;
	float gap = 1;

	rank(m, r->decides, r->n, n_kept > 0 ? m->ranked : m->best, r->want);
	if (n_kept > 0) {
		if (gpu_thread() == 0) {
			unsigned at = n_kept;

			for (unsigned i = 0; i < n_kept; i++)
				m->best[i] = m->kept[i];
			for (unsigned i = 0; at < r->want; i++)
				if (!is_among(m->kept, n_kept, m->ranked[i]))
					m->best[at++] = m->ranked[i];
		}
		gpu_sync();
	}
	if (r->want > r->k)
		gap = r->decides[m->best[r->k - 1]] - r->decides[m->best[r->k]];
	return fminf(gap < of_groups ? gap : of_groups, 1);
}

/* ---- Prior ---- */

/* A row's text keeps this of the routes of its rows. */
struct recent {
	const struct od_recent *before; /* NULL: it is the text's first row */
	struct od_recent *after; /* NULL: routing without a prior */
	uint32_t position;
};

/* Largest minus smallest base; finite for all numbers, and the same in any order. Each warp finds it. */
GPU_FN float range_of(const struct route *r)
{
	float most = -INFINITY, least = INFINITY, range;

	for (unsigned e = gpu_lane(); e < r->n; e += GPU_WARP) {
		const float x = base(r, e);

		most = x > most ? x : most;
		least = x < least ? x : least;
	}
	GPU_UNROLL
	for (unsigned half = GPU_WARP / 2; half > 0; half /= 2) {
		const float more = gpu_shuffle_xor(most, half), less = gpu_shuffle_xor(least, half);

		most = more > most ? more : most;
		least = less < least ? less : least;
	}
	range = most - least;
	return range > 0 ? fminf(range, FLT_MAX) : 0;
}

/* As prefer of cpu_route.c. */
GPU_FN float prefer(const struct route *r, const struct recent *t)
{
	const struct od_cache_prior *p = &r->a->prior;
	struct route_room *m = r->room;
	float range = range_of(r), by;

	if (t->before != NULL)
		range = gpu_canonical(t->before->range + (range - t->before->range) / (float)(t->position + 1));
	if (gpu_thread() == 0)
		t->after->range = range;
	by = p->lambda * range;
	if (gpu_thread() < p->keep)
		m->kept[gpu_thread()] = m->best[gpu_thread()];
	gpu_sync(); /* decide is done, in all threads */
	for (unsigned e = gpu_thread(); e < r->n; e += THREADS)
		r->decides[e] = base(r, e);
	gpu_sync(); /* other threads raise what this one has written */
	for (unsigned i = gpu_thread(); t->before != NULL && i < p->recent; i += THREADS) {
		const unsigned e = t->before->expert[i];

		if (e < r->n && !is_among(m->kept, p->keep, e))
			r->decides[e] = base(r, e) + by;
	}
	if (gpu_thread() < p->keep)
		r->decides[m->kept[gpu_thread()]] = base(r, m->kept[gpu_thread()]) + by;
	gpu_sync(); /* all threads look at all experts next */
	if (by_probability(r->a))
		softmax(r->decides, r->n);
	return decide(r, p->keep);
}

/* As remember of cpu_route.c: the row's experts are the newest, the one of the least weight first. */
GPU_FN void put_chosen(const struct route *r, const float *weight, uint16_t *to, unsigned most)
{
	struct route_room *m = r->room;
	uint16_t *order = m->ranked;

	for (unsigned i = 0; i < r->k; i++) {
		const unsigned c = r->k - 1 - i;
		unsigned at = i;

		for (; at > 0 && weight[order[at - 1]] > weight[c]; at--)
			order[at] = order[at - 1];
		order[at] = (uint16_t)c;
	}
	for (unsigned i = 0; i < r->k && i < most; i++)
		to[i] = m->best[order[i]];
}

GPU_FN void remember(const struct route *r, const struct recent *t)
{
	const unsigned most = r->a->prior.recent, i = gpu_thread();
	struct route_room *m = r->room;

	if (i < r->k)
		m->old[i] = OD_NO_EXPERT;
	for (unsigned j = r->k + i; j < most; j += THREADS)
		t->after->expert[j] = OD_NO_EXPERT; /* stays if what was before names an expert twice */
	gpu_sync(); /* the weights and these are there */
	if (i == 0)
		put_chosen(r, r->a->weight + r->row * r->k, t->after->expert, most);
	for (unsigned j = i; t->before != NULL && j < most; j += THREADS)
		for (unsigned c = 0; c < r->k; c++)
			if (m->best[c] == t->before->expert[j])
				m->old[c] = (uint16_t)j;
	gpu_sync(); /* each thread looks at all of old */
	for (unsigned j = i; j < most; j += THREADS) {
		const unsigned e = t->before != NULL ? t->before->expert[j] : OD_NO_EXPERT;
		unsigned at = r->k + j;

		for (unsigned c = 0; c < r->k; c++)
			at -= m->old[c] < j;
		if (at < most && !is_among(m->best, r->k, e))
			t->after->expert[at] = (uint16_t)e;
	}
}

/* ---- Weights ---- */

GPU_FN void weigh(const struct route *r)
{
	const struct gpu_route *a = r->a;
	const size_t at = r->row * r->k;
	struct route_room *m = r->room;
	const unsigned i = gpu_thread();

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
}

/* The share of expert e beside best[i] (OD_SCORE_MIXER), before the softmax. */
GPU_FN float mixer_share(const struct route *r, unsigned i, unsigned e, float *margin)
{
	const uint16_t *best = r->room->best;
	const float most = r->logits[best[i]], one = r->logits[e];
	const float away = (most - one) / fmaxf(fabsf(one), most), band = r->a->router.band;
	float left = one;

	for (unsigned j = 0; j < i; j++)
		left = best[j] == e ? -INFINITY : left;
	if (e != best[i] && left != -INFINITY)
		*margin = fminf(*margin, fabsf(away - band));
	return away > band ? -INFINITY : left;
}

/* Returns the margin. */
GPU_FN float mix(const struct route *r)
{
	const struct gpu_route *a = r->a;
	const size_t at = r->row * r->k;
	struct route_room *m = r->room;
	float margin = 1;

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
	return margin;
}

GPU_FN void route_row(struct route *r, size_t row, const struct recent *t)
{
	const struct gpu_route *a = r->a;
	float margin;

	r->row = row;
	r->logits = a->logits + row * r->n;
	score_experts(r);
	margin = decide(r, 0);
	if (t->after != NULL)
		margin = prefer(r, t);
	if (a->router.score == OD_SCORE_MIXER)
		margin = mix(r);
	else
		weigh(r);
	if (gpu_thread() == 0)
		a->margin[row] = margin;
	if (t->after != NULL)
		remember(r, t);
	if (!by_probability(a))
		softmax(r->decides, r->n);
	for (unsigned e = gpu_thread(); e < r->n; e += THREADS)
		r->logits[e] = r->decides[e];
}

/* The rows of the text that begins in this block's row, one after the other. */
GPU_FN void route_text(struct route *r)
{
	const struct gpu_row *rows = r->a->rows;
	const uint32_t first = gpu_block_y(), table = rows[first].table;

	for (uint32_t i = first; i > 0; i--)
		if (rows[i - 1].table == table)
			return;
	for (uint32_t i = first; i < r->a->n_rows; i++) {
		const uint32_t position = rows[i].position;
		struct recent t;

		if (rows[i].table != table)
			continue;
		t.position = position;
		t.after = (struct od_recent *)(void *)gpu_kv_row(&r->a->recent, table, position);
		t.before = position > 0 ?
				   (const struct od_recent *)(void *)gpu_kv_row(&r->a->recent, table, position - 1) :
				   NULL;
		route_row(r, i, &t);
		gpu_sync(); /* the next row reads what this one has written, and uses the room again */
	}
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
	const struct recent none = { NULL, NULL, 0 };
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
	if (a.prior.recent > 0)
		route_text(&r);
	else
		route_row(&r, gpu_block_y(), &none);
}
