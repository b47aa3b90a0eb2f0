#include "main-node/serve/jobs/generation.h"

#include "common/base/clock.h"
#include "main-node/engine/sampling_config.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define MAX_TOKENS 1e9
#define MAX_N 128
#define MAX_STOPS 64
#define MAX_BREAKERS 32 /* each is compared with the whole vocabulary: 0.3 s in all for 200,000 tokens */

#define AT(field) offsetof(struct odm_generation, field)

static const struct odm_field stream_options[] = {
	{ "include_usage", ODM_FIELD_BOOL, AT(include_usage), 0, 0, NULL },
	{ 0 },
};

static const struct odm_field fields[] = {
	{ "max_tokens", ODM_FIELD_INT, AT(max_tokens), -1, MAX_TOKENS, NULL },
	{ "n", ODM_FIELD_INT, AT(n), 1, MAX_N, NULL },
	{ "temperature", ODM_FIELD_REAL, AT(temperature), 0, 1000, NULL },
	{ "top_p", ODM_FIELD_REAL, AT(top_p), 0, 1, NULL },
	{ "top_k", ODM_FIELD_INT, AT(top_k), -1, UINT32_MAX, NULL },
	{ "min_p", ODM_FIELD_REAL, AT(min_p), 0, 1, NULL },
	{ "repetition_penalty", ODM_FIELD_REAL, AT(repetition_penalty), 0.01, 100, NULL },
	{ "repeat_last_n", ODM_FIELD_INT, AT(repeat_last_n), -1, UINT32_MAX, NULL },
	{ "frequency_penalty", ODM_FIELD_REAL, AT(frequency_penalty), -OD_MAX_PENALTY, OD_MAX_PENALTY, NULL },
	{ "presence_penalty", ODM_FIELD_REAL, AT(presence_penalty), -OD_MAX_PENALTY, OD_MAX_PENALTY, NULL },
	{ "typical_p", ODM_FIELD_REAL, AT(typical_p), 0, 1, NULL },
	{ "top_n_sigma", ODM_FIELD_REAL, AT(top_n_sigma), -1, OD_MAX_SIGMA, NULL },
	{ "xtc_probability", ODM_FIELD_REAL, AT(xtc_probability), 0, 1, NULL },
	{ "xtc_threshold", ODM_FIELD_REAL, AT(xtc_threshold), 0, 1, NULL },
	{ "dynatemp_range", ODM_FIELD_REAL, AT(dynatemp_range), 0, OD_MAX_DYNATEMP_RANGE, NULL },
	{ "dynatemp_exponent", ODM_FIELD_REAL, AT(dynatemp_exponent), 0, OD_MAX_DYNATEMP_EXPONENT, NULL },
	{ "dry_multiplier", ODM_FIELD_REAL, AT(dry_multiplier), 0, OD_MAX_DRY_MULTIPLIER, NULL },
	{ "dry_base", ODM_FIELD_REAL, AT(dry_base), 0, OD_MAX_DRY_BASE, NULL },
	{ "dry_allowed_length", ODM_FIELD_INT, AT(dry_allowed_length), 0, OD_MAX_DRY_WINDOW, NULL },
	{ "dry_penalty_last_n", ODM_FIELD_INT, AT(dry_penalty_last_n), -1, UINT32_MAX, NULL },
	{ "dry_sequence_breakers", ODM_FIELD_STRINGS, AT(dry_sequence_breakers), 0, MAX_BREAKERS, NULL },
	{ "min_tokens", ODM_FIELD_INT, AT(min_tokens), 0, MAX_TOKENS, NULL },
	{ "stop_token_ids", ODM_FIELD_JSON, AT(stop_token_ids), 0, 0, NULL },
	{ "logit_bias", ODM_FIELD_JSON, AT(logit_bias), 0, 0, NULL },
	{ "seed", ODM_FIELD_INT, AT(seed), (double)INT64_MIN, (double)INT64_MAX, NULL },
	{ "prompt_logprobs", ODM_FIELD_INT, AT(prompt_logprobs), 0, ODM_MAX_LOGPROBS, NULL },
	{ "stop", ODM_FIELD_STRINGS, AT(stop), 0, MAX_STOPS, NULL },
	{ "ignore_eos", ODM_FIELD_BOOL, AT(ignore_eos), 0, 0, NULL },
	{ "stream", ODM_FIELD_BOOL, AT(stream), 0, 0, NULL },
	{ "stream_options", ODM_FIELD_OBJECT, 0, 0, 0, stream_options },
	{ "skip_special_tokens", ODM_FIELD_BOOL, AT(skip_special), 0, 0, NULL },
	{ 0 },
};

