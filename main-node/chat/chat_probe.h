/* chat_probe.h - how a chat template takes messages: small conversations are rendered in each way that is possible, and
 * what comes out is looked at. The template's text does not tell: the same words mean one thing for content and another
 * for reasoning_content.
 *
 * A way is better if the template fails less often with it, loses fewer texts, calls and thoughts, and writes less of
 * what is no text (None, a list as Python writes it). Of equal ways the first one counts, so a template that cannot be
 * rendered at all gets strings.
 * Thread: any. */
#ifndef ODM_CHAT_PROBE_H
#define ODM_CHAT_PROBE_H

#include "common/text/jinja/jinja.h"
#include "main-node/chat/chat_format.h"

#include <jansson.h>

/* Sets what format says about how the template takes messages. format: chosen from the template's text. tokens:
 * variables that every rendering gets (bos_token ...); NULL: none. */
void odm_chat_probe(struct odm_chat_format *format, const struct od_jinja *template, const json_t *tokens);

#endif
