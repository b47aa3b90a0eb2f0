#include "main-node/serve/http/http.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "main-node/serve/http/access_log.h"
#include "main-node/serve/http/connections.h"
#include "main-node/serve/http/exchange_internal.h"
#include "main-node/serve/http/http_header.h"
#include "main-node/serve/http/ready_queue.h"
#include "main-node/serve/http/request_threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define TICK_MS 1000
/* a client that takes nothing for so long is closed, and its request cancelled */
#define WRITE_TIMEOUT_S 60
#define MOST_DISCARDED_BYTES (1ull << 30) /* limit of a refused body's bytes that are read */
#define BODIES 8 /* limit of all bodies in memory, in bodies of full size */
#define STREAM_BLOCK_BYTES 4096

/* libmicrohttpd has one listening socket; connections of the others are given to it. */
struct acceptor {
	struct odm_http *http;
	int fd;
	uv_poll_t poll;
	bool pauses; /* set until the next tick: there are as many connections, or descriptors, as there may be */
};

struct odm_http {
	struct odm_http_opts opts;
	struct acceptor acceptor[ODM_MAX_LISTEN - 1];
	size_t n_acceptors;
	char machine[256], prefix[16];
	uint64_t last_id;
	struct MHD_Daemon *daemon;
	struct MHD_Response *no_memory; /* made at the start, while there is memory */
	uv_loop_t *loop;
	uv_poll_t poll; /* polls libmicrohttpd's epoll descriptor */
	uv_timer_t timeout, tick;
	unsigned n_handles; /* uv handles that are not closed yet */
	struct odm_request_threads *threads;
	struct odm_connections connections;
	struct odm_ready_queue ready;
	struct odm_exchange *open; /* begun, not complete */
	size_t n_open;
	uint64_t body_bytes; /* sum over all exchanges */
	bool draining, drained, closing;
};

/* ---- The loop ---- */

static void on_timeout(uv_timer_t *timer);

static void run_daemon(struct odm_http *h)
{
	MHD_UNSIGNED_LONG_LONG ms;

	odm_connections_look(&h->connections);
	MHD_run(h->daemon);
	if (MHD_get_timeout(h->daemon, &ms) == MHD_YES)
		uv_timer_start(&h->timeout, on_timeout, ms, 0);
	else
		uv_timer_stop(&h->timeout);
	if (h->draining && !h->drained && h->n_open == 0) {
		h->drained = true;
		h->opts.drained(h->opts.app);
	}
}

static void on_timeout(uv_timer_t *timer)
{
	run_daemon(timer->data);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
	(void)status;
	(void)events;
	run_daemon(poll->data);
}

static void on_tick(uv_timer_t *timer);

/* A connection comes to a socket that is not libmicrohttpd's. */
static void on_acceptable(uv_poll_t *poll, int status, int events)
{
	struct acceptor *a = poll->data;
	struct odm_http *h = a->http;
	struct sockaddr_storage from;
	socklen_t len = sizeof(from);
	int fd;

	(void)status;
	(void)events;
	fd = h->connections.n < h->opts.max_connections ?
		     accept4(a->fd, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC) :
		     -1;
	if (fd < 0) {
		a->pauses = true;
		uv_poll_stop(&a->poll);
		uv_timer_start(&h->tick, on_tick, TICK_MS, TICK_MS);
		return;
	}
	MHD_add_connection(h->daemon, fd, (const struct sockaddr *)&from, len); /* closes fd if it fails */
	run_daemon(h);
}

static void resume_accepting(struct odm_http *h)
{
	for (size_t i = 0; i < h->n_acceptors; i++) {
		struct acceptor *a = &h->acceptor[i];

		if (a->pauses && h->connections.n < h->opts.max_connections) {
			a->pauses = false;
			uv_poll_start(&a->poll, UV_READABLE, on_acceptable);
		}
	}
}

