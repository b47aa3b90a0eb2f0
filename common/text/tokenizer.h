/* tokenizer.h - tokenizer.json to token ids and back, as Hugging Face tokenizers does it.
 *
 * BPE in its two dialects: byte-level (GPT-2, Llama 3, talebook) and SentencePiece-style with byte fallback
 * (Mixtral, Llama 2). Normalisers, pre-tokenisers, post-processors and decoders that these use; one that we do
 * not know is refused by its name, never skipped. Character classes and canonical order come from PCRE2 and utf8proc.
 * Their Unicode versions are not the reference's, so characters added to Unicode lately may be split otherwise.
 * Thread: immutable after loading, any thread; an od_detok belongs to one. */
#ifndef OD_TEXT_TOKENIZER_H
#define OD_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct od_tokenizer;

OD_MUST_CHECK int od_tokenizer_load(struct od_tokenizer **out, const char *path, struct od_err *err);
void od_tokenizer_free(struct od_tokenizer *t); /* NULL ok */
uint32_t od_tokenizer_vocab(const struct od_tokenizer *t); /* highest id + 1 */

enum od_encode_flags {
	OD_ENCODE_ADD_SPECIAL = 1,   /* what the post-processor adds: BOS as a rule */
	OD_ENCODE_PARSE_SPECIAL = 2, /* "<s>" in the text becomes the token, as Hugging Face does; without it
				      * special tokens are ordinary text (non-special added tokens still match) */
};

/* *ids is malloc'd (free it), NULL unless OD_OK. text: UTF-8, len bytes; invalid UTF-8 is OD_ERR_FORMAT and
 * names the byte's offset. */
OD_MUST_CHECK int od_tokenizer_encode(const struct od_tokenizer *t, const char *text, size_t len, unsigned flags,
				      int32_t **ids, size_t *n_ids, struct od_err *err);

/* All ids at once to malloc'd UTF-8 text (NUL-terminated, *len without it); special tokens are left out when
 * skip_special. Invalid byte sequences become U+FFFD. */
OD_MUST_CHECK int od_tokenizer_decode(const struct od_tokenizer *t, const int32_t *ids, size_t n_ids,
				      bool skip_special, char **text, size_t *len, struct od_err *err);

bool od_tokenizer_is_special(const struct od_tokenizer *t, int32_t id);
int32_t od_tokenizer_find(const struct od_tokenizer *t, const char *token); /* exact vocabulary entry; -1: none */

/* Streaming: pieces whose concatenation (with the flush) is the text of decoding all ids after the prompt's,
 * in that context, special tokens left out; a piece never ends inside a UTF-8 character. Byte-fallback tokens
 * wait for the end of their run: one wrong byte makes all of the run U+FFFD. Nothing may follow a flush. */
struct od_detok;
OD_MUST_CHECK int od_detok_new(struct od_detok **out, const struct od_tokenizer *t, struct od_err *err);
void od_detok_free(struct od_detok *d);
/* Context that was there before, so that the first new token gets its leading space: the prompt's ids. */
OD_MUST_CHECK int od_detok_prime(struct od_detok *d, const int32_t *ids, size_t n_ids, struct od_err *err);
/* *piece: borrowed until the next call, NUL-terminated, may be empty. */
OD_MUST_CHECK int od_detok_push(struct od_detok *d, int32_t id, const char **piece, size_t *len, struct od_err *err);
OD_MUST_CHECK int od_detok_flush(struct od_detok *d, const char **piece, size_t *len, struct od_err *err);

#endif
