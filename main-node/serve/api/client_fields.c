#include "main-node/serve/api/client_fields.h"

#include "common/base/log.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define C ODM_API_COMPLETIONS
#define H ODM_API_CHAT
#define R ODM_API_RESPONSES
#define M ODM_API_MESSAGES
#define REQUESTS (C | H | R | M)
#define ALL (REQUESTS | O)
#define DIALOGS (H | R | M)
#define P ODM_API_OLLAMA_CHAT
#define G ODM_API_OLLAMA_GENERATE
#define S ODM_API_OLLAMA_SHOW
#define O ODM_API_OLLAMA_OPTIONS

#define DONE(name, apis, note) \
	{ \
		name, apis, ODM_FIELD_DONE, NULL, NULL, note \
	}
#define ALIAS(name, apis, means) \
	{ \
		name, apis, ODM_FIELD_ALIAS, means, NULL, NULL \
	}
#define IGNORED(name, apis, why) \
	{ \
		name, apis, ODM_FIELD_IGNORED, NULL, NULL, why \
	}
#define REFUSED(name, apis) \
	{ \
		name, apis, ODM_FIELD_REFUSED, NULL, NULL, NULL \
	}
#define UNLESS(name, apis, neutral) \
	{ \
		name, apis, ODM_FIELD_REFUSED, NULL, neutral, NULL \
	}

#define BY_ITSELF "it says nothing without the field that turns it on, which is refused"
#define SAME_ANSWER "the answer does not depend on it"
#define NO_ACCOUNTS "there are no accounts"
#define NO_SETTING "models have no such setting"
#define ONLY_SPEED "it is about speed"
#define OF_LOADING "it is about how a model is loaded, and this one is"

