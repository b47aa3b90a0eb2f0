/* response_items.h - a request of OpenAI's /v1/responses as one of /v1/chat/completions.
 *
 * What an assistant's turn consists of, items of types reasoning, message and function_call, becomes one message. A
 * function_call_output becomes a tool's message, and instructions the first message, the system's. Arguments of calls
 * stay the text that they are. Of a reasoning item counts its content, else its summary; encrypted_content cannot be
 * read here.
 *
 * Items of tools that a server runs (web_search_call, mcp_call ...) or that clients run in their own way
 * (custom_tool_call, local_shell_call ...) become calls and results too, with what text they have; items without any
 * (item_reference, compaction) and tools that are no functions are left out, with a line in the log.
 *
 * Functions in a namespace are offered as NAMESPACE__NAME; calls have both names again.
 *
 * Nothing is stored: what refers to stored responses is refused, and so is `store` if it is asked for; without the
 * field the answer says that it was not.
 *
 * Thread: any. Owner: the caller owns *chat. */
#ifndef ODM_RESPONSE_ITEMS_H
#define ODM_RESPONSE_ITEMS_H

#include "main-node/serve/http/api_error.h"

/* An error names the field in request. *chat is NULL unless OD_OK. */
OD_MUST_CHECK int odm_chat_of_response(json_t **chat, const json_t *request, struct odm_api_error *e);

/* The name of a function in a namespace, as the model has it; malloc'd. NULL: out of memory. */
char *odm_name_in_space(const char *space, const char *name);
/* The namespace and name of the function that the model calls `called`, in the request's tools; *space is NULL if it is
 * in none. */
void odm_called_function(const json_t *tools, const char *called, const char **space, const char **name);

#endif
