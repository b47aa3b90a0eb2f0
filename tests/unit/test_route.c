/* OD_OP_ROUTE: softmax over all, groups, the k best, ties to the lower index, weights; against plain double arithmetic.
 * And od_rank, which finds the best. */
#include <math.h>
#include <string.h>

#include "common/compute/rank.h"
#include "tests/unit/device_util.h"
#include "tests/unit/tiny_model.h"

#define MAX_EXPERTS 256
#define MAX_K 17
#define MAX_ROWS 23
#define HIDDEN 37

struct choice {
	uint16_t expert[MAX_K];
	float weight[MAX_K], margin;
};

/* Groups, top groups, renormalise, scale, bias, a group's two best, sum_eps. */
#define WAY(of, n, top, by_sum, by, with_bias, two, eps) \
	{ \
		.n_groups = n, .top_groups = top, .renormalise = by_sum, .scale = by, .score = of, .bias = with_bias, \
		.group_two = two, .sum_eps = eps \
	}
#define SOFTMAX(n, top, by_sum, by) WAY(OD_SCORE_SOFTMAX, n, top, by_sum, by, false, false, 0)
#define SIGMOID(n, top, by_sum, by, with_bias, two, eps) WAY(OD_SCORE_SIGMOID, n, top, by_sum, by, with_bias, two, eps)

static const struct od_router_spec mixtral = { .renormalise = true, .scale = 1 };

static struct od_device *device;

static int open_device(void **state)
{
	(void)state;
	device = device_new(OD_CPU_SCALAR, 2);
	return 0;
}

static int close_device(void **state)
{
	(void)state;
	od_device_free(device);
	return 0;
}

/* Positive and negative, larger than most differences of scores. */
static float bias_of(uint32_t expert)
{
	return (float)tiny_draw(99, 3, expert, 1 << 16) / (float)(1 << 17) - 0.125f;
}

static struct od_buf *biases(uint32_t n)
{
	float bias[MAX_EXPERTS];

	for (uint32_t e = 0; e < n; e++)
		bias[e] = bias_of(e);
	return buf_of(device, bias, n * sizeof(*bias));
}

/* logits [n_rows][n] to c [n_rows] and probability [n_rows][n] (NULL: not wanted). x [n_rows][HIDDEN] is rounded; NULL:
 * there is none. Nothing may be written behind what the operation gives. */
static void route_rows(const struct od_router_spec *way, const float *logits, size_t n_rows, uint32_t n, uint32_t k,
		       struct choice *c, float *probability, float *x)
{
	static const uint16_t guard = 0xabcd;
	static const float f32_guard = 77;
	const size_t n_choices = n_rows * k;
	uint16_t expert[MAX_ROWS * MAX_K + 1];
	float weight[MAX_ROWS * MAX_K + 1], margin[MAX_ROWS + 1];
	struct od_buf *in = buf_of(device, logits, n_rows * n * sizeof(*logits));
	struct od_buf *out[] = { buf_new(device, sizeof(expert)), buf_new(device, sizeof(weight)),
				 buf_new(device, sizeof(margin)) };
	struct od_buf *bias = biases(n);
	struct od_buf *round = x != NULL ? buf_of(device, x, n_rows * HIDDEN * sizeof(*x)) : NULL;
	const struct od_op op = { .kind = OD_OP_ROUTE,
				  .profile = OD_PROFILE_F32,
				  .n_rows = (uint32_t)n_rows,
				  .route = { .logits = od_buf_ref(in, 0),
					     .choice = od_buf_ref(out[0], 0),
					     .weight = od_buf_ref(out[1], 0),
					     .margin = od_buf_ref(out[2], 0),
					     .bias = od_buf_ref(way->bias ? bias : NULL, 0),
					     .round = od_buf_ref(round, 0),
					     .n_experts = n,
					     .top_k = k,
					     .hidden = HIDDEN,
					     .router = *way } };

