/* chat_forks.h - where other prompts are likely to part from a chat's prompt. Agents ask a model again and again:
 *
 * - with the same system's text and other tools, for another kind of agent;
 * - with the same system's text and tools, for a new conversation;
 * - with the same messages or parts before what the user asks, such as a project's rules;
 * - with what the user says next. Then templates leave out thoughts of turns before that, so the prompt parts where the
 *   first of these is.
 *
 * Each place is found by rendering such a conversation: the begin that it shares with the prompt ends there.
 * Thread: any. */
#ifndef ODM_CHAT_FORKS_H
#define ODM_CHAT_FORKS_H

#include "main-node/chat/chat_template.h"

#define ODM_CHAT_FORKS 4

/* Sets fork to lengths in bytes of text [len], which was rendered from vars by odm_chat_template_prompt; returns their
 * number. They ascend. A conversation that cannot be rendered has no place. */
size_t odm_chat_forks(const struct odm_chat_template *t, const json_t *vars, const char *text, size_t len,
		      size_t fork[ODM_CHAT_FORKS]);

#endif
