/* gguf_tokenizer.h - makes a checkpoint's tokenizer.json, tokenizer_config.json and generation_config.json from a GGUF
 * file's metadata.
 *
 * Patterns and normalisers are known by the name in tokenizer.ggml.pre, as in llama.cpp, but are those of the published
 * tokenizer.json: GGUF has no keys for them.
 * Thread: any; pure functions of an open file. */
#ifndef OD_PACK_GGUF_TOKENIZER_H
#define OD_PACK_GGUF_TOKENIZER_H

#include "common/base/strbuf.h"
#include "common/pack/gguf/gguf.h"

struct od_gguf_texts {
	const char *name; /* "tokenizer.json" */
	struct od_strbuf tokenizer;
	struct od_strbuf config; /* tokenizer_config.json: chat templates, bos and eos */
	struct od_strbuf generation; /* generation_config.json: all tokens that end a text */
};

/* The texts have the same bytes on every machine. The caller calls od_gguf_texts_fini after any return.
 * OD_ERR_UNSUPPORTED names an unknown tokenizer.ggml.model or .pre, and the known ones. A file without a tokeniser
 * gives empty texts and no name. */
OD_MUST_CHECK int od_gguf_texts(const struct od_gguf *g, struct od_gguf_texts *out, struct od_err *err);
void od_gguf_texts_fini(struct od_gguf_texts *t);

#endif
