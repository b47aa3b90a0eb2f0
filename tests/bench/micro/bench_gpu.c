/* bench_gpu.c - od-bench gpu: how much of a GPU's memory bandwidth its kernels use.
 *
 * A measurement queues a work so often that it takes some milliseconds, and waits once. Copies within the device take
 * turns with the works of a set, so that every ratio compares neighbours in time. Results are checked. */
#include "common/base/clock.h"
#include "common/compute/device.h"
#include "common/compute/open_device.h"
#include "tests/bench/bench.h"
#include "tests/bench/micro/gpu_work.h"
#include "tests/bench/report/bench_stats.h"
#include "tests/bench/report/bench_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RUNS 1000
#define MAX_REPEATS 10000
#define DEFAULT_RUNS 15
#define DEFAULT_MS 20.0
#define LEAST_SIZE (64u << 10)
#define N_LAUNCHES 512u
#define LAUNCH_WIDTH 256u

struct gpu_bench_options {
	const char *device;
	uint64_t bytes, runs, seed;
	double ms;
	bool tiny, json, help;
};

struct gpu_bench {
	struct gpu_bench_options opt;
	struct gpu_shapes shapes;
	struct od_device *d;
	struct od_report *report;
	struct od_table *table;
	struct gpu_set copy;
	double seconds[1 + GPU_SET_WORKS][MAX_RUNS]; /* each pass: the copy, then the works */
	double sample[MAX_RUNS];
	uint32_t launched; /* counts new launches: no two have the same arguments */
};

static const char usage_text[] =
	"Measures kernels of a GPU by the bytes that they move, beside copies within its memory: recovery of weights, products of one row\n"
	"and of many, experts, attention, loads. Weights are random and larger than the caches.";

static int parse(struct gpu_bench_options *o, int argc, char **argv, struct od_err *err)
{
	const struct od_arg table[] = {
		{ "device", OD_ARG_STRING, &o->device, "DEVICE", "cuda (default), cuda:N, or cpu", 0, 0, NULL },
		{ "size", OD_ARG_SIZE, &o->bytes, "BYTES",
		  "what a pass moves, several times the GPU's cache; default 512MiB", 0, 0, NULL },
		{ "runs", OD_ARG_UINT, &o->runs, "N", "measurements of each; default 15", 1, MAX_RUNS, NULL },
		{ "ms", OD_ARG_REAL, &o->ms, "MS", "least time of a measurement; default 20", 0, 10000, NULL },
		{ "seed", OD_ARG_UINT, &o->seed, "N", "seed of the weights; default 1", 0, 0, NULL },
		{ "tiny", OD_ARG_FLAG, &o->tiny, NULL, "small shapes, to try the benchmark; no speeds", 0, 0, NULL },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "print JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
	};
	int rc = od_bench_options(table, sizeof(table) / sizeof(table[0]), argc, argv, &o->help, "gpu [OPTIONS]",
				  usage_text, err);

	if (rc == OD_OK && o->bytes > 0 && o->bytes < LEAST_SIZE)
		return od_fail(err, OD_ERR_ARG, "--size: expected at least 64KiB, found %llu",
			       (unsigned long long)o->bytes);
	return rc;
}

/* ---- measuring ---- */

/* The work so many times. */
static int pass(struct gpu_bench *b, const struct gpu_work *w, unsigned repeats, double *seconds, struct od_err *err)
{
	const uint64_t start = od_now_ns();
	int rc;

	for (unsigned i = 0; i < repeats; i++) {
		for (size_t k = 0; k < w->n_steps; k++) {
			const struct gpu_step *step = &w->step[k];

			if (step->push_bytes > 0)
				od_ref_push(step->push, step->push_bytes, w->queue);
			else
				od_device_run(b->d, w->queue, &step->op);
		}
	}
	rc = od_device_wait(b->d, w->queue, od_device_ticket(b->d, w->queue), err);
	*seconds = od_seconds(od_now_ns() - start) / repeats;
	return rc;
}

