#include "main-node/prompt_file.h"

#include "common/base/args.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/strbuf.h"
#include "main-node/engine/engine.h"
#include "main-node/engine/sampling_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILE_BYTES (1ull << 30)
#define MAX_TOKENS 1000000000u
#define MAX_STOPS 64

#define AT(field) offsetof(struct od_sampler_opts, field)

/* Numbers of a line that the sampler takes as they are. */
static const struct {
	const char *name;
	size_t at;
	double min, max;
} reals[] = {
	{ "temperature", AT(temperature), 0, 1000 },
	{ "top_p", AT(top_p), 0, 1 },
	{ "min_p", AT(min_p), 0, 1 },
	{ "frequency_penalty", AT(frequency_penalty), -OD_MAX_PENALTY, OD_MAX_PENALTY },
	{ "presence_penalty", AT(presence_penalty), -OD_MAX_PENALTY, OD_MAX_PENALTY },
	{ "typical_p", AT(typical_p), 0, 1 },
	{ "top_n_sigma", AT(top_n_sigma), -1, OD_MAX_SIGMA },
	{ "xtc_probability", AT(xtc_probability), 0, 1 },
	{ "xtc_threshold", AT(xtc_threshold), 0, 1 },
	{ "dynatemp_range", AT(dynatemp_range), 0, OD_MAX_DYNATEMP_RANGE },
	{ "dynatemp_exponent", AT(dynatemp_exponent), 0, OD_MAX_DYNATEMP_EXPONENT },
	{ "dry_multiplier", AT(dry.multiplier), 0, OD_MAX_DRY_MULTIPLIER },
	{ "dry_base", AT(dry.base), 1, OD_MAX_DRY_BASE },
};

static const struct {
	const char *name;
	size_t at;
	uint32_t max;
} integers[] = {
	{ "top_k", AT(top_k), UINT32_MAX },
	{ "dry_allowed_length", AT(dry.allowed_length), OD_MAX_DRY_WINDOW },
	{ "dry_penalty_last_n", AT(dry.window), OD_MAX_DRY_WINDOW },
};

static const char *const others[] = { "prompt",	  "max_tokens",	    "min_tokens",     "logit_bias",
				      "seed",	  "stop",	    "stop_token_ids", "dry_sequence_breakers",
				      "logprobs", "prompt_logprobs" };

#define N(array) (sizeof(array) / sizeof((array)[0]))

void odm_prompts_fini(struct odm_prompts *p)
{
	for (size_t i = 0; i < p->n; i++) {
		free(p->prompt[i].ids);
		free(p->prompt[i].stop);
		free(p->prompt[i].stop_token);
		free(p->prompt[i].breaker);
		free(p->prompt[i].breakers);
		free(p->prompt[i].bias);
		json_decref(p->prompt[i].object);
	}
	free(p->prompt);
	*p = (struct odm_prompts){ 0 };
}

/* ---- Reading ---- */

static bool is_field(const char *key)
{
	for (size_t i = 0; i < N(others); i++)
		if (strcmp(others[i], key) == 0)
			return true;
	for (size_t i = 0; i < N(reals); i++)
		if (strcmp(reals[i].name, key) == 0)
			return true;
	for (size_t i = 0; i < N(integers); i++)
		if (strcmp(integers[i].name, key) == 0)
			return true;
	return false;
}

/* A slip of the pen must not change a text without a word. */
static int check_fields(json_t *o, const char *where, struct od_err *err)
{
	struct od_strbuf names = { 0 };
	const char *key;
	json_t *value;

	json_object_foreach(o, key, value) if (!is_field(key))
	{
		for (size_t i = 0; i < N(others); i++)
			od_strbuf_printf(&names, "%s, ", others[i]);
		for (size_t i = 0; i < N(integers); i++)
			od_strbuf_printf(&names, "%s, ", integers[i].name);
		for (size_t i = 0; i < N(reals); i++)
			od_strbuf_printf(&names, "%s%s", reals[i].name, i + 1 < N(reals) ? ", " : "");
		od_fail(err, OD_ERR_FORMAT, "%s: field \"%s\": expected one of %s", where, key,
			names.failed ? "" : names.text);
		od_strbuf_fini(&names);
		return OD_ERR_FORMAT;
	}
	return OD_OK;
}

static int add_text(const char **text, const json_t *s, const char *field, const char *where, struct od_err *err)
{
	if (!json_is_string(s) || json_string_length(s) == 0 || strlen(json_string_value(s)) != json_string_length(s))
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: field \"%s\": expected a text, or a list of texts, none of them empty", where,
			       field);
	*text = json_string_value(s);
	return OD_OK;
}