static uint64_t random_seed(void)
{
	uint64_t seed;

	if (getrandom(&seed, sizeof(seed), 0) != (ssize_t)sizeof(seed))
		seed = od_now_ns();
	return seed & INT64_MAX;
}

/* {"50256": -100, ...} */
static int read_bias(struct odm_generation *g, uint32_t vocab, struct odm_api_error *e)
{
	const json_t *value;
	const char *key;

	if (!json_is_object(g->logit_bias))
		return odm_api_fail(e, 400, "logit_bias", OD_ERR_FORMAT,
				    "logit_bias: expected an object of token ids and numbers");
	if (json_object_size(g->logit_bias) > OD_MAX_LOGIT_BIAS)
		return odm_api_fail(e, 400, "logit_bias", OD_ERR_RANGE,
				    "logit_bias: expected at most %u tokens, found %zu", OD_MAX_LOGIT_BIAS,
				    json_object_size(g->logit_bias));
	g->bias = calloc(json_object_size(g->logit_bias) + 1, sizeof(*g->bias));
	if (g->bias == NULL)
		return odm_no_memory(e);
	json_object_foreach((json_t *)(uintptr_t)g->logit_bias, key, value)
	{
		char *end;
		const unsigned long id = strtoul(key, &end, 10);
		const double bias = json_number_value(value);

		if (key[0] < '0' || key[0] > '9' || *end != '\0' || id >= vocab)
			return odm_api_fail(e, 400, "logit_bias", OD_ERR_RANGE,
					    "logit_bias: expected token ids from 0 to %u, found "
					    "\"%.40s\"",
					    vocab - 1, key);
		if (!json_is_number(value) || !(bias >= -OD_MAX_BIAS && bias <= OD_MAX_BIAS))
			return odm_api_fail(e, 400, "logit_bias", OD_ERR_RANGE,
					    "logit_bias: expected numbers from %g to %g", -OD_MAX_BIAS, OD_MAX_BIAS);
		for (size_t i = 0; i < g->n_bias; i++) /* "7" and "07" name one token */
			if (g->bias[i].token == (int32_t)id)
				return odm_api_fail(e, 400, "logit_bias", OD_ERR_FORMAT,
						    "logit_bias: token %lu is named twice", id);
		g->bias[g->n_bias++] = (struct od_logit_bias){ .token = (int32_t)id, .bias = (float)bias };
	}
	return OD_OK;
}

static int check_prompt_logprobs(const struct odm_generation *g, const struct odm_engine *engine,
				 struct odm_api_error *e)
{
	if (g->prompt_logprobs >= 0 && g->stream)
		return odm_api_fail(e, 400, "prompt_logprobs", OD_ERR_UNSUPPORTED,
				    "prompt_logprobs: only for answers that are not streams, as in vLLM");
	if (g->prompt_logprobs >= 0 && odm_engine_tokenizer(engine) == NULL)
		return odm_api_fail(e, 400, "prompt_logprobs", OD_ERR_UNSUPPORTED,
				    "prompt_logprobs: the model has no tokenizer");
	return OD_OK;
}

static int read_stop_tokens(struct odm_generation *g, uint32_t vocab, struct odm_api_error *e)
{
	const size_t n = json_array_size(g->stop_token_ids);

	if (!json_is_array(g->stop_token_ids))
		return odm_api_fail(e, 400, "stop_token_ids", OD_ERR_FORMAT,
				    "stop_token_ids: expected an array of token ids");
	if (n > ODM_MAX_STOP_TOKENS)
		return odm_api_fail(e, 400, "stop_token_ids", OD_ERR_RANGE,
				    "stop_token_ids: expected at most %d tokens, found %zu", ODM_MAX_STOP_TOKENS, n);
	g->stop_token = calloc(n + 1, sizeof(*g->stop_token));
	if (g->stop_token == NULL)
		return odm_no_memory(e);
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(g->stop_token_ids, i);
		char found[64];

		if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= vocab)
			return odm_api_fail(e, 400, "stop_token_ids", OD_ERR_RANGE,
					    "stop_token_ids[%zu]: expected an integer from 0 to %u, found %s", i,
					    vocab - 1, odm_json_describe(v, found, sizeof(found)));
		g->stop_token[g->n_stop_tokens++] = (int32_t)json_integer_value(v);
	}
	return OD_OK;
}

