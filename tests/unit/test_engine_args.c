/* The options that make an engine: what each sets, and which contradict. */
#include "main-node/engine_args.h"

#include "common/base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Words separated by single blanks, parsed and finished. */
static int parse(struct odm_engine_args *a, const char *words, struct od_err *err)
{
	static char copy[512];
	struct od_arg table[ODM_ENGINE_ARGS_MAX];
	char *argv[64] = { "prog" };
	size_t n, n_positional;
	int argc = 1, rc;

	snprintf(copy, sizeof(copy), "%s", words);
	for (char *w = strtok(copy, " "); w != NULL; w = strtok(NULL, " "))
		argv[argc++] = w;
	odm_engine_args_defaults(a);
	n = odm_engine_args_table(a, table);
	assert_in_range(n, 1, ODM_ENGINE_ARGS_MAX);
	rc = od_args_parse(table, n, argc, argv, NULL, 0, &n_positional, err);
	return rc == OD_OK ? odm_engine_args_finish(a, err) : rc;
}

static void good(struct odm_engine_args *a, const char *words)
{
	struct od_err err;

	if (parse(a, words, &err) != OD_OK)
		fail_msg("%s: %s", words, err.msg);
}

static void a_sound_table(void **state)
{
	struct od_arg table[ODM_ENGINE_ARGS_MAX];
	struct odm_engine_args a;
	size_t n;

	(void)state;
	odm_engine_args_defaults(&a);
	n = odm_engine_args_table(&a, table);
	for (size_t i = 0; i < n; i++) {
		assert_non_null(table[i].help);
		if (table[i].kind == OD_ARG_TITLE)
			continue;
		assert_int_equal(table[i].metavar == NULL, table[i].kind == OD_ARG_FLAG);
		assert_int_equal(table[i].choices == NULL, table[i].kind != OD_ARG_CHOICE);
		/* Within the arguments it was made for, and nobody else's. */
		assert_true((char *)table[i].out >= (char *)&a && (char *)table[i].out < (char *)(&a + 1));
		for (size_t j = 0; j < i; j++) {
			assert_true(table[j].kind == OD_ARG_TITLE || strcmp(table[i].name, table[j].name) != 0);
			assert_ptr_not_equal(table[i].out, table[j].out);
		}
	}
}

static void what_is_not_said(void **state)
{
	struct odm_engine_args a;

	(void)state;
	good(&a, "--resident");
	assert_int_equal(a.opts.mode, ODM_RESIDENT);
	assert_null(a.opts.pack);
	assert_int_equal(a.opts.profile, OD_PROFILE_F32);
	assert_int_equal(a.opts.cpu, OD_CPU_AUTO);
	assert_int_equal(a.opts.predictor, ODM_PREDICTOR_AUTO);
	assert_int_equal(a.opts.second_opinion, -1);
	assert_true(a.opts.hedge_percent == 5);
	assert_int_equal(a.opts.prefill_rows, 256);
	assert_int_equal(a.opts.threads, 0);
	assert_int_equal(a.opts.ctx_tokens, 0);
	assert_int_equal(a.opts.group_size, 0);
	assert_true(a.opts.connect_timeout_ns == 10 * OD_NS_PER_S);
	assert_false(a.opts.mixed);
	assert_true(a.opts.load_time_ms == 0);
	assert_true(a.opts.run_time_ms == 0);
	assert_int_equal(a.opts.precision, -1);
	assert_int_equal(a.opts.dense_precision, -1);
	assert_int_equal(a.opts.departure, -1);
}

