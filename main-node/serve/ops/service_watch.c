#include "main-node/serve/ops/service_watch.h"

#include "common/base/clock.h"
#include "common/base/hangup.h"
#include "common/base/log.h"
#include "common/base/notify.h"

#include <signal.h>
#include <stdio.h>

static void on_watchdog(uv_timer_t *timer)
{
	struct odm_service_watch *w = timer->data;
	struct odm_engine_activity a;

	if (!odm_engine_thread_alive(w->thread)) {
		od_log_limited(OD_LOG_ERROR, "the engine makes no progress: the watchdog is not fed");
		return;
	}
	od_notify_alive();
	odm_engine_thread_activity(w->thread, &a);
	if (!w->stopping)
		od_notify_status("%s; texts: %zu running, %zu waiting", w->serves, a.running, a.waiting);
}

static void on_hangup(uv_signal_t *signal, int number)
{
	struct odm_service_watch *w = signal->data;
	struct od_err err;

	(void)number;
	if (w->thread == NULL)
		return; /* the files are read after this */
	od_notify_reloading();
	if (odm_engine_thread_reload_peers(w->thread, &err) != OD_OK)
		od_log(OD_LOG_ERROR, "SIGHUP: %s", err.msg);
	od_notify_reloaded();
}

void odm_service_watch_open(struct odm_service_watch *w, uv_loop_t *loop, bool reads_peers)
{
	*w = (struct odm_service_watch){ 0 };
	uv_timer_init(loop, &w->watchdog);
	uv_signal_init(loop, &w->hangup);
	w->watchdog.data = w->hangup.data = w;
	if (reads_peers) {
		uv_signal_start(&w->hangup, on_hangup, SIGHUP);
		od_hangup_listened();
	}
	od_notify_status("loading the model, or waiting for workers");
}

void odm_service_watch_ready(struct odm_service_watch *w, struct odm_engine_thread *thread, const char *model,
			     const char *address)
{
	const uint64_t ms = od_notify_watchdog_ns() / OD_NS_PER_MS;

	w->thread = thread;
	snprintf(w->serves, sizeof(w->serves), "serves %s on %s", model, address);
	od_notify_ready("%s", w->serves);
	if (ms > 0)
		uv_timer_start(&w->watchdog, on_watchdog, ms, ms);
}

void odm_service_watch_stopping(struct odm_service_watch *w, uint64_t limit_ns)
{
	w->stopping = true;
	od_notify_stopping(limit_ns);
}

void odm_service_watch_close(struct odm_service_watch *w)
{
	uv_close((uv_handle_t *)&w->watchdog, NULL);
	uv_close((uv_handle_t *)&w->hangup, NULL);
}
