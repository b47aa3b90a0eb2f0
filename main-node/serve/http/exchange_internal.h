/* exchange_internal.h - the representation of exchanges, for the files of this folder only. */
#ifndef ODM_EXCHANGE_INTERNAL_H
#define ODM_EXCHANGE_INTERNAL_H

#include <microhttpd.h>
#include <stdatomic.h>
#include <uv.h>

#include "common/base/strbuf.h"
#include "main-node/serve/http/exchange.h"

struct odm_connection;
struct odm_http;
struct odm_ready_queue;

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
	void *app;
	struct odm_ready_queue *ready;
	const struct odm_endpoint *endpoint; /* NULL: refused before */
	char id[ODM_REQUEST_ID_BYTES];
	char method[8], path[256]; /* cut, shown in the log */
	uint64_t begun_ns;
	char *rest;
	struct od_strbuf body;
	struct odm_header_text *header_texts; /* odm_request_header keeps them */
	void *state;
	bool trusted; /* it came with an API key, or the server has none */

	/* The answer. */
	bool replied, streaming, ended;
	int status;
	const char *content_type;
	char *text;
	size_t len;
	struct odm_exchange_file file; /* instead of text; etag NULL: none */
	const char *allow; /* a 405's header */
	struct od_strbuf out; /* a stream's text that is not sent yet */
	size_t out_sent; /* bytes of out */

	/* HTTP thread. */
	enum odm_exchange_phase phase;
	struct MHD_Connection *connection; /* NULL: closed */
	struct odm_connection *on;
	struct odm_watch *watch;
	bool suspended, queued, lost, told_gone, discard, expired, no_memory;
	uint64_t body_seen; /* bytes, with what was not kept */
	const char *origin_allowed; /* goes into the answer's header; NULL: none */
	struct odm_exchange *prev_open, *next_open;
	struct odm_work work;

	/* The ready queue's, under its lock. */
	bool in_ready, prepared;
	struct odm_exchange *next_ready;

	struct odm_exchange *next_request; /* links the request threads' queue */
};

#endif
