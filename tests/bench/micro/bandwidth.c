#include "tests/bench/micro/bandwidth.h"

#include "common/base/args.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/compute/cards.h"
#include "common/compute/open_device.h"
#include "common/compute/ops.h"

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define BLOCK_BYTES (1u << 20) /* bytes that a thread takes at a time */
#define CHUNK_BYTES (64u << 20) /* a reading; long against the microseconds of starting the threads */
#define LEAST_BYTES (256u << 20) /* a buffer has at least */
#define CACHES 4 /* last-level caches in a buffer, at least */
#define PREFETCH_BYTES 4096 /* ahead of the load: hardware prefetchers stop at page ends */
#define FILL_FACTOR 0x9e3779b97f4a7c15ull /* word i is i times this */

typedef uint64_t read_fn(const char *p, size_t bytes); /* bytes: a multiple of BLOCK_BYTES */

struct od_membw {
	char *buf;
	uint64_t bytes, chunk_bytes, next;
	struct od_pool *pool;
	const struct kernel *kernel;
	const char *chunk; /* chunk of the reading in progress */
	atomic_uint_fast64_t sum; /* sum of all words read since it was set: shows that they were */
	struct od_device *gpu; /* NULL: memory of the host */
	struct od_buf *half[2]; /* halves of the GPU's buffer */
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
	uint64_t lane[8];

	for (; x < end; x += 4) {
		for (int i = 0; i < 4; i++)
			_mm_prefetch((const char *)(x + i) + PREFETCH_BYTES, _MM_HINT_T0);
		a = _mm512_add_epi64(a, _mm512_load_si512(x));
		b = _mm512_add_epi64(b, _mm512_load_si512(x + 1));
		c = _mm512_add_epi64(c, _mm512_load_si512(x + 2));
		d = _mm512_add_epi64(d, _mm512_load_si512(x + 3));
	}
	a = _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d));
	_mm512_storeu_si512(lane, a); /* the reduce intrinsic adds as signed numbers, which may not overflow */
	return lane[0] + lane[1] + lane[2] + lane[3] + lane[4] + lane[5] + lane[6] + lane[7];
}
#endif

static const struct kernel {
	const char *loads;
	read_fn *read;
} kernels[] = {
#if defined(__x86_64__)
	{ "avx512", read_avx512 },
	{ "avx2", read_avx2 },
#else
	{ "avx512", NULL },
	{ "avx2", NULL },
#endif
	{ "scalar", read_scalar },
};

static bool cpu_has(read_fn *read)
{
#if defined(__x86_64__)
	if (read == read_avx512)
		return __builtin_cpu_supports("avx512f");
	if (read == read_avx2)
		return __builtin_cpu_supports("avx2");
#endif
	return read == read_scalar;
}

static int choose_kernel(struct od_membw *m, const char *loads, struct od_err *err)
{
	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
		if (cpu_has(kernels[i].read) && (loads == NULL || strcmp(loads, kernels[i].loads) == 0)) {
			m->kernel = &kernels[i];
			return OD_OK;
		}
	}
	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
		if (loads != NULL && strcmp(loads, kernels[i].loads) == 0)
			return od_fail(err, OD_ERR_UNSUPPORTED, "this CPU has no %s loads", loads);
	}
	return od_fail(err, OD_ERR_ARG, "--loads: expected avx512, avx2 or scalar, found \"%s\"", loads);
}

/* Written by the threads that will read it: fresh pages would all be the one zero page, which is in the
 * cache, and the first write decides the NUMA node. */
static void fill_blocks(void *arg, size_t begin, size_t end, unsigned thread)
{
	struct od_membw *m = arg;
	uint64_t *x = (uint64_t *)(void *)m->buf;

	(void)thread;
	for (size_t i = begin * (BLOCK_BYTES / 8); i < end * (BLOCK_BYTES / 8); i++)
		x[i] = i * FILL_FACTOR;
}

