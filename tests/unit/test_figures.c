/* The cost of a generation, worked out by hand: 11 tokens in 4 s, 20 layers, 3 groups. */
#include "main-node/step/figures.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define S 1000000000ull

static struct odm_figures example(void)
{
	struct odm_figures f = {
		.c = {
			[OD_C_PROMPT_TOKENS] = 5, [OD_C_SHARED_TOKENS] = 3, [OD_C_RESTORED_TOKENS] = 1, [OD_C_TOKENS] = 11,
			[OD_C_PREFILL_NS] = 2 * S, [OD_C_TTFT_NS] = 2500000000, [OD_C_DECODE_NS] = 4 * S,
			[OD_C_DEVICE_WAITS] = 273, [OD_C_SIDE_WAITS] = 13,
			[OD_C_DRAFTED] = 12, [OD_C_ACCEPTED] = 6,
			[OD_C_EXPERT_USES] = 84, [OD_C_PREDICTED_USES] = 80, [OD_C_RECALLED_USES] = 79,
			[OD_C_STOOD_IN_USES] = 8, [OD_C_STOOD_IN_RECALLED] = 6, [OD_C_UNDONE_USES] = 24, [OD_C_UNDONE_RECALLED] = 21,
			[OD_C_LATE_PREDICTIONS] = 2, [OD_C_MISSING_PREDICTIONS] = 1,
			[OD_C_VOIDED_PREDICTIONS] = 31, [OD_C_UNKNOWN_PREDICTIONS] = 32, [OD_C_DROPPED_PREDICTS] = 33,
			[OD_C_FIRST_PREDICTIONS] = 9, [OD_C_LEAD_SUM] = 10, [OD_C_LEAD_ROUTERS] = 4,
			[OD_C_HEDGED] = 17, [OD_C_HEDGE_USES] = 3, [OD_C_WASTED_WANTS] = 18,
			[OD_C_SERVED_IN_TIME] = 63, [OD_C_UNDONE_SERVED] = 19, [OD_C_UNDONE_LOADS] = 14, [OD_C_STALLS] = 6, [OD_C_STALL_NS] = 1 * S,
			[OD_C_DECODE_LAYERS] = 20, [OD_C_EXPERTS_NS] = 3 * S,
			[OD_C_CACHE_USES] = 80, [OD_C_CACHE_HITS] = 40,
			[OD_C_LOADS] = 7, [OD_C_LOADED_BYTES] = 11010048 /* 10.5 MiB */, [OD_C_LOAD_NS] = 1750000000,
			[OD_C_DECODE_LOADS] = 81, [OD_C_BEGUN_LOADS] = 102, [OD_C_EXTRA_LOADS] = 21,
			[OD_C_WORKER_RUNS] = 13, [OD_C_WORKER_ROWS] = 17, [OD_C_WORKER_COMPUTE_NS] = 1250000000, [OD_C_RECOVERED_RUNS] = 4,
			[OD_C_STATE_BYTES] = 12345, [OD_C_ALIGN_BYTES] = 23456, [OD_C_ASKED_BYTES] = 2048,
			[OD_C_RUN_BYTES] = 170, [OD_C_RESULT_BYTES] = 190, [OD_C_ALIGN_NS] = 750000000,
			[OD_C_WORKERS] = 6, [OD_C_GROUPS] = 3, [OD_C_SLOTS] = 1,
		},
		.first_prediction_ns = { -1500000, 250000, 4000000 },
		.cluster = true,
		.has_predictor = true,
	};

	odm_figures_add_node(&f, "main", true)->c[OD_C_PEAK_RSS_BYTES] = 100u << 20;
	odm_figures_add_node(&f, "worker 0 127.0.0.1:1", false)->c[OD_C_PEAK_RSS_BYTES] = 921600;
	assert_int_equal(f.n_nodes, 2);
	return f;
}

