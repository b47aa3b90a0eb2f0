/* chat_order.h - messages in an order that a chat template takes. Templates refuse some (a system message that is not
 * first, two of a user, a tool's result), others lose texts without a word.
 *
 * What is done about each need (chat_format.h):
 * - ONE_SYSTEM: system texts in a row are one, joined with a blank line. ONE_USER, ONE_ASSISTANT likewise; thoughts and
 * calls too.
 * - SYSTEM_FIRST: a system message that is not first goes to the front as long as the assistant has said nothing. A
 *   later one becomes the user's, where it stands: at the front it would change the whole prompt, of which rows are
 *   cached, and it would stand before what it speaks about.
 * - NO_SYSTEM: the system's text stands before the text of the user message that follows.
 * - USER_FIRST: a user message without text comes before an assistant's that nothing precedes, or where there is none
 * at all.
 * - RESULT_FOR_CALL: a result without a call becomes the user's; a call without a result gets one that says so.
 * - ANSWER_TO_RESULT: a user message behind a tool's result is joined to it.
 * - ONE_CALL: of several calls each is a message of its own, with its result behind it.
 * - CALL_ALONE: text and calls of a message are two messages.
 * - CALL_ONLY: text beside calls is left out.
 * - SAID: an assistant's message with neither text nor calls is left out.
 * - RESULT_AS_USER: results become the user's. CALL_AS_TEXT: calls are written out in the assistant's text.
 *
 * What is done to a message does not depend on later ones, so the prompt's beginning stays the same when the
 * conversation goes on.
 * Thread: one at a time. */
#ifndef ODM_CHAT_ORDER_H
#define ODM_CHAT_ORDER_H

#include "common/base/status.h"
#include "main-node/chat/chat_messages.h"

/* Changes c->messages; c->changed gets each need that changed something. Content may be strings, lists of text parts,
 * or null. OD_ERR_NOMEM leaves messages that may only be freed. */
OD_MUST_CHECK int odm_order_apply(struct odm_context *c, unsigned needs);

/* Logs each change, once in the process for each need. */
void odm_order_tell(unsigned changed);

#endif
