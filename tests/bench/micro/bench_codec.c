/* od-bench codec: how small the codecs make exponents, and how fast each gives them back, on one core.
 *
 * All take turns, a run of about half a million weights each, over weights that have left the cache; between the turns
 * the core reads memory and copies it. So a ratio compares neighbours in time; medians are over rounds. */
#include "common/base/args.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/compute/cpu/cpu.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_list.h"
#include "tests/bench/micro/bandwidth.h"
#include "tests/bench/micro/codec_data.h"
#include "tests/bench/report/bench_stats.h"
#include "tests/bench/report/bench_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_WEIGHTS (16u << 20)
#define DEFAULT_ROUNDS 101
#define MAX_ROUNDS 100000
#define RUN_WEIGHTS (512u * 1024)
#define CACHES 2 /* a store is so many times the last-level cache: what is read has left it */
#define DEFAULT_CACHE_BYTES (32u << 20) /* when the machine does not tell */
#define MAX_LINES (CODEC_N + OD_CPU_NEON)

static const char *const dtype_names[] = { "bf16", "f16", "f32", "int8", "f8_e4m3", "f8_e5m2", NULL };
static const enum od_dtype dtypes[] = { OD_BF16, OD_F16, OD_F32, OD_INT8, OD_F8_E4M3, OD_F8_E5M2 };

struct codec_options {
	const char *pack, *codec, *dtype, *cpu;
	uint64_t weights, rounds, seed;
	bool json, help;
};

/* A line measures a codec, and planes with one kernel set. */
enum measure { DECODE, TO_CACHE, TO_MEMORY, N_MEASURES };
struct codec_line {
	int codec; /* or CODEC_ZSTD_3 */
	int cpu; /* -1: any */
	struct od_decoder *decoder;
	double *gbps[N_MEASURES]; /* [rounds] */
};

struct codec_bench {
	struct codec_options opt;
	size_t store_bytes;
	struct od_pack *pack; /* NULL: Gaussian */
	struct od_membw *membw;
	struct od_report *report;
	struct od_table *table, *references;
	/* Data of the type that is being measured. */
	struct codec_data data;
	struct codec_store coded[CODEC_N];
	size_t next; /* the chunk of the next run, counted over copies: no two runs in a row read the same */
	size_t copy_next;
	struct codec_line line[MAX_LINES];
	size_t n_lines;
	uint8_t *dst; /* room for the largest chunk: in the cache when it counts */
	uint8_t *room; /* [data.max_n]: exponents on their way */
	uint8_t *far; /* [store_bytes]: not in the cache */
	size_t far_next;
	struct codec_line copy; /* memcpy: gbps[TO_CACHE], gbps[TO_MEMORY] */
	double *read_gbps; /* [rounds] */
};

/* ---- runs ---- */

static uint64_t weight_bytes(const struct codec_bench *b)
{
	return od_codec_sm_bytes(b->data.dtype) + 1;
}

/* Where the next weights go that leave the cache. */
static uint8_t *next_far(struct codec_bench *b, size_t bytes)
{
	uint8_t *at;

	if (b->far_next + bytes > b->store_bytes)
		b->far_next = 0;
	at = b->far + b->far_next;
	b->far_next += od_round_up(bytes, OD_PAD_BYTES);
	return at;
}

/* Planes block by block to one place, as whatever computes on a block takes it. */
static int decode(struct codec_bench *b, struct codec_line *l, const struct od_backend *be, const struct od_coded *c,
		  struct od_err *err)
{
	if (c->codec != OD_CODEC_PLANES)
		return od_decoder_exponents(l->decoder, c, b->dst, err);
	for (size_t i = 0; i < od_planes_blocks(c->n, c->row); i++)
		be->planes_decode(c->at, c->n, c->row, i, b->dst);
	return OD_OK;
}

static const struct od_backend *backend_of(const struct codec_line *l)
{
	const struct od_backend *be;

	if (od_backend_cpu(&be, l->cpu < 0 ? OD_CPU_AUTO : (enum od_cpu)l->cpu, OD_PROFILE_F32, NULL) != OD_OK)
		abort(); /* it was there when the line was planned */
	return be;
}

static struct od_coded coded_at(const struct codec_bench *b, const struct codec_line *l, size_t next)
{
	const struct codec_data *d = &b->data;
	const struct codec_store *s = &b->coded[l->codec];
	const size_t i = next % d->n;

