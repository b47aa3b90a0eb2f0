/* od-bench gemv: products of few rows with a large matrix of BF16 weights, plain and as planes.
 *
 * The matrix outgrows the cache in either form. It is gone through slice by slice, each slice in one form, then in the
 * other, then memory is read once: so a ratio compares neighbours in time, and every weight has left the cache when its
 * turn comes again. Results must be equal to the bit. */
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/compute/backend.h"
#include "common/compute/cpu/cpu.h"
#include "common/compute/cpu/matmul.h"
#include "common/pack/codec.h"
#include "common/pack/pack_layout.h"
#include "tests/bench/bench.h"
#include "tests/bench/micro/bandwidth.h"
#include "tests/bench/report/bench_stats.h"
#include "tests/bench/report/bench_table.h"
#include "tests/bench/synth/synth_weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_BYTES (512u << 20)
#define DEFAULT_ROW 4096u
#define DEFAULT_SECONDS 1.0
#define SLICE_BYTES (8u << 20) /* bytes of BF16; a fraction of a millisecond */
#define CACHE_MULTIPLE 6 /* matrix over last-level cache: planes are two thirds of it */
#define DISTINCT_CHUNKS 16 /* then the same again: 8 Mi weights are enough to be like any */
#define MEMBW_CACHES 4
#define MAX_TURNS 20000
#define MAX_ROW 1048576

static const uint64_t row_counts[] = { 1, 2, 4, 8 };
#define N_ROW_COUNTS (sizeof(row_counts) / sizeof(row_counts[0]))

struct gemv_options {
	uint64_t bytes, row, threads, seed;
	int cpu, profile;
	double seconds;
	bool json, help;
};

struct gemv_bench {
	struct gemv_options opt;
	const struct od_backend *backend;
	struct od_pool *pool;
	struct od_membw *membw;
	struct od_report *report;
	struct od_table *table;
	size_t chunk_rows, n_chunks, slice_chunks, n_slices;
	uint16_t *plain; /* [n_chunks][chunk_rows][row] */
	uint8_t *sm, *coded; /* all chunks, one behind the other */
	uint64_t *chunk_at; /* [n_chunks]: bytes from coded */
	uint64_t coded_bytes;
	float *x, *y[2]; /* y: of a slice, plain and planes */
	double *gbps[2], *ratio, *memory; /* [MAX_TURNS] */
};

static const char usage_text[] =
	"Measures products of few rows with a matrix larger than the cache, weights in BF16 and as planes, in\n"
	"turns. GB/s count BF16 bytes, also for planes, which read fewer.";

static int parse(struct gemv_options *o, int argc, char **argv, struct od_err *err)
{
	const struct od_arg table[] = {
		{ "size", OD_ARG_SIZE, &o->bytes, "BYTES",
		  "matrix size in BF16; default 512MiB, more if the cache is large", 0, 0, NULL },
		{ "row", OD_ARG_UINT, &o->row, "N", "weights per row; default 4096", 1, MAX_ROW, NULL },
		{ "threads", OD_ARG_UINT, &o->threads, "N", "measure one thread and N threads; default: one per CPU", 1,
		  1024, NULL },
		{ "seconds", OD_ARG_REAL, &o->seconds, "S", "time per line; default 1", 0, 3600, NULL },
		{ "profile", OD_ARG_CHOICE, &o->profile, "f32|bf16", "numeric profile; default f32", 0, 0,
		  od_profile_names },
		{ "cpu", OD_ARG_CHOICE, &o->cpu, "NAME", "force a kernel set (default: auto)", 0, 0, od_cpu_names },
		{ "seed", OD_ARG_UINT, &o->seed, "N", "seed of the weights; default 1", 0, 0, NULL },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "print JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
	};
	uint64_t least = od_cache_bytes() * CACHE_MULTIPLE;

	o->bytes = least > DEFAULT_BYTES ? least : DEFAULT_BYTES;
	return od_bench_options(table, sizeof(table) / sizeof(table[0]), argc, argv, &o->help, "gemv [OPTIONS]",
				usage_text, err);
}

