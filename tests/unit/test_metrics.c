/* Names and sums of /metrics. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "main-node/serve/ops/metric_table.h"
#include "main-node/serve/ops/metrics.h"
#include "main-node/serve/ops/process_metrics.h"

/* Counters that /metrics does not show, and why. */
static const struct {
	enum od_counter c;
	unsigned of;
} left_out[] = {
	/* Histograms. */
	{ OD_C_TTFT_NS, OD_OF_REQUEST },
	{ OD_C_DECODE_NS, OD_OF_REQUEST },
	/* od_worker_up, od_worker_slots. */
	{ OD_C_WORKERS, OD_OF_REQUEST },
	{ OD_C_GROUPS, OD_OF_REQUEST },
	{ OD_C_SLOTS, OD_OF_REQUEST },
	/* The workers count them. */
	{ OD_C_LOADS, OD_OF_REQUEST },
	{ OD_C_LOADED_BYTES, OD_OF_REQUEST },
	{ OD_C_LOAD_NS, OD_OF_REQUEST },
	{ OD_C_WORKER_COMPUTE_NS, OD_OF_REQUEST },
	/* Counted for texts that run alone. */
	{ OD_C_BEGUN_LOADS, OD_OF_REQUEST },
	{ OD_C_EXTRA_LOADS, OD_OF_REQUEST },
	{ OD_C_HOST_BYTES, OD_OF_REQUEST },
};

static bool is_left_out(int c, unsigned of)
{
	for (size_t i = 0; i < sizeof(left_out) / sizeof(left_out[0]); i++)
		if ((int)left_out[i].c == c && left_out[i].of == of)
			return true;
	return false;
}

/* A new counter is shown, or somebody has decided that it is not. */
static void every_counter_is_shown_once(void **state)
{
	(void)state;
	for (int c = 0; c < OD_N_COUNTERS; c++)
		for (unsigned of = OD_OF_REQUEST; of <= OD_OF_SHADOW; of *= 2) {
			size_t n = 0;

			for (const struct odm_metric *t = odm_metric_table; t->name != NULL; t++)
				n += (int)t->counter == c && t->of == of;
			if (n != ((od_counter_info[c].of & of) != 0 && !is_left_out(c, of)) &&
			    !(n == 1 && c == OD_C_SLOTS && of == OD_OF_WORKER)) /* WELCOME says it, not PONG */
				fail_msg("%s of %u is shown %zu times", od_counter_info[c].name, of, n);
		}
}

static bool ends_with(const char *text, const char *end)
{
	return strlen(text) >= strlen(end) && strcmp(text + strlen(text) - strlen(end), end) == 0;
}

static void names_say_kind_and_unit(void **state)
{
	static const char *const prefix[] = {
		[OD_OF_REQUEST] = "od_main_", [OD_OF_WORKER] = "od_worker_", [OD_OF_SHADOW] = "od_shadow_"
	};

	(void)state;
	for (const struct odm_metric *t = odm_metric_table; t->name != NULL; t++) {
		const struct od_counter_info *info = &od_counter_info[t->counter];
		const bool counter = info->kind == OD_COUNTER;

		assert_int_equal(strncmp(t->name, prefix[t->of], strlen(prefix[t->of])), 0);
		assert_int_equal(strspn(t->name, "abcdefghijklmnopqrstuvwxyz_"), strlen(t->name));
		if (ends_with(t->name, "_total") != counter)
			fail_msg("%s", t->name);
		if (strcmp(info->unit, "ns") == 0)
			assert_true(ends_with(t->name, counter ? "_seconds_total" : "_seconds"));
		if (strcmp(info->unit, "bytes") == 0)
			assert_true(ends_with(t->name, counter ? "_bytes_total" : "_bytes"));
	}
}

static void assert_line(const char *text, const char *line)
{
	char whole[256];

	snprintf(whole, sizeof(whole), "\n%s\n", line);
	if (strstr(text, whole) == NULL)
		fail_msg("no line \"%s\" in\n%s", line, text);
}

