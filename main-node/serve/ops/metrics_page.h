/* metrics_page.h - /metrics: the endpoint, which puts together what metrics.h and process_metrics.h write.
 *
 * Thread: the HTTP thread. */
#ifndef ODM_METRICS_PAGE_H
#define ODM_METRICS_PAGE_H

#include "main-node/serve/http/exchange.h"

extern const struct odm_endpoint odm_metrics_endpoint;

#endif
