/* ollama_request.h - requests of Ollama's API as requests of chat completions.
 *
 * Options become settings, `format` becomes response_format, messages stay messages: an object of arguments becomes
 * its text, and each image a part. Without anything to answer (no messages, an empty prompt) *chat is NULL with OD_OK.
 * Thread: any. Owner: the caller owns *chat; it is NULL unless OD_OK. */
#ifndef ODM_OLLAMA_REQUEST_H
#define ODM_OLLAMA_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

#include "main-node/serve/http/api_error.h"

struct odm_call_memory;

/* Reads a request of /api/chat; body [len] is its text. */
OD_MUST_CHECK int odm_chat_of_ollama_chat(json_t **chat, const json_t *request, const char *body, size_t len,
					  struct odm_call_memory *calls, struct odm_api_error *e);
/* Reads a request of /api/generate. plain: the model has no chat template; a prompt without `system` is then taken as
 * it is, as with `raw`. */
OD_MUST_CHECK int odm_chat_of_ollama_prompt(json_t **chat, const json_t *request, bool plain, struct odm_api_error *e);

#endif
