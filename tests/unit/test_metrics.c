/* Names and sums of /metrics. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "main-node/serve/metrics.h"

static void names_have_units(void **state)
{
	static const struct {
		enum od_counter c;
		unsigned of;
		const char *name;
	} expected[] = {
		{ OD_C_TOKENS, OD_OF_REQUEST, "od_main_tokens_total" },
		{ OD_C_PREFILL_NS, OD_OF_REQUEST, "od_main_prefill_seconds_total" },
		{ OD_C_STALL_NS, OD_OF_REQUEST, "od_main_stall_seconds_total" },
		{ OD_C_LOADS, OD_OF_REQUEST, "od_main_loads_total" },
		{ OD_C_LOADS, OD_OF_WORKER, "od_worker_loads_total" },
		{ OD_C_LOADED_BYTES, OD_OF_WORKER, "od_worker_loaded_bytes_total" },
		{ OD_C_FINISH_NS, OD_OF_WORKER, "od_worker_finish_seconds_total" },
		{ OD_C_WORKER_RUNS, OD_OF_REQUEST, "od_main_worker_runs_total" },
		{ OD_C_WORKERS, OD_OF_REQUEST, "od_main_workers" },
		{ OD_C_PEAK_RSS_BYTES, OD_OF_SHADOW, "od_shadow_peak_rss_bytes" },
		{ OD_C_SHADOW_STEPS, OD_OF_SHADOW, "od_shadow_steps_total" },
		{ OD_C_SPOOL_BYTES, OD_OF_WORKER, "od_worker_spool_bytes" },
	};
	char name[128], other[128];

	(void)state;
	for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
		assert_string_equal(odm_metrics_name(expected[i].c, expected[i].of, name, sizeof(name)), expected[i].name);
	for (int a = 0; a < OD_N_COUNTERS; a++)
		for (int b = 0; b < a; b++)
			assert_string_not_equal(odm_metrics_name((enum od_counter)a, OD_OF_SHADOW, name, sizeof(name)),
						odm_metrics_name((enum od_counter)b, OD_OF_SHADOW, other, sizeof(other)));
}

static void assert_line(const char *text, const char *line)
{
	char whole[256];

	snprintf(whole, sizeof(whole), "\n%s\n", line);
	if (strstr(text, whole) == NULL)
		fail_msg("no line \"%s\" in\n%s", line, text);
}

static void texts_are_summed(void **state)
{
	struct odm_metrics *m = odm_metrics_new();
	struct odm_result r = { .n_tokens = 11, .finish = ODM_FINISH_STOP };
	struct od_strbuf out = { 0 };
	struct odm_node_figures *n;

	(void)state;
	r.figures.c[OD_C_TOKENS] = 11;
	r.figures.c[OD_C_TTFT_NS] = 200000000;
	r.figures.c[OD_C_DECODE_NS] = 400000000; /* 40 ms a token */
	n = odm_figures_add_node(&r.figures, "worker 0 a\"b\\c:1", true);
	n->c[OD_C_LOADS] = 5;
	n->c[OD_C_READ_NS] = 1500000000;
	odm_metrics_begun(m, 20000000);
	odm_metrics_first_token(m, 200000000);
	odm_metrics_ended(m, &r, OD_OK);
	n->c[OD_C_LOADS] = 9;
	n->alive = false;
	r.finish = ODM_FINISH_CANCELLED;
	odm_metrics_ended(m, &r, OD_ERR_CANCELLED);
	odm_metrics_ended(m, &r, OD_ERR_UNREACHABLE);
	odm_metrics_write(m, &out);
	assert_line(out.text, "od_main_tokens_total 33");
	assert_line(out.text, "od_texts_total{finish=\"stop\"} 1");
	assert_line(out.text, "od_texts_total{finish=\"cancelled\"} 1");
	assert_line(out.text, "od_texts_total{finish=\"error\"} 1");
	assert_line(out.text, "od_time_to_first_token_seconds_bucket{le=\"0.1\"} 0");
	assert_line(out.text, "od_time_to_first_token_seconds_bucket{le=\"0.25\"} 1");
	assert_line(out.text, "od_time_to_first_token_seconds_bucket{le=\"+Inf\"} 1");
	assert_line(out.text, "od_time_to_first_token_seconds_sum 0.2");
	assert_line(out.text, "od_time_per_output_token_seconds_bucket{le=\"0.025\"} 0");
	assert_line(out.text, "od_time_per_output_token_seconds_bucket{le=\"0.05\"} 1");
	assert_line(out.text, "od_queue_time_seconds_sum 0.02");
	assert_line(out.text, "od_worker_loads_total{node=\"worker 0 a\\\"b\\\\c:1\"} 9");
	assert_line(out.text, "od_worker_read_seconds_total{node=\"worker 0 a\\\"b\\\\c:1\"} 1.5");
	assert_line(out.text, "od_node_up{node=\"worker 0 a\\\"b\\\\c:1\"} 0");
	assert_null(strstr(out.text, "od_shadow_"));
	od_strbuf_fini(&out);
	odm_figures_fini(&r.figures);
	odm_metrics_free(m);
	odm_metrics_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(names_have_units), cmocka_unit_test(texts_are_summed) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
