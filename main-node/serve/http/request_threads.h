/* request_threads.h - threads that prepare requests: a large body is parsed and tokenised here, so that it holds up
 * neither the HTTP thread nor, as long as there is another thread, other requests.
 *
 * Thread: the HTTP thread calls these functions. Owner: odm_request_threads_start's caller. */
#ifndef ODM_REQUEST_THREADS_H
#define ODM_REQUEST_THREADS_H

#include "main-node/serve/http/exchange.h"

struct odm_request_threads;

OD_MUST_CHECK int odm_request_threads_start(struct odm_request_threads **out, unsigned n, struct od_err *err);
void odm_request_threads_stop(struct odm_request_threads *t); /* finishes the exchanges that it has; NULL ok */
/* Runs endpoint->prepare, in order of arrival, and then puts the exchange into its ready queue. Holds a reference until
 * then. */
void odm_request_threads_push(struct odm_request_threads *t, struct odm_exchange *x);

#endif