static void open_acceptors(struct odm_http *h)
{
	for (size_t i = 1; i < h->opts.listening.n; i++) {
		struct acceptor *a = &h->acceptor[h->n_acceptors++];

		*a = (struct acceptor){ .http = h, .fd = h->opts.listening.fd[i] };
		uv_poll_init(h->loop, &a->poll, a->fd);
		a->poll.data = a;
		h->n_handles++;
		uv_poll_start(&a->poll, UV_READABLE, on_acceptable);
	}
}

/* ---- Waiting ---- */

static void on_watch_closed(uv_handle_t *handle)
{
	free(handle->data);
}

static void watch_close(struct odm_exchange *x)
{
	struct odm_watch *w = x->watch;

	x->watch = NULL;
	if (w == NULL)
		return;
	w->exchange = NULL;
	uv_poll_stop(&w->poll);
	uv_close((uv_handle_t *)&w->poll, on_watch_closed);
}

static void tell_gone(struct odm_exchange *x)
{
	if (x->told_gone || x->phase == ODM_X_RECEIVING || x->phase == ODM_X_PREPARING)
		return;
	x->told_gone = true;
	if (x->endpoint != NULL && x->endpoint->gone != NULL)
		x->endpoint->gone(x);
}

static void resume(struct odm_exchange *x)
{
	if (!x->suspended)
		return;
	x->suspended = false;
	if (x->watch != NULL)
		uv_poll_stop(&x->watch->poll);
	MHD_resume_connection(x->connection);
}

/* The client has gone while its connection was suspended. */
static void on_hangup(uv_poll_t *poll, int status, int events)
{
	struct odm_watch *w = poll->data;
	struct odm_exchange *x = w->exchange;
	struct odm_http *h;

	(void)status;
	(void)events;
	if (x == NULL || !x->suspended)
		return;
	h = x->http;
	x->lost = true;
	tell_gone(x);
	resume(x);
	run_daemon(h);
}

static void suspend(struct odm_exchange *x)
{
	struct odm_watch *w = x->watch;

	MHD_suspend_connection(x->connection);
	x->suspended = true;
	if (w == NULL) {
		w = calloc(1, sizeof(*w));
		if (w == NULL || uv_poll_init(x->http->loop, &w->poll, x->on->fd) != 0) {
			free(w); /* the hang-up is then noticed when the answer is sent */
			return;
		}
		w->poll.data = w;
		w->exchange = x;
		x->watch = w;
	}
	uv_poll_start(&w->poll, UV_DISCONNECT, on_hangup);
}

/* Call this after an endpoint's function: resumes the connection if there is something to send. */
static void deliver(struct odm_exchange *x)
{
	if (x->replied || (x->streaming && (!x->queued || x->ended || odm_exchange_unsent(x) > 0)))
		resume(x);
}

/* ---- News of other threads ---- */

static void drop_body(struct odm_exchange *x)
{
	x->http->body_bytes -= x->body.len;
	od_strbuf_fini(&x->body);
}

static void on_prepared(struct odm_exchange *x)
{
	drop_body(x);
	if (x->phase == ODM_X_PREPARING)
		x->phase = ODM_X_RUNNING;
	if (x->lost || x->phase == ODM_X_CLOSED)
		tell_gone(x);
	else if (!x->replied && x->endpoint->start != NULL)
		x->endpoint->start(x);
}

static void on_async(uv_async_t *async)
{
	struct odm_http *h = async->data;
	struct odm_exchange *x;
	bool prepared;

	while ((x = odm_ready_queue_pop(&h->ready, &prepared)) != NULL) {
		if (prepared)
			on_prepared(x);
		else if (x->phase == ODM_X_RUNNING && !x->lost && !x->replied && x->endpoint->news != NULL)
			x->endpoint->news(x);
		if (x->phase == ODM_X_RUNNING)
			deliver(x);
		odm_exchange_unref(x);
	}
	if (!h->closing)
		run_daemon(h);
}

/* ---- The body ---- */