const struct odm_client_field odm_client_fields[] = {
	/* Prompt and messages. */
	DONE("model", REQUESTS | ODM_API_TOKENS | P | G | S, "checked only with `--model-name`"),
	DONE("prompt", C, "text, token ids, or an array of either"),
	DONE("prompt", ODM_API_CHOICES, "text or token ids, instead of `messages`"),
	DONE("choices", ODM_API_CHOICES, "2 to 128 different texts"),
	DONE("normalize", ODM_API_CHOICES, "`sum` (default) or `mean`"),
	DONE("ends", ODM_API_CHOICES, "the text ends behind a choice: true for `messages`, else false"),
	DONE("input_prefix", ODM_API_INFILL, "text before the gap"),
	DONE("input_suffix", ODM_API_INFILL, "text behind the gap"),
	DONE("input_extra", ODM_API_INFILL, "other files: an array of objects with `text` and `filename`"),
	DONE("prompt", ODM_API_INFILL, "more text before the gap"),
	DONE("return_tokens", ODM_API_INFILL, "the answer has `tokens`; a stream too, only then"),
	UNLESS("n", ODM_API_INFILL, "1"),
	UNLESS("best_of", ODM_API_INFILL, "1"),
	REFUSED("echo", ODM_API_INFILL),
	REFUSED("logprobs", ODM_API_INFILL),
	REFUSED("prompt_logprobs", ODM_API_INFILL),
	REFUSED("suffix", ODM_API_INFILL),
	IGNORED("samplers", ODM_API_INFILL, "editors always send it; the order here is fixed"),
	IGNORED("t_max_predict_ms", ODM_API_INFILL, "editors always send it; `n_predict` limits the text"),
	IGNORED("n_indent", ODM_API_INFILL, "lines are as the model writes them"),
	IGNORED("response_fields", ODM_API_INFILL, "the answer has all its fields"),
	DONE("messages", H | M, NULL),
	DONE("input", R, NULL),
	DONE("instructions", R, NULL),
	DONE("system", M, NULL),
	DONE("tools", DIALOGS, NULL),
	DONE("tool_choice", DIALOGS, NULL),
	DONE("parallel_tool_calls", H | R, NULL),
	DONE("documents", H, "a variable of the chat template"),
	DONE("chat_template_kwargs", DIALOGS, "variables of the chat template; they win over all other fields"),
	DONE("add_generation_prompt", H, NULL),
	DONE("continue_final_message", H, NULL),

	/* Thinking. */
	DONE("reasoning_effort", DIALOGS, "`none` and `minimal` turn thinking off"),
	DONE("reasoning", H | R, "`effort`, `enabled`, and `max_tokens` as `thinking_budget`"),
	DONE("enable_thinking", DIALOGS, "true or false"),
	DONE("thinking", DIALOGS, "`{\"type\": \"disabled\"}` and the like, true or false; a budget is not enforced"),
	DONE("think", DIALOGS, "true, false or an effort, as Ollama's"),
	DONE("output_config", M, "`effort`"),
	UNLESS("include_reasoning", H, "true"),
	DONE("thinking_budget", DIALOGS, "0 turns thinking off; another budget is not enforced"),
	IGNORED("verbosity", H | R, NO_SETTING),

	/* Lengths and numbers of choices. */
	DONE("max_tokens", C | H | M, "-1: no limit"),
	DONE("max_completion_tokens", H, "-1: no limit; it wins over `max_tokens`"),
	DONE("max_output_tokens", R, "-1: no limit"),
	ALIAS("max_tokens", R, "max_output_tokens"),
	ALIAS("max_completion_tokens", R, "max_output_tokens"),
	ALIAS("n_predict", C | H | M, "max_tokens"),
	ALIAS("n_predict", R, "max_output_tokens"),
	DONE("stop", C | H | R, NULL),
	DONE("stop_sequences", M, NULL),
	ALIAS("stop_sequences", C | H | R, "stop"),
	ALIAS("stop", M, "stop_sequences"),
	DONE("ignore_eos", ALL, NULL),
	DONE("n", C | H, NULL),
	UNLESS("n", R | M, "1"),
	DONE("best_of", C, "the value of `n`"),
	UNLESS("best_of", DIALOGS, "1"),
	DONE("min_tokens", ALL,
	     "before so many tokens neither EOS nor a token of `stop_token_ids` is drawn; stop strings count at once"),
	DONE("stop_token_ids", ALL, "in force with `ignore_eos` too"),
	REFUSED("include_stop_str_in_output", ALL),
	REFUSED("truncate_prompt_tokens", ALL),
	UNLESS("t_max_predict_ms", ALL, "-1"),
	REFUSED("stop_regex", ALL),

	/* Sampling. */
	DONE("temperature", ALL, NULL),
	DONE("top_p", ALL, NULL),
	DONE("top_k", ALL, "-1 and 0: all"),
	DONE("min_p", ALL, NULL),
	DONE("seed", ALL, NULL),
	DONE("repetition_penalty", ALL, NULL),
	ALIAS("repeat_penalty", ALL, "repetition_penalty"),
	DONE("repeat_last_n", ALL, "tokens that the repetition penalty covers; -1: all, 0: none"),
	DONE("frequency_penalty", ALL, NULL),
	DONE("presence_penalty", ALL, NULL),
	DONE("logit_bias", ALL, "an object of token ids and numbers"),
	DONE("typical_p", ALL, "1: off"),
	ALIAS("typ_p", ALL, "typical_p"),
	UNLESS("tfs_z", ALL, "1"),
	UNLESS("tfs", ALL, "1"),
	REFUSED("top_a", ALL),
	DONE("top_n_sigma", ALL, "-1 and 0: off"),
	REFUSED("epsilon_cutoff", ALL),
	REFUSED("eta_cutoff", ALL),
	REFUSED("mirostat", ALL),
	REFUSED("mirostat_mode", ALL),
	IGNORED("mirostat_tau", ALL, BY_ITSELF),
	IGNORED("mirostat_eta", ALL, BY_ITSELF),
	DONE("dry_multiplier", ALL, "0: off"),
	DONE("dry_base", ALL, "default 1.75; below 1: 1.75"),
	DONE("dry_allowed_length", ALL, "default 2"),
	DONE("dry_penalty_last_n", ALL, "default 64; -1: all, 0: off"),
	DONE("dry_sequence_breakers", ALL, "an array of texts; default: the line break, `:`, `\"` and `*`"),
	DONE("xtc_probability", ALL, "0: off"),
	DONE("xtc_threshold", ALL, "default 0.1; above 0.5: off"),
	DONE("dynatemp_range", ALL, "0: off"),
	DONE("dynatemp_exponent", ALL, "default 1"),
	REFUSED("dynamic_temperature", ALL),
	REFUSED("smoothing_factor", ALL),
	REFUSED("adaptive_target", ALL),
	IGNORED("adaptive_decay", ALL, BY_ITSELF),
	REFUSED("no_repeat_ngram_size", ALL),
	UNLESS("encoder_repetition_penalty", ALL, "1"),
	REFUSED("penalty_alpha", ALL),
	UNLESS("guidance_scale", ALL, "1"),
	REFUSED("negative_prompt", ALL),
	REFUSED("penalize_nl", ALL),
	REFUSED("temperature_last", ALL),
	REFUSED("samplers", ALL),
	REFUSED("sampler_order", ALL),
	UNLESS("do_sample", ALL, "true"),
	REFUSED("use_beam_search", ALL),
	UNLESS("num_beams", ALL, "1"),
	IGNORED("length_penalty", ALL, "it is about beam search, which is refused"),
	IGNORED("early_stopping", ALL, "it is about beam search, which is refused"),
	REFUSED("bad_words", ALL),
	REFUSED("allowed_token_ids", ALL),
	REFUSED("logits_processors", ALL),
	REFUSED("custom_logit_processor", ALL),

	/* The answer's format. */
	DONE("stream", REQUESTS, NULL),
	DONE("stream_options", C | H, "`include_usage`"),
	IGNORED("stream_options", R | M, SAME_ANSWER),
	DONE("logprobs", C | H, "a number of 0 to 20; in chats true or false"),
	DONE("top_logprobs", H | R, "0 to 20"),
	DONE("logprobs", ODM_API_CHOICES, "true or false"),
	REFUSED("top_logprobs", ODM_API_CHOICES),
	REFUSED("stream", ODM_API_CHOICES),
	REFUSED("prompt_logprobs", ODM_API_CHOICES),
	REFUSED("logprobs", R | M),
	REFUSED("top_logprobs", M),
	DONE("include", R, "`message.output_text.logprobs`; the others have nothing to give"),
	DONE("echo", C, NULL),
	REFUSED("echo", H),
	DONE("skip_special_tokens", C | H, "true"),
	UNLESS("skip_special_tokens", R | M, "true"),
	IGNORED("spaces_between_special_tokens", ALL, "it is about special tokens in the text, and there are none"),
	DONE("response_format", C | H, "`text`, `json_object`, `json_schema`"),
	UNLESS("response_format", R | M, "{\"type\": \"text\"}"),
	DONE("text", R, NULL),
	DONE("text.format", R, "`text`, `json_object`, `json_schema`"),
	IGNORED("text.verbosity", R, NO_SETTING),
	DONE("output_format", M, "`json_schema`"),
	DONE("output_config.format", M, "`json_schema`"),
	DONE("structured_outputs", REQUESTS, "`json`, `regex`, `choice`, `grammar` (GBNF), `json_object`"),
	DONE("guided_json", REQUESTS, NULL),
	DONE("guided_regex", REQUESTS, NULL),
	DONE("guided_choice", REQUESTS, NULL),
	DONE("guided_grammar", REQUESTS, "GBNF"),
	IGNORED("guided_decoding_backend", ALL, BY_ITSELF),
	IGNORED("guided_whitespace_pattern", ALL, BY_ITSELF),
	DONE("grammar", REQUESTS, "GBNF, as llama.cpp's"),
	IGNORED("grammar_lazy", ALL, BY_ITSELF),
	DONE("json_schema", REQUESTS, "as llama.cpp's"),
	ALIAS("regex", REQUESTS, "guided_regex"),
	ALIAS("ebnf", REQUESTS, "guided_grammar"),
	REFUSED("structural_tag", ALL),
	REFUSED("format", ALL),
	DONE("suffix", C, "text; models that fill in the middle write what comes between"),
	DONE("prompt_logprobs", C | H, "0 to 20, as vLLM's; not for streams"),
	REFUSED("prompt_logprobs", R | M),
	REFUSED("n_probs", ALL),
	REFUSED("return_token_ids", ALL),
	REFUSED("return_tokens", ALL),
	REFUSED("return_tokens_as_token_ids", ALL),
	UNLESS("detokenize", ALL, "true"),
	DONE("modalities", H, "`[\"text\"]`"),
	REFUSED("audio", H),
	REFUSED("web_search_options", H),
	REFUSED("functions", H),
	REFUSED("function_call", H),
	REFUSED("chat_template", DIALOGS),
	UNLESS("add_special_tokens", C, "true"),
	REFUSED("add_special_tokens", DIALOGS),
	REFUSED("options", ALL),
	REFUSED("raw", ALL),
	REFUSED("template", ALL),
	REFUSED("images", ALL),
	REFUSED("lora", ALL),
	REFUSED("extra_body", ALL),
	REFUSED("with_pieces", ODM_API_TOKENS),
	REFUSED("return_token_strs", ODM_API_TOKENS),
	DONE("content", ODM_API_TOKENS, NULL),
	DONE("prompt", ODM_API_TOKENS, NULL),
	DONE("tokens", ODM_API_TOKENS, NULL),
	DONE("add_special", ODM_API_TOKENS, NULL),
	DONE("add_special_tokens", ODM_API_TOKENS, NULL),
	DONE("parse_special", ODM_API_TOKENS, NULL),

	/* State and services of other servers. */
	DONE("truncation", R, "`auto` and `disabled`: what does not fit is refused"),
	DONE("metadata", R, "the answer repeats it"),
	IGNORED("metadata", C | H | M, NO_ACCOUNTS),
	IGNORED("store", C | H | R, "nothing is stored, and answers of `/v1/responses` say so"),
	REFUSED("previous_response_id", R),
	REFUSED("conversation", R),
	REFUSED("prompt", R),
	REFUSED("background", R),
	REFUSED("moderation", R),
	REFUSED("context_management", R),
	IGNORED("context_management", M, "the conversation is taken as it was sent"),
	IGNORED("max_tool_calls", R, "it is about tools of the server, and there are none"),
	IGNORED("mcp_servers", M, "their tools are left out, as all that the client does not run"),
	REFUSED("container", M),
	IGNORED("user", ALL, NO_ACCOUNTS),
	IGNORED("safety_identifier", ALL, NO_ACCOUNTS),
	IGNORED("service_tier", ALL, NO_ACCOUNTS),
	IGNORED("client_metadata", R, NO_ACCOUNTS),
	IGNORED("inference_geo", M, NO_ACCOUNTS),
	IGNORED("betas", M, NO_ACCOUNTS),
	IGNORED("anthropic_version", M, "there is one form"),
	IGNORED("request_id", ALL, "the header X-Request-Id names a request"),
	IGNORED("prompt_cache_key", ALL, ONLY_SPEED),
	IGNORED("prompt_cache_retention", ALL, ONLY_SPEED),
	IGNORED("prompt_cache_options", ALL, ONLY_SPEED),
	IGNORED("cache_control", ALL, ONLY_SPEED),
	IGNORED("cache_salt", ALL, ONLY_SPEED),
	IGNORED("cache_prompt", ALL, ONLY_SPEED),
	IGNORED("n_cache_reuse", ALL, ONLY_SPEED),
	IGNORED("prediction", H, ONLY_SPEED),
	IGNORED("speed", M, ONLY_SPEED),
	IGNORED("priority", ALL, SAME_ANSWER),
	IGNORED("id_slot", ALL, SAME_ANSWER),
	IGNORED("slot_id", ALL, SAME_ANSWER),
	IGNORED("keep_alive", ALL, "the model stays loaded"),
	IGNORED("n_keep", ALL, "a context is never shifted"),
	IGNORED("n_discard", ALL, "a context is never shifted"),
	IGNORED("t_max_prompt_ms", ALL, SAME_ANSWER),
	IGNORED("timings_per_token", ALL, SAME_ANSWER),
	IGNORED("return_progress", ALL, SAME_ANSWER),
	IGNORED("post_sampling_probs", ALL, BY_ITSELF),
	IGNORED("reasoning_format", DIALOGS, "thoughts always come apart from the answer"),
	IGNORED("separate_reasoning", H, "thoughts always come apart from the answer"),
	IGNORED("parse_tool_calls", H, "calls always come apart from the answer"),

	/* Ollama's API. */
	DONE("messages", P, "none: the answer has `done_reason` `load`"),
	DONE("prompt", G, "none: the answer has `done_reason` `load`"),
	DONE("system", G, NULL),
	DONE("tools", P, NULL),
	DONE("think", P | G, "true, false or an effort"),
	DONE("stream", P | G, "true if it is not given"),
	DONE("raw", G, "true: `prompt` without the chat template"),
	DONE("images", G, "each becomes a note in its place; so do those of messages"),
	DONE("format", P | G, "becomes `response_format`: `json` or a JSON schema"),
	DONE("options", P | G, "an object; its fields are listed as `options`"),
	DONE("logprobs", P | G, "true or false"),
	DONE("top_logprobs", P | G, "0 to 20"),
	DONE("num_predict", O, "tokens; -1, -2 and 0: no limit"),
	DONE("stop", O, NULL),
	UNLESS("penalize_newline", O, "true"),
	REFUSED("suffix", G),
	REFUSED("template", G),
	REFUSED("context", G),
	REFUSED("width", G),
	REFUSED("height", G),
	REFUSED("steps", G),
	IGNORED("keep_alive", P | G, "the model stays loaded"),
	IGNORED("truncate", P | G, "what does not fit is refused"),
	IGNORED("shift", P | G, "a context is never shifted"),
	IGNORED("num_keep", O, "a context is never shifted"),
	IGNORED("num_ctx", O, "every text has the server's context; a prompt that is longer is refused"),
	IGNORED("num_batch", O, ONLY_SPEED),
	IGNORED("num_thread", O, ONLY_SPEED),
	IGNORED("num_gpu", O, OF_LOADING),
	IGNORED("main_gpu", O, OF_LOADING),
	IGNORED("low_vram", O, OF_LOADING),
	IGNORED("f16_kv", O, OF_LOADING),
	IGNORED("numa", O, OF_LOADING),
	IGNORED("use_mmap", O, OF_LOADING),
	IGNORED("use_mlock", O, OF_LOADING),
	IGNORED("vocab_only", O, OF_LOADING),
	IGNORED("logits_all", O, OF_LOADING),
	IGNORED("embedding_only", O, OF_LOADING),
	ALIAS("name", S, "model"),
	IGNORED("verbose", S, "the lists of tokens are left out"),
	IGNORED("system", S, SAME_ANSWER),
	IGNORED("template", S, SAME_ANSWER),
	IGNORED("options", S, SAME_ANSWER),
	{ 0 },
};