	return (struct od_coded){ s->piece[i].codec, codec_store_at(s, i, next / d->n), s->piece[i].bytes,
				  d->chunk[i].n, d->chunk[i].row };
}

/* The next run of a line: GB/s of exponents, of weights. */
static int run(struct codec_bench *b, struct codec_line *l, enum measure what, double *gbps, struct od_err *err)
{
	const struct od_backend *be = backend_of(l);
	const struct codec_data *d = &b->data;
	uint64_t done = 0, ns = 0, start;
	int rc = OD_OK;

	for (; rc == OD_OK && done < RUN_WEIGHTS; b->next++) {
		const struct od_coded c = coded_at(b, l, b->next);
		const uint8_t *sm = codec_store_at(&d->sm, b->next % d->n, b->next / d->n);
		uint8_t *dst = b->dst;

		if (what == TO_MEMORY)
			dst = next_far(b, c.n * weight_bytes(b));
		else
			memset(dst, 1, what == DECODE ? c.n : c.n * weight_bytes(b));
		start = od_now_ns();
		if (what == DECODE)
			rc = decode(b, l, be, &c, err);
		else
			rc = od_decoder_weights(l->decoder, &c, d->dtype, sm, b->room, dst, err);
		ns += od_now_ns() - start;
		done += c.n;
	}
	*gbps = (double)done * (double)(what == DECODE ? 1 : weight_bytes(b)) / (double)(ns > 0 ? ns : 1);
	return rc;
}

static void run_copy(struct codec_bench *b, enum measure what, double *gbps)
{
	const struct codec_data *d = &b->data;
	uint64_t done = 0, ns = 0, start;

	for (; done < RUN_WEIGHTS * weight_bytes(b); b->copy_next++) {
		const struct codec_piece *piece = &d->weights.piece[b->copy_next % d->n];
		const uint8_t *from = codec_store_at(&d->weights, b->copy_next % d->n, b->copy_next / d->n);
		uint8_t *dst = b->dst;

		if (what == TO_MEMORY)
			dst = next_far(b, piece->bytes);
		else
			memset(dst, 1, piece->bytes);
		start = od_now_ns();
		memcpy(dst, from, piece->bytes);
		ns += od_now_ns() - start;
		done += piece->bytes;
	}
	*gbps = (double)done / (double)(ns > 0 ? ns : 1);
}

static int one_round(struct codec_bench *b, size_t round, struct od_err *err)
{
	int rc = OD_OK;

	b->read_gbps[round] = od_membw_read(b->membw);
	run_copy(b, TO_CACHE, &b->copy.gbps[TO_CACHE][round]);
	run_copy(b, TO_MEMORY, &b->copy.gbps[TO_MEMORY][round]);
	for (size_t i = 0; rc == OD_OK && i < b->n_lines; i++)
		for (int what = 0; rc == OD_OK && what < N_MEASURES; what++)
			rc = run(b, &b->line[i], (enum measure)what, &b->line[i].gbps[what][round], err);
	return rc;
}

/* A codec that does not give the weights back has no speed. */
static int check_line(struct codec_bench *b, struct codec_line *l, struct od_err *err)
{
	const struct codec_data *d = &b->data;

	for (size_t i = 0; i < d->n; i++) {
		const struct od_coded c = coded_at(b, l, i);
		int rc = od_coded_check(&c, err);

		if (rc == OD_OK)
			rc = od_decoder_weights(l->decoder, &c, d->dtype, codec_store_at(&d->sm, i, 0), b->room, b->dst,
						err);
		if (rc == OD_OK && memcmp(b->dst, codec_store_at(&d->weights, i, 0), d->weights.piece[i].bytes) != 0)
			rc = od_fail(err, OD_ERR_INTERNAL, "%s: chunk %zu: decoded weights differ",
				     codec_bench_names[l->codec], i);
		if (rc != OD_OK)
			return rc;
	}
	return OD_OK;
}

/* ---- what to measure ---- */

static int alloc_gbps(struct codec_line *l, uint64_t rounds, struct od_err *err)
{
	for (int what = 0; what < N_MEASURES; what++) {
		l->gbps[what] = calloc(rounds, sizeof(double));
		if (l->gbps[what] == NULL)
			return od_fail(err, OD_ERR_NOMEM, "no memory for %llu rounds", (unsigned long long)rounds);
	}
	return OD_OK;
}

static void free_line(struct codec_line *l)
{
	od_decoder_free(l->decoder);
	for (int what = 0; what < N_MEASURES; what++)
		free(l->gbps[what]);
	memset(l, 0, sizeof(*l));
}

