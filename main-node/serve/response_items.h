/* response_items.h - a request of OpenAI's /v1/responses as one of /v1/chat/completions.
 *
 * What an assistant's turn consists of, items of types reasoning, message and function_call, becomes one message. A
 * function_call_output becomes a tool's message, and instructions the first message, the system's. Arguments of calls stay the
 * text that they are. Of a reasoning item counts its content, else its summary; encrypted_content cannot be read here.
 *
 * Nothing is stored: what refers to stored responses is refused, and so is `store` if it is asked for; without the field the
 * answer says that it was not.
 *
 * Thread: any. Owner: the caller owns *chat. */
#ifndef ODM_RESPONSE_ITEMS_H
#define ODM_RESPONSE_ITEMS_H

#include "main-node/serve/api_error.h"

/* An error names the field in request. *chat is NULL unless OD_OK. */
OD_MUST_CHECK int odm_chat_of_response(json_t **chat, const json_t *request, struct odm_api_error *e);

#endif
