/* Plans: what a model costs by its published formulas; what does not fit, and that the smallest change then fits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/compute/open_device.h"
#include "deploy/plan/plan.h"

#define CONFIG "deploy/models/talebook/config.json"
/* its numbers */
#define LAYERS 12.0
#define HIDDEN 256.0
#define HEADS 4.0
#define KV_HEADS 2.0
#define HEAD_DIM 64.0
#define EXPERTS 8.0
#define TOP_K 2.0
#define INTERMEDIATE 256.0
#define VOCAB 4096.0

#define GOOD_MAIN "main m memory=1G speed=1 link=1G\n"
#define GOOD_WORKERS \
	"worker a memory=64M read=1G speed=1 link=1G\nworker b memory=64M read=1G speed=1 link=1G latency=1\n"

static struct odp_model model;

static int open_model(void **state)
{
	struct od_err err;

	(void)state;
	return odp_model_open(&model, CONFIG, OD_PROFILE_F32, &err);
}

static int close_model(void **state)
{
	(void)state;
	odp_model_close(&model);
	return 0;
}

static int plan_with(struct odp_plan *p, const char *text, struct od_err *err)
{
	struct od_hosts hosts;
	const struct odp_plan_opts o = { .hosts = &hosts, .hosts_path = "hosts.txt", .ctx_tokens = 256 };
	int rc = od_hosts_parse_some(&hosts, text, strlen(text), "hosts.txt", err);

	assert_int_equal(rc, OD_OK);
	rc = odp_plan_make(p, &model, &o, err);
	od_hosts_fini(&hosts);
	return rc;
}

static void make_plan(struct odp_plan *p, const char *text)
{
	struct od_err err;

	if (plan_with(p, text, &err) != OD_OK)
		fail_msg("%s", err.msg);
}

static void expect_near(double found, double expected)
{
	if (!(found >= expected * (1 - 1e-9) && found <= expected * (1 + 1e-9)))
		fail_msg("expected %.0f, found %.0f", expected, found);
}

static void costs_of_a_model(void **state)
{
	const double attention = HIDDEN * HEAD_DIM * (2 * HEADS + 2 * KV_HEADS), router = EXPERTS * HIDDEN;
	struct odp_sim_model sim;

	(void)state;
	expect_near(model.expert_weights, 3 * HIDDEN * INTERMEDIATE);
	expect_near(model.dense_weights, LAYERS * (attention + router));
	expect_near(model.head_weights, VOCAB * HIDDEN);
	expect_near(odp_model_active_weights(&model),
		    LAYERS * (attention + router + TOP_K * 3 * HIDDEN * INTERMEDIATE) + VOCAB * HIDDEN);
	expect_near((double)model.kv_bytes, LAYERS * 2 * KV_HEADS * HEAD_DIM * 4);
	expect_near((double)model.row_bytes, HIDDEN * 4);
	expect_near((double)model.experts_bytes, LAYERS * EXPERTS * 3 * HIDDEN * INTERMEDIATE * 2);
	expect_near(odp_model_expert_bytes(&model), 2);
	sim = odp_model_for_sim(&model, OD_FORM_PLAIN, OD_PRECISION_INT8);
	expect_near(sim.block[3].context_weights, 2 * HEADS * HEAD_DIM);
	expect_near(sim.block[3].state_bytes, 2 * KV_HEADS * HEAD_DIM * 4);
	/* a row's scale is one float for 256 weights */
	expect_near(sim.shadow_factor, (8 + 32 / 256.0) / 16);
	assert_true(model.has_planes && model.source == OD_SHAPE_CONFIG);
}

