/* http_header.h - checks a request by its header, before its body comes: host, origin, path, key, format and size of
 * the body.
 *
 * Thread: the HTTP thread. */
#ifndef ODM_HTTP_HEADER_H
#define ODM_HTTP_HEADER_H

#include "main-node/serve/http/http.h"

/* Finds the endpoint, or refuses the request. machine: this machine's name. */
void odm_http_check_header(struct odm_exchange *x, const struct odm_http_opts *opts, const char *machine, bool draining,
			   const char *method, const char *path);
const char *odm_request_header(struct odm_exchange *x, const char *name); /* NULL: it has none. Borrowed */
/* The header does not say where the body ends, or says it twice. */
bool odm_request_is_ambiguous(struct odm_exchange *x);
/* The body is not kept. code: the error's; NULL ok. */
void odm_request_refuse(struct odm_exchange *x, int status, const char *code, const char *message);

#endif
