/* generation.h - the fields of a request that say how to generate, the same in all endpoints, and what every answer
 * counts.
 *
 * Thread: any. Owner: the caller; odm_generation borrows from the request's JSON. */
#ifndef ODM_GENERATION_H
#define ODM_GENERATION_H

#include "main-node/serve/jobs/engine_thread.h"
#include "main-node/serve/http/json_fields.h"

#define ODM_NOT_GIVEN INT64_MIN

struct odm_generation {
	int64_t max_tokens; /* -1: no limit; ODM_NOT_GIVEN */
	int64_t n;
	int64_t top_k; /* -1, 0: all */
	int64_t repeat_last_n; /* tokens that the repetition penalty covers; -1: all */
	int64_t seed;
	int64_t min_tokens;
	int64_t dry_allowed_length, dry_penalty_last_n; /* dry_penalty_last_n -1: all */
	int64_t prompt_logprobs; /* number of the best tokens that are told beside each of the prompt; -1: none are */
	double temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
	double typical_p, top_n_sigma, xtc_probability, xtc_threshold, dynatemp_range, dynatemp_exponent;
	double dry_multiplier, dry_base;
	const json_t *logit_bias, *stop_token_ids; /* NULL: not given */
	struct odm_strings stop, dry_sequence_breakers;
	bool ignore_eos, stream, include_usage, skip_special;
	struct od_logit_bias *bias; /* malloc'd; odm_generation_fini */
	size_t n_bias;
	int32_t *stop_token, *breakers; /* malloc'd; odm_generation_fini */
	size_t n_stop_tokens;
	struct od_dry_opts dry; /* the settings of DRY, ready for a sampler */
};

/* Reads these fields of a request. Fields that it does not give have od-main's defaults: the model's
 * generation_config.json, else greedy; the seed is random. e names the field that is wrong. */
OD_MUST_CHECK int odm_generation_read(struct odm_generation *g, const json_t *request, const struct odm_engine *engine,
				      struct odm_api_error *e);
void odm_generation_fini(struct odm_generation *g);

/* Fills *req, except its prompt, for the choice number `choice` of a prompt: its seed is `seed` + choice. The first one
 * also gets the log probabilities of the prompt. */
void odm_generation_request(const struct odm_generation *g, size_t choice, struct odm_request *req);

/* OpenAI's finish_reason: "stop" or "length". */
const char *odm_finish_reason(enum odm_finish f);

struct odm_usage {
	size_t prompt_tokens, completion_tokens, cached_tokens;
};
json_t *odm_usage_json(const struct odm_usage *u);

/* Encodes a prompt's text, with the model's special tokens, as od-main --prompt does. */
OD_MUST_CHECK int odm_encode_prompt(const struct odm_engine *engine, const char *text, size_t len, const char *param,
				    int32_t **ids, size_t *n, struct odm_api_error *e);
/* Reads an array of token ids, not empty. *ids: malloc'd, NULL unless OD_OK. */
OD_MUST_CHECK int odm_read_ids(const struct odm_engine *engine, const json_t *array, const char *param, int32_t **ids,
			       size_t *n, struct odm_api_error *e);
/* Refuses a prompt of n tokens that is longer than the context. */
OD_MUST_CHECK int odm_check_prompt_length(const struct odm_engine *engine, size_t n, const char *param,
					  struct odm_api_error *e);

#endif