	assert_true(n_rows <= MAX_ROWS && n <= MAX_EXPERTS && k <= MAX_K);
	put_at(device, od_buf_ref(out[0], n_choices * sizeof(*expert)), &guard, sizeof(guard));
	put_at(device, od_buf_ref(out[1], n_choices * sizeof(*weight)), &f32_guard, sizeof(f32_guard));
	put_at(device, od_buf_ref(out[2], n_rows * sizeof(*margin)), &f32_guard, sizeof(f32_guard));
	run_op(device, &op);
	get_at(device, expert, od_buf_ref(out[0], 0), sizeof(expert));
	get_at(device, weight, od_buf_ref(out[1], 0), sizeof(weight));
	get_at(device, margin, od_buf_ref(out[2], 0), sizeof(margin));
	assert_int_equal(expert[n_choices], guard);
	assert_true(weight[n_choices] == f32_guard && margin[n_rows] == f32_guard);
	for (size_t r = 0; r < n_rows; r++) {
		c[r] = (struct choice){ .margin = margin[r] };
		memcpy(c[r].expert, expert + r * k, k * sizeof(*expert));
		memcpy(c[r].weight, weight + r * k, k * sizeof(*weight));
	}
	if (probability != NULL)
		get_at(device, probability, od_buf_ref(in, 0), n_rows * n * sizeof(*probability));
	if (x != NULL)
		get_at(device, x, od_buf_ref(round, 0), n_rows * HIDDEN * sizeof(*x));
	od_buf_free(in);
	od_buf_free(bias);
	od_buf_free(round);
	for (int i = 0; i < 3; i++)
		od_buf_free(out[i]);
}

static void choose(struct choice *c, const float *logits, uint32_t n, uint32_t k)
{
	route_rows(&mixtral, logits, 1, n, k, c, NULL, NULL);
}

/* Probability in double, and how many experts come before e: larger, or equal with a lower index. */
static double probability(const float *logits, uint32_t n, uint32_t e)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += exp((double)logits[i] - (double)logits[e]);
	return 1 / sum;
}

static uint32_t rank_by_hand(const float *logits, uint32_t n, uint32_t e)
{
	uint32_t before = 0;

	for (uint32_t i = 0; i < n; i++)
		before += logits[i] > logits[e] || (logits[i] == logits[e] && i < e);
	return before;
}

static uint32_t rank_of(const double *x, uint32_t n, uint32_t e)
{
	uint32_t before = 0;

	for (uint32_t i = 0; i < n; i++)
		before += x[i] > x[e] || (x[i] == x[e] && i < e);
	return before;
}

/* Marks the experts of the best groups. Returns the difference between the last group that is in and the next one. */
static double best_groups(const struct od_router_spec *way, const double *decides, uint32_t n, bool *in)
{
	const uint32_t n_groups = way->n_groups > 0 ? way->n_groups : 1, size = n / n_groups;
	double worth[MAX_EXPERTS], last = 0, next = 0;

	for (uint32_t g = 0; g < n_groups; g++) {
		worth[g] = 0;
		for (uint32_t i = 0; i < size; i++)
			if (rank_of(decides + g * size, size, i) < 1u + way->group_two)
				worth[g] += decides[g * size + i];
	}
	for (uint32_t g = 0; g < n_groups; g++) {
		const uint32_t at = rank_of(worth, n_groups, g);

		for (uint32_t i = 0; i < size; i++)
			in[g * size + i] = way->n_groups == 0 || at < way->top_groups;
		last = at == way->top_groups - 1 ? worth[g] : last;
		next = at == way->top_groups ? worth[g] : next;
	}
	return way->n_groups > 0 && way->top_groups < n_groups ? last - next : 1;
}

/* The probabilities that predictors get: of a softmax itself, else the softmax of what decides. */
static void check_probabilities(const struct od_router_spec *way, const double *decides, const bool *in, uint32_t n,
				const float *found)
{
	const bool itself = way->score == OD_SCORE_SOFTMAX && !way->bias;
	double sum = 0;

	for (uint32_t e = 0; e < n; e++)
		sum += in[e] ? exp(decides[e]) : 0;
	for (uint32_t e = 0; e < n; e++)
		assert_true(in[e] ? fabs((itself ? decides[e] : exp(decides[e]) / sum) - (double)found[e]) < 1e-6 :
				    found[e] == 0);
}