static void take_body(struct odm_exchange *x, const char *data, size_t len)
{
	struct odm_http *h = x->http;

	x->body_seen += len;
	if (x->discard)
		return;
	if (x->body_seen > h->opts.max_body_bytes) {
		odm_request_refuse(x, 413, NULL, "the body is larger than --max-body allows");
	} else if (h->body_bytes + len > BODIES * h->opts.max_body_bytes) {
		odm_request_refuse(x, 503, NULL, "too many large bodies at once; try again later");
	} else {
		const size_t before = x->body.len;

		od_strbuf_append(&x->body, data, len);
		h->body_bytes += x->body.len - before; /* drop_body subtracts it again */
		if (x->body.failed)
			odm_request_refuse(x, 503, NULL, "no memory for the body");
	}
	if (x->discard)
		drop_body(x);
}

/* A client that is still sending when it is refused may not read the answer. So its body is read first, unless it sent
 * Expect, or the body is endless, or has no certain end. */
static bool answers_at_once(struct odm_exchange *x)
{
	const char *length = odm_request_header(x, "Content-Length");

	return x->replied && (odm_request_header(x, "Expect") != NULL || odm_request_is_ambiguous(x) ||
			      (length != NULL && strtoull(length, NULL, 10) > MOST_DISCARDED_BYTES));
}

/* ---- The answer ---- */

static void add_headers(struct odm_exchange *x, struct MHD_Response *r)
{
	const char *wanted;

	MHD_add_response_header(r, "X-Request-Id", x->id);
	if (x->endpoint != NULL && (x->endpoint->flags & ODM_ENDPOINT_ANTHROPIC))
		MHD_add_response_header(r, "request-id", x->id); /* Anthropic's clients expect it */
	/* no-cache: kept, and asked for again each time */
	MHD_add_response_header(r, "Cache-Control", x->file.etag != NULL ? "no-cache" : "no-store");
	if (x->http->opts.cors != NULL)
		MHD_add_response_header(r, "Vary", "Origin");
	if (x->origin_allowed == NULL)
		return;
	MHD_add_response_header(r, "Access-Control-Allow-Origin", x->origin_allowed);
	MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
	/* clients have headers of their own, which change nothing here */
	wanted = odm_request_header(x, "Access-Control-Request-Headers");
	MHD_add_response_header(r, "Access-Control-Allow-Headers",
				wanted != NULL ? wanted : "Authorization, Content-Type, X-Api-Key");
	MHD_add_response_header(r, "Access-Control-Max-Age", "86400");
}

static enum MHD_Result queue(struct odm_exchange *x, int status, struct MHD_Response *r)
{
	enum MHD_Result rc;

	x->queued = true;
	add_headers(x, r);
	if (x->allow != NULL)
		MHD_add_response_header(r, "Allow", x->allow);
	if (status == 401)
		MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
	if (status == 429 || status == 503)
		MHD_add_response_header(r, "Retry-After", status == 429 ? "2" : "5");
	rc = MHD_queue_response(x->connection, (unsigned)status, r);
	MHD_destroy_response(r);
	return rc;
}

static enum MHD_Result queue_no_memory(struct odm_exchange *x)
{
	x->no_memory = true;
	x->queued = true;
	x->streaming = false;
	x->status = 503;
	return MHD_queue_response(x->connection, 503, x->http->no_memory);
}

/* 304 if the client has it already. */
static enum MHD_Result queue_file(struct odm_exchange *x)
{
	const struct odm_exchange_file *f = &x->file;
	const char *known = odm_request_header(x, "If-None-Match");
	const bool same = known != NULL && strstr(known, f->etag) != NULL; /* one of a list, or a weak one */
	struct MHD_Response *r =
		MHD_create_response_from_buffer(f->len, (void *)(uintptr_t)f->bytes, MHD_RESPMEM_PERSISTENT);

