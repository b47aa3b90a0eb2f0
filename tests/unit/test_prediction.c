/* The limits of a prediction, whoever sent it. */
#include "common/predict/prediction.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 3
#define EXPERTS 30
#define TOP_K 2

static const struct od_config config = { .n_moe = LAYERS, .n_experts = EXPERTS, .top_k = TOP_K };

static void refused(const struct od_prediction *p, const char *why)
{
	struct od_err err;

	assert_int_equal(od_prediction_check(p, &config, &err), OD_ERR_RANGE);
	assert_string_equal(err.msg, why);
}

static void nonsense_is_refused(void **state)
{
	uint16_t expert[OD_MAX_CANDIDATES];
	struct od_prediction p = { .m = LAYERS - 1, .expert = expert, .n = OD_MAX_CANDIDATES };
	struct od_err err;

	(void)state;
	for (uint16_t i = 0; i < OD_MAX_CANDIDATES; i++)
		expert[i] = (uint16_t)(EXPERTS - 1 - i);
	assert_int_equal(od_prediction_check(&p, &config, &err), OD_OK);
	p.n = TOP_K;
	assert_int_equal(od_prediction_check(&p, &config, &err), OD_OK);
	p.n = TOP_K - 1;
	refused(&p, "1 experts; expected 2 to 22");
	p.n = OD_MAX_CANDIDATES + 1;
	refused(&p, "23 experts; expected 2 to 22");
	p.n = OD_MAX_CANDIDATES;
	p.m = LAYERS;
	refused(&p, "MoE layer 3; expected 0 to 2");
	p.m = UINT32_MAX;
	refused(&p, "MoE layer 4294967295; expected 0 to 2");
	p.m = 0;
	expert[21] = EXPERTS;
	refused(&p, "expert 30, number 21 of its list; expected 0 to 29, each once");
	expert[21] = EXPERTS - 1;
	refused(&p, "expert 29, number 21 of its list; expected 0 to 29, each once");
	expert[21] = 0;
	expert[0] = UINT16_MAX;
	refused(&p, "expert 65535, number 0 of its list; expected 0 to 29, each once");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nonsense_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
