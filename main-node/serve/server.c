#include "main-node/serve/server.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/notify.h"
#include "common/pack/gguf/gguf_folder.h"
#include "common/pack/models_folder.h"
#include "main-node/chat/chat_template.h"
#include "main-node/engine/prefix/prefix_folder.h"
#include "main-node/serve/api/api.h"
#include "main-node/serve/api/call_memory.h"
#include "main-node/serve/api/output_form.h"
#include "main-node/serve/ops/cluster_events.h"
#include "main-node/serve/ops/cluster_state.h"
#include "main-node/serve/ops/health.h"
#include "main-node/serve/http/http.h"
#include "main-node/serve/ops/metrics.h"
#include "main-node/serve/ops/metrics_page.h"
#include "main-node/serve/ops/service_watch.h"
#include "main-node/serve/page/page.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXIT_BY_SIGNAL 128 /* the signal's number is added, as shells do */
#define REQUEST_THREADS 2
#define LAST_WORDS_MS 2000 /* time to send the answers of requests that are cancelled at the end */
#define CALL_MEMORY_CALLS 16384
#define CALL_MEMORY_BYTES ((size_t)4 << 20)
#define N_ENDPOINTS 25
#define FIRST_OF_SPLIT "-00001-of-" /* and five digits */

struct server {
	const struct odm_serve_opts *opts;
	struct odm_app app;
	struct odm_endpoint endpoint[N_ENDPOINTS + ODM_N_REFUSED + 1];
	char pack[PATH_MAX]; /* --pack, or what stands for it */
	char model[256];
	struct odm_chat_template *chat; /* NULL: none */
	char *folder; /* the template's */
	bool temporary; /* the folder goes with the server */
	uv_loop_t loop;
	uv_async_t changed; /* sent when the engine's state changes, or it fails for good */
	uv_signal_t terminate, interrupt;
	uv_timer_t end;
	struct odm_service_watch watch;
	char address[300]; /* HTTP is served here */
	bool drained, failed;
	struct od_err lost; /* a code other than OD_OK: the engine has failed for good, and this process ends */
};

/* ---- Ends ---- */

static void on_end(uv_timer_t *timer)
{
	struct server *s = timer->data;

	od_log(OD_LOG_WARN, "requests that are still open are cancelled");
	uv_stop(&s->loop);
}

static void on_last_words(uv_timer_t *timer)
{
	uv_stop(timer->loop);
}

static void on_drained(void *app)
{
	struct odm_app *a = app;
	struct server *s = (struct server *)((char *)a - offsetof(struct server, app));

	s->drained = true;
	uv_stop(&s->loop);
}

static void drain(struct server *s)
{
	od_log(OD_LOG_INFO, "no more requests are taken; open ones have %g s", s->opts->drain_seconds);
	odm_service_watch_stopping(&s->watch, (uint64_t)(s->opts->drain_seconds * (double)OD_NS_PER_S));
	odm_http_drain(s->app.http);
	uv_timer_start(&s->end, on_end, (uint64_t)(s->opts->drain_seconds * 1e3), 0);
}

static void on_signal(uv_signal_t *signal, int number)
{
	struct server *s = signal->data;

	if (odm_http_draining(s->app.http))
		_exit(EXIT_BY_SIGNAL + number); /* children of --local die with us */
	/* there is nothing to end in order yet */
	if (odm_engine_thread_state(s->app.thread, NULL) == ODM_SERVE_LOADING) {
		od_log(OD_LOG_INFO, "stopping before the model is loaded");
		_exit(0);
	}
	drain(s);
}

/* A server whose engine has failed for good answers open requests with the reason and ends: after a restart it may
 * serve again. */
static void on_lost(struct server *s, const struct od_err *why)
{
	if (odm_http_draining(s->app.http))
		return;
	s->lost = *why;
	od_log(OD_LOG_ERROR, "%s", why->msg);
	drain(s);
	od_notify_status("ending: %s", why->msg);
}

/* ---- The engine ---- */

static void engine_changed(void *arg) /* engine thread */
{
	struct server *s = arg;

	uv_async_send(&s->changed);
}

