/* tokenizer.h - encodes text to token ids and decodes it by a tokenizer.json, as Hugging Face tokenizers does, by a
 * tiktoken.model or by a tokenizer.model of SentencePiece.
 *
 * BPE in two variants: byte-level (GPT-2, Llama 3, talebook) and SentencePiece-style with byte fallback (Mixtral, Llama
 * 2), with the normalisers, pre-tokenisers, post-processors and decoders that these use (docs/ARCHITECTURE.md,
 * Tokenisers). An unknown component is refused by name, never skipped. The patterns of published pre-tokenisers are cut
 * by hand (tok_scan.h), by the reference's Unicode 16; other patterns by PCRE2, whose Unicode version may be older, so
 * that recent characters may be split differently.
 * Thread: immutable after loading, any thread. Owner: the caller of load. */
#ifndef OD_TEXT_TOKENIZER_H
#define OD_TEXT_TOKENIZER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/text/text_spans.h"

struct od_tokenizer;

/* By the file's name: tiktoken.model, *.model of SentencePiece, else a tokenizer.json. The first two are read with the
 * tokenizer_config.json beside them, if there is one. */
OD_MUST_CHECK int od_tokenizer_load(struct od_tokenizer **out, const char *path, struct od_err *err);
/* Names the file of a folder that is its tokeniser: tokenizer.json, else tiktoken.model, else tokenizer.model; NULL: it
 * has none. */
const char *od_tokenizer_name(const char *dir);
/* True for the names of the other two, too. */
bool od_tokenizer_is_name(const char *name);
/* A file's bytes. config: tokenizer_config.json's object, or NULL; a tokenizer.json does not need it. where: for
 * messages. */
enum od_tokenizer_kind { OD_TOKENIZER_JSON, OD_TOKENIZER_SENTENCEPIECE, OD_TOKENIZER_TIKTOKEN };
OD_MUST_CHECK int od_tokenizer_parse(struct od_tokenizer **out, enum od_tokenizer_kind kind, const char *data,
				     size_t len, const json_t *config, const char *where, struct od_err *err);
void od_tokenizer_free(struct od_tokenizer *t); /* NULL ok */
uint32_t od_tokenizer_vocab(const struct od_tokenizer *t); /* highest id + 1 */
/* The variant with byte fallback, as SentencePiece has it; false: byte-level. */
bool od_tokenizer_has_fallback(const struct od_tokenizer *t);

enum od_encode_flags {
	OD_ENCODE_ADD_SPECIAL = 1, /* add the post-processor's tokens, usually BOS */
	OD_ENCODE_PARSE_SPECIAL = 2, /* "<s>" in the text becomes the token, as in Hugging Face; without this flag
				      * special tokens are ordinary text (non-special added tokens still match) */
};

/* *ids is malloc'd for the caller, NULL unless OD_OK. text: len bytes of UTF-8; OD_ERR_FORMAT names the offset of an
 * invalid byte. */
OD_MUST_CHECK int od_tokenizer_encode(const struct od_tokenizer *t, const char *text, size_t len, unsigned flags,
				      int32_t **ids, size_t *n_ids, struct od_err *err);

struct od_controls; /* tok_controls.h */

/* As od_tokenizer_encode with OD_ENCODE_PARSE_SPECIAL, but no control token has a byte of users in it, white space at
 * its ends apart. Such text becomes what the tokeniser makes of it without that token. A text without such gets the
 * same ids as there. */
OD_MUST_CHECK int od_tokenizer_encode_mixed(const struct od_tokenizer *t, const char *text, size_t len,
					    const struct od_text_spans *users, const struct od_controls *controls,
					    int32_t **ids, size_t *n_ids, struct od_err *err);

bool od_tokenizer_is_special(const struct od_tokenizer *t, int32_t id);
int32_t od_tokenizer_find(const struct od_tokenizer *t, const char *token); /* exact vocabulary entry; -1: none */

#endif
