/* batch_rows.h - how many rows of a prompt a RUN should have.
 *
 * All RUNs of a layer share main's port. Where that binds, the rows of a layer are sent in batches, so that workers
 * begin early and results return while rows are sent. A batch is on its way for as long as its RUNs take besides: were
 * it shorter, workers would not keep pace; were it longer, the last results would return later. Where rows travel fast,
 * a layer is one batch.
 * A byte's time is measured by answers to the RUNs of a layer's first batch: the time between sending and the answer,
 * without what the worker says it waited and computed. The quickest answer counts, with all bytes that were sent
 * before it; others may have waited for a processor. Probes of single links (link_cost.h) do not show what all take
 * together.
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
	/* The current layer's first batch: bytes sent, bytes of answers, and the least time of a byte. */
	uint64_t sent, answered;
	double least;
};

void odm_port_begin(struct odm_port_times *p); /* a layer */
/* A RUN of its first batch. Returns the bytes sent up to it. */
uint64_t odm_port_sent(struct odm_port_times *p, size_t bytes);
/* An answer to one, which was on its way for ns, both ways. sent: as odm_port_sent returned. */
void odm_port_answered(struct odm_port_times *p, size_t bytes, uint64_t sent, double ns);
void odm_port_end(struct odm_port_times *p); /* the layer is through */

bool odm_port_binds(const struct odm_port_times *p); /* rows do not travel fast; false as long as it is not known */
/* Rows of a batch of n_rows. row_bytes: of a row to all of its workers. run_ns: what the RUNs of a batch take whatever
 * their rows; 0: not known. */
uint32_t odm_batch_rows(const struct odm_port_times *p, double row_bytes, double run_ns, size_t n_rows);

#endif
