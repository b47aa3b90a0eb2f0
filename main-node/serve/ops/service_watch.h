/* service_watch.h - od-main serve as a service: feeds the service manager's watchdog while the engine's thread gets on,
 * tells how many texts there are, and reads the peers file again at SIGHUP where no hosts file is read again (cluster.c
 * does that).
 *
 * Thread: the loop's. Owner: the caller; plain data. */
#ifndef ODM_SERVICE_WATCH_H
#define ODM_SERVICE_WATCH_H

#include <uv.h>

#include "main-node/serve/jobs/engine_thread.h"

struct odm_service_watch {
	struct odm_engine_thread *thread; /* NULL until ready */
	uv_timer_t watchdog;
	uv_signal_t hangup;
	char serves[400]; /* names the model and the address */
	bool stopping;
};

/* reads_peers: SIGHUP is handled here. */
void odm_service_watch_open(struct odm_service_watch *w, uv_loop_t *loop, bool reads_peers);
/* The engine is open: from now on the watchdog is fed. */
void odm_service_watch_ready(struct odm_service_watch *w, struct odm_engine_thread *thread, const char *model,
			     const char *address);
/* No more requests are taken; open ones may end within limit_ns. */
void odm_service_watch_stopping(struct odm_service_watch *w, uint64_t limit_ns);
void odm_service_watch_close(struct odm_service_watch *w); /* its handles end when the loop runs next */

#endif
