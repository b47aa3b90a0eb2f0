/* batch_rows.h - how many rows of a prompt a RUN should have.
 *
 * All RUNs of a layer share main's port. Where that takes long, the rows of a layer are sent in batches, so that
 * workers begin early and results return while rows are sent. Batches pass through three machines in a row, the way
 * there, the worker and the way back, and each batch costs a run with few rows more: so there are as many as end first.
 * Where rows travel fast, a layer is one batch.
 * A byte's time is measured by the RUNs of a layer's first batch: from the first one's sending to the answer that was
 * on its way longest, without what its worker says it waited and computed. All connections share the port, so by then
 * all these RUNs' bytes have passed, and so have other answers. Probes of single links (link_cost.h) do not show what
 * all take together, and a token bucket lets them pass at once.
 * Thread: the engine thread. Owner: the cluster service; plain data. Times in ns. */
#ifndef ODM_BATCH_ROWS_H
#define ODM_BATCH_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ODM_PORT_SAMPLES 7

/* All zero: nothing is known. */
struct odm_port_times {
	double byte[ODM_PORT_SAMPLES]; /* a ring: the newest layers with many bytes */
	uint32_t n;
	/* The current layer's first batch: bytes sent, since when, and of answers; the longest way, and the answers'
	 * bytes until then. */
	uint64_t sent, begun_ns, answered, bytes;
	double longest;
};

void odm_port_begin(struct odm_port_times *p); /* a layer */
void odm_port_sent(struct odm_port_times *p, size_t bytes, uint64_t now); /* a RUN of its first batch */
/* An answer to one. worked_ns: what the worker waited and computed. */
void odm_port_answered(struct odm_port_times *p, size_t bytes, double worked_ns, uint64_t now);
void odm_port_end(struct odm_port_times *p); /* the layer is through */

bool odm_port_binds(const struct odm_port_times *p); /* rows do not travel fast; false as long as it is not known */
/* Describes a layer. Times are those of its slowest worker. */
struct odm_batch_work {
	size_t n_rows;
	double row_bytes; /* bytes of a row to all of its workers */
	double run; /* RUNs of a batch take this whatever their rows; 0: not known */
	double rows; /* all rows together take this besides */
	/* The rows are half of the step's (prompt_rows.h): port and workers have as much to do for the other half, and
	 * main computes for so long between a layer's results and the next layer's rows. */
	bool half;
	double main;
};

/* Returns the rows of a batch. */
uint32_t odm_batch_rows(const struct odm_port_times *p, const struct odm_batch_work *w);

#endif