/* A base below 1 is the usual one, as for llama-server. */
static int read_dry(struct odm_generation *g, const struct odm_engine *engine, struct odm_api_error *e)
{
	const uint32_t ctx = odm_engine_ctx(engine);
	struct od_err err;
	int rc;

	g->dry = (struct od_dry_opts){
		.multiplier = g->dry_multiplier,
		.base = g->dry_base >= 1 ? g->dry_base : OD_DRY_BASE,
		.allowed_length = (uint32_t)g->dry_allowed_length,
		.window = g->dry_penalty_last_n >= 0 ? (uint32_t)g->dry_penalty_last_n : ctx,
	};
	rc = odm_sampling_dry(&g->dry, odm_engine_tokenizer(engine), od_pack_config(odm_engine_pack(engine))->vocab,
			      ctx, g->dry_sequence_breakers.value, g->dry_sequence_breakers.n, &g->breakers, &err);
	return rc == OD_OK ? rc : odm_no_memory(e);
}

static int check_special(const struct odm_generation *g, struct odm_api_error *e)
{
	if (!g->skip_special)
		return odm_api_fail(e, 400, "skip_special_tokens", OD_ERR_UNSUPPORTED,
				    "skip_special_tokens: only true is supported "
				    "here");
	return OD_OK;
}

int odm_generation_read(struct odm_generation *g, const json_t *request, const struct odm_engine *engine,
			struct odm_api_error *e)
{
	const uint32_t vocab = od_pack_config(odm_engine_pack(engine))->vocab;
	struct od_sampler_opts s;
	struct od_err err;
	int rc = odm_sampling_defaults(&s, odm_engine_pack(engine), &err);

	*g = (struct odm_generation){ .max_tokens = ODM_NOT_GIVEN,
				      .n = 1,
				      .prompt_logprobs = -1,
				      .skip_special = true,
				      .top_k = s.top_k,
				      .repeat_last_n = -1,
				      .seed = (int64_t)random_seed(),
				      .temperature = s.temperature,
				      .top_p = s.top_p,
				      .min_p = s.min_p,
				      .typical_p = s.typical_p,
				      .top_n_sigma = s.top_n_sigma,
				      .xtc_threshold = s.xtc_threshold,
				      .dynatemp_exponent = s.dynatemp_exponent,
				      .dry_base = s.dry.base,
				      .dry_allowed_length = s.dry.allowed_length,
				      .dry_penalty_last_n = s.dry.window,
				      .dry_sequence_breakers = { .n = ODM_N_USUAL_BREAKERS },
				      .repetition_penalty = s.repetition_penalty };
	memcpy(g->dry_sequence_breakers.value, odm_usual_breakers, sizeof(odm_usual_breakers));
	if (rc != OD_OK)
		return odm_api_fail(e, 500, NULL, rc, "%s", err.msg);
	rc = odm_fields_read(fields, request, g, e);
	if (rc == OD_OK)
		rc = check_special(g, e);
	if (rc == OD_OK)
		rc = check_prompt_logprobs(g, engine, e);
	if (g->repeat_last_n >= odm_engine_ctx(engine))
		/* a window as long as the context covers all; all needs no memory for a window */
		g->repeat_last_n = -1;
	if (rc == OD_OK && g->logit_bias != NULL)
		rc = read_bias(g, vocab, e);
	if (rc == OD_OK && g->stop_token_ids != NULL)
		rc = read_stop_tokens(g, vocab, e);
	if (rc == OD_OK && g->max_tokens > 0 && g->min_tokens > g->max_tokens)
		rc = odm_api_fail(e, 400, "min_tokens", OD_ERR_RANGE,
				  "min_tokens: expected at most max_tokens, %lld, found %lld", (long long)g->max_tokens,
				  (long long)g->min_tokens);
	if (rc == OD_OK)
		rc = read_dry(g, engine, e);
	return rc;
}

void odm_generation_fini(struct odm_generation *g)
{
	free(g->bias);
	free(g->stop_token);
	free(g->breakers);
	g->bias = NULL;
	g->stop_token = g->breakers = NULL;
}