/* *text: malloc'd, the strings borrowed; NULL: the line has no such field. */
static int read_texts(const char ***text, size_t *n_text, const json_t *o, const char *field, const char *where,
		      struct od_err *err)
{
	const json_t *list = json_object_get(o, field);
	const size_t n = json_is_array(list) ? json_array_size(list) : 1;
	int rc = OD_OK;

	if (!od_json_has(o, field))
		return OD_OK;
	if (n > MAX_STOPS)
		return od_fail(err, OD_ERR_RANGE, "%s: field \"%s\": expected at most %d texts, found %zu", where,
			       field, MAX_STOPS, n);
	*text = calloc(n + 1, sizeof(**text));
	if (*text == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", where);
	*n_text = n;
	if (!json_is_array(list))
		return add_text(*text, list, field, where, err);
	for (size_t i = 0; rc == OD_OK && i < n; i++)
		rc = add_text(*text + i, json_array_get(list, i), field, where, err);
	return rc;
}

/* The engine checks that they are tokens of the vocabulary. */
static int read_stop_tokens(struct odm_prompt *q, const json_t *o, const char *where, struct od_err *err)
{
	const size_t n = json_array_size(json_object_get(o, "stop_token_ids"));
	json_t *list;
	int rc;

	if (!od_json_has(o, "stop_token_ids"))
		return OD_OK;
	rc = od_json_arr(o, "stop_token_ids", &list, where, err);
	if (rc != OD_OK)
		return rc;
	if (n > ODM_MAX_STOP_TOKENS)
		return od_fail(err, OD_ERR_RANGE, "%s: field \"stop_token_ids\": expected at most %d tokens, found %zu",
			       where, ODM_MAX_STOP_TOKENS, n);
	q->stop_token = calloc(n + 1, sizeof(*q->stop_token));
	if (q->stop_token == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", where);
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(list, i);

		if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
			return od_fail(err, OD_ERR_FORMAT, "%s: field \"stop_token_ids\": expected token ids", where);
		q->stop_token[q->n_stop_tokens++] = (int32_t)json_integer_value(v);
	}
	return OD_OK;
}

/* The sampler checks the biases, and their number. */
static int read_bias(struct odm_prompt *q, const json_t *o, const char *where, struct od_err *err)
{
	json_t *bias = json_object_get(o, "logit_bias"), *value;
	const char *key;

	if (!od_json_has(o, "logit_bias"))
		return OD_OK;
	if (!json_is_object(bias))
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: field \"logit_bias\": expected an object, such as {\"15\": -100}", where);
	q->bias = calloc(json_object_size(bias) + 1, sizeof(*q->bias));
	if (q->bias == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", where);
	json_object_foreach(bias, key, value)
	{
		uint64_t token;

		if (od_parse_u64(key, 0, INT32_MAX, &token, err) != OD_OK)
			return od_fail_within(err, "%s: field \"logit_bias\": token", where);
		if (!json_is_number(value))
			return od_fail(err, OD_ERR_FORMAT, "%s: field \"logit_bias\", token %s: expected a number",
				       where, key);
		q->bias[q->n_bias++] = (struct od_logit_bias){ (int32_t)token, (float)json_number_value(value) };
	}
	return OD_OK;
}

static int read_logprobs(struct odm_prompt *q, const json_t *o, const char *where, struct od_err *err)
{
	uint64_t n = 0;
	int rc;

	q->logprobs = -1;
	q->prompt_logprobs = json_is_true(json_object_get(o, "prompt_logprobs"));
	if (od_json_has(o, "prompt_logprobs") && !json_is_boolean(json_object_get(o, "prompt_logprobs")))
		return od_fail(err, OD_ERR_FORMAT, "%s: field \"prompt_logprobs\": expected true or false", where);
	if (!od_json_has(o, "logprobs"))
		return q->prompt_logprobs ? od_fail(err, OD_ERR_ARG, "%s: prompt_logprobs needs logprobs", where) :
					    OD_OK;
	rc = od_json_u64(o, "logprobs", 0, ODM_MAX_LOGPROBS, &n, where, err);
	q->logprobs = (int)n;
	return rc;
}

/* Checks types and ranges; odm_prompts_encode, which knows the rest, takes the values. */
static int read_sampling(const json_t *o, struct odm_prompt *q, const struct od_sampler_opts *other,
			 uint64_t max_tokens, uint64_t min_tokens, const char *where, struct od_err *err)
{
	struct od_sampler_opts *s = &q->sampling;
	const char *from = (const char *)other;
	int rc = OD_OK;

	*s = *other;
	s->logit_bias = q->bias;
	s->n_logit_bias = q->n_bias;
	q->max_tokens = max_tokens;
	q->min_tokens = min_tokens;
	if (od_json_has(o, "max_tokens"))
		rc = od_json_u64(o, "max_tokens", 0, MAX_TOKENS, &q->max_tokens, where, err);
	if (rc == OD_OK && od_json_has(o, "min_tokens"))
		rc = od_json_u64(o, "min_tokens", 0, MAX_TOKENS, &q->min_tokens, where, err);
	for (size_t i = 0; rc == OD_OK && i < N(reals); i++)
		rc = od_json_f64_or(o, reals[i].name, reals[i].min, reals[i].max, *(const double *)(from + reals[i].at),
				    (double *)((char *)s + reals[i].at), where, err);
	for (size_t i = 0; rc == OD_OK && i < N(integers); i++)
		rc = od_json_u32_or(o, integers[i].name, 0, integers[i].max, *(const uint32_t *)(from + integers[i].at),
				    (uint32_t *)((char *)s + integers[i].at), where, err);
	if (rc == OD_OK && od_json_has(o, "seed"))
		rc = od_json_u64(o, "seed", 0, INT64_MAX, &s->seed, where, err);
	if (rc == OD_OK && od_sampler_check(s, err) != OD_OK) {
		od_fail_within(err, "%s", where);
		rc = err->code;
	}
	return rc;
}

static int read_object(struct odm_prompt *q, const char *line, size_t len, const char *where, struct od_err *err)
{
	struct od_sampler_opts greedy;
	json_t *o;
	int rc = od_json_parse(line, len, where, &o, err);

	if (rc != OD_OK)
		return rc;
	od_sampler_defaults(&greedy);
	q->object = o;
	rc = check_fields(o, where, err);
	if (rc == OD_OK)
		rc = od_json_str(o, "prompt", &q->text, where, err);
	if (rc != OD_OK)
		return rc;
	q->len = json_string_length(json_object_get(o, "prompt"));
	rc = read_bias(q, o, where, err);
	if (rc == OD_OK)
		rc = read_logprobs(q, o, where, err);
	if (rc == OD_OK)
		rc = read_sampling(o, q, &greedy, 0, 0, where, err);
	if (rc == OD_OK)
		rc = read_stop_tokens(q, o, where, err);
	if (rc == OD_OK)
		rc = read_texts(&q->breaker, &q->n_breaker, o, "dry_sequence_breakers", where, err);
	return rc == OD_OK ? read_texts(&q->stop, &q->n_stop, o, "stop", where, err) : rc;
}

static bool is_blank(const char *line, size_t len)
{
	return strspn(line, " \t\r\n") >= len;
}

static int add_line(struct odm_prompts *p, const char *line, size_t len, size_t number, struct od_err *err)
{
	struct odm_prompt *grown = p->prompt;
	char where[400];

	if ((p->n & (p->n - 1)) == 0) /* doubles */
		grown = realloc(p->prompt, (p->n > 0 ? 2 * p->n : 1) * sizeof(*grown));
	if (grown == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for %zu prompts", p->path, p->n + 1);
	p->prompt = grown;
	p->prompt[p->n] = (struct odm_prompt){ .line = number };
	snprintf(where, sizeof(where), "%s, line %zu", p->path, number);
	return read_object(&p->prompt[p->n++], line, len, where, err);
}

/* The first line, without a byte order mark. UTF-16 is refused. */
static int begin_text(const char *path, char *line, ssize_t *len, struct od_err *err)
{
	const size_t mark = od_byte_order_mark(line, (size_t)*len);
	int rc = od_check_text(line, (size_t)*len, path, err);

	*len -= (ssize_t)mark;
	memmove(line, line + mark, (size_t)*len + 1);
	return rc;
}

static int read_lines(struct odm_prompts *p, FILE *f, struct od_err *err)
{
	uint64_t bytes = 0;
	size_t size = 0, number = 0;
	char *line = NULL;
	int rc = OD_OK;
	ssize_t len;

	while (rc == OD_OK && (len = getline(&line, &size, f)) >= 0) {
		number++;
		bytes += (uint64_t)len;
		if (number == 1)
			rc = begin_text(p->path, line, &len, err);
		if (bytes > MAX_FILE_BYTES)
			rc = od_fail(err, OD_ERR_RANGE, "%s: longer than %llu bytes", p->path, MAX_FILE_BYTES);
		else if (rc == OD_OK && !is_blank(line, (size_t)len))
			rc = add_line(p, line, (size_t)len, number, err);
	}
	free(line);
	if (rc == OD_OK && ferror(f))
		rc = od_fail_errno(err, OD_ERR_IO, "%s: cannot read", p->path);
	if (rc == OD_OK && p->n == 0)
		rc = od_fail(err, OD_ERR_FORMAT,
			     "%s: there is no prompt in it; expected a JSON object a line, such as "
			     "{\"prompt\": \"Once upon a time\"}",
			     p->path);
	return rc;
}

int odm_prompts_read(struct odm_prompts *p, const char *path, struct od_err *err)
{
	const bool standard = strcmp(path, "-") == 0;
	FILE *f = standard ? stdin : fopen(path, "r");
	int rc;

	*p = (struct odm_prompts){ .path = standard ? "standard input" : path };
	if (f == NULL)
		return od_fail_errno(err, OD_ERR_IO, "%s: cannot open", path);
	rc = read_lines(p, f, err);
	if (!standard)
		fclose(f);
	if (rc != OD_OK)
		odm_prompts_fini(p);
	return rc;
}

/* ---- Tokens ---- */

static int encode(const struct odm_prompts *p, struct odm_prompt *q, const struct od_tokenizer *t, uint32_t ctx,
		  struct od_err *err)
{
	int rc = od_tokenizer_encode(t, q->text, q->len, OD_ENCODE_ADD_SPECIAL | OD_ENCODE_PARSE_SPECIAL, &q->ids,
				     &q->n_ids, err);

	if (rc != OD_OK) {
		od_fail_within(err, "%s, line %zu", p->path, q->line);
		return rc;
	}
	if (q->n_ids == 0)
		return od_fail(err, OD_ERR_ARG,
			       "%s, line %zu: the prompt is empty, and the tokenizer puts no BOS in front of it",
			       p->path, q->line);
	if (q->n_ids > ctx)
		return od_fail(err, OD_ERR_RANGE,
			       "%s, line %zu: the prompt has %zu tokens, more than the context of %u; shorten it or "
			       "raise --ctx-size",
			       p->path, q->line, q->n_ids, ctx);
	return OD_OK;
}

static int copy_stop_tokens(struct odm_prompt *q, const struct odm_prompt_defaults *other, const char *where,
			    struct od_err *err)
{
	q->stop_token = calloc(other->n_stop_tokens, sizeof(*q->stop_token));
	if (q->stop_token == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", where);
	memcpy(q->stop_token, other->stop_token, other->n_stop_tokens * sizeof(*q->stop_token));
	q->n_stop_tokens = other->n_stop_tokens;
	return OD_OK;
}

/* Fills in what the line leaves out. */
static int complete(struct odm_prompt *q, const struct odm_prompt_defaults *other, const char *where,
		    struct od_err *err)
{
	int rc = read_sampling(q->object, q, &other->sampling, other->max_tokens, other->min_tokens, where, err);

	if (rc != OD_OK || q->stop != NULL || other->n_stop == 0)
		return rc;
	q->stop = calloc(other->n_stop, sizeof(*q->stop));
	if (q->stop == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", where);
	memcpy(q->stop, other->stop, other->n_stop * sizeof(*q->stop));
	q->n_stop = other->n_stop;
	return OD_OK;
}

int odm_prompts_encode(struct odm_prompts *p, const struct od_tokenizer *t, uint32_t vocab, uint32_t ctx,
		       const struct odm_prompt_defaults *other, struct od_err *err)
{
	char where[400];
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < p->n; i++) {
		struct odm_prompt *q = &p->prompt[i];
		const bool own = q->breaker != NULL;

		snprintf(where, sizeof(where), "%s, line %zu", p->path, q->line);
		rc = complete(q, other, where, err);
		if (rc == OD_OK)
			rc = odm_sampling_dry(&q->sampling.dry, t, vocab, ctx, own ? q->breaker : other->breaker,
					      own ? q->n_breaker : other->n_breaker, &q->breakers, err);
		if (rc == OD_OK && q->stop_token == NULL && other->n_stop_tokens > 0)
			rc = copy_stop_tokens(q, other, where, err);
		if (rc == OD_OK)
			rc = encode(p, q, t, ctx, err);
	}
	return rc;
}
