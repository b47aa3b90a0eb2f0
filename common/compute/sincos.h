/* sincos.h - angles of RoPE. Thread: any; a pure function. */
#ifndef OD_COMPUTE_SINCOS_H
#define OD_COMPUTE_SINCOS_H

/* sin and cos, bit-identical on every CPU (libm's differ between versions and CPUs); |x| < 2^20. */
void od_sincos(double x, double *sin_x, double *cos_x);

#endif
