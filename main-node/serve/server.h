/* server.h - od-main serve: HTTP thread, engine thread and signals.
 *
 * SIGTERM and SIGINT drain: new requests get 503, open ones may end for drain_seconds, then they are cancelled. A
 * second signal, or one while the model is being loaded, ends the process at once.
 * Thread: main(), which becomes the HTTP thread. Owner: the caller owns the options, until odm_serve returns. */
#ifndef ODM_SERVER_H
#define ODM_SERVER_H

#include "main-node/node/main_opts.h"
#include "main-node/serve/http/http_guard.h"

struct odm_serve_opts {
	struct odm_main_opts node;
	struct odm_address listen;
	const struct odm_api_keys *keys; /* NULL: everyone may */
	const char *cert, *key; /* PEM texts; NULL: no TLS */
	const char *cors; /* NULL: none */
	struct od_arg_list hosts; /* the header Host may have these names */
	const char *model; /* NULL: the name of the pack's folder, and requests may name any model */
	struct od_arg_list aliases; /* further names of the model */
	uint64_t queue, max_connections, max_body_bytes;
	double header_seconds, drain_seconds;
};

/* Returns after a signal. OD_OK: everything ended in order. */
OD_MUST_CHECK int odm_serve(const struct odm_serve_opts *opts, struct od_err *err);

#endif
