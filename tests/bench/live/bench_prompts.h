/* bench_prompts.h - the benchmarks' prompts: from a file, or random ones.
 *
 * The file has one JSON object per line: "text" (string), "ids" (array of token ids, BOS included) or both, and
 * optionally "name" and "tokens" (the number of ids). Blank lines are ignored. prompts.md names the source of ours.
 * Thread: any, one at a time per object. Owner: od_prompts_load or _random ... od_prompts_fini by the caller. */
#ifndef OD_BENCH_PROMPTS_H
#define OD_BENCH_PROMPTS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/text/tokenizer.h"

struct od_prompt {
	char *name; /* never NULL: "prompt 3" where the file gives none */
	char *text; /* NULL: only ids */
	size_t text_len;
	int32_t *ids; /* NULL: only text */
	size_t n_ids;
};

struct od_prompts {
	struct od_prompt *prompt; /* [n] */
	size_t n;
};

/* Loads the first `limit` prompts (0: all); an empty file is an error. *p can be passed to od_prompts_fini even on
 * failure. */
OD_MUST_CHECK int od_prompts_load(struct od_prompts *p, const char *path, size_t limit, struct od_err *err);

/* Sets ids by tokenising the texts, with BOS; prompts without text keep theirs. t NULL (a model without a tokenizer):
 * all keep theirs, and a prompt without ids is an error. */
OD_MUST_CHECK int od_prompts_encode(struct od_prompts *p, const struct od_tokenizer *t, struct od_err *err);

/* od_prompts_encode with the tokenizer.json at `path` (od_pack_tokenizer_path); NULL: no tokenizer. */
OD_MUST_CHECK int od_prompts_encode_by_file(struct od_prompts *p, const char *path, struct od_err *err);

/* n prompts of n_tokens ids below vocab, BOS (unless negative) first; the same seed gives the same ids everywhere. */
OD_MUST_CHECK int od_prompts_random(struct od_prompts *p, size_t n, size_t n_tokens, uint32_t vocab, int32_t bos,
				    uint64_t seed, struct od_err *err);

/* Puts prompts that have ids together, in order, into such of n_tokens ids, at least 2; what is left over is dropped.
 * If the first begins with bos (-1: none), so do all of these; at the beginning of the others bos is left out. An
 * error: they are too few for one. */
OD_MUST_CHECK int od_prompts_join(struct od_prompts *p, size_t n_tokens, int32_t bos, struct od_err *err);

void od_prompts_fini(struct od_prompts *p);

#endif
