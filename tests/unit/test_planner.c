/* The planner, against enumeration: of all sets of experts a layer may need, and of all divisions of a small cache. */
#include "tests/bench/sim/planner.h"
#include "tests/bench/sim/selection.h"
#include "tests/unit/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define MOST 8

static uint64_t seed;

static double uniform(void)
{
	return (double)(random_u64(&seed) >> 11) * 0x1p-53;
}

/* Algorithm 3, an expert at a time. */
static double makespan(const struct sim_cache_cost *c, const unsigned *states, uint32_t n)
{
	const double v_ns = c->rho * c->u_ns / c->chunks;
	double reading = 0, inflating = 0;

	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t t = 0; t < c->tensors; t++) {
			if (states[i] == SIM_CACHE_E || states[i] == SIM_CACHE_NONE)
				reading += c->u_ns;
			for (uint32_t k = 0; k < c->chunks; k++) {
				if (states[i] == SIM_CACHE_S || states[i] == SIM_CACHE_NONE) {
					reading += v_ns;
					inflating += v_ns;
				}
				if (states[i] != SIM_CACHE_F)
					inflating += c->c_ns;
			}
		}
	}
	return fmax(reading, inflating / c->inflaters);
}

/* The expected makespan by every set of k experts. */
static double of_sets(const struct sim_cache_plan_opts *o, uint32_t k, const uint32_t *experts)
{
	double f[MOST], q[MOST], sum = 0;
	uint32_t share[SIM_CACHE_STATES][MOST] = { { 0 } }, dealt = 0;

	for (unsigned s = 0; s < SIM_CACHE_STATES; s++) {
		for (uint32_t i = 0; i < experts[s]; i++)
			share[s][dealt++ % o->n_moe]++;
	}
	memcpy(f, o->inclusion, o->n_experts * sizeof(*f));
	sim_selection_scale(f, o->n_experts, k);
	assert_int_equal(sim_selection_fit(f, o->n_experts, k, q, NULL), OD_OK);
	for (uint32_t layer = 0; layer < o->n_moe; layer++) {
		unsigned state_of[MOST];
		uint32_t rank = 0;
		double all = 0, weighed = 0;

		for (unsigned s = 0; s < SIM_CACHE_STATES; s++) {
			while (share[s][layer]-- > 0 && rank < o->n_experts)
				state_of[rank++] = s;
		}
		while (rank < o->n_experts)
			state_of[rank++] = SIM_CACHE_NONE;
		for (uint32_t set = 0; set < 1u << o->n_experts; set++) {
			unsigned states[MOST];
			uint32_t n = 0;
			double p = 1;

			if (__builtin_popcount(set) != (int)k)
				continue;
			for (uint32_t i = 0; i < o->n_experts; i++) {
				p *= set >> i & 1 ? q[i] : 1 - q[i];
				if (set >> i & 1)
					states[n++] = state_of[i];
			}
			all += p;
			weighed += p * makespan(&o->cost, states, n);
		}
		sum += weighed / all;
	}
	return sum / o->n_moe;
}

static double by_enumeration(const struct sim_cache_plan_opts *o, const uint32_t *experts)
{
	const uint32_t k = (uint32_t)o->k;
	const double more = o->k - k;

	return (1 - more) * of_sets(o, k, experts) + (more > 0 ? more * of_sets(o, k + 1, experts) : 0);
}

/* Every division of the budget, one expert more or less at a time. */
static double best_of_all(const struct sim_cache_plan_opts *o, unsigned pool, uint32_t *experts, uint64_t bytes)
{
	double best = INFINITY;
	uint64_t each;

	if (pool == SIM_CACHE_STATES)
		return by_enumeration(o, experts);
	each = o->sizes.bytes[pool];
	for (uint32_t n = 0; n * each <= bytes && n <= o->n_moe * o->n_experts; n++) {
		if (n > 0 && !(o->sizes.pools & SIM_CACHE_POOL(pool)))
			break;
		experts[pool] = n;
		best = fmin(best, best_of_all(o, pool + 1, experts, bytes - n * each));
	}
	experts[pool] = 0;
	return best;
}

static struct sim_cache_plan_opts random_case(double *f, uint32_t n_moe, uint32_t n_experts, double k)
{
	struct sim_cache_plan_opts o = { .n_moe = n_moe, .n_experts = n_experts, .k = k, .inclusion = f };
	double skew = 3 * uniform();

