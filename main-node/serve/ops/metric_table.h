/* metric_table.h - which counters /metrics shows, under which names: one table, which docs/METRICS.md repeats.
 *
 * Thread: constant data. */
#ifndef ODM_METRIC_TABLE_H
#define ODM_METRIC_TABLE_H

#include "common/base/counters.h"

/* A counter of main (OD_OF_REQUEST, summed over texts) or of daemons (one OD_OF_*). Rows of one name follow one
 * another. */
struct odm_metric {
	const char *name; /* "od_worker_load_seconds_total" */
	const char *label; /* further label, "kept=\"full\""; NULL: none */
	const char *help;
	enum od_counter counter;
	unsigned of;
};
extern const struct odm_metric odm_metric_table[]; /* ends with a NULL name */

#endif
