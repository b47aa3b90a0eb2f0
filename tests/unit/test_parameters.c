/* How many parameters a config.json stands for: as many as transformers gives the same configuration
 * (tests/golden/configs/make_configs.py). */
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "tests/unit/config_util.h"

#define CONFIGS "tests/golden/configs/configs.json"
#define N_PUBLISHED 26

static uint64_t elements(uint64_t n_out, uint64_t n_in)
{
	return n_out * (n_in == 0 ? 1 : n_in); /* n_in 0: a vector */
}

/* Tensors that no layer has, or those of one layer. *buffers: those among them that transformers does not learn. */
static uint64_t dense(const struct od_config *c, bool per_layer, uint32_t layer, uint64_t *buffers)
{
	uint64_t sum = 0;

	for (int r = 0; r < OD_N_ROLES; r++) {
		const enum od_role role = (enum od_role)r;
		uint64_t n_out, n_in;

		if (od_role_per_layer(role) != per_layer)
			continue;
		od_role_shape(c, role, layer, &n_out, &n_in);
		sum += elements(n_out, n_in);
		if (role == OD_ROLE_ROUTER_BIAS || role == OD_ROLE_LAYER_SCALE)
			*buffers += elements(n_out, n_in);
	}
	return sum;
}

static uint64_t experts(const struct od_config *c)
{
	uint64_t sum = 0;

	for (int mat = 0; mat < od_expert_tensors(c); mat++) {
		uint64_t n_out, n_in;

		od_expert_mat_shape(c, (enum od_expert_mat)mat, &n_out, &n_in);
		sum += elements(n_out, n_in);
	}
	return sum * c->n_moe * c->n_experts;
}

static uint64_t number(const json_t *o, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(o, key));
}

static void parameters_of_published_models(void **state)
{
	json_t *all = json_load_file(CONFIGS, 0, NULL);

	(void)state;
	if (all == NULL)
		fail_msg("%s: not read", CONFIGS);
	assert_int_equal(json_array_size(all), N_PUBLISHED);
	for (size_t i = 0; i < json_array_size(all); i++) {
		const json_t *o = json_array_get(all, i);
		uint64_t total, buffers = 0;
		struct od_config c;
		struct od_err err;

		if (od_config_parse(&c, json_object_get(o, "config"), CONFIGS, &err) != OD_OK)
			fail_msg("%s: %s", json_string_value(json_object_get(o, "name")), err.msg);
		total = dense(&c, false, 0, &buffers) + experts(&c);
		for (uint32_t layer = 0; layer < c.n_layers; layer++)
			total += dense(&c, true, layer, &buffers);
		if (buffers != number(o, "buffers") || total != number(o, "parameters") + buffers)
			fail_msg("%s: expected %llu and %llu, found %llu, of them %llu buffers",
				 json_string_value(json_object_get(o, "name")),
				 (unsigned long long)number(o, "parameters"), (unsigned long long)number(o, "buffers"),
				 (unsigned long long)total, (unsigned long long)buffers);
	}
	json_decref(all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parameters_of_published_models),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
