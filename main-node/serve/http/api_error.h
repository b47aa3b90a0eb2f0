/* api_error.h - an answer that refuses: an HTTP status and what OpenAI's format {"error": {...}} says.
 *
 * Thread: any. Owner: the caller; nothing here allocates except what makes JSON. */
#ifndef ODM_API_ERROR_H
#define ODM_API_ERROR_H

#include <jansson.h>

#include "common/base/status.h"

struct odm_api_error {
	int status; /* an HTTP status; 0: no error */
	const char *code; /* a literal such as "context_length_exceeded"; NULL: none */
	char param[64]; /* the request's field; "": none */
	char message[768]; /* UTF-8 */
};

/* Fills e (NULL ok) and returns code (an enum od_status), so that callers can write `return odm_api_fail(...)`. param:
 * NULL: no field. */
int odm_api_fail(struct odm_api_error *e, int status, const char *param, int code, const char *fmt, ...)
	OD_PRINTF(5, 6);
int odm_no_memory(struct odm_api_error *e); /* 503; returns OD_ERR_NOMEM */
/* An error in the field `from`, or in a part of it, is said to be in the field `to`, of which `from` was made. */
void odm_api_error_rename(struct odm_api_error *e, const char *from, const char *to);
/* Removes the path of this folder from a message for strangers: "DIR/config.json: ..." becomes "config.json: ...". */
void odm_hide_folder(char *message, const char *folder);
/* Fills e from an error of the engine: 400 if the request can never succeed, 503 if it may succeed later, else 500. */
void odm_api_from_err(struct odm_api_error *e, const struct od_err *err);
/* {"error": {"message", "type", "param", "code"}}: a new reference, NULL: out of memory. */
json_t *odm_api_error_json(const struct odm_api_error *e);
/* Anthropic's format: {"type": "error", "error": {"type", "message"}, "request_id"}; likewise. */
json_t *odm_api_error_anthropic(const struct odm_api_error *e, const char *request_id);
json_t *odm_api_error_ollama(const struct odm_api_error *e); /* {"error": the message}; likewise */

#endif