	for (uint32_t i = 0; i < n_experts; i++)
		f[i] = pow(i + 1, -skew) * (0.8 + 0.4 * uniform());
	o.sizes = sim_cache_sizes_of(100, 34, 200, uniform() < 0.5);
	o.budget_bytes = (uint64_t)(uniform() * 200 * n_moe * n_experts);
	o.cost = (struct sim_cache_cost){ .u_ns = 1 + 9 * uniform(),
					  .rho = 0.34,
					  .c_ns = 4 * uniform(),
					  .tensors = 3,
					  .chunks = 1 + (uint32_t)(4 * uniform()),
					  .inflaters = 1 + (uint32_t)(3 * uniform()) };
	return o;
}

static void values_are_those_of_enumeration(void **state)
{
	(void)state;
	seed = 1;
	for (int round = 0; round < 100; round++) {
		uint32_t n_moe = 1 + (uint32_t)(uniform() * 4), n = 2 + (uint32_t)(uniform() * 7);
		double f[MOST];
		struct sim_cache_plan_opts o =
			random_case(f, n_moe, n, 1 + (round % 2 ? (n - 1) * uniform() : floor(n * uniform())));
		struct sim_cache_plan plan = { 0 };

		for (unsigned s = 0; s < SIM_CACHE_STATES; s++)
			plan.experts[s] = (uint32_t)(uniform() * n * n_moe / 2);
		assert_int_equal(sim_cache_plan_value(&plan, &o, NULL), OD_OK);
		assert_true(fabs(plan.makespan_ns - by_enumeration(&o, plan.experts)) < 1e-9 * plan.cold_ns);
	}
}

static void the_plan_is_the_best_there_is(void **state)
{
	uint32_t used[SIM_CACHE_STATES] = { 0 };

	(void)state;
	seed = 2;
	for (int round = 0; round < 60; round++) {
		uint32_t n_moe = 1 + round % 2, n = 3 + (uint32_t)(uniform() * 3), experts[SIM_CACHE_STATES] = { 0 };
		double f[MOST], best;
		struct sim_cache_plan_opts o = random_case(f, n_moe, n, round % 3 ? 1 + round % 2 : 1 + uniform());
		struct sim_cache_plan plan;
		uint64_t bytes = 0;

		assert_int_equal(sim_cache_plan_make(&plan, &o, NULL), OD_OK);
		for (unsigned s = 0; s < SIM_CACHE_STATES; s++) {
			bytes += plan.experts[s] * o.sizes.bytes[s];
			used[s] += plan.experts[s] > 0;
			assert_true(plan.experts[s] == 0 || (o.sizes.pools & SIM_CACHE_POOL(s)));
		}
		assert_true(bytes <= o.budget_bytes);
		best = best_of_all(&o, 0, experts, o.budget_bytes);
		assert_true(fabs(plan.makespan_ns - best) < 1e-9 * plan.cold_ns);
		assert_true(fabs(plan.makespan_ns - by_enumeration(&o, plan.experts)) < 1e-9 * plan.cold_ns);
	}
	for (unsigned s = 0; s < SIM_CACHE_STATES; s++)
		assert_true(used[s] > 5); /* the cases are not all of one kind */
}

/* 128 experts, top 8, from Monte Carlo: the same distribution drawn by rejection. */
static void large_plans_agree_with_monte_carlo(void **state)
{
	enum { N = 128, K = 8, DRAWS = 20000 };
	double f[N], q[N], sum = 0, squares = 0, mean, sigma;
	struct sim_cache_plan_opts o = {
		.n_moe = 1,
		.n_experts = N,
		.k = K,
		.inclusion = f,
		.sizes = sim_cache_sizes_of(100, 34, 200, false),
		.cost = { .u_ns = 10, .rho = 0.34, .c_ns = 5, .tensors = 3, .chunks = 4, .inflaters = 2 },
	};
	struct sim_cache_plan plan = { .experts = { 5, 9, 14, 20 } };

	(void)state;
	seed = 3;
	for (uint32_t i = 0; i < N; i++)
		f[i] = pow(i + 1, -0.9);
	sim_selection_scale(f, N, K);
	assert_int_equal(sim_selection_fit(f, N, K, q, NULL), OD_OK);
	for (int draws = 0; draws < DRAWS;) {
		unsigned states[N];
		uint32_t n = 0;
		double t;

		for (uint32_t i = 0; i < N; i++) {
			if (uniform() < q[i])
				states[n++] = i < 5  ? SIM_CACHE_F :
					      i < 14 ? SIM_CACHE_C :
					      i < 28 ? SIM_CACHE_S :
					      i < 48 ? SIM_CACHE_E :
						       SIM_CACHE_NONE;
		}
		if (n != K)
			continue;
		t = makespan(&o.cost, states, n);
		sum += t;
		squares += t * t;
		draws++;
	}
	mean = sum / DRAWS;
	sigma = sqrt((squares / DRAWS - mean * mean) / DRAWS);
	assert_int_equal(sim_cache_plan_value(&plan, &o, NULL), OD_OK);
	assert_true(sigma > 0 && fabs(plan.makespan_ns - mean) < 4 * sigma);
}

