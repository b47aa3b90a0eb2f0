#include "tests/bench/bench_membw.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_stats.h"
#include "tests/bench/bench_table.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define BLOCK_BYTES (1u << 20)	/* what a thread takes at a time */
#define CHUNK_BYTES (64u << 20) /* a reading; long against the microseconds of starting the threads */
#define PREFETCH_BYTES 4096	/* ahead of the load: hardware prefetchers stop at page ends */
#define MAX_SAMPLES 100000
#define CACHE_MULTIPLE 4 /* of the last-level cache: below, part of a chunk is still there next time */

typedef uint64_t read_fn(const char *p, size_t bytes); /* bytes: a multiple of BLOCK_BYTES */

struct od_membw {
	char *buf;
	uint64_t bytes, chunk_bytes, next;
	struct od_pool *pool;
	read_fn *read;
	const char *kernel;
	const char *chunk; /* of the reading in progress */
	atomic_uint_fast64_t sum; /* keeps the loads from being optimised away */
};

/* Eight independent sums, so that the loads and not the additions set the pace. */
static uint64_t read_scalar(const char *p, size_t bytes)
{
	const uint64_t *x = (const uint64_t *)(const void *)p, *end = x + bytes / sizeof(*x);
	uint64_t s[8] = { 0 };

	for (; x < end; x += 8) {
		__builtin_prefetch((const char *)x + PREFETCH_BYTES);
		for (int i = 0; i < 8; i++)
			s[i] += x[i];
	}
	return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t read_avx2(const char *p, size_t bytes)
{
	const __m256i *x = (const __m256i *)(const void *)p, *end = x + bytes / sizeof(*x);
	__m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;

	for (; x < end; x += 4) {
		_mm_prefetch((const char *)x + PREFETCH_BYTES, _MM_HINT_T0);
		_mm_prefetch((const char *)(x + 2) + PREFETCH_BYTES, _MM_HINT_T0);
		a = _mm256_add_epi64(a, _mm256_load_si256(x));
		b = _mm256_add_epi64(b, _mm256_load_si256(x + 1));
		c = _mm256_add_epi64(c, _mm256_load_si256(x + 2));
		d = _mm256_add_epi64(d, _mm256_load_si256(x + 3));
	}
	a = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
	return (uint64_t)_mm256_extract_epi64(a, 0) + (uint64_t)_mm256_extract_epi64(a, 1) +
	       (uint64_t)_mm256_extract_epi64(a, 2) + (uint64_t)_mm256_extract_epi64(a, 3);
}

__attribute__((target("avx512f"))) static uint64_t read_avx512(const char *p, size_t bytes)
{
	const __m512i *x = (const __m512i *)(const void *)p, *end = x + bytes / sizeof(*x);
	__m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;

	for (; x < end; x += 4) {
		for (int i = 0; i < 4; i++)
			_mm_prefetch((const char *)(x + i) + PREFETCH_BYTES, _MM_HINT_T0);
		a = _mm512_add_epi64(a, _mm512_load_si512(x));
		b = _mm512_add_epi64(b, _mm512_load_si512(x + 1));
		c = _mm512_add_epi64(c, _mm512_load_si512(x + 2));
		d = _mm512_add_epi64(d, _mm512_load_si512(x + 3));
	}
	a = _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d));
	return (uint64_t)_mm512_reduce_add_epi64(a);
}
#endif

static void choose_kernel(struct od_membw *m)
{
	m->read = read_scalar;
	m->kernel = "scalar";
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f")) {
		m->read = read_avx512;
		m->kernel = "avx512";
	} else if (__builtin_cpu_supports("avx2")) {
		m->read = read_avx2;
		m->kernel = "avx2";
	}
#endif
}

/* Written by the threads that will read it: fresh pages would all be the one zero page, which is in the
 * cache, and the first write decides the NUMA node. */
static void fill_blocks(void *arg, size_t begin, size_t end, unsigned thread)
{
	struct od_membw *m = arg;
	uint64_t *x = (uint64_t *)(void *)m->buf;

	(void)thread;
	for (size_t i = begin * (BLOCK_BYTES / 8); i < end * (BLOCK_BYTES / 8); i++)
		x[i] = i * 0x9e3779b97f4a7c15u;
}