/* Against plain double arithmetic. */
static void check_against_sort(const struct od_router_spec *way, const float *logits, uint32_t n, uint32_t k)
{
	double score[MAX_EXPERTS], decides[MAX_EXPERTS], sum = 0, next = 0, last = 0, gap, margin;
	float found[MAX_EXPERTS];
	bool in[MAX_EXPERTS];
	struct choice c;

	route_rows(way, logits, 1, n, k, &c, found, NULL);
	for (uint32_t e = 0; e < n; e++) {
		score[e] =
			way->score == OD_SCORE_SIGMOID ? 1 / (1 + exp(-(double)logits[e])) : probability(logits, n, e);
		decides[e] = score[e] + (way->bias ? (double)bias_of(e) : 0);
	}
	gap = best_groups(way, decides, n, in);
	check_probabilities(way, decides, in, n, found);
	for (uint32_t e = 0; e < n; e++)
		decides[e] = in[e] ? decides[e] : -1e30;
	for (uint32_t e = 0; e < n; e++) {
		uint32_t at = rank_of(decides, n, e);

		if (at < k) {
			assert_int_equal(c.expert[at], e);
			sum += score[e];
		}
		last = at == k - 1 ? decides[e] : last;
		next = at == k ? decides[e] : next;
	}
	sum = (way->renormalise ? sum + (double)way->sum_eps : 1) / (double)way->scale;
	for (uint32_t r = 0; r < k; r++)
		assert_true(fabs(score[c.expert[r]] / sum - (double)c.weight[r]) < 1e-6 * fmax((double)way->scale, 1));
	next = next < -1e29 && way->score == OD_SCORE_SOFTMAX && !way->bias ? 0 : next; /* a probability of 0 is one */
	margin = k < n ? fmin(fmin(last - next, gap), 1) : 1;
	assert_true(fabs(margin - (double)c.margin) < 1e-6);
}

static void test_random(void **state)
{
	static const uint32_t sizes[][2] = { { 8, 2 }, { 8, 1 }, { 6, 3 },   { 64, 8 },	 { 128, 16 },
					     { 3, 3 }, { 1, 1 }, { 17, 16 }, { 16, 16 }, { 200, 4 } };

	(void)state;
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		for (uint64_t seed = 0; seed < 50; seed++) {
			float logits[MAX_EXPERTS];

			for (uint32_t i = 0; i < sizes[s][0]; i++)
				logits[i] = (float)tiny_draw(seed, s, i, 1 << 20) / (float)(1 << 17);
			check_against_sort(&mixtral, logits, sizes[s][0], sizes[s][1]);
			/* Few distinct values: ties everywhere. */
			for (uint32_t i = 0; i < sizes[s][0]; i++)
				logits[i] = (float)tiny_draw(seed, s, i, 1);
			check_against_sort(&mixtral, logits, sizes[s][0], sizes[s][1]);
		}
	}
}

