/* prompt_file.h - reads prompts from a file of JSON lines, for od-main --prompts: one object a line with "prompt" and
 * optionally max_tokens, temperature, top_k, top_p, min_p, frequency_penalty, presence_penalty, logit_bias (an object
 * of token ids and what is added to their logits), seed, stop (a string or a list of strings), and for --json logprobs
 * (how many of the best tokens) and prompt_logprobs. The whole file is checked before any prompt is used, except that a
 * logit_bias may name tokens that the model does not have.
 *
 * Thread: any. Owner: odm_prompts_read's caller. */
#ifndef ODM_PROMPT_FILE_H
#define ODM_PROMPT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/model/sampler.h"
#include "common/text/tokenizer.h"

struct odm_prompt {
	size_t line; /* line of the file, from 1 */
	const char *text; /* [len]; may contain NULs */
	size_t len;
	int32_t *ids; /* NULL until odm_prompts_encode */
	size_t n_ids;
	uint64_t max_tokens;
	struct od_sampler_opts sampling; /* completed by odm_prompts_encode */
	struct od_logit_bias *bias; /* for `sampling` */
	size_t n_bias;
	const char **stop;
	size_t n_stop;
	int logprobs; /* -1: none */
	bool prompt_logprobs;
	void *object; /* the line's JSON, which owns the strings above */
};

struct odm_prompts {
	const char *path;
	struct odm_prompt *prompt;
	size_t n;
};

/* Empty lines are skipped, but counted. path "-": standard input. On failure *p is empty. */
OD_MUST_CHECK int odm_prompts_read(struct odm_prompts *p, const char *path, struct od_err *err);
/* Tokenises the prompts; each must fit into ctx tokens. The other arguments are the defaults for fields that a line
 * omits. */
OD_MUST_CHECK int odm_prompts_encode(struct odm_prompts *p, const struct od_tokenizer *t, uint32_t ctx,
				     const struct od_sampler_opts *sampling, uint64_t max_tokens,
				     const char *const *stop, size_t n_stop, struct od_err *err);
void odm_prompts_fini(struct odm_prompts *p);

#endif