	if (r == NULL)
		return queue_no_memory(x);
	x->status = same ? 304 : 200; /* a 304 has no body: libmicrohttpd leaves it out */
	MHD_add_response_header(r, "Content-Type", f->content_type);
	MHD_add_response_header(r, "ETag", f->etag);
	for (const char *const(*h)[2] = f->headers; (*h)[0] != NULL; h++)
		MHD_add_response_header(r, (*h)[0], (*h)[1]);
	return queue(x, x->status, r);
}

static enum MHD_Result queue_reply(struct odm_exchange *x)
{
	struct MHD_Response *r =
		x->text != NULL ? MHD_create_response_from_buffer(x->len, x->text, MHD_RESPMEM_MUST_FREE) : NULL;

	if (r == NULL)
		return queue_no_memory(x);
	x->text = NULL;
	if (x->status != 204)
		MHD_add_response_header(r, "Content-Type", x->content_type);
	return queue(x, x->status, r);
}

/* libmicrohttpd asks for the next part of a stream. */
static ssize_t read_stream(void *arg, uint64_t position, char *buf, size_t size)
{
	struct odm_exchange *x = arg;
	size_t n = odm_exchange_unsent(x);

	(void)position;
	if (n == 0 && !x->ended && !x->lost && x->endpoint->news != NULL) {
		x->endpoint->news(x);
		n = odm_exchange_unsent(x);
	}
	x->no_memory = x->out.failed;
	if (x->lost || x->out.failed)
		return MHD_CONTENT_READER_END_WITH_ERROR;
	if (n == 0 && x->ended)
		return MHD_CONTENT_READER_END_OF_STREAM;
	if (n == 0) {
		suspend(x);
		return 0;
	}
	n = n < size ? n : size;
	memcpy(buf, x->out.text + x->out_sent, n);
	x->out_sent += n;
	return (ssize_t)n;
}

static enum MHD_Result queue_stream(struct odm_exchange *x)
{
	struct MHD_Response *r =
		MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read_stream, x, NULL);

	if (r == NULL)
		return queue_no_memory(x);
	MHD_add_response_header(r, "Content-Type",
				x->endpoint->flags & ODM_ENDPOINT_OLLAMA ? "application/x-ndjson" :
									   "text/event-stream; charset=utf-8");
	MHD_add_response_header(r, "X-Accel-Buffering", "no"); /* proxies shall pass events on at once */
	return queue(x, 200, r);
}

/* The request is complete: answers, or waits for the answer. */
static enum MHD_Result answer(struct odm_exchange *x)
{
	if (x->lost)
		return MHD_NO;
	if (x->phase == ODM_X_PREPARING) { /* the request thread owns the answer until on_prepared */
		suspend(x);
		return MHD_YES;
	}
	if (x->replied)
		return x->file.etag != NULL ? queue_file(x) : queue_reply(x);
	if (x->streaming)
		return queue_stream(x);
	suspend(x);
	return MHD_YES;
}

static void dispatch(struct odm_exchange *x)
{
	struct odm_http *h = x->http;

	x->on->deadline_ns = 0;
	x->phase = ODM_X_RUNNING;
	x->next_open = h->open;
	if (h->open != NULL)
		h->open->prev_open = x;
	h->open = x;
	h->n_open++;
	if (x->replied)
		return;
	if (x->endpoint->prepare == NULL) {
		x->endpoint->start(x);
		return;
	}
	x->phase = ODM_X_PREPARING;
	odm_request_threads_push(h->threads, x);
}

/* ---- What libmicrohttpd calls ---- */

/* The client's id goes into logs and to other nodes: short, printable, and no separator of lists. */
static bool good_id(const char *id)
{
	const size_t len = id != NULL ? strlen(id) : 0;

	for (size_t i = 0; i < len; i++)
		if (id[i] <= ' ' || id[i] > '~' || strchr("\"\\,", id[i]) != NULL)
			return false;
	return len > 0 && len < ODM_REQUEST_ID_BYTES;
}

