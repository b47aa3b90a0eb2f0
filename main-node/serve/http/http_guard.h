/* http_guard.h - who may ask: addresses, the Host header, API keys. No sockets except odm_listen.
 *
 * A web page can make its visitor's browser send requests to this machine (DNS rebinding): the browser then names the
 * page's host. So Host must be an IP address, localhost, this machine's name, the name that we listen on or one of
 * --allow-host, unless there are API keys.
 * Thread: immutable after loading, any thread. Owner: the caller. */
#ifndef ODM_HTTP_GUARD_H
#define ODM_HTTP_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/args.h"
#include "common/base/status.h"

struct odm_address {
	char host[256]; /* without brackets */
	uint16_t port;
};

/* "127.0.0.1:8080", "[::1]:8080", "name", ":8080" or "*:8080" (every address). Refuses "::1:8080", which could mean two
 * things, and a port alone. */
OD_MUST_CHECK int odm_address_parse(struct odm_address *a, const char *text, uint16_t default_port, struct od_err *err);
/* Listening sockets, not blocking, of one port: one for each address of a name, such as localhost. */
#define ODM_MAX_LISTEN 8
struct odm_listening {
	int fd[ODM_MAX_LISTEN];
	size_t n;
	uint16_t port; /* the one in use */
};

/* Addresses that this machine lacks are left out, unless it has none. *l is empty unless OD_OK. */
OD_MUST_CHECK int odm_listen(const struct odm_address *a, struct odm_listening *l, struct od_err *err);
void odm_listening_close(struct odm_listening *l);

/* Letters, digits, '.', '-' and '_': a name that --allow-host may have. */
bool odm_is_host_name(const char *name);
/* host: the Host header; NULL: none, which no browser does. also: further names that are allowed, of any port. */
bool odm_host_allowed(const char *host, const struct odm_address *listen, const char *machine,
		      const struct od_arg_list *also);

struct odm_api_keys;
/* One key a line; empty lines and lines that begin with # do not count. */
OD_MUST_CHECK int odm_api_keys_load(struct odm_api_keys **out, const char *path, struct od_err *err);
void odm_api_keys_free(struct odm_api_keys *k); /* NULL ok */
/* authorization: "Bearer KEY"; x_api_key: "KEY"; NULL: not sent. The time does not depend on the keys. */
bool odm_api_key_known(const struct odm_api_keys *k, const char *authorization, const char *x_api_key);

/* The type of a Content-Type header is application/json, whatever its parameters. NULL: false. */
bool odm_is_json_type(const char *content_type);

#endif