static void a_plan_that_fits(void **state)
{
	struct odp_plan p;

	(void)state;
	make_plan(&p, GOOD_WORKERS GOOD_MAIN "shadow s memory=1G speed=4 link=1G\n");
	assert_int_equal(p.n_problems, 0);
	assert_int_equal(p.n, 4);
	assert_int_equal(p.host[0].role, ODP_MAIN);
	assert_int_equal(p.host[1].role, ODP_SHADOW);
	assert_string_equal(p.host[3].machine.name, "b");
	assert_int_equal(p.shadow, OD_PRECISION_INT8);
	assert_int_equal(p.group_size, 2);
	assert_int_equal(p.texts.parallel, 16);
	/* 1, 4 and 16 texts, plain and with drafts; a prompt of 128 tokens, while one of 2,048 exceeds the context */
	assert_int_equal(p.n_figures, 7);
	for (size_t i = 0; i < p.n_figures; i++)
		assert_true(p.figure[i].value > 0 && p.figure[i].limit != NULL);
	assert_true(p.figure[1].value > p.figure[0].value);
	for (size_t i = 0; i < p.n; i++)
		assert_true(odp_memory_fits(&p.host[i].memory));
	assert_true(p.host[2].machine.slots > 0 && p.host[2].disk_bytes > 0);
	odp_plan_fini(&p);
	make_plan(&p, "main alone memory=512M speed=1 read=1G\n");
	assert_true(p.alone && p.n_problems == 0 && p.n == 1);
	assert_int_equal(p.kept_experts, p.all_experts);
	odp_plan_fini(&p);
}

/* Main's own predictor is an option where a layer hides much of a load. It is none where nothing is loaded, or a shadow
 * predicts. */
static void a_predictor_that_pays(void **state)
{
	const char *slow = "main m memory=1G speed=0.02 link=1G\nworker a memory=57M read=20M speed=0.02 link=1G\n"
			   "worker b memory=57M read=20M speed=0.02 link=1G\n";
	char text[400];
	struct odp_plan p;

	(void)state;
	make_plan(&p, slow);
	assert_true(p.next_gate && p.shadow == 0 && p.kept_experts < p.all_experts);
	odp_plan_fini(&p);
	snprintf(text, sizeof(text), "%sshadow s memory=1G speed=4 link=1G\n", slow);
	make_plan(&p, text);
	assert_true(!p.next_gate && p.shadow != 0);
	assert_true(p.with_shadow > p.without_shadow && p.without_shadow > 0);
	odp_plan_fini(&p);
	make_plan(&p, GOOD_MAIN "worker a memory=128M read=20M speed=0.02 link=1G\n");
	assert_true(!p.next_gate);
	assert_int_equal(p.kept_experts, p.all_experts);
	odp_plan_fini(&p);
}

static double decode_of(const struct odp_plan *p, uint32_t texts, bool drafts)
{
	for (size_t i = 0; i < p->n_figures; i++)
		if (p->figure[i].kind == ODP_DECODE && p->figure[i].texts == texts && p->figure[i].drafts == drafts)
			return p->figure[i].value;
	fail_msg("no figure of %u texts", texts);
	return 0;
}

/* Tokens a second. */
static double planned(const char *shadow_words, uint32_t texts, bool drafts)
{
	char text[400];
	struct odp_plan p;
	double value;

	snprintf(text, sizeof(text), GOOD_MAIN "%sshadow s memory=1G speed=4 link=1G%s\n",
		 "worker a memory=57M read=1G speed=1 link=1G\nworker b memory=57M read=1G speed=1 link=1G\n",
		 shadow_words);
	make_plan(&p, text);
	value = decode_of(&p, texts, drafts);
	odp_plan_fini(&p);
	return value;
}

/* A shadow's line may say how well it predicts; else it is as copies of its precision are. */
static void a_shadow_that_guesses_worse(void **state)
{
	(void)state;
	assert_true(planned("", 4, true) == planned(" recall=0.996 accept=0.984", 4, true));
	assert_true(planned(" accept=0.5", 4, true) < 0.9 * planned("", 4, true));
	assert_true(planned(" recall=0.5", 1, false) < 0.9 * planned("", 1, false));
}

