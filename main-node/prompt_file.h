/* prompt_file.h - reads prompts from a file of JSON lines, for od-main --prompts: one object a line with "prompt" and
 * optionally max_tokens, min_tokens, the numbers of samplers (prompt_file.c lists them), logit_bias (an object of token
 * ids and what is added to their logits), seed, stop and dry_sequence_breakers (a string or a list of strings),
 * stop_token_ids, and for --json logprobs (how many of the best tokens) and prompt_logprobs. The whole file is checked
 * before any prompt is used, except that logit_bias and stop_token_ids may name tokens that the model does not have.
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
	uint64_t max_tokens, min_tokens;
	struct od_sampler_opts sampling; /* completed by odm_prompts_encode */
	struct od_logit_bias *bias; /* for `sampling` */
	size_t n_bias;
	const char **stop;
	size_t n_stop;
	int32_t *stop_token;
	size_t n_stop_tokens;
	const char **breaker; /* texts that break repetitions for DRY; NULL: the line does not say */
	size_t n_breaker;
	int32_t *breakers; /* for `sampling` */
	int logprobs; /* -1: none */
	bool prompt_logprobs;
	void *object; /* the line's JSON, which owns the strings above */
};

struct odm_prompts {
	const char *path;
	struct odm_prompt *prompt;
	size_t n;
};

/* The values of fields that a line omits; borrowed. */
struct odm_prompt_defaults {
	struct od_sampler_opts sampling;
	uint64_t max_tokens, min_tokens;
	const char *const *stop; /* [n_stop] */
	size_t n_stop;
	const int32_t *stop_token; /* [n_stop_tokens] */
	size_t n_stop_tokens;
	const char *const *breaker; /* [n_breaker] */
	size_t n_breaker;
};

/* Empty lines are skipped, but counted. path "-": standard input. On failure *p is empty. */
OD_MUST_CHECK int odm_prompts_read(struct odm_prompts *p, const char *path, struct od_err *err);
/* Tokenises the prompts; each must fit into ctx tokens. */
OD_MUST_CHECK int odm_prompts_encode(struct odm_prompts *p, const struct od_tokenizer *t, uint32_t vocab, uint32_t ctx,
				     const struct odm_prompt_defaults *other, struct od_err *err);
void odm_prompts_fini(struct odm_prompts *p);

#endif
