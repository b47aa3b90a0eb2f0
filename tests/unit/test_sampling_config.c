/* generation_config.json against what Hugging Face does with it. The pack is the test's: one that has only that. */
#include "main-node/engine/sampling_config.h"

#include "common/base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static json_t *config;

const json_t *od_pack_generation_config(const struct od_pack *p)
{
	(void)p;
	return config;
}

static int defaults(const char *text, struct od_sampler_opts *o, struct od_err *err)
{
	int rc;

	config = text != NULL ? json_loads(text, 0, NULL) : NULL;
	assert_true((text != NULL) == (config != NULL));
	memset(o, 0xee, sizeof(*o));
	rc = odm_sampling_defaults(o, NULL, err);
	json_decref(config);
	return rc;
}

static void what_authors_say(void **state)
{
	static const struct {
		const char *text;
		double temperature;
		uint32_t top_k;
		double top_p, min_p, penalty;
	} t[] = {
		{ NULL, 0, 0, 1, 0, 1 },
		{ "{}", 0, 0, 1, 0, 1 },
		/* do_sample says whether the rest counts; the penalty counts in greedy search too. */
		{ "{\"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.9, \"min_p\": 0.1}", 0, 0, 1, 0, 1 },
		{ "{\"do_sample\": false, \"temperature\": 0.6, \"repetition_penalty\": 1.25}", 0, 0, 1, 0, 1.25 },
		{ "{\"do_sample\": null, \"top_p\": 0.5}", 0, 0, 1, 0, 1 },
		{ "{\"do_sample\": true}", 1, 50, 1, 0, 1 },
		{ "{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95, \"min_p\": 0.125,"
		  " \"repetition_penalty\": 1.05}",
		  0.6, 20, 0.95, 0.125, 1.05 },
		{ "{\"do_sample\": true, \"temperature\": 1, \"top_k\": 0, \"top_p\": 1}", 1, 0, 1, 0, 1 },
		{ "{\"do_sample\": true, \"temperature\": 1, \"top_k\": -1}", 1, 0, 1, 0, 1 },
		{ "{\"do_sample\": true, \"temperature\": 0.0}", 0, 50, 1, 0, 1 },
		{ "{\"repetition_penalty\": 100}", 0, 0, 1, 0, 100 },
		{ "{\"repetition_penalty\": 0.01}", 0, 0, 1, 0, 0.01 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct od_sampler_opts o;
		struct od_err err;

		if (defaults(t[i].text, &o, &err) != OD_OK)
			fail_msg("%s", err.msg);
		assert_true(o.temperature == t[i].temperature);
		assert_int_equal(o.top_k, t[i].top_k);
		assert_true(o.top_p == t[i].top_p);
		assert_true(o.min_p == t[i].min_p);
		assert_true(o.repetition_penalty == t[i].penalty);
		assert_int_equal(o.seed, 0);
		assert_int_equal(od_sampler_check(&o, &err), OD_OK); /* accepted settings can be sampled with */
	}
}

static void what_is_refused(void **state)
{
	static const struct {
		const char *text, *reason;
		int rc;
	} t[] = {
		{ "{\"do_sample\": 1}", "\"do_sample\": expected true or false, found an integer", OD_ERR_FORMAT },
		{ "{\"repetition_penalty\": 0}", "\"repetition_penalty\": expected 0.01 to 100, found 0",
		  OD_ERR_RANGE },
		{ "{\"repetition_penalty\": 101}", "\"repetition_penalty\": expected 0.01 to 100, found 101",
		  OD_ERR_RANGE },
		{ "{\"do_sample\": true, \"temperature\": -1}", "\"temperature\": expected 0 to 1000, found -1",
		  OD_ERR_RANGE },
		{ "{\"do_sample\": true, \"top_k\": -2}", "\"top_k\": expected 0 to 4294967295, found -2",
		  OD_ERR_RANGE },
		{ "{\"do_sample\": true, \"top_k\": 5.0}", "\"top_k\": expected an integer, found a real number",
		  OD_ERR_FORMAT },
		{ "{\"do_sample\": true, \"top_p\": 1.5}", "\"top_p\": expected 0 to 1, found 1.5", OD_ERR_RANGE },
		{ "{\"do_sample\": true, \"min_p\": \"x\"}", "\"min_p\": expected a number, found a string",
		  OD_ERR_FORMAT },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct od_sampler_opts o;
		struct od_err err;

		assert_int_equal(defaults(t[i].text, &o, &err), t[i].rc);
		assert_memory_equal(err.msg, "generation_config.json: field ", 30);
		assert_string_equal(err.msg + 30, t[i].reason);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_authors_say),
		cmocka_unit_test(what_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