/* Where a step is mostly round trips, drafts pay for several texts, too. */
static void drafts_of_several_texts(void **state)
{
	struct odp_plan p;

	(void)state;
	make_plan(&p, "main m memory=1G speed=2.4 many=5.17 link=32G fixed=0.088\n"
		      "worker a memory=128M read=2.8G speed=1.51 many=4.02 link=25G latency=0.105 fixed=0.039\n"
		      "worker b memory=128M read=3G speed=2.37 many=6.34 link=32G latency=0.114 fixed=0.0185\n"
		      "shadow s memory=1G speed=5.29 many=10.6 link=39G latency=0.114 fixed=0.0001 accept=0.99\n");
	assert_true(decode_of(&p, 1, true) > 2 * decode_of(&p, 1, false));
	assert_true(decode_of(&p, 4, true) > 2 * decode_of(&p, 4, false));
	odp_plan_fini(&p);
}

/* Nothing depends on the machine that plans, or on chance. */
static void equal_plans_are_equal(void **state)
{
	struct odp_plan a, b;

	(void)state;
	make_plan(&a, GOOD_MAIN GOOD_WORKERS);
	make_plan(&b, GOOD_MAIN GOOD_WORKERS);
	assert_int_equal(a.n_figures, b.n_figures);
	for (size_t i = 0; i < a.n_figures; i++)
		assert_true(a.figure[i].value == b.figure[i].value);
	odp_plan_fini(&a);
	odp_plan_fini(&b);
}

/* The plan of text, where format's only number is a memory in MiB, does not fit; with what its remedy says it does, and
 * with less it does not. */
static void expect_smallest_change(const char *format, unsigned mib, const char *who)
{
	char text[600];
	struct odp_plan p;
	unsigned long long would;

	snprintf(text, sizeof(text), format, mib);
	make_plan(&p, text);
	assert_int_equal(p.n_problems, 1);
	assert_int_equal(p.n_figures, 0);
	if (strstr(p.problem[0].what, who) == NULL || strstr(p.problem[0].what, "missing") == NULL)
		fail_msg("\"%s\" does not name \"%s\"", p.problem[0].what, who);
	assert_int_equal(sscanf(p.problem[0].remedy, "memory=%lluM would do", &would), 1);
	odp_plan_fini(&p);
	assert_true(would > mib);
	snprintf(text, sizeof(text), format, (unsigned)would);
	make_plan(&p, text);
	assert_int_equal(p.n_problems, 0);
	odp_plan_fini(&p);
	snprintf(text, sizeof(text), format, (unsigned)would - 1);
	make_plan(&p, text);
	assert_int_equal(p.n_problems, 1);
	odp_plan_fini(&p);
}

static void what_does_not_fit(void **state)
{
	(void)state;
	expect_smallest_change("main m memory=%uM speed=1 link=1G\n" GOOD_WORKERS, 8, "main m");
	expect_smallest_change(GOOD_MAIN GOOD_WORKERS "worker c memory=%uM read=1G speed=1 link=1G\n", 16, "worker c");
	expect_smallest_change(GOOD_MAIN GOOD_WORKERS "shadow s memory=%uM speed=1 link=1G\n", 32, "shadow s");
	expect_smallest_change("main m memory=%uM speed=1 read=1G\n", 8, "main m");
}

static void a_shadow_with_room_for_fewer_texts(void **state)
{
	const char *format = GOOD_MAIN GOOD_WORKERS "shadow s memory=%lluM speed=4 link=1G\n";
	unsigned long long least = 0;
	char text[300];
	struct odp_plan p;

	(void)state;
	snprintf(text, sizeof(text), format, 32ull);
	make_plan(&p, text);
	assert_int_equal(p.n_problems, 1);
	assert_int_equal(sscanf(p.problem[0].remedy, "memory=%lluM would do", &least), 1);
	odp_plan_fini(&p);
	snprintf(text, sizeof(text), format, least);
	make_plan(&p, text);
	assert_int_equal(p.texts.parallel, 16);
	assert_int_equal(p.shadow_texts, 1);
	odp_plan_fini(&p);
	snprintf(text, sizeof(text), format, 1024ull);
	make_plan(&p, text);
	assert_int_equal(p.shadow_texts, 16);
	odp_plan_fini(&p);
}

