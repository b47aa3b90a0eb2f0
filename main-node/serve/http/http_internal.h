/* http_internal.h - the representation of exchanges: for http.c, http_header.c, exchange.c and request_threads.c
 * only. */
#ifndef ODM_HTTP_INTERNAL_H
#define ODM_HTTP_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/base/strbuf.h"
#include "main-node/serve/http/http.h"

struct odm_request_threads;

enum odm_exchange_phase {
	ODM_X_RECEIVING, /* the body */
	ODM_X_PREPARING, /* a request thread has it */
	ODM_X_RUNNING, /* started */
	ODM_X_CLOSED, /* the connection no longer refers to it */
};

/* A client's socket while its connection is suspended; has a life of its own because uv closes it later. */
struct odm_watch {
	uv_poll_t poll;
	struct odm_exchange *exchange; /* NULL: no longer of interest */
};

/* A header's value, copied because white space behind it was cut off. */
struct odm_header_text {
	struct odm_header_text *next;
	char text[];
};

struct odm_exchange {
	atomic_uint refs;
	struct odm_http *http;
	const struct odm_endpoint *endpoint; /* NULL: refused before */
	char id[ODM_REQUEST_ID_BYTES];
	char method[8], path[256]; /* cut, for the log */
	uint64_t begun_ns;
	char *rest;
	struct od_strbuf body;
	struct odm_header_text *header_texts; /* of odm_request_header */
	void *state;
	bool trusted; /* it came with an API key, or the server has none */

	/* The answer. */
	bool replied, streaming, ended;
	int status;
	const char *content_type;
	char *text;
	size_t len;
	const char *allow; /* of 405 */
	struct od_strbuf out; /* of a stream: not sent yet */
	size_t out_sent; /* of out */

	/* HTTP thread. */
	enum odm_exchange_phase phase;
	struct MHD_Connection *connection; /* NULL: closed */
	struct odm_http_connection *on;
	struct odm_watch *watch;
	bool suspended, queued, lost, told_gone, discard, expired, no_memory;
	uint64_t body_seen; /* bytes, with what was not kept */
	const char *origin_allowed; /* for the answer's header; NULL: none */
	struct odm_exchange *prev_open, *next_open;
	struct odm_work work;

	/* Under the lock of http. */
	bool in_ready, prepared;
	struct odm_exchange *next_ready;

	struct odm_exchange *next_request; /* of the request threads' queue */
};

/* http_header.c. HTTP thread: checks a request by its header; finds the endpoint, or refuses it. machine: this one's
 * name. */
void odm_http_check_header(struct odm_exchange *x, const struct odm_http_opts *opts, const char *machine, bool draining,
			   const char *method, const char *path);
const char *odm_request_header(struct odm_exchange *x, const char *name); /* NULL: it has none. Borrowed */
/* its header does not say where its body ends, or says it twice */
bool odm_request_is_ambiguous(struct odm_exchange *x);
/* Its body is not kept. code: of the error; NULL ok. */
void odm_request_refuse(struct odm_exchange *x, int status, const char *code, const char *message);

/* Any thread: prepare has returned. */
void odm_http_prepared(struct odm_exchange *x);

/* Threads that run endpoint->prepare, in order of arrival (request_threads.c). */
OD_MUST_CHECK int odm_request_threads_start(struct odm_request_threads **out, unsigned n, struct od_err *err);
void odm_request_threads_stop(struct odm_request_threads *t); /* after the exchanges that they have; NULL ok */
/* takes a reference until prepared */
void odm_request_threads_push(struct odm_request_threads *t, struct odm_exchange *x);

#endif
