/* answer_print.h - what `od-main template --parse FILE` prints. Thread: any. Owner: the caller. */
#ifndef ODM_CHAT_ANSWER_PRINT_H
#define ODM_CHAT_ANSWER_PRINT_H

#include "main-node/chat/answer.h"

/* *out is one JSON object, the caller's: content and reasoning (strings, "": none), tool_calls (an array of objects
 * with name, arguments, the text of a JSON object, and id where the format has one). Bytes that are not UTF-8 become
 * U+FFFD. piece: bytes that are pushed at a time; 0: all at once. *out is NULL unless OD_OK. */
OD_MUST_CHECK int odm_answer_object(json_t **out, const struct odm_answer_opts *opts, const char *text, size_t len,
				    size_t piece, struct od_err *err);

#endif
