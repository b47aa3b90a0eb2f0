/* compute_util.h - for the tests of common/compute: random data, comparison of bits, and the contract of
 * backend.h ("16 lanes, fixed tree") written once more in the plainest way, as a reference. */
#ifndef OD_TESTS_COMPUTE_UTIL_H
#define OD_TESTS_COMPUTE_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <sys/mman.h>
#include <unistd.h>

#include "common/compute/cpu/cpu.h"
#include "common/compute/cpu/cpu_tables.h"
#include "tests/unit/random.h"

static inline float random_unit(uint64_t *seed) /* (-1, 1) */
{
	return (float)((double)(int64_t)random_u64(seed) * 0x1p-63);
}

enum kind {
	PLAIN, /* (-1, 1) */
	TINY, /* products underflow: subnormals and zeros of both signs */
	WILD, /* now and then an infinity, a NaN, a huge or subnormal number */
	N_KINDS
};

static inline float random_f32(uint64_t *seed, enum kind kind)
{
	static const uint32_t odd[] = { 0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc12345u, 0x7f812345u,
					0x00000001u, 0x80000001u, 0x807fffffu, 0x80000000u, 0x7f7fffffu };
	float f = random_unit(seed);

	if (kind == TINY)
		return f * ((random_u64(seed) & 3u) ? 0x1p-76f : 0x1p-140f);
	if (kind == WILD && random_below(seed, 29) == 0)
		return od_bits_f32(odd[random_below(seed, sizeof(odd) / sizeof(odd[0]))]);
	return f;
}

/* malloc of exactly n elements, so that a sanitizer sees the first byte read or written too far. */
static inline void *exact(size_t n, size_t each)
{
	void *p = malloc(n * each > 0 ? n * each : 1);

	assert_non_null(p);
	return p;
}

static inline float *random_row(uint64_t *seed, size_t n, enum kind kind)
{
	float *x = exact(n, sizeof(float));

	for (size_t i = 0; i < n; i++)
		x[i] = random_f32(seed, kind);
	return x;
}

/* n weights of type t. */
static inline void *random_weights(uint64_t *seed, enum od_dtype t, size_t n, enum kind kind)
{
	unsigned char *w = exact(n, od_dtype_bytes(t));

	for (size_t i = 0; i < n; i++) {
		float f = random_f32(seed, kind);
		uint16_t h = od_f32_bf16(f);
		unsigned char b = (unsigned char)random_u64(seed);

		if (t == OD_F16) /* sign and mantissa at random, exponents up to 15, so that sums stay small */
			h = (uint16_t)((random_u64(seed) & 0xbfffu) % (kind == TINY ? 0x8400u : 0xbc00u));
		if (t == OD_F16 && kind == WILD && random_below(seed, 29) == 0)
			h = (uint16_t)random_u64(seed);
		if (t == OD_F8_E4M3 || t == OD_F8_E5M2) { /* below 2 */
			b &= kind == TINY ? 0x83u : 0xbfu;
			if (kind == WILD && random_below(seed, 29) == 0)
				b = (unsigned char)random_u64(seed);
		}
		if (od_dtype_bytes(t) == 1)
			w[i] = b;
		else if (t == OD_F32)
			memcpy(w + 4 * i, &f, 4);
		else
			memcpy(w + 2 * i, &h, 2);
	}
	return w;
}

static inline float weight_at(enum od_dtype t, const void *w, size_t i)
{
	if (t == OD_BF16)
		return od_bf16_f32(((const uint16_t *)w)[i]);
	if (t == OD_F16)
		return od_f16_f32(((const uint16_t *)w)[i]);
	if (t == OD_F32)
		return ((const float *)w)[i];
	if (t == OD_INT8)
		return (float)((const int8_t *)w)[i];
	if (t == OD_F8_E4M3)
		return od_e4m3_f32(((const uint8_t *)w)[i]);
	if (t == OD_F8_E5M2)
		return od_e5m2_f32(((const uint8_t *)w)[i]);
	/* other formats: test_compute_quant.c, test_compute_scaled.c, test_blocks.c */
	return NAN;
}

static inline float one_nan(float f)
{
	return f != f ? od_bits_f32(0x7fc00000u) : f;
}