static void problems_that_are_only_counted(void **state)
{
	char text[2000] = GOOD_MAIN;
	struct odp_plan p;

	(void)state;
	for (int i = 0; i < 20; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text),
			 "worker w%d memory=16M read=1G speed=1 link=1G\n", i);
	make_plan(&p, text);
	assert_int_equal(p.n_problems, ODP_MAX_PROBLEMS);
	assert_int_equal(p.n_more_problems, 20 - ODP_MAX_PROBLEMS);
	odp_plan_fini(&p);
}

/* A main with 2 GiB for Mixtral's dense weights of 2.4 GiB and embeddings reads what has no room. */
static void dense_weights_that_steps_read(void **state)
{
	const struct odp_texts texts = { .parallel = 1, .prefill_rows = 256, .ctx_tokens = 1024 };
	const double attention = 2.0 * 4096 * (2 * 4096 + 2 * 1024), head = 2.0 * 32000 * 4096;
	double layer[32], sum = 0;
	struct odp_streamed s = { .layer_bytes = layer };
	struct odp_model m;
	struct od_device *d;
	struct od_err err;

	(void)state;
	assert_int_equal(odp_model_open(&m, "tests/bench/plans/models/Mixtral-8x7B.json", OD_PROFILE_BF16, &err),
			 OD_OK);
	assert_int_equal(od_device_open(&d, "cpu", OD_CPU_AUTO, 1, "test", &err), OD_OK);
	assert_int_equal(odp_memory_streamed(&s, &m, d, &texts, 2ull << 30, &err), OD_OK);
	assert_true(odp_memory_fits(&s.memory) && s.memory.need_bytes > (2ull << 30) - (1 << 20));
	for (int i = 0; i < 32; i++) {
		assert_true(layer[i] < 1.01 * attention);
		sum += layer[i];
	}
	expect_near(sum + s.head_bytes, s.step_bytes);
	/* All weights are read or stay; two layers of the ring hold nothing that stays. */
	assert_true(s.step_bytes + (2ull << 30) > 32 * attention + head);
	assert_true(s.step_bytes + (2ull << 30) < 32 * attention + head + 2 * attention + (600 << 20));
	assert_int_equal(odp_memory_streamed(&s, &m, d, &texts, 64 << 20, &err), OD_OK);
	assert_false(odp_memory_fits(&s.memory));
	od_device_free(d);
	odp_model_close(&m);
}

static void refuse(const char *text, const char *says)
{
	struct odp_plan p;
	struct od_err err;

	assert_int_equal(plan_with(&p, text, &err), OD_ERR_ARG);
	assert_null(p.host);
	if (strstr(err.msg, says) == NULL)
		fail_msg("\"%s\" does not contain \"%s\"", err.msg, says);
}

static void what_hosts_lack(void **state)
{
	(void)state;
	refuse(GOOD_MAIN "worker a memory=1G\n",
	       "hosts.txt line 2: worker a lacks read=, speed=, link=: od-plan --check hosts.txt measures");
	refuse("main m speed=1\nworker a memory=1G read=1G speed=1 link=1G\n", "main m lacks memory=, link=");
	refuse(GOOD_MAIN GOOD_WORKERS "shadow s memory=1G link=1G\n", "line 4: shadow s lacks speed=");
	refuse("main m memory=1G\n", "main m lacks read=, speed=");
	refuse(GOOD_WORKERS, "a line of role main is missing");
	refuse(GOOD_MAIN "shadow s memory=1G speed=1 link=1G\n", "a shadow, and no worker");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(costs_of_a_model),
		cmocka_unit_test(a_plan_that_fits),
		cmocka_unit_test(a_predictor_that_pays),
		cmocka_unit_test(a_shadow_that_guesses_worse),
		cmocka_unit_test(drafts_of_several_texts),
		cmocka_unit_test(equal_plans_are_equal),
		cmocka_unit_test(dense_weights_that_steps_read),
		cmocka_unit_test(what_does_not_fit),
		cmocka_unit_test(a_shadow_with_room_for_fewer_texts),
		cmocka_unit_test(problems_that_are_only_counted),
		cmocka_unit_test(what_hosts_lack),
	};

	return cmocka_run_group_tests_name("plan", tests, open_model, close_model);
}
