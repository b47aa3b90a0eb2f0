/* anthropic_messages.h - a request of Anthropic's /v1/messages as one of /v1/chat/completions.
 *
 * A turn's blocks become one message: texts its content, thinking its reasoning_content, tool_use its tool_calls; a
 * tool_result becomes a tool's message, with "Error: " before it if is_error. redacted_thinking is encrypted by its
 * maker and left out. The line "x-anthropic-billing-header: ..." that some clients put at the start of system differs
 * in every request; it is dropped, so that requests share their beginning.
 *
 * A call's input is an object here, and text there: the text that the model wrote, if it is remembered (call_memory.h).
 * Else it keeps the order, numbers and escapes that the client sent. Clients write it without spaces between values,
 * most models with them, as Python's json.dumps does: where there are none, they are put in.
 *
 * Thread: any. Owner: the caller owns *chat. */
#ifndef ODM_ANTHROPIC_MESSAGES_H
#define ODM_ANTHROPIC_MESSAGES_H

#include <stdbool.h>

#include "main-node/serve/http/api_error.h"

struct odm_call_memory;

/* body [len]: the text that request was parsed from. calls: NULL: none are remembered. counting: a request of
 * /v1/messages/count_tokens, which needs no max_tokens. An error names the field in request. *chat is NULL unless
 * OD_OK. */
OD_MUST_CHECK int odm_chat_of_anthropic(json_t **chat, const json_t *request, const char *body, size_t len,
					struct odm_call_memory *calls, bool counting, struct odm_api_error *e);

#endif
