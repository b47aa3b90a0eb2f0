/* bench_membw.c - od-bench membw: the machine's read bandwidth, for itself. */
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "tests/bench/bench.h"
#include "tests/bench/micro/bandwidth.h"
#include "tests/bench/report/bench_stats.h"
#include "tests/bench/report/bench_table.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define DEFAULT_BYTES (1u << 30)
#define MAX_SAMPLES 100000
#define CACHE_MULTIPLE 4 /* times the last-level cache: below, part of a reading is still there next time */

/* Readings for the given time, at least one of every part of the buffer. Returns their number. */
static size_t measure(struct od_membw *m, double seconds, double *gbps)
{
	uint64_t buffer, reading, end;
	size_t n = 0;

	od_membw_sizes(m, &buffer, &reading);
	end = od_now_ns() + (uint64_t)(seconds * 1e9);
	do {
		gbps[n++] = od_membw_read(m);
	} while (n < MAX_SAMPLES && (n < buffer / reading || od_now_ns() < end));
	return n;
}

static int report(const struct od_membw *m, unsigned threads, double *gbps, size_t n, bool json, struct od_err *err)
{
	uint64_t buffer, reading;
	struct od_report *r;
	struct od_stats s;
	int rc = od_report_new(&r, "Memory read bandwidth", err);

	if (rc != OD_OK)
		return rc;
	od_stats_of(gbps, n, &s);
	od_membw_sizes(m, &buffer, &reading);
	od_report_fact(r, "read_gbps_median", "median", OD_REAL(s.median), 1, "GB/s");
	od_report_fact(r, "read_gbps_ci95_low", "95 % interval from", OD_REAL(s.ci_low), 1, "GB/s");
	od_report_fact(r, "read_gbps_ci95_high", "95 % interval to", OD_REAL(s.ci_high), 1, "GB/s");
	od_report_fact(r, "read_gbps_min", "slowest reading", OD_REAL(s.min), 1, "GB/s");
	od_report_fact(r, "read_gbps_max", "fastest reading", OD_REAL(s.max), 1, "GB/s");
	od_report_fact(r, "readings", "readings", OD_INT(n), 0, NULL);
	od_report_fact(r, "reading_bytes", "a reading", OD_BYTES(reading), 0, NULL);
	od_report_fact(r, "threads", "threads", OD_INT(threads), 0, NULL);
	od_report_fact(r, "loads", "loads", OD_TEXT(od_membw_loads(m)), 0, NULL);
	od_report_fact(r, "buffer_bytes", "buffer", OD_BYTES(buffer), 0, NULL);
	od_report_fact(r, "cache_bytes", "last-level cache", OD_BYTES(od_cache_bytes()), 0, NULL);
	rc = od_report_print(r, stdout, json, err);
	od_report_free(r);
	return rc;
}

static int run(uint64_t bytes, unsigned threads, const char *loads, double seconds, bool json, struct od_err *err)
{
	struct od_membw *m = NULL;
	double *gbps;
	size_t n;
	int rc;

	gbps = calloc(MAX_SAMPLES, sizeof(*gbps));
	if (gbps == NULL)
		return od_fail(err, OD_ERR_NOMEM, "samples");
	rc = od_membw_open(&m, bytes, threads, loads, err);
	if (rc == OD_OK) {
		n = measure(m, seconds, gbps);
		rc = report(m, threads, gbps, n, json, err);
	}
	od_membw_close(m);
	free(gbps);
	return rc;
}

int od_bench_membw(int argc, char **argv, struct od_err *err)
{
	uint64_t threads = od_cpu_count(), least_bytes = od_cache_bytes() * CACHE_MULTIPLE;
	uint64_t bytes = DEFAULT_BYTES;
	char found[32], least[32];
	const char *loads = NULL;
	bool help = false, json = false;
	double seconds = 2;
	size_t n;
	const struct od_arg table[] = {
		{ "size", OD_ARG_SIZE, &bytes, "BYTES", "the buffer; default 1GiB, more if the cache is large", 0, 0,
		  NULL },
		{ "threads", OD_ARG_UINT, &threads, "N", "default: the CPUs this process may use", 1, 1024, NULL },
		{ "loads", OD_ARG_STRING, &loads, "KIND", "avx512, avx2 or scalar; default: the widest here", 0, 0,
		  NULL },
		{ "seconds", OD_ARG_REAL, &seconds, "S", "how long to read; default 2", 0, 3600, NULL },
		{ "json", OD_ARG_FLAG, &json, NULL, "the figures as JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &help, NULL, "this text", 0, 0, NULL },
	};
	const size_t n_table = sizeof(table) / sizeof(table[0]);
	int rc;

	if (bytes < least_bytes)
		bytes = least_bytes;
	rc = od_args_parse(table, n_table, argc, argv, NULL, 0, &n, err);

	if (rc != OD_OK)
		return rc;
	if (help) {
		od_bench_usage("membw [OPTIONS]",
			       "Streams through a buffer with wide loads on all threads, in short "
			       "readings.\nThis is the ceiling for decoding: every token reads its experts once.",
			       table, n_table);
		return OD_OK;
	}
	if (bytes < least_bytes)
		return od_fail(err, OD_ERR_ARG,
			       "--size: expected at least %s (%d times the last-level cache; less would "
			       "measure the cache), found %s",
			       od_format_bytes(least_bytes, least, sizeof(least)), CACHE_MULTIPLE,
			       od_format_bytes(bytes, found, sizeof(found)));
	return run(bytes, (unsigned)threads, loads, seconds, json, err);
}
