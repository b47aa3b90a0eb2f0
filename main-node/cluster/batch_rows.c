#include "main-node/cluster/batch_rows.h"

#include <math.h>

#define LEAST_BYTES 65536 /* fewer say more about the scheduling of processes */
#define FEWEST 2 /* layers, before it is known */
#define FAST_NS 2.5 /* a byte: 3.2 Gbit/s, where copying takes about as long */
#define MOST_BATCHES 16 /* a sixteenth of the rows at the end costs little */

void odm_port_begin(struct odm_port_times *p)
{
	p->sent = p->answered = 0;
	p->least = INFINITY;
}

uint64_t odm_port_sent(struct odm_port_times *p, size_t bytes)
{
	return p->sent += bytes;
}

void odm_port_answered(struct odm_port_times *p, size_t bytes, uint64_t sent, double ns)
{
	const double all = (double)(sent + (p->answered += bytes));

	if (all >= LEAST_BYTES)
		p->least = fmin(p->least, fmax(ns, 0) / all);
}

void odm_port_end(struct odm_port_times *p)
{
	if (isfinite(p->least))
		p->byte[p->n++ % ODM_PORT_SAMPLES] = p->least;
	if (p->n == 2 * ODM_PORT_SAMPLES) /* it never overflows */
		p->n = ODM_PORT_SAMPLES;
}

/* 0: fast, or not known. The least one, because a busy machine makes some longer, and a batch that is too large costs
 * little. */
static double byte_of(const struct odm_port_times *p)
{
	double least = p->byte[0];

	for (uint32_t i = 1; i < p->n && i < ODM_PORT_SAMPLES; i++)
		least = fmin(least, p->byte[i]);
	return p->n >= FEWEST && least > FAST_NS ? least : 0;
}

bool odm_port_binds(const struct odm_port_times *p)
{
	return byte_of(p) > 0;
}

uint32_t odm_batch_rows(const struct odm_port_times *p, double row_bytes, double run_ns, size_t n_rows)
{
	const double batches = run_ns > 0 ? fmin((double)n_rows * row_bytes * byte_of(p) / run_ns, MOST_BATCHES) : 1;
	const size_t n = batches < 2 ? 1 : (size_t)batches;

	return (uint32_t)((n_rows + n - 1) / n);
}