static void read_blocks(void *arg, size_t begin, size_t end, unsigned thread)
{
	struct od_membw *m = arg;
	uint64_t sum = m->kernel->read(m->chunk + begin * BLOCK_BYTES, (end - begin) * BLOCK_BYTES);

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
		return od_fail(err, OD_ERR_NOMEM,
			       "a buffer of %s does not fit: %s of memory are free; choose a "
			       "smaller --size",
			       want, od_format_bytes(available, have, sizeof(have)));
	p = mmap(NULL, m->bytes + PREFETCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return od_fail_errno(err, OD_ERR_NOMEM, "cannot map a buffer of %s", want);
	m->buf = p;
	/* With small pages half of the measurement would be page-table walks; where refused, we measure those. */
	(void)madvise(p, m->bytes, MADV_HUGEPAGE);
	return OD_OK;
}

/* One round over the buffer, which also wakes the cores: a kernel that skips words would look fast. */
static int read_everything(struct od_membw *m, struct od_err *err)
{
	uint64_t n = m->bytes / 8, want = n / 2 * ((n - 1) * FILL_FACTOR); /* n is even */

	atomic_store_explicit(&m->sum, 0, memory_order_relaxed);
	for (uint64_t i = 0; i < m->bytes / m->chunk_bytes; i++)
		od_membw_read(m);
	if (atomic_load_explicit(&m->sum, memory_order_relaxed) != want)
		return od_fail(err, OD_ERR_INTERNAL, "%s loads did not read the whole buffer", m->kernel->loads);
	return OD_OK;
}

uint64_t od_membw_bytes(void)
{
	const uint64_t bytes = CACHES * od_cache_bytes();

	return bytes > LEAST_BYTES ? bytes : LEAST_BYTES;
}

int od_membw_open(struct od_membw **out, uint64_t bytes, unsigned n_threads, const char *loads, struct od_err *err)
{
	struct od_membw *m;
	int rc;

	*out = NULL;
	if (bytes < BLOCK_BYTES)
		return od_fail(err, OD_ERR_ARG, "memory bandwidth needs a buffer of %u bytes or more, found %llu",
			       BLOCK_BYTES, (unsigned long long)bytes);
	m = calloc(1, sizeof(*m));
	if (m == NULL)
		return od_fail(err, OD_ERR_NOMEM, "memory bandwidth");
	m->chunk_bytes = bytes < CHUNK_BYTES ? bytes / BLOCK_BYTES * BLOCK_BYTES : CHUNK_BYTES;
	m->bytes = bytes / m->chunk_bytes * m->chunk_bytes;
	rc = choose_kernel(m, loads, err);
	if (rc == OD_OK)
		rc = map_buffer(m, err);
	if (rc == OD_OK)
		rc = od_pool_new(&m->pool, n_threads, "od-membw", err);
	if (rc == OD_OK) {
		od_pool_for(m->pool, m->bytes / BLOCK_BYTES, 1, fill_blocks, m);
		rc = read_everything(m, err);
	}
	if (rc != OD_OK) {
		od_membw_close(m);
		return rc;
	}
	*out = m;
	return OD_OK;
}

/* ---- of a GPU ---- */

#define GPU_COPIES 8u /* between two waits, each of half the buffer: long against the microseconds of a wait */

/* Nothing that could be stored in less space. */
static int fill_half(struct od_membw *m, struct od_err *err)
{
	uint64_t *block = malloc(BLOCK_BYTES);
	int rc = OD_OK;

	if (block == NULL)
		return od_fail(err, OD_ERR_NOMEM, "memory bandwidth");
	for (size_t i = 0; i < BLOCK_BYTES / sizeof(*block); i++)
		block[i] = (i + 1) * FILL_FACTOR;
	for (uint64_t at = 0; at < m->bytes / 2; at += BLOCK_BYTES)
		od_device_put(m->gpu, OD_QUEUE_COMPUTE, od_buf_ref(m->half[0], at), block, BLOCK_BYTES);
	rc = od_device_sync(m->gpu, err);
	free(block);
	return rc;
}

int od_membw_open_gpu(struct od_membw **out, uint64_t bytes, const char *device, struct od_err *err)
{
	struct od_membw *m = calloc(1, sizeof(*m));
	int rc;

	*out = NULL;
	if (m == NULL)
		return od_fail(err, OD_ERR_NOMEM, "memory bandwidth");
	m->bytes = od_round_up(bytes, 2 * BLOCK_BYTES);
	m->chunk_bytes = GPU_COPIES * m->bytes;
	rc = od_device_open(&m->gpu, device, OD_CPU_AUTO, 1, "od-membw", err);
	for (int i = 0; rc == OD_OK && i < 2; i++)
		rc = od_buf_new(&m->half[i], od_device_card(m->gpu, 0), m->bytes / 2, "a benchmark of the memory", err);
	if (rc == OD_OK)
		rc = fill_half(m, err);
	if (rc != OD_OK) {
		od_membw_close(m);
		return rc;
	}
	*out = m;
	return OD_OK;
}

static double read_gpu(struct od_membw *m)
{
	const uint64_t start = od_now_ns();
	uint64_t ns;

	for (unsigned i = 0; i < GPU_COPIES; i++)
		od_device_run(m->gpu, OD_QUEUE_COMPUTE,
			      &(struct od_op){ .kind = OD_OP_COPY,
					       .profile = OD_PROFILE_F32,
					       .n_rows = 1,
					       .copy = { .from = od_buf_ref(m->half[i % 2], 0),
							 .to = od_buf_ref(m->half[1 - i % 2], 0),
							 .n = m->bytes / 2 } });
	if (od_device_sync(m->gpu, NULL) != OD_OK)
		return NAN;
	ns = od_now_ns() - start;
	return (double)m->chunk_bytes / (double)(ns > 0 ? ns : 1);
}

/* ---- of both ---- */

void od_membw_close(struct od_membw *m)
{
	if (m == NULL)
		return;
	od_buf_free(m->half[0]);
	od_buf_free(m->half[1]);
	od_device_free(m->gpu);
	od_pool_free(m->pool);
	if (m->buf != NULL)
		munmap(m->buf, m->bytes + PREFETCH_BYTES);
	free(m);
}

double od_membw_read(struct od_membw *m)
{
	uint64_t start, ns;

	if (m->gpu != NULL)
		return read_gpu(m);
	m->chunk = m->buf + m->next;
	start = od_now_ns();
	od_pool_for(m->pool, m->chunk_bytes / BLOCK_BYTES, 1, read_blocks, m);
	ns = od_now_ns() - start;
	m->next = (m->next + m->chunk_bytes) % m->bytes;
	return (double)m->chunk_bytes / (double)(ns > 0 ? ns : 1);
}

void od_membw_add(struct od_membw *m, struct od_membw_sum *sum)
{
	const uint64_t start = od_now_ns();

	(void)od_membw_read(m);
	sum->ns += (double)(od_now_ns() - start);
	sum->bytes += (double)m->chunk_bytes;
}

double od_membw_gbps(const struct od_membw_sum *sum)
{
	return sum->ns > 0 ? sum->bytes / sum->ns : NAN;
}

const char *od_membw_loads(const struct od_membw *m)
{
	return m->gpu != NULL ? "copies of the GPU" : m->kernel->loads;
}
