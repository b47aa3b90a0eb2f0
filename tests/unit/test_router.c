/* Router: softmax over all, the k best, ties to the lower index, renormalised; against plain double arithmetic. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/model/router.h"
#include "tests/unit/tiny_model.h"

static const struct od_backend *backend(void)
{
	const struct od_backend *be;

	assert_int_equal(od_backend_cpu(&be, OD_CPU_SCALAR, OD_PROFILE_F32, NULL), OD_OK);
	return be;
}

struct choice {
	uint16_t expert[OD_MAX_TOP_K + 1];
	float weight[OD_MAX_TOP_K + 1], margin;
};

/* Sentinels behind the last place: nothing may be written there. */
static void choose(struct choice *c, const float *logits, uint32_t n, uint32_t k)
{
	struct od_config cfg = { .n_experts = n, .top_k = k };
	float copy[256];

	memcpy(copy, logits, n * sizeof(*copy));
	c->expert[k] = 0xabcd;
	c->weight[k] = 77;
	od_router_choose(backend(), &cfg, copy, c->expert, c->weight, &c->margin);
	assert_int_equal(c->expert[k], 0xabcd);
	assert_true(c->weight[k] == 77);
}

/* Probability in double, and how many experts come before e: larger, or equal with a lower index. */
static double probability(const float *logits, uint32_t n, uint32_t e)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += exp((double)logits[i] - (double)logits[e]);
	return 1 / sum;
}

static uint32_t place(const float *logits, uint32_t n, uint32_t e)
{
	uint32_t before = 0;

	for (uint32_t i = 0; i < n; i++)
		before += logits[i] > logits[e] || (logits[i] == logits[e] && i < e);
	return before;
}

static void check_against_sort(const float *logits, uint32_t n, uint32_t k)
{
	double p[256], sum = 0, next = 0, last = 0;
	struct choice c;

	choose(&c, logits, n, k);
	for (uint32_t e = 0; e < n; e++) {
		uint32_t at = place(logits, n, e);

		p[e] = probability(logits, n, e);
		if (at < k) {
			assert_int_equal(c.expert[at], e);
			sum += p[e];
		}
		last = at == k - 1 ? p[e] : last;
		next = at == k ? p[e] : next;
	}
	for (uint32_t r = 0; r < k; r++)
		assert_true(fabs(p[c.expert[r]] / sum - (double)c.weight[r]) < 1e-6);
	assert_true(fabs((k < n ? last - next : 1.0) - (double)c.margin) < 1e-6);
}

static void test_random(void **state)
{
	static const uint32_t sizes[][2] = { { 8, 2 }, { 8, 1 }, { 6, 3 }, { 64, 8 }, { 128, 16 }, { 3, 3 }, { 1, 1 },
					     { 17, 16 }, { 16, 16 }, { 200, 4 } };

	(void)state;
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		for (uint64_t seed = 0; seed < 50; seed++) {
			float logits[256];

			for (uint32_t i = 0; i < sizes[s][0]; i++)
				logits[i] = (float)tiny_draw(seed, s, i, 1 << 20) / (float)(1 << 17);
			check_against_sort(logits, sizes[s][0], sizes[s][1]);
			/* Few distinct values: ties everywhere. */
			for (uint32_t i = 0; i < sizes[s][0]; i++)
				logits[i] = (float)tiny_draw(seed, s, i, 1);
			check_against_sort(logits, sizes[s][0], sizes[s][1]);
		}
	}
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
	static const float bad[][5] = { { NAN, NAN, NAN, NAN, NAN }, { 1, NAN, 3, NAN, 2 },
					{ INFINITY, 1, INFINITY, 2, 3 }, { -INFINITY, -INFINITY, -INFINITY, -INFINITY,
					-INFINITY } };

	(void)state;
	for (size_t b = 0; b < 4; b++) {
		for (uint32_t k = 1; k <= 5; k++) {
			struct choice c;

			choose(&c, bad[b], 5, k);
			for (uint32_t i = 0; i < k; i++) {
				assert_in_range(c.expert[i], 0, 4);
				for (uint32_t j = 0; j < i; j++)
					assert_int_not_equal(c.expert[i], c.expert[j]);
			}
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_ties_go_to_the_lower_index),
		cmocka_unit_test(test_one_expert_has_all_the_weight),
		cmocka_unit_test(test_not_a_number),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
