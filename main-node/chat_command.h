/* chat_command.h - od-main chat: a conversation with a running server. */
#ifndef ODM_CHAT_COMMAND_H
#define ODM_CHAT_COMMAND_H

/* argv[0] is "chat". Returns the exit status. */
int odm_chat_command(int argc, char **argv);

#endif