static void name_exchange(struct odm_exchange *x, const char *method, const char *path)
{
	struct odm_http *h = x->http;
	const char *id = odm_request_header(x, "X-Request-Id");

	if (good_id(id))
		snprintf(x->id, sizeof(x->id), "%s", id);
	else
		snprintf(x->id, sizeof(x->id), "%s-%llu", h->prefix, (unsigned long long)++h->last_id);
	snprintf(x->method, sizeof(x->method), "%s", method);
	snprintf(x->path, sizeof(x->path), "%s", path);
	x->begun_ns = od_now_ns();
}

static struct odm_exchange *exchange_new(struct odm_http *h, struct MHD_Connection *connection)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct odm_exchange *x = calloc(1, sizeof(*x));

	if (x == NULL || info == NULL || info->socket_context == NULL) {
		free(x);
		return NULL;
	}
	atomic_init(&x->refs, 1);
	x->http = h;
	x->app = h->opts.app;
	x->ready = &h->ready;
	x->connection = connection;
	x->on = info->socket_context;
	odm_connections_begin(&h->connections, x->on, x);
	return x;
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
				  const char *version, const char *data, size_t *len, void **context)
{
	struct odm_exchange *x = *context;
	struct odm_http *h = arg;

	(void)version;
	if (x == NULL) {
		x = exchange_new(h, connection);
		*context = x;
		if (x == NULL) {
			od_log(OD_LOG_WARN, "out of memory: a request is refused with 503");
			return MHD_queue_response(connection, 503, h->no_memory);
		}
		name_exchange(x, method, url);
		odm_http_check_header(x, &h->opts, h->machine, h->draining, method, url);
		if (answers_at_once(x)) {
			dispatch(x);
			return answer(x);
		}
		return MHD_YES;
	}
	if (*len > 0) {
		take_body(x, data, *len);
		*len = 0;
		return MHD_YES;
	}
	if (x->phase == ODM_X_RECEIVING)
		dispatch(x);
	return answer(x);
}

static void on_completed(void *arg, struct MHD_Connection *connection, void **context,
			 enum MHD_RequestTerminationCode why)
{
	struct odm_http *h = arg;
	struct odm_exchange *x = *context;

	(void)connection;
	if (x == NULL)
		return;
	*context = NULL;
	odm_access_log(x, why == MHD_REQUEST_TERMINATED_COMPLETED_OK && !x->lost);
	if (x->phase != ODM_X_RECEIVING) {
		*(x->prev_open != NULL ? &x->prev_open->next_open : &h->open) = x->next_open;
		if (x->next_open != NULL)
			x->next_open->prev_open = x->prev_open;
		h->n_open--;
	}
	x->lost = x->lost || !x->queued;
	if (x->phase != ODM_X_PREPARING) { /* else the request thread still uses the body, and on_prepared drops it */
		drop_body(x);
		tell_gone(x);
	}
	x->phase = ODM_X_CLOSED;
	x->connection = NULL;
	odm_connections_end(x->on);
	watch_close(x);
	odm_exchange_unref(x);
}

static void on_connection(void *arg, struct MHD_Connection *connection, void **context,
			  enum MHD_ConnectionNotificationCode what)
{
	struct odm_http *h = arg;
	struct odm_connection *c = *context;

	if (what == MHD_CONNECTION_NOTIFY_STARTED) {
		c = odm_connections_add(
			&h->connections,
			MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd);
		*context = c;
		if (c != NULL && h->connections.n == 1)
			uv_timer_start(&h->tick, on_tick, TICK_MS, TICK_MS);
	} else if (c != NULL) {
		odm_connections_remove(&h->connections, c);
		*context = NULL;
	}
}

/* ---- About once a second ---- */

