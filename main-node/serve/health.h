/* health.h - /health: whether a request would be served now.
 *
 * Ready is who has generated a token, or begun a step of a prompt, in the last 30 seconds, and not failed since. Else a self-test
 * generates one token; who waits for it longer than two seconds is told that it is not through. While the model is loaded, or
 * the server is ending, the answer is 503 at once.
 * Thread: the HTTP thread; it never waits for the engine. Owner: the server. */
#ifndef ODM_HEALTH_H
#define ODM_HEALTH_H

struct odm_health;
struct odm_health *odm_health_new(void); /* NULL: out of memory */
/* After the engine thread has been stopped. NULL ok. */
void odm_health_free(struct odm_health *h);

#endif