/* ---- Reading by the table ---- */

#define MAX_NAME 40

static bool is_value(const json_t *v, const char *text)
{
	json_t *wanted = text != NULL ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
	const bool same = json_is_number(v) && json_is_number(wanted) ?
				  json_number_value(v) == json_number_value(wanted) :
				  json_equal(v, wanted);

	json_decref(wanted);
	return wanted != NULL && same;
}

static bool asks_for_nothing(const json_t *v, const char *neutral)
{
	return json_is_null(v) || json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0) ||
	       (json_is_string(v) && json_string_length(v) == 0) || (json_is_array(v) && json_array_size(v) == 0) ||
	       (json_is_object(v) && json_object_size(v) == 0) || is_value(v, neutral);
}

static int apply(const struct odm_client_field *f, json_t *request, struct odm_api_error *e)
{
	json_t *v = json_object_get(request, f->name);

	if (v == NULL)
		return OD_OK;
	if (f->fate == ODM_FIELD_REFUSED && !asks_for_nothing(v, f->neutral))
		return odm_api_fail(e, 400, f->name, OD_ERR_UNSUPPORTED, "%s is not supported here; leave it out",
				    f->name);
	if (f->fate == ODM_FIELD_ALIAS) {
		if (json_object_get(request, f->means) == NULL && json_object_set(request, f->means, v) != 0)
			return odm_no_memory(e);
		json_object_del(request, f->name);
	}
	return OD_OK;
}

