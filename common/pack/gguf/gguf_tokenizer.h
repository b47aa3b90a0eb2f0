/* gguf_tokenizer.h - the tokeniser's files of a checkpoint from a GGUF file's metadata: a tokenizer.json (kinds gpt2
 * and gemma4) or a tokenizer.model of SentencePiece (kind llama), tokenizer_config.json with the chat template, and
 * generation_config.json with all tokens that end a text.
 *
 * Thread: any; pure functions of an open file. */
#ifndef OD_PACK_GGUF_TOKENIZER_H
#define OD_PACK_GGUF_TOKENIZER_H

#include "common/base/strbuf.h"
#include "common/pack/gguf/gguf.h"

struct od_gguf_texts {
	const char *name; /* "tokenizer.json" or "tokenizer.model" */
	struct od_strbuf tokenizer, config, generation;
};

/* The texts have the same bytes on every machine. The caller calls od_gguf_texts_fini after any return.
 * OD_ERR_UNSUPPORTED names a kind or a way of cutting words that is not known here, and the known ones. A file
 * without a tokeniser gives empty texts. */
OD_MUST_CHECK int od_gguf_texts(const struct od_gguf *g, struct od_gguf_texts *out, struct od_err *err);
void od_gguf_texts_fini(struct od_gguf_texts *t);

#endif