/* DeepSeek-V2's 160 experts in 8 groups and others; weights as they are, or divided by their sum, times a factor. */
static void test_groups_and_weights(void **state)
{
	static const struct {
		uint32_t n, k;
		struct od_router_spec way;
	} t[] = {
		{ 160, 6, SOFTMAX(8, 3, false, 16) },
		{ 160, 6, SOFTMAX(8, 3, true, 16) },
		{ 12, 3, SOFTMAX(4, 2, false, 1) },
		{ 12, 6, SOFTMAX(4, 2, true, 1) },
		{ 8, 4, SOFTMAX(2, 1, false, 2.5f) },
		{ 8, 8, SOFTMAX(2, 2, false, 1) },
		{ 8, 3, SOFTMAX(8, 3, true, 1) },
		{ 128, 2, SOFTMAX(64, 5, false, 1) },
		{ 64, 6, SOFTMAX(1, 1, false, 1) },
		{ 64, 6, SOFTMAX(0, 0, false, 0.125f) },
		{ 60, 4, SOFTMAX(0, 0, false, 1) },
		{ 9, 3, SOFTMAX(3, 3, true, 0.5f) },
		{ 5, 5, SOFTMAX(0, 0, false, 1) },
		/* DeepSeek-V3, Kimi-K2, MiniMax-M2, and ways that nothing published has */
		{ 256, 8, SIGMOID(8, 4, true, 2.5f, true, true, 1e-20f) },
		{ 128, 8, SIGMOID(1, 1, true, 2.827f, true, true, 1e-20f) },
		{ 256, 8, SIGMOID(0, 0, true, 1, true, false, 0) },
		{ 12, 4, SIGMOID(4, 2, false, 1, true, true, 0) },
		{ 12, 4, SIGMOID(4, 2, true, 1, true, false, 0.25f) },
		{ 16, 4, SIGMOID(4, 1, true, 1, false, true, 0) },
		{ 16, 2, SIGMOID(16, 3, false, 1, false, true, 0) },
		{ 24, 5, WAY(OD_SCORE_SOFTMAX, 6, 2, true, 1, true, true, 0.5f) },
		{ 24, 5, WAY(OD_SCORE_SOFTMAX, 6, 2, true, 1, false, true, 0) },
		{ 16, 16, SIGMOID(0, 0, true, 1, true, false, 0) },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		for (uint64_t seed = 0; seed < 60; seed++) {
			/* Few distinct values at last: experts and groups tie. */
			const int limit = seed < 40 ? 1 << 20 : seed < 50 ? 2 : 1;
			float logits[MAX_EXPERTS];

			for (uint32_t e = 0; e < t[i].n; e++)
				logits[e] = (float)tiny_draw(seed, 50 + i, e, limit) / (float)(limit >> 3 | 1);
			check_against_sort(&t[i].way, logits, t[i].n, t[i].k);
		}
	}
}

/* The second best expert is in no group that stays; then the gap between groups is less than that between experts. */
static void test_groups_by_hand(void **state)
{
	static const float logits[] = { 1, 5, 4, 0, 4.5f, -2, 2, 2 }, near[] = { 5, 0, 4.875f, 0, 4.75f, 0, 0, 0 };
	static const struct od_router_spec one = SOFTMAX(4, 1, false, 1), two = SOFTMAX(4, 2, false, 1);
	float p[8];
	struct choice c;

	(void)state;
	route_rows(&one, logits, 1, 8, 2, &c, p, NULL);
	assert_int_equal(c.expert[0], 1);
	assert_int_equal(c.expert[1], 0);
	for (int i = 2; i < 8; i++)
		assert_true(p[i] == 0);
	assert_true(p[0] > 0 && c.weight[1] == p[0] && c.weight[0] == p[1]);
	/* Experts: p[0] - 0; groups: p[1] less expert 4's, more. */
	assert_true(c.margin == p[0]);
	route_rows(&two, near, 1, 8, 2, &c, p, NULL);
	assert_int_equal(c.expert[0], 0);
	assert_int_equal(c.expert[1], 2);
	assert_true(fabs((double)c.margin - (probability(near, 8, 2) - probability(near, 8, 4))) < 1e-6);
	assert_true(c.margin < p[2] - p[1]);
}

