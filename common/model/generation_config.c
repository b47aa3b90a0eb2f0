#include "common/model/generation_config.h"

#include "common/base/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SUPPRESSED 65536u

/* ---- Tokens that are never drawn ---- */

/* An id that is none of the vocabulary cannot be drawn anyway. */
static void add(struct od_logit_bias *list, size_t *n, json_int_t id, uint32_t vocab)
{
	if (id < 0 || id >= vocab)
		return;
	for (size_t i = 0; i < *n; i++)
		if (list[i].token == (int32_t)id)
			return;
	list[(*n)++] = (struct od_logit_bias){ .token = (int32_t)id, .bias = -INFINITY };
}

static bool are_ids(const json_t *list)
{
	const json_t *v;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)list, i, v) if (!json_is_integer(v)) return false;
	return json_is_array(list);
}

static int check(const json_t *suppress, const json_t *words, const char *where, struct od_err *err)
{
	const json_t *v;
	size_t i;

	if (suppress != NULL && !json_is_null(suppress) && !are_ids(suppress))
		return od_fail(err, OD_ERR_FORMAT, "%s: field \"suppress_tokens\": expected a list of token ids",
			       where);
	if (words != NULL && !json_is_null(words) && !json_is_array(words))
		return od_fail(err, OD_ERR_FORMAT, "%s: field \"bad_words_ids\": expected a list of lists of token ids",
			       where);
	json_array_foreach((json_t *)(uintptr_t)words, i, v) if (!are_ids(v)) return od_fail(
		err, OD_ERR_FORMAT, "%s: field \"bad_words_ids\": expected a list of lists of token ids", where);
	if (json_array_size(suppress) + json_array_size(words) > MAX_SUPPRESSED)
		return od_fail(err, OD_ERR_RANGE, "%s: field \"suppress_tokens\": expected at most %u tokens", where,
			       MAX_SUPPRESSED);
	return OD_OK;
}

int od_generation_suppressed(struct od_logit_bias **out, size_t *n, const json_t *config, uint32_t vocab,
			     const char *where, struct od_err *err)
{
	const json_t *suppress = json_object_get(config, "suppress_tokens"),
		     *words = json_object_get(config, "bad_words_ids"), *v;
	const size_t most = json_array_size(suppress) + json_array_size(words);
	size_t i;
	int rc = check(suppress, words, where, err);

	*out = NULL;
	*n = 0;
	if (rc != OD_OK || most == 0)
		return rc;
	*out = calloc(most, sizeof(**out));
	if (*out == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: %zu tokens", where, most);
	json_array_foreach((json_t *)(uintptr_t)suppress, i, v) add(*out, n, json_integer_value(v), vocab);
	json_array_foreach((json_t *)(uintptr_t)words, i, v) if (json_array_size(v) == 1)
		add(*out, n, json_integer_value(json_array_get(v, 0)), vocab);
	return OD_OK;
}

/* ---- What is not done ---- */

struct field {
	const char *name;
	double neutral; /* as are null, false, 0, and an empty list or object */
	bool draws; /* it says how a token is drawn, so without do_sample it says nothing */
};

/* The others are done, or do not change a text: names of special tokens, lengths that a request gives, caches,
 * assistants, outputs. */
static const struct field not_done[] = {
	{ "typical_p", 1, true },
	{ "epsilon_cutoff", 0, true },
	{ "eta_cutoff", 0, true },
	{ "top_h", 0, true },
	{ "no_repeat_ngram_size", 0, false },
	{ "encoder_no_repeat_ngram_size", 0, false },
	{ "encoder_repetition_penalty", 1, false },
	{ "begin_suppress_tokens", 0, false },
	{ "stop_strings", 0, false },
	{ "forced_bos_token_id", 0, false },
	{ "forced_eos_token_id", 0, false },
	{ "exponential_decay_length_penalty", 0, false },
	{ "sequence_bias", 0, false },
	{ "min_length", 0, false },
	{ "min_new_tokens", 0, false },
	{ "max_time", 0, false },
	{ "penalty_alpha", 0, false },
	{ "num_beams", 1, false },
	{ "num_beam_groups", 1, false },
	{ "diversity_penalty", 0, false },
	{ "constraints", 0, false },
	{ "force_words_ids", 0, false },
	{ "guidance_scale", 1, false },
	{ "watermarking_config", 0, false },
	{ "dola_layers", 0, false },
	{ "token_healing", 0, false },
};

static bool says_nothing(const json_t *v, double neutral)
{
	return v == NULL || json_is_null(v) || json_is_false(v) || (json_is_array(v) && json_array_size(v) == 0) ||
	       (json_is_object(v) && json_object_size(v) == 0) ||
	       (json_is_number(v) && (json_number_value(v) == neutral || json_number_value(v) == 0));
}

static bool has_long_word(const json_t *words)
{
	const json_t *v;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)words, i, v) if (json_array_size(v) > 1) return true;
	return false;
}

static void warn(const char *where, const char *name)
{
	od_log(OD_LOG_WARN, "%s: field \"%s\" is not done here: texts may differ from those of transformers", where,
	       name);
}

void od_generation_warn(const json_t *config, const char *where)
{
	const bool sample = json_is_true(json_object_get(config, "do_sample"));

	for (size_t i = 0; i < sizeof(not_done) / sizeof(not_done[0]); i++) {
		const json_t *v = json_object_get(config, not_done[i].name);
		const bool id = strncmp(not_done[i].name, "forced_", 7) == 0; /* 0 is a token */

		if ((sample || !not_done[i].draws) &&
		    !(says_nothing(v, not_done[i].neutral) && !(id && json_is_integer(v))))
			warn(where, not_done[i].name);
	}
	if (has_long_word(json_object_get(config, "bad_words_ids")))
		warn(where, "bad_words_ids"); /* single tokens are done */
}
