/* chat_client.h - HTTP requests to a server of chat completions, over libcurl.
 *
 * No proxy is used and no redirect followed: the server is one of this network, and its key is for it alone.
 * Thread: one at a time. Owner: odm_chat_client_new's caller. */
#ifndef ODM_CHAT_CLIENT_H
#define ODM_CHAT_CLIENT_H

#include <jansson.h>

#include "common/base/status.h"

struct odm_chat_client;

/* url: "http://host:port", also with "/v1" behind it. api_key: NULL: none. ca_file: certificates (PEM) to trust instead
 * of the system's; NULL: the system's. */
OD_MUST_CHECK int odm_chat_client_new(struct odm_chat_client **out, const char *url, const char *api_key,
				      const char *ca_file, struct od_err *err);
void odm_chat_client_free(struct odm_chat_client *c); /* NULL ok */
const char *odm_chat_client_url(const struct odm_chat_client *c); /* without slashes and "/v1" at its end */

/* Takes the next bytes of an answer. Anything but OD_OK ends the request with this code and err. */
typedef int odm_chat_take(void *arg, const char *bytes, size_t len, struct od_err *err);

/* Each blocks until the answer is complete. OD_ERR_CANCELLED: Ctrl-C (odm_interrupt_fd) came first; the connection is
 * closed. Any other error's message is one line. */
OD_MUST_CHECK int odm_chat_client_get(struct odm_chat_client *c, const char *path, json_t **out, struct od_err *err);
OD_MUST_CHECK int odm_chat_client_post(struct odm_chat_client *c, const char *path, const json_t *body,
				       odm_chat_take *take, void *arg, struct od_err *err);

#endif
