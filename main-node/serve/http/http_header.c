#include "main-node/serve/http/http_header.h"

#include "main-node/serve/http/exchange_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define ALLOW_BYTES 64

static const char *raw_header(struct odm_exchange *x, const char *name)
{
	return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

/* libmicrohttpd leaves white space behind a value, which is not part of it (RFC 9110, 5.5). */
const char *odm_request_header(struct odm_exchange *x, const char *name)
{
	const char *value = raw_header(x, name);
	size_t len = value != NULL ? strlen(value) : 0;
	struct odm_header_text *copy;

	while (len > 0 && strchr(" \t", value[len - 1]) != NULL)
		len--;
	if (value == NULL || value[len] == '\0')
		return value;
	copy = malloc(sizeof(*copy) + len + 1);
	if (copy == NULL)
		return value;
	memcpy(copy->text, value, len);
	copy->text[len] = '\0';
	copy->next = x->header_texts;
	x->header_texts = copy;
	return copy->text;
}

static enum MHD_Result count_length(void *n, enum MHD_ValueKind kind, const char *key, const char *value)
{
	(void)kind;
	(void)value;
	*(unsigned *)n += strcasecmp(key, "Content-Length") == 0;
	return MHD_YES;
}

bool odm_request_is_ambiguous(struct odm_exchange *x)
{
	/* libmicrohttpd knows no other coding: with another one the body never ends */
	const char *coding = raw_header(x, "Transfer-Encoding");
	unsigned n = 0;

	MHD_get_connection_values(x->connection, MHD_HEADER_KIND, count_length, &n);
	return n > 1 || (coding != NULL && (n > 0 || strcasecmp(coding, "chunked") != 0));
}

void odm_request_refuse(struct odm_exchange *x, int status, const char *code, const char *message)
{
	struct odm_api_error e;

	odm_api_fail(&e, status, NULL, OD_ERR_ARG, "%s", message);
	e.code = code;
	odm_exchange_fail(x, &e);
	x->discard = true;
}

static bool path_matches(const char *pattern, const char *path)
{
	const size_t len = strlen(pattern);

	if (pattern[len - 1] == '*')
		return strncmp(pattern, path, len - 1) == 0 && path[len - 1] != '\0';
	return strcmp(pattern, path) == 0;
}

static void refuse_path(struct odm_exchange *x, const struct odm_http_opts *opts, const char *path)
{
	char allow[ALLOW_BYTES] = "OPTIONS";
	size_t used = strlen(allow);
	const size_t none = used;

	for (const struct odm_endpoint *e = opts->endpoints; e->path != NULL; e++)
		if (path_matches(e->path, path))
			used += (size_t)snprintf(allow + used, sizeof(allow) - used, ", %s%s", e->method,
						 strcmp(e->method, "GET") == 0 ? ", HEAD" : "");
	if (used == none) {
		odm_request_refuse(x, 404, NULL, "there is no such path here");
		return;
	}
	odm_request_refuse(x, 405, NULL, "this path has no such method; see the header Allow");
	x->rest = strdup(allow);
	x->allow = x->rest;
}

static void find_endpoint(struct odm_exchange *x, const struct odm_http_opts *opts, const char *method,
			  const char *path)
{
	const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;

	for (const struct odm_endpoint *e = opts->endpoints; e->path != NULL && x->endpoint == NULL; e++)
		if (path_matches(e->path, path) && strcmp(e->method, wanted) == 0)
			x->endpoint = e;
	if (x->endpoint != NULL && x->endpoint->path[strlen(x->endpoint->path) - 1] == '*')
		x->rest = strdup(path + strlen(x->endpoint->path) - 1);
}

static void find_origin(struct odm_exchange *x, const struct odm_http_opts *opts)
{
	const char *cors = opts->cors, *origin = odm_request_header(x, "Origin");

	if (cors != NULL && origin != NULL && (strcmp(cors, "*") == 0 || strcmp(cors, origin) == 0))
		x->origin_allowed = cors;
}

static void check_key(struct odm_exchange *x, const struct odm_http_opts *opts)
{
	const struct odm_api_keys *keys = opts->keys;

	x->trusted = keys == NULL || odm_api_key_known(keys, odm_request_header(x, "Authorization"),
						       odm_request_header(x, "x-api-key"));
	if (!x->trusted && (x->endpoint == NULL || !(x->endpoint->flags & ODM_ENDPOINT_OPEN)))
		odm_request_refuse(x, 401, "invalid_api_key",
				   "expected an API key: \"Authorization: Bearer KEY\", or \"x-api-key: KEY\"");
}

static void check_body_header(struct odm_exchange *x, const struct odm_http_opts *opts)
{
	const char *length = odm_request_header(x, "Content-Length"),
		   *coding = odm_request_header(x, "Transfer-Encoding");
	const char *compressed = odm_request_header(x, "Content-Encoding");

	if (strcmp(x->endpoint->method, "POST") != 0)
		return;
	if (length == NULL && coding == NULL)
		odm_request_refuse(x, 411, NULL, "expected a body with the header Content-Length");
	else if (!odm_is_json_type(odm_request_header(x, "Content-Type")))
		odm_request_refuse(x, 415, NULL, "expected the header \"Content-Type: application/json\"");
	else if (compressed != NULL && strcasecmp(compressed, "identity") != 0)
		odm_request_refuse(
			x, 415, NULL,
			"a compressed body is not supported here; send it without the header Content-Encoding");
	else if (length != NULL && strtoull(length, NULL, 10) > opts->max_body_bytes)
		odm_request_refuse(x, 413, NULL, "the body is larger than --max-body allows");
}

void odm_http_check_header(struct odm_exchange *x, const struct odm_http_opts *opts, const char *machine, bool draining,
			   const char *method, const char *path)
{
	find_origin(x, opts);
	if (odm_request_is_ambiguous(x)) {
		odm_request_refuse(x, 400, NULL,
				   "expected one header Content-Length, or \"Transfer-Encoding: chunked\"");
		return;
	}
	if (opts->keys == NULL &&
	    !odm_host_allowed(odm_request_header(x, "Host"), opts->listen, machine, opts->hosts)) {
		odm_request_refuse(
			x, 403, NULL,
			"the header Host names neither this machine nor an address; use its address, start the server "
			"with --allow-host NAME, or use API keys");
		return;
	}
	if (strcmp(method, "OPTIONS") == 0) { /* browsers send no key with it */
		odm_exchange_reply(x, 204, "text/plain", strdup(""), 0);
		return;
	}
	find_endpoint(x, opts, method, path);
	check_key(x, opts); /* the key comes first: strangers shall not learn which paths exist */
	if (!x->replied && x->endpoint == NULL)
		refuse_path(x, opts, path);
	if (!x->replied && draining && !(x->endpoint->flags & ODM_ENDPOINT_DRAINING))
		odm_request_refuse(x, 503, NULL, "the server is ending and takes no more requests");
	if (!x->replied && x->endpoint->refusal != NULL)
		odm_request_refuse(x, 501, NULL, x->endpoint->refusal);
	if (!x->replied)
		check_body_header(x, opts);
}