static void rates(void **state)
{
	struct odm_figures f = example();

	(void)state;
	assert_true(odm_figures_tok_per_s(&f) == 2.5); /* 10 tokens after the first in 4 s */
	assert_true(odm_figures_ratio(&f, OD_C_RECALLED_USES, OD_C_PREDICTED_USES) == 79.0 / 80);
	assert_true(odm_figures_ratio(&f, OD_C_SERVED_IN_TIME, OD_C_EXPERT_USES) == 0.75);
	assert_true(odm_figures_ratio(&f, OD_C_EXTRA_LOADS, OD_C_EXPERT_USES) == 0.25);
	f.c[OD_C_TOKENS] = 2;
	assert_true(odm_figures_tok_per_s(&f) == 0.25);
	f.c[OD_C_TOKENS] = 1;
	assert_true(odm_figures_tok_per_s(&f) == 0);
	f.c[OD_C_TOKENS] = 0;
	assert_true(odm_figures_tok_per_s(&f) == 0);
	f.c[OD_C_TOKENS] = 9;
	f.c[OD_C_DECODE_NS] = 0;
	assert_true(odm_figures_tok_per_s(&f) == 0);
	f.c[OD_C_PREDICTED_USES] = 0;
	assert_true(odm_figures_ratio(&f, OD_C_RECALLED_USES, OD_C_PREDICTED_USES) == 0);
	odm_figures_fini(&f);
}

/* (4 - 3) s / 20 layers = 50 ms on main, (3 - 1) s / 20 = 100 ms for the experts. */
static void window(void **state)
{
	struct odm_figures f = example();

	(void)state;
	assert_int_equal(odm_figures_main_ns(&f), 50000000);
	assert_int_equal(odm_figures_worker_ns(&f), 100000000);
	assert_int_equal(odm_figures_window_ns(&f, 1), 350000000); /* 3 * 50 + 2 * 100 ms */
	assert_int_equal(odm_figures_window_ns(&f, 2), 450000000); /* 3 * (50 + 100) ms */
	assert_int_equal(odm_figures_window_ns(&f, 64), 450000000);
	f.c[OD_C_GROUPS] = 1;
	assert_int_equal(odm_figures_window_ns(&f, 1), 50000000);
	f.c[OD_C_GROUPS] = 0;
	assert_int_equal(odm_figures_window_ns(&f, 1), 0);
	f.c[OD_C_GROUPS] = 3;
	f.c[OD_C_STALL_NS] = 5 * S; /* clocks of several threads: never below zero */
	assert_int_equal(odm_figures_worker_ns(&f), 0);
	assert_int_equal(odm_figures_window_ns(&f, 1), 150000000);
	f.c[OD_C_EXPERTS_NS] = 5 * S;
	assert_int_equal(odm_figures_main_ns(&f), 0);
	f = (struct odm_figures){ .c = { [OD_C_GROUPS] = 4 }, .node = f.node, .n_nodes = f.n_nodes };
	assert_int_equal(odm_figures_window_ns(&f, 1), 0); /* nothing was measured */
	odm_figures_fini(&f);
}

static void assert_written(void (*write)(const struct odm_figures *, FILE *), const struct odm_figures *f,
			   const char *want)
{
	char *text;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	write(f, out);
	fclose(out);
	assert_string_equal(text, want);
	free(text);
}

static void assert_prints(const struct odm_figures *f, const char *want)
{
	assert_written(odm_figures_print, f, want);
}

static void one_line(void **state)
{
	struct odm_figures f = example();

	(void)state;
	assert_written(odm_figures_line, &f,
		       "5 prompt tokens, 11 generated; TTFT 2.500 s, then 2.50 tok/s; recall 98.8%; "
		       "per token 8.10 loads, 0.60 stalls\n");
	f.c[OD_C_PREDICTED_USES] = 0; /* no recall is not a recall of 0 */
	assert_written(
		odm_figures_line, &f,
		"5 prompt tokens, 11 generated; TTFT 2.500 s, then 2.50 tok/s; per token 8.10 loads, 0.60 stalls\n");
	f.cluster = false;
	assert_written(odm_figures_line, &f, "5 prompt tokens, 11 generated; TTFT 2.500 s, then 2.50 tok/s\n");
	f.cluster = true;
	f.c[OD_C_TOKENS] = 1; /* no decode step */
	assert_written(odm_figures_line, &f, "5 prompt tokens, 1 generated; TTFT 2.500 s\n");
	odm_figures_fini(&f);
}

