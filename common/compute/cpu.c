#include "common/compute/cpu_tables.h"

#define ACT8_BLOCKS 1920u	 /* of INT8 activations on the stack: 128 KiB, with their scales */
#define MIN_PIECE_WEIGHTS 32768u /* a piece of work for a thread: some microseconds, well above a hand-over */

const char *const od_cpu_names[] = { "auto", "scalar", "avx2", "avx512", "avx512bf16", "neon", NULL };
const char *const od_profile_names[] = { "f32", "bf16", NULL };

#ifdef OD_X86_TABLES
#include <cpuid.h>

/* Not all compilers know the name. */
static bool has_f16c(void)
{
	unsigned a, b, c, d;

	return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

/* The compiler's runtime also asks whether the kernel saves the wide registers (XGETBV). */
static bool has_avx2(void)
{
#ifdef OD_X86_TABLES
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
#else
	return false;
#endif
}

static bool has_avx512(void)
{
#ifdef OD_X86_TABLES
	return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
	return false;
#endif
}

static bool has_avx512_bf16(void)
{
#ifdef OD_X86_TABLES
	return has_avx512() && __builtin_cpu_supports("avx512bf16");
#else
	return false;
#endif
}

static bool has_neon(void)
{
#ifdef OD_ARM_TABLES
	return true; /* part of every aarch64 */
#else
	return false;
#endif
}

static bool has(enum od_cpu cpu)
{
	switch (cpu) {
	case OD_CPU_AUTO: return true;
	case OD_CPU_SCALAR: return true;
	case OD_CPU_AVX2: return has_avx2();
	case OD_CPU_AVX512: return has_avx512();
	case OD_CPU_AVX512_BF16: return has_avx512_bf16();
	case OD_CPU_NEON: return has_neon();
	}
	return false;
}

static const char *needs(enum od_cpu cpu)
{
	switch (cpu) {
	case OD_CPU_AUTO: return "";
	case OD_CPU_SCALAR: return "";
	case OD_CPU_AVX2: return "AVX2, FMA and F16C";
	case OD_CPU_AVX512: return "AVX-512 F, BW, VL and DQ";
	case OD_CPU_AVX512_BF16: return "AVX-512 F, BW, VL, DQ and BF16";
	case OD_CPU_NEON: return "aarch64 and NEON";
	}
	return "";
}

static const struct od_backend *table(enum od_cpu cpu)
{
	static const struct od_backend *const tables[OD_CPU_NEON + 1] = {
		[OD_CPU_SCALAR] = &od_cpu_table_scalar,
#ifdef OD_X86_TABLES
		[OD_CPU_AVX2] = &od_cpu_table_avx2,
		[OD_CPU_AVX512] = &od_cpu_table_avx512,
		[OD_CPU_AVX512_BF16] = &od_cpu_table_avx512bf16,
#endif
#ifdef OD_ARM_TABLES
		[OD_CPU_NEON] = &od_cpu_table_neon,
#endif
	};

	return tables[cpu];
}

int od_backend_cpu(const struct od_backend **out, enum od_cpu cpu, enum od_profile profile, struct od_err *err)
{
	*out = NULL;
	if ((unsigned)cpu > OD_CPU_NEON)
		return od_fail(err, OD_ERR_ARG, "cpu kernels: unknown choice %d", (int)cpu);
	if (cpu == OD_CPU_AUTO) {
		for (cpu = OD_CPU_NEON; !has(cpu); cpu--)
			continue;
	}
	if (!has(cpu))
		return od_fail(err, OD_ERR_UNSUPPORTED, "cpu kernels %s: this processor (or system) has not all of %s",
			       od_cpu_names[cpu], needs(cpu));
	/* BF16 dot instructions round differently; conformance must not depend on having them. */
	if (cpu == OD_CPU_AVX512_BF16 && profile == OD_PROFILE_F32)
		cpu = OD_CPU_AVX512;
	*out = table(cpu);
	return OD_OK;
}

bool od_backend_likes_planes(const struct od_backend *be)
{
#ifdef OD_X86_TABLES
	return (be == &od_cpu_table_avx512 || be == &od_cpu_table_avx512bf16) && od_cpu_expands_bytes();
#else
	(void)be;
	return false;
#endif
}

#ifdef OD_X86_TABLES
/* Asked at every call, which costs nothing beside it; two more tables would. */
void od_cpu_matmul_int8_avx512(const struct od_mat *w, const struct od_act8 *x, float *y, size_t y_stride,
			       size_t n_rows, size_t o_begin, size_t o_end)
{
	if (__builtin_cpu_supports("avx512vnni"))
		od_cpu_matmul_int8_vnni(w, x, y, y_stride, n_rows, o_begin, o_end);
	else
		od_cpu_table_avx2.matmul_int8(w, x, y, y_stride, n_rows, o_begin, o_end);
}

bool od_cpu_expands_bytes(void)
{
	return __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("gfni");
}

void od_cpu_planes_decode_avx512(const uint8_t *chunk, size_t n, size_t row, size_t b, uint8_t *e)
{
	if (od_cpu_expands_bytes())
		od_cpu_planes_decode_vbmi2(chunk, n, row, b, e);
	else
		od_cpu_table_avx2.planes_decode(chunk, n, row, b, e);
}

void od_cpu_planes_merge_avx512(const uint8_t *chunk, size_t n, size_t row, size_t b, const uint8_t *sm, uint16_t *w)
{
	if (od_cpu_expands_bytes())
		od_cpu_planes_merge_vbmi2(chunk, n, row, b, sm, w);
	else
		od_cpu_table_avx2.planes_merge(chunk, n, row, b, sm, w);
}

void od_cpu_merge_bf16_avx512(const uint8_t *e, const uint8_t *sm, size_t n, uint16_t *w)
{
	if (od_cpu_expands_bytes())
		od_cpu_merge_bf16_vbmi2(e, sm, n, w);
	else
		od_cpu_table_avx2.merge_bf16(e, sm, n, w);
}

void od_cpu_matmul_scaled_avx512(const struct od_mat *w, const float *x, size_t x_stride, float *y, size_t y_stride,
				 size_t n_rows, size_t o_begin, size_t o_end)
{
	if (od_cpu_expands_bytes())
		od_cpu_matmul_scaled_vbmi2(w, x, x_stride, y, y_stride, n_rows, o_begin, o_end);
	else
		od_cpu_table_avx2.matmul(w, x, x_stride, y, y_stride, n_rows, o_begin, o_end);
}
#endif

struct matmul_job {
	const struct od_backend *be;
	const struct od_mat *w;
	const float *x;
	const struct od_act8 *act8; /* NULL: x */
	float *y;
	size_t n_rows;
};

static void matmul_piece(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct matmul_job *j = arg;

	(void)thread;
	if (j->act8 != NULL)
		j->be->matmul_int8(j->w, j->act8, j->y, j->w->n_out, j->n_rows, begin, end);
	else
		j->be->matmul(j->w, j->x, j->w->n_in, j->y, j->w->n_out, j->n_rows, begin, end);
}

/* Outputs of the smallest piece of work: whole register blocks; of planes as many blocks as are decoded side by
 * side. */
static size_t grain_of(const struct od_mat *w)
{
	size_t grain = MIN_PIECE_WEIGHTS / (w->n_in + 1) / 8 * 8 + 8;

	if (w->planes == NULL)
		return grain;
	return w->n_in <= OD_PLANES_BLOCK ? 4 * (OD_PLANES_BLOCK / w->n_in) : 4;
}

static void run_job(struct od_pool *pool, struct matmul_job *j)
{
	size_t grain = grain_of(j->w);

	od_pool_for(pool, j->w->n_out, grain, matmul_piece, j);
}

/* As many rows at a time as fit; at least one does. */
static __attribute__((noinline)) void matmul_act8(struct matmul_job j, struct od_pool *pool)
{
	_Alignas(OD_LINE_BYTES) int8_t q[ACT8_BLOCKS * OD_QUANT_GROUP];
	float scale[ACT8_BLOCKS];
	const struct od_act8 act8 = { .q = q, .scale = scale };
	size_t n_in = j.w->n_in, blocks = od_quant_groups(n_in), fit = ACT8_BLOCKS / blocks;

	j.act8 = &act8;
	for (size_t left = j.n_rows; left > 0; left -= j.n_rows) {
		j.n_rows = left < fit ? left : fit;
		for (size_t r = 0; r < j.n_rows; r++)
			j.be->round_int8(q + r * blocks * OD_QUANT_GROUP, scale + r * blocks, j.x + r * n_in, n_in,
					 j.w->dtype);
		run_job(pool, &j);
		j.x += j.n_rows * n_in;
		j.y += j.n_rows * j.w->n_out;
	}
}

void od_matmul(const struct od_backend *be, struct od_pool *pool, const struct od_mat *w, const float *x, float *y,
	       size_t n_rows)
{
	struct matmul_job job = { .be = be, .w = w, .x = x, .y = y, .n_rows = n_rows };
	bool quantised = w->scales.at == NULL && (w->dtype == OD_INT8 || w->dtype == OD_NF4);

	if (n_rows == 0)
		return;
	if (quantised && w->act == OD_ACT_INT8 && w->n_in > 0 && w->n_in <= OD_ACT8_MAX_IN)
		matmul_act8(job, pool);
	else
		run_job(pool, &job);
}
