/* metrics.h - /metrics: what the server and the daemons have counted, as Prometheus reads it.
 *
 * Names come from the table of counters (common/base/counters.h): od_main_ for what requests counted, od_worker_ and od_shadow_
 * (with the label node) for what daemons counted, by their last report; times in seconds. Further: gauges of requests, and
 * histograms of the time to the first token, the time per further token, and the time in the queue.
 * Thread: any (a monitor). Owner: the server. */
#ifndef ODM_METRICS_H
#define ODM_METRICS_H

#include "common/base/strbuf.h"
#include "main-node/engine/engine.h"

struct odm_metrics;
struct odm_metrics *odm_metrics_new(void); /* NULL: out of memory */
void odm_metrics_free(struct odm_metrics *m); /* NULL ok */

/* A text's first step begins; it has its first token; it has ended. ns: since it came; rc: its error or OD_OK. */
void odm_metrics_begun(struct odm_metrics *m, uint64_t ns);
void odm_metrics_first_token(struct odm_metrics *m, uint64_t ns);
void odm_metrics_ended(struct odm_metrics *m, const struct odm_result *r, int rc);
/* Appends everything. */
void odm_metrics_write(struct odm_metrics *m, struct od_strbuf *out);
void odm_metrics_gauge(struct od_strbuf *out, const char *name, const char *help, double value);

/* The Prometheus name of a counter, "od_worker_load_seconds_total", in buf; of: OD_OF_*, one of them. Returns buf. */
const char *odm_metrics_name(enum od_counter c, unsigned of, char *buf, size_t size);

#endif