static inline float fold16(float *lane)
{
	for (int half = 8; half > 0; half /= 2)
		for (int i = 0; i < half; i++)
			lane[i] += lane[i + half];
	return lane[0];
}

/* The dot product of the contract. */
static inline float lanes_dot(enum od_dtype t, const void *w, size_t first, const float *x, size_t n)
{
	float lane[16] = { 0 };

	for (size_t k = 0; k < n; k++)
		lane[k % 16] = fmaf(weight_at(t, w, first + k), x[k], lane[k % 16]);
	return fold16(lane);
}

static inline void assert_bits(const char *what, const float *got, const float *want, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (od_f32_bits(got[i]) != od_f32_bits(want[i]))
			fail_msg("%s: element %zu of %zu: expected %a (%08x), found %a (%08x)", what, i, n,
				 (double)want[i], (unsigned)od_f32_bits(want[i]), (double)got[i],
				 (unsigned)od_f32_bits(got[i]));
}

/* n bytes that end at a page nobody may touch. */
struct fenced {
	unsigned char *map, *p;
	size_t map_len;
};

static inline struct fenced fenced_new(size_t n)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), used = (n + page - 1) / page * page;
	struct fenced f = { .map_len = used + page };

	f.map = mmap(NULL, f.map_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(f.map != MAP_FAILED);
	assert_int_equal(mprotect(f.map + used, page, PROT_NONE), 0);
	f.p = f.map + used - n;
	return f;
}

/* A table that a test is about. bare: as on a processor that has no more than the table cannot do without. */
struct table_choice {
	enum od_cpu cpu;
	bool bare;
	struct od_backend table; /* when bare */
};

/* The table of a test's state (struct table_choice), or NULL after skip(). */
static inline const struct od_backend *table_of(void **state)
{
	struct table_choice *c = *state;
	const struct od_backend *be;
	struct od_cpu_features f;
	struct od_err err;
	int rc = od_backend_cpu(&be, c->cpu, OD_PROFILE_BF16, &err);

	if (rc == OD_ERR_UNSUPPORTED) {
		print_message("# %s\n", err.msg);
		skip();
	}
	assert_int_equal(rc, OD_OK);
	assert_string_equal(be->name, od_cpu_names[c->cpu]);
	if (!c->bare)
		return be;
	f = od_cpu_features();
	f.vnni = f.vbmi2 = f.neon_dot = false;
	c->table = od_cpu_table(c->cpu, &f);
	return &c->table;
}

/* One test for each table that this kind of processor can have; one that it lacks is skipped. On bare ones, too: tests
 * of what more instructions bring other kernels for. */
#define ON_TABLE(f, cpu) \
	{ \
#f " " #cpu, f, NULL, NULL, &table_##cpu \
	}
static struct table_choice table_scalar = { .cpu = OD_CPU_SCALAR };
#ifdef __aarch64__
static struct table_choice table_neon = { .cpu = OD_CPU_NEON };
#define ON_ALL_TABLES(f) ON_TABLE(f, scalar), ON_TABLE(f, neon)
#define BARE_TABLES static struct table_choice table_bare_neon = { .cpu = OD_CPU_NEON, .bare = true }
#define ON_BARE_TABLES(f) ON_TABLE(f, bare_neon)
#else
static struct table_choice table_avx2 = { .cpu = OD_CPU_AVX2 }, table_avx512 = { .cpu = OD_CPU_AVX512 },
			   table_avx512bf16 = { .cpu = OD_CPU_AVX512_BF16 };
#define ON_ALL_TABLES(f) ON_TABLE(f, scalar), ON_TABLE(f, avx2), ON_TABLE(f, avx512), ON_TABLE(f, avx512bf16)
#define BARE_TABLES \
	static struct table_choice table_bare_avx512 = { .cpu = OD_CPU_AVX512, .bare = true }, \
				   table_bare_avx512bf16 = { .cpu = OD_CPU_AVX512_BF16, .bare = true }
#define ON_BARE_TABLES(f) ON_TABLE(f, bare_avx512), ON_TABLE(f, bare_avx512bf16)
#endif

#endif
