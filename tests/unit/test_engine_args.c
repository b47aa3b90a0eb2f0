/* The options that make an engine: what each sets, and which contradict. */
#include "main-node/node/engine_args.h"

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
	assert_null(a.opts.engine.pack);
	assert_int_equal(a.opts.engine.profile, OD_PROFILE_F32);
	assert_int_equal(a.opts.engine.cpu, OD_CPU_AUTO);
	assert_int_equal(a.opts.cluster.predictor, ODM_PREDICTOR_AUTO);
	assert_true(a.opts.cluster.hedge_percent == 5);
	assert_int_equal(a.opts.engine.prefill_rows, 512);
	assert_int_equal(a.opts.engine.threads, 0);
	assert_int_equal(a.opts.engine.ctx_tokens, 0);
	assert_int_equal(a.opts.cluster.group_size, 0);
	assert_false(a.opts.engine.mixed);
	assert_int_equal(a.opts.local.worker_args.n, 0);
	assert_int_equal(a.opts.local.shadow_args.n, 0);
}

static void every_option(void **state)
{
	struct odm_engine_args a;

	(void)state;
	good(&a,
	     "--local 4 --pack P --predictor shadow --hedge 12.5 --group-size 3"
	     " --mixed --worker-arg --slots=2 --worker-arg=--run-time --worker-arg 0.25 --shadow-arg=--precision=nf4"
	     " --ctx-size 4294967295 --profile bf16"
	     " --threads 5 --cpu scalar --trace T --prefill-rows 4096");
	assert_int_equal(a.opts.mode, ODM_LOCAL);
	assert_int_equal(a.opts.local.workers, 4);
	assert_string_equal(a.opts.engine.pack, "P");
	assert_string_equal(odm_predictor_names[a.opts.cluster.predictor], "shadow");
	assert_true(a.opts.cluster.hedge_percent == 12.5);
	assert_int_equal(a.opts.cluster.group_size, 3);
	assert_true(a.opts.engine.mixed);
	assert_int_equal(a.opts.local.worker_args.n, 3);
	assert_string_equal(a.opts.local.worker_args.value[0], "--slots=2");
	assert_string_equal(a.opts.local.worker_args.value[1], "--run-time");
	assert_string_equal(a.opts.local.worker_args.value[2], "0.25");
	assert_int_equal(a.opts.local.shadow_args.n, 1);
	assert_string_equal(a.opts.local.shadow_args.value[0], "--precision=nf4");
	assert_int_equal(a.opts.engine.ctx_tokens, UINT32_MAX);
	assert_int_equal(a.opts.engine.profile, OD_PROFILE_BF16);
	assert_int_equal(a.opts.engine.threads, 5);
	assert_int_equal(a.opts.engine.cpu, OD_CPU_SCALAR);
	assert_string_equal(a.opts.trace, "T");
	assert_int_equal(a.opts.engine.prefill_rows, 4096);

	good(&a, "--local 1 --worker-arg --ports --worker-arg port --worker-arg -port --worker-arg -- --worker-arg -");
	assert_int_equal(a.opts.local.worker_args.n, 5); /* the workers will say what they think of them */
	good(&a, "--local 1 --predictor trajectory");
	assert_string_equal(odm_predictor_names[a.opts.cluster.predictor], "trajectory");
	good(&a, "--memory 1.5GB --predictor next-gate --hedge 0 --resident-form planes");
	assert_int_equal(a.opts.mode, ODM_TIERED);
	assert_int_equal(a.opts.engine.memory_bytes, 1500000000);
	good(&a, "--local 2 --memory 1GB");
	assert_int_equal(a.opts.mode, ODM_LOCAL);
	assert_int_equal(a.opts.engine.memory_bytes, 1000000000);
	good(&a, "--workers h --memory 1GB");
	assert_int_equal(a.opts.mode, ODM_WORKERS);
	good(&a, "");
	assert_int_equal(a.opts.mode, ODM_TIERED);
	assert_int_equal(a.opts.engine.memory_bytes, 0);
	good(&a, "--workers hosts --predictor none --profile f32");
	assert_int_equal(a.opts.mode, ODM_WORKERS);
	assert_string_equal(a.opts.cluster.hosts_path, "hosts");
	assert_int_equal(a.opts.cluster.predictor, ODM_PREDICT_NONE);
	assert_int_equal(a.opts.engine.profile, OD_PROFILE_F32);
}

