/* Kernels that gain by VBMI2, VBMI and GFNI: weights with scales, planes, and products of few rows with planes. Sums
 * have 16 lanes as everywhere in class OD_CLASS_FMA16. Compiled with the flags in rules.mk; runs only where the CPU has
 * all of them and AVX-512. */
#include "common/compute/cpu/planes_avx512.h"
#include "common/compute/cpu/vec_avx512.h"

#include "common/compute/cpu/cpu_planes.h"
#include "common/compute/cpu/cpu_scaled_dots.h"

/* Unpacking works in each quarter of a register by itself, twice: bytes to words, words to the upper halves of floats.
 * So quarter q begins with weights 4q to 4q + 3 of each 16. */
static ALWAYS_INLINE __m512i fused_order(void)
{
	return _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
}

enum { FUSED_VECTORS = 4 };
typedef v16 row_vector;

static ALWAYS_INLINE row_vector load_row_vector(const float *x, size_t index)
{
	return v16_load(x + 16 * index);
}

static ALWAYS_INLINE v16 add_vector(v16 sum, const __m512i *words, size_t index, row_vector x)
{
	const __m512i w = words[index / 2], zero = _mm512_setzero_si512();

	return v16_fma(
		_mm512_castsi512_ps(index % 2 == 0 ? _mm512_unpacklo_epi16(zero, w) : _mm512_unpackhi_epi16(zero, w)),
		x, sum);
}

#include "common/compute/cpu/cpu_planes_fused.h"

void od_cpu_put_avx512vbmi2(struct od_backend *t)
{
	planes_kernels(t);
	t->matmul_scaled = matmul_scaled;
	t->matmul_planes = matmul_fused;
	t->likes_planes = true;
}