static void on_changed(uv_async_t *async)
{
	struct server *s = async->data;
	const struct odm_engine *e = odm_engine_thread_engine(s->app.thread);
	struct od_err why;

	if (e == NULL) {
		s->failed = true;
		uv_stop(&s->loop);
		return;
	}
	if (odm_engine_failed(e, &why) != OD_OK) {
		on_lost(s, &why);
		return;
	}
	OD_LOG_EVENT(OD_LOG_INFO, "ready", od_log_text("model", s->app.model),
		     od_log_number("ctx_tokens", odm_engine_ctx(e)), od_log_number("parallel", odm_engine_parallel(e)));
	odm_service_watch_ready(&s->watch, s->app.thread, s->app.model, s->address);
}

/* The engine's thread calls this function and the three below. */
static void engine_opened(void *arg, const struct odm_engine *e)
{
	struct server *s = arg;
	const char *dir = odm_engine_prefix_dir(e);
	char path[PATH_MAX];
	struct od_err err;
	int rc;

	if (dir == NULL)
		return;
	rc = od_path(path, sizeof(path), dir, ODM_PREFIX_CALLS, &err);
	if (rc == OD_OK)
		rc = odm_call_memory_use_file(s->app.calls, path, &err);
	if (rc != OD_OK)
		od_log(OD_LOG_WARN, "%s; after a restart, what these prompts have in the prefix cache may not be found",
		       err.msg);
}

static void text_begun(void *arg, uint64_t ns)
{
	struct server *s = arg;

	odm_metrics_begun(s->app.metrics, ns);
}

static void text_has_first_token(void *arg, uint64_t ns)
{
	struct server *s = arg;

	odm_metrics_first_token(s->app.metrics, ns);
}

static void text_ended(void *arg, const struct odm_result *r, int rc)
{
	struct server *s = arg;
	struct od_err why;

	odm_metrics_ended(s->app.metrics, r, rc);
	if (rc != OD_OK && odm_engine_failed(odm_engine_thread_engine(s->app.thread), &why) != OD_OK)
		uv_async_send(&s->changed);
}

/* ---- Start ---- */

/* The folder that has the template: the pack's, or one in a cache that was made of a GGUF file. Its path is not told to
 * clients. */
static int find_folder(struct server *s, struct od_err *err)
{
	if (od_gguf_is(s->pack))
		return od_gguf_folder_of(s->pack, &s->folder, &s->temporary, err);
	s->folder = strdup(s->pack);
	return s->folder != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "server");
}

/* Without a usable template the other endpoints are served all the same. */
static void open_chat(struct server *s)
{
	int rc = find_folder(s, &s->app.no_chat);

	if (rc == OD_OK)
		rc = odm_chat_template_open(&s->chat, s->folder, &s->app.no_chat);
	if (rc != OD_OK)
		od_log(OD_LOG_WARN, "chat endpoints will refuse: %s", s->app.no_chat.msg);
	s->app.folder = s->folder != NULL ? s->folder : s->pack;
	odm_hide_folder(s->app.no_chat.msg, s->app.folder);
	s->app.chat = s->chat;
}

/* The pack's folder or file gives the name: "/models/talebook.pack/" is called talebook. A file that is a symbolic link
 * keeps its own name: caches of downloads link it to a file that is called by its checksum. The first file of a split
 * one names it without its number. */
static void name_model(struct server *s)
{
	static const char *const suffixes[] = { ".pack", ".gguf" };
	const char *path = s->pack, *slash;
	char real[PATH_MAX];
	size_t len;

	s->app.model_checked = s->opts->model != NULL;
	s->app.model = s->opts->model != NULL ? s->opts->model : s->model;
	memcpy(s->app.alias, s->opts->aliases.value, s->opts->aliases.n * sizeof(s->app.alias[0]));
	s->app.n_aliases = s->opts->aliases.n;
	if (!od_gguf_is(path) && realpath(path, real) != NULL)
		path = real;
	slash = strrchr(path, '/');
	snprintf(s->model, sizeof(s->model), "%s", slash != NULL && slash[1] != '\0' ? slash + 1 : path);
	len = strlen(s->model);
	for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
		const size_t n = strlen(suffixes[i]);

		if (len > n && strcmp(s->model + len - n, suffixes[i]) == 0)
			s->model[len - n] = '\0';
	}
	len = strlen(s->model);
	if (len > strlen(FIRST_OF_SPLIT) + 5 &&
	    strncmp(s->model + len - strlen(FIRST_OF_SPLIT) - 5, FIRST_OF_SPLIT, strlen(FIRST_OF_SPLIT)) == 0)
		s->model[len - strlen(FIRST_OF_SPLIT) - 5] = '\0';
}

