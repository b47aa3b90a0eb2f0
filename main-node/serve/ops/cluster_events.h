/* cluster_events.h - /cluster/events: the state of /cluster once a second, and what steps did at most four times a
 * second, as server-sent events for the page.
 *
 * Each event is made once for all watchers. A watcher that has not taken all of the last ones misses the next. Steps
 * are recorded only while there are watchers (main-node/step/timeline.h).
 * Thread: the HTTP thread. Owner: the server. */
#ifndef ODM_CLUSTER_EVENTS_H
#define ODM_CLUSTER_EVENTS_H

#include <uv.h>

#include "main-node/serve/app.h"

#define ODM_MAX_WATCHERS 8

struct odm_cluster_events;

extern const struct odm_endpoint odm_cluster_events_endpoint;

struct odm_cluster_events *odm_cluster_events_new(struct odm_app *app, uv_loop_t *loop); /* NULL: out of memory */
/* When no exchange is left. It is freed when the loop has run once more. NULL ok. */
void odm_cluster_events_close(struct odm_cluster_events *c);

#endif