static void read_blocks(void *arg, size_t begin, size_t end, unsigned thread)
{
	struct od_membw *m = arg;
	uint64_t sum = m->read(m->chunk + begin * BLOCK_BYTES, (end - begin) * BLOCK_BYTES);

	(void)thread;
	atomic_fetch_add_explicit(&m->sum, sum, memory_order_relaxed);
}

static int map_buffer(struct od_membw *m, struct od_err *err)
{
	uint64_t available = od_available_ram_bytes();
	char want[32], have[32];
	void *p;

	od_format_bytes(m->bytes, want, sizeof(want));
	if (available != 0 && m->bytes > available / 10 * 9)
		return od_fail(err, OD_ERR_NOMEM, "a buffer of %s does not fit: %s of memory are free; choose a smaller "
			       "--size", want, od_format_bytes(available, have, sizeof(have)));
	p = mmap(NULL, m->bytes + PREFETCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return od_fail_errno(err, OD_ERR_NOMEM, "cannot map a buffer of %s", want);
	m->buf = p;
	/* With small pages half of the measurement would be page-table walks. Where it is refused, we measure those. */
	(void)madvise(p, m->bytes, MADV_HUGEPAGE);
	return OD_OK;
}

int od_membw_open(struct od_membw **out, uint64_t bytes, unsigned n_threads, struct od_err *err)
{
	struct od_membw *m;
	int rc;

	*out = NULL;
	m = calloc(1, sizeof(*m));
	if (m == NULL)
		return od_fail(err, OD_ERR_NOMEM, "memory bandwidth");
	m->bytes = bytes / BLOCK_BYTES * BLOCK_BYTES;
	m->chunk_bytes = m->bytes < CHUNK_BYTES ? m->bytes : CHUNK_BYTES;
	choose_kernel(m);
	rc = m->bytes == 0 ? od_fail(err, OD_ERR_ARG, "the buffer needs at least %u bytes", BLOCK_BYTES) :
			     map_buffer(m, err);
	if (rc == OD_OK)
		rc = od_pool_new(&m->pool, n_threads, "od-membw", err);
	if (rc != OD_OK) {
		od_membw_close(m);
		return rc;
	}
	od_pool_for(m->pool, m->bytes / BLOCK_BYTES, 1, fill_blocks, m);
	*out = m;
	return OD_OK;
}

void od_membw_close(struct od_membw *m)
{
	if (m == NULL)
		return;
	od_pool_free(m->pool);
	if (m->buf != NULL)
		munmap(m->buf, m->bytes + PREFETCH_BYTES);
	free(m);
}

double od_membw_read(struct od_membw *m)
{
	uint64_t start, ns;

	if (m->next + m->chunk_bytes > m->bytes)
		m->next = 0;
	m->chunk = m->buf + m->next;
	start = od_now_ns();
	od_pool_for(m->pool, m->chunk_bytes / BLOCK_BYTES, 1, read_blocks, m);
	ns = od_now_ns() - start;
	m->next += m->chunk_bytes;
	return (double)m->chunk_bytes / (double)(ns > 0 ? ns : 1);
}

const char *od_membw_kernel(const struct od_membw *m)
{
	return m->kernel;
}

uint64_t od_membw_chunk_bytes(const struct od_membw *m)
{
	return m->chunk_bytes;
}

uint64_t od_membw_cache_bytes(void)
{
	long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);

	return l3 > 0 ? (uint64_t)l3 : (l2 > 0 ? (uint64_t)l2 : 0);
}

/* Readings for the given time, at least one of every part of the buffer. Returns their number. */
static size_t measure(struct od_membw *m, double seconds, double *gbps)
{
	uint64_t end;
	size_t n = 0, round = m->bytes / m->chunk_bytes;

	for (size_t i = 0; i < round; i++)
		od_membw_read(m); /* wakes the cores and their clocks */
	end = od_now_ns() + (uint64_t)(seconds * 1e9);
	do {
		gbps[n++] = od_membw_read(m);
	} while (n < MAX_SAMPLES && (n < round || od_now_ns() < end));
	return n;
}