static void describe_node(struct server *s)
{
	static const char *const modes[] = {
		[ODM_RESIDENT] = "resident", [ODM_LOCAL] = "cluster", [ODM_WORKERS] = "cluster", [ODM_TIERED] = "memory"
	};
	const struct odm_main_opts *node = &s->opts->node;

	s->app.begun_ns = od_now_ns();
	s->app.mode = modes[node->mode];
	s->app.profile = od_profile_names[node->engine.profile - 1];
	s->app.queue = s->opts->queue;
	s->app.parallel = node->engine.parallel;
}

static void list_endpoints(struct server *s)
{
	const struct odm_endpoint all[N_ENDPOINTS] = {
		odm_completions_endpoint,    odm_chat_completions_endpoint, odm_responses_endpoint,
		odm_messages_endpoint,	     odm_count_tokens_endpoint,	    odm_models_endpoint,
		odm_model_endpoint,	     odm_tokenize_endpoint,	    odm_detokenize_endpoint,
		odm_health_endpoint,	     odm_metrics_endpoint,	    odm_props_endpoint,
		odm_slots_endpoint,	     odm_ollama_chat_endpoint,	    odm_ollama_generate_endpoint,
		odm_ollama_tags_endpoint,    odm_ollama_ps_endpoint,	    odm_ollama_show_endpoint,
		odm_ollama_version_endpoint, odm_choices_endpoint,	    odm_infill_endpoint,
		odm_page_endpoint,	     odm_page_file_endpoint,	    odm_cluster_endpoint,
		odm_cluster_events_endpoint,
	};

	memcpy(s->endpoint, all, sizeof(all));
	memcpy(s->endpoint + N_ENDPOINTS, odm_refused_endpoints, sizeof(odm_refused_endpoints));
}

static void start_handles(struct server *s)
{
	uv_async_init(&s->loop, &s->changed, on_changed);
	uv_signal_init(&s->loop, &s->terminate);
	uv_signal_init(&s->loop, &s->interrupt);
	uv_timer_init(&s->loop, &s->end);
	s->changed.data = s->terminate.data = s->interrupt.data = s->end.data = s;
	uv_signal_start(&s->terminate, on_signal, SIGTERM);
	uv_signal_start(&s->interrupt, on_signal, SIGINT);
	odm_service_watch_open(&s->watch, &s->loop, s->opts->node.cluster.hosts_path == NULL);
}

static int open_http(struct server *s, struct od_err *err)
{
	const struct odm_serve_opts *o = s->opts;
	struct odm_http_opts ho = {
		.endpoints = s->endpoint,
		.app = &s->app,
		.listen = &o->listen,
		.hosts = &o->hosts,
		.keys = o->keys,
		.cert = o->cert,
		.key = o->key,
		.cors = o->cors,
		.max_connections = o->max_connections,
		.max_body_bytes = o->max_body_bytes,
		.header_ns = (uint64_t)(o->header_seconds * (double)OD_NS_PER_S),
		.request_threads = REQUEST_THREADS,
		.drained = on_drained,
	};
	int rc = odm_listen(&o->listen, &ho.listening, err);

	if (rc != OD_OK)
		return rc;
	rc = odm_http_open(&s->app.http, &ho, &s->loop, err);
	if (rc != OD_OK) {
		odm_listening_close(&ho.listening);
		return rc;
	}
	snprintf(s->address, sizeof(s->address), strchr(o->listen.host, ':') != NULL ? "%s://[%s]:%u" : "%s://%s:%u",
		 o->cert != NULL ? "https" : "http", o->listen.host, ho.listening.port);
	od_log(OD_LOG_INFO, "page and API at %s/", s->address);
	return OD_OK;
}

