/* token_text.h - single tokens as text, for lists of log probabilities.
 *
 * Thread: any. Owner: the caller owns what is returned. */
#ifndef ODM_TOKEN_TEXT_H
#define ODM_TOKEN_TEXT_H

#include <jansson.h>

#include "main-node/serve/jobs/token_list.h"

/* Returns the text that a token has behind others, with its leading blank, or a special token's own name. A token that
 * is only a part of a character is U+FFFD. malloc'd; NULL: out of memory. *shown: characters of it in the written text:
 * 0 for special ones. */
char *odm_token_text(const struct od_tokenizer *t, int32_t token, size_t *len, size_t *shown);

/* OpenAI's format for completions: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, all arrays; a new
 * reference. */
json_t *odm_logprobs_new(void);
/* Appends tokens [n], and at most n_top of the best beside each. *offset: characters of the text before them, which
 * grows. */
void odm_logprobs_add(json_t *logprobs, const struct od_tokenizer *t, const struct odm_token_record *r, size_t n,
		      size_t n_top, size_t *offset);

/* OpenAI's format for chats: {"content": [{"token", "logprob", "bytes", "top_logprobs"}]}; a new reference. bytes are the
 * token's own also where it is only a part of a character; null: not known. */
json_t *odm_chat_logprobs_new(void);
void odm_chat_logprobs_add(json_t *logprobs, const struct od_tokenizer *t, const struct odm_token_record *r, size_t n,
			   size_t n_top);

/* vLLM's format for a prompt: an array of {token id: {"logprob", "rank", "decoded_token"}}, a token's own first, and
 * null for a first token, to which these are appended. */
void odm_prompt_logprobs_add(json_t *logprobs, const struct od_tokenizer *t, const struct odm_token_record *r, size_t n,
			     size_t n_top);
/* How many of these tokens [n], which are in order, are the prompt's. */
size_t odm_prompt_records(const struct odm_token_record *r, size_t n);

#endif