static void lines_for_people(void **state)
{
	struct odm_figures f = example(), none = { 0 };

	(void)state;
	assert_prints(&f,
		      "tokens      5 prompt, 11 generated\n"
		      "speed       TTFT 2.500 s, 2.50 tok/s\n"
		      "drafts      12 tokens verified, 50.0% right: 2.50 tokens a step\n"
		      "recall      98.750% of 80 predicted expert uses; predictions late 2, missing 1\n"
		      "stood in    75.000% of 8 more expert uses, which main predicted while the shadow was silent\n"
		      "served      75.000% of 84 expert uses in time, with 25.0% extra loads (21); hedged 17\n"
		      "alignment   2346 bytes a token, and 2.0 KiB asked for\n"
		      "lead        first prediction 0.25 ms after STEP (-1.50 to 4.00), 2.50 layers ahead in the mean\n"
		      "cache       80 expert uses, 50.0% of them kept\n"
		      "stalls      6 of 84 expert uses waited for a load, 1.000 s in all\n"
		      "loaded      10.5 MiB in 7 expert loads, 250.00 ms each; window 350.00 ms\n"
		      "recovered   4 runs were sent again after a worker was lost\n"
		      "peak memory main 100.0 MiB, worker 0 127.0.0.1:1 900.0 KiB (lost)\n");
	f.c[OD_C_PREDICTED_USES] = f.c[OD_C_RECOVERED_RUNS] = f.c[OD_C_LOADS] = f.c[OD_C_LOADED_BYTES] = 0;
	f.c[OD_C_ALIGN_BYTES] = f.c[OD_C_FIRST_PREDICTIONS] = f.c[OD_C_CACHE_USES] = 0;
	assert_prints(&f,
		      "tokens      5 prompt, 11 generated\n"
		      "speed       TTFT 2.500 s, 2.50 tok/s\n"
		      "drafts      12 tokens verified, 50.0% right: 2.50 tokens a step\n"
		      "recall      nothing was predicted; predictions late 2, missing 1\n"
		      "stood in    75.000% of 8 more expert uses, which main predicted while the shadow was silent\n"
		      "served      75.000% of 84 expert uses in time, with 25.0% extra loads (21); hedged 17\n"
		      "stalls      6 of 84 expert uses waited for a load, 1.000 s in all\n"
		      "loaded      0 B in 0 expert loads\n"
		      "peak memory main 100.0 MiB, worker 0 127.0.0.1:1 900.0 KiB (lost)\n");
	f.has_predictor = false;
	f.c[OD_C_STOOD_IN_USES] = 0;
	f.n_nodes = 1;
	assert_prints(&f, "tokens      5 prompt, 11 generated\n"
			  "speed       TTFT 2.500 s, 2.50 tok/s\n"
			  "drafts      12 tokens verified, 50.0% right: 2.50 tokens a step\n"
			  "stalls      6 of 84 expert uses waited for a load, 1.000 s in all\n"
			  "loaded      0 B in 0 expert loads\n"
			  "peak memory main 100.0 MiB\n");
	assert_prints(&none, "tokens      0 prompt, 0 generated\n"
			     "speed       TTFT 0.000 s, 0.00 tok/s\n"
			     "peak memory\n");
	odm_figures_fini(&f);
}