void odm_generation_request(const struct odm_generation *g, size_t choice, struct odm_request *req)
{
	*req = (struct odm_request){
		.max_tokens = g->max_tokens > 0 ? (uint64_t)g->max_tokens : 0,
		.min_tokens = (uint64_t)g->min_tokens,
		.ignore_eos = g->ignore_eos,
		.sampling = {
			.temperature = g->temperature,
			.top_k = g->top_k > 0 ? (uint32_t)g->top_k : 0,
			.top_p = g->top_p,
			.min_p = g->min_p,
			.repetition_penalty = g->repeat_last_n == 0 ? 1 : g->repetition_penalty,
			.repetition_window = g->repeat_last_n > 0 ? (uint32_t)g->repeat_last_n : 0,
			.frequency_penalty = g->frequency_penalty,
			.presence_penalty = g->presence_penalty,
			.typical_p = g->typical_p,
			.top_n_sigma = g->top_n_sigma,
			.xtc_probability = g->xtc_probability,
			.xtc_threshold = g->xtc_threshold,
			.dynatemp_range = g->dynatemp_range,
			.dynatemp_exponent = g->dynatemp_exponent,
			.dry = g->dry,
			.logit_bias = g->bias,
			.n_logit_bias = g->n_bias,
			.seed = (uint64_t)g->seed + choice,
		},
		.stop = g->stop.value,
		.n_stop = g->stop.n,
		.stop_token = g->stop_token,
		.n_stop_tokens = g->n_stop_tokens,
		.logprobs = choice == 0 ? (int)g->prompt_logprobs : -1,
		.prompt_logprobs = choice == 0 && g->prompt_logprobs >= 0,
	};
}

const char *odm_finish_reason(enum odm_finish f)
{
	return f == ODM_FINISH_LENGTH || f == ODM_FINISH_CONTEXT ? "length" : "stop";
}

json_t *odm_usage_json(const struct odm_usage *u)
{
	return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)u->prompt_tokens, "completion_tokens",
			 (json_int_t)u->completion_tokens, "total_tokens",
			 (json_int_t)(u->prompt_tokens + u->completion_tokens), "prompt_tokens_details",
			 "cached_tokens", (json_int_t)u->cached_tokens);
}

int odm_encode_prompt(const struct odm_engine *engine, const char *text, size_t len, const char *param, int32_t **ids,
		      size_t *n, struct odm_api_error *e)
{
	const struct od_tokenizer *t = odm_engine_tokenizer(engine);
	struct od_err err;
	int rc;

	*ids = NULL;
	*n = 0;
	if (t == NULL)
		return odm_api_fail(e, 400, param, OD_ERR_UNSUPPORTED, "%s: the model has no tokenizer; give token ids",
				    param);
	rc = od_tokenizer_encode(t, text, len, OD_ENCODE_ADD_SPECIAL | OD_ENCODE_PARSE_SPECIAL, ids, n, &err);
	return rc == OD_OK ? rc : odm_api_fail(e, rc == OD_ERR_NOMEM ? 503 : 400, param, rc, "%s: %s", param, err.msg);
}

int odm_read_ids(const struct odm_engine *engine, const json_t *array, const char *param, int32_t **ids, size_t *n,
		 struct odm_api_error *e)
{
	const uint32_t vocab = od_pack_config(odm_engine_pack(engine))->vocab;
	int32_t *read;
	char found[64];

	*ids = NULL;
	*n = json_array_size(array);
	if (*n == 0)
		return odm_api_fail(e, 400, param, OD_ERR_FORMAT, "%s: an array of token ids is empty", param);
	read = calloc(*n, sizeof(*read));
	if (read == NULL)
		return odm_no_memory(e);
	for (size_t i = 0; i < *n; i++) {
		const json_t *id = json_array_get(array, i);

		if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab) {
			free(read);
			return odm_api_fail(e, 400, param, OD_ERR_RANGE,
					    "%s: token %zu: expected an integer from 0 to %u, found %s", param, i,
					    vocab - 1, odm_json_describe(id, found, sizeof(found)));
		}
		read[i] = (int32_t)json_integer_value(id);
	}
	*ids = read;
	return OD_OK;
}

int odm_check_prompt_length(const struct odm_engine *engine, size_t n, const char *param, struct odm_api_error *e)
{
	const uint32_t ctx = odm_engine_ctx(engine);

	if (n <= ctx)
		return OD_OK;
	/* Programs such as Claude Code look for this wording, and then shorten the conversation. */
	odm_api_fail(e, 400, param, OD_ERR_RANGE, "%s: prompt is too long: %zu tokens > %u maximum", param, n, ctx);
	e->code = "context_length_exceeded";
	return OD_ERR_RANGE;
}