static void every_option(void **state)
{
	struct odm_engine_args a;

	(void)state;
	good(&a, "--local 4 --pack P --predictor shadow --second-opinion multi-gate --hedge 12.5 --group-size 3 --connect-timeout 86400"
		 " --mixed --slots 2 --memory-limit 900MiB --load-time 2.5 --run-time 0.25 --precision nf4"
		 " --dense-precision int8-g64 --departure early --ctx-size 4294967295 --profile bf16"
		 " --threads 5 --cpu scalar --trace T --prefill-rows 4096");
	assert_int_equal(a.opts.mode, ODM_LOCAL);
	assert_int_equal(a.opts.local_workers, 4);
	assert_string_equal(a.opts.pack, "P");
	assert_string_equal(odm_predictor_names[a.opts.predictor], "shadow");
	assert_string_equal(od_predictor_kinds[a.opts.second_opinion], "multi-gate");
	assert_true(a.opts.hedge_percent == 12.5);
	assert_int_equal(a.opts.group_size, 3);
	assert_true(a.opts.connect_timeout_ns == 86400 * OD_NS_PER_S);
	assert_true(a.opts.mixed);
	assert_int_equal(a.opts.slots, 2);
	assert_int_equal(a.opts.memory_limit_bytes, 943718400);
	assert_true(a.opts.load_time_ms == 2.5);
	assert_true(a.opts.run_time_ms == 0.25);
	assert_int_equal(a.opts.precision, OD_PRECISION_NF4 - 1);
	assert_int_equal(a.opts.dense_precision, OD_PRECISION_INT8_G64 - 1);
	assert_int_equal(a.opts.departure, 1);
	assert_int_equal(a.opts.ctx_tokens, UINT32_MAX);
	assert_int_equal(a.opts.profile, OD_PROFILE_BF16);
	assert_int_equal(a.opts.threads, 5);
	assert_int_equal(a.opts.cpu, OD_CPU_SCALAR);
	assert_string_equal(a.opts.trace, "T");
	assert_int_equal(a.opts.prefill_rows, 4096);

	good(&a, "--local 1 --second-opinion none");
	assert_int_equal(a.opts.second_opinion, -1);
	good(&a, "--local 1 --predictor random");
	assert_string_equal(odm_predictor_names[a.opts.predictor], "random");
	good(&a, "--workers hosts --predictor none --profile f32");
	assert_int_equal(a.opts.mode, ODM_WORKERS);
	assert_string_equal(a.opts.hosts_path, "hosts");
	assert_int_equal(a.opts.predictor, ODM_PREDICT_NONE);
	assert_int_equal(a.opts.profile, OD_PROFILE_F32);
}

static void refusals(void **state)
{
	static const char *const t[][2] = {
		{ "", "who runs the experts? " },
		{ "--local 2 --resident", "--workers, --local and --resident exclude each other" },
		{ "--workers h --resident", "exclude each other" },
		{ "--workers h --local 1", "exclude each other" },
		{ "--workers h --local 1 --resident", "exclude each other" },
		{ "--local 1 --hedge 401", "--hedge: expected 0 to 400, found 401" },
		{ "--local 0", "--local: expected 1 to 64, found 0" },
		{ "--local 65", "--local: expected 1 to 64, found 65" },
		{ "--local 1 --prefill-rows 0", "--prefill-rows: expected 1 to 4096, found 0" },
		{ "--resident --ctx-size 4294967296", "--ctx-size: expected 1 to 4294967295, found 4294967296" },
		{ "--resident --profile f16", "--profile: expected one of f32, bf16, found \"f16\"" },
		{ "--resident --predictor oracle", "--predictor: expected one of shadow, none, next-gate, multi-gate, popularity, history, trajectory, random, found \"oracle\"" },
		/* What only the children of --local obey is not silently ignored elsewhere. */
		{ "--resident --slots 2", "--slots is for the processes that --local starts" },
		{ "--workers h --memory-limit 1G", "--memory-limit is for the processes that --local starts" },
		{ "--workers h --load-time 0.5", "--load-time is for the processes that --local starts" },
		{ "--workers h --run-time 0.5", "--run-time is for the processes that --local starts" },
		{ "--workers h --resident-form planes", "--resident-form is for --resident and --local; workers elsewhere" },
		{ "--resident --resident-form f16", "--resident-form: expected one of bf16, planes, found \"f16\"" },
		{ "--local 1 --load-time 60001", "--load-time: expected 0 to 60000, found 60001" },
		{ "--workers h --precision bf16", "--precision is for the processes that --local starts" },
		{ "--workers h --dense-precision bf16", "--dense-precision is for the processes that --local starts" },
		{ "--workers h --departure late", "--departure is for the processes that --local starts" },
		/* Nor what only a cluster does, or a shadow that is not there. */
		{ "--resident --predictor shadow", "--predictor is for a cluster (--workers or --local)" },
		{ "--resident --second-opinion random", "--second-opinion is for a cluster" },
		{ "--resident --group-size 2", "--group-size is for a cluster" },
		{ "--resident --mixed", "--mixed is for a cluster" },
		{ "--resident --align-token 2", "--align-token is for a cluster" },
		{ "--workers h --predictor random --align-kv 0", "--align-kv is for the shadow" },
		{ "--local 1 --predictor none --align-rows bf16", "--align-rows is for the shadow" },
		{ "--local 1 --predictor next-gate --precision nf4", "--precision is for the shadow, and with --predictor next-gate" },
		{ "--local 1 --predictor none --dense-precision nf4", "--dense-precision is for the shadow" },
		{ "--local 1 --predictor none --departure late", "--departure is for the shadow" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct odm_engine_args a;
		struct od_err err;

		assert_int_equal(parse(&a, t[i][0], &err), OD_ERR_ARG);
		if (strstr(err.msg, t[i][1]) == NULL)
			fail_msg("%s: \"%s\"", t[i][0], err.msg);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sound_table),
		cmocka_unit_test(what_is_not_said),
		cmocka_unit_test(every_option),
		cmocka_unit_test(refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
