/* Few rows with planes, with BF16 dot instructions: sums as in cpu_avx512bf16.c, class OD_CLASS_BF16DOT. Compiled with
 * the flags in rules.mk; runs only where the CPU has what both cpu_avx512vbmi2.c and cpu_avx512bf16.c need. */
#include "common/compute/cpu/vec_avx512.h"

#include "common/compute/cpu/cpu_tiles.h"

/* Unpacking bytes to words works in each quarter of a register by itself: quarter q begins with weights 8q to 8q + 7 of
 * each 32. */
static ALWAYS_INLINE __m512i fused_order(void)
{
	return _mm512_setr_epi32(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
}

enum { FUSED_VECTORS = 2 };
typedef __m512bh row_vector;

static ALWAYS_INLINE row_vector load_row_vector(const float *x, size_t index)
{
	return _mm512_cvtne2ps_pbh(v16_load(x + 32 * index + 16), v16_load(x + 32 * index));
}

static ALWAYS_INLINE v16 add_vector(v16 sum, const __m512i *words, size_t index, row_vector x)
{
	return _mm512_dpbf16_ps(sum, (__m512bh)words[index], x);
}

#include "common/compute/cpu/cpu_planes_fused.h"

void od_cpu_put_avx512bf16vbmi2(struct od_backend *t)
{
	t->matmul_planes = matmul_fused;
}