/* How often a measurement needs the work, after a first time that does not count. */
static int find_repeats(struct gpu_bench *b, const struct gpu_work *w, unsigned *repeats, struct od_err *err)
{
	const double least = b->opt.ms / 1000;
	double seconds;
	int rc = pass(b, w, 1, &seconds, err);

	*repeats = 1;
	for (int i = 0; rc == OD_OK && i < 2; i++) { /* the second time it is known better: waiting is a smaller part */
		rc = pass(b, w, *repeats, &seconds, err);
		*repeats = seconds * MAX_REPEATS < least ? MAX_REPEATS : (unsigned)ceil(least / seconds);
		*repeats += *repeats == 0;
	}
	return rc;
}

static bool all_zero(const unsigned char *at, size_t n)
{
	return n == 0 || (at[0] == 0 && memcmp(at, at + 1, n - 1) == 0);
}

/* first: the result of the set's first work, filled by that. */
static int check(struct gpu_bench *b, const struct gpu_work *w, unsigned char **first, struct od_err *err)
{
	unsigned char *got = malloc(w->result_bytes);
	const void *want = w->as_first ? *first : w->expect;
	int rc;

	if (got == NULL)
		return od_fail(err, OD_ERR_NOMEM, "a result of %zu bytes", w->result_bytes);
	od_device_get(b->d, OD_QUEUE_COMPUTE, got, w->result, w->result_bytes);
	rc = od_device_sync(b->d, err);
	if (rc == OD_OK && (want != NULL ? memcmp(got, want, w->result_bytes) != 0 : all_zero(got, w->result_bytes)))
		rc = od_fail(err, OD_ERR_INTERNAL, "%s: wrong results", w->key);
	if (*first == NULL)
		*first = got;
	else
		free(got);
	return rc;
}

/* ---- results ---- */

/* The median of a[i] / (b[i] * by). */
static struct od_stats ratios(struct gpu_bench *g, const double *a, const double *b, double by)
{
	struct od_stats s;

	for (size_t i = 0; i < g->opt.runs; i++)
		g->sample[i] = a[i] / (b[i] * by);
	od_stats_of(g->sample, g->opt.runs, &s);
	return s;
}

static struct od_stats gbps(struct gpu_bench *b, const double *seconds, uint64_t bytes)
{
	struct od_stats s;

	for (size_t i = 0; i < b->opt.runs; i++)
		b->sample[i] = (double)bytes * 1e-9 / seconds[i];
	od_stats_of(b->sample, b->opt.runs, &s);
	return s;
}

static void report_work(struct gpu_bench *b, const struct gpu_set *set, size_t i, unsigned repeats)
{
	const struct gpu_work *w = &set->work[i], *first = &set->work[0], *copy = &b->copy.work[0];
	const double *seconds = b->seconds[1 + i];
	const bool loads = w->queue == OD_QUEUE_LOADS, beside_first = i > 0 && w->bf16_bytes > 0;
	const struct od_stats rate = gbps(b, seconds, w->moved_bytes), of_bf16 = gbps(b, seconds, w->bf16_bytes);
	const struct od_stats of_copy =
		ratios(b, b->seconds[0], seconds, (double)copy->moved_bytes / (double)w->moved_bytes);
	const struct od_stats of_first =
		ratios(b, b->seconds[1], seconds, beside_first ? (double)first->bf16_bytes / (double)w->bf16_bytes : 1);

	od_table_row(b->table, (struct od_cell[]){
				       OD_TEXT(w->key),
				       OD_REAL(rate.median),
				       loads ? OD_NONE : OD_REAL(of_copy.median),
				       loads ? OD_NONE : OD_REAL(of_copy.ci_low),
				       loads ? OD_NONE : OD_REAL(of_copy.ci_high),
				       w->bf16_bytes > 0 ? OD_REAL(of_bf16.median) : OD_NONE,
				       beside_first ? OD_REAL(of_first.median) : OD_NONE,
				       beside_first ? OD_REAL(of_first.ci_low) : OD_NONE,
				       beside_first ? OD_REAL(of_first.ci_high) : OD_NONE,
				       w->goal != NULL ? OD_TEXT(w->goal) : OD_NONE,
				       OD_REAL(gbps(b, b->seconds[0], copy->moved_bytes).median),
				       OD_INT(repeats),
			       });
}

