/* chat_commands.h - commands that a user can type besides messages. Thread: main(). */
#ifndef ODM_CHAT_COMMANDS_H
#define ODM_CHAT_COMMANDS_H

#include "main-node/terminal/chat_session.h"

/* NULL past the last. */
const char *odm_chat_command_name(size_t i);

/* line [len], NUL-terminated, begins with '/'; it is changed. A failure is shown. */
void odm_chat_command_line(struct odm_chat_session *s, char *line, size_t len);

#endif