/* The bias moves the choice and nothing else; a group is worth its two best, not its best. */
static void test_bias_by_hand(void **state)
{
	/* sigmoids 0.5, 0.731, 0.818, 0.622; with the biases of bias_of 0.305, 0.266, 0.542, 0.672 */
	static const float logits[] = { 0, 1, 1.5f, 0.5f };
	static const struct od_router_spec with = { .scale = 1, .score = OD_SCORE_SIGMOID, .bias = true };
	static const struct od_router_spec without = { .scale = 1, .score = OD_SCORE_SIGMOID };
	static const struct od_router_spec best = SIGMOID(2, 1, false, 1, false, false, 0);
	static const struct od_router_spec two = SIGMOID(2, 1, false, 1, false, true, 0);
	static const float flat[] = { 3, -9, 2, 2 };
	struct choice c;

	(void)state;
	route_rows(&without, logits, 1, 4, 1, &c, NULL, NULL);
	assert_int_equal(c.expert[0], 2);
	assert_true(fabs((double)c.weight[0] - 0.8175744761936437) < 1e-7);
	assert_true(fabs((double)c.margin - (0.8175744761936437 - 0.7310585786300049)) < 1e-7);
	route_rows(&with, logits, 1, 4, 1, &c, NULL, NULL);
	assert_int_equal(c.expert[0], 3);
	assert_true(fabs((double)c.weight[0] - 0.6224593312018546) < 1e-7);
	route_rows(&best, flat, 1, 4, 2, &c, NULL, NULL);
	assert_int_equal(c.expert[0], 0);
	route_rows(&two, flat, 1, 4, 2, &c, NULL, NULL);
	assert_int_equal(c.expert[0], 2);
	assert_int_equal(c.expert[1], 3);
}

/* The weight of expert `best` among those that are left, and the least distance from the band's edge, in double. */
static double mixed(const float *logits, const bool *taken, uint32_t n, uint32_t best, double band, double *edge)
{
	double sum = 0;

	for (uint32_t e = 0; e < n; e++) {
		const double s = (double)logits[e], most = (double)logits[best],
			     away = (most - s) / fmax(fabs(s), most);

		if (taken[e])
			continue;
		sum += away > band ? 0 : exp(s - most);
		if (e != best)
			*edge = fmin(*edge, fabs(away - band));
	}
	return 1 / sum;
}

static void check_mixer(const float *logits, uint32_t n, uint32_t k, float band)
{
	const struct od_router_spec way = { .score = OD_SCORE_MIXER, .band = band };
	double decides[MAX_EXPERTS], margin = 1, edge = 1, last = 0, next;
	float found[MAX_EXPERTS];
	bool taken[MAX_EXPERTS] = { false }, all[MAX_EXPERTS];
	struct choice c;

	route_rows(&way, logits, 1, n, k, &c, found, NULL);
	for (uint32_t e = 0; e < n; e++) {
		decides[e] = (double)logits[e];
		all[e] = true;
	}
	check_probabilities(&way, decides, all, n, found);
	for (uint32_t i = 0; i < n && i <= k; i++) {
		uint32_t e = 0;

		while (rank_of(decides, n, e) != i)
			e++;
		next = decides[e];
		margin = i > 0 ? fmin(margin, last - next) : margin;
		last = next;
		if (i == k)
			continue;
		assert_int_equal(c.expert[i], e);
		assert_true(fabs(mixed(logits, taken, n, e, (double)band, &edge) - (double)c.weight[i]) < 1e-6);
		taken[e] = true;
	}
	assert_true(fabs(fmin(margin, edge) - (double)c.margin) < 2e-6);
}

/* Phi-3.5-MoE's 16 experts and others: few and many within the band, logits of all signs. */
static void test_mixer(void **state)
{
	static const uint32_t sizes[][2] = { { 16, 2 }, { 8, 2 }, { 2, 2 }, { 3, 1 }, { 5, 3 }, { 64, 2 } };
	static const float bands[] = { 0.02f, 0.4f, 1.5f, 1e-6f };

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		for (uint64_t seed = 0; seed < 80; seed++) {
			const int limit = seed < 60 ? 1 << 16 : 2; /* then most tie */
			float logits[MAX_EXPERTS];

			for (uint32_t e = 0; e < sizes[i][0]; e++)
				logits[e] = (float)(tiny_draw(seed, 80 + i, e, limit) - (seed % 3 == 0 ? limit : 0)) /
					    (float)(limit >> 3 | 1);
			check_mixer(logits, sizes[i][0], sizes[i][1], bands[seed % 4]);
		}
	}
}

