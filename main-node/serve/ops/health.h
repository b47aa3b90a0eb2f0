/* health.h - /health: whether a request would be served now.
 *
 * Without workers that can run every expert the answer is 503 at once. Else ready means: a token was generated, or a
 * step of a prompt begun, in the last 30 seconds, and nothing failed since. Else a self-test generates one token;
 * without a result after two seconds the answer is 503. While the model is loaded, or the server is ending, it is 503
 * at once.
 * Thread: the HTTP thread; it never waits for the engine. Owner: the server. */
#ifndef ODM_HEALTH_H
#define ODM_HEALTH_H

#include "main-node/serve/http/exchange.h"

extern const struct odm_endpoint odm_health_endpoint;

struct odm_health;
struct odm_health *odm_health_new(void); /* NULL: out of memory */
/* Call it after the engine thread has been stopped. NULL ok. */
void odm_health_free(struct odm_health *h);

#endif