static int add_line(struct codec_bench *b, int codec, int cpu, struct od_err *err)
{
	struct codec_line *l = &b->line[b->n_lines++];
	int rc;

	*l = (struct codec_line){ .codec = codec, .cpu = cpu };
	rc = od_decoder_new(&l->decoder, backend_of(l), err);
	return rc == OD_OK ? alloc_gbps(l, b->opt.rounds, err) : rc;
}

/* --cpu, or all that this processor has; avx512bf16 decodes as avx512 does. */
static int list_cpus(const struct codec_options *o, int *cpu, size_t *n, struct od_err *err)
{
	const struct od_backend *be;
	int rc = OD_OK;

	*n = 0;
	if (o->cpu != NULL) {
		rc = od_list_choices("cpu", o->cpu, od_cpu_names, cpu, n, err);
		for (size_t i = 0; rc == OD_OK && i < *n; i++)
			rc = od_backend_cpu(&be, (enum od_cpu)cpu[i], OD_PROFILE_F32, err);
		return rc;
	}
	for (int i = OD_CPU_SCALAR; i <= OD_CPU_NEON; i++)
		if (i != OD_CPU_AVX512_BF16 && od_backend_cpu(&be, (enum od_cpu)i, OD_PROFILE_F32, NULL) == OD_OK)
			cpu[(*n)++] = i;
	return OD_OK;
}

static int plan_lines(struct codec_bench *b, struct od_err *err)
{
	int codec[OD_LIST_MAX], cpu[OD_LIST_MAX];
	size_t n_codecs, n_cpus;
	int rc = od_list_choices("codec", b->opt.codec != NULL ? b->opt.codec : "zstd-3,raw,zstd,lz4,planes",
				 codec_bench_names, codec, &n_codecs, err);

	if (rc == OD_OK)
		rc = list_cpus(&b->opt, cpu, &n_cpus, err);
	for (size_t i = 0; rc == OD_OK && i < n_codecs; i++) {
		const bool planes =
			codec[i] == OD_CODEC_PLANES && od_codec_for(OD_CODEC_PLANES, b->data.dtype) == OD_CODEC_PLANES;

		rc = codec_data_code(&b->data, codec[i], b->store_bytes, &b->coded[codec[i]], err);
		for (size_t k = 0; rc == OD_OK && k < (planes ? n_cpus : 1); k++)
			rc = add_line(b, codec[i], planes ? cpu[k] : -1, err);
	}
	return rc;
}

/* ---- figures ---- */

/* Statistics of the rounds' ratios. */
static struct od_cell ratio(const struct codec_bench *b, const double *x, const double *to, double *room)
{
	struct od_stats s;

	if (to == NULL)
		return OD_NONE;
	for (size_t i = 0; i < b->opt.rounds; i++)
		room[i] = x[i] / to[i];
	od_stats_of(room, b->opt.rounds, &s);
	return OD_REAL(s.median);
}

static void report_line(struct codec_bench *b, const struct codec_line *l, const struct codec_line *zstd_3,
			double *room)
{
	const struct codec_store *s = &b->coded[l->codec];
	const size_t rounds = b->opt.rounds;
	uint64_t bytes = 0;

	for (size_t i = 0; i < s->n; i++)
		bytes += s->piece[i].bytes + b->data.sm.piece[i].bytes;

	const struct od_cell cells[] = {
		OD_TEXT(od_dtype_name(b->data.dtype)),
		OD_TEXT(codec_bench_names[l->codec]),
		l->cpu < 0 ? OD_NONE : OD_TEXT(backend_of(l)->name),
		OD_REAL(8.0 * (double)bytes / (double)b->data.n_weights),
		OD_REAL(od_stats_median(l->gbps[DECODE], rounds, room)),
		ratio(b, l->gbps[DECODE], b->read_gbps, room),
		ratio(b, l->gbps[DECODE], zstd_3 != NULL ? zstd_3->gbps[DECODE] : NULL, room),
		OD_REAL(od_stats_median(l->gbps[TO_CACHE], rounds, room)),
		ratio(b, l->gbps[TO_CACHE], b->copy.gbps[TO_CACHE], room),
		OD_REAL(od_stats_median(l->gbps[TO_MEMORY], rounds, room)),
		ratio(b, l->gbps[TO_MEMORY], b->copy.gbps[TO_MEMORY], room),
	};

	od_table_row(b->table, cells);
}

