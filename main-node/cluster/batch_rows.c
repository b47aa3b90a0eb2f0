#include "main-node/cluster/batch_rows.h"

#include <math.h>

#define LEAST_BYTES 65536 /* fewer say more about the scheduling of processes */
#define FEWEST 2 /* layers, before it is known */
#define FAST_NS 2.5 /* a byte: 3.2 Gbit/s, where copying takes about as long */
#define MOST_BATCHES 16 /* a sixteenth of the rows at the end costs little */

void odm_port_begin(struct odm_port_times *p)
{
	p->begun_ns = 0;
	p->sent = 0;
	p->answered = 0;
	p->longest = 0;
	p->bytes = 0;
}

void odm_port_sent(struct odm_port_times *p, size_t bytes, uint64_t now)
{
	if (p->sent == 0)
		p->begun_ns = now;
	p->sent += bytes;
}

void odm_port_answered(struct odm_port_times *p, size_t bytes, double worked_ns, uint64_t now)
{
	const double ns = (double)(now - p->begun_ns) - worked_ns;

	p->answered += bytes;
	if (ns <= p->longest)
		return;
	p->longest = ns;
	p->bytes = p->answered;
}

void odm_port_end(struct odm_port_times *p)
{
	if (p->sent >= LEAST_BYTES && p->longest > 0)
		p->byte[p->n++ % ODM_PORT_SAMPLES] = p->longest / (double)(p->sent + p->bytes);
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

/* From a layer's beginning to that of the next one. */
static double layer_ns(const struct odm_batch_work *w, double way, uint32_t batches)
{
	const double part = way / batches, run = w->run + w->rows / batches,
		     through = 2 * part + run + (batches - 1) * fmax(part, run);

	return w->half ? fmax(through + w->main, 2 * fmax(way, batches * run)) : through;
}

uint32_t odm_batch_rows(const struct odm_port_times *p, const struct odm_batch_work *w)
{
	const double way = (double)w->n_rows * w->row_bytes * byte_of(p);
	double best_ns = layer_ns(w, way, 1);
	uint32_t best = 1;

	for (uint32_t n = 2; n <= MOST_BATCHES && w->run > 0; n++) {
		const double ns = layer_ns(w, way, n);

		if (ns < best_ns) {
			best_ns = ns;
			best = n;
		}
	}
	return (uint32_t)((w->n_rows + best - 1) / best);
}