static void fields_for_programs(void **state)
{
	struct odm_figures f = example();
	json_t *want = json_loads(
		"{\"before\": true, \"prompt_tokens\": 5, \"shared_tokens\": 3, \"restored_tokens\": 1, \"tokens\": 11, \"prefill_s\": 2.0, \"ttft_s\": 2.5,"
		" \"decode_s\": 4.0, \"device_waits\": 273, \"side_waits\": 13, \"tok_per_s\": 2.5, \"expert_uses\": 84, \"predicted_uses\": 80, \"recalled_uses\": 79,"
		" \"stood_in_uses\": 8, \"stood_in_recalled\": 6, \"undone_uses\": 24, \"undone_recalled\": 21,"
		" \"recall\": 0.9875, \"late_predictions\": 2, \"missing_predictions\": 1, \"voided_predictions\": 31, \"unknown_predictions\": 32, \"dropped_predicts\": 33,"
		" \"served_in_time\": 63, \"undone_served\": 19, \"undone_loads\": 14,"
		" \"drafted_tokens\": 12, \"accepted_tokens\": 6,"
		" \"decode_loads\": 81, \"extra_loads\": 21, \"begun_loads\": 102, \"hedged\": 17, \"hedge_uses\": 3, \"wasted_wants\": 18,"
		" \"stalls\": 6, \"stall_s\": 1.0,"
		" \"decode_layers\": 20, \"experts_s\": 3.0, \"workers\": 6, \"groups\": 3, \"slots\": 1,"
		" \"cache_uses\": 80, \"cache_hits\": 40, \"loads\": 7,"
		" \"loaded_bytes\": 11010048, \"host_bytes\": 0, \"host_experts\": 0, \"dense_bytes\": 0, \"dense_wait_s\": 0.0, \"load_s\": 1.75, \"worker_runs\": 13, \"worker_rows\": 17, \"worker_compute_s\": 1.25,"
		" \"recovered_runs\": 4, \"state_bytes\": 12345, \"align_bytes\": 23456, \"asked_bytes\": 2048, \"run_bytes\": 170, \"result_bytes\": 190, \"align_s\": 0.75,"
		" \"align_bytes_per_token\": 2345.6, \"first_prediction_min_s\": -0.0015,"
		" \"first_prediction_median_s\": 0.00025, \"first_prediction_max_s\": 0.004, \"lead_layers\": 2.5, \"first_predictions\": 9, \"lead_sum\": 10, \"lead_routers\": 4, \"nodes\": ["
		"  {\"name\": \"main\", \"peak_rss_bytes\": 104857600, \"alive\": true},"
		"  {\"name\": \"worker 0 127.0.0.1:1\", \"peak_rss_bytes\": 921600, \"alive\": false}]}",
		0, NULL);
	json_t *found = json_pack("{s:b}", "before", 1);

	(void)state;
	odm_figures_json(&f, found);
	if (!json_equal(found, want))
		fail_msg("%s", json_dumps(found, JSON_COMPACT));
	/* no recall is not a recall of 0 */
	f.c[OD_C_PREDICTED_USES] = f.c[OD_C_RECALLED_USES] = f.c[OD_C_FIRST_PREDICTIONS] = f.c[OD_C_LEAD_ROUTERS] = 0;
	odm_figures_json(&f, found);
	assert_true(json_is_null(json_object_get(found, "recall")));
	assert_true(json_is_null(json_object_get(found, "first_prediction_min_s")));
	assert_true(json_is_null(json_object_get(found, "lead_layers")));
	json_decref(found);
	json_decref(want);
	odm_figures_fini(&f);
}

static void nodes(void **state)
{
	struct odm_figures f = { 0 };
	char name[200];

	(void)state;
	memset(name, 'n', sizeof(name));
	name[sizeof(name) - 1] = '\0';
	for (uint64_t i = 0; i < ODM_MAX_NODES + 3; i++) {
		struct odm_node_figures *node = odm_figures_add_node(&f, name + i % 199, i % 3 == 0);

		assert_true((node != NULL) == (i < ODM_MAX_NODES));
		if (node != NULL)
			node->c[OD_C_PEAK_RSS_BYTES] = i;
	}
	assert_int_equal(f.n_nodes, ODM_MAX_NODES);
	assert_int_equal(strlen(f.node[0].name), 63);
	assert_int_equal(strlen(f.node[198].name), 1);
	assert_int_equal(f.node[1023].c[OD_C_PEAK_RSS_BYTES], 1023);
	assert_true(f.node[1023].alive);
	assert_false(f.node[1022].alive);
	odm_figures_fini(&f);
	assert_int_equal(f.n_nodes, 0);
	odm_figures_fini(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rates),
		cmocka_unit_test(window),
		cmocka_unit_test(one_line),
		cmocka_unit_test(lines_for_people),
		cmocka_unit_test(fields_for_programs),
		cmocka_unit_test(nodes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
