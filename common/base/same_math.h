/* same_math.h - exp, log, sine and cosine whose results have the same bits everywhere. A C library chooses its own by
 * CPU, and the last bit can decide which of two tokens is chosen. Thread: any. */
#ifndef OD_BASE_SAME_MATH_H
#define OD_BASE_SAME_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define OD_SAME static inline __host__ __device__
#else
#define OD_SAME static inline
#endif

#define OD_LN2_HI 0x1.62e42fefa0000p-1 /* exponents times it are exact */
#define OD_LN2_LO 0x1.cf79abc9e3b3ap-40

/* exp for x <= 0 from additions and multiplications only. Good to 1e-15. */
OD_SAME double od_exp_same(double x)
{
	/* 1 / i!; the next term is below 2^-52. */
	static const double c[] = {
		1,	   1,	       1 / 2.,	    1 / 6.,	  1 / 24.,	 1 / 120.,	1 / 720.,
		1 / 5040., 1 / 40320., 1 / 362880., 1 / 3628800., 1 / 39916800., 1 / 479001600.
	};
	const double y = x > -700 ? x : 0; /* else smaller than anything a sum of probabilities notices; -inf */
	const int32_t n = (int32_t)(y * 0x1.71547652b82fep+0 - 0.5); /* towards zero, so the nearest */
	const double r = (y - (double)n * OD_LN2_HI) - (double)n * OD_LN2_LO; /* |r| <= ln2 / 2 */
	const uint64_t bits = (uint64_t)(uint32_t)(n + 1023) << 52;
	double sum = 0, scale;

	/* No branches: then a loop over many becomes vectors. */
	for (int i = (int)(sizeof(c) / sizeof(c[0])) - 1; i >= 0; i--)
		sum = c[i] + sum * r;
	memcpy(&scale, &bits, sizeof(scale));
	sum *= scale;
	return x > -700 ? sum : 0;
}

/* log for any normal x > 0 from the operations that IEEE 754 rounds exactly: x = 2^n * m with
 * m from sqrt(1/2) to sqrt(2), and log(m) = 2 atanh((m - 1) / (m + 1)). Good to 1e-15 of the result, near 1 too. */
OD_SAME double od_log_same(double x)
{
	const uint64_t sqrt_half = 0x3fe6a09e667f3bcdu;
	/* 2 / (2 i + 1); the next term is below 2^-53 of the first. */
	static const double c[] = { 2, 2 / 3., 2 / 5., 2 / 7., 2 / 9., 2 / 11., 2 / 13., 2 / 15., 2 / 17., 2 / 19. };
	uint64_t bits;
	int32_t n;
	double m, r, rr, sum = 0;

	memcpy(&bits, &x, sizeof(bits));
	n = (int32_t)((bits - sqrt_half + (1024ull << 52)) >> 52) - 1024;
	bits -= (uint64_t)n << 52;
	memcpy(&m, &bits, sizeof(m));
	r = (m - 1) / (m + 1);
	rr = r * r;
	for (int i = (int)(sizeof(c) / sizeof(c[0])) - 1; i >= 0; i--)
		sum = c[i] + sum * rr;
	return n * OD_LN2_HI + (n * OD_LN2_LO + r * sum);
}

/* pi/2 as the sum of two doubles; what is left (1.5e-33) times 2^20 is far below the last bit. */
#define OD_PIO2_HI 0x1.921fb54442d18p+0
#define OD_PIO2_LO 0x1.1a62633145c07p-54
#define OD_TWO_OVER_PI 0x1.45f306dc9c883p-1
/* Adding it leaves a double that ends in the nearest integer: rounding without a call that may differ. */
#define OD_ROUND_MAGIC 0x1.8p52

/* Sine and cosine of |x| < 2^20. Taylor series on [-pi/4, pi/4]; the first missing term is below 1e-19. Only fma, add
 * and mul: those are exact by IEEE 754 on every processor, which a library's sin is not. */
OD_SAME void od_sincos_same(double x, double *sin_x, double *cos_x)
{
	static const double sin_term[] = {
		-1.0 / 6,
		1.0 / 120,
		-1.0 / 5040,
		1.0 / 362880,
		-1.0 / 39916800,
		1.0 / 6227020800.0,
		-1.0 / 1307674368000.0,
		1.0 / 355687428096000.0,
	};
	static const double cos_term[] = {
		-1.0 / 2,
		1.0 / 24,
		-1.0 / 720,
		1.0 / 40320,
		-1.0 / 3628800,
		1.0 / 479001600,
		-1.0 / 87178291200.0,
		1.0 / 20922789888000.0,
		-1.0 / 6402373705728000.0,
	};
	const double shifted = fma(x, OD_TWO_OVER_PI, OD_ROUND_MAGIC), n = shifted - OD_ROUND_MAGIC;
	/* The first step is exact (n * OD_PIO2_HI is a multiple of 2^-52 and the difference below 1); the second
	 * rounds once, by at most 2^-54. */
	const double r = fma(-n, OD_PIO2_LO, fma(-n, OD_PIO2_HI, x)), z = r * r;
	double ps = sin_term[7], pc = cos_term[8], s, c;
	uint64_t quadrant;

	memcpy(&quadrant, &shifted, sizeof(quadrant));
	for (int i = 6; i >= 0; i--)
		ps = fma(ps, z, sin_term[i]);
	for (int i = 7; i >= 0; i--)
		pc = fma(pc, z, cos_term[i]);
	s = fma(r * z, ps, r);
	c = fma(z, pc, 1.0);
	switch (quadrant & 3u) {
	case 0: *sin_x = s, *cos_x = c; break;
	case 1: *sin_x = c, *cos_x = -s; break;
	case 2: *sin_x = -s, *cos_x = -c; break;
	default: *sin_x = -c, *cos_x = s; break;
	}
}

#endif
