#include "main-node/prompt_file.h"

#include "common/base/args.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "main-node/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILE_BYTES (1ull << 30)
#define MAX_TOKENS 1000000000u
#define MAX_STOPS 64

static const char *const fields[] = { "prompt", "max_tokens",	     "temperature",	 "top_k",      "top_p",
				      "min_p",	"frequency_penalty", "presence_penalty", "logit_bias", "seed",
				      "stop",	"logprobs",	     "prompt_logprobs",	 NULL };

void odm_prompts_fini(struct odm_prompts *p)
{
	for (size_t i = 0; i < p->n; i++) {
		free(p->prompt[i].ids);
		free(p->prompt[i].stop);
		free(p->prompt[i].bias);
		json_decref(p->prompt[i].object);
	}
	free(p->prompt);
	*p = (struct odm_prompts){ 0 };
}

/* ---- Reading ---- */

/* A slip of the pen must not change a text without a word. */
static int check_fields(json_t *o, const char *where, struct od_err *err)
{
	const char *key;
	json_t *value;

	json_object_foreach(o, key, value)
	{
		size_t i = 0;

		while (fields[i] != NULL && strcmp(fields[i], key) != 0)
			i++;
		if (fields[i] == NULL)
			return od_fail(
				err, OD_ERR_FORMAT,
				"%s: field \"%s\": expected prompt, max_tokens, temperature, top_k, "
				"top_p, min_p, frequency_penalty, presence_penalty, logit_bias, seed, stop, logprobs or "
				"prompt_logprobs",
				where, key);
	}
	return OD_OK;
}

static int add_stop(struct odm_prompt *q, const json_t *s, const char *where, struct od_err *err)
{
	if (!json_is_string(s) || json_string_length(s) == 0 || strlen(json_string_value(s)) != json_string_length(s))
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: field \"stop\": expected a text, or a list of texts, none of them empty", where);
	q->stop[q->n_stop++] = json_string_value(s);
	return OD_OK;
}

static int read_stop(struct odm_prompt *q, const json_t *o, const char *where, struct od_err *err)
{
	const json_t *stop = json_object_get(o, "stop");
	const size_t n = json_is_array(stop) ? json_array_size(stop) : 1;
	int rc = OD_OK;

	if (!od_json_has(o, "stop"))
		return OD_OK;
	if (n > MAX_STOPS)
		return od_fail(err, OD_ERR_RANGE, "%s: field \"stop\": expected at most %d texts, found %zu", where,
			       MAX_STOPS, n);
	q->stop = calloc(n + 1, sizeof(*q->stop));
	if (q->stop == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", where);
	if (!json_is_array(stop))
		return add_stop(q, stop, where, err);
	for (size_t i = 0; rc == OD_OK && i < n; i++)
		rc = add_stop(q, json_array_get(stop, i), where, err);
	return rc;
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
			 uint64_t max_tokens, const char *where, struct od_err *err)
{
	struct od_sampler_opts *s = &q->sampling;
	int rc = OD_OK;

	*s = *other;
	s->logit_bias = q->bias;
	s->n_logit_bias = q->n_bias;
	q->max_tokens = max_tokens;
	if (od_json_has(o, "max_tokens"))
		rc = od_json_u64(o, "max_tokens", 0, MAX_TOKENS, &q->max_tokens, where, err);
	if (rc == OD_OK)
		rc = od_json_f64_or(o, "temperature", 0, 1000, other->temperature, &s->temperature, where, err);
	if (rc == OD_OK)
		rc = od_json_u32_or(o, "top_k", 0, UINT32_MAX, other->top_k, &s->top_k, where, err);
	if (rc == OD_OK)
		rc = od_json_f64_or(o, "top_p", 0, 1, other->top_p, &s->top_p, where, err);
	if (rc == OD_OK)
		rc = od_json_f64_or(o, "min_p", 0, 1, other->min_p, &s->min_p, where, err);
	if (rc == OD_OK)
		rc = od_json_f64_or(o, "frequency_penalty", -OD_MAX_PENALTY, OD_MAX_PENALTY, other->frequency_penalty,
				    &s->frequency_penalty, where, err);
	if (rc == OD_OK)
		rc = od_json_f64_or(o, "presence_penalty", -OD_MAX_PENALTY, OD_MAX_PENALTY, other->presence_penalty,
				    &s->presence_penalty, where, err);
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
		rc = read_sampling(o, q, &greedy, 0, where, err);
	return rc == OD_OK ? read_stop(q, o, where, err) : rc;
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

int odm_prompts_encode(struct odm_prompts *p, const struct od_tokenizer *t, uint32_t ctx,
		       const struct od_sampler_opts *sampling, uint64_t max_tokens, const char *const *stop,
		       size_t n_stop, struct od_err *err)
{
	char where[400];
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < p->n; i++) {
		struct odm_prompt *q = &p->prompt[i];

		snprintf(where, sizeof(where), "%s, line %zu", p->path, q->line);
		rc = read_sampling(q->object, q, sampling, max_tokens, where, err);
		if (rc == OD_OK && q->stop == NULL && n_stop > 0) {
			q->stop = calloc(n_stop, sizeof(*q->stop));
			if (q->stop == NULL)
				return od_fail(err, OD_ERR_NOMEM, "%s: no memory", where);
			memcpy(q->stop, stop, n_stop * sizeof(*q->stop));
			q->n_stop = n_stop;
		}
		if (rc == OD_OK)
			rc = encode(p, q, t, ctx, err);
	}
	return rc;
}
