/* http.h - the HTTP server: libmicrohttpd on the caller's uv loop, with limits, keys, and the Host check in front of a
 * table of endpoints.
 *
 * Thread: the loop's thread (the HTTP thread) calls everything; no other thread touches libmicrohttpd. A client that
 * goes away is noticed while its request waits too, by an own look at the socket, which libmicrohttpd does not watch
 * meanwhile. Half a close (shutdown of the client's sending side) counts as going away.
 * Owner: odm_http_open's caller. */
#ifndef ODM_HTTP_H
#define ODM_HTTP_H

#include <uv.h>

#include "main-node/serve/http/exchange.h"
#include "main-node/serve/http/http_guard.h"

struct odm_http;

struct odm_http_opts {
	const struct odm_endpoint *endpoints; /* ends with a NULL path */
	void *app; /* odm_exchange_app */
	struct odm_listening listening; /* taken if it opens */
	const struct odm_address *listen; /* used by the Host check */
	const struct od_arg_list *hosts; /* further names for the Host check */
	const struct odm_api_keys *keys; /* NULL: everyone may */
	const char *cert, *key; /* PEM texts, which must stay; NULL: no TLS */
	const char *cors; /* origin that browsers let in, "*": any; NULL: none */
	size_t max_connections;
	size_t max_body_bytes;
	uint64_t header_ns; /* limit of time for a request's header, and for every further 16 KiB of its body */
	unsigned request_threads; /* these threads run odm_endpoint.prepare */
	/* HTTP thread: the last open exchange has ended, after odm_http_drain. */
	void (*drained)(void *app);
};

OD_MUST_CHECK int odm_http_open(struct odm_http **out, const struct odm_http_opts *opts, uv_loop_t *loop,
				struct od_err *err);
/* New requests are refused with 503, but for endpoints that are ODM_ENDPOINT_DRAINING. */
void odm_http_drain(struct odm_http *h);
bool odm_http_draining(const struct odm_http *h);
size_t odm_http_connections(const struct odm_http *h);
/* Joins the request threads. Only endpoints that are ODM_ENDPOINT_DRAINING and have no prepare are served from now
 * on. */
void odm_http_stop_preparing(struct odm_http *h);
/* Closes all connections. Call it after odm_http_stop_preparing, when no other thread wakes an exchange any more. *h is
 * freed when the loop has run once more. */
void odm_http_close(struct odm_http *h);

#endif