/* --- the matrix --- */

/* Chunk c of the matrix, made; returns the bytes of its exponents, coded at `at`. */
static size_t make_chunk(struct gemv_bench *b, struct synth_row *rows, size_t c, uint8_t *e, uint8_t *at)
{
	const size_t n = b->chunk_rows * b->opt.row;

	for (size_t r = 0; r < b->chunk_rows; r++)
		synth_row_fill(rows, c * b->chunk_rows + r, 0, b->opt.row, b->plain + c * n + r * b->opt.row);
	od_codec_split(OD_BF16, b->plain + c * n, n, b->sm + c * n, e);
	return od_planes_encode(e, n, b->opt.row, at);
}

/* The first chunks are made, the others are copies of them. */
static void fill_matrix(struct gemv_bench *b, struct synth_row *rows, uint8_t *e)
{
	const size_t n = b->chunk_rows * b->opt.row;
	size_t bytes[DISTINCT_CHUNKS];
	uint8_t *at = b->coded;

	for (size_t c = 0; c < b->n_chunks; c++) {
		size_t same = c % DISTINCT_CHUNKS;

		b->chunk_at[c] = (uint64_t)(at - b->coded);
		if (c < DISTINCT_CHUNKS) {
			bytes[c] = make_chunk(b, rows, c, e, at);
		} else {
			memcpy(b->plain + c * n, b->plain + same * n, n * sizeof(*b->plain));
			memcpy(b->sm + c * n, b->sm + same * n, n);
			memcpy(at, b->coded + b->chunk_at[same], bytes[same]);
		}
		at += bytes[same];
	}
	b->coded_bytes = (uint64_t)(at - b->coded);
}

/* Room for exponents: as much as raw ones take, which is more than they are touched. */
static int alloc_matrix(struct gemv_bench *b, struct od_err *err)
{
	const size_t n = b->chunk_rows * b->opt.row, weights = b->n_chunks * n;

	b->plain = od_alloc_array(weights, sizeof(*b->plain));
	b->sm = od_alloc(weights);
	b->coded = od_alloc_array(b->n_chunks, od_planes_bound(n, b->opt.row));
	b->chunk_at = calloc(b->n_chunks, sizeof(*b->chunk_at));
	if (b->plain == NULL || b->sm == NULL || b->coded == NULL || b->chunk_at == NULL)
		return od_fail(err, OD_ERR_NOMEM,
			       "no memory for a matrix of %zu weights in both forms; choose a smaller --size", weights);
	return OD_OK;
}

static int open_matrix(struct gemv_bench *b, struct od_err *err)
{
	const size_t row = b->opt.row;
	struct synth_tensor t = { .name = "gemv", .cols = row, .std = 0.02f };
	struct synth_row *rows = NULL;
	uint8_t *e = NULL;
	int rc;

	b->chunk_rows = od_shard_rows(UINT32_MAX, row);
	b->slice_chunks = SLICE_BYTES / (2 * b->chunk_rows * row);
	b->slice_chunks += b->slice_chunks == 0;
	b->n_slices = b->opt.bytes / (2 * b->chunk_rows * row * b->slice_chunks);
	if (b->n_slices == 0)
		return od_fail(err, OD_ERR_ARG,
			       "--size: expected at least %zu bytes (rows of %zu weights go by %zu), found %llu",
			       2 * b->chunk_rows * row * b->slice_chunks, row, b->chunk_rows * b->slice_chunks,
			       (unsigned long long)b->opt.bytes);
	b->n_chunks = b->n_slices * b->slice_chunks;
	t.rows = b->n_chunks * b->chunk_rows;
	rc = alloc_matrix(b, err);
	if (rc == OD_OK)
		rc = synth_row_new(&rows, row, err);
	if (rc == OD_OK) {
		e = od_alloc(b->chunk_rows * row);
		synth_row_tensor(rows, b->opt.seed, OD_BF16, &t);
		if (e != NULL)
			fill_matrix(b, rows, e);
		else
			rc = od_fail(err, OD_ERR_NOMEM, "exponents of a chunk");
	}
	synth_row_free(rows);
	od_free(e);
	return rc;
}

