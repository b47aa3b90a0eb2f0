/* Speeds of large clusters: few tokens are simulated, and yet caches are as full as long use makes them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "deploy/plan/plan_speed.h"

#define LAYERS 40u
#define EXPERTS 64u
#define WORKERS 320u /* so many that a plan simulates few tokens */
#define TOP_K 4u
#define EXPERT_BYTES 1000000u

/* The workers' caches hold so many experts each. */
static struct odp_figure speed_of(uint32_t texts, uint32_t experts_each, double read_rate)
{
	const struct odp_machine machine = { .speed = 1e10,
					     .many = 1e11,
					     .read_rate = read_rate,
					     .link_rate = 1e9,
					     .latency_ns = 1e5,
					     .slots = 2,
					     .cache_bytes = (uint64_t)experts_each * EXPERT_BYTES };
	struct odp_machine worker[WORKERS];
	struct odp_sim_block block[LAYERS];
	const struct odp_speed_input in = { .cluster = { .main = machine, .worker = worker, .n_workers = WORKERS },
					    .model = { .n_layers = LAYERS,
						       .n_moe = LAYERS,
						       .n_experts = EXPERTS,
						       .top_k = TOP_K,
						       .block = block,
						       .head_weights = 1e6,
						       .expert_weights = 1e6,
						       .load_bytes = EXPERT_BYTES,
						       .slot_bytes = EXPERT_BYTES,
						       .row_bytes = 1e3 },
					    .prefill_rows = 64 };
	struct odp_figure f = { .kind = ODP_DECODE, .texts = texts };
	struct od_err err;

	for (uint32_t i = 0; i < WORKERS; i++)
		worker[i] = machine;
	for (uint32_t m = 0; m < LAYERS; m++)
		block[m] = (struct odp_sim_block){ .dense_weights = 1e6, .moe = true };
	if (odp_speed(&f, &in, &err) != OD_OK)
		fail_msg("%s", err.msg);
	return f;
}

/* Homes are not shared quite evenly, so caches have room for some more. */
static void caches_that_hold_all_are_warm(void **state)
{
	const uint32_t each = 2 * LAYERS * EXPERTS / WORKERS;

	(void)state;
	for (uint32_t texts = 1; texts <= 16; texts *= 16) {
		const struct odp_figure slow = speed_of(texts, each, 1e8), quick = speed_of(texts, each, 1e14);

		assert_true(slow.loads < 0.01 * LAYERS * TOP_K);
		assert_true(slow.value > 0.97 * quick.value);
	}
}

/* Half of the experts fit, so about half of the uses are loads, fewer of experts that are used often. */
static void caches_that_hold_half_hold_what_is_used(void **state)
{
	const struct odp_figure f = speed_of(1, LAYERS * EXPERTS / WORKERS / 2, 1e8);

	(void)state;
	assert_true(f.loads > 0.2 * LAYERS * TOP_K);
	assert_true(f.loads < 0.6 * LAYERS * TOP_K);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(caches_that_hold_all_are_warm),
		cmocka_unit_test(caches_that_hold_half_hold_what_is_used),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
