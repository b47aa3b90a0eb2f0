/* choices.h - the choices of an answer, each of which is a job of the engine's thread.
 *
 * This is what an endpoint that generates needs: read the request, add a prompt for each choice, submit, and get events
 * for a sink. Parsing belongs to prepare (a request thread), events to news (the HTTP thread).
 * Owner: the endpoint's state; submitted jobs hold a reference to the exchange until they are done. */
#ifndef ODM_CHOICES_H
#define ODM_CHOICES_H

#include "main-node/serve/jobs/engine_thread.h"
#include "main-node/serve/http/exchange.h"

#define ODM_MAX_CHOICES 256 /* limit of one request */

struct odm_choices;

OD_MUST_CHECK int odm_choices_new(struct odm_choices **out, struct odm_exchange *x, struct odm_api_error *e);
void odm_choices_free(struct odm_choices *c); /* NULL ok; cancels what is not done */

/* Adds a choice. spec: wake, release, arg and the request's name are set here. */
OD_MUST_CHECK int odm_choices_add(struct odm_choices *c, struct odm_job_spec *spec, struct odm_api_error *e);
/* Submits all choices or none: 429 if the queue is full, 503 while there is no engine, 400 if they can never be
 * served. */
OD_MUST_CHECK int odm_choices_submit(struct odm_choices *c, struct odm_engine_thread *t, struct odm_api_error *e);
size_t odm_choices_count(const struct odm_choices *c);
size_t odm_choices_prompt_tokens(const struct odm_choices *c, size_t choice);

/* HTTP thread: takes the news of all choices. event is called for each that has any; returns true when all are done. */
bool odm_choices_poll(struct odm_choices *c, void (*event)(void *arg, size_t choice, const struct odm_news *news),
		      void *arg);
void odm_choices_cancel(struct odm_choices *c); /* HTTP thread: cancels all that are not done; NULL ok */
void odm_choices_cancel_one(struct odm_choices *c, size_t choice); /* HTTP thread; does nothing if it is done */

#endif