static int open_vectors(struct gemv_bench *b, struct od_err *err)
{
	const size_t most = row_counts[N_ROW_COUNTS - 1], n_out = b->slice_chunks * b->chunk_rows;
	uint64_t seed = b->opt.seed;
	bool good;

	b->x = od_alloc_array(most * b->opt.row, sizeof(*b->x));
	b->y[0] = od_alloc_array(most * n_out, sizeof(float));
	b->y[1] = od_alloc_array(most * n_out, sizeof(float));
	b->gbps[0] = calloc(MAX_TURNS, sizeof(double));
	b->gbps[1] = calloc(MAX_TURNS, sizeof(double));
	b->ratio = calloc(MAX_TURNS, sizeof(double));
	b->memory = calloc(MAX_TURNS, sizeof(double));
	good = b->x != NULL && b->y[0] != NULL && b->y[1] != NULL && b->gbps[0] != NULL && b->gbps[1] != NULL &&
	       b->ratio != NULL && b->memory != NULL;
	if (good)
		for (size_t i = 0; i < most * b->opt.row; i++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			b->x[i] = (float)(int32_t)(seed >> 32) * 0x1p-31f;
		}
	return good ? OD_OK : od_fail(err, OD_ERR_NOMEM, "rows and figures");
}

/* --- measuring --- */

/* Slice number i times n_rows rows; form 0: plain, 1: planes. Returns GB/s of BF16. */
static double product(struct gemv_bench *b, size_t i, size_t n_rows, int form)
{
	const size_t first = i * b->slice_chunks, n = b->chunk_rows * b->opt.row;
	const struct od_planes planes = { b->chunk_rows, b->coded, b->chunk_at + first };
	const struct od_mat w = {
		.dtype = OD_BF16,
		.n_out = b->slice_chunks * b->chunk_rows,
		.n_in = b->opt.row,
		.data = form == 0 ? (const void *)(b->plain + first * n) : (const void *)(b->sm + first * n),
		.planes = form == 0 ? NULL : &planes,
	};
	uint64_t start = od_now_ns();

	od_matmul(b->backend, b->pool, &w, b->x, b->y[form], n_rows);
	return (double)(2 * b->slice_chunks * n) / (double)(od_now_ns() - start + 1);
}

static int measure(struct gemv_bench *b, unsigned threads, size_t n_rows, struct od_err *err)
{
	const size_t y_bytes = b->slice_chunks * b->chunk_rows * n_rows * sizeof(float);
	uint64_t end = od_now_ns() + (uint64_t)(b->opt.seconds * 1e9);
	struct od_stats plain, planes, ratio, memory;
	size_t n = 0;

	for (size_t turn = 0; turn == 0 || (n < MAX_TURNS && od_now_ns() < end); turn++) {
		for (size_t i = 0; i < b->n_slices && n < MAX_TURNS; i++, n++) {
			b->gbps[0][n] = product(b, i, n_rows, 0);
			b->gbps[1][n] = product(b, i, n_rows, 1);
			b->ratio[n] = b->gbps[1][n] / b->gbps[0][n];
			b->memory[n] = od_membw_read(b->membw);
			if (memcmp(b->y[0], b->y[1], y_bytes) != 0)
				return od_fail(err, OD_ERR_INTERNAL,
					       "slice %zu: planes and plain weights give different results", i);
		}
	}
	od_stats_of(b->gbps[0], n, &plain);
	od_stats_of(b->gbps[1], n, &planes);
	od_stats_of(b->ratio, n, &ratio);
	od_stats_of(b->memory, n, &memory);
	od_table_row(b->table, (struct od_cell[]){
				       OD_INT(threads),
				       OD_INT(n_rows),
				       OD_REAL(plain.median),
				       OD_REAL(planes.median),
				       OD_REAL(ratio.median),
				       OD_REAL(ratio.ci_low),
				       OD_REAL(ratio.ci_high),
				       OD_REAL(plain.p90),
				       OD_REAL(planes.p90),
				       OD_REAL(memory.median),
				       OD_INT(n),
			       });
	return OD_OK;
}

