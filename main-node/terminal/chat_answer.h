/* chat_answer.h - sends the conversation to the server and shows the answer while it streams. Thread: main(). */
#ifndef ODM_CHAT_ANSWER_H
#define ODM_CHAT_ANSWER_H

#include "main-node/terminal/chat_session.h"

/* Asks the server, shows the answer and adds both to the conversation. A failure is shown. */
void odm_chat_answer(struct odm_chat_session *s, const char *question, size_t len);
/* Asks for the model's name unless it is known. */
OD_MUST_CHECK int odm_chat_find_model(struct odm_chat_session *s, struct od_err *err);

#endif
