/* fim_prompt.h - prompts of models that fill in the middle: what is before and behind a gap, and the tokens that say so
 * (Bavarian et al., "Efficient Training of Language Models to Fill in the Middle", 2022, section 3; files of a project:
 * Hui et al., "Qwen2.5-Coder Technical Report", 2024, section 3.2).
 *
 * The tokens are found by the names that published models give them. Users' text never becomes a control token.
 * Thread: immutable after odm_fim_new, any thread. Owner: the caller; the tokenizer outlives it. */
#ifndef ODM_FIM_PROMPT_H
#define ODM_FIM_PROMPT_H

#include <jansson.h>

#include "common/text/tokenizer.h"
#include "main-node/serve/http/api_error.h"

struct odm_fim;

/* 400 without such tokens, or without a tokenizer (NULL): param names the field that asks for it. */
OD_MUST_CHECK int odm_fim_new(struct odm_fim **out, const struct od_tokenizer *t, const char *param,
			      struct odm_api_error *e);
void odm_fim_free(struct odm_fim *f); /* NULL ok */

struct odm_fim_parts {
	const char *prefix, *suffix; /* [prefix_len], [suffix_len] bytes; prefix: NULL: prefix_ids */
	size_t prefix_len, suffix_len;
	const int32_t *prefix_ids; /* [n_prefix_ids] */
	size_t n_prefix_ids;
	const json_t *extra; /* other files: an array of {"text", "filename"}; NULL: none */
};

struct odm_fim_prompt {
	int32_t *ids; /* [n] */
	size_t n;
	size_t begin, end; /* the prefix's own tokens */
};

/* *out is zeros unless OD_OK; e names the field, or "input_extra[2].text". */
OD_MUST_CHECK int odm_fim_make(struct odm_fim_prompt *out, const struct odm_fim *f, const struct odm_fim_parts *parts,
			       struct odm_api_error *e);
void odm_fim_prompt_fini(struct odm_fim_prompt *p);

/* [n] tokens that end the middle, beside EOS. */
const int32_t *odm_fim_ends(const struct odm_fim *f, size_t *n);

#endif