/* Both experts may have all the weight, and the second never counts what the first one does. */
static void test_mixer_by_hand(void **state)
{
	static const struct od_router_spec way = { .score = OD_SCORE_MIXER, .band = 0.02f };
	static const float apart[] = { 1, 2, -3, 0.5f }, together[] = { 1.99f, 2, -3, 1.98f },
			   low[] = { -2, -1.01f, -1, -7 };
	struct choice c;

	(void)state;
	route_rows(&way, apart, 1, 4, 2, &c, NULL, NULL);
	assert_true(c.expert[0] == 1 && c.expert[1] == 0 && c.weight[0] == 1 && c.weight[1] == 1);
	assert_true(fabs((double)c.margin - 0.48) < 1e-6); /* (1 - 0.5) / 1 - 0.02 */
	route_rows(&way, together, 1, 4, 2, &c, NULL, NULL);
	assert_true(c.expert[0] == 1 && c.expert[1] == 0);
	assert_true(fabs((double)c.weight[0] - 0.336672167) < 1e-6 && fabs((double)c.weight[1] - 0.502499979) < 1e-6);
	route_rows(&way, low, 1, 4, 2, &c, NULL, NULL); /* the larger size counts: 0.01 of 1.01, then 0.99 of 2 */
	assert_true(c.expert[0] == 2 && c.expert[1] == 1);
	assert_true(fabs((double)c.weight[0] - 0.502499979) < 1e-6 && c.weight[1] == 1);
}

static void test_ties_go_to_the_lower_index(void **state)
{
	static const float logits[] = { 1, 3, 2, 3, 2, 3 };
	struct choice c;

	(void)state;
	choose(&c, logits, 6, 4);
	assert_int_equal(c.expert[0], 1);
	assert_int_equal(c.expert[1], 3);
	assert_int_equal(c.expert[2], 5);
	assert_int_equal(c.expert[3], 2);
	assert_true(c.margin == 0);
	assert_true(c.weight[0] == c.weight[2]);
}

static void test_one_expert_has_all_the_weight(void **state)
{
	static const float logits[] = { -3, 5, 0.5f };
	struct choice c;

	(void)state;
	choose(&c, logits, 3, 1);
	assert_int_equal(c.expert[0], 1);
	assert_true(c.weight[0] == 1);
	choose(&c, logits, 3, 3);
	assert_true(c.margin == 1);
}

/* A broken model must not make two equal or impossible experts: workers index by them. */
static void test_not_a_number(void **state)
{
	static const float bad[][5] = { { NAN, NAN, NAN, NAN, NAN },
					{ 1, NAN, 3, NAN, 2 },
					{ INFINITY, 1, INFINITY, 2, 3 },
					{ -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY } };

	(void)state;
	for (size_t b = 0; b < 4 * 4; b++) { /* without groups and with */
		for (uint32_t k = 1; k <= 5; k++) {
			const struct od_router_spec groups = SOFTMAX(5, k, false, 1);
			const struct od_router_spec sigmoid = SIGMOID(5, k, true, 1, true, true, 0);
			const struct od_router_spec mixer = { .score = OD_SCORE_MIXER, .band = 0.02f };
			const struct od_router_spec *const ways[] = { &mixtral, &groups, &sigmoid, &mixer };
			struct choice c;

			route_rows(ways[b % 4], bad[b / 4], 1, 5, k, &c, NULL, NULL);
			for (uint32_t i = 0; i < k; i++) {
				assert_in_range(c.expert[i], 0, 4);
				for (uint32_t j = 0; j < i; j++)
					assert_int_not_equal(c.expert[i], c.expert[j]);
			}
		}
	}
}

