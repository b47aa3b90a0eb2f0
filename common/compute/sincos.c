#include "common/compute/sincos.h"

#include "common/base/same_math.h"

void od_sincos(double x, double *sin_x, double *cos_x)
{
	od_sincos_same(x, sin_x, cos_x);
}