static int start_engine(struct server *s, struct od_err *err)
{
	const struct odm_engine_thread_opts eo = {
		.node = s->opts->node,
		.queue = s->opts->queue,
		.opened = engine_opened,
		.changed = engine_changed,
		.begun = text_begun,
		.first_token = text_has_first_token,
		.ended = text_ended,
		.arg = s,
	};

	return odm_engine_thread_start(&s->app.thread, &eo, err);
}

/* ---- The end ---- */

static void close_handles(struct server *s)
{
	uv_close((uv_handle_t *)&s->changed, NULL);
	uv_close((uv_handle_t *)&s->terminate, NULL);
	uv_close((uv_handle_t *)&s->interrupt, NULL);
	uv_close((uv_handle_t *)&s->end, NULL);
	odm_service_watch_close(&s->watch);
	odm_cluster_events_close(s->app.events);
	uv_run(&s->loop, UV_RUN_DEFAULT);
	uv_loop_close(&s->loop);
}

/* Request threads end first, then the engine, then HTTP: so no thread uses memory that another has freed. */
static int stop(struct server *s, struct od_err *err)
{
	int rc = OD_OK;

	if (s->app.http != NULL)
		odm_http_stop_preparing(s->app.http);
	if (s->failed) {
		(void)odm_engine_thread_state(s->app.thread, err);
		rc = err->code;
	}
	if (s->lost.code != OD_OK) {
		*err = s->lost;
		rc = err->code;
	}
	/* while the engine has the folder's lock */
	if (s->app.calls != NULL && s->app.thread != NULL && odm_engine_thread_engine(s->app.thread) != NULL)
		odm_call_memory_leave_file(s->app.calls);
	if (s->app.thread != NULL && odm_engine_thread_stop(s->app.thread) != OD_OK && rc == OD_OK)
		rc = od_fail(err, OD_ERR_IO, "a part of the output could not be written");
	/* clients whose requests were cancelled get their answers */
	if (s->app.thread != NULL && !s->drained && !s->failed) {
		uv_timer_start(&s->end, on_last_words, LAST_WORDS_MS, 0);
		uv_run(&s->loop, UV_RUN_DEFAULT);
	}
	if (s->app.http != NULL)
		odm_http_close(s->app.http);
	close_handles(s);
	odm_engine_thread_free(s->app.thread);
	odm_constraints_free(s->app.constraints);
	odm_call_memory_free(s->app.calls);
	odm_health_free(s->app.health);
	odm_metrics_free(s->app.metrics);
	odm_chat_template_close(s->chat);
	if (s->temporary)
		od_gguf_folder_remove(s->folder);
	free(s->folder);
	return rc;
}

int odm_serve(const struct odm_serve_opts *opts, struct od_err *err)
{
	struct server *s = calloc(1, sizeof(*s));
	int rc, stopped;
	struct od_err why;

	rc = s != NULL ? od_models_find(s->pack, opts->node.engine.pack, err) : OD_ERR_NOMEM;
	if (rc == OD_OK && uv_loop_init(&s->loop) != 0)
		rc = OD_ERR_NOMEM;
	if (rc != OD_OK) {
		free(s);
		return rc == OD_ERR_NOMEM ? od_fail(err, rc, "server") : rc;
	}
	s->opts = opts;
	s->app.created = (int64_t)time(NULL);
	s->app.metrics = odm_metrics_new();
	s->app.health = odm_health_new();
	s->app.calls = odm_call_memory_new(CALL_MEMORY_CALLS, CALL_MEMORY_BYTES);
	s->app.constraints = odm_constraints_new();
	s->app.events = odm_cluster_events_new(&s->app, &s->loop);
	name_model(s);
	describe_node(s);
	open_chat(s);
	list_endpoints(s);
	start_handles(s);
	if (s->app.metrics == NULL || s->app.health == NULL || s->app.calls == NULL || s->app.constraints == NULL ||
	    s->app.events == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "server");
	if (rc == OD_OK)
		/* HTTP opens first: if the address is in use, the process must fail before it loads a model */
		rc = open_http(s, err);
	if (rc == OD_OK)
		rc = start_engine(s, err);
	if (rc == OD_OK)
		uv_run(&s->loop, UV_RUN_DEFAULT);
	stopped = stop(s, &why);
	free(s);
	if (rc == OD_OK && stopped != OD_OK) {
		*err = why;
		rc = stopped;
	}
	return rc;
}