/* As many rows as there are pieces for two threads: each gets what it gets alone. */
static void test_rows_are_independent(void **state)
{
	static const struct od_router_spec ways[] = { SOFTMAX(0, 0, true, 1), SOFTMAX(0, 0, false, 3),
						      SOFTMAX(6, 2, false, 16),
						      SIGMOID(6, 2, true, 2, true, true, 1e-20f) };
	static float logits[MAX_ROWS * 60], together[MAX_ROWS * 60], alone[60];
	struct choice c[MAX_ROWS], one;

	(void)state;
	for (size_t i = 0; i < MAX_ROWS * 60; i++)
		logits[i] = (float)tiny_draw(5, 1, i, 1000) / 200.0f;
	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
		route_rows(&ways[w], logits, MAX_ROWS, 60, 6, c, together, NULL);
		for (size_t r = 0; r < MAX_ROWS; r++) {
			route_rows(&ways[w], logits + r * 60, 1, 60, 6, &one, alone, NULL);
			assert_memory_equal(&c[r], &one, sizeof(one));
			assert_memory_equal(together + r * 60, alone, sizeof(alone));
			assert_true(r == 0 || memcmp(c[r].expert, c[r - 1].expert, sizeof(one.expert)) != 0);
		}
	}
}

/* The experts' rows: each element to BF16, to nearest even. */
static void test_rounds_rows(void **state)
{
	float logits[MAX_ROWS * 4], x[MAX_ROWS * HIDDEN], rounded[MAX_ROWS * HIDDEN];
	struct choice with[MAX_ROWS], without[MAX_ROWS];
	size_t changed = 0;

	(void)state;
	for (size_t i = 0; i < MAX_ROWS * 4; i++)
		logits[i] = (float)tiny_draw(6, 1, i, 1000) / 200.0f;
	for (size_t i = 0; i < MAX_ROWS * HIDDEN; i++)
		x[i] = rounded[i] = (float)tiny_draw(6, 2, i, 1 << 20) / 300.0f;
	route_rows(&mixtral, logits, MAX_ROWS, 4, 2, with, NULL, rounded);
	route_rows(&mixtral, logits, MAX_ROWS, 4, 2, without, NULL, NULL);
	assert_memory_equal(with, without, sizeof(with));
	for (size_t i = 0; i < MAX_ROWS * HIDDEN; i++) {
		assert_true(rounded[i] == od_bf16_f32(od_f32_bf16(x[i])));
		changed += rounded[i] != x[i];
	}
	assert_true(changed > MAX_ROWS * HIDDEN / 2);
}

/* An index has rank i when i scores come before its own. With NaN among the scores, indices still differ and are
 * in range. */
static void test_rank(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 400; seed++) {
		const size_t n = 1 + seed % 40, want = 1 + seed / 3 % n;
		const bool nan = seed % 5 == 4;
		uint16_t index[64];
		float score[64];

		for (size_t i = 0; i < n; i++) {
			const int draw = tiny_draw(seed, 7, i, seed % 2 ? 3 : 100000);

			score[i] = nan && draw % 3 == 0 ? NAN : nan && draw % 3 == 1 ? INFINITY : (float)draw;
		}
		index[want] = 0xabcd;
		od_rank(score, n, index, want);
		assert_int_equal(index[want], 0xabcd);
		for (size_t i = 0; i < want; i++) {
			assert_in_range(index[i], 0, n - 1);
			for (size_t j = 0; j < i; j++)
				assert_int_not_equal(index[i], index[j]);
			if (!nan)
				assert_int_equal(rank_by_hand(score, (uint32_t)n, index[i]), i);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_groups_and_weights),
		cmocka_unit_test(test_groups_by_hand),
		cmocka_unit_test(test_bias_by_hand),
		cmocka_unit_test(test_mixer),
		cmocka_unit_test(test_mixer_by_hand),
		cmocka_unit_test(test_ties_go_to_the_lower_index),
		cmocka_unit_test(test_one_expert_has_all_the_weight),
		cmocka_unit_test(test_not_a_number),
		cmocka_unit_test(test_rows_are_independent),
		cmocka_unit_test(test_rounds_rows),
		cmocka_unit_test(test_rank),
	};

	return cmocka_run_group_tests(tests, open_device, close_device);
}
