/* cpu_scalar.h - single numbers as the tables (backend.h) compute them. Thread: any; a pure function. */
#ifndef OD_COMPUTE_CPU_SCALAR_H
#define OD_COMPUTE_CPU_SCALAR_H

/* exp, bit-identical on every CPU, accurate to 1 ulp; used by softmax, silu_mul and attend. */
float od_exp(float x);

#endif