static void no_budget_no_pools(void **state)
{
	double f[4] = { 0.9, 0.6, 0.3, 0.2 };
	struct sim_cache_plan_opts o = {
		.n_moe = 3,
		.n_experts = 4,
		.k = 2,
		.inclusion = f,
		.sizes = sim_cache_sizes_of(100, 34, 200, true),
		.cost = { .u_ns = 10, .rho = 0.34, .c_ns = 1, .tensors = 3, .chunks = 4, .inflaters = 2 },
	};
	struct sim_cache_plan plan;

	(void)state;
	assert_int_equal(sim_cache_plan_make(&plan, &o, NULL), OD_OK);
	assert_true(plan.makespan_ns == plan.cold_ns && plan.cold_ns == 2 * 3 * 10 * 1.34);
	for (unsigned s = 0; s < SIM_CACHE_STATES; s++)
		assert_int_equal(plan.experts[s], 0);
	o.budget_bytes = 1u << 20; /* room for all */
	assert_int_equal(sim_cache_plan_make(&plan, &o, NULL), OD_OK);
	assert_int_equal(plan.experts[SIM_CACHE_F], 12);
	assert_true(fabs(plan.makespan_ns) < 1e-9);
	o.k = 5;
	assert_int_equal(sim_cache_plan_make(&plan, &o, NULL), OD_ERR_RANGE);
	assert_int_equal(plan.n_moe, 0);
}

static void sizes_by_form(void **state)
{
	struct sim_cache_sizes plain = sim_cache_sizes_of(100, 34, 200, false),
			       planes = sim_cache_sizes_of(100, 34, 200, true);

	(void)state;
	assert_int_equal(plain.bytes[SIM_CACHE_F], 200);
	assert_int_equal(plain.bytes[SIM_CACHE_C], 134);
	assert_int_equal(plain.bytes[SIM_CACHE_S], 100);
	assert_int_equal(plain.bytes[SIM_CACHE_E], 34);
	assert_int_equal(plain.pools, 15);
	assert_int_equal(planes.bytes[SIM_CACHE_F], 134);
	assert_false(planes.pools & SIM_CACHE_POOL(SIM_CACHE_C));
}

static void sizes_without_sm_bytes(void **state)
{
	struct sim_cache_sizes sizes = sim_cache_sizes_of(0, 134, 200, false);

	(void)state;
	assert_int_equal(sizes.bytes[SIM_CACHE_F], 200);
	assert_int_equal(sizes.bytes[SIM_CACHE_C], 134);
	assert_int_equal(sizes.pools, SIM_CACHE_POOL(SIM_CACHE_F) | SIM_CACHE_POOL(SIM_CACHE_C));
}

static void sizes_without_chunks(void **state)
{
	struct sim_cache_sizes sizes = sim_cache_sizes_of(0, 0, 200, false);

	(void)state;
	assert_int_equal(sizes.bytes[SIM_CACHE_F], 200);
	assert_int_equal(sizes.bytes[SIM_CACHE_E], 200); /* the least that a cache must have room for */
	assert_int_equal(sizes.pools, SIM_CACHE_POOL(SIM_CACHE_F));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values_are_those_of_enumeration),
		cmocka_unit_test(the_plan_is_the_best_there_is),
		cmocka_unit_test(large_plans_agree_with_monte_carlo),
		cmocka_unit_test(no_budget_no_pools),
		cmocka_unit_test(sizes_by_form),
		cmocka_unit_test(sizes_without_sm_bytes),
		cmocka_unit_test(sizes_without_chunks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