static void on_tick(uv_timer_t *timer)
{
	struct odm_http *h = timer->data;
	const uint64_t now = od_now_ns();
	const bool idle = h->connections.n == 0;
	struct odm_exchange *next;

	odm_connections_expire(&h->connections, now);
	resume_accepting(h);
	for (struct odm_exchange *x = h->open; x != NULL; x = next) {
		next = x->next_open;
		if (x->phase != ODM_X_RUNNING || x->replied || x->ended || x->lost || x->endpoint == NULL ||
		    x->endpoint->tick == NULL)
			continue;
		x->endpoint->tick(x, now);
		deliver(x);
	}
	run_daemon(h);
	/* The tick goes on once more after the last connection has ended: if the limit of connections was reached,
	 * libmicrohttpd accepts again only when it has run once more. */
	if (idle && h->connections.n == 0)
		uv_timer_stop(&h->tick);
}

/* ---- Life ---- */

/* libmicrohttpd's messages are mostly about clients and are dropped. But a connection that it closes for want of memory
 * has no other log line. */
static void on_message(void *arg, const char *format, va_list ap)
{
	static struct od_log_limit limit = OD_LOG_LIMIT_INIT;
	unsigned left_out = 0;
	char text[200];

	(void)arg;
	vsnprintf(text, sizeof(text), format, ap);
	text[strcspn(text, "\n")] = '\0';
	if (strstr(text, "memory") == NULL || !od_log_permit(&limit, &left_out))
		return;
	OD_LOG_EVENT(OD_LOG_WARN, "a connection was closed", od_log_text("reason", text),
		     od_log_number("left_out", left_out));
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' :
	       c >= 'a' && c <= 'f' ? c - 'a' + 10 :
	       c >= 'A' && c <= 'F' ? c - 'A' + 10 :
				      -1;
}

/* A path is a C string: a zero byte would cut it off, and what is left may be another path. So "%00" stays as it is. */
static size_t unescape(void *arg, struct MHD_Connection *connection, char *text)
{
	char *out = text;

	(void)arg;
	(void)connection;
	for (const char *in = text; *in != '\0'; out++) {
		const int high = in[0] == '%' ? hex_digit(in[1]) : -1, low = high >= 0 ? hex_digit(in[2]) : -1;

		if (low >= 0 && high + low > 0) {
			*out = (char)(16 * high + low);
			in += 3;
		} else {
			*out = *in++;
		}
	}
	*out = '\0';
	return (size_t)(out - text);
}

static struct MHD_Daemon *start_daemon(struct odm_http *h)
{
	const struct odm_http_opts *o = &h->opts;
	const struct MHD_OptionItem tls[] = {
		{ MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)o->cert },
		{ MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)o->key },
		{ MHD_OPTION_END, 0, NULL },
	};

	return MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
					(o->cert != NULL ? (unsigned)MHD_USE_TLS : 0u),
				0, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, on_message, NULL,
				MHD_OPTION_LISTEN_SOCKET, o->listening.fd[0], MHD_OPTION_NOTIFY_COMPLETED, on_completed,
				h, MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_CONNECTION_LIMIT,
				(unsigned)o->max_connections, MHD_OPTION_CONNECTION_TIMEOUT, WRITE_TIMEOUT_S,
				MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL,
				MHD_OPTION_ARRAY, o->cert != NULL ? tls : tls + 2, MHD_OPTION_END);
}

/* The text has the formats of both APIs at once. */
static struct MHD_Response *make_no_memory(void)
{
	static const char text[] = "{\"type\": \"error\", \"error\": {\"message\": \"out of memory\", \"type\": "
				   "\"service_unavailable_error\", \"param\": null, \"code\": null}}";
	struct MHD_Response *r =
		MHD_create_response_from_buffer(sizeof(text) - 1, (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);

	if (r == NULL)
		return NULL;
	MHD_add_response_header(r, "Content-Type", "application/json");
	MHD_add_response_header(r, "Retry-After", "5");
	return r;
}

static int start_server(struct odm_http *h, struct od_err *err)
{
	int rc = odm_request_threads_start(&h->threads, h->opts.request_threads, err);

	if (rc != OD_OK)
		return rc;
	h->no_memory = make_no_memory();
	if (h->no_memory == NULL)
		return od_fail(err, OD_ERR_NOMEM, "HTTP server");
	h->daemon = start_daemon(h);
	if (h->daemon == NULL)
		return od_fail(err, OD_ERR_ARG, "cannot start the HTTP server%s",
			       h->opts.cert != NULL ? ": is --tls-key the key of --tls-cert, both in PEM form?" : "");
	return OD_OK;
}

static void start_handles(struct odm_http *h)
{
	const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);

