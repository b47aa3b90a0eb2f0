/* process_metrics.h - the metrics that every Prometheus exporter has of its own process; from /proc.
 *
 * Thread: the HTTP thread. */
#ifndef ODM_PROCESS_METRICS_H
#define ODM_PROCESS_METRICS_H

#include "common/base/strbuf.h"

/* Appends processor time, resident memory, descriptors and the start of this process. */
void odm_process_metrics_write(struct od_strbuf *out);

#endif
