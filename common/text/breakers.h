/* breakers.h - which tokens break the repetitions of DRY (common/model/dry.h), by texts.
 *
 * As llama.cpp has it: a token that contains the text is a breaker. A token that ends with the text's beginning is one
 * where the tokens of the rest follow.
 * Thread: any. Owner: the caller. */
#ifndef OD_TEXT_BREAKERS_H
#define OD_TEXT_BREAKERS_H

#include "common/text/tokenizer.h"

#define OD_BREAKER_BYTES 40 /* texts are cut to as many */

/* *out: malloc'd, NULL unless OD_OK: of each breaker the number of its tokens, then these. vocab: ids from there on are
 * left out. */
OD_MUST_CHECK int od_breakers_find(int32_t **out, size_t *n, const struct od_tokenizer *t, uint32_t vocab,
				   const char *const *text, size_t n_text, struct od_err *err);

#endif
