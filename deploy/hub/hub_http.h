/* hub_http.h - GET by libcurl: redirects, the hub's token, and another try where that may help.
 *
 * Redirects are followed by hand, so that the token goes to the endpoint's host only, never to that of a redirect.
 * Plain http:// is for an endpoint that is called so, and for loopback. The usual variables name proxies; certificates
 * are always checked.
 * Thread: one. Owner: the caller; texts of an answer are in it. */
#ifndef OD_PACK_HUB_HTTP_H
#define OD_PACK_HUB_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct odp_http;

struct odp_http_opts {
	const char *endpoint; /* "https://huggingface.co" */
	const char *token; /* NULL: none */
	void (*note)(void *arg, const char *text); /* a line for the user: why it waits */
	void *arg;
};

struct odp_http_answer {
	long status; /* the last answer's; 0: none came */
	bool has_length, has_range;
	uint64_t length; /* bytes of the body */
	uint64_t range_begin, range_total; /* a 206 has them; a total of 0: not told */
	char etag[201], modified[65];
	char next[2049]; /* the Link to the next page; "": none; "?": one that is too long */
	char code[65], message[257]; /* X-Error-Code, X-Error-Message */
	char host[261]; /* the host that answered, for messages */
	bool of_endpoint; /* it is the endpoint's, not that of a redirect */
	char linked[65]; /* the SHA-256 that a redirect of the hub told of the file, in hexadecimal; "": none */
	unsigned long limit_s; /* seconds until it answers again, after too many requests; 0: not told */
};

struct odp_http_request {
	const char *url;
	uint64_t from; /* the first byte; take() moves it on, and another try begins there */
	uint64_t n; /* number of bytes; 0: to the end */
	/* A good answer has come: before its first byte, and before each try's. NULL: nothing to look at. */
	int (*begin)(void *arg, const struct odp_http_answer *a, struct od_err *err);
	/* Some bytes of it. *enough: no more are wanted, and the request is good. */
	int (*take)(void *arg, const void *bytes, size_t n, bool *enough, struct od_err *err);
	void *arg;
};

OD_MUST_CHECK int odp_http_new(struct odp_http **out, const struct odp_http_opts *opts, struct od_err *err);
void odp_http_free(struct odp_http *h); /* NULL ok */
/* True when the token is not sent although there is one: the endpoint is http:// and not this machine. */
bool odp_http_token_held(const struct odp_http *h);

/* *answer is set on failure, too: OD_ERR_IO with a status that is not 2xx is a refusal. Tries again, with growing
 * waits, where that may help: no answer, a connection that ends early, 429 and 5xx. */
OD_MUST_CHECK int odp_http_run(struct odp_http *h, struct odp_http_request *r, struct odp_http_answer *answer,
			       struct od_err *err);
/* The body of a GET, malloc'd, with a NUL behind it that is not counted. */
OD_MUST_CHECK int odp_http_text(struct odp_http *h, const char *url, size_t max_bytes, char **out, size_t *len,
				struct odp_http_answer *answer, struct od_err *err);

#endif
