#include "main-node/serve/ops/cluster_events.h"

#include "common/base/strbuf.h"
#include "main-node/engine/engine.h"
#include "main-node/serve/http/http.h"
#include "main-node/serve/jobs/engine_thread.h"
#include "main-node/serve/ops/cluster_state.h"
#include "main-node/serve/ops/step_json.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_MS 250
#define LOOKS_PER_STATE 4

/* The newest event of a kind. */
struct event {
	char *text;
	size_t len;
	uint64_t number; /* 0: there was none */
};

struct odm_cluster_events {
	struct odm_app *app;
	uv_timer_t timer; /* runs while there are watchers */
	struct odm_exchange *watcher[ODM_MAX_WATCHERS];
	size_t n_watchers;
	unsigned look;
	bool recording;
	struct event state, steps;
};

/* The newest events that a watcher was sent. */
struct seen {
	uint64_t state, steps;
};

static void set_event(struct event *e, const char *type, char *json, size_t len)
{
	struct od_strbuf out = { 0 };

	if (json == NULL)
		return; /* out of memory: the watchers miss it */
	od_strbuf_printf(&out, "event: %s\ndata: ", type);
	od_strbuf_append(&out, json, len);
	od_strbuf_append(&out, "\n\n", 2);
	free(json);
	json = od_strbuf_take(&out, &len);
	if (json == NULL)
		return;
	free(e->text);
	*e = (struct event){ .text = json, .len = len, .number = e->number + 1 };
}

static void make_state(struct odm_cluster_events *c)
{
	json_t *o = odm_cluster_state(c->app);
	char *text = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;

	json_decref(o);
	set_event(&c->state, "state", text, text != NULL ? strlen(text) : 0);
}

/* NULL: the model is not loaded, or no longer. */
static struct odm_timeline *timeline_of(const struct odm_cluster_events *c)
{
	const struct odm_engine *e = odm_engine_thread_engine(c->app->thread);

	return e != NULL ? odm_engine_timeline(e) : NULL;
}

static void make_steps(struct odm_cluster_events *c)
{
	struct odm_timeline *t = timeline_of(c);
	size_t len;
	char *text;

	if (t == NULL)
		return;
	if (!c->recording)
		odm_timeline_watch(t, true);
	c->recording = true;
	text = odm_steps_json(t, &len);
	if (text != NULL)
		set_event(&c->steps, "steps", text, len);
}

static void on_timer(uv_timer_t *timer)
{
	struct odm_cluster_events *c = timer->data;

	make_steps(c);
	if (++c->look % LOOKS_PER_STATE == 0)
		make_state(c);
	for (size_t i = 0; i < c->n_watchers; i++)
		odm_exchange_wake(c->watcher[i]);
}

static void write_event(struct odm_exchange *x, const struct event *e, uint64_t *seen)
{
	if (e->number == *seen)
		return;
	odm_exchange_write(x, e->text, e->len);
	*seen = e->number;
}

static void news(struct odm_exchange *x)
{
	const struct odm_app *app = odm_app_of(x);
	struct seen *seen = odm_exchange_state(x);

	if (odm_http_draining(app->http)) {
		odm_exchange_end(x);
		return;
	}
	if (odm_exchange_unsent(x) > 0)
		return;
	write_event(x, &app->events->state, &seen->state);
	write_event(x, &app->events->steps, &seen->steps);
}

static void start(struct odm_exchange *x)
{
	struct odm_cluster_events *c = odm_app_of(x)->events;
	struct odm_api_error e;
	struct seen *seen;

	if (c->n_watchers == ODM_MAX_WATCHERS) {
		odm_api_fail(&e, 429, NULL, OD_ERR_BUSY, "%d others watch already; try again later", ODM_MAX_WATCHERS);
		odm_exchange_fail(x, &e);
		return;
	}
	seen = odm_exchange_new_state(x, sizeof(*seen));
	if (seen == NULL)
		return;
	if (c->n_watchers == 0) {
		c->look = 0;
		make_state(c);
		make_steps(c);
		uv_timer_start(&c->timer, on_timer, LOOK_MS, LOOK_MS);
	}
	seen->steps = c->steps.number; /* older steps are of no interest */
	c->watcher[c->n_watchers++] = x;
	odm_exchange_stream(x);
	news(x);
}

static void gone(struct odm_exchange *x)
{
	struct odm_cluster_events *c = odm_app_of(x)->events;
	struct odm_timeline *t = timeline_of(c);
	size_t i = 0;

	while (i < c->n_watchers && c->watcher[i] != x)
		i++;
	if (i == c->n_watchers)
		return; /* it was refused */
	c->watcher[i] = c->watcher[--c->n_watchers];
	if (c->n_watchers > 0)
		return;
	uv_timer_stop(&c->timer);
	if (t != NULL)
		odm_timeline_watch(t, false);
	c->recording = false;
}

const struct odm_endpoint odm_cluster_events_endpoint = {
	.method = "GET",
	.path = "/cluster/events",
	.flags = ODM_ENDPOINT_PROBE,
	.start = start,
	.news = news,
	.gone = gone,
	.free_state = free,
};

struct odm_cluster_events *odm_cluster_events_new(struct odm_app *app, uv_loop_t *loop)
{
	struct odm_cluster_events *c = calloc(1, sizeof(*c));

	if (c == NULL)
		return NULL;
	c->app = app;
	uv_timer_init(loop, &c->timer);
	c->timer.data = c;
	return c;
}

static void on_closed(uv_handle_t *handle)
{
	struct odm_cluster_events *c = handle->data;

	free(c->state.text);
	free(c->steps.text);
	free(c);
}

void odm_cluster_events_close(struct odm_cluster_events *c)
{
	if (c != NULL)
		uv_close((uv_handle_t *)&c->timer, on_closed);
}