static void texts_are_counted(void **state)
{
	struct odm_metrics *m = odm_metrics_new();
	struct odm_result r = { .n_tokens = 11, .finish = ODM_FINISH_STOP };
	struct od_strbuf out = { 0 };

	(void)state;
	r.figures.c[OD_C_DECODE_NS] = 400000000; /* 40 ms a token */
	odm_metrics_begun(m, 20000000);
	odm_metrics_first_token(m, 200000000);
	odm_metrics_ended(m, &r, OD_OK);
	r.finish = ODM_FINISH_CANCELLED;
	odm_metrics_ended(m, &r, OD_ERR_CANCELLED);
	odm_metrics_ended(m, &r, OD_ERR_UNREACHABLE);
	odm_metrics_write(m, &out);
	assert_line(out.text, "od_texts_total{finish=\"stop\"} 1");
	assert_line(out.text, "od_texts_total{finish=\"cancelled\"} 1");
	assert_line(out.text, "od_texts_total{finish=\"error\"} 1");
	assert_line(out.text, "od_time_to_first_token_seconds_bucket{le=\"0.1\"} 0");
	assert_line(out.text, "od_time_to_first_token_seconds_bucket{le=\"0.25\"} 1");
	assert_line(out.text, "od_time_to_first_token_seconds_bucket{le=\"+Inf\"} 1");
	assert_line(out.text, "od_time_to_first_token_seconds_sum 0.2");
	assert_line(out.text, "od_time_per_output_token_seconds_bucket{le=\"0.025\"} 0");
	assert_line(out.text, "od_time_per_output_token_seconds_bucket{le=\"0.05\"} 1");
	assert_line(out.text, "od_time_per_output_token_seconds_count 1");
	assert_line(out.text, "od_queue_time_seconds_sum 0.02");
	od_strbuf_fini(&out);
	odm_metrics_free(m);
	odm_metrics_free(NULL);
}

static void a_report_is_shown(void **state)
{
	struct odm_report r = { .batch = { 5, 2, 0, 1 },
				.decode_texts = 17,
				.kv_bytes = UINT64_C(1) << 40,
				.kv_free_bytes = 1,
				.prefix_cache_bytes = 7,
				.snapshot_bytes = 3 << 20,
				.snapshots_written = 5,
				.snapshots_used = 4,
				.snapshots_dropped = 2 };
	struct od_strbuf out = { 0 };

	(void)state;
	r.c[OD_C_TOKENS] = 33;
	r.c[OD_C_STALL_NS] = 1250000000;
	r.c[OD_C_CACHE_HITS] = 4;
	odm_metrics_write_report(&out, &r);
	assert_line(out.text, "od_main_tokens_total 33");
	assert_line(out.text, "od_main_stall_seconds_total 1.25");
	assert_line(out.text, "od_main_cache_hits_total 4");
	assert_line(out.text, "od_batch_texts_bucket{le=\"1\"} 5");
	assert_line(out.text, "od_batch_texts_bucket{le=\"4\"} 7");
	assert_line(out.text, "od_batch_texts_bucket{le=\"+Inf\"} 8");
	assert_line(out.text, "od_batch_texts_sum 17");
	assert_line(out.text, "od_batch_texts_count 8");
	assert_line(out.text, "od_kv_cache_used_bytes 1099511627775");
	assert_line(out.text, "od_kv_cache_free_bytes 1");
	assert_line(out.text, "od_prefix_cache_bytes 7");
	assert_line(out.text, "od_snapshot_bytes 3145728");
	assert_line(out.text, "od_snapshots_written_total 5");
	assert_line(out.text, "od_snapshot_hits_total 4");
	assert_line(out.text, "od_snapshots_dropped_total 2");
	assert_null(strstr(out.text, "od_worker_"));
	od_strbuf_fini(&out);
}