static int measure(struct gpu_bench *b, const struct gpu_set *set, struct od_err *err)
{
	const struct gpu_work *copy = &b->copy.work[0];
	unsigned repeats[1 + GPU_SET_WORKS];
	unsigned char *first = NULL;
	int rc = find_repeats(b, copy, &repeats[0], err);

	for (size_t i = 0; rc == OD_OK && i < set->n; i++)
		rc = find_repeats(b, &set->work[i], &repeats[1 + i], err);
	for (size_t run = 0; rc == OD_OK && run < b->opt.runs; run++) {
		rc = pass(b, copy, repeats[0], &b->seconds[0][run], err);
		for (size_t i = 0; rc == OD_OK && i < set->n; i++)
			rc = pass(b, &set->work[i], repeats[1 + i], &b->seconds[1 + i][run], err);
	}
	/* Works of a set share a result, so each is run once more before it is checked. */
	for (size_t i = 0; rc == OD_OK && i < set->n; i++) {
		double seconds;

		rc = pass(b, &set->work[i], 1, &seconds, err);
		if (rc == OD_OK)
			rc = check(b, &set->work[i], &first, err);
	}
	free(first);
	if (rc == OD_OK)
		for (size_t i = 0; i < set->n; i++)
			report_work(b, set, i, repeats[1 + i]);
	return rc;
}

static int measure_sets(struct gpu_bench *b, struct od_err *err)
{
	int rc = gpu_set_open(&b->copy, GPU_SET_COPY, b->d, &b->shapes, err);

	for (int kind = GPU_SET_COPY + 1; rc == OD_OK && kind < GPU_N_SETS; kind++) {
		struct gpu_set set;

		if (kind == GPU_SET_LOADS && od_device_shares(b->d))
			continue;
		rc = gpu_set_open(&set, (enum gpu_set_kind)kind, b->d, &b->shapes, err);
		if (rc == OD_OK)
			rc = measure(b, &set, err);
		gpu_set_close(&set);
	}
	return rc;
}

/* Times the making of buffers, which are zeroed. */
static int measure_buffers(struct gpu_bench *b, struct od_err *err)
{
	static const struct od_column columns[] = { { "bytes", "bytes", 0 },
						    { "new_us", "new, us", 1 },
						    { "free_us", "free, us", 1 } };
	static const uint64_t sizes[] = { 64u << 10, 1u << 20, 16u << 20, 256u << 20 };
	struct od_table *t =
		od_report_table(b->report, "buffers", "Buffers", columns, sizeof(columns) / sizeof(columns[0]));
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < sizeof(sizes) / sizeof(sizes[0]) && sizes[i] <= b->shapes.bytes; i++) {
		double *make = b->seconds[0], *drop = b->seconds[1];
		struct od_stats made, dropped;

		for (size_t run = 0; rc == OD_OK && run < b->opt.runs; run++) {
			const uint64_t start = od_now_ns();
			struct od_buf *buf;
			uint64_t middle;

			rc = od_buf_new(&buf, b->d, sizes[i], "a benchmark's buffer", err);
			middle = od_now_ns();
			od_buf_free(buf);
			make[run] = (double)(middle - start) / 1000;
			drop[run] = (double)(od_now_ns() - middle) / 1000;
		}
		if (rc != OD_OK)
			break;
		od_stats_of(make, b->opt.runs, &made);
		od_stats_of(drop, b->opt.runs, &dropped);
		od_table_row(t,
			     (struct od_cell[]){ OD_BYTES(sizes[i]), OD_REAL(made.median), OD_REAL(dropped.median) });
	}
	return rc;
}

/* A step of launches that come again is given as graphs; one whose arguments are new is not. A little work for each. */
static int launches(struct gpu_bench *b, struct od_ref x, bool again, double *us, struct od_err *err)
{
	const uint64_t start = od_now_ns();
	int rc;

	for (unsigned i = 0; i < N_LAUNCHES; i++)
		od_device_run(b->d, OD_QUEUE_COMPUTE,
			      &(struct od_op){ .kind = OD_OP_NORM,
					       .profile = OD_PROFILE_F32,
					       .n_rows = 1,
					       .norm = { .x = x,
							 .weight = x,
							 .y = x,
							 .n = LAUNCH_WIDTH,
							 .eps = again ? 1e-6f : (float)++b->launched } });
	rc = od_device_wait(b->d, OD_QUEUE_COMPUTE, od_device_ticket(b->d, OD_QUEUE_COMPUTE), err);
	*us = (double)(od_now_ns() - start) / 1000 / N_LAUNCHES;
	return rc;
}

