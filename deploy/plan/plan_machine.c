#include "deploy/plan/plan_machine.h"

#include <math.h>

#define NS_PER_S 1e9

/* 0: no limit. */
static double at_rate(double amount, double rate)
{
	return rate > 0 ? amount / rate * NS_PER_S : 0;
}

double odp_product_ns(const struct odp_machine *m, double weights, double rows)
{
	return rows > 0 ? fmax(at_rate(weights, m->speed), at_rate(weights * rows, m->many)) : 0;
}

double odp_port_ns(const struct odp_machine *m, double bytes)
{
	return at_rate(bytes, m->link_rate);
}

double odp_load_ns(const struct odp_machine *m, double bytes)
{
	return at_rate(bytes, m->read_rate);
}
