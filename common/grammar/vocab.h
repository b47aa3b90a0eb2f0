/* vocab.h - a vocabulary as a tree of bytes, in which the tokens that a grammar allows are found.
 *
 * A token stands for the bytes of its text within an answer. Symbols are tokens that no text can spell: special tokens,
 * and others that mark something. A symbol stands for the byte OD_SYMBOL, which no UTF-8 text has, and its name; so a
 * grammar can ask for it, and free text does not match it.
 *
 * Thread: immutable after od_vocab_new, any thread. Owner: the caller of new. */
#ifndef OD_GRAMMAR_VOCAB_H
#define OD_GRAMMAR_VOCAB_H

#include "common/grammar/chars.h"
#include "common/text/tok_controls.h"
#include "common/text/tokenizer.h"

struct od_runs; /* runs.h */

#define OD_MAX_TOKEN_BYTES 1024 /* longer ones are never allowed */

struct od_vocab {
	uint32_t n_tokens; /* logits of the model */
	/* Nodes in preorder, the children of a node sorted by byte. The root is not among them. */
	uint32_t n_nodes;
	uint8_t *byte; /* [n_nodes] its last byte */
	uint16_t *depth; /* [n_nodes] number of its bytes */
	uint32_t *skip; /* [n_nodes] the first node that does not begin with it */
	uint32_t *tokens; /* [n_nodes + 1] its tokens are sorted[tokens[i] ... tokens[i + 1]) */
	int32_t *sorted;
	/* [n_tokens + 1] the bytes of token t are text[at[t] ... at[t + 1]); none: it is never allowed */
	uint32_t *at;
	char *text;
	uint16_t max_depth;
	struct od_runs *json_string; /* the characters of a string of JSON, and its quote */
	struct od_runs *json_name; /* as json_string, with one spelling of each character */
};

/* n_tokens: the model's logits, of which the tokeniser may name fewer. controls: its symbols, beside the special
 * tokens. */
OD_MUST_CHECK int od_vocab_new(struct od_vocab **out, const struct od_tokenizer *t, const struct od_controls *controls,
			       uint32_t n_tokens, struct od_err *err);
void od_vocab_free(struct od_vocab *v); /* NULL ok */
size_t od_vocab_memory(const struct od_vocab *v); /* bytes */

/* The bytes of the longest symbol's name with which text [len] begins; 0: none does. */
size_t od_vocab_symbol_at(const struct od_vocab *v, const char *text, size_t len);

static inline size_t od_vocab_bytes(const struct od_vocab *v, int32_t token, const char **bytes)
{
	*bytes = v->text + v->at[token];
	return v->at[token + 1] - v->at[token];
}

#endif
