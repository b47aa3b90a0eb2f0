/* Counters of uses in decode steps: with drafts they never fall, whichever rows are undone. Expected by brute force. */
#include "common/model/config.h"
#include "main-node/predict/step_uses.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define N_MOE 3
#define N_EXPERTS 8
#define TOP_K 2
#define MAX_ROWS 6

static uint64_t seed = 1;

static uint32_t random_below(uint32_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % n;
}

static void assert_not_less(uint64_t *before, const uint64_t *c)
{
	for (size_t i = 0; i < OD_N_COUNTERS; i++)
		assert_true(c[i] >= before[i]);
	memcpy(before, c, OD_N_COUNTERS * sizeof(*before));
}

/* Two texts, the first with drafts if any have; some rows are undone. */
static void run_step(struct odm_step_uses *u, uint64_t *c, uint64_t *want, size_t drafts)
{
	const struct odm_part part[2] = { { .first = 0, .n = 1 + (uint32_t)drafts },
					  { .first = 1 + (uint32_t)drafts, .n = 1 } };
	const uint32_t kept[2] = { 1 + random_below(1 + (uint32_t)drafts), 1 };
	const struct odm_step step = {
		.phase = ODM_DECODE, .n_rows = 2 + drafts, .part = part, .n_parts = 2, .counters = c
	};
	uint64_t before[OD_N_COUNTERS];

	memcpy(before, c, sizeof(before));
	odm_step_uses_begin(u, &step);
	for (uint32_t m = 0; m < N_MOE; m++) {
		uint16_t expert[MAX_ROWS * TOP_K];

		for (size_t i = 0; i < step.n_rows * TOP_K; i++)
			expert[i] = (uint16_t)random_below(N_EXPERTS);
		odm_step_uses_routed(u, m, expert, step.n_rows, c);
		assert_not_less(before, c);
		for (size_t row = 0; row < step.n_rows; row++) {
			const bool stands = row == step.n_rows - 1 || row < kept[0];

			want[OD_C_EXPERT_USES] += stands ? TOP_K : 0;
			if (random_below(2) == 0)
				continue;
			odm_step_uses_served(u, row, c);
			want[stands ? OD_C_SERVED_IN_TIME : OD_C_UNDONE_SERVED]++;
			assert_not_less(before, c);
		}
	}
	odm_step_uses_settle(u, &step, kept);
	assert_not_less(before, c);
}

static void counters_never_fall(void **state)
{
	const struct od_config config = { .n_moe = N_MOE, .n_experts = N_EXPERTS, .top_k = TOP_K };
	uint64_t c[OD_N_COUNTERS] = { 0 }, want[OD_N_COUNTERS] = { 0 };
	struct odm_step_uses u;
	struct od_err err;

	(void)state;
	assert_int_equal(odm_step_uses_init(&u, &config, MAX_ROWS, &err), OD_OK);
	for (int i = 0; i < 100; i++) {
		run_step(&u, c, want, random_below(MAX_ROWS - 1));
		for (size_t k = 0; k < OD_N_COUNTERS; k++)
			assert_int_equal(c[k], want[k]);
	}
	assert_true(want[OD_C_EXPERT_USES] > 0 && want[OD_C_SERVED_IN_TIME] > 0 && want[OD_C_UNDONE_SERVED] > 0);
	odm_step_uses_fini(&u);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(counters_never_fall),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
