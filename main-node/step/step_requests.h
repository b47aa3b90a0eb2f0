/* step_requests.h - the names of the requests whose rows a step has, for logs, traces and workers.
 *
 * A step's texts are those of the step before it, but for those that come or end. So what costs, the list of names, is
 * made when they change, and a step costs a comparison of numbers.
 * Thread: one at a time. Owner: plain data of the caller. */
#ifndef ODM_STEP_REQUESTS_H
#define ODM_STEP_REQUESTS_H

#include "common/net/wire.h"
#include "main-node/step/step.h"

struct odm_step_requests {
	uint64_t mark; /* the sequences of the last step */
	uint64_t version; /* the text's: 0 as long as no text had a name */
	char text[OD_MAX_REQUESTS_BYTES]; /* "a,b"; "-": of none that has a name */
};

/* "a,b": each name once, as many as fit; "" if none of the texts has one. Returns buf. */
const char *odm_join_requests(const struct odm_step *step, char *buf, size_t size);
/* A step begins. */
void odm_step_requests_follow(struct odm_step_requests *r, const struct odm_step *step);

#endif