static int measure_threads(struct gemv_bench *b, unsigned threads, struct od_err *err)
{
	uint64_t cache = od_cache_bytes() * MEMBW_CACHES;
	int rc = od_pool_new(&b->pool, threads, "od-compute", err);

	if (rc == OD_OK)
		rc = od_membw_open(&b->membw, cache > b->opt.bytes ? cache : b->opt.bytes, threads, NULL, err);
	for (size_t i = 0; rc == OD_OK && i < N_ROW_COUNTS; i++)
		rc = measure(b, threads, row_counts[i], err);
	od_membw_close(b->membw);
	od_pool_free(b->pool);
	b->membw = NULL;
	b->pool = NULL;
	return rc;
}

static void begin_report(struct gemv_bench *b)
{
	static const struct od_column columns[] = {
		{ "threads", "threads", 0 },
		{ "rows", "rows", 0 },
		{ "plain_gbps", "plain", 1 },
		{ "planes_gbps", "planes", 1 },
		{ "ratio", "ratio", 2 },
		{ "ratio_ci95_low", "95 % from", 2 },
		{ "ratio_ci95_high", "to", 2 },
		{ "plain_gbps_p90", "plain p90", 1 },
		{ "planes_gbps_p90", "planes p90", 1 },
		{ "membw_gbps", "memory", 1 },
		{ "slices", "slices", 0 },
	};
	struct od_report *r = b->report;
	const uint64_t weights = b->n_chunks * b->chunk_rows * b->opt.row;

	od_report_fact(r, "profile", "profile", OD_TEXT(od_profile_names[b->opt.profile]), 0, NULL);
	od_report_fact(r, "kernels", "kernels", OD_TEXT(b->backend->name), 0, NULL);
	od_report_fact(r, "row", "weights of a row", OD_INT(b->opt.row), 0, NULL);
	od_report_fact(r, "plain_bytes", "matrix, plain", OD_BYTES(2 * weights), 0, NULL);
	od_report_fact(r, "planes_bytes", "matrix, planes", OD_BYTES(weights + b->coded_bytes), 0, NULL);
	od_report_fact(r, "cache_bytes", "last-level cache", OD_BYTES(od_cache_bytes()), 0, NULL);
	b->table = od_report_table(r, "gemv", "GB/s of BF16", columns, sizeof(columns) / sizeof(columns[0]));
}

static int run(struct gemv_bench *b, struct od_err *err)
{
	int rc = od_backend_cpu(&b->backend, (enum od_cpu)b->opt.cpu, (enum od_profile)(b->opt.profile + 1), err);

	if (rc == OD_OK)
		rc = open_matrix(b, err);
	if (rc == OD_OK)
		rc = open_vectors(b, err);
	if (rc == OD_OK)
		rc = od_report_new(&b->report, "Products with weights in both forms", err);
	if (rc != OD_OK)
		return rc;
	begin_report(b);
	rc = measure_threads(b, 1, err);
	if (rc == OD_OK && b->opt.threads > 1)
		rc = measure_threads(b, (unsigned)b->opt.threads, err);
	return rc == OD_OK ? od_report_print(b->report, stdout, b->opt.json, err) : rc;
}

int od_bench_gemv(int argc, char **argv, struct od_err *err)
{
	struct gemv_bench b = {
		.opt = { .row = DEFAULT_ROW, .threads = od_cpu_count(), .seed = 1, .seconds = DEFAULT_SECONDS },
	};
	int rc = parse(&b.opt, argc, argv, err);

	if (rc != OD_OK || b.opt.help)
		return rc;
	rc = run(&b, err);
	od_report_free(b.report);
	od_free(b.plain);
	od_free(b.sm);
	od_free(b.coded);
	free(b.chunk_at);
	od_free(b.x);
	od_free(b.y[0]);
	od_free(b.y[1]);
	free(b.gbps[0]);
	free(b.gbps[1]);
	free(b.ratio);
	free(b.memory);
	return rc;
}