static int measure_launches(struct gpu_bench *b, struct od_err *err)
{
	static const struct od_column columns[] = { { "launches", "launches", 0 },
						    { "us", "us each", 2 },
						    { "us_ci95_low", "95 % from", 2 },
						    { "us_ci95_high", "to", 2 } };
	struct od_table *t =
		od_report_table(b->report, "launches", "Launches", columns, sizeof(columns) / sizeof(columns[0]));
	struct od_buf *x;
	int rc = od_buf_new(&x, b->d, LAUNCH_WIDTH * sizeof(float), "a benchmark's row", err);

	for (size_t run = 0; rc == OD_OK && run < b->opt.runs + 2; run++) { /* the first two make the graphs */
		for (int again = 0; rc == OD_OK && again < 2; again++)
			rc = launches(b, od_buf_ref(x, 0), again, &b->seconds[again][run < 2 ? 0 : run - 2], err);
	}
	if (rc == OD_OK)
		for (int again = 0; again < 2; again++) {
			struct od_stats s;

			od_stats_of(b->seconds[again], b->opt.runs, &s);
			od_table_row(t, (struct od_cell[]){ OD_TEXT(again ? "as before" : "new"), OD_REAL(s.median),
							    OD_REAL(s.ci_low), OD_REAL(s.ci_high) });
		}
	od_buf_free(x);
	return rc;
}

static void begin_report(struct gpu_bench *b)
{
	static const struct od_column columns[] = {
		{ "work", "work", 0 },
		{ "gbps", "GB/s", 1 },
		{ "of_copy", "of copy", 3 },
		{ "of_copy_ci95_low", "95 % from", 3 },
		{ "of_copy_ci95_high", "to", 3 },
		{ "bf16_gbps", "BF16 GB/s", 1 },
		{ "of_first", "of first", 2 },
		{ "of_first_ci95_low", "95 % from", 2 },
		{ "of_first_ci95_high", "to", 2 },
		{ "goal", "goal", 0 },
		{ "copy_gbps", "copy GB/s", 1 },
		{ "repeats", "repeats", 0 },
	};

	od_report_fact(b->report, "device", "device", OD_TEXT(od_device_name(b->d)), 0, NULL);
	od_report_fact(b->report, "size_bytes", "size", OD_BYTES(b->shapes.bytes), 0, NULL);
	od_report_fact(b->report, "runs", "measurements", OD_INT(b->opt.runs), 0, NULL);
	od_report_fact(b->report, "tiny", b->opt.tiny ? "tiny shapes" : NULL, OD_TEXT(b->opt.tiny ? "yes" : "no"), 0,
		       NULL);
	b->table = od_report_table(b->report, "works", "Kernels", columns, sizeof(columns) / sizeof(columns[0]));
}

static int run(struct gpu_bench *b, struct od_err *err)
{
	int rc;

	b->shapes = b->opt.tiny ? gpu_shapes_tiny : gpu_shapes_real;
	b->shapes.seed = b->opt.seed;
	if (b->opt.bytes > 0)
		b->shapes.bytes = b->opt.bytes;
	rc = od_device_open(&b->d, b->opt.device, OD_CPU_AUTO, 1, "od-compute", err);
	if (rc == OD_OK)
		rc = od_report_new(&b->report, "Kernels of a GPU", err);
	if (rc != OD_OK)
		return rc;
	begin_report(b);
	rc = measure_sets(b, err);
	gpu_set_close(&b->copy);
	if (rc == OD_OK)
		rc = measure_buffers(b, err);
	if (rc == OD_OK)
		rc = measure_launches(b, err);
	return rc == OD_OK ? od_report_print(b->report, stdout, b->opt.json, err) : rc;
}

int od_bench_gpu(int argc, char **argv, struct od_err *err)
{
	const struct gpu_bench_options defaults = {
		.device = "cuda", .runs = DEFAULT_RUNS, .seed = 1, .ms = DEFAULT_MS
	};
	struct gpu_bench *b = calloc(1, sizeof(*b));
	int rc;

	if (b == NULL)
		return od_fail(err, OD_ERR_NOMEM, "a benchmark");
	b->opt = defaults;
	rc = parse(&b->opt, argc, argv, err);
	if (rc == OD_OK && !b->opt.help)
		rc = run(b, err);
	od_report_free(b->report);
	od_device_free(b->d);
	free(b);
	return rc;
}
