#include "main-node/serve/ops/metrics_page.h"

#include "main-node/serve/app.h"
#include "main-node/serve/http/http.h"
#include "main-node/serve/jobs/engine_thread.h"
#include "main-node/serve/ops/metrics.h"
#include "main-node/serve/ops/process_metrics.h"

/* The thread ends only when no request is served any more, so its engine stays. */
static void write_engine(struct odm_engine_thread *t, struct od_strbuf *out)
{
	const struct odm_engine *e = odm_engine_thread_engine(t);
	struct odm_figures nodes = { 0 };
	struct odm_report r;

	if (e == NULL)
		return;
	odm_engine_get_report(e, &r);
	odm_metrics_write_report(out, &r);
	odm_metrics_counter(out, "od_store_served_bytes_total", "Bytes of the pack that workers have pulled from main.",
			    (double)odm_engine_thread_served_bytes(t));
	odm_engine_get_nodes(e, &nodes);
	odm_metrics_write_nodes(out, &nodes);
	odm_figures_fini(&nodes);
}

static void start_metrics(struct odm_exchange *x)
{
	struct odm_app *app = odm_app_of(x);
	struct odm_engine_activity a;
	struct od_strbuf out = { 0 };
	size_t len;
	char *text;

	odm_engine_thread_activity(app->thread, &a);
	odm_metrics_gauge(&out, "od_ready", "1 while the model is loaded.",
			  odm_engine_thread_state(app->thread, NULL) == ODM_SERVE_READY);
	odm_metrics_gauge(&out, "od_requests_open", "Requests that are generated or wait.", (double)a.open_requests);
	odm_metrics_gauge(&out, "od_texts_running",
			  "Texts of which a step has begun: rows of a decode step, without drafts.", (double)a.running);
	odm_metrics_gauge(&out, "od_texts_waiting", "Texts that wait.", (double)a.waiting);
	odm_metrics_gauge(&out, "od_connections", "Open HTTP connections.", (double)odm_http_connections(app->http));
	odm_metrics_write(app->metrics, &out);
	write_engine(app->thread, &out);
	odm_process_metrics_write(&out);
	text = od_strbuf_take(&out, &len);
	odm_exchange_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", text, len);
}

const struct odm_endpoint odm_metrics_endpoint = {
	.method = "GET",
	.path = "/metrics",
	.flags = ODM_ENDPOINT_DRAINING | ODM_ENDPOINT_PROBE,
	.start = start_metrics,
};