static void refusals(void **state)
{
	static const char *const t[][2] = {
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
		{ "--resident --predictor oracle",
		  "--predictor: expected one of shadow, none, next-gate, trajectory, found \"oracle\"" },
		/* An option that only the children of --local obey is not silently ignored elsewhere. */
		{ "--resident --worker-arg --slots=2", "--worker-arg needs --local: it is for the processes" },
		{ "--workers h --resident-form planes",
		  "--resident-form is not for --workers: give it to each od-worker" },
		{ "--resident --resident-form f16", "--resident-form: expected one of bf16, planes, found \"f16\"" },
		{ "--workers h --shadow-arg x", "--shadow-arg needs --local: it is for the processes" },
		/* Nor what only a cluster does, or a shadow that is not there. */
		{ "--resident --hedge 10", "--hedge is for a cluster (--workers or --local)" },
		{ "--local 2 --predictor none --hedge 10", "--hedge is about predictions" },
		{ "--resident --predictor shadow", "--predictor is for a cluster (--workers or --local)" },
		{ "--resident --group-size 2", "--group-size is for a cluster" },
		{ "--resident --mixed", "--mixed is for a cluster" },
		{ "--resident --align-token 2", "--align-token is for a cluster" },
		{ "--predictor shadow", "--predictor shadow needs a cluster: --workers or --local" },
		{ "--group-size 2", "--group-size needs a cluster" },
		{ "--mixed", "--mixed needs a cluster" },
		{ "--align-kv 2", "--align-kv needs a cluster" },
		{ "--draft 3", "--draft 3: there is no shadow to draft tokens" },
		{ "--predictor none --hedge 10", "--hedge is about predictions" },
		/* A limit for a process that keeps a part of the experts. */
		{ "--memory 1GB --resident", "--memory and --resident exclude each other" },
		{ "--memory x", "--memory: " },
		{ "--workers h --predictor next-gate --align-kv 0", "--align-kv is for the shadow" },
		{ "--local 1 --predictor next-gate --shadow-arg x",
		  "--shadow-arg is for the shadow, and with --predictor next-gate" },
		{ "--local 1 --predictor none --shadow-arg x", "--shadow-arg is for the shadow" },
		/* Nor may children be told what main tells them itself. */
		{ "--local 1 --worker-arg --pack=P",
		  "--worker-arg --pack=P: od-main sets this itself for its children" },
		{ "--local 1 --worker-arg --slots=2 --worker-arg --port",
		  "--worker-arg --port: od-main sets this itself" },
		{ "--local 1 --shadow-arg --port=1", "--shadow-arg --port=1: od-main sets this itself" },
		{ "--local 1 --worker-arg --data-port=1", "--worker-arg --data-port=1: od-main sets" },
		{ "--local 1 --worker-arg --listen=::", "--worker-arg --listen=::: od-main sets" },
		{ "--local 1 --worker-arg --key=k", "--worker-arg --key=k: od-main sets" },
		{ "--local 1 --shadow-arg --peers", "--shadow-arg --peers: od-main sets" },
		/* Keys are for links between machines. */
		{ "--local 1 --key k", "--key needs --workers or --serve-store" },
		{ "--resident --peers p", "--peers needs --workers or --serve-store" },
		{ "--local 1 --insecure", "--insecure needs --workers or --serve-store" },
		{ "--local 1 --shadow-arg --insecure", "--shadow-arg --insecure: od-main sets" },
		{ "--local 1 --worker-arg --ready-fd=4", "--worker-arg --ready-fd=4: od-main sets" },
		{ "--local 1 --worker-arg --die-with-parent", "--worker-arg --die-with-parent: od-main sets" },
		{ "--local 1 --shadow-arg --trace=T", "--shadow-arg --trace=T: od-main sets" },
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
