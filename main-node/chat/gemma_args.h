/* gemma_args.h - the notation of arguments in Gemma-4's calls: {key:value,key:value}, strings as <|"|>text<|"|>, the
 * rest as JSON.
 *
 * Thread: any. Owner: the caller. */
#ifndef ODM_CHAT_GEMMA_ARGS_H
#define ODM_CHAT_GEMMA_ARGS_H

#include "common/text/text_spans.h"
#include "main-node/chat/json_text.h"

/* Appends the JSON of an object in the notation. False: not in the notation; out may have a part of it then. Numbers
 * and literals are copied: the caller parses the result. */
bool odm_gemma_to_json(struct od_strbuf *out, struct odm_slice text);
/* Appends the notation of a valid JSON object, without its outer braces, in the object's order. *quotes gets where its
 * own quotes are in out: the same bytes within a string are text. False: out of memory. */
OD_MUST_CHECK bool odm_gemma_of_json(struct od_strbuf *out, struct od_text_spans *quotes, struct odm_slice object);

#endif
