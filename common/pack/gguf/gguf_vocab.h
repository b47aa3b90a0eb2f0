/* gguf_vocab.h - the vocabulary in a GGUF file's metadata, checked: tokens, types, scores, merges, and where each token
 * stands in a tokenizer.json. Only for gguf_tokenizer.c.
 *
 * llama.cpp's converter writes it, and reduces what a tokenizer.json says: added tokens are "control" or "user-defined",
 * rows of the embedding without a token are "unused" with names like [PAD123], and flags of added tokens are lost.
 * Thread: any. Owner: the caller; texts are od_gguf's. */
#ifndef OD_PACK_GGUF_VOCAB_H
#define OD_PACK_GGUF_VOCAB_H

#include "common/pack/gguf/gguf.h"

enum gguf_vocab_model {
	GGUF_VOCAB_BYTES, /* "gpt2": BPE over GPT-2's byte alphabet */
	GGUF_VOCAB_SCORES, /* "llama": SentencePiece's BPE; merges follow from scores */
	GGUF_VOCAB_PIECES, /* "gemma4": BPE over characters, with merges */
};

/* As in tokenizer.ggml.token_type. */
enum gguf_token_type {
	GGUF_TOKEN_NORMAL = 1,
	GGUF_TOKEN_UNKNOWN,
	GGUF_TOKEN_CONTROL,
	GGUF_TOKEN_USER,
	GGUF_TOKEN_UNUSED,
	GGUF_TOKEN_BYTE
};

struct gguf_token {
	const char *text;
	uint32_t len;
	uint8_t type; /* enum gguf_token_type */
	bool in_model; /* in tokenizer.json's vocabulary */
	bool added; /* in its added_tokens; neither: it has no token */
	bool special;
	bool merges; /* named by a merge, or made by one */
};

struct gguf_merge {
	uint32_t left, right, made;
};

struct gguf_vocab {
	const struct od_gguf *g;
	enum gguf_vocab_model model;
	struct gguf_token *token; /* [n], by id */
	uint32_t n;
	struct gguf_merge *merge; /* [n_merges], the first to apply first */
	size_t n_merges;
	int32_t bos, eos, eot, eom, unk; /* -1: none */
	bool all_bytes; /* there is a token <0x00> to <0xFF> for each byte */
	uint32_t *slot; /* [mask + 1], id + 1; 0: free */
	uint32_t mask;
};

/* Fini even on failure. */
OD_MUST_CHECK int gguf_vocab_read(struct gguf_vocab *v, const struct od_gguf *g, enum gguf_vocab_model model,
				  struct od_err *err);
int32_t gguf_vocab_find(const struct gguf_vocab *v, const char *text, size_t len); /* -1: none */
void gguf_vocab_fini(struct gguf_vocab *v);

#endif