	uv_timer_init(h->loop, &h->timeout);
	uv_timer_init(h->loop, &h->tick);
	uv_async_init(h->loop, &h->ready.async, on_async);
	uv_poll_init(h->loop, &h->poll, info->epoll_fd);
	h->timeout.data = h->tick.data = h->ready.async.data = h->poll.data = h;
	h->n_handles = 4;
	uv_poll_start(&h->poll, UV_READABLE, on_poll);
	open_acceptors(h);
}

int odm_http_open(struct odm_http **out, const struct odm_http_opts *opts, uv_loop_t *loop, struct od_err *err)
{
	struct odm_http *h = calloc(1, sizeof(*h));
	int rc;

	*out = NULL;
	if (h == NULL)
		return od_fail(err, OD_ERR_NOMEM, "HTTP server");
	h->opts = *opts;
	h->loop = loop;
	snprintf(h->prefix, sizeof(h->prefix), "%08x", (unsigned)(od_now_ns() ^ ((uint64_t)getpid() << 16)));
	if (gethostname(h->machine, sizeof(h->machine) - 1) != 0)
		h->machine[0] = '\0';
	h->connections.tls = opts->cert != NULL;
	h->connections.header_ns = opts->header_ns;
	odm_ready_queue_init(&h->ready);
	rc = start_server(h, err);
	if (rc != OD_OK) {
		odm_request_threads_stop(h->threads);
		if (h->no_memory != NULL)
			MHD_destroy_response(h->no_memory);
		odm_ready_queue_fini(&h->ready);
		free(h);
		return rc;
	}
	start_handles(h);
	*out = h;
	return OD_OK;
}

void odm_http_drain(struct odm_http *h)
{
	h->draining = true;
	uv_timer_start(&h->timeout, on_timeout, 0, 0); /* looks whether anything is open */
}

bool odm_http_draining(const struct odm_http *h)
{
	return h->draining;
}

size_t odm_http_connections(const struct odm_http *h)
{
	return h->connections.n;
}

void odm_http_stop_preparing(struct odm_http *h)
{
	odm_request_threads_stop(h->threads);
	h->threads = NULL;
	on_async(&h->ready.async);
}

static void on_handle_closed(uv_handle_t *handle)
{
	struct odm_http *h = handle->data;

	if (--h->n_handles > 0)
		return;
	MHD_destroy_response(h->no_memory);
	odm_ready_queue_fini(&h->ready);
	free(h);
}

static void on_acceptor_closed(uv_handle_t *handle)
{
	struct acceptor *a = handle->data;

	close(a->fd);
	handle->data = a->http;
	on_handle_closed(handle);
}

void odm_http_close(struct odm_http *h)
{
	uv_handle_t *const handles[] = { (uv_handle_t *)&h->timeout, (uv_handle_t *)&h->tick,
					 (uv_handle_t *)&h->ready.async, (uv_handle_t *)&h->poll };

	h->closing = true;
	for (struct odm_exchange *x = h->open; x != NULL; x = x->next_open) {
		x->lost = true;
		resume(x); /* libmicrohttpd does not end while one is suspended */
	}
	MHD_run(h->daemon);
	on_async(&h->ready.async);
	uv_poll_stop(&h->poll);
	MHD_stop_daemon(h->daemon);
	for (size_t i = 0; i < sizeof(handles) / sizeof(handles[0]); i++)
		uv_close(handles[i], on_handle_closed);
	for (size_t i = 0; i < h->n_acceptors; i++)
		uv_close((uv_handle_t *)&h->acceptor[i].poll, on_acceptor_closed);
}