static int report_dtype(struct codec_bench *b, struct od_err *err)
{
	const size_t rounds = b->opt.rounds;
	double *room = calloc(rounds, sizeof(*room));
	const struct codec_line *zstd_3 = NULL;

	if (room == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu rounds", rounds);
	for (size_t i = 0; i < b->n_lines; i++)
		if (b->line[i].codec == CODEC_ZSTD_3)
			zstd_3 = &b->line[i];
	for (size_t i = 0; i < b->n_lines; i++)
		report_line(b, &b->line[i], zstd_3, room);

	const struct od_cell cells[] = {
		OD_TEXT(od_dtype_name(b->data.dtype)),
		OD_INT(b->data.n_weights),
		OD_REAL(b->data.entropy),
		OD_REAL(od_stats_median(b->read_gbps, rounds, room)),
		OD_REAL(od_stats_median(b->copy.gbps[TO_CACHE], rounds, room)),
		OD_REAL(od_stats_median(b->copy.gbps[TO_MEMORY], rounds, room)),
	};

	od_table_row(b->references, cells);
	free(room);
	return OD_OK;
}

static int open_report(struct codec_bench *b, struct od_err *err)
{
	static const struct od_column columns[] = {
		{ "dtype", "type", 0 },
		{ "codec", "codec", 0 },
		{ "cpu", "kernels", 0 },
		{ "bits_per_weight", "bits", 2 },
		{ "decode_gbps", "decode", 1 },
		{ "decode_vs_read", "x read", 2 },
		{ "decode_vs_zstd3", "x zstd-3", 2 },
		{ "fused_cache_gbps", "to cache", 1 },
		{ "fused_cache_vs_memcpy", "x memcpy", 2 },
		{ "fused_memory_gbps", "to memory", 1 },
		{ "fused_memory_vs_memcpy", "x memcpy", 2 },
	};
	static const struct od_column references[] = {
		{ "dtype", "type", 0 },
		{ "weights", "weights", 0 },
		{ "entropy_bits", "entropy", 2 },
		{ "read_gbps", "read", 1 },
		{ "memcpy_cache_gbps", "memcpy to cache", 1 },
		{ "memcpy_memory_gbps", "to memory", 1 },
	};
	int rc = od_report_new(&b->report, "Codecs of expert weights, on one core", err);

	if (rc != OD_OK)
		return rc;
	od_report_fact(b->report, "data", "data", OD_TEXT(b->pack != NULL ? od_pack_dir(b->pack) : "Gaussian"), 0,
		       NULL);
	od_report_fact(b->report, "rounds", "rounds", OD_INT(b->opt.rounds), 0, NULL);
	od_report_fact(b->report, "cache_bytes", "last-level cache", OD_BYTES(od_cache_bytes()), 0, NULL);
	b->table = od_report_table(b->report, "codecs", "GB/s: decode of exponent bytes, fused of weights", columns,
				   sizeof(columns) / sizeof(columns[0]));
	b->references = od_report_table(b->report, "references", "For comparison: GB/s, and bits per weight",
					references, sizeof(references) / sizeof(references[0]));
	return OD_OK;
}

/* ---- the whole ---- */

static void free_dtype(struct codec_bench *b)
{
	for (size_t i = 0; i < b->n_lines; i++)
		free_line(&b->line[i]);
	b->n_lines = 0;
	for (int c = 0; c < CODEC_N; c++)
		codec_store_free(&b->coded[c]);
	codec_data_free(&b->data);
	od_free(b->dst);
	od_free(b->room);
	b->dst = b->room = NULL;
}

static int measure_dtype(struct codec_bench *b, enum od_dtype dtype, struct od_err *err)
{
	const struct codec_options *o = &b->opt;
	int rc;

	if (b->pack != NULL)
		rc = codec_data_pack(&b->data, b->pack, dtype, o->weights, b->store_bytes, err);
	else
		rc = codec_data_gaussian(&b->data, dtype, o->weights, o->seed, b->store_bytes, err);
	if (rc == OD_OK && b->data.n == 0 && o->dtype != NULL)
		rc = od_fail(err, OD_ERR_ARG, "--dtype: %s has no experts of type %s", o->pack, od_dtype_name(dtype));
	if (rc != OD_OK || b->data.n == 0)
		return rc;
	b->dst = od_alloc_array(b->data.max_n, weight_bytes(b));
	b->room = od_alloc(b->data.max_n);
	if (b->dst == NULL || b->room == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu weights", b->data.max_n);
	rc = plan_lines(b, err);
	for (size_t i = 0; rc == OD_OK && i < b->n_lines; i++)
		rc = check_line(b, &b->line[i], err);
	for (size_t round = 0; rc == OD_OK && round < o->rounds; round++)
		rc = one_round(b, round, err);
	return rc == OD_OK ? report_dtype(b, err) : rc;
}

static int measure_all(struct codec_bench *b, struct od_err *err)
{
	const char *all = b->pack != NULL ? "bf16,f16,f32,f8_e4m3,f8_e5m2" : "bf16,f16,f32,int8";
	int dtype[OD_LIST_MAX];
	size_t n;
	int rc = od_list_choices("dtype", b->opt.dtype != NULL ? b->opt.dtype : all, dtype_names, dtype, &n, err);

	for (size_t i = 0; rc == OD_OK && i < n; i++) {
		rc = measure_dtype(b, dtypes[dtype[i]], err);
		free_dtype(b);
	}
	return rc == OD_OK ? od_report_print(b->report, stdout, b->opt.json, err) : rc;
}

static int open_bench(struct codec_bench *b, struct od_err *err)
{
	uint64_t cache = od_cache_bytes() > 0 ? od_cache_bytes() : DEFAULT_CACHE_BYTES;
	int rc = b->opt.pack != NULL ? od_pack_open(&b->pack, b->opt.pack, err) : OD_OK;

	b->store_bytes = CACHES * cache;
	if (rc == OD_OK)
		rc = od_membw_open(&b->membw, od_membw_bytes(), 1, NULL, err);
	if (rc == OD_OK)
		rc = alloc_gbps(&b->copy, b->opt.rounds, err);
	if (rc != OD_OK)
		return rc;
	b->read_gbps = calloc(b->opt.rounds, sizeof(double));
	b->far = od_alloc(b->store_bytes);
	if (b->read_gbps == NULL || b->far == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu bytes", b->store_bytes);
	memset(b->far, 1, b->store_bytes); /* so that the kernel need not give the pages while time is taken */
	return open_report(b, err);
}

static void close_bench(struct codec_bench *b)
{
	od_report_free(b->report);
	od_membw_close(b->membw);
	od_pack_close(b->pack);
	free_line(&b->copy);
	free(b->read_gbps);
	od_free(b->far);
}

int od_bench_codec(int argc, char **argv, struct od_err *err)
{
	struct codec_bench b = { .opt = { .weights = DEFAULT_WEIGHTS, .rounds = DEFAULT_ROUNDS, .seed = 1 } };
	struct codec_options *o = &b.opt;
	const struct od_arg table[] = {
		{ "pack", OD_ARG_STRING, &o->pack, "DIR", "experts of this pack; default: Gaussian weights", 0, 0,
		  NULL },
		{ "dtype", OD_ARG_STRING, &o->dtype, "LIST",
		  "of bf16, f16, f32, int8, f8_e4m3, f8_e5m2; default: the first four, "
		  "or the pack's",
		  0, 0, NULL },
		{ "codec", OD_ARG_STRING, &o->codec, "LIST",
		  "of raw, zstd, lz4, planes, zstd-3 (plain level 3); default: all", 0, 0, NULL },
		{ "cpu", OD_ARG_STRING, &o->cpu, "LIST",
		  "kernel sets that decode planes; default: all that this CPU has", 0, 0, NULL },
		{ "weights", OD_ARG_UINT, &o->weights, "N", "at least N different weights; default 16777216", 1, 1e10,
		  NULL },
		{ "rounds", OD_ARG_UINT, &o->rounds, "N", "measured rounds; default 101", 1, MAX_ROUNDS, NULL },
		{ "seed", OD_ARG_UINT, &o->seed, "N", "seed of Gaussian weights; default 1", 0, 0, NULL },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "print JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
	};
	int rc = od_bench_options(
		table, sizeof(table) / sizeof(table[0]), argc, argv, &o->help, "codec [OPTIONS]",
		"Measures bits per weight and the speed of decoding exponents (planes: block by "
		"block) and of\nassembling weights, into the cache and into memory. For comparison: read "
		"bandwidth of the core,\nmemcpy and zstd level 3. One core; the input is not in the cache.",
		err);

	if (rc != OD_OK || o->help)
		return rc;
	rc = open_bench(&b, err);
	if (rc == OD_OK)
		rc = measure_all(&b, err);
	free_dtype(&b);
	close_bench(&b);
	return rc;
}
