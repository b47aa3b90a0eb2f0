/* token_json.h - the tokens of a text with their log probabilities, as od-main --json writes them. Thread: the engine
 * thread. */
#ifndef ODM_TOKEN_JSON_H
#define ODM_TOKEN_JSON_H

#include <jansson.h>

#include "main-node/engine/engine.h"

/* An observer's `token`: appends to arg, a json_t array,
 * {"token": id, "position": p, "logprob": x or null, "top": [[id, x], ...]}. */
void odm_token_json(void *arg, const struct odm_token *t);

#endif
