/* token_vocab.h - a vocabulary of a few tokens, for tests of grammars.
 *
 * Thread: any. Owner: the caller; od_vocab_free. */
#ifndef OD_TESTS_TOKEN_VOCAB_H
#define OD_TESTS_TOKEN_VOCAB_H

#include "common/grammar/vocab.h"

/* Token i has the bytes of tokens[i], which are all different; symbols begin with OD_SYMBOL, and come
 * last. extra: logits of the model
 * that no token has. NULL: it was refused. */
struct od_vocab *token_vocab_new(const char *const *tokens, size_t n, uint32_t extra);

#endif