static int report(const struct od_membw *m, unsigned threads, double *gbps, size_t n, bool json, struct od_err *err)
{
	char size[32], cache[32];
	struct od_report *r;
	struct od_stats s;
	int rc = od_report_new(&r, "Memory read bandwidth", err);

	if (rc != OD_OK)
		return rc;
	od_stats_of(gbps, n, &s);
	od_report_fact(r, "read_gbps_median", "median", OD_REAL(s.median), 1, "GB/s");
	od_report_fact(r, "read_gbps_ci95_low", "95 % interval from", OD_REAL(s.ci_low), 1, "GB/s");
	od_report_fact(r, "read_gbps_ci95_high", "95 % interval to", OD_REAL(s.ci_high), 1, "GB/s");
	od_report_fact(r, "read_gbps_min", "slowest reading", OD_REAL(s.min), 1, "GB/s");
	od_report_fact(r, "read_gbps_max", "fastest reading", OD_REAL(s.max), 1, "GB/s");
	od_report_fact(r, "readings", "readings", OD_INT(n), 0, NULL);
	od_report_fact(r, "chunk_bytes", "bytes in a reading", OD_INT(m->chunk_bytes), 0, NULL);
	od_report_fact(r, "threads", "threads", OD_INT(threads), 0, NULL);
	od_report_fact(r, "kernel", "loads", OD_TEXT(m->kernel), 0, NULL);
	od_report_fact(r, "buffer_bytes", "buffer", json ? OD_INT(m->bytes) :
		       OD_TEXT(od_format_bytes(m->bytes, size, sizeof(size))), 0, NULL);
	od_report_fact(r, "cache_bytes", "last-level cache", json ? OD_INT(od_membw_cache_bytes()) :
		       OD_TEXT(od_format_bytes(od_membw_cache_bytes(), cache, sizeof(cache))), 0, NULL);
	rc = od_report_print(r, stdout, json, err);
	od_report_free(r);
	return rc;
}

static int run(uint64_t bytes, unsigned threads, double seconds, bool json, struct od_err *err)
{
	struct od_membw *m = NULL;
	double *gbps;
	size_t n;
	int rc;

	gbps = calloc(MAX_SAMPLES, sizeof(*gbps));
	if (gbps == NULL)
		return od_fail(err, OD_ERR_NOMEM, "samples");
	rc = od_membw_open(&m, bytes, threads, err);
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
	uint64_t bytes = 1u << 30, threads = od_cpu_count(), cache = od_membw_cache_bytes();
	char found[32], least[32];
	bool help = false, json = false;
	double seconds = 2;
	size_t n;
	const struct od_arg table[] = {
		{ "size", OD_ARG_SIZE, &bytes, "BYTES", "the buffer; default 1GiB", 0, 0, NULL },
		{ "threads", OD_ARG_UINT, &threads, "N", "default: the CPUs this process may use", 1, 1024, NULL },
		{ "seconds", OD_ARG_REAL, &seconds, "S", "how long to read; default 2", 0, 3600, NULL },
		{ "json", OD_ARG_FLAG, &json, NULL, "the figures as JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &help, NULL, "this text", 0, 0, NULL },
	};
	const size_t n_table = sizeof(table) / sizeof(table[0]);
	int rc = od_args_parse(table, n_table, argc, argv, NULL, 0, &n, err);

	if (rc != OD_OK)
		return rc;
	if (help) {
		od_bench_usage("membw [OPTIONS]", "Streams through a buffer with wide loads on all threads, in short "
			       "readings.\nThis is the ceiling for decoding: every token reads its experts once.",
			       table, n_table);
		return OD_OK;
	}
	if (bytes < BLOCK_BYTES || bytes < cache * CACHE_MULTIPLE)
		return od_fail(err, OD_ERR_ARG, "--size: expected at least %s (%d times the last-level cache, or the "
			       "cache is measured), found %s", od_format_bytes(cache == 0 ? BLOCK_BYTES : cache *
			       CACHE_MULTIPLE, least, sizeof(least)), CACHE_MULTIPLE,
			       od_format_bytes(bytes, found, sizeof(found)));
	return run(bytes, (unsigned)threads, seconds, json, err);
}
