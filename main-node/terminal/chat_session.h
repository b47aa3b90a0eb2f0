/* chat_session.h - a chat in a terminal: messages and commands in, answers of a server out.
 *
 * Thread: main(). Owner: the caller of odm_chat_session_open; client, input and screen are borrowed. */
#ifndef ODM_CHAT_SESSION_H
#define ODM_CHAT_SESSION_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "main-node/terminal/chat_client.h"
#include "main-node/terminal/conversation.h"
#include "main-node/terminal/line_input.h"
#include "main-node/terminal/screen.h"

struct odm_chat_session {
	struct odm_chat_client *client;
	struct odm_line_input *input;
	struct odm_screen *screen;
	struct odm_conversation conversation;
	json_t *settings; /* fields of each request */
	json_t *retry; /* and of this one alone, over them */
	int64_t n_retries;
	bool greedy; /* without a temperature an answer came out as the one before */
	json_t *model; /* its name, a string; NULL until the server was asked */
	json_t *unanswered; /* the last question, if it has no answer; else NULL */
	bool verbose, any_failed, history_failed, ended;
};

/* Until /exit, the end of the input, or an error of the input or output. Errors of the server are shown, and set
 * any_failed. */
OD_MUST_CHECK int odm_chat_session_run(struct odm_chat_session *s, struct od_err *err);
void odm_chat_session_fini(struct odm_chat_session *s);

#endif
