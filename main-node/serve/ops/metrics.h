/* metrics.h - /metrics: what the server and the daemons have counted, as Prometheus reads it (docs/METRICS.md).
 *
 * Main's own counters come from the engine's report, those of daemons (labels worker, shadow: host:port) from their
 * last PONG, so they grow while texts are generated. Times are in seconds. Histograms are of texts.
 * Thread: any (a monitor). Owner: the server. */
#ifndef ODM_METRICS_H
#define ODM_METRICS_H

#include "common/base/strbuf.h"
#include "main-node/engine/engine.h"

struct odm_metrics;
struct odm_metrics *odm_metrics_new(void); /* NULL: out of memory */
void odm_metrics_free(struct odm_metrics *m); /* NULL ok */

/* A text's first step begins; it has its first token; it has ended. ns: since it was submitted; rc: its error or
 * OD_OK. */
void odm_metrics_begun(struct odm_metrics *m, uint64_t ns);
void odm_metrics_first_token(struct odm_metrics *m, uint64_t ns);
void odm_metrics_ended(struct odm_metrics *m, const struct odm_result *r, int rc);

/* Each appends metrics with their HELP and TYPE. */
void odm_metrics_write(struct odm_metrics *m, struct od_strbuf *out); /* counts texts that have begun or ended */
void odm_metrics_write_report(struct od_strbuf *out, const struct odm_report *r);
void odm_metrics_write_nodes(struct od_strbuf *out, const struct odm_figures *nodes);
void odm_metrics_gauge(struct od_strbuf *out, const char *name, const char *help, double value);
void odm_metrics_counter(struct od_strbuf *out, const char *name, const char *help, double value);

#endif
