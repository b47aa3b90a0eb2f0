#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/compute/backend.h"

/* pi/2 as the sum of two doubles; what is left (1.5e-33) times 2^20 is far below the last bit. */
#define PIO2_HI 0x1.921fb54442d18p+0
#define PIO2_LO 0x1.1a62633145c07p-54
#define TWO_OVER_PI 0x1.45f306dc9c883p-1

/* Adding it leaves a double that ends in the nearest integer: rounding without a call that may differ. */
#define ROUND_MAGIC 0x1.8p52

/* Taylor series on [-pi/4, pi/4]; the first missing term is below 1e-19. Only fma, add and mul: those are
 * exact by IEEE 754 on every CPU, which libm's sin is not. */
static const double sin_term[] = {
	-1.0 / 6,	      1.0 / 120,	  -1.0 / 5040,		1.0 / 362880,
	-1.0 / 39916800,      1.0 / 6227020800.0, -1.0 / 1307674368000.0, 1.0 / 355687428096000.0,
};
static const double cos_term[] = {
	-1.0 / 2,	  1.0 / 24,		 -1.0 / 720,		  1.0 / 40320,
	-1.0 / 3628800,	  1.0 / 479001600,	 -1.0 / 87178291200.0,	  1.0 / 20922789888000.0,
	-1.0 / 6402373705728000.0,
};

static double horner(const double *term, int n, double z)
{
	double p = term[n - 1];

	for (int i = n - 2; i >= 0; i--)
		p = fma(p, z, term[i]);
	return p;
}

void od_sincos(double x, double *sin_x, double *cos_x)
{
	double shifted = fma(x, TWO_OVER_PI, ROUND_MAGIC), n = shifted - ROUND_MAGIC, r, z, s, c;
	uint64_t quadrant;

	memcpy(&quadrant, &shifted, sizeof(quadrant));
	/* The first step is exact (n * PIO2_HI is a multiple of 2^-52 and the difference below 1); the second
	 * rounds once, by at most 2^-54. */
	r = fma(-n, PIO2_HI, x);
	r = fma(-n, PIO2_LO, r);
	z = r * r;
	s = fma(r * z, horner(sin_term, sizeof(sin_term) / sizeof(sin_term[0]), z), r);
	c = fma(z, horner(cos_term, sizeof(cos_term) / sizeof(cos_term[0]), z), 1.0);
	switch (quadrant & 3u) {
	case 0: *sin_x = s, *cos_x = c; break;
	case 1: *sin_x = c, *cos_x = -s; break;
	case 2: *sin_x = -s, *cos_x = -c; break;
	case 3: *sin_x = -c, *cos_x = s; break;
	}
}