static void daemons_have_labels(void **state)
{
	struct od_strbuf out = { 0 };
	struct odm_figures f = { 0 };
	struct odm_node_figures *n;

	(void)state;
	n = odm_figures_add_node(&f, "main", true);
	n->c[OD_C_LOADS] = 77;
	n = odm_figures_add_node(&f, "worker a\"b\\c:1", true);
	n->c[OD_C_LOADS] = 5;
	n->c[OD_C_FINISH_NS] = 1500000000;
	n->c[OD_C_SLOTS] = 3;
	n = odm_figures_add_node(&f, "worker [::1]:5701", false);
	n->c[OD_C_LOADS] = 9;
	n->c[OD_C_SLOTS] = 4;
	odm_metrics_write_nodes(&out, &f);
	assert_line(out.text, "od_worker_up{worker=\"a\\\"b\\\\c:1\"} 1");
	assert_line(out.text, "od_worker_up{worker=\"[::1]:5701\"} 0");
	assert_line(out.text, "od_worker_loads_total{worker=\"a\\\"b\\\\c:1\"} 5");
	assert_line(out.text, "od_worker_loads_total{worker=\"[::1]:5701\"} 9");
	assert_line(out.text, "od_worker_inflate_seconds_total{worker=\"a\\\"b\\\\c:1\"} 1.5");
	assert_line(out.text, "od_worker_slots{worker=\"a\\\"b\\\\c:1\"} 3");
	assert_null(strstr(out.text, "od_worker_slots{worker=\"[")); /* not known now */
	assert_null(strstr(out.text, "77"));
	assert_null(strstr(out.text, "od_shadow_"));
	od_strbuf_fini(&out);
	odm_figures_fini(&f);
}

static double value_of(const char *text, const char *name)
{
	const char *at = strstr(text, name);

	assert_non_null(at);
	return strtod(at + strlen(name), NULL);
}

/* By other calls: dup, getrusage, time, sysconf. */
static void the_process_is_shown(void **state)
{
	const double before = (double)time(NULL);
	struct od_strbuf out = { 0 };
	struct rusage used;
	double fds, cpu;
	int fd;

	(void)state;
	odm_process_metrics_write(&out);
	fds = value_of(out.text, "\nprocess_open_fds ");
	od_strbuf_fini(&out);
	fd = dup(STDERR_FILENO);
	out = (struct od_strbuf){ 0 };
	odm_process_metrics_write(&out);
	close(fd);
	assert_true(value_of(out.text, "\nprocess_open_fds ") == fds + 1);
	assert_true(value_of(out.text, "\nprocess_max_fds ") == (double)sysconf(_SC_OPEN_MAX));
	getrusage(RUSAGE_SELF, &used);
	cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
	      (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
	assert_true(value_of(out.text, "\nprocess_cpu_seconds_total ") <= cpu + 0.02);
	assert_true(value_of(out.text, "\nprocess_cpu_seconds_total ") > 0);
	/* The kernel counts with a delay. */
	assert_true(value_of(out.text, "\nprocess_resident_memory_bytes ") <=
		    (double)used.ru_maxrss * 1024 + (1 << 20));
	assert_true(value_of(out.text, "\nprocess_resident_memory_bytes ") > 100000);
	assert_true(value_of(out.text, "\nprocess_start_time_seconds ") > before - 30 &&
		    value_of(out.text, "\nprocess_start_time_seconds ") < before + 2);
	od_strbuf_fini(&out);
}

/* Another value would be a restart. */
static void the_start_does_not_change(void **state)
{
	double first = 0;

	(void)state;
	for (int i = 0; i < 1000; i++) {
		struct od_strbuf out = { 0 };
		double start;

		odm_process_metrics_write(&out);
		start = value_of(out.text, "\nprocess_start_time_seconds ");
		od_strbuf_fini(&out);
		first = i == 0 ? start : first;
		assert_true(start == first);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_counter_is_shown_once), cmocka_unit_test(names_say_kind_and_unit),
		cmocka_unit_test(texts_are_counted),	       cmocka_unit_test(a_report_is_shown),
		cmocka_unit_test(daemons_have_labels),	       cmocka_unit_test(the_process_is_shown),
		cmocka_unit_test(the_start_does_not_change),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