static bool has_row(const char *name, unsigned api)
{
	for (const struct odm_client_field *f = odm_client_fields; f->name != NULL; f++)
		if ((f->apis & api) != 0 && strcmp(f->name, name) == 0)
			return true;
	return false;
}

/* The API whose rows hold where an API has none of its own; 0: none. */
static unsigned like(unsigned api)
{
	return api == ODM_API_CHOICES ? ODM_API_CHAT : api == ODM_API_INFILL ? ODM_API_COMPLETIONS : 0;
}

static bool holds_for(const struct odm_client_field *f, unsigned api)
{
	return (f->apis & api) != 0 || ((f->apis & like(api)) != 0 && !has_row(f->name, api));
}

/* names that are remembered; further ones are not logged */
#define MAX_SAID 32

static bool say_once(const char *name)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static char said[MAX_SAID][MAX_NAME];
	static size_t n;
	bool fresh = true;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < n; i++)
		fresh = fresh && strncmp(said[i], name, MAX_NAME - 1) != 0;
	fresh = fresh && n < MAX_SAID;
	if (fresh)
		snprintf(said[n++], MAX_NAME, "%s", name);
	pthread_mutex_unlock(&lock);
	return fresh;
}

static int apply_all(json_t *request, enum odm_api_kind api, struct odm_api_error *e)
{
	const char *name;
	json_t *v;
	int rc = OD_OK;

	json_object_foreach(request, name, v) if (!has_row(name, (unsigned)api | like((unsigned)api)) && say_once(name))
		OD_LOG_EVENT(OD_LOG_INFO, "a field of requests is not known here and ignored; this is said once",
			     od_log_text("field", name));
	for (const struct odm_client_field *f = odm_client_fields; rc == OD_OK && f->name != NULL; f++)
		if (holds_for(f, (unsigned)api))
			rc = apply(f, request, e);
	return rc;
}

int odm_client_fields_apply(json_t *request, enum odm_api_kind api, struct odm_api_error *e)
{
	const int rc = apply_all(request, api, e);

	if (rc != OD_OK || (api != ODM_API_OLLAMA_CHAT && api != ODM_API_OLLAMA_GENERATE))
		return rc;
	return apply_all(json_object_get(request, "options"), ODM_API_OLLAMA_OPTIONS, e);
}
